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
from typing import Any, Literal, TypeVar, overload

from orch_protocol.approval import Permission
from orch_protocol.config import Config
from orch_protocol.errors import ConfigError
from orch_protocol.messages import Message, Reply
from orch_protocol.project import ProjectContext
from orch_protocol.services import AgentRow, ArchiveRow, Hit, Mapped, Pruned, Shown, Waited
from orch_protocol.sessions import Branch, SessionShown
from orch_protocol.spec import Limits, QueueMode, Template
from orch_worker.opinion import PolicyFunction

from .aio import AsyncOrchestrator
from .approvals import Approver
from .arguments import Scripted, ToolLike
from .handles import AsyncSubagent, OnEvent
from .interrupts import Presses
from .launchers.base import Launcher
from .root_hooks import Hookable
from .watchers import Observer

__all__ = ["Orchestrator", "Subagent"]

GRACE_SECONDS = 1.0
END_SECONDS = 8.0

T = TypeVar("T")


class Orchestrator(Hookable):
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
        approve: Approver | None = None,
        policy: PolicyFunction | None = None,
        launcher: Callable[[str, Path], Launcher] | None = None,
    ) -> None:
        self._pid = os.getpid()
        self._closed = False
        self._lock = threading.RLock()  # a signal handler may close what it interrupted
        self._aio = AsyncOrchestrator(
            model,
            config=config,
            run=run,
            home=home,
            env=env,
            keys=keys,
            approve=approve,
            policy=policy,
            launcher=launcher,
        )
        self._hooks = self._aio._hooks
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="orch", daemon=True)
        self._thread.start()
        atexit.register(self.close)
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
        if os.getpid() != self._pid:
            return
        self._forbid_own_thread()
        with Presses(0) as presses:
            with self._lock:
                if self._closed:
                    return
                self._closed = True
                ending = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
                ending.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._loop.stop))
            try:
                ending.result()
            finally:
                # Else the thread goes on with it as long as the program does: what is cut off half way complains.
                if ending.done():
                    self._thread.join()
                    self._loop.close()
                    atexit.unregister(self.close)
        if presses.held:
            signal.raise_signal(signal.SIGINT)

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
        backend: Scripted | None = None,
        name: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        history: Sequence[Message] = (),
        limits: Limits | None = None,
        max_cost: float | None = None,
        template: Template | None = None,
        queue_mode: QueueMode = "one-at-a-time",
        plan: bool = False,
        context: ProjectContext | None = None,
    ) -> Subagent:
        """Start an agent with a task and a fixed set of tools, and return it once its process is up.

        `tools` (names of built-in tools and functions of this program) beats `preset`. `history` seeds its transcript.
        `max_cost` is what it may spend in USD, with everything that it spawns; it beats that of `limits`.
        With `plan` it begins in plan mode: nothing is written or run before somebody approved its plan.
        `context` is how much it is told of the project in `cwd`, None: as configured for its preset.
        Raises SpawnError, ConfigError.
        """
        agent = self._wait(
            self._aio.spawn(
                task,
                preset=preset,
                tools=tools,
                model=model,
                backend=backend,
                name=name,
                cwd=cwd,
                env=env,
                history=history,
                limits=limits,
                max_cost=max_cost,
                template=template,
                queue_mode=queue_mode,
                plan=plan,
                context=context,
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

    def get(self, ref: str | int) -> Subagent:
        """Return the agent that `ref` (number, id, unique prefix, name) means. Raises AgentNotFoundError and kin."""
        return Subagent(self, self._wait(self._aio.get(ref)))

    def agents(self, *, all: bool = False) -> list[AgentRow]:
        """Return every agent as it is now; killed ones only with `all`."""
        return self._wait(self._aio.agents(all=all))

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
        named = [agent.id if isinstance(agent, Subagent) else agent for agent in refs]
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

    def kill(self, *refs: str | int, all: bool = False) -> tuple[str, ...]:
        """End agents and everything below them; return the ids, children first. Transcripts stay."""
        return self._wait(self._aio.kill(*refs, all=all))

    def resume(self, ref: str | int, *, max_cost: float | None = None) -> Subagent:
        """Let a killed or failed agent answer again.

        With `max_cost` any agent may spend so many USD in all, with `math.inf` as much as it likes.
        """
        return Subagent(self, self._wait(self._aio.resume(ref, max_cost=max_cost)))

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
        try:
            with Presses(0) as presses:  # one that came before there was a future would leave somebody waiting for it
                future = self._start(work)
            if presses.held:
                signal.raise_signal(signal.SIGINT)
            return future.result()
        except BaseException:
            # Ctrl-C ends the waiting; what the agent does is its own business.
            if future is not None:
                future.cancel()
            raise

    def _forbid_own_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise ConfigError(
                "an `async` tool runs on the thread that would have to answer, and would wait for ever: "
                "let the tool be a plain function"
            )


async def _wait_for(tasks: set[asyncio.Task[Any]], seconds: float) -> set[asyncio.Task[Any]]:
    """Wait until `tasks` are done, at most `seconds`; return those that are not."""
    return (await asyncio.wait(tasks, timeout=seconds))[1] if tasks else set()


class Subagent:
    """One agent, for ordinary programs. Every method may raise AgentError; see `orch_protocol.errors`."""

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
        self, prompt: str, *, timeout: float | None = None, returns: None = None, on_event: OnEvent | None = None
    ) -> Reply: ...
    def query(
        self,
        prompt: str,
        *,
        timeout: float | None = None,
        returns: type[T] | None = None,
        on_event: OnEvent | None = None,
    ) -> Reply | T:
        """Ask and wait for the reply, at most `timeout` seconds; then QueryTimeoutError, and the agent works on.

        With `returns` (a msgspec Struct, or any type that JSON can be) the result is a value of it: the model is told
        its schema, and once what was wrong with its answer; then BadReplyError. `on_event` is called with each
        TurnEvent, on the orchestrator's thread, and must not raise.
        """
        if returns is None:
            return self._orchestrator._wait(self._agent.query(prompt, timeout=timeout, on_event=on_event))
        return self._orchestrator._wait(self._agent.query(prompt, timeout=timeout, returns=returns, on_event=on_event))

    def submit(self, prompt: str) -> Future[Reply]:
        """Ask and return a future of the reply. The answer can be collected as well, once."""
        return self._orchestrator._start(self._submit(prompt))

    def collect(self, *, timeout: float | None = None, again: bool = False) -> Reply | None:
        """Take the reply to the last query, once; None when it is not there within `timeout` seconds."""
        return self._orchestrator._wait(self._agent.collect(timeout=timeout, again=again))

    def state(self) -> AgentRow:
        """Return what the agent is and does just now."""
        return self._orchestrator._wait(self._agent.state())

    def show(self, messages: int = 20) -> Shown:
        """Return the agent with the last `messages` messages of its transcript."""
        return self._orchestrator._wait(self._agent.show(messages))

    def ping(self, payload: bytes = b"", *, timeout: float = 10.0) -> None:
        """Return once the agent's process has answered; AgentDiedError when it has none or keeps silent."""
        self._orchestrator._wait(self._agent.ping(payload, timeout=timeout))

    def steer(self, text: str) -> None:
        """Say `text` to the agent: it hears it before its next model request, or with its next query."""
        self._orchestrator._wait(self._agent.steer(text))

    def follow_up(self, text: str) -> None:
        """Let the agent go on with `text` when it would stop; one that does not work is asked at once."""
        self._orchestrator._wait(self._agent.follow_up(text))

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

    def resume(self, *, max_cost: float | None = None) -> None:
        """Let the agent answer again after a kill. With `max_cost` it may spend so many USD in all, `math.inf` any."""
        self._orchestrator._wait(self._agent.resume(max_cost=max_cost))

    # Its session: a tree, of which the conversation is one path.

    def tree(self, most: int | None = None) -> SessionShown:
        """Return the agent's session, entry by entry, or its last `most` entries; read from the file."""
        return self._orchestrator._wait(self._agent.tree(most))

    def branches(self) -> list[Branch]:
        """Return the ways that the conversation went, the current one among them."""
        return self._orchestrator._wait(self._agent.branches())

    def checkout(self, entry: str | None, *, summary: str | None = None) -> None:
        """Let the conversation go on behind `entry`, None: anew. What was said since stays, on its own branch.

        An entry is an id, the beginning of one, or a label. With `summary` the model is told what came of what it
        leaves. Raises AgentBusyError while a turn runs, EntryNotFoundError.
        """
        self._orchestrator._wait(self._agent.checkout(entry, summary=summary))

    def branch(self, entry: str, *, summary: str | None = None) -> str | None:
        """Go back as `checkout` does, but before `entry` when it is a question; then return what was asked."""
        return self._orchestrator._wait(self._agent.branch(entry, summary=summary))

    def label(self, entry: str, label: str | None) -> None:
        """Give an entry a name, by which it can be found; None takes it away."""
        self._orchestrator._wait(self._agent.label(entry, label))

    def title(self, title: str | None) -> None:
        """Give the session a name."""
        self._orchestrator._wait(self._agent.title(title))

    def inform(self, text: str, *, kind: str = "note", display: bool = True) -> None:
        """Tell the model something between turns, without asking. People are shown it with `display` alone."""
        self._orchestrator._wait(self._agent.inform(text, kind=kind, display=display))

    def fork(self, entry: str | None = None, *, name: str | None = None, model: str | None = None) -> Subagent:
        """Return another agent with a copy of the conversation up to `entry`, None: as it is, archives included.

        It may do what this one may; each goes its own way from there. Entries keep their ids in the copy. `model` is
        another one that is to answer. Raises AgentBusyError when a turn runs and no entry is named.
        """
        forked = self._orchestrator._wait(self._agent.fork(entry, name=name, model=model))
        return Subagent(self._orchestrator, forked)

    async def _submit(self, prompt: str) -> Reply:
        return await self._agent.submit(prompt)


async def _do(act: Callable[[], None]) -> None:
    act()
