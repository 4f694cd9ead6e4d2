"""Compaction: a summary replaces messages after it is recorded, the conversation stays valid, and no message is
lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_doubles import assert_valid
from orch_protocol.agent.spec import BackendSpec, CompactionSpec
from orch_protocol.core.archives import Collapse
from orch_protocol.core.errors import BackendError, BudgetExceededError, ConfigError, ContextOverflowError
from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, Usage, assistant, text_of, user
from orch_protocol.services.policy.budgets import BudgetReservationResult, BudgetSettled, ReserveBudget
from orch_protocol.session.entries import CompactionEntry
from orch_protocol.session.tree import CompactionDone
from orch_worker.backends.base import AssistantTurn, BackendInfo, Conversation, OnText
from orch_worker.context.compactor import Compactor
from orch_worker.conversation.stubs import stub_text
from orch_worker.hooks.session_events import CompactionDecision
from orch_worker.session.session_reader import read_session
from orch_worker.session.transcript import Transcript
from orch_worker.tools.api.base import ToolContext
from orch_worker.tools.dispatch.budget_client import BudgetClient
from virtual_clock import virtual

HOLDER = "abcdef012345"
REMOTE = BackendSpec("anthropic", "m")


class Model(Conversation):
    """A model with a window of 1,000 tokens. In `answers`, an exception is raised, and None means no answer."""

    def __init__(self, answers: list[Any] | None = None, window: int = 1_000) -> None:
        super().__init__()
        self.answers = answers if answers is not None else []
        self.asked: list[tuple[str, list[Message]]] = []
        self.window = window
        self.at_it = asyncio.Event()

    async def assistant_turn(self, on_text: OnText | None = None) -> AssistantTurn:  # noqa: ARG002
        """Return the next answer."""
        self.asked.append((self.system, [*self.messages, *([user(self.tail)] if self.tail else [])]))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            self.at_it.set()
            await asyncio.Event().wait()
        stop = "max_tokens" if answer.endswith("...") else "end_turn"
        return AssistantTurn(assistant(answer), stop, Usage(100, 10, cost_usd=0.5))  # type: ignore[arg-type]

    def info(self) -> BackendInfo:
        return BackendInfo("anthropic", "m", self.window)


class Agent:
    """An agent with a conversation. `writer` is the model that is asked for summaries."""

    def __init__(self, folder: Path, rules: CompactionSpec | None = None, spec: BackendSpec = REMOTE) -> None:
        self.folder = folder
        self.transcript = Transcript.open(folder, agent="a", cwd="/")
        self.backend = Model()
        self.writer = Model()
        self.purse = BudgetClient(ToolContext(folder))
        self.compactor = Compactor(
            rules or CompactionSpec(),
            self.transcript,
            self.backend,
            self.purse,
            model=lambda: spec,
            make=lambda _: self.writer,
        )

    def say(self, *messages: Message, turn: str = "q") -> None:
        """Record `messages`, and load them into the backend."""
        for message in messages:
            self.transcript.message(message, turn)
        session = self.transcript.session
        self.backend.load(session.messages, session.responses)

    def turns(self, count: int, size: int = 400, name: str = "n") -> None:
        """Add `count` turns of about `size` characters each."""
        for number in range(count):
            self.say(user(f"ask {name}{number}"), assistant(f"said {name}{number} " + "x" * size))

    async def compact(self, reason: Any = "size", hooks: Any = None, instructions: str = "") -> CompactionDone | None:
        """Compact the conversation and check the invariants."""
        done = await self.compactor.compact("q", reason, hooks, instructions)
        self.check()
        return done

    def check(self) -> None:
        """Check that file, session and backend contain the same messages, and that providers accept them."""
        session = self.transcript.session
        assert read_session(self.folder).messages == session.messages == tuple(self.backend.transcript())
        assert_valid(session.messages)

    def shown(self) -> str:
        """Return the text of the conversation."""
        return "\n".join(map(text_of, self.backend.transcript()))

    @property
    def entry(self) -> CompactionEntry:
        """The compaction that was recorded last."""
        found = self.transcript.session.entries[-1]
        assert isinstance(found, CompactionEntry)
        return found


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    """An agent with an empty conversation."""
    agent = Agent(tmp_path)
    yield agent
    agent.transcript.close()


@pytest.fixture
async def early(tmp_path: Path) -> AsyncIterator[Agent]:
    """An agent that compacts its conversation while much of the window is free."""
    agent = Agent(tmp_path, CompactionSpec(60))
    yield agent
    agent.transcript.close()


async def test_summary_request_reuses_the_cached_conversation(early: Agent) -> None:
    """The request has the same system text and messages, and one more instruction."""
    agent = early
    agent.backend.append_system("You are terse.", ())
    agent.turns(6)
    agent.writer.answers.append("All is well.")
    before = list(agent.backend.transcript())
    done = await agent.compact()
    assert done is not None
    assert done.usage == Usage(100, 10, cost_usd=0.5, model_calls=1)
    [(system, messages)] = agent.writer.asked
    assert (system, messages[:-1]) == ("You are terse.", before)
    assert "«ask n5»" in text_of(messages[-1])
    assert agent.shown().startswith("[Summary of the conversation so far]\n\nAll is well.")
    assert "said n5" in agent.shown()
    assert "said n4" not in agent.shown()
    assert (agent.entry.reason, agent.entry.writer, agent.entry.turn) == ("size", "model", "q")
    assert agent.transcript.session.usage.cost_usd == 0.5


async def test_conversation_below_the_threshold_is_not_compacted(agent: Agent) -> None:
    """No request is made, and nothing is recorded."""
    agent.turns(3)
    assert await agent.compact() is None
    assert agent.writer.asked == []


async def test_oversized_conversation_is_summarized_in_parts(agent: Agent) -> None:
    """An imported conversation far above the window is sent in parts that fit."""
    agent.turns(60)
    agent.writer.answers += [f"notes {n}" for n in range(99)]
    assert await agent.compact("refused") is not None
    assert len(agent.writer.asked) > 1
    for system, [message] in agent.writer.asked:
        assert "write notes for an agent" in system
        assert len(text_of(message)) < 5_000
    seen = "".join(text_of(messages[0]) for _, messages in agent.writer.asked)
    assert all(f"said n{n} " in seen for n in range(59))
    last = len(agent.writer.asked) - 1
    assert f"notes {last}" in agent.shown()
    assert agent.backend.context_tokens() < 500


@pytest.mark.parametrize(
    "answers",
    [
        [BackendError("no")] * 2,
        [ContextOverflowError("no")] * 2,
        [BudgetExceededError("no")] * 2,
        [RuntimeError("no")] * 2,
        ["", ""],
        ["cut off...", "cut off..."],
        ["x" * 90_000, "x" * 90_000],
    ],
)
async def test_failed_model_summary_falls_back_to_the_computed_one(agent: Agent, answers: list[Any]) -> None:
    """Errors, and empty, truncated or oversized answers, neither fail the turn nor lose a message."""
    agent.turns(9)
    agent.writer.answers += answers
    assert await agent.compact() is not None
    assert agent.entry.writer == "extract"
    assert "Asked: ask n7\nSaid: said n7" in agent.shown()
    assert agent.backend.context_tokens() < 500


async def test_offline_backends_are_not_asked_for_summaries(tmp_path: Path) -> None:
    """A backend that does not generate text gets no request."""
    agent = Agent(tmp_path, spec=BackendSpec("extractive"))
    agent.turns(9)
    assert await agent.compact() is not None
    assert (agent.entry.writer, agent.entry.usage) == ("extract", None)
    agent.transcript.close()


@virtual
async def test_slow_summary_model_times_out(tmp_path: Path) -> None:
    """The time limit comes from the rules."""
    agent = Agent(tmp_path, CompactionSpec(seconds=5))
    agent.turns(9)
    agent.writer.answers.append(None)
    began = asyncio.get_running_loop().time()
    assert await agent.compact() is not None
    assert asyncio.get_running_loop().time() - began == pytest.approx(5)
    assert agent.entry.writer == "extract"
    agent.transcript.close()


@virtual
async def test_cancelled_compaction_leaves_the_conversation_unchanged(tmp_path: Path) -> None:
    """The cost of a finished part is counted."""
    agent = Agent(tmp_path)
    agent.turns(60)
    agent.writer.answers += ["notes", None]
    before = list(agent.backend.transcript())
    task = asyncio.create_task(agent.compactor.compact("q", "refused"))
    await agent.writer.at_it.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list(agent.backend.transcript()) == before
    assert agent.purse.losses.total.cost_usd == 0.5
    agent.check()
    agent.writer.answers = [BackendError("no")]
    done = await agent.compact("refused")
    assert done is not None
    assert done.usage.cost_usd == 0.0
    agent.transcript.close()


async def test_second_compaction_summarizes_what_the_first_one_kept(agent: Agent) -> None:
    """The input of the second summary includes the first one."""
    agent.turns(9, name="a")
    agent.writer.answers.append("first notes")
    await agent.compact()
    assert "said a8" in agent.shown()
    agent.turns(9, name="b")
    agent.writer.answers += ["second notes", "second notes", "second notes"]
    await agent.compact("refused")
    seen = "".join(text_of(messages[0]) for _, messages in agent.writer.asked[1:])
    assert "first notes" in seen
    assert "said a8" in seen
    assert all(f"said b{n}" in seen or f"said b{n}" in agent.shown() for n in range(9))
    assert agent.shown().count("[Summary") == 1


@pytest.mark.parametrize("answers", [["second notes"] * 9, [BackendError("no")] * 9])
async def test_summary_archived_with_its_turn_is_carried_on(agent: Agent, answers: list[Any]) -> None:
    """The next compaction uses the archived summary, and the task stays."""
    agent.say(user("Task: Mend it\n\nQuery: Which valve?"), assistant("Look: " + "x" * 400))
    agent.turns(9)
    agent.writer.answers.append("first notes")
    await agent.compact()
    items = agent.transcript.session.view.items
    stub = assistant(stub_text("turn", HOLDER, "Read: a.txt"))
    agent.transcript.archive(
        [Collapse(HOLDER, "turn", "t", items[0].first, items[-1].last, (items[0].message, stub), (), "")]
    )
    agent.turns(9)
    agent.writer.answers = answers
    await agent.compact("refused")
    assert "first notes" in str(agent.writer.asked[1])
    assert ("first notes" in agent.shown()) == (agent.entry.writer == "extract")
    assert "Your task: Mend it" in agent.shown()
    assert agent.shown().count(HOLDER) == 1


async def test_compaction_of_a_running_turn_keeps_its_question(agent: Agent) -> None:
    """The first steps are removed, and the last ones stay."""
    agent.say(user("Task: Mend it\n\nQuery: Which valve is stuck?"))
    for n in range(12):
        agent.say(Message("assistant", (ToolUse(f"c{n}", "read_file", {"path": f"{n}.txt"}),)))
        agent.say(Message("user", (ToolResult(f"c{n}", (Text(f"seen{n} " * 50),)),)))
    agent.writer.answers += ["notes"] * 9
    assert await agent.compact() is not None
    first, *rest = agent.backend.transcript()
    assert "Your task: Mend it" in text_of(first)
    assert "You were asked:\nWhich valve is stuck?" in text_of(first)
    assert "Read: {0,1,2,3,4,5,6,7,8,9" in text_of(first)
    assert rest[0].role == "assistant"
    assert len(rest) < 10


async def test_summary_request_is_reserved_and_settled(agent: Agent) -> None:
    """If the budget is used up, no model is called."""
    asked: list[Any] = []

    async def root(_service: str, params: Any, _seconds: float | None = None) -> Any:
        asked.append(params)
        if isinstance(params, ReserveBudget) and len(asked) > 2:
            raise BudgetExceededError("it is used up")
        return BudgetReservationResult("r1", params.maximum) if isinstance(params, ReserveBudget) else BudgetSettled()

    agent.purse = BudgetClient(ToolContext(agent.folder, call_root=root))
    agent.purse.budgeted = frozenset({"model_calls"})
    agent.compactor._budget = agent.purse
    agent.turns(9)
    agent.writer.answers.append("notes")
    await agent.compact()
    await agent.purse.settled()
    assert [type(each).__name__ for each in asked] == ["ReserveBudget", "SettleBudget"]
    assert asked[1].amounts.model_calls == 1
    assert agent.entry.usage is not None
    assert agent.entry.usage.model_calls == 1
    agent.turns(9)
    await agent.compact()
    assert agent.entry.writer == "extract"
    assert len(agent.writer.asked) == 1


async def test_compaction_keeps_archive_ids_and_descriptions(agent: Agent) -> None:
    """The ids stay even if the model's summary does not contain them."""
    agent.turns(1)
    entries = [entry.id for entry in agent.transcript.session.entries]
    stub = stub_text("turn", HOLDER, "Read: a.txt, and much more")
    agent.transcript.archive(
        [Collapse(HOLDER, "turn", "what of it?", entries[0], entries[1], (user("ask"), assistant(stub)), (), "")]
    )
    agent.turns(9)
    agent.writer.answers.append("notes")
    await agent.compact()
    assert agent.transcript.session.view.holders() == [(HOLDER, "what of it?")]
    assert f"subagent_id: {HOLDER}\n" in agent.shown()
    assert "much more" not in agent.shown()
    agent.turns(9)
    agent.writer.answers.append("other notes")
    await agent.compact()
    assert agent.transcript.session.view.holders() == [(HOLDER, "what of it?")]
    assert agent.shown().count(HOLDER) == 1


