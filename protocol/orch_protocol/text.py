"""Text that every encoding can carry."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["scrub"]

_SURROGATE = re.compile("[\ud800-\udfff]")


def scrub(value: Any) -> Any:
    """Return `value` (JSON-like data) with each lone surrogate in its strings replaced by U+FFFD."""
    if isinstance(value, str):
        if value.isascii():
            return value
        return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {scrub(key): scrub(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub(item) for item in value]
    return value
