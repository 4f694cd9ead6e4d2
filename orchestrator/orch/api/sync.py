"""The same API for programs without an event loop: one thread runs the loop, every method waits for it."""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from orch_protocol.agent.config import Config
from orch_protocol.agent.project import ProjectContext
from orch_protocol.agent.spec import Limits, QueueMode, Template
from orch_protocol.core.approval import Permission
from orch_protocol.core.budget import Budget, BudgetShown
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Message, Reply
from orch_protocol.core.prompts import PromptShown
from orch_protocol.core.workspace import WorkspaceShown
from orch_protocol.resources.slash_commands import CommandCatalog, Executed
from orch_protocol.services.requests import AgentRow, ArchiveRow, Hit, Mapped, Pruned, Shown, Waited
from orch_protocol.services.run_events import RunEvent
from orch_protocol.services.steering_queue import Queued
from orch_protocol.session.tree import Branch, Compacted, Kept, PrunedSessions, SessionChecked, SessionShown
from orch_worker.policy.policy_callback import PolicyFunction

from ..config.interrupts import Presses
from ..policy.approvals import Approver
from ..policy.root_hooks import HookRegistrar
from ..processes.base import Launcher
from ..resources.prompt_templates import PromptTemplate
from ..supervisor.watchers import Observer
from .agent import AsyncSubagent, OnEvent
from .arguments import Scripted, ToolLike, listed
from .orchestrator import AsyncOrchestrator, Skilled, Templated

if TYPE_CHECKING:
    from .structured_output import Returned

__all__ = ["Orchestrator", "Session", "Subagent"]


# --- One agent, for programs without an event loop ---

T = TypeVar("T")


