"""Runs the calls of an agent: only granted tools, with time limits, in the required order, and with size limits."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.agent.spec import ToolSpec
from orch_protocol.core.errors import BudgetExceededError, ConfigError, StoreError
from orch_protocol.core.ids import new_id
from orch_protocol.core.messages import INVALID_INPUT, Text, ToolResult, ToolUse, Usage, check_images, place_images
from orch_protocol.core.taint import TaintLabel, bits_in
from orch_protocol.policy.approval import digest_of
from orch_protocol.policy.policy import Verdict

from ...conversation.tokens import clip
from ...policy.path_rules import absolute_rules, credential_rules, shell_context
from ...policy.rules import operation_of
from ...policy.taint import label_untrusted
from ...session.interruption_notes import denied_result, withheld_result
from ...system.file_names import actual_path
from ...system.secrets import mask_secrets, secrets_of
from ...system.threads import is_interrupt
from ..api.base import Tool, ToolContext, ToolOutput
from ..api.executor import FunctionExecutor, ToolSource
from ..values.store import ValueFiles
from .budget_client import FREE, BudgetClient
from .call_events import CallReporter, Observe
from .error_text import error_for_model, exception_text
from .guard import Guard, GuardDecision
from .result_limits import MAX_SHOWN, captured_text, chars_to_show, text_in, with_text

__all__ = ["CallOutcome", "Dispatcher", "Toolbox", "call_usage", "refused_outcome"]

READ_TOOL: Final = "read_handle"
INVALID_ARGUMENTS: Final = (
    "Not run: the arguments of {name} are not a JSON object, or were cut off. Repeat the call with valid JSON."
)
OVER_BUDGET: Final = "Not run: {error}."
WAITING_CATEGORIES: Final = frozenset({"agents", "archive"})
"""Categories of tools that mostly wait for other agents. The tool time of those agents is counted separately."""
WITHDRAWN: Final = "it was revoked for this agent"
DISABLED_THIS_TURN: Final = "a hook disabled it for this turn"


def _ignore_usage(_: Usage) -> None:
    pass


class CallOutcome(Struct, frozen=True):
    """The outcome of one call. `ran` is False if the tool did not start.

    `usage` is the usage of the tool and of models called by the tool. Call `settle` with this usage after the usage is
    recorded. `exceeded_budget` names a budget that was too small for the call. `taint_labels` are the labels of the
    result. `max_chars` is the maximum number of characters that are shown if the rest can be read elsewhere; None means
    the general limit. `output` is the result that the tool returned, or None if the tool did not start.
    """

    result: ToolResult
    ran: bool = True
    files_changed: tuple[str, ...] = ()
    usage: Usage = Usage()
    settle: Callable[[Usage], None] = _ignore_usage
    exceeded_budget: str = ""
    taint_labels: tuple[TaintLabel, ...] = ()
    max_chars: int | None = None
    output: ToolOutput | None = None


FilterOutcome = Callable[[CallOutcome], Awaitable[CallOutcome]]
OnResults = Callable[[Sequence[ToolUse], Sequence[CallOutcome], Sequence[str]], None]


class Dispatcher(Protocol):
    """Runs the calls of an agent. See `Toolbox`."""

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the tool specifications that the model receives."""

    async def dispatch(
        self, call: ToolUse, *, approved: bool = False, blocked: str = "", filter_outcome: FilterOutcome | None = None
    ) -> CallOutcome:
        """Run `call` and return its complete result. Must not raise.

        If hooks have `approved` the call, no person is asked. `blocked` is the reason if hooks have blocked the call.
        `filter_outcome` returns the visible part of the outcome. Hooks can hide the rest.
        """

    def limit_results(
        self, calls: Sequence[ToolUse], outcomes: Sequence[CallOutcome], step_chars: int | None = None
    ) -> list[CallOutcome]:
        """Return the outcomes of one step, cut to the size limits of the model.

        `step_chars` limits all results together. None means the usual limit.
        """

    def store_text(self, text: str) -> str:
        """Store `text` and return its handle. Return "" if storing is not possible."""

    @property
    def active(self) -> tuple[str, ...]:
        """Names of the tools that can be used now."""

    def restrict_to(self, keep: Iterable[str]) -> None:
        """Disable all tools except `keep` until the end of the turn."""


