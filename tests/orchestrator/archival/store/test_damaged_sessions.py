"""Two hundred damaged session files with branches and archives: every reader accepts them and shows the same."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_history import EAGER, PROFILES, Life, steps
from orch.archival.store.session_archives import SessionArchives
from orch_protocol.core.errors import ForeignFileError
from orch_protocol.core.messages import text_of, user
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.session_index import read_session_index
from orch_worker.session.session_reader import read_last_turn, read_session
from orch_worker.session.transcript import Transcript

FILES = 200
Lines = list[bytes]


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AppendLog, "_fdatasync", staticmethod(lambda _: None))


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Files of agents that changed branches, with archived turns, phases and eras."""
    made = []
    for number, profile in enumerate((EAGER, PROFILES["tight"], PROFILES["phases"])):
        life = Life(tmp_path_factory.mktemp("life") / "agent", profile)
        points: list[str | None] = [None]
        for turn in range(7):
            life.turn(*steps(1 + turn % 2, f"t{turn}", 20))
            if turn % 3:
                life.archive()
            points.append(life.transcript.session.leaf)
            if turn % 2:
                life.go(points[(turn * 3 + number) % len(points)], "it led nowhere" if turn % 4 == 1 else None)
        life.inform("noon")
        life.check()
        life.close()
        made.append((life.folder / "session.jsonl").read_bytes())
    return made


def cut(data: bytes, dice: random.Random) -> bytes:
    """Truncate the file at a random byte."""
    return data[: dice.randrange(len(data))]


def flip(data: bytes, dice: random.Random) -> bytes:
    """Flip one or more bits."""
    spoilt = bytearray(data)
    for _ in range(dice.choice([1, 1, 3, 20])):
        spoilt[dice.randrange(len(spoilt))] ^= 1 << dice.randrange(8)
    return bytes(spoilt)


def whole_lines(change: Callable[[Lines, random.Random], None]) -> Callable[[bytes, random.Random], bytes]:
    """Return a function that applies `change` to the lines after the first."""

    def changed(data: bytes, dice: random.Random) -> bytes:
        first, *lines = data.splitlines(keepends=True)
        change(lines, dice)
        return first + b"".join(lines)

    return changed


def double(lines: Lines, dice: random.Random) -> None:
    """Insert a copy of one line at a random place."""
    lines.insert(dice.randrange(len(lines)), dice.choice(lines))


def lose(lines: Lines, dice: random.Random) -> None:
    """Delete lines."""
    for _ in range(dice.choice([1, 1, 2, 5])):
        del lines[dice.randrange(len(lines))]


def swap(lines: Lines, dice: random.Random) -> None:
    one, other = dice.randrange(len(lines)), dice.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]


MUTATIONS: list[Callable[[bytes, random.Random], bytes]] = [
    cut,
    flip,
    whole_lines(double),
    whole_lines(lose),
    whole_lines(swap),
    lambda data, _: b"\xef\xbb\xbf" + data,
    lambda data, _: data.replace(b"\n", b"\r\n"),
    lambda data, dice: data + b"\0" * dice.randrange(1, 5000),
    lambda data, dice: cut(data, dice) + b"\0" * dice.randrange(1, 5000),
    lambda data, dice: flip(cut(data, dice) or data, dice),
]


def before(data: bytes, spoilt: bytes) -> set[str]:
    """Return the ids of the entries in complete appends before the first difference."""
    same = next((at for at, (one, other) in enumerate(zip(data, spoilt, strict=False)) if one != other), len(spoilt))
    found, waiting = set[str](), set[str]()
    for line in data[: data.rfind(b"\n", 0, same) + 1].splitlines()[1:]:
        entry = json.loads(line)
        waiting.add(entry["id"])
        if not entry.get("m"):
            found |= waiting
            waiting.clear()
    return found


def test_two_hundred_damaged_session_files(sessions: list[bytes], tmp_path: Path) -> None:
    """Each file is refused as foreign, or all readers show the same, keep the entries before the damage, and can
    append."""
    dice, refused = random.Random(7), 0
    folder = tmp_path / "agent"
    folder.mkdir(mode=0o700)
    path = folder / "session.jsonl"
    for number in range(FILES):
        data = dice.choice(sessions)
        spoilt = MUTATIONS[number % len(MUTATIONS)](data, dice)
        path.write_bytes(spoilt)
        read_last_turn(folder)
        try:
            session = read_session(folder)
        except ForeignFileError:
            refused += 1
            assert not spoilt.startswith(data.splitlines(keepends=True)[0]), "a header that is ours was refused"
            assert path.read_bytes() == spoilt, "a foreign file was changed"
            continue
        shown = [(item.message, item.first, item.last) for item in session.view.items]
        ledger = SessionArchives(folder)
        ledger.catch_up()
        assert [(item.message, item.first, item.last) for item in ledger.view.items] == shown
        outline = read_session_index(folder)
        assert (outline.lineage.places, outline.leaf) == (session.places, session.leaf)
        assert before(data, spoilt) <= session.places.keys(), "something before the damage is gone"
        transcript = Transcript.open(folder, agent="agent", cwd="/")
        try:
            transcript.message(user(f"go on {number}"), "next")
            for now in (transcript.session, read_session(folder)):
                assert text_of(now.messages[-1]).endswith(f"go on {number}")
        finally:
            transcript.close()
        for aside in folder.glob("session.jsonl.torn-*"):
            aside.unlink()
    assert 0 < refused < FILES // 3
