"""Renders archived messages as lines of plain text: a line for each call, edits as diffs, results as they were."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from difflib import SequenceMatcher
from typing import Any, Final

from msgspec import Struct

from orch_protocol.core.messages import Block, Image, Message, Opaque, Text, Thinking, ToolResult, ToolUse

from .records.call_arguments import CONTENT_KEYS, OLD_AND_NEW, PATCH_KEYS, PATH_KEYS, command_in
from .records.outcomes import exit_code_in
from .stubs import holder_of
from .tokens import strings

__all__ = [
    "EntryLines",
    "clip_line",
    "edited_paths",
    "entry_lines",
    "heading",
    "message_text",
    "replaced_texts",
]

MAX_COMPARISONS: Final = 250_000
"""Maximum number of pairs of lines that a diff compares. Larger edits show all old lines, then all new lines."""
MAX_INLINE: Final = 200
"""Maximum number of characters of an argument in the line of its call."""

_LIST_KEYS: Final = ("edits", "changes", "replacements")
_WRITES: Final = re.compile(r"write|edit|create|replace|insert|append|save|patch", re.I)
_PATCHED: Final = re.compile(
    r"^(?:\*\*\* (?:Update|Add|Delete) File: |\*\*\* Move to: |(?:\+\+\+|---) (?:[ab]/)?)(?P<path>[^\t\n]+)", re.M
)
_TRACEBACK: Final = re.compile(r"^Traceback \(most recent call last\)", re.M)


class EntryLines(Struct, frozen=True):
    """An archived message as text.

    `edits` are the ranges of lines (first, end; from 0) of edits, each with the path of the changed file. `failures`
    are the ranges of lines of failed results. `calls` are the ranges of lines of calls and results, each with the id of
    the call.
    """

    lines: tuple[str, ...]
    edits: tuple[tuple[int, int, str], ...] = ()
    failures: tuple[tuple[int, int], ...] = ()
    calls: tuple[tuple[int, int, str], ...] = ()

    @property
    def text(self) -> str:
        """All lines as one text."""
        return "\n".join(self.lines)


def entry_lines(message: Message, blank: Collection[str] = ()) -> EntryLines:
    """Return `message` as text. The records of other archives are left out.

    The lines of the results of the calls with the ids `blank` are empty.
    """
    lines: list[str] = []
    edits: list[tuple[int, int, str]] = []
    failures: list[tuple[int, int]] = []
    calls: list[tuple[int, int, str]] = []
    several = sum(isinstance(block, ToolResult) for block in message.content) > 1
    results = 0
    for block in message.content:
        start = len(lines)
        if isinstance(block, ToolResult):
            results += 1
            if several:
                lines.append(f"[result {results}]")
        block_lines = _block_lines(block)
        lines += (
            [""] * len(block_lines) if isinstance(block, ToolResult) and block.tool_use_id in blank else block_lines
        )
        if isinstance(block, (ToolUse, ToolResult)):
            calls.append((start, len(lines), block.id if isinstance(block, ToolUse) else block.tool_use_id))
        if isinstance(block, ToolUse):
            edits += [(start, len(lines), path) for path in edited_paths(block)]
        elif isinstance(block, ToolResult) and _has_failed(block):
            failures.append((start, len(lines)))
    return EntryLines(tuple(lines), tuple(edits), tuple(failures), tuple(calls))


def heading(message: Message, number: int | None = None) -> str:
    """Return the line before an archived message, which is the entry `number` of an archive."""
    results = [block for block in message.content if isinstance(block, ToolResult)]
    kind = ("failed result" if any(map(_has_failed, results)) else "result") if results else message.role
    return f"[{kind}]" if number is None else f"[entry {number}] {kind}"


def edited_paths(call: ToolUse) -> list[str]:
    """Return the paths of the files that `call` changes with an edit, a whole new content or a patch."""
    input = call.input
    if not _edit_lines(call):
        return []
    if path := _path_of(input):
        return [path]
    return list(dict.fromkeys(match["path"].strip() for text in _patches(call) for match in _PATCHED.finditer(text)))


def replaced_texts(call: ToolUse) -> list[str]:
    """Return the old text of each replacement in `call`, and of each hunk of a patch. Whole new files have none."""
    if pairs := _all_replacements(call):
        return [old for old, _ in pairs if old]
    hunks: list[list[str]] = []
    for text in _patches(call):
        hunks.append([])
        for line in text.split("\n"):
            if line.startswith(("@@", "***", "---", "+++", "diff ")):
                hunks.append([])
            elif line.startswith(("-", " ")):
                hunks[-1].append(line[1:])
    return ["\n".join(lines) for lines in hunks if lines]


def _has_failed(result: ToolResult) -> bool:
    if result.is_error:
        return True
    text = "\n".join(part.text for part in result.content if isinstance(part, Text))
    return bool(exit_code_in(text)) or _TRACEBACK.search(text) is not None


def _block_lines(block: Block) -> list[str]:
    match block:
        case Text(text):
            return text.split("\n") if holder_of(text) is None else []
        case Thinking(thinking):
            return thinking.split("\n")
        case Image():
            return block.text.split("\n")
        case ToolUse():
            return _call_lines(block)
        case ToolResult(content=content):
            return [line for part in content for line in _block_lines(part)]
        case Opaque(raw=raw):
            return list(_value_lines(raw))
    return []


def _call_lines(call: ToolUse) -> list[str]:
    """Return the lines of a call. The first line names the tool with its short arguments; long arguments follow."""
    edit = _edit_lines(call)
    shown = _edit_keys(call) if edit else frozenset[str]()
    paths = edited_paths(call)
    head = [f"> {call.name}"]
    below: list[str] = []
    if paths:
        head.append(", ".join(paths))
    command_key, command = command_in(call.input)
    for key, value in call.input.items():
        if key in shown or key == command_key:
            continue
        text = value if isinstance(value, str) else None
        if text is None:
            flat = list(_value_lines(value))
            text = ", ".join(flat) if not isinstance(value, (dict, list)) or len(flat) < 2 else "\n".join(flat)
        if "\n" in text or len(text) > MAX_INLINE:
            below += [f"{key}:", *text.split("\n")]
        else:
            head.append(f"{key}={text}")
    if command_key:
        first, *rest = command.split("\n")
        return [" ".join([*head, "$", first]), *rest, *edit, *below]
    return [" ".join(head), *edit, *below]


def _value_lines(value: Any, prefix: str = "") -> Iterator[str]:
    """Yield `value` (JSON-like data) as lines: a line for each innermost value, after its keys."""
    waiting: list[tuple[str, Any]] = [(prefix, value)]
    while waiting:
        name, item = waiting.pop()
        if isinstance(item, dict):
            waiting += [(f"{name}.{key}" if name else str(key), inner) for key, inner in reversed(item.items())]
        elif isinstance(item, (list, tuple)):
            waiting += [(name, inner) for inner in reversed(item)]
        else:
            text = item if isinstance(item, str) else "" if item is None else str(item)
            first, *rest = text.split("\n")
            yield f"{name}={first}" if name else first
            yield from rest


def _path_of(input: dict[str, Any]) -> str:
    return next((input[key] for key in PATH_KEYS if isinstance(input.get(key), str)), "")


def _edit_keys(call: ToolUse) -> frozenset[str]:
    """Return the arguments of an edit that its first line or its diff shows."""
    keys = {key for key in PATH_KEYS if isinstance(call.input.get(key), str)}
    keys = {next(key for key in PATH_KEYS if key in keys)} if keys else set()
    for old, new in OLD_AND_NEW:
        if isinstance(call.input.get(old), str) and isinstance(call.input.get(new), str):
            return frozenset({*keys, old, new})
    if any(isinstance(call.input.get(key), list) and _replacements(call.input[key]) for key in _LIST_KEYS):
        return frozenset({*keys, *(key for key in _LIST_KEYS if key in call.input)})
    if _patches(call):
        return frozenset({*keys, *PATCH_KEYS})
    content = next(key for key in CONTENT_KEYS if isinstance(call.input.get(key), str))
    return frozenset({*keys, content})


def _edit_lines(call: ToolUse) -> list[str]:
    """Return the change of a call as the lines of a diff. Return an empty list if the call is no edit."""
    input = call.input
    if pairs := _all_replacements(call):
        return [line for old, new in pairs for line in _diff(old, new)]
    if patches := _patches(call):
        return [line for text in patches for line in text.split("\n")]
    if _path_of(input) and _WRITES.search(call.name):
        content = next((input[key] for key in CONTENT_KEYS if isinstance(input.get(key), str)), None)
        if content is not None:
            return [f"+{line}" for line in _lines_of(content)] or ["+"]
    return []


def _all_replacements(call: ToolUse) -> list[tuple[str, str]]:
    pairs = _replacements([call.input])
    for key in _LIST_KEYS:
        if isinstance(call.input.get(key), list):
            pairs += _replacements(call.input[key])
    return pairs


def _replacements(edits: Iterable[Any]) -> list[tuple[str, str]]:
    found = []
    for edit in edits:
        for old, new in OLD_AND_NEW if isinstance(edit, dict) else ():
            if isinstance(edit.get(old), str) and isinstance(edit.get(new), str):
                found.append((edit[old], edit[new]))
                break
    return found


def _patches(call: ToolUse) -> list[str]:
    texts = (call.input.get(key) for key in PATCH_KEYS)
    return [text for text in texts if isinstance(text, str) and _PATCHED.search(text)]


def _lines_of(text: str) -> list[str]:
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _diff(old: str, new: str) -> list[str]:
    """Return the lines of the diff from `old` to `new`. Unchanged lines are included."""
    before, after = _lines_of(old), _lines_of(new)
    if len(before) * len(after) > MAX_COMPARISONS:
        return [*(f"-{line}" for line in before), *(f"+{line}" for line in after)]
    lines: list[str] = []
    for tag, start, stop, new_start, new_stop in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            lines += [f" {line}" for line in before[start:stop]]
        else:
            lines += [f"-{line}" for line in before[start:stop]]
            lines += [f"+{line}" for line in after[new_start:new_stop]]
    return lines or ["+"]


def clip_line(line: str, limit: int, position: int = 0, length: int = 0) -> str:
    """Return `line` in at most `limit` characters, with the `length` characters at `position`. Cuts are marked."""
    if len(line) <= limit:
        return line
    room = max(limit - 6, length, 1)
    start = max(0, min(position - (room - length) // 3, len(line) - room))
    stop = start + room
    return f"{'...' if start else ''}{line[start:stop]}{'...' if stop < len(line) else ''}"


def message_text(message: Message) -> str:
    """Return all strings in `message` as they are. The records of other archives are left out."""
    return "\n".join(text for block in message.content for text in _strings(block))


def _strings(block: Block) -> Iterator[str]:
    match block:
        case Text(text):
            if holder_of(text) is None:
                yield text
        case Image():
            yield block.text
        case Thinking(thinking):
            yield thinking
        case ToolUse(name=name, input=input):
            yield name
            yield from strings(input)
        case ToolResult(content=content):
            for part in content:
                yield from _strings(part)
        case Opaque(raw=raw):
            yield from strings(raw)
