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
from orch.archival.adapters import format_named
from orch.archival.store.store import ArchiveStore
from orch_protocol.agent.config import ArchivalConfig, Profile, SummaryConfig, TriggerConfig
from orch_protocol.core.errors import AgentNotFoundError, AmbiguousRefError, ConfigError, LockedError, StoreError
from orch_worker.conversation.live_subagents import ARCHIVES
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
@settings(max_examples=8)
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


def test_request_lists_archives_after_the_last_record(shape: Shape, tmp_path: Path) -> None:
    """The list stays in the first prompt after the records until the next archive. It is not in the conversation."""
    with Archiver(tmp_path, shape.name, "seed") as archiver:
        live = archiver.fold(work(shape, 1, steps=6))
        live.append(shape.user("and then?"))
        request = archiver.request(live, cache_markers=False)
        assert request[: len(live) - 1] == live[:-1]
        text = request[-1]["content"][-1]["text"]
        assert text.startswith(ARCHIVES)
        assert f"- id: {archiver.archives()[0].id} | task: Archive: Look into module 1" in text
        assert ARCHIVES not in json.dumps(live)
        live = archiver.fold([*live, shape.calls(("c", "bash", {})), *shape.results(("c", "ok"))])
        later = archiver.request(live, cache_markers=False)
        assert open_calls(later) == []
        assert later[: len(request)] == request
        assert later[len(request) :] == live[len(request) :]


def test_request_without_recall_has_no_instructions(shape: Shape, tmp_path: Path) -> None:
    """A request without the archive tools does not mention them."""
    with Archiver(tmp_path, shape.name, "seed") as archiver:
        live = [*archiver.fold(work(shape, 1, steps=6)), shape.user("Summarize it")]
        assert archiver.request(live, recall=False, cache_markers=False) == live
        assert "search_archive" not in json.dumps(archiver.request(live, recall=False))
        assert "search_archive" in json.dumps(archiver.request(live))


def marked(request: Sequence[Any]) -> tuple[list[str], list[int]]:
    """Return the blocks of `request` without markers, as JSON, and the positions of the markers."""
    blocks: list[str] = []
    markers: list[int] = []
    for message in json.loads(json.dumps(request)):
        content = message["content"]
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if block.pop("cache_control", None) is not None:
                markers.append(len(blocks))
            blocks.append(json.dumps([message["role"], block]))
    return blocks, markers


@pytest.mark.parametrize("calls", [1, 30])
@pytest.mark.parametrize("config", [TIGHT, PROFILES["seed"], PROFILES["phases"]], ids=["tight", "seed", "phases"])
def test_requests_mark_what_the_next_request_can_reuse(tmp_path: Path, config: ArchivalConfig, calls: int) -> None:
    """Each request finds the whole previous request in the cache, or its records after turns were archived."""
    shape = SHAPES[0]
    live: list[dict[str, Any]] = []
    cached: list[list[str]] = []
    archived, records, last, kept, partly = [], 0, 0, 0, 0
    with Archiver(tmp_path, shape.name, config=config) as archiver:
        for number in range(6):
            new = [shape.user(f"ask {number} " + "please " * 40)]
            for step in range(6):
                live = archiver.fold([*live, *new])
                archived += archiver.folded
                blocks, markers = marked(archiver.request(live))
                assert 1 <= len(markers) <= 3
                assert markers[-1] == len(blocks) - 1
                ends = [len(prefix) for prefix in cached if blocks[: len(prefix)] == prefix]
                found = max((end for end in ends if any(0 <= mark + 1 - end <= 20 for mark in markers)), default=0)
                if cached and not archived:
                    assert found == last
                    kept += 1
                elif records and config is not TIGHT:  # merges change earlier records
                    assert found
                    partly += 1
                archived, cached = [], [*cached, *(blocks[: mark + 1] for mark in markers)]
                last = len(blocks)
                records = len(archiver.live(live))
                ids = [f"c{number}_{step}_{each}" for each in range(calls)]
                live = [*live, shape.calls(*((id, "read", {}) for id in ids))]
                new = shape.results(*((id, "line " * 40) for id in ids))
            live = archiver.fold([*live, *new, shape.assistant("Done. " * 30)])
            archived += archiver.folded
    assert kept + partly > 5


