"""A turn: a prompt, model responses and the tools they call, and the reply. Leaves a valid conversation, always.

Valid means: each call is answered by exactly one result, in call order, in the very next message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

import msgspec

from orch_protocol.agent.spec import Limits
from orch_protocol.core.errors import BackendError, BudgetExceededError, ConfigError, ContextOverflowError, OrchError
from orch_protocol.core.messages import (
    Message,
    Reply,
    StopReason,
    Text,
    ToolResult,
    ToolUse,
    Usage,
    text_of,
    tool_uses,
    user,
)
from orch_protocol.core.text import scrub

from ..backends.base import NOTHING, AssistantTurn, Backend, OnText
from ..conversation.prompt_markers import STEERING
from ..conversation.tokens import CHARS_PER_TOKEN, clip
from ..prompt.instructions import continued_prompt
from ..system.threads import describe_exception
from ..tools.dispatch.budget_client import BudgetClient
from ..tools.dispatch.toolbox import CallOutcome, Executor, refused_outcome
from .cancelled_calls import Cut, cut_off, end_all, ended, is_done, outcome_of
from .steering import SteeringMessage

if TYPE_CHECKING:
    from orch_protocol.session.tree import CompactionDone

    from .hooks import AgentHooks
    from .phases import Phases

__all__ = ["CancelToken", "Shorter", "Turn", "TurnAborted"]

Report = Callable[[str, str, int], None]
Interject = Callable[[bool], list[SteeringMessage]]
Heard = Callable[[str], None]
Emit = Callable[[str, str, str, int, bool], None]
Prepare = Callable[[], Awaitable[None]]
Shorter: TypeAlias = Literal["size", "refused", "hook", "archive"]
"""Why a conversation is to become shorter: it has grown too long, or was refused; or a hook wants a summary of what was
said first, or what is finished in archives."""
Shorten = Callable[[Shorter], Awaitable["CompactionDone | None"]]
Frame = Callable[[str], str]

SHOWN: Final = 2000

NOT_COMPLETE: Final = frozenset({"max_tokens", "budget", "refusal", "error"})
CUT_OFF: Final = (
    "Not run: the response ended with {why!r}, so the call may be incomplete. Make it again, in smaller parts."
)


class RecordMessage(Protocol):
    """Takes the next message of the conversation down, and what models used for it: for a response, or for results."""

    def __call__(self, message: Message, /, *, usage: Usage | None = None, said: str = "") -> None:
        """Record `message`, which `said` names when somebody said it meanwhile."""


class TurnAborted(Exception):
    """A hook ended the turn; the message is its reply."""


class CancelToken:
    """Ends a turn before it is done: when it is pulled, which may be at any time, or at the turn's deadline."""

    def __init__(self) -> None:
        self._pulled = False
        self.short = ""
        """Of which budget the turn was ended, as its reply is to say."""
        self._timeout: asyncio.Timeout | None = None

    def pull(self, short: str = "") -> None:
        """End the turn at its next await, with stop reason `cancelled`; `short` of a budget with `budget`."""
        self._pulled, self.short = True, short
        if self._timeout is not None:
            try:
                self._timeout.reschedule(asyncio.get_running_loop().time())
            except RuntimeError:
                pass  # the turn has just ended, one way or the other

    def until(self, deadline: float) -> asyncio.Timeout:
        """Return the context in which the brake and `deadline` (loop time) raise TimeoutError."""
        self._timeout = asyncio.timeout_at(deadline)
        return self._timeout

    def cut(self) -> Cut | None:
        """Return why the turn is to end now, None while it may go on."""
        if self._pulled:
            return "budget" if self.short else "cancelled"
        when = self._timeout.when() if self._timeout is not None else None
        return "timeout" if when is not None and asyncio.get_running_loop().time() >= when else None


