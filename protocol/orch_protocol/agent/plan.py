"""The task list of an agent."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import Struct

__all__ = ["STATUS_SYMBOLS", "Task", "TaskStatus"]

TaskStatus: TypeAlias = Literal["pending", "in_progress", "completed", "cancelled"]

STATUS_SYMBOLS: Final[dict[str, str]] = {"pending": "[ ]", "in_progress": "[>]", "completed": "[x]", "cancelled": "[-]"}
"""The marks that show the status of a task to models and people."""


class Task(Struct, frozen=True, gc=False):
    """One task, described in one line of text."""

    text: str
    status: TaskStatus = "pending"
