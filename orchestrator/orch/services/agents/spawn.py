"""Service that spawns agents. The service builds the agent's spec from a request and starts the process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from orch_protocol.agent.config import ArchivalConfig, Config, LimitsConfig, parse_model
from orch_protocol.agent.project import RANK, ContextSpec
from orch_protocol.agent.spec import (
    AgentSpec,
    ArchivalSpec,
    BackendSpec,
    CompactionSpec,
    ExecutorSpec,
    Limits,
    ToolSpec,
)
from orch_protocol.core.errors import ConfigError, LaunchError, OrchError, SpawnError, ToolNotGrantedError
from orch_protocol.core.ids import new_id
from orch_protocol.core.prompts import PromptSpec
from orch_protocol.core.taint import TaintLabel
from orch_protocol.core.workspace import WorkspaceSpec
from orch_protocol.hooks.stages import HooksSpec
from orch_protocol.policy.budget import Budget
from orch_protocol.policy.builtin_tools import BUILTIN_TOOLS
from orch_protocol.policy.policy import EXIT_PLAN, Channel, PolicySpec
from orch_protocol.policy.sandbox import RUN_CODE, SandboxConfig, SandboxSpec
from orch_protocol.resources.extensions import ExtensionSpec
from orch_protocol.resources.memory import MemorySpec
from orch_protocol.resources.skills import READ_SKILL
from orch_protocol.services.agents.spawn import SPAWN, Spawn, Spawned
from orch_worker.backends.offline.scripted import ScriptedBackend
from orch_worker.backends.prices import check_priced
from orch_worker.backends.registry import TEMPLATES, template_for
from orch_worker.backends.thinking import check_level, level_of
from orch_worker.memory.notes import make_memory, memory_folder
from orch_worker.policy.path_rules import RELATIVE_FOLDERS
from orch_worker.policy.rules import ANY_FOLDERS, check_path_rules
from orch_worker.sandbox.probe import available_levels
from orch_worker.system.threads import DAEMON_THREADS
from orch_worker.tools.dispatch.custom_executor import chosen_tools
from orch_worker.tools.dispatch.presets import CATEGORIES, NOTES, RECALL, WORKSPACE_TOOLS, granted_tools, preset_tools

from ...config.archival_profiles import archival_rules
from ...config.models import matches_any
from ...policy import sandbox as sandboxing
from ...policy.budget_rules import check_budget
from ...policy.caller import USER, Caller
from ...policy.hook_records import EVIDENCE, disabled_hooks_file, hooks_spec
from ...resources.extensions import extension_specs, find
from ...tree.interface import events
from ...tree.interface.events import BOOT_SECONDS
from ...tree.interface.topics import ReadyTopic
from ...tree.rules.query_results import kept_reply
from ..archives.recall import archives_of, find_agent_or_holder
from ..checks.local_only import local_model
from ..checks.reach import find_agent
from ..checks.taint import labels_from
from ..dispatch.handlers import handles
from .agent_types import apply_type_to_request, apply_type_to_spec, available_types
from .lifecycle import kill_agents
from .skills import describe_invalid_skills, discover_skills, skills_of
from .worktrees import isolate_agent, remove_worktrees

if TYPE_CHECKING:
    from ...config.models import Catalog
    from ...resources.program_extensions import ProgramExtensions
    from ...resources.skill_discovery import Found
    from ...supervisor.supervisor import Supervisor

__all__ = ["check_name", "compaction_of", "spawn", "spec_of"]

NOT_ARCHIVED = "archival is off for this agent, because persist=False stores nothing on disk"
PEER_TOOLS = ("query_subagent", "collect_subagent", "wait_subagents", "list_subagents")
"""Tools for querying peers. An agent with peers gets them in addition to its other tools."""
SUBAGENT_TOOLS = frozenset(CATEGORIES["agents"])
AGENT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


@handles(SPAWN)
async def spawn(root: Supervisor, caller: Caller, request: Spawn) -> Spawned:
    """Start an agent and wait until its process is ready. Raises SpawnError, ConfigError.

    If the maximum number of agents is alive, the process of the agent that has been idle longest is stopped. If no
    agent is idle, the call waits for one. If the agent for `request.item` exists, the call returns this agent.

    If a program cancels the call, for example by Ctrl-C, the agent is killed, because the program never gets the
    agent's id. The same applies to an agent that ends with its connection, because the connection was closed.
    """
    spec, note = await spec_of(root, request, caller)
    if spec.item:
        await _remove_obsolete_agent(root, spec)
    credentials = root.credentials.record() if caller.is_user else None
    id = ""
    try:
        requested = events.SpawnRequested(
            spec, caller.agent_id, request.request_id, credentials, request.ends_with_connection, request.start
        )
        needs_place = request.start and root.tree.agents.find_item(spec.parent_id, spec.item) is None
        id = await root.places.request(root, caller.agent_id, lambda: root.handle(requested), needs=needs_place)
    finally:
        if id != spec.id:  # the spawn was refused, or the request was a repetition
            await remove_worktrees(root, (spec,))
    node = root.tree.agents[id]
    if node.status == "starting":
        try:
            await root.waiters.until(ReadyTopic(id), BOOT_SECONDS + 5)
        except TimeoutError:
            raise LaunchError(f"agent {node.spec.name!r} ({id}) did not start within {BOOT_SECONDS:g} s") from None
        except asyncio.CancelledError:
            # No caller knows its id or can repeat the request. A map finds the agent of an item again.
            if request.ends_with_connection or (caller.is_user and request.request_id is None and not spec.item):
                with contextlib.suppress(OrchError):
                    root.handle(events.KillRequested((id,), "the user"))
                    await root.steps.undo(remove_worktrees(root, (node.spec,)))
            raise
    elif node.status == "failed":
        raise LaunchError(f"agent {node.spec.name!r} ({id}) did not start: {node.error}")
    return Spawned(
        id, node.spec.seq, node.spec.name, node.spec.agent_type or node.spec.preset, node.spec.depth, node.pid, note
    )


async def _remove_obsolete_agent(root: Supervisor, spec: AgentSpec) -> None:
    """Kill the agent for the item of `spec` if it cannot answer, or has not answered and has other limits."""
    known = root.tree.agents.find_item(spec.parent_id, spec.item)
    if known is None:
        return
    has_reply = known.pending is not None or kept_reply(known, spec.item) is not None
    if known.status == "failed" or known.deleted or (known.spec.limits != spec.limits and not has_reply):
        await root.steps.run(kill_agents(root, (known.spec.id,), "the user"))


async def spec_of(root: Supervisor, request: Spawn, caller: Caller) -> tuple[AgentSpec, str]:
    """Return the spec of the requested agent, and a note about the agent's sandbox. See `describe`.

    Raises SandboxError.
    """
    parent = caller.find_agent(root.tree.agents)
    parent_spec = parent.spec if parent is not None else None
    requested_model, catalog = request.model, root.catalog_for(caller.agent_id)
    folder = _folder(request.cwd, parent_spec)
    registered = root.session_sources.program.specs(folder, request.env or {})
    types = await available_types(root, request, parent, folder)
    request, type_note = apply_type_to_request(request, types, parent_spec, root.config, catalog)
    backend = _backend(request, parent_spec, root.config)
    chooser = parent_spec if requested_model is not None else None
    if chooser is not None and backend.model:  # A key for a model that is not allowed does not help.
        _check_model(chooser, backend, root.config)
    backend = await catalog.complete(backend)
    if chooser is not None:
        _check_model(chooser, backend, root.config)
    if parent_spec is not None and parent_spec.local:
        backend = await local_model(root, backend, caller.agent_id)
    if request.thinking is not None:
        check_level(request.thinking)
        backend = replace(backend, thinking=request.thinking)
        level_of(backend)  # raises an error if the model has no reasoning effort
    elif not backend.thinking:
        default_thinking = (
            parent_spec.backend.thinking if parent_spec is not None else request.usual_thinking or root.config.thinking
        )
        backend = replace(backend, thinking=default_thinking or "")
    request = replace(
        request, peers=await _peers(root, request.peers), archives=await archives_of(root, caller, request.archives)
    )
    skills = await discover_skills(root, request, _folder(request.cwd, None)) if parent_spec is None else ()
    spec = describe(
        request,
        parent_spec,
        root.config,
        root.sessions,
        backend,
        home=root.hooks.home,
        skills=skills,
        registered=registered,
        marks=await labels_from(root, caller),
    )
    spec, clash_note = _remove_clashes(spec, root.session_sources.program)
    spec = replace(apply_type_to_spec(spec, request, types), item=request.item)
    if request.parent is not None:
        spec = replace(spec, parent_id=find_agent(root, caller, request.parent, "use", "control").spec.id)
    if not spec.persist:
        spec = replace(spec, folder=str(root.ephemeral_sessions.folder(spec.id)))
    if parent_spec is None and request.policy is None and root.approvals.has_approver:
        spec = replace(spec, policy=replace(spec.policy, channel="person"))
    if parent_spec is None and root.approvals.policy_callback is not None:
        spec = replace(spec, policy=replace(spec.policy, asks_root=True))
    if spec.limits.max_cost_usd is not None or "usd" in root.budgets.kinds_for(caller.agent_id or spec.parent_id):
        check_priced(backend)
    sandbox, note = _sandbox(request, spec.preset, parent_spec, root.config.sandbox)
    archival_note = await _archival_note(root, spec, catalog)
    if not RUN_CODE.isdisjoint(spec.tools):  # in a thread, because the first check starts a process
        await asyncio.get_running_loop().run_in_executor(DAEMON_THREADS, root.mount_namespace_problem)
    sandbox, hidden_note = sandboxing.with_path_hiding_support(
        sandbox, spec.tools, root.mount_namespace_problem, spec.policy.rules
    )
    proxy_note = catalog.ignored_proxy_settings(backend)
    notes = (note, hidden_note, archival_note, type_note, describe_invalid_skills(skills), clash_note)
    note = "\n".join(filter(None, (*notes, proxy_note)))
    # Scripts and references of skills must be readable in the sandbox.
    folders = (skill.path for skill in spec.skills.skills if skill.path)
    sandbox = replace(sandbox, read=tuple(dict.fromkeys((*sandbox.read, *folders))))
    spec = replace(spec, sandbox=sandbox)
    if request.isolation is not None:
        spec, worktree_note = await isolate_agent(root, spec, for_agent=parent is not None)
        note = "\n".join(filter(None, (note, worktree_note)))
    return spec, note


async def _archival_note(root: Supervisor, spec: AgentSpec, catalog: Catalog) -> str:
    """Return a note if the agent's turns are not archived, or not in the configured way."""
    archival = root.config.archival
    if not archival.enabled:
        return ""
    if not spec.persist:
        return NOT_ARCHIVED
    if root.archives.rules.summary_style != "structured":
        return ""
    backend = spec.backend
    if archival.summary.model is not None:
        try:
            backend = await catalog.complete(parse_model(archival.summary.model))
        except OrchError:
            return ""  # the first summary reports this error
    return root.archives.paragraph_note(backend)


