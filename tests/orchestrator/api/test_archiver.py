"""The archiver on whole conversations: content is preserved, requests are valid, and contexts stay small."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import orch
from message_shapes import SHAPES, Items, Shape, work
from orch.api.archiver import Archiver
from orch.archival.store.store import ArchiveStore
from orch_protocol.agent.config import ArchivalConfig, SummaryConfig, TriggerConfig
from orch_protocol.core.errors import AgentNotFoundError, AmbiguousRefError, ConfigError, LockedError, StoreError
from orch_worker.conversation.live_subagents import HEADING
from orch_worker.session.log.append_log import AppendLog

TIGHT = ArchivalConfig(profile="economy", high_tokens=300, low_tokens=100, rollup_tokens=200, prompt_tokens=60)
PROFILES = {
    "tight": TIGHT,
    "seed": ArchivalConfig(profile="seed", trigger=TriggerConfig(token_threshold=50, tool_call_threshold=1)),
    "phases": ArchivalConfig(profile="economy", turns=False, high_tokens=200, low_tokens=50),
    "economy": ArchivalConfig(profile="economy"),
}
WORDS = st.text(alphabet='abc é漢 \n"\\/.{}', max_size=30)


@pytest.fixture(params=SHAPES, ids=lambda shape: shape.name)
def shape(request: pytest.FixtureRequest) -> Shape:
    """Each message shape in turn."""
    given_shape: Shape = request.param
    return given_shape


@st.composite
def conversations(draw: st.DrawFn, shape: Shape) -> list[dict[str, Any]]:
    """Draw a conversation that a provider would accept, with every kind of content."""
    messages: list[dict[str, Any]] = []
    if draw(st.booleans()) and shape.name == "openai":
        messages.append({"role": draw(st.sampled_from(["system", "developer"])), "content": draw(WORDS)})
    ids = iter(range(1000))
    for _ in range(draw(st.integers(0, 6))):
        messages.append(shape.user("ask " + draw(WORDS) * draw(st.sampled_from([1, 1, 60]))))
        if draw(st.integers(0, 5)) == 0:
            messages.append({"role": "user", "content": [{"type": "text", "text": draw(WORDS), "cache_control": {}}]})
        for _ in range(draw(st.integers(0, 4))):
            calls = [f"id{next(ids)}" for _ in range(draw(st.integers(1, 3)))]
            inputs: dict[str, Any] = {"path": draw(WORDS), "n": draw(st.integers(-5, 5)), "x": [1.5, None, True]}
            call = shape.calls(*((id, "tool", inputs) for id in calls), text=draw(WORDS))
            if shape.name == "anthropic" and draw(st.booleans()):
                call["content"].insert(0, {"type": "thinking", "thinking": draw(WORDS), "signature": "sig"})
            messages.append(call | ({"id": "msg_1"} if draw(st.booleans()) else {}))
            size = draw(st.sampled_from([1, 30, 200]))
            messages += shape.results(*((id, draw(WORDS) * size) for id in calls))
        if draw(st.integers(0, 4)):
            messages.append(shape.assistant(draw(WORDS) + "."))
    return messages


def open_calls(messages: Sequence[dict[str, Any]]) -> list[str]:
    """Return what a provider would refuse in `messages`: calls without a result, and results without a call."""
    wrong: list[str] = []
    waiting: set[str] = set()
    for message in messages:
        content = message.get("content")
        blocks = content if isinstance(content, list) else []
        results = [block["tool_use_id"] for block in blocks if block.get("type") == "tool_result"]
        if message["role"] == "tool":
            results.append(message["tool_call_id"])
        wrong += [f"result of {id}" for id in results if id not in waiting]
        if not results:
            wrong += [f"call {id}" for id in waiting]
            waiting = set()
        waiting -= set(results)
        waiting |= {block["id"] for block in blocks if block.get("type") == "tool_use"}
        waiting |= {call["id"] for call in message.get("tool_calls") or []}
    return wrong


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@settings(max_examples=25)
@given(data=st.data())
def test_unfold_restores_the_folded_conversation(profile: str, shape: Shape, data: st.DataObject) -> None:
    """A conversation that is folded before each request stays valid and unfolds to the original, with unknown keys."""
    whole = data.draw(conversations(shape))
    copy = json.loads(json.dumps(whole))
    live: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder, Archiver(folder, shape.name, config=PROFILES[profile]) as archiver:
        for place, message in enumerate(whole):
            live.append(message)
            if message["role"] != "assistant":
                live = archiver.fold(live)
                assert open_calls(live) == []
                assert archiver.unfold(live) == whole[: place + 1]
        folded = archiver.fold(live)
        assert archiver.unfold(folded) == whole == copy
        assert archiver.fold(folded) == folded or archiver.unfold(archiver.fold(folded)) == whole
    assert whole == copy


def test_prefix_stays_byte_identical(shape: Shape, tmp_path: Path) -> None:
    """All messages before an archived turn are unchanged in the next request."""
    with Archiver(tmp_path, shape.name, "balanced", config=ArchivalConfig(rollup_tokens=0)) as archiver:
        live: list[dict[str, Any]] = []
        for number in range(12):
            live += work(shape, number, steps=4, size=4000)
            before = json.dumps(live)
            folded = archiver.fold(live)
            assert archiver.folded
            changed = next(place for place, message in enumerate(folded) if message is not live[place])
            assert before.startswith(json.dumps(live[:changed])[:-1])
            assert json.dumps(folded[:changed]) == json.dumps(live[:changed])
            assert changed == len(folded) - 1
            live = folded


def test_request_ends_with_the_archive_block(shape: Shape, tmp_path: Path) -> None:
    """The block is in the last message of the request, and not in the conversation."""
    with Archiver(tmp_path, shape.name, "seed") as archiver:
        live = archiver.fold(work(shape, 1, steps=6))
        live.append(shape.user("and then?"))
        request = archiver.request(live)
        assert request[: len(live) - 1] == live[:-1]
        last = request[-1]["content"]
        text = last if isinstance(last, str) else last[-1]["text"]
        assert text.startswith(HEADING)
        assert f"- id: {archiver.archives()[0].id} | task: Archive: Look into module 1" in text
        assert HEADING not in json.dumps(live)


def test_archive_block_follows_tool_results_in_mid_turn(shape: Shape, tmp_path: Path) -> None:
    """In the middle of a turn, the archive block does not separate a call from its result."""
    with Archiver(tmp_path, shape.name, "seed") as archiver:
        live = archiver.fold(work(shape, 1, steps=6))
        live += [shape.user("more"), shape.calls(("c", "bash", {})), *shape.results(("c", "ok"))]
        assert open_calls(archiver.request(live)) == []
        assert archiver.request(live)[-1] != live[-1]


def test_request_without_archives_is_unchanged(shape: Shape, tmp_path: Path) -> None:
    """If there are no archives, `fold` and `request` return the given messages."""
    messages = [shape.user("hi"), shape.assistant("hello"), shape.user("bye")]
    with Archiver(tmp_path, shape.name) as archiver:
        assert archiver.request(archiver.fold(messages)) == messages


def test_placement_system_leaves_the_block_to_the_caller(shape: Shape, tmp_path: Path) -> None:
    """With `placement="system"`, the request is unchanged, and `block` returns the text of the block."""
    config = ArchivalConfig(profile="seed", placement="system")
    with Archiver(tmp_path, shape.name, config=config) as archiver:
        live = archiver.fold(work(shape, 1, steps=6))
        assert archiver.request(live) == live
        assert archiver.block(live).startswith(HEADING)


def test_long_running_turn_is_archived_in_phases(shape: Shape, tmp_path: Path) -> None:
    """Above `high_tokens`, the oldest steps are archived, and their record is added to the prompt of the turn."""
    config = ArchivalConfig(profile="balanced", high_tokens=4000, low_tokens=1000, gate=False)
    with Archiver(tmp_path, shape.name, config=config) as archiver:
        whole = [shape.user("Read it all")]
        live = list(whole)
        sizes = []
        for step in range(60):
            new = [
                shape.calls((f"c{step}", "read", {"path": f"f{step}"})),
                *shape.results((f"c{step}", "line\n" * 200)),
            ]
            whole += new
            live = archiver.fold([*live, *new])
            assert open_calls(live) == []
            sizes.append(len(json.dumps(live)))
        assert {record.kind for record in archiver.archives()} == {"phase"}
        assert max(sizes) < 30_000
        assert [message["role"] for message in live[:2]] == ["user", "assistant"]
        assert "[archived phase]\nsubagent_id: " in json.dumps(live[0]).replace("\\n", "\n")
        assert live[-1] is whole[-1]
        assert archiver.unfold(live) == whole
        live = archiver.fold([*live, shape.assistant("All read."), shape.user("Thanks")])
        whole += [shape.assistant("All read."), shape.user("Thanks")]
        assert archiver.unfold(live) == whole


def test_three_hundred_turns_fit_in_ten_thousand_tokens(shape: Shape, tmp_path: Path) -> None:
    """A search finds facts of archived turns, and the whole conversation can be unfolded."""
    with Archiver(tmp_path, shape.name, "economy") as archiver:
        live: list[dict[str, Any]] = []
        whole: list[dict[str, Any]] = []
        largest = 0
        for number in range(300):
            turn = work(shape, number, steps=2, size=2800)
            whole += turn
            live = archiver.fold([*live, *turn])
            largest = max(largest, len(json.dumps(live)))
        assert largest < 40_000
        assert max(record.level for record in archiver.archives()) >= 2
        chance = random.Random(7)
        for number in chance.sample(range(300), 40):
            hit = archiver.search(f"needle_{number}_1")[0]
            assert hit.exact
            found = archiver.read_archive(hit.id, hit.entry, hit.entry)
            assert f"needle_{number}_1 " in json.dumps(found)
        assert archiver.unfold(live) == whole


def test_small_turns_are_not_archived(shape: Shape, tmp_path: Path) -> None:
    """The record of a short dialogue would be as large as the dialogue."""
    messages = [shape.user("Hi"), shape.assistant("Hello."), shape.user("Bye"), shape.assistant("Bye.")]
    with Archiver(tmp_path, shape.name) as archiver:
        assert archiver.fold(messages) == messages
        assert archiver.archives() == []


def test_huge_prompt_keeps_head_and_tail(shape: Shape, tmp_path: Path) -> None:
    """A huge prompt is archived with its turn, and its beginning and end stay in the conversation."""
    prompt = "BEGIN " + "chapter after chapter, " * 4000 + " END"
    messages = [shape.user(prompt), shape.assistant("Read."), shape.user("next")]
    with Archiver(tmp_path, shape.name) as archiver:
        folded = archiver.fold(messages)
        kept = shape.text(folded[0])
        assert len(kept) < 12_000
        assert kept.startswith("BEGIN")
        assert kept.endswith("END")
        assert archiver.unfold(folded) == messages


def test_turn_ended_by_max_turns_is_archived(shape: Shape, tmp_path: Path) -> None:
    """A turn that ends in tool results is archived when the caller passes the stop reason."""
    messages = work(shape, 1, steps=2)[:-1]
    with Archiver(tmp_path, shape.name, "seed") as archiver:
        assert archiver.fold(messages) == messages
        folded = archiver.fold(messages, stop_reason="max_turns")
        assert len(folded) == 2
        assert archiver.folded[0].reason == "it ended at max_turns"
        assert archiver.unfold(folded) == messages


def test_archiving_the_same_turn_twice_gives_one_archive(shape: Shape, tmp_path: Path) -> None:
    """A second archiver for the same folder also gives the archive the same id."""
    turn = work(shape, 1, steps=6)
    with Archiver(tmp_path, shape.name, "seed") as archiver:
        first = archiver.fold(turn)
        assert archiver.fold(turn) == first
    with Archiver(tmp_path, shape.name, "seed") as archiver:
        assert archiver.fold(turn) == first
        assert len(archiver.archives()) == 1
        assert archiver.unfold(first) == turn


def test_reported_usage_corrects_the_estimate(shape: Shape, tmp_path: Path) -> None:
    """If the provider reports more tokens than estimated, later estimates are larger."""
    turn = work(shape, 1)
    with Archiver(tmp_path / "a", shape.name) as archiver:
        archiver.fold(turn[:1])
        estimator, read = archiver._pieces.estimator, archiver._pieces.format.read
        light = estimator.messages(map(read, turn))
        archiver.observe(turn[:1], 5_000)
        archiver.observe(turn[:3], 5_000 + 3 * estimator.messages(map(read, turn[1:3])))
        archiver.fold([*turn, shape.user("x")])
        assert estimator.messages(map(read, turn)) > 1.1 * light


def test_sdk_objects_are_read_as_data(shape: Shape, tmp_path: Path) -> None:
    """Objects with the method `model_dump` are accepted as messages."""
    turn = work(shape, 1, steps=6)
    dumps = [SimpleNamespace(model_dump=lambda data=message, **_: data) for message in turn]
    with Archiver(tmp_path, shape.name, "seed") as archiver:
        folded = archiver.fold(dumps)
        assert folded[0] is dumps[0]
        assert archiver.unfold(folded) == turn


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([{"role": "nobody", "content": "x"}], "message 0: .*role"),
        ([{"role": "user", "content": "x"}, 7], "message 1"),
        ([{"role": "user", "content": b"x"}], "message.content is a bytes"),
        ([{"role": "user", "content": 7}], "content of a message must be text or a list"),
        ([{"role": "user", "content": [7]}], "got 7"),
        ([{"role": "user", "content": [{"type": "text", "text": "x", "n": float("nan")}]}], "nan"),
        ([{"role": "user", "content": [{"type": "text", "text": "x", "n": 1 << 80}]}], "64 bits"),
    ],
)
def test_invalid_message_is_named(shape: Shape, tmp_path: Path, messages: list[Any], complaint: str) -> None:
    """The error states the problem and, for a wrong message, its position."""
    with Archiver(tmp_path, shape.name) as archiver, pytest.raises(ConfigError, match=complaint):
        archiver.fold(messages)


def test_archive_is_found_by_a_unique_id_prefix(shape: Shape, tmp_path: Path) -> None:
    """A prefix without a match and a prefix with several matches are errors."""
    with Archiver(tmp_path, shape.name, "seed") as archiver:
        archiver.fold([message for number in range(20) for message in work(shape, number, steps=6)])
        id = archiver.archives()[0].id
        assert archiver.read_archive(id[:9]) == archiver.read_archive(id)
        with pytest.raises(AgentNotFoundError, match="no archive 'zz'"):
            archiver.read_archive("zz")
        letters = [record.id[0] for record in archiver.archives()]
        with pytest.raises(AmbiguousRefError, match="several archives start with"):
            archiver.read_archive(max(letters, key=letters.count))


def test_folder_has_one_archiver(tmp_path: Path) -> None:
    """A second archiver for a folder raises LockedError until the first one is closed."""
    with Archiver(tmp_path, "openai"), pytest.raises(LockedError):
        Archiver(tmp_path, "openai")
    Archiver(tmp_path, "openai").close()


def test_archive_is_readable_in_the_other_message_format(tmp_path: Path) -> None:
    """An archive in one format is read as valid messages of the other format."""
    blocks, chat = SHAPES
    with Archiver(tmp_path, blocks.name, "seed") as archiver:
        archiver.fold(work(blocks, 1, steps=6))
    with Archiver(tmp_path, chat.name, "seed") as archiver:
        messages = archiver.read_archive(archiver.archives()[0].id)
        assert open_calls(messages) == []
        assert messages[2]["role"] == "tool"


def test_archiver_is_public() -> None:
    """`orch` exports the archiver and its configuration class."""
    assert orch.Archiver is Archiver
    assert orch.ArchivalConfig is ArchivalConfig


def test_response_items_are_archived_like_messages(tmp_path: Path) -> None:
    """Reasoning items stay with their calls, and all items can be unfolded."""
    config = ArchivalConfig(profile="economy", high_tokens=2000, low_tokens=500, rollup_tokens=600)
    items = Items()
    with Archiver(tmp_path, "responses", config=config) as archiver:
        live: list[dict[str, Any]] = []
        whole: list[dict[str, Any]] = []
        for number in range(12):
            for item in items.turn(number, 6, 600):
                live.append(item)
                whole.append(item)
                if item.get("type") != "reasoning" and item.get("type") != "function_call":
                    live = archiver.fold(live)
                    assert archiver.unfold(live) == whole
                    calls = [each["call_id"] for each in live if each.get("type") == "function_call"]
                    outputs = [each["call_id"] for each in live if each.get("type") == "function_call_output"]
                    reasons = [each["id"][2:] for each in live if each.get("type") == "reasoning"]
                    assert calls == outputs == reasons
        assert {record.kind for record in archiver.archives()} >= {"turn", "phase"}
        assert archiver.search("needle_3_4")[0].exact
        assert archiver.request([*live, items.user("more")])[-1]["content"][-1]["type"] == "input_text"


def test_full_disk_leaves_the_conversation_unchanged(
    shape: Shape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk, `fold` raises StoreError; it succeeds when there is space again."""
    whole = [*work(shape, 1, steps=6), *work(shape, 2, steps=6)]
    live, copy = list(whole), json.loads(json.dumps(whole))
    with Archiver(tmp_path, shape.name, "seed") as archiver:
        archiver.fold(work(shape, 0, steps=6))

        def full(*_: object) -> int:
            raise OSError(28, "no space")

        with monkeypatch.context() as broken:
            broken.setattr(AppendLog, "_write", staticmethod(full))
            with pytest.raises(StoreError, match="disk full"):
                archiver.fold(live)
        assert live == copy
        assert len(archiver.archives()) == 1
        assert archiver.unfold(archiver.fold(live)) == whole


