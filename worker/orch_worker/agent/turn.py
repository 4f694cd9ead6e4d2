"""A turn: a prompt, model responses with tool calls, and the reply. The conversation always stays valid.

Valid means that each call has exactly one result, in call order, in the next message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

import msgspec

from orch_protocol.agent.spec import Limits
from orch_protocol.core.errors import BackendError, BudgetExceededError, ConfigError, ContextOverflowError, OrchError
from orch_protocol.core.messages import (
    INCOMPLETE_STOPS,
    Image,
    Message,
    Reply,
    StopReason,
    Text,
    ToolResult,
    ToolUse,
    Usage,
    place_images,
    text_of,
    tool_uses,
    user,
)
from orch_protocol.core.text import scrub

from ..backends.base import NOTHING, AssistantTurn, Backend, OnText
from ..backends.lost_usage import LostUsage
from ..conversation.framing import STEERING
from ..conversation.tokens import CHARS_PER_TOKEN, clip
from ..prompt.instructions import continued_prompt
from ..system.threads import describe_exception
from ..tools.dispatch.toolbox import CallOutcome, Dispatcher, refused_outcome
from .cancelled_calls import CutReason, cancel_tasks, finished_outcome, is_done, reply_text, unfinished_result
from .features.turn_extension import ActiveExtensions, Dispatch, ShorteningReason, TurnAborted
from .steering import SteeringMessage

__all__ = ["CancelToken", "Turn"]

MAX_EVENT_CHARS: Final = 2000

INCOMPLETE_CALL: Final = (
    "Not run: the response ended with {why!r}, so the call may be incomplete. Make it again, in smaller parts."
)


class RecordMessage(Protocol):
    """A function that records the next message of the conversation, and the usage of a response or of tool results."""

    def __call__(self, message: Message, /, *, usage: Usage | None = None, model: str = "", steer_id: str = "") -> None:
        """Record `message`. For a response, `model` is its model as `PROVIDER:NAME`.

        If `message` contains a steering message, `steer_id` is the id of the steering message.
        """


class Steering(Protocol):
    """A source of queued steering messages and follow-ups."""

    def take(self, *, stopping: bool) -> list[SteeringMessage]:
        """Return the messages to record now. Return follow-ups only if the turn is `stopping`."""


class TurnObserver(Protocol):
    """Receives the progress and the events of a turn. The methods must not raise. See RootClient."""

    def report(self, phase: str, detail: str, step: int) -> None:
        """The turn enters the phase `phase`: `model`, `tool` or `idle`."""

    def emit(self, query_id: str, kind: str, text: str, name: str, step: int, is_error: bool) -> None:
        """Receive an event of the turn. See TurnEvent."""

    def is_watched(self) -> bool:
        """Return whether a client watches the turn."""

    def steering_recorded(self, steer_id: str) -> None:
        """Receive the id of a steering message that is now recorded."""


class CancelToken:
    """Ends a turn early: when `cancel` is called, or at the turn's deadline."""

    def __init__(self) -> None:
        self._cancelled = False
        self.exceeded_budget = ""
        """The exceeded budget that ended the turn. The reply mentions this budget."""
        self._timeout: asyncio.Timeout | None = None

    def cancel(self, exceeded_budget: str = "") -> None:
        """End the turn at its next await.

        The stop reason is `budget` if `exceeded_budget` names a budget, otherwise `cancelled`.
        """
        self._cancelled, self.exceeded_budget = True, exceeded_budget
        if self._timeout is not None:
            try:
                self._timeout.reschedule(asyncio.get_running_loop().time())
            except RuntimeError:
                pass  # The turn has just ended.

    def until_deadline(self, deadline: float) -> asyncio.Timeout:
        """Return a context manager in which the token and the deadline (loop time) raise TimeoutError."""
        self._timeout = asyncio.timeout_at(deadline)
        return self._timeout

    def cut_reason(self) -> CutReason | None:
        """Return why the turn must end now, or None."""
        if self._cancelled:
            return "budget" if self.exceeded_budget else "cancelled"
        when = self._timeout.when() if self._timeout is not None else None
        return "timeout" if when is not None and asyncio.get_running_loop().time() >= when else None