def test_markers_of_the_caller_stay_alone(tmp_path: Path) -> None:
    """A marker in a message means that the caller sets the markers. Other formats have no markers."""
    content = [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]
    own = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "b"},
    ]
    with Archiver(tmp_path / "a", "anthropic") as archiver:
        assert archiver.request(own) == own
        odd = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [{"type": "text", "text": ""}]}]
        assert marked(archiver.request(odd))[1] == [0]
        assert archiver.request([]) == []
    for shape in SHAPES[1:]:
        with Archiver(tmp_path / shape.name, shape.name) as archiver:
            assert archiver.request([shape.user("hi")]) == [shape.user("hi")]


MARKED = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    "block",
    [
        {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "a"}, MARKED]},
        {"type": "tool_result", "tool_use_id": "c", "content": [SimpleNamespace(**MARKED)]},
        {
            "type": "tool_result",
            "tool_use_id": "c",
            "content": [{"type": "search_result", "source": "s", "title": "t", "content": [MARKED]}],
        },
        {"type": "document", "source": {"type": "content", "content": [MARKED]}},
    ],
)
def test_markers_in_nested_blocks_stay_alone(block: dict[str, Any]) -> None:
    """The API counts the markers in results and documents too, and accepts four."""
    mark = format_named("anthropic").with_cache_markers
    call = {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"cache_control": 1}}],
    }
    assert mark([call, {"role": "user", "content": [block]}], None, listed=False)[-1]["content"] == [block]
    plain = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "ok"}]}
    assert "cache_control" in mark([call, plain], None, listed=False)[-1]["content"][-1]


def test_request_without_archives_is_unchanged(shape: Shape, tmp_path: Path) -> None:
    """If there are no archives, `fold` and `request` return the given messages."""
    messages = [shape.user("hi"), shape.assistant("hello"), shape.user("bye")]
    with Archiver(tmp_path, shape.name) as archiver:
        assert archiver.request(archiver.fold(messages), cache_markers=False) == messages


def test_placement_system_leaves_the_block_to_the_caller(shape: Shape, tmp_path: Path) -> None:
    """With `placement="system"`, the request is unchanged, and `block` returns the text of the block."""
    config = ArchivalConfig(profile="seed", placement="system")
    with Archiver(tmp_path, shape.name, config=config) as archiver:
        live = archiver.fold(work(shape, 1, steps=6))
        assert archiver.request(live, cache_markers=False) == live
        assert archiver.block(live).startswith(ARCHIVES)


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


def test_three_hundred_turns_stay_below_the_high_water(shape: Shape, tmp_path: Path) -> None:
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
        assert largest < 60_000
        assert max(record.level for record in archiver.archives()) >= 2
        chance = random.Random(7)
        for number in chance.sample(range(300), 40):
            hit = archiver.search(f"needle_{number}_1")[0]
            assert hit.exact
            found = archiver.read_archive(hit.id, hit.entry, hit.entry)
            assert f"needle_{number}_1 " in json.dumps(found)
        assert archiver.unfold(live) == whole


@pytest.mark.parametrize("imitation", ["NEW TEXT", "the whole record"])
def test_text_like_a_record_stays(shape: Shape, tmp_path: Path, imitation: str) -> None:
    """Models imitate records. Only a message that the archiver wrote, after its prompt, is a record."""
    old = [*work(shape, 1, steps=6), *work(shape, 2, steps=6)]
    with Archiver(tmp_path, shape.name, "seed") as archiver:
        live = archiver.fold(old)
        head = f"[archived turn]\nsubagent_id: {archiver.archives()[0].id}\n\n"
        text = shape.text(live[1]) if imitation == "the whole record" else head + imitation
        new = [shape.user("and then?"), shape.assistant(text), shape.user("go on")]
        assert archiver.unfold(archiver.fold([*live, *new])) == [*old, *new]
        for number in range(3, 12):  # the imitation is archived too
            new += work(shape, number, steps=6)
        assert archiver.unfold(archiver.fold([*live, *new])) == [*old, *new]


