"""One command of the CLI: its arguments, its example, what it does."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping

from ..client.failure import STILL_RUNNING, CommandError
from ..render import terminal
from ..render.terminal import to_json

TYPE_CHECKING = False

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any, NoReturn

__all__ = [
    "CliCommand",
    "CommandGroup",
    "Parser",
    "SetOnce",
    "agent_argument",
    "budget",
    "budget_arguments",
    "file",
    "format_ranges",
    "is_file",
    "key_argument",
    "names",
    "non_negative_int",
    "one_from_stdin",
    "output_argument",
    "pair",
    "positive_int",
    "print_deleted",
    "print_result",
    "print_switched",
    "seconds",
    "text",
    "without_deleted",
]


TEXTS = frozenset({"PROMPT", "QUERY", "TASK", "TEXT"})
"""Arguments that are whatever a person wants to say."""


class Parser(argparse.ArgumentParser):
    """argparse that complains the way the rest of orch does, and does not ask for the terminal's size until needed."""

    def __init__(self, prog: str, description: str, example: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=f"example:\n  {example}",
            formatter_class=_format,
            allow_abbrev=False,
        )

    def parse(self, argv: list[str]) -> argparse.Namespace:
        """Return the arguments. Raises Failure, and SystemExit after --help."""
        self._argv = argv
        return self.parse_args(argv)

    def error(self, message: str) -> NoReturn:
        """Raise Failure."""
        raise CommandError("UsageError", f"{message}{self._dashed()}; see: {self.prog} --help", 2)

    def _dashed(self) -> str:
        """Return what to do when a text was taken for an option."""
        texts = [action.metavar for action in self._get_positional_actions() if action.metavar in TEXTS]
        known = self._option_string_actions
        odd = [each for each in self._argv if each[:1] == "-" and each != "-" and each.partition("=")[0] not in known]
        if not texts or not odd or "--" in self._argv:
            return ""
        return f"; a text that begins with a dash goes last, behind --: {self.prog} ... -- {texts[-1]}"


class CliCommand:
    """A command. `arguments` describes them to a parser, `act` does it and returns the exit code."""

    def __init__(
        self,
        what: str,
        example: str,
        arguments: Callable[[argparse.ArgumentParser], None],
        act: Callable[[argparse.Namespace], int],
    ) -> None:
        self._what = what
        self._example = example
        self._arguments = arguments
        self._act = act

    def run(self, name: str, argv: list[str]) -> int:
        """Parse `argv` and act."""
        parser = Parser(f"orch {name}", self._what, self._example)
        parser.add_argument("--json", action="store_true", help="print data, and errors, as JSON")
        self._arguments(parser)
        try:
            arguments = parser.parse(argv)
        except SystemExit as leaving:  # --help
            return int(leaving.code or 0)
        return self._act(arguments)


class CommandGroup:
    """Commands that share their first word; the second one says which of `verbs` is meant."""

    def __init__(self, what: str, example: str, verbs: Mapping[str, tuple[str, CliCommand | CommandGroup]]) -> None:
        self._what = what
        self._example = example
        self.verbs = verbs
        """Each second word, with what it does and its command."""

    def run(self, name: str, argv: list[str]) -> int:
        """Find the command and run it. Raises Failure."""
        place = next((place for place, word in enumerate(argv) if word[:1] != "-"), None)
        if place is not None and argv[place] in self.verbs:
            rest = argv[:place] + argv[place + 1 :]
            return self.verbs[argv[place]][1].run(f"{name} {argv[place]}", rest)
        if place is None and ("-h" in argv or "--help" in argv):
            print(self._overview(name))
            return 0
        said = f"there is no {argv[place]!r}" if place is not None else "say what to do"
        raise CommandError("UsageError", f"orch {name}: {said}; there are {', '.join(self.verbs)}", 2)

    def _overview(self, name: str) -> str:
        lines = "\n".join(f"  {word:11} {what}" for word, (what, _) in self.verbs.items())
        return f"""\
usage: orch {name} ACTION ... [--json]

{self._what}

{lines}

`orch {name} ACTION --help` tells more.

example:
  {self._example}"""


