"""One agent at work: its transcript, backend and tools, put together from a spec; and the worker's `main`."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from orch_protocol.agent.spec import AgentSpec, BackendSpec, CompactionSpec, QueueMode
from orch_protocol.core.errors import ConfigError, StoreError, error_info
from orch_protocol.core.ids import new_id
from orch_protocol.core.messages import Message, Reply, Usage
from orch_protocol.core.prompts import PromptShown
from orch_protocol.session.entries import CompactionReason, TranscriptPosition
from orch_protocol.session.tree import CompactionDone, CompactRequest, EditResult, MoveLeaf, SessionEdit
from orch_protocol.wire.worker_messages import AgentEvent, BranchSummarized, Query, Ready, SummarizeBranch, TurnFinished

from ..backends.model_families import ratios_of
from ..backends.registry import PROVIDERS, make_backend
from ..backends.switchable import SwitchableBackend
from ..context.archiving import TurnArchiver
from ..context.holder_query import archived_text
from ..context.summarizer import Summarizer
from ..conversation.tokens import TokenEstimator
from ..policy.taint import TaintLabels
from ..prompt.builder import PromptBuilder
from ..prompt.instructions import first_prompt
from ..prompt.project_scan import ProjectScan
from ..sandbox import worker_namespace
from ..session.interruption_notes import mark_of
from ..session.plan import TaskList
from ..session.transcript import Transcript
from ..tools.api.base import ApiKeys, ToolContext
from ..tools.api.root_client import RootClient
from ..tools.dispatch.budget_client import BudgetClient
from ..tools.dispatch.guard import Guard
from ..tools.dispatch.local_only import LocalOnlyGuard
from ..tools.dispatch.presets import make_toolbox
from ..tools.dispatch.rate_limit_client import RateLimitClient
from .model_selection import ModelSelection, beside
from .optional_features import extensions_of, memory_of, shelf_of, workbench_of
from .steering import SteeringMessage, SteeringQueues
from .turn import CancelToken, Shorter, Turn

if TYPE_CHECKING:
    from ..context.compactor import Compactor
    from ..hooks.session_events import ArchivalHooks
    from .hooks import AgentHooks
    from .phases import Phases

__all__ = ["Runtime"]

GROUP_SYNC_SECONDS = 0.05
EXIT_STORE = 74
EXIT_STUCK = 75
OWN = "hook-"
"""How the ids begin of what the agent's own hooks say to it."""


