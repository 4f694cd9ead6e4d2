"""Which variables hold secrets, by their names."""

from __future__ import annotations

import re
from typing import Final

from .backends.vendors import VENDORS

__all__ = ["is_secret"]

SECRET: Final = re.compile(
    r"(^|_)(API_?KEY|ACCESS_?KEY(_ID)?|PRIVATE_?KEY|KEY)S?($|_)|(^|_)(TOKEN|PAT)($|_)|SECRET|PASSW(OR)?D|PASSPHRASE|CREDENTIAL",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Whether the variable `name` looks as if its value were a secret. Rather one too many than one too few."""
    return name.upper().startswith(VENDORS) or SECRET.search(name) is not None
