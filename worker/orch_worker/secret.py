"""Which variables hold secrets, by their names; and text without them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from .backends.vendors import VENDORS

__all__ = ["is_secret", "masked"]

SECRET: Final = re.compile(
    r"(^|_)(API_?KEY|ACCESS_?KEY(_ID)?|PRIVATE_?KEY|KEY)S?($|_)|(^|_)(TOKEN|PAT)($|_)|SECRET|PASSW(OR)?D|PASSPHRASE|CREDENTIAL",
    re.IGNORECASE,
)

SHORTEST: Final = 8
"""What is shorter is no secret that protects anything, and may be part of any word."""


def is_secret(name: str) -> bool:
    """Whether the variable `name` looks as if its value were a secret. Rather one too many than one too few."""
    return name.upper().startswith(VENDORS) or SECRET.search(name) is not None


def masked(text: str, secrets: Iterable[str]) -> str:
    """Return `text` with each of the `secrets` replaced by what says that one stood there."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST:
            text = text.replace(secret, "[a key]")
    return text
