"""The blocking API: Orchestrator, Subagent and Session.

Each method runs the asynchronous method with the same name and waits for its result. The asynchronous classes import
the whole root, so this module imports them when a program creates an Orchestrator.
"""

from __future__ import annotations

import atexit
import signal
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from .portal import BlockingProxy, ImportedLater, Portal, blocking, blocking_as, direct, on_loop

if TYPE_CHECKING:
    import asyncio
    import os
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import Future
    from pathlib import Path

    from orch_protocol.agent.config import Config
    from orch_protocol.core.messages import Prompt, Reply
    from orch_protocol.services.agents.query import AskAllResult
    from orch_worker.policy.policy_callback import PolicyFunction

    from ..policy.approvals import Approver
    from ..processes.base import Launcher
    from .agent import AsyncSubagent, OnEvent
    from .agent_session import AsyncAgentSession
    from .arguments import AgentRefs, MapArguments
    from .fan_out import MapResult
    from .orchestrator import AsyncOrchestrator, AsyncSession
    from .resources.agent_queue import AsyncAgentQueue
    from .resources.agent_workspace import AsyncAgentWorkspace
    from .resources.archives import AsyncArchives
    from .resources.budget import AsyncRunBudget
    from .resources.permissions import AsyncPermissions
    from .return_types import JsonSchema
    from .sessions import AsyncSessions
    from .structured_output import AskedValue, Returned
else:
    AsyncAgentQueue = ImportedLater("orch.api.resources.agent_queue", "AsyncAgentQueue")
    AsyncAgentSession = ImportedLater("orch.api.agent_session", "AsyncAgentSession")
    AsyncAgentWorkspace = ImportedLater("orch.api.resources.agent_workspace", "AsyncAgentWorkspace")
    AsyncArchives = ImportedLater("orch.api.resources.archives", "AsyncArchives")
    AsyncOrchestrator = ImportedLater("orch.api.orchestrator", "AsyncOrchestrator")
    AsyncPermissions = ImportedLater("orch.api.resources.permissions", "AsyncPermissions")
    AsyncRunBudget = ImportedLater("orch.api.resources.budget", "AsyncRunBudget")
    AsyncSession = ImportedLater("orch.api.orchestrator", "AsyncSession")
    AsyncSessions = ImportedLater("orch.api.sessions", "AsyncSessions")
    AsyncSubagent = ImportedLater("orch.api.agent", "AsyncSubagent")

__all__ = [
    "AgentQueue",
    "AgentSession",
    "AgentWorkspace",
    "Archives",
    "Orchestrator",
    "Permissions",
    "RunBudget",
    "Session",
    "Sessions",
    "Subagent",
]

T = TypeVar("T")


# --- One agent ---


class AgentQueue(BlockingProxy["AsyncAgentQueue"]):
    """The queue of one agent; `agent.steer` and `agent.follow_up` add to it."""

    list = blocking(AsyncAgentQueue.list)
    clear = blocking(AsyncAgentQueue.clear)
    set_modes = blocking(AsyncAgentQueue.set_modes)


class AgentWorkspace(BlockingProxy["AsyncAgentWorkspace"]):
    """The workspace of one agent."""

    show = blocking(AsyncAgentWorkspace.show)
    pin = blocking(AsyncAgentWorkspace.pin)
    unpin = blocking(AsyncAgentWorkspace.unpin)
    prune = blocking(AsyncAgentWorkspace.prune)


