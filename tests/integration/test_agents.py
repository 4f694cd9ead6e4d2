"""Agents from spawn to kill, with each launcher: on the test's event loop, in threads, and in separate processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from orch import Config, Limits, ScriptedBackend, SubagentsConfig, ToolContext, tool
from orch_protocol.core.errors import (
    AgentBusyError,
    AgentDiedError,
    AgentGoneError,
    AgentNotFoundError,
    AmbiguousRefError,
    BackendError,
    BadReplyError,
    ConfigError,
    LockedError,
    NoResultError,
    QueryTimeoutError,
    ToolNotGrantedError,
)
from orch_protocol.core.messages import Usage, assistant, text_of, user
from orch_worker.session.session_reader import read_session

Open = Any
SLOW = {"text": "slow", "sleep": 60}
NEST = ["spawn_subagent", "query_subagent", "collect_subagent", "list_subagents", "kill_subagent", "read_file"]


def nesting(**more: Any) -> Config:
    return Config(subagents=SubagentsConfig(allow_nested=True, **more))


async def test_agent_answers_and_remembers_earlier_queries(world: Open) -> None:
    """Queries are turns of one conversation, and the transcript contains the whole conversation."""
    o = await world()
    agent = await o.spawn("say things", backend=ScriptedBackend(["one", "two"]))
    assert (await agent.query("first")).text == "one"
    reply = await agent.query("second")
    assert (reply.text, reply.stop_reason, reply.steps, reply.tool_calls) == ("two", "end_turn", 1, 0)
    row = await agent.state()
    assert (row.status, row.queries, row.depth, row.model) == ("idle", 2, 1, "scripted")
    texts = [text_of(message) for message in read_session(Path(row.folder)).messages]
    assert texts[0].endswith("first")
    assert texts[1:] == ["one", "second", "two"]
    assert "say things" in texts[0]


async def test_tool_call_runs_in_the_agents_folder(world: Open, tmp_path: Path) -> None:
    """The tool resolves relative paths in the agent's folder, and the reply counts the call."""
    (tmp_path / "note.txt").write_text("the sky is green\n")
    o = await world()
    script = [{"tool": "read_file", "input": {"path": "note.txt"}}, "done"]
    agent = await o.spawn("read", backend=ScriptedBackend(script), cwd=tmp_path)
    reply = await agent.query("go")
    assert (reply.text, reply.tool_calls, reply.steps) == ("done", 1, 2)
    shown = await agent.show()
    assert any("the sky is green" in str(message) for message in shown.messages)


async def test_extractive_backend_quotes_its_source(world: Open, tmp_path: Path) -> None:
    """Without a model, the answer is a quotation with file and line."""
    (tmp_path / "notes.md").write_text("# Notes\n\nThe launch code is kept in vault seven.\n")
    o = await world()
    agent = await o.spawn("answer about this folder", cwd=tmp_path)
    reply = await agent.query("Where is the launch code kept?")
    assert "vault seven" in reply.text
    assert "notes.md:3" in reply.text


async def test_python_function_is_a_tool(world: Open) -> None:
    """A function runs in the program with the context of the calling agent, and the model receives its exceptions."""
    calls = []

    def weigh(thing: str, context: ToolContext) -> str:
        """Weigh a thing."""
        calls.append((thing, context.agent_id))
        if thing == "air":
            raise ValueError("too light")
        return f"{thing}: 3 kg"

    @tool
    async def wait_a_bit() -> str:
        """Wait."""
        await asyncio.sleep(0)
        return "waited"

    script = [
        {
            "tools": [
                {"tool": "weigh", "input": {"thing": "stone"}},
                {"tool": "weigh", "input": {"thing": "air"}},
                {"tool": "weigh", "input": {"wrong": 1}},
                {"tool": "wait_a_bit"},
            ]
        },
        "done",
    ]
    o = await world()
    agent = await o.spawn("weigh", backend=ScriptedBackend(script), tools=[weigh, wait_a_bit])
    await agent.query("go")
    results = str((await agent.show()).messages)
    for expected in ("stone: 3 kg", "too light", "Invalid arguments for weigh", "waited"):
        assert expected in results
    assert sorted(calls) == [("air", agent.id), ("stone", agent.id)]


async def test_seeded_history_precedes_the_first_query(world: Open) -> None:
    """The messages of `history=` begin the conversation, and use up no item of the script."""
    o = await world()
    history = [user("my name is Ada"), assistant("Hello Ada")]
    agent = await o.spawn("chat", backend=ScriptedBackend(["still first item"]), history=history)
    assert (await agent.query("who am I?")).text == "still first item"
    shown = await agent.show()
    assert shown.messages[:2] == tuple(history)


async def test_second_query_is_refused_and_answers_are_collected_once(world: Open) -> None:
    """A query to a busy agent raises AgentBusyError, and `again=True` returns a collected answer again."""
    o = await world()
    agent = await o.spawn("work", backend=ScriptedBackend([{"text": "a", "sleep": 0.05}, "b"]))
    with pytest.raises(NoResultError):
        await agent.collect()
    future = agent.submit("first")
    await asyncio.sleep(0)
    with pytest.raises(AgentBusyError, match="first"):
        await agent.query("second")
    assert await agent.collect(timeout=0) is None
    assert (await agent.collect()).text == "a"
    assert (await future).text == "a"
    with pytest.raises(NoResultError, match="collected by the user"):
        await agent.collect()
    assert (await agent.collect(again=True)).text == "a"
    assert (await agent.query("third")).text == "b"


async def test_timeout_of_a_waiter_leaves_the_agent_working(world: Open) -> None:
    """After a QueryTimeoutError the agent is busy, and its answer can be collected later."""
    o = await world()
    agent = await o.spawn("work", backend=ScriptedBackend([{"text": "late", "sleep": 0.2}]))
    with pytest.raises(QueryTimeoutError, match="orch collect 1"):
        await agent.query("go", timeout=0.01)
    assert (await agent.state()).status == "busy"
    assert (await agent.collect()).text == "late"


async def test_wait_for_any_all_or_a_number_of_agents(world: Open) -> None:
    """`wait` returns the done and the pending agents. A timeout is a result, and an invalid mode is a ConfigError."""
    o = await world()
    quick = await o.spawn("quick", backend=ScriptedBackend(["done"]))
    slow = await o.spawn("slow", backend=ScriptedBackend([SLOW]))
    futures = [quick.submit("go"), slow.submit("go")]
    await asyncio.sleep(0)
    waited = await o.wait(quick, slow, mode="any")
    assert (waited.done, waited.pending) == ((quick.id,), (slow.id,))
    waited = await o.wait(quick, slow, timeout=0.01)
    assert waited.pending == (slow.id,)
    assert (await o.wait(quick, slow, mode=1)).done == (quick.id,)
    with pytest.raises(ConfigError, match="invalid mode 3 for 2 agents"):
        await o.wait(quick, slow, mode=3)
    await slow.kill()
    assert (await futures[0]).text == "done"
    with pytest.raises(AgentGoneError):
        await futures[1]


async def test_backend_error_fails_the_query_and_not_the_agent(world: Open) -> None:
    """The query raises the error of the backend, and the next query is answered."""
    script = [{"error": "RateLimitError", "message": "slow down"}, "fine"]
    o = await world()
    agent = await o.spawn("work", backend=ScriptedBackend(script))
    with pytest.raises(BackendError, match="slow down"):
        await agent.query("go")
    assert (await agent.query("again")).text == "fine"


async def test_turn_ends_at_its_step_and_time_limits(world: Open) -> None:
    """The stop reason of the reply names the limit."""
    o = await world()
    again = {"loop": [{"tool": "list_files", "input": {}}]}
    busy = await o.spawn("loop", backend=ScriptedBackend([again]), limits=Limits(max_turns=3))
    reply = await busy.query("go")
    assert (reply.stop_reason, reply.steps) == ("max_turns", 3)
    slow = await o.spawn("slow", backend=ScriptedBackend([SLOW]), limits=Limits(turn_seconds=0.05))
    assert (await slow.query("go")).stop_reason == "timeout"


async def test_killed_agent_refuses_queries_until_resumed(world: Open) -> None:
    """A killed agent keeps its transcript and usage, and is listed with `all=True` only."""
    o = await world()
    agent = await o.spawn("work", backend=ScriptedBackend(["one", "two"]), name="worker")
    await agent.query("first")
    used = (await agent.state()).usage
    await agent.kill()
    row = await agent.state()
    assert (row.status, row.usage, row.pid) == ("killed", used, None)
    assert used != Usage()
    with pytest.raises(AgentGoneError, match="orch resume 1"):
        await agent.query("second")
    assert await o.agents() == []
    assert [row.name for row in await o.agents(all=True)] == ["worker"]
    await agent.resume()
    assert (await agent.query("second")).text == "two"


async def test_death_in_a_turn_is_reported_and_the_agent_revived(world: Open) -> None:
    """The query raises AgentDiedError, and the next query informs the agent of the interruption."""
    o = await world()
    called = asyncio.Event()

    async def hang() -> None:
        """Never return."""
        called.set()
        await asyncio.Event().wait()

    agent = await o.spawn("work", backend=ScriptedBackend(["one", {"tool": "hang"}, "three"]), tools=[hang])
    await agent.query("first")
    future = agent.submit("second")
    await called.wait()
    _, process = o.supervisor.workers.processes[agent.id]
    process.kill()
    with pytest.raises(AgentDiedError, match="died during a turn"):
        await future
    assert (await agent.state()).status == "died"
    assert (await agent.query("third")).text == "three"
    texts = [text_of(message) for message in (await agent.show()).messages]
    assert any("cut short" in text for text in texts)


async def test_agents_are_found_by_number_id_prefix_and_name(world: Open) -> None:
    """An unknown reference raises AgentNotFoundError with a suggestion, and an ambiguous one AmbiguousRefError."""
    o = await world()
    one = await o.spawn("a", backend=ScriptedBackend(["x"]), name="scout")
    two = await o.spawn("b", backend=ScriptedBackend(["x"]))
    for ref in (1, "1", one.id, one.id[:8], "scout", " scout "):
        assert (await o.get(ref)).id == one.id
    assert (await o.get("agent-2")).id == two.id
    for ref in ("7", "", "nobody", "scuot"):
        with pytest.raises(AgentNotFoundError):
            await o.get(ref)
    with pytest.raises(AgentNotFoundError, match="did you mean 'scout'"):
        await o.get("scuot")
    taken = {one.id[0], two.id[0]}
    while len({agent[0] for agent in taken}) == len(taken) and len(taken) < 7:
        taken.add((await o.spawn("c", backend=ScriptedBackend(["x"]))).id)
        heads = [id[0] for id in taken if len(id) > 1]
        if len(heads) > len(set(heads)):
            break
    ids = [row.id for row in await o.agents()]
    shared = next(id[0] for id in ids if sum(other[0] == id[0] for other in ids) > 1)
    with pytest.raises(AmbiguousRefError, match=f"'{shared}' is a prefix of"):
        await o.get(shared)


async def test_invalid_spawns_are_refused_with_reasons(world: Open, tmp_path: Path) -> None:
    """An invalid spawn raises an error that names the invalid value, and creates no agent."""
    o = await world()
    script = ScriptedBackend(["x"])
    for error, match, options in [
        (ConfigError, "Unknown preset 'wrok'", {"preset": "wrok"}),
        (ToolNotGrantedError, "Unknown tool 'raed_file'.*Did you mean 'read_file'", {"tools": ["raed_file"]}),
        (ConfigError, "unknown provider 'gpt'", {"model": "gpt:5"}),
        (ConfigError, "does not exist", {"cwd": tmp_path / "missing"}),
        (ConfigError, "invalid name 'a b'", {"name": "a b"}),
        (ConfigError, "sequence number", {"name": "12"}),
        (ConfigError, "template must be one of .*lean.*; got 'big'", {"template": "big"}),
    ]:
        options = options if "model" in options else {"backend": script} | options
        with pytest.raises(error, match=match):
            await o.spawn("task", **options)
    with pytest.raises(ConfigError, match="the task of the agent is empty"):
        await o.spawn("  ")
    assert await o.agents(all=True) == []


@pytest.mark.parametrize("prompt", ["", " \n"])
async def test_empty_prompt_is_refused(world: Open, prompt: str) -> None:
    """The query raises ConfigError, and the agent stays idle."""
    o = await world()
    agent = await o.spawn("work", backend=ScriptedBackend(["x"]))
    with pytest.raises(ConfigError, match="prompt for agent 'agent-1' is empty"):
        await agent.query(prompt)
    assert (await agent.state()).status == "idle"


async def test_ten_megabyte_and_undecodable_prompts_are_answered(world: Open) -> None:
    """The conversation contains both prompts, with a replacement character for the undecodable part."""
    o = await world()
    agent = await o.spawn("echo", backend=ScriptedBackend([{"text": "big"}, {"text": "odd"}]))
    assert (await agent.query("x" * 10_000_000)).text == "big"
    assert (await agent.query("a \ud800 b")).text == "odd"
    shown = await agent.show()
    assert len(text_of(shown.messages[0])) > 10_000_000
    assert text_of(shown.messages[2]) == "a \N{REPLACEMENT CHARACTER} b"