class GrantedTool(NamedTuple):
    """A tool of an agent, and the executor that runs its calls."""

    spec: ToolSpec
    source: ToolSource
    category: str

    @property
    def label(self) -> str:
        """The description of the tool in error messages."""
        owner = f" of executor {self.source.name!r}" if self.source.name else ""
        return f"Tool {self.spec.name!r}{owner}"


class Toolbox:
    """The tools granted to one agent: the functions `tools` and the tools of `executors`. Other calls are refused.

    All calls pass the same checks, independent of the executor that runs the call. `guard` checks the calls against the
    policy. Without a guard, all calls are allowed.
    """

    def __init__(
        self,
        tools: Iterable[Tool],
        context: ToolContext,
        guard: Guard | None = None,
        executors: Iterable[ToolSource] = (),
    ) -> None:
        self._sources = (FunctionExecutor(tools, context), *executors)
        self._tools = {
            name: GrantedTool(spec, source, source.category(name))
            for source in self._sources
            for name, spec in source.tools.items()
        }
        self._context = context
        context.tool_state.get("granted", lambda: frozenset(self._tools))
        self._guard = guard
        if guard is not None:
            guard.declared_bits = {name: tool.spec.bits for name, tool in self._tools.items()}
            guard.executor_tools = frozenset(name for source in self._sources[1:] for name in source.tools)
        self.withdrawn: tuple[str, ...] = ()
        """Tools that are permanently disabled.

        Disabled tools stay in the tool list, so that the cached prompt stays valid.
        """
        self.disabled_this_turn: tuple[str, ...] = ()
        """Further tools that are disabled in this turn and stay in the tool list."""
        self.observe: Observe | None = None
        """Receives reports about each call. None if reports are not needed."""
        self.answer: Callable[[ToolUse], ToolOutput | None] | None = None
        """Returns a result for a call without running the tool, or None to run the tool."""
        self.counted = True
        """Whether calls count against budgets."""
        self.on_results: OnResults | None = None
        """Receives the calls of each step with their complete and shown results."""
        self._abandoned: set[asyncio.Task[ToolOutput]] = set()
        self._admission_lock = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()
        self._running = 0
        self._file_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the specifications of available tools, in the order of their grants."""
        return tuple(spec for source in self._sources for spec in source.list())

    def withdraw(self, names: Iterable[str]) -> None:
        """Disable the tools called `names` from now on. Running calls continue."""
        removed = frozenset(names)
        self.withdrawn = tuple(name for name in self._tools if name in removed)

    @property
    def active(self) -> tuple[str, ...]:
        """Names of the tools that can be used now."""
        return tuple(name for name in self._tools if not self._disabled_reason(name))

    def restrict_to(self, keep: Iterable[str]) -> None:
        """Disable all tools except `keep` until the end of the turn."""
        allowed = frozenset(keep)
        self.disabled_this_turn = tuple(
            name for name in self._tools if name not in allowed and name not in self.withdrawn
        )

    def _disabled_reason(self, name: str) -> str:
        """Return why the tool is disabled now, or "" if it is enabled."""
        return WITHDRAWN if name in self.withdrawn else DISABLED_THIS_TURN if name in self.disabled_this_turn else ""

    async def dispatch(
        self, call: ToolUse, *, approved: bool = False, blocked: str = "", filter_outcome: FilterOutcome | None = None
    ) -> CallOutcome:
        """Run `call` and return its result of at most 1 Mi characters. Never raise, because an error is a result too.

        Calls that exclude each other run one after the other, in the order of dispatch.
        """
        tool = self._tools.get(call.name)
        reporter = CallReporter(call, tool.category if tool else "", self.observe, partial(self._digest, call))
        outcome: CallOutcome | None = None
        try:
            if blocked:
                reporter.report_refused("deny", blocked)
                outcome = refused_outcome(call, denied_result(call.name, blocked))
            else:
                outcome = await self._run(tool, call, reporter, approved=approved)
            visible = await filter_outcome(outcome) if filter_outcome is not None else outcome
        except asyncio.CancelledError:
            if outcome is not None:
                outcome.settle(outcome.usage)  # The call has run, although its result is discarded.
            reporter.report_interrupted()
            raise
        if outcome.ran:
            result = visible.result
            reporter.report_end(text_in(result), success=not result.is_error, files_changed=visible.files_changed)
        return visible

    async def _run(
        self, tool: GrantedTool | None, call: ToolUse, reporter: CallReporter, *, approved: bool
    ) -> CallOutcome:
        why = self._refusal(tool, call)
        if tool is None or why:
            reporter.report_refused("deny", why)
            return refused_outcome(call, why)
        # Judge the call immediately, in call order. An approval is requested when it is the call's turn, which keeps
        # the order.
        verdict = self._guard.judge(call) if self._guard is not None else Verdict()
        async with self._run_slot(tool.spec), self._file_lock(tool.spec, call.input):
            if self._guard is not None:
                decision = await self._guard.decide(call, verdict, approved=approved)
            else:
                decision = GuardDecision("start", verdict)
            if why := self._disabled_reason(call.name):  # The tool may have been disabled during the wait.
                decision = GuardDecision("deny", decision.verdict, denied_result(call.name, why), why)
            if decision.outcome != "start":
                reporter.report_refused(decision.outcome, decision.reason, decision.verdict)
                return refused_outcome(call, decision.text_for_model, is_error=decision.outcome != "dry_run")
            waits_for_agents, reservation = tool.category in WAITING_CATEGORIES, FREE
            try:
                if self.counted:
                    reservation = await self._context.agent_object(BudgetClient).reserve_call(
                        None if waits_for_agents else self._context.seconds
                    )
            except BudgetExceededError as error:
                reporter.report_refused("deny", str(error), decision.verdict)
                why = OVER_BUDGET.format(error=error_for_model(str(error)))
                return replace(refused_outcome(call, why), exceeded_budget=str(error))
            if why := self._record_start(call):
                reservation.settle(call_usage(0.0))
                reporter.report_refused("deny", why)
                return refused_outcome(call, why)
            reporter.report_start(decision.verdict)
            start_time = asyncio.get_running_loop().time()
            try:
                answer = self.answer(call) if self.answer is not None else None
                if answer is not None:
                    output = answer
                else:
                    judged_path = self._guard.judged_path(call) if self._guard is not None else None
                    credentials = decision.credentials if self._guard is not None else self._credentials()
                    context = replace(self._context, credentials=credentials, call_id=new_id(), judged_path=judged_path)
                    output = await self._within_deadline(tool, call, reservation.seconds, context)
            except BaseException:
                reservation.settle(
                    call_usage(0.0 if waits_for_agents else asyncio.get_running_loop().time() - start_time)
                )
                raise
            if operation_of(call.name) == "exec":
                self._forget_files()
            output, taint_labels = self._record_output(call, output)
            if answer is not None:
                taint_labels = ()  # A replacement result is already labeled.
            usage = output.usage + call_usage(
                0.0 if waits_for_agents else asyncio.get_running_loop().time() - start_time
            )
            if output.local and self._guard is not None and (why := await self._guard.keep_local()):
                output = ToolOutput(withheld_result(call.name, why), is_error=True, usage=output.usage)
            reporter.record_return()
        return CallOutcome(
            _result(call, output),
            files_changed=output.files_changed,
            usage=usage,
            settle=reservation.settle,
            taint_labels=taint_labels,
            output=output,
        )

    def _forget_files(self) -> None:
        """Forget what the agent knows about files, because code has run and may have changed any file."""
        if self._context.tool_host is not None:
            self._context.tool_host.code_ran()
        else:
            from ..files.read_stamps import ReadStamps  # This module is needed only after code has run.

            self._context.agent_object(ReadStamps).forget()

    def _record_start(self, call: ToolUse) -> str:
        """Record that `call` starts. Return the reason if the call may not start, otherwise ""."""
        try:
            if self._guard is not None:
                self._guard.record_start(call)
        except StoreError as error:
            return str(error)
        return ""

    def _record_output(self, call: ToolUse, output: ToolOutput) -> tuple[ToolOutput, tuple[TaintLabel, ...]]:
        """Return `output` and its recorded taint labels."""
        try:
            return output, self._guard.record_output(call, output) if self._guard is not None else ()
        except StoreError as error:
            return ToolOutput(str(error), is_error=True, files_changed=output.files_changed, usage=output.usage), ()

    def _refusal(self, tool: GrantedTool | None, call: ToolUse) -> str:
        """Return the reason if `call` is refused, otherwise "".

        A call is refused if the tool is not granted or not available, or if the arguments are invalid.
        """
        if tool is None:
            granted = ", ".join(self._tools) or "none"
            return f"Tool {call.name!r} is not granted to this agent. Granted: {granted}."
        if why := self._disabled_reason(call.name):
            return denied_result(call.name, why)
        if call.input.keys() == {INVALID_INPUT}:
            return INVALID_ARGUMENTS.format(name=call.name)
        try:
            tool.source.check(call.name, call.input)
        except Exception as error:
            return exception_text(error)
        return ""

    def _credentials(self) -> tuple[str, ...]:
        """Return the credentials that commands of the user can read: all that exist."""
        shell = shell_context(self._context.cwd, self._context.env)
        return tuple(map(os.path.realpath, absolute_rules(credential_rules(shell), shell)))

    def _digest(self, call: ToolUse) -> str:
        return self._guard.digest(call) if self._guard is not None else digest_of(call.name, call.input, ())

    def limit_results(
        self, calls: Sequence[ToolUse], outcomes: Sequence[CallOutcome], step_chars: int | None = None
    ) -> list[CallOutcome]:
        """Return the outcomes of one step, cut to the limits. The longest results are cut first.

        `step_chars` limits all results together; None means the usual limit. The complete text of a cut result is
        stored if the agent can read stored results. Untrusted text is labeled.
        """
        texts = [text_in(outcome.result) for outcome in outcomes]
        limits = [
            outcome.max_chars if outcome.max_chars is not None and self._can_read(call) else MAX_SHOWN
            for call, outcome in zip(calls, outcomes, strict=True)
        ]
        char_limits = chars_to_show(texts, limits, [outcome.taint_labels for outcome in outcomes], step_chars)
        shown_texts = []
        for call, outcome, text, char_limit in zip(calls, outcomes, texts, char_limits, strict=True):
            shortened = text if len(text) <= char_limit else self._shorten(text, char_limit, call, outcome.taint_labels)
            shown_texts.append(label_untrusted(shortened, outcome.taint_labels))
        if self.on_results is not None:
            self.on_results(calls, outcomes, shown_texts)
        return [
            outcome if shown_text is text else replace(outcome, result=with_text(outcome.result, shown_text))
            for outcome, text, shown_text in zip(outcomes, texts, shown_texts, strict=True)
        ]

    def store_text(self, text: str) -> str:
        """Store `text` and return its handle. Return "" if storing is not possible."""
        if self._context.folder is None:
            return ""
        try:
            return self._context.agent_object(ValueFiles).keep(text, bits_in(self._context.taint_labels))
        except OSError:
            return ""

    def turn_began(self) -> None:
        """Reset the state of the last turn."""
        self.disabled_this_turn = ()
        if self._guard is not None:
            self._guard.turn_began()

    def close(self) -> None:
        """End all activities of the tools."""
        self._context.tool_state.close()

    def _can_read(self, call: ToolUse) -> bool:
        """Return whether to store a result of `call`.

        A result is stored if the agent can read stored results, and if this result is not stored yet.
        """
        return READ_TOOL in self._tools and call.name != READ_TOOL and self._context.folder is not None

    def _shorten(self, text: str, limit: int, call: ToolUse, taint_labels: tuple[TaintLabel, ...]) -> str:
        hint = "ask for less at once"
        if self._can_read(call):
            try:
                handle = self._context.agent_object(ValueFiles).keep(text, bits_in(taint_labels))
            except OSError as error:
                hint = f"{hint}, because the complete text could not be stored: {error.strerror}"
            else:
                hint = f"{READ_TOOL} with {handle} shows any part"
        return clip(text, limit, hint)

    @asynccontextmanager
    async def _run_slot(self, tool: ToolSpec) -> AsyncIterator[None]:
        """Let calls run concurrently, in order of arrival.

        An exclusive call never runs at the same time as other calls.
        """
        async with self._admission_lock:
            if tool.exclusive:
                await self._idle.wait()
                yield
                return
            self._running += 1
            self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    @asynccontextmanager
    async def _file_lock(self, tool: ToolSpec, input: dict[str, Any]) -> AsyncIterator[None]:
        """Let calls for the same file run one after the other."""
        if not tool.locks:
            yield
            return
        path = _resolve_path(self._context.cwd, str(input.get(tool.locks, "")))
        async with self._file_locks.setdefault(path, asyncio.Lock()):
            yield

    async def _within_deadline(
        self, tool: GrantedTool, call: ToolUse, maximum: float | None, context: ToolContext
    ) -> ToolOutput:
        # The tool runs in a separate task, which is abandoned after the timeout, because a tool may ignore its
        # cancellation.
        task = asyncio.create_task(_catch_errors(tool.source.call(call.name, call.input, context)))
        limit = self._context.seconds if maximum is None else min(maximum, self._context.seconds)
        try:
            finished, _ = await asyncio.wait({task}, timeout=limit)
        except asyncio.CancelledError:
            self._abandon(task, tool, context.call_id)
            raise
        if finished and not task.cancelled():
            return self._mask_keys(_with_checked_images(task.result()))
        self._abandon(task, tool, context.call_id)
        seconds = f"{limit:g} s" + (", all that its budget leaves," if limit < self._context.seconds else "")
        why = (
            "was cancelled"
            if finished
            else f"did not finish within {seconds} and was given up; it may still be running"
        )
        return ToolOutput(f"{tool.label} {why}.", is_error=True)

    def _mask_keys(self, output: ToolOutput) -> ToolOutput:
        """Return `output` with the keys of the agent's process masked."""
        text = mask_secrets(output.text, secrets_of(self._context.keys))
        return output if text == output.text else replace(output, text=text)

    def _abandon(self, task: asyncio.Task[ToolOutput], tool: GrantedTool, call_id: str) -> None:
        task.cancel()
        tool.source.cancel(call_id)
        self._abandoned.add(task)
        task.add_done_callback(self._abandoned.discard)


