"""What an agent learns about its project: settings, and the facts found in a folder."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct, field

__all__ = [
    "RANK",
    "ContextConfig",
    "ContextFile",
    "ContextSpec",
    "ProjectCode",
    "ProjectContext",
    "ProjectFolder",
    "ProjectSurvey",
]

ProjectContext: TypeAlias = Literal["none", "brief", "full"]
"""How much an agent learns about the project in its working folder.

- "none": nothing
- "brief": a description of the project, its layout, and the beginning of each context file
- "full": the same description and layout, and the complete context files
"""

RANK: Final[dict[str, int]] = {"none": 0, "brief": 1, "full": 2}
"""The order of the project context levels."""


class ContextConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How much agents learn about the project in their working folder. Each preset has its own level."""

    minimal: ProjectContext = "none"
    investigate: ProjectContext = "brief"
    work: ProjectContext = "full"
    tools: ProjectContext = "none"
    """Level for agents that are spawned with tools instead of a preset."""
    files: tuple[str, ...] = ("AGENTS.md", "CLAUDE.md")
    """The context files, as paths relative to the working folder."""
    packages: tuple[str, ...] = ()
    """Installed Python packages.

    Prompts at levels "brief" and "full" contain the beginning of each package's description.
    """
    full_tokens: Annotated[int, Meta(ge=100, le=1_000_000)] = 6000
    """Maximum size of the context files at level "full", in estimated tokens."""

    def of(self, preset: str) -> ProjectContext:
        """Return the project context level for `preset`.

        If an agent is spawned with tools instead of a preset, `preset` is "".
        """
        levels: dict[str, ProjectContext] = {
            "": self.tools,
            "minimal": self.minimal,
            "investigate": self.investigate,
            "work": self.work,
        }
        return levels.get(preset, "none")


class ProjectCode(Struct, frozen=True, forbid_unknown_fields=True):
    """The code and texts that the trusted configuration of the project in `folder` names.

    `modules` are import paths, `packages` are import paths of packages with other files, and `files` are absolute paths
    of files and folders. `trust` is the file that lists the contents that the user trusted.
    """

    folder: str
    trust: str
    modules: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


class ProjectFolder(Struct, frozen=True):
    """A folder of a project.

    `files` is the number of files in the folder and its subfolders. If `more` is True, `files` is a lower bound. `kind`
    is the most frequent kind of file.
    """

    name: str
    files: int
    more: bool = False
    kind: str = ""


class ContextFile(Struct, frozen=True):
    """A context file. `more`: `text` does not contain the complete file.

    `problem`: the reason why the file could not be read.
    """

    path: str
    text: str = ""
    more: bool = False
    problem: str = ""


class ProjectSurvey(Struct, frozen=True):
    """All facts found in a project folder, for every level.

    `manifests` and `readme` are pairs of a file name and the description found in that file. `entry_points` and
    `test_commands` are pairs of a file name and the commands found in it. `more_folders` and `more_files` are the
    numbers of folders and files that are not listed.
    """

    manifests: tuple[tuple[str, str], ...] = ()
    readme: tuple[str, str] | None = None
    languages: tuple[str, ...] = ()
    entry_points: tuple[tuple[str, tuple[str, ...]], ...] = ()
    main_files: tuple[str, ...] = ()
    """Top-level files that are programs by their names, such as `main.py`."""
    test_commands: tuple[tuple[str, str], ...] = ()
    """Commands that run the tests, the most specific first."""
    folders: tuple[ProjectFolder, ...] = ()
    more_folders: int = 0
    files: tuple[str, ...] = ()
    more_files: int = 0
    pages: tuple[ContextFile, ...] = ()
    packages: tuple[ContextFile, ...] = ()
    """The description of each package. The path of each ContextFile is the package's name."""
    links: tuple[tuple[str, str], ...] = ()
    """Pairs of a file name and the real path from which the file was read, for files to which a link leads."""


class ContextSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """How much one agent learns about its project, and the rules for its subagents."""

    level: ProjectContext = "none"
    rules: ContextConfig = field(default_factory=ContextConfig)
