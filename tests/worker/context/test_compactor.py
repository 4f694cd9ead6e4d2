"""An agent's conversation gives way to a summary: on record first, whole for providers, and nothing is lost."""

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
from orch_protocol.policy.budget import BudgetReservationResult, BudgetSettled, ReserveBudget
from orch_protocol.session.entries import CompactionEntry
from orch_protocol.session.tree import CompactionDone
from orch_worker.backends.base import AssistantTurn, BackendInfo, Conversation, OnText
from orch_worker.context.compactor import Compactor
from orch_worker.conversation.stubs import stub_text
from orch_worker.hooks.session_events import CompactionDecision
from orch_worker.session.transcript import Transcript, read_session
from orch_worker.tools.api.base import ToolContext
from orch_worker.tools.dispatch.budget_client import BudgetClient
from virtual_clock import virtual

HOLDER = "abcdef012345"
REMOTE = BackendSpec("anthropic", "m")


class Model(Conversation):
    """A model of a window of 1,000 tokens. Answers with `answers`, errors are raised, None is no answer, ever."""

    def __init__(self, answers: list[Any] | None = None, window: int = 1_000) -> None:
        super().__init__()
        self.answers = answers if answers is not None else []
        self.asked: list[tuple[str, list[Message]]] = []
        self.window = window
        self.at_it = asyncio.Event()

    async def assistant_turn(self, on_text: OnText | None = None) -> AssistantTurn:  # noqa: ARG002
        """Answer."""
        self.asked.append((self.system, list(self.messages)))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            self.at_it.set()
            await asyncio.Event().wait()
        stop = "max_tokens" if answer.endswith("...") else "end_turn"
        return AssistantTurn(assistant(answer), stop, Usage(100, 10, cost_usd=0.5))  # type: ignore[arg-type]

    def info(self) -> BackendInfo:
        """Return who answers."""
        return BackendInfo("anthropic", "m", self.window)


class Agent:
    """An agent that has said things; `writer` is asked for summaries, if the agent's model is one that can be."""

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
        """Record `messages`, and let the model have them."""
        for message in messages:
            self.transcript.message(message, turn)
        session = self.transcript.session
        self.backend.load(session.messages, session.responses)

    def turns(self, count: int, size: int = 400, name: str = "n") -> None:
        """Let so many turns pass, of about `size` characters each."""
        for number in range(count):
            self.say(user(f"ask {name}{number}"), assistant(f"said {name}{number} " + "x" * size))

    async def compact(self, reason: Any = "size", hooks: Any = None, instructions: str = "") -> CompactionDone | None:
        """Compact, and check what must hold ever after."""
        done = await self.compactor.compact("q", reason, hooks, instructions)
        self.check()
        return done

    def check(self) -> None:
        """Assert that the file says what the session does, and that providers accept it."""
        session = self.transcript.session
        assert read_session(self.folder).messages == session.messages == tuple(self.backend.transcript())
        assert_valid(session.messages)

    def shown(self) -> str:
        """Return everything that the model is shown."""
        return "\n".join(map(text_of, self.backend.transcript()))

    @property
    def entry(self) -> CompactionEntry:
        """The compaction that is on record last."""
        found = self.transcript.session.entries[-1]
        assert isinstance(found, CompactionEntry)
        return found


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    """An agent that has said nothing yet."""
    agent = Agent(tmp_path)
    yield agent
    agent.transcript.close()


@pytest.fixture
async def early(tmp_path: Path) -> AsyncIterator[Agent]:
    """An agent whose conversation is compacted when there is much room left in the window."""
    agent = Agent(tmp_path, CompactionSpec(60))
    yield agent
    agent.transcript.close()


async def test_a_model_writes_it_beside_the_conversation(early: Agent) -> None:
    """Asked with the same system text and the same messages, which its provider has cached, and one question more."""
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


