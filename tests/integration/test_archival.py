"""Finished turns of running agents are archived in holders, and all archived messages can be read back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from integration.worlds import AND_PROCESSES, Open, worlds
from orch import ArchivalConfig, AsyncOrchestrator, AsyncSubagent, Config, Limits, ScriptedBackend, SubagentsConfig
from orch.sessions.daily_usage import daily_usage
from orch_protocol.agent.config import TriggerConfig
from orch_protocol.core.errors import AgentNotFoundError, ConfigError, StoreError
from orch_protocol.core.messages import Reply, text_of
from orch_protocol.wire.worker_messages import TurnEvent
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.session_reader import read_session

LOOK = {"tools": [{"tool": "read_file", "input": {"path": "note.txt"}}, {"tool": "list_files", "input": {}}]}
ANSWER = "The sky over port 4711 is green."


def archiving(**more: Any) -> Config:
    """Return a configuration that archives each turn with two calls before its reply."""
    given = {"enabled": True, "async_": False, "profile": "seed", "trigger": TriggerConfig(tool_call_threshold=2)}
    return Config(archival=ArchivalConfig(**(given | more)), subagents=SubagentsConfig(allow_nested=True))


@pytest.fixture(params=["fake"])
async def world(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[Open]:
    """A function that opens orchestrators. Tests that need processes have the mark AND_PROCESSES."""
    async with worlds(request.param, home) as open_one:
        yield open_one


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a note."""
    (tmp_path / "note.txt").write_text("port = 4711\nthe sky is green, says Señor Žluťoučký\n")
    return tmp_path


async def asked(o: AsyncOrchestrator, folder: Path, *more: Any, summaries: Any = ()) -> tuple[AsyncSubagent, Reply]:
    """Return an agent whose first turn is archived, and the reply of that turn."""
    script = ScriptedBackend([LOOK, ANSWER, *more], summaries)
    agent = await o.spawn("look around", tools=["read_file", "list_files"], backend=script, cwd=folder)
    return agent, await agent.query("what about the sky?")


def texts_of(messages: Any) -> list[str]:
    return [text_of(message) for message in messages]


@AND_PROCESSES
async def test_finished_turn_becomes_prompt_and_record(world: Open, folder: Path) -> None:
    """The record contains the holder's id, the file that was read, and the answer of the turn."""
    o = await world(config=archiving())
    agent, reply = await asked(o, folder)
    assert reply.text == ANSWER
    shown = await agent.show()
    assert texts_of(shown.messages)[0].endswith("what about the sky?")
    stub = texts_of(shown.messages)[1]
    assert stub.startswith(f"[archived turn]\nsubagent_id: {reply.archived_to}\n\n")
    assert "note.txt" in stub
    assert stub.endswith(ANSWER)
    assert len(shown.messages) == 2


async def test_archived_messages_are_read_back_exactly(world: Open, folder: Path) -> None:
    """`archives.read` returns every message of the turn with calls and results, and accepts a prefix of the id."""
    o = await world(config=archiving())
    agent, reply = await asked(o, folder)
    messages = await o.archives.read(reply.archived_to or "")
    assert [message.role for message in messages] == ["user", "assistant", "user", "assistant"]
    assert "Señor Žluťoučký" in str(messages[2])
    assert await o.archives.read((reply.archived_to or "")[:6], first=4) == messages[3:]
    (row,) = await o.archives.list()
    assert (row.id, row.owner, row.kind, row.task) == (reply.archived_to, agent.id, "turn", "what about the sky?")
    assert (row.messages, row.turns, row.calls) == (4, 1, 2)


@pytest.mark.parametrize("query", ["4711", "note.txt", "Señor Žluťoučký", "sky is green", "rt = 47"])
async def test_every_archived_detail_is_found(world: Open, folder: Path, query: str) -> None:
    """Search finds numbers, paths, non-English words and parts of words, and each hit names its entry."""
    o = await world(config=archiving())
    _, reply = await asked(o, folder)
    hits = await o.archives.search(query)
    assert hits[0].exact
    assert hits[0].id == reply.archived_to
    (message,) = await o.archives.read(hits[0].id, first=hits[0].entry, last=hits[0].entry)
    assert query in str(message)


