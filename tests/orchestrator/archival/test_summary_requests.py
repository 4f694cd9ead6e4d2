"""Summaries by a function of the caller: on time, late, missing or invalid. The conversation continues in each case."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from message_shapes import SHAPES, Shape, work
from orch.api.archiver import Archiver
from orch.archival.plan.plan import due_upgrades, first_uncached_message
from orch.archival.summary import MAX_PENDING, REASON_CHARS
from orch_protocol.agent.config import ArchivalConfig, SummaryConfig
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Message, Text, ToolResult, assistant, user
from orch_protocol.services.archives.archiving import SummaryRequest
from orch_worker.backends.prices import Prices
from orch_worker.session.log.append_log import AppendLog

HASTY = ArchivalConfig(profile="seed", summary=SummaryConfig(style="paragraph", timeout_seconds=0.01))
PHASES = ArchivalConfig(
    profile="economy",
    high_tokens=3000,
    low_tokens=800,
    gate=False,
    summary=SummaryConfig(style="paragraph", timeout_seconds=0.01),
)
RECEIPT = "part_4,part_5}.py"


@pytest.fixture(params=SHAPES, ids=lambda shape: shape.name)
def shape(request: pytest.FixtureRequest) -> Shape:
    """Each message format in turn."""
    given: Shape = request.param
    return given


class Slow:
    """A model that answers when `release` is set. Its answer names the module of the request."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.asked = 0

    def __call__(self, request: SummaryRequest) -> str:
        """Return a summary with the module of the request."""
        self.asked += 1
        self.release.wait(30)
        return f"Late word on {request.prompt.partition('module ')[2].partition(chr(10))[0]}."

    def answer(self) -> None:
        """Release all answers and wait for the summary threads."""
        self.release.set()
        for thread in threading.enumerate():
            if thread.name == "orch-summary":
                thread.join(30)


def test_late_summary_replaces_the_receipt_at_the_next_fold(shape: Shape, tmp_path: Path) -> None:
    """If the model does not answer in time, the receipt stays until the next fold after the answer."""
    slow = Slow()
    turn = work(shape, 1, steps=6)
    with Archiver(tmp_path, shape.name, config=HASTY, summarize=slow) as archiver:
        live = archiver.fold([*turn, shape.user("next")])
        assert RECEIPT in shape.text(live[1])
        late = "it did not arrive within 0.01 s; it is inserted when it arrives (reported only once)"
        assert archiver.notes == [f"no summary of archive {archiver.archives()[0].id}: {late}"]
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


def test_late_summary_is_kept_across_archivers(shape: Shape, tmp_path: Path) -> None:
    """The archiver stores a late answer when it closes, and the next archiver inserts it."""
    slow = Slow()
    turn = work(shape, 1, steps=6)
    with Archiver(tmp_path, shape.name, config=HASTY, summarize=slow) as archiver:
        live = archiver.fold(turn)
        slow.answer()
    with Archiver(tmp_path, shape.name, config=HASTY) as archiver:
        assert "Late word on 1." in shape.text(archiver.fold(live)[1])


def test_late_phase_summary_changes_only_its_record(shape: Shape, tmp_path: Path) -> None:
    """Only the block with the record changes. Other blocks of the message stay."""
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


def test_late_summary_waits_for_a_break_of_the_cached_prefix(shape: Shape, tmp_path: Path) -> None:
    """A receipt in the cached prefix stays until an earlier message changes."""
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


def test_summary_upgrades_are_weighed_against_the_cache() -> None:
    """A summary is inserted after the first uncached message, or shortly before it, but not far before it."""
    tokens = [100, 100, 600, 600, 100, 100]
    assert due_upgrades([1, 3, 5], tokens, 4, Prices()) == [3, 5]
    assert due_upgrades([1, 3, 5], tokens, 2, Prices()) == [1, 3, 5]
    assert due_upgrades([1, 3, 5], tokens, 4, Prices(read=1.0, write=1.0)) == [1, 3, 5]
    assert due_upgrades([], tokens, 0, Prices()) == []


def test_last_response_is_not_cached_yet() -> None:
    """The last response and the messages after it were not part of any request."""
    result = Message("user", (ToolResult("c", (Text("ok"),)),))
    assert first_uncached_message([]) == 0
    assert first_uncached_message([user("a")]) == 0
    assert first_uncached_message([user("a"), assistant("b"), user("c"), assistant("d"), result]) == 3


def broken(_: SummaryRequest) -> str:
    """Fail with a long message."""
    raise RuntimeError("no key " * 10_000)


