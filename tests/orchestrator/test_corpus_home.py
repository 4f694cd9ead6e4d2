"""A stored ORCH_HOME (tests/corpus/README.md) opens: agents, transcripts, archives, permissions, configuration."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from orch import AsyncOrchestrator, ForeignFileError, SessionDeletedError
from orch.config.config import load
from orch.policy.grants import GrantStore
from orch.sessions.findings import check_home
from orch.testing import fake_world
from orch.tree.journal.journal import read_entries
from orch_protocol.core.messages import text_of
from orch_worker.memory.memory_file import FileMemory
from orch_worker.session.log.record_format import seal_lines, unseal_line
from orch_worker.session.session_reader import read_session
from virtual_clock import virtual

CORPUS = Path(__file__).resolve().parents[1] / "corpus" / "whole_home"
PLACE = b"/tmp/orch-corpus"
"""The folder that contained the home when it was written. A copy has its own folder in its place."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a copy of the home whose files contain the path of the copy."""
    shutil.copytree(CORPUS, tmp_path, dirs_exist_ok=True)
    home = tmp_path / "home"
    for each in (home, *home.rglob("*")):
        each.chmod(0o700 if each.is_dir() else 0o600)
    for path in (home / "config.toml", home / "permissions.json"):
        path.write_bytes(path.read_bytes().replace(PLACE, bytes(tmp_path)))
    for path in home.glob("runs/*/journal.jsonl"):
        path.write_bytes(relocate(path.read_bytes(), tmp_path))
    return home


def relocate(data: bytes, folder: Path) -> bytes:
    """Return the journal `data` with `folder` in place of PLACE."""
    lines, checksum = [], 0
    for line in data.splitlines():
        sealed = unseal_line(line)
        assert sealed is not None
        object = sealed.object.replace(PLACE, bytes(folder))
        written, _, checksum = seal_lines([object], sealed.seq - 1, checksum, more=sealed.more)
        lines.append(written)
    return b"".join(lines)


def session_of(home: Path, run: str, name: str) -> Path:
    """Return the session folder of the agent with the name `name`."""
    entries = read_entries(home / "runs" / run / "journal.jsonl")
    return next(Path(spec.folder) for entry in entries if (spec := getattr(entry, "spec", None)) and spec.name == name)


def test_fsck_finds_nothing_wrong(home: Path) -> None:
    """`check_home` reports no problem in journals, transcripts and archives."""
    assert list(check_home(home, home / "sessions")) == []


def test_configuration_permissions_and_memory_are_read(home: Path) -> None:
    """The values in config.toml, permissions.json and the memory notes of a folder equal the written ones."""
    config = load(home.parent / "project", {}, home=home).config
    assert (config.archival.profile, config.subagents.max_concurrent) == ("seed", 12)
    granted = GrantStore(home).of()
    assert [(grant.tool, grant.folder) for grant in granted] == [
        ("write_file", str(home.parent / "project")),
        ("bash", str(home.parent / "project")),
    ]
    (notes,) = home.glob("memory/*")
    assert [note.text for note in FileMemory(notes, 10_000).notes()] == ["The pump listens on port 4711"]


def test_transcripts_are_read(home: Path) -> None:
    """The replies of an agent of the program's run and of an agent of the daemon's run are complete."""
    reader = read_session(session_of(home, "program", "reader"))
    assert [reply.text for reply in reader.replies.values()] == ["The port is 4711.", "Two files.", "Third answer."]
    server = read_session(session_of(home, "daemon", "server"))
    assert [reply.text for reply in server.replies.values()] == ["One.", "The port is 4711."]


@virtual
async def test_program_run_opens_and_continues(home: Path) -> None:
    """Agents have their status, archives are listed, searched and read, and a holder and agents answer new queries."""
    async with AsyncOrchestrator(home=home, env={}, run="program", **fake_world()) as o:
        rows = {row.name: row.status for row in await o.agents(all=True)}
        assert rows["reader"] == rows["writer"] == rows["resumed"] == "cold"
        assert rows["killed"] == rows["forgotten"] == "killed"
        (archive, *_) = await o.archives.list()
        assert archive.task == "which port?"
        assert next(hit.id for hit in await o.archives.search("4711")) == archive.id
        assert next(text_of(message) for message in await o.archives.read(archive.id)).endswith("which port?")
        assert "4711" in (await (await o.get(archive.id)).query("which port?")).text
        reader = await o.get("reader")
        assert (await reader.state()).title == "Port of the pump"
        assert [kept.data for kept in await reader.session.get_meta("ticket")] == [{"number": 7}]
        assert (await reader.query("and now?")).text == "Fourth answer."
        assert (await (await o.get("forked")).query("and you?")).text == "Fifth answer."
        assert await (await o.get("valued")).value("h_001") == list(range(5000))
        with pytest.raises(SessionDeletedError):
            await (await o.get("killed")).query("hello?")
        assert (await o.budget.show()).budget.max_cost_usd == 50.0
        writer = o.supervisor.tree.agents[(await o.get("writer")).id].spec
        assert (writer.limits.max_cost_usd, set(writer.active) & {"bash", "write_file"}) == (2.0, set())


@virtual
async def test_daemon_run_opens_and_continues(home: Path) -> None:
    """The journal of a daemon opens like the journal of a program."""
    async with AsyncOrchestrator(home=home, env={}, run="daemon", **fake_world()) as o:
        assert (await (await o.get("server")).query("third?")).text == "Three."
        assert (await o.budget.show()).budget.max_cost_usd == 20.0
        assert {row.name: row.status for row in await o.agents(all=True)}["spare"] == "killed"


@virtual
@pytest.mark.parametrize("version", [1, 3])
async def test_journal_of_another_version_is_refused(home: Path, version: int) -> None:
    """Opening and listing its run name the file, its version and a remedy. The file is not changed."""
    path = home / "runs" / "program" / "journal.jsonl"
    _, _, rest = path.read_bytes().partition(b"\n")
    header, _, _ = seal_lines([b'{"type":"orch_journal","version":%d}' % version], 0, 0)
    path.write_bytes(data := header + rest)
    wrong = re.escape(f"{path} has version {version}, but this orch reads only version 2: use the ")
    with pytest.raises(ForeignFileError, match=wrong):
        async with AsyncOrchestrator(home=home, env={}, run="program", **fake_world()):
            pass
    with pytest.raises(ForeignFileError, match=wrong):
        read_entries(path)
    assert [found.path for found in check_home(home, home / "sessions") if found.kind == "foreign"] == [str(path)]
    assert path.read_bytes() == data
