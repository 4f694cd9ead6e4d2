"""From what somebody asks for to what an agent is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from orch_protocol.agent.config import ArchivalConfig, Config, LimitsConfig, parse_model
from orch_protocol.agent.project import RANK, ContextSpec
from orch_protocol.agent.spec import AgentSpec, ArchivalSpec, BackendSpec, CompactionSpec, Limits
from orch_protocol.core.errors import ConfigError, LaunchError, OrchError, SpawnError, ToolNotGrantedError
from orch_protocol.core.ids import new_id
from orch_protocol.core.prompts import PromptSpec
from orch_protocol.core.taint import inherited_labels
from orch_protocol.core.workspace import WorkspaceSpec
from orch_protocol.hooks.stages import HooksSpec
from orch_protocol.policy.budget import Budget
from orch_protocol.policy.policy import EXIT_PLAN, PolicySpec
from orch_protocol.policy.sandbox import RUN_CODE, SandboxConfig, SandboxSpec
from orch_protocol.resources.extensions import ExtensionSpec
from orch_protocol.resources.memory import MemorySpec
from orch_protocol.resources.skills import READ_SKILL
from orch_protocol.services.requests import SPAWN, Spawn, Spawned
from orch_worker.backends.cost_estimate import check_priced
from orch_worker.backends.offline.scripted import ScriptedBackend
from orch_worker.backends.registry import template_for
from orch_worker.backends.thinking import check_level, level_of
from orch_worker.memory.notes import folder_of, make_memory
from orch_worker.sandbox.probe import available_levels
from orch_worker.system.threads import ASIDE
from orch_worker.tools.dispatch.presets import DESK, NOTES, RECALL, granted_tools

from ...config.archival_profiles import rules_of
from ...policy import sandbox as sandboxing
from ...policy.budget_rules import check_budget
from ...policy.caller import USER, Caller
from ...policy.hook_records import EVIDENCE, hooks_spec, switches_file
from ...resources.extensions import extension_specs, find
from ...tree.journal import events
from ...tree.journal.events import BOOT_SECONDS
from ..archives.recall import archives_of, find_agent_or_holder
from ..checks.local_only import local_model
from ..dispatch.handlers import handles
from .skills import discover_skills, left_out, skills_of

if TYPE_CHECKING:
    from ...resources.skill_discovery import Found
    from ...supervisor.supervisor import Supervisor

__all__ = ["check_name", "compaction_of", "spawn", "spec_of"]

NOT_ARCHIVED = "nothing of an agent that is not to persist is archived: an archive is kept, and it is not"
PEER_TOOLS = ("query_subagent", "collect_subagent", "wait_subagents", "list_subagents")
"""What an agent with peers is granted besides its other tools, so that it can ask them."""
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


@handles(SPAWN)
async def spawn(root: Supervisor, caller: Caller, request: Spawn) -> Spawned:
    """Start an agent and wait until its process is up. Raises SpawnError, ConfigError.

    A program that waits no more, as by Ctrl-C, never gets to know the agent: it is ended.
    """
    parent = caller.find_agent(root.tree.agents)
    if parent is not None and "spawn_subagent" not in parent.spec.active:
        raise ToolNotGrantedError(f"agent {parent.spec.name!r} was not granted spawn_subagent")
    if parent is not None and request.peers:
        raise ToolNotGrantedError(
            f"agent {parent.spec.name!r} cannot name peers: only the user can, with spawn(peers=[...]) or --peers"
        )
    spec, note = await spec_of(root, request, caller)
    credentials = root.credentials.record() if caller.is_user else None
    id: str = root.handle(events.SpawnRequested(spec, caller.agent_id, request.request_id, credentials))
    node = root.tree.agents[id]
    if node.status == "starting":
        try:
            await root.waiters.until(f"up:{id}", BOOT_SECONDS + 5)
        except TimeoutError:
            raise LaunchError(f"agent {node.spec.name!r} ({id}) was not up within {BOOT_SECONDS:g} s") from None
        except asyncio.CancelledError:
            if caller.is_user and request.request_id is None:  # nobody has it, or can ask for it again
                with contextlib.suppress(OrchError):
                    root.handle(events.KillRequested((id,), "the user"))
            raise
    elif node.status == "failed":
        raise LaunchError(f"agent {node.spec.name!r} ({id}) did not come up: {node.error}")
    return Spawned(id, node.spec.seq, node.spec.name, node.spec.preset, node.spec.depth, node.pid, note)


async def spec_of(root: Supervisor, request: Spawn, caller: Caller) -> tuple[AgentSpec, str]:
    """Return the spec of the agent that `request` asks for on behalf of `caller`, and what is to be said of its
    sandbox; see `describe`. Raises SandboxError."""
    parent = caller.find_agent(root.tree.agents)
    over = parent.spec if parent is not None else None
    backend = await root.catalog_for(caller.agent_id).complete(_backend(request, over, root.config))
    if over is not None and over.local:
        backend = await local_model(root, backend, caller.agent_id)
    if request.thinking is not None:
        check_level(request.thinking)
        backend = replace(backend, thinking=request.thinking)
        level_of(backend)  # says so where the model takes none
    elif not backend.thinking:
        usual = over.backend.thinking if over is not None else request.usual_thinking or root.config.thinking
        backend = replace(backend, thinking=usual or "")
    request = replace(
        request, peers=await _peers(root, request.peers), archives=await archives_of(root, caller, request.archives)
    )
    skills = await discover_skills(root, request, _folder(request.cwd, None)) if over is None else ()
    spec = describe(request, over, root.config, root.sessions, backend, home=root.hooks.home, skills=skills)
    if not spec.persist:
        spec = replace(spec, folder=str(root.fleeting.folder(spec.id)))
    if over is None and root.approvals.opinion is not None:
        spec = replace(spec, policy=replace(spec.policy, asks_root=True))
    if spec.limits.max_cost_usd is not None or "usd" in root.budgets.kinds_for(caller.agent_id):
        check_priced(backend)
    sandbox, note = _sandbox(request, spec.preset, over, root.config.sandbox)
    unkept = NOT_ARCHIVED if not spec.persist and root.config.archival.enabled else ""
    if not RUN_CODE.isdisjoint(spec.tools):  # elsewhere, since finding out starts a process once
        await asyncio.get_running_loop().run_in_executor(ASIDE, root.mounts_missing)
    sandbox, by_name = sandboxing.with_hidden_paths(sandbox, spec.tools, root.mounts_missing, spec.policy.rules)
    note = "\n".join(filter(None, (note, by_name, unkept, left_out(skills))))
    # What a skill has to run, or to look up, is of no use where it cannot be read.
    folders = (skill.path for skill in spec.skills.skills if skill.path)
    sandbox = replace(sandbox, read=tuple(dict.fromkeys((*sandbox.read, *folders))))
    return replace(spec, sandbox=sandbox), note


async def _peers(root: Supervisor, refs: Sequence[str]) -> tuple[str, ...]:
    """Return the ids of the agents `refs`, which the user names as peers. Raises AgentError, ConfigError."""
    peers = [await find_agent_or_holder(root, USER, ref, "name", "control") for ref in refs]
    for ref, node in zip(refs, peers, strict=True):
        if node.deleted:
            raise node.refusal()
        if node.is_holder:
            raise ConfigError(f"peer {ref!r} is an archive, not an agent; hand it over with archives=[{ref!r}]")
    return tuple(dict.fromkeys(node.spec.id for node in peers))


def _sandbox(request: Spawn, preset: str, parent: AgentSpec | None, config: SandboxConfig) -> tuple[SandboxSpec, str]:
    """Return the sandbox of the agent's tools: never less than its parent's, nor than what its root requires."""
    rules = config if parent is not None else request.sandbox or config
    spec = sandboxing.configured_sandbox(rules, preset)
    if config.require:
        spec = sandboxing.stricter(spec, sandboxing.configured_sandbox(config, preset))
    if parent is not None:
        spec = sandboxing.stricter(spec, parent.sandbox)
    return sandboxing.available_sandbox(
        spec, request.tools or (), available_levels, require=config.require or rules.require
    )


def describe(
    request: Spawn,
    parent: AgentSpec | None,
    config: Config,
    sessions: Path,
    backend: BackendSpec,
    *,
    home: Path | None = None,
    skills: Sequence[Found] = (),
) -> AgentSpec:
    """Return the spec of the agent that `request` asks for; sequence number, depth and name's default are the tree's.

    What the request leaves open is the parent's, then the configuration's. `backend` is complete; `home` is orch's
    folder, None: the one that `sessions` is in. What is not to persist is neither archived nor remembered. `skills` are
    those there are for it, unless an agent asks.
    Raises ConfigError, ToolNotGrantedError.
    """
    home = home or sessions.parent
    persist = request.persist and (parent is None or parent.persist)
    if not request.task.strip():
        raise ConfigError("the task of the agent is empty: describe its purpose in one sentence")
    check_name(request.name)
    folder = _folder(request.cwd, parent)
    extensions = _extensions(request, parent, config, home, folder)
    preset, tools = _tools(request, parent, config, extensions)
    archival = _archival(config.archival) if config.archival.enabled and persist else None
    if archival is not None or request.archives:
        tools = tuple(dict.fromkeys((*tools, *RECALL)))
    if request.peers:
        tools = tuple(dict.fromkeys((*tools, *PEER_TOOLS)))
    recall_only = (archival is not None or bool(request.archives)) and "query_subagent" not in tools
    if recall_only:
        tools = (*tools, "query_subagent")
    memory = _memory(config, home, folder) if persist else None
    if memory is not None:
        tools = tuple(dict.fromkeys((*tools, *NOTES)))
    shelf = skills_of(request, preset, parent, skills, request.skill_rules or config.skills)
    tools = tuple(dict.fromkeys((*tools, READ_SKILL) if shelf.skills else (t for t in tools if t != READ_SKILL)))
    if (workspace := _workspace(config)) is not None:
        tools = tuple(dict.fromkeys((*tools, *DESK)))
    plan = request.plan or (parent is not None and parent.plan)
    if plan:
        tools = tuple(dict.fromkeys((*tools, EXIT_PLAN)))
    id = new_id()
    return AgentSpec(
        id=id,
        seq=0,
        name=request.name or "",
        task=request.task,
        backend=backend,
        folder=str(sessions / id),
        cwd=str(folder),
        depth=request.depth,
        preset=preset,
        tools=tools,
        root_tools=request.root_tools,
        env=request.env if request.env is not None else parent.env if parent else {},
        umask=request.umask if request.umask is not None else parent.umask if parent else None,
        limits=_limits(request, config),
        history=request.history,
        durability=config.durability,
        queue_mode=request.queue_mode,
        follow_up_mode=request.follow_up_mode,
        template=request.template or template_for(backend),
        archival=archival,
        local=parent is not None and parent.local,
        policy=parent.policy if parent else _policy(request, config),
        plan=plan,
        context=_context(request, preset, parent, config),
        prompt=_prompt(request, parent, config),
        marks=inherited_labels(request.marks, parent.id if parent else ""),
        hooks=parent.hooks if parent else _hooks(request, config, home),
        extensions=extensions,
        compaction=compaction_of(config, child=parent is not None),
        memory=memory,
        workspace=workspace,
        persist=persist,
        skills=shelf,
        peers=request.peers,
        archives=request.archives,
        recall_only=recall_only,
    )


def _policy(request: Spawn, config: Config) -> PolicySpec:
    """Return the policy that `request` asks for, with the credentials that its commands can use."""
    policy = request.policy or PolicySpec(rules=config.policy)
    usable = tuple(dict.fromkeys((*policy.rules.usable_credentials, *request.usable_credentials)))
    return replace(policy, rules=replace(policy.rules, usable_credentials=usable)) if usable else policy


def compaction_of(config: Config, *, child: bool) -> CompactionSpec | None:
    """Return when the conversation of an agent is compacted, None: never. A `child` is one that an agent spawned."""
    ours, theirs = config.context_compaction, config.subagents.context_compaction
    if ours.mode == "off" or (child and theirs.mode == "off"):
        return None
    rules = theirs if child else ours
    pct = min(ours.compact_pct, theirs.compact_pct) if child and theirs.mode == "inherit_strict" else ours.compact_pct
    tokens = ours.compact_tokens or 0
    return CompactionSpec(pct, tokens, rules.keep_recent_turns, rules.min_messages, rules.timeout_seconds)


def _memory(config: Config, home: Path, cwd: Path) -> MemorySpec | None:
    """Return what an agent that works in `cwd` remembers, None: nothing."""
    said = config.memory
    if not said.enabled:
        return None
    spec = MemorySpec(
        str(folder_of(home, cwd)), said.provider, said.tokens, said.note_chars, said.total_chars, said.flush
    )
    make_memory(spec)
    return spec


def _workspace(config: Config) -> WorkspaceSpec | None:
    """Return how an agent keeps track of what it has at hand, None: not at all."""
    said = config.workspace
    if not said.enabled:
        return None
    return WorkspaceSpec(**{name: getattr(said, name) for name in WorkspaceSpec.__struct_fields__})


def _prompt(request: Spawn, parent: AgentSpec | None, config: Config) -> PromptSpec:
    """Return what the agent is told besides: by its parent's rules, but who it is, is nobody's to pass on."""
    if parent is not None:
        return PromptSpec(rules=parent.prompt.rules)
    return request.prompt or PromptSpec(rules=config.prompt.rules)


def _context(request: Spawn, preset: str, parent: AgentSpec | None, config: Config) -> ContextSpec:
    """Return what the agent is told of its project: from an agent that cannot read files no more than it was told.

    What somebody gave it to remember stays as it was given, unless more is asked for.
    """
    rules = parent.context.rules if parent else request.context_rules or config.subagents.context
    level = request.context or ("none" if request.history else rules.of(preset))
    if parent is not None and "read_file" not in parent.active and RANK[level] > RANK[parent.context.level]:
        if request.context is not None:
            raise ToolNotGrantedError(
                f"context {level!r} shows files of the project, and agent {parent.name!r} was not granted read_file"
            )
        level = parent.context.level
    return ContextSpec(level, rules)


def check_name(name: str | None) -> None:
    """Raise ConfigError for what is no name of an agent."""
    if name is not None and not NAME.fullmatch(name):
        raise ConfigError(
            f"name {name!r} does not do: up to 64 letters, digits, '.', '_' and '-', beginning with one "
            "of the first two or '_'"
        )


def _hooks(request: Spawn, config: Config, home: Path) -> HooksSpec:
    said = request.hooks or hooks_spec(config.hooks)
    options = said.options if said.options.evidence else replace(said.options, evidence=str(home / EVIDENCE))
    return replace(said, options=options, switches=str(switches_file(home)))


def _archival(config: ArchivalConfig) -> ArchivalSpec:
    rules = rules_of(config)
    return ArchivalSpec(
        wait=not config.async_,
        high_tokens=rules.high if rules.phase else 0,
        block_entries=rules.block_entries,
        in_tail=rules.tail_block,
        summary_seconds=config.summary.timeout_seconds,
    )


def _extensions(
    request: Spawn, parent: AgentSpec | None, config: Config, home: Path, folder: Path
) -> tuple[ExtensionSpec, ...]:
    """Return the extensions of the agent, each with the tools of it that it is granted: those named, or else all.

    Below an agent they are its own, and so are their tools at most.
    """
    if parent is not None:
        there = tuple(replace(each, tools=_named(each.tools, request.tools)) for each in parent.extensions)
        return tuple(replace(each, tools=tuple(name for name in each.tools if name in parent.active)) for each in there)
    return extension_specs(find(folder, home, config.extensions.load), home, request.tools)


def _named(tools: tuple[str, ...], names: tuple[str, ...] | None) -> tuple[str, ...]:
    return tools if names is None else tuple(name for name in tools if name in names)


def _tools(
    request: Spawn, parent: AgentSpec | None, config: Config, extensions: tuple[ExtensionSpec, ...]
) -> tuple[str, tuple[str, ...]]:
    if request.tools is not None:
        theirs = {name for extension in extensions for name in extension.tools}
        return "", granted_tools(None, [name for name in request.tools if name not in theirs])
    if request.preset is not None:
        return request.preset, granted_tools(request.preset, None)
    if config.subagents.default_tools is not None:
        preset, tools = "", granted_tools(None, config.subagents.default_tools)
    else:
        preset = config.subagents.default_preset
        tools = granted_tools(preset, None)
    # Nobody asked for these by name, so what the parent cannot grant is left out rather than refused.
    return preset, tuple(tool for tool in tools if parent is None or tool in parent.active)


def _backend(request: Spawn, parent: AgentSpec | None, config: Config) -> BackendSpec:
    if request.script is not None:
        return ScriptedBackend(request.script, request.summaries).spec()
    if request.model is not None:
        return parse_model(request.model)
    if parent is not None and parent.backend.provider != "scripted":
        return parent.backend
    return parse_model(config.model)


def _folder(cwd: str | None, parent: AgentSpec | None) -> Path:
    try:
        folder = Path(parent.cwd if parent is not None else ".", Path(cwd or ".").expanduser()).absolute()
        found = folder.is_dir()
    except (OSError, RuntimeError) as error:  # a name that is too long, a home that is not known
        raise ConfigError(f"the working folder {str(cwd)[:80]!r} cannot be used: {error}") from error
    if not found:
        unsaid = "\N{REPLACEMENT CHARACTER}" in str(folder)
        why = "has a name that is not UTF-8: rename it" if unsaid else "does not exist or is no folder"
        raise ConfigError(f"the working folder {folder} {why}")
    if parent is not None and not Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(parent.cwd)):
        raise SpawnError(f"the working folder {folder} is not below that of agent {parent.name!r}, {parent.cwd}")
    return folder


def _limits(request: Spawn, config: Config) -> Limits:
    given = msgspec.to_builtins(request.limits or config.limits)
    budgets = (check_budget(request.budget), check_budget(request.limits or Limits()), config.subagents)
    of_turns = {name: value for name, value in given.items() if name not in Budget.__struct_fields__}
    try:
        msgspec.convert(of_turns, LimitsConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"limits: {error}") from error
    said = {name: [getattr(budget, name) for budget in budgets] for name in Budget.__struct_fields__}
    first = {name: next((each for each in limits if each is not None), None) for name, limits in said.items()}
    return msgspec.convert(of_turns | first, Limits)
