"""The project description for an agent: parts of limited size, built from the scan of the agent's folder.

The description is recorded as the first message of the agent, and stays unchanged when the files change. This module
does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from orch_protocol.agent.project import ContextConfig, ContextFile, ProjectContext, ProjectFolder
from orch_protocol.core.prompts import PromptPart

from ..conversation.framing import CLOSING, OPENING, OTHER, OTHERS
from ..conversation.prompt_parts import cut_lines
from ..conversation.tokens import TokenEstimator

__all__ = [
    "BRIEFING",
    "BRIEF_TOKENS",
    "ProjectDescription",
    "context_parts",
    "context_text",
    "project_parts",
]

BRIEFING: Final = "project_briefing"
NOT_SHOWN: Final = "not_shown"
FILES: Final = "the working folder"
PROJECT: Final = "project"
"""The owner of parts that quote files of the project."""

BRIEF_TOKENS: Final = 600
ABOUT_TOKENS: Final = 120
FACTS_TOKENS: Final = 80
LAYOUT_TOKENS: Final = 190
MIN_PAGE: Final = 20
LEFT_OUT_TOKENS: Final = 60
PACKAGE_TOKENS: Final = 200
MAX_NAME: Final = 60

_TAG: Final = re.compile(r"<(?=\s*/?\s*project\s*>)", re.IGNORECASE)
_CLOSED: Final = re.compile(r"<(?=\s*/\s*context\s*>)", re.IGNORECASE)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


class ProjectDescription(Struct, frozen=True):
    """The result of a scan of a folder.

    `about` and `facts` contain lines that describe the project. Fields whose names begin with `more_` count unlisted
    items.
    """

    about: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    """Languages, entry points and the test command."""
    folders: tuple[ProjectFolder, ...] = ()
    more_folders: int = 0
    files: tuple[str, ...] = ()
    more_files: int = 0
    pages: tuple[ContextFile, ...] = ()
    packages: tuple[ContextFile, ...] = ()


def project_parts(
    project: ProjectDescription, level: ProjectContext, rules: ContextConfig, estimator: TokenEstimator
) -> tuple[PromptPart, ...]:
    """Return the description of `project` in at most BRIEF_TOKENS estimated tokens.

    Level `full` allows `rules.full_tokens` additional tokens. Return no parts for the level `none` and for an empty
    project.
    """
    about = [_plain(line) for line in project.about]
    facts = [_plain(line) for line in project.facts]
    layout = _layout(project)
    if level == "none":
        return ()
    docs = tuple(_documented(page, estimator) for page in project.packages)
    if not (about or facts or layout or project.pages):
        return docs
    limit = BRIEF_TOKENS + (rules.full_tokens if level == "full" else 0)
    lines_shown = (
        cut_lines("\n".join(about), ABOUT_TOKENS, estimator),
        cut_lines("\n".join(facts), FACTS_TOKENS, estimator),
        cut_lines("\n".join(layout), LAYOUT_TOKENS, estimator),
    )
    head = _part(BRIEFING, "\n\n".join(filter(None, lines_shown)), FILES)
    pages = [page for page in project.pages if page.text or page.problem]
    room = rules.full_tokens
    while True:
        left = min(limit - estimator.text(context_text([head])) - 4 * len(pages), room)
        parts = (head, *_pages(pages, left, level == "full", estimator))
        over = estimator.text(context_text(parts)) - limit
        if over <= 0 or room < MIN_PAGE:
            return (*parts, *docs)
        room = left - over  # The estimate for all parts together differs from the sum of the single estimates.


def _documented(page: ContextFile, estimator: TokenEstimator) -> PromptPart:
    """Return the description that a package's own metadata contains."""
    text = cut_lines(page.text, PACKAGE_TOKENS, estimator)
    page_text = text + ("\n[It goes on: see py_help]" if len(text) < len(page.text) else "")
    return PromptPart(f"docs:{page.path}", page_text or page.problem, "context", "metadata", f"package {page.path}")


