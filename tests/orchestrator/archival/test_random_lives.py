"""Random histories of agents: every message is archived or shown once, and root and worker agree."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_history import PROFILES, Life, call, result, steps
from orch_protocol.core.messages import Image, Message, Opaque, Text, Thinking, ToolResult, assistant, user
from orch_worker.session.log.append_log import AppendLog

WORDS = st.text(alphabet='abc é漢 \n"\\/.{}\u2028', max_size=20)
STOPS = st.sampled_from(["end_turn", "end_turn", "end_turn", "cancelled", "max_turns", "timeout", "error"])
SEEDS = (
    (user("seeded"), assistant("so it is")),
    (user("a"), *steps(2, "s", 30), assistant("b"), user("c")),
    (assistant("hello"),),
)
PICTURE = ToolResult("", (Image("image/png", "QQ=="),), is_error=True)


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AppendLog, "_fdatasync", staticmethod(lambda _: None))


@st.composite
def works(draw: st.DrawFn, name: str) -> list[Message]:
    """Draw the messages of a turn: calls with their results, and steering messages."""
    messages: list[Message] = []
    for step in range(draw(st.integers(0, 4))):
        ids = [f"{name}.{step}.{number}" for number in range(draw(st.integers(1, 2)))]
        before = draw(st.sampled_from([(), (Thinking("hm", "sig", "p"),), (Opaque("p", {"x": [1, None]}), Text(""))]))
        asking, results = call(*ids, text=draw(WORDS)), result(*ids, text=draw(WORDS) * draw(st.sampled_from([1, 60])))
        if draw(st.integers(0, 5)) == 0:
            results = Message("user", (*results.content[:-1], ToolResult(ids[-1], PICTURE.content, is_error=True)))
        messages += [Message("assistant", (*before, *asking.content)), results]
        if draw(st.integers(0, 4)) == 0:
            messages.append(user(f"[Steering]\n{draw(WORDS)}"))
    return messages


def live(life: Life, draw: st.DrawFn, number: int, branches: int = 0) -> None:
    """Let one more random event happen."""
    more = ["cut", "prompts", "process", "root", "summary", "late summary", "inform", "compact", "compact"]
    kind = draw(st.sampled_from(["turn"] * 4 + more + ["go"] * branches))
    if kind == "turn":
        stop = draw(STOPS)
        life.begin(f"ask {number} " + draw(WORDS) * draw(st.sampled_from([1, 1, 40])))
        for message in draw(works(f"t{number}")):
            life.say(message)
            if message.role == "user" and draw(st.booleans()):
                life.archive(None)
                life.check()
        if stop == "end_turn":
            life.say(assistant(draw(WORDS) * 5))
        life.end(stop)
        if draw(st.integers(0, 3)):
            life.archive(stop)
    elif kind == "cut":
        life.begin(f"cut {number}")
        life.say(*draw(works(f"t{number}")))
    elif kind == "prompts":
        life.begin("one")
        life.say(user("two"))
    elif kind == "process":
        life.restart()
    elif kind == "root":
        life.forget()
    elif kind == "compact":
        life.compact(draw(st.integers(1, 12)))
    elif kind == "inform":
        life.inform(f"told {number}")
    elif kind == "go":
        somewhere = st.sampled_from([None, *life.transcript.session.places])
        life.go(draw(somewhere), draw(st.sampled_from([None, "it led nowhere"])))
    elif records := life.records():
        life.summarize(draw(st.sampled_from(records)).id, f"summary {number}", at_once=kind == "summary")


@pytest.mark.parametrize("profile", PROFILES)
@settings(max_examples=30)
@given(data=st.data())
def test_random_history_archives_everything_once(profile: str, data: st.DataObject) -> None:
    """`Life.check` passes after each event: every message is present once, and root and worker agree."""
    with TemporaryDirectory() as folder:
        life = Life(Path(folder), PROFILES[profile])
        try:
            if data.draw(st.booleans()):
                life.seed(*data.draw(st.sampled_from(SEEDS)))
            for number in range(data.draw(st.integers(1, 8))):
                live(life, data.draw, number)
                life.check()
        finally:
            life.close()


@pytest.mark.parametrize("profile", PROFILES)
@settings(max_examples=30)
@given(data=st.data())
def test_random_history_with_branches_archives_everything_once(profile: str, data: st.DataObject) -> None:
    """`Life.check` passes when the conversation moves to any entry of any branch."""
    with TemporaryDirectory() as folder:
        life = Life(Path(folder), PROFILES[profile])
        try:
            for number in range(data.draw(st.integers(2, 9))):
                live(life, data.draw, number, branches=5)
                life.check()
        finally:
            life.close()


def test_random_long_history_merges_eras(tmp_path: Path) -> None:
    """In a long history with phases, eras merge into eras of higher levels."""
    life = Life(tmp_path, PROFILES["tight"])
    for number in range(60):
        life.work(number, 3)
    life.check()
    records = life.records()
    assert {record.kind for record in records} == {"phase", "turn", "era"}
    assert max(record.level for record in records) >= 3
    assert len(life.transcript.session.messages) < 40
    life.close()