class Turn:
    """One turn of an agent: holds its state while it runs. `run` is called once.

    `record` receives every message before it becomes part of the conversation. `brake` ends the turn with stop reason
    `cancelled`, the deadline of `limits` with `timeout`.

    `interject(stopping)` returns the steering messages that arrived: it is called after the prompt, after each batch of
    tool calls, and when the turn would end. Each text becomes a user message; `heard` is called after that is recorded.
    `emit(kind, text, name, step, is_error)` receives every event of the turn, see TurnEvent. `prepare` is awaited
    before each model request, `pause` when the turn continues past its steps; both may change the conversation.
    `shorten` is awaited before each model request and after a request that exceeded the context window: if it shortens
    the conversation, that request is repeated once. None of these may raise.

    `purse` reserves budget for requests. `hooks` may change the turn, and end it with stop reason `aborted`. `opening`
    is awaited before the prompt is recorded, and `frame` adds text around the prompt. `phases` assess the prompt before
    the first request, reflect on the outcome, and may continue the turn.
    """

    def __init__(
        self,
        *,
        query_id: str,
        agent_id: str,
        prompt: str,
        backend: Backend,
        toolbox: Executor,
        record: RecordMessage,
        limits: Limits,
        report: Report,
        brake: CancelToken,
        interject: Interject = lambda _stopping: [],
        heard: Heard = lambda _id: None,
        emit: Emit | None = None,
        prepare: Prepare | None = None,
        pause: Prepare | None = None,
        shorten: Shorten | None = None,
        purse: BudgetClient | None = None,
        hooks: AgentHooks | None = None,
        phases: Phases | None = None,
        opening: Prepare | None = None,
        frame: Frame = str,
    ) -> None:
        self._query_id = query_id
        self._agent_id = agent_id
        self._prompt = prompt
        self._frame = frame
        self._backend = backend
        self._toolbox = toolbox
        self._record = record
        self._limits = limits
        self._report = report
        self._brake = brake
        self._interject = interject
        self._heard = heard
        self._emit = emit
        self._prepare = prepare
        self._pause = pause
        self._shorten = shorten
        self._purse = purse
        self._hooks = hooks
        self._phases = phases
        self._opening = opening
        self._short = ""
        self._low = False
        self._refused = ""
        """Which budget did not cover a call."""
        self._called = 0.0
        self._usage = Usage()
        self._steps = 0
        self._calls = 0
        self._files: dict[str, None] = {}
        self._unfinished: tuple[str, ...] = ()
        self._text = ""
        self._streamed: list[str] = []
        """The text of the response under way, as far as it was shown."""
        self._reached: StopReason | None = None
        """How the turn has ended while it is reflected upon: the answer is there, and no deadline takes it back."""

    async def run(self) -> Reply:
        """Run the turn and return its reply.

        The stop reason is `max_turns` when all steps and continuations are used, and `budget` when a response after the
        first one is not covered. Raises BudgetExceededError when the first response is not covered, BackendError, and
        ConfigError for an empty prompt. An error raised after the turn began has its usage as the attribute `usage`.
        """
        if not self._prompt.strip():
            raise ConfigError("the prompt is empty: say what the agent is to do")
        deadline = asyncio.get_running_loop().time() + self._limits.turn_seconds
        try:
            async with self._brake.until(deadline):
                stop = await self._until_it_may_end(await self._begin(scrub(self._prompt)))
        except TimeoutError:
            stop = self._brake.cut() or "timeout"
            stop = self._reached or stop if stop == "timeout" else stop
        except TurnAborted as aborted:
            stop, self._text = "aborted", str(aborted)
        except BaseException as error:
            self._take_losses()
            vars(error)["usage"] = self._usage
            raise
        finally:
            self._report("idle", "", self._steps)
            if self._phases is not None:
                self._phases.begun()  # what was asked for a turn that did not begin is paid for all the same
        self._take_losses()
        self._short = self._brake.short or self._short
        text = ended(self._text, stop, steps=self._steps, short=self._short)
        if self._phases is not None:
            text = self._phases.behind(text)
        if self._hooks is not None:
            text, stop = await self._hooks.output(text, stop)
        most = self._limits.reply_tokens * CHARS_PER_TOKEN
        return Reply(
            id=self._agent_id,
            query_id=self._query_id,
            text=clip(text, most, "the transcript has it all"),
            stop_reason=stop,
            usage=self._usage,
            tool_calls=self._calls,
            files_changed=tuple(self._files),
            steps=self._steps,
            unfinished=self._unfinished,
            whole=self._toolbox.kept(text) if len(text) > most else "",
        )

    async def _begin(self, prompt: str) -> str:
        """Take the prompt down, and what was said before the agent began; return it as it was taken down."""
        more: Sequence[str] = ()
        if self._hooks is not None:
            prompt, more = await self._hooks.before_turn(prompt, len(self._backend.transcript()), self._toolbox)
        if self._phases is not None:
            more = (*more, *await self._phases.assess(prompt, self._toolbox, self._spend))
        if self._opening is not None:
            await self._opening()
        self._answer_what_was_left()  # not before hooks let the turn begin: until then nothing is on record
        prompt = self._frame(prompt)
        for text in (prompt, *more):
            self._say(text)
        if self._phases is not None:
            self._phases.begun()
        await self._hear(stopping=False)
        return prompt

    def _answer_what_was_left(self) -> None:
        """Close the calls that a death left open, so that the conversation can go on."""
        messages = self._backend.transcript()
        left = tool_uses(messages[-1]) if messages and messages[-1].role == "assistant" else []
        if left:
            why = "No result: the process ended before the call was done. It may have had effects."
            self._append_results([refused_outcome(call, why).result for call in left])

    def _spend(self, usage: Usage) -> None:
        self._usage += usage

    def _take_losses(self) -> None:
        """Count what was used for requests of which no response came: those that were cut off, and that failed."""
        if self._purse is not None:
            self._purse.lose(self._backend)
            lost = self._purse.lost()
            self._usage = self._usage if lost == NOTHING else self._usage + lost

    async def _until_it_may_end(self, prompt: str) -> StopReason:
        """Let the turn go on as often as whoever reflects upon it wants it to."""
        stop = await self._legs_until_done(prompt)
        while self._phases is not None and not self._brake.cut():
            self._reached = stop
            told = await self._phases.reflect(self._text, stop, tuple(self._files), self._spend)
            if told is None:
                break
            self._reached = None
            self._say(told)
            stop = await self._legs_until_done(prompt)
        return stop

    async def _legs_until_done(self, prompt: str) -> StopReason:
        """Let the turn go on by itself as often as it may, each time with what is left of it after a pause."""
        limits = self._limits
        for number in range(1, limits.continuations + 1):
            stop = await self._steps_until_done(limits.max_turns * number)
            if stop == "max_turns" and self._pause is not None and not self._brake.cut():
                await self._pause()
            if stop != "max_turns" or self._brake.cut():
                return self._brake.cut() or stop
            told = continued_prompt(prompt, limits.max_turns, number, limits.continuations)
            self._say(told)
            self._tell("continued", told)
        return await self._steps_until_done(limits.max_turns * (limits.continuations + 1))

    async def _steps_until_done(self, most: int) -> StopReason:
        while self._steps < most:
            if cut := self._brake.cut():
                return cut
            try:
                turn = await self._response()
            except BudgetExceededError as error:
                if not self._steps:
                    raise
                self._short = str(error)
                return "budget"
            calls = tool_uses(turn.message)
            if calls and turn.stop_reason in NOT_COMPLETE:
                self._append_results(
                    [refused_outcome(call, CUT_OFF.format(why=turn.stop_reason)).result for call in calls]
                )
            elif calls:
                await self._run_calls(calls)
            if self._hooks is not None:
                await self._hooks.step_end(calls)
            if self._refused:
                self._short = self._refused
                return "budget"
            if not await self._hear(stopping=not calls) and not calls:
                return turn.stop_reason
        return "max_turns"

    async def _hear(self, *, stopping: bool) -> bool:
        """Take what was said meanwhile into the conversation; return whether there was anything."""
        heard = False
        if self._hooks is not None:
            await self._hooks.settled()
        while not heard and (said := self._interject(stopping)):
            for id, text in said:
                texts = [text] if self._hooks is None else await self._hooks.heard(text)
                for left, each in enumerate(texts, 1 - len(texts)):
                    # The last one says that it was heard: who is killed before that is told all of it once more.
                    self._say(f"{STEERING}\n{scrub(each)}", "" if left else id)
                    self._tell("steered", each)
                    heard = True
                # Not before it is on record: an agent that is killed in between is told it once more.
                self._heard(id)
        return heard

    def _say(self, text: str, said: str = "") -> None:
        message = user(text)
        if said:
            self._record(message, said=said)
        else:
            self._record(message)
        self._backend.append_user(message.content)

    def _tell(self, kind: str, text: str = "", name: str = "", *, is_error: bool = False) -> None:
        if self._emit is not None:
            self._emit(kind, text, name, self._steps, is_error)

    async def _response(self) -> AssistantTurn:
        """Return the next model response, recorded."""
        shorter = await self._hooks.step_start(self._steps, self._backend) if self._hooks is not None else None
        if self._purse is not None:
            await self._hear_of_budgets(self._purse)
        if self._prepare is not None:
            await self._prepare()
        await self._make_room(shorter or "size")
        try:
            return await self._asked()
        except ContextOverflowError:
            if not await self._make_room("refused"):
                raise
            return await self._asked()

    async def _make_room(self, why: Shorter) -> bool:
        """Let the conversation become shorter where it is to; return whether it did."""
        done = await self._shorten(why) if self._shorten is not None else None
        if done is None:
            return False
        from ..context.compaction_rules import line_of

        self._usage += done.usage
        self._tell("compacted", line_of(done))
        return True

    async def _asked(self) -> AssistantTurn:
        info = self._backend.info()
        who, step = f"{info.provider}:{info.model}" if info.model else info.provider, self._steps + 1
        self._report("model", who, step)
        self._backend.instead = await self._hooks.request(self._backend, info) if self._hooks is not None else None
        self._backend.on_retry = partial(self._on_retry, who, step)
        self._streamed.clear()
        on_text: OnText | None = self._show_text if self._emit is not None else None
        if self._hooks is not None:
            on_text = self._hooks.listening(on_text, info)
        hold = await self._purse.reserve(self._backend) if self._purse is not None else None
        try:
            turn = await self._backend.assistant_turn(on_text)
        except ContextOverflowError:
            if hold is not None:
                hold.settle(Usage())
            raise
        except (OrchError, MemoryError):
            raise
        except asyncio.CancelledError:
            self._keep_streamed()
            raise
        except Exception as error:
            raise BackendError(f"{info.provider}: {describe_exception(error)}") from error
        self._steps += 1
        usage = turn.usage.of_a_response()
        self._usage += usage
        end: BaseException | None = None
        if self._hooks is not None:
            turn, end = await self._hooks.response(turn, info)
        message = turn.message if turn.message.content else Message("assistant", (Text("(an empty response)"),))
        self._text = text_of(turn.message) or self._text
        self._record(message, usage=usage)
        self._backend.append_assistant(message)
        if hold is not None:
            self._short = hold.why
            hold.settle(usage)
        self._tell("message", text_of(turn.message))
        if self._hooks is not None:
            self._hooks.message_end(turn, message)
        if end is not None:
            raise end
        return turn

    async def _hear_of_budgets(self, purse: BudgetClient) -> None:
        """Tell whoever watches, once in the turn, that a budget is nearly used up."""
        await purse.settled()
        if purse.low and not self._low:
            self._low = True
            self._tell("budget", purse.low)

    def _show_text(self, text: str) -> None:
        self._streamed.append(text)
        self._tell("text", text)

    def _keep_streamed(self) -> None:
        """Record what was shown of a response that the user cancelled: the user has read it, and may refer to it."""
        text = "".join(self._streamed).strip()
        if not text or self._brake.cut() != "cancelled":
            return
        self._text = text
        message = Message("assistant", (Text(text),))
        self._record(message)
        self._backend.append_assistant(message)

    def _on_retry(self, who: str, step: int, retry: object) -> None:
        self._streamed.clear()
        self._report("model", f"{who}: {retry}", step)
        if self._hooks is not None:
            self._hooks.again()
        self._tell("retry", str(retry))

    async def _run_calls(self, calls: Sequence[ToolUse]) -> None:
        """Run `calls` at once and append their results in call order, also those of calls that the brake ends."""
        if cut := self._brake.cut():
            self._unfinished = tuple(call.name for call in calls)
            self._append_results([refused_outcome(call, cut_off(call, cut, began=False)).result for call in calls])
            return
        self._report("tool", ", ".join(dict.fromkeys(call.name for call in calls)), self._steps)
        if self._emit is not None:
            for call in calls:
                self._tell("tool_call", msgspec.json.encode(call.input).decode()[:SHOWN], call.name)
        dispatch = self._toolbox.dispatch if self._hooks is None else partial(self._hooks.call, self._toolbox.dispatch)
        self._called = asyncio.get_running_loop().time()
        tasks = [asyncio.create_task(dispatch(call)) for call in calls]
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            await end_all(tasks)
            if cut := self._brake.cut():
                self._take(calls, tasks, cut)
            raise
        self._take(calls, tasks, None)

    def _take(self, calls: Sequence[ToolUse], tasks: Sequence[asyncio.Task[CallOutcome]], cut: Cut | None) -> None:
        elapsed = asyncio.get_running_loop().time() - self._called
        whole = [outcome_of(call, task, cut, elapsed) for call, task in zip(calls, tasks, strict=True)]
        if cut:
            pairs = zip(calls, tasks, strict=True)
            self._unfinished = tuple(call.name for call, task in pairs if not is_done(task))
        outcomes = self._toolbox.shown(calls, whole)
        used = Usage()
        for outcome in outcomes:
            self._calls += outcome.ran
            self._files |= dict.fromkeys(outcome.files_changed)
            used += outcome.usage
            self._refused = self._refused or outcome.short
        self._usage += used
        self._append_results([outcome.result for outcome in outcomes], used)
        for outcome in outcomes:
            outcome.settle(outcome.usage)
        for call, outcome in zip(calls, outcomes, strict=True):
            if self._phases is not None:
                self._phases.called(call, outcome)
            shown = text_of(Message("user", outcome.result.content))[:SHOWN]
            self._tell("tool_result", shown, call.name, is_error=outcome.result.is_error)

    def _append_results(self, results: Sequence[ToolResult], used: Usage = NOTHING) -> None:
        self._record(Message("user", tuple(results)), usage=used if used != NOTHING else None)
        self._backend.append_tool_result(results)