def test_messages_between_prompt_and_record_stay(shape: Shape, tmp_path: Path) -> None:
    """The record is restored, and no message that the archiver did not write is left out."""
    old = work(shape, 1, steps=6)
    added = [shape.assistant("hm"), shape.user("inserted")]
    with Archiver(tmp_path, shape.name, "seed") as archiver:
        prompt, record = archiver.fold(old)
        assert archiver.unfold([prompt, *added, record]) == [prompt, *added, *old]
        assert archiver.unfold([shape.user("changed"), record]) == [shape.user("changed"), *old]


def test_lone_surrogates_are_replaced(shape: Shape, tmp_path: Path) -> None:
    """UTF-8 cannot encode a lone surrogate. The rest of the turn is unchanged, and its prompt appears once."""
    turn = [shape.user("caf\udce9?"), shape.assistant("caf\udce9 " * 20_000)]
    replaced = [shape.user("caf\ufffd?"), shape.assistant("caf\ufffd " * 20_000)]
    with Archiver(tmp_path, shape.name, "seed") as archiver:
        live = archiver.fold(turn)
        assert archiver.unfold(live) == replaced
    with Archiver(tmp_path, shape.name, "seed") as archiver:
        assert archiver.unfold(live) == replaced


def test_archives_are_those_of_the_last_fold(shape: Shape, tmp_path: Path) -> None:
    """A caller who drops the start of the conversation still finds the archives of that part."""
    with Archiver(tmp_path, shape.name, "seed") as archiver:
        live = archiver.fold([message for number in range(4) for message in work(shape, number, steps=6)])
        every = archiver.archives()
        assert len(every) == 4
        live = archiver.fold(live[4:])
        assert [record.id for record in archiver.archives()] == [each.id for each in archiver.live(live)]
        assert archiver.archives() == every[2:]
        assert archiver.archives(merged=True) == every
        (dropped, *_), (shown, *_) = archiver.search("needle_0_1"), archiver.search("needle_2_1")
        assert (dropped.id, dropped.turn) == (every[0].id, 0)
        assert (shown.id, shown.turn) == (every[2].id, 1)
        archiver.delete(every[2].id)
        assert [record.id for record in archiver.archives()] == [every[3].id]


def test_shown_conversation_decides_the_places_of_hits(shape: Shape, tmp_path: Path) -> None:
    """`show` changes which conversation hits refer to, as a fold of it does, and archives nothing."""
    with Archiver(tmp_path, shape.name, "seed") as archiver:
        live = archiver.fold([message for number in range(4) for message in work(shape, number, steps=6)])
        every = archiver.archives()
        archiver.show([*live[4:], *work(shape, 4, steps=6)])
        assert archiver.archives(merged=True) == every
        assert archiver.archives() == every[2:]
        assert (archiver.search("needle_0_1")[0].turn, archiver.search("needle_2_1")[0].turn) == (0, 1)


def test_cut_prompts_and_images_are_restored_once(shape: Shape, tmp_path: Path) -> None:
    """What archiving leaves of a long prompt is recognized as this prompt."""
    text, image = {"type": "text", "text": "Why? " * 500}, "data:image/png;base64,iVBORw0KGgo="
    picture: dict[str, Any] = {"type": "image_url", "image_url": {"url": image}}
    if shape.name == "anthropic":
        source = {"type": "base64", "media_type": "image/png", "data": image.rpartition(",")[2]}
        picture = {"type": "image", "source": source}
    prompts = [{"role": "user", "content": [text, picture]}, shape.user("Now? " * 500)]
    whole = [*prompts, *work(shape, 1, steps=6)[1:]]
    config = ArchivalConfig(profile="seed", prompt_tokens=60)
    with Archiver(tmp_path, shape.name, config=config) as archiver:
        live = archiver.fold(whole)
        assert live[:2] != prompts
        assert archiver.unfold(live) == whole


def test_small_turns_are_not_archived(shape: Shape, tmp_path: Path) -> None:
    """The record of a short dialogue would be as large as the dialogue."""
    messages = [shape.user("Hi"), shape.assistant("Hello."), shape.user("Bye"), shape.assistant("Bye.")]
    with Archiver(tmp_path, shape.name) as archiver:
        assert archiver.fold(messages) == messages
        assert archiver.archives() == []


