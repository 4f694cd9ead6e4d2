"""The OpenAI Agents SDK with archival, against a strict model server."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from frameworks.world import (
    PICTURE,
    RECALLS,
    Sent,
    check_apart,
    check_guide,
    check_names,
    check_prefixes,
    damage,
    full_disk,
    log_of,
    messages_of,
    serving,
)
from orch.integrations.openai_agents import Archival
from orch_protocol.core.errors import ConfigError
from wire.model_server import Answer, Request, call, say
from wire.model_server_beside import reads_files

agents: Any = pytest.importorskip("agents", reason="openai-agents is not installed: make external")
pytestmark = pytest.mark.external


@pytest.fixture(autouse=True)
def _no_traces() -> None:
    agents.set_tracing_disabled(True)


@contextmanager
def served(model: Callable[[Request], Answer] = reads_files) -> Iterator[Sent]:
    """Start a model server. The SDK gets a client of its own, because its usual one belongs to one event loop."""
    with serving(model) as sent:
        agents.set_default_openai_client(openai.AsyncOpenAI(), use_for_tracing=False)
        yield sent


@pytest.fixture
def sent() -> Iterator[Sent]:
    """The requests that a model server got."""
    with served() as sent:
        yield sent


def read_file(path: str) -> str:
    """Read a file."""
    return log_of(path)


def new_agent(name: str = "reader", **options: Any) -> Any:
    """Return an agent with a tool."""
    tools = [agents.function_tool(read_file)]
    return agents.Agent(name=name, model="gpt-5.5", instructions="Read.", tools=tools, **options)


def new_archival(folder: Path, **options: Any) -> Archival:
    """Return an Archival whose problems fail the test."""
    return Archival(folder, warn=fail, **options)


def fail(problem: str) -> None:
    """Fail the test."""
    raise AssertionError(problem)


async def talk(agent: Any, run_config: Any, session: Any, prompts: list[str], *, stream: bool = False) -> str:
    """Run the agent for each prompt, and return the last output."""
    output = ""
    for prompt in prompts:
        if stream:
            running = agents.Runner.run_streamed(agent, prompt, session=session, run_config=run_config)
            async for _ in running.stream_events():
                pass
            output = running.final_output
        else:
            output = (await agents.Runner.run(agent, prompt, session=session, run_config=run_config)).final_output
    return output


FILES = [f"Read day{number}.log" for number in range(5)]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_session_keeps_everything_and_the_model_gets_records(
    stream: bool, sent: Sent, tmp_path: Path
) -> None:
    """Requests stay small. Recalls of the model are answered by tools, which the session contains."""
    agent, session = new_agent(), agents.SQLiteSession("one")
    run_config = new_archival(tmp_path).run_config(agent)
    output = await talk(agent, run_config, session, [*FILES, "Find 'day2.log: pressure 7'"], stream=stream)
    sent.check()
    check_prefixes(sent)
    assert "(turn 3, " in output
    assert "day2.log" in output
    history = json.dumps(await session.get_items())
    assert all(f"day{number}.log: pressure 899 bar" in history for number in range(5))
    assert "[archived turn]" not in history
    assert '"name": "search_archive"' in history
    assert len(sent.requests[-1]) < len(history) / 10
    assert sent.tools() == ["read_file", *RECALLS]


def test_blocking_runs_work(sent: Sent, tmp_path: Path) -> None:
    """`run_sync` with the history of the last result as input."""
    agent, history = new_agent(), list[Any]()
    run_config = new_archival(tmp_path).run_config(agent)
    for prompt in FILES:
        result = agents.Runner.run_sync(agent, [*history, {"role": "user", "content": prompt}], run_config=run_config)
        history = result.to_input_list()
    sent.check()
    assert len(json.dumps(history)) > 3 * len(sent.requests[-1])


async def test_after_a_restart_requests_begin_as_before(sent: Sent, tmp_path: Path) -> None:
    """A new program sends the same records for the same history, and its recalls find them."""
    database = tmp_path / "sessions.db"
    for prompts in (FILES, ["Say hello", "Find 'day2.log: pressure 7'"]):
        agent, archival = new_agent(), new_archival(tmp_path / "archives")
        session = agents.SQLiteSession("one", database)
        output = await talk(agent, archival.run_config(agent), session, prompts)
        archival.close()
        session.close()
    sent.check()
    assert "day2.log" in output
    before, after = (messages_of(sent.bodies[place])[:8] for place in (len(FILES) * 2 - 1, len(FILES) * 2))
    assert before == after


async def test_conversations_at_once_are_not_mixed(sent: Sent, tmp_path: Path) -> None:
    """Two sessions that begin with the same prompts; each finds only its own files."""
    agent = new_agent()
    run_config = new_archival(tmp_path).run_config(agent)
    shared = ["Say hello", "Say hello again"]

    async def one(name: str) -> str:
        files = [f"Read {name}{number}.log" for number in range(4)]
        session = agents.SQLiteSession(name)
        return await talk(agent, run_config, session, [*shared, *files, "Find 'pressure 7 bar'"])

    outputs = await asyncio.gather(one("alpha"), one("bravo"))
    sent.check()
    check_apart(sent, ("alpha", "bravo"))
    assert "alpha" in outputs[0]
    assert "alpha" not in outputs[1]


async def test_handoffs_and_agents_as_tools(tmp_path: Path) -> None:
    """The agent that takes over gets the records and can search; an agent used as a tool has its own conversation."""

    def model(request: Request) -> Answer:
        items = request.body["input"]
        if "Hand over" in json.dumps(items[-1]):
            return call({"call": "transfer_to_second", "input": {}})
        if "Ask the helper" in json.dumps(items[-1]):
            return call({"call": "helper", "input": {"input": "Read helper.log"}})
        if items[-1].get("type") == "function_call_output" and "transfer" in json.dumps(items[-2:]):
            return say("I am the second agent.")
        return reads_files(request)

    with served(model) as sent:
        second, helper = new_agent("second"), new_agent("helper")
        first = new_agent(handoffs=[second])
        archival = new_archival(tmp_path)
        run_config = archival.run_config(first, second, helper)
        first.tools = [*first.tools, helper.as_tool("helper", "Helps.", run_config=run_config)]
        session = agents.SQLiteSession("one")
        assert "second" in await talk(first, run_config, session, [*FILES, "Hand over"])
        sent.check()
        assert "day2" in await talk(second, run_config, session, ["Find 'day2.log: pressure 7'"])
        assert "helper.log" in await talk(first, run_config, session, ["Ask the helper"])
        sent.check()
        asked = [each for each in sent.requests if "helper.log" in each and "day2" not in each]
        assert asked
        assert not any("[archived turn]" in each for each in asked)


async def test_parallel_calls_structured_output_and_images(tmp_path: Path) -> None:
    """Recall calls beside calls of the agent, a schema for the output, and an image in a prompt."""

    def model(request: Request) -> Answer:
        last = json.dumps(request.body["input"][-1])
        if "both at once" in last:
            search = {"call": "search_archive", "input": {"query": "day1.log: pressure 7"}}
            return call(search, {"call": "read_file", "input": {"path": "x.log"}}, {"call": "nothing", "input": {}})
        if "json_schema" in json.dumps(request.body.get("text")):
            return say('{"days": 5}')
        return reads_files(request)

    def nothing() -> str:
        """Do nothing."""
        return "nothing"

    class Days(agents.AgentOutputSchemaBase):  # type: ignore[misc]
        def is_plain_text(self) -> bool:
            return False

        def name(self) -> str:
            return "Days"

        def json_schema(self) -> dict[str, Any]:
            return {"type": "object", "properties": {"days": {"type": "integer"}}}

        def is_strict_json_schema(self) -> bool:
            return False

        def validate_json(self, json_str: str) -> Any:
            return json.loads(json_str)

    with served(model) as sent:
        agent = new_agent()
        agent.tools = [*agent.tools, agents.function_tool(nothing)]
        run_config = new_archival(tmp_path).run_config(agent)
        session = agents.SQLiteSession("one")
        image = {"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}", "detail": "auto"}
        prompt = [{"role": "user", "content": [{"type": "input_text", "text": "Say hello"}, image]}]
        keep = agents.RunConfig(session_input_callback=lambda old, new: [*old, *new])
        await agents.Runner.run(agent, prompt, session=session, run_config=archival_config(run_config, keep))
        output = await talk(agent, run_config, session, [*FILES, "Do both at once"])
        sent.check()
        assert "x.log" in output
        assert "day1.log" in output
        assert PICTURE in json.dumps(await session.get_items())
        agent.output_type = Days()
        result = await agents.Runner.run(agent, "How many?", session=session, run_config=run_config)
        assert result.final_output == {"days": 5}
        sent.check()


def archival_config(run_config: Any, other: Any) -> Any:
    """Return `other` with the filter of `run_config`."""
    other.call_model_input_filter = run_config.call_model_input_filter
    return other


async def test_short_conversations_do_not_change(tmp_path: Path) -> None:
    """Where archiving does not pay, requests contain the same input."""
    inputs = []
    for archived in (True, False):
        with served() as sent:
            agent = new_agent()
            run_config = new_archival(tmp_path).run_config(agent) if archived else None
            await talk(agent, run_config, agents.SQLiteSession("one"), ["Say hello", "Say it again", "And again"])
            inputs.append([body["input"] for body in sent.bodies])
    assert inputs[0] == inputs[1]


async def test_problems_let_requests_pass_with_a_warning(sent: Sent, tmp_path: Path) -> None:
    """A full disk and damaged files: the run continues."""
    warnings: list[str] = []
    agent, session = new_agent(), agents.SQLiteSession("one")
    archival = Archival(tmp_path, warn=warnings.append)
    with full_disk():
        await talk(agent, archival.run_config(agent), session, FILES[:3])
    assert warnings
    sent.check(folded=False)
    archival.close()
    archival = Archival(tmp_path, warn=warnings.append)
    await talk(agent, archival.run_config(agent), session, FILES[3:])
    archival.close()
    damage(tmp_path)
    warnings.clear()
    archival = Archival(tmp_path, warn=warnings.append)
    assert await talk(agent, archival.run_config(agent), session, ["Read last.log"]) == "last.log: pressure 0 bar"
    assert warnings


async def test_agents_without_recall_tools_are_reported(
    sent: Sent, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Their requests pass unchanged, because they could not read the archives."""
    agent, archival = new_agent(), Archival(tmp_path)
    run_config = archival.run_config()
    with caplog.at_level(logging.WARNING, "orch.integrations"):
        await talk(agent, run_config, agents.SQLiteSession("one"), FILES)
    sent.check(folded=False)
    assert [record.message for record in caplog.records if record.name == "orch.integrations"] == [
        "the agent 'reader' has no recall tools, so its requests pass unchanged: add Archival.tools"
    ]


