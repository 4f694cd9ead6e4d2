"""Names of keys: which keys exist, and which keys cannot be bound."""

from __future__ import annotations

import pytest
from prompt_toolkit.key_binding.key_bindings import _parse_key

from orch_protocol.resources.key_bindings import RESERVED, invalid_key_reason


@pytest.mark.parametrize(
    "key", ["c-t", "f6", "f24", "s-tab", "escape s", "c-x c-t", "c-x 3 a", "pageup", "c-left", "c-]"]
)
def test_bindable_keys_are_known_to_the_console_library(key: str) -> None:
    """prompt_toolkit accepts each key of a binding by its name."""
    assert invalid_key_reason(key) == ""
    for part in key.split():
        assert _parse_key(part)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("ctrl-t", "'ctrl-t' is not a key; use names such as c-t"),
        ("C-T", "is not a key"),
        ("f25", "is not a key"),
        ("", "is not a key"),
        ("c-x c-a c-b c-d", "contains 4 keys"),
        ("t", "begins with a key that types a character"),
        ("c-c c-t", "begins with 'c-c'"),
    ],
)
def test_unbindable_keys_are_refused_with_a_reason(key: str, why: str) -> None:
    """Unknown keys, keys that write text, and keys that interrupt are refused."""
    assert why in invalid_key_reason(key)


@pytest.mark.parametrize("key", sorted(RESERVED))
def test_editing_and_exit_keys_cannot_be_bound(key: str) -> None:
    """Keys such as Enter and Ctrl-C are refused with a reason."""
    assert "is reserved for typing, sending, leaving or interrupting" in invalid_key_reason(key)
