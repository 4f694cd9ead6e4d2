"""How much an agent is told of the project it works in, as data: by preset, and inherited by children."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct, field

__all__ = ["RANK", "ContextConfig", "ContextFile", "ContextSpec", "ProjectContext", "ProjectFolder", "ProjectSurvey"]

ProjectContext: TypeAlias = Literal["none", "brief", "full"]
"""Nothing; what the project is, its layout and how its context files begin; or these files whole."""

RANK: Final[dict[str, int]] = {"none": 0, "brief": 1, "full": 2}
"""How much each tells."""


class ContextConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What agents are told of the project in their working folder: by their preset, or that they were given tools."""

    minimal: ProjectContext = "none"
    investigate: ProjectContext = "brief"
    work: ProjectContext = "full"
    tools: ProjectContext = "none"
    """For agents that were given tools instead of a preset."""
    files: tuple[str, ...] = ("AGENTS.md", "CLAUDE.md")
    """The context files, as paths in the working folder."""
    packages: tuple[str, ...] = ()
    """Installed Python packages of which agents are told how their descriptions begin, in `brief` and in `full`."""
    full_tokens: Annotated[int, Meta(ge=100, le=1_000_000)] = 6000
    """What the context files may take in `full`, in estimated tokens."""

    def of(self, preset: str) -> ProjectContext:
        """Return what an agent of `preset` is told; "" has tools instead of one."""
        levels: dict[str, ProjectContext] = {
            "": self.tools,
            "minimal": self.minimal,
            "investigate": self.investigate,
            "work": self.work,
        }
        return levels.get(preset, "none")


class ProjectFolder(Struct, frozen=True):
    """A folder of a project: how many files are below it (`more`: at least so many), and of what kind most are."""

    name: str
    files: int
    more: bool = False
    kind: str = ""


class ContextFile(Struct, frozen=True):
    """A context file: what was read of it, and whether that is not all. `problem` says why nothing was."""

    path: str
    text: str = ""
    more: bool = False
    problem: str = ""


class ProjectSurvey(Struct, frozen=True):
    """All that was found in a folder, whoever may be told of it.

    `manifests` and `readme` are names of files, each with what it says of the project; `more_...` count what is not
    listed.
    """

    manifests: tuple[tuple[str, str], ...] = ()
    readme: tuple[str, str] | None = None
    folders: tuple[ProjectFolder, ...] = ()
    more_folders: int = 0
    files: tuple[str, ...] = ()
    more_files: int = 0
    pages: tuple[ContextFile, ...] = ()
    packages: tuple[ContextFile, ...] = ()
    """Of each package, under its name, what it says of itself."""


class ContextSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """What one agent is told of its project, and the rules for the agents below it."""

    level: ProjectContext = "none"
    rules: ContextConfig = field(default_factory=ContextConfig)
