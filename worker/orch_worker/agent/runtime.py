"""The runtime of one agent: its transcript, backend and tools, created from its spec."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from orch_protocol.agent.spec import AgentSpec, BackendSpec, CompactionSpec, QueueMode, ToolSpec
from orch_protocol.core.errors import ConfigError, StoreError, error_info
from orch_protocol.core.ids import new_id
from orch_protocol.core.messages import Message, Usage
from orch_protocol.core.prompts import PromptShown
from orch_protocol.core.taint import TaintLabel
from orch_protocol.hooks.stages import HookRow
from orch_protocol.policy.sandbox import UNCONFINED
from orch_protocol.session.entries import TranscriptPosition
from orch_protocol.session.tree import CompactionDone, CompactRequest, EditResult, MoveLeaf, SessionEdit
from orch_protocol.wire.worker_messages import AgentEvent, BranchSummarized, Query, Ready, SummarizeBranch, TurnFinished

from ..backends.base import stuck_in
from ..backends.model_families import estimator_of
from ..backends.registry import PROVIDERS, make_backend
from ..backends.switchable import SwitchableBackend
from ..context.archiving import TurnArchiver
from ..context.holder_query import archived_text
from ..context.subagents_block import subagents_block
from ..context.summarizer import Summarizer
from ..policy.taint import TaintLabels
from ..prompt.builder import PromptBuilder
from ..prompt.project_scan import ProjectScan
from ..session.plan import TaskList
from ..session.transcript import Transcript
from ..system.secrets import ApiKeys
from ..tool_host.client import StartHost, ToolHostClient
from ..tools.api.base import ToolContext
from ..tools.api.root_client import RootClient
from ..tools.dispatch.budget_client import BudgetClient
from ..tools.dispatch.guard import Guard
from ..tools.dispatch.local_only import LocalOnlyGuard
from ..tools.dispatch.presets import make_toolbox
from ..tools.dispatch.rate_limit_client import RateLimitClient
from ..tools.python.python import NOT_OFFERED, PythonHiding
from .features.compaction import CompactionExtension
from .features.prompt import TurnPrompt
from .features.turn_extension import ActiveExtensions, TurnExtension
from .model_selection import ModelSelection, make_side_backend
from .optional_features import executor_of, extensions_of, memory_of, skills_of, workspace_of
from .steering import SteeringMessage, SteeringQueues
from .turn import CancelToken, Turn

if TYPE_CHECKING:
    from ..context.compactor import Compactor
    from ..hooks.runner import EmitEvent
    from ..hooks.session_events import ArchivalHooks
    from ..skills.catalog import SkillCatalog
    from .hooks import AgentHooks

__all__ = ["Runtime"]

GROUP_SYNC_SECONDS = 0.05
EXIT_STORE = 74
EXIT_STUCK = 75
OWN_MESSAGE_PREFIX = "hook-"
"""Prefix of the ids of messages that the agent's own hooks send to the agent."""


class QueryFeatures(msgspec.Struct, frozen=True):
    """The settings of a query that switch features on."""

    root_hooks: tuple[HookRow, ...] = ()
    budgeted: tuple[str, ...] = ()
    """Kinds of the budgets that limit the query."""
    local: bool = False
    """Whether only local models may read the conversation."""
    taint_labels: tuple[TaintLabel, ...] = ()
    """Taint labels of the prompt."""