async def test_holder_answers_from_its_archive(world: Open, folder: Path) -> None:
    """The answer names the entry. A holder starts without a process, and is listed with `all=True` only."""
    o = await world(config=archiving())
    agent, reply = await asked(o, folder)
    holder = await o.get(reply.archived_to or "")
    row = await holder.state()
    assert (row.status, row.kind, row.parent_id, row.depth, row.tools) == ("cold", "holder", agent.id, 1, ())
    answer = await holder.query("which port?")
    assert "4711" in answer.text
    assert "entry" in answer.text
    again = await holder.query("what of Žluťoučký?")
    assert "Señor" in again.text
    assert [row.id for row in await o.agents()] == [agent.id]
    assert holder.id in [row.id for row in await o.agents(all=True)]


@AND_PROCESSES
async def test_agent_recalls_its_own_archives(world: Open, folder: Path) -> None:
    """Archival grants the search tool, and a hit becomes part of the conversation."""
    o = await world(config=archiving(trigger=TriggerConfig(tool_call_threshold=2)))
    agent, reply = await asked(o, folder, {"tool": "search_archive", "input": {"query": "4711"}}, "found")
    await agent.query("where was the port?")
    shown = str((await agent.show()).messages)
    assert f"{reply.archived_to} entry" in shown


@AND_PROCESSES
async def test_summary_replaces_the_receipt(world: Open, folder: Path) -> None:
    """The record contains the model's summary, and the agent's usage includes the request for the summary."""
    o = await world(config=archiving(profile="seed"))
    summaries = ['{"outcome": "The port is known.", "key_findings": ["port 4711"]}']
    agent, reply = await asked(o, folder, summaries=summaries)
    stub = texts_of((await agent.show()).messages)[1]
    assert stub.startswith(
        f"[archived turn]\nsubagent_id: {reply.archived_to}\n\nOutcome: The port is known.\n- port 4711"
    )
    assert stub.endswith(ANSWER)
    assert (await o.archives.list())[0].summarized
    state = await agent.state()
    assert state.usage.output_tokens > reply.usage.output_tokens
    days = daily_usage(Path(state.folder).parent, folder / "costs.json").values()
    assert sum(model.requests for day in days for model in day.models.values()) == state.usage.model_calls


async def test_invalid_summary_is_requested_once_more(world: Open, folder: Path) -> None:
    """A valid second summary is used. After a second invalid one the receipt stays."""
    o = await world(config=archiving())
    agent, _ = await asked(o, folder, summaries=["no json", '{"outcome": "Mended."}'])
    assert "Outcome: Mended." in texts_of((await agent.show()).messages)[1]
    other, _ = await asked(o, folder, summaries=["no json", "nor this", {"error": "BackendError"}])
    assert "Read: note.txt" in texts_of((await other.show()).messages)[1]


async def test_turn_at_its_step_limit_continues_from_its_archives(world: Open, folder: Path) -> None:
    """A turn that continues twice has one reply. Its earlier parts are archived, and the later ones see the records."""
    o = await world(config=archiving(trigger=TriggerConfig(tool_call_threshold=99)))
    read = {"tool": "read_file", "input": {"path": "note.txt"}}
    script = ScriptedBackend([read] * 5 + ["It is green.", {"echo": True}])
    limits = Limits(max_turns=2, continuations=2)
    agent = await o.spawn("look around", tools=["read_file"], backend=script, cwd=folder, limits=limits)
    events: list[TurnEvent] = []
    reply = await agent.query("what about the sky?", on_event=events.append)
    assert (reply.text, reply.stop_reason, reply.steps, reply.tool_calls) == ("It is green.", "end_turn", 6, 5)
    assert [event.step for event in events if event.kind == "continued"] == [2, 4]
    rows = await o.archives.list()
    assert [(row.kind, row.task, row.reason) for row in rows] == [
        ("turn", "what about the sky?", "it ended at max_turns")
    ] * 2
    texts = texts_of((await agent.show(100)).messages)
    assert texts[0].endswith("Query: what about the sky?")
    assert [row.id in texts[place] for row, place in zip(rows, (1, 3), strict=True)] == [True, True]
    assert texts[2].endswith("]\n\nwhat about the sky?")
    assert "4711" not in texts[1] + texts[3]
    assert [hit.id for hit in await o.archives.search("4711")] == [rows[-1].id]  # both archives have the same line
    assert (await agent.query("thanks")).text == "thanks"


