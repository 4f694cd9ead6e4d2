"""The killer that `make chaos` lets loose for minutes, for some seconds; and that its judge would notice."""

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
    """A folder with the home of a daemon that some kills have befallen, and what clients were told."""
    folder: Path = tmp_path_factory.mktemp("chaos")
    assert run(folder, KILLS, seed=20) == []
    return folder


def test_nothing_is_lost_by_kills(told: Path) -> None:
    """Of worker, holder, zygote, shim, daemon and commands: each answer is on record, once, and nobody is left."""
    answered = [row for row in rows(told / "told.jsonl") if row.get("answered")]
    assert len(answered) >= KILLS
    assert any("takers" in row for row in answered)


def last_answer(folder: Path) -> dict[str, Any]:
    """Return the last answer of an agent that is no holder."""
    told = [row for row in rows(folder / "told.jsonl") if row.get("answered")]
    return [row for row in told if (folder / "home" / "sessions" / row["agent"]).is_dir()][-1]


def session(folder: Path) -> Path:
    """Return the session file of the agent that gave the last answer."""
    return folder / "home" / "sessions" / last_answer(folder)["agent"] / "session.jsonl"


def loses(folder: Path) -> None:
    """Lose the end of the last turn that was answered."""
    path, token = session(folder), last_answer(folder)["token"]
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if f"say {token} again".encode() in line)
    path.write_bytes(b"".join(lines[:at]))


def repeats(folder: Path) -> None:
    """Do a turn twice."""
    path, token = session(folder), last_answer(folder)["token"]
    prompt = next(line for line in path.read_bytes().splitlines() if f"say {token} again".encode() in line)
    with path.open("ab") as file:
        file.write(prompt + b"\n")


def alters(folder: Path) -> None:
    """Change what was archived."""
    path = next(
        path
        for path in (folder / "home" / "sessions").glob("*/session.jsonl")
        if b'"type":"archive"' in path.read_bytes()
    )
    path.write_bytes(path.read_bytes().replace(b"The port is 4711", b"The port is 4712"))


def collects(folder: Path) -> None:
    """Hand an answer out twice."""
    path = folder / "home" / "runs" / "daemon" / "journal.jsonl"
    row = next(line for line in path.read_bytes().splitlines() if b'"type":"reply_collected"' in line)
    with path.open("ab") as file:
        file.write(row + b"\n")


def leaves(folder: Path) -> None:
    """Leave a process behind."""
    with (folder / "told.jsonl").open("a") as file:
        file.write(json.dumps({"left": [4711]}) + "\n")


def forgets(folder: Path) -> None:
    """Tell of an archive that nothing is on record of."""
    with (folder / "told.jsonl").open("a") as file:
        file.write(json.dumps({"agent": last_answer(folder)["agent"], "archive": "0123456789ab"}) + "\n")


def drops(folder: Path) -> None:
    """Accept a query and never ask it."""
    row = {"agent": last_answer(folder)["agent"], "token": "token-none", "answered": False, "cut_short": True}
    with (folder / "told.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def mixes_up(folder: Path) -> None:
    """Give somebody the answer of somebody else."""
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
def test_each_fault_is_found(told: Path, tmp_path: Path, fault: Callable[[Path], None], complaint: str) -> None:
    """What the product does not do is done to its files: the judge names it."""
    folder = tmp_path / "copy"
    shutil.copytree(told, folder, ignore=shutil.ignore_patterns("*.sock"))
    assert judge(folder / "home", folder / "told.jsonl") == []
    fault(folder)
    assert any(complaint in each for each in judge(folder / "home", folder / "told.jsonl"))
