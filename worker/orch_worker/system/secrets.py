"""Recognizes environment variables with secret values by their names, and removes secrets from text."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Final

__all__ = [
    "CREDENTIAL_VARIABLES",
    "SEARCH_KEY",
    "VENDORS",
    "WITHHELD",
    "ApiKeys",
    "holds_secret",
    "is_secret",
    "mask_key_shapes",
    "mask_passwords",
    "mask_secrets",
    "plain_key",
    "secrets_of",
    "withheld_hint",
]


# --- Names of variables ---

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
"""Prefixes of variables that contain keys, addresses or headers of model providers."""


SECRET: Final = re.compile(
    r"(^|_)(API_?KEY|ACCESS_?KEY(_ID)?|PRIVATE_?KEY|KEY)S?($|_)|(^|_)(TOKEN|PAT|PASS|AUTH(?!_SOCK$)|DSN)($|_)|SECRET|PASSW(OR)?D|PASSPHRASE|CREDENTIAL",
    re.IGNORECASE,
)

CREDENTIAL_VARIABLES: Final = {
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
    "AZURE_CONFIG_DIR": "~/.azure",
    "CLAUDE_CONFIG_DIR": "~/.claude",
    "CLOUDSDK_CONFIG": "~/.config/gcloud",
    "CODEX_HOME": "~/.codex",
    "DOCKER_CONFIG": "~/.docker",
    "GH_CONFIG_DIR": "~/.config/gh",
    "GNUPGHOME": "~/.gnupg",
    "KUBECONFIG": "~/.kube/config",
    "NETRC": "~/.netrc",
    "NPM_CONFIG_USERCONFIG": "~/.npmrc",
    "XDG_CONFIG_HOME": "~/.config",
}
"""Variables that contain the place of credentials, and the usual place."""

PASSWORD_IN_ADDRESS: Final = re.compile(r"://[^\s/@:]*:[^\s/@]+@")
USER_IN_ADDRESS: Final = re.compile(r"//[^/\s?#]*@")
KEY_SHAPES: Final = re.compile(
    r"\b(?:(?:sk|pk|rk|gsk|xai|hf|fw|pplx|nvapi|gh[pousr])[-_][\w-]{16,}|AIza[\w-]{30,}|A[KS]IA[A-Z2-7]{16}\b)"
    r"|(?i:(?<=\bbearer )[\w.~+/=-]{8,})"
)
"""Texts that have the shape of a provider's key, or that follow the word "Bearer"."""
PROXY: Final = "_PROXY"
"""Suffix of proxy variables.

Proxy variables may contain a password, but processes receive them, because the network is not reachable without them.
"""

SEARCH_KEY: Final = "TAVILY_API_KEY"
"""The variable that contains the API key of the web search."""

WITHHELD: Final = "ORCH_WITHHELD"
"""The variable that contains the names of the variables that were not passed to a process, separated by spaces."""

HIDDEN: Final = "[a key]"
SHORTEST: Final = 8
"""Minimum length of a secret. Shorter values may occur in ordinary words."""


def is_secret(name: str) -> bool:
    """Return whether the name of a variable suggests a secret value. In case of doubt, return True."""
    return name.upper().startswith(VENDORS) or SECRET.search(name) is not None


def holds_secret(name: str, value: str) -> bool:
    """Return whether the variable seems to contain a secret, or an address with a password."""
    return is_secret(name) or (not name.upper().endswith(PROXY) and PASSWORD_IN_ADDRESS.search(value) is not None)


def withheld_hint(error: BaseException) -> str:
    """Return a hint for a KeyError about a variable of the user's shell that was not passed to this process.

    Return "" for any other error.
    """
    if not isinstance(error, KeyError) or len(error.args) != 1 or error.args[0] not in _withheld():
        return ""
    name = error.args[0]
    return f" ({name} is set in your shell but not passed to workers; add it to environment.pass)"


def _withheld() -> list[str]:
    return os.environ.get(WITHHELD, "").split()


def plain_key(name: str) -> str:
    """Return the key under which the non-secret variable `name` is stored.

    The key is not a valid name of a variable.
    """
    return f"{{{name}}}"


class ApiKeys(dict[str, str]):
    """Secrets. Keys are names of variables. The repr shows only the number of secrets."""

    def __repr__(self) -> str:
        return f"<{len(self)} keys>"

    __str__ = __repr__


def secrets_of(keys: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secret values in `keys`."""
    return tuple(value for name, value in keys.items() if not name.startswith("{"))


def mask_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return `text` with each of the `secrets` replaced by a placeholder."""
    for secret in _long_enough(secrets):
        text = text.replace(secret, HIDDEN)
    return text


def mask_key_shapes(text: str) -> str:
    """Return `text` with everything that looks like a provider's key replaced by a placeholder."""
    return KEY_SHAPES.sub(HIDDEN, text)


def mask_passwords(text: str) -> str:
    """Return `text` without the users and passwords of the addresses in it."""
    return USER_IN_ADDRESS.sub("//", text)


def _long_enough(secrets: Iterable[str]) -> list[str]:
    """Return the `secrets` of sufficient length.

    The longest secrets come first, because a secret may contain another secret.
    """
    return sorted((secret for secret in secrets if len(secret) >= SHORTEST), key=len, reverse=True)