async def test_nothing_is_asked_while_it_fits(agent: Agent) -> None:
    """Nothing is done, nothing is on record."""
    agent.turns(3)
    assert await agent.compact() is None
    assert agent.writer.asked == []


async def test_apart_when_there_is_no_room_beside_it(agent: Agent) -> None:
    """A conversation far above its window, as one from elsewhere is when it is opened: shown in parts that fit."""
    agent.turns(60)
    agent.writer.answers += [f"notes {n}" for n in range(99)]
    assert await agent.compact("refused") is not None
    assert len(agent.writer.asked) > 1
    for system, [message] in agent.writer.asked:
        assert "keep the notes" in system
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
async def test_without_a_model_s_word_it_is_made_of_what_was_said(agent: Agent, answers: list[Any]) -> None:
    """An error, an empty answer, one that was cut off, one that is no summary: none costs the turn, nor a message."""
    agent.turns(9)
    agent.writer.answers += answers
    assert await agent.compact() is not None
    assert agent.entry.writer == "extract"
    assert "Asked: ask n7\nSaid: said n7" in agent.shown()
    assert agent.backend.context_tokens() < 500


async def test_no_model_is_needed(tmp_path: Path) -> None:
    """Backends without words of their own are not asked."""
    agent = Agent(tmp_path, spec=BackendSpec("extractive"))
    agent.turns(9)
    assert await agent.compact() is not None
    assert (agent.entry.writer, agent.entry.usage) == ("extract", None)
    agent.transcript.close()


@virtual
async def test_a_model_that_takes_too_long_is_not_waited_for(tmp_path: Path) -> None:
    """After as long as the rules say."""
    agent = Agent(tmp_path, CompactionSpec(seconds=5))
    agent.turns(9)
    agent.writer.answers.append(None)
    began = asyncio.get_running_loop().time()
    assert await agent.compact() is not None
    assert asyncio.get_running_loop().time() - began == pytest.approx(5)
    assert agent.entry.writer == "extract"
    agent.transcript.close()


@virtual
async def test_whoever_is_cancelled_leaves_the_conversation_as_it_was(tmp_path: Path) -> None:
    """A summary that was paid for is not lost: the turn bears it, and no other compaction does."""
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
    assert agent.purse.lost().cost_usd == 0.5
    agent.check()
    agent.writer.answers = [BackendError("no")]
    done = await agent.compact("refused")
    assert done is not None
    assert done.usage.cost_usd == 0.0
    agent.transcript.close()


async def test_the_second_one_loses_nothing_that_the_first_one_kept(agent: Agent) -> None:
    """What stayed word for word then is shown to whoever writes the next one, with the summary before it."""
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
async def test_a_summary_that_was_archived_with_its_turn_is_carried_on(agent: Agent, answers: list[Any]) -> None:
    """The conversation shows it still, in front of the stub: the next one is made of it, and the task stays."""
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


async def test_a_running_turn_keeps_its_question(agent: Agent) -> None:
    """Its first steps go, its last ones stay; what it is about is said word for word."""
    agent.say(user("Task: Mend it\n\nQuery: Which valve is stuck?"))
    for n in range(12):
        agent.say(Message("assistant", (ToolUse(f"c{n}", "read_file", {"path": f"{n}.txt"}),)))
        agent.say(Message("user", (ToolResult(f"c{n}", (Text(f"seen{n} " * 50),)),)))
    agent.writer.answers += ["notes"] * 9
    assert await agent.compact() is not None
    first, *rest = agent.backend.transcript()
    assert "Your task: Mend it" in text_of(first)
    assert "You were asked:\nWhich valve is stuck?" in text_of(first)
    assert "Read: 0.txt, 1.txt" in text_of(first)
    assert rest[0].role == "assistant"
    assert len(rest) < 10


