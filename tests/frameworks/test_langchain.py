"""LangChain agents with archival, alone, in a LangGraph graph and as deepagents, against a strict model server."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

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
from orch.integrations.langchain import archival
from wire.model_server import Answer, Request, call, say
from wire.model_server_beside import reads_files

pytest.importorskip("langchain.agents", reason="langchain is not installed: make external")
pytestmark = pytest.mark.external

MODELS = {"anthropic": "anthropic:claude-sonnet-5-5", "openai": "openai:gpt-5.5"}
FILES = [f"Read day{number}.log" for number in range(5)]


def without_thinking(request: Request) -> Answer:
    """Answer as `reads_files`. LangChain's class for OpenAI does not return the reasoning of other models."""
    answer = reads_files(request)
    return structs.replace(answer, blocks=tuple(block for block in answer.blocks if "thinking" not in block))


@pytest.fixture
def sent(request: pytest.FixtureRequest) -> Iterator[Sent]:
    """The requests that a model server got."""
    is_openai = "model" in request.fixturenames and request.getfixturevalue("model") == "openai"
    with serving(without_thinking if is_openai else reads_files) as sent:
        yield sent


def read_file(path: str) -> str:
    """Read a file."""
    return log_of(path)


def new_agent(middleware: list[Any], model: str = "anthropic", **options: Any) -> Any:
    """Return an agent with a tool. Its threads are kept in memory, unless `options` contain a checkpointer."""
    from langchain.agents import create_agent
    from langgraph.checkpoint.memory import InMemorySaver

    options = {"checkpointer": InMemorySaver()} | options
    return create_agent(MODELS[model], tools=[read_file], middleware=middleware, system_prompt="Read.", **options)


def new_archival(folder: Path, **options: Any) -> Any:
    """Return a middleware whose problems fail the test."""
    return archival(folder, warn=fail, **options)


def fail(problem: str) -> None:
    """Fail the test."""
    raise AssertionError(problem)


def thread(name: str) -> Any:
    """Return the configuration of a thread."""
    return {"configurable": {"thread_id": name}}


def prompt(content: Any) -> Any:
    """Return the input of a run."""
    return {"messages": [{"role": "user", "content": content}]}


def talk(agent: Any, name: str, prompts: list[str]) -> list[Any]:
    """Run the agent for each prompt, and return the messages of the thread."""
    state: Any = {}
    for each in prompts:
        state = agent.invoke(prompt(each), thread(name))
    messages: list[Any] = state["messages"]
    return messages


async def talk_async(agent: Any, name: str, prompts: list[str]) -> str:
    """Run the agent in an event loop with a stream, and return the text of the last message."""
    for each in prompts:
        async for _ in agent.astream(prompt(each), thread(name), stream_mode="messages"):
            pass
    state = await agent.aget_state(thread(name))
    return str(state.values["messages"][-1].text)


def history_of(messages: list[Any]) -> str:
    """Return messages as text."""
    return json.dumps([message.model_dump() for message in messages], default=str)


@pytest.mark.parametrize("model", MODELS)
def test_the_state_keeps_everything_and_the_model_gets_records(model: str, sent: Sent, tmp_path: Path) -> None:
    """Requests stay small. Recalls of the model are answered by tools, which the state contains."""
    agent = new_agent([new_archival(tmp_path)], model)
    messages = talk(agent, "one", [*FILES, "Find 'day2.log: pressure 7'"])
    sent.check()
    check_prefixes(sent)
    assert "(turn 3, " in messages[-1].text
    history = history_of(messages)
    assert all(f"day{number}.log: pressure 899 bar" in history for number in range(5))
    assert "[archived turn]" not in history
    assert any(call["name"] == "search_archive" for call in messages[-3].tool_calls)
    assert len(sent.requests[-1]) < len(history) / 10
    assert sent.tools() == ["read_file", *RECALLS]


@pytest.mark.parametrize("model", MODELS)
async def test_conversations_at_once_are_not_mixed(model: str, sent: Sent, tmp_path: Path) -> None:
    """Two streamed threads that begin with the same prompts; each finds only its own files."""
    agent = new_agent([new_archival(tmp_path)], model)

    async def one(name: str) -> str:
        files = [f"Read {name}{number}.log" for number in range(4)]
        return await talk_async(agent, name, ["Say hello", "Say it again", *files, "Find 'pressure 7 bar'"])

    outputs = await asyncio.gather(one("alpha"), one("bravo"))
    sent.check()
    check_apart(sent, ("alpha", "bravo"))
    assert "alpha" in outputs[0]
    assert "alpha" not in outputs[1]


