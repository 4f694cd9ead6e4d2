"""Commands of the CLI (arguments, example and action), and helpers for arguments and output."""

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
    from pathlib import Path
    from typing import Any, NoReturn

    from ..config.config import LoadedConfig

__all__ = [
    "CliCommand",
    "CommandGroup",
    "Parser",
    "SetOnce",
    "agent_argument",
    "budget",
    "budget_arguments",
    "confirm",
    "file",
    "format_ranges",
    "is_file",
    "key_argument",
    "load_config",
    "names",
    "non_negative_int",
    "one_from_stdin",
    "output_argument",
    "pair",
    "positive_int",
    "print_deleted",
    "print_off",
    "print_result",
    "print_switched",
    "print_trusted",
    "print_untrusted",
    "run_argument",
    "seconds",
    "text",
    "variables_argument",
    "without_deleted",
]


TEXTS = frozenset({"PROMPT", "QUERY", "TASK", "TEXT"})
"""Arguments that contain free text."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises CommandError instead of exiting. Help does not depend on the terminal's size."""

    def __init__(self, prog: str, description: str, example: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=f"example:\n  {example}",
            formatter_class=_format,
            allow_abbrev=False,
        )

    def format_help(self) -> str:
        """Return the help text, with the description wrapped at 100 columns."""
        from textwrap import fill

        self.description = fill(self.description or "", 100)
        return super().format_help()

    def parse(self, argv: list[str]) -> argparse.Namespace:
        """Return the parsed arguments. Raises CommandError. After --help, raises SystemExit."""
        self._argv = argv
        return self.parse_args(argv)

    def error(self, message: str) -> NoReturn:
        """Raise CommandError."""
        hint = "" if message.startswith("argument ") else self._hint()
        raise CommandError("UsageError", f"{message}{hint}; see: {self.prog} --help", 2)

    def _hint(self) -> str:
        """Return a hint if an option is misspelled, or if the parser may have read a text as an option."""
        known = self._option_string_actions
        words = [each.partition("=")[0] for each in self._argv]
        unknown = [each for each in words if each[:1] == "-" and each != "-" and each not in known]
        if not unknown or "--" in words:
            return ""
        from difflib import get_close_matches

        if unknown[0].startswith("--"):
            longer = [each for each in known if each.startswith(unknown[0])]
            if similar := longer or get_close_matches(unknown[0], known, n=1, cutoff=0.8):
                return f"; did you mean {' or '.join(similar)}?"
        texts = [action.metavar for action in self._get_positional_actions() if action.metavar in TEXTS]
        if not texts:
            return ""
        return f"; to pass text that begins with a dash, put it last after --: {self.prog} ... -- {texts[-1]}"


class CliCommand:
    """A command.

    The function `arguments` adds the arguments of the command to a parser. The function `action` runs the command
    and returns the exit code.
    """

    def __init__(
        self,
        summary: str,
        example: str,
        arguments: Callable[[argparse.ArgumentParser], None],
        action: Callable[[argparse.Namespace], int],
    ) -> None:
        self._summary = summary
        self._example = example
        self._arguments = arguments
        self._action = action

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of the command to `parser`."""
        parser.add_argument("--json", action="store_true", help="print data and errors as JSON")
        self._arguments(parser)

    def run(self, name: str, argv: list[str]) -> int:
        """Parse `argv` and run the command."""
        parser = Parser(f"orch {name}", self._summary, self._example)
        self.add_arguments(parser)
        try:
            arguments = parser.parse(argv)
        except SystemExit as help_exit:  # raised after --help
            return int(help_exit.code or 0)
        return self._action(arguments)


class CommandGroup:
    """Commands with the same first word.

    The second word selects one of `verbs`. Without a second word, `default` runs if it is set.
    """

    def __init__(
        self, summary: str, example: str, verbs: Mapping[str, tuple[str, CliCommand | CommandGroup]], default: str = ""
    ) -> None:
        self._summary = summary
        self._example = example
        self._default = default
        self.verbs = verbs
        """The summary and the command for each second word."""

    def run(self, name: str, argv: list[str]) -> int:
        """Run the selected command. Raises CommandError."""
        index = next((index for index, word in enumerate(argv) if word[:1] != "-"), None)
        if index is not None and argv[index] in self.verbs:
            other_args = argv[:index] + argv[index + 1 :]
            return self.verbs[argv[index]][1].run(f"{name} {argv[index]}", other_args)
        if index is None and ("-h" in argv or "--help" in argv):
            print(self._overview(name))
            return 0
        if self._default and (index is None or (index and argv[index - 1].startswith("--"))):
            return self.verbs[self._default][1].run(f"{name} {self._default}", argv)
        problem = f"unknown action {argv[index]!r}" if index is not None else "no action given"
        raise CommandError("UsageError", f"orch {name}: {problem}; use one of {', '.join(self.verbs)}", 2)

    def _overview(self, name: str) -> str:
        lines = "\n".join(f"  {word:11} {summary}" for word, (summary, _) in self.verbs.items())
        return f"""\
