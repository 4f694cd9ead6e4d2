"""Launchers, which start workers. Each module contains one kind of launcher."""

from __future__ import annotations

import sys
from pathlib import Path

from .base import Launcher

__all__ = ["default_launcher"]


def default_launcher(run: str, folder: Path) -> Launcher:
    """Return the launcher for this platform.

    On Linux the launcher forks workers. On other platforms the launcher starts a new interpreter for each worker.
    """
    if sys.platform == "linux":
        from .zygote import ZygoteLauncher

        return ZygoteLauncher(run, folder)
    from .exec import ExecLauncher

    return ExecLauncher(run, folder)
