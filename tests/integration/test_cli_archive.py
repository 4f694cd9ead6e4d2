"""`orch archive` with real processes, from one command to the next."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from integration.command_shell import Shell, ended

LOOK = {"tools": [{"tool": "read_file", "input": {"path": "note.txt"}}, {"tool": "list_files", "input": {}}]}
DEADLY = """
import os, signal

replace = os.replace


def deadly(new, old, **folders):
    global done
    if os.path.basename(old) == "session.jsonl":
        done -= 1
        if done < 0:
            os.kill(os.getpid(), signal.SIGKILL)
    replace(new, old, **folders)


os.replace = deadly
"""
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
    """Run an agent whose turn is archived, and return the id of the archive."""
    script = shell.script(LOOK, ANSWER, *more)
    shell.run("spawn", "look around", "--name", name, "--tools", "read_file,list_files", "--script", script)
    shell.run("query", name, "what about the sky?")
    [row] = shell.data("archive", "list", name)
    return str(row["id"])


def test_finished_turn_is_listed_found_read_and_asked(archiving: Shell) -> None:
    """`archive search` finds each detail with its entry, and the holder's answer names the entry."""
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
    """After `daemon stop` and after SIGKILL, archives can be searched, read and queried."""
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


def test_several_archives_are_asked_the_same(archiving: Shell) -> None:
    """`ask-all` queries all archives of an agent or named ones, and an unknown one does not affect the others."""
    one, other = looked(archiving, "one"), looked(archiving, "other")
    [data] = archiving.data("archive", "ask-all", "what port is it?", "--in", "one")
    assert (data["ref"], data["error"]) == (one, None)
    assert "4711" in data["reply"]["text"]
    mapped = archiving.data("archive", "ask-all", "what port is it?", one, "unknown", other, code=3)
    assert [(each["ref"], each["error"] is None) for each in mapped] == [(one, True), ("unknown", False), (other, True)]


def test_archives_are_exported(archiving: Shell) -> None:
    """`export` writes the archives of one agent or of all agents, as JSON or as Markdown."""
    one, other = looked(archiving, "one"), looked(archiving, "other")
    lines = [json.loads(line) for line in archiving.run("archive", "export").stdout.splitlines()]
    assert [line["holder"]["id"] for line in lines] == [one, other]
    assert [message["role"] for message in lines[0]["messages"]] == ["user", "assistant", "user", "assistant"]
    data = archiving.data("archive", "export", "one", "--format", "md", "--output", "one.md")
    assert data == {"output": "one.md", "archives": 1, "messages": 4, "unread": {}}
    assert "the sky is green, says Señor Žluťoučký" in (archiving.folder / "one.md").read_text()


def test_export_writes_to_the_target_of_a_link_and_to_a_device(archiving: Shell) -> None:
    """`--output` writes through a link into its target, and to a device. The link and the device are not replaced."""
    looked(archiving, "one")
    (archiving.folder / "there.jsonl").write_text("old")
    (archiving.folder / "link.jsonl").symlink_to("there.jsonl")
    archiving.run("archive", "export", "--output", "link.jsonl")
    assert (archiving.folder / "link.jsonl").is_symlink()
    assert (archiving.folder / "there.jsonl").read_text().startswith('{"holder"')
    assert archiving.run("archive", "export", "--output", "/dev/stdout").stdout.startswith(b'{"holder"')
    failed = archiving.run("archive", "export", "--output", "/dev/full", code=1)
    assert b"cannot write /dev/full" in failed.stderr
    assert not Path("/dev/full").is_file()


def test_holder_is_shown_with_its_archive(archiving: Shell) -> None:
    """A holder is listed with `--all`, and `show` prints its record, its first entries and its questions."""
    id = looked(archiving)
    rows = archiving.data("list", "--all")
    assert [(row["kind"], row["status"]) for row in rows[1:]] == [("holder", "cold")]
    archiving.run("archive", "query", id, "what port is it?")
    assert [row["kind"] for row in archiving.data("list")] == ["agent"]
    assert [row["id"] for row in archiving.data("list", "--all") if row["kind"] == "holder"] == [id]
    page = archiving.run("show", id, "--messages", "2").stdout.decode()
    assert "archive (one turn: 4 messages, 1 turn; 2 tool calls, the threshold is 2)" in page
    assert "Read: note.txt" in page
    assert "entry 2, assistant:\n  -> read_file" in page
    assert f"2 more: orch archive read {id} 3-" in page
    assert "was asked:\n\nuser:\n  what port is it?" in page


@pytest.mark.shared_daemon
@pytest.mark.parametrize(
    ("argv", "code", "complaint"),
    [
        (["list", "nobody"], 3, "nobody"),
        (["search", " "], 2, "empty"),
        (["read", "ffffffffffff"], 3, "orch archive list"),
        (["query", "ffffffffffff", "hi"], 3, "ffffffffffff"),
        (["ask-all", "hi", "--in", "looker"], 3, "has no archives"),
        (["export", "nobody"], 3, "nobody"),
        (["prune"], 2, "--older-than"),
        (["prune", "--older-than", "30"], 2, "invalid age"),
        (["prune", "--older-than", "1d", "--in", "nobody"], 3, "nobody"),
    ],
)
def test_invalid_input_is_reported_on_stderr_with_its_exit_code(
    archiving: Shell, argv: list[str], code: int, complaint: str
) -> None:
    """The error names the invalid value, and stdout is empty."""
    archiving.run("spawn", "look", "--name", "looker", "--script", archiving.script("hello"))
    done = archiving.run("archive", *argv, code=code)
    assert done.stdout == b""
    assert complaint in done.stderr.decode()