def _check_model(parent: AgentSpec, backend: BackendSpec, config: Config) -> None:
    """Raise ConfigError if the agent `parent` may not choose the model of `backend` for a subagent.

    `parent` may choose its own model, the configured model, and the models in `subagents.models`. The configured model
    is allowed because `orch spawn` requests it when an agent runs this command.
    """
    configured = parse_model(config.model)
    model = f"{backend.provider}:{backend.model}"
    own_models = (f"{parent.backend.provider}:{parent.backend.model}", f"{configured.provider}:{configured.model}")
    allowed = config.subagents.models
    if model not in own_models and not matches_any(allowed, model):
        names = dict.fromkeys(name.removesuffix(":") for name in (*own_models, *allowed))
        raise ConfigError(
            f"model {model.removesuffix(':')!r} is not allowed for subagents; allowed: {', '.join(names)} "
            "(subagents.models in the configuration)"
        )


async def _peers(root: Supervisor, refs: Sequence[str]) -> tuple[str, ...]:
    """Return the ids of the agents `refs`, which the user selected as peers. Raises AgentError, ConfigError."""
    peers = [await find_agent_or_holder(root, USER, ref, "name", "control") for ref in refs]
    for ref, node in zip(refs, peers, strict=True):
        if node.deleted:
            raise node.refusal()
        if node.is_holder:
            raise ConfigError(f"peer {ref!r} is an archive, not an agent; pass it as archives=[{ref!r}]")
    return tuple(dict.fromkeys(node.spec.id for node in peers))


