"""The killer of `make chaos` runs for some seconds, and its judge detects planted faults."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.killer import run
from chaos.lost_work import judge, rows

KILLS = 12


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the home of a daemon whose processes were killed, and with the answers that clients received."""
    folder: Path = tmp_path_factory.mktemp("chaos")
    assert run(folder, KILLS, seed=20) == []
    return folder


def test_kills_lose_no_acknowledged_answer(told: Path) -> None:
    """Clients receive at least one answer for each kill of a process of the daemon, and the judge finds no error."""
    answered = [row for row in rows(told / "told.jsonl") if row.get("answered")]
    assert len(answered) >= KILLS
    assert any("takers" in row for row in answered)


def last_answer(folder: Path) -> dict[str, Any]:
    """Return the last recorded answer of an agent that is not a holder."""
    told = [row for row in rows(folder / "told.jsonl") if row.get("answered")]
    return [row for row in told if (folder / "home" / "sessions" / row["agent"]).is_dir()][-1]


def session(folder: Path) -> Path:
    """Return the session file of the agent that gave the last answer."""
    return folder / "home" / "sessions" / last_answer(folder)["agent"] / "session.jsonl"


def loses(folder: Path) -> None:
    """Remove the last answered prompt, and everything after it, from the transcript."""
    path, token = session(folder), last_answer(folder)["token"]
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if f"say {token} again".encode() in line)
    path.write_bytes(b"".join(lines[:at]))


def repeats(folder: Path) -> None:
    """Append the last answered prompt to the transcript a second time."""
    path, token = session(folder), last_answer(folder)["token"]
    prompt = next(line for line in path.read_bytes().splitlines() if f"say {token} again".encode() in line)
    with path.open("ab") as file:
        file.write(prompt + b"\n")


def alters(folder: Path) -> None:
    """Change the text of an archive."""
    path = next(
        path
        for path in (folder / "home" / "sessions").glob("*/session.jsonl")
        if b'"type":"archive"' in path.read_bytes()
    )
    path.write_bytes(path.read_bytes().replace(b"The port is 4711", b"The port is 4712"))


def collects(folder: Path) -> None:
    """Record in the journal that an answer was collected a second time."""
    path = folder / "home" / "runs" / "daemon" / "journal.jsonl"
    row = next(line for line in path.read_bytes().splitlines() if b'"type":"reply_collected"' in line)
    with path.open("ab") as file:
        file.write(row + b"\n")


def leaves(folder: Path) -> None:
    """Record a process that remained after the run."""
    with (folder / "told.jsonl").open("a") as file:
        file.write(json.dumps({"left": [4711]}) + "\n")


def forgets(folder: Path) -> None:
    """Record an archive that is in no transcript."""
    with (folder / "told.jsonl").open("a") as file:
        file.write(json.dumps({"agent": last_answer(folder)["agent"], "archive": "0123456789ab"}) + "\n")


def drops(folder: Path) -> None:
    """Record an accepted query that is in no transcript."""
    row = {"agent": last_answer(folder)["agent"], "token": "token-none", "answered": False, "cut_short": True}
    with (folder / "told.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def mixes_up(folder: Path) -> None:
    """Record a wrong answer to the last question."""
    with (folder / "told.jsonl").open("a") as file:
        file.write(json.dumps(last_answer(folder) | {"right": False}) + "\n")


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        (loses, "is lost"),
        (repeats, "was put to"),
        (alters, "does not hold what it was given"),
        (collects, "collected 2 times"),
        (leaves, "process 4711 was left behind"),
        (forgets, "archive 0123456789ab was told of and is lost"),
        (mixes_up, "with something else"),
        (drops, "was accepted and never reached"),
    ],
)
def test_judge_detects_each_planted_fault(
    told: Path, tmp_path: Path, fault: Callable[[Path], None], complaint: str
) -> None:
    """The judge finds no error in the files of the run, and reports a fault after it is planted in these files."""
    folder = tmp_path / "copy"
    shutil.copytree(told, folder, ignore=shutil.ignore_patterns("*.sock"))
    assert judge(folder / "home", folder / "told.jsonl") == []
    fault(folder)
    assert any(complaint in each for each in judge(folder / "home", folder / "told.jsonl"))
