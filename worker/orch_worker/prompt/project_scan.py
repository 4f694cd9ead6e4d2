"""Scans the folder of an agent for the kind of project, its layout and its context files. Time and size are limited."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import time
from collections import Counter
from collections.abc import Container, Iterator
from typing import Final

from msgspec.structs import replace

from orch_protocol.agent.project import ContextConfig, ContextFile, ContextSpec, ProjectFolder, ProjectSurvey
from orch_protocol.core.errors import OrchError
from orch_protocol.core.messages import ToolUse
from orch_protocol.core.prompts import PromptPart
from orch_protocol.core.text import scrub
from orch_protocol.services.resources.prompts import SURVEY_PROJECT
from orch_protocol.services.service import Empty

from ..conversation.tokens import TokenEstimator
from ..tools.api.base import ToolContext, ToolError
from ..tools.dispatch.guard import Guard
from ..tools.files.gitignore import OnRead, top_level, walk
from ..tools.files.read import open_inside, path_inside
from .languages import languages_of
from .manifests import MANIFESTS, TEST_FILES, entry_points, file_text, find_test_command
from .project import ProjectDescription, project_parts

__all__ = ["WALK_SECONDS", "ProjectScan", "permitted_survey", "survey_project"]

MAX_TOP: Final = 2_000
MAX_FOLDERS: Final = 20
MAX_FILES: Final = 24
MAX_BELOW: Final = 300
MAX_MAIN_FILES: Final = 4
MAX_PAGES: Final = 12
MAX_HEAD: Final = 64 * 1024
BYTES_A_TOKEN: Final = 8
SNIFF_BYTES: Final = 8_192
WALK_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 3.0
ROOT_SECONDS: Final = 1.0
"""Time limit of the request to the root. After this time, the agent scans the folder itself."""

PROMINENT: Final = re.compile(
    r"readme(\..*)?|makefile|justfile|dockerfile|setup\.py|cmakelists\.txt|pom\.xml|build\.gradle(\.kts)?|gemfile"
    r"|(main|app|index|cli)\.\w+",
    re.IGNORECASE,
)
READMES: Final = ("README.md", "README.rst", "README.txt", "README", "readme.md")
ENTRY: Final = re.compile(r"(__main__|main|app|cli|manage|server)\.(py|js|mjs|ts|go|rs|rb|R|jl|c|cc|cpp|php|sh)")
NO_PROSE: Final = re.compile(r"[#=<>!|*+\-\[\](){}`~.:_\s\d]")


class ProjectScan:
    """The project description for the agent of `context`. Files that need an approval are left out."""

    def __init__(self, spec: ContextSpec, context: ToolContext, guard: Guard, estimator: TokenEstimator) -> None:
        self._spec = spec
        self._context = context
        self._guard = guard
        self._estimator = estimator

    async def look(self) -> tuple[PromptPart, ...]:
        """Return the parts of the description.

        Return no parts if there is nothing to describe. Also return no parts if the scan takes longer than
        LOOK_SECONDS.
        """
        if self._spec.level == "none":
            return ()
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await self._parts()
        except TimeoutError:
            print(
                f"{self._context.cwd}: no project description: the scan took more than {LOOK_SECONDS:g} s", flush=True
            )
            return ()

    async def _parts(self) -> tuple[PromptPart, ...]:
        seen = await self._seen()
        names = dict.fromkeys((*(page.path for page in seen.pages), *(name for name, _ in seen.manifests)))
        names |= dict.fromkeys(name for name, _ in (*seen.entry_points, *seen.test_commands))
        if seen.readme is not None:
            names[seen.readme[0]] = None
        targets = dict(seen.links)
        free = {
            name
            for name in names
            if await self._may_read("read_file", name)
            and (name not in targets or await self._may_read("read_file", targets[name]))
        }
        project = permitted_survey(seen, free, listed=await self._may_read("list_files", "."))
        parts = project_parts(project, self._spec.level, self._spec.rules, self._estimator)
        return tuple(replace(part, name=scrub(part.name), text=scrub(part.text)) for part in parts)

    async def _seen(self) -> ProjectSurvey:
        """Return the survey from the root, which scans a folder once for all agents.

        If the root fails, scan the folder in this process.
        """
        try:
            seen: ProjectSurvey = await self._context.call_root(SURVEY_PROJECT, Empty(), ROOT_SECONDS)
        except (OrchError, ToolError):
            return await asyncio.to_thread(survey_project, self._spec.rules, self._context)
        return seen

    async def _may_read(self, tool: str, path: str) -> bool:
        return await self._guard.needs_no_approval(ToolUse("", tool, {"path": path}))


def permitted_survey(survey: ProjectSurvey, readable: Container[str], *, listed: bool) -> ProjectDescription:
    """Return the part of the survey `survey` that the agent may see.

    The result contains the contents of the files in `readable`, and the layout if `listed` is True. Files with the same
    text are shown once.
    """
    pages: dict[str, ContextFile] = {}
    for page in survey.pages:
        if page.path not in readable:
            page = ContextFile(page.path, problem="it cannot be read without an approval")
        pages.setdefault(page.text or page.path, page)
    if not listed:
        return ProjectDescription(pages=tuple(pages.values()), packages=survey.packages)
    about = [(name, value) for name, value in survey.manifests if name in readable][:1]
    about += [survey.readme] if survey.readme is not None and survey.readme[0] in readable else []
    entries = [f"{', '.join(value)} ({name})" for name, value in survey.entry_points if name in readable]
    tests = [f"{value} ({name})" for name, value in survey.test_commands if name in readable][:1]
    facts = {"Languages": survey.languages, "Entry points": (*entries, *survey.main_files), "Test command": tests}
    return ProjectDescription(
        about=tuple(f"{name}: {value}" for name, value in about),
        facts=tuple(f"{title}: {', '.join(value)}" for title, value in facts.items() if value),
        folders=survey.folders,
        more_folders=survey.more_folders,
        files=survey.files,
        more_files=survey.more_files,
        pages=tuple(pages.values()),
        packages=survey.packages,
    )


def survey_project(rules: ContextConfig, context: ToolContext, note: OnRead = lambda _: None) -> ProjectSurvey:
    """Return the survey of the folder of `context`. `note` is called with each path before it is read."""
    until = time.monotonic() + WALK_SECONDS
    note(context.cwd)
    context = replace(context, cwd=context.cwd.resolve())
    links: dict[str, str] = {}
    found, folders = top_level(context.cwd, _entry_quota(MAX_TOP, until), note)
    first = (*rules.files, *MANIFESTS)
    files = sorted(
        (entry.name for entry in found),
        key=lambda name: (name not in first and not PROMINENT.fullmatch(name), name),
    )
    folders.sort(key=lambda entry: (entry.name.startswith("."), entry.name))

    @functools.cache
    def head(name: str) -> bytes:
        note(context.cwd / name)
        try:
            data = _read(name, context, MAX_HEAD, links)
        except ToolError:
            return b""
        return b"" if "\0" in file_text(data)[:SNIFF_BYTES] else data

    manifests = [(name, entry(head(name))) for name, entry in MANIFESTS.items() if name in files]
    readme = next((name for name in READMES if name in files), None)
    prose = _paragraph(file_text(head(readme))) if readme is not None else ""
    kinds = Counter(os.path.splitext(name)[1] for name in files)
    below = tuple(_folder(entry.name, context, until, note, kinds) for entry in folders[:MAX_FOLDERS])
    commands = [(name, find_test_command(name, head(name), files)) for name in TEST_FILES if name in files]
    entries = [(name, entry_points(name, head(name))) for name in MANIFESTS if name in files]
    return ProjectSurvey(
        manifests=tuple((name, text) for name, text in manifests if text),
        readme=(readme, prose) if readme is not None and prose else None,
        languages=languages_of(kinds),
        entry_points=tuple(each for each in entries if each[1]),
        main_files=tuple(name for name in files if ENTRY.fullmatch(name))[:MAX_MAIN_FILES],
        test_commands=tuple(each for each in commands if each[1]),
        folders=below,
        more_folders=max(0, len(folders) - MAX_FOLDERS),
        files=tuple(files[:MAX_FILES]),
        more_files=max(0, len(files) - MAX_FILES),
        pages=_pages(rules, context, note, links),
        packages=_packages(rules, context, note),
        links=tuple(links.items()),
    )


def _packages(rules: ContextConfig, context: ToolContext, note: OnRead) -> tuple[ContextFile, ...]:
    if not rules.packages:
        return ()
    from .installed_packages import pages_of  # This module is imported only if packages are configured.

    return pages_of(context.cwd, rules.packages, note)


def _entry_quota(limit: int, until: float) -> Iterator[None]:
    for _ in range(limit):
        if time.monotonic() > until:
            return
        yield None


def _folder(name: str, context: ToolContext, until: float, note: OnRead, total: Counter[str]) -> ProjectFolder:
    """Return the contents of the folder `name`. Add the suffixes of its files to `total`."""
    tickets = _entry_quota(MAX_BELOW, until)
    kinds = Counter(os.path.splitext(path)[1] for path, _ in walk(context.cwd, context.cwd / name, tickets, note))
    total.update(kinds)
    kind, count = kinds.most_common(1)[0] if kinds else ("", 0)
    more = next(tickets, 0) == 0
    return ProjectFolder(name, kinds.total(), more, kind if count * 2 > kinds.total() else "")


def _pages(rules: ContextConfig, context: ToolContext, note: OnRead, links: dict[str, str]) -> tuple[ContextFile, ...]:
    limit = max(MAX_HEAD, rules.full_tokens * BYTES_A_TOKEN)
    pages = (_page(path, context, note, limit, links) for path in dict.fromkeys(rules.files[:MAX_PAGES]))
    return tuple(page for page in pages if page is not None)


def _page(path: str, context: ToolContext, note: OnRead, limit: int, links: dict[str, str]) -> ContextFile | None:
    """Return the context file at `path`. Return None if the file does not exist or is empty."""
    note(context.cwd / path)
    if not os.path.lexists(context.cwd / path):
        return None
    try:
        data = _read(path, context, limit + 1, links)
    except ToolError as error:
        return ContextFile(path, problem=str(error).rstrip("."))
    text = file_text(data[:limit])
    if "\0" in text[:SNIFF_BYTES]:
        return ContextFile(path, problem="a binary file")
    return ContextFile(path, text, more=len(data) > limit) if text else None


def _read(path: str, context: ToolContext, limit: int, links: dict[str, str]) -> bytes:
    """Return the beginning of a file. If a link leads to the file, add the real path to `links`."""
    real_path = str(path_inside(context, path))
    if real_path != os.path.join(context.cwd, path):
        links[path] = real_path
    with open_inside(replace(context, judged_path=real_path), path) as file:
        return file.read(limit)


def _paragraph(text: str) -> str:
    """Return the first paragraph of prose as one line."""
    for part in re.split(r"\n\s*\n", re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.DOTALL | re.MULTILINE)):
        lines = [line for line in part.splitlines() if not NO_PROSE.match(line)]
        if paragraph := " ".join(lines):
            return paragraph
    return ""