async def test_the_fields_and_the_filter_of_a_run_config_are_kept(sent: Sent, tmp_path: Path) -> None:
    """A filter of the program gets the archived input."""
    seen: list[int] = []

    def mine(data: Any) -> Any:
        seen.append(len(json.dumps(data.model_data.input, default=str)))
        return data.model_data

    agent = new_agent()
    base = agents.RunConfig(workflow_name="mine", call_model_input_filter=mine)
    run_config = new_archival(tmp_path).run_config(agent, base=base)
    assert run_config.workflow_name == "mine"
    await talk(agent, run_config, agents.SQLiteSession("one"), FILES)
    sent.check()
    assert seen[-1] < 40_000


async def test_an_approved_call_continues_an_interrupted_run(tmp_path: Path) -> None:
    """A run stops for the approval of a call beside a recall; a later run answers both."""

    def model(request: Request) -> Answer:
        if "both at once" in json.dumps(request.body["input"][-1]):
            search = {"call": "search_archive", "input": {"query": "day1.log: pressure 7"}}
            return call(search, {"call": "risky", "input": {}})
        return reads_files(request)

    def risky() -> str:
        """Do it."""
        return "done it"

    with served(model) as sent:
        agent = new_agent()
        agent.tools = [*agent.tools, agents.function_tool(risky, needs_approval=True)]
        run_config = new_archival(tmp_path).run_config(agent)
        session = agents.SQLiteSession("one")
        await talk(agent, run_config, session, FILES)
        result = await agents.Runner.run(agent, "Do both at once", session=session, run_config=run_config)
        (waiting,) = result.interruptions
        state = result.to_state()
        state.approve(waiting)
        result = await agents.Runner.run(agent, state, session=session, run_config=run_config)
        assert "done it" in result.final_output
        assert "day1.log" in result.final_output
        sent.check()


