"""Launcher of a notebook.

The notebook's agent runs inside the kernel and uses the notebook's variables. All other agents run as processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orch_protocol.agent.spec import Template
from orch_worker.tools.api.shared_names import share_names, unshare_names

from ..processes import default_launcher
from ..processes.base import LaunchRequest, WorkerProcess
from ..processes.in_process import InProcessLauncher

__all__ = ["NotebookLauncher"]


class NotebookLauncher:
    """Launches the agent `own_agent_id` in the kernel, and all other agents as processes.

    If `own_agent_id` is None, the first launched agent is the notebook's agent. `names` is the notebook's namespace, in
    which the code of this agent runs.
    """

    def __init__(self, run: str, folder: Path, names: dict[str, Any]) -> None:
        self.own_agent_id: str | None = None
        self._names = names
        self._in_kernel = InProcessLauncher(run, folder)
        self._in_processes = default_launcher(run, folder)
        self.environment: Sequence[str] = ()

    async def start(self) -> None:
        """Make the launcher ready to start processes. Raises LaunchError."""
        self._in_processes.environment = self.environment
        await self._in_processes.start()

    def warm(self, template: Template) -> None:
        """Preload `template`, so that the next process starts quickly."""
        self._in_processes.warm(template)

    def mount_namespace_problem(self) -> str:
        """Return why commands of its workers cannot run in separate mount namespaces. Return "" if they can."""
        return self._in_processes.mount_namespace_problem()

    async def launch(self, request: LaunchRequest) -> WorkerProcess:
        """Return the started worker. Raises LaunchError."""
        self.own_agent_id = self.own_agent_id or request.agent_id
        if request.agent_id != self.own_agent_id:
            return await self._in_processes.launch(request)
        share_names(self.own_agent_id, self._names)
        return await self._in_kernel.launch(request)

    async def stop(self) -> None:
        """End all agents."""
        await self._in_kernel.stop()
        await self._in_processes.stop()
        if self.own_agent_id is not None:
            unshare_names(self.own_agent_id)