def test_conversations_without_thread_are_not_mixed(sent: Sent, tmp_path: Path) -> None:
    """Without a checkpointer, the program passes its whole history. The exact messages select the archives."""
    agent = new_agent([new_archival(tmp_path)], checkpointer=None)
    for name in ("alpha", "bravo"):
        messages: list[Any] = []
        for each in ["Say hello", *[f"Read {name}{number}.log" for number in range(5)], "Find 'pressure 7 bar'"]:
            messages = agent.invoke({"messages": [*messages, {"role": "user", "content": each}]})["messages"]
        sent.check()
        assert name in messages[-1].text
    check_apart(sent, ("alpha", "bravo"))


def test_after_a_restart_requests_begin_as_before(sent: Sent, tmp_path: Path) -> None:
    """A new program sends the same records for the same thread, and its recalls find them."""
    from langgraph.checkpoint.memory import InMemorySaver

    saver = InMemorySaver()
    for prompts in (FILES, ["Say hello", "Find 'day2.log: pressure 7'"]):
        middleware = new_archival(tmp_path)
        messages = talk(new_agent([middleware], checkpointer=saver), "one", prompts)
        middleware.close()
    sent.check()
    assert "day2.log" in messages[-1].text
    before, after = (messages_of(sent.bodies[place])[:8] for place in (len(FILES) * 2 - 1, len(FILES) * 2))
    assert before == after


def test_a_call_that_waited_for_a_restart_is_answered(tmp_path: Path) -> None:
    """A person approves a recall after the program was started again."""
    from langchain.agents.middleware import HumanInTheLoopMiddleware
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.types import Command

    saver = InMemorySaver()
    with serving() as sent:
        for prompts in ([*FILES, "Find 'day2.log: pressure 7'"], []):
            middleware = new_archival(tmp_path)
            asks = HumanInTheLoopMiddleware(interrupt_on={"search_archive": True})
            agent = new_agent([middleware, asks], checkpointer=saver)
            if prompts:
                talk(agent, "one", prompts)
                assert "bar" not in agent.get_state(thread("one")).values["messages"][-1].text
            else:
                state = agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), thread("one"))
                assert "day2.log" in state["messages"][-1].text
            middleware.close()
        sent.check()


def test_parallel_calls_images_and_structured_output(tmp_path: Path) -> None:
    """Recall calls beside calls of the agent, images of each kind, thinking with signatures, and a schema."""
    from langchain.agents.structured_output import ToolStrategy
    from langgraph.checkpoint.memory import InMemorySaver

    schema = {"title": "Days", "type": "object", "properties": {"days": {"type": "integer"}}}

    def model(request: Request) -> Answer:
        last = json.dumps(request.body["messages"][-1])
        if "tool_result" in last:
            return reads_files(request)
        if "How many" in last:
            return call({"call": "Days", "input": {"days": 5}})
        if "both at once" in last:
            search = {"call": "search_archive", "input": {"query": "day1.log: pressure 7"}}
            return call(search, {"call": "read_file", "input": {"path": "x.log"}}, text="Both.", thinking="Both?")
        return reads_files(request)

    image = {"type": "image", "base64": PICTURE, "mime_type": "image/png"}
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}
    with serving(model) as sent:
        saver, middleware = InMemorySaver(), [new_archival(tmp_path)]
        agent = new_agent(middleware, checkpointer=saver)
        agent.invoke(prompt([{"type": "text", "text": "Say hello"}, image]), thread("one"))
        agent.invoke(prompt([{"type": "text", "text": "Say hello"}, url]), thread("one"))
        messages = talk(agent, "one", [*FILES, "Do both at once"])
        assert "x.log" in messages[-1].text
        assert "day1.log" in messages[-1].text
        sent.check()
        agent = new_agent(middleware, checkpointer=saver, response_format=ToolStrategy(schema))
        state = agent.invoke(prompt("How many?"), thread("one"))
        assert state["structured_response"] == {"days": 5}
        sent.check()
        assert PICTURE in history_of(state["messages"])


def test_short_conversations_do_not_change(tmp_path: Path) -> None:
    """Where archiving does not pay, requests have the same bytes, and no recall tools."""
    requests = []
    for middleware in ([new_archival(tmp_path)], []):
        with serving() as sent:
            talk(new_agent(middleware), "one", ["Say hello", "Say it again", "And again"])
            sent.check(folded=False)
            requests.append(sent.bodies)
    assert requests[0] == requests[1]


def test_problems_let_requests_pass_with_a_warning(sent: Sent, tmp_path: Path) -> None:
    """A full disk and damaged files: the run continues."""
    warnings: list[str] = []

    def run(prompts: list[str]) -> str:
        middleware = archival(tmp_path, warn=warnings.append)
        messages = talk(new_agent([middleware], checkpointer=saver), "one", prompts)
        middleware.close()
        return str(messages[-1].text)

    from langgraph.checkpoint.memory import InMemorySaver

    saver = InMemorySaver()
    with full_disk():
        run(FILES[:3])
    assert warnings
    sent.check(folded=False)
    run(FILES[3:])
    damage(tmp_path)
    warnings.clear()
    assert run(["Read last.log"]) == "last.log: pressure 0 bar"
    assert warnings


