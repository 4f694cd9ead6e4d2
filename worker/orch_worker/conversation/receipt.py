"""Receipts: the effects of a range of messages, computed from calls and results without a model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from orch_protocol.core.messages import Message, Text

from .subagent_calls import AskedAgent, agents_line, asked_in, latest_states
from .turns import CallWithResult, calls_of

__all__ = ["NUMBER", "CommandOutcome", "Receipt", "merge", "receipt_of", "render", "with_summary"]

MAX_ITEMS: Final = 40
LINE: Final = 160
KEPT_CHARS: Final = 600
"""If a model's summary replaces the receipt, at most this number of the receipt's characters stay in the record."""
RESULT_EDGE: Final = 20_000

_PATH_KEYS: Final = (
    "path",
    "file_path",
    "filepath",
    "file",
    "filename",
    "notebook_path",
    "target_file",
    "paths",
    "files",
)
_COMMAND_KEYS: Final = ("command", "cmd", "script", "code")
_CHANGES: Final = re.compile(r"write|edit|replace|create|patch|append|insert|move|rename|delete|remove|update", re.I)
_EXIT: Final = re.compile(
    r"\bexit(?:ed)?(?:\s+(?:with|code|status))*\s*[:=]?\s*(-?\d{1,3})\b"
    r"|\"?(?:exit_?code|return_?code)\"?\s*[:=]\s*(-?\d{1,3})\b",
    re.I,
)
_ERROR: Final = re.compile(
    r"(?:.{0,80}?\b\w*(?:Error|Exception)\b: .+|(?:.{0,60}?\b)?(?:error|fatal|panic)(?:\[\w+\])?: .+)", re.I
)
_ERROR_WORDS: Final = ("error", "exception", "fatal", "panic")
NUMBER: Final = re.compile(
    r"(?<![\w.,/-])[-+]?\d[\d,]*(?:\.\d+)?\s?(?:%|(?:ms|µs|us|ns|s|min|h|[kKMGT]i?B|bytes?|tokens?|px|x|USD|°C|bar)\b|€)"
    r"|(?<![\w.,/-])\$?(?:\d{1,3}(?:,\d{3})+|\d{3,})(?:\.\d+)?(?![\w/-])"
)
"""A number that has at least three digits or a unit."""

_BACKGROUND: Final = re.compile(r"\bnohup\b|(?<!&)&\s*$|\bdisown\b|\bdocker (?:run|compose up)\b.*\s-d\b", re.M)
_MOVES: Final = re.compile(r"^\s*(?:cd|pushd)\s+([^\s;&|]+)\s*$", re.M)
_BINDS: Final = re.compile(r"^\s*export\s+(\w+)=", re.M)
_INSTALLS: Final = re.compile(
    r"\b(?:(?:pip3?|uv|npm|pnpm|yarn|apt(?:-get)?|brew|cargo|gem|go)\s+(?:-\S+\s+)*(?:install|add|get)\b[^\n;&|]*)"
)
_GIT: Final = re.compile(r"\bgit\s+(?:commit|push|merge|rebase|checkout|switch|reset|tag|stash)\b[^\n;&|]*")


class CommandOutcome(Struct, frozen=True, omit_defaults=True):
    """A command that ran. `exit_code` is None if unknown; `failed` then shows whether the command failed."""

    line: str
    exit_code: int | None = None
    failed: bool = False

    @property
    def has_failed(self) -> bool:
        """Whether the command ended with an error."""
        return self.failed or bool(self.exit_code)

    def __str__(self) -> str:
        if self.exit_code is not None:
            return f"{self.line} (exit {self.exit_code})"
        return f"{self.line} (failed)" if self.failed else self.line


class Receipt(Struct, frozen=True, omit_defaults=True):
    """The effects of a range of messages. Each list contains at most 40 distinct items, in order.

    `more` is the number of items that were left out.
    """

    read: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    commands: tuple[CommandOutcome, ...] = ()
    tools: dict[str, int] = {}
    errors: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    more: int = 0
    asked: tuple[AskedAgent, ...] = ()


def receipt_of(messages: Sequence[Message], task: str = "") -> Receipt:
    """Return the receipt of `messages`. `task` is the prompt before these messages.

    Malformed input never raises an error.
    """
    calls = calls_of(messages)
    tools: dict[str, int] = {}
    read: list[str] = []
    changed: list[str] = []
    commands: list[CommandOutcome] = []
    errors: list[str] = []
    effects: list[str] = []
    for call in calls:
        tools[call.name] = tools.get(call.name, 0) + 1
        (changed if _CHANGES.search(call.name) else read).extend(_values(call.input, _PATH_KEYS))
        for line in _values(call.input, _COMMAND_KEYS):
            commands.append(_command(line, call))
            effects += _effects(line, call)
        errors += _errors(call)
    texts = "\n".join(
        block.text
        for message in messages
        if message.role == "assistant"
        for block in message.content
        if isinstance(block, Text)
    )
    numbers = [match[0].strip() for match in NUMBER.finditer(texts)]
    return _bounded(
        read=[path for path in read if path not in changed],
        changed=changed,
        commands=commands,
        tools=tools,
        errors=errors,
        numbers=numbers,
        effects=effects,
        tasks=[task] if task else [],
        asked=asked_in(calls),
    )


def merge(receipts: Sequence[Receipt]) -> Receipt:
    """Return one receipt for several receipts. If a list becomes too long, the latest items are kept."""
    tools: dict[str, int] = {}
    lists: dict[str, list[Any]] = {name: [] for name in _LISTS}
    more = 0
    for receipt in receipts:
        more += receipt.more
        for name, times in receipt.tools.items():
            tools[name] = tools.get(name, 0) + times
        for name in _LISTS:
            lists[name] += getattr(receipt, name)
    asked = latest_states(each for receipt in receipts for each in receipt.asked)
    lists["read"] = [path for path in lists["read"] if path not in lists["changed"]]
    return _bounded(tools=tools, more=more, asked=asked, **lists)


def render(receipt: Receipt, chars: int) -> str:
    """Return `receipt` in at most `chars` characters, changes and failures first, files read last.

    If not everything fits, changes, failures, errors and lasting effects get most of the space, and the latest items of
    each list are kept.
    """
    counted = ", ".join(f"{name} x{times}" if times > 1 else name for name, times in receipt.tools.items())
    commands = sorted(receipt.commands, key=lambda command: command.has_failed)
    lines = [
        _ReceiptLine("Tasks", receipt.tasks if len(receipt.tasks) > 1 else ()),
        _ReceiptLine("Subagents", (agents_line(receipt.asked, chars // 2),) if receipt.asked else ()),
        _ReceiptLine("Changed", receipt.changed, ", ", lasting=True),
        _ReceiptLine("Commands", tuple(map(str, commands)), lasting=any(command.has_failed for command in commands)),
        _ReceiptLine("Errors", receipt.errors, lasting=True),
        _ReceiptLine("Lasting", receipt.effects, lasting=True),
        _ReceiptLine("Read", receipt.read, ", "),
        _ReceiptLine("Tools", (counted,) if counted else ()),
        _ReceiptLine("Numbers", receipt.numbers, ", "),
    ]
    return _laid_out([line for line in lines if line.items], chars) or _cut("No tool was used.", chars)


def with_summary(receipt: Receipt, summary: str, chars: int = KEPT_CHARS) -> str:
    """Return the record of a summarized archive: essential facts of the receipt, then `summary`.

    The facts are changed files, failed commands, errors and lasting effects, in at most `chars` characters. The latest
    facts are kept. Facts mentioned in `summary` are left out.
    """

    def not_in_summary(items: Sequence[str]) -> tuple[str, ...]:
        return tuple(item for item in items if _flat(item) not in flat_summary)

    flat_summary = _flat(summary)
    failed = not_in_summary([str(command) for command in receipt.commands if command.has_failed])
    errors = [
        error for error in not_in_summary(receipt.errors) if not any(_flat(error) in _flat(line) for line in failed)
    ]
    lines = [
        _ReceiptLine("Changed", not_in_summary(receipt.changed), ", ", lasting=True),
        _ReceiptLine("Failed", failed, lasting=True),
        _ReceiptLine("Errors", tuple(errors), lasting=True),
        _ReceiptLine("Lasting", not_in_summary(receipt.effects), lasting=True),
    ]
    kept = _laid_out([line for line in lines if line.items], chars)
    return f"{kept}\n{summary}" if kept else summary


class _ReceiptLine(Struct, frozen=True):
    """One line of a receipt. A line whose `lasting` is True gets space before other lines."""

    label: str
    items: tuple[str, ...]
    separator: str = "; "
    lasting: bool = False

    @property
    def size(self) -> int:
        return len(self.label) + 3 + len(self.separator.join(map(_flat, self.items)))

    def fitted(self, chars: int) -> str:
        """Return the line in at most `chars` characters: the latest items, and the number of omitted earlier items."""
        items, left = list(map(_flat, self.items)), 0
        text = self.separator.join(items)
        while len(items) > 1 and len(self.label) + 2 + len(text) > chars:
            items, left = items[1:], left + 1
            text = self.separator.join([f"({left} more)", *items])
        return _cut(f"{self.label}: {text}", chars)


def _laid_out(lines: Sequence[_ReceiptLine], chars: int) -> str:
    """Return `lines` in at most `chars` characters.

    Lasting lines get space first, up to three quarters of the total space.
    """
    first, rest = ([line for line in lines if line.lasting is lasting] for lasting in (True, False))
    wanted = sum(line.size for line in rest)
    room = min(sum(line.size for line in first), max(chars - wanted, chars * 3 // 4))
    shares: dict[str, int] = {}
    for part, total in ((first, room), (rest, chars - room)):
        shares |= zip((line.label for line in part), _shares([line.size for line in part], total), strict=True)
    fitted = [line.fitted(shares[line.label] - 1) for line in lines if shares[line.label] > 12]
    return "\n".join(fitted)[: max(chars, 0)]


_LISTS: Final = ("read", "changed", "commands", "errors", "numbers", "effects", "tasks")


def _bounded(*, tools: dict[str, int], asked: tuple[AskedAgent, ...], more: int = 0, **lists: list[Any]) -> Receipt:
    kept: dict[str, Any] = {}
    for name, values in lists.items():
        distinct = list(dict.fromkeys(values))
        if len(distinct) > MAX_ITEMS:
            more += len(distinct) - MAX_ITEMS
            distinct = _latest(values)
        kept[name] = tuple(distinct)
    more += max(0, len(asked) - MAX_ITEMS)
    kept["asked"] = asked[-MAX_ITEMS:]
    return Receipt(tools=dict(sorted(tools.items(), key=lambda item: -item[1])[:MAX_ITEMS]), more=more, **kept)


def _latest(values: Sequence[Any]) -> list[Any]:
    """Return the last `MAX_ITEMS` distinct items of `values`, in order. Failed commands are kept before other items."""
    distinct = list(dict.fromkeys(reversed(values)))[::-1]
    failed = [value for value in distinct if isinstance(value, CommandOutcome) and value.has_failed][-MAX_ITEMS:]
    others = [value for value in distinct if value not in failed]
    kept = {*failed, *others[max(0, len(others) - (MAX_ITEMS - len(failed))) :]}
    return [value for value in distinct if value in kept]


def _values(input: Any, keys: Sequence[str]) -> Iterator[str]:
    if not isinstance(input, dict):
        return
    for key in keys:
        value = input.get(key)
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(item, str) and item.strip():
                yield item.strip()


def _command(line: str, call: CallWithResult) -> CommandOutcome:
    flat = _cut(" ".join(line.split()), LINE)
    result = call.result or ""
    # Tools print the exit code at the beginning or end of a result. Elsewhere, a similar text may be part of the
    # output.
    edge = result if len(result) <= 800 else f"{result[:400]}\n{result[-400:]}"
    codes = [int(match[1] or match[2]) for match in _EXIT.finditer(edge)]
    return CommandOutcome(flat, codes[-1] if codes else None, call.is_error)


def _errors(call: CallWithResult) -> list[str]:
    result = (call.result or "")[-RESULT_EDGE:]
    # Most results contain none of the words. Searching for words is a hundred times faster than the regular expression.
    lines = (line for line in result.split("\n") if _names_error(line)) if _names_error(result) else ()
    found = [line.strip()[:LINE] for line in lines if _ERROR.fullmatch(line)]
    if call.is_error and not found:
        found = [result.strip().partition("\n")[0][:LINE] or f"{call.name} failed"]
    return found[:3]


def _names_error(text: str) -> bool:
    lowered = text.lower()
    return any(word in lowered for word in _ERROR_WORDS)


def _effects(line: str, call: CallWithResult) -> list[str]:
    if call.is_error:
        return []
    found = []
    if call.input.get("run_in_background") is True or call.input.get("background") is True or _BACKGROUND.search(line):
        found.append(f"job left running: {_cut(' '.join(line.split()), LINE)}")
    found += [f"moved to {place}" for place in _MOVES.findall(line)]
    found += [f"set {name}" for name in _BINDS.findall(line)]
    found += [_cut(" ".join(match[0].split()), LINE) for match in _INSTALLS.finditer(line)]
    found += [_cut(" ".join(match[0].split()), LINE) for match in _GIT.finditer(line)]
    return found


def _shares(sizes: Sequence[int], total: int) -> list[int]:
    """Divide `total` among `sizes`. Small sizes get what they need, and large sizes get equal parts of the rest."""
    shares = [0] * len(sizes)
    left = total
    for number, place in enumerate(sorted(range(len(sizes)), key=lambda place: sizes[place])):
        shares[place] = min(sizes[place], left // (len(sizes) - number))
        left -= shares[place]
    return shares


def _flat(text: str) -> str:
    return " ".join(text.split())


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[: max(chars - 3, 0)]}..."[: max(chars, 0)]
