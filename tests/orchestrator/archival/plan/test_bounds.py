"""Every profile except the seed profile bounds the conversation for prompts, results and replies of any size."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_history import Life
from orch.api.archiver import Archiver
from orch.archival.adapters import format_named
from orch.archival.conversation_items import ConversationItem, ItemReader
from orch.archival.fold import RangeArchiver
from orch.archival.plan.plan import ConversationView, next_era
from orch.archival.plan.rollup import RecordMerge, RecordSize, possible_merges
from orch.archival.store.catalog import ArchiveCatalog, ArchiveRecord, StoredMessage
from orch.config.archival_profiles import ArchivalRules, archival_rules
from orch_protocol.agent.config import ArchivalConfig, Profile, TriggerConfig
from orch_protocol.core.ids import new_id
from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, assistant, user
from orch_protocol.services.archives.archiving import SummarizeArchive
from orch_worker.backends.prices import Prices
from orch_worker.conversation.stubs import holder_of, holders_in
from orch_worker.conversation.tokens import TokenEstimator
from orch_worker.conversation.turns import is_prompt

BOUNDED: tuple[Profile, ...] = ("economy", "balanced", "roomy")
CALLS = {"no tools": (0, 0), "many tools": (0, 12), "one endless turn": (40, 40)}
ESTIMATOR = TokenEstimator()


class MemoryShelf(ArchiveCatalog):
    """A catalog of archives in memory."""

    def __init__(self) -> None:
        super().__init__(Path("memory"))
        self._messages: dict[str, list[StoredMessage]] = {}

    def store(
        self, record: ArchiveRecord, part: Sequence[ConversationItem], text: Sequence[Message], summarize: bool
    ) -> ArchiveRecord:
        """Store `part` under `record`."""
        del text, summarize
        full = msgspec.structs.replace(record, id=new_id(), number=len(self.records) + 1, count=len(part))
        self._messages[full.id] = [StoredMessage(piece.message) for piece in part]
        self.put(full)
        return full

    def messages(self, id: str) -> list[StoredMessage]:
        """Return the messages stored as `id`."""
        return self._messages[id]


def sized(chance: random.Random, largest: int) -> str:
    """Return a text of 1 to `largest` tokens. Small and large sizes are equally likely."""
    return "word" * int(largest ** chance.random())


def turn(chance: random.Random, name: str, calls: int, largest: int) -> Iterator[Message]:
    """Yield the messages of one turn."""
    yield user(sized(chance, largest))
    for number in range(calls):
        id = f"{name}.{number}"
        yield Message("assistant", (ToolUse(id, "write_file", {"path": id}),))
        yield Message("user", (ToolResult(id, (Text(sized(chance, largest)),)),))
    yield assistant(sized(chance, largest))


def counted(messages: Sequence[Message]) -> int:
    """Return the number of tokens of `messages` without the current turn's prompt and its last step."""
    total = ESTIMATOR.messages(messages)
    if messages[-1].role == "assistant" and holders_in(messages[-1]):
        return total
    prompt = max(place for place, message in enumerate(messages) if is_prompt(message))
    steps = [place for place in range(prompt, len(messages)) if messages[place].role == "assistant"]
    asked = [block for block in messages[prompt].content if not (isinstance(block, Text) and holder_of(block.text))]
    return (
        total
        - ESTIMATOR.message(Message("user", tuple(asked)))
        - ESTIMATOR.messages(messages[max(steps, default=len(messages)) :])
    )


def assert_bounded(rules: ArchivalRules, before: int, folded: bool, live: Sequence[Message]) -> None:
    """Check the size of a conversation that had `before` tokens before the fold."""
    if folded or before > rules.high_tokens:
        assert counted(live) <= rules.low_tokens + rules.rollup_tokens
    else:
        assert ESTIMATOR.messages(live) <= rules.high_tokens


def reachable(shelf: ArchiveCatalog, live: Sequence[Message]) -> set[str]:
    """Return the archives that can be reached from the records in `live`."""
    found = {id for message in live for id in shelf.holders(message)}
    return found | {record.id for id in found for record in shelf.descendants(shelf.records[id])}