def _sandbox(request: Spawn, preset: str, parent: AgentSpec | None, config: SandboxConfig) -> tuple[SandboxSpec, str]:
    """Return the sandbox of the agent's tools.

    The sandbox is at least as strict as the sandbox of the parent, and as the sandbox that the configuration requires.
    """
    rules = config if parent is not None else request.sandbox or config
    spec = sandboxing.configured_sandbox(rules, preset)
    if config.require:
        spec = sandboxing.strictest_combination(spec, sandboxing.configured_sandbox(config, preset))
    if parent is not None:
        spec = sandboxing.strictest_combination(spec, parent.sandbox)
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
    registered: Mapping[str, ToolSpec] = {},
    marks: tuple[TaintLabel, ...] = (),
) -> AgentSpec:
    """Return the spec of the requested agent.

    The tree sets the sequence number, depth and default name. Unset values are taken from the parent, then from the
    configuration. `backend` is complete. `home` is the orch home folder. If it is None, the home is the folder that
    contains `sessions`. Agents that are not persistent have no archival and no memory. `skills` are the available
    skills; an agent with a parent takes the skills of its parent instead. `registered` contains the tools that the
    program registered for all agents. `marks` are the taint labels that come with the task. Raises
    ConfigError, ToolNotGrantedError.
    """
    home = home or sessions.parent
    persist = request.persist and (parent is None or parent.persist)
    if not request.task.strip():
        raise ConfigError("the task of the agent is empty: describe its purpose in one sentence")
    check_name(request.name)
    folder = _folder(request.cwd, parent)
    extensions = _extensions(request, parent, config, home, folder)
    root_tools = _root_tools(request, parent, registered)
    request, executor = _executor(request, extensions, root_tools)
    preset, tools = _tools(request, parent, config, extensions, root_tools)
    if not config.subagents.enabled:
        tools = tuple(name for name in tools if name not in SUBAGENT_TOOLS)
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
    skills_spec = skills_of(request, preset, parent, skills, request.skill_rules or config.skills)
    tools = tuple(dict.fromkeys((*tools, READ_SKILL) if skills_spec.skills else (t for t in tools if t != READ_SKILL)))
    if (workspace := _workspace(config)) is not None:
        tools = tuple(dict.fromkeys((*tools, *WORKSPACE_TOOLS)))
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
        root_tools=root_tools,
        env=request.env if request.env is not None else parent.env if parent else {},
        umask=request.umask if request.umask is not None else parent.umask if parent else None,
        limits=_limits(request, config),
        history=request.history,
        durability=config.durability,
        queue_mode=request.queue_mode,
        follow_up_mode=request.follow_up_mode,
        template=_known_template(request.template) or template_for(backend),
        archival=archival,
        local=parent is not None and parent.local,
        policy=_inherited_policy(parent, folder) if parent else _policy(request, config),
        plan=plan,
        context=_context(request, preset or (config.subagents.default_preset if request.agent else ""), parent, config),
        prompt=_prompt(request, parent, config),
        marks=marks,
        hooks=parent.hooks if parent else _hooks(request, config, home),
        extensions=extensions,
        compaction=compaction_of(config, child=parent is not None),
        memory=memory,
        workspace=workspace,
        persist=persist,
        skills=skills_spec,
        peers=request.peers,
        archives=request.archives,
        subagent_models=config.subagents.models,
        recall_only=recall_only,
        executor=executor,
        code=parent.code if parent else request.code,
    )


