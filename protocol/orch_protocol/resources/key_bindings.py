"""Names of keys, as front ends bind them: which there are, and which are nobody's to take."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["MOST", "RESERVED", "invalid_key_reason"]

MOST: Final = 3
"""Keys that are pressed one after the other."""
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
"""Keys with which people write, send, leave and interrupt."""


def invalid_key_reason(key: str) -> str:
    """Return why nobody can bind `key`, such as `c-t`, `f5`, `escape s` or `c-x c-t`; "" when it can be bound."""
    parts = key.split(" ")
    if len(parts) > MOST:
        return f"{key!r} is {len(parts)} keys: at most {MOST} one after the other"
    if unknown := [part for part in parts if KEY.fullmatch(part) is None]:
        return f"{unknown[0]!r} is no key; keys are called c-t, f5, s-tab, pageup, or several: escape s, c-x c-t"
    if key in RESERVED:
        return f"{key!r} is what people write, send, leave or interrupt with"
    if len(parts[0]) == 1:
        return f"{key!r} begins with a key that writes: begin with c-, escape or a function key"
    if parts[0] in RESERVED and parts[0] != "escape":
        return f"{key!r} begins with {parts[0]!r}, which people write, send, leave or interrupt with"
    return ""