class Subagent(BlockingProxy["AsyncSubagent"]):
    """One agent of the run. Every method may raise AgentError; see `orch_protocol.core.errors`.

    `session` has the methods for the agent's session file. `queue` has the methods for its undelivered messages, and
    `workspace` those for the objects in its workspace.
    """

    def __init__(self, portal: Portal, agent: AsyncSubagent) -> None:
        super().__init__(portal, agent)
        self.id = agent.id

    def __repr__(self) -> str:
        return repr(self._async).replace(type(self._async).__name__, type(self).__name__, 1)

    @property
    def seq(self) -> int:
        """The agent's sequence number."""
        return self._async.seq

    @property
    def name(self) -> str:
        """The agent's name."""
        return self._async.name

    @property
    def pid(self) -> int | None:
        """The process id of the agent's worker, or None if the agent has no process."""
        return self._async.pid

    @property
    def session(self) -> AgentSession:
        """The agent's session with its entries, branches, forks, labels, metadata and compaction."""
        return AgentSession(self._portal, self._async.session)

    @property
    def queue(self) -> AgentQueue:
        """The steering messages and follow-ups that the agent has not received yet."""
        return AgentQueue(self._portal, self._async.queue)

    @property
    def workspace(self) -> AgentWorkspace:
        """The agent's files, values and results."""
        return AgentWorkspace(self._portal, self._async.workspace)

    if TYPE_CHECKING:

        @overload
        def query(
            self, prompt: Prompt, *, timeout: float | None = None, returns: type[T], on_event: OnEvent | None = None
        ) -> T: ...
        @overload
        def query(
            self, prompt: Prompt, *, timeout: float | None = None, returns: JsonSchema, on_event: OnEvent | None = None
        ) -> Any: ...
        @overload
        def query(
            self, prompt: Prompt, *, timeout: float | None = None, return_name: str, on_event: OnEvent | None = None
        ) -> Returned: ...
        @overload
        def query(
            self, prompt: Prompt, *, timeout: float | None = None, returns: None = None, on_event: OnEvent | None = None
        ) -> Reply: ...
        def query(self, prompt: Prompt, **options: Any) -> Any: ...
    else:
        query = blocking(AsyncSubagent.query)

    @overload
    def submit(self, prompt: Prompt, *, queue: bool = False, returns: type[T]) -> Future[T]: ...
    @overload
    def submit(self, prompt: Prompt, *, queue: bool = False, returns: JsonSchema) -> Future[Any]: ...
    @overload
    def submit(self, prompt: Prompt, *, queue: bool = False, returns: None = None) -> Future[Reply]: ...
    def submit(
        self, prompt: Prompt, *, queue: bool = False, returns: type[T] | JsonSchema | None = None
    ) -> Future[Reply] | Future[T]:
        """Start a query and return a future of its reply. `collect` can also return this reply, once.

        Raises AgentBusyError if another query is running. With `queue`, the new query waits until the running query and
        all queued queries are done. A query also waits while the agent has no process and no other agent is idle, if
        `subagents.max_concurrent` is reached. A waiting query exists only in this program. With `returns`, the result
        of the future is a value of that type; see `query`.
        """
        portal = self._portal
        options: Any = {"queue": queue, "returns": returns}
        reply = (
            self._async.submit(prompt, **options)
            if portal.on_own_thread
            else portal.wait(self._submit(prompt, options))
        )
        return portal.start(_result(reply))

    async def _submit(self, prompt: Prompt, options: dict[str, Any]) -> asyncio.Future[Any]:
        return self._async.submit(prompt, **options)

    if TYPE_CHECKING:

        @overload
        def collect(
            self, *, timeout: float | None = None, again: bool = False, query: str = "", returns: type[T]
        ) -> T | None: ...
        @overload
        def collect(
            self, *, timeout: float | None = None, again: bool = False, query: str = "", returns: JsonSchema
        ) -> Any: ...
        @overload
        def collect(
            self, *, timeout: float | None = None, again: bool = False, query: str = "", returns: None = None
        ) -> Reply | None: ...
        def collect(self, **options: Any) -> Any: ...
    else:
        collect = blocking(AsyncSubagent.collect)

    value = blocking(AsyncSubagent.value)
    state = blocking(AsyncSubagent.state)
    show = blocking(AsyncSubagent.show)
    prompt_parts = blocking(AsyncSubagent.prompt_parts)
    ping = blocking(AsyncSubagent.ping)
    steer = blocking(AsyncSubagent.steer)
    follow_up = blocking(AsyncSubagent.follow_up)
    revoke_tools = blocking(AsyncSubagent.revoke_tools)
    set_planning = blocking(AsyncSubagent.set_planning)
    set_model = blocking(AsyncSubagent.set_model)
    set_thinking = blocking(AsyncSubagent.set_thinking)
    merge = blocking(AsyncSubagent.merge)
    cancel = blocking(AsyncSubagent.cancel)
    kill = blocking(AsyncSubagent.kill)
    resume = blocking(AsyncSubagent.resume)
    commands = blocking(AsyncSubagent.commands)
    execute = blocking(AsyncSubagent.execute)


