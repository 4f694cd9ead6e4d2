"""Agents from spawn to kill, the same on the test's own loop, in threads and in processes of their own."""

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
    ConcurrencyLimitError,
    ConfigError,
    LockedError,
    NoResultError,
    QueryTimeoutError,
    ToolNotGrantedError,
)
from orch_protocol.core.messages import Usage, assistant, text_of, user
from orch_worker.session.transcript import read_session

Open = Any
SLOW = {"text": "slow", "sleep": 60}
NEST = ["spawn_subagent", "query_subagent", "collect_subagent", "list_subagents", "kill_subagent", "read_file"]


def nesting(**more: Any) -> Config:
    return Config(subagents=SubagentsConfig(allow_nested=True, **more))


async def test_an_agent_answers_and_remembers(world: Open) -> None:
    """Queries are turns of one conversation; the transcript on disk holds all of it."""
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


async def test_a_tool_call_runs_in_the_agents_folder(world: Open, tmp_path: Path) -> None:
    """The model's call is answered with the file that is there, and counted in the reply."""
    (tmp_path / "note.txt").write_text("the sky is green\n")
    o = await world()
    script = [{"tool": "read_file", "input": {"path": "note.txt"}}, "done"]
    agent = await o.spawn("read", backend=ScriptedBackend(script), cwd=tmp_path)
    reply = await agent.query("go")
    assert (reply.text, reply.tool_calls, reply.steps) == ("done", 1, 2)
    shown = await agent.show()
    assert any("the sky is green" in str(message) for message in shown.messages)


async def test_the_extractive_backend_answers_with_its_source(world: Open, tmp_path: Path) -> None:
    """With no model at all, an answer is a quotation with file and line."""
    (tmp_path / "notes.md").write_text("# Notes\n\nThe launch code is kept in vault seven.\n")
    o = await world()
    agent = await o.spawn("answer about this folder", cwd=tmp_path)
    reply = await agent.query("Where is the launch code kept?")
    assert "vault seven" in reply.text
    assert "notes.md:3" in reply.text


async def test_a_function_of_this_program_is_a_tool(world: Open) -> None:
    """A closure runs here, sees the context of the agent that calls, and its errors are the model's to read."""
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


async def test_seeded_history_is_the_agents_past(world: Open) -> None:
    """Messages given at spawn come before the first query, in the conversation and on disk."""
    o = await world()
    history = [user("my name is Ada"), assistant("Hello Ada")]
    agent = await o.spawn("chat", backend=ScriptedBackend(["still first item"]), history=history)
    assert (await agent.query("who am I?")).text == "still first item"
    shown = await agent.show()
    assert shown.messages[:2] == tuple(history)


async def test_one_query_at_a_time_and_each_answer_once(world: Open) -> None:
    """A second query is refused while one runs; an answer is collected once and can be read again."""
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
    with pytest.raises(NoResultError, match="taken by the user"):
        await agent.collect()
    assert (await agent.collect(again=True)).text == "a"
    assert (await agent.query("third")).text == "b"


async def test_a_timeout_fails_the_waiter_and_not_the_agent(world: Open) -> None:
    """The agent works on, and its answer is collected later."""
    o = await world()
    agent = await o.spawn("work", backend=ScriptedBackend([{"text": "late", "sleep": 0.2}]))
    with pytest.raises(QueryTimeoutError, match="orch collect 1"):
        await agent.query("go", timeout=0.01)
    assert (await agent.state()).status == "busy"
    assert (await agent.collect()).text == "late"


async def test_waiting_for_several_agents(world: Open) -> None:
    """Any, all, or so many; and a time limit is an answer, not an error."""
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


async def test_a_backend_error_fails_the_query_and_spares_the_agent(world: Open) -> None:
    """The error has its own class, and the next query is answered."""
    script = [{"error": "RateLimitError", "message": "slow down"}, "fine"]
    o = await world()
    agent = await o.spawn("work", backend=ScriptedBackend(script))
    with pytest.raises(BackendError, match="slow down"):
        await agent.query("go")
    assert (await agent.query("again")).text == "fine"


async def test_a_turn_ends_at_its_limits(world: Open) -> None:
    """Steps and seconds are bounded, and the stop reason says which bound it was."""
    o = await world()
    again = {"loop": [{"tool": "list_files", "input": {}}]}
    busy = await o.spawn("loop", backend=ScriptedBackend([again]), limits=Limits(max_turns=3))
    reply = await busy.query("go")
    assert (reply.stop_reason, reply.steps) == ("max_turns", 3)
    slow = await o.spawn("slow", backend=ScriptedBackend([SLOW]), limits=Limits(turn_seconds=0.05))
    assert (await slow.query("go")).stop_reason == "timeout"


