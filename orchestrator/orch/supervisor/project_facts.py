"""Surveys of the folders that agents work in. All agents in the same folder share a cached survey."""

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

MAX_CACHED: Final = 16
SETTLED_NS: Final = 100_000_000
"""A changed file counts as unsettled until it has this age, in nanoseconds.

Such a file may change again without getting another timestamp.
"""

FileState = tuple[int, int, int] | None
"""The change time, inode and size of a path. None if the path does not exist."""
Key = tuple[str, ContextConfig]


class CachedFacts(Struct, frozen=True):
    """A survey, with the states of all files and folders that the survey read.

    The survey is valid while these states are unchanged.
    """

    survey: ProjectSurvey
    file_states: Mapping[Path, FileState]


class ProjectFacts:
    """A cache of the most recent surveys."""

    def __init__(self) -> None:
        self._cache: dict[Key, CachedFacts] = {}
        self._surveys: dict[Key, asyncio.Future[ProjectSurvey]] = {}
        self._catalogs: SkillCatalogs | None = None

    def skill_catalogs(self) -> SkillCatalogs:
        """Return the cache of skill folders."""
        if self._catalogs is None:
            # The import is deferred until there are skills.
            from ..resources.skill_discovery import SkillCatalogs

            self._catalogs = SkillCatalogs()
        return self._catalogs

    async def of(self, folder: Path, rules: ContextConfig) -> ProjectSurvey:
        """Return the current survey of `folder`. Concurrent calls for the same folder share one survey."""
        key = (str(folder), rules)
        survey = self._surveys.get(key)
        if survey is None:
            survey = self._surveys[key] = asyncio.ensure_future(self._survey(key))
            survey.add_done_callback(lambda _: self._surveys.pop(key, None))
        return await asyncio.shield(survey)

    async def _survey(self, key: Key) -> ProjectSurvey:
        facts = await asyncio.to_thread(_revalidate, self._cache.pop(key, None), *key)
        if facts.file_states:
            self._cache[key] = facts
            while len(self._cache) > MAX_CACHED:
                del self._cache[next(iter(self._cache))]
        return facts.survey


# The survey runs in a thread.


def _revalidate(cached: CachedFacts | None, folder: str, rules: ContextConfig) -> CachedFacts:
    """Return `cached` if its file states are unchanged, otherwise a new survey."""
    if cached is not None and all(_file_state(path) == file_state for path, file_state in cached.file_states.items()):
        return cached
    return _survey_folder(folder, rules)


def _survey_folder(folder: str, rules: ContextConfig) -> CachedFacts:
    """Survey the folder.

    If a file changed during or shortly before the survey, or the survey was too slow, the result has no file states and
    is not cached.
    """
    file_states: dict[Path, FileState] = {}
    started_ns, deadline = time.time_ns(), time.monotonic() + WALK_SECONDS
    survey = survey_project(
        rules, ToolContext(Path(folder)), lambda path: file_states.setdefault(path, _file_state(path))
    )
    has_unsettled = any(
        file_state is not None and file_state[0] > started_ns - SETTLED_NS for file_state in file_states.values()
    )
    return CachedFacts(survey, {} if has_unsettled or time.monotonic() > deadline else file_states)


def _file_state(path: Path) -> FileState:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ctime_ns, status.st_ino, status.st_size