class Turn:
    """One turn of an agent, with the state of the turn while it runs. `run` is called once.

    `images` are the images of `prompt`; see `place_images`.

    `record` receives every message before the message becomes part of the conversation. `cancel` ends the turn with
    stop reason `cancelled`, and the deadline of `limits` ends the turn with `timeout`. `steering` is read after the
    prompt, after each batch of tool calls, and when the turn would end. Each text from `steering` becomes a user
    message. `losses` holds the usage of requests without a recorded response. `extensions` are the active features (see
    TurnExtension).
    """

    def __init__(
        self,
        query_id: str,
        prompt: str,
        images: tuple[Image, ...] = (),
        *,
        agent_id: str,
        backend: Backend,
        toolbox: Dispatcher,
        record: RecordMessage,
        limits: Limits,
        cancel: CancelToken,
        observer: TurnObserver,
        steering: Steering,
        losses: LostUsage,
        extensions: ActiveExtensions,
    ) -> None:
        self.id = query_id
        self.prompt = prompt
        self.images = images
        self.notes: list[str] = []
        self.backend = backend
        self.toolbox = toolbox
        self.steps = 0
        self.text = ""
        self.files_changed: dict[str, None] = {}
        self.shorten: ShorteningReason = "size"
        self.on_text: OnText | None = None
        self.budget_note = ""
        self._agent_id = agent_id
        self._record = record
        self._limits = limits
        self._cancel = cancel
        self._observer = observer
        self._steering = steering
        self._losses = losses
        self._extensions = extensions
        self._insufficient_budget = ""
        """The budget that was not sufficient for a call."""
        self._calls_started = 0.0
        self._usage = Usage()
        self._call_count = 0
        self._unfinished: tuple[str, ...] = ()
        self._streamed_text: list[str] = []
        """The text of the current response that was already shown."""
        self._reached_stop: StopReason | None = None
        """The stop reason, set during the reflection.

        The answer already exists, so a deadline does not change this reason.
        """

    async def run(self) -> Reply:
        """Run the turn and return its reply.

        The stop reason is `max_turns` when all steps and continuations are used. The stop reason is `budget` when the
        budget is not sufficient for a response after the first response. Raise BudgetExceededError when the budget is
        not sufficient for the first response, BackendError when a request fails, and ConfigError for an empty prompt or
        for images that the model does not accept. An error raised after the turn began has the usage of the turn in its
        attribute `usage`.
        """
        if not self.prompt.strip():
            raise ConfigError("the prompt is empty: pass a task or question")
        deadline = asyncio.get_running_loop().time() + self._limits.turn_seconds
        try:
            async with self._cancel.until_deadline(deadline):
                await self._begin()
                stop = await self._run_until_done()
        except TimeoutError:
            stop = self._cancel.cut_reason() or "timeout"
            stop = self._reached_stop or stop if stop == "timeout" else stop
        except TurnAborted as aborted:
            stop, self.text = "aborted", str(aborted)
        except BaseException as error:
            self._count_lost_usage()
            vars(error)["usage"] = self._usage
            raise
        finally:
            self._observer.report("idle", "", self.steps)
            for prompt_recorded in self._extensions.prompt_recorded:
                prompt_recorded()
        self._count_lost_usage()
        text = reply_text(
            self.text, stop, steps=self.steps, exceeded_budget=self._cancel.exceeded_budget or self.budget_note
        )
        for output in self._extensions.output:
            text, stop = await output(text, stop)
        limit = self._limits.reply_tokens * CHARS_PER_TOKEN
        return Reply(
            id=self._agent_id,
            query_id=self.id,
            text=clip(text, limit, "the transcript has it all"),
            stop_reason=stop,
            usage=self._usage,
            tool_calls=self._call_count,
            files_changed=tuple(self.files_changed),
            steps=self.steps,
            unfinished=self._unfinished,
            whole=self.toolbox.store_text(text) if len(text) > limit else "",
        )

    async def _begin(self) -> None:
        """Record the prompt and the messages before the first step."""
        self.prompt = scrub(self.prompt)
        for before in self._extensions.before_turn:
            await before(self)
        for before in self._extensions.before_prompt:
            await before(self)
        # These steps run after hooks have allowed the turn, because nothing may be recorded before.
        self._check_images()
        prompt = Message("user", place_images(self.prompt, self.images))
        if (check_prompt := getattr(self.backend, "check_prompt", None)) is not None:
            check_prompt([prompt, *map(user, self.notes)])
        self._add_missing_results()
        self._add(prompt)
        for text in self.notes:
            self._add_text(text)
        for prompt_recorded in self._extensions.prompt_recorded:
            prompt_recorded()
        await self._deliver_steering(stopping=False)

    def _check_images(self) -> None:
        """Raise ConfigError if the prompt has images and the model does not accept any."""
        info = self.backend.info()
        if self.images and not info.images:
            model = f"{info.provider}:{info.model}" if info.model else f"the {info.provider} backend"
            raise ConfigError(f"{model} does not accept images: choose a model with vision, or send text only")

    def _add_missing_results(self) -> None:
        """Add results for calls that a killed process did not finish, so that the conversation is valid."""
        messages = self.backend.transcript()
        calls = tool_uses(messages[-1]) if messages and messages[-1].role == "assistant" else []
        if calls:
            reason = "No result: the process ended before the call was done. It may have had effects."
            self._append_results([refused_outcome(call, reason).result for call in calls])

    def add_usage(self, usage: Usage) -> None:
        """Add `usage` to the usage of the turn."""
        self._usage += usage

    def _count_lost_usage(self) -> None:
        """Count the usage of failed and canceled requests."""
        lost_usage = self._losses.take(self.backend)
        if lost_usage is not NOTHING:
            self._usage += lost_usage

    async def _run_until_done(self) -> StopReason:
        """Run the turn. Continue the turn as long as an extension returns a message from `reflect`."""
        stop = await self._run_with_continuations()
        while self._extensions.reflect and not self._cancel.cut_reason():
            self._reached_stop = stop
            note = await self._reflect(stop)
            if note is None:
                break
            self._reached_stop = None
            self._add_text(note)
            stop = await self._run_with_continuations()
        return stop

    async def _reflect(self, stop: StopReason) -> str | None:
        for reflect in self._extensions.reflect:
            if (note := await reflect(self, stop)) is not None:
                return note
        return None

    async def _run_with_continuations(self) -> StopReason:
        """Run the steps. When the limit of steps is reached, pause and continue automatically."""
        limits = self._limits
        for number in range(1, limits.continuations + 1):
            stop = await self._run_steps(limits.max_turns * number)
            if stop == "max_turns" and not self._cancel.cut_reason():
                for pause in self._extensions.pause:
                    await pause()
            if stop != "max_turns" or self._cancel.cut_reason():
                return self._cancel.cut_reason() or stop
            prompt = continued_prompt(self.prompt, limits.max_turns, number, limits.continuations)
            self._add_text(prompt)
            self.emit("continued", prompt)
        return await self._run_steps(limits.max_turns * (limits.continuations + 1))

    async def _run_steps(self, limit: int) -> StopReason:
        while self.steps < limit:
            if cut := self._cancel.cut_reason():
                return cut
            try:
                turn = await self._response()
            except BudgetExceededError as error:
                if not self.steps:
                    raise
                self.budget_note = str(error)
                return "budget"
            calls = tool_uses(turn.message)
            if calls and turn.stop_reason in INCOMPLETE_STOPS:
                self._append_results(
                    [refused_outcome(call, INCOMPLETE_CALL.format(why=turn.stop_reason)).result for call in calls]
                )
            elif calls:
                await self._run_calls(calls)
            for step_end in self._extensions.step_end:
                await step_end(calls)
            if self._insufficient_budget:
                self.budget_note = self._insufficient_budget
                return "budget"
            if not await self._deliver_steering(stopping=not calls) and not calls:
                return turn.stop_reason
        return "max_turns"

    async def _deliver_steering(self, *, stopping: bool) -> bool:
        """Add queued messages to the conversation. Return whether there were any messages."""
        delivered = False
        for before in self._extensions.before_steering:
            await before()
        while not delivered and (messages := self._steering.take(stopping=stopping)):
            for message in messages:
                texts = [message.text]
                for steering in self._extensions.steering:
                    texts = [each for text in texts for each in await steering(text)]
                for remaining, each in enumerate(texts, 1 - len(texts)):
                    # Only the last text has the message's id. An agent that is killed before this text is recorded
                    # receives all texts again.
                    self._add_text(f"{STEERING}\n{scrub(each)}", "" if remaining else message.id)
                    self.emit("steered", each)
                    delivered = True
                # Acknowledge only after recording: an agent that is killed in between receives the message again.
                if message.acknowledged:
                    self._observer.steering_recorded(message.id)
        return delivered

    def _add_text(self, text: str, steer_id: str = "") -> None:
        self._add(user(text), steer_id)

    def _add(self, message: Message, steer_id: str = "") -> None:
        if steer_id:
            self._record(message, steer_id=steer_id)
        else:
            self._record(message)
        self.backend.append_user(message.content)

    def emit(self, kind: str, text: str = "", name: str = "", *, is_error: bool = False) -> None:
        """Send an event of the turn to its watchers."""
        self._observer.emit(self.id, kind, text, name, self.steps, is_error)

    async def _response(self) -> AssistantTurn:
        """Request the next model response, record it and return it."""
        self.shorten = "size"
        for before in self._extensions.before_request:
            await before(self)
        await self._shorten_conversation(self.shorten)
        shorter = True
        while True:
            try:
                return await self._request_response()
            except ContextOverflowError as error:
                # Compact until only the prompt and the last step are left. Then shorten the results of that step.
                shorter = shorter and await self._shorten_conversation("refused")
                if not shorter and not self._shorten_results():
                    error.args = (f"{error}: nothing is left to shorten but the prompt itself",)
                    raise

    def _shorten_results(self) -> bool:
        """Shorten the results in the next requests. Return False if no result can be shortened."""
        shorten = getattr(self.backend, "shorten_results", None)
        return shorten is not None and bool(shorten())

    async def _shorten_conversation(self, why: ShorteningReason) -> bool:
        """Shorten the conversation if needed. Return whether the conversation was shortened."""
        before, compacted = self.backend.context_tokens(), False
        for shorten in self._extensions.shorten_conversation:
            if (compaction := await shorten(self, why)) is not None:
                from ..context.compaction_rules import line_of

                self._usage += compaction.usage
                self.emit("compacted", line_of(compaction))
                compacted = True
        return compacted or self.backend.context_tokens() < before

    async def _request_response(self) -> AssistantTurn:
        info = self.backend.info()
        model, step = f"{info.provider}:{info.model}" if info.model else info.provider, self.steps + 1
        self._observer.report("model", model, step)
        self.backend.request_override = self.backend.reserved = None
        self.backend.on_retry = partial(self._on_retry, model, step)
        self.backend.is_watched = self._observer.is_watched
        self._streamed_text.clear()
        self.on_text = self._show_text
        for request in self._extensions.request:
            await request(self, info)
        try:
            turn = await self.backend.assistant_turn(self.on_text)
        except ContextOverflowError:
            for refused in self._extensions.request_refused:
                refused()
            raise
        except (OrchError, MemoryError):
            raise
        except asyncio.CancelledError:
            self._record_streamed()
            raise
        except Exception as error:
            raise BackendError(f"{info.provider}: {describe_exception(error)}") from error
        self.steps += 1
        usage = turn.usage.with_one_model_call()
        self._usage += usage
        end: BaseException | None = None
        for response in self._extensions.response:
            turn, end = await response(self, turn, info)
        text = text_of(turn.message)
        message = turn.message if turn.message.content else Message("assistant", (Text("(an empty response)"),))
        self.text = text or self.text
        self._record(message, usage=usage, model=f"{info.provider}:{info.model}".removesuffix(":"))
        self.backend.append_assistant(message)
        self.emit("message", text)
        for recorded in self._extensions.response_recorded:
            recorded(self, turn, message)
        if end is not None:
            raise end
        return turn

    def _show_text(self, text: str) -> None:
        self._streamed_text.append(text)
        self.emit("text", text)

    def _record_streamed(self) -> None:
        """Record the part of a canceled response that was already shown, because the user may refer to this text."""
        text = "".join(self._streamed_text).strip()
        if not text or self._cancel.cut_reason() != "cancelled":
            return
        self.text = text
        message = Message("assistant", (Text(text),))
        self._record(message)
        self.backend.append_assistant(message)

    def _on_retry(self, model: str, step: int, retry: object) -> None:
        self._streamed_text.clear()
        self._observer.report("model", f"{model}: {retry}", step)
        for retried in self._extensions.request_retried:
            retried()
        self.emit("retry", str(retry))

    async def _run_calls(self, calls: Sequence[ToolUse]) -> None:
        """Run `calls` concurrently, and append their results in call order.

        A call that the cancel token ends also gets a result.
        """
        if cut := self._cancel.cut_reason():
            self._unfinished = tuple(call.name for call in calls)
            self._append_results(
                [refused_outcome(call, unfinished_result(call, cut, began=False)).result for call in calls]
            )
            return
        self._observer.report("tool", ", ".join(dict.fromkeys(call.name for call in calls)), self.steps)
        for call in calls:
            self.emit("tool_call", msgspec.json.encode(call.input).decode()[:MAX_EVENT_CHARS], call.name)
        dispatch: Dispatch = self.toolbox.dispatch
        for wrap in self._extensions.wrap_dispatch:
            dispatch = wrap(dispatch)
        self._calls_started = asyncio.get_running_loop().time()
        tasks = [asyncio.create_task(dispatch(call)) for call in calls]
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            await cancel_tasks(tasks)
            if cut := self._cancel.cut_reason():
                self._record_outcomes(calls, tasks, cut)
            raise
        self._record_outcomes(calls, tasks, None)

    def _record_outcomes(
        self, calls: Sequence[ToolUse], tasks: Sequence[asyncio.Task[CallOutcome]], cut: CutReason | None
    ) -> None:
        elapsed = asyncio.get_running_loop().time() - self._calls_started
        full_outcomes = [finished_outcome(call, task, cut, elapsed) for call, task in zip(calls, tasks, strict=True)]
        if cut:
            pairs = zip(calls, tasks, strict=True)
            self._unfinished = tuple(call.name for call, task in pairs if not is_done(task))
        step_chars = getattr(self.backend, "step_chars", None)
        outcomes = self.toolbox.limit_results(calls, full_outcomes, step_chars() if step_chars is not None else None)
        usage = Usage()
        for outcome in outcomes:
            self._call_count += outcome.ran
            self.files_changed |= dict.fromkeys(outcome.files_changed)
            usage += outcome.usage
            self._insufficient_budget = self._insufficient_budget or outcome.exceeded_budget
        self._usage += usage
        self._append_results([outcome.result for outcome in outcomes], usage)
        for outcome in outcomes:
            outcome.settle(outcome.usage)
        for call, outcome in zip(calls, outcomes, strict=True):
            for call_ended in self._extensions.call_ended:
                call_ended(call, outcome)
            shown = text_of(Message("user", outcome.result.content))[:MAX_EVENT_CHARS]
            self.emit("tool_result", shown, call.name, is_error=outcome.result.is_error)

    def _append_results(self, results: Sequence[ToolResult], usage: Usage = NOTHING) -> None:
        self._record(Message("user", tuple(results)), usage=usage if usage != NOTHING else None)
        self.backend.append_tool_result(results)
