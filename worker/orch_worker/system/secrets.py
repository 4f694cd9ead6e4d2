"""Which variables hold secrets, by their names; and text without them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Final

__all__ = [
    "SEARCH_KEY",
    "VENDORS",
    "WITHHELD",
    "Masker",
    "holds_secret",
    "is_plain_value",
    "is_secret",
    "mask_secrets",
    "secrets_of",
    "withheld_hint",
]


# --- Whose variables an environment may hold ---

VENDORS: Final = (
    "ANTHROPIC_",
    "AWS_",
    "AZURE_",
    "COHERE_",
    "DEEPSEEK_",
    "GEMINI_",
    "GROQ_",
    "HF_",
    "MISTRAL_",
    "MOONSHOT_",
    "OPENAI_",
    "OPENROUTER_",
    "VERTEX_",
    "XAI_",
)
"""Beginnings of the names of variables that hold a model vendor's secrets, addresses and headers."""


SECRET: Final = re.compile(
    r"(^|_)(API_?KEY|ACCESS_?KEY(_ID)?|PRIVATE_?KEY|KEY)S?($|_)|(^|_)(TOKEN|PAT|PASS|AUTH(?!_SOCK$)|DSN)($|_)|SECRET|PASSW(OR)?D|PASSPHRASE|CREDENTIAL",
    re.IGNORECASE,
)

PASSWORD_IN_ADDRESS: Final = re.compile(r"://[^\s/@:]*:[^\s/@]+@")
PROXY: Final = "_PROXY"
"""Ends the names of addresses that are asked for every other one: without what lets them in nothing is reached."""

SEARCH_KEY: Final = "TAVILY_API_KEY"
"""Variable with the key of the web search."""

WITHHELD: Final = "ORCH_WITHHELD"
"""Variable with the names, separated by spaces, that a process was not given."""

HIDDEN: Final = "[a key]"
SHORTEST: Final = 8
"""What is shorter is no secret that protects anything, and may be part of any word."""


def is_secret(name: str) -> bool:
    """Whether the variable `name` looks as if its value were a secret. Rather one too many than one too few."""
    return name.upper().startswith(VENDORS) or SECRET.search(name) is not None


def holds_secret(name: str, value: str) -> bool:
    """Whether the variable `name` looks as if `value` were a secret, or an address with a password."""
    return is_secret(name) or (not name.upper().endswith(PROXY) and PASSWORD_IN_ADDRESS.search(value) is not None)


def withheld_hint(error: BaseException) -> str:
    """Return advice for a KeyError about a variable that the user's shell has and this process was not given.

    Returns "" for any other error.
    """
    if not isinstance(error, KeyError) or len(error.args) != 1 or error.args[0] not in _withheld():
        return ""
    name = error.args[0]
    return f" ({name} is set in your shell but not passed to workers; add it to environment.pass)"


def _withheld() -> list[str]:
    return os.environ.get(WITHHELD, "").split()


def is_plain_value(name: str) -> str:
    """Return what the variable `name` goes by among keys when its value is no secret: no variable is called so."""
    return f"{{{name}}}"


def secrets_of(keys: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of `keys` that nobody is to see."""
    return tuple(value for name, value in keys.items() if not name.startswith("{"))


def mask_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return `text` with each of the `secrets` replaced by what says that one stood there."""
    for secret in _long_enough(secrets):
        text = text.replace(secret, HIDDEN)
    return text


class Masker:
    """Takes the `secrets` out of a stream of bytes, also those that come in pieces."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = [secret.encode() for secret in _long_enough(secrets)]
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return what may be shown once `data` has come; what may be the beginning of a secret waits for the rest."""
        if not self._secrets:
            return data
        data = self._held + data
        for secret in self._secrets:
            data = data.replace(secret, HIDDEN.encode())
        held = max((_begun(data, secret) for secret in self._secrets), default=0)
        self._held = data[len(data) - held :]
        return data[: len(data) - held]

    def rest(self) -> bytes:
        """Return what still waits, when nothing more will come."""
        held, self._held = self._held, b""
        return held


def _long_enough(secrets: Iterable[str]) -> list[str]:
    """Return the `secrets` that are any, the longest first: one may be part of another."""
    return sorted((secret for secret in secrets if len(secret) >= SHORTEST), key=len, reverse=True)


def _begun(data: bytes, secret: bytes) -> int:
    """Return how many bytes at the end of `data` are the beginning of `secret`."""
    most = min(len(secret) - 1, len(data))
    return next((length for length in range(most, 0, -1) if data.endswith(secret[:length])), 0)
