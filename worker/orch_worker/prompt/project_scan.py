"""A look at the folder an agent works in: what the project is, its layout, its context files. Always bounded."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from orch_protocol.agent.project import ContextConfig, ContextFile, ContextSpec, ProjectFolder, ProjectSurvey
from orch_protocol.core.errors import OrchError
from orch_protocol.core.messages import ToolUse
from orch_protocol.core.prompts import PromptPart
from orch_protocol.core.text import scrub
from orch_protocol.services.resources import SURVEY_PROJECT
from orch_protocol.services.service import Empty

from ..conversation.tokens import TokenEstimator
from ..tools.api.base import ToolContext, ToolError
from ..tools.dispatch.guard import Guard
from ..tools.files.gitignore import Note, top_level, walk
from ..tools.files.read import open_inside
from .project import ProjectDescription, project_parts

__all__ = ["WALK_SECONDS", "ProjectScan", "permitted_survey", "survey_project"]

MAX_TOP: Final = 2_000
MAX_FOLDERS: Final = 20
MAX_FILES: Final = 24
MAX_BELOW: Final = 300
MAX_PAGES: Final = 12
MAX_HEAD: Final = 64 * 1024
BYTES_A_TOKEN: Final = 8
SNIFF_BYTES: Final = 8_192
WALK_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 3.0
ROOT_SECONDS: Final = 1.0
"""After so long without a word from the root an agent looks for itself."""

PROMINENT: Final = re.compile(
    r"readme(\..*)?|makefile|justfile|dockerfile|setup\.py|cmakelists\.txt|pom\.xml|build\.gradle(\.kts)?|gemfile"
    r"|(main|app|index|cli)\.\w+",
    re.IGNORECASE,
)
READMES: Final = ("README.md", "README.rst", "README.txt", "README", "readme.md")
NO_PROSE: Final = re.compile(r"[#=<>!|*+\-\[\](){}`~.:_\s\d]")

STRING: Final = re.compile(r"""^(name|description)[ \t]*=[ \t]*("(?:[^"\\\n]|\\.)*"|'[^'\n]*')""", re.MULTILINE)


class ProjectScan:
    """What the agent of `context` is told of its project, as `spec` has it and `guard` lets it be read unasked."""

    def __init__(self, spec: ContextSpec, context: ToolContext, guard: Guard, estimator: TokenEstimator) -> None:
        self._spec = spec
        self._context = context
        self._guard = guard
        self._estimator = estimator

    async def look(self) -> tuple[PromptPart, ...]:
        """Return its parts, none when there is nothing to tell, or when that takes over LOOK_SECONDS. Blocks nobody."""
        if self._spec.level == "none":
            return ()
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await self._parts()
        except TimeoutError:
            print(f"{self._context.cwd}: not looked at for a project: over {LOOK_SECONDS:g} s", flush=True)
            return ()

    async def _parts(self) -> tuple[PromptPart, ...]:
        seen = await self._seen()
        names = dict.fromkeys((*(page.path for page in seen.pages), *(name for name, _ in seen.manifests)))
        if seen.readme is not None:
            names[seen.readme[0]] = None
        free = {name for name in names if await self._is_free("read_file", name)}
        project = permitted_survey(seen, free, listed=await self._is_free("list_files", "."))
        parts = project_parts(project, self._spec.level, self._spec.rules, self._estimator)
        return tuple(replace(part, name=scrub(part.name), text=scrub(part.text)) for part in parts)

    async def _seen(self) -> ProjectSurvey:
        """Return what there is: as the root knows it, who looks once for all agents of a folder, or else by a look."""
        try:
            seen: ProjectSurvey = await self._context.call_root(SURVEY_PROJECT, Empty(), ROOT_SECONDS)
        except (OrchError, ToolError):
            return await asyncio.to_thread(survey_project, self._spec.rules, self._context)
        return seen

    async def _is_free(self, tool: str, path: str) -> bool:
        return await self._guard.is_free(ToolUse("", tool, {"path": path}))


def permitted_survey(seen: ProjectSurvey, free: Container[str], *, listed: bool) -> ProjectDescription:
    """Return of what was `seen` what may be told: of the files `free` what they say, the rest if it may be `listed`.

    Files of one text are told of once.
    """
    pages: dict[str, ContextFile] = {}
    for page in seen.pages:
        if page.path not in free:
            page = ContextFile(page.path, problem="it may not be read unasked")
        pages.setdefault(page.text or page.path, page)
    if not listed:
        return ProjectDescription(pages=tuple(pages.values()), packages=seen.packages)
    about = [(name, said) for name, said in seen.manifests if name in free][:1]
    about += [seen.readme] if seen.readme is not None and seen.readme[0] in free else []
    return ProjectDescription(
        about=tuple(f"{name}: {said}" for name, said in about),
        folders=seen.folders,
        more_folders=seen.more_folders,
        files=seen.files,
        more_files=seen.more_files,
        pages=tuple(pages.values()),
        packages=seen.packages,
    )