async def test_archiving_does_not_delay_the_reply(world: Open, folder: Path) -> None:
    """Archiving runs after the reply, and does not change a turn that begins during archiving."""
    o = await world(config=archiving(async_=True))
    agent, reply = await asked(o, folder, "second", "third")
    assert reply.archived_to is None
    assert (await agent.query("more?")).text == "second"
    await until(lambda: bool(o.supervisor.tree.agents[agent.id].archives))
    (event,) = [each for each in await o.events(ref=agent.id) if each.kind == "turns_archived"]
    (row,) = await o.archives.list()
    assert (event.data["holders"], event.data["turns"]) == ([row.id], {row.id: reply.query_id})
    assert (await agent.query("and?")).text == "third"
    texts = texts_of((await agent.show()).messages)
    assert texts[1].startswith("[archived turn]")
    assert texts[2:] == ["more?", "second", "and?", "third"]


async def test_agent_archives_below_the_depth_cap_only(world: Open, folder: Path) -> None:
    """An agent at depth 1 archives with a cap of 2, and does not archive with a cap of 1."""
    o = await world(config=archiving(trigger=TriggerConfig(tool_call_threshold=2, depth_cap=2)))
    agent, reply = await asked(o, folder)
    assert reply.archived_to is not None
    node = o.supervisor.tree.agents[agent.id]
    assert node.spec.depth == 1
    capped = await world(config=archiving(trigger=TriggerConfig(tool_call_threshold=2, depth_cap=1)), home=folder / "h")
    _, kept = await asked(capped, folder)
    assert kept.archived_to is None


@AND_PROCESSES
async def test_archives_survive_a_restart_of_the_root(world: Open, folder: Path) -> None:
    """After the restart, archives are found and queried, and the conversation contains the records."""
    o = await world(config=archiving(), run="kept")
    agent, reply = await asked(o, folder, {"echo": True})
    await o.close()
    o = await world(config=archiving(), run="kept")
    assert [row.id for row in await o.archives.list()] == [reply.archived_to]
    assert (await o.archives.search("4711"))[0].id == reply.archived_to
    assert "4711" in (await (await o.get(reply.archived_to or "")).query("which port?")).text
    again = await o.get(agent.id)
    assert (await again.query("and now?")).text == "and now?"
    assert texts_of((await again.show()).messages)[1].startswith("[archived turn]")


async def test_archival_switched_off_keeps_existing_archives(world: Open, folder: Path) -> None:
    """Existing holders answer, and new turns are not archived."""
    o = await world(config=archiving(), run="kept")
    agent, reply = await asked(o, folder, LOOK, "looked again")
    await o.close()
    o = await world(config=Config(), run="kept")
    again = await o.get(agent.id)
    assert (await again.query("again")).archived_to is None
    assert len(await o.archives.list()) == 1
    assert "4711" in (await (await o.get(reply.archived_to or "")).query("which port?")).text


async def test_archive_missing_in_the_journal_is_found_in_the_transcript(world: Open, folder: Path) -> None:
    """The transcript determines which archives exist, and the journal only repeats them."""
    o = await world(config=archiving(), run="kept")
    _, reply = await asked(o, folder)
    journal = Path(o.supervisor._journal.log.path)
    await o.close()
    _cut_before(journal, b'"turns_archived"')
    o = await world(config=archiving(), run="kept")
    holder = await o.get(reply.archived_to or "")
    assert "4711" in (await holder.query("which port?")).text


async def test_killing_a_holder_keeps_its_archive(world: Open, folder: Path) -> None:
    """The killed holder has no process, and answers the next query."""
    o = await world(config=archiving())
    _, reply = await asked(o, folder)
    holder = await o.get(reply.archived_to or "")
    await holder.query("which port?")
    await holder.kill()
    assert (await holder.state()).status == "cold"
    assert "4711" in (await holder.query("which port?")).text


