"""One command of the CLI: its arguments, its example, what it does."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

__all__ = ["Parser", "Verb", "dump"]


def dump(value: object) -> str:
    """Return `value` as one line of JSON that every terminal and file can carry."""
    return json.dumps(value, separators=(",", ":"))


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

    def error(self, message: str) -> None:  # type: ignore[override]  # SystemExit, like the original
        """Say what is wrong and leave with 2."""
        print(f"orch: {message}; see: {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


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
            arguments = parser.parse_args(argv)
        except SystemExit as leaving:  # --help, or a usage error that is already told
            return int(leaving.code or 0)
        return self._act(arguments)


def _format(prog: str) -> argparse.HelpFormatter:
    # Without a width, argparse imports shutil and with it every compressor there is.
    return argparse.RawDescriptionHelpFormatter(prog, width=100)
