"""Running the calls of an agent: only what was granted, within deadlines, in order where order matters, bounded."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.agent.spec import ToolSpec
from orch_protocol.core.errors import BudgetExceededError, OrchError, StoreError
from orch_protocol.core.messages import INVALID_INPUT, Text, ToolResult, ToolUse, Usage
from orch_protocol.core.taint import TaintLabel, bits_in
from orch_protocol.policy.approval import digest_of
from orch_protocol.policy.policy import Verdict

from ...conversation.tokens import clip
from ...policy.rules import operation_of
from ...policy.taint import label_untrusted
from ...session.interruption_notes import denied_result, withheld_result
from ...system.secrets import mask_secrets, secrets_of
from ...system.threads import describe_exception, is_interrupt
from ..api.base import Tool, ToolContext, ToolError, ToolOutput
from ..values.store import ValueFiles
from .budget_client import FREE, BudgetClient
from .call_events import CallReporter, Observe
from .guard import Guard, GuardDecision
from .result_limits import MAX_SHOWN, captured_text, chars_to_show, text_in, with_text

__all__ = ["CallOutcome", "Executor", "Toolbox", "call_usage", "refused_outcome"]

READER: Final = "read_handle"
NO_JSON: Final = (
    "Not run: the arguments of {name} are no JSON object, or were cut off. Make the call again, with valid JSON."
)
NOT_COVERED: Final = "Not run: {error}."
WAITING: Final = frozenset({"agents", "archive"})
"""Categories of tools that mostly wait for other agents, whose own tools' time is counted."""
WITHDRAWN: Final = "it was taken from this agent"
RESTING: Final = "a hook keeps it from this turn"


def _nothing(_: Usage) -> None:
    pass


class CallOutcome(Struct, frozen=True):
    """What became of one call. `ran` is false when the tool was never started, `usage` is what it and models used.

    `settle` is to be called with that when it is on record. `short` tells which budget did not cover the call. `marks`
    are what its result brought into the conversation. No more than `most` characters of it are shown, where the rest
    can be read; None: as many as of any.
    """

    result: ToolResult
    ran: bool = True
    files_changed: tuple[str, ...] = ()
    usage: Usage = Usage()
    settle: Callable[[Usage], None] = _nothing
    short: str = ""
    marks: tuple[TaintLabel, ...] = ()
    most: int | None = None


Seen = Callable[[CallOutcome], Awaitable[CallOutcome]]
Took = Callable[[Sequence[ToolUse], Sequence[CallOutcome], Sequence[str]], None]


