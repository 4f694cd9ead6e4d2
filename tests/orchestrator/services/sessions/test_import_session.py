"""Import and export of conversations: new cold agents continue conversations from files, which stay unchanged."""

from __future__ import annotations

import asyncio
import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from agent_history import PROFILES, Life
from foreign_sessions import pi_tree, subagent_rows, tree_rows
from orch import ArchivalConfig, Config, ScriptedBackend
from orch.services.sessions import import_session
from orch.sessions.formats.conversation import ImportedSession
from orch.sessions.formats.detect import read_conversation
from orch.sessions.import_ import task_of, write_session
from orch_protocol.agent.project import ContextConfig
from orch_protocol.core.errors import ConfigError, DamagedError, ForeignFileError, SpawnError, StoreError
from orch_protocol.core.messages import text_of, tool_uses, user
from orch_protocol.services.sessions.import_session import IMPORT_SESSION, ImportSession
from orch_worker.conversation.tokens import TokenEstimator
from orch_worker.prompt.project import ProjectDescription, context_text, project_parts
from orchestrator.archival.store.prune_samples import EVER
from orchestrator.root_double import opened
from recordings import chat, dump_lines, pi


def written(folder: Path, lines: list[Any]) -> Path:
    """Write `lines` to a session file and return its path."""
    return dump_lines(folder / "session.jsonl", lines)


def backend(*said: str) -> ScriptedBackend:
    """Return a model that answers `said`."""
    return ScriptedBackend(list(said))


async def test_imported_agent_continues_the_conversation(tmp_path: Path) -> None:
    """The agent has no process before its first query, and the file stays unchanged."""
    path = written(tmp_path, pi_tree())
    before = sha256(path.read_bytes()).hexdigest()
    async with opened(tmp_path / "home") as world:
        agent = await world.sessions.import_(path, backend=backend("You read two files."), tools=[], name="talk")
        row = await agent.state()
        assert (row.status, row.name, row.task, row.pid) == ("cold", "talk", "Two files", None)
        assert (await agent.query("What did we do?")).text == "You read two files."
        shown = (await agent.show(100)).messages
        assert [text_of(message) for message in shown[-3:]] == ["Gladly.", "What did we do?", "You read two files."]
        assert "We read two files." in text_of(shown[0])
    assert sha256(path.read_bytes()).hexdigest() == before


async def test_imported_agent_survives_a_restart(tmp_path: Path) -> None:
    """After a restart, the conversation and later turns are complete without the imported file."""
    path = written(tmp_path, tree_rows())
    async with opened(tmp_path / "home", run="r") as world:
        agent = await world.sessions.import_(path, backend=backend("one", "two"), tools=[])
        await agent.query("first?")
    path.unlink()
    async with opened(tmp_path / "home", run="r") as world:
        again = await world.get(agent.id)
        assert (await again.query("second?")).text == "two"
        texts = [text_of(message) for message in (await again.show(100)).messages]
        assert texts[-4:] == ["first?", "one", "second?", "two"]


async def test_imported_subagents_are_cold_children(tmp_path: Path) -> None:
    """Each subagent of the conversation becomes a cold agent below the agent that started it."""
    folder = tmp_path / "session" / "subagents"
    folder.mkdir(parents=True)
    dump_lines(folder / "agent-a1b2.jsonl", subagent_rows())
    async with opened(tmp_path / "home") as world:
        agent = await world.sessions.import_(written(tmp_path, tree_rows()), backend=backend("x"), tools=[], name="top")
        above, below = await world.agents()
        assert (below.parent_id, below.depth, below.status, below.task) == (agent.id, 2, "cold", "Count the lines")
        assert above.name == "top"
        assert (await (await world.get(below.id)).query("And now?")).text == "x"


