"""Between an agent's call and its tool: judges it, asks when it must, and lets run exactly what was asked about."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.core.errors import ConfigError, OrchError, StoreError
from orch_protocol.core.messages import ToolUse
from orch_protocol.core.taint import Bit, TaintLabel, bits_in
from orch_protocol.policy.approval import ApproveCall, digest_of
from orch_protocol.policy.policy import EXIT_PLAN, PolicyCall, PolicySpec, Verdict
from orch_protocol.services.approvals import EVALUATE_POLICY, REQUEST_APPROVAL
from orch_protocol.wire.tool_events import CallOutcome

from ...policy.file_filter import FileFilter
from ...policy.path_rules import expand_wildcards, grounds_of, places_of, start_of, where_of
from ...policy.policy_callback import PolicyCallback, load_policy_function
from ...policy.rules import (
    RECURSIVE,
    JudgedCall,
    NamedPath,
    ResolvedRules,
    at_hand,
    judge,
    operation_of,
    passed_over,
    strictest,
)
from ...policy.taint import (
    CODE,
    WEB,
    CallTaint,
    is_trusted_host,
    judge_taint,
    labels_file,
    marks_of,
    nature_of,
    tainting_files,
)
from ...session.interruption_notes import denied_result, dry_run_result, not_approved, not_yet
from ..api.base import ToolContext, ToolError, ToolOutput
from .local_only import LocalOnlyGuard

__all__ = ["Guard", "GuardDecision"]

PATIENCE_SECONDS: Final = 10.0
TOO_MUCH: Final = Verdict("ask", "any", "its arguments name too much to be looked through")
WITH_CREDENTIALS: Final = Verdict("ask", "any", "the command can read credentials")

Judge: TypeAlias = Callable[[PolicyCall], Awaitable[Verdict]]


class GuardDecision(Struct, frozen=True):
    """What is to become of a call: it runs (`start`), or not, and then the model is `told` so.

    `approved`: a person or approver said yes to this very call.
    """

    outcome: CallOutcome
    verdict: Verdict
    told: str = ""
    reason: str = ""
    approved: bool = False


class Guard:
    """Applies the rules of one agent to its calls. `locality` is where its conversation may be read.

    Raises ConfigError when the rules name a function that cannot be imported.
    """

    def __init__(self, spec: PolicySpec, context: ToolContext, locality: LocalOnlyGuard) -> None:
        self._where = where_of(context.cwd, context.env)
        self._context, self._judges = context, _judges(spec, context)
        self._call_root, self._seconds = context.call_root, spec.rules.approval_seconds
        self._record = None if context.folder is None else labels_file(context.folder)
        self._spec = spec
        self._began: dict[str, int] = {}
        """When code began that can change files, by its call: where it may hand on what the conversation holds."""
        self._locality, self._no_local_model = locality, spec.rules.no_local_model
        self._dry_run = spec.rules.dry_run
        self._personal = False
        self._taint = spec.rules.taint
        self._natures: dict[str, tuple[CallTaint, bool]] = {}
        """What the calls that were judged bring, by id, and whether that is too much."""
        self.said: Mapping[str, tuple[Bit, ...] | None] = {}
        """What tools say that they bring, by name."""
        context.belongings.get("sieve", lambda: self._sieve)

    def turn_began(self) -> None:
        """Forget what the last turn touched."""
        self._personal = False
        self._natures.clear()
        self._began.clear()
        if self._context.skills is not None:
            self._context.skills.turn_began()

    def judge(self, call: ToolUse) -> Verdict:
        """Return the verdict on `call`; what it touches counts for the calls after it, whatever the verdict."""
        places = self._places(call)
        there = expand_wildcards(places) if places is not None else None
        grounds = self._grounds()
        start = start_of(call.name, call.input, self._where)
        judged = JudgedCall(call.name, (*(places or ()), *(there or ())), self._personal, self._planning, start)
        verdict = judge(judged, grounds)
        said = self.said.get(call.name)
        nature = nature_of(judged, call.input, said, grounds, self._taint, self._context.sandbox)
        taint = judge_taint(judged, nature, self._held, self._taint)
        self._natures[call.id] = nature, taint.approval != "allow"
        verdict = strictest((verdict, taint), verdict.data)
        if there is None:
            verdict = strictest((verdict, TOO_MUCH), verdict.data)
        if call.name == "bash" and call.input.get("credentials", False) is not False:
            verdict = strictest((verdict, WITH_CREDENTIALS), verdict.data)
        if self._context.skills is not None and (why := self._context.skills.outside(call.name)):
            verdict = strictest((verdict, Verdict("ask", "any", why)), verdict.data)
        self._personal |= verdict.data == "personal"
        return verdict

    async def heard(self, call: ToolUse, verdict: Verdict) -> Verdict:
        """Return what `verdict` comes to when the user's functions, if there are any, have judged `call` too."""
        for judges in self._judges:
            said = await judges(self._shown(call, verdict))
            self._personal |= said.data == "personal"
            verdict = strictest((verdict, said), "personal" if said.data == "personal" else verdict.data)
        return verdict

    async def is_free(self, call: ToolUse) -> bool:
        """Return whether what `call` brings can be told unasked: nobody need approve it, any model may be shown it, and
        no stranger wrote it. Then it is on record that it is told, if that matters. Raises StoreError."""
        verdict = await self.heard(call, self.judge(call))
        nature, _ = self._natures.pop(call.id)
        free = verdict.approval == "allow" and verdict.model == "any" and "untrusted" not in nature.brings
        if free and self._context.marks is not None:
            self._context.marks.note(marks_of(call.name, nature, done=True))
        return free

    async def placed(self, verdict: Verdict) -> tuple[Verdict, bool]:
        """Return what `verdict` comes to where the agent's model is, and whether the conversation is to stay here."""
        if verdict.model == "any" or verdict.approval == "deny":
            return verdict, False
        there, why = await self._locality.look()
        if there:
            moves = f"it is for a local model: the conversation goes on with {there}, for good"
            return replace(verdict, reason="; ".join(filter(None, (verdict.reason, moves)))), True
        if not why:
            return verdict, True
        far = f"what it brings is for a model on this machine, and there is none ({why})"
        if self._no_local_model == "ask":
            far += "; a yes lets it go to one that is elsewhere"
        return strictest((verdict, Verdict(self._no_local_model, "local", far)), verdict.data), False

    async def rule(self, call: ToolUse, verdict: Verdict, *, approved: bool = False) -> GuardDecision:
        """Return what is to become of `call`, which was judged so. Asks the root where a person is to say that.

        What was approved is what runs: arguments, or places that they lead to, that are others by then are refused.
        A call that a hook has `approved` is not asked about, unless it hands in a plan, or the question is where its
        data may go, or what stands beside it in the conversation.
        """
        verdict, stays = await self.placed(await self.heard(call, verdict))
        if self._dry_run:
            return GuardDecision("dry_run", verdict, dry_run_result(call.name, verdict), verdict.reason)
        outcome, why, by_user = await self._asked(call, verdict, approved=approved)
        if outcome == "start" and stays and (elsewhere := await self._locality.bind()):
            outcome, why = "deny", f"what it brings is for a model on this machine: {elsewhere}"
        started = outcome == "start"
        return GuardDecision(
            outcome, verdict, "" if started else self._no(call, why), why, approved=started and by_user
        )

    def begins(self, call: ToolUse) -> None:
        """Put on record that `call`, which was judged, begins to act, if it does. Raises StoreError."""
        if self._context.marks is not None and call.id in self._natures:
            self._context.marks.note(marks_of(call.name, self._natures[call.id][0], done=False))
        nature = self._natures.get(call.id, (CallTaint(), False))[0]
        # Code may read something and write it down in one call.
        if self._record is not None and call.name in CODE and (self._content or nature.brings):
            self._began[call.id] = time.time_ns()

    def brought(self, call: ToolUse, output: ToolOutput) -> tuple[TaintLabel, ...]:
        """Put on record what `output`, that of `call`, brings into the conversation; return it. Raises StoreError."""
        nature, _ = self._natures.pop(call.id, (CallTaint(), False))
        if output.origin is not None or (call.name in WEB and output.is_error):
            # Where it came from in the end; and without an answer nobody else has said anything.
            if output.origin and not is_trusted_host(output.origin, self._taint):
                nature = replace(nature, brings=nature.brings | {"untrusted"}, subject=output.origin)
            else:
                nature = replace(nature, brings=nature.brings - {"untrusted"})
        marks = (*marks_of(call.name, nature, done=True), *output.marks)
        if self._context.marks is not None:
            self._context.marks.note(marks)
        self._followed(call, output)
        return marks

    def _followed(self, call: ToolUse, output: ToolOutput) -> None:
        """Let files that the call wrote be what the conversation is. Raises StoreError."""
        content, cwd = self._content, self._context.cwd
        if self._record is None or not (content or (output.files_changed and self._record.exists())):
            return
        from ...policy.taint import changed_below, remember_file_taint

        since = self._began.pop(call.id, None)
        files = [str(cwd / file) for file in output.files_changed]
        if since is not None:
            sessions = self._record.parent.parent
            files += changed_below(cwd, since, (sessions, sessions.parent))
        whole = call.name == "write_file" and not call.input.get("append")
        try:
            remember_file_taint(self._record, files, content, whole=whole)
        except ConfigError as error:
            raise StoreError(str(error)) from error

    def digest(self, call: ToolUse) -> str:
        """Return what tells this very call, with the places it leads to now, from every other."""
        return digest_of(call.name, call.input, self._paths(call))

    async def stay(self) -> str:
        """Keep the conversation on this machine from now on; return why that cannot be, "" when it is so."""
        return await self._locality.bind()

    async def _asked(self, call: ToolUse, verdict: Verdict, *, approved: bool) -> tuple[CallOutcome, str, bool]:
        """Return what is to become of the call, why it may not run, and whether somebody approved this very call."""
        # A plan ends more than one call, in the root's record too: no hook says yes to it. Nor does one to what a
        # stranger may have asked for, which it cannot tell from any other call.
        tainted = self._natures.get(call.id, (None, False))[1]
        approved = approved and call.name != EXIT_PLAN and not tainted
        if verdict.approval == "allow" or (approved and verdict.approval == "ask" and verdict.model == "any"):
            return "start", "", False
        if verdict.approval == "deny":
            return "deny", verdict.reason, False
        asked = ApproveCall(
            call.name,
            call.input,
            self._paths(call),
            verdict.reason,
            verdict.model == "local",
            self._seconds,
            tainted=tainted,
        )
        try:
            said = await self._call_root(REQUEST_APPROVAL, asked, self._seconds + PATIENCE_SECONDS)
        except (OrchError, ToolError) as error:
            return "declined", f"{verdict.reason}; it needs approval, which could not be asked for: {error}", False
        if not said.allowed:
            return "declined", f"{verdict.reason}; {said.reason}", False
        if said.digest != self.digest(call):
            return "deny", "its arguments, or what they lead to, changed after it was approved", False
        return "start", "", not said.by_pattern

    def _grounds(self) -> ResolvedRules:
        grounds = grounds_of(self._spec, self._where)
        if self._record is not None and self._record.exists():
            from ...policy.taint import with_remembered_taint  # only where somebody wrote something that is followed

            grounds = with_remembered_taint(grounds, self._record)
        return grounds

    def _sieve(self, tool: str, start: str) -> FileFilter | None:
        grounds = self._grounds()
        begins = NamedPath(start, start)
        call = JudgedCall(tool, (begins,), start=begins if tool in RECURSIVE else None)
        away = passed_over(grounds, call, start)
        brings = {bit: at for bit, rules in tainting_files(grounds).items() if (at := at_hand(rules, start))}
        if not away and not brings:
            return None
        there = nature_of(call, {}, None, grounds, self._taint).brings | bits_in(self._held)
        return FileFilter(tool, away, brings, there, bounded=self._taint.mode != "off")

    @property
    def _held(self) -> tuple[TaintLabel, ...]:
        return self._context.marks.held if self._context.marks is not None else ()

    @property
    def _content(self) -> tuple[TaintLabel, ...]:
        return self._context.marks.content if self._context.marks is not None else ()

    @property
    def _planning(self) -> bool:
        return self._context.agenda is not None and self._context.agenda.planning

    def _no(self, call: ToolUse, reason: str) -> str:
        """Return what the model is told of a call that may not run."""
        if call.name == EXIT_PLAN:
            return not_approved(reason)
        later = self._planning and operation_of(call.name) != "read"
        return (not_yet if later else denied_result)(call.name, reason)

    def _shown(self, call: ToolUse, verdict: Verdict) -> PolicyCall:
        return PolicyCall(
            call.name,
            call.input,
            self._paths(call),
            operation_of(call.name),
            verdict.data,
            self._context.agent_id,
            self._context.depth,
            str(self._context.cwd),
            self._held,
        )

    def _paths(self, call: ToolUse) -> tuple[str, ...]:
        return tuple(sorted({place.real for place in self._places(call) or ()}))

    def _places(self, call: ToolUse) -> tuple[NamedPath, ...] | None:
        return places_of(call.name, call.input, self._where)


def _judges(spec: PolicySpec, context: ToolContext) -> Sequence[Judge]:
    """Return what asks the user's functions: the one that is configured, and the one in the root."""
    found: list[Judge] = []
    if spec.rules.function is not None:
        opinion = PolicyCallback(load_policy_function(spec.rules.function))
        found.append(lambda call: opinion.of(call, spec.rules))

    async def ask_root(call: PolicyCall) -> Verdict:
        try:
            said = await context.call_root(EVALUATE_POLICY, call, spec.rules.approval_seconds + PATIENCE_SECONDS)
        except (OrchError, ToolError) as error:
            return Verdict("deny", "any", f"the program's policy function could not be asked: {error}")
        return said

    return (*found, ask_root) if spec.asks_root else found
