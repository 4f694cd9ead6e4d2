"""What tools' processes are kept from, as data: it is configured, travels in an agent's spec, and is inherited."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct, field

__all__ = [
    "BY_NAME_ONLY",
    "COMMANDS",
    "IN_WORKER",
    "LEVELS",
    "RUN_CODE",
    "WORDS",
    "Level",
    "SandboxConfig",
    "SandboxSpec",
    "ToolLimits",
]

Level: TypeAlias = Literal["L0", "L1", "L2", "L3"]
"""How much a process is kept from. A higher one sorts after a lower one."""
LEVELS: Final[tuple[Level, ...]] = ("L0", "L1", "L2", "L3")

WORDS: Final[dict[Level, str]] = {
    "L0": "a session, an environment and limits of its own",
    "L1": "no rights beyond an ordinary program's",
    "L2": "files by Landlock, no network, no signals to others",
    "L3": "namespaces: files, network and processes of its own",
}
"""What each level adds, for people."""

COMMANDS: Final = frozenset({"bash", "run_python_script", "py_help"})
"""Tools that run commands or code of the agent's choice in processes of their own."""

BY_NAME_ONLY: Final = "denied paths: by name only"
"""What is reported where commands cannot run in a mount namespace of their own."""

IN_WORKER: Final = "run_python"
"""The tool that runs code in the worker itself, where no level can hold it: it is there at L0 alone."""

RUN_CODE: Final = COMMANDS | {IN_WORKER}
"""Tools that run commands or code of the agent's choice."""

Limit = Annotated[int, Meta(ge=1, le=10**9)]


class ToolLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """What each process of a tool may use; None leaves it as it is for orch itself. At every level."""

    cpu_seconds: Limit | None = None
    memory_mb: Limit | None = None
    """Of its own data; what it shares with others, such as programs and files, is not counted."""
    file_mb: Limit | None = None
    """How long a file may become that it writes."""
    open_files: Limit | None = None
    processes: Limit | None = None
    """Of its user altogether, so not for the superuser, whom the system exempts."""


class SandboxConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What tools' processes are to be kept from."""

    level: Level = "L0"
    require: bool = False
    """Start no agent rather than let any tool of it run at less than `level`, whatever is said of presets and tools."""
    presets: dict[str, Level] = {}
    """By preset; what is said here counts for it instead of `level`."""
    tools: dict[str, Level] = {}
    """By tool; what is said here counts for it, whatever the preset."""
    network: bool = False
    """Whether the internet can be reached at L2 and L3."""
    read: tuple[str, ...] = ()
    """What may be read at L2 and L3, besides the agent's folder and what programs need to run."""
    write: tuple[str, ...] = ()
    """What may be written too."""
    limits: ToolLimits = field(default_factory=ToolLimits)


class SandboxSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The levels at which an agent's tools run, as this machine has them, and what they may reach there."""

    level: Level = "L0"
    tools: dict[str, Level] = {}
    network: bool = False
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    limits: ToolLimits = ToolLimits()
    covers_paths: bool | None = None
    """Whether commands run in a mount namespace that hides denied paths, credentials and orch's own folders. False:
    denied paths are matched by name only. None: the agent's process finds out with its first command."""

    def of(self, tool: str) -> Level:
        """Return the level at which `tool` runs."""
        return self.tools.get(tool, self.level)