def _format(prog: str) -> argparse.HelpFormatter:
    # Without a width, argparse imports shutil and with it every compressor there is.
    return argparse.RawDescriptionHelpFormatter(prog, width=100)


# --- What the command line says, as the daemon takes it, and what is said in return ---

UNLIMITED = float("inf")


class SetOnce(argparse.Action):
    """What an option takes that may be given once: of two neither is what was meant."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: Any = None) -> None:
        """Take the value. Raises Failure."""
        if getattr(namespace, self.dest) != self.default:
            parser.error(f"{option_string} is given twice: once is all it can be")
        setattr(namespace, self.dest, values)


def agent_argument(parser: ArgumentParser) -> None:
    """Let the command take an agent."""
    parser.add_argument("ref", metavar="REF", help="number, id, beginning of an id, or name of an agent; or latest")


def output_argument(parser: ArgumentParser) -> None:
    """Let the command take the file that it is to write."""
    told = "where to; - is standard output, the default"
    parser.add_argument("--output", metavar="FILE", type=file, default="-", action=SetOnce, help=told)


def file(text: str) -> str:
    """Return the name of a file that `text` is. Raises ArgumentTypeError."""
    if not text:
        raise argparse.ArgumentTypeError("'' names no file")
    return text


def is_file(key: str) -> bool:
    """Whether `key`, which names an agent or a file, looks like the name of a file."""
    return os.path.sep in key or ".json" in key


def text(argument: str) -> str:
    """Return the text that `argument` is, or stdin's when it is a dash. Raises Failure."""
    if argument != "-":
        return argument
    if sys.stdin is None:
        raise CommandError(
            "ConfigError", "- reads standard input, which is closed: pipe the text in, or write it out", 2
        )
    try:
        return sys.stdin.buffer.read().decode("utf-8", "replace")
    except OSError as error:
        raise CommandError("OSError", f"standard input cannot be read: {error.strerror}") from error


def one_from_stdin(*arguments: str | bool | None) -> None:
    """Raise Failure when several texts are to be read from standard input: the first one would take all of it."""
    if arguments.count("-") > 1:
        raise CommandError("UsageError", "- is given twice: standard input can be read once; write one of them out", 2)


def seconds(text: str) -> float:
    """Return the number of seconds that `text` is. Raises ArgumentTypeError."""
    from argparse import ArgumentTypeError

    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e9:
        raise ArgumentTypeError(f"{text!r} is no number of seconds")
    return number


def dollars(text: str) -> float:
    """Return the amount of money that `text` is. Raises ArgumentTypeError."""
    from argparse import ArgumentTypeError

    try:
        number = float(text.removeprefix("$"))
    except ValueError:
        number = 0.0
    if not 0 < number <= 1e9:
        raise ArgumentTypeError(f"{text!r} is no amount of US dollars above 0")
    return number


def count(text: str) -> int:
    """Return the number from 1 that `text` is, which may have commas and end with k or M. Raises ArgumentTypeError."""
    from argparse import ArgumentTypeError

    size = {"k": 10**3, "M": 10**6}.get(text[-1:], 1)
    digits = (text[:-1] if size > 1 else text).replace(",", "").replace("_", "")
    if not (digits.isascii() and digits.isdigit() and 0 < len(digits) < 13 and int(digits)):
        raise ArgumentTypeError(f"{text!r} is no number from 1")
    return int(digits) * size


def duration(text: str) -> float:
    """Return the number of seconds above 0 that `text` is. Raises ArgumentTypeError."""
    from argparse import ArgumentTypeError

    if not (number := seconds(text)):
        raise ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return number


BUDGET: tuple[tuple[str, str, Callable[[str], float], str], ...] = (
    ("max_cost_usd", "USD", dollars, "US dollars"),
    ("max_tokens", "N", count, "tokens that models read and write"),
    ("max_seconds", "S", duration, "seconds of work, by the clock"),
    ("max_tool_seconds", "S", duration, "seconds that tools run"),
    ("max_model_calls", "N", count, "responses of models"),
    ("max_tool_calls", "N", count, "calls of tools"),
    ("max_processes", "N", count, "processes that are started"),
)
"""What can be limited: the limit's name, its unit, how it is read, and what it is of."""


