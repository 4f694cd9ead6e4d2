"""What an agent is told of the project it works in: bounded parts, from what was found in its folder. No I/O.

As one text they are the agent's first message, and on record: it stays what it was, whatever becomes of the files.
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
"""Who owns parts that are the words of files."""

BRIEF_TOKENS: Final = 600
ABOUT_TOKENS: Final = 120
LAYOUT_TOKENS: Final = 190
LEAST_PAGE: Final = 20
LEFT_OUT_TOKENS: Final = 60
PACKAGE_TOKENS: Final = 200
MAX_NAME: Final = 60

_TAG: Final = re.compile(r"<(?=\s*/?\s*project\s*>)", re.IGNORECASE)
_CLOSED: Final = re.compile(r"<(?=\s*/\s*context\s*>)", re.IGNORECASE)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


class ProjectDescription(Struct, frozen=True):
    """What was found in a folder. `about` are lines that say what it is; `more_...` count what is not listed."""

    about: tuple[str, ...] = ()
    folders: tuple[ProjectFolder, ...] = ()
    more_folders: int = 0
    files: tuple[str, ...] = ()
    more_files: int = 0
    pages: tuple[ContextFile, ...] = ()
    packages: tuple[ContextFile, ...] = ()


def project_parts(
    project: ProjectDescription, level: ProjectContext, rules: ContextConfig, estimator: TokenEstimator
) -> tuple[PromptPart, ...]:
    """Return what is told of `project`: at most BRIEF_TOKENS estimated tokens, in `full` and `rules.full_tokens` more.

    Nothing for the level none, and where there is nothing to tell.
    """
    about = [_plain(line) for line in project.about]
    layout = _layout(project)
    if level == "none":
        return ()
    docs = tuple(_documented(page, estimator) for page in project.packages)
    if not (about or layout or project.pages):
        return docs
    most = BRIEF_TOKENS + (rules.full_tokens if level == "full" else 0)
    said = (
        cut_lines("\n".join(about), ABOUT_TOKENS, estimator),
        cut_lines("\n".join(layout), LAYOUT_TOKENS, estimator),
    )
    head = _part(BRIEFING, "\n\n".join(filter(None, said)), FILES)
    pages = [page for page in project.pages if page.text or page.problem]
    room = rules.full_tokens
    while True:
        left = min(most - estimator.text(context_text([head])) - 4 * len(pages), room)
        parts = (head, *_pages(pages, left, level == "full", estimator))
        over = estimator.text(context_text(parts)) - most
        if over <= 0 or room < LEAST_PAGE:
            return (*parts, *docs)
        room = left - over  # parts are estimated apart, and weigh otherwise together


def _documented(page: ContextFile, estimator: TokenEstimator) -> PromptPart:
    """Return what is told of a package: its own words, and not the project's."""
    text = cut_lines(page.text, PACKAGE_TOKENS, estimator)
    said = text + ("\n[It goes on: see py_help]" if len(text) < len(page.text) else "")
    return PromptPart(f"docs:{page.path}", said or page.problem, "context", "metadata", f"package {page.path}")


def context_text(parts: Iterable[PromptPart]) -> str:
    """Return the parts of the context tier as one text: the project's within marks that say whose they are."""
    ours, others = [], []
    for part in parts:
        if part.owner == PROJECT:
            ours.append(part.text)
        else:
            others.append(OTHER.format(name=part.name, owner=part.owner, text=_CLOSED.sub("&lt;", part.text)))
    told = ["\n\n".join(filter(None, [OPENING, *ours, CLOSING]))] if ours else []
    return "\n\n".join([*told, *others])


def context_parts(text: str, files: Iterable[str]) -> tuple[PromptPart, ...]:
    """Return the parts of what `context_text` made; `files` names the context files that it may tell of."""
    told, found, rest = text.partition(f"\n\n{CLOSING}") if text.startswith(OPENING) else ("", "", text)
    parts: list[PromptPart] = []
    name, source, here = BRIEFING, FILES, told.removeprefix(OPENING).removeprefix("\n\n")
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
    """Return what is shown of each page in `room` tokens together: whole ones first come first served, else shares."""
    shown, left_out = [], []
    for place, page in enumerate(pages):
        name = _name(page.path)
        if page.problem:
            left_out.append(f"{name}: {page.problem}")
            continue
        share = room if whole else room // (len(pages) - place)
        text = cut_lines(_safe(page.text), share - LEAST_PAGE, estimator)
        goes_on = page.more or len(text) < len(_safe(page.text))
        if not text:
            left_out.append(f"{name}: too much")
            continue
        said = f"{name}:\n\n{text}" + (f"\n[{name} goes on]" if goes_on else "")
        shown.append(_part(name, said, page.path))
        room -= estimator.text(said)
    if left_out:
        said = cut_lines(f"[Not shown: {'; '.join(left_out)}]", LEFT_OUT_TOKENS, estimator)
        shown.append(_part(NOT_SHOWN, said, FILES))
    return shown


def _safe(text: str) -> str:
    """Return the text of a file so that it cannot end what it stands in."""
    return _TAG.sub("&lt;", text)


def _plain(text: str) -> str:
    return _safe(_CONTROL.sub(" ", text)).strip()


def _name(name: str) -> str:
    """Return the name of a file as one short word; it may hold anything that a name of a file can."""
    name = _plain(name)
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 3]}..."
