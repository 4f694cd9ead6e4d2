"""What an agent means to do, one after the other: as data."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import Struct

__all__ = ["MARKS", "Task", "TaskStatus"]

TaskStatus: TypeAlias = Literal["pending", "in_progress", "completed", "cancelled"]

MARKS: Final[dict[str, str]] = {"pending": "[ ]", "in_progress": "[>]", "completed": "[x]", "cancelled": "[-]"}
"""How a task's status is shown, to models and people alike."""


class Task(Struct, frozen=True, gc=False):
    """One task, in a line of text."""

    text: str
    status: TaskStatus = "pending"
