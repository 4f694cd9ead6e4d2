"""Starts a notebook's own agent inside the kernel, where it sees the notebook's names, and all others as processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orch_protocol.agent.spec import Template
from orch_worker.tools.python.namespace import share_names, take_back

from ..processes import default_launcher
from ..processes.base import LaunchRequest, WorkerProcess
from ..processes.in_process import InProcessLauncher

__all__ = ["NotebookLauncher"]


class NotebookLauncher:
    """A launcher of two kinds. `own` is the id of the agent that lives here; the first to be launched, if nobody says.

    `names` are the notebook's, in which that agent's code runs.
    """

    def __init__(self, run: str, folder: Path, names: dict[str, Any]) -> None:
        self.own: str | None = None
        self._names = names
        self._here = InProcessLauncher(run, folder)
        self._apart = default_launcher(run, folder)
        self.environment: Sequence[str] = ()

    async def start(self) -> None:
        """Begin what launching processes needs. Raises LaunchError."""
        self._apart.environment = self.environment
        await self._apart.start()

    def warm(self, template: Template) -> None:
        """Make the next process from `template` quick."""
        self._apart.warm(template)

    def mounts_missing(self) -> str:
        """Return why commands of its workers cannot have mount namespaces of their own, "" when they can."""
        return self._apart.mounts_missing()

    async def launch(self, request: LaunchRequest) -> WorkerProcess:
        """Return the started worker. Raises LaunchError."""
        self.own = self.own or request.agent_id
        if request.agent_id != self.own:
            return await self._apart.launch(request)
        share_names(self.own, self._names)
        return await self._here.launch(request)

    async def stop(self) -> None:
        """End all of them."""
        await self._here.stop()
        await self._apart.stop()
        if self.own is not None:
            take_back(self.own)