class Subagent:
    """One agent, for ordinary programs. Every method may raise AgentError; see `orch_protocol.core.errors`."""

    def __init__(self, orchestrator: Orchestrator, agent: AsyncSubagent) -> None:
        self._orchestrator = orchestrator
        self._agent = agent
        self.id = agent.id

    def __repr__(self) -> str:
        return repr(self._agent).replace(type(self._agent).__name__, type(self).__name__, 1)

    @property
    def seq(self) -> int:
        """Its sequence number."""
        return self._agent.seq

    @property
    def name(self) -> str:
        """Its name."""
        return self._agent.name

    @property
    def pid(self) -> int | None:
        """The process id of its worker, None while it has none."""
        return self._agent.pid

    @overload
    def query(
        self, prompt: str, *, timeout: float | None = None, returns: type[T], on_event: OnEvent | None = None
    ) -> T: ...
    @overload
    def query(
        self, prompt: str, *, timeout: float | None = None, return_name: str, on_event: OnEvent | None = None
    ) -> Returned: ...
    @overload
    def query(
        self, prompt: str, *, timeout: float | None = None, returns: None = None, on_event: OnEvent | None = None
    ) -> Reply: ...
    def query(
        self,
        prompt: str,
        *,
        timeout: float | None = None,
        returns: type[T] | None = None,
        return_name: str | None = None,
        on_event: OnEvent | None = None,
    ) -> Reply | Returned | T:
        """Ask and wait for the reply, at most `timeout` seconds; then QueryTimeoutError, and the agent works on.

        With `returns` (a msgspec Struct, or any type that JSON can be) the result is a value of it: the model is told
        its schema, and once what was wrong with its answer; then BadReplyError. With `return_name` the result has, in
        its `value`, what the agent's `run_python` has bound to that name by then, or holds under that handle; or
        NoValueError, and the reply can be collected `again`. `on_event` is called with each TurnEvent, on the
        orchestrator's thread; what it raises is logged (by `asyncio`) and stops nothing.
        """
        asked: Any = {"timeout": timeout, "returns": returns, "return_name": return_name, "on_event": on_event}
        found: Reply | Returned | T = self._orchestrator._wait(self._agent.query(prompt, **asked))
        return found

    def value(self, name: str) -> Any:
        """Return what the agent's `run_python` has bound to `name`, or holds under that handle, as it is now.

        Plain data, text, bytes, arrays and data frames leave its process, never as pickles. Raises NoValueError.
        """
        return self._orchestrator._wait(self._agent.value(name))

    def submit(self, prompt: str) -> Future[Reply]:
        """Start a query and return a future of its reply. The reply can also be collected, once.

        Raises AgentBusyError at once if a query is running already.
        """
        owner = self._orchestrator
        on_loop_thread = threading.current_thread() is owner._thread
        reply = self._agent.submit(prompt) if on_loop_thread else owner._wait(self._submit(prompt))
        return owner._start(_result(reply))

    def collect(self, *, timeout: float | None = None, again: bool = False, query: str = "") -> Reply | None:
        """Take the reply to the last query, once; None when it is not there within `timeout` seconds.

        Answers to queries that were put without waiting (`orch query --no-wait`) come first, the oldest before others.
        `query` is the id of the query whose answer is wanted instead. `again` returns an answer that was taken. Raises
        NoResultError when no such answer is kept.
        """
        return self._orchestrator._wait(self._agent.collect(timeout=timeout, again=again, query=query))

    def state(self) -> AgentRow:
        """Return what the agent is and does just now."""
        return self._orchestrator._wait(self._agent.state())

    def show(self, messages: int = 20) -> Shown:
        """Return the agent with the last `messages` messages of its transcript."""
        return self._orchestrator._wait(self._agent.show(messages))

    def prompt_parts(self) -> PromptShown:
        """Return what its next request would say besides the conversation, part by part; `render` makes texts of it."""
        return self._orchestrator._wait(self._agent.prompt_parts())

    def ping(self, payload: bytes = b"", *, timeout: float = 10.0) -> None:
        """Return once the agent's process has answered; AgentDiedError when it has none or keeps silent."""
        self._orchestrator._wait(self._agent.ping(payload, timeout=timeout))

    def steer(self, text: str) -> str:
        """Say `text` to the agent: it hears it before its next model request, or with its next query.

        Returns the id of what was said, which `queue` shows until it is heard.
        """
        return self._orchestrator._wait(self._agent.steer(text))

    def follow_up(self, text: str) -> str:
        """Let the agent go on with `text` when it would stop; one that does not work is asked at once.

        Returns the id of what was said, or of the query that it became.
        """
        return self._orchestrator._wait(self._agent.follow_up(text))

    def queue(self) -> list[Queued]:
        """Return what was said to the agent and it has not heard yet, in order: steering, then follow-ups."""
        return self._orchestrator._wait(self._agent.queue())

    def clear_queue(self, *ids: str) -> list[Queued]:
        """Take back what the agent has not heard: what `ids` name, or all of it. Returns what that was.

        What is not among it, the agent has heard meanwhile. Raises ConfigError for an id under which nothing waits.
        """
        return self._orchestrator._wait(self._agent.clear_queue(*ids))

    def set_queue(self, *, steering: QueueMode | None = None, follow_up: QueueMode | None = None) -> None:
        """Let the agent hear one thing at a time, or all that wait, from now on; None leaves it as it is."""
        self._orchestrator._wait(self._agent.set_queue(steering=steering, follow_up=follow_up))

    def set_planning(self, on: bool = True) -> None:
        """Let the agent go on in plan mode, or without it; see `AsyncSubagent.set_planning`."""
        self._orchestrator._wait(self._agent.set_planning(on))

    def narrow(self, tools: Iterable[str]) -> None:
        """Let the agent keep of its tools only these (names, and categories), and everybody below it no more than that.

        For good, and from when this returns: what runs then goes on. Raises ToolNotGrantedError for a tool that it may
        not use: nothing is ever given.
        """
        self._orchestrator._wait(self._agent.narrow(tools))

    def cancel(self, *, hard: bool = False) -> None:
        """End the turn under way: its query is answered with stop reason `cancelled`. `hard` kills the process."""
        self._orchestrator._wait(self._agent.cancel(hard=hard))

    def kill(self) -> None:
        """End the agent and everything below it. Its transcript stays, and `resume` brings it back."""
        self._orchestrator._wait(self._agent.kill())

    def resume(self, *, max_cost: float | None = None, budget: Budget | None = None) -> None:
        """Let the agent answer again after a kill, and use so much in all. See AsyncSubagent.resume."""
        self._orchestrator._wait(self._agent.resume(max_cost=max_cost, budget=budget))

    def commands(self) -> CommandCatalog:
        """Return the commands that can be executed in its session: built-in ones, templates, those of extensions."""
        return self._orchestrator._wait(self._agent.commands())

    def execute(self, line: str) -> Executed:
        """Execute a command of its session, such as `/status`. See AsyncSubagent.execute."""
        return self._orchestrator._wait(self._agent.execute(line))

    # Its session: a tree, of which the conversation is one path.

    def tree(self, most: int | None = None) -> SessionShown:
        """Return the agent's session, entry by entry, or its last `most` entries; read from the file."""
        return self._orchestrator._wait(self._agent.tree(most))

    def branches(self) -> list[Branch]:
        """Return the ways that the conversation went, the current one among them."""
        return self._orchestrator._wait(self._agent.branches())

    def checkout(self, entry: str | None, *, summary: str | None = None, summarise: bool = False) -> None:
        """Let the conversation go on behind `entry`, None: anew. What was said since stays, on its own branch.

        An entry is an id, the beginning of one, or a label. With `summary` the model is told what came of what it
        leaves; with `summarise` its model writes that, or without one it is what was asked and answered there. Raises
        AgentBusyError while a turn runs, EntryNotFoundError.
        """
        self._orchestrator._wait(self._agent.checkout(entry, summary=summary, summarise=summarise))

    def branch(self, entry: str, *, summary: str | None = None, summarise: bool = False) -> str | None:
        """Go back as `checkout` does, but before `entry` when it is a question; then return what was asked."""
        return self._orchestrator._wait(self._agent.branch(entry, summary=summary, summarise=summarise))

    def label(self, entry: str, label: str | None) -> None:
        """Give an entry a name, by which it can be found; None takes it away."""
        self._orchestrator._wait(self._agent.label(entry, label))

    def title(self, title: str | None) -> None:
        """Give the session a name."""
        self._orchestrator._wait(self._agent.title(title))

    def set_model(self, model: str) -> str:
        """Let another model go on with the conversation; see `AsyncSubagent.set_model`."""
        return self._orchestrator._wait(self._agent.set_model(model))

    def set_thinking(self, level: str) -> str:
        """Let the model think as much as `level` says; see `AsyncSubagent.set_thinking`."""
        return self._orchestrator._wait(self._agent.set_thinking(level))

    def inform(self, text: str, *, kind: str = "note", display: bool = True) -> None:
        """Tell the model something between turns, without asking. People are shown it with `display` alone."""
        self._orchestrator._wait(self._agent.inform(text, kind=kind, display=display))

    def keep(self, kind: str, data: Any) -> str:
        """Keep `data`, anything that JSON can be, with the session; return the id of its entry.

        The model is not told. It is on the way that the conversation goes: who goes back before it does not have it, a
        copy has it. Raises ConfigError for what JSON cannot be, AgentBusyError while a turn runs.
        """
        return self._orchestrator._wait(self._agent.keep(kind, data))

    def kept(self, kind: str | None = None) -> list[Kept]:
        """Return what was kept with the session, of one kind or all, in order; of several the last one holds."""
        return self._orchestrator._wait(self._agent.kept(kind))

    def compact(self, instructions: str = "") -> Compacted:
        """Let what was said first give way to a summary now, all but the last turns; return what went, and the sizes.

        Whoever writes the summary is told `instructions`. An agent without a process gets one. Raises AgentBusyError
        while a turn runs, ConfigError when all that could go is no longer than a summary of it.
        """
        return self._orchestrator._wait(self._agent.compact(instructions))

    def workspace(self, about: str | None = None) -> WorkspaceShown:
        """Return what the agent has at hand, those first that say most about `about`, None: the latest first.

        Files are compared with the disk: what was made from one that has changed is `stale`.
        """
        return self._orchestrator._wait(self._agent.workspace(about))

    def pin(self, *names: str) -> tuple[str, ...]:
        """Let the agent be told first of the objects called `names`, and never forget them; return their full names.

        Raises AgentBusyError while a turn runs, EntryNotFoundError, AmbiguousRefError.
        """
        return self._orchestrator._wait(self._agent.pin(*names))

    def unpin(self, *names: str) -> tuple[str, ...]:
        """Let objects be like others again; see `pin`."""
        return self._orchestrator._wait(self._agent.unpin(*names))

    def prune_workspace(self, *names: str, turns: int | None = None, bytes: int | None = None) -> tuple[str, ...]:
        """Forget the objects called `names`; without any, what its rules would have it forget. Return their names.

        `turns` without use, and `bytes` of all together, are other bounds than these. Raises as `pin` does.
        """
        return self._orchestrator._wait(self._agent.prune_workspace(*names, turns=turns, bytes=bytes))

    def fsck(self, *, repair: bool = False) -> SessionChecked:
        """Return what is wrong with the session's file: torn writes, damage, ids twice, circles, another's file.

        With `repair` a mended copy takes its place, and the damaged file is kept beside it (`kept`). Raises
        AgentBusyError while a turn runs, ForeignFileError for a file that is none of the agent's, StoreError.
        """
        return self._orchestrator._wait(self._agent.fsck(repair=repair))

    def fork(self, entry: str | None = None, *, name: str | None = None, model: str | None = None) -> Subagent:
        """Return another agent with a copy of the conversation up to `entry`, None: as it is, archives included.

        It may do what this one may; each goes its own way from there. Entries keep their ids in the copy. `model` is
        another one that is to answer. Raises AgentBusyError when a turn runs and no entry is named.
        """
        forked = self._orchestrator._wait(self._agent.fork(entry, name=name, model=model))
        return Subagent(self._orchestrator, forked)

    async def _submit(self, prompt: str) -> asyncio.Future[Reply]:
        return self._agent.submit(prompt)


