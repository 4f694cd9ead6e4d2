"""The name and version of the installed distribution."""

from __future__ import annotations

from typing import Final

__all__ = ["DISTRIBUTION", "version"]

DISTRIBUTION: Final = "orch-agents"
"""The name of the project on a package index. The import package and the command are called `orch`."""


def version() -> str:
    """Return the installed distribution's version, or "source" when it runs from a folder without one."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as of

    try:
        return of(DISTRIBUTION)
    except PackageNotFoundError:
        return "source"
