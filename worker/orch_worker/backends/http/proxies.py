"""Which proxy a request to a model uses, according to the environment variables `*_PROXY`.

This module does no I/O. The rules are those of curl:

- `HTTPS_PROXY` and `HTTP_PROXY` apply to their scheme, `ALL_PROXY` to both. A name in lower case has priority.
- `NO_PROXY` lists hosts, domains, addresses and networks that are reached directly, also with a port.
- Servers on this machine are always reached directly, so that local data stays on this machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from orch_protocol.core.errors import ConfigError

from ...system.secrets import mask_passwords
from ..models import is_loopback

__all__ = ["Proxy", "ignored_entries", "proxy_of"]

PORTS: Final = {"http": 80, "https": 443}
SCHEMES: Final = {"http": "http", "https": "https", "socks5": "socks5", "socks5h": "socks5h", "socks": "socks5"}
"""Schemes of proxies, and the name that the HTTP client uses for each."""
EXTRA: Final = "orch-agents[socks]"
ANY_SERVER: Final = urlsplit("https://server.invalid")
THIS_MACHINE: Final = re.compile(r"0\.0\.0\.0|::|(.+\.)?localhost\.?", re.I)
"""Hosts that mean another machine to a proxy. OLLAMA_HOST is often 0.0.0.0, the address on which the server listens."""
HOST: Final = re.compile(r"[^\s/@:\[\]]+")


class Proxy(Struct, frozen=True):
    """The proxy for a server, and the variable that sets it. An empty `url` means a direct connection."""

    url: str = ""
    variable: str = ""

    def __str__(self) -> str:
        """Return the address without a password, and the variable."""
        return f"the proxy {mask_passwords(self.url)} of {self.variable}" if self.url else ""


DIRECT: Final = Proxy()


def _has_socks() -> bool:
    return find_spec("socksio") is not None


def proxy_of(base_url: str, env: Mapping[str, str], has_socks: Callable[[], bool] = _has_socks) -> Proxy:
    """Return the proxy for requests to `base_url`. `has_socks` returns whether SOCKS proxies can be used.

    Raise ConfigError if the proxy that applies cannot be used. The error names the variable, without passwords.
    """
    target = urlsplit(base_url)
    if target.scheme not in PORTS or is_loopback(base_url) or THIS_MACHINE.fullmatch(target.hostname or ""):
        return DIRECT
    variable, value = next(_settings(target.scheme, env), ("", ""))
    if not value:
        return DIRECT
    if any(_matches(entry, target) for entry in _no_proxy(env)[1]):
        return DIRECT
    return Proxy(_checked(value, variable, has_socks), variable)


def ignored_entries(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return a text for each entry of NO_PROXY that cannot be read, if a proxy is set. Such an entry has no effect."""
    if not any(list(_settings(scheme, env)) for scheme in PORTS):
        return ()
    name, entries = _no_proxy(env)
    return tuple(
        f"{name} contains {entry!r:.80}, which is not a host, an address or a network: ignored"
        for entry in entries
        if _matches(entry, ANY_SERVER) is None
    )


def _no_proxy(env: Mapping[str, str]) -> tuple[str, list[str]]:
    name, value = _variable("no_proxy", env)
    return name, [entry for entry in re.split(r"[\s,]+", value) if entry]


def _settings(scheme: str, env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for lower in (f"{scheme}_proxy", "all_proxy"):
        name, value = _variable(lower, env)
        # In a CGI program, a client can set HTTP_PROXY with a header.
        if value and not (name == "HTTP_PROXY" and "REQUEST_METHOD" in env):
            yield name, value


def _variable(lower: str, env: Mapping[str, str]) -> tuple[str, str]:
    """Return the name and the value of the variable, whose name is `lower` or in upper case."""
    name = lower if lower in env else lower.upper()
    return name, env.get(name, "").strip()


def _checked(value: str, variable: str, has_socks: Callable[[], bool]) -> str:
    """Return the address of the proxy in the form that the HTTP client needs. Raise ConfigError if it is not usable."""
    shown = re.sub(r"^([^/@]*://)?.*@", r"\1", value, flags=re.S)  # A password may contain a slash.
    address = value if "://" in value else f"http://{value}"
    problem = ""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{variable} is not the address of a proxy: {shown!r}: {error}") from None
    if parts.scheme not in SCHEMES:
        problem = f"the scheme {parts.scheme!r} is not supported; use http, https, socks5 or socks5h"
    elif not parts.hostname or re.search(r"\s", value):
        problem = "it has no host name" if not parts.hostname else "it contains a blank"
    elif port == 0:
        problem = "the port is 0"
    if problem:
        raise ConfigError(f"{variable} is not the address of a proxy: {shown!r}: {problem}")
    scheme = SCHEMES[parts.scheme]
    if scheme.startswith("socks") and not has_socks():
        raise ConfigError(
            f"{variable} is a SOCKS proxy ({shown}), which needs a package: pip install '{EXTRA}'. "
            f"To connect without a proxy, unset {variable} or add the host to NO_PROXY"
        )
    return f"{scheme}://{parts.netloc}"


def _matches(entry: str, target: SplitResult) -> bool | None:
    """Return whether an entry of NO_PROXY applies to `target`. Return None if the entry cannot be read."""
    if entry == "*":
        return True
    scheme, separator, rest = entry.rpartition("://")
    if separator and scheme not in ("all", target.scheme):
        return False if scheme in PORTS else None
    host = (target.hostname or "").rstrip(".")
    if "/" in (rest := rest.rstrip("/")):
        return _in_network(rest, host)
    found = _host_and_port(rest)
    if found is None:
        return None
    wanted, port = found
    if port and port != (target.port or PORTS.get(target.scheme)):
        return False
    return _is_host(wanted.lower().rstrip("."), host)


def _in_network(entry: str, host: str) -> bool | None:
    try:
        address, _, bits = entry.partition("/")
        network = ip_network(f"{address.strip('[]')}/{bits}", strict=False)
    except ValueError:
        return None
    try:
        return ip_address(host) in network
    except ValueError:
        return False  # A host name may resolve to any address.


def _host_and_port(entry: str) -> tuple[str, int] | None:
    """Return the host and the port of `entry`. The port is 0 if there is none. Return None if it cannot be read."""
    try:
        return str(ip_address(entry.strip("[]"))), 0
    except ValueError:
        pass
    host, colon, port = entry.rpartition(":") if re.search(r":\d*$", entry) else (entry, "", "")
    if colon and not (port.isdigit() and 0 < int(port) < 65536):
        return None
    if host.startswith("[") and host.endswith("]"):
        try:
            return str(ip_address(host[1:-1])), int(port or 0)
        except ValueError:
            return None
    return (host, int(port or 0)) if HOST.fullmatch(host) else None


def _is_host(wanted: str, host: str) -> bool:
    try:
        return ip_address(wanted) == ip_address(host)
    except ValueError:
        pass
    if wanted.startswith("*."):
        return host.endswith(wanted[1:])
    wanted = wanted.lstrip(".")
    return bool(wanted) and (host == wanted or host.endswith(f".{wanted}"))
