"""pydantic-ai with an HTTP client of the gateway, against a strict model server."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from pydantic import BaseModel

import orch.gateway
from frameworks.world import (
    PICTURE,
    RECALLS,
    Sent,
    check_apart,
    check_guide,
    damage,
    full_disk,
    log_of,
    messages_of,
    serving,
)
from wire.model_server import Answer, Request, call
from wire.model_server_beside import reads_files

pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed: make external")
pytestmark = pytest.mark.external

APIS = ["anthropic", "chat", "responses"]
FILES = [f"Read day{number}.log" for number in range(5)]


class Days(BaseModel):
    """The output of an agent."""

    days: int


def without_thinking(request: Request) -> Answer:
    """Answer as `reads_files`. pydantic-ai does not return the reasoning of chat completions."""
    answer = reads_files(request)
    return structs.replace(answer, blocks=tuple(block for block in answer.blocks if "thinking" not in block))


@pytest.fixture
def sent() -> Iterator[Sent]:
    """The requests that a model server got."""
    with serving(without_thinking) as sent:
        yield sent


def read_file(path: str) -> str:
    """Read a file."""
    return log_of(path)


def new_agent(folder: Path | None, api: str = "anthropic", *, warn: Any = None, **options: Any) -> Any:
    """Return an agent with a tool, and with a client of the gateway if there is a folder for it."""
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    client = orch.gateway.async_client(folder, warn=warn or fail) if folder else None
    model: Any
    if api == "anthropic":
        model = AnthropicModel("claude-sonnet-5-5", provider=AnthropicProvider(http_client=client))
    else:
        kind = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
        model = kind("gpt-5.5", provider=OpenAIProvider(http_client=client))
    return Agent(model, tools=[read_file], instructions="Read.", **options)


def fail(problem: str) -> None:
    """Fail the test."""
    raise AssertionError(problem)


async def talk(agent: Any, prompts: list[Any], history: Any = (), *, stream: bool = False) -> Any:
    """Run the agent for each prompt, and return the last result."""
    result: Any = None
    messages = list(history)
    for prompt in prompts:
        if stream:
            async with agent.run_stream(prompt, message_history=messages) as result:
                await result.get_output()
        else:
            result = await agent.run(prompt, message_history=messages)
        messages = result.all_messages()
    return result


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("api", APIS)
async def test_the_history_keeps_everything_and_the_model_gets_records(
    api: str, stream: bool, sent: Sent, tmp_path: Path
) -> None:
    """Requests stay small. The gateway answers recalls of the model, and the program does not see them."""
    result = await talk(new_agent(tmp_path, api), [*FILES, "Find 'day2.log: pressure 7'"], stream=stream)
    sent.check()
    history = result.all_messages_json().decode()
    assert "(turn 3, " in history
    assert all(f"day{number}.log: pressure 899 bar" in history for number in range(5))
    assert "[archived turn]" not in history
    assert not any(f'"{name}"' in history for name in RECALLS)
    assert len(sent.requests[-1]) < len(history) / 5
    assert sent.tools() == ["read_file", *RECALLS]


def test_blocking_runs_work(sent: Sent, tmp_path: Path) -> None:
    """`run_sync`."""
    agent, history = new_agent(tmp_path), list[Any]()
    for prompt in FILES:
        history = agent.run_sync(prompt, message_history=history).all_messages()
    sent.check()


async def test_after_a_restart_requests_begin_as_before(sent: Sent, tmp_path: Path) -> None:
    """A new program sends the same records for the same history, and its recalls find them."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    stored = b"[]"
    for prompts in (FILES, ["Say hello", "Find 'day2.log: pressure 7'"]):
        agent = new_agent(tmp_path)
        result = await talk(agent, prompts, ModelMessagesTypeAdapter.validate_json(stored))
        stored = result.all_messages_json()
        await agent.model.client.close()
    sent.check()
    assert "day2.log" in result.output
    before, after = (messages_of(sent.bodies[place])[:8] for place in (len(FILES) * 2 - 1, len(FILES) * 2))
    assert before == after


