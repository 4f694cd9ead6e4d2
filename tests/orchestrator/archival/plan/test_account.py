"""Archiving never costs more than not archiving, however a conversation goes on and wherever it ends."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from orch.archival.adapters import format_named, request_with
from orch.archival.conversation_items import ConversationItem, ItemReader
from orch.archival.fold import RangeArchiver
from orch.archival.plan.economics import summary_cost
from orch.archival.plan.plan import SUMMARY_TOKENS, first_uncached_message
from orch.archival.store.catalog import ArchiveRecord
from orch.config.archival_profiles import archival_rules
from orch.replay.bill import Meter
from orch.replay.readers import Scale
from orch_protocol.agent.config import ArchivalConfig, Profile, TriggerConfig
from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, assistant, tool_uses, user
from orch_worker.backends.prices import Prices
from orch_worker.conversation.live_subagents import LiveSubagent, archives_block
from orch_worker.conversation.stubs import holders_in
from orch_worker.conversation.tokens import TokenEstimator
from orchestrator.archival.plan.test_bounds import BOUNDED, MemoryShelf

MOST = 1.005
"""The maximum cost with archiving, relative to the cost without archiving."""
ESTIMATOR = TokenEstimator()


class Turn(Struct, frozen=True):
    """The sizes of one turn in tokens: its prompt, the result of each call, and the answer."""

    prompt: int
    results: tuple[int, ...]
    answer: int

    def messages(self, number: int) -> list[Message]:
        """Return the messages of the turn."""
        steps: list[Message] = []
        for step, size in enumerate(self.results):
            id = f"c{number}_{step}"
            steps.append(Message("assistant", (Text("Next."), ToolUse(id, "read", {"path": f"src/{id}.py"}))))
            steps.append(Message("user", (ToolResult(id, (Text(words(size)),)),)))
        return [user(f"Question {number}. " + words(self.prompt)), *steps, assistant(words(self.answer))]


def words(tokens: int) -> str:
    """Return a text of about `tokens` tokens."""
    return "the port of this server is known to all and is 47 " * (tokens * 4 // 50 + 1)


sizes = st.sampled_from([20, 100, 300, 900, 3_000, 9_000])
turns = st.builds(
    Turn,
    st.sampled_from([10, 60, 400]),
    st.one_of(
        st.lists(sizes, max_size=6), st.builds(lambda size, count: [size] * count, sizes, st.integers(5, 45))
    ).map(tuple),
    st.sampled_from([20, 120, 400, 1_000]),
)
small_turns = turns.filter(lambda turn: len(turn.results) < 3)
conversations = st.one_of(
    st.lists(turns, min_size=1, max_size=8),
    st.builds(
        lambda turn, count: [turn] * count, turns.filter(lambda turn: len(turn.results) < 3), st.integers(10, 45)
    ),
)


class Shelf(MemoryShelf):
    """A catalog in memory. `requested` contains the tokens of each archive for which a summary was requested."""

    def __init__(self) -> None:
        super().__init__()
        self.requested: list[int] = []

    def store(
        self, record: ArchiveRecord, part: Sequence[ConversationItem], text: Sequence[Message], summarize: bool
    ) -> ArchiveRecord:
        """Store `part` under `record`."""
        if summarize:
            self.requested.append(record.tokens)
        return super().store(record, part, text, summarize)


def worst_ratio(
    conversation: Sequence[Turn], profile: Profile, beside: int, prices: Prices, *, summaries: bool
) -> float:
    """Return the maximum, over all calls, of the cost so far relative to the cost so far without archiving."""
    shelf, rules = Shelf(), archival_rules(ArchivalConfig(profile=profile))
    reader = ItemReader(format_named("orch"), shelf, ESTIMATOR)
    archiver = RangeArchiver(reader, rules, shelf.store)
    archiving, without = Meter(prices), Meter(prices)
    size = Scale(ESTIMATOR, beside, measured=False).size
    live: list[ConversationItem] = []
    whole: list[Message] = []
    worst = 0.0
    for message in (message for number, turn in enumerate(conversation) for message in turn.messages(number)):
        if message.role == "assistant":
            sent = first_uncached_message([item.message for item in live])
            cached, requested = beside + sum(item.tokens for item in live[:sent]), len(shelf.requested)
            answer = sum(item.tokens for item in live[sent : sent + 1] if not tool_uses(item.message))
            live, _ = archiver.fold_all(live, TriggerConfig(), prices, None, other_tokens=beside, summaries=summaries)
            for tokens in shelf.requested[requested:]:
                archiving.extra(summary_cost(tokens, cached, SUMMARY_TOKENS, prices, unsent=answer))
            for meter, request in ((archiving, listed(shelf, [item.message for item in live])), (without, whole)):
                parts = [(each, size(each)) for each in request]
                meter.request([("system", beside), *parts], size(message))
            worst = max(worst, archiving.bill.units / without.bill.units)
        live = [*live, reader.make_item(message)]
        whole = [*whole, message]
    return worst


def listed(shelf: MemoryShelf, live: Sequence[Message]) -> list[Message]:
    """Return `live` as a request with the list of archived turns."""
    holders = [holders_in(message) for message in live]
    rows = [LiveSubagent(id, f"Archive: {shelf.records[id].task}") for ids in holders for id in ids]
    last = max((index for index, ids in enumerate(holders) if ids), default=0)
    return request_with(format_named("orch"), live, archives_block(rows, 4), last)


CHAT = [Turn(30, (), 120)] * 40
BESIDE = st.sampled_from([0, 1_000, 12_000])
PRICES = st.sampled_from([Prices(), Prices(read=0.5, write=1.0, output=4.0), Prices(read=0.1, write=1.0, output=8.0)])


@settings(max_examples=30)
@given(conversations, st.sampled_from(BOUNDED), BESIDE, PRICES, st.booleans())
@example(CHAT, "economy", 1_000, Prices(), True)
@example([Turn(30, (200,), 150)] * 40, "economy", 12_000, Prices(), True)
@example([Turn(60, (1_000,) * 40, 300)], "economy", 1_000, Prices(), True)
@example([Turn(10, (900,), 1_000)] * 10, "economy", 12_000, Prices(read=0.5, write=1.0, output=4.0), True)
def test_archiving_never_costs_more_than_no_archiving(
    conversation: list[Turn], profile: Profile, beside: int, prices: Prices, summaries: bool
) -> None:
    """At each call, the cost so far is at most 100.5 % of the cost without archiving."""
    assert worst_ratio(conversation, profile, beside, prices, summaries=summaries) <= MOST