@pytest.mark.parametrize("profile", BOUNDED)
@pytest.mark.parametrize("shape", CALLS)
@settings(max_examples=2)
@given(seed=st.integers(0, 1 << 32), largest=st.sampled_from([20, 800, 8_000, 100_000]), summaries=st.booleans())
def test_live_conversation_stays_within_low_water_and_record_budget(
    shape: str, profile: Profile, seed: int, largest: int, summaries: bool
) -> None:
    """The current prompt and the last step do not count, and every archived message can be recalled."""
    chance, rules, shelf = random.Random(seed), archival_rules(ArchivalConfig(profile=profile)), MemoryShelf()
    pieces = ItemReader(format_named("orch"), shelf, ESTIMATOR)
    folding = RangeArchiver(pieces, rules, shelf.store)
    live: list[ConversationItem] = []
    collected: list[Message] = []
    fewest, limit = CALLS[shape]
    for number in range(1 if fewest else 40):
        for message in turn(chance, str(number), chance.randint(fewest, limit), largest):
            collected.append(message)
            live.append(pieces.make_item(message))
            before = sum(piece.tokens for piece in live)
            was = live
            live, folded = folding.fold_all(live, TriggerConfig(), Prices(), None, other_tokens=0, summaries=summaries)
            assert_bounded(rules, before, bool(folded), [piece.message for piece in live])
            assert folded or live == was
            pieces.messages(live)
    raws = [piece.message for piece in live]
    assert pieces.unfold(raws) == collected
    assert reachable(shelf, raws) == set(shelf.records)