@pytest.mark.shared_daemon
def test_archive_verbs_import_little(archiving: Shell) -> None:
    """With a running daemon, `orch archive list` imports no transport, event loop or codec."""
    archiving.run("daemon", "start")
    code = "import sys; from orch.cli import run; run(['archive', 'list', '--json']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=archiving.env, capture_output=True, timeout=40, check=True
    )
    loaded = done.stdout.decode().splitlines()[1].split()
    heavy = {"zmq", "asyncio", "structlog", "msgspec", "typing", "subprocess", "pathlib", "importlib"}
    assert heavy & set(loaded) == set()
    ours = {each for each in loaded if each.startswith("orch_protocol.")}
    assert ours == {"orch_protocol.services", "orch_protocol.services.verbs"}


def test_pruned_archive_is_deleted(archiving: Shell) -> None:
    """The text is removed from the agent's files, and every command reports the deletion. Other archives are
    unchanged.
    """
    gone, kept = looked(archiving, "one"), looked(archiving, "other")
    archiving.run("archive", "query", gone, "which Žluťoučký?")
    archiving.run("archive", "search", "Žluťoučký")
    before = archiving.data("show", "one")["messages"]
    planned = archiving.data("archive", "prune", "--older-than", "0s", "--in", "one", "--dry-run")
    assert [row["id"] for row in planned["archives"]] == [gone]
    assert (planned["bytes"] > 500, planned["busy"]) == (True, {})
    output = archiving.run("archive", "prune", "--older-than", "0s", "--in", "one").stdout.decode().splitlines()
    assert output[1].startswith(gone)
    assert output[-1] == f"deleted 1 archive, {planned['bytes']:,} bytes"
    folder = Path(archiving.data("show", "one")["agent"]["folder"])
    listed = [path for path in archiving.home.rglob("*") if path.is_file() and "outoučk".encode() in path.read_bytes()]
    assert all(folder not in path.parents for path in listed)
    assert archiving.home / "runs" / "daemon" / "journal.jsonl" not in listed
    for verb in (["read"], ["query"], []):
        argv = ["archive", *verb, gone] if verb else ["show", gone]
        done = archiving.run(*argv, *(["hi"] if verb == ["query"] else []), code=3)
        assert f"the content of archive {gone} was deleted on 20" in done.stderr.decode()
    assert {hit["id"] for hit in archiving.data("archive", "search", "Žluťoučký")} == {kept}
    assert [row["id"] for row in archiving.data("archive", "list")] == [kept]
    assert archiving.data("show", "one")["messages"] == before
    [row] = [row for row in archiving.data("list", "--all") if row["id"] == gone]
    assert (row["status"], row["kind"]) == ("killed", "holder")
    archiving.run("daemon", "stop")
    assert "was deleted on" in archiving.run("archive", "read", gone, code=3).stderr.decode()
    assert archiving.data("archive", "prune", "--older-than", "1h")["archives"] == []


def test_busy_agent_keeps_its_archives(archiving: Shell) -> None:
    """`prune` exits with 4 and names the agent. When the agent is idle, its archives are pruned."""
    id = looked(archiving, "one", {"text": "slow", "sleep": 60})
    archiving.run("query", "one", "work on", "--no-wait")
    archiving.until("one", "busy")
    done = archiving.run("archive", "prune", "--older-than", "0s", code=4)
    assert done.stdout == b"deleted 0 archives, 0 bytes\n"
    assert "is at work: work on; wait for it, or cancel it, and try again" in done.stderr.decode()
    assert archiving.data("archive", "read", id)
    archiving.run("cancel", "one")
    archiving.run("collect", "one", code=1)
    assert archiving.run("archive", "prune", "--older-than", "0s").stdout.decode().splitlines()[1].startswith(id)


@pytest.mark.parametrize("done", [0, 1])
def test_daemon_killed_while_pruning_leaves_whole_files(archiving: Shell, done: int) -> None:
    """Each file is unchanged or pruned, and pruning again completes the deletion."""
    deadly = archiving.folder / "sitecustomize.py"  # every Python process imports this module when it starts
    deadly.write_text(f"done = {done}\n{DEADLY}")
    archiving.env["PYTHONPATH"] += f"{os.pathsep}{archiving.folder}"
    (archiving.folder / "note.txt").write_text("needle in a haystack\n")
    names = ["one", "two", "three"]
    for name in names:
        looked(archiving, name, LOOK, ANSWER)
        archiving.run("query", name, "look again")
    rows = archiving.data("archive", "list")
    transcripts = [Path(archiving.data("show", name)["agent"]["folder"], "session.jsonl") for name in names]
    before = {name: archiving.data("show", name, "--messages", "100")["messages"] for name in names}
    pids = archiving.ours()
    archiving.run("archive", "prune", "--older-than", "0s", code=1)
    for each in pids:
        ended(each)
    deadly.unlink()
    assert transcripts[done].with_name("session.jsonl.new").exists()
    whole = [path for path in transcripts if b"needle" in path.read_bytes()]
    assert whole == transcripts[done:]
    left = {row["owner"] for row in archiving.data("archive", "list")}
    assert left == {path.parent.name for path in whole}
    for row in rows:
        code = 0 if row["owner"] in left else 3
        read = archiving.run("archive", "read", row["id"], "3", code=code)
        assert ("needle" in read.stdout.decode()) == (code == 0)
    for name in names:
        assert archiving.data("show", name, "--messages", "100")["messages"] == before[name]
    archiving.run("archive", "prune", "--older-than", "0s")
    assert archiving.data("archive", "list") == []
    assert [path for path in archiving.home.rglob("*") if path.is_file() and b"haystack" in path.read_bytes()] == []
    assert list(archiving.home.rglob("*.new")) == []
