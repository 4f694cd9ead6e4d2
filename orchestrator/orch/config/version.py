"""Which orch this is."""

from __future__ import annotations

__all__ = ["version"]


def version() -> str:
    """Return the installed distribution's version, or "source" when it runs from a folder without one."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as of

    try:
        return of("orch")
    except PackageNotFoundError:
        return "source"
