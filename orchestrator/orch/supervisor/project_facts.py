"""What is in the folders that agents work in, looked up once for all agents of a folder."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from orch_protocol.agent.project import ContextConfig, ProjectSurvey
from orch_worker.prompt.project_scan import WALK_SECONDS, survey_project
from orch_worker.tools.api.base import ToolContext

if TYPE_CHECKING:
    from ..resources.skill_discovery import SkillCatalogs

__all__ = ["ProjectFacts"]

MOST: Final = 16
SETTLED_NS: Final = 100_000_000
"""What was changed so shortly before it was looked at may change once more without another time stamp."""

Mark = tuple[int, int, int] | None
"""When a path was changed, its number on the disk, and its size; None is that it is not there."""
Key = tuple[str, ContextConfig]


class CachedFacts(Struct, frozen=True):
    """What was found, and how everything was marked that was looked at for it: as long as that is so, it holds."""

    seen: ProjectSurvey
    marks: Mapping[Path, Mark]


class ProjectFacts:
    """The folders that were looked at last."""

    def __init__(self) -> None:
        self._known: dict[Key, CachedFacts] = {}
        self._looking: dict[Key, asyncio.Future[ProjectSurvey]] = {}
        self._shelves: SkillCatalogs | None = None

    def shelves(self) -> SkillCatalogs:
        """Return what was found in folders of skills. Any thread may ask."""
        if self._shelves is None:
            # Imported when there are skills.
            from ..resources.skill_discovery import SkillCatalogs

            self._shelves = SkillCatalogs()
        return self._shelves

    async def of(self, folder: Path, rules: ContextConfig) -> ProjectSurvey:
        """Return what is in `folder` now. Whoever asks while somebody looks is told the same."""
        key = (str(folder), rules)
        looking = self._looking.get(key)
        if looking is None:
            looking = self._looking[key] = asyncio.ensure_future(self._look(key))
            looking.add_done_callback(lambda _: self._looking.pop(key, None))
        return await asyncio.shield(looking)

    async def _look(self, key: Key) -> ProjectSurvey:
        known = await asyncio.to_thread(_still, self._known.pop(key, None), *key)
        if known.marks:
            self._known[key] = known
            while len(self._known) > MOST:
                del self._known[next(iter(self._known))]
        return known.seen


# In a thread.


def _still(known: CachedFacts | None, folder: str, rules: ContextConfig) -> CachedFacts:
    """Return what is `known`, if that is still so, and else what is found."""
    if known is not None and all(_mark(path) == mark for path, mark in known.marks.items()):
        return known
    return _found(folder, rules)


def _found(folder: str, rules: ContextConfig) -> CachedFacts:
    """Look, and return what holds for longer than this moment; without marks it does not."""
    marks: dict[Path, Mark] = {}
    began, until = time.time_ns(), time.monotonic() + WALK_SECONDS
    seen = survey_project(rules, ToolContext(Path(folder)), lambda path: marks.setdefault(path, _mark(path)))
    fresh = any(mark is not None and mark[0] > began - SETTLED_NS for mark in marks.values())
    return CachedFacts(seen, {} if fresh or time.monotonic() > until else marks)


def _mark(path: Path) -> Mark:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ctime_ns, found.st_ino, found.st_size