async def test_agent_spawns_and_queries_a_subagent(world: Open, tmp_path: Path) -> None:
    """The subagent is one level deeper, the parent's usage includes its usage, and killing the parent ends both."""
    (tmp_path / "a.txt").write_text("The password is swordfish.\n")
    script = [
        {"tool": "spawn_subagent", "input": {"task": "look", "tools": ["read_file"], "query": "What is the password?"}},
        "done",
    ]
    o = await world(config=nesting())
    parent = await o.spawn("lead", backend=ScriptedBackend(script), tools=NEST, cwd=tmp_path)
    assert (await parent.query("go")).text == "done"
    rows = await o.agents()
    assert [(row.depth, row.parent_id) for row in rows] == [(1, None), (2, parent.id)]
    assert rows[0].tree_usage == rows[0].usage + rows[1].usage
    assert rows[1].cwd == str(tmp_path)
    assert await o.kill(parent.id) == (rows[1].id, parent.id)
    assert await o.agents() == []


@pytest.mark.parametrize(
    ("config", "depth", "expected"),
    [
        (Config(), 1, "nested spawning is off"),
        (nesting(depth_cap=1), 1, "depth cap 1 reached; report that you are blocked"),
    ],
    ids=["nesting-off", "depth-cap"],
)
async def test_nesting_limits_are_explained_to_the_model(
    world: Open, config: Config, depth: int, expected: str
) -> None:
    """The result of the refused call names the limit, and no subagent is created."""
    script = [{"tool": "spawn_subagent", "input": {"task": "deeper"}}, "done"]
    o = await world(config=config)
    agent = await o.spawn("lead", backend=ScriptedBackend(script), tools=NEST)
    await agent.query("go")
    assert expected in str((await agent.show()).messages)
    assert len(await o.agents()) == depth


async def test_agent_grants_only_its_own_tools(world: Open) -> None:
    """A subagent with a tool that its parent does not have is refused."""
    script = [{"tool": "spawn_subagent", "input": {"task": "x", "tools": ["grep_files"]}}, "done"]
    o = await world(config=nesting())
    agent = await o.spawn("lead", backend=ScriptedBackend(script), tools=["spawn_subagent", "read_file"])
    await agent.query("go")
    assert "cannot grant 'grep_files'" in str((await agent.show()).messages)


async def test_agent_may_kill_its_descendants_only(world: Open) -> None:
    """A call that kills another agent is refused, and that agent stays idle."""
    o = await world(config=nesting())
    other = await o.spawn("other", backend=ScriptedBackend(["x"]))
    script = [{"tool": "kill_subagent", "input": {"id": other.id}}, "done"]
    agent = await o.spawn("rogue", backend=ScriptedBackend(script), tools=NEST)
    await agent.query("go")
    assert (await other.state()).status == "idle"
    assert "may only kill" in str((await agent.show()).messages)


async def test_reopened_run_has_all_its_agents(world: Open) -> None:
    """The run restores ids, numbers, names, results and conversations, and its agents answer."""
    first = await world(run="kept")
    agent = await first.spawn("work", backend=ScriptedBackend(["one", "two"]), name="keeper")
    killed = await first.spawn("other", backend=ScriptedBackend(["x"]))
    await agent.query("first")
    await killed.kill()
    before = await agent.state()
    await first.close()
    second = await world(run="kept")
    row = (await second.agents())[0]
    assert (row.id, row.seq, row.name, row.status, row.usage, row.cwd) == (
        before.id,
        1,
        "keeper",
        "cold",
        before.usage,
        before.cwd,
    )
    again = await second.get("keeper")
    assert (await again.collect(again=True)).text == "one"
    assert (await again.query("second")).text == "two"
    assert (await second.get(killed.id)).id == killed.id
    assert (await second.spawn("third", backend=ScriptedBackend(["x"]))).seq == 3


async def test_run_has_one_root(world: Open) -> None:
    """A second root raises LockedError with the pid of the owner, and the first root continues."""
    first = await world(run="mine")
    with pytest.raises(LockedError, match=str(os.getpid())):
        await world(run="mine")
    agent = await first.spawn("work", backend=ScriptedBackend(["fine"]))
    assert (await agent.query("go")).text == "fine"