def _policy(request: Spawn, config: Config) -> PolicySpec:
    """Return the requested policy with the credentials that the agent's commands can use."""
    channel: Channel = "person" if config.approval.channel == "person" else "api"
    policy = request.policy or PolicySpec(channel, config.policy)
    usable = tuple(dict.fromkeys((*policy.rules.usable_credentials, *request.usable_credentials)))
    if not usable:
        return policy
    rules = replace(policy.rules, usable_credentials=usable)
    check_path_rules(rules)
    return replace(policy, rules=rules)


def _inherited_policy(parent: AgentSpec, folder: Path) -> PolicySpec:
    """Return the policy for a subagent that works in `folder`, in which the parent's rules restrict the same files.

    Relative rules start in the agent's folder, and commands see no denied names in this folder. Therefore, the
    subagent's rules contain the paths in the parent's folder too.
    """
    rules = parent.policy.rules
    if os.path.realpath(folder) == os.path.realpath(parent.cwd):
        return parent.policy

    def with_parent_paths(paths: tuple[str, ...]) -> tuple[str, ...]:
        paths_in_parent = (
            os.path.normpath(os.path.join(parent.cwd, path))
            for path in paths
            if ("/" in path or path in RELATIVE_FOLDERS) and not path.startswith(("/", "~"))
        )
        return tuple(dict.fromkeys((*paths, *paths_in_parent)))

    names = (path for path in rules.denied_paths if "/" not in path and not path.startswith("~"))
    names_in_parent = (os.path.join(parent.cwd, ANY_FOLDERS, name) for name in names if name not in RELATIVE_FOLDERS)
    taint = replace(
        rules.taint,
        untrusted_paths=with_parent_paths(rules.taint.untrusted_paths),
        sensitive_paths=with_parent_paths(rules.taint.sensitive_paths),
    )
    return replace(
        parent.policy,
        rules=replace(
            rules,
            taint=taint,
            denied_paths=tuple(dict.fromkeys((*with_parent_paths(rules.denied_paths), *names_in_parent))),
            personal_paths=with_parent_paths(rules.personal_paths),
            code_paths=with_parent_paths(rules.code_paths),
        ),
    )


