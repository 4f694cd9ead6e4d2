"""The asynchronous API. Everything else (the sync API, the daemon, the CLI) stands on it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec

from orch_protocol.agent.config import Config, parse_model
from orch_protocol.agent.project import ProjectContext
from orch_protocol.agent.spec import Limits, QueueMode, Template
from orch_protocol.core.approval import ListPermissions, Permission, Revoke
from orch_protocol.core.budget import Budget, BudgetShown, ChangeBudget
from orch_protocol.core.errors import ConfigError, StoreError, UnsupportedPlatformError
from orch_protocol.core.ids import new_id
from orch_protocol.core.messages import Message, Reply
from orch_protocol.resources.skills import SkillSpec
from orch_protocol.services.import_export import ImportSession
from orch_protocol.services.requests import (
    AgentRow,
    ArchiveRow,
    Hit,
    Kill,
    Killed,
    List,
    ListArchives,
    MapAgents,
    Mapped,
    Prune,
    Pruned,
    ReadArchive,
    Ref,
    Resume,
    SearchArchive,
    Spawn,
    Wait,
    Waited,
)
from orch_protocol.services.run_events import EventsSince, RunEvent
from orch_protocol.session.tree import PrunedSessions, PruneSessions
from orch_worker.backends import models
from orch_worker.backends.local_servers import LOCAL
from orch_worker.backends.registry import complete, template_for
from orch_worker.policy.policy_callback import Opinion, PolicyFunction
from orch_worker.sandbox.probe import machine
from orch_worker.session.log.lock import FolderLock
from orch_worker.tools.api.base import ToolContext

from ..config import config as configuration
from ..config import paths
from ..config.models import Catalog
from ..config.notices import Asides
from ..config.paths import path_of
from ..policy import sandbox
from ..policy.approvals import ApprovalBroker, Approver
from ..policy.budget_rules import budget_change, budget_of
from ..policy.credentials import Credentials, ProgramCredentials
from ..policy.root_hooks import HookRegistrar, RootHooks
from ..processes import default_launcher
from ..processes.base import Launcher
from ..processes.descriptors import require_room
from ..processes.router import Deliver, Router, Switchboard
from ..resources.extensions import templates_for
from ..resources.prompt_templates import InMemory, PromptTemplate, TemplateProvider, Templates
from ..services import call, fitting, serve_worker
from ..services.archives.recall import found
from ..services.resources.hooks import attend
from ..sessions.export import exported
from ..supervisor.recovery.deletion import finish
from ..supervisor.recovery.orphan_cleanup import end_leftovers, run_token
from ..supervisor.supervisor import Supervisor
from ..supervisor.watchers import Observer, Watchers
from ..tree.journal.journal import JOURNAL, Journal
from .agent import AsyncSubagent, OnEvent
from .arguments import Scripted, ToolLike, as_data, check_arguments, keys_in, listed, names_of, script_of, split_tools
from .shared_namespace import lend

if TYPE_CHECKING:
    from ..resources.skill_discovery import Found
    from ..resources.skills import Skill, SkillProvider

__all__ = ["AsyncOrchestrator", "AsyncSession", "Conversing", "Prunable", "Skilled", "Templated", "ToolLike"]


# --- Sessions ---

TASK: Final = "Talk with the user, and do what they ask."


class AsyncSession(AsyncSubagent):
    """An agent that one talks to: what any agent can do, and `run`."""

    async def run(self, text: str, *, timeout: float | None = None, on_event: OnEvent | None = None) -> Reply:
        """Say `text`, and return what the agent says to it; see `query`.

        With `archival.async = false`, `archived_to` of the reply is the holder if the turn was archived.
        """
        return await self.query(text, timeout=timeout, on_event=on_event)


class Conversing:
    """An orchestrator with sessions."""

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
        backend: Scripted | None = None,
        name: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
        limits: Limits | None = None,
        budget: Budget | None = None,
    ) -> AsyncSession:
        """Return an agent to talk to: `await session.run("...")`, `await session.execute("/status")`.

        With `resume` it is the session of this run that was active last, killed or not, if there is one; a reference
        names one that must be there. Such a one stays what it was made as: the other arguments, but for `approve`, are
        for a new one. `system` is the text that says who it is, as it stands; `history` what was said before. `approve`
        answers what needs approval in it and below it, in place of the orchestrator's own. For the rest see `spawn`.
        Raises SpawnError, ConfigError, AgentNotFoundError and kin.
        """
        o = cast("AsyncOrchestrator", self)
        if approve is not None and not callable(approve):
            raise ConfigError(f"approve is a function that is called with a Question, not {approve!r}")
        if not isinstance(system, str | None):
            raise ConfigError(f"system is text, not {system!r}")
        if (found := await _resumed(o, resume)) is None:
            said = None if system is None else PromptTemplate.literal("session", system, "system=")
            agent = await o.spawn(
                TASK,
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
            o.supervisor.approvals.answered_by(found, approve)
        return AsyncSession(o, found)


async def _resumed(o: AsyncOrchestrator, resume: bool | str | int) -> str | None:
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
            raise ConfigError(f"{resume!r} is an archive: it is asked, and no session goes on there")
    if row.status in ("killed", "failed"):
        await o.resume(row.id)
    return row.id


# --- Deleting for good what nobody needs any more ---


class Prunable:
    """An orchestrator whose old archives and sessions can be deleted."""

    async def prune_archives(
        self, *, older: float | str, ref: str | int | None = None, dry_run: bool = False
    ) -> Pruned:
        """Delete for good what was archived longer ago than `older` (seconds, or a text such as "30d"): of the agent
        `ref` and those below it, None: of all. With `dry_run` only tell what would go.

        Agents that idle go cold for it; one that works keeps its archives, and is told of in `busy`. Raises
        ConfigError, StoreError.
        """
        asked = Prune(older, None if ref is None else str(ref), dry_run)
        pruned: Pruned = await cast("AsyncOrchestrator", self)._call("prune", asked)
        return pruned

    async def prune_sessions(
        self, *, older: float | str, keep: int = 0, idle: bool = False, dry_run: bool = False
    ) -> PrunedSessions:
        """Delete for good the sessions of agents that were killed, or never came up, and that nobody touched for longer
        than `older` (seconds, or a text such as "30d"); the `keep` of these that were active last stay. With
        `idle` also of those that nobody ended and nobody asked for as long, which have no process: they are killed.

        One below which something is not over stays, too. With `dry_run` only tell what would go. The agents keep their
        numbers and what they used; whoever asks for more of them gets a SessionDeletedError. Raises ConfigError,
        StoreError.
        """
        pruned: PrunedSessions = await cast("AsyncOrchestrator", self)._call(
            "prune_sessions", PruneSessions(older, keep, dry_run, idle)
        )
        return pruned


# --- Something that skills can be registered with ---


class Skilled:
    """An orchestrator with skills: those there are, and those that are registered."""

    config: Config
    home: Path
    _skill_providers: list[SkillProvider]

    def register_skill(self, skill: Skill | SkillProvider) -> tuple[str, ...]:
        """Let agents that are spawned from now on have `skill`, a Skill; return its name.

        Or those of a provider: anything with a method `skills()` that returns Skills. All of these are taken, or none.
        Raises ConfigError: a name that is taken, and each rule of agentskills.io that is broken.
        """
        from ..resources.skills import own_skills, provider_of

        provider = provider_of(skill)
        names = {each.name for each in self._own_skills()}
        made = own_skills((provider,))
        if taken := [each.name for each in made if each.name in names]:
            raise ConfigError(f"there is a skill {taken[0]!r} already: give one another name")
        self._skill_providers.append(provider)
        return tuple(each.name for each in made)

    def skills(self, folder: str | Path | None = None) -> list[Found]:
        """Return the skills for agents in `folder`, None: this one, and why those that are off are so."""
        from ..resources.extensions import find as find_extensions
        from ..resources.extensions import specs
        from ..resources.skill_discovery import find

        place = Path(path_of("folder", folder) or ".").absolute()
        extensions = specs(find_extensions(place, self.home, self.config.extensions.load), self.home)
        return find(place, self.home, self.config.skills, extensions=extensions, own=self._own_skills())

    def _own_skills(self) -> tuple[SkillSpec, ...]:
        if not self._skill_providers:
            return ()
        from ..resources.skills import own_skills

        return own_skills(self._skill_providers)


# --- Something that templates of prompts can be registered with ---


class Templated:
    """An orchestrator with templates: those that are configured, and those that are registered."""

    _templates: Templates

    def register_prompt_template(self, template: str | TemplateProvider, text: str | None = None) -> tuple[str, ...]:
        """Let agents be spawned by the template called `template`, whose text is `text`; return its name.

        Or by the templates of a provider: anything with a method `templates()`. All of these are taken, or none.
        Raises ConfigError: a name that is taken, braces that begin no variable.
        """
        if isinstance(template, str):
            if not isinstance(text, str):
                raise ConfigError(f"template {template!r} needs a text")
            return self._templates.add(InMemory({template: text}))
        if text is not None or not callable(getattr(template, "templates", None)):
            raise ConfigError(f"a template is a name and a text, or something that has templates(), not {template!r}")
        return self._templates.add(template)

    def prompt_templates(self) -> list[PromptTemplate]:
        """Return the templates there are, by name. Raises ConfigError."""
        return self._templates.all()


class AsyncOrchestrator(HookRegistrar, Templated, Skilled, Conversing, Prunable):
    """A root: supervises the agents of one run, each in a process of its own.

        async with AsyncOrchestrator() as o:
            agent = await o.spawn("Explain this repo")
            print((await agent.query("What does README promise?")).text)

    `model` is `provider:model`, or `local`; None is the configured one, else a provider's default for which a key is
    there. `run` names a run folder that outlives the program: opened again, its agents answer again. Without it the run
    is this program's alone; transcripts stay in `home` either way. `config` replaces what configuration files and
    variables say. `env` is where keys and addresses are looked up. `environment` names variables, or globs, that
    workers get besides the usual ones, as `environment.pass` does.

    `approve` is called with a Question for each call that needs approval, one at a time, and returns True, False or a
    Consent. It may be async; else it runs in a thread. Without it such calls are denied.

    `policy` is called with a PolicyCall and the PolicyConfig for each call of the agents that are spawned, and of those
    below them, and returns a Verdict, which only ever makes things stricter. It too may be async.
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
        connect: Callable[[Path, Path, Deliver], Switchboard] | None = None,
    ) -> None:
        if sys.platform == "win32":
            raise UnsupportedPlatformError("orch starts processes with fork and Unix sockets: on Windows, use WSL")
        check_arguments(model, config, run, home, env, keys, environment, approve, policy, launcher, connect)
        if config is not None:
            config = configuration.checked(config)
        environ = os.environ if env is None else env
        self.home = paths.home(environ, home)
        loaded = configuration.load(paths.here(), environ, home=self.home) if config is None else None
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
        self._templates = templates_for(self.config, paths.here(), self.home)
        self._skill_providers: list[SkillProvider] = []
        self.notes = loaded.notes if loaded else ()
        """What of the configuration was ignored, and why."""
        self._environment = (*self.config.environment.pass_, *(names_of("environment", environment) or ()))
        self._asides = Asides(unsaid, configuration.strange_tools(configuration.flat(self.config)))
        self._named = run is not None
        self.run = run or f"{paths.OWN_RUN}{new_id()}"
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
        sandbox.check_required_levels(self.config.sandbox, machine)
        require_room()
        folder = paths.private_dir(paths.run_dir(self.home, self.run))
        chosen = self.config.session_dir
        sessions = paths.private_dir(
            paths.sessions_of(self.home, chosen), "ORCH_HOME" if chosen is None else "session_dir"
        )
        paths.hide(self.home)
        paths.sweep_runs(self.home)
        # What is opened is closed in the reverse order: by `close`, and when something cannot be opened.
        async with AsyncExitStack() as stack:
            if not self._named:
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.callback(FolderLock.acquire(folder).release)
            if self._named:
                end_leftovers(folder)
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
            opinion = Opinion(self._policy) if self._policy is not None else None
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
            attend(supervisor, self._templates)
            stack.push_async_callback(self._watchers.close)
            stack.push_async_callback(supervisor.close)
            supervisor.start()
            with contextlib.suppress(StoreError):  # a full disk keeps nobody from opening it
                await finish(supervisor)
            self._supervisor, self._opened, self._closing = supervisor, stack.pop_all(), None
        return self

    async def close(self) -> None:
        """End every process. Transcripts stay; a named run's agents answer again when it is opened anew.

        Takes at most some seconds, and goes on when it is cancelled: half closed, processes would be left behind. In a
        fork of the program it does nothing: what there is to close is not the child's.
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
        """The running supervisor. Raises ConfigError where `_seen` does, and in another event loop."""
        if self._seen and asyncio._get_running_loop() not in (None, self._loop):
            raise ConfigError("this orchestrator is another event loop's: use and close it there, or make one here")
        return self._seen

    @property
    def _seen(self) -> Supervisor:
        """The same to look at, from any thread. Raises ConfigError before `start`, after `close`, in a fork."""
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
        peers: Iterable[AsyncSubagent | str | int] = (),
        archives: Iterable[str] = (),
    ) -> AsyncSubagent:
        """Start an agent with a task and a fixed set of tools, and return it once its process is up.

        `tools` (names of built-in tools and functions of this program) beats `preset`. `history` seeds its transcript.
        `budget` is what it may use in all, with everything that it spawns, and `max_cost` its USD; both beat `limits`.
        Its model thinks as much as `thinking` says (see `AsyncSubagent.set_thinking`), None: as configured.
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
        if not isinstance(task, str) or not isinstance(env, Mapping | None):
            wrong = repr(task) if not isinstance(task, str) else f"env={env!r}"
            raise ConfigError(f"a task is text and env a mapping of variables, not {wrong}")
        names, functions = split_tools(tools)
        script, summaries = script_of(backend)
        folder = paths.path_of("cwd", cwd) or str(paths.here())
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
            history=tuple(listed("history", history)),
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
            skills=names_of("skills", skills),
            own_skills=self._own_skills(),
            peers=_refs(listed("peers", peers)),
            archives=names_of("archives", archives) or (),
            usable_credentials=names_of("usable_credentials", usable_credentials) or (),
        )
        spawned = await call(self.supervisor, None, "spawn", as_data(request))
        if namespace is not None:
            await lend(self.supervisor, spawned, namespace, self._opened.callback)
        own = {function.name for function in functions}
        self._asides.spawned(spawned.note, own, chosen=model is not None or backend is not None)
        if functions:
            self.supervisor.tools[spawned.id] = {function.name: function for function in functions}
        return AsyncSubagent(self, spawned.id)

    async def import_session(
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
    ) -> AsyncSubagent:
        """Return a new agent that goes on with the conversation in the file at `path`, and has no process until it is
        asked: a session of ours or of pi's, a transcript of a coding assistant, a list of messages.

        The file is only read. `which` (from 1) is needed when it holds several. With `repair` damage is set right and
        told of in the agent's `state().repaired`; without, it is an error. `cwd` is the file's where that is there. For
        the rest see `spawn`. Raises ForeignFileError, DamagedError, StoreError, ConfigError, SpawnError.
        """
        script, summaries = script_of(backend)
        agent = {
            "preset": preset,
            "tools": names_of("tools", tools),
            "model": model,
            "script": script,
            "summaries": summaries,
            "name": name,
            "cwd": paths.path_of("cwd", cwd),
            "limits": limits,
            "budget": budget_of(max_cost, budget),
        }
        asked = ImportSession(paths.path_of("path", path) or "", str(paths.here()), which, repair, agent)
        return AsyncSubagent(self, (await call(self.supervisor, None, "import", as_data(asked))).id)

    async def export_session(
        self, ref: str | int, *, format: str = "pi", output: str | os.PathLike[str] | None = None
    ) -> str:
        """Return the conversation of the agent `ref`, what was archived in its place: for pi (`pi`), as a page (`md`,
        `html`), as an API's messages (see `orch.sessions.export.CHOICES`), or as its file is (`jsonl`).

        With `output` it is written to that file too, whole or not at all. Raises ConfigError, StoreError, AgentError.
        """
        row: AgentRow = await self._call("state", Ref(str(ref)))
        return await self.supervisor.disk.do(exported, row, format, output)

    async def get(self, ref: str | int) -> AsyncSubagent:
        """Return the agent, or the holder of an archive, that `ref` (number, id, unique prefix, name) means.

        Raises AgentNotFoundError and kin.
        """
        return AsyncSubagent(self, (await found(self.supervisor, None, str(ref), "use", "control")).spec.id)

    async def agents(self, *, all: bool = False) -> list[AgentRow]:
        """Return every agent as it is now; killed ones only with `all`."""
        rows: list[AgentRow] = await self._call("list", List(all))
        return rows

    async def events(self, since: int = 0, *, ref: str | None = None, timeout: float = 0.0) -> list[RunEvent]:
        """Return what happened after event `since`, 1,000 at most; wait `timeout` seconds when that is nothing."""
        found: list[RunEvent] = await self._call("events", EventsSince(since, ref, seconds=timeout))
        return found

    async def wait(
        self,
        *agents: AsyncSubagent | str | int,
        mode: Literal["any", "all"] | int = "all",
        timeout: float | None = None,
    ) -> Waited:
        """Wait until any, all or `mode` of the agents are not busy, at most `timeout` seconds."""
        waited: Waited = await self._call("wait", Wait(_refs(agents), mode, timeout))
        return waited

    async def map(
        self, refs: Iterable[AsyncSubagent | str | int], prompt: str, *, timeout: float | None = None
    ) -> list[Mapped]:
        """Ask agents and holders the same, some at a time; return what each said, in order. One failure is its own."""
        asked = MapAgents(_refs(listed("refs", refs)), prompt, timeout)
        mapped: list[Mapped] = await self._call("map", asked)
        return mapped

    async def permissions(self, folder: str | None = None) -> list[Permission]:
        """Return what was approved for later and still holds, in `folder` (None: anywhere), with when it ends."""
        listed: list[Permission] = await self._call("permissions", ListPermissions(folder))
        return listed

    async def revoke(self, *ids: str) -> list[Permission]:
        """Take permissions back and return them: what they covered is asked about anew. ConfigError for unknown ids."""
        revoked: list[Permission] = await self._call("revoke", Revoke(ids))
        return revoked

    def add_observer(self, observer: Observer) -> None:
        """Let `observer` be called with a CallEvent for all that becomes of each call of a tool, at any depth.

        From each agent's next turn on; one event after the other, beside the run: what an observer takes, or raises,
        is its own affair. It may be async, else it runs in a thread. `close` lets it hear the rest, for some seconds.
        """
        self._watchers.add(observer)

    def remove_observer(self, observer: Observer) -> None:
        """Call it no more."""
        self._watchers.remove(observer)

    # What was archived.

    async def archives(self, ref: str | int | None = None) -> list[ArchiveRow]:
        """Return the archives of the agent `ref` and of those below it, None: of all, in the order they were made."""
        rows: list[ArchiveRow] = await self._call("archives", ListArchives(None if ref is None else str(ref)))
        return rows

    async def search_archive(self, query: str, *, ref: str | int | None = None, limit: int = 10) -> list[Hit]:
        """Return up to `limit` places in archives where `query` stands, or what resembles it, the best first."""
        asked = SearchArchive(query, limit, None if ref is None else str(ref))
        hits: list[Hit] = await self._call("search_archive", asked)
        return hits

    async def read_archive(self, id: str, *, first: int = 1, last: int | None = None) -> list[Message]:
        """Return the messages `first` to `last` (from 1, both included) of an archive, exactly as they were.

        Raises AgentNotFoundError, AmbiguousRefError, DamagedError.
        """
        messages: list[Message] = await self._call("read_archive", ReadArchive(id, first, last))
        return messages

    async def kill(self, *refs: str | int, all: bool = False) -> tuple[str, ...]:
        """End agents and everything below them; return the ids, children first. Transcripts stay."""
        killed: Killed = await self._call("kill", Kill(tuple(map(str, refs)), all))
        return killed.ids

    async def resume(
        self, ref: str | int, *, max_cost: float | None = None, budget: Budget | None = None
    ) -> AsyncSubagent:
        """Let a killed or failed agent answer again.

        With `max_cost` any agent may spend so many USD in all, with `math.inf` as much as it likes; so with each limit
        of `budget`.
        """
        row: AgentRow = await self._call("resume", Resume(str(ref), budget_change(max_cost, budget)))
        return AsyncSubagent(self, row.id)

    async def budget(self, *, max_cost: float | None = None, budget: Budget | None = None) -> BudgetShown:
        """Let all agents together use so much from now on, `math.inf` for no limit; return what they may and did use.

        It holds, also when the run is opened anew, until the configuration says something else than it does now.
        """
        shown: BudgetShown = await self._call("budget", ChangeBudget(budget_change(max_cost, budget)))
        return shown

    async def _call(self, method: str, params: msgspec.Struct) -> Any:
        return await call(self.supervisor, None, method, fitting(method, params))

    def _keys_for(self, id: str) -> dict[str, str]:
        """Return the keys for the birth pipe of the agent's worker."""
        values = self.credentials.values(id)
        return self._keys if values is None else keys_in(values, self._known)

    def _template(self) -> Template:
        """Return what agents without a model of their own are started from, as far as that can be said already."""
        spec = parse_model(self.config.model)
        if spec.provider == LOCAL:
            return "sdk"
        try:
            return template_for(complete(spec, self._known, self._env, self._keys))
        except ConfigError:
            return "lean"  # the error is for whoever spawns such an agent


def _refs(agents: Iterable[AsyncSubagent | str | int]) -> tuple[str, ...]:
    return tuple(agent.id if isinstance(agent, AsyncSubagent) else str(agent) for agent in agents)
