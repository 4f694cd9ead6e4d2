"""The sandbox level of an agent's tools.

The level depends on the configuration, the level of the parent, and the support by the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import SandboxError
from orch_protocol.policy.policy import PolicyConfig
from orch_protocol.policy.sandbox import (
    BY_NAME_ONLY,
    RUN_CODE,
    UNCONFINED,
    Level,
    SandboxConfig,
    SandboxSpec,
    ToolLimits,
)

if TYPE_CHECKING:
    from orch_worker.sandbox.probe import AvailableLevels
    from orch_worker.tools.shell.path_covers import PathCovers

__all__ = [
    "available_sandbox",
    "check_required_levels",
    "configured_sandbox",
    "denied_paths_problem",
    "strictest_combination",
    "with_minimum_level",
    "with_path_hiding_support",
]

EXPOSED = (
    "commands can read denied files, credentials and the files of orch itself by other means, and so can run_python, "
    "which is not offered if paths are denied"
)
ACTS_AS_USER = (
    "without user namespaces, a command below level L2 can also end its shim and worker, and then act as the user"
)
REFUSED = "commands are refused, and run_python is not offered"
LEFT_OUT = (
    "run_python is not offered, because it runs code in the agent's tool host, which no sandbox level restricts; use "
    'run_python_script, or set sandbox.tools.run_python = "L0" to offer run_python'
)


def configured_sandbox(config: SandboxConfig, preset: str) -> SandboxSpec:
    """Return the configured sandbox for agents with the preset `preset`.

    `preset` is "" if the agent has an explicit list of tools. If `require` is set, the levels of presets and tools are
    at least `config.level`.
    """
    if config.require:
        config = _with_minimum(config, config.level)
    return SandboxSpec(
        level=config.presets.get(preset, config.level),
        tools=config.tools,
        network=config.network,
        read=config.read,
        write=config.write,
        limits=config.limits,
    )


def with_minimum_level(config: SandboxConfig, level: Level) -> SandboxConfig:
    """Return `config` with all levels raised to at least `level`. The result requires these levels."""
    return replace(_with_minimum(config, level), require=True)


def strictest_combination(one: SandboxSpec, other: SandboxSpec) -> SandboxSpec:
    """Return the stricter combination of both.

    The combination has the higher levels, the lower limits, and the common paths.
    """
    return SandboxSpec(
        level=max(one.level, other.level),
        tools={name: max(one.of(name), other.of(name)) for name in {**one.tools, **other.tools}},
        network=one.network and other.network,
        read=tuple(path for path in one.read if path in other.read),
        write=tuple(path for path in one.write if path in other.write),
        limits=_lower_limits(one.limits, other.limits),
    )


def check_required_levels(config: SandboxConfig, offer: Callable[[], AvailableLevels]) -> None:
    """Raise SandboxError if `config` requires a level that this machine does not support."""
    if config.require:
        _supported_levels((config.level, *config.presets.values(), *config.tools.values()), offer, require=True)


def available_sandbox(
    spec: SandboxSpec, tools: Iterable[str], offer: Callable[[], AvailableLevels], *, require: bool
) -> tuple[SandboxSpec, str]:
    """Return `spec` with levels that this machine supports, and a message about lower levels and unusable tools, or "".

    `tools` contains the tools that were requested by name. The next higher supported level replaces an unsupported
    level. If there is no higher level, the next lower level is used and reported. With `require`, SandboxError is
    raised instead of using a lower level. If only L0 is requested, the machine is not examined.
    """
    levels = {spec.level, *spec.tools.values()}
    notes = []
    if UNCONFINED in tools and spec.of(UNCONFINED) > "L0":
        notes.append(LEFT_OUT)
    if levels == {"L0"}:
        return spec, "; ".join(notes)
    supported, reductions = _supported_levels(levels, offer, require=require)
    tool_levels = {name: supported[level] for name, level in spec.tools.items()}
    return replace(spec, level=supported[spec.level], tools=tool_levels), "; ".join([*reductions, *notes])


def with_path_hiding_support(
    spec: SandboxSpec, tools: Iterable[str], namespace_problem: Callable[[], str], policy: PolicyConfig
) -> tuple[SandboxSpec, str]:
    """Return `spec` with the information whether paths can be hidden from the commands of `tools`.

    `namespace_problem` returns why commands cannot have mount namespaces, "" if they can. The second value is a message
    if paths cannot be hidden, and otherwise "". The machine is not examined for tools that run no code.
    """
    if RUN_CODE.isdisjoint(tools):
        return spec, ""
    why = namespace_problem()
    if not why:
        return replace(spec, covers_paths=True), ""
    if policy.require_denied_paths and policy.denied_paths:
        return replace(spec, covers_paths=False), f"{BY_NAME_ONLY} ({why}): {REFUSED}"
    return replace(spec, covers_paths=False), "\n".join(
        [f"{BY_NAME_ONLY} ({why}): {EXPOSED}", *acts_as_user(spec, tools)]
    )


def acts_as_user(spec: SandboxSpec, tools: Iterable[str]) -> list[str]:
    """Return a message if a command of `tools` can become the user on a machine without user namespaces."""
    return [ACTS_AS_USER] if any(spec.of(tool) < "L2" for tool in RUN_CODE.intersection(tools) - {UNCONFINED}) else []


def denied_paths_problem(spec: AgentSpec, orch_folders: tuple[str, ...]) -> str:
    """Return why the denied paths of the agent cannot be hidden from its commands, or "". This function reads folders.

    The agent's process repeats the same search before each command, and refuses the command if there is a problem.
    """
    sandbox = spec.sandbox
    return (
        _path_covers(
            spec.cwd,
            spec.env.get("HOME", ""),
            sandbox.read,
            sandbox.write,
            spec.policy.rules.denied_paths,
            orch_folders,
        )
        .find()
        .problem
    )


@lru_cache(maxsize=32)
def _path_covers(
    cwd: str,
    home: str,
    read: tuple[str, ...],
    write: tuple[str, ...],
    denied: tuple[str, ...],
    orch_folders: tuple[str, ...],
) -> PathCovers:
    """Return the search for the denied paths of agents with these settings. The search caches listings of folders."""
    from orch_worker.tools.api.base import ToolContext
    from orch_worker.tools.shell.path_covers import PathCovers

    return PathCovers(
        ToolContext(
            Path(cwd),
            env={"HOME": home} if home else {},
            sandbox=SandboxSpec(read=read, write=write),
            policy=PolicyConfig(denied_paths=denied),
            orch_folders=orch_folders,
        )
    )


def _supported_levels(
    levels: Iterable[Level], offer: Callable[[], AvailableLevels], *, require: bool
) -> tuple[dict[Level, Level], list[str]]:
    available = offer()
    supported, reductions = {}, []
    for level in sorted(set(levels)):
        supported[level] = available.nearest(level)
        if supported[level] >= level:
            continue
        why = "; ".join(f"no {each}: {reason}" for each, reason in sorted(available.missing.items()) if each >= level)
        if require:
            raise SandboxError(
                f"sandbox level {level} is required, but this machine supports {supported[level]} ({why}). See `orch "
                "doctor`; lower the level, or do not require it"
            )
        reductions.append(f"sandbox level {level} is not available here ({why}); tools run at {supported[level]}")
    return supported, reductions


def _with_minimum(config: SandboxConfig, level: Level) -> SandboxConfig:
    return replace(
        config,
        level=max(config.level, level),
        presets={name: max(each, level) for name, each in config.presets.items()},
        tools={name: max(each, level) for name, each in config.tools.items()},
    )


def _lower_limits(one: ToolLimits, other: ToolLimits) -> ToolLimits:
    levels = msgspec.structs.asdict(one), msgspec.structs.asdict(other)
    both = {name: [each[name] for each in levels if each[name] is not None] for name in levels[0]}
    return ToolLimits(**{name: min(values) if values else None for name, values in both.items()})
