"""A look at the folder an agent works in: what the project is, its layout, its context files. Always bounded."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from orch_protocol.messages import ToolUse
from orch_protocol.project import ContextConfig, ContextSpec
from orch_protocol.prompts import PromptPart
from orch_protocol.text import scrub

from .estimate import Estimator
from .guard import Guard
from .project import Folder, Page, Project, project_parts
from .tools.base import ToolContext, ToolError
from .tools.files import opened
from .tools.ignore import top, walk

__all__ = ["Surroundings", "survey"]

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

PROMINENT: Final = re.compile(
    r"readme(\..*)?|makefile|justfile|dockerfile|setup\.py|cmakelists\.txt|pom\.xml|build\.gradle(\.kts)?|gemfile"
    r"|(main|app|index|cli)\.\w+",
    re.IGNORECASE,
)
READMES: Final = ("README.md", "README.rst", "README.txt", "README", "readme.md")
NO_PROSE: Final = re.compile(r"[#=<>!|*+\-\[\](){}`~.:_\s\d]")

STRING: Final = re.compile(r"""^(name|description)[ \t]*=[ \t]*("(?:[^"\\\n]|\\.)*"|'[^'\n]*')""", re.MULTILINE)

May = Callable[[str, str], bool]
"""Says whether the tool of that name may be used on that path."""


class Surroundings:
    """What the agent of `context` is told of its project, as `spec` has it and `guard` lets it be read unasked."""

    def __init__(self, spec: ContextSpec, context: ToolContext, guard: Guard, estimator: Estimator) -> None:
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
        rules, context = self._spec.rules, self._context
        there = await asyncio.to_thread(_there, rules, context)
        free = {name for name in there if await self._is_free("read_file", name)}
        listed = await self._is_free("list_files", ".")

        def found() -> tuple[PromptPart, ...]:
            project = survey(rules, context, lambda tool, path: listed if tool == "list_files" else path in free)
            parts = project_parts(project, self._spec.level, rules, self._estimator)
            return tuple(replace(part, name=scrub(part.name), text=scrub(part.text)) for part in parts)

        return await asyncio.to_thread(found)

    async def _is_free(self, tool: str, path: str) -> bool:
        return await self._guard.is_free(ToolUse("", tool, {"path": path}))


def survey(rules: ContextConfig, context: ToolContext, may: May) -> Project:
    """Return what there is in the folder of `context`, as far as `may` lets it be read; files named twice once."""
    if not may("list_files", "."):
        return Project(pages=_pages(rules, context, may))
    until = time.monotonic() + WALK_SECONDS
    found, folders = top(context.cwd, _tickets(MAX_TOP, until))
    first = (*rules.files, *MANIFESTS)
    files = sorted(
        (entry.name for entry in found),
        key=lambda name: (name not in first and not PROMINENT.fullmatch(name), name),
    )
    folders.sort(key=lambda entry: (entry.name.startswith("."), entry.name))
    return Project(
        about=_about(files, context, may),
        folders=tuple(_folder(entry.name, context, until) for entry in folders[:MAX_FOLDERS]),
        more_folders=max(0, len(folders) - MAX_FOLDERS),
        files=tuple(files[:MAX_FILES]),
        more_files=max(0, len(files) - MAX_FILES),
        pages=_pages(rules, context, may),
    )


def _there(rules: ContextConfig, context: ToolContext) -> list[str]:
    """Return the files there are that could be read."""
    names = dict.fromkeys((*rules.files[:MAX_PAGES], *MANIFESTS, *READMES))
    return [name for name in names if os.path.lexists(context.cwd / name)]


def _tickets(most: int, until: float) -> Iterator[None]:
    for _ in range(most):
        if time.monotonic() > until:
            return
        yield None


def _folder(name: str, context: ToolContext, until: float) -> Folder:
    tickets = _tickets(MAX_BELOW, until)
    kinds = Counter(os.path.splitext(path)[1] for path, _ in walk(context.cwd, context.cwd / name, tickets))
    kind, count = kinds.most_common(1)[0] if kinds else ("", 0)
    more = next(tickets, 0) == 0
    return Folder(name, kinds.total(), more, kind if count * 2 > kinds.total() else "")


def _pages(rules: ContextConfig, context: ToolContext, may: May) -> tuple[Page, ...]:
    most = max(MAX_HEAD, rules.full_tokens * BYTES_A_TOKEN)
    pages: dict[str, Page] = {}
    for path in rules.files[:MAX_PAGES]:
        page = _page(path, context, may, most)
        if page is not None:
            pages.setdefault(page.text or path, page)
    return tuple(pages.values())


def _page(path: str, context: ToolContext, may: May, most: int) -> Page | None:
    """Return the context file `path`, None when there is none or nothing is in it."""
    if not os.path.lexists(context.cwd / path):
        return None
    if not may("read_file", path):
        return Page(path, problem="it may not be read unasked")
    try:
        data = _read(path, context, most + 1)
    except ToolError as error:
        return Page(path, problem=str(error).rstrip("."))
    if b"\0" in data[:SNIFF_BYTES]:
        return Page(path, problem="a binary file")
    text = _text(data[:most])
    return Page(path, text, more=len(data) > most) if text else None


def _read(path: str, context: ToolContext, most: int) -> bytes:
    with opened(context, path) as file:
        return file.read(most)


def _text(data: bytes) -> str:
    return data.decode(errors="replace").removeprefix("\ufeff").replace("\r\n", "\n").strip()


def _about(files: list[str], context: ToolContext, may: May) -> tuple[str, ...]:
    """Return what the project calls itself: by the first manifest there is, and by how its README begins."""

    def head(name: str) -> bytes:
        try:
            data = _read(name, context, MAX_HEAD) if may("read_file", name) else b""
        except ToolError:
            return b""
        return b"" if b"\0" in data[:SNIFF_BYTES] else data

    lines = []
    for manifest, entry in MANIFESTS.items():
        if manifest in files and (said := entry(head(manifest))):
            lines.append(f"{manifest}: {said}")
            break
    readme = next((name for name in READMES if name in files), None)
    if readme is not None and (said := _paragraph(_text(head(readme)))):
        lines.append(f"{readme}: {said}")
    return tuple(lines)


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