def leaving(_: SummaryRequest) -> str:
    """Try to end the program."""
    raise SystemExit(1)


UNUSABLE = [
    (broken, "RuntimeError: no key no key"),
    (leaving, "SystemExit: 1"),
    (lambda _: "nonsense", "not a structured summary"),
    (lambda _: "", "not a structured summary"),
    (lambda _: None, "not a structured summary"),
    (lambda _: b"bytes", "not a structured summary"),
    (lambda _: "[" * 1_000_000, "not a structured summary"),
    (lambda _: json.dumps({"outcome": "long " * 2_000_000}), "not a structured summary"),
]


@pytest.mark.parametrize(("model", "reason"), UNUSABLE, ids=[reason + str(n) for n, (_, reason) in enumerate(UNUSABLE)])
def test_unusable_answers_keep_the_receipt(
    shape: Shape, tmp_path: Path, model: Callable[[SummaryRequest], Any], reason: str
) -> None:
    """A failure of the same kind is reported once."""
    with Archiver(tmp_path, shape.name, "seed", model) as archiver:
        live: list[Any] = []
        for number in range(3):
            live = archiver.fold([*live, *work(shape, number, steps=6)])
        assert [RECEIPT in shape.text(message) for message in live] == [False, True] * 3
        (note,) = archiver.notes
        assert reason in note
        assert len(note) < REASON_CHARS + 80
        assert not any(record.summarized for record in archiver.archives())


def test_each_kind_of_failure_is_reported_once(shape: Shape, tmp_path: Path) -> None:
    """A failure of the same kind with another text is not reported again."""
    failures = iter([ValueError("a"), ValueError("b"), KeyError("c"), ValueError("d")])

    def failing(_: SummaryRequest) -> str:
        raise next(failures)

    with Archiver(tmp_path, shape.name, "seed", failing) as archiver:
        archiver.fold([message for number in range(4) for message in work(shape, number, steps=6)])
        assert [note.partition(": ")[2] for note in archiver.notes] == [
            "ValueError: a (reported only once)",
            "KeyError: 'c' (reported only once)",
        ]


def test_hanging_model_gets_a_bounded_number_of_requests(shape: Shape, tmp_path: Path) -> None:
    """The archiver sends no further request until earlier requests return."""
    slow = Slow()
    with Archiver(tmp_path, shape.name, config=HASTY, summarize=slow) as archiver:
        turns = [message for number in range(MAX_PENDING + 3) for message in work(shape, number, steps=6)]
        live = archiver.fold(turns)
        assert slow.asked == MAX_PENDING
        assert "4 summaries are already pending" in archiver.notes[-1]
        slow.answer()
        live = archiver.fold([*live, *work(shape, 50, steps=6)])
        assert slow.asked == MAX_PENDING + 1
        assert "Late word on 50." in shape.text(live[-1])
        assert sum(record.summarized for record in archiver.archives()) == MAX_PENDING + 1


def test_late_summary_is_dropped_on_a_full_disk(shape: Shape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archiver reports the failure, and the conversation is unchanged."""
    slow = Slow()
    with Archiver(tmp_path, shape.name, config=HASTY, summarize=slow) as archiver:
        live = archiver.fold(work(shape, 1, steps=6))
        slow.answer()

        def full(*_: object) -> int:
            raise OSError(28, "no space")

        with monkeypatch.context() as patched:
            patched.setattr(AppendLog, "_write", staticmethod(full))
            assert archiver.fold(live) == live
        assert "could not be stored" in archiver.notes[-1]
        assert "no space" in archiver.notes[-1] or "disk full" in archiver.notes[-1]


def test_lone_surrogates_in_a_summary_are_replaced(shape: Shape, tmp_path: Path) -> None:
    """The record contains a replacement character, so that the next request is valid UTF-8."""
    with Archiver(tmp_path, shape.name, config=HASTY, summarize=lambda _: "half \ud83d of it") as archiver:
        text = shape.text(archiver.fold(work(shape, 1, steps=6))[1])
        assert "half \N{REPLACEMENT CHARACTER} of it" in text


async def asynchronous(_: SummaryRequest) -> str:
    return "later"


@pytest.mark.parametrize(("given", "word"), [(asynchronous, "an async function"), ("text", "a str")])
def test_invalid_summary_function_is_refused(shape: Shape, tmp_path: Path, given: Any, word: str) -> None:
    """The archiver raises ConfigError and releases the lock of the folder."""
    with pytest.raises(ConfigError, match=word):
        Archiver(tmp_path, shape.name, "seed", given)
    Archiver(tmp_path, shape.name).close()