async def test_compacted_messages_reappear_after_going_back(agent: Agent) -> None:
    """Every message keeps its entry."""
    agent.turns(9)
    before, leaf = agent.shown(), agent.transcript.session.leaf
    agent.writer.answers.append("notes")
    await agent.compact()
    agent.transcript.checkout(leaf)
    assert "\n".join(map(text_of, agent.transcript.session.messages)) == before


class Hooks:
    """Hooks that return `told` before a compaction and record their calls."""

    def __init__(self, text: Any) -> None:
        self.told = text
        self.heard: list[Any] = []

    async def before_compaction(
        self, reason: str, messages: Sequence[Message], tokens: int, instructions: str = ""
    ) -> Any:
        """Record the call and return the decision."""
        self.asked = instructions
        self.heard.append((reason, len(messages), tokens > 0))
        return self.told

    def compacted(self, reason: str, summary: str, **told: Any) -> None:
        """Record the compaction."""
        self.heard.append((reason, summary, told["supplied"]))


async def test_hooks_can_supply_or_forbid_the_summary(agent: Agent) -> None:
    """If a hook supplies or forbids the summary, no model is called. Added lines follow the summary."""
    agent.turns(9)
    forbids = Hooks(None)
    assert await agent.compact(hooks=forbids) is None
    assert forbids.heard == [("size", 16, True)]
    hooks = Hooks(CompactionDecision(summary="My own.", added=("And this.",)))
    assert await agent.compact(hooks=hooks) is not None
    assert agent.writer.asked == []
    assert "My own.\nAnd this." in agent.shown()
    assert hooks.heard[1] == ("size", agent.entry.summary, True)


