"""Findings of `orch doctor` as JSON data and as lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from . import terminal

__all__ = ["Findings", "data", "page"]


Findings: TypeAlias = Mapping[str, tuple[str, str]]
"""The level and the detail of each check, by its name."""


def data(found: Findings) -> list[dict[str, str]]:
    """Return what was found as JSON data."""
    return [{"check": name, "level": level, "detail": detail} for name, (level, detail) in found.items()]


def page(found: Findings) -> str:
    """Return what was found, one check a line."""
    return "\n".join(f"{level:5}{name:15}{terminal.safe(detail)}" for name, (level, detail) in found.items())
