"""What `orch wrap` needs to know of a client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.text import TextEncodingError, decode_text

__all__ = ["ANTHROPIC_VARIABLE", "OPENAI_VARIABLE", "Client", "Launch", "Plan", "Surroundings", "own_url", "read_json"]

ANTHROPIC_VARIABLE: Final = "ANTHROPIC_BASE_URL"
OPENAI_VARIABLE: Final = "OPENAI_BASE_URL"


class Surroundings(Struct, frozen=True):
    """Where a client is started: its arguments, environment and folders.

    `proxy_url` is the address of the running proxy, "" if none is running. `files` is the folder for files of the
    client that orch creates.
    """

    arguments: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    user_home: Path
    files: Path
    proxy_url: str = ""


class Launch(Struct, frozen=True):
    """The arguments of a client, and what to change in its environment."""

    arguments: tuple[str, ...]
    env: Mapping[str, str]


class Plan(Struct, frozen=True):
    """How to start a client. `upstreams` are the servers of its requests by name, if they are not the usual ones.

    `launch` returns the start for the base URL of a proxy that has these servers. `program` is the program if the
    client has none.
    """

    launch: Callable[[str], Launch]
    upstreams: Mapping[str, str] = {}
    program: str = ""


class Client(Struct, frozen=True):
    """A program.

    `install` is the command that installs it, "" if unknown. `plan` raises ConfigError for settings that cannot work.
    """

    name: str
    program: str
    install: str
    plan: Callable[[Surroundings], Plan]


def own_url(url: Any, proxy_url: str) -> str:
    """Return the URL `url` that the user has set. Return "" if it is not set, or is the running proxy."""
    given = url.strip().rstrip("/") if isinstance(url, str) else ""
    return "" if proxy_url and (given == proxy_url or given.startswith(f"{proxy_url}/")) else given


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a client. A missing file is an empty object. Raises ConfigError."""
    try:
        value = msgspec.json.decode(decode_text(path.read_bytes()) or "{}")
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, TextEncodingError) as error:
        raise ConfigError(f"cannot read {path}, which may set another server: {error}") from error
    return value if isinstance(value, dict) else {}
