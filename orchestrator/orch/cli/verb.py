"""One command of the CLI: its arguments, its example, what it does."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from .failure import Failure

__all__ = ["Group", "Parser", "Verb"]

TEXTS = frozenset({"PROMPT", "QUERY", "TASK", "TEXT"})
"""Arguments that are whatever a person wants to say."""


TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


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
        raise Failure("UsageError", f"{message}{self._dashed()}; see: {self.prog} --help", 2)

    def _dashed(self) -> str:
        """Return what to do when a text was taken for an option."""
        texts = [action.metavar for action in self._get_positional_actions() if action.metavar in TEXTS]
        known = self._option_string_actions
        odd = [each for each in self._argv if each[:1] == "-" and each != "-" and each.partition("=")[0] not in known]
        if not texts or not odd or "--" in self._argv:
            return ""
        return f"; a text that begins with a dash goes last, behind --: {self.prog} ... -- {texts[-1]}"


class Verb:
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


class Group:
    """Commands that share their first word; the second one says which of `verbs` is meant."""

    def __init__(self, what: str, example: str, verbs: dict[str, tuple[str, Verb]]) -> None:
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
        raise Failure("UsageError", f"orch {name}: {said}; there are {', '.join(self.verbs)}", 2)

    def _overview(self, name: str) -> str:
        lines = "\n".join(f"  {word:9}{what}" for word, (what, _) in self.verbs.items())
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