async def test_holder_survives_its_agent(world: Open, folder: Path) -> None:
    """The archives of a killed agent can be searched, and their holders answer."""
    o = await world(config=archiving())
    agent, reply = await asked(o, folder)
    await agent.kill()
    assert "4711" in (await (await o.get(reply.archived_to or "")).query("which port?")).text
    assert (await o.archives.search("4711"))[0].id == reply.archived_to


async def test_warm_holders_are_limited(world: Open, folder: Path) -> None:
    """After queries, at most `warm_holders` holders keep their process."""
    o = await world(config=archiving(warm_holders=1))
    script = ScriptedBackend([LOOK, "one", LOOK, "two", LOOK, "three"])
    agent = await o.spawn("look", tools=["read_file", "list_files"], backend=script, cwd=folder)
    holders = [(await agent.query(f"turn {number}")).archived_to or "" for number in range(3)]
    answers = await o.ask_all(holders, "which port?")
    assert all(answer.reply is not None and "4711" in answer.reply.text for answer in answers)
    nodes = o.supervisor.tree.agents
    await until(lambda: len(nodes.warm) == 1)
    assert sum(nodes[holder].status == "cold" for holder in holders) == 2


async def test_archives_do_not_count_against_the_agent_limit(world: Open, folder: Path) -> None:
    """With a limit of one agent, six archives exist and can be read."""
    config = archiving()
    o = await world(config=Config(archival=config.archival, subagents=SubagentsConfig(max_concurrent=1)))
    script = ScriptedBackend([item for number in range(6) for item in (LOOK, f"answer {number}")])
    agent = await o.spawn("look", tools=["read_file", "list_files"], backend=script, cwd=folder)
    holders = [(await agent.query(f"turn {number}")).archived_to for number in range(6)]
    assert len(set(holders)) == 6
    assert None not in holders
    for number, holder in enumerate(holders):
        messages = await o.archives.read(holder or "")
        assert text_of(messages[-1]) == f"answer {number}"


async def test_two_agents_archive_concurrently(world: Open, folder: Path) -> None:
    """Each archive belongs to the agent whose turn it contains."""
    o = await world(config=archiving())
    pairs = await asyncio.gather(*(asked(o, folder) for _ in range(4)))
    rows = await o.archives.list()
    assert {(row.owner, row.id) for row in rows} == {(agent.id, reply.archived_to) for agent, reply in pairs}


async def test_archival_tools_reach_own_archives_only(world: Open, folder: Path) -> None:
    """`query_subagent` refuses another agent and the holder of another agent."""
    o = await world(config=archiving())
    other, reply = await asked(o, folder)
    calls = [
        {"tool": "query_subagent", "input": {"id": id, "prompt": "tell me"}} for id in (other.id, reply.archived_to)
    ]
    spy = await o.spawn("spy", tools=[], backend=ScriptedBackend([{"tools": calls}, "done"]))
    await spy.query("go")
    (archived,) = [row.id for row in await o.archives.list(spy.id)]
    shown = str(await o.archives.read(archived, first=3, last=3))
    assert shown.count("may only query agents below itself and its peers") == 2