def compaction_of(config: Config, *, child: bool) -> CompactionSpec | None:
    """Return the compaction settings of an agent. If the result is None, the agent's conversation is never compacted.

    `child` means that another agent spawned this agent.
    """
    main_rules, subagent_rules = config.context_compaction, config.subagents.context_compaction
    if main_rules.mode == "off" or (child and subagent_rules.mode == "off"):
        return None
    rules = subagent_rules if child else main_rules
    pct = (
        min(main_rules.compact_pct, subagent_rules.compact_pct)
        if child and subagent_rules.mode == "inherit_strict"
        else main_rules.compact_pct
    )
    tokens = main_rules.compact_tokens or 0
    return CompactionSpec(pct, tokens, rules.keep_recent_turns, rules.min_messages, rules.timeout_seconds)


def _memory(config: Config, home: Path, cwd: Path) -> MemorySpec | None:
    """Return the memory settings of an agent with the working folder `cwd`.

    If the result is None, the agent has no memory.
    """
    settings = config.memory
    if not settings.enabled:
        return None
    spec = MemorySpec(
        str(memory_folder(home, cwd)),
        settings.provider,
        settings.tokens,
        settings.note_chars,
        settings.total_chars,
        settings.flush,
    )
    make_memory(spec)
    return spec


def _workspace(config: Config) -> WorkspaceSpec | None:
    """Return the workspace settings of an agent. If the result is None, the agent has no workspace."""
    settings = config.workspace
    if not settings.enabled:
        return None
    return WorkspaceSpec(**{name: getattr(settings, name) for name in WorkspaceSpec.__struct_fields__})


