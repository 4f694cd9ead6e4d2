"""Which addresses of the network an agent may be led to: those anybody can reach, and no others."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Final

from ..api.base import ToolError

__all__ = ["is_own_address", "is_public", "is_public_and_remote", "resolve"]

MAX_ADDRESSES: Final = 8
NOBODYS: Final = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses that no machine has: for documentation."""

# Public by their numbers, but they lead on to any other address, or were public once.
LEADING_ELSEWHERE: Final = tuple(
    map(
        ipaddress.ip_network,
        (
            "::/96",  # IPv4-compatible
            "64:ff9b::/96",  # NAT64
            "64:ff9b:1::/48",  # NAT64 of a local network
            "2001::/23",  # Teredo and other protocol assignments
            "2002::/16",  # 6to4
            "5f00::/16",  # segment routing
            "fec0::/10",  # site-local
            "192.0.0.0/24",  # protocol assignments
            "192.88.99.0/24",  # 6to4 relays
            "100.64.0.0/10",  # carriers' own
        ),
    )
)


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of `host`, at most 8, as the system's resolver has them. Raises ToolError."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ToolError(f"{host!r} cannot be resolved: {error}.") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))[:MAX_ADDRESSES]


def is_public(address: str) -> bool:
    """Whether `address` is one that everybody can reach, and does not stand for one that not everybody can."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.scope_id is not None:
            return False
        if parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
    if not parsed.is_global or parsed.is_multicast or parsed.is_reserved or parsed.is_unspecified:
        return False
    return not any(parsed in network for network in LEADING_ELSEWHERE if network.version == parsed.version)


def is_own_address(address: str) -> bool:
    """Whether `address` is one of this machine's own: what is sent there goes past every wall around it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # Some systems let everybody take any address: there nothing can be said of one.
    return _can_be_taken(family, address) and not _can_be_taken(family, NOBODYS[family])


def is_public_and_remote(address: str) -> bool:
    """Whether `address` is public, and another machine's."""
    return is_public(address) and not is_own_address(address)


def _can_be_taken(family: socket.AddressFamily, address: str) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
