"""Names of keys: which there are, and which are nobody's to take."""

from __future__ import annotations

import pytest
from prompt_toolkit.key_binding.key_bindings import _parse_key

from orch_protocol.resources.key_bindings import RESERVED, invalid_key_reason


@pytest.mark.parametrize(
    "key", ["c-t", "f6", "f24", "s-tab", "escape s", "c-x c-t", "c-x 3 a", "pageup", "c-left", "c-]"]
)
def test_keys_that_can_be_bound(key: str) -> None:
    """Each is one that the console's library knows by that name."""
    assert invalid_key_reason(key) == ""
    for part in key.split():
        assert _parse_key(part)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("ctrl-t", "'ctrl-t' is no key; keys are called c-t"),
        ("C-T", "is no key"),
        ("f25", "is no key"),
        ("", "is no key"),
        ("c-x c-a c-b c-d", "is 4 keys"),
        ("t", "begins with a key that writes"),
        ("c-c c-t", "begins with 'c-c'"),
    ],
)
def test_keys_that_cannot_be_bound_say_why(key: str, why: str) -> None:
    """Neither what is none, nor what would take a letter or an interruption away."""
    assert why in invalid_key_reason(key)


@pytest.mark.parametrize("key", sorted(RESERVED))
def test_keys_of_writing_and_leaving_are_nobodys(key: str) -> None:
    """Enter, Ctrl-C and their kin stay what they are."""
    assert "what people write, send, leave or interrupt with" in invalid_key_reason(key)
