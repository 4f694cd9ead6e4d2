"""The model servers behind the proxy, and which of them gets a request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from orch_protocol.core.errors import ConfigError

from .access import TOKEN_PREFIX, Refused, is_loopback_host

__all__ = [
    "ANTHROPIC",
    "OPENAI",
    "STATS",
    "Upstream",
    "Upstreams",
    "client_url",
    "client_variables",
    "direct_variables",
    "split_client",
]

ANTHROPIC: Final = "anthropic"
OPENAI: Final = "openai"
DEFAULTS: Final = {ANTHROPIC: "https://api.anthropic.com", OPENAI: "https://api.openai.com"}
STATS: Final = "/stats"
CLIENT_PREFIX: Final = "/w/"
"""The beginning of a target that contains the name of a client, for the receipt of this client."""
NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]*")
RESERVED: Final = {each.strip("/") for each in (STATS, TOKEN_PREFIX, CLIENT_PREFIX)} | {"v1"}
ANTHROPIC_HEADERS: Final = ("anthropic-version", "anthropic-beta", "x-api-key")
VERSION: Final = "/v1"
PROXY_VARIABLES: Final = ("http_proxy", "https_proxy", "all_proxy")
LOOPBACK_HOSTS: Final = "127.0.0.1,localhost"


class Upstream(Struct, frozen=True):
    """A model server. `url` has no slash at its end."""

    name: str
    url: str

    def url_of(self, target: str) -> str:
        """Return the URL for the target of a request. A version that both contain is used once."""
        if self.url.endswith(VERSION) and (target == VERSION or target.startswith(f"{VERSION}/")):
            target = target.removeprefix(VERSION)
        return self.url + target


class Upstreams:
    """The servers by name. `settings` are texts NAME=URL that replace a server or add one. Raises ConfigError."""

    def __init__(self, settings: Iterable[str] = ()) -> None:
        urls = DEFAULTS | dict(map(_parsed, settings))
        self.by_name: Final = {name: Upstream(name, url) for name, url in urls.items()}

    def find(self, target: str, headers: Mapping[str, str]) -> tuple[Upstream, str]:
        """Return the server for a request, and the target there.

        The first part of the path names the server. Paths that begin with the version instead, as SDKs send them, have
        no name: the server of Anthropic gets its paths and the requests with its headers, so that it alone gets its
        keys; that of OpenAI gets all others. `headers` have lower-case names. Raises Refused for an unknown name.
        """
        first, slash, rest = target[1:].partition("/")
        name, question, query = first.partition("?")
        if name in self.by_name:
            return self.by_name[name], f"/{question}{query}{slash if question else ''}{rest}"
        if f"/{name}" != VERSION:
            known = ", ".join(f"/{each}" for each in self.by_name)
            raise Refused(
                404,
                f"orch proxy has no model server {name!r:.100}: the path of the base URL must begin with {known} or "
                f"{VERSION}. To add a server, start the proxy with: orch proxy --upstream NAME=URL",
            )
        is_anthropic = target.startswith("/v1/messages") or any(name in headers for name in ANTHROPIC_HEADERS)
        return self.by_name[ANTHROPIC if is_anthropic else OPENAI], target

    def check_no_loop(self, host: str, port: int) -> None:
        """Raise ConfigError if a server is the proxy itself, which listens on `host` and `port`."""
        for each in self.by_name.values():
            parts = urlsplit(each.url)
            if parts.port == port and (is_loopback_host(parts.hostname or "") or parts.hostname == host):
                raise ConfigError(f"--upstream {each.name}={each.url} is the proxy itself: set another URL")


def split_client(target: str) -> tuple[str, str]:
    """Return the name of the client in the target of a request, "" if there is none, and the target without it."""
    if not target.startswith(CLIENT_PREFIX):
        return "", target
    client, slash, rest = target.removeprefix(CLIENT_PREFIX).partition("/")
    return client, slash + rest or "/"


def client_variables(base_url: str) -> dict[str, str]:
    """Return the environment variables with which clients use a proxy. `base_url` is its address for clients."""
    return {
        "ANTHROPIC_BASE_URL": f"{base_url}/{ANTHROPIC}",
        "OPENAI_BASE_URL": f"{base_url}/{OPENAI}{VERSION}",
    }


def direct_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which a client with the environment `env` sends requests to this machine directly.

    Empty if `env` names no HTTP proxy.
    """
    if not any(name.lower() in PROXY_VARIABLES for name in env):
        return {}
    names = [name for name in ("NO_PROXY", "no_proxy") if name in env] or ["NO_PROXY", "no_proxy"]
    return {name: ",".join(filter(None, (env.get(name, ""), LOOPBACK_HOSTS))) for name in names}


def client_url(base_url: str, client: str) -> str:
    """Return the base URL for a client with a name."""
    return f"{base_url}{CLIENT_PREFIX}{client}"


def _parsed(setting: str) -> tuple[str, str]:
    name, separator, url = setting.partition("=")
    if not separator or not NAME.fullmatch(name) or name in RESERVED:
        raise ConfigError(
            f"--upstream {setting!r}: expected NAME=URL, with a name of a-z 0-9 _ - that is none of "
            f"{', '.join(sorted(RESERVED))}"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"--upstream {setting!r}: {error}") from None
    wrong = [
        "the URL must begin with http:// or https://" * (parts.scheme not in ("http", "https")),
        "the URL has no host" * (not parts.hostname),
        "the URL contains a user or a password; the client sends its key itself" * ("@" in parts.netloc),
        "the URL has a query or a fragment" * bool(parts.query or parts.fragment),
        "the port is missing or 0" * (port == 0 or parts.netloc.endswith(":")),
    ]
    if problem := next(filter(None, wrong), ""):
        shown = re.sub(r"//[^/@]*@", "//", setting)
        raise ConfigError(f"--upstream {shown!r}: {problem}")
    return name, url.rstrip("/")
