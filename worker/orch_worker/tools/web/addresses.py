"""Decides which network addresses an agent may connect to: only public addresses of other machines."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Final

from ..api.base import ToolError

__all__ = ["is_own_address", "is_public", "is_public_and_remote", "resolve"]

MAX_ADDRESSES: Final = 8
DOCUMENTATION_ADDRESSES: Final = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses that are reserved for documentation, so that no machine has them."""

# These addresses are formally public, but they may map to any other address, or are no longer public.
MAPPED_NETWORKS: Final = tuple(
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
            "100.64.0.0/10",  # carrier-grade NAT
        ),
    )
)


async def resolve(host: str, port: int) -> list[str]:
    """Return at most 8 addresses of `host` from the system resolver. Raise ToolError if resolving fails."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ToolError(f"{host!r} cannot be resolved: {error}.") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))[:MAX_ADDRESSES]


def is_public(address: str) -> bool:
    """Return whether `address` is publicly reachable and does not map to another, non-public address."""
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
    return not any(parsed in network for network in MAPPED_NETWORKS if network.version == parsed.version)


def is_own_address(address: str) -> bool:
    """Return whether `address` belongs to this machine. Traffic to such an address bypasses firewalls."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # Some systems allow binding to any address. In this case, the test gives no information.
    return _can_bind(family, address) and not _can_bind(family, DOCUMENTATION_ADDRESSES[family])


def is_public_and_remote(address: str) -> bool:
    """Return whether `address` is public and belongs to another machine."""
    return is_public(address) and not is_own_address(address)


def _can_bind(family: socket.AddressFamily, address: str) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
