"""`orch archive` as a person or a script meets it: real processes, files that stay."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from integration.shell import Shell, ended

LOOK = {"tools": [{"tool": "read_file", "input": {"path": "note.txt"}}, {"tool": "list_files", "input": {}}]}
ANSWER = "The sky over port 4711 is green."


@pytest.fixture
def archiving(shell: Shell) -> Shell:
    """A shell whose daemon archives each turn with two calls, before its reply."""
    (shell.folder / "note.txt").write_text("port = 4711\nthe sky is green, says Señor Žluťoučký\n")
    shell.env |= {
        "ORCH_ARCHIVAL__ENABLED": "true",
        "ORCH_ARCHIVAL__ASYNC": "false",
        "ORCH_ARCHIVAL__PROFILE": "seed",
        "ORCH_ARCHIVAL__TRIGGER__TOOL_CALL_THRESHOLD": "2",
    }
    return shell


def looked(shell: Shell, name: str = "looker", *more: Any) -> str:
    """Let an agent look around and return the id of the archive that its turn became."""
    script = shell.script(LOOK, ANSWER, *more)
    shell.run("spawn", "look around", "--name", name, "--tools", "read_file,list_files", "--script", script)
    shell.run("query", name, "what about the sky?")
    [row] = shell.data("archive", "list", name)
    return str(row["id"])


def test_a_finished_turn_is_listed_found_read_and_asked(archiving: Shell) -> None:
    """By everything that stands in it, exactly, with the entry it stands in."""
    id = looked(archiving)
    [row] = archiving.data("archive", "list")
    assert (row["id"], row["kind"], row["messages"], row["calls"]) == (id, "turn", 4, 2)
    for query in ("4711", "note.txt", "Señor Žluťoučký", "rt = 47"):
        hits = archiving.data("archive", "search", query, "--in", "looker")
        assert (hits[0]["id"], hits[0]["exact"]) == (id, True)
        [entry] = archiving.data("archive", "read", id[:6], str(hits[0]["entry"]))
        assert query in json.dumps(entry, ensure_ascii=False)
    assert "entry 3" in archiving.run("archive", "query", id, "what port is it?").stdout.decode()
    assert archiving.data("archive", "query", id, "what port is it?")["id"] == id
    assert f"[entry 4] assistant\n  {ANSWER}\n" in archiving.run("archive", "read", id, "3-4").stdout.decode()


def test_archives_survive_the_daemon(archiving: Shell) -> None:
    """Stopped, and killed with -9: the next one finds, reads and asks what was archived before."""
    id = looked(archiving)
    archiving.run("daemon", "stop")
    assert archiving.data("archive", "search", "4711")[0]["id"] == id
    assert "4711" in archiving.run("archive", "read", id).stdout.decode()
    pids = archiving.ours()
    os.kill(archiving.data("daemon", "status")["pid"], signal.SIGKILL)
    for pid in pids:
        ended(pid)
    assert "4711" in archiving.run("archive", "query", id, "what port is it?").stdout.decode()
    assert archiving.data("archive", "search", "4711")[0]["id"] == id
    assert "4711" in archiving.run("archive", "read", id).stdout.decode()


def test_several_are_asked_the_same(archiving: Shell) -> None:
    """All of an agent's, or those that are named; one that is not there costs the others nothing."""
    one, other = looked(archiving, "one"), looked(archiving, "other")
    [told] = archiving.data("archive", "map", "what port is it?", "--in", "one")
    assert (told["ref"], told["error"]) == (one, None)
    assert "4711" in told["reply"]["text"]
    mapped = archiving.data("archive", "map", "what port is it?", one, "nobody", other, code=1)
    assert [(each["ref"], each["error"] is None) for each in mapped] == [(one, True), ("nobody", False), (other, True)]


def test_everything_is_exported(archiving: Shell) -> None:
    """As data, and as a page; of one agent or of all."""
    one, other = looked(archiving, "one"), looked(archiving, "other")
    lines = [json.loads(line) for line in archiving.run("archive", "export").stdout.splitlines()]
    assert [line["holder"]["id"] for line in lines] == [one, other]
    assert [message["role"] for message in lines[0]["messages"]] == ["user", "assistant", "user", "assistant"]
    told = archiving.data("archive", "export", "one", "--format", "md", "--output", "one.md")
    assert told == {"output": "one.md", "archives": 1, "messages": 4, "unread": {}}
    assert "the sky is green, says Señor Žluťoučký" in (archiving.folder / "one.md").read_text()


def test_an_export_replaces_no_link_and_no_device(archiving: Shell) -> None:
    """A link still leads where it led; what is no file is written to."""
    looked(archiving, "one")
    (archiving.folder / "there.jsonl").write_text("old")
    (archiving.folder / "link.jsonl").symlink_to("there.jsonl")
    archiving.run("archive", "export", "--output", "link.jsonl")
    assert (archiving.folder / "link.jsonl").is_symlink()
    assert (archiving.folder / "there.jsonl").read_text().startswith('{"holder"')
    assert archiving.run("archive", "export", "--output", "/dev/stdout").stdout.startswith(b'{"holder"')
    failed = archiving.run("archive", "export", "--output", "/dev/full", code=1)
    assert b"/dev/full cannot be written" in failed.stderr
    assert not Path("/dev/full").is_file()


def test_a_holder_is_shown_with_what_it_holds(archiving: Shell) -> None:
    """In the list of all once it was asked; its page has the record, the first entries, and its own questions."""
    id = looked(archiving)
    assert [row["kind"] for row in archiving.data("list", "--all")] == ["agent"]
    archiving.run("archive", "query", id, "what port is it?")
    assert [row["kind"] for row in archiving.data("list")] == ["agent"]
    assert [row["id"] for row in archiving.data("list", "--all") if row["kind"] == "holder"] == [id]
    page = archiving.run("show", id, "--messages", "2").stdout.decode()
    assert "holds (one turn: 4 messages, 1 turn; 2 tool calls, the threshold is 2)" in page
    assert "Read: note.txt" in page
    assert "entry 2, assistant:\n  -> read_file" in page
    assert f"2 more: orch archive read {id} 3-" in page
    assert "was asked:\n\nuser:\n  what port is it?" in page


@pytest.mark.parametrize(
    ("argv", "code", "complaint"),
    [
        (["list", "nobody"], 3, "nobody"),
        (["search", " "], 2, "empty"),
        (["read", "ffffffffffff"], 3, "orch archive list"),
        (["query", "ffffffffffff", "hi"], 3, "ffffffffffff"),
        (["map", "hi", "--in", "looker"], 3, "archived nothing"),
        (["export", "nobody"], 3, "nobody"),
    ],
)
def test_bad_input_is_told(archiving: Shell, argv: list[str], code: int, complaint: str) -> None:
    """What is wrong and which, on stderr alone, with the agreed exit code."""
    archiving.run("spawn", "look", "--name", "looker", "--script", archiving.script("hello"))
    done = archiving.run("archive", *argv, code=code)
    assert done.stdout == b""
    assert complaint in done.stderr.decode()


def test_the_archive_verbs_import_next_to_nothing(archiving: Shell) -> None:
    """No transport, event loop or codec, with a warm daemon."""
    archiving.run("daemon", "start")
    code = "import sys; from orch.cli import run; run(['archive', 'list', '--json']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=archiving.env, capture_output=True, timeout=40, check=True
    )
    loaded = done.stdout.decode().splitlines()[1].split()
    heavy = {"zmq", "asyncio", "structlog", "msgspec", "typing", "subprocess", "pathlib", "importlib", "orch_protocol"}
    assert heavy & set(loaded) == set()
