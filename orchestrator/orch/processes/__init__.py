"""Ways to start a worker, one a module."""

from __future__ import annotations

import sys
from pathlib import Path

from .base import Launcher

__all__ = ["default_launcher"]


def default_launcher(run: str, folder: Path) -> Launcher:
    """Return the launcher for this platform: fork from a template where forking is safe, else a fresh process."""
    if sys.platform == "linux":
        from .zygote import ZygoteLauncher

        return ZygoteLauncher(run, folder)
    from .exec import ExecLauncher

    return ExecLauncher(run, folder)
