"""Checks each call before its tool runs: judges the call, requests approvals, and lets exactly the approved
call run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.core.errors import ConfigError, OrchError, StoreError
from orch_protocol.core.messages import ToolUse
from orch_protocol.core.taint import Bit, TaintLabel, bits_in
from orch_protocol.policy.approval import digest_of
from orch_protocol.policy.builtin_tools import CODE_TOOLS
from orch_protocol.policy.policy import EXIT_PLAN, FilterRules, PolicyCall, PolicySpec, Verdict
from orch_protocol.services.policy.approvals import EVALUATE_POLICY, REQUEST_APPROVAL, ApproveCall
from orch_protocol.wire.tool_events import CallOutcome

from ...policy.evaluate import evaluate
from ...policy.path_rules import opened_path, paths_in_call, resolve_rules, shell_context
from ...policy.policy_callback import PolicyCallback, load_policy_function
from ...policy.rules import (
    RECURSIVE,
    JudgedCall,
    NamedPath,
    ResolvedRules,
    operation_of,
    path_matches,
    rules_below,
    skipped_rules,
    strictest,
)
from ...policy.taint import (
    WEB_TOOLS,
    CallTaint,
    is_trusted_host,
    labels_file,
    labels_of_call,
    taint_of_call,
    tainting_files,
)
from ...session.interruption_notes import denied_result, dry_run_result, plan_mode_result, plan_rejected_result
from ..api.base import ToolContext, ToolError, ToolOutput
from .local_only import LocalOnlyGuard

__all__ = ["Guard", "GuardDecision"]

PATIENCE_SECONDS: Final = 10.0

Judge: TypeAlias = Callable[[PolicyCall], Awaitable[Verdict]]


class GuardDecision(Struct, frozen=True):
    """The decision on a call. The call starts only if `outcome` is "start"; otherwise the model sees `text_for_model`.

    `credentials` are the paths that the command of the call can read, because the approval question named them.
    """

    outcome: CallOutcome
    verdict: Verdict
    text_for_model: str = ""
    reason: str = ""
    credentials: tuple[str, ...] = ()


class Guard:
    """Applies an agent's rules to its calls.

    `local_only_guard` restricts the conversation to local models if necessary.

    The constructor raises ConfigError if the configured policy function cannot be imported.
    """

    def __init__(self, spec: PolicySpec, context: ToolContext, local_only_guard: LocalOnlyGuard) -> None:
        self._shell = shell_context(context.cwd, context.env)
        self._context, self._policy_functions = context, _policy_functions(spec, context)
        self._call_root, self._seconds = context.call_root, spec.rules.approval_seconds
        self._record = None if context.folder is None else labels_file(context.folder)
        self._spec = spec
        self._start_times: dict[str, int] = {}
        """Start times of calls that run code. Keys are call ids.

        Files that these calls change inherit the conversation's taint.
        """
        self._local_only_guard, self._no_local_model = local_only_guard, spec.rules.no_local_model
        self._dry_run = spec.rules.dry_run
        self._personal = False
        self._taint = spec.rules.taint
        self._call_taints: dict[str, tuple[CallTaint, bool]] = {}
        """The taint of each judged call, and whether the taint requires an approval. Keys are call ids."""
        self._opened: dict[str, NamedPath | None] = {}
        """The path that each judged call opens. Keys are call ids."""
        self._credentials: dict[str, tuple[str, ...]] = {}
        """The credentials that an approval of a judged call makes readable. Keys are call ids."""
        self.declared_bits: Mapping[str, tuple[Bit, ...] | None] = {}
        """The declared taint bits of tools. Keys are names of tools."""
        self.executor_tools: frozenset[str] = frozenset()
        """Names of the tools of the user's executor."""
        context.tool_state.get("filter_rules", lambda: self._filter_rules)

    def turn_began(self) -> None:
        """Reset the state of the last turn."""
        self._personal = False
        self._call_taints.clear()
        self._opened.clear()
        self._credentials.clear()
        self._start_times.clear()
        if self._context.skills is not None:
            self._context.skills.turn_began()

    def judge(self, call: ToolUse) -> Verdict:
        """Return the verdict on `call`.

        The class of the accessed data affects later calls, even if the call is denied.
        """
        opened = self._opened[call.id] = opened_path(call.name, call.input, self._shell)
        evaluation = evaluate(
            call.name,
            call.input,
            self._named_paths(call),
            self._resolved_rules(),
            personal=self._personal,
            planning=self._planning,
            labels=self._labels,
            declared_bits=self.declared_bits.get(call.name),
            in_executor=call.name in self.executor_tools,
            sandbox=self._context.sandbox,
            opened=opened,
        )
        self._call_taints[call.id] = evaluation.call_taint, evaluation.tainted
        self._credentials[call.id] = evaluation.credentials
        verdict = evaluation.verdict
        if opened is not None and self._is_hidden(opened.real, call.name):
            verdict = strictest((verdict, Verdict("deny", "any", f"{opened.written} belongs to orch")), verdict.data)
        if self._context.skills is not None and (why := self._context.skills.disallowed_reason(call.name)):
            verdict = strictest((verdict, Verdict("ask", "any", why)), verdict.data)
        self._personal |= verdict.data == "personal"
        return verdict

    async def apply_policy_functions(self, call: ToolUse, verdict: Verdict) -> Verdict:
        """Return the strictest of `verdict` and the verdicts of the user's policy functions."""
        for function in self._policy_functions:
            function_verdict = await function(self._policy_call(call, verdict))
            self._personal |= function_verdict.data == "personal"
            verdict = strictest(
                (verdict, function_verdict), "personal" if function_verdict.data == "personal" else verdict.data
            )
        return verdict

    async def needs_no_approval(self, call: ToolUse) -> bool:
        """Return whether the result of `call` may be shown without an approval.

        The call must need no approval, any model must be allowed to read the result, and the call must add no untrusted
        content. In this case, the labels of the call are recorded. Raise StoreError if recording fails.
        """
        verdict = await self.apply_policy_functions(call, self.judge(call))
        self._opened.pop(call.id)
        call_taint, _ = self._call_taints.pop(call.id)
        allowed = verdict.approval == "allow" and verdict.model == "any" and "untrusted" not in call_taint.bits
        if allowed and self._context.conversation_labels is not None:
            self._context.conversation_labels.record(labels_of_call(call.name, call_taint, has_run=True))
        return allowed

    async def adapt_to_model(self, verdict: Verdict) -> tuple[Verdict, bool]:
        """Return `verdict`, adapted to the location of the agent's model.

        Also return whether the conversation must stay local.
        """
        if verdict.model == "any" or verdict.approval == "deny":
            return verdict, False
        local_model, why = await self._local_only_guard.find_local_model()
        if local_model:
            notice = f"only a local model may read the result: from now on, the conversation uses {local_model}"
            return replace(verdict, reason="; ".join(filter(None, (verdict.reason, notice)))), True
        if not why:
            return verdict, True
        reason = f"only a local model may read the result, and no local model is available ({why})"
        if self._no_local_model == "ask":
            reason += "; if you approve, a remote model reads the result"
        return strictest((verdict, Verdict(self._no_local_model, "local", reason)), verdict.data), False

    async def decide(self, call: ToolUse, verdict: Verdict, *, approved: bool = False) -> GuardDecision:
        """Return the decision on `call`, which has the verdict `verdict`. If necessary, the root asks a person.

        Exactly the approved call runs: if its arguments or the targets of its paths have changed, the call is refused.
        `approved` is True if hooks have approved the call. Then no further approval is necessary. Plans, local data,
        credentials and taint are exceptions: these need the approval of a person. If the path that the call opens has
        changed since the call was judged, the new path is judged too.
        """
        if opened_path(call.name, call.input, self._shell) != self._opened.get(call.id):
            verdict = strictest((verdict, new_verdict := self.judge(call)), new_verdict.data)
        verdict, stays_local = await self.adapt_to_model(await self.apply_policy_functions(call, verdict))
        if self._dry_run:
            return GuardDecision("dry_run", verdict, dry_run_result(call.name, verdict), verdict.reason)
        outcome, why, credentials = await self._request_approval(call, verdict, approved=approved)
        if outcome == "start" and stays_local and (failure := await self._local_only_guard.restrict()):
            outcome, why = "deny", f"only a local model may read the result: {failure}"
        started = outcome == "start"
        return GuardDecision(
            outcome, verdict, "" if started else self._denial_text(call, why), why, credentials if started else ()
        )

    def record_start(self, call: ToolUse) -> None:
        """Record the start of `call`, which was already judged. A call that acts adds a label.

        Code can send what it reads to other agents while it runs, so the labels of its result are recorded now.

        Raise StoreError if recording fails.
        """
        if self._context.conversation_labels is not None and call.id in self._call_taints:
            call_taint = self._call_taints[call.id][0]
            states = (False, True) if call.name in CODE_TOOLS else (False,)
            self._context.conversation_labels.record(
                label for has_run in states for label in labels_of_call(call.name, call_taint, has_run=has_run)
            )
        call_taint = self._call_taints.get(call.id, (CallTaint(), False))[0]
        # A single call that runs code can both read tainted content and write the content to a file.
        if self._record is not None and call.name in CODE_TOOLS and (self._content or call_taint.bits):
            self._start_times[call.id] = time.time_ns()

    def record_output(self, call: ToolUse, output: ToolOutput) -> tuple[TaintLabel, ...]:
        """Record and return the taint labels added to the conversation by `output`, the output of `call`.

        Raise StoreError if recording fails.
        """
        call_taint, _ = self._call_taints.pop(call.id, (CallTaint(), False))
        if output.origin is not None or (call.name in WEB_TOOLS and output.is_error):
            # Use the final address after redirects. A failed request adds no untrusted content.
            if output.origin and not is_trusted_host(output.origin, self._taint):
                call_taint = replace(call_taint, bits=call_taint.bits | {"untrusted"}, subject=output.origin)
            else:
                call_taint = replace(call_taint, bits=call_taint.bits - {"untrusted"})
        labels = (*labels_of_call(call.name, call_taint, has_run=True), *output.marks)
        if self._context.conversation_labels is not None:
            self._context.conversation_labels.record(labels)
        self._record_file_taint(call, output)
        return labels

    def _record_file_taint(self, call: ToolUse, output: ToolOutput) -> None:
        """Record the taint of files that the call wrote. Raise StoreError if recording fails."""
        content, cwd = self._content, self._context.cwd
        if self._record is None or not (content or (output.files_changed and self._record.exists())):
            return
        from ...policy.taint import changed_below, remember_file_taint

        since = self._start_times.pop(call.id, None)
        files = [str(cwd / file) for file in output.files_changed]
        if since is not None:
            sessions = self._record.parent.parent
            files += changed_below(cwd, since, (sessions, sessions.parent))
        replaces_file = call.name == "write_file" and not call.input.get("append")
        try:
            remember_file_taint(self._record, files, content, replace_labels=replaces_file)
        except ConfigError as error:
            raise StoreError(str(error)) from error

    def judged_path(self, call: ToolUse) -> str | None:
        """Return the real path that `call` may open. Return None if the tool of the call opens no path."""
        opened = self._opened.get(call.id)
        return None if opened is None else opened.real

    def digest(self, call: ToolUse) -> str:
        """Return a digest of the call, of the current targets of its paths, and of the credentials that it can read."""
        return digest_of(call.name, call.input, (*self._real_paths(call), *self._credentials.get(call.id, ())))

    async def keep_local(self) -> str:
        """Restrict the conversation to models on this machine. If this fails, return the reason, otherwise ""."""
        return await self._local_only_guard.restrict()

    async def _request_approval(
        self, call: ToolUse, verdict: Verdict, *, approved: bool
    ) -> tuple[CallOutcome, str, tuple[str, ...]]:
        """Return the outcome, the reason why the call may not run, and the credentials that the call can read."""
        # Hooks cannot approve a plan, because a plan affects later calls and the root's record. Hooks cannot approve
        # tainted calls either, because a hook cannot distinguish them from other calls.
        tainted = self._call_taints.get(call.id, (None, False))[1]
        credentials = self._credentials.get(call.id, ())
        approved = approved and call.name != EXIT_PLAN and not tainted and not credentials
        if verdict.approval == "allow" or (approved and verdict.approval == "ask" and verdict.model == "any"):
            return "start", "", ()
        if verdict.approval == "deny":
            return "deny", verdict.reason, ()
        request = ApproveCall(
            call.name,
            call.input,
            self._real_paths(call),
            verdict.reason,
            verdict.model == "local",
            self._seconds,
            tainted=tainted,
            credentials=credentials,
        )
        try:
            answer = await self._call_root(REQUEST_APPROVAL, request, self._seconds + PATIENCE_SECONDS)
        except (OrchError, ToolError) as error:
            return "declined", f"{verdict.reason}; it needs approval, which could not be asked for: {error}", ()
        if not answer.allowed:
            return "declined", f"{verdict.reason}; {answer.reason}", ()
        if answer.digest != self.digest(call):
            return "deny", "its arguments or the targets of its paths changed after the approval", ()
        return "start", "", credentials

    def _resolved_rules(self) -> ResolvedRules:
        resolved_rules = resolve_rules(self._spec, self._shell)
        if self._record is not None and self._record.exists():
            # This module is needed only if tainted files were recorded.
            from ...policy.taint import with_remembered_taint

            resolved_rules = with_remembered_taint(resolved_rules, self._record)
        return resolved_rules

    @property
    def _hidden(self) -> tuple[str, ...]:
        """Orch's folders below the working folder. Tools open no file there, because commands cannot open it either."""
        inside = os.path.join(os.path.realpath(self._context.cwd), "")
        folders = map(os.path.realpath, self._context.orch_folders)
        return tuple(folder for folder in folders if folder.startswith(inside))

    def _is_hidden(self, path: str, tool: str) -> bool:
        if not any(path_matches(path, folder) for folder in self._hidden):
            return False
        from ..api.archive_texts import archive_texts
        from ..shell.path_covers import SCRATCH  # Most agents have no folder of orch below their own folder.

        context = self._context
        shown = [os.path.expanduser(each) for each in (*context.sandbox.read, *context.sandbox.write)]
        shown += [] if context.folder is None else [os.path.join(context.folder, SCRATCH)]
        shown += archive_texts(context) if operation_of(tool) == "read" else ()
        return not any(path_matches(path, os.path.realpath(os.path.join(context.cwd, each))) for each in shown)

    def _filter_rules(self, tool: str, start: str) -> FilterRules | None:
        resolved_rules = self._resolved_rules()
        start_path = NamedPath(start, start)
        call = JudgedCall(tool, (start_path,), start=start_path if tool in RECURSIVE else None)
        skip_rules = (*skipped_rules(resolved_rules, call, start), *rules_below(self._hidden, start))
        taint_rules = {
            bit: reachable
            for bit, rules in tainting_files(resolved_rules).items()
            if (reachable := rules_below(rules, start))
        }
        if not skip_rules and not taint_rules:
            return None
        bits = taint_of_call(call, {}, None, resolved_rules, self._taint).bits | bits_in(self._labels)
        return FilterRules(tool, skip_rules, taint_rules, bits, enforce_taint=self._taint.mode != "off")

    @property
    def _labels(self) -> tuple[TaintLabel, ...]:
        return self._context.conversation_labels.labels if self._context.conversation_labels is not None else ()

    @property
    def _content(self) -> tuple[TaintLabel, ...]:
        return self._context.conversation_labels.content if self._context.conversation_labels is not None else ()

    @property
    def _planning(self) -> bool:
        return self._context.task_list is not None and self._context.task_list.planning

    def _denial_text(self, call: ToolUse, reason: str) -> str:
        """Return the text for the model about a call that may not run."""
        if call.name == EXIT_PLAN:
            return plan_rejected_result(reason)
        after_plan = self._planning and operation_of(call.name) != "read"
        return (plan_mode_result if after_plan else denied_result)(call.name, reason)

    def _policy_call(self, call: ToolUse, verdict: Verdict) -> PolicyCall:
        return PolicyCall(
            call.name,
            call.input,
            self._real_paths(call),
            operation_of(call.name),
            verdict.data,
            self._context.agent_id,
            self._context.depth,
            str(self._context.cwd),
            self._labels,
        )

    def _real_paths(self, call: ToolUse) -> tuple[str, ...]:
        opened = self._opened.get(call.id)  # Only this path can be opened, even if the name now leads elsewhere.
        paths = (*(self._named_paths(call) or ()), *((opened,) if opened is not None else ()))
        return tuple(sorted({path.real for path in paths}))

    def _named_paths(self, call: ToolUse) -> tuple[NamedPath, ...] | None:
        return paths_in_call(call.name, call.input, self._shell)


def _policy_functions(spec: PolicySpec, context: ToolContext) -> Sequence[Judge]:
    """Return the user's policy functions: the function in the configuration, and the function in the root."""
    found: list[Judge] = []
    if spec.rules.function is not None:
        callback = PolicyCallback(load_policy_function(spec.rules.function))
        found.append(lambda call: callback.evaluate(call, spec.rules))

    async def ask_root(call: PolicyCall) -> Verdict:
        try:
            verdict = await context.call_root(EVALUATE_POLICY, call, spec.rules.approval_seconds + PATIENCE_SECONDS)
        except (OrchError, ToolError) as error:
            return Verdict("deny", "any", f"the program's policy function could not be asked: {error}")
        return verdict

    return (*found, ask_root) if spec.asks_root else found
