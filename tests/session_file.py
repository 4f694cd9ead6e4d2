"""Reads a session file without code of orch, and checks that no message is lost."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

__all__ = ["Remains"]


class Remains:
    """The messages and archives in the file of an agent whose process was killed."""

    def __init__(self, folder: Path) -> None:
        self.data = (folder / "session.jsonl").read_bytes()
        rows: list[dict[str, Any]] = []
        whole = 0
        for line in self.data.split(b"\n"):
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue  # an incomplete line at the end
            whole = whole if "m" in rows[-1] else len(rows)
        del rows[whole:]  # an incomplete append of several lines
        self.messages = {row["id"]: row for row in rows if row["type"] == "message"}
        self.collapses = {row["collapse"]["holder"]: row["collapse"] for row in rows if row["type"] == "archive"}
        # The visible items at the end. An item has a first and last entry, and is a message or contains the holders of
        # records.
        self.shown: list[tuple[str, str, set[str]]] = []
        for row in rows:
            if row["type"] == "message":
                self.shown.append((row["id"], row["id"], {row["id"]}))
            elif row["type"] == "archive":
                self._collapse(row["collapse"])

    def _collapse(self, collapse: dict[str, Any]) -> None:
        first, last, holder = collapse["first"], collapse["last"], collapse["holder"]
        start = next(place for place, item in enumerate(self.shown) if item[0] == first)
        stop = max(place for place, item in enumerate(self.shown) if item[1] == last) + 1
        gone = {each for _, _, what in self.shown[start:stop] for each in what}
        # The prompt keeps the records of the turn's earlier phases.
        stays = set(re.findall(r"subagent_id: ([0-9a-f]{12})", json.dumps(collapse["messages"])))
        assert gone - stays <= {*self.held(holder), *self.members(holder)}, "a holder lacks what left for it"
        self.shown[start:stop] = [(first, last, stays)]

    def members(self, holder: str) -> list[str]:
        """Return the holders whose records became part of the archive `holder`."""
        members: list[str] = self.collapses[holder]["record"].get("members", [])
        return members

    def held(self, holder: str) -> list[str]:
        """Return the ids of the messages in the archive `holder`, in order."""
        spans = self.collapses[holder]["spans"]
        lines = [line for start, length in spans for line in self.data[start : start + length].splitlines()]
        return [row["id"] for row in map(json.loads, lines) if row["type"] == "message"]

    def check(self) -> None:
        """Check that each message is visible, or in an archive that can be reached. Raises AssertionError."""
        there: set[str] = set()
        waiting = [each for _, _, what in self.shown for each in what]
        while waiting:
            what = waiting.pop()
            if what in self.collapses:
                there |= set(self.held(what))
                waiting += self.members(what)
            else:
                there.add(what)
        assert there == set(self.messages), "a message is nowhere"