async def test_conversations_at_once_are_not_mixed(sent: Sent, tmp_path: Path) -> None:
    """Two conversations that begin with the same prompts; each finds only its own files."""
    agent = new_agent(tmp_path)

    async def one(name: str) -> str:
        files = [f"Read {name}{number}.log" for number in range(4)]
        result = await talk(agent, ["Say hello", "Say it again", *files, "Find 'pressure 7 bar'"])
        return str(result.output)

    outputs = await asyncio.gather(one("alpha"), one("bravo"))
    sent.check()
    check_apart(sent, ("alpha", "bravo"))
    assert "alpha" in outputs[0]
    assert "alpha" not in outputs[1]


async def test_agents_of_agents_have_conversations_of_their_own(tmp_path: Path) -> None:
    """A tool runs another agent with the same client."""

    def model(request: Request) -> Answer:
        last = json.dumps(request.body["messages"][-1])
        if "Ask the helper" in last and "tool_result" not in last:
            return call({"call": "ask_helper", "input": {}})
        return without_thinking(request)

    with serving(model) as sent:
        agent = new_agent(tmp_path)

        @agent.tool_plain  # type: ignore[untyped-decorator]
        async def ask_helper() -> str:
            """Ask the helper."""
            return str((await agent.run("Read helper.log")).output)

        await talk(agent, [*FILES, "Ask the helper"])
        sent.check()
        asked = [each for each in sent.requests if "helper.log" in each and "day2" not in each]
        assert asked
        assert not any("[archived turn]" in each for each in asked)


async def test_parallel_calls_images_and_structured_output(tmp_path: Path) -> None:
    """Recall calls beside calls of the agent, an image in a prompt, and a schema for the output."""
    from pydantic_ai import BinaryContent

    def model(request: Request) -> Answer:
        last = json.dumps(request.body["messages"][-1])
        if "tool_result" in last:
            return without_thinking(request)
        if "How many" in last:
            return call({"call": "final_result", "input": {"days": 5}})
        if "both at once" in last:
            search = {"call": "search_archive", "input": {"query": "day1.log: pressure 7"}}
            return call(search, {"call": "read_file", "input": {"path": "x.log"}})
        return without_thinking(request)

    with serving(model) as sent:
        agent = new_agent(tmp_path)
        image = BinaryContent(base64.b64decode(PICTURE), media_type="image/png")
        result = await talk(agent, [["Say hello", image], *FILES, "Do both at once"])
        assert "x.log" in result.output
        assert any("day1.log: pressure 7 bar" in json.dumps(body["messages"][-1]) for body in sent.bodies[-1:])
        sent.check()
        result = await agent.run("How many?", message_history=result.all_messages(), output_type=Days)
        assert result.output == Days(days=5)
        sent.check()
        assert PICTURE in result.all_messages_json().decode()


async def test_short_conversations_do_not_change(tmp_path: Path) -> None:
    """Where archiving does not pay, requests have the same bytes."""
    requests = []
    for folder in (tmp_path, None):
        with serving() as sent:
            await talk(new_agent(folder), ["Say hello", "Say it again", "And again"])
            requests.append(sent.requests)
    assert requests[0] == requests[1]


async def test_problems_let_requests_pass_with_a_warning(sent: Sent, tmp_path: Path) -> None:
    """A full disk and damaged files: the run continues."""
    warnings: list[str] = []

    async def run(prompts: list[str], history: Any = ()) -> Any:
        agent = new_agent(tmp_path, warn=warnings.append)
        result = await talk(agent, prompts, history)
        await agent.model.client.close()
        return result

    with full_disk():
        result = await run(FILES[:3])
    assert warnings
    sent.check(folded=False)
    result = await run(FILES[3:], result.all_messages())
    damage(tmp_path)
    warnings.clear()
    result = await run(["Read last.log"], result.all_messages())
    assert "last.log: pressure 0 bar" in result.output
    assert warnings


def test_the_programs_of_the_guide_run(tmp_path: Path) -> None:
    """They print what the page shows."""
    check_guide("pydantic_ai", tmp_path)
