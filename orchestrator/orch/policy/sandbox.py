"""At which level an agent's tools run: what is wanted of it, what is above it, and what the machine has. Pure."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from orch_protocol.agent.spec import AgentSpec, WorkerPaths
from orch_protocol.core.errors import SandboxError
from orch_protocol.policy.policy import PolicyConfig
from orch_protocol.policy.sandbox import (
    BY_NAME_ONLY,
    IN_WORKER,
    RUN_CODE,
    Level,
    SandboxConfig,
    SandboxSpec,
    ToolLimits,
)
from orch_worker.policy.taint import labels_file

if TYPE_CHECKING:
    from orch_worker.sandbox.probe import AvailableLevels

__all__ = [
    "available_sandbox",
    "check_required_levels",
    "configured_sandbox",
    "stricter",
    "with_hidden_paths",
    "with_minimum_level",
    "worker_paths",
]

EXPOSED = (
    "commands can read denied files, credentials and the files of orch itself by other means, and so can run_python, "
    "which is not offered beside denied paths"
)
REFUSED = "commands are refused, and run_python is not offered"
LEFT_OUT = (
    "run_python runs code in the agent's own process, which no sandbox holds, and is left out: run_python_script takes "
    'its place, or sandbox.tools.run_python = "L0" brings it back'
)


def configured_sandbox(config: SandboxConfig, preset: str) -> SandboxSpec:
    """Return the sandbox that `config` has for agents of `preset` ("": they were given tools instead).

    Where a level is required, what is said of presets and tools can only be more.
    """
    if config.require:
        config = _floored(config, config.level)
    return SandboxSpec(
        level=config.presets.get(preset, config.level),
        tools=config.tools,
        network=config.network,
        read=config.read,
        write=config.write,
        limits=config.limits,
    )


def with_minimum_level(config: SandboxConfig, level: Level) -> SandboxConfig:
    """Return `config` with nothing of it below `level`, and required."""
    return replace(_floored(config, level), require=True)


def stricter(one: SandboxSpec, other: SandboxSpec) -> SandboxSpec:
    """Return what both allow: the higher levels, the lower limits, the paths that both name."""
    return SandboxSpec(
        level=max(one.level, other.level),
        tools={name: max(one.of(name), other.of(name)) for name in {**one.tools, **other.tools}},
        network=one.network and other.network,
        read=tuple(path for path in one.read if path in other.read),
        write=tuple(path for path in one.write if path in other.write),
        limits=_lower(one.limits, other.limits),
    )


def check_required_levels(config: SandboxConfig, offer: Callable[[], AvailableLevels]) -> None:
    """Raise SandboxError when `config` requires a level that this machine does not have."""
    if config.require:
        _here((config.level, *config.presets.values(), *config.tools.values()), offer, require=True)


def available_sandbox(
    spec: SandboxSpec, tools: Iterable[str], offer: Callable[[], AvailableLevels], *, require: bool
) -> tuple[SandboxSpec, str]:
    """Return `spec` at levels that this machine has, and what is to be said of that, "" for nothing.

    `tools` are those that were asked for by name. A level that is not there becomes the next higher one, or else the
    next lower one, which is told of. With `require` that raises SandboxError. The machine is not asked when nothing
    beyond L0 is wanted.
    """
    levels = {spec.level, *spec.tools.values()}
    notes = []
    if IN_WORKER in tools and spec.of(IN_WORKER) > "L0":
        notes.append(LEFT_OUT)
    if levels == {"L0"}:
        return spec, "; ".join(notes)
    have, less = _here(levels, offer, require=require)
    at = {name: have[level] for name, level in spec.tools.items()}
    return replace(spec, level=have[spec.level], tools=at), "; ".join([*less, *notes])


def with_hidden_paths(
    spec: SandboxSpec, tools: Iterable[str], missing: Callable[[], str], policy: PolicyConfig
) -> tuple[SandboxSpec, str]:
    """Return `spec` with whether paths can be hidden from the commands of `tools`, and what to report if not.

    The machine is not asked for tools that run no code.
    """
    if RUN_CODE.isdisjoint(tools):
        return spec, ""
    why = missing()
    if not why:
        return replace(spec, covers_paths=True), ""
    what = REFUSED if policy.require_denied_paths and policy.denied_paths else EXPOSED
    return replace(spec, covers_paths=False), f"{BY_NAME_ONLY} ({why}): {what}"


def worker_paths(spec: AgentSpec, orch_folders: tuple[str, ...], spool: Path, address: str) -> WorkerPaths | None:
    """Return the paths for the mount namespace of the agent's worker, None when it runs no code of the agent.

    `spool` is the folder for large messages, `address` that of the root's socket.
    """
    sandbox, rules = spec.sandbox, spec.policy.rules
    if IN_WORKER not in spec.active or sandbox.of(IN_WORKER) > "L0" or not sandbox.covers_paths:
        return None
    own = [os.fspath(spool), os.fspath(labels_file(Path(spec.folder)).parent)]
    if spec.memory is not None:
        own.append(spec.memory.folder)
    if spec.hooks.load and spec.hooks.options.evidence:
        own.append(spec.hooks.options.evidence)
    shown = [address.removeprefix("ipc://"), spec.hooks.switches]
    for place in (os.path.expanduser(hook.rpartition(":")[0] or hook) for hook in spec.hooks.load):
        if place.endswith(".py"):
            shown += (place, os.path.dirname(place))
    for extension in spec.extensions:
        shown += (extension.path, extension.trust)
    for skill in spec.skills.skills:
        shown += (skill.path, skill.trust, skill.trusted)
    return WorkerPaths(
        cwd=spec.cwd,
        folder=spec.folder,
        home=spec.env.get("HOME", ""),
        orch_folders=orch_folders,
        denied=rules.denied_paths,
        required=rules.require_denied_paths and bool(rules.denied_paths),
        read=sandbox.read,
        write=sandbox.write,
        own=tuple(own),
        shown=tuple(dict.fromkeys(path for path in shown if os.path.isabs(path))),
    )


def _here(
    levels: Iterable[Level], offer: Callable[[], AvailableLevels], *, require: bool
) -> tuple[dict[Level, Level], list[str]]:
    there = offer()
    have, less = {}, []
    for level in sorted(set(levels)):
        have[level] = there.nearest(level)
        if have[level] >= level:
            continue
        why = "; ".join(f"no {each}: {reason}" for each, reason in sorted(there.missing.items()) if each >= level)
        if require:
            raise SandboxError(
                f"sandbox level {level} is required, and this machine has {have[level]} ({why}). See `orch doctor`; "
                "ask for less, or do not require it"
            )
        less.append(f"sandbox level {level} cannot be had here ({why}): tools run at {have[level]}")
    return have, less


def _floored(config: SandboxConfig, level: Level) -> SandboxConfig:
    return replace(
        config,
        level=max(config.level, level),
        presets={name: max(each, level) for name, each in config.presets.items()},
        tools={name: max(each, level) for name, each in config.tools.items()},
    )


def _lower(one: ToolLimits, other: ToolLimits) -> ToolLimits:
    said = msgspec.structs.asdict(one), msgspec.structs.asdict(other)
    both = {name: [each[name] for each in said if each[name] is not None] for name in said[0]}
    return ToolLimits(**{name: min(values) if values else None for name, values in both.items()})