async def test_summary_instructions_reach_the_model(early: Agent) -> None:
    """The instructions are part of the request with the conversation and of the request without it."""
    agent = early
    agent.turns(6)
    agent.writer.answers += ["", "notes"]
    await agent.compact(hooks=Hooks(CompactionDecision("Name every valve.")))
    (_, beside), (system, _) = agent.writer.asked
    assert "Name every valve." in text_of(beside[-1])
    assert "Name every valve." in system


async def test_compaction_on_request_ignores_the_threshold(agent: Agent) -> None:
    """All turns except the last are compacted. The hooks receive the instructions first."""
    agent.turns(3)
    agent.writer.answers += ["notes", "notes"]
    hooks = Hooks(CompactionDecision("Name every valve, and every pump."))
    done = await agent.compact("asked", hooks, "Name every valve.")
    assert done is not None
    assert (done.messages, done.reason, done.entry) == (4, "asked", agent.entry.id)
    assert done.tokens_after == agent.backend.context_tokens() < done.tokens_before
    assert hooks.asked == "Name every valve."
    assert "and every pump." in str(agent.writer.asked[0])
    assert "ask n1" not in agent.shown()
    assert "ask n2" in agent.shown()


async def test_impossible_compaction_on_request_is_an_error(agent: Agent) -> None:
    """The reason is a single turn, a summary as long as the turns, or a hook."""
    agent.turns(1)
    with pytest.raises(ConfigError, match="there is nothing to compact"):
        await agent.compact("asked")
    agent.turns(1, 10)
    agent.writer.answers += ["notes"]
    await agent.compact("asked")
    with pytest.raises(ConfigError, match=r"nothing to compact: of [\d,]+ tokens in 3 messages"):
        await agent.compact("asked")
    agent.turns(4)
    with pytest.raises(ConfigError, match="a hook prevents"):
        await agent.compact("asked", Hooks(None))
    assert agent.transcript.session.compactions == 1


async def test_long_finished_turn_can_be_compacted_on_request(agent: Agent) -> None:
    """The last steps stay, and no call is separated from its result."""
    agent.say(user("look at all"))
    for number in range(6):
        call = ToolUse(f"c{number}", "read_file", {"path": f"{number}"})
        agent.say(Message("assistant", (call,)), Message("user", (ToolResult(call.id, (Text("x" * 300),)),)))
    agent.say(assistant("all seen"))
    agent.writer.answers += ["notes"]
    done = await agent.compact("asked")
    assert done is not None
    assert 4 < done.messages < 12
    assert "You were asked" not in done.summary
    assert agent.shown().endswith("all seen")
