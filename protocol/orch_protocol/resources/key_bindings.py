"""Names of keys for front ends, and the keys that cannot be bound."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["MAX_KEYS", "RESERVED", "invalid_key_reason"]

MAX_KEYS: Final = 3
"""Maximum number of keys in a sequence."""
NAMED: Final = (
    "escape|tab|s-tab|enter|space|backspace|delete|s-delete|insert|s-insert|home|end|pageup|pagedown|up|down|left|right"
)
KEY: Final = re.compile(
    rf"(?:c-[a-z]|c-\\|c-\]|c-\^|c-_|f(?:[1-9]|1[0-9]|2[0-4])|{NAMED}|[cs]-(?:up|down|left|right|home|end)|[a-z0-9])"
)
RESERVED: Final = frozenset(
    {
        *("enter", "tab", "space", "backspace", "delete", "escape", "up", "down", "left", "right", "home", "end"),
        *("c-c", "c-d", "c-h", "c-i", "c-j", "c-m", "c-r", "c-z", "escape enter", "c-\\"),
    }
)
"""Keys that cannot be bound, because they are needed for typing, sending, leaving and interrupting."""


def invalid_key_reason(key: str) -> str:
    """Return why `key` cannot be bound, or "" if `key` can be bound. Examples: `c-t`, `f5`, `escape s`, `c-x c-t`."""
    parts = key.split(" ")
    if len(parts) > MAX_KEYS:
        return f"{key!r} contains {len(parts)} keys: a sequence may contain at most {MAX_KEYS} keys"
    if unknown := [part for part in parts if KEY.fullmatch(part) is None]:
        return (
            f"{unknown[0]!r} is not a key; use names such as c-t, f5, s-tab, pageup, or a sequence: escape s, c-x c-t"
        )
    if key in RESERVED:
        return f"{key!r} is reserved for typing, sending, leaving or interrupting"
    if len(parts[0]) == 1:
        return f"{key!r} begins with a key that types a character: begin with c-, escape or a function key"
    if parts[0] in RESERVED and parts[0] != "escape":
        return f"{key!r} begins with {parts[0]!r}, which is reserved for typing, sending, leaving or interrupting"
    return ""