@pytest.mark.parametrize("words", [200, 600])
def test_many_turns_without_tools_stay_bounded_and_searchable(tmp_path: Path, words: int) -> None:
    """A conversation of 200 turns stays small for short and for long prompts. Unfolding restores every message."""
    with Archiver(tmp_path, "openai", "balanced") as archiver:
        live: list[dict[str, str]] = []
        whole: list[dict[str, str]] = []
        sizes = []
        for number in range(200):
            new = [
                {"role": "user", "content": f"question{number} " + "alpha beta " * (words // 2)},
                {"role": "assistant", "content": f"answer{number} " + "gamma " * 12},
            ]
            whole += new
            live = archiver.fold([*live, *new])
            sizes.append(sum(len(message["content"]) // 4 for message in live))
        assert max(sizes) < 45_000
        assert archiver.unfold(live) == whole
        hit = archiver.search("question7")[0]
        assert "question7 " in str(archiver.read_archive(hit.id)[hit.entry - 1])


def test_merged_phases_are_read_and_searched(tmp_path: Path) -> None:
    """The phases of one endless turn merge. A search finds an entry of each phase, and the entry can be read."""
    config = ArchivalConfig(profile="economy", high_tokens=2_000, low_tokens=500, rollup_tokens=600)
    with Archiver(tmp_path, "anthropic", config=config) as archiver:
        whole: list[dict[str, object]] = [{"role": "user", "content": "Read it all"}]
        live = list(whole)
        for number in range(80):
            call = {"type": "tool_use", "id": f"c{number}", "name": "read", "input": {"path": f"file{number}.txt"}}
            result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": f"fact{number} " + "line " * 300}
            new: list[dict[str, object]] = [
                {"role": "assistant", "content": [call]},
                {"role": "user", "content": [result]},
            ]
            whole += new
            live = archiver.fold([*live, *new])
        assert any(record.members for record in archiver.archives())
        assert len(archiver.live(live)) < 6
        assert archiver.unfold(live) == whole
        hit = archiver.search("fact3")[0]
        assert "fact3 " in str(archiver.read_archive(hit.id)[hit.entry - 1])


def test_agent_with_long_prompts_stays_bounded(tmp_path: Path, no_disk: None) -> None:
    """The conversation never exceeds the high water, and a search finds the first prompts."""
    del no_disk
    config = ArchivalConfig(enabled=True, profile="economy", high_tokens=4_000, low_tokens=1_500, rollup_tokens=800)
    life = Life(tmp_path, config)
    sizes = []
    for number in range(60):
        life.turn(asked=f"question{number} " + "alpha beta " * 300, answer="noted")
        life.archive()
        sizes.append(ESTIMATOR.messages(life.transcript.session.messages))
    life.check()
    assert max(sizes) <= 4_000
    assert "question3 " in str(life.read(life.search("question3")[0].id))
    life.close()


# Changes, failures and jobs in records with a model's summary.


def working_turn(number: int) -> list[Message]:
    """Return a turn that writes a file, runs a failing test and leaves a job running."""
    inputs = (
        ("write_file", {"path": f"src/file{number}.py"}, "written"),
        ("bash", {"command": f"pytest tests/{number}"}, "exit code 1"),
        ("bash", {"command": f"serve {number} &"}, "started"),
    )
    messages = [user(f"Work on {number}")]
    for place, (name, input, result) in enumerate(inputs):
        id = f"c{number}.{place}"
        messages.append(Message("assistant", (ToolUse(id, name, input),)))
        messages.append(Message("user", (ToolResult(id, (Text(f"{result}\n" + "line\n" * 4_000),)),)))
    return [*messages, assistant("Done.")]


KEPT = ("src/file0.py", "pytest tests/0: FAILED: line", "job left running: serve 0")


def test_summary_of_a_loop_keeps_what_the_turn_changed(tmp_path: Path) -> None:
    """The record contains changed files, failed commands and running jobs in addition to the model's summary."""
    with Archiver(tmp_path, "orch", "seed", lambda _: '{"outcome": "All quiet."}') as archiver:
        record = str(archiver.fold(working_turn(0)))
    assert "Outcome: All quiet." in record
    for kept in KEPT:
        assert kept in record


def test_summary_of_an_agent_keeps_what_the_turn_changed(life: Life) -> None:
    """The engine adds changes, failures and jobs to a summary. It does not repeat a file that the summary mentions."""
    life.turn(*working_turn(0)[1:-1])
    (holder,) = life.archive()
    life.loop.run(life.archives.summarize(life.spec, SummarizeArchive(holder), life.spec.backend))
    answer = '{"outcome": "Wrote src/file0.py."}'
    stub = life.loop.run(life.archives.summarize(life.spec, SummarizeArchive(holder, answer), life.spec.backend))
    assert isinstance(stub, str)
    assert stub.count("src/file0.py") == 1
    for kept in KEPT:
        assert kept in stub


def test_merged_records_keep_the_latest_changes_failures_and_jobs(tmp_path: Path) -> None:
    """The record of an era contains the latest change, failure and job of its members."""
    config = ArchivalConfig(profile="economy", rollup_tokens=1_000)
    with Archiver(tmp_path, "orch", config=config, summarize=lambda _: '{"outcome": "All quiet."}') as archiver:
        live: list[Message] = []
        for number in range(30):
            live = archiver.fold([*live, *working_turn(number)])
        merged = [record for record in archiver.archives() if record.kind == "era"]
    assert merged
    for era in merged:
        latest = era.receipt.files[-1].path.removeprefix("src/file").removesuffix(".py")
        assert f"{latest}@" in era.record
        assert "FAILED: " in era.record
        assert "job left running" in era.record


# The choice of records that merge.


def test_refused_merge_has_a_next_choice() -> None:
    """If a merge of small eras is refused because it frees nothing, later records can still merge."""
    messages = [message for number in range(40) for message in (user(f"q{number}"), assistant("a" * 400))]
    sizes, rules = [15, 15] * 4 + [100, 100] * 36, archival_rules(ArchivalConfig(profile="economy"))
    levels = {place: int(place < 8) for place in range(1, 80, 2)}
    merges = possible_merges([RecordSize(30, 1)] * 4 + [RecordSize(200)] * 36, rules.rollup_tokens)
    assert next(merges) == RecordMerge(0, 4, 2)
    era = next_era(ConversationView(messages, sizes, sizes, levels, calls=40, saved=10_000), rules, Prices())
    assert era is not None
    assert era.start == 8


def test_rules_shrink_with_the_window() -> None:
    """In a small window, archiving begins before compaction. A large window and a profile without a limit change
    nothing."""
    rules = archival_rules(ArchivalConfig(profile="balanced"))
    small = rules.within(6_000)
    assert (small.high_tokens, small.low_tokens, small.rollup_tokens) == (3_600, 1_800, 900)
    assert (small.prompt_tokens, small.answer_tokens, small.gate) == (900, 400, True)
    assert rules.within(150_000) == rules
    seed = archival_rules(ArchivalConfig(profile="seed"))
    assert seed.within(6_000) == seed