def _prompt(request: Spawn, parent: AgentSpec | None, config: Config) -> PromptSpec:
    """Return the prompt settings. A subagent gets its parent's rules, but not the parent's identity."""
    if parent is not None:
        return PromptSpec(rules=parent.prompt.rules)
    return request.prompt or PromptSpec(rules=config.prompt.rules)


def _context(request: Spawn, preset: str, parent: AgentSpec | None, config: Config) -> ContextSpec:
    """Return how much information about its project the agent gets.

    If the parent cannot read files, the subagent does not get more information than its parent. An agent with seeded
    history gets no project information unless the request asks for it.
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
    """Raise ConfigError if `name` is not a valid agent name."""
    if name is not None and not AGENT_NAME.fullmatch(name):
        raise ConfigError(
            f"invalid name {name!r}: use up to 64 letters, digits, '.', '_' and '-', beginning with a letter, "
            "a digit or '_'"
        )


def _hooks(request: Spawn, config: Config, home: Path) -> HooksSpec:
    hooks = request.hooks or hooks_spec(config.hooks)
    options = hooks.options if hooks.options.evidence else replace(hooks.options, evidence=str(home / EVIDENCE))
    return replace(hooks, options=options, switches=str(disabled_hooks_file(home)))


def _archival(config: ArchivalConfig) -> ArchivalSpec:
    rules = archival_rules(config)
    return ArchivalSpec(
        wait=not config.async_,
        high_tokens=rules.high_tokens if rules.phase else 0,
        block_entries=rules.block_entries,
        in_tail=rules.placement == "tail",
        summary_seconds=config.summary.timeout_seconds,
    )


def _extensions(
    request: Spawn, parent: AgentSpec | None, config: Config, home: Path, folder: Path
) -> tuple[ExtensionSpec, ...]:
    """Return the extensions of the agent. Each extension contains the extension tools that the agent gets.

    The agent gets the extension tools that the request names. If the request has no list of tools, the agent gets all
    extension tools. A subagent gets only the extensions of its parent, and only tools that its parent may use.
    """
    if parent is not None:
        inherited = tuple(replace(each, tools=_keep_named(each.tools, request.tools)) for each in parent.extensions)
        return tuple(
            replace(each, tools=tuple(name for name in each.tools if name in parent.active)) for each in inherited
        )
    return extension_specs(find(folder, home, config.extensions.load), home, request.tools)


def _keep_named(tools: tuple[str, ...], names: tuple[str, ...] | None) -> tuple[str, ...]:
    return tools if names is None else tuple(name for name in tools if name in names)


def _root_tools(request: Spawn, parent: AgentSpec | None, registered: Mapping[str, ToolSpec]) -> tuple[ToolSpec, ...]:
    """Return the tools of the program that the agent gets, from the request and from registered tools.

    If the request has a list of tools, only registered tools in this list are included. A subagent gets only registered
    tools that its parent has.
    """
    names = [name for name in registered if request.tools is None or name in request.tools]
    if parent is not None:
        parent_tools = {tool.name for tool in parent.root_tools}.intersection(parent.active)
        names = [name for name in names if name in parent_tools]
    request_names = {tool.name for tool in request.root_tools}
    return (*request.root_tools, *(registered[name] for name in names if name not in request_names))


def _executor(
    request: Spawn, extensions: tuple[ExtensionSpec, ...], root_tools: tuple[ToolSpec, ...]
) -> tuple[Spawn, ExecutorSpec | None]:
    """Return `request` without the names of the executor's tools, and the executor with these names.

    A requested name that belongs to no other tool is the name of an executor tool. If the request has no executor, the
    second value is None. Raises ConfigError if an executor object does not list a requested tool.
    """
    executor = request.executor
    if executor is None:
        return request, None
    if executor.wanted is not None and request.tools is not None:
        provided = {name for extension in extensions for name in extension.tools} | {tool.name for tool in root_tools}
        other_names = provided.union(BUILTIN_TOOLS, CATEGORIES)
        request = replace(request, tools=tuple(name for name in request.tools if name in other_names))
        executor = replace(executor, wanted=tuple(name for name in executor.wanted if name not in other_names))
    if executor.tools is not None:
        executor = replace(executor, tools=chosen_tools(executor, executor.tools), wanted=None)
    return request, executor


def _remove_clashes(spec: AgentSpec, program: ProgramExtensions) -> tuple[AgentSpec, str]:
    """Return `spec` without extensions and extension tools that have the name of a registered extension or tool.

    The second value is a note about the extensions and tools that were left out.
    """
    registered_names, tools = {manifest.name for manifest in program.manifests}, {tool.name for tool in spec.root_tools}
    notes, remaining = [], []
    for each in spec.extensions:
        if each.manifest.name in registered_names:
            notes.append(f"extension {each.path} is left out: the program registered one of this name")
            continue
        notes += (
            f"tool {name!r} of extension {each.manifest.name!r} is left out: the program registered one of this name"
            for name in each.tools
            if name in tools
        )
        remaining.append(replace(each, tools=tuple(name for name in each.tools if name not in tools)))
    return (replace(spec, extensions=tuple(remaining)), "\n".join(notes)) if notes else (spec, "")


def _tools(
    request: Spawn,
    parent: AgentSpec | None,
    config: Config,
    extensions: tuple[ExtensionSpec, ...],
    root_tools: tuple[ToolSpec, ...],
) -> tuple[str, tuple[str, ...]]:
    """Return the preset (or "") and the tools. Tools for subagents are included even if subagents are disabled."""
    top_level = parent is None and request.depth == 0
    if request.tools is not None:
        provided = {name for extension in extensions for name in extension.tools} | {tool.name for tool in root_tools}
        tools = granted_tools(None, [name for name in request.tools if name not in provided])
        if request.preset is not None and request.agent is None:  # the tools of an agent type are already limited
            tools = tuple(dict.fromkeys((*preset_tools(request.preset, top_level=top_level), *tools)))
        return request.preset or "", tools
    if request.preset is not None:
        return request.preset, preset_tools(request.preset, top_level=top_level)
    if config.subagents.default_tools is not None:
        preset, tools = "", granted_tools(None, config.subagents.default_tools)
    else:
        preset = config.subagents.default_preset
        tools = preset_tools(preset, top_level=top_level)
    # These tools are defaults. If the parent cannot grant one of them, that tool is left out without an error.
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
    except (OSError, RuntimeError) as error:  # a name that is too long, or an unknown home folder
        raise ConfigError(f"the working folder {str(cwd)[:80]!r} cannot be used: {error}") from error
    if not found:
        has_invalid_bytes = "\N{REPLACEMENT CHARACTER}" in str(folder)
        problem = (
            "has a name that is not UTF-8: rename it" if has_invalid_bytes else "does not exist or is not a folder"
        )
        raise ConfigError(f"the working folder {folder} {problem}")
    if parent is not None and not Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(parent.cwd)):
        raise SpawnError(f"cwd: the working folder {folder} is not below that of agent {parent.name!r}, {parent.cwd}")
    return folder


def _limits(request: Spawn, config: Config) -> Limits:
    requested = msgspec.to_builtins(request.limits or config.limits)
    budgets = (check_budget(request.budget), check_budget(request.limits or Limits()), config.subagents)
    turn_limits = {name: value for name, value in requested.items() if name not in Budget.__struct_fields__}
    try:
        msgspec.convert(turn_limits, LimitsConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"limits: {error}") from error
    candidates = {name: [getattr(budget, name) for budget in budgets] for name in Budget.__struct_fields__}
    budget_limits = {
        name: next((each for each in limits if each is not None), None) for name, limits in candidates.items()
    }
    return msgspec.convert(turn_limits | budget_limits, Limits)


def _known_template(template: str | None) -> str | None:
    if template is not None and template not in TEMPLATES:
        raise ConfigError(f"template must be one of {', '.join(sorted(TEMPLATES))}; got {template!r}")
    return template