class Runtime:
    """The agent that `spec` describes. Opens its transcript; raises StoreError or ConfigError if it cannot be.

    `orch_folders` are the folders of orch itself, `in_process` says that it lives in the root's; see ToolContext.
    """

    def __init__(
        self,
        spec: AgentSpec,
        keys: dict[str, str],
        root: RootClient,
        orch_folders: tuple[str, ...] = (),
        *,
        in_process: bool = False,
    ) -> None:
        self.spec = spec
        self._root = root
        self._brake = CancelToken()
        self._said = SteeringQueues(spec.queue_mode, spec.follow_up_mode)
        self._sync_due = False
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
        )
        self._purse, self.gate = context.own(BudgetClient), context.own(RateLimitClient)
        make = partial(make_backend, keys=keys, gate=self.gate)
        self._make_backend = partial(beside, make)
        self._compactor: Compactor | None = None
        self.backend = make(spec.backend)
        if spec.backend.provider not in PROVIDERS:
            self.backend = SwitchableBackend(self.backend)
        self.transcript = Transcript.open(Path(spec.folder), agent=spec.id, cwd=spec.cwd, durability=spec.durability)
        try:
            self.transcript.log.on_dirty = self._sync_soon
            if spec.history and not self.transcript.session.entries:
                self.transcript.seed(spec.history)
            self._agenda = TaskList(self.transcript, planning=spec.plan, plan=spec.plan_id)
            self._marks = TaintLabels(self.transcript, kept=spec.persist)
            self._memory = memory_of(spec, self._marks, lambda: self._locality.bound)
            estimator = TokenEstimator(ratios_of(spec.backend))
            self._bench = workbench_of(spec, context, self.transcript, estimator.text)
            kept = {"agenda": self._agenda, "marks": self._marks, "memory": self._memory, "workbench": self._bench}
            context = msgspec.structs.replace(context, **kept, skills=shelf_of(spec, self.transcript))
            self.context = context
            leave = partial(root.stop, EXIT_STUCK)
            self._answering = ModelSelection(spec, self.backend, context.call_root, make, self.transcript, leave)
            self._locality = LocalOnlyGuard(spec, context.call_root, self._stay)
            guard = Guard(spec.policy, context, self._locality)
            self.extensions = extensions_of(spec)
            more = self.extensions.tools if self.extensions is not None else ()
            self.toolbox = make_toolbox(spec.tools, spec.root_tools, context, guard, more)
            self.toolbox.withdraw(spec.withdrawn)
            self.toolbox.took = self._bench.took if self._bench is not None else None
            tools, session = self.toolbox.specs(), self.transcript.session
            self._prompt = PromptBuilder(
                spec,
                self.backend,
                self.toolbox,
                agenda=self._agenda,
                transcript=self.transcript,
                surroundings=ProjectScan(spec.context, context, guard, estimator),
                estimator=estimator,
            )
            # Whoever was asked knows the task; and a conversation that was taken over is not about one.
            self._fresh = session.fresh
            self.hooks = self._make_hooks() if spec.hooks.load or self.extensions is not None else None
            self._phased = any(phase.kind != "off" for phase in (spec.hooks.options.assess, spec.hooks.options.reflect))
            self._phases: Phases | None = None
            # Seeded history is somebody else's: a script goes on where this agent's own responses ended.
            self.backend.learn(session.entries)
            self._held = archived_text(spec.source, self.backend.info().context_limit) if spec.source else ()
            self._load()
            self._archiving: TurnArchiver | None = None
            if spec.archival is not None:
                self._archiving = TurnArchiver(
                    spec.archival,
                    self.transcript,
                    self.backend,
                    root.call_root,
                    summariser=Summarizer(
                        spec.backend,
                        make,  # as it thinks in the conversation: with other words of that its provider has no cache
                        root.call_root,
                        self._purse,
                        tools=tools,
                        seconds=spec.archival.summary_seconds,
                    ),
                    tools=tools,
                    on_fault=self._leave_if_broken,
                    hooks=self._past_hooks,
                )
                if spec.local:
                    self._archiving.stay(spec.backend)
        except BaseException:
            self.transcript.close()
            raise

    async def prompt(self) -> PromptShown:
        """Return the prompt as the next request would say it."""
        live = await self._archiving.block() if self._archiving is not None else ""
        return await self._prompt.shown(live, fresh=self._fresh)

    def ready(self, acknowledged: TranscriptPosition | None = None) -> Ready:
        """Return what the root wants to know of an agent that is up.

        `acknowledged` is the line that the transcript must contain. Raises StoreError when that cannot be checked.
        """
        session, info = self.transcript.session, self.backend.info()
        missing = self.transcript.missing_lines(acknowledged) if acknowledged is not None else ""
        failure = "" if self.context.in_process else worker_namespace.state()
        damage = [
            self.transcript.repaired,
            f"{self.transcript.path}: {missing}" if missing else "",
            worker_namespace.NOT_OFFERED.format(failure) if failure else "",
        ]
        return Ready(
            entries=len(session.entries),
            interrupted=session.interrupted,
            context_tokens=self.backend.context_tokens(),
            context_limit=info.context_limit,
            model=f"{info.provider}:{info.model}" if info.model else info.provider,
            repaired="; ".join(filter(None, damage)),
            transcript=self.transcript.log.position,
        )

    def begin(self) -> CancelToken:
        """Return the brake of the next turn. From now on `cancel` ends that one, also before its first step."""
        self._brake = CancelToken()
        return self._brake

    async def query(self, query_id: str, query: Query, brake: CancelToken) -> TurnFinished:
        """Run a turn and return its end, durable in the transcript. Must not raise, unless cancelled from outside."""
        session, archiving = self.transcript.session, self._archiving
        if archiving is not None:
            archiving.turn_began()
        self.toolbox.turn_began()
        self._agenda.turn_began(query_id)
        self._marks.turn_began(query_id)
        if self._bench is not None:
            self._bench.turn_began(query_id, query.prompt)
        self.toolbox.observe = partial(self._root.called, query_id) if query.observed else None
        self.busy = True
        limits = self.spec.limits
        if query.seconds is not None and query.seconds < limits.turn_seconds:
            limits = msgspec.structs.replace(limits, turn_seconds=query.seconds)
        self._purse.budgeted, self._purse.low = frozenset(query.budgeted), ""
        hooks: AgentHooks | None = None
        reply: Reply | None = None
        try:
            if self._answering.unsettled:
                await self._settle()
            if (query.local or self._locality.bound) and (why := await self._locality.bind()):  # whoever was chosen
                raise ConfigError(f"this conversation is for a model on this machine: {why}")
            self._marks.note((*self.spec.marks, *query.marks))
            frame = self._frame(query)
            hooks = self.hooks_for(query_id, query)
            if hooks is None and self._answering.away:
                await self._answering.turn()
            phases = self._phases_for(query_id, hooks)
            reply = await Turn(
                query_id=query_id,
                agent_id=self.spec.id,
                prompt=query.prompt,
                backend=self.backend,
                toolbox=self.toolbox,
                record=partial(self._record, query_id),
                limits=limits,
                report=self._root.report,
                brake=brake,
                interject=lambda stopping: self._said.take(stopping=stopping),
                heard=self._heard,
                emit=partial(self._root.emit, query_id),
                prepare=self._prepare,
                pause=archiving.turn_paused if archiving is not None else None,
                shorten=partial(self._shorten, query_id),
                purse=self._purse,
                hooks=hooks,
                phases=phases,
                opening=partial(self._open, hooks, query_id, query.prompt),
                frame=frame,
            ).run()
            if self._locality.bound or self._marks.content:
                reply = msgspec.structs.replace(reply, local=self._locality.bound, marks=self._marks.content)
            if self._bench is not None:
                await self._bench.settle()
            self.transcript.turn_end(query_id, reply)
            if hooks is not None:
                await hooks.turn_end(reply)
        except Exception as error:
            traceback.print_exc()
            if hooks is not None:
                await hooks.error(error)
            usage = getattr(error, "usage", None) or (reply.usage if reply is not None else Usage())
            return TurnFinished(
                error=error_info(error),
                usage=usage,
                context_tokens=self.backend.context_tokens(),
                transcript=self.transcript.log.position,
            )
        finally:
            if archiving is not None:
                ended = session.replies.get(query_id)
                await archiving.turn_ended(ended.stop_reason if ended is not None else None)
            self.busy = False
            self._leave_if_broken()
            if hooks is not None:
                await self.hooks_done(hooks)
        return TurnFinished(
            reply=session.replies[query_id],
            context_tokens=self.backend.context_tokens(),
            transcript=self.transcript.log.position,
        )

    def hooks_for(self, query_id: str, query: Query) -> AgentHooks | None:
        """Return the hooks of this turn, None when there are none. Raises ConfigError."""
        self.hooks = self.hooks or (self._make_hooks() if query.hooks else None)
        if self.hooks is not None:
            self.hooks.calls.turn_began(query_id, query.hooks, partial(self._tell_beside, query_id))
        return self.hooks

    def _make_hooks(self) -> AgentHooks:
        # Imported when there are any: a worker without hooks is not to pay for them.
        from ..hooks.hook import HookRegistry
        from ..hooks.loader import configured_hooks
        from ..hooks.runner import HookCalls
        from .hooks import AgentHooks

        theirs = self.extensions.hooks if self.extensions is not None else ()
        own = HookRegistry((*configured_hooks(self.spec.hooks.load, self.spec.hooks.options), *theirs))
        made = HookCalls(own, self.spec, self._root.call_root, say=self.say_to_itself, messages=self.backend.transcript)
        return AgentHooks(made, self._answering, self.transcript.custom)

    def _phases_for(self, query_id: str, hooks: AgentHooks | None) -> Phases | None:
        """Return the phases of this turn, None when nothing is to be done in one."""
        if not self._phased and (hooks is None or "after_assess" not in hooks.calls.on):
            return None
        if self._phases is None:
            # Imported where there are some: the others are not to pay for them.
            from .phases import Phases
            from .side_requests import SideRequests

            side = SideRequests(self._make_backend, self._purse, self._root.call_root, self._answering, self._locality)
            self._phases = Phases(self.spec.hooks.options, side, self.transcript)
        self._phases.turn_began(query_id, hooks, partial(self._tell_beside, query_id))
        return self._phases

    def _past_hooks(self) -> ArchivalHooks | None:
        return self.hooks.past if self.hooks is not None else None

    async def hooks_done(self, hooks: AgentHooks) -> None:
        """The turn that `hooks` were for is over; the process ends when one of them did not return."""
        hooks.turn_ended()
        if hooks.calls.stuck:
            await hooks.calls.report()
            # A thread cannot be ended but with its process; the next query starts another one.
            print(f"leaving: {', '.join(hooks.calls.stuck)} did not return", flush=True)
            self._root.stop(EXIT_STUCK)

    def _tell_beside(self, query_id: str, kind: str, text: str, name: str, is_error: bool) -> None:
        step = self.hooks.calls.step if self.hooks is not None else 0
        self._root.emit(query_id, kind, text, name, step, is_error)

    def happened(self, body: AgentEvent) -> None:
        """Let the agent's own hooks be told of what the root knew first."""
        if self.hooks is not None:
            self.hooks.happened(body)

    def say_to_itself(self, text: str, follow_up: bool) -> None:
        """Let the agent hear `text`, which nobody but this process knows of, as it hears what is steered."""
        self._said.add(SteeringMessage(f"{OWN}{new_id()}", text), follow_up=follow_up)

    async def _stay(self, backend: BackendSpec) -> None:
        """Let the model behind `backend`, of this machine, go on. Raises ConfigError when it cannot be made."""
        if self._archiving is not None:
            self._archiving.stay(backend)
        if backend == self._answering.now:
            return
        if isinstance(self.backend, SwitchableBackend):
            await self.backend.move(self._make_backend(backend))
        self._answering.stays(backend)

    async def _settle(self) -> None:
        self._locality.answered_by(backend := await self._answering.settle())
        if self._archiving is not None:
            self._archiving.answered_by(backend)

    def edit(self, edit: SessionEdit) -> EditResult:
        """Make a change to the session between turns, which is on record when this returns. Raises StoreError."""
        if isinstance(edit.change, MoveLeaf) and self._archiving is not None:
            self._archiving.moved()
        try:
            self.transcript.change(edit)
        finally:
            self._leave_if_broken()
        self._answering.choose(edit.answers)
        self._fresh = self.transcript.session.fresh
        self._load()
        return EditResult(self.backend.context_tokens())

    async def sum_up(self, asked: SummarizeBranch) -> BranchSummarized:
        """Return what is to be said of what the conversation would leave."""
        # Imported when it is needed: few conversations go back.
        from ..context.branch_summary import left_behind, summed_up

        left = left_behind(self.transcript.session, asked.to)
        told = await summed_up(left, self._answering.next, self._make_backend, self._purse, asked.budgeted)
        return BranchSummarized(told.text, told.by_model, told.usage)

    def _load(self) -> None:
        session = self.transcript.session
        self.backend.load((*self._held, *session.messages), session.responses)
        self._prompt.loaded()

    def cancel(self, short: str = "") -> None:
        """End the running turn at its next safe point; `short` of a budget when that is why."""
        self._brake.pull(short)
        if self._archiving is not None:
            self._archiving.hurry()

    def steer(self, said: SteeringMessage, *, follow_up: bool) -> None:
        """Let the agent hear `said` before its next model request, a follow-up when it would stop; once."""
        if said.id in self.transcript.session.said:
            self._heard(said.id)  # the process before this one was killed before it could say so
        else:
            self._said.add(said, follow_up=follow_up)

    def unsay(self, ids: tuple[str, ...]) -> list[str]:
        """Let the agent not hear what `ids` name; return the ids of what it had not heard."""
        return self._said.drop(ids)

    def hear(self, steering: QueueMode, follow_up: QueueMode) -> None:
        """Let the agent hear so many things at once from now on."""
        self._said.modes(steering, follow_up)

    def _heard(self, id: str) -> None:
        if not id.startswith(OWN):
            self._root.heard(id)

    async def farewell(self, seconds: float) -> None:
        """Let hooks hear that the process ends, and wait so long for them."""
        if self.hooks is not None:
            try:
                async with asyncio.timeout(seconds):
                    await self.hooks.close()
            except TimeoutError:
                print("leaving: hooks did not end in time", flush=True)

    def close(self) -> None:
        """End what the tools keep running, make everything durable and give the transcript up."""
        try:
            if self._archiving is not None:
                self._archiving.stop()
            self.toolbox.close()
        finally:
            self.transcript.close()

    async def _prepare(self) -> None:
        """Let the next request end with what is true now and may not be so at the one after it."""
        live = await self._archiving.before_request() if self._archiving is not None else ""
        if self._bench is not None:
            self._prompt.objects = await self._bench.part()
        self._prompt.before_request(live, self._archiving, low=self._purse.low)

    async def _shorten(self, turn: str, why: Shorter) -> CompactionDone | None:
        """Let the conversation become shorter where that is due, or wanted; `why` is as `Shorter` says."""
        if why == "archive" and self._archiving is not None:
            await self._archiving.shorten()
        why, rules = "size" if why == "archive" else why, self.spec.compaction
        at = rules.at(self.backend.info().context_limit) if rules is not None else 0
        due = why == "hook" or (rules is not None and (why == "refused" or 0 < at <= self.backend.context_tokens()))
        if self.spec.source is not None or not due:
            return None
        try:
            return await self._compacted(turn, why)
        except StoreError:
            raise
        except Exception:
            traceback.print_exc()  # the conversation is what it was
            return None

    async def compact(self, id: str, asked: CompactRequest) -> CompactionDone:
        """Let the beginning of the conversation give way now, between turns; on record when this returns.

        Raises ConfigError when nothing can go, StoreError. Whoever is cancelled leaves the conversation as it was.
        """
        hooks = self.hooks_for(id, Query("", hooks=asked.hooks))
        self._purse.budgeted, self.busy = frozenset(asked.budgeted), True
        try:
            if self._answering.unsettled:
                await self._settle()
            return cast("CompactionDone", await self._compacted("", "asked", asked.instructions))
        finally:
            self.busy = False
            self._leave_if_broken()
            if hooks is not None:
                await self.hooks_done(hooks)

    async def _compacted(self, turn: str, reason: CompactionReason, instructions: str = "") -> CompactionDone | None:
        if self._compactor is None:
            # Imported when it is needed: most conversations never grow so long.
            from ..context.compactor import Compactor

            self._compactor = Compactor(
                self.spec.compaction or CompactionSpec(),
                self.transcript,
                self.backend,
                self._purse,
                model=lambda: self._answering.now,
                make=self._make_backend,
                memory=self._memory,
            )
        done = await self._compactor.compact(turn, reason, self._past_hooks(), instructions)
        if done is not None and self._archiving is not None:
            self._archiving.moved()
        return done

    def _frame(self, query: Query) -> Callable[[str], str]:
        """Return what puts before a prompt what the agent is told with it: its task, once, and how the turn before it
        ended where that was no end of its own."""
        mark, fresh = mark_of(self.transcript.session, ended=query.ended, died=query.died), self._fresh
        return lambda prompt: first_prompt(self.spec, mark(prompt)) if fresh else mark(prompt)

    async def _open(self, hooks: AgentHooks | None, turn: str, prompt: str) -> None:
        """Let the turn's prompt be put together, and the agent be told, once, what stands before its task."""
        if self._memory is not None:
            self._prompt.memory = await self._memory.turn_began(turn, prompt)
        if self.context.skills is not None:
            self._prompt.changed = await self.context.skills.changed()
        if self._bench is not None:
            self._prompt.objects = await self._bench.part()
        live = self._archiving.block if self._archiving is not None else None
        await self._prompt.begin(hooks, live, fresh=self._fresh)

    def _record(self, turn: str, message: Message, usage: Usage | None = None, said: str = "") -> None:
        if (cut := self.transcript.session.interrupted) not in (None, turn):
            self.transcript.turn_start(turn, cut)  # with the prompt that tells of it, and no sooner
        self.transcript.message(message, turn, usage, said=said)
        if usage is not None and self._purse.budgeted:
            self.transcript.log.sync()  # what was spent stays so, also when the power fails
        self._fresh = False  # now the task is on record

    def _sync_soon(self) -> None:
        if not self._sync_due:
            self._sync_due = True
            asyncio.get_running_loop().call_later(GROUP_SYNC_SECONDS, self._sync)

    def _sync(self) -> None:
        self._sync_due = False
        try:
            if self.transcript.log.dirty:
                self.transcript.log.sync()
        except StoreError as error:
            print(error, flush=True)
            self._root.stop(EXIT_STORE)

    def _leave_if_broken(self) -> None:
        """End this process when what its file holds is uncertain: the next one of this agent reads it anew."""
        if self.transcript.broken and not self.busy:
            self._root.stop(EXIT_STORE)
