"""The asynchronous API: AsyncOrchestrator. The blocking API, the daemon and the CLI use it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, Unpack, overload

import msgspec
from msgspec.structs import replace

from orch_protocol.agent.config import Config, parse_model
from orch_protocol.agent.project import ProjectContext
from orch_protocol.agent.spec import Limits, QueueMode, Template
from orch_protocol.core.errors import (
    BadReplyError,
    ConfigError,
    ContextOverflowError,
    OrchError,
    StoreError,
    UnsupportedPlatformError,
)
from orch_protocol.core.ids import new_id
from orch_protocol.core.messages import Image, Prompt, Reply, prompt_of
from orch_protocol.core.worktrees import Isolation
from orch_protocol.hooks.stages import ALIASES, STAGES
from orch_protocol.policy.budget import Budget
from orch_protocol.policy.policy import PolicySpec
from orch_protocol.services.agents.lifecycle import KILL, RESUME, Kill, Resume
from orch_protocol.services.agents.query import (
    ASK_ALL,
    QUERY,
    WAIT,
    AskAll,
    AskAllResult,
    QueryAgent,
    Wait,
    Waited,
)
from orch_protocol.services.agents.run_events import LIST_EVENTS, EventsSince, RunEvent
from orch_protocol.services.agents.runs import LIST_RUNS, RunRow
from orch_protocol.services.agents.spawn import SPAWN, Spawn
from orch_protocol.services.agents.status import LIST_AGENTS, AgentRow, ListAgents
from orch_protocol.services.service import Empty, Service
from orch_worker.backends import models
from orch_worker.backends.local_servers import LOCAL
from orch_worker.backends.models import ModelCatalog
from orch_worker.backends.registry import APIS, complete, template_for
from orch_worker.policy.policy_callback import PolicyCallback, PolicyFunction
from orch_worker.sandbox.probe import available_levels
from orch_worker.session.log.lock import FolderLock
from orch_worker.tools.api.base import ToolContext
from orch_worker.tools.api.executor import Executor

from ..archival.adapters import read_messages
from ..config import config as configuration
from ..config import paths
from ..config.models import Catalog, check_keys, configured_providers, keys_in
from ..config.notices import Notices
from ..policy import sandbox
from ..policy.approvals import ApprovalBroker, Approver
from ..policy.budget_rules import budget_change, budget_of
from ..policy.credentials import Credentials, ProgramCredentials
from ..policy.root_hooks import RootHooks
from ..processes import default_launcher
from ..processes.base import Launcher
from ..processes.descriptors import require_room
from ..processes.router import Deliver, Router, Transport
from ..resources.agent_types import AgentType, find_types
from ..resources.extensions import templates_for
from ..resources.program_extensions import ProgramExtensions
from ..resources.prompt_templates import PromptTemplate
from ..services import USER, call, check_params, serve_worker
from ..services.archives.prune import finish_pruning
from ..services.archives.recall import find_agent_or_holder
from ..services.resources.hooks import connect_program, emit_event
from ..services.sessions.deletion import finish_deletions
from ..supervisor.recovery.orphan_cleanup import kill_orphans, remove_git_scratch, remove_run, run_token, sweep_runs
from ..supervisor.supervisor import Supervisor
from ..supervisor.watchers import Observer, Watchers
from ..tree.journal.journal import JOURNAL, Journal
from ..tree.rules.query_results import kept_reply
from .agent import AsyncSubagent, OnEvent, parse_with_correction
from .arguments import (
    AgentHandle,
    AgentOptions,
    AgentRefs,
    BackendLike,
    LentBackends,
    MapArguments,
    MapOptions,
    ToolLike,
    as_list,
    as_names,
    check_arguments,
    executor_spec,
    named_arguments,
    split_tools,
    validate_request,
)
from .fan_out import (
    CORRECTION,
    MapItem,
    MapResult,
    OnProgress,
    Place,
    complete_reply,
    default_name,
    failed_prompt,
    make_items,
    run_items,
    stops_at,
    task_of,
)
from .registration import Registration
from .resources.archives import AsyncArchives
from .resources.budget import AsyncRunBudget
from .resources.hooks import Hooks
from .resources.permissions import AsyncPermissions
from .resources.prompt_templates import PromptTemplates
from .resources.skills import Skills
from .return_types import JsonSchema, ReturnType, return_type
from .sessions import AsyncSessions
from .shared_namespace import share_namespace
from .structured_output import AskedValue, check_model, prompt_for_value

__all__ = ["AsyncOrchestrator", "AsyncSession", "ToolLike"]

P = TypeVar("P", bound=msgspec.Struct)
R = TypeVar("R")
T = TypeVar("T")


# --- Sessions ---

SESSION_TASK: Final = "Talk with the user, and do what they ask."
RESUME_OPTIONS: Final = ("approve", "tool_executor")
"""The arguments of `session` that apply to a resumed agent, as objects."""


class AsyncSession(AsyncSubagent):
    """A top-level agent for interactive use: an AsyncSubagent with `run`."""

    async def run(self, text: Prompt, *, timeout: float | None = None, on_event: OnEvent | None = None) -> Reply:
        """Send `text`, which may be a list of texts and images, and return the reply; see `query`.

        If the turn was archived, the reply's `archived_to` is the holder of the archive. This requires `archival.async
        = false`.
        """
        return await self.query(text, timeout=timeout, on_event=on_event)


class AsyncOrchestrator(Registration):
    """Supervises the agents of one run. Each agent has its own process.

        async with AsyncOrchestrator() as o:
            agent = await o.spawn("Explain this repo")
            print((await agent.query("What does README promise?")).text)

    - `model`: `provider:model` or `local`. None uses the configured model. If no model is configured, the default model
      of a provider with a key is used.
    - `config`: a Config to use instead of configuration files and environment variables.
    - `run`: the name of a run that outlives the program. When a program opens the run again, its agents can answer
      again. A run without a name ends with the orchestrator. Transcripts are kept in `home` either way.
    - `env`, `keys`: variables and API keys to use instead of the program's environment.
    - `environment`: names or globs of additional environment variables for workers, like `environment.pass`.
    - `approve`: a function that is called with a Question for each tool call that needs approval, one at a time. The
      function returns True, False or a Consent. Without this function, such calls are denied.
    - `policy`: a function that is called with a PolicyCall and the PolicyConfig for each tool call. The function
      returns a Verdict. A Verdict can only be stricter than the configured policy.
    - `launcher`, `connect`: functions that start and connect workers, for tests.

    `approve` and `policy` may be async functions. A function that is not async runs in a thread.

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
        initial_config = config or (loaded.config if loaded else Config())
        self._approver = approve
        self._policy = policy
        self._has_run_name = run is not None
        self.run = run or f"{paths.UNNAMED_RUN_PREFIX}{new_id()}"
        self._hooks = RootHooks(self.home, self.run)
        self._known: ModelCatalog | models.CatalogFile = models.CatalogFile(self.home)
        self._env = environ
        known = models.valid_catalog(self._known)
        check_keys(keys or {}, known)
        self._keys = dict(keys) if keys is not None else None
        """The keys of the program. None means those in its environment."""
        self.credentials: Credentials = ProgramCredentials()
        """The keys and servers that agents use. The daemon sets its own credentials before `start`."""
        default = configuration.DefaultModel.for_keys(known, self._own_keys(known))
        default_notice = default.notice if model is None and initial_config.model is None else None
        self.config = replace(initial_config, model=model or initial_config.model or default.model)
        self._templates = templates_for(self.config, paths.current_folder(), self.home)
        self._program = ProgramExtensions()
        self.archives = AsyncArchives(self._call)
        self.budget = AsyncRunBudget(self._call)
        self.hooks = Hooks(self._hooks, self.config)
        self.permissions = AsyncPermissions(self._call)
        self.prompt_templates = PromptTemplates(self._templates)
        self.sessions = AsyncSessions(self)
        self.skills = Skills(self.config, self.home)
        self.notes = loaded.notes if loaded else ()
        """The parts of the configuration that were ignored, and the reasons."""
        self._code = loaded.code if loaded else None
        self._environment = (*self.config.environment.pass_, *(as_names("environment", environment) or ()))
        self._notices = Notices(default_notice, configuration.unknown_tool_notes(configuration.flatten(self.config)))
        self._make_launcher = launcher or default_launcher
        self._connect = connect or Router
        self.lent_backends = LentBackends(separate=launcher is None)
        self._watchers = Watchers()
        self._pid = os.getpid()
        self._supervisor: Supervisor | None = None
        self._resources = AsyncExitStack()
        self._closing: asyncio.Future[None] | None = None
        self.queued: dict[str, asyncio.Future[Any]] = {}
        """For an agent id, a future that is done when all queued queries of the agent have ended."""

    # Lifecycle.

    async def start(self) -> AsyncOrchestrator:
        """Open the run and start the launcher. `async with` calls `start` and `close`. Raises SandboxError."""
        if self._supervisor is not None:
            return self
        self._loop = asyncio.get_running_loop()
        sandbox.check_required_levels(self.config.sandbox, available_levels)
        require_room()
        folder = paths.private_dir(paths.run_dir(self.home, self.run))
        session_dir = self.config.session_dir
        sessions = paths.private_dir(
            paths.sessions_of(self.home, session_dir), "ORCH_HOME" if session_dir is None else "session_dir"
        )
        paths.write_gitignore(self.home)
        sweep_runs(self.home)
        # `close` releases resources in reverse order. If a later resource cannot be opened, the earlier ones are
        # released.
        async with AsyncExitStack() as stack:
            if not self._has_run_name:
                stack.callback(remove_run, folder)
            stack.callback(FolderLock.acquire(folder, "another run name").release)
            if self._has_run_name:
                kill_orphans(folder)
            shutil.rmtree(folder / "spool", ignore_errors=True)  # files that a killed root left
            remove_git_scratch(folder)
            logs, spool = paths.private_dir(folder / "logs"), paths.private_dir(folder / "spool")
            stack.callback(shutil.rmtree, spool, ignore_errors=True)
            stack.callback(self._hooks.close)
            stack.callback(self._program.runner.close)
            stack.callback(self.lent_backends.close)
            journal = Journal.open(folder / JOURNAL, durability=self.config.durability)
            stack.callback(journal.close)
            launcher = self._make_launcher(run_token(folder), folder)
            launcher.environment = self._environment
            stack.push_async_callback(launcher.stop)
            await launcher.start()
            launcher.warm(self._template())
            socket = Path(paths.root_socket(folder))
            policy_callback = PolicyCallback(self._policy) if self._policy is not None else None
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
                approvals=ApprovalBroker(self.home, self._approver, policy_callback=policy_callback),
                watchers=self._watchers,
                hooks=self._hooks,
                keys=self._keys_for,
                orch_folders=paths.orch_folders(self.home, folder, sessions, self._env),
            )
            connect_program(supervisor, self._templates, self._program)
            stack.push_async_callback(self._watchers.close)
            stack.push_async_callback(supervisor.close)
            supervisor.start()
            with contextlib.suppress(StoreError):  # the run must open even if the disk is full
                await finish_pruning(supervisor)
                await finish_deletions(supervisor)
            self._supervisor, self._resources, self._closing = supervisor, stack.pop_all(), None
        return self

    async def close(self) -> None:
        """Stop every process.

        Transcripts are kept. When a program opens a named run again, its agents can answer again. Closing takes at most
        a few seconds, and completes even when it is cancelled. In a forked child this does nothing.
        """
        if os.getpid() != self._pid:
            return
        if self._supervisor is not None and self.supervisor:
            self._supervisor = None
            self._closing = asyncio.ensure_future(self._resources.aclose())
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def __aenter__(self) -> AsyncOrchestrator:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def supervisor(self) -> Supervisor:
        """The running supervisor.

        Raises ConfigError when the orchestrator is closed, in a forked child, and in another event loop.
        """
        supervisor = self._supervisor_of_process
        if asyncio._get_running_loop() not in (None, self._loop):
            raise ConfigError("this orchestrator was started in another event loop: use and close it there")
        return supervisor

    @property
    def _supervisor_of_process(self) -> Supervisor:
        """The running supervisor, for reading from any thread.

        Raises ConfigError if no supervisor runs in this process.
        """
        if self._supervisor is None:
            raise ConfigError("this orchestrator is not running: use it in a `with` block, or call start()")
        if os.getpid() != self._pid:
            raise ConfigError(f"this orchestrator belongs to process {self._pid}; a forked child must make its own")
        return self._supervisor

    # Agents.

    @named_arguments()
    async def spawn(
        self,
        task: str,
        *,
        agent: str | None = None,
        preset: str | None = None,
        tools: Iterable[ToolLike] | None = None,
        model: str | None = None,
        thinking: str | None = None,
        backend: BackendLike | None = None,
        name: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        history: Sequence[Any] = (),
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
        approve: Approver | None = None,
        isolation: Isolation | None = None,
        tool_executor: Executor | str | None = None,
        _place: Place | None = None,
    ) -> AsyncSubagent:
        """Start an agent and return it when its process is ready.

        - `task`: the task of the agent. `name`: the agent's name; None generates a name. `cwd`, `env`: the working
          directory and environment of the agent's tools.
        - `history`: messages at the beginning of the conversation: orch messages (see `user`, `assistant`), or a list
          in the message format of a provider's API.
        - `agent`: an agent type (see `agent_types`) that supplies prompt, tools and model. `preset` and `tools` limit
          the tools of the agent type; `model` replaces its model.
        - `tools`: names of built-in tools, and functions of this program. They replace the default preset. If `preset`
          is also given, the agent gets both.
        - `model`, `thinking`: the agent's model and reasoning effort (see `AsyncSubagent.set_thinking`). None uses the
          configuration. `backend`: a ScriptedBackend, or a CustomBackend for an agent in this process.
        - `budget`: limits on the total usage of the agent and its descendants. `max_cost` is the limit in USD. These
          limits override the same limits in `limits`.
        - `plan`: start in plan mode: the agent cannot write or run anything until its plan is approved.
        - `context`: how much information about the project in `cwd` the prompt contains. None uses the setting of the
          preset.
        - `persist=False`: keep no data of the agent and its descendants on disk. The agent is lost when this
          orchestrator closes.
        - `prompt_template`: a template, or the name or file of a template. `vars` contains values for its variables.
        - `skills`: names of the agent's skills. None selects the skills configured for its preset, or else all skills
          in `cwd`.
        - `namespace`: a dict of this program in which the agent's `run_python` runs. Requires an in-process launcher.
        - `usable_credentials`: credential paths, such as "~/.ssh", that the agent's commands can read without approval.
        - `depth=0`: a top-level agent for interactive use. Such an agent may spawn even without `allow_nested`. See
          `session`.
        - `peers`: agents that this agent may query in addition to its descendants. The agent gets the tools for this. A
          peer uses its own rights. `archives`: ids of archives that the agent may search, read and query.
        - `approve`: a function that answers approval questions of this agent and its descendants instead of the
          orchestrator's function. If either function is set, calls that use personal data or change code need approval.
        - `isolation="worktree"`: the agent works in a new git worktree with its own branch; see `AsyncSubagent.merge`.
        - `tool_executor`: an Executor object of this program, or the import path `package.module:Class` of an Executor
          subclass, which the agent's process loads. The executor lists and runs the agent's tools in place of the
          built-in tools. `tools` then names the granted tools, which may be tools of the executor. `preset` adds
          built-in tools.

        Raises SpawnError, ConfigError.
        """
        if not isinstance(task, str) or not isinstance(env, Mapping | None):
            problem = repr(task) if not isinstance(task, str) else f"env={env!r}"
            raise ConfigError(f"task must be a string and env a mapping of variables; got {problem}")
        _check_approver(approve)
        if agent is not None and prompt_template is not None:
            raise ConfigError(f"pass agent={agent!r} or prompt_template, not both: an agent type has its own prompt")
        names, functions = split_tools(tools)
        executor, executor_object = await executor_spec(tool_executor, names if agent is None else None)
        if executor is not None and names is None and preset is None and agent is None:
            names = ()
        backend_arguments = self.lent_backends.arguments(model, backend)
        folder = paths.checked_path("cwd", cwd) or str(paths.current_folder())
        tool_context = ToolContext(Path(folder), env=env or {})
        request = Spawn(
            task,
            agent=agent,
            preset=preset,
            tools=names,
            root_tools=tuple(function.spec_in(tool_context) for function in functions),
            model=backend_arguments.model,
            thinking=thinking,
            script=backend_arguments.script,
            summaries=backend_arguments.summaries,
            name=name,
            cwd=folder,
            env=dict(env) if env is not None else None,
            policy=PolicySpec("person", self.config.policy) if approve is not None else None,
            history=read_messages(as_list("history", history), "history"),
            limits=limits,
            budget=budget_of(max_cost, budget),
            template=template,
            queue_mode=queue_mode,
            follow_up_mode=follow_up_mode,
            plan=plan,
            context=context,
            persist=persist,
            depth=depth,
            prompt=self._templates.prompt_spec(prompt_template, vars),
            skills=as_names("skills", skills),
            own_skills=self.skills.registered(),
            peers=_agent_refs(as_list("peers", peers)),
            archives=as_names("archives", archives) or (),
            usable_credentials=as_names("usable_credentials", usable_credentials) or (),
            isolation=isolation,
            executor=executor,
            code=self._code,
        )
        if _place is not None:
            request = _place.request(request, self.config.model)
        spawned = await call(self.supervisor, USER, SPAWN, validate_request(request))
        if namespace is not None:
            await share_namespace(self.supervisor, spawned, namespace, self._resources.callback)
        executor_tools = {each.name for each in self.supervisor.tree.agents[spawned.id].spec.executor_tools}
        known_tools = {function.name for function in functions}.union(self._program.tools, executor_tools)
        self._notices.print_for_agent(spawned.note, known_tools, model_chosen=model is not None or backend is not None)
        if functions:
            self.supervisor.tools[spawned.id] = {function.name: function for function in functions}
        if executor_object is not None:
            self.supervisor.executors[spawned.id] = executor_object
        if approve is not None:
            self.supervisor.approvals.set_approver(spawned.id, approve)
        return AsyncSubagent(self, spawned.id)

    @named_arguments(AgentOptions)
    async def session(
        self,
        *,
        task: str = SESSION_TASK,
        resume: bool | str | int | None = False,
        system: str | None = None,
        **options: Unpack[AgentOptions],
    ) -> AsyncSession:
        """Return an agent for a dialog: `await session.run("...")`, `await session.execute("/status")`.

        `resume=True` returns the most recently active session of this run, even if it was killed. If the run has no
        session, a new session is started. If `resume` is a reference, the call returns this agent, which must exist. A
        resumed session keeps its settings. Only the argument `approve`, and an object as `tool_executor`, apply to a
        resumed session. With a reference, other arguments are a ConfigError. `system` replaces the prompt template. The
        system prompt then begins with this text. `options` are the arguments of `spawn`. Raises SpawnError,
        ConfigError, AgentNotFoundError, AmbiguousRefError.
        """
        _check_session_options(system, options)
        if not isinstance(resume, bool | None):
            _check_resume_options(resume, task, system, options)
        if (found := await _find_session_to_resume(self, resume)) is None:
            if system is not None:
                options = {**options, "prompt_template": PromptTemplate.literal("session", system, "system=")}
            found = (await self.spawn(task, depth=0, **options)).id
        else:
            if (approve := options.get("approve")) is not None:
                self.supervisor.approvals.set_approver(found, approve)
            await self._replace_executor(found, options.get("tool_executor"), required=not isinstance(resume, bool))
        return AsyncSession(self, found)

    async def get(self, ref: str | int) -> AsyncSubagent:
        """Return the agent or archive holder with the reference `ref`: a number, id, unique prefix or name.

        Raises AgentNotFoundError, AmbiguousRefError.
        """
        return AsyncSubagent(
            self, (await find_agent_or_holder(self.supervisor, USER, str(ref), "use", "control")).spec.id
        )

    async def agents(self, *, all: bool = False) -> list[AgentRow]:
        """Return the state of every agent. Killed agents and archive holders are included only with `all`."""
        return await self._call(LIST_AGENTS, ListAgents(all))

    async def runs(self) -> list[RunRow]:
        """Return the runs of the home, including those of other programs and of the daemon, latest activity first."""
        return await self._call(LIST_RUNS, Empty())

    async def events(self, since: int = 0, *, ref: str | None = None, timeout: float = 0.0) -> list[RunEvent]:
        """Return the events of the run after event number `since`, at most 1,000.

        If there are no such events, wait up to `timeout` seconds for an event. `ref` selects one agent.
        """
        return await self._call(LIST_EVENTS, EventsSince(since, ref, seconds=timeout))

    async def wait(
        self,
        *agents: AgentHandle | str | int,
        mode: Literal["any", "all"] | int = "all",
        timeout: float | None = None,
    ) -> Waited:
        """Wait until agents have finished the query that they run now, for at most `timeout` seconds.

        `mode` is "all", "any", or the number of agents to wait for. Queries that start later, such as queued ones, are
        not waited for: wait for their futures.
        """
        return await self._call(WAIT, Wait(_agent_refs(agents), mode, timeout))

    @overload
    async def ask_all(
        self, agents: AgentRefs, prompt: Prompt, *, timeout: float | None = None, returns: type[T]
    ) -> list[AskedValue[T]]: ...
    @overload
    async def ask_all(
        self, agents: AgentRefs, prompt: Prompt, *, timeout: float | None = None, returns: JsonSchema
    ) -> list[AskedValue[Any]]: ...
    @overload
    async def ask_all(
        self, agents: AgentRefs, prompt: Prompt, *, timeout: float | None = None, returns: None = None
    ) -> list[AskAllResult]: ...
    @named_arguments()
    async def ask_all(
        self,
        agents: AgentRefs,
        prompt: Prompt,
        *,
        timeout: float | None = None,
        returns: type[T] | JsonSchema | None = None,
    ) -> list[AskAllResult] | list[AskedValue[T]]:
        """Send one prompt to several agents and archive holders. Return their results in the order of `agents`.

        A limited number of agents work at the same time. If an agent fails, its result contains the error; the other
        agents are not affected. With `returns`, the `value` of each result has that type; see `AsyncSubagent.query`.
        """
        refs = _agent_refs(as_list("agents", agents))
        text, images = prompt_of(prompt)
        if returns is None:
            return await self._call(ASK_ALL, AskAll(refs, text, timeout, images=images))
        expected: ReturnType[T] = return_type(returns)
        deadline = self._loop.time() + timeout if timeout is not None else math.inf
        results = await self._call(ASK_ALL, AskAll(refs, prompt_for_value(text, expected), timeout, images=images))
        return await asyncio.gather(*(self._typed_result(each, expected, deadline) for each in results))

    async def _typed_result(self, result: AskAllResult, expected: ReturnType[T], deadline: float) -> AskedValue[T]:
        """Return the value in the reply. The agent can correct an invalid reply until the loop time `deadline`."""
        if result.reply is None:
            return AskedValue(result.ref, error=result.error)
        agent = AsyncSubagent(self, result.reply.id)
        remaining_seconds = max(0.0, deadline - self._loop.time()) if deadline < math.inf else None
        try:
            value, reply = await parse_with_correction(
                agent, result.reply, expected, lambda prompt: agent.query(prompt, timeout=remaining_seconds)
            )
            return AskedValue(result.ref, value, reply)
        except OrchError as error:
            return AskedValue(result.ref, None, result.reply, str(error))

    @overload
    async def map(
        self,
        items: Iterable[Any],
        prompt: str | Callable[[Any], Prompt],
        *,
        returns: type[T],
        **options: Unpack[MapArguments],
    ) -> list[MapResult[T]]: ...
    @overload
    async def map(
        self,
        items: Iterable[Any],
        prompt: str | Callable[[Any], Prompt],
        *,
        returns: JsonSchema,
        **options: Unpack[MapArguments],
    ) -> list[MapResult[Any]]: ...
    @overload
    async def map(
        self,
        items: Iterable[Any],
        prompt: str | Callable[[Any], Prompt],
        *,
        returns: None = None,
        **options: Unpack[MapArguments],
    ) -> list[MapResult[str]]: ...
    @named_arguments(MapOptions)
    async def map(
        self,
        items: Iterable[Any],
        prompt: str | Callable[[Any], Prompt],
        *,
        workers: int = 4,
        returns: type[T] | JsonSchema | None = None,
        key: Callable[[Any], str] | None = None,
        name: str | None = None,
        max_cost: float | None = None,
        budget: Budget | None = None,
        stop_on_error: bool = False,
        on_progress: OnProgress | None = None,
        **options: Unpack[MapOptions],
    ) -> list[MapResult[T]] | list[MapResult[Any]] | list[MapResult[str]]:
        """Spawn an agent for each item, query it once, and return the results in the order of `items`.

            results = await o.map(Path("src").glob("*.py"), "Review {item}", workers=6, returns=Review)

        If the run has a name, its journal keeps the replies. When the map runs again, for example after `kill -9`,
        items with a complete reply cost nothing, and only the other items are asked. An item is asked again if its
        key, its prompt or the settings of its agent changed. A failed item has an error and does not stop the others.

        - `prompt`: a template with `{item}`, or `{item.field}` for a mapping or object; or a function that returns the
          prompt of an item. If the function raises an exception, only this item fails.
        - `workers`: how many agents work at a time. At most `subagents.max_concurrent` have a process.
        - `returns`: the type of the values; see `AsyncSubagent.query`. Without a type, the values are texts.
        - `key`: a function that returns the unique key of an item. None uses the item as text or JSON.
        - `name`: the name of the map: of the agent that has the agents of the items as subagents. Another name starts
          a map with no kept replies. None derives the name from the prompt and the type.
        - `max_cost`, `budget`: limits on the total usage of all items, including earlier runs. After a limit is
          reached, no more items are started. `limits` applies to each agent.
        - `stop_on_error`: start no more items after an error.
        - `on_progress`: a function that is called in the event loop's thread with a MapProgress whenever an item starts
          or ends.
        - `options` are the arguments of `spawn` for each agent.

        If the call is cancelled, the turns in progress are cancelled. Raises ConfigError for invalid arguments, for
        keys that are not unique, and for `returns` if no model is configured.
        """
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise ConfigError(f"workers must be a whole number above 0; got {workers!r}")
        expected: ReturnType[Any] | None = None if returns is None else return_type(returns)
        if expected is not None and options.get("agent") is None and options.get("backend") is None:
            check_model(options.get("model") or self.config.model)
        todo = make_items(as_list("items", items), prompt, key)
        if expected is not None:
            todo = [replace(item, prompt=prompt_for_value(item.prompt, expected)) for item in todo]
        if not todo:
            return []
        schema = "" if expected is None else msgspec.json.encode(expected.schema, order="deterministic").decode()
        map_name = name or default_name(prompt, schema)
        parent = await self._parent_of_map(map_name, len(todo), max_cost, budget, options)

        async def answer(item: MapItem) -> MapResult[Any]:
            return await self._answer_item(item, map_name, parent, expected, options)

        return await run_items(
            todo,
            answer,
            workers=workers,
            stop_on_error=stop_on_error,
            stops=stops_at(self.supervisor.tree.agents[parent].spec.limits, options.get("limits")),
            on_progress=on_progress,
        )

    async def _parent_of_map(
        self, name: str, count: int, max_cost: float | None, budget: Budget | None, options: MapOptions
    ) -> str:
        """Return the id of the agent that has the budget of the map. Spawn this agent if it does not exist."""
        if (known := self.supervisor.tree.agents.find_by_name(name)) is not None:
            parent = await self.resume(known.spec.id, max_cost=max_cost, budget=budget)
        else:
            own = MapOptions(**{**options, "isolation": None, "namespace": None})
            parent = await self.spawn(
                f"A map of {count} items", name=name, max_cost=max_cost, budget=budget, _place=Place(), **own
            )
        return parent.id

    async def _answer_item(
        self, item: MapItem, name: str, parent: str, expected: ReturnType[Any] | None, options: MapOptions
    ) -> MapResult[Any]:
        if item.failure is not None:
            return failed_prompt(item, item.failure)
        agents, agent, before = self.supervisor.tree.agents, None, 0.0
        result: MapResult[Any] = MapResult(item.key, item.value)
        try:
            agent = await self.spawn(task_of(item, name), _place=Place(parent, item), **options)
            id, before = agents[agent.id].spec.item, agents.tree_usage(agent.id).cost_usd
            kept, kept_correction = (kept_reply(agents[agent.id], each) is not None for each in (id, id + CORRECTION))
            result = replace(result, agent=agent.id)
            reply = await self._ask_about_item(agent, id, item.prompt, item.images)
            value: Any = reply.text
            if expected is None and reply.whole:
                value = await agent.value(reply.whole)
            if expected is not None:
                ask = partial(self._ask_about_item, agent, id + CORRECTION)
                value, corrected = await parse_with_correction(agent, reply, expected, ask)
                kept, reply = kept and (corrected is reply or kept_correction), corrected
            result = replace(result, value=value, reply=reply, kept=kept)
        except OrchError as error:
            result = replace(
                result, error=str(error), error_type=type(error).__name__, exit_code=error.exit_code, value=None
            )
            if agent is not None and isinstance(error, BadReplyError | ContextOverflowError):
                await agent.kill()  # in this conversation, the same question would fail again
        cost = agents.tree_usage(agent.id).cost_usd - before if agent is not None else 0.0
        return replace(result, cost_usd=cost)

    async def _ask_about_item(
        self, agent: AsyncSubagent, id: str, prompt: str, images: tuple[Image, ...] = ()
    ) -> Reply:
        """Return the complete reply to the question `id` of a map. Raises an error for an incomplete reply."""
        return complete_reply(await self._call(QUERY, QueryAgent(agent.id, prompt, images=images, item=id)))

    async def kill(self, *refs: str | int, all: bool = False) -> tuple[str, ...]:
        """Kill agents and their descendants.

        Return the ids of the killed agents, children first. Transcripts are kept.
        """
        killed = await self._call(KILL, Kill(tuple(map(str, refs)), all))
        return killed.ids

    async def resume(
        self, ref: str | int, *, max_cost: float | None = None, budget: Budget | None = None
    ) -> AsyncSubagent:
        """Let a killed or failed agent answer queries again, and return the agent.

        `max_cost` and `budget` set limits on the agent's total usage. `math.inf` removes a limit. If the agent was not
        killed, only the limits change.
        """
        row = await self._call(RESUME, Resume(str(ref), budget_change(max_cost, budget)))
        return AsyncSubagent(self, row.id)

    def agent_types(self, folder: str | os.PathLike[str] | None = None) -> list[AgentType]:
        """Return the agent types for agents in `folder`. None selects the current folder.

        The result includes disabled types with the reason why they are disabled. Raises ConfigError.
        """
        project_folder = Path(paths.checked_path("folder", folder) or paths.current_folder()).absolute()
        return list(find_types(project_folder, self.home, self.config).found)

    # Registration; see also `Registration`.

    async def emit_event(
        self, agent: AgentHandle | str | int, name: str, data: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Emit an event of this program about `agent`. Return the event's data as changed by hooks at `custom_event`.

        `name` is any name that is not a stage; `data` is JSON data. Hooks of this program are called first. If the
        agent has a process, hooks in that process are then notified. The changed event is recorded, and `events` lists
        this event with kind `custom_event`. Raises ConfigError, AgentNotFoundError, StoreError.
        """
        if not isinstance(name, str) or not name or name in STAGES or name in ALIASES:
            raise ConfigError(f"invalid event name {name!r}: use a string that is not the name of a stage")
        try:
            builtins = msgspec.json.decode(msgspec.json.encode(dict(data or {})))
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"event {name!r}: data must be a mapping with JSON data: {error}") from error
        ref = agent if isinstance(agent, str) else str(getattr(agent, "id", agent))
        node = await find_agent_or_holder(self.supervisor, USER, ref, "use", "control")
        return await emit_event(self.supervisor, node, name, builtins)

    def add_observer(self, observer: Observer) -> None:
        """Call `observer` with a CallEvent for every tool call. The calls begin with the next turn of each agent.

        Events are delivered one at a time, in order, and do not delay agents. Exceptions of the observer are logged. An
        observer that is not async runs in a thread. `close` delivers remaining events for a few seconds.
        """
        self._watchers.add_observer(observer)

    def remove_observer(self, observer: Observer) -> None:
        """Stop calling `observer`."""
        self._watchers.remove_observer(observer)

    # Internals.

    async def _replace_executor(self, id: str, executor: Executor | str | None, *, required: bool) -> None:
        """Let the object `executor` run the tool calls of a resumed agent that was spawned with an executor object.

        For other agents, raise ConfigError if `required` is True.
        """
        spec = self.supervisor.tree.agents[id].spec
        _, found = await executor_spec(executor, None)
        if found is None:
            return
        if spec.executor is not None and spec.executor.in_program:
            self.supervisor.executors[id] = found
        elif required:
            raise ConfigError(
                f"tool_executor cannot be changed when the agent {spec.name!r} is resumed, because the agent was "
                "spawned without an executor object: leave the argument out, or start a new session without resume="
            )

    def _handle(self, id: str) -> AsyncSubagent:
        return AsyncSubagent(self, id)

    async def _call(self, service: Service[P, R], params: P) -> R:
        return await call(self.supervisor, USER, service, check_params(service, params))

    def _keys_for(self, id: str) -> dict[str, str]:
        """Return the keys that are written to the birth pipe of the agent's worker."""
        values, known = self.credentials.values(id), models.valid_catalog(self._known)
        keys = self._own_keys(known) if values is None else keys_in(values, known)
        provider = self.supervisor.tree.agents[id].spec.backend.provider
        withheld = known.withheld_from({provider, *configured_providers(self.config)})
        return {name: value for name, value in keys.items() if name not in withheld}

    def _own_keys(self, known: ModelCatalog) -> dict[str, str]:
        return keys_in(self._env, known) if self._keys is None else self._keys

    def _template(self) -> Template:
        """Return the zygote template for agents with the configured model."""
        spec = parse_model(self.config.model)
        if spec.provider == LOCAL:
            return APIS["chat"].template
        known = models.valid_catalog(self._known)
        try:
            return template_for(complete(spec, known, self._env, self._own_keys(known)))
        except ConfigError:
            return "lean"  # spawning such an agent raises the error


def _agent_refs(agents: Iterable[AgentHandle | str | int]) -> tuple[str, ...]:
    return tuple(agent if isinstance(agent, str) else str(getattr(agent, "id", agent)) for agent in agents)


def _check_session_options(system: str | None, options: AgentOptions) -> None:
    """Raise ConfigError for wrong arguments of `session`. Only values that a resumed session uses are checked here."""
    if not isinstance(system, str | None):
        raise ConfigError(f"system must be a string; got {system!r}")
    conflicting = [name for name in ("prompt_template", "vars", "agent") if options.get(name)]
    if system is not None and conflicting:
        raise ConfigError(f"pass system= or {conflicting[0]}=, not both: each sets the first part of the prompt")
    _check_approver(options.get("approve"))


def _check_resume_options(resume: str | int, task: str, system: str | None, options: AgentOptions) -> None:
    """Raise ConfigError for arguments that do not apply to the resumed agent `resume`."""
    arguments = {"task": task if task != SESSION_TASK else None, "system": system, **options}
    defaults = inspect.signature(AsyncOrchestrator.spawn).parameters
    ignored = [
        name
        for name, value in arguments.items()
        if value is not None
        and not (name in defaults and value == defaults[name].default)
        and not (name in RESUME_OPTIONS and not isinstance(value, str))
    ]
    if ignored:
        raise ConfigError(
            f"{', '.join(ignored)} cannot be changed when the agent {resume!r} is resumed: leave the arguments out, or "
            "start a new session without resume="
        )


def _check_approver(approve: Approver | None) -> None:
    if approve is not None and not callable(approve):
        raise ConfigError(f"approve must be a function that takes a Question; got {approve!r}")


async def _find_session_to_resume(orchestrator: AsyncOrchestrator, resume: bool | str | int | None) -> str | None:
    """Return the id of the session to resume. Return None if a new session is needed."""
    if resume is False or resume is None:
        return None
    if resume is True:
        sessions = [row for row in await orchestrator.agents(all=True) if row.depth == 0]
        if not sessions:
            return None
        row = max(sessions, key=lambda row: row.last_activity)
    else:
        row = await (await orchestrator.get(resume)).state()
        if row.kind == "holder":
            raise ConfigError(f"{resume!r} is an archive and cannot be resumed as a session; query it instead")
    if row.status in ("killed", "failed"):
        await orchestrator.resume(row.id)
    return row.id
