"""Summaries of a caller's function: in time, late, never, or unusable; the conversation goes on in each case."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from message_shapes import SHAPES, Shape, work
from orch.api.archiver import Archiver
from orch.archival.plan.economics import Prices
from orch.archival.plan.plan import due_upgrades, first_uncached_message
from orch.archival.summary import MAX_PENDING, REASON_CHARS
from orch_protocol.agent.config import ArchivalConfig, SummaryConfig
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Message, Text, ToolResult, assistant, user
from orch_protocol.services.archiving import SummaryRequest
from orch_worker.session.log.append_log import AppendLog

HASTY = ArchivalConfig(profile="seed", summary=SummaryConfig(style="paragraph", timeout_seconds=0.01))
PHASES = ArchivalConfig(
    profile="economy",
    high_tokens=3000,
    low_tokens=800,
    gate=False,
    summary=SummaryConfig(style="paragraph", timeout_seconds=0.01),
)
RECEIPT = "Tools: read_file x6"


@pytest.fixture(params=SHAPES, ids=lambda shape: shape.name)
def shape(request: pytest.FixtureRequest) -> Shape:
    """Each message shape in turn."""
    given: Shape = request.param
    return given


class Slow:
    """A model that answers when it is let, about the item it was asked about."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.asked = 0

    def __call__(self, request: SummaryRequest) -> str:
        """Return a summary that names what the turn was about."""
        self.asked += 1
        self.release.wait(30)
        return f"Late word on {request.prompt.partition('module ')[2].partition(chr(10))[0]}."

    def answer(self) -> None:
        """Let all answers come, and wait until they are there."""
        self.release.set()
        for thread in threading.enumerate():
            if thread.name == "orch-summary":
                thread.join(30)


def test_late_summary_is_put_in_when_it_comes(shape: Shape, tmp_path: Path) -> None:
    """A model that does not answer in time leaves the receipt; the next fold has the answer in its place."""
    slow = Slow()
    turn = work(shape, 1, steps=6)
    with Archiver(tmp_path, shape.name, config=HASTY, summarize=slow) as archiver:
        live = archiver.fold([*turn, shape.user("next")])
        assert RECEIPT in shape.text(live[1])
        assert archiver.notes == [
            f"no summary of archive {archiver.archives()[0].id}: not within 0.01 s; put in when it comes (said once)"
        ]
        assert archiver.fold(live) == live
        slow.answer()
        after = archiver.fold(live)
        assert shape.text(after[1]).splitlines()[3:] == [
            "Late word on 1.",
            "",
            "Final answer:",
            "Module 1 is fine, 1001 lines.",
        ]
        assert [new is old for new, old in zip(after, live, strict=True)] == [True, False, True]
        assert archiver.unfold(after) == [*turn, shape.user("next")]
        assert archiver.fold(after)[1] == after[1]
        assert slow.asked == 1


def test_late_summary_outlives_the_archiver(shape: Shape, tmp_path: Path) -> None:
    """What came after the last fold is kept when the archiver closes, and put in by the next one."""
    slow = Slow()
    turn = work(shape, 1, steps=6)
    with Archiver(tmp_path, shape.name, config=HASTY, summarize=slow) as archiver:
        live = archiver.fold(turn)
        slow.answer()
    with Archiver(tmp_path, shape.name, config=HASTY) as archiver:
        assert "Late word on 1." in shape.text(archiver.fold(live)[1])


def test_late_summary_of_a_phase_is_put_in(shape: Shape, tmp_path: Path) -> None:
    """In a prompt only the stub's own block changes; what else the message carries stays."""
    slow = Slow()
    turn = work(shape, 1, steps=9, size=4000)[:-1]
    turn[0] = {"role": "user", "content": [{"type": "text", "text": "Look into module 1", "cache_control": {"a": 1}}]}
    with Archiver(tmp_path, shape.name, config=PHASES, summarize=slow) as archiver:
        live = archiver.fold(turn)
        assert archiver.folded[0].kind == "phase"
        slow.answer()
        after = archiver.fold(live)
        blocks = after[0]["content"]
        assert blocks[0] == turn[0]["content"][0]
        assert blocks[1]["text"].endswith("\n\nLate word on .")
        assert archiver.unfold(after) == turn


def test_late_summary_waits_for_a_break(shape: Shape, tmp_path: Path) -> None:
    """Far up in what is cached a receipt stays, until something before it changes anyway."""
    slow = Slow()
    with Archiver(tmp_path, shape.name, config=HASTY, summarize=slow) as archiver:
        live = archiver.fold(work(shape, 1, steps=6))
        for number in range(2, 5):
            live = [*live, *work(shape, number, steps=4, size=2000)]
            assert archiver.fold(live) == live
        slow.answer()
        live = [*live, shape.user("next")]
        assert archiver.fold(live) == live
        earlier = [*work(shape, 0, steps=6), *live]
        assert "Late word on 1." in shape.text(archiver.fold(earlier)[3])


def test_upgrades_are_weighed() -> None:
    """A stub behind the break is free, one close before it cheap, one far before it stays."""
    tokens = [100, 100, 600, 600, 100, 100]
    assert due_upgrades([1, 3, 5], tokens, 4, Prices()) == [3, 5]
    assert due_upgrades([1, 3, 5], tokens, 2, Prices()) == [1, 3, 5]
    assert due_upgrades([1, 3, 5], tokens, 4, Prices(read=1.0, write=1.0)) == [1, 3, 5]
    assert due_upgrades([], tokens, 0, Prices()) == []