class Session(Subagent):
    """An agent that one talks to: what any agent can do, and `run`."""

    def run(self, text: str, *, timeout: float | None = None, on_event: OnEvent | None = None) -> Reply:
        """Say `text`, and return what the agent says to it; see `query`.

        With `archival.async = false`, `archived_to` of the reply is the holder if the turn was archived.
        """
        return self.query(text, timeout=timeout, on_event=on_event)


GRACE_SECONDS = 1.0
END_SECONDS = 8.0


class Orchestrator(HookRegistrar, Templated, Skilled):
    """A root for ordinary programs; the parameters are AsyncOrchestrator's.

        with Orchestrator() as o:
            agent = o.spawn("Explain this repo")
            print(agent.query("What does README promise?").text)

    Runs from construction until `close`, the end of the `with` block, or the end of the program.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        config: Config | None = None,
        run: str | None = None,
        home: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        keys: Mapping[str, str] | None = None,
        environment: Iterable[str] = (),
        approve: Approver | None = None,
        policy: PolicyFunction | None = None,
        launcher: Callable[[str, Path], Launcher] | None = None,
    ) -> None:
        self._pid = os.getpid()
        self._closed = False
        self._ending: Future[None] | None = None
        self._lock = threading.RLock()  # a signal handler may close what it interrupted
        self._aio = AsyncOrchestrator(
            model,
            config=config,
            run=run,
            home=home,
            env=env,
            keys=keys,
            environment=environment,
            approve=approve,
            policy=policy,
            launcher=launcher,
        )
        self._hooks, self._templates = self._aio._hooks, self._aio._templates
        self._skill_providers, self.config, self.home = self._aio._skill_providers, self._aio.config, self._aio.home
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="orch", daemon=True)
        self._thread.start()
        atexit.register(self._close)
        try:
            self._wait(self._aio.start())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End every process. Transcripts stay; a named run's agents answer again when it is opened anew.

        Takes at most some seconds, also when Ctrl-C comes meanwhile, however often: it has its effect when all is done.
        Only after ten seconds it leaves the rest to the end of the program. In a fork of the program it does nothing.
        """
        if self._close():
            signal.raise_signal(signal.SIGINT)

    def _close(self) -> int:
        """Do that, and return how often Ctrl-C came meanwhile: when the program ends anyway it has nothing to add."""
        if os.getpid() != self._pid:
            return 0
        self._forbid_own_thread()
        with Presses(0) as presses:
            with self._lock:
                if self._closed:
                    return 0
                self._closed = True
                self._ending = ending = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
                ending.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._loop.stop))
            try:
                ending.result()
            finally:
                # Else the thread goes on with it as long as the program does: what is cut off half way complains.
                if ending.done():
                    self._thread.join()
                    self._loop.close()
                    atexit.unregister(self._close)
        return presses.held

    def _run(self) -> None:
        while self._ending is None or not self._ending.done():
            try:
                self._loop.run_forever()
            except BaseException as error:
                # sys.exit in a callback of a future: everybody would wait for ever.
                what = "orch: a function of the program's would have ended the orchestrator's thread"
                self._loop.call_exception_handler({"message": what, "exception": error})

    async def _end(self) -> None:
        try:
            await self._aio.close()
        finally:
            # Whoever waits in another thread hears how that ended, before the loop is gone; what goes on is cancelled.
            late = await _wait_for(asyncio.all_tasks() - {asyncio.current_task()}, GRACE_SECONDS)
            for task in late:
                if not task.cancelling():
                    task.cancel()
            await _wait_for(late, END_SECONDS)

    def __enter__(self) -> Orchestrator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def spawn(
        self,
        task: str,
        *,
        preset: str | None = None,
        tools: Iterable[ToolLike] | None = None,
        model: str | None = None,
        thinking: str | None = None,
        backend: Scripted | None = None,
        name: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        history: Sequence[Message] = (),
        limits: Limits | None = None,
        max_cost: float | None = None,
        budget: Budget | None = None,
        template: Template | None = None,
        queue_mode: QueueMode = "one-at-a-time",
        follow_up_mode: QueueMode | None = None,
        plan: bool = False,
        context: ProjectContext | None = None,
        persist: bool = True,
        prompt_template: str | PromptTemplate | None = None,
        vars: Mapping[str, object] | None = None,
        skills: Iterable[str] | None = None,
        namespace: dict[str, Any] | None = None,
        usable_credentials: Iterable[str] = (),
        depth: Literal[0, 1] = 1,
        peers: Iterable[Subagent | str | int] = (),
        archives: Iterable[str] = (),
    ) -> Subagent:
        """Start an agent with a task and a fixed set of tools, and return it once its process is up.

        `tools` (names of built-in tools and functions of this program) beats `preset`. `history` seeds its transcript.
        `budget` is what it may use in all, with everything that it spawns, and `max_cost` its USD; both beat `limits`.
        With `plan` it begins in plan mode: nothing is written or run before somebody approved its plan.
        `context` is how much it is told of the project in `cwd`, None: as configured for its preset.
        Without `persist` nothing of it is kept on a disk, nor of what it spawns: it is gone with this orchestrator.
        `prompt_template` says who it is: a template, its name or file, with `vars` for its variables.
        `skills` names those that it has, None: all there are in `cwd`, or as configured for its preset.
        `namespace` is a dict of this program's in which its `run_python` runs, for one that lives in this process.
        `usable_credentials` are credential paths, such as "~/.ssh", that its commands can read without approval.
        At `depth` 0 it is one that a person talks to: it may spawn, whatever `allow_nested` says. See `session`.
        `peers` are agents that it may ask besides those below it; a peer works with its own rights. It is granted the
        tools for that. `archives` are ids of archives that it may search, read and ask.
        Raises SpawnError, ConfigError.
        """
        agent = self._wait(
            self._aio.spawn(
                task,
                preset=preset,
                tools=tools,
                model=model,
                thinking=thinking,
                backend=backend,
                name=name,
                cwd=cwd,
                env=env,
                history=history,
                limits=limits,
                max_cost=max_cost,
                budget=budget,
                template=template,
                queue_mode=queue_mode,
                follow_up_mode=follow_up_mode,
                plan=plan,
                context=context,
                persist=persist,
                depth=depth,
                prompt_template=prompt_template,
                vars=vars,
                skills=skills,
                namespace=namespace,
                peers=[peer.id if isinstance(peer, Subagent) else peer for peer in listed("peers", peers)],
                archives=archives,
                usable_credentials=usable_credentials,
            )
        )
        return Subagent(self, agent)

    def import_session(
        self,
        path: str | os.PathLike[str],
        *,
        which: int | None = None,
        repair: bool = False,
        preset: str | None = None,
        tools: Iterable[str] | None = None,
        model: str | None = None,
        backend: Scripted | None = None,
        name: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
        limits: Limits | None = None,
        max_cost: float | None = None,
        budget: Budget | None = None,
    ) -> Subagent:
        """Return a new agent that goes on with the conversation in the file at `path`, and has no process until it is
        asked. The file is only read; see AsyncOrchestrator.import_session.
        """
        agent = self._wait(
            self._aio.import_session(
                path,
                which=which,
                repair=repair,
                preset=preset,
                tools=tools,
                model=model,
                backend=backend,
                name=name,
                cwd=cwd,
                limits=limits,
                max_cost=max_cost,
                budget=budget,
            )
        )
        return Subagent(self, agent)

    def export_session(
        self, ref: str | int, *, format: str = "pi", output: str | os.PathLike[str] | None = None
    ) -> str:
        """Return the conversation of the agent `ref`, what was archived in its place, in a format such as `pi`, `md`,
        `html`; with `output` it is written to that file too. See AsyncOrchestrator.export_session.
        """
        return self._wait(self._aio.export_session(ref, format=format, output=output))

    def session(
        self,
        *,
        tools: Iterable[ToolLike] | None = None,
        resume: bool | str | int = False,
        history: Sequence[Message] | None = None,
        system: str | None = None,
        approve: Approver | None = None,
        plan: bool = False,
        preset: str | None = None,
        model: str | None = None,
        backend: Scripted | None = None,
        name: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
        limits: Limits | None = None,
        budget: Budget | None = None,
    ) -> Session:
        """Return an agent to talk to: `session.run("...")`, `session.execute("/status")`. See AsyncOrchestrator."""
        agent = self._wait(
            self._aio.session(
                tools=tools,
                resume=resume,
                history=history,
                system=system,
                approve=approve,
                plan=plan,
                preset=preset,
                model=model,
                backend=backend,
                name=name,
                cwd=cwd,
                limits=limits,
                budget=budget,
            )
        )
        return Session(self, agent)

    def get(self, ref: str | int) -> Subagent:
        """Return the agent that `ref` (number, id, unique prefix, name) means. Raises AgentNotFoundError and kin."""
        return Subagent(self, self._wait(self._aio.get(ref)))

    def agents(self, *, all: bool = False) -> list[AgentRow]:
        """Return every agent as it is now; killed ones only with `all`."""
        return self._wait(self._aio.agents(all=all))

    def events(self, since: int = 0, *, ref: str | None = None, timeout: float = 0.0) -> list[RunEvent]:
        """Return what happened after event `since`, 1,000 at most; wait `timeout` seconds when that is nothing."""
        return self._wait(self._aio.events(since, ref=ref, timeout=timeout))

    def wait(
        self,
        *agents: Subagent | str | int,
        mode: Literal["any", "all"] | int = "all",
        timeout: float | None = None,
    ) -> Waited:
        """Wait until any, all or `mode` of the agents are not busy, at most `timeout` seconds."""
        refs = [agent.id if isinstance(agent, Subagent) else agent for agent in agents]
        return self._wait(self._aio.wait(*refs, mode=mode, timeout=timeout))

    def permissions(self, folder: str | None = None) -> list[Permission]:
        """Return what was approved for later and still holds, in `folder` (None: anywhere), with when it ends."""
        return self._wait(self._aio.permissions(folder))

    def revoke(self, *ids: str) -> list[Permission]:
        """Take permissions back and return them: what they covered is asked about anew. ConfigError for unknown ids."""
        return self._wait(self._aio.revoke(*ids))

    def add_observer(self, observer: Observer) -> None:
        """Let `observer` be called with a CallEvent for all that becomes of each call of a tool, at any depth.

        From each agent's next turn on; one event after the other, in threads beside the run: what an observer takes, or
        raises, is its own affair. `close` lets it hear the rest, for some seconds.
        """
        self._wait(_do(lambda: self._aio.add_observer(observer)))

    def remove_observer(self, observer: Observer) -> None:
        """Call it no more."""
        self._wait(_do(lambda: self._aio.remove_observer(observer)))

    def map(self, refs: Iterable[Subagent | str | int], prompt: str, *, timeout: float | None = None) -> list[Mapped]:
        """Ask agents and holders the same, some at a time; return what each said, in order. One failure is its own."""
        named = [agent.id if isinstance(agent, Subagent) else agent for agent in listed("refs", refs)]
        return self._wait(self._aio.map(named, prompt, timeout=timeout))

    def archives(self, ref: str | int | None = None) -> list[ArchiveRow]:
        """Return the archives of the agent `ref` and of those below it, None: of all, in the order they were made."""
        return self._wait(self._aio.archives(ref))

    def search_archive(self, query: str, *, ref: str | int | None = None, limit: int = 10) -> list[Hit]:
        """Return up to `limit` places in archives where `query` stands, or what resembles it, the best first."""
        return self._wait(self._aio.search_archive(query, ref=ref, limit=limit))

    def read_archive(self, id: str, *, first: int = 1, last: int | None = None) -> list[Message]:
        """Return the messages `first` to `last` (from 1, both included) of an archive, exactly as they were."""
        return self._wait(self._aio.read_archive(id, first=first, last=last))

    def prune_archives(self, *, older: float | str, ref: str | int | None = None, dry_run: bool = False) -> Pruned:
        """Delete for good what was archived longer ago than `older` (seconds, or a text such as "30d"): of the agent
        `ref` and those below it, None: of all. With `dry_run` only tell what would go.

        Agents that idle go cold for it; one that works keeps its archives, and is told of in `busy`. Raises
        ConfigError, StoreError.
        """
        return self._wait(self._aio.prune_archives(older=older, ref=ref, dry_run=dry_run))

    def prune_sessions(
        self, *, older: float | str, keep: int = 0, idle: bool = False, dry_run: bool = False
    ) -> PrunedSessions:
        """Delete for good the sessions of agents that were over longer ago than `older` (seconds, or a text such as
        "30d"), but for the `keep` of them that were active last; with `idle` also of those that nobody asked for as
        long. With `dry_run` only tell what would go.

        Whoever asks for more of them gets a SessionDeletedError. Raises ConfigError, StoreError.
        """
        return self._wait(self._aio.prune_sessions(older=older, keep=keep, idle=idle, dry_run=dry_run))

    def kill(self, *refs: str | int, all: bool = False) -> tuple[str, ...]:
        """End agents and everything below them; return the ids, children first. Transcripts stay."""
        return self._wait(self._aio.kill(*refs, all=all))

    def resume(self, ref: str | int, *, max_cost: float | None = None, budget: Budget | None = None) -> Subagent:
        """Let a killed or failed agent answer again, and any agent use so much in all. See AsyncOrchestrator.resume."""
        return Subagent(self, self._wait(self._aio.resume(ref, max_cost=max_cost, budget=budget)))

    def budget(self, *, max_cost: float | None = None, budget: Budget | None = None) -> BudgetShown:
        """Let all agents together use so much; return what they may and did use. See AsyncOrchestrator.budget."""
        return self._wait(self._aio.budget(max_cost=max_cost, budget=budget))

    def _start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `work` on the loop's thread; its future cancels it when cancelled."""
        if os.getpid() != self._pid:
            work.close()
            raise ConfigError(f"this orchestrator belongs to process {self._pid}; a forked child must make its own")
        with self._lock:
            if self._closed:
                work.close()
                raise ConfigError("this orchestrator is closed")
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._forbid_own_thread()
        except ConfigError:
            work.close()
            raise
        future: Future[T] | None = None
        done = threading.Lock()
        done.acquire()
        try:
            with Presses(0) as presses:  # one that came before there was a future would leave somebody waiting for it
                future = self._start(work)
                future.add_done_callback(lambda _: done.release())
            if presses.held:
                signal.raise_signal(signal.SIGINT)
            # Not in `result`: an interrupt in the instant in which that takes the future's lock leaves it taken, and
            # then the loop waits for it for ever.
            done.acquire()
            return future.result()
        except BaseException:
            # Ctrl-C ends the waiting; what the agent does is its own business.
            if future is not None:
                future.cancel()
            raise

    def _forbid_own_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise ConfigError(
                "this runs on the thread that would have to answer, and would wait for ever: so do `async` tools, "
                "hooks and approvers, `on_event`, and what is called when a future is done. Let a tool be a plain "
                "function; elsewhere, start a thread"
            )


async def _result(future: asyncio.Future[T]) -> T:
    return await future


async def _wait_for(tasks: set[asyncio.Task[Any]], seconds: float) -> set[asyncio.Task[Any]]:
    """Wait until `tasks` are done, at most `seconds`; return those that are not."""
    return (await asyncio.wait(tasks, timeout=seconds))[1] if tasks else set()


async def _do(act: Callable[[], None]) -> None:
    act()
