"""Hides orch's folders and denied paths from a worker before it runs code of its agent."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from orch_protocol.agent.spec import WorkerPaths
from orch_protocol.policy.policy import PolicyConfig
from orch_protocol.policy.sandbox import SandboxSpec

from ..sandbox import worker_namespace
from ..system.files import error_text
from ..tools.api.base import ToolContext
from ..tools.shell.path_covers import PathCovers

__all__ = ["hide_paths"]


def hide_paths(paths: WorkerPaths) -> None:
    """Enter a mount namespace in which `paths` are hidden. If hiding fails although it is required, end the process."""
    try:
        _hide(paths)
    except OSError as error:
        why = f"{error_text(error)}: {error.filename}" if error.filename else error_text(error)
        if paths.required:
            raise SystemExit(f"policy.require_denied_paths is set, and denied paths cannot be hidden: {why}") from error
        worker_namespace.mark_failed(why)


def _hide(paths: WorkerPaths) -> None:
    for folder in (paths.folder, *paths.own):
        os.makedirs(folder, 0o700, exist_ok=True)
    context = ToolContext(
        Path(paths.cwd),
        env={"HOME": paths.home} if paths.home else {},
        folder=Path(paths.folder),
        sandbox=SandboxSpec(read=paths.read, write=paths.write),
        policy=PolicyConfig(denied_paths=paths.denied),
        orch_folders=paths.orch_folders,
    )
    found = PathCovers(context).find_for_worker(paths.own, (*paths.shown, *filter(os.path.isabs, sys.path)))
    if found.problem:
        raise OSError(0, found.problem)
    worker_namespace.enter(found.covers, paths.folder)
