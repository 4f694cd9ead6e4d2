"""Who may use the proxy: programs of this machine, or clients that send the token.

Without a token, the proxy listens on the loopback interface only. Web pages can reach that interface through the
browser, so requests are refused whose Host is another name, as after DNS rebinding, or that come from another site.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from orch_protocol.core.errors import ConfigError

__all__ = ["TOKEN_HEADER", "TOKEN_PREFIX", "Access", "Refused", "check_token", "is_loopback_host"]

TOKEN_HEADER: Final = "x-orch-token"
TOKEN_PREFIX: Final = "/t/"
MIN_TOKEN: Final = 16
TOKEN: Final = re.compile(r"[A-Za-z0-9._~-]+")


class Refused(Exception):
    """The proxy refuses a request. `status` is the status of the response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Access(Struct, frozen=True):
    """The rule for requests. With an empty `token`, only programs of this machine may send requests."""

    token: str = ""

    def path_of(self, target: str, headers: Mapping[str, str]) -> str:
        """Return the target of a request without the token. Raises Refused if the client may not send it."""
        if not target.startswith("/"):
            raise Refused(400, f"this is not a forward proxy; set it as the base URL of the client; got {target:.200}")
        given, path = _split(target)
        if not self.token:
            _check_local(headers)
        elif not any(_is_equal(each, self.token) for each in (given, headers.get(TOKEN_HEADER, ""))):
            raise Refused(
                401,
                f"the token of orch proxy is missing or wrong: send it in the header {TOKEN_HEADER}, or begin the base "
                f"URL with {TOKEN_PREFIX}TOKEN",
            )
        return path


def check_token(token: str) -> str:
    """Return `token`. Raises ConfigError, which does not quote it, if it is too short or cannot be part of a URL."""
    if token and (len(token) < MIN_TOKEN or not TOKEN.fullmatch(token)):
        raise ConfigError(
            f"the token must have at least {MIN_TOKEN} characters of A-Z a-z 0-9 . _ ~ -; got {len(token)} characters. "
            "Create one with: python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return token


def is_loopback_host(host: str) -> bool:
    """Return whether `host`, a name or an address, is this machine's loopback interface."""
    plain = host.strip("[]").rstrip(".").lower()
    try:
        return plain == "localhost" or ip_address(plain).is_loopback
    except ValueError:
        return False


def _split(target: str) -> tuple[str, str]:
    """Return the token at the beginning of a target, and the rest. A proxy without a token removes it as well."""
    if not target.startswith(TOKEN_PREFIX):
        return "", target
    given, slash, rest = target.removeprefix(TOKEN_PREFIX).partition("/")
    return given, slash + rest or "/"


def _is_equal(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), token.encode())


def _check_local(headers: Mapping[str, str]) -> None:
    host = headers.get("host", "")
    if not is_loopback_host(_host_of(f"//{host}")):
        raise Refused(
            403, f"the header Host is {host!r:.200}: without a token, clients reach the proxy as 127.0.0.1 or localhost"
        )
    origin = headers.get("origin")
    if origin is not None and not is_loopback_host(_host_of(origin)):
        raise Refused(403, f"requests of web pages from {origin!r:.200} are refused")
    if headers.get("sec-fetch-site", "").lower() == "cross-site":
        raise Refused(403, "requests of web pages from other sites are refused")


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
