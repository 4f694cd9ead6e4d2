"""`Archiver.explain`: why turns stay in the conversation, and that the named changes archive them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from message_shapes import SHAPES, work
from orch import ArchivalConfig, Archiver, TriggerConfig

SHAPE = SHAPES[0]
SMALL = [SHAPE.user("Hi"), SHAPE.assistant("Hello.")]
RUNNING = [SHAPE.user("go"), SHAPE.calls(("c", "read", {})), *SHAPE.results(("c", "ok"))]
TURN = work(SHAPE, 1, steps=3, size=400)
LONG_STEPS = [
    message
    for number in range(4)
    for message in (SHAPE.calls((f"c{number}", "read", {})), *SHAPE.results((f"c{number}", "line\n" * 900)))
]


@pytest.mark.parametrize(
    ("config", "messages", "words"),
    [
        ({}, [], "The conversation has no messages"),
        (
            {},
            [SHAPE.user("go")],
            "The last turn has no response yet. Its first steps are archived above high_tokens = 24000",
        ),
        ({}, RUNNING, "has no final answer yet: append the answer before `fold`, or pass `stop_reason`"),
        ({"phase": False}, RUNNING, "With phase = false, no part of it is archived"),
        ({"high_tokens": 20}, RUNNING, "Its last step stays, and there are no earlier steps"),
        ({}, SMALL, "1 finished turn would not become smaller"),
        ({"turns": False}, TURN, "1 finished turn stays because of turns = false. Set turns = true"),
        ({"trigger": TriggerConfig(depth_cap=0)}, TURN, "trigger.depth_cap = 0. Set it to 1 or more"),
        ({"profile": "seed"}, TURN, r"the busiest 3 tool calls. Lower .* or trigger.tool_call_threshold \(5\)"),
        ({"trigger": TriggerConfig(token_threshold=9000)}, SMALL, r"Lower trigger.token_threshold \(9000\)"),
    ],
)
def test_reason_is_named(tmp_path: Path, config: dict[str, Any], messages: list[Any], words: str) -> None:
    """The text names the reason, the setting and the values."""
    with Archiver(tmp_path, SHAPE.name, config=ArchivalConfig(**config)) as archiver:
        assert archiver.explain() == "Nothing was archived, because `fold` was not called yet."
        assert archiver.fold(messages) == messages
        assert re.search(words, archiver.explain())


def test_turn_that_does_not_pay_is_archived_after_each_named_change(tmp_path: Path) -> None:
    """The size of the conversation, the number of further requests and the settings in the text are those that act."""
    messages = [SHAPE.user("Hi " * 20), SHAPE.assistant("word " * 1500), *RUNNING, *LONG_STEPS]
    with Archiver(tmp_path / "a", SHAPE.name, config=ArchivalConfig()) as archiver:
        archiver.fold(messages)
        text = archiver.explain()
    assert "1 finished turn stays because archiving costs more than it saves: for the last 1" in text
    [size] = map(int, re.findall(r"\(now (\d+)\)", text))
    changes = (
        {"high_tokens": size - 1},
        {"gate": False, "trigger": TriggerConfig(token_threshold=1)},
        {"trigger": TriggerConfig(token_threshold=100)},
    )
    for number, change in enumerate(changes):
        with Archiver(tmp_path / str(number), SHAPE.name, config=ArchivalConfig(**change)) as archiver:
            archiver.fold(messages)
            assert archiver.folded, change
            assert archiver.explain().startswith(f"Archived {archiver.folded[0].kind} {archiver.folded[0].id} (")
    [calls] = map(int, re.findall(r"pays from (\d+) further requests", text))
    saved, cost = (float(re.findall(pattern, text)[0]) for pattern in (r"saves (\d+) in", r"costs (\d+) now"))
    assert saved < cost
    assert calls > 8


def test_turn_that_is_not_paid_for_yet_is_archived_later(tmp_path: Path) -> None:
    """While the text says that earlier savings do not cover the cost, nothing is archived. Later turns change that."""
    live: list[Any] = []
    refused = 0
    for number in range(60):
        live += work(SHAPE, number, steps=3, size=400)
        with Archiver(tmp_path / str(number), SHAPE.name) as archiver:
            archiver.fold(live)
            text = archiver.explain()
            if archiver.folded:
                break
        if "does not cover the cost yet" in text:
            refused += 1
            cost, saved, margin = (
                int(re.findall(pattern, text)[0])
                for pattern in (r"costs (\d+) until", r"has saved (\d+) in", r"may cost (\d+) more")
            )
            assert cost >= saved + margin
    assert refused
    assert archiver.folded
    config = ArchivalConfig(trigger=TriggerConfig(tool_call_threshold=3))
    with Archiver(tmp_path / "triggered", SHAPE.name, config=config) as archiver:
        archiver.fold(work(SHAPE, 1, steps=3, size=400))
        assert archiver.folded


def test_thresholds_in_the_text_are_those_that_archive(tmp_path: Path) -> None:
    """A threshold that equals the size or the number of calls in the text archives the turn."""
    with Archiver(tmp_path / "a", SHAPE.name, "seed") as archiver:
        archiver.fold(TURN)
        [tokens], [calls] = (
            [int(each) for each in re.findall(pattern, archiver.explain())]
            for pattern in (r"largest has (\d+) tokens", r"busiest (\d+) tool calls")
        )
    for number, trigger in enumerate(({"token_threshold": tokens}, {"tool_call_threshold": calls})):
        for value, archived in ((0, True), (1, False)):
            raised = {name: limit + value for name, limit in trigger.items()}
            config = ArchivalConfig(profile="seed", trigger=TriggerConfig(**raised))
            with Archiver(tmp_path / f"{number}{value}", SHAPE.name, config=config) as archiver:
                archiver.fold(TURN)
                assert bool(archiver.folded) is archived


def test_unfinished_turn_names_its_stop_reason(tmp_path: Path) -> None:
    """A turn that ended with an error stays until the next prompt; after that, everything is archived."""
    trigger = TriggerConfig(tool_call_threshold=0)
    with Archiver(tmp_path, SHAPE.name, config=ArchivalConfig(profile="seed", trigger=trigger)) as archiver:
        archiver.fold(RUNNING, stop_reason="error")
        assert "ended with stop_reason='error' and stays until the next prompt" in archiver.explain()
        live = archiver.fold([*RUNNING, *SMALL])
        assert archiver.explain().count("Archived turn ") == 2
        assert archiver.fold(live) == live
        assert archiver.explain() == "Every turn of the conversation is archived."