@pytest.mark.parametrize("step", ["add", "summarize"])
def test_interrupt_between_archives_leaves_a_consistent_state(
    shape: Shape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The conversation is unchanged, and a later `fold` archives each turn once."""
    whole = [message for number in range(3) for message in work(shape, number, steps=6)]
    live, copy = list(whole), json.loads(json.dumps(whole))
    real, done = getattr(ArchiveStore, step), iter([False, True])

    def interrupted(*given: Any) -> Any:
        record = real(*given)
        if next(done, False):
            raise KeyboardInterrupt
        return record

    config = ArchivalConfig(profile="seed", summary=SummaryConfig(style="paragraph"))
    with Archiver(tmp_path, shape.name, config=config, summarize=lambda _: "As told.") as archiver:
        with monkeypatch.context() as broken:
            broken.setattr(ArchiveStore, step, interrupted)
            with pytest.raises(KeyboardInterrupt):
                archiver.fold(live)
        assert live == copy
        assert len(archiver.archives()) == 2
        folded = archiver.fold(live)
        assert ["As told." in shape.text(message) for message in folded] == [False, True] * 3
        assert len(archiver.archives()) == 3
        assert archiver.unfold(folded) == whole


def test_model_calls_and_turns_are_counted_once(shape: Shape, tmp_path: Path) -> None:
    """Counts stay correct when turns are archived in phases and combined to eras."""
    config = ArchivalConfig(profile="economy", high_tokens=3000, low_tokens=800, rollup_tokens=700)
    with Archiver(tmp_path, shape.name, config=config) as archiver:
        live: list[dict[str, Any]] = []
        for number in range(15):
            for message in work(shape, number, steps=7, size=1500):
                live = archiver.fold([*live, message])
        pieces = [archiver._pieces.make_item(raw) for raw in live]
        assert archiver._pieces.view(pieces, None, other_tokens=0, summaries=False).calls == 15 * 8
        eras = [record for record in archiver.archives() if record.kind == "era"]
        assert eras
        assert [record.number for record in archiver.archives()] == list(range(1, len(archiver.archives()) + 1))


def test_closed_archiver_archives_nothing(shape: Shape, tmp_path: Path) -> None:
    """After `close`, `fold`, `search` and `query` raise StoreError."""
    archiver = Archiver(tmp_path, shape.name, config=PROFILES["seed"])
    archiver.close()
    for attempt in (
        lambda: archiver.fold(work(shape, 1, steps=4, size=400)),
        lambda: archiver.search("pressure"),
        lambda: archiver.query("a1", "What was it?"),
    ):
        with pytest.raises(StoreError, match="is closed"):
            attempt()
    with Archiver(tmp_path, shape.name, config=PROFILES["seed"]) as other:
        assert other.archives() == []