class Session(Subagent):
    """A top-level agent for interactive use: a Subagent with `run`."""

    run = blocking(AsyncSession.run)


class AgentSession(BlockingProxy["AsyncAgentSession"]):
    """The session of one agent. The ways to identify an `entry` are listed in `orch.api.agent_session`."""

    tree = blocking(AsyncAgentSession.tree)
    branches = blocking(AsyncAgentSession.branches)
    checkout = blocking(AsyncAgentSession.checkout)
    branch = blocking(AsyncAgentSession.branch)
    fork = blocking_as(Subagent, AsyncAgentSession.fork)
    label = blocking(AsyncAgentSession.label)
    title = blocking(AsyncAgentSession.title)
    add_message = blocking(AsyncAgentSession.add_message)
    set_meta = blocking(AsyncAgentSession.set_meta)
    get_meta = blocking(AsyncAgentSession.get_meta)
    compact = blocking(AsyncAgentSession.compact)
    fsck = blocking(AsyncAgentSession.fsck)


# --- The orchestrator ---


class Archives(BlockingProxy["AsyncArchives"]):
    """The archives of a run's agents. To ask an archive a question, query its holder: `o.get(id)` or `o.ask_all`."""

    list = blocking(AsyncArchives.list)
    search = blocking(AsyncArchives.search)
    read = blocking(AsyncArchives.read)
    delete = blocking(AsyncArchives.delete)
    prune = blocking(AsyncArchives.prune)


class Permissions(BlockingProxy["AsyncPermissions"]):
    """The permissions that are valid now."""

    list = blocking(AsyncPermissions.list)
    revoke = blocking(AsyncPermissions.revoke)


class RunBudget(BlockingProxy["AsyncRunBudget"]):
    """The budget of a run."""

    show = blocking(AsyncRunBudget.show)
    set = blocking(AsyncRunBudget.set)


class Sessions(BlockingProxy["AsyncSessions"]):
    """Sessions on disk. An `entry` is an entry or a turn number; see `orch.api.agent_session`."""

    list = blocking(AsyncSessions.list)
    open = blocking(AsyncSessions.open)
    read = blocking(AsyncSessions.read)
    label = blocking(AsyncSessions.label)
    fork = blocking_as(Subagent, AsyncSessions.fork)
    import_ = blocking_as(Subagent, AsyncSessions.import_)
    export = blocking(AsyncSessions.export)
    forget = blocking(AsyncSessions.forget)
    prune = blocking(AsyncSessions.prune)


