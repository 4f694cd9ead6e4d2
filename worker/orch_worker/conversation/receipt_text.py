"""The text of a receipt: what stays in the conversation in place of archived messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from posixpath import basename
from typing import Final

from msgspec import Struct, structs

from .receipt import Receipt, merge
from .records.facts import (
    EDIT_KEY,
    ChangedFile,
    CommandOutcome,
    Commit,
    Constant,
    Failure,
    Request,
    SeenFile,
    Specification,
)
from .records.outcomes import check_key
from .records.paths import common_root, grouped, listed_folders, relative
from .records.prose import cut_at_sentence, flat, shorten
from .subagent_calls import agents_line

__all__ = ["KEPT_CHARS", "render", "root_of", "title_of", "with_summary"]

KEPT_CHARS: Final = 600
"""If a model's summary replaces the receipt, about this number of the receipt's characters stay in the record."""
TITLE_CHARS: Final = 80
MIN_LINE: Final = 24
SEPARATOR: Final = "; "
CONSTRAINTS_CHARS: Final = 600
CONSTANTS_CHARS: Final = 240
ROOT_LABEL: Final = "Paths below "
NOTHING: Final = "No tool was used."


class _Section(Struct, frozen=True):
    """One labeled line of a record. Sections with a lower `rank` get space first.

    `fit` returns the text in at most the given number of characters. `whole` is the text of unlimited length.
    """

    label: str
    rank: int
    whole: str
    fit: Callable[[int], str]


def render(receipt: Receipt, chars: int, answer: str = "", *, requests: bool = False) -> str:
    """Return `receipt` in at most `chars` characters. `answer` is the final answer, which the record shows as well.

    `requests` is True if the conversation no longer shows the requests of the user.

    The names of changed files come first. If not everything fits, failed commands, commits, lasting effects and the
    words of the user get space before successful commands and files read.
    """
    receipt = merge([receipt])
    named: list[ChangedFile | SeenFile] = [*receipt.files, *receipt.seen]
    root = common_root([*(file.path for file in named), *(each.name for each in receipt.specifications)])
    sections = _sections(receipt, root, answer, requests=requests)
    if not sections:
        counted = ", ".join(f"{name} x{times}" if times > 1 else name for name, times in receipt.tools.items())
        return shorten(f"Tools: {counted}" if counted else NOTHING, chars) if chars > 0 else ""
    shown_root = f"{ROOT_LABEL}{root}" if root and any(_uses(section, root) for section in sections) else ""
    return _laid_out(sections, chars, shown_root)


def with_summary(receipt: Receipt, summary: str, chars: int = KEPT_CHARS) -> str:
    """Return the record of a summarized archive: essential facts of the receipt, then `summary`.

    The facts are changed files, failed commands, open errors, commits, lasting effects, and the words of the user, in
    at most `chars` characters. Facts mentioned in `summary` are left out.
    """
    receipt = merge([receipt])
    flat_summary = flat(summary)
    essential = Receipt(
        files=tuple(file for file in receipt.files if not _mentions(flat_summary, file)),
        commands=tuple(each for each in receipt.commands if each.has_failed and flat(each.line) not in flat_summary),
        failures=tuple(each for each in receipt.failures if not each.resolved and each.text not in flat_summary),
        commits=tuple(each for each in receipt.commits if not each.hash or each.hash[:7] not in flat_summary),
        lasting=tuple(each for each in receipt.lasting if flat(each.text) not in flat_summary),
        words=tuple(each for each in receipt.words if each.text not in flat_summary),
        specifications=tuple(
            structs.replace(each, constraints=()) for each in receipt.specifications if each.name not in flat_summary
        ),
        deviations=receipt.deviations,
    )
    root = common_root([file.path for file in receipt.files])
    sections = _sections(essential, root, summary, requests=False)
    if not sections:
        return summary
    shown_root = f"{ROOT_LABEL}{root}" if root and any(_uses(section, root) for section in sections) else ""
    kept = _laid_out(sections, chars, shown_root)
    return f"{kept}\n{summary}" if kept else summary


def root_of(record: str) -> str:
    """Return the folder below which the paths in the text of a record are, or "" if they are absolute."""
    line = next((line for line in record.split("\n") if line.startswith(ROOT_LABEL)), "")
    return line.removeprefix(ROOT_LABEL)


def title_of(receipt: Receipt) -> str:
    """Return what a range of messages did, in at most 80 characters, for a range without a request. "" if nothing."""
    if made := [commit for commit in receipt.commits if commit.hash]:
        return shorten(made[-1].subject, TITLE_CHARS)
    kept = [file for file in receipt.files if not (file.removed and file.created)]
    if kept:
        verb = "removed" if all(file.removed for file in kept) else "changed"
        return shorten(f"{verb} {', '.join(basename(file.path) for file in reversed(kept))}", TITLE_CHARS)
    if checks := [command for command in receipt.commands if command.verifies]:
        return shorten(f"ran {checks[-1]}", TITLE_CHARS)
    if receipt.commands:
        return shorten(f"ran {receipt.commands[-1].line}", TITLE_CHARS)
    if receipt.seen:
        return shorten(f"read {', '.join(basename(file.path) for file in reversed(receipt.seen))}", TITLE_CHARS)
    return shorten(receipt.said, TITLE_CHARS)


def _sections(receipt: Receipt, root: str, answer: str, *, requests: bool) -> list[_Section]:
    """Return the sections of a record in the order of the text."""
    kept = [file for file in receipt.files if not file.removed]
    removed = [file for file in receipt.files if file.removed and not file.created]
    tried = [file for file in receipt.files if file.removed and file.created]
    checks = _without_parts([command for command in receipt.commands if command.verifies])
    stated = {failure.call for failure in receipt.failures}
    others = [each for each in receipt.commands if not each.verifies and not (each.has_failed and each.line in stated)]
    failures = receipt.failures
    passed = {check_key(command.line) for command in receipt.commands if command.verifies and not command.has_failed}
    failing = {check_key(command.line) for command in checks if command.has_failed}
    last = {each.key: each for each in failures if each.key not in failing}
    unresolved = [each for each in last.values() if not each.resolved and each.key not in passed]
    # An edit that failed and then succeeded tells nothing.
    resolved = [
        each for each in last.values() if (each.resolved or each.key in passed) and not each.key.startswith(EDIT_KEY)
    ]
    changed = {file.path for file in receipt.files}
    specifications = [each for each in receipt.specifications if each.name not in changed]
    named = {each.name for each in specifications}
    seen = [file for file in receipt.seen if file.path not in named]
    figures = [figure for figure in receipt.figures if figure not in answer]
    sections = [
        _Section(
            "Requests",
            2,
            "".join(f"\n- {each}" for each in receipt.requests) if requests else "",
            lambda chars: _fitted_requests(receipt.requests, chars),
        ),
        _items("User", 1, [str(each) for each in receipt.words]),
        _Section("Subagents", 1, agents_line(receipt.asked, 1 << 20), lambda chars: agents_line(receipt.asked, chars)),
        _Section("Changed", 0, _files(kept, root), lambda chars: _fitted_files(kept, root, chars)),
        _Section("Removed", 0, _files(removed, root), lambda chars: _fitted_files(removed, root, chars)),
        _Section(
            "Tried and removed",
            1,
            _files(tried, root, marks=False, places=False),
            lambda chars: _fitted_files(tried, root, chars, places=False),
        ),
        _items("Differs", 1, [str(each) for each in receipt.deviations]),
        _items("Checks", 1, [_check(command, root) for command in _checks_in_order(checks)]),
        _items("Commits", 1, _commits(receipt.commits)),
        _items("Lasting", 1, [_relative_text(each.text, root) for each in receipt.lasting]),
        _items("Errors", 1, [_failure(each, root) for each in unresolved]),
        _items("Fixed", 3, [_failure(each, root) for each in resolved]),
        _items("Specifications", 2, [_relative_text(str(each), root) for each in specifications]),
        _Section(
            "Constraints",
            4,
            _fitted_constraints(specifications, CONSTRAINTS_CHARS),
            lambda chars: _fitted_constraints(specifications, min(chars, CONSTRAINTS_CHARS)),
        ),
        _Section(
            "Constants",
            4,
            _constants(receipt.constants)[:CONSTANTS_CHARS],
            lambda chars: _latest(list(map(str, receipt.constants)), min(chars, CONSTANTS_CHARS)),
        ),
        _items("Ran", 5, [_relative_text(str(command), root) for command in others]),
        _Section(
            "Read",
            3,
            ", ".join(grouped([(relative(file.path, root), "", "") for file in seen])),
            lambda chars: _fitted_seen(seen, root, chars),
        ),
        _items("Figures", 5, figures),
        _items("Last said", 2, [f"«{receipt.said}»"] if receipt.said and receipt.said not in answer else []),
    ]
    return [section for section in sections if section.whole]


def _items(label: str, rank: int, items: Sequence[str]) -> _Section:
    texts = list(map(flat, items))
    return _Section(label, rank, SEPARATOR.join(texts), lambda chars: _latest(texts, chars))


def _latest(items: Sequence[str], chars: int) -> str:
    """Return the last of `items` that fit into `chars` characters, and the number of the others."""
    kept = list(items)
    left = 0
    while len(kept) > 1:
        note = [f"({left} earlier)"] if left else []
        text = SEPARATOR.join([*note, *kept])
        if len(text) <= chars:
            return text
        kept, left = kept[1:], left + 1
    first = f"({left} earlier){SEPARATOR}" if left else ""
    return shorten(first + kept[-1] if kept else "", chars)


def _without_parts(checks: Sequence[CommandOutcome]) -> list[CommandOutcome]:
    """Return `checks` without those that a later successful run of the whole replaces, such as `pytest tests/a.py`
    before `pytest`.
    """
    kept: list[CommandOutcome] = []
    wholes: list[str] = []
    for command in reversed(checks):
        key = check_key(command.line)
        if not any(key.startswith(f"{whole} ") for whole in wholes):
            kept.append(command)
        if not command.has_failed:
            wholes.append(key)
    return kept[::-1]


def _commits(commits: Sequence[Commit]) -> list[str]:
    """Return one text for each commit. Rejected attempts are listed with the commit that succeeded, or together."""
    texts: list[str] = []
    rejected: dict[str, list[str]] = {}
    for commit in commits:
        if commit.rejected:
            rejected.setdefault(commit.subject, []).append(commit.rejected)
            continue
        before = rejected.pop(commit.subject, [])
        attempts = f" (rejected before: {'; '.join(dict.fromkeys(before))})" if before else ""
        texts.append(f"{commit}{attempts}")
    for subject, reasons in rejected.items():
        texts.append(f"rejected «{subject}»: {'; '.join(dict.fromkeys(reasons))}")
    return texts


def _checks_in_order(checks: Sequence[CommandOutcome]) -> list[CommandOutcome]:
    """Return failed checks last, so that they stay when space is short."""
    return sorted(checks, key=lambda command: command.has_failed)


def _check(command: CommandOutcome, root: str) -> str:
    line, result = _relative_text(command.line, root), _relative_text(command.result, root)
    if not result:
        result = "passed" if not command.has_failed else f"exit {command.exit_code}" if command.exit_code else "failed"
        return f"{line}: {result}"
    where = f" ({command.place})" if command.has_failed and command.place.entry else ""
    return f"{line}: {'FAILED: ' if command.has_failed else ''}{result}{where}"


def _failure(failure: Failure, root: str) -> str:
    call, text = _relative_text(failure.call, root), _relative_text(failure.text, root)
    where = f" ({failure.place})" if failure.place.entry and not failure.resolved else ""
    shown = f"{shorten(call, 60)}: {text}" if call and not text.startswith(call) else text
    return f"{shown}{' -> resolved' if failure.resolved else where}"


def _relative_text(text: str, root: str) -> str:
    return text.replace(f"{root}/", "") if root else text


def _files(files: Sequence[ChangedFile], root: str, *, marks: bool = True, places: bool = True) -> str:
    entries = []
    for file in files:
        origin = f" (from {_origin(file, root)})" if file.before and marks else ""
        place = f"@{file.place}" if file.place.entry and places else ""
        mark = "+" if file.created and marks and not file.removed else ""
        entries.append((relative(file.path, root), mark, place + origin))
    return ", ".join(grouped(entries))


def _origin(file: ChangedFile, root: str) -> str:
    """Return the former path of a moved file, or its former folder if the name is the same."""
    before = relative(file.before, root)
    same = basename(before) == basename(file.path)
    return f"{before.removesuffix(basename(before))}" or "./" if same else before


def _fitted_requests(requests: Sequence[Request], chars: int) -> str:
    """Return all `requests` in about `chars` characters: without answers and with shorter texts if necessary."""
    for answers, length in ((True, 0), (True, 80), (False, 0), (False, 80), (False, 40)):
        texts = [_request(each, length, answers=answers) for each in requests]
        text = "".join(f"\n- {each}" for each in texts)
        if len(text) <= chars:
            return text
    while len(texts) > 1 and len(text) > chars:
        texts = texts[1:]
        text = f"\n- ({len(requests) - len(texts)} earlier)" + "".join(f"\n- {each}" for each in texts)
    return text if len(text) <= chars else ""


def _request(request: Request, length: int, *, answers: bool) -> str:
    text = cut_at_sentence(request.text, length) if length else request.text
    answer = cut_at_sentence(request.answer, length) if length else request.answer
    return str(Request(text, answer if answers else ""))


def _fitted_files(files: Sequence[ChangedFile], root: str, chars: int, *, places: bool = True) -> str:
    """Return all `files` in about `chars` characters: without origins and places, then only their folders."""
    for marks, with_places in ((places, places), (False, places), (False, False)):
        text = _files(files, root, marks=marks, places=with_places)
        if len(text) <= chars:
            return text
    return shorten(listed_folders([relative(file.path, root) for file in files], chars), chars)


def _fitted_seen(seen: Sequence[SeenFile], root: str, chars: int) -> str:
    """Return the files read that fit, those with the most weight and the latest first."""
    order = sorted(range(len(seen)), key=lambda place: (-seen[place].weight, -place))
    kept = set(order)
    while kept:
        shown = [seen[place] for place in sorted(kept)]
        text = ", ".join(grouped([(relative(file.path, root), "", "") for file in shown]))
        left = len(order) - len(kept)
        text += f" ({left} more)" if left else ""
        if len(text) <= chars:
            return text
        kept.discard(order[len(kept) - 1])
    return ""


def _constants(constants: Sequence[Constant]) -> str:
    return SEPARATOR.join(map(str, constants))


def _fitted_constraints(specifications: Sequence[Specification], chars: int) -> str:
    """Return the constraints that fit, of each specification the most restrictive first, after its place."""
    kept: dict[int, list[str]] = {}
    seen: set[str] = set()
    for rank in range(max((len(each.constraints) for each in specifications), default=0)):
        for number, each in enumerate(specifications):
            text = each.constraints[rank] if rank < len(each.constraints) else ""
            if text in seen or not text:
                continue
            more = {**kept, number: [*kept.get(number, ()), text]}
            if len(_listed_constraints(specifications, more)) <= chars:
                kept = more
                seen.add(text)
    return _listed_constraints(specifications, kept)


def _listed_constraints(specifications: Sequence[Specification], kept: Mapping[int, Sequence[str]]) -> str:
    parts = []
    for number in sorted(kept):
        place = specifications[number].place
        parts.append(f"({place}) {SEPARATOR.join(kept[number])}" if place.entry else SEPARATOR.join(kept[number]))
    return SEPARATOR.join(parts)


def _mentions(summary: str, file: ChangedFile) -> bool:
    return file.path in summary or ("/" in file.path and basename(file.path) in summary.replace("`", " ").split())


def _uses(section: _Section, root: str) -> bool:
    return section.label in ("Changed", "Removed", "Tried and removed", "Read", "Specifications") and bool(root)


def _laid_out(sections: Sequence[_Section], chars: int, root: str) -> str:
    """Return the sections as lines in at most `chars` characters.

    Sections of a lower rank get space first. Sections of one rank share it: small ones get what they need, and large
    ones get equal parts of the rest.
    """
    left = max(chars, 0) - (len(root) + 1 if root else 0)
    if left < MIN_LINE:
        return (root or sections[0].whole)[: max(chars, 0)]
    shares: dict[str, int] = {}
    for rank in sorted({section.rank for section in sections}):
        part = [section for section in sections if section.rank == rank]
        wanted = [len(section.label) + 3 + len(section.whole) for section in part]
        for section, share in zip(part, _shares(wanted, left), strict=True):
            shares[section.label] = share
            left -= share
    lines = [root] if root else []
    for section in sections:
        room = shares[section.label] - len(section.label) - 3
        if room >= min(len(section.whole), MIN_LINE - 8) and (text := section.fit(max(room, 0))):
            lines.append(f"{section.label}:{text}" if text.startswith("\n") else f"{section.label}: {text}")
    return "\n".join(lines)[: max(chars, 0)]


def _shares(sizes: Sequence[int], total: int) -> list[int]:
    """Divide `total` among `sizes`. Small sizes get what they need, and large sizes get equal parts of the rest."""
    shares = [0] * len(sizes)
    left = max(total, 0)
    for number, place in enumerate(sorted(range(len(sizes)), key=lambda place: sizes[place])):
        shares[place] = min(sizes[place], left // (len(sizes) - number))
        left -= shares[place]
    return shares