class Executor(Protocol):
    """Runs an agent's calls, wherever that is."""

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the tools as the model sees them."""

    async def dispatch(
        self, call: ToolUse, *, approved: bool = False, blocked: str = "", seen: Seen | None = None
    ) -> CallOutcome:
        """Run `call` and return its one result, whole. Must not raise.

        Hooks have looked at it: they `approved` it, so that nobody is asked, or say why it is `blocked`. What they let
        be seen of its outcome, `seen` returns: nobody is told of more.
        """

    def shown(self, calls: Sequence[ToolUse], outcomes: Sequence[CallOutcome]) -> list[CallOutcome]:
        """Return the outcomes of one step in the size that the model sees."""

    def kept(self, text: str) -> str:
        """Keep `text` for whoever may take it, and return its handle; "" where it cannot be kept."""

    @property
    def active(self) -> tuple[str, ...]:
        """Names of the tools that may be used now."""

    def rest(self, keep: Iterable[str]) -> None:
        """Refuse what is not among `keep` until the turn is over."""


class Toolbox:
    """The tools one agent was granted. Whatever else it calls for is refused here, at dispatch.

    What it was granted runs as far as `guard` lets it; without one, all of it does.
    """

    def __init__(self, tools: Iterable[Tool], context: ToolContext, guard: Guard | None = None) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._context = context
        context.belongings.get("granted", lambda: frozenset(self._tools))
        self._guard = guard
        if guard is not None:
            guard.said = {tool.name: tool.bits for tool in self._tools.values()}
        self.withdrawn: tuple[str, ...] = ()
        """Tools that may not be used any more. They stay on offer, so that what is cached of that holds."""
        self.resting: tuple[str, ...] = ()
        """Others that may not be used in this turn; on offer too."""
        self.observe: Observe | None = None
        """Told of what becomes of each call; None when nobody wants to know."""
        self.answer: Callable[[ToolUse], ToolOutput | None] | None = None
        """Says what a call that may run returns, in place of its tool; None lets the tool run."""
        self.counted = True
        """Whether calls are of what the agent may use."""
        self.took: Took | None = None
        """Told of what the calls of each step came to, whole, and of how much of each is shown."""
        self._abandoned: set[asyncio.Task[ToolOutput]] = set()
        self._turnstile = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()
        self._running = 0
        self._files: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the tools as the model sees them, in the order they were granted, without what is not available."""
        return tuple(tool.spec() for tool in self._tools.values() if not tool.missing(self._context))

    def withdraw(self, names: Iterable[str]) -> None:
        """Refuse the tools called `names` from now on; what runs of them goes on."""
        gone = frozenset(names)
        self.withdrawn = tuple(name for name in self._tools if name in gone)

    @property
    def active(self) -> tuple[str, ...]:
        """Names of the tools that may be used now."""
        return tuple(name for name in self._tools if not self._denied(name))

    def rest(self, keep: Iterable[str]) -> None:
        """Refuse what is not among `keep` until the turn is over."""
        kept = frozenset(keep)
        self.resting = tuple(name for name in self._tools if name not in kept and name not in self.withdrawn)

    def _denied(self, name: str) -> str:
        """Return why the tool may not be used now, "" when it may."""
        return WITHDRAWN if name in self.withdrawn else RESTING if name in self.resting else ""

    async def dispatch(
        self, call: ToolUse, *, approved: bool = False, blocked: str = "", seen: Seen | None = None
    ) -> CallOutcome:
        """Run `call` and return its one result, of at most 1 Mi characters. Never raises: an error is a result too.

        Calls that are dispatched in an order and must not run side by side run in that order.
        """
        tool = self._tools.get(call.name)
        account = CallReporter(call, tool.category if tool else "", self.observe, partial(self._digest, call))
        outcome: CallOutcome | None = None
        try:
            if blocked:
                account.refused("deny", blocked)
                outcome = refused_outcome(call, denied_result(call.name, blocked))
            else:
                outcome = await self._run(tool, call, account, approved=approved)
            shown = await seen(outcome) if seen is not None else outcome
        except asyncio.CancelledError:
            if outcome is not None:
                outcome.settle(outcome.usage)  # it has run, though nobody may see what came of it
            account.cut()
            raise
        if outcome.ran:
            result = shown.result
            account.ended(text_in(result), success=not result.is_error, files_changed=shown.files_changed)
        return shown

    async def _run(self, tool: Tool | None, call: ToolUse, account: CallReporter, *, approved: bool) -> CallOutcome:
        arguments, why = self._parsed(tool, call)
        if tool is None or why:
            account.refused("deny", why)
            return refused_outcome(call, why)
        # At once, in call order; a question is asked when it is the call's turn, so that the order stays.
        verdict = self._guard.judge(call) if self._guard is not None else Verdict()
        async with self._admitted(tool), self._file(tool, call.input):
            if self._guard is not None:
                ruling = await self._guard.rule(call, verdict, approved=approved)
            else:
                ruling = GuardDecision("start", verdict)
            if why := self._denied(call.name):  # while somebody was asked, or it waited for its turn
                ruling = GuardDecision("deny", ruling.verdict, denied_result(call.name, why), why)
            if ruling.outcome != "start":
                account.refused(ruling.outcome, ruling.reason, ruling.verdict)
                return refused_outcome(call, ruling.told, is_error=ruling.outcome != "dry_run")
            waits, hold = tool.category in WAITING, FREE
            try:
                if self.counted:
                    hold = await self._context.own(BudgetClient).reserve_call(None if waits else self._context.seconds)
            except BudgetExceededError as error:
                account.refused("deny", str(error), ruling.verdict)
                return replace(refused_outcome(call, NOT_COVERED.format(error=error)), short=str(error))
            if why := self._begins(call):
                hold.settle(call_usage(0.0))
                account.refused("deny", why)
                return refused_outcome(call, why)
            account.began(ruling.verdict)
            began = asyncio.get_running_loop().time()
            try:
                said = self.answer(call) if self.answer is not None else None
                approved = ruling.approved or self._guard is None
                if said is not None:
                    output = said
                else:
                    output = await self._within_deadline(tool, arguments, hold.seconds, approved=approved)
            except BaseException:
                hold.settle(call_usage(0.0 if waits else asyncio.get_running_loop().time() - began))
                raise
            if operation_of(call.name) == "exec":
                from ..files.read_stamps import ReadStamps  # where code runs

                self._context.own(ReadStamps).forget()
            output, marks = self._brought(call, output)
            if said is not None:
                marks = ()  # what is said in place of a tool has its label already
            used = output.usage + call_usage(0.0 if waits else asyncio.get_running_loop().time() - began)
            if output.local and self._guard is not None and (why := await self._guard.stay()):
                output = ToolOutput(withheld_result(tool.name, why), is_error=True, usage=output.usage)
            account.returned()
        changed = output.files_changed
        return CallOutcome(_result(call, output), files_changed=changed, usage=used, settle=hold.settle, marks=marks)

    def _begins(self, call: ToolUse) -> str:
        """Put on record what `call` is about to do; return why it may not, "" when it may."""
        try:
            if self._guard is not None:
                self._guard.begins(call)
        except StoreError as error:
            return str(error)
        return ""

    def _brought(self, call: ToolUse, output: ToolOutput) -> tuple[ToolOutput, tuple[TaintLabel, ...]]:
        """Return `output`, and what it brings into the conversation, which is on record."""
        try:
            return output, self._guard.brought(call, output) if self._guard is not None else ()
        except StoreError as error:
            return ToolOutput(str(error), is_error=True, files_changed=output.files_changed, usage=output.usage), ()

    def _parsed(self, tool: Tool | None, call: ToolUse) -> tuple[Any, str]:
        """Return the arguments of `call`, or why there are none: it was not granted, is not there, or does not fit."""
        if tool is None:
            granted = ", ".join(self._tools) or "none"
            return None, f"Tool {call.name!r} is not granted to this agent. Granted: {granted}."
        if why := self._denied(call.name):
            return None, denied_result(call.name, why)
        if why := tool.missing(self._context):
            return None, why
        if call.input.keys() == {INVALID_INPUT}:
            return None, NO_JSON.format(name=call.name)
        try:
            return tool.parse(call.input), ""
        except Exception as error:
            return None, _say(error)

    def _digest(self, call: ToolUse) -> str:
        return self._guard.digest(call) if self._guard is not None else digest_of(call.name, call.input, ())

    def shown(self, calls: Sequence[ToolUse], outcomes: Sequence[CallOutcome]) -> list[CallOutcome]:
        """Return `outcomes`, those of the `calls` of one step, bounded as a set: the longest are cut first.

        Of what is cut the whole is stashed, when the agent can read it there. What others wrote is labelled.
        """
        texts = [text_in(outcome.result) for outcome in outcomes]
        bounds = [
            outcome.most if outcome.most is not None and self._can_read(call) else MAX_SHOWN
            for call, outcome in zip(calls, outcomes, strict=True)
        ]
        rooms = chars_to_show(texts, bounds, [outcome.marks for outcome in outcomes])
        said = []
        for call, outcome, text, room in zip(calls, outcomes, texts, rooms, strict=True):
            cut = text if len(text) <= room else self._cut(text, room, call, outcome.marks)
            said.append(label_untrusted(cut, outcome.marks))
        if self.took is not None:
            self.took(calls, outcomes, said)
        return [
            outcome if now is text else replace(outcome, result=with_text(outcome.result, now))
            for outcome, text, now in zip(outcomes, texts, said, strict=True)
        ]

    def kept(self, text: str) -> str:
        """Keep `text` for whoever may take it, and return its handle; "" where it cannot be kept."""
        if self._context.folder is None:
            return ""
        try:
            return self._context.own(ValueFiles).keep(text, bits_in(self._context.told))
        except OSError:
            return ""

    def turn_began(self) -> None:
        """Begin a turn: what the last one touched no longer counts against a call, and what rested in it does not."""
        self.resting = ()
        if self._guard is not None:
            self._guard.turn_began()

    def close(self) -> None:
        """End what the tools keep running."""
        self._context.belongings.close()

    def _can_read(self, call: ToolUse) -> bool:
        """Return whether the rest of what `call` came to can be read when it is stashed, and is not there already."""
        return READER in self._tools and call.name != READER and self._context.folder is not None

    def _cut(self, text: str, most: int, call: ToolUse, marks: tuple[TaintLabel, ...]) -> str:
        hint = "ask for less at once"
        if self._can_read(call):
            try:
                handle = self._context.own(ValueFiles).keep(text, bits_in(marks))
            except OSError as error:
                hint = f"{hint}, for the whole could not be kept: {error.strerror}"
            else:
                hint = f"{READER} with {handle} shows any part"
        return clip(text, most, hint)

    @asynccontextmanager
    async def _admitted(self, tool: Tool) -> AsyncIterator[None]:
        """Let calls through side by side and an exclusive one alone, first come, first served."""
        async with self._turnstile:
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
    async def _file(self, tool: Tool, input: dict[str, Any]) -> AsyncIterator[None]:
        """Let calls for one file through one after the other."""
        if not tool.locks:
            yield
            return
        path = _real(self._context.cwd, str(input.get(tool.locks, "")))
        async with self._files.setdefault(path, asyncio.Lock()):
            yield

    async def _within_deadline(
        self, tool: Tool, arguments: Any, most: float | None, *, approved: bool = False
    ) -> ToolOutput:
        context = replace(self._context, approved=True) if approved else self._context
        # A task of its own, left behind when time is up: a tool that ignores cancellation must not hold the turn.
        task = asyncio.create_task(_caught(tool.call(context, arguments)))
        limit = self._context.seconds if most is None else min(most, self._context.seconds)
        try:
            done, _ = await asyncio.wait({task}, timeout=limit)
        except asyncio.CancelledError:
            self._abandon(task)
            raise
        if done and not task.cancelled():
            return self._without_keys(task.result())
        self._abandon(task)
        seconds = f"{limit:g} s" + (", all that its budget leaves," if limit < self._context.seconds else "")
        why = "was cancelled" if done else f"did not finish within {seconds} and was given up; it may still be running"
        return ToolOutput(f"Tool {tool.name!r} {why}.", is_error=True)

    def _without_keys(self, output: ToolOutput) -> ToolOutput:
        """Return `output` without the keys of the agent's process, wherever the tool came upon them."""
        text = mask_secrets(output.text, secrets_of(self._context.keys))
        return output if text == output.text else replace(output, text=text)

    def _abandon(self, task: asyncio.Task[ToolOutput]) -> None:
        task.cancel()
        self._abandoned.add(task)
        task.add_done_callback(self._abandoned.discard)


def call_usage(seconds: float) -> Usage:
    """Return what a call of a tool used that ran for so long."""
    return Usage(tool_calls=1, tool_seconds=round(seconds, 6))


def refused_outcome(call: ToolUse, why: str, *, is_error: bool = True) -> CallOutcome:
    """Return the outcome of a call that was not run, and `why`."""
    return CallOutcome(_result(call, ToolOutput(why, is_error=is_error)), ran=False)


def _result(call: ToolUse, output: ToolOutput) -> ToolResult:
    return ToolResult(call.id, (Text(captured_text(output.text)),), output.is_error)


def _real(cwd: Path, path: str) -> str:
    try:
        return os.path.realpath(cwd / path)
    except (OSError, ValueError):
        return path  # no path at all, as the tool will say


async def _caught(running: Awaitable[ToolOutput]) -> ToolOutput:
    try:
        return await running
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # a failure of a test, in a tool of the test's, is no Exception
        if is_interrupt(error):
            raise
        return ToolOutput(_say(error), is_error=True)


def _say(error: BaseException) -> str:
    if isinstance(error, (ToolError, OrchError)) and str(error):
        return str(error)
    return describe_exception(error)
