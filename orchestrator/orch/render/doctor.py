"""Results of `orch doctor` as JSON data and as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from . import terminal

__all__ = ["Findings", "data", "page"]


Findings: TypeAlias = Mapping[str, tuple[str, str]]
"""The level and detail of each check, by the check's name."""


def data(found: Findings) -> list[dict[str, str]]:
    """Return the results as JSON data."""
    return [{"check": name, "level": level, "detail": detail} for name, (level, detail) in found.items()]


def page(found: Findings) -> str:
    """Return the results, one check per line."""
    return "\n".join(f"{level:5}{name:15}{terminal.safe(detail)}" for name, (level, detail) in found.items())