usage: orch {name} ACTION ... [--json]

{self._summary}

{lines}

Run `orch {name} ACTION --help` for options and an example.

example:
  {self._example}"""


def _format(prog: str) -> argparse.HelpFormatter:
    # Without a width, argparse imports shutil, which imports all compression modules.
    return argparse.RawDescriptionHelpFormatter(prog, width=100)


# --- Arguments and output ---

UNLIMITED = float("inf")


class SetOnce(argparse.Action):
    """The action of an option that may be given only once."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: Any = None) -> None:
        """Set the value. Raises CommandError if it is already set."""
        if getattr(namespace, self.dest) != self.default:
            parser.error(f"{option_string} is given twice; give it once")
        setattr(namespace, self.dest, values)


def agent_argument(parser: ArgumentParser) -> None:
    """Add the argument for an agent, and the option for its run."""
    parser.add_argument("ref", metavar="REF", help='agent number, id or unique prefix, name, or "latest"')
    run_argument(parser)


def run_argument(parser: ArgumentParser) -> None:
    """Add the option for the run of a program. Its value is the parameter `run` of `Connection`."""
    parser.add_argument(
        "--run", metavar="NAME", help="in the run of a program, which can only be read; see `orch runs`"
    )


def output_argument(parser: ArgumentParser) -> None:
    """Add the option for the output file."""
    help = "output file; - is standard output (default)"
    parser.add_argument("--output", metavar="FILE", type=file, default="-", action=SetOnce, help=help)


def file(text: str) -> str:
    """Return `text`. Raises ArgumentTypeError if it is empty."""
    if not text:
        raise argparse.ArgumentTypeError("file name is empty")
    return text


def is_file(key: str) -> bool:
    """Return whether `key` looks like a file name. `key` names an agent or a file."""
    return os.path.sep in key or ".json" in key


def text(argument: str) -> str:
    """Return `argument`, or the text from stdin for "-". Raises CommandError."""
    if argument != "-":
        return argument
    from orch_protocol.core.text import decode_text

    if sys.stdin is None:
        raise CommandError(
            "ConfigError",
            "cannot read '-' from standard input: it is closed; pipe the text in, or pass it as an argument",
            2,
        )
    try:
        return decode_text(sys.stdin.buffer.read(), lossy=True)
    except OSError as error:
        raise CommandError("OSError", f"cannot read standard input: {error.strerror}") from error


def one_from_stdin(*arguments: str | bool | None) -> None:
    """Raise CommandError when several arguments are "-", because stdin can be read only once."""
    if arguments.count("-") > 1:
        raise CommandError(
            "UsageError",
            "'-' is given twice, but standard input can be read only once; pass one text as an argument",
            2,
        )


def seconds(text: str) -> float:
    """Parse a number of seconds. Raises ArgumentTypeError."""
    from argparse import ArgumentTypeError

    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e9:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds")
    return number


def dollars(text: str) -> float:
    """Parse an amount of US dollars above 0. Raises ArgumentTypeError."""
    from argparse import ArgumentTypeError

    try:
        number = float(text.removeprefix("$"))
    except ValueError:
        number = 0.0
    if not 0 < number <= 1e9:
        raise ArgumentTypeError(f"{text!r} is not an amount of US dollars above 0")
    return number


def count(text: str) -> int:
    """Parse a whole number above 0. The number may contain commas and end with k or M. Raises ArgumentTypeError."""
    from argparse import ArgumentTypeError

    size = {"k": 10**3, "M": 10**6}.get(text[-1:], 1)
    digits = (text[:-1] if size > 1 else text).replace(",", "").replace("_", "")
    if not (digits.isascii() and digits.isdigit() and 0 < len(digits) < 13 and int(digits)):
        raise ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(digits) * size


def duration(text: str) -> float:
    """Parse a number of seconds above 0. Raises ArgumentTypeError."""
    from argparse import ArgumentTypeError

    if not (number := seconds(text)):
        raise ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return number


BUDGET: tuple[tuple[str, str, Callable[[str], float], str], ...] = (
    ("max_cost_usd", "USD", dollars, "US dollars"),
    ("max_tokens", "N", count, "input and output tokens of models"),
    ("max_seconds", "S", duration, "wall-clock seconds of turns"),
    ("max_tool_seconds", "S", duration, "seconds spent in tools"),
    ("max_model_calls", "N", count, "model requests"),
    ("max_tool_calls", "N", count, "tool calls"),
    ("max_processes", "N", count, "processes started"),
)
"""Budget limits: name, unit, parser and description."""


def budget_arguments(parser: ArgumentParser, subject: str, *, allow_none: bool = False) -> None:
    """Add the options for budget limits. With `allow_none`, the value "none" removes a limit."""
    group = parser.add_argument_group(f"budget: limits of {subject}" + (" ('none' removes a limit)" * allow_none))
    for name, unit, read, description in BUDGET:
        flag = f"--{name.removesuffix('_usd').replace('_', '-')}"
        group.add_argument(flag, dest=name, type=_or_none(read) if allow_none else read, metavar=unit, help=description)


