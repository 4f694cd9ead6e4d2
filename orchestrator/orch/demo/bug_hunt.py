"""The example of the demo is a small program with a bug, and the scripted responses of a model that finds the bug."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from orch_protocol.core.errors import StoreError

__all__ = ["TASK", "DemoTurn", "Script", "copy_project", "read_script"]

TASK: Final = "Work on the project in this folder."
_PACKAGED: Final = Path(__file__).with_name("bug_hunt")
_CHECKOUT: Final = Path(__file__).parents[3] / "examples" / "bug_hunt"


class DemoTurn(Struct, frozen=True):
    """One question, and the scripted responses to the question."""

    prompt: str
    steps: tuple[dict[str, Any], ...]


class Script(Struct, frozen=True):
    """The script of the whole session."""

    turns: tuple[DemoTurn, ...]

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The items of all turns in order. Each item is one model call."""
        return [step for turn in self.turns for step in turn.steps]


def read_script() -> Script:
    """Return the script. Raises StoreError if the example is not installed."""
    try:
        return msgspec.json.decode((_folder() / "script.json").read_bytes(), type=Script)
    except OSError as error:
        raise StoreError(f"cannot read the demo's script: {error}") from error


def copy_project(folder: Path) -> None:
    """Copy the program to `folder`. This folder must not exist."""
    shutil.copytree(_folder() / "project", folder, ignore=shutil.ignore_patterns("__pycache__"))


def _folder() -> Path:
    return _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT
