"""`orch archive search` and `read` over imported sessions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orch.cli import run
from orch.client.failure import CommandError
from orchestrator.daemon_double import Desk, opened
from orchestrator.imports.claude_rows import add_rows, write_session

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    """A fake daemon, and two imported sessions. The daemon has not run yet."""
    desk = opened(monkeypatch, tmp_path)
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    write_session(tmp_path / "past" / "old.jsonl", "valve", "pump")
    write_session(tmp_path / "past" / "new.jsonl", "socket", "ledger", "valve")
    add_rows(tmp_path / "past" / "new.jsonl", *[{"role": "user", "content": f"port_{n} is open"} for n in range(20)])
    run(["import", str(tmp_path / "past")])
    return desk


def search(capsys: Captured, *words: str) -> list[dict[str, Any]]:
    """Return the hits of a search."""
    capsys.readouterr()
    assert run(["archive", "search", *words, "--json"]) == 0
    hits: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return hits


def test_hit_names_session_turn_date_and_record(desk: Desk, capsys: Captured, tmp_path: Path) -> None:
    """The entry of a hit is the entry that `orch archive read` shows. No daemon is asked."""
    (hit,) = search(capsys, "output of pump")
    assert (hit["session"], hit["turn"], hit["entry"], hit["exact"]) == ("valve", 2, 7, True)
    assert "entry 6" in hit["beside"]  # the call of the result
    assert hit["date"] == "2026-03-05T00:04:00.000Z"
    assert hit["source"] == str(tmp_path / "past" / "old.jsonl")
    assert "pump" in hit["record"]
    run(["archive", "read", hit["id"], str(hit["entry"]), "--json"])
    (entry,) = json.loads(capsys.readouterr().out)
    assert (entry["entry"], entry["content"][0]["content"][0]["text"]) == (7, "output of pump")
    assert desk.asked == []


@pytest.mark.usefixtures("desk")
def test_latest_of_equal_hits_comes_first(capsys: Captured) -> None:
    """Sessions are searched together: hits of several sessions are ordered by match, then by time."""
    hits = search(capsys, "answer to valve")
    assert [(hit["session"], hit["turn"]) for hit in hits] == [("socket", 3)]  # the same text is shown once
    hits = search(capsys, "cat", "--limit", "2")
    assert [(hit["session"], hit["turn"]) for hit in hits] == [("socket", 3), ("socket", 2)]


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("query", ["ort_1", "txt", "put of led", r"port_\d+ is", "of ledger output"])
def test_parts_of_words_and_expressions_are_found(capsys: Captured, query: str) -> None:
    """The rules are those of other archives: parts of words, regular expressions and similar text."""
    assert search(capsys, query)


@pytest.mark.usefixtures("desk")
def test_words_that_occur_nowhere_have_no_hit(capsys: Captured) -> None:
    """The search says so."""
    assert search(capsys, "zebra") == []
    run(["archive", "search", "zebra"])
    assert "no match" in capsys.readouterr().err


@pytest.mark.usefixtures("desk")
def test_text_of_hits_shows_each_record_once(capsys: Captured, tmp_path: Path) -> None:
    """The record of a session follows the hits."""
    capsys.readouterr()
    run(["archive", "search", "cat", "--limit", "3"])
    out = capsys.readouterr().out
    assert "(turn 3, 2026-03-05; socket)" in out
    assert out.count(f"(socket), {tmp_path / 'past' / 'new.jsonl'}") == 1


def test_archives_of_agents_are_searched_too_if_a_daemon_has_run(desk: Desk, capsys: Captured, tmp_path: Path) -> None:
    """Hits of agents and of sessions alternate. With --in, only agents are searched."""
    (tmp_path / "home" / "runs" / "daemon").mkdir(parents=True)
    hits = search(capsys, "output of ledger")
    assert [hit.get("session") for hit in hits] == [None, "socket"]
    assert [hit["id"] for hit in search(capsys, "ledger", "--in", "reader")] == ["b0d9f3"]
    run(["archive", "read", "b0d9f3", "--json"])
    assert desk.asked[-1] == ("read_archive", {"id": "b0d9f3", "first": 1, "last": None})


@pytest.mark.usefixtures("desk")
def test_name_with_a_line_break_is_one_row_everywhere(capsys: Captured, tmp_path: Path) -> None:
    """The name of a file cannot look like several rows, in tables, hits and warnings."""
    folder = tmp_path / "odd"
    folder.mkdir()
    write_session(folder / "a\nb\x1b[31m\u2028c.jsonl", "strange")
    with (folder / "a\nb\x1b[31m\u2028c.jsonl").open("a") as file:
        file.write("{x\n")
    shown = "a\\nb\\x1b[31m\\u2028c.jsonl"
    commands = [
        *(["import", str(folder)], ["import", "--list"], ["archive", "search", "answer to strange"]),
        ["replay", str(folder), "--policy", "none"],
    ]
    for words in commands:
        capsys.readouterr()
        assert run(words) == 0
        out, err = capsys.readouterr()
        lines = (out + err).splitlines()
        assert [line for line in lines if shown in line], words
        assert [line for line in lines if line.startswith(("b\\x1b", "b\x1b", "c.jsonl"))] == [], words


def test_unknown_session_is_not_found(desk: Desk, capsys: Captured) -> None:
    """Without agents, no daemon is started to look for an archive."""
    assert run(["archive", "read", "ffff"]) == 3
    assert "orch import --list" in capsys.readouterr().err
    assert desk.asked == []


def test_messages_about_sessions_name_the_command_that_lists_them(desk: Desk, capsys: Captured, tmp_path: Path) -> None:
    """`orch archive list` contains the archives of agents only."""
    (hit,) = search(capsys, "output of pump")
    assert run(["archive", "read", hit["id"], "999"]) == 3
    assert "has no entry 999: orch import --list shows how many it has" in capsys.readouterr().err
    (tmp_path / "home" / "runs" / "daemon").mkdir(parents=True)
    desk.answers["read_archive"] = CommandError("AgentNotFoundError", "no archive 'x': list archives with `y`", 3)
    assert run(["archive", "read", "x"]) == 3
    assert capsys.readouterr().err.endswith("list archives with `y`, imported sessions with `orch import --list`\n")
    desk.answers["list_archives"] = []
    assert run(["archive", "list"]) == 0
    assert "no archives of agents" in (err := capsys.readouterr().err)
    assert "orch import --list" in err


@pytest.mark.usefixtures("desk")
def test_damaged_copy_is_named_with_the_remedy(capsys: Captured, tmp_path: Path) -> None:
    """Other sessions are searched. Entries of the copy are not shown under wrong numbers."""
    (hit,) = search(capsys, "output of pump")
    (file,) = (tmp_path / "home" / "imports" / hit["id"]).glob("*/archive-*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    damaged = next(index for index, line in enumerate(lines) if b'"type":"custom"' in line)
    lines[damaged] = lines[damaged].replace(b'"', b"x", 4)
    file.write_bytes(b"".join(lines))
    capsys.readouterr()
    assert run(["archive", "search", "answer to valve"]) == 0
    shown = capsys.readouterr()
    assert "socket" in shown.out
    assert f"`orch import --forget {hit['id']}`" in shown.err
    assert run(["archive", "read", hit["id"]]) == 1
    assert f"`orch import --forget {hit['id']}`" in capsys.readouterr().err