def call_usage(seconds: float) -> Usage:
    """Return the usage of one tool call that ran for `seconds`."""
    return Usage(tool_calls=1, tool_seconds=round(seconds, 6))


def refused_outcome(call: ToolUse, why: str, *, is_error: bool = True) -> CallOutcome:
    """Return the outcome of a call that did not run. `why` is the reason."""
    return CallOutcome(_result(call, ToolOutput(why, is_error=is_error)), ran=False)


def _result(call: ToolUse, output: ToolOutput) -> ToolResult:
    if not output.images:
        return ToolResult(call.id, (Text(captured_text(output.text)),), output.is_error)
    text = captured_text(output.text) if output.text else ""
    return ToolResult(call.id, place_images(text, output.images), output.is_error)


def _resolve_path(cwd: Path, path: str) -> str:
    try:
        return os.path.realpath(cwd / actual_path(str(cwd), path))
    except (OSError, ValueError):
        return path  # The path is invalid, and the tool will report this.


def _with_checked_images(output: ToolOutput) -> ToolOutput:
    """Return `output`. If a provider would not accept the images of `output`, return an error."""
    try:
        check_images(output.images)
    except ConfigError as error:
        return replace(
            output, text=f"The tool returned an image that cannot be sent: {error}", is_error=True, images=()
        )
    return output


async def _catch_errors(awaitable: Awaitable[ToolOutput]) -> ToolOutput:
    try:
        return await awaitable
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # In test tools, pytest's failures are not Exceptions.
        if is_interrupt(error):
            raise
        return ToolOutput(exception_text(error), is_error=True)
