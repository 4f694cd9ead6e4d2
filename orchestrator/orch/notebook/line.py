"""What is said behind `%orch`: options first, then the prompt as it was typed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from orch_protocol.errors import ConfigError
from orch_worker.backends.scripted import ScriptedBackend

from .session import Choice

__all__ = ["Line", "parse", "questions"]

FLAGS: Final = ("new", "close")
VALUES: Final = ("model", "preset", "tools", "max-cost", "script", "approve")
MODES: Final = ("ask", "auto", "deny")


class Line(Struct, frozen=True):
    """A line. `choice` is what a new agent is to be, None when the one that is there is meant; `approve` how what needs
    approval is answered from now on, None: as before."""

    prompt: str = ""
    choice: Choice | None = None
    approve: Literal["ask", "auto", "deny"] | None = None
    close: bool = False


def parse(text: str) -> Line:
    """Read a line. Raises ConfigError: an option that there is not, a value that is none."""
    said: dict[str, str] = {}
    rest = text.strip()
    while rest.startswith("--"):
        word, _, rest = rest.partition(" ")
        name, equals, value = word.removeprefix("--").partition("=")
        if name not in (*FLAGS, *VALUES):
            known = ", ".join(f"--{each}" for each in (*FLAGS, *VALUES))
            raise ConfigError(f"%orch has no option {word}; it has {known}")
        if name in VALUES and not equals:
            value, _, rest = rest.lstrip().partition(" ")
        if name in VALUES and not value:
            raise ConfigError(f"%orch {word} needs a value behind it")
        said[name] = value
        rest = rest.lstrip()
    approve = said.pop("approve", None)
    if approve is not None and approve not in MODES:
        raise ConfigError(f"%orch --approve takes {', '.join(MODES)}, not {approve!r}")
    close = said.pop("close", None) is not None
    return Line(rest, _choice(said) if said else None, approve, close)  # type: ignore[arg-type]


def _choice(said: dict[str, str]) -> Choice:
    return Choice(
        model=said.get("model"),
        preset=said.get("preset"),
        tools=tuple(said["tools"].split(",")) if "tools" in said else None,
        max_cost=_dollars(said["max-cost"]) if "max-cost" in said else None,
        backend=_script(Path(said["script"])) if "script" in said else None,
    )


def _dollars(text: str) -> float:
    try:
        number = float(text.removeprefix("$"))
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ConfigError(f"%orch --max-cost takes an amount of US dollars above 0, not {text!r}")
    return number


def _script(file: Path) -> ScriptedBackend:
    try:
        return ScriptedBackend(json.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"script {file} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"script {file}: {error}") from error


def questions(lines: list[str]) -> list[str]:
    """Return the lines of a cell with those that put a question to `%orch` as calls of it.

    IPython takes a line that ends with a question mark for a request for help, on its last word.
    """
    if lines and lines[0].startswith("%%"):
        return lines
    return [_call(line) if line.startswith("%orch ") and line.rstrip().endswith("?") else line for line in lines]


def _call(line: str) -> str:
    asked = line.rstrip().removeprefix("%orch ")
    return f"get_ipython().run_line_magic('orch', {asked!r})\n"