async def test_killing_is_final_until_resumed(world: Open) -> None:
    """A killed agent keeps its transcript and its usage, answers nothing, and goes on after resume."""
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


async def test_a_death_in_a_turn_is_told_and_survived(world: Open) -> None:
    """The query fails with AgentDiedError; the next one revives the agent, which knows that it was cut short."""
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
    with pytest.raises(AgentDiedError, match="died in the middle of a turn"):
        await future
    assert (await agent.state()).status == "died"
    assert (await agent.query("third")).text == "three"
    texts = [text_of(message) for message in (await agent.show()).messages]
    assert any("cut short" in text for text in texts)


async def test_agents_are_found_by_number_id_prefix_and_name(world: Open) -> None:
    """What does not name exactly one agent is an error that helps."""
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
    with pytest.raises(AmbiguousRefError, match=f"'{shared}' is the beginning of"):
        await o.get(shared)


async def test_bad_spawns_are_refused_with_reasons(world: Open, tmp_path: Path) -> None:
    """Each error says what, which and what to do; no agent and no process comes of it."""
    o = await world(config=Config(subagents=SubagentsConfig(max_concurrent=1)))
    script = ScriptedBackend(["x"])
    for error, match, options in [
        (ConfigError, "Unknown preset 'wrok'", {"preset": "wrok"}),
        (ToolNotGrantedError, "Unknown tool 'raed_file'.*Did you mean 'read_file'", {"tools": ["raed_file"]}),
        (ConfigError, "unknown provider 'gpt'", {"model": "gpt:5"}),
        (ConfigError, "does not exist", {"cwd": tmp_path / "missing"}),
        (ConfigError, "name 'a b' does not do", {"name": "a b"}),
        (ConfigError, "sequence number", {"name": "12"}),
    ]:
        options = options if "model" in options else {"backend": script} | options
        with pytest.raises(error, match=match):
            await o.spawn("task", **options)
    with pytest.raises(ConfigError, match="the task of the agent is empty"):
        await o.spawn("  ")
    assert await o.agents(all=True) == []
    await o.spawn("one", backend=script)
    with pytest.raises(ConcurrencyLimitError, match=r"subagents\.max_concurrent is 1"):
        await o.spawn("two", backend=script)


@pytest.mark.parametrize("prompt", ["", " \n"])
async def test_an_empty_prompt_is_refused(world: Open, prompt: str) -> None:
    """Nothing is asked, and the agent stays idle."""
    o = await world()
    agent = await o.spawn("work", backend=ScriptedBackend(["x"]))
    with pytest.raises(ConfigError, match="prompt for agent 'agent-1' is empty"):
        await agent.query(prompt)
    assert (await agent.state()).status == "idle"


async def test_a_prompt_of_ten_megabytes_and_one_of_lone_surrogates(world: Open) -> None:
    """Both arrive, are recorded, and are answered."""
    o = await world()
    agent = await o.spawn("echo", backend=ScriptedBackend([{"text": "big"}, {"text": "odd"}]))
    assert (await agent.query("x" * 10_000_000)).text == "big"
    assert (await agent.query("a \ud800 b")).text == "odd"
    shown = await agent.show()
    assert len(text_of(shown.messages[0])) > 10_000_000
    assert text_of(shown.messages[2]) == "a \N{REPLACEMENT CHARACTER} b"


async def test_an_agent_spawns_and_asks_its_own(world: Open, tmp_path: Path) -> None:
    """A child of a child is the root's own, one deeper, and its usage rolls up; killing the parent ends both."""
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
async def test_the_limits_on_nesting_reach_the_model(world: Open, config: Config, depth: int, expected: str) -> None:
    """The tool's result tells the model why, and that it is to report it."""
    script = [{"tool": "spawn_subagent", "input": {"task": "deeper"}}, "done"]
    o = await world(config=config)
    agent = await o.spawn("lead", backend=ScriptedBackend(script), tools=NEST)
    await agent.query("go")
    assert expected in str((await agent.show()).messages)
    assert len(await o.agents()) == depth