def test_without_its_folder_a_conversation_continues(sent: Sent, tmp_path: Path) -> None:
    """A thread with recall calls keeps the recall tools, because servers refuse calls without tools."""
    from langgraph.checkpoint.memory import InMemorySaver

    saver = InMemorySaver()
    middleware = new_archival(tmp_path)
    talk(new_agent([middleware], checkpointer=saver), "one", [*FILES, "Find 'day2.log: pressure 7'"])
    middleware.close()
    talk(new_agent([archival(tmp_path, "off")], checkpointer=saver), "one", ["Say hello"])
    sent.check(folded=False)
    assert sent.tools() == ["read_file", *RECALLS]


def test_messages_of_an_unknown_kind_pass(tmp_path: Path) -> None:
    """A conversation with a message that the middleware cannot read is sent as it is."""
    from langchain_core.messages import ChatMessage

    with serving(without_thinking) as sent:
        agent = new_agent([new_archival(tmp_path)], "openai")
        agent.invoke({"messages": [ChatMessage(role="user", content="Say hello")]}, thread("one"))
        talk(agent, "one", FILES)
        sent.check(folded=False)


def test_an_agent_in_a_graph_is_archived(sent: Sent, tmp_path: Path) -> None:
    """An agent as a node of a LangGraph graph, whose checkpointer keeps its state."""
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import START, MessagesState, StateGraph

    graph = StateGraph(MessagesState)
    graph.add_node("reader", new_agent([new_archival(tmp_path)], checkpointer=None))
    graph.add_edge(START, "reader")
    messages = talk(graph.compile(checkpointer=InMemorySaver()), "one", [*FILES, "Find 'day2.log: pressure 7'"])
    sent.check()
    assert "day2.log" in messages[-1].text


@pytest.mark.parametrize("name", ["Archival", "SummarizationMiddleware"])
def test_deepagents_and_their_subagents_are_archived(name: str, tmp_path: Path) -> None:
    """Beside deepagents' summarization, and in place of it. A subagent has a conversation of its own."""
    from deepagents import create_deep_agent
    from langgraph.checkpoint.memory import InMemorySaver

    def model(request: Request) -> Answer:
        last = json.dumps(request.body["messages"][-1])
        if "Ask the helper" in last:
            task = {"subagent_type": "helper", "description": "Read helper.log"}
            return call({"call": "task", "input": task})
        if "Read all" in last:
            return say("I will.") if "helper" in last else call({"call": "read_log", "input": {"path": "all.log"}})
        if "day" in last and "tool_result" not in last and "Read day" in last:
            return call(
                {"call": "read_log", "input": {"path": last.partition("Read ")[2].partition(".log")[0] + ".log"}}
            )
        return reads_files(request)

    def read_log(path: str) -> str:
        """Read a log."""
        return log_of(path)

    middleware = new_archival(tmp_path, name=name)
    helper = {"name": "helper", "description": "Helps.", "system_prompt": "Help.", "middleware": [middleware]}
    with serving(model) as sent:
        agent = create_deep_agent(
            MODELS["anthropic"],
            tools=[read_log],
            middleware=[middleware],
            subagents=[helper],
            checkpointer=InMemorySaver(),
        )
        messages = talk(agent, "one", [*FILES, "Ask the helper", "Find 'day2.log: pressure 7'"])
        sent.check()
        assert "day2.log" in messages[-1].text
        asked = [each for each in sent.requests if "helper.log" in each and "day2" not in each]
        assert asked
        assert not any("[archived turn]" in each for each in asked)


def test_an_unknown_profile_is_an_error(tmp_path: Path) -> None:
    """The error names the profiles."""
    make: Any = archival
    with pytest.raises(Exception, match="unknown profile 'tiny'"):
        make(tmp_path, "tiny")


def test_the_programs_of_the_guide_run(tmp_path: Path) -> None:
    """They print what the page shows."""
    check_guide("langchain", tmp_path)


def test_the_page_for_users_of_the_framework_names_what_it_has() -> None:
    """Each name of the frameworks in docs/start/coming_from.md exists."""
    langgraph = [f"langgraph.{name}" for name in ("graph", "func", "types", "pregel", "store.base")]
    names = ["langchain.agents", "langchain.agents.middleware", *langgraph]
    check_names("LangGraph and LangChain", *map(importlib.import_module, names))