async def test_a_summary_is_paid_like_any_response(agent: Agent) -> None:
    """What it may take is put aside first, and settled when it is on record; with too little nobody is asked."""
    asked: list[Any] = []

    async def root(_service: str, params: Any, _seconds: float | None = None) -> Any:
        asked.append(params)
        if isinstance(params, ReserveBudget) and len(asked) > 2:
            raise BudgetExceededError("it is used up")
        return BudgetReservationResult("r1", params.most) if isinstance(params, ReserveBudget) else BudgetSettled()

    agent.purse = BudgetClient(ToolContext(agent.folder, call_root=root))
    agent.purse.budgeted = frozenset({"model_calls"})
    agent.compactor._purse = agent.purse
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


async def test_archives_keep_their_ids_whatever_a_model_says(agent: Agent) -> None:
    """They are asked as before, and what is said of each is in the summary."""
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


async def test_what_was_compacted_is_shown_again_by_who_goes_back(agent: Agent) -> None:
    """Every message stays on its line."""
    agent.turns(9)
    before, leaf = agent.shown(), agent.transcript.session.leaf
    agent.writer.answers.append("notes")
    await agent.compact()
    agent.transcript.checkout(leaf)
    assert "\n".join(map(text_of, agent.transcript.session.messages)) == before


class Hooks:
    """Says `told` of a compaction, and remembers what it heard."""

    def __init__(self, told: Any) -> None:
        self.told = told
        self.heard: list[Any] = []

    async def before_compaction(
        self, reason: str, messages: Sequence[Message], tokens: int, instructions: str = ""
    ) -> Any:
        """Say it."""
        self.asked = instructions
        self.heard.append((reason, len(messages), tokens > 0))
        return self.told

    def compacted(self, reason: str, summary: str, **told: Any) -> None:
        """Remember it."""
        self.heard.append((reason, summary, told["supplied"]))


async def test_somebody_else_may_write_it_or_forbid_it(agent: Agent) -> None:
    """Then no model is asked; and what is to be added is added."""
    agent.turns(9)
    forbids = Hooks(None)
    assert await agent.compact(hooks=forbids) is None
    assert forbids.heard == [("size", 16, True)]
    hooks = Hooks(CompactionDecision(summary="My own.", added=("And this.",)))
    assert await agent.compact(hooks=hooks) is not None
    assert agent.writer.asked == []
    assert "My own.\nAnd this." in agent.shown()
    assert hooks.heard[1] == ("size", agent.entry.summary, True)


async def test_whoever_writes_is_told_instructions(early: Agent) -> None:
    """Beside the conversation and apart from it."""
    agent = early
    agent.turns(6)
    agent.writer.answers += ["", "notes"]
    await agent.compact(hooks=Hooks(CompactionDecision("Name every valve.")))
    (_, beside), (system, _) = agent.writer.asked
    assert "Name every valve." in text_of(beside[-1])
    assert "Name every valve." in system


async def test_somebody_may_ask_for_it_long_before_it_is_due(agent: Agent) -> None:
    """All turns but the last go; whoever writes is told what to look to, hooks first."""
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


async def test_what_was_asked_for_and_cannot_be_is_an_error(agent: Agent) -> None:
    """One turn alone, two that a summary would be as long as, and what a hook forbids."""
    agent.turns(1)
    with pytest.raises(ConfigError, match="there is nothing to compact"):
        await agent.compact("asked")
    agent.turns(1, 10)
    agent.writer.answers += ["notes"]
    await agent.compact("asked")
    with pytest.raises(ConfigError, match=r"nothing to compact: of [\d,]+ tokens in 3 messages"):
        await agent.compact("asked")
    agent.turns(4)
    with pytest.raises(ConfigError, match="a hook forbids"):
        await agent.compact("asked", Hooks(None))
    assert agent.transcript.session.compactions == 1


async def test_a_long_turn_that_is_over_can_be_compacted_too(agent: Agent) -> None:
    """Its last steps stay, no call is parted from its result, and nothing is still to be answered."""
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
