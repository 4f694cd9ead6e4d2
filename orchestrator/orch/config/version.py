"""The name and version of the installed distribution."""

from __future__ import annotations

from typing import Final

__all__ = ["DISTRIBUTION", "version"]

DISTRIBUTION: Final = "orch-agents"
"""The name of the project on a package index. The import package and the command are called `orch`."""


def version() -> str:
    """Return the version of the installed distribution. Return "source" if orch runs from a source folder."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as distribution_version

    try:
        return distribution_version(DISTRIBUTION)
    except PackageNotFoundError:
        return "source"