async def test_an_agent_grants_no_more_than_it_holds(world: Open) -> None:
    """A child with a wider tool is refused, whatever the child's preset is called."""
    script = [{"tool": "spawn_subagent", "input": {"task": "x", "tools": ["grep_files"]}}, "done"]
    o = await world(config=nesting())
    agent = await o.spawn("lead", backend=ScriptedBackend(script), tools=["spawn_subagent", "read_file"])
    await agent.query("go")
    assert "cannot grant 'grep_files'" in str((await agent.show()).messages)


async def test_an_agent_may_not_kill_its_betters(world: Open) -> None:
    """Only what it spawned is an agent's to end."""
    o = await world(config=nesting())
    other = await o.spawn("other", backend=ScriptedBackend(["x"]))
    script = [{"tool": "kill_subagent", "input": {"id": other.id}}, "done"]
    agent = await o.spawn("rogue", backend=ScriptedBackend(script), tools=NEST)
    await agent.query("go")
    assert (await other.state()).status == "idle"
    assert "may only kill" in str((await agent.show()).messages)


async def test_a_run_that_is_opened_again_has_all_its_agents(world: Open) -> None:
    """Ids, numbers, names, results and conversations survive the root; the idle answer again."""
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


async def test_two_roots_cannot_have_one_run(world: Open) -> None:
    """The second is told who has it, and the first goes on."""
    first = await world(run="mine")
    with pytest.raises(LockedError, match=str(os.getpid())):
        await world(run="mine")
    agent = await first.spawn("work", backend=ScriptedBackend(["fine"]))
    assert (await agent.query("go")).text == "fine"


async def test_an_unnamed_run_leaves_transcripts_and_nothing_else(world: Open, home: Path) -> None:
    """The run folder goes with the program; what agents said stays."""
    o = await world()
    agent = await o.spawn("work", backend=ScriptedBackend(["fine"]))
    await agent.query("go")
    await o.close()
    assert list((home / "runs").iterdir()) == []
    assert (home / "sessions" / agent.id / "session.jsonl").exists()


async def test_a_closed_orchestrator_says_so(world: Open) -> None:
    """Whoever waited is told; whoever asks is told."""
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
async def test_a_query_right_after_the_death_of_an_idle_agent_is_answered(world: Open) -> None:
    """The root may not have heard of the death when it sends the query; the next process answers it all the same."""
    o = await world()
    agent = await o.spawn("work", backend=ScriptedBackend(["one", "two"]))
    await agent.query("first")
    assert agent.pid
    os.kill(agent.pid, signal.SIGKILL)
    assert (await agent.query("second", timeout=30)).text == "two"
    assert [text_of(message) for message in (await agent.show()).messages][-2:] == ["second", "two"]


@pytest.mark.parametrize("world", ["zygote"], indirect=True)
async def test_a_process_killed_in_a_turn_takes_nothing_with_it(world: Open) -> None:
    """SIGKILL in the middle of a turn: the query is told, the others go on, the agent answers from its transcript."""
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
    """What a typed reply is read as."""

    place: str
    degrees: int


async def test_a_reply_is_a_value_of_the_type_that_was_asked_for(world: Open) -> None:
    """In a fence or with prose around it; a wrong one is asked for again, once."""
    o = await world()
    good = 'Here:\n```json\n{"place": "Oslo", "degrees": 5}\n```'
    long = json.dumps([*range(5000)])
    agent = await o.spawn("weather", backend=ScriptedBackend([good, "warm", good, "warm", "hot", long]))
    assert await agent.query("Oslo?", returns=Weather) == Weather("Oslo", 5)
    assert await agent.query("Oslo?", returns=Weather) == Weather("Oslo", 5)
    with pytest.raises(BadReplyError, match=r"agent 'agent-1' .* two attempts.* malformed.* Last reply: 'hot'"):
        await agent.query("Oslo?", returns=Weather)
    assert await agent.query("Count.", returns=list[int]) == [*range(5000)]  # longer than a reply's text may be
    texts = [text_of(message) for message in (await agent.show()).messages]
    assert '"degrees"' in texts[0]
    assert any(text.startswith("That is not the JSON value") for text in texts)


def damage(path: Path) -> None:
    """Put garbage in the place of the second line."""
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = b"garbage\n"
    path.write_bytes(b"".join(lines))


async def test_a_damaged_transcript_is_told(world: Open) -> None:
    """What had to be skipped when an agent was revived is in its row; the rest of its memory is there."""
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
