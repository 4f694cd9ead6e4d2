"""Applies the tools, model and prompt of the agent type that a spawn request names, within the rights of the caller."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.services.agents.spawn import Spawn
from orch_worker.tools.dispatch.presets import granted_tools

from ...config.models import Catalog, matches_any
from ...resources.agent_types import FOLDERS, AgentTypes, find_types
from ...tree.agents.state import AgentRecord

if TYPE_CHECKING:
    from orch_protocol.agent.config import Config

    from ...supervisor.supervisor import Supervisor

__all__ = ["apply_type_to_request", "apply_type_to_spec", "available_types"]

MAX_DESCRIPTION = 400
"""The maximum length of an agent type's description that the model of a parent sees, in characters."""
SPAWN_TOOL = "spawn_subagent"


async def available_types(root: Supervisor, request: Spawn, parent: AgentRecord | None, folder: Path) -> AgentTypes:
    """Return the agent types for a new agent. `folder` is the agent's folder; `parent` is its parent, if it has one.

    A subagent gets the agent types of its parent's project.
    """
    while parent is not None:
        folder = Path(parent.spec.project)
        parent = root.tree.agents.get(parent.spec.parent_id or "")
    if request.agent is None and not _has_type_folders(root.hooks.home, folder):
        return AgentTypes()
    return await root.disk.do(
        find_types, folder, root.hooks.home, root.config, tuple(root.session_sources.program.tools)
    )


def apply_type_to_request(
    request: Spawn, types: AgentTypes, parent: AgentSpec | None, config: Config, catalog: Catalog
) -> tuple[Spawn, str]:
    """Return `request` with the tools and the model of its agent type, and a note about settings that were left out.

    `tools` and `preset` of the request limit the tools of the type. The tools of a `parent` limit them too. Without
    these limits, a type that belongs to a project gets only default tools. Raises ConfigError, ToolNotGrantedError.
    """
    if request.agent is None:
        return request, ""
    type, extension_tools, notes = types.named(request.agent), types.extension_tools, []
    preset, default_tools = _default_tools(request, config, extension_tools)
    has_tool_limit = request.tools is not None or request.preset is not None
    requested_tools = default_tools if type.tools is None else type.tools
    if parent is not None:
        permitted_tools = [tool for tool in parent.active if not has_tool_limit or tool in default_tools]
    else:
        permitted_tools = list(requested_tools if type.grants_tools and not has_tool_limit else default_tools)
    tools = tuple(tool for tool in requested_tools if tool in permitted_tools and tool not in type.excluded)
    if type.tools is not None and not has_tool_limit and (parent is not None or type.grants_tools):
        preset = None  # the tools of `type` are not limited by a preset
    if not has_tool_limit and parent is None and (left_out := type.describe_missing_tools(permitted_tools)):
        notes.append(left_out)
    model = request.model
    if model is None and request.script is None and type.model not in ("", "inherit"):
        model = type.model if ":" in type.model else catalog.find_name(type.model)
        problem = "available" if model is None else ""
        if parent is not None and type.where == "project" and not _may_choose(parent, model, config):
            model, problem = None, problem or "allowed for subagents (subagents.models)"
        if problem:
            notes.append(
                f"model {type.model!r} of agent type {type.name!r} is not {problem}: the default model is used"
            )
    isolation = request.isolation or type.isolation
    return replace(request, tools=tools, preset=preset, model=model, isolation=isolation), "\n".join(notes)


def _may_choose(parent: AgentSpec, model: str | None, config: Config) -> bool:
    """Return whether the agent `parent` may choose `model` for its subagents."""
    parent_model = f"{parent.backend.provider}:{parent.backend.model}"
    return model is None or model == parent_model or matches_any(config.subagents.models, model)


def apply_type_to_spec(spec: AgentSpec, request: Spawn, types: AgentTypes) -> AgentSpec:
    """Return `spec` with the prompt of its agent type, and with the list of agent types that the agent may spawn."""
    if SPAWN_TOOL in spec.tools:
        descriptions = {each.name: _truncate(each.description) for each in types.found if not each.why_off}
        spec = replace(spec, agent_types=descriptions)
    if request.agent is None:
        return spec
    type = types.named(request.agent)
    prompt = replace(spec.prompt, identity=type.prompt, source=f"agent type {type.name} ({type.path})")
    return replace(spec, prompt=prompt, agent_type=type.name)


def _default_tools(
    request: Spawn, config: Config, extension_tools: tuple[str, ...]
) -> tuple[str | None, tuple[str, ...]]:
    """Return the preset and the tools that `request` would get without an agent type."""
    if request.tools is not None:
        standard_tools = [tool for tool in request.tools if tool not in extension_tools]
        return request.preset, (
            *(granted_tools(request.preset) if request.preset is not None else ()),
            *granted_tools(None, standard_tools),
            *(tool for tool in request.tools if tool in extension_tools),
        )
    if request.preset is None and config.subagents.default_tools is not None:
        return None, (*granted_tools(None, config.subagents.default_tools), *extension_tools)
    preset = request.preset or config.subagents.default_preset
    return preset, (*granted_tools(preset, None), *extension_tools)


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_DESCRIPTION else f"{text[: MAX_DESCRIPTION - 3]}..."


def _has_type_folders(home: Path, folder: Path) -> bool:
    """Return whether a folder of agent types exists.

    If no folder exists, a spawn can skip the search for agent types.
    """
    return (home / "agents").is_dir() or any((folder / each).is_dir() for each in FOLDERS)