async def test_unnamed_run_leaves_only_transcripts(world: Open, home: Path) -> None:
    """Closing the root removes the folder of an unnamed run."""
    o = await world()
    agent = await o.spawn("work", backend=ScriptedBackend(["fine"]))
    await agent.query("go")
    await o.close()
    assert list((home / "runs").iterdir()) == []
    assert (home / "sessions" / agent.id / "session.jsonl").exists()


async def test_closed_orchestrator_raises_for_waiters_and_callers(world: Open) -> None:
    """A pending query raises AgentDiedError, and a new call raises ConfigError."""
    o = await world()
    agent = await o.spawn("work", backend=ScriptedBackend([SLOW]))
    future = agent.submit("go")
    await asyncio.sleep(0)
    await o.close()
    with pytest.raises(AgentDiedError, match="closed"):
        await future
    with pytest.raises(ConfigError, match="not running"):
        await o.spawn("more")


@pytest.mark.parametrize("world", ["zygote"], indirect=True)
async def test_query_right_after_an_idle_death_is_answered(world: Open) -> None:
    """The query starts a new process, even if the root has not noticed the death."""
    o = await world()
    agent = await o.spawn("work", backend=ScriptedBackend(["one", "two"]))
    await agent.query("first")
    assert agent.pid
    os.kill(agent.pid, signal.SIGKILL)
    assert (await agent.query("second", timeout=30)).text == "two"
    assert [text_of(message) for message in (await agent.show()).messages][-2:] == ["second", "two"]


@pytest.mark.parametrize("world", ["zygote"], indirect=True)
async def test_sigkill_in_a_turn_affects_one_agent_only(world: Open) -> None:
    """The query fails, other agents answer, and the killed agent continues from its transcript."""
    called = asyncio.Event()

    async def hang() -> None:
        """Never return."""
        called.set()
        await asyncio.Event().wait()

    o = await world()
    agent = await o.spawn("work", backend=ScriptedBackend(["one", {"tool": "hang"}, "three"]), tools=[hang])
    other = await o.spawn("other", backend=ScriptedBackend(["fine"]))
    await agent.query("first")
    future = agent.submit("second")
    await called.wait()
    assert agent.pid
    os.kill(agent.pid, signal.SIGKILL)
    with pytest.raises(AgentDiedError, match="signal 9"):
        await future
    assert (await other.query("go")).text == "fine"
    assert (await agent.query("third")).text == "three"


class Weather(Struct):
    """The type of a typed reply."""

    place: str
    degrees: int


async def test_reply_is_parsed_as_the_requested_type(world: Open) -> None:
    """The value may be in a fence or in text. After one invalid reply the agent is asked again, after two BadReplyError
    is raised.
    """
    o = await world()
    good = 'Here:\n```json\n{"place": "Oslo", "degrees": 5}\n```'
    long = json.dumps([*range(5000)])
    agent = await o.spawn("weather", backend=ScriptedBackend([good, "warm", good, "warm", "hot", long]))
    assert await agent.query("Oslo?", returns=Weather) == Weather("Oslo", 5)
    assert await agent.query("Oslo?", returns=Weather) == Weather("Oslo", 5)
    with pytest.raises(BadReplyError, match=r"agent 'agent-1' .* two attempts.* malformed.* Last reply: 'hot'"):
        await agent.query("Oslo?", returns=Weather)
    assert await agent.query("Count.", returns=list[int]) == [*range(5000)]  # longer than the text limit of a reply
    texts = [text_of(message) for message in (await agent.show()).messages]
    assert '"degrees"' in texts[0]
    assert any(text.startswith("That is not the JSON value") for text in texts)


def damage(path: Path) -> None:
    """Replace the second line of the file by garbage."""
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = b"garbage\n"
    path.write_bytes(b"".join(lines))


async def test_transcript_damage_is_reported_in_the_agent_record(world: Open) -> None:
    """The agent's state names the damaged line, and the agent continues with the rest of its conversation."""
    o = await world()
    agent = await o.spawn("work", backend=ScriptedBackend(["one", "two"]))
    await agent.query("first")
    path = Path((await agent.state()).folder, "session.jsonl")
    _, process = o.supervisor.workers.processes[agent.id]
    process.kill()
    await asyncio.wait({process.ended})
    damage(path)
    assert (await agent.query("second")).text == "two"
    assert "line 2" in (await agent.state()).repaired