class Orchestrator(BlockingProxy["AsyncOrchestrator"]):
    """Supervises the agents of one run, for programs without an event loop.

        with Orchestrator() as o:
            agent = o.spawn("Explain this repo")
            print(agent.query("What does README promise?").text)

    The orchestrator runs from construction until `close`, the end of the `with` block, or the end of the program.
    The parameters are those of AsyncOrchestrator.
    Attributes: `archives`, `sessions`, `budget`, `permissions`, `skills`, `hooks`, `prompt_templates`.
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
        from .orchestrator import AsyncOrchestrator

        target = AsyncOrchestrator(
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
        super().__init__(Portal(), target)
        self.config, self.home = target.config, target.home
        self.archives = Archives(self._portal, target.archives)
        self.budget = RunBudget(self._portal, target.budget)
        self.hooks = target.hooks
        self.permissions = Permissions(self._portal, target.permissions)
        self.prompt_templates = target.prompt_templates
        self.sessions = Sessions(self._portal, target.sessions)
        self.skills = target.skills
        atexit.register(self._close)
        try:
            self._portal.wait(target.start())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop every process.

        Transcripts are kept. When a program opens a named run again, its agents can answer again. Closing takes at most
        a few seconds. If Ctrl-C is pressed while closing, it takes effect afterwards. In a forked child this method
        does nothing.
        """
        if self._close():
            signal.raise_signal(signal.SIGINT)

    def _close(self) -> int:
        """Close the orchestrator, and return how often Ctrl-C was pressed while closing."""
        interrupts = self._portal.close(self._async.close)
        if self._portal.ended:
            atexit.unregister(self._close)
        return interrupts

    def __enter__(self) -> Orchestrator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    spawn = blocking_as(Subagent, AsyncOrchestrator.spawn)
    session = blocking_as(Session, AsyncOrchestrator.session)
    get = blocking_as(Subagent, AsyncOrchestrator.get)
    resume = blocking_as(Subagent, AsyncOrchestrator.resume)
    agents = blocking(AsyncOrchestrator.agents)
    runs = blocking(AsyncOrchestrator.runs)
    events = blocking(AsyncOrchestrator.events)
    wait = blocking(AsyncOrchestrator.wait)

    if TYPE_CHECKING:

        @overload
        def ask_all(
            self, agents: AgentRefs, prompt: Prompt, *, timeout: float | None = None, returns: type[T]
        ) -> list[AskedValue[T]]: ...
        @overload
        def ask_all(
            self, agents: AgentRefs, prompt: Prompt, *, timeout: float | None = None, returns: JsonSchema
        ) -> list[AskedValue[Any]]: ...
        @overload
        def ask_all(
            self, agents: AgentRefs, prompt: Prompt, *, timeout: float | None = None, returns: None = None
        ) -> list[AskAllResult]: ...
        def ask_all(self, agents: AgentRefs, prompt: Prompt, **options: Any) -> Any: ...
    else:
        ask_all = blocking(AsyncOrchestrator.ask_all)

    if TYPE_CHECKING:

        @overload
        def map(
            self,
            items: Iterable[Any],
            prompt: str | Callable[[Any], Prompt],
            *,
            returns: type[T],
            **options: Unpack[MapArguments],
        ) -> list[MapResult[T]]: ...
        @overload
        def map(
            self,
            items: Iterable[Any],
            prompt: str | Callable[[Any], Prompt],
            *,
            returns: JsonSchema,
            **options: Unpack[MapArguments],
        ) -> list[MapResult[Any]]: ...
        @overload
        def map(
            self,
            items: Iterable[Any],
            prompt: str | Callable[[Any], Prompt],
            *,
            returns: None = None,
            **options: Unpack[MapArguments],
        ) -> list[MapResult[str]]: ...
        def map(self, items: Iterable[Any], prompt: str | Callable[[Any], Prompt], **options: Any) -> Any: ...
    else:
        map = blocking(AsyncOrchestrator.map)

    kill = blocking(AsyncOrchestrator.kill)
    emit_event = blocking(AsyncOrchestrator.emit_event)

    agent_types = direct(AsyncOrchestrator.agent_types)
    on = direct(AsyncOrchestrator.on)
    register_hook = direct(AsyncOrchestrator.register_hook)
    unregister_hook = direct(AsyncOrchestrator.unregister_hook)
    register_extension = direct(AsyncOrchestrator.register_extension)
    unregister_extension = direct(AsyncOrchestrator.unregister_extension)
    register_tool = direct(AsyncOrchestrator.register_tool)
    register_slash_command = direct(AsyncOrchestrator.register_slash_command)
    register_skill = direct(AsyncOrchestrator.register_skill)
    register_prompt_template = direct(AsyncOrchestrator.register_prompt_template)
    add_observer = on_loop(AsyncOrchestrator.add_observer)
    remove_observer = on_loop(AsyncOrchestrator.remove_observer)


async def _result(future: asyncio.Future[T]) -> T:
    return await future
