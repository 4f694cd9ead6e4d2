"""The asynchronous API: AsyncOrchestrator. The blocking API, the daemon and the CLI use it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec

from orch_protocol.agent.config import Config, parse_model
from orch_protocol.agent.project import ProjectContext
from orch_protocol.agent.spec import Limits, QueueMode, Template
from orch_protocol.core.errors import ConfigError, StoreError, UnsupportedPlatformError
from orch_protocol.core.ids import new_id
from orch_protocol.core.messages import Message, Reply
from orch_protocol.policy.budget import Budget
from orch_protocol.services.requests import (
    ASK_ALL,
    KILL,
    LIST_AGENTS,
    RESUME,
    SPAWN,
    WAIT,
    AgentRow,
    AskAll,
    AskAllResult,
    Kill,
    ListAgents,
    Resume,
    Spawn,
    Wait,
    Waited,
)
from orch_protocol.services.run_events import LIST_EVENTS, EventsSince, RunEvent
from orch_protocol.services.service import Service
from orch_worker.backends import models
from orch_worker.backends.local_servers import LOCAL
from orch_worker.backends.registry import complete, template_for
from orch_worker.policy.policy_callback import PolicyCallback, PolicyFunction
from orch_worker.sandbox.probe import available_levels
from orch_worker.session.log.lock import FolderLock
from orch_worker.tools.api.base import ToolContext

from ..config import config as configuration
from ..config import paths
from ..config.models import Catalog, keys_in
from ..config.notices import Notices
from ..policy import sandbox
from ..policy.approvals import ApprovalBroker, Approver
from ..policy.budget_rules import budget_change, budget_of
from ..policy.credentials import Credentials, ProgramCredentials
from ..policy.root_hooks import HookRegistrar, RootHooks
from ..processes import default_launcher
from ..processes.base import Launcher
from ..processes.descriptors import require_room
from ..processes.router import Deliver, Router, Transport
from ..resources.extensions import templates_for
from ..resources.prompt_templates import InMemory, PromptTemplate, TemplateProvider
from ..services import USER, call, check_params, serve_worker
from ..services.archives.recall import find_agent_or_holder
from ..services.resources.hooks import connect_root_hooks
from ..services.sessions.deletion import finish_deletions
from ..supervisor.recovery.orphan_cleanup import kill_orphans, run_token, sweep_runs
from ..supervisor.supervisor import Supervisor
from ..supervisor.watchers import Observer, Watchers
from ..tree.journal.journal import JOURNAL, Journal
from .agent import AsyncSubagent, OnEvent
from .arguments import (
    AgentHandle,
    ScriptedBackendLike,
    ToolLike,
    as_list,
    as_names,
    check_arguments,
    script_responses,
    split_tools,
    validate_request,
)
from .resources.archives import AsyncArchives
from .resources.budget import AsyncRunBudget
from .resources.hooks import Hooks
from .resources.permissions import AsyncPermissions
from .resources.prompt_templates import PromptTemplates
from .resources.skills import Skills
from .sessions import AsyncSessions
from .shared_namespace import share_namespace

if TYPE_CHECKING:
    from ..resources.skills import Skill, SkillProvider

__all__ = ["AsyncOrchestrator", "AsyncSession", "ToolLike"]

P = TypeVar("P", bound=msgspec.Struct)
R = TypeVar("R")


# --- Sessions ---

SESSION_TASK: Final = "Talk with the user, and do what they ask."


class AsyncSession(AsyncSubagent):
    """An agent to talk to: an AsyncSubagent with `run`."""

    async def run(self, text: str, *, timeout: float | None = None, on_event: OnEvent | None = None) -> Reply:
        """Send `text` and return the reply; see `query`.

        With `archival.async = false`, `archived_to` of the reply is the holder if the turn was archived.
        """
        return await self.query(text, timeout=timeout, on_event=on_event)


class AsyncOrchestrator(HookRegistrar):
    """Supervises the agents of one run, each in a process of its own.

        async with AsyncOrchestrator() as o:
            agent = await o.spawn("Explain this repo")
            print((await agent.query("What does README promise?")).text)

    - `model`: `provider:model` or `local`; None: the configured model, else the default of a provider with a key.
    - `config`: a Config to use instead of configuration files and environment variables.
    - `run`: the name of a run that outlives the program; opened again, its agents answer again. Without it the run ends
      with the orchestrator. Transcripts are kept in `home` either way.
    - `env`, `keys`: variables and API keys to use instead of those of the program's environment.
    - `environment`: names or globs of further variables that workers get, like `environment.pass`.
    - `approve`: called with a Question for each tool call that needs approval, one at a time; returns True, False or a
      Consent. Without it such calls are denied.
    - `policy`: called with a PolicyCall and the PolicyConfig for each tool call; returns a Verdict, which can only be
      stricter than the configured policy.
    - `launcher`, `connect`: how workers are started and connected; for tests.

    `approve` and `policy` may be async functions; others run in a thread.

    Attributes: `archives`, `sessions`, `budget`, `permissions`, `skills`, `hooks`, `prompt_templates`.
    Raises ConfigError, LockedError, StoreError.
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
        connect: Callable[[Path, Path, Deliver], Transport] | None = None,
    ) -> None:
        if sys.platform == "win32":
            raise UnsupportedPlatformError("orch starts processes with fork and Unix sockets: on Windows, use WSL")
        check_arguments(model, config, run, home, env, keys, environment, approve, policy, launcher, connect)
        if config is not None:
            config = configuration.check_config(config)
        environ = os.environ if env is None else env
        self.home = paths.home(environ, home)
        loaded = configuration.load(paths.current_folder(), environ, home=self.home) if config is None else None
        found = config or (loaded.config if loaded else Config())
        self._approver = approve
        self._policy = policy
        self._hooks = RootHooks(self.home)
        self._known, self._env = models.load(self.home), environ
        self._keys = dict(keys) if keys is not None else keys_in(environ, self._known)
        self.credentials: Credentials = ProgramCredentials()
        """Which keys and servers agents use; the daemon sets its own before `start`."""
        default = configuration.Default.of(self._known, self._keys)
        unsaid = default.says if model is None and found.model is None else None
        self.config = msgspec.structs.replace(found, model=model or found.model or default.model)
        self._templates = templates_for(self.config, paths.current_folder(), self.home)
        self.archives = AsyncArchives(self._call)
        self.budget = AsyncRunBudget(self._call)
        self.hooks = Hooks(self._hooks, self.config)
        self.permissions = AsyncPermissions(self._call)
        self.prompt_templates = PromptTemplates(self._templates)
        self.sessions = AsyncSessions(self)
        self.skills = Skills(self.config, self.home)
        self.notes = loaded.notes if loaded else ()
        """What of the configuration was ignored, and why."""
        self._environment = (*self.config.environment.pass_, *(as_names("environment", environment) or ()))
        self._asides = Notices(unsaid, configuration.unknown_tool_notes(configuration.flatten(self.config)))
        self._named = run is not None
        self.run = run or f"{paths.UNNAMED_RUN_PREFIX}{new_id()}"
        self._make_launcher = launcher or default_launcher
        self._connect = connect or Router
        self._watchers = Watchers()
        self._pid = os.getpid()
        self._supervisor: Supervisor | None = None
        self._opened = AsyncExitStack()
        self._closing: asyncio.Future[None] | None = None

    # Life.

    async def start(self) -> AsyncOrchestrator:
        """Open the run and start the launcher. `async with` does this and `close`. Raises SandboxError."""
        if self._supervisor is not None:
            return self
        self._loop = asyncio.get_running_loop()
        sandbox.check_required_levels(self.config.sandbox, available_levels)
        require_room()
        folder = paths.private_dir(paths.run_dir(self.home, self.run))
        chosen = self.config.session_dir
        sessions = paths.private_dir(
            paths.sessions_of(self.home, chosen), "ORCH_HOME" if chosen is None else "session_dir"
        )
        paths.write_gitignore(self.home)
        sweep_runs(self.home)
        # What is opened is closed in the reverse order: by `close`, and when something cannot be opened.
        async with AsyncExitStack() as stack:
            if not self._named:
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.callback(FolderLock.acquire(folder).release)
            if self._named:
                kill_orphans(folder)
            shutil.rmtree(folder / "spool", ignore_errors=True)  # a root that was killed could not
            logs, spool = paths.private_dir(folder / "logs"), paths.private_dir(folder / "spool")
            stack.callback(shutil.rmtree, spool, ignore_errors=True)
            stack.callback(self._hooks.close)
            journal = Journal.open(folder / JOURNAL, durability=self.config.durability)
            stack.callback(journal.close)
            launcher = self._make_launcher(run_token(folder), folder)
            launcher.environment = self._environment
            stack.push_async_callback(launcher.stop)
            await launcher.start()
            if (template := self._template()) != "lean":
                launcher.warm(template)
            socket = Path(paths.root_socket(folder))
            opinion = PolicyCallback(self._policy) if self._policy is not None else None
            supervisor = Supervisor(
                config=self.config,
                journal=journal,
                launcher=launcher,
                connect=lambda deliver: self._connect(socket, spool, deliver),
                serve=serve_worker,
                sessions=sessions,
                logs=logs,
                catalog=Catalog(self._known, self._env, self._keys, self.config.budget.unknown_price),
                credentials=self.credentials,
                approvals=ApprovalBroker(self.home, self._approver, opinion=opinion),
                watchers=self._watchers,
                hooks=self._hooks,
                keys=self._keys_for,
                orch_folders=paths.orch_folders(self.home, folder, sessions, self._env),
            )
            connect_root_hooks(supervisor, self._templates)
            stack.push_async_callback(self._watchers.close)
            stack.push_async_callback(supervisor.close)
            supervisor.start()
            with contextlib.suppress(StoreError):  # a full disk keeps nobody from opening it
                await finish_deletions(supervisor)
            self._supervisor, self._opened, self._closing = supervisor, stack.pop_all(), None
        return self

    async def close(self) -> None:
        """Stop every process. Transcripts are kept; agents of a named run answer again when it is opened again.

        Takes at most a few seconds, and completes even when it is cancelled. In a forked child it does nothing.
        """
        if os.getpid() != self._pid:
            return
        if self._supervisor is not None and self.supervisor:
            self._supervisor = None
            self._closing = asyncio.ensure_future(self._opened.aclose())
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def __aenter__(self) -> AsyncOrchestrator:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def supervisor(self) -> Supervisor:
        """The running supervisor. Raises ConfigError when closed, in a forked child and in another event loop."""
        if self._supervisor_of_process and asyncio._get_running_loop() not in (None, self._loop):
            raise ConfigError("this orchestrator was started in another event loop: use and close it there")
        return self._supervisor_of_process

    @property
    def _supervisor_of_process(self) -> Supervisor:
        """The running supervisor, for reading from any thread. Raises ConfigError unless running in this process."""
        if self._supervisor is None:
            raise ConfigError("this orchestrator is not running: use it in a `with` block, or call start()")
        if os.getpid() != self._pid:
            raise ConfigError(f"this orchestrator belongs to process {self._pid}; a forked child must make its own")
        return self._supervisor

    # Agents.

    async def spawn(
        self,
        task: str,
        *,
        preset: str | None = None,
        tools: Iterable[ToolLike] | None = None,
        model: str | None = None,
        thinking: str | None = None,
        backend: ScriptedBackendLike | None = None,
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
        peers: Iterable[AgentHandle | str | int] = (),
        archives: Iterable[str] = (),
    ) -> AsyncSubagent:
        """Start an agent and return it when its process is ready.

        - `task`: what it is for. `name`: a name for it, else one is chosen. `cwd`, `env`: where and with which
          environment its tools run. `history`: messages that its conversation begins with.
        - `tools`: names of built-in tools and functions of this program; replaces the tools of `preset`.
        - `model`, `thinking`, `backend`: what answers, with which reasoning effort (see `AsyncSubagent.set_thinking`);
          None uses the configuration.
        - `budget`: what it and its descendants may use in total; `max_cost` is its limit in USD. Both override
          `limits`.
        - `plan`: start in plan mode: nothing is written or run before its plan is approved.
        - `context`: how much it is told about the project in `cwd`; None: as configured for its preset.
        - `persist=False`: keep nothing of it and its descendants on disk; it is lost when this orchestrator closes.
        - `prompt_template`: a template, its name or its file, with values for its variables in `vars`.
        - `skills`: names of its skills; None: all in `cwd`, or as configured for its preset.
        - `namespace`: a dict of this program in which its `run_python` runs. Requires an in-process launcher.
        - `usable_credentials`: credential paths such as "~/.ssh" that its commands can read without approval.
        - `depth=0`: an agent for a person to talk to; it may spawn even without `allow_nested`. See `session`.
        - `peers`: agents that it may query besides its descendants; it gets the tools for that. A peer uses its own
          rights. `archives`: ids of archives that it may search, read and query.

        Raises SpawnError, ConfigError.
        """
        if not isinstance(task, str) or not isinstance(env, Mapping | None):
            wrong = repr(task) if not isinstance(task, str) else f"env={env!r}"
            raise ConfigError(f"task must be a string and env a mapping of variables; got {wrong}")
        names, functions = split_tools(tools)
        script, summaries = script_responses(backend)
        folder = paths.path_of("cwd", cwd) or str(paths.current_folder())
        here = ToolContext(Path(folder), env=env or {})
        request = Spawn(
            task,
            preset=preset,
            tools=names,
            root_tools=tuple(function.spec() for function in functions if not function.missing(here)),
            model=model,
            thinking=thinking,
            script=script,
            summaries=summaries,
            name=name,
            cwd=folder,
            env=dict(env) if env is not None else None,
            history=tuple(as_list("history", history)),
            limits=limits,
            budget=budget_of(max_cost, budget),
            template=template,
            queue_mode=queue_mode,
            follow_up_mode=follow_up_mode,
            plan=plan,
            context=context,
            persist=persist,
            depth=depth,
            prompt=self._templates.asked(prompt_template, vars),
            skills=as_names("skills", skills),
            own_skills=self.skills.registered(),
            peers=_agent_refs(as_list("peers", peers)),
            archives=as_names("archives", archives) or (),
            usable_credentials=as_names("usable_credentials", usable_credentials) or (),
        )
        spawned = await call(self.supervisor, USER, SPAWN, validate_request(request))
        if namespace is not None:
            await share_namespace(self.supervisor, spawned, namespace, self._opened.callback)
        own = {function.name for function in functions}
        self._asides.spawned(spawned.note, own, chosen=model is not None or backend is not None)
        if functions:
            self.supervisor.tools[spawned.id] = {function.name: function for function in functions}
        return AsyncSubagent(self, spawned.id)

    async def session(
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
        backend: ScriptedBackendLike | None = None,
        name: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
        limits: Limits | None = None,
        budget: Budget | None = None,
    ) -> AsyncSession:
        """Return an agent to talk to: `await session.run("...")`, `await session.execute("/status")`.

        With `resume=True` it is the most recently active session of this run, killed or not, or a new one if there is
        none. With a reference it is that agent, which must exist. A resumed session keeps its settings: of the other
        arguments only `approve` applies. `system` is the system prompt's first part, used as it is; `history` seeds the
        conversation. `approve` answers approval questions of this agent and its descendants instead of the
        orchestrator's own function. For the other arguments see `spawn`.
        Raises SpawnError, ConfigError, AgentNotFoundError, AmbiguousRefError.
        """
        if approve is not None and not callable(approve):
            raise ConfigError(f"approve must be a function that takes a Question; got {approve!r}")
        if not isinstance(system, str | None):
            raise ConfigError(f"system must be a string; got {system!r}")
        if (found := await _find_session_to_resume(self, resume)) is None:
            said = None if system is None else PromptTemplate.literal("session", system, "system=")
            agent = await self.spawn(
                SESSION_TASK,
                tools=tools,
                history=history or (),
                prompt_template=said,
                plan=plan,
                preset=preset,
                model=model,
                backend=backend,
                name=name,
                cwd=cwd,
                limits=limits,
                budget=budget,
                depth=0,
            )
            found = agent.id
        if approve is not None:
            self.supervisor.approvals.answered_by(found, approve)
        return AsyncSession(self, found)

    async def get(self, ref: str | int) -> AsyncSubagent:
        """Return the agent or archive holder that `ref` (number, id, unique prefix, name) names.

        Raises AgentNotFoundError, AmbiguousRefError.
        """
        return AsyncSubagent(
            self, (await find_agent_or_holder(self.supervisor, USER, str(ref), "use", "control")).spec.id
        )

    async def agents(self, *, all: bool = False) -> list[AgentRow]:
        """Return the state of every agent; killed agents and archive holders only with `all`."""
        return await self._call(LIST_AGENTS, ListAgents(all))

    async def events(self, since: int = 0, *, ref: str | None = None, timeout: float = 0.0) -> list[RunEvent]:
        """Return the events of the run after event number `since`, at most 1,000.

        When there are none, wait up to `timeout` seconds. `ref` selects one agent.
        """
        return await self._call(LIST_EVENTS, EventsSince(since, ref, seconds=timeout))

    async def wait(
        self,
        *agents: AgentHandle | str | int,
        mode: Literal["any", "all"] | int = "all",
        timeout: float | None = None,
    ) -> Waited:
        """Wait until any, all or a number (`mode`) of the agents are not busy, at most `timeout` seconds."""
        return await self._call(WAIT, Wait(_agent_refs(agents), mode, timeout))

    async def ask_all(
        self, agents: Iterable[AgentHandle | str | int], prompt: str, *, timeout: float | None = None
    ) -> list[AskAllResult]:
        """Send one prompt to many agents and archive holders, some at a time; return a result for each, in order.

        An agent that fails has its error in its result; the others are not affected.
        """
        request = AskAll(_agent_refs(as_list("agents", agents)), prompt, timeout)
        return await self._call(ASK_ALL, request)

    async def kill(self, *refs: str | int, all: bool = False) -> tuple[str, ...]:
        """Kill agents and their descendants; return the ids, children first. Transcripts are kept."""
        killed = await self._call(KILL, Kill(tuple(map(str, refs)), all))
        return killed.ids

    async def resume(
        self, ref: str | int, *, max_cost: float | None = None, budget: Budget | None = None
    ) -> AsyncSubagent:
        """Let a killed or failed agent answer again, and return it.

        `max_cost` and `budget` set the limits of any agent, in total; `math.inf` removes a limit.
        """
        row = await self._call(RESUME, Resume(str(ref), budget_change(max_cost, budget)))
        return AsyncSubagent(self, row.id)

    # Registration.

    def register_skill(self, skill: Skill | SkillProvider) -> tuple[str, ...]:
        """Make a skill, or all skills of a provider, available to agents spawned from now on; return the names.

        A provider is an object with a method `skills()` that returns Skills. Either all of its skills are registered or
        none. Raises ConfigError for a name that is taken, and for a skill that breaks a rule of agentskills.io.
        """
        return self.skills.register(skill)

    def register_prompt_template(self, template: str | TemplateProvider, text: str | None = None) -> tuple[str, ...]:
        """Register the prompt template `template` with that text, or all templates of a provider; return the names.

        A provider is an object with a method `templates()`. Either all of its templates are registered or none. Raises
        ConfigError for a name that is taken, and for invalid variables in braces.
        """
        if isinstance(template, str):
            if not isinstance(text, str):
                raise ConfigError(f"prompt template {template!r} needs a text")
            return self._templates.add(InMemory({template: text}))
        if text is not None or not callable(getattr(template, "templates", None)):
            raise ConfigError(f"pass a name and a text, or an object with a method templates(); got {template!r}")
        return self._templates.add(template)

    def add_observer(self, observer: Observer) -> None:
        """Call `observer` with a CallEvent for every tool call of every agent, from each agent's next turn on.

        Events are delivered one at a time, in order, and do not delay agents; exceptions are logged. An observer that
        is not async runs in a thread. `close` delivers remaining events for a few seconds.
        """
        self._watchers.add(observer)

    def remove_observer(self, observer: Observer) -> None:
        """Stop calling `observer`."""
        self._watchers.remove(observer)

    # Internals.

    def _handle(self, id: str) -> AsyncSubagent:
        return AsyncSubagent(self, id)

    async def _call(self, service: Service[P, R], params: P) -> R:
        return await call(self.supervisor, USER, service, check_params(service, params))

    def _keys_for(self, id: str) -> dict[str, str]:
        """Return the keys for the birth pipe of the agent's worker."""
        values = self.credentials.values(id)
        return self._keys if values is None else keys_in(values, self._known)

    def _template(self) -> Template:
        """Return the template process for agents without a model of their own, as far as the configuration says."""
        spec = parse_model(self.config.model)
        if spec.provider == LOCAL:
            return "sdk"
        try:
            return template_for(complete(spec, self._known, self._env, self._keys))
        except ConfigError:
            return "lean"  # the error is raised when such an agent is spawned


def _agent_refs(agents: Iterable[AgentHandle | str | int]) -> tuple[str, ...]:
    return tuple(agent if isinstance(agent, str) else str(getattr(agent, "id", agent)) for agent in agents)


async def _find_session_to_resume(o: AsyncOrchestrator, resume: bool | str | int) -> str | None:
    """Return the id of the session that is to go on, None: a new one."""
    if resume is False:
        return None
    if resume is True:
        mine = [row for row in await o.agents(all=True) if row.depth == 0]
        if not mine:
            return None
        row = max(mine, key=lambda row: row.last_activity)
    else:
        row = await (await o.get(resume)).state()
        if row.kind == "holder":
            raise ConfigError(f"{resume!r} is an archive and cannot be resumed as a session; query it instead")
    if row.status in ("killed", "failed"):
        await o.resume(row.id)
    return row.id