def budget(arguments: Namespace) -> dict[str, Any]:
    """Return the limits from the command line. The value None means no limit."""
    limits = {name: getattr(arguments, name) for name, *_ in BUDGET}
    return {name: None if value == UNLIMITED else value for name, value in limits.items() if value is not None}


def _or_none(read: Callable[[str], float]) -> Callable[[str], float]:
    return lambda text: UNLIMITED if text.lower() == "none" else read(text)


def names(text: str) -> list[str]:
    """Return the names in `text`, separated by commas or spaces."""
    return text.replace(",", " ").split()


def pair(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE. Raises ArgumentTypeError."""
    from argparse import ArgumentTypeError

    name, found, value = text.partition("=")
    if not found or not name:
        raise ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def positive_int(text: str) -> int:
    """Parse an integer of at least 1. Raises ArgumentTypeError."""
    from argparse import ArgumentTypeError

    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text)):
        raise ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def non_negative_int(text: str) -> int:
    """Parse an integer of at least 0. Raises ArgumentTypeError."""
    from argparse import ArgumentTypeError

    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def load_config(folder: Path) -> LoadedConfig:
    """Return the configuration for `folder`, and print the notes about it on stderr. Raises ConfigError."""
    from ..config import config  # slow

    loaded = config.load(folder, os.environ)
    for note in loaded.notes:
        print(f"orch: {note}", file=sys.stderr)
    return loaded


def print_off(name: str, why: str) -> None:
    """Print on stderr that the resource `name` is off."""
    print(f"orch: {terminal.truncate_line(name, 64)} is off: {terminal.truncate_line(why, 400)}", file=sys.stderr)


def print_trusted(arguments: Namespace, name: str, path: str, **data: str) -> None:
    """Print that the resource `name` at `path` is now trusted. `data` contains additional fields for --json."""
    text = f"trusted in its present version: {name} in {terminal.safe(path)}"
    print_result(arguments, {"trusted": path, **data}, text)


def print_untrusted(arguments: Namespace, path: str, *, was_trusted: bool) -> None:
    """Print that the resource at `path` is no longer trusted.

    `was_trusted` is True if the resource was trusted before.
    """
    text = "no longer trusted" if was_trusted else "was not trusted"
    print_result(arguments, {"untrusted": was_trusted}, f"{text}: {terminal.safe(path)}")


def print_switched(arguments: Namespace, name: str, when: str, *, on: bool, changed: bool) -> None:
    """Print whether `name` is now enabled or disabled, and whether this is a change.

    `when` is the time from which the change applies, as text.
    """
    state = "enabled" if on else "disabled"
    text = f"{state}, {when}: {name}" if changed else f"already {state}: {name}"
    print_result(arguments, {"name": name, "enabled": on, "changed": changed}, terminal.safe(text))


def without_deleted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the agents whose sessions were not deleted. List the numbers of the other agents on stderr."""
    deleted = {row["seq"] for row in rows if row.get("deleted") and row["kind"] != "holder"}
    if deleted:
        print(
            f"orch: not shown, because their sessions were deleted: {format_ranges(sorted(deleted))}", file=sys.stderr
        )
    return [row for row in rows if row["seq"] not in deleted]


def format_ranges(numbers: list[int]) -> str:
    """Return ascending numbers as ranges, such as "3, 5-9"."""
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
    """Print what was deleted or would be deleted, and which agents were busy. Return the exit code."""
    amount = f"{terminal.pluralize(len(rows), noun)}, {pruned['bytes']:,} bytes"
    summary = f"would delete {amount}" if arguments.dry_run else f"deleted {amount}"
    print_result(arguments, pruned, f"{table(rows)}\n{summary}" if rows else summary)
    for reason in pruned["busy"].values():
        print(f"orch: {terminal.safe(reason)}", file=sys.stderr)
    return STILL_RUNNING if pruned["busy"] else 0


def confirm() -> bool:
    """Ask at the terminal whether to continue. The end of input means no."""
    try:
        return input("Continue? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


def print_result(arguments: Namespace, data: Any, text: str) -> None:
    """Print `text`. With --json, print `data` instead."""
    if arguments.json:
        print(to_json(data))
    elif text:
        print(text)


def variables_argument(parser: ArgumentParser) -> None:
    """Add the option for variables of a prompt template."""
    parser.add_argument(
        "--var",
        metavar="NAME=VALUE",
        type=pair,
        action="append",
        help="set a variable of the template; repeatable",
    )


def key_argument(parser: ArgumentParser) -> None:
    """Add the argument for a session, and the option for its run."""
    parser.add_argument("key", metavar="KEY", help='agent number, id or unique prefix, name, or "latest"')
    run_argument(parser)