def budget_arguments(parser: ArgumentParser, whose: str, *, lifts: bool = False) -> None:
    """Let the command take the most that may be used; with `lifts` also none, for no limit."""
    group = parser.add_argument_group(f"budget: what {whose} may use in all" + (", none for no limit" * lifts))
    for name, unit, read, what in BUDGET:
        flag = f"--{name.removesuffix('_usd').replace('_', '-')}"
        group.add_argument(flag, dest=name, type=_or_none(read) if lifts else read, metavar=unit, help=what)


def budget(arguments: Namespace) -> dict[str, Any]:
    """Return the limits that the command line sets, None for none."""
    said = {name: getattr(arguments, name) for name, *_ in BUDGET}
    return {name: None if value == UNLIMITED else value for name, value in said.items() if value is not None}


def _or_none(read: Callable[[str], float]) -> Callable[[str], float]:
    return lambda text: UNLIMITED if text.lower() == "none" else read(text)


def names(text: str) -> list[str]:
    """Return the names in `text`, which stand apart by commas or spaces."""
    return text.replace(",", " ").split()


def pair(text: str) -> tuple[str, str]:
    """Return the name and the value that `text` is. Raises ArgumentTypeError."""
    from argparse import ArgumentTypeError

    name, found, value = text.partition("=")
    if not found or not name:
        raise ArgumentTypeError(f"{text!r} is no NAME=VALUE")
    return name, value


def positive_int(text: str) -> int:
    """Return the number from 1 that `text` is. Raises ArgumentTypeError."""
    from argparse import ArgumentTypeError

    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text)):
        raise ArgumentTypeError(f"{text!r} is no number from 1")
    return int(text)


def non_negative_int(text: str) -> int:
    """Return the number from 0 that `text` is. Raises ArgumentTypeError."""
    from argparse import ArgumentTypeError

    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ArgumentTypeError(f"{text!r} is no number from 0")
    return int(text)


def print_switched(arguments: Namespace, name: str, when: str, *, on: bool, changed: bool) -> None:
    """Print that what is called `name` was switched on or off, for `when`, or that it was so already."""
    word = "enabled" if on else "disabled"
    text = f"{word}, {when}: {name}" if changed else f"was {word} already: {name}"
    print_result(arguments, {"name": name, "enabled": on, "changed": changed}, terminal.safe(text))


def without_deleted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the agents whose sessions were not deleted; say on stderr which are left out, by their numbers."""
    gone = {row["seq"] for row in rows if row.get("deleted") and row["kind"] != "holder"}
    if gone:
        print(f"orch: sessions of these were deleted: {format_ranges(sorted(gone))}", file=sys.stderr)
    return [row for row in rows if row["seq"] not in gone]


def format_ranges(numbers: list[int]) -> str:
    """Return ascending numbers in few words: 3, 5-9."""
    runs: list[list[int]] = []
    for each in numbers:
        if runs and each == runs[-1][-1] + 1:
            runs[-1][1:] = [each]
        else:
            runs.append([each])
    return ", ".join("-".join(map(str, run)) for run in runs)


def print_deleted(
    arguments: Namespace, pruned: dict[str, Any], rows: list[Any], noun: str, table: Callable[[list[Any]], str]
) -> int:
    """Say what was deleted for good, or would be, and who was busy; return the exit code."""
    much = f"{terminal.pluralize(len(rows), noun)}, {pruned['bytes']:,} bytes"
    said = f"would delete {much}" if arguments.dry_run else f"deleted {much}"
    print_result(arguments, pruned, f"{table(rows)}\n{said}" if rows else said)
    for why in pruned["busy"].values():
        print(f"orch: {terminal.safe(why)}", file=sys.stderr)
    return STILL_RUNNING if pruned["busy"] else 0


def print_result(arguments: Namespace, data: Any, text: str) -> None:
    """Print `text`, or with --json `data`."""
    if arguments.json:
        print(to_json(data))
    elif text:
        print(text)


def key_argument(parser: ArgumentParser) -> None:
    """Let the command take a session."""
    parser.add_argument("key", metavar="KEY", help="number, id, beginning of an id, or name of an agent; or latest")