def test_huge_prompt_keeps_head_and_tail(shape: Shape, tmp_path: Path) -> None:
    """A huge prompt is archived with its turn once that is worth it. Its beginning and end stay in the conversation."""
    prompt = "BEGIN " + "chapter after chapter, " * 4000 + " END"
    messages = [shape.user(prompt), shape.assistant("Read.")]
    with Archiver(tmp_path, shape.name, config=ArchivalConfig(high_tokens=40_000, low_tokens=15_000)) as archiver:
        folded = archiver.fold(messages)
        for number in range(30):
            turn = work(shape, number, steps=2, size=2800)
            messages += turn
            folded = archiver.fold([*folded, *turn])
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


@pytest.mark.parametrize("profile", ["economy", "balanced", "roomy", "seed"])
def test_trigger_block_of_the_seed_archives_in_every_profile(shape: Shape, tmp_path: Path, profile: Profile) -> None:
    """A turn with five short calls is archived although that does not save cost. A turn with four calls stays."""
    trigger = TriggerConfig(on_max_turns=True, token_threshold=8000, tool_call_threshold=5, depth_cap=3)
    turns = [work(shape, number, steps=steps, size=1) for number, steps in enumerate((4, 5, 0))]
    whole = [message for turn in turns for message in turn]
    with Archiver(tmp_path, shape.name, profile, config=ArchivalConfig(trigger=trigger)) as archiver:
        folded = archiver.fold(whole)
        assert [each.reason for each in archiver.folded] == ["5 tool calls, the threshold is 5"]
        assert folded[: len(turns[0])] == turns[0]
        assert archiver.unfold(folded) == whole


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


def test_recall_can_be_restricted_to_given_archives(shape: Shape, tmp_path: Path) -> None:
    """With `among`, search and tools find only these archives, and another archive cannot be read."""
    with Archiver(tmp_path, shape.name, "seed") as archiver:
        archiver.fold([*work(shape, 1, steps=6), *work(shape, 2, steps=6)])
        first, second = (record.id for record in archiver.archives())
        hits = archiver.search("step", 50)
        assert {hit.id for hit in hits} == {first, second}
        assert {hit.id for hit in archiver.search("step", 50, among=[second])} == {second}
        assert archiver.read_archive(second, among=[second]) == archiver.read_archive(second)
        with pytest.raises(AgentNotFoundError, match="another conversation"):
            archiver.read_archive(first, among=[second])
        assert "another conversation" in archiver.call("read_archive", {"id": first}, among=[second])
        assert first not in archiver.call("search_archive", {"query": "step"}, among=[second])


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


