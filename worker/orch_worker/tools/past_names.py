"""Which names the process before this one had bound: so that an agent hears that they are gone, and which they were."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from orch_protocol.errors import OrchError

from .. import kept

__all__ = ["PastNames", "bound", "forget", "listed", "remember"]

NAME: Final = "names.json"
MOST: Final = 30
COARSE: Final = 0.05
"""Seconds. The times of files come from a clock that is that much behind, at the most."""


class PastNames:
    """The names of an agent whose session is in `folder`, None where nothing is to be remembered."""

    def __init__(self, folder: Path | None) -> None:
        self._file = folder / NAME if folder is not None else None
        self._now: list[str] | None = None

    def lost(self, handles: Sequence[str]) -> str:
        """Return what is to be said in a process that has just begun, "" in the first one of an agent."""
        if self._file is None or not self._file.exists():
            return ""
        try:
            names = kept.read(self._file, list[str], [], "")
        except OrchError:
            names = []
        which = f" ({listed(names)})" if names else ""
        there = f" Handles are kept: {', '.join(handles[-MOST:])}." if handles else ""
        return f"[This is a new Python process: what earlier calls had bound is gone{which}.{there}]"

    def now(self, bound: Iterable[str]) -> None:
        """Remember what is bound now. What cannot be written is not told of one day."""
        names = sorted(bound)
        if self._file is None or names == self._now:
            return
        try:
            kept.write(self._file, names, durable=False)
        except OrchError as error:
            print(error, flush=True)
        self._now = names


def listed(names: Sequence[str]) -> str:
    """Return the first of `names`, and how many more there are."""
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return f"{', '.join(names[:MOST])}{more}"


def bound(folder: Path, since: float = 0.0) -> list[str]:
    """Return what the agent whose session is in `folder` had bound when its code ran last, nothing where that was
    before `since`, in seconds of the epoch. Raises StoreError."""
    try:
        ran = (folder / NAME).stat().st_mtime
    except OSError:
        ran = since  # there is none, or reading it tells what is wrong
    return kept.read(folder / NAME, list[str], [], "") if ran >= since - COARSE else []


def forget(folder: Path) -> None:
    """Let it not be known any more what the names were, but that there were some. Raises StoreError."""
    if (file := folder / NAME).exists():
        kept.write(file, [])


def remember(folder: Path, copy: Path) -> None:
    """Let the agent whose session is in `copy`, made of that in `folder`, hear that what had been bound there is not
    bound in its process. Raises StoreError."""
    if (folder / NAME).exists():
        kept.write(copy / NAME, bound(folder))