def survey_project(rules: ContextConfig, context: ToolContext, note: Note = lambda _: None) -> ProjectSurvey:
    """Return what there is in the folder of `context`; `note` is told of each path before it is looked at."""
    until = time.monotonic() + WALK_SECONDS
    found, folders = top_level(context.cwd, _tickets(MAX_TOP, until), note)
    first = (*rules.files, *MANIFESTS)
    files = sorted(
        (entry.name for entry in found),
        key=lambda name: (name not in first and not PROMINENT.fullmatch(name), name),
    )
    folders.sort(key=lambda entry: (entry.name.startswith("."), entry.name))

    def head(name: str) -> bytes:
        note(context.cwd / name)
        try:
            data = _read(name, context, MAX_HEAD)
        except ToolError:
            return b""
        return b"" if b"\0" in data[:SNIFF_BYTES] else data

    said = [(name, entry(head(name))) for name, entry in MANIFESTS.items() if name in files]
    readme = next((name for name in READMES if name in files), None)
    prose = _paragraph(_text(head(readme))) if readme is not None else ""
    return ProjectSurvey(
        manifests=tuple((name, text) for name, text in said if text),
        readme=(readme, prose) if readme is not None and prose else None,
        folders=tuple(_folder(entry.name, context, until, note) for entry in folders[:MAX_FOLDERS]),
        more_folders=max(0, len(folders) - MAX_FOLDERS),
        files=tuple(files[:MAX_FILES]),
        more_files=max(0, len(files) - MAX_FILES),
        pages=_pages(rules, context, note),
        packages=_packages(rules, context, note),
    )


def _packages(rules: ContextConfig, context: ToolContext, note: Note) -> tuple[ContextFile, ...]:
    if not rules.packages:
        return ()
    from .installed_packages import pages_of  # what reads metadata is not for those who have none to read

    return pages_of(context.cwd, rules.packages, note)


def _tickets(most: int, until: float) -> Iterator[None]:
    for _ in range(most):
        if time.monotonic() > until:
            return
        yield None


def _folder(name: str, context: ToolContext, until: float, note: Note) -> ProjectFolder:
    tickets = _tickets(MAX_BELOW, until)
    kinds = Counter(os.path.splitext(path)[1] for path, _ in walk(context.cwd, context.cwd / name, tickets, note))
    kind, count = kinds.most_common(1)[0] if kinds else ("", 0)
    more = next(tickets, 0) == 0
    return ProjectFolder(name, kinds.total(), more, kind if count * 2 > kinds.total() else "")


def _pages(rules: ContextConfig, context: ToolContext, note: Note) -> tuple[ContextFile, ...]:
    most = max(MAX_HEAD, rules.full_tokens * BYTES_A_TOKEN)
    pages = (_page(path, context, note, most) for path in dict.fromkeys(rules.files[:MAX_PAGES]))
    return tuple(page for page in pages if page is not None)


def _page(path: str, context: ToolContext, note: Note, most: int) -> ContextFile | None:
    """Return the context file `path`, None when there is none or nothing is in it."""
    note(context.cwd / path)
    if not os.path.lexists(context.cwd / path):
        return None
    try:
        data = _read(path, context, most + 1)
    except ToolError as error:
        return ContextFile(path, problem=str(error).rstrip("."))
    if b"\0" in data[:SNIFF_BYTES]:
        return ContextFile(path, problem="a binary file")
    text = _text(data[:most])
    return ContextFile(path, text, more=len(data) > most) if text else None


def _read(path: str, context: ToolContext, most: int) -> bytes:
    with open_inside(context, path) as file:
        return file.read(most)


def _text(data: bytes) -> str:
    return data.decode(errors="replace").removeprefix("\ufeff").replace("\r\n", "\n").strip()


def _paragraph(text: str) -> str:
    """Return the first paragraph of prose, as one line."""
    for part in re.split(r"\n\s*\n", re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.DOTALL | re.MULTILINE)):
        lines = [line for line in part.splitlines() if not NO_PROSE.match(line)]
        if said := " ".join(lines):
            return said
    return ""


def _described(row: Any) -> str:
    if not isinstance(row, dict):
        return ""
    return ": ".join(said for name in ("name", "description") if isinstance(said := row.get(name), str) and said)


def _toml(table: str) -> Callable[[bytes], str]:
    # Looked for rather than parsed: two strings are wanted, and reading all of it costs more than the whole look.
    section = re.compile(rf"^\[{table}\][ \t]*(?:#[^\n]*)?$(.*?)(?=^\[|\Z)", re.DOTALL | re.MULTILINE)

    def entry(data: bytes) -> str:
        found = section.search(_text(data))
        return _described({line[1]: _string(line[2]) for line in STRING.finditer(found[1])} if found else None)

    return entry


def _string(literal: str) -> str:
    if literal.startswith("'"):
        return literal[1:-1]
    try:
        return str(msgspec.json.decode(literal))
    except msgspec.MsgspecError:
        return literal[1:-1]


def _json(data: bytes) -> str:
    try:
        return _described(msgspec.json.decode(data))
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return ""


def _module(data: bytes) -> str:
    found = re.search(rb"^module\s+(\S+)", data, re.MULTILINE)
    return found[1].decode(errors="replace") if found else ""


MANIFESTS: Final[dict[str, Callable[[bytes], str]]] = {
    "pyproject.toml": _toml("project"),
    "package.json": _json,
    "Cargo.toml": _toml("package"),
    "go.mod": _module,
}