async def test_a_later_archival_replaces_the_tools_of_an_earlier_one(sent: Sent, tmp_path: Path) -> None:
    """In a notebook, a cell runs again. Another tool with the name of a recall tool is an error."""
    agent, session = new_agent(), agents.SQLiteSession("one")
    for place in ("first", "second"):
        run_config = new_archival(tmp_path / place).run_config(agent)
    await talk(agent, run_config, session, [*FILES, "Find 'day2.log: pressure 7'"])
    sent.check()
    assert sent.tools() == ["read_file", *RECALLS]

    def search_archive(query: str) -> str:
        """Search my own archive."""
        return query

    agent.tools = [agents.function_tool(search_archive)]
    with pytest.raises(ConfigError, match="'reader' has a tool named 'search_archive': give it another name"):
        new_archival(tmp_path).run_config(agent)


def test_an_unknown_profile_is_an_error(tmp_path: Path) -> None:
    """The error names the profiles."""
    make: Callable[..., Any] = Archival
    with pytest.raises(Exception, match="unknown profile 'tiny'"):
        make(tmp_path, "tiny")


def test_the_programs_of_the_guide_run(tmp_path: Path) -> None:
    """They print what the page shows."""
    check_guide("openai_agents", tmp_path)


def test_the_page_for_users_of_the_framework_names_what_it_has() -> None:
    """Each name of the framework in docs/start/coming_from.md exists."""
    check_names("OpenAI Agents SDK", agents)