async def test_full_disk_keeps_the_turn_in_the_conversation(
    world: Open, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent's state reports the failed write, and the agent answers the next query."""
    o = await world(config=archiving())
    if type(o.supervisor.workers.launcher).__name__ not in ("FakeLauncher", "InProcessLauncher"):
        pytest.skip("the worker is in another process")
    append = AppendLog.append

    def full(log: AppendLog, *objects: bytes, sync: bool = False) -> Any:
        if any(object.startswith(b'{"type":"archive"') for object in objects):
            raise StoreError("no space left on device")
        return append(log, *objects, sync=sync)

    monkeypatch.setattr(AppendLog, "append", full)
    agent, reply = await asked(o, folder, "second")
    assert reply.archived_to is None
    assert len((await agent.show()).messages) == 4
    assert "no space left" in (await agent.state()).repaired
    assert (await agent.query("more")).text == "second"
    monkeypatch.undo()


async def test_archival_requires_subagents(world: Open) -> None:
    """A configuration with archival and without subagents is refused."""
    with pytest.raises(ConfigError, match=r"archival\.enabled = true requires subagents\.enabled"):
        await world(config=Config(archival=ArchivalConfig(enabled=True), subagents=SubagentsConfig(enabled=False)))


async def test_unknown_archive_is_not_found(world: Open, folder: Path) -> None:
    """Reading and getting an unknown archive raise AgentNotFoundError."""
    o = await world(config=archiving())
    await asked(o, folder)
    with pytest.raises(AgentNotFoundError, match="no archive 'ffffff'"):
        await o.archives.read("ffffff")
    with pytest.raises(AgentNotFoundError):
        await o.get("ffffffffffff")


async def test_archival_is_off_by_default(world: Open, folder: Path) -> None:
    """No turn is archived, and the archival tools are not offered."""
    o = await world()
    agent, reply = await asked(o, folder)
    assert reply.archived_to is None
    row = await agent.state()
    assert row.tools == ("read_file", "list_files")
    assert len(read_session(Path(row.folder)).messages) == 4


async def test_long_turn_is_archived_in_phases(world: Open, folder: Path) -> None:
    """Above the high-water mark, the oldest calls of a running turn are archived, and a record joins its prompt."""
    (folder / "big.txt").write_text("\n".join(f"line {number} of a large file" for number in range(400)))
    reading = {"tool": "read_file", "input": {"path": "big.txt"}}
    sizes = {"high_tokens": 6000, "low_tokens": 2000}
    config = archiving(profile="economy", **sizes, turns=False, gate=False, trigger=TriggerConfig())
    o = await world(config=config)
    script = ScriptedBackend([*[reading] * 12, "read it twelve times"])
    agent = await o.spawn("read", tools=["read_file"], backend=script, cwd=folder)
    assert (await agent.query("read it")).text == "read it twelve times"
    rows = await o.archives.list()
    assert rows
    assert {row.kind for row in rows} == {"phase"}
    prompt = texts_of((await agent.show()).messages)[0]
    assert prompt.count("[archived phase]") >= 1
    messages = await o.archives.read(rows[0].id)
    assert text_of(messages[0]).endswith("read it")
    assert "line 399" in str(messages[2])


async def test_many_records_merge_into_an_era(world: Open, folder: Path) -> None:
    """The messages of an era are read back exactly, and its holder answers from the records and from search."""
    o = await world(
        config=archiving(profile="economy", high_tokens=1000, low_tokens=200, rollup_tokens=300, gate=False)
    )
    turns = [
        item for number in range(16) for item in (LOOK, f"valve {number} is at {number + 500} mbar. " + "x" * 4000)
    ]
    agent = await o.spawn("look", tools=["read_file", "list_files"], backend=ScriptedBackend(turns), cwd=folder)
    for number in range(16):
        await agent.query(f"how is valve {number}?")
    rows = await o.archives.list()
    eras = [row for row in rows if row.kind == "era"]
    assert eras
    assert max(row.level for row in eras) >= 1
    assert len((await agent.show(100)).messages) < 16
    era = max(eras, key=lambda row: row.turns)
    messages = await o.archives.read(era.id)
    assert len(messages) == era.messages == 4 * era.turns
    assert [text_of(message).partition("?")[0][-2:].strip() for message in messages[::4]] == [
        str(number) for number in range(era.turns)
    ]
    assert await o.archives.read(era.id, first=6, last=9) == messages[5:9]
    for number in range(16):
        (hit, *_) = await o.archives.search(f"{number + 500} mbar")
        assert hit.exact
        (found,) = await o.archives.read(hit.id, first=hit.entry, last=hit.entry)
        assert f"valve {number} is at" in text_of(found)
    answer = await (await o.get(era.id)).query("how is valve 1?")
    assert answer.stop_reason == "end_turn"
    prompt = text_of((await (await o.get(era.id)).show()).messages[0])
    assert "501 mbar" in prompt


def _cut_before(path: Path, mark: bytes) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if mark in line)
    path.write_bytes(b"".join(lines[:place]))


async def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition()` is true."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # another process changes it
            await asyncio.sleep(0.01)