def context_text(parts: Iterable[PromptPart]) -> str:
    """Return the parts of the context tier as one text. The parts of the project are enclosed in tags."""
    project_texts, others = [], []
    for part in parts:
        if part.owner == PROJECT:
            project_texts.append(part.text)
        else:
            others.append(OTHER.format(name=part.name, owner=part.owner, text=_CLOSED.sub("&lt;", part.text)))
    sections = ["\n\n".join(filter(None, [OPENING, *project_texts, CLOSING]))] if project_texts else []
    return "\n\n".join([*sections, *others])


def context_parts(text: str, files: Iterable[str]) -> tuple[PromptPart, ...]:
    """Return the parts of a text made by `context_text`. `files` are the context files that the text may contain."""
    context, found, rest = text.partition(f"\n\n{CLOSING}") if text.startswith(OPENING) else ("", "", text)
    parts: list[PromptPart] = []
    name, source, here = BRIEFING, FILES, context.removeprefix(OPENING).removeprefix("\n\n")
    for path in files:
        mark = f"{_name(path)}:\n\n"
        before, between, _ = f"\n\n{here}".partition(f"\n\n{mark}")
        if between:
            parts.append(_part(name, before.removeprefix("\n\n"), source))
            name, source, here = _name(path), path, f"\n\n{here}"[len(before) + 2 :]
    if found:
        parts.append(_part(name, here, source))
    others = (PromptPart(match[1], match[3], "context", "", match[2]) for match in OTHERS.finditer(rest))
    return (*parts, *others)


def _part(name: str, text: str, source: str) -> PromptPart:
    return PromptPart(name, text, "context", source, PROJECT)


def _layout(project: ProjectDescription) -> list[str]:
    lines = []
    for folder in project.folders:
        kind = f", most {folder.kind}" if folder.kind else ""
        count = "1 file" if folder.files == 1 and not folder.more else f"{folder.files:,}{'+' * folder.more} files"
        lines.append(f"{_name(folder.name)}/ ({count}{kind})")
    if project.more_folders:
        lines.append(f"and {project.more_folders:,} more folders")
    if project.files:
        more = f", and {project.more_files:,} more" if project.more_files else ""
        lines.insert(0, f"{', '.join(map(_name, project.files))}{more}")
    return ["Files and folders:", *lines] if lines else []


def _pages(pages: Sequence[ContextFile], room: int, whole: bool, estimator: TokenEstimator) -> Iterable[PromptPart]:
    """Return the parts for `pages` within `room` tokens.

    If `whole` is True, earlier pages get the space that they need. Otherwise all pages get equal shares.
    """
    shown, left_out = [], []
    for place, page in enumerate(pages):
        name = _name(page.path)
        if page.problem:
            left_out.append(f"{name}: {page.problem}")
            continue
        share = room if whole else room // (len(pages) - place)
        text = cut_lines(_safe(page.text), share - MIN_PAGE, estimator)
        goes_on = page.more or len(text) < len(_safe(page.text))
        if not text:
            left_out.append(f"{name}: too much")
            continue
        content = f"{name}:\n\n{text}" + (f"\n[{name} goes on]" if goes_on else "")
        shown.append(_part(name, content, page.path))
        room -= estimator.text(content)
    if left_out:
        content = cut_lines(f"[Not shown: {'; '.join(left_out)}]", LEFT_OUT_TOKENS, estimator)
        shown.append(_part(NOT_SHOWN, content, FILES))
    return shown


def _safe(text: str) -> str:
    """Return `text` with escaped tags, so that the text cannot close the enclosing tag."""
    return _TAG.sub("&lt;", text)


def _plain(text: str) -> str:
    return _safe(_CONTROL.sub(" ", text)).strip()


def _name(name: str) -> str:
    """Return a short, printable form of a file name, which may contain any character."""
    name = _plain(name)
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 3]}..."
