"""Transcripts that lost acknowledged entries: `orch fsck` and the agent's next reply report the loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from integration.command_shell import SECONDS, Shell

ECHO = {"loop": [{"echo": True}]}
ARCHIVING = '[archival]\nenabled = true\nprofile = "seed"\n[archival.trigger]\ntool_call_threshold = 1\n'


def agent_with_turns(shell: Shell, name: str = "a", turns: int = 3) -> Path:
    """Return the transcript of an agent that has answered `turns` queries."""
    id = shell.data("spawn", "t", "--name", name, "--script", shell.script(ECHO))["id"]
    for number in range(turns):
        shell.run("query", name, f"question {number}")
    return shell.home / "sessions" / id / "session.jsonl"


def findings(shell: Shell) -> list[Any]:
    """Return the findings of `orch fsck`."""
    fsck = shell.start("fsck", "--json")
    found: list[Any] = json.loads(fsck.communicate(timeout=SECONDS)[0])
    assert fsck.returncode == bool(found)
    return found


def test_lost_entries_are_noticed(shell: Shell) -> None:
    """`fsck` and the next reply report the loss, the reply only once, and the agent continues with the rest.

    The transcript was truncated at a line, emptied or removed.
    """
    paths = {name: agent_with_turns(shell, name) for name in ("first", "fourth", "ninth", "emptied", "removed")}
    shell.run("daemon", "stop")
    assert findings(shell) == []
    count = len(paths["first"].read_bytes().splitlines())
    for name, left in (("first", 1), ("fourth", 4), ("ninth", 9), ("emptied", 0)):
        lines = paths[name].read_bytes().splitlines(keepends=True)
        paths[name].write_bytes(b"".join(lines[:left]))
    paths["removed"].unlink()
    found = {each["path"]: each for each in findings(shell)}
    assert set(found) == set(map(str, paths.values()))
    assert {each["kind"] for each in found.values()} == {"truncated"}
    for name, path in paths.items():
        what = found[str(path)]["what"]
        left = {"first": 1, "fourth": 4, "ninth": 9}.get(name)
        assert (f"ends at line {left}, line {count} was acknowledged" if left else "is empty or missing") in what
    [same] = shell.data("session", "fsck", "first", code=1)["found"]
    assert same == found[str(paths["first"])]
    for name in paths:
        warning = shell.data("query", name, "and now")["warning"]
        assert warning
        assert ("transcript is missing" in warning) == (name not in ("fourth", "ninth"))
        assert shell.data("query", name, "and then")["warning"] == ""
    shell.run("daemon", "stop")
    assert findings(shell) == []


def test_transcript_of_another_agent_in_its_place_is_noticed(shell: Shell) -> None:
    """`fsck` reports the wrong owner, and the agent does not answer from the transcript.

    The error names a remedy, which works.
    """
    path, other = agent_with_turns(shell), agent_with_turns(shell, "b", turns=4)
    shell.run("daemon", "stop")
    path.write_bytes(other.read_bytes())
    found = findings(shell)
    assert {each["path"] for each in found} == {str(path)}
    assert {each["kind"] for each in found} == {"owner", "truncated"}
    error = shell.run("query", "a", "and now", code=1).stderr
    assert b"is the transcript of agent" in error
    assert b"move the file away" in error
    path.rename(path.with_name("moved"))
    assert "transcript is missing" in shell.data("query", "a", "and now")["warning"]
    assert findings(shell) == []


def test_older_copy_with_other_entries_is_noticed(shell: Shell) -> None:
    """`fsck` and the next reply report that the acknowledged line has another checksum."""
    path = agent_with_turns(shell, turns=1)
    shell.run("daemon", "stop")
    older = path.read_bytes()
    shell.run("query", "a", "one answer")
    shell.run("daemon", "stop")
    newer = path.read_bytes()
    path.write_bytes(older)
    shell.run("query", "a", "another answer")
    shell.run("daemon", "stop")
    path.write_bytes(newer)
    [found] = findings(shell)
    assert "checksum" in found["what"]
    assert "checksum" in shell.data("query", "a", "and now")["warning"]


def test_repair_accepts_a_truncated_transcript(shell: Shell) -> None:
    """After `session fsck --repair`, a damaged or truncated transcript has no finding and no warning."""
    path = agent_with_turns(shell)
    shell.run("daemon", "stop")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"?" * 20 + b"\n", *lines[3:]]))
    shell.run("session", "fsck", "a", "--repair")
    assert findings(shell) == []
    assert shell.data("query", "a", "and now")["warning"] == ""
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    shell.run("daemon", "stop")
    assert [each["kind"] for each in findings(shell)] == ["truncated"]
    shell.run("session", "fsck", "a", "--repair")
    assert findings(shell) == []
    assert shell.data("query", "a", "and now")["warning"] == ""


def test_rewritten_transcripts_raise_no_alarm(shell: Shell) -> None:
    """Pruning, session changes, forks and deletions cause no finding and no warning."""
    shell.home.mkdir(mode=0o700)
    (shell.home / "config.toml").write_text(ARCHIVING)
    (shell.home / "config.toml").chmod(0o600)
    (shell.folder / "note.txt").write_text("The port is 4711.\n")
    script = shell.script({"loop": [{"tool": "read_file", "input": {"path": "note.txt"}}, {"echo": True}]})
    shell.run("spawn", "t", "--name", "a", "--tools", "read_file", "--script", script)
    for number in range(4):
        shell.run("query", "a", f"question {number}")
    [*_, holder] = shell.data("archive", "list", "a")
    shell.run("query", holder["id"], "which port?")
    shell.run("session", "fork", "a", "--name", "b")
    shell.run("query", "b", "and now")
    assert findings(shell) == []
    assert shell.data("archive", "prune", "--older-than", "0s")["archives"]
    assert findings(shell) == []
    shell.run("session", "title", "a", "pumps")
    assert shell.data("query", "a", "and now")["warning"] == ""
    shell.run("kill", "b")
    shell.run("session", "prune", "--older-than", "0s")
    shell.run("daemon", "stop")
    assert findings(shell) == []
    assert shell.data("query", "a", "and then")["warning"] == ""