class Block:
    """An object of an SDK."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """Return the object as JSON data."""
        return self.fields

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Block) and self.fields == other.fields

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("as_object", [False, True])
def test_message_that_is_changed_in_place_is_read_again(tmp_path: Path, as_object: bool) -> None:
    """The next fold archives the text that the message has then."""
    with Archiver(tmp_path, "anthropic", "seed") as archiver:
        live: list[dict[str, Any]] = [{"role": "user", "content": "Read it"}]
        for number in range(5):
            call = {"type": "tool_use", "id": f"c{number}", "name": "read", "input": {"n": [number]}}
            result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": [{"type": "text", "text": "old"}]}
            live += [
                {"role": "assistant", "content": [Block(**call) if as_object else call]},
                {"role": "user", "content": [result]},
            ]
            assert archiver.fold(live) == live
        used = live[1]["content"][0]
        (used.fields if as_object else used)["input"]["n"].append("changed")
        live[2]["content"][0]["content"][0]["text"] = "new"
        live.append({"role": "assistant", "content": "Done."})
        archiver.fold(live)
        whole = archiver.read_archive(archiver.archives()[0].id)
        assert whole[1]["content"][0]["input"] == {"n": [0, "changed"]}
        assert whole[2]["content"][0]["content"][0]["text"] == "new"
        assert archiver.search("new")[0].entry == 3


def test_equal_messages_are_returned_as_given_and_archived_as_read(shape: Shape, tmp_path: Path) -> None:
    """A caller that loads its conversation again for each request gets its own objects back."""
    turn = work(shape, 1, steps=6)
    with Archiver(tmp_path, shape.name, "seed") as archiver:
        first = json.loads(json.dumps(turn[:-1]))
        archiver.fold(first)
        again = json.loads(json.dumps(turn[:-1]))
        assert all(ours is given for ours, given in zip(archiver.fold(again), again, strict=True))
        for message in first:
            message.clear()
        folded = archiver.fold(json.loads(json.dumps(turn)))
        assert archiver.unfold(folded) == turn


@pytest.mark.parametrize("reloaded", [False, True])
def test_fold_with_the_same_messages_reads_only_new_ones(shape: Shape, tmp_path: Path, reloaded: bool) -> None:
    """The text of a message is read once, in spite of many folds."""
    chats = [shape.user("hi"), shape.assistant("hello")]
    with Archiver(tmp_path, shape.name, "roomy") as archiver:
        format, read = archiver._pieces.format, 0

        class Counted:
            def __getattr__(self, name: str) -> Any:
                return getattr(format, name)

            def read_with_snapshot(self, raw: Any) -> Any:
                nonlocal read
                read += 1
                return format.read_with_snapshot(raw)

        archiver._pieces.format = Counted()
        live: list[dict[str, Any]] = []
        for _ in range(40):
            live = archiver.fold([*live, *(dict(message) for message in chats)])
            live = json.loads(json.dumps(live)) if reloaded else live
        assert (len(live), read) == (80, 80)


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


def test_list_that_is_no_conversation_is_refused(shape: Shape, tmp_path: Path) -> None:
    """A result without a call, or with its second result, is named by position; `request` checks its messages too."""
    call, [result] = shape.calls(("c1", "bash", {})), shape.results(("c1", "ok"))
    prompt = shape.user("go")
    with Archiver(tmp_path, shape.name) as archiver:
        assert archiver.fold([prompt, call, result, prompt, call, result]) == [prompt, call, result] * 2
        for wrong, place in (
            ([result], 0),
            ([prompt, result, call], 1),
            ([prompt, call, result, result], 3),
            ([prompt, call, result, call, result, prompt, result], 6),
            ([prompt, call, *shape.results(("c2", "ok"))], 2),
        ):
            for method in (archiver.fold, archiver.request):
                with pytest.raises(ConfigError, match=rf"message {place}: a result for the call 'c\d', but no earlier"):
                    method(wrong)
        assert archiver.fold([prompt, call, result]) == [prompt, call, result]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            {"role": "user", "content": [{"type": "tool_use", "id": "c", "name": "n", "input": {}}]},
            "contains the call 'c'",
        ),
        (
            {"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "c", "content": ""}]},
            "'assistant' contains the result of the call 'c'",
        ),
    ],
)
def test_block_in_a_message_of_the_wrong_role_is_refused(tmp_path: Path, message: Any, words: str) -> None:
    """Only assistants call tools, and only users return results."""
    with Archiver(tmp_path, "anthropic") as archiver, pytest.raises(ConfigError, match=f"message 1: .*{words}"):
        archiver.fold([{"role": "user", "content": "go"}, message])


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
    with Archiver(tmp_path, "openai"), pytest.raises(LockedError, match="this program has opened the folder before"):
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
        assert {record.kind for record in archiver.archives(merged=True)} >= {"turn", "phase"}
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
    config = ArchivalConfig(profile="economy", high_tokens=3000, low_tokens=800, rollup_tokens=400)
    with Archiver(tmp_path, shape.name, config=config) as archiver:
        live: list[dict[str, Any]] = []
        for number in range(15):
            for message in work(shape, number, steps=7, size=1500):
                live = archiver.fold([*live, message])
        pieces = [archiver._pieces.make_item(raw) for raw in live]
        assert archiver._pieces.view(pieces, None, other_tokens=0, summaries=False).calls == 15 * 8
        assert [record for record in archiver.archives(merged=True) if record.kind == "era"]
        known = archiver.archives(merged=True)
        assert [record.number for record in known] == list(range(1, len(known) + 1))


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


def test_fold_of_many_turns_waits_for_the_disk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first fold of a long conversation creates many archives. All are on disk when it returns."""
    with Archiver(tmp_path / "a", format="anthropic", config=TIGHT) as archiver:
        synced: list[int] = []
        write = AppendLog._fdatasync
        monkeypatch.setattr(AppendLog, "_fdatasync", staticmethod(lambda file: (synced.append(file), write(file))))
        archiver.fold([message for number in range(30) for message in work(SHAPES[0], number)])
        assert len(archiver.archives(merged=True)) > 10
        assert len(synced) == 1
        assert archiver._archive._log is not None
        assert archiver._archive._log.dirty == 0