async def test_unimportable_subagent_is_skipped_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent of the subagent is imported, and a note names the file and the reason."""
    dump_lines(tmp_path / "agent-a1b2.jsonl", subagent_rows())

    def full(folder: Path, agent: str, cwd: str, found: ImportedSession, source: Path) -> None:
        if found.name.startswith("agent-"):
            raise StoreError("disk full")
        write_session(folder, agent, cwd, found, source)

    monkeypatch.setattr(import_session, "write_session", full)
    async with opened(tmp_path / "home") as world:
        asked = ImportSession(str(written(tmp_path, tree_rows())), "/", agent={"script": ["x"], "tools": []})
        imported = await world._call(IMPORT_SESSION, asked)
        assert imported.below == ()
        assert imported.notes[-1] == "the subagent in agent-a1b2.jsonl is left out: disk full"
        assert [row.id for row in await world.agents(all=True)] == [imported.id]


def test_task_of_an_imported_own_session_is_restored(tmp_path: Path) -> None:
    """The whole task is restored; after its prompt is deleted, the next prompt is the task."""
    task = f"Mend the pump\n\n{'as it was, ' * 20}and no more"
    text = context_text(
        project_parts(ProjectDescription(about=("A pump",)), "brief", ContextConfig(), TokenEstimator())
    )
    life = Life(tmp_path / "a")
    life.seed(user(text))
    life.turn(asked=f"Task: {task}\n\nQuery: Which one?")
    life.archive()
    assert task_of(read_conversation(life.transcript.path)) == task
    life.go(None)
    life.prune(EVER)
    life.turn(asked="What of the valve?")
    assert task_of(read_conversation(life.transcript.path)) == "What of the valve?"
    life.close()


async def test_imported_agent_works_in_the_conversations_folder(tmp_path: Path) -> None:
    """A given folder has precedence; if the conversation's folder is missing, the program's folder is used."""
    there, other = tmp_path / "there", tmp_path / "other"
    there.mkdir()
    other.mkdir()
    lines = pi_tree()
    lines[0]["cwd"] = str(there)
    path = written(tmp_path, lines)
    async with opened(tmp_path / "home") as world:
        kept = await world.sessions.import_(path, backend=backend(), tools=[])
        assert (await kept.state()).cwd == str(there)
        found = await world.sessions.import_(path, backend=backend(), tools=[], cwd=other)
        assert (await found.state()).cwd == str(other)
        shutil.rmtree(there)
        gone = await world.sessions.import_(path, backend=backend(), tools=[])
        assert (await gone.state()).cwd == str(Path.cwd())


async def test_repairs_of_an_import_are_recorded(tmp_path: Path) -> None:
    """The state of the agent reports the repairs, also after a query."""
    path = written(tmp_path, pi_tree())
    path.write_bytes(path.read_bytes()[:-30])
    async with opened(tmp_path / "home") as world:
        agent = await world.sessions.import_(path, backend=backend("yes"), tools=[])
        assert "never finished" in (await agent.state()).repaired
        await agent.query("there?")
        assert "never finished" in (await agent.state()).repaired


async def test_failed_import_creates_nothing(tmp_path: Path) -> None:
    """Damaged, foreign and missing files, invalid options and a full disk leave no agent and no folder."""
    good, bad, empty = (tmp_path / name for name in ("good.jsonl", "bad.jsonl", "empty.jsonl"))
    dump_lines(good, pi_tree())
    dump_lines(bad, [*pi_tree()[:3], {"type": "message", "id": "x", "parentId": "a0000002", "message": 7}])
    dump_lines(empty, pi_tree()[:3])
    async with opened(tmp_path / "home") as world:
        first = await world.sessions.import_(good, backend=backend(), tools=[], name="one")
        for path, error, options in (
            (bad, DamagedError, {}),
            (empty, ForeignFileError, {}),
            (tmp_path / "none", StoreError, {}),
            (good, SpawnError, {"name": "one"}),
            (good, ConfigError, {"which": 2}),
            (good, ConfigError, {"cwd": tmp_path / "nowhere"}),
            (good, ConfigError, {"max_cost": float("nan")}),
        ):
            with pytest.raises(error):
                await world.sessions.import_(path, **({"backend": backend(), "tools": []} | options))
        room = world.fill_disk()
        with pytest.raises(StoreError):
            await world.sessions.import_(good, backend=backend(), tools=[])
        room()
        assert [row.id for row in await world.agents(all=True)] == [first.id]
        assert [folder.name for folder in (tmp_path / "home" / "sessions").iterdir()] == [first.id]


async def test_list_of_messages_can_be_imported(tmp_path: Path) -> None:
    """The first user message of the list is the task of the imported agent."""
    path = tmp_path / "m.json"
    path.write_text(json.dumps(chat(2)))
    async with opened(tmp_path / "home") as world:
        agent = await world.sessions.import_(path, backend=backend("yes"), tools=[])
        assert (await agent.state()).task == "Question 0"
        await agent.query("there?")
        shown = (await agent.show(100)).messages
        assert [message.role for message in shown[:3]] == ["system", "user", "assistant"]
        assert tool_uses(shown[2])[0].input == {"n": 123}


async def test_compacted_part_of_an_import_is_archived_whole(tmp_path: Path) -> None:
    """Messages that the other program summarized are archived, and a search finds them."""
    lines = pi(6, steps=3, size=4000)
    kept = len(lines)
    lines.append({"type": "compaction", "summary": "Modules were fixed.", "firstKeptEntryIndex": kept, "timestamp": ""})
    lines += pi(2, steps=3, size=4000)[1:]
    config = Config(archival=ArchivalConfig(enabled=True, profile="economy", async_=False))
    async with opened(tmp_path / "home", config=config) as world:
        agent = await world.sessions.import_(written(tmp_path, lines), backend=backend("done"), tools=[])
        assert "took 0077 ms" not in str((await agent.show(1000)).messages[0])
        await agent.query("And?")
        rows = await world.archives.list(agent.id)
        assert rows[0].messages >= 6 * 8
        (hit, *_) = await world.archives.search("handler_4_1 src/mod_4.py", ref=agent.id)
        assert hit.id == rows[0].id


def test_imported_session_keeps_its_archives(tmp_path: Path) -> None:
    """The archives of an imported orch session have new ids, which replace the old ones in all texts."""
    life = Life(tmp_path / "old", PROFILES["tight"])
    for number in range(12):
        life.work(number, 2)
    ledger = life.ledger()
    records = list(ledger.records.values())
    assert {record.kind for record in records} >= {"phase", "turn", "era"}
    shown = [text_of(message) for message in life.transcript.session.messages]
    held = [ledger.read(record.id) for record in records]
    life.close()

    async def taken_over() -> None:
        async with opened(tmp_path / "home") as world:
            agent = await world.sessions.import_(tmp_path / "old" / "session.jsonl", backend=backend(), tools=[])
            engine, spec = world.supervisor.archives, world.supervisor.tree.agents[agent.id].spec
            rows = await engine.list_records(spec)
            assert [row.kind for row in rows] == [record.kind for record in records]
            assert {row.id for row in await world.archives.list()} < {row.id for row in rows}
            ids = {record.id: row.id for record, row in zip(records, rows, strict=True)}
            assert not ids.keys() & set(ids.values())
            texts = [text_of(message) for message in (await agent.show(1000)).messages]
            for old, new in ids.items():
                shown[:] = [text.replace(old, new) for text in shown]
            assert texts == shown
            for row, messages in zip(rows, held, strict=True):
                assert await engine.read_stored(spec, row.id, len(messages) + 1) == messages
            hits = await world.archives.search("ask 3")
            assert hits[0].id in ids.values()

    asyncio.run(taken_over())


async def test_exported_session_can_be_imported(tmp_path: Path) -> None:
    """Each export format gives an agent with the same messages, while the source is running."""
    async with opened(tmp_path / "home") as world:
        agent = await world.spawn("count", backend=backend("one", "two"), tools=[])
        with pytest.raises(ConfigError, match="format 'pdf'"):
            await world.sessions.export(agent.id, format="pdf")
        await agent.query("first")
        shown = (await agent.show(100)).messages
        for format in ("pi", "jsonl", "anthropic", "openai", "responses"):
            path = tmp_path / f"talk.{format}"
            text = await world.sessions.export(agent.id, format=format, output=path)
            assert path.read_text() == text
            other = await world.sessions.import_(path, backend=backend("x", "y"), tools=[])
            assert (await other.show(100)).messages == shown