class Runtime:
    """The agent described by `spec`.

    The constructor opens the transcript, and raises StoreError or ConfigError on failure.

    `orch_folders` are the folders of orch. `in_process` is True if the agent runs in the root's process (see
    ToolContext). `start_tool_host` starts the process that runs tools; None lets them run in this process.
    """

    def __init__(
        self,
        spec: AgentSpec,
        keys: dict[str, str],
        root: RootClient,
        orch_folders: tuple[str, ...] = (),
        *,
        in_process: bool = False,
        start_tool_host: StartHost | None = None,
    ) -> None:
        if spec.code is not None:  # before anything that may import this code
            from ..system.project_code import use_trusted_code

            use_trusted_code(spec.code, own_process=not in_process)
        self.spec = spec
        self._root = root
        self._cancel = CancelToken()
        self._steering = SteeringQueues(spec.queue_mode, spec.follow_up_mode)
        self._sync_scheduled = False
        self.busy = False
        context = ToolContext(
            cwd=Path(spec.cwd),
            env=spec.env,
            agent_id=spec.id,
            depth=spec.depth,
            call_root=root.call_root,
            seconds=spec.limits.tool_seconds,
            folder=Path(spec.folder),
            keys=ApiKeys(keys),
            archives=spec.archival is not None or bool(spec.archives),
            sandbox=spec.sandbox,
            policy=spec.policy.rules,
            orch_folders=orch_folders,
            in_process=in_process,
            tool_host=_tool_host(spec, start_tool_host),
            agent_types=spec.agent_types,
            subagent_models=spec.subagent_models,
        )
        self._budget_client, self.gate = context.agent_object(BudgetClient), context.agent_object(RateLimitClient)
        make = partial(make_backend, keys=keys, gate=self.gate)
        self._make_backend = partial(make_side_backend, make)
        self.backend = make(spec.backend)
        if spec.backend.provider not in PROVIDERS:
            self.backend = SwitchableBackend(self.backend)
        self.transcript = Transcript.open(Path(spec.folder), agent=spec.id, cwd=spec.cwd, durability=spec.durability)
        try:
            self.transcript.log.on_dirty = self._sync_soon
            if spec.history and not self.transcript.session.entries:
                self.transcript.seed(spec.history)
            self._task_list = TaskList(self.transcript, planning=spec.plan, plan=spec.plan_id)
            self._taint_labels = TaintLabels(self.transcript, with_sources=spec.persist, on_label=self.configure)
            self._memory = memory_of(spec, self._taint_labels, lambda: self._local_only.is_restricted)
            estimator = estimator_of(spec.backend)
            self._workspace = workspace_of(spec, context, self.transcript, estimator.text)
            features = {
                "task_list": self._task_list,
                "conversation_labels": self._taint_labels,
                "memory": self._memory,
                "workspace": self._workspace,
            }
            skills = skills_of(spec, self.transcript)
            context = msgspec.structs.replace(context, **features, skills=skills)
            self.context = context
            stop_worker = partial(root.stop, EXIT_STUCK)
            self._model_selection = ModelSelection(
                spec, self.backend, context.call_root, make, self.transcript, stop_worker
            )
            self._local_only = LocalOnlyGuard(spec, context.call_root, self._use_local, on_restricted=self.configure)
            guard = Guard(spec.policy, context, self._local_only)
            self.extensions = extensions_of(spec)
            extension_tools = self.extensions.tools if self.extensions is not None else ()
            self._executor = executor_of(spec, context, extension_tools)
            executors = (self._executor,) if self._executor is not None else ()
            self.toolbox = make_toolbox(spec.tools, spec.root_tools, context, guard, extension_tools, executors)
            self.toolbox.withdraw(spec.withdrawn)
            self.toolbox.on_results = self._workspace.add_results if self._workspace is not None else None
            tools, session = self.toolbox.specs(), self.transcript.session
            self._prompt = PromptBuilder(
                spec,
                self.backend,
                self.toolbox,
                task_list=self._task_list,
                transcript=self.transcript,
                project_scan=ProjectScan(spec.context, context, guard, estimator),
                estimator=estimator,
            )
            self._query_features = QueryFeatures()
            self._has_phases = any(
                phase.kind != "off" for phase in (spec.hooks.options.assess, spec.hooks.options.reflect)
            )
            self.hooks = self._make_hooks() if spec.hooks.load or self.extensions is not None else None
            self.backend.learn(session.entries)
            self._archived_messages = (
                archived_text(spec.source, self.backend.info().context_limit) if spec.source else ()
            )
            self._load_conversation()
            self._archiving: TurnArchiver | None = None
            if spec.archival is not None:
                self._archiving = TurnArchiver(
                    spec.archival,
                    self.transcript,
                    self.backend,
                    root.call_root,
                    summarizer=Summarizer(
                        spec.backend,
                        # The thinking level is that of the conversation, so that the provider's cache stays valid.
                        make,
                        root.call_root,
                        self._budget_client,
                        tools=tools,
                        seconds=spec.archival.summary_seconds,
                    ),
                    tools=tools,
                    folder=Path(spec.folder),
                    on_fault=self._stop_if_broken,
                    hooks=self._archival_hooks,
                )
                if spec.local:
                    self._archiving.restrict_to_local(spec.backend)
            self.turn_prompt = TurnPrompt(
                spec,
                self._prompt,
                self.transcript,
                # Only an agent that starts its own conversation receives its task. A copied conversation already
                # contains the task.
                needs_task=session.fresh,
                archiver=self._archiving,
                block=self._subagents_block(),
                hooks=lambda: self.hooks,
            )
            self._compaction = CompactionExtension(
                spec.compaction,
                self.backend,
                make_compactor=self._make_compactor,
                hooks=self._archival_hooks,
                on_compacted=self._on_leaf_moved,
            )
            self.conversation_shortener: TurnExtension | None = self._compaction if spec.source is None else None
            """Shortens the conversation during a turn.

            None for a holder, because the conversation of a holder is never compacted.
            """
            self._permanent_extensions = tuple(self._permanent_features(skills))
            self._active_extensions = ActiveExtensions(*self._features())
        except BaseException:
            self.transcript.close()
            raise

    async def prompt(self) -> PromptShown:
        """Return the prompt of the next request."""
        live = await self.turn_prompt.block() if self.turn_prompt.block is not None else ""
        return await self._prompt.shown(live, fresh=self.turn_prompt.needs_task)

    def ready(self, acknowledged: TranscriptPosition | None = None) -> Ready:
        """Return the state of the started agent for the root.

        `acknowledged` is a line that the transcript must contain. Raise StoreError if this cannot be verified.
        """
        session, info = self.transcript.session, self.backend.info()
        missing = self.transcript.missing_lines(acknowledged) if acknowledged is not None else ""
        damage = [
            self.transcript.repaired,
            f"{self.transcript.path}: {missing}" if missing else "",
            self._python_problem(),
        ]
        return Ready(
            entries=len(session.entries),
            interrupted=session.interrupted,
            context_tokens=self.backend.context_tokens(),
            context_limit=info.context_limit,
            model=f"{info.provider}:{info.model}" if info.model else info.provider,
            repaired="; ".join(filter(None, damage)),
            transcript=self.transcript.log.position,
            executor_tools=self._new_executor_tools(),
        )

    def _python_problem(self) -> str:
        """Return why run_python is not offered although the sandbox and this machine allow it, or "".

        Raise ConfigError if the policy requires that denied paths are hidden.
        """
        sandbox, policy = self.spec.sandbox, self.spec.policy.rules
        if UNCONFINED not in self.spec.active or sandbox.of(UNCONFINED) > "L0" or not sandbox.covers_paths:
            return ""
        if not policy.denied_paths or not (why := self.context.agent_object(PythonHiding).problem):
            return ""
        if policy.require_denied_paths:
            raise ConfigError(f"policy.require_denied_paths is set, and denied paths cannot be hidden: {why}")
        return NOT_OFFERED.format(why)

    def _new_executor_tools(self) -> tuple[ToolSpec, ...] | None:
        """Return the tools of the executor if the root does not know them yet, otherwise None."""
        known = self.spec.executor is None or self.spec.executor.tools is not None
        return None if known or self._executor is None else tuple(self._executor.tools.values())

    def begin_turn(self) -> CancelToken:
        """Return the cancel token of the next turn.

        From now on, `cancel` ends this turn, even before its first step.
        """
        self._cancel = CancelToken()
        return self._cancel

    async def query(self, query_id: str, query: Query, cancel: CancelToken) -> TurnFinished:
        """Run a turn, record its end durably, and return it. This method raises nothing unless its task is canceled."""
        self.toolbox.turn_began()
        self.transcript.turn = query_id
        self.toolbox.observe = partial(self._root.called, query_id) if query.observed else None
        self.busy = True
        limits = self.spec.limits
        if query.seconds is not None and query.seconds < limits.turn_seconds:
            limits = msgspec.structs.replace(limits, turn_seconds=query.seconds)
        self._budget_client.budgeted = frozenset(query.budgeted)
        extensions, reply = self._active_extensions, None
        try:
            if self._model_selection.has_pending_choice:
                await self._apply_model_choice()
            features = QueryFeatures(query.hooks, query.budgeted, query.local, query.marks)
            if self._query_features != features:
                self.hooks = self.hooks or (self._make_hooks() if query.hooks else None)
                self._query_features = features
                self.configure()
            for turn_began in extensions.turn_began:
                await turn_began(query_id, query)
            if self.hooks is None and self._model_selection.uses_other_model:
                await self._model_selection.use_model()
            reply = await Turn(
                query_id,
                query.prompt,
                query.images,
                agent_id=self.spec.id,
                backend=self.backend,
                toolbox=self.toolbox,
                record=partial(self._record, query_id),
                limits=limits,
                cancel=cancel,
                observer=self._root,
                steering=self._steering,
                losses=self._budget_client.losses,
                extensions=extensions,
            ).run()
            for change_reply in extensions.reply:
                reply = await change_reply(reply)
            self.transcript.turn_end(query_id, reply)
            for turn_end in extensions.turn_end:
                await turn_end(reply)
        except Exception as error:
            traceback.print_exc()
            for turn_failed in extensions.turn_failed:
                await turn_failed(error)
            usage = getattr(error, "usage", None) or (reply.usage if reply is not None else Usage())
            return TurnFinished(
                error=error_info(error),
                usage=usage,
                context_tokens=self.backend.context_tokens(),
                transcript=self.transcript.log.position,
            )
        finally:
            recorded_reply = self.transcript.session.replies.get(query_id)
            for after_turn in extensions.after_turn:
                await after_turn(recorded_reply.stop_reason if recorded_reply is not None else None)
            self.busy = False
            self._stop_if_broken()
            self._stop_if_stuck()
        return TurnFinished(
            reply=self.transcript.session.replies[query_id],
            context_tokens=self.backend.context_tokens(),
            transcript=self.transcript.log.position,
        )

    def configure(self) -> None:
        """Activate the extensions of the features that are on.

        Call this method whenever a feature is switched on or off.
        """
        self._active_extensions.set(self._features())

    def _subagents_block(self) -> Callable[[], Awaitable[str]] | None:
        """Return a function that returns the list of live subagents and archives.

        Return None if the agent can have neither subagents nor archives.
        """
        if self._archiving is not None:
            return self._archiving.block
        if "spawn_subagent" in self.spec.grant:
            return partial(subagents_block, self._root.call_root)
        return None

    def _permanent_features(self, skills: SkillCatalog | None) -> Iterator[TurnExtension]:
        """Yield the extensions of features that stay on during the whole life of the agent.

        A module is imported only if its feature is on.
        """
        if self._archiving is not None:
            from .features.archiving import ArchivingExtension

            yield ArchivingExtension(self._archiving, self.turn_prompt)
        elif self.turn_prompt.block is not None:
            from .features.live_subagents import LiveSubagentsExtension

            yield LiveSubagentsExtension(self.turn_prompt.block, self.turn_prompt)
        if self._memory is not None:
            from .features.memory import MemoryExtension

            yield MemoryExtension(self._memory, self._prompt)
        if skills is not None:
            from .features.skills import SkillsExtension

            yield SkillsExtension(skills, self._prompt)
        if self._workspace is not None:
            from .features.workspace import WorkspaceExtension

            yield WorkspaceExtension(self._workspace, self._prompt)

    def _features(self) -> Iterator[TurnExtension]:
        """Yield the active extensions, in the order in which turns call them."""
        query = self._query_features
        if query.local or self._local_only.is_restricted:
            from .features.local_only import LocalOnlyExtension

            yield LocalOnlyExtension(self._local_only)
        if query.taint_labels or self.spec.marks or self.transcript.session.taint_labels:
            from .features.taint import TaintExtension

            yield TaintExtension(self._taint_labels, self.spec.marks)
        if self.hooks is not None:
            yield self.hooks
        if query.budgeted:
            yield self._budget
        if self._has_phases or (self.hooks is not None and self.hooks.calls.has_hook("after_assess", query.root_hooks)):
            yield self._phases
        yield from self._permanent_extensions
        if self.conversation_shortener is not None:
            yield self.conversation_shortener
        yield self.turn_prompt

    @cached_property
    def _budget(self) -> TurnExtension:
        from .features.budget import BudgetExtension

        return BudgetExtension(self._budget_client, self.turn_prompt)

    @cached_property
    def _phases(self) -> TurnExtension:
        from .phases import Phases
        from .side_requests import SideRequests

        requests = SideRequests(
            self._make_backend, self._budget_client, self._root.call_root, self._model_selection, self._local_only
        )
        options = self.spec.hooks.options
        return Phases(options, requests, self.transcript, hooks=lambda: self.hooks, emitter_for=self._emitter_for)

    def hooks_for(self, query_id: str, query: Query) -> AgentHooks | None:
        """Return the hooks of this turn, or None if there are no hooks. Raise ConfigError if a hook is invalid."""
        if self.hooks is None and query.hooks:
            self.hooks = self._make_hooks()
            self.configure()
        if self.hooks is not None:
            self.hooks.prepare_turn(query_id, query)
        return self.hooks

    def _make_hooks(self) -> AgentHooks:
        # These modules are imported only if there are hooks, to save memory and start time.
        from ..hooks.hook import HookRegistry
        from ..hooks.loader import configured_hooks
        from ..hooks.runner import HookCalls
        from .hooks import AgentHooks

        extension_hooks = self.extensions.hooks if self.extensions is not None else ()
        registry = HookRegistry((*configured_hooks(self.spec.hooks.load, self.spec.hooks.options), *extension_hooks))
        calls = HookCalls(
            registry,
            self.spec,
            self._root.call_root,
            send_message=self.queue_own_message,
            messages=self.backend.transcript,
        )
        stop_worker = partial(self._root.stop, EXIT_STUCK)
        return AgentHooks(
            calls, self._model_selection, self.transcript.custom, emitter_for=self._emitter_for, stop_worker=stop_worker
        )

    def _archival_hooks(self) -> ArchivalHooks | None:
        return self.hooks.archival if self.hooks is not None else None

    def _emitter_for(self, query_id: str) -> EmitEvent:
        """Return a function that sends events of the turn `query_id` to its watchers."""

        def emit(kind: str, text: str, name: str, is_error: bool) -> None:
            step = self.hooks.calls.step if self.hooks is not None else 0
            self._root.emit(query_id, kind, text, name, step, is_error)

        return emit

    def notify_event(self, body: AgentEvent) -> None:
        """Notify the agent's own hooks of an event from the root."""
        if self.hooks is not None:
            self.hooks.notify_event(body)

    def add_labels(self, labels: tuple[TaintLabel, ...]) -> None:
        """Add taint labels of content that a command of this agent received from the root.

        If they cannot be written, the next query brings them again.
        """
        with suppress(StoreError):
            self._taint_labels.record(labels)

    def queue_own_message(self, text: str, follow_up: bool) -> None:
        """Queue `text` from this process as a steering message or follow-up."""
        message = SteeringMessage(f"{OWN_MESSAGE_PREFIX}{new_id()}", text, acknowledged=False)
        self._steering.add(message, follow_up=follow_up)

    async def _use_local(self, backend: BackendSpec) -> None:
        """Continue with the local model `backend`. Raise ConfigError if its backend cannot be created."""
        if self._archiving is not None:
            self._archiving.restrict_to_local(backend)
        if backend == self._model_selection.current:
            return
        if isinstance(self.backend, SwitchableBackend):
            await self.backend.switch_to(self._make_backend(backend))
        self._model_selection.use_local(backend)

    async def _apply_model_choice(self) -> None:
        self._local_only.set_backend(backend := await self._model_selection.apply_choice())
        if self._archiving is not None:
            self._archiving.answered_by(backend)

    def edit(self, edit: SessionEdit) -> EditResult:
        """Record a change of the session between turns. Raise StoreError if the change cannot be written."""
        if isinstance(edit.change, MoveLeaf) and self._archiving is not None:
            self._archiving.on_branch_changed()
        try:
            self.transcript.change(edit)
        finally:
            self._stop_if_broken()
        self._model_selection.set_choice(edit.answers)
        self.turn_prompt.needs_task = self.transcript.session.fresh
        self._load_conversation()
        self.configure()  # The taint labels are those of the current path.
        return EditResult(self.backend.context_tokens())

    async def summarize_branch(self, request: SummarizeBranch) -> BranchSummarized:
        """Return a summary of the branch that the conversation would leave."""
        # This module is imported here because it is rarely needed.
        from ..context.branch_summary import left_behind, summarize_branch

        messages = left_behind(self.transcript.session, request.to)
        summary = await summarize_branch(
            messages, self._model_selection.next, self._make_backend, self._budget_client, request.budgeted
        )
        return BranchSummarized(summary.text, summary.by_model, summary.usage)

    def _load_conversation(self) -> None:
        session = self.transcript.session
        # Copied messages do not count as responses. A scripted model continues after the responses that it gave itself.
        self.backend.load((*self._archived_messages, *session.messages), session.responses)
        self._prompt.loaded()

    def cancel(self, exceeded_budget: str = "") -> None:
        """End the running turn at its next safe point. `exceeded_budget` names the budget that is the reason."""
        self._cancel.cancel(exceeded_budget)
        if self._archiving is not None:
            self._archiving.end_waits()

    def steer(self, message: SteeringMessage, *, follow_up: bool) -> None:
        """Queue `message` for the next model request, or as a follow-up for the end of the turn.

        A message with the same id is never delivered twice.
        """
        if message.id in self.transcript.session.delivered_steer_ids:
            # The previous process was killed before it could report the delivery.
            self._root.steering_recorded(message.id)
        else:
            self._steering.add(message, follow_up=follow_up)

    def retract_steering(self, ids: tuple[str, ...]) -> list[str]:
        """Remove queued messages. Return the ids of the messages that were not delivered yet."""
        return self._steering.drop(ids)

    def set_queue_modes(self, steering: QueueMode, follow_up: QueueMode) -> None:
        """Set how many queued messages of each kind are delivered at once."""
        self._steering.set_modes(steering, follow_up)

    async def run_end_hooks(self, seconds: float) -> None:
        """Run the hooks of the stage "session_end". Wait at most `seconds`."""
        if self.hooks is not None:
            try:
                async with asyncio.timeout(seconds):
                    await self.hooks.close()
            except TimeoutError:
                print("worker ends: hooks did not end in time", flush=True)

    def close(self) -> None:
        """End the activities of tools, make all data durable, and close the transcript."""
        try:
            if self._archiving is not None:
                self._archiving.stop()
            self.toolbox.close()
            if self.context.tool_host is not None:
                self.context.tool_host.close()
        finally:
            self.transcript.close()

    async def compact(self, id: str, request: CompactRequest) -> CompactionDone:
        """Compact the conversation now, between turns. The compaction is recorded when this method returns.

        Raise ConfigError if nothing can be compacted. Raise StoreError if the compaction cannot be written. A
        cancellation leaves the conversation unchanged.
        """
        hooks = self.hooks_for(id, Query("", hooks=request.hooks))
        self._budget_client.budgeted, self.busy = frozenset(request.budgeted), True
        try:
            if self._model_selection.has_pending_choice:
                await self._apply_model_choice()
            return cast("CompactionDone", await self._compaction.compact("", "asked", request.instructions))
        finally:
            self.busy = False
            self._stop_if_broken()
            if hooks is not None:
                await hooks.after_turn()

    def _make_compactor(self) -> Compactor:
        from ..context.compactor import Compactor

        return Compactor(
            self.spec.compaction or CompactionSpec(),
            self.transcript,
            self.backend,
            self._budget_client,
            model=lambda: self._model_selection.current,
            make=self._make_backend,
            memory=self._memory,
        )

    def _on_leaf_moved(self) -> None:
        if self._archiving is not None:
            self._archiving.on_branch_changed()

    def _record(
        self, turn: str, message: Message, usage: Usage | None = None, model: str = "", steer_id: str = ""
    ) -> None:
        if (interrupted := self.transcript.session.interrupted) not in (None, turn):
            # This entry must not precede the prompt that mentions the interruption.
            self.transcript.turn_start(turn, interrupted)
        self.transcript.message(message, turn, usage, model=model, steer_id=steer_id)
        if usage is not None and self._budget_client.budgeted:
            self.transcript.log.sync()  # Recorded costs must survive a power loss.
        self.turn_prompt.needs_task = False  # The task is now recorded.

    def _sync_soon(self) -> None:
        if not self._sync_scheduled:
            self._sync_scheduled = True
            asyncio.get_running_loop().call_later(GROUP_SYNC_SECONDS, self._sync)

    def _sync(self) -> None:
        self._sync_scheduled = False
        try:
            if self.transcript.log.dirty:
                self.transcript.log.sync()
        except StoreError as error:
            print(error, flush=True)
            self._root.stop(EXIT_STORE)

    def _stop_if_stuck(self) -> None:
        """End this process if an abandoned model request is still running. The next query starts another process."""
        if stuck := stuck_in(self.backend):
            print(f"worker ends: {stuck} did not end", flush=True)
            self._root.stop(EXIT_STUCK)

    def _stop_if_broken(self) -> None:
        """End this process if the state of its session file is uncertain. The next process reads the file again."""
        if self.transcript.broken and not self.busy:
            self._root.stop(EXIT_STORE)


def _tool_host(spec: AgentSpec, start: StartHost | None) -> ToolHostClient | None:
    if start is None:
        return None
    sandbox = spec.sandbox
    hides_paths = UNCONFINED in spec.active and sandbox.of(UNCONFINED) == "L0" and bool(sandbox.covers_paths)
    return ToolHostClient(start, umask=spec.umask, hides_paths=hides_paths)
