"""Sandbox settings of the processes that tools start. Subagents inherit these settings."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct, field

from .builtin_tools import BUILTIN_TOOLS

__all__ = [
    "BY_NAME_ONLY",
    "LEVELS",
    "RUN_CODE",
    "UNCONFINED",
    "WORDS",
    "Level",
    "SandboxConfig",
    "SandboxSpec",
    "ToolLimits",
]

Level: TypeAlias = Literal["L0", "L1", "L2", "L3"]
"""Strength of the isolation. A stricter level sorts after a weaker one."""
LEVELS: Final[tuple[Level, ...]] = ("L0", "L1", "L2", "L3")

WORDS: Final[dict[Level, str]] = {
    "L0": "a session, an environment and limits of its own",
    "L1": "no rights beyond an ordinary program's",
    "L2": "files by Landlock, no network, no signals to others",
    "L3": "namespaces: files, network and processes of its own",
}
"""The isolation that each level adds, as text for people."""

BY_NAME_ONLY: Final = "denied paths: by name only"
"""The status of a machine that cannot run commands in a separate mount namespace."""

UNCONFINED: Final = "run_python"
"""The tool that runs code in the tool host itself. No level isolates this tool, so it is available at L0 only."""

RUN_CODE: Final = frozenset(name for name, facts in BUILTIN_TOOLS.items() if facts.runs_code)
"""Tools that run commands or code chosen by the agent. All but `UNCONFINED` run them in separate processes."""

Limit = Annotated[int, Meta(ge=1, le=10**9)]


class ToolLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """Resource limits of each process of a tool, at every level. None means orch's own limit."""

    cpu_seconds: Limit | None = None
    memory_mb: Limit | None = None
    """Maximum private memory. Shared memory, such as programs and mapped files, is not counted."""
    file_mb: Limit | None = None
    """Maximum size of a file that the process writes."""
    open_files: Limit | None = None
    processes: Limit | None = None
    """Maximum number of processes of the user in total.

    The limit has no effect for the user root, whom the kernel exempts.
    """


class SandboxConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the sandbox for tools."""

    level: Level = "L0"
    require: bool = False
    """Refuse to start an agent if one of its tools would run below `level`, even if `presets` or `tools` allow that."""
    presets: dict[str, Level] = {}
    """The sandbox level of single presets, which overrides `level`."""
    tools: dict[str, Level] = {}
    """The sandbox level of single tools, which overrides `level` and `presets`."""
    network: bool = False
    """Whether the internet is reachable at L2 and L3."""
    read: tuple[str, ...] = ()
    """Readable paths at L2 and L3. The agent's folder, and the files that programs need to run, are always readable."""
    write: tuple[str, ...] = ()
    """Writable paths at L2 and L3."""
    limits: ToolLimits = field(default_factory=ToolLimits)


class SandboxSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The sandbox of an agent's tools: levels that this machine supports, and the accessible paths."""

    level: Level = "L0"
    tools: dict[str, Level] = {}
    network: bool = False
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    limits: ToolLimits = ToolLimits()
    covers_paths: bool | None = None
    """Whether commands run in a mount namespace that hides denied paths, credentials and orch's own folders.

    False means that denied paths are matched by name only. None means that the answer is unknown until the agent runs
    its first command.
    """

    def of(self, tool: str) -> Level:
        """Return the level at which `tool` runs."""
        return self.tools.get(tool, self.level)