def test_nothing_is_cached_from_the_last_response_on() -> None:
    """The last response and what follows it were in no request yet."""
    result = Message("user", (ToolResult("c", (Text("ok"),)),))
    assert first_uncached_message([]) == 0
    assert first_uncached_message([user("a")]) == 0
    assert first_uncached_message([user("a"), assistant("b"), user("c"), assistant("d"), result]) == 3


def broken(_: SummaryRequest) -> str:
    """Fail as a client without a key does, at length."""
    raise RuntimeError("no key " * 10_000)


def leaving(_: SummaryRequest) -> str:
    """Try to end the program."""
    raise SystemExit(1)


UNUSABLE = [
    (broken, "RuntimeError: no key no key"),
    (leaving, "SystemExit: 1"),
    (lambda _: "nonsense", "no structured summary"),
    (lambda _: "", "no structured summary"),
    (lambda _: None, "no structured summary"),
    (lambda _: b"bytes", "no structured summary"),
    (lambda _: "[" * 1_000_000, "no structured summary"),
    (lambda _: json.dumps({"outcome": "long " * 2_000_000}), "no structured summary"),
]


@pytest.mark.parametrize(("model", "reason"), UNUSABLE, ids=[reason + str(n) for n, (_, reason) in enumerate(UNUSABLE)])
def test_unusable_answers_leave_the_receipt(
    shape: Shape, tmp_path: Path, model: Callable[[SummaryRequest], Any], reason: str
) -> None:
    """A model that raises, leaves, answers nonsense or megabytes leaves the receipt, and is told of once."""
    with Archiver(tmp_path, shape.name, "seed", model) as archiver:
        live: list[Any] = []
        for number in range(3):
            live = archiver.fold([*live, *work(shape, number, steps=6)])
        assert [RECEIPT in shape.text(message) for message in live] == [False, True] * 3
        (note,) = archiver.notes
        assert reason in note
        assert len(note) < REASON_CHARS + 80
        assert not any(record.summarised for record in archiver.archives())


def test_each_kind_of_failure_is_told_once(shape: Shape, tmp_path: Path) -> None:
    """Another reason is told again, the same one with other words is not."""
    failures = iter([ValueError("a"), ValueError("b"), KeyError("c"), ValueError("d")])

    def failing(_: SummaryRequest) -> str:
        raise next(failures)

    with Archiver(tmp_path, shape.name, "seed", failing) as archiver:
        archiver.fold([message for number in range(4) for message in work(shape, number, steps=6)])
        assert [note.partition(": ")[2] for note in archiver.notes] == [
            "ValueError: a (said once)",
            "KeyError: 'c' (said once)",
        ]


def test_model_that_hangs_is_not_asked_for_ever(shape: Shape, tmp_path: Path) -> None:
    """With some answers outstanding no further question is asked; when they have come, it is."""
    slow = Slow()
    with Archiver(tmp_path, shape.name, config=HASTY, summarize=slow) as archiver:
        turns = [message for number in range(MAX_PENDING + 3) for message in work(shape, number, steps=6)]
        live = archiver.fold(turns)
        assert slow.asked == MAX_PENDING
        assert "4 are being waited for" in archiver.notes[-1]
        slow.answer()
        live = archiver.fold([*live, *work(shape, 50, steps=6)])
        assert slow.asked == MAX_PENDING + 1
        assert "Late word on 50." in shape.text(live[-1])
        assert sum(record.summarised for record in archiver.archives()) == MAX_PENDING + 1


def test_late_summary_and_a_full_disk(shape: Shape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late summary that cannot be written is given up with a note; the conversation goes on."""
    slow = Slow()
    with Archiver(tmp_path, shape.name, config=HASTY, summarize=slow) as archiver:
        live = archiver.fold(work(shape, 1, steps=6))
        slow.answer()

        def full(*_: object) -> int:
            raise OSError(28, "no space")

        with monkeypatch.context() as patched:
            patched.setattr(AppendLog, "_write", staticmethod(full))
            assert archiver.fold(live) == live
        assert "is lost" in archiver.notes[-1]
        assert "no space" in archiver.notes[-1] or "disk full" in archiver.notes[-1]


def test_summary_no_encoding_carries_is_mended(shape: Shape, tmp_path: Path) -> None:
    """Half a character in a summary does not get into the next request."""
    with Archiver(tmp_path, shape.name, config=HASTY, summarize=lambda _: "half \ud83d of it") as archiver:
        text = shape.text(archiver.fold(work(shape, 1, steps=6))[1])
        assert "half \N{REPLACEMENT CHARACTER} of it" in text


async def asynchronous(_: SummaryRequest) -> str:
    """Answer to whoever waits."""
    return "later"


@pytest.mark.parametrize(("given", "word"), [(asynchronous, "an async function"), ("text", "a str")])
def test_what_cannot_be_asked_is_refused(shape: Shape, tmp_path: Path, given: Any, word: str) -> None:
    """An async function, or none at all, is an error at once, and the folder is free again."""
    with pytest.raises(ConfigError, match=word):
        Archiver(tmp_path, shape.name, "seed", given)
    Archiver(tmp_path, shape.name).close()
