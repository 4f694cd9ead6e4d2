"""HTTP with bounds: to vetted addresses only, with redirects vetted anew, so much time and so many bytes."""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, urljoin, urlsplit

import msgspec
from msgspec import Struct

from ..api.base import ToolError
from .addresses import is_public_and_remote, resolve

if TYPE_CHECKING:
    from httpx2 import Response

__all__ = ["FetchedPage", "fetch", "post_json"]

MAX_REDIRECTS: Final = 5
MAX_BYTES: Final = 5 << 20
MAX_RATIO: Final = 100
RATIO_FROM: Final = 1 << 20
CONNECT_SECONDS: Final = 10.0
PORTS: Final = {"http": 80, "https": 443}
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
WANTED: Final = {
    "User-Agent": "Mozilla/5.0 (compatible; orch)",
    "Accept": "text/html, application/xhtml+xml, text/*, application/json, */*;q=0.5",
    "Accept-Encoding": "gzip, deflate",
}

Resolve = Callable[[str, int], Awaitable[list[str]]]


class FetchedPage(Struct, frozen=True):
    """What a URL led to. `truncated`: there was more than 5 MiB of it."""

    url: str
    status: int
    content_type: str
    body: bytes
    truncated: bool = False


async def fetch(
    url: str,
    *,
    seconds: float,
    resolve: Resolve = resolve,
    allowed: Callable[[str], bool] = is_public_and_remote,
    tls: ssl.SSLContext | None = None,
) -> FetchedPage:
    """Return what `url` leads to, over at most five redirects, within `seconds`. Raises ToolError.

    Each host is resolved once, every address of it must be `allowed`, and one of those very addresses is connected to:
    a resolver that answers otherwise the next time changes nothing.
    """
    try:
        async with asyncio.timeout(seconds):
            for _ in range(MAX_REDIRECTS + 1):
                target = _target(url)
                addresses = await resolve(target.hostname or "", _port(target))
                if bad := next((address for address in addresses if not allowed(address)), None):
                    raise ToolError(
                        f"{url!r} leads to {bad}, which is this machine, or not an address of the public network: "
                        "refused."
                    )
                found = await _get(target, addresses, tls)
                if isinstance(found, FetchedPage):
                    return found
                url = urljoin(url, found)
            raise ToolError(f"More than {MAX_REDIRECTS} redirects, the last to {url!r}: given up.")
    except TimeoutError:
        raise ToolError(f"{url!r} was not there in full within {seconds:.0f} s.") from None


async def post_json(url: str, body: Any, *, headers: Mapping[str, str], seconds: float) -> FetchedPage:
    """Return the answer to `body`, sent as JSON to a service that we chose ourselves. Raises ToolError."""
    import httpx2

    sent = {**WANTED, **headers, "Content-Type": "application/json"}
    try:
        async with asyncio.timeout(seconds):
            found = await _exchange("POST", url, sent, content=msgspec.json.encode(body))
    except TimeoutError:
        raise ToolError(f"{url!r} did not answer within {seconds:.0f} s.") from None
    except httpx2.HTTPError as error:
        raise ToolError(f"{url!r} did not answer: {error or type(error).__name__}.") from error
    if isinstance(found, str):
        raise ToolError(f"{url!r} redirects to {found!r}, which it should not.")
    return found


def _target(url: str) -> SplitResult:
    """Return `url` in its parts. Raises ToolError for all but a plain http or https address."""
    try:
        parts = urlsplit(url.strip())
        _ = parts.port, (parts.hostname or "").encode("idna")
    except ValueError as error:
        raise ToolError(f"{url!r} is not a URL: {error}.") from error
    if parts.scheme not in PORTS:
        raise ToolError(f"{url!r}: only http and https can be fetched.")
    if not parts.hostname:
        raise ToolError(f"{url!r} names no host.")
    if "@" in parts.netloc or "\\" in parts.netloc:
        raise ToolError(f"{url!r}: a URL with credentials or a backslash before its path is not fetched.")
    return parts


def _port(target: SplitResult) -> int:
    return PORTS[target.scheme] if target.port is None else target.port


async def _get(target: SplitResult, addresses: list[str], tls: ssl.SSLContext | None) -> FetchedPage | str:
    """Return the page, or where it redirects to, from the first of `addresses` that can be connected to."""
    import httpx2

    host = (target.hostname or "").encode("idna").decode()
    named = (f"[{host}]" if ":" in host else host) + (f":{target.port}" if target.port is not None else "")
    path = (target.path or "/") + (f"?{target.query}" if target.query else "")
    why: Exception | str = "it has no address"
    for address in addresses:
        place = f"[{address}]" if ":" in address else address
        url = f"{target.scheme}://{place}:{_port(target)}{path}"
        try:
            found = await _exchange("GET", url, {**WANTED, "Host": named}, host=host, tls=tls)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            why = error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise ToolError(f"{target.geturl()!r}: {error or type(error).__name__}.") from error
        else:
            return msgspec.structs.replace(found, url=target.geturl()) if isinstance(found, FetchedPage) else found
    raise ToolError(f"{target.geturl()!r} cannot be reached: {why or type(why).__name__}.")


async def _exchange(
    method: str,
    url: str,
    headers: dict[str, str],
    *,
    host: str = "",
    content: bytes | None = None,
    tls: ssl.SSLContext | None = None,
) -> FetchedPage | str:
    """Return the answer to one request, or where it redirects to. With `host`, that is who must answer at the address.

    Raises HTTPError, ToolError.
    """
    import httpx2

    from ...backends.http.transport import ssl_context

    # No limits of the client's own but for connecting: the caller's deadline covers all of it.
    timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS)
    async with httpx2.AsyncClient(verify=tls or ssl_context(), trust_env=False, timeout=timeout) as client:
        extensions = {"sni_hostname": host} if host else None
        request = client.build_request(method, url, headers=headers, content=content, extensions=extensions)
        response = await client.send(request, stream=True)
        try:
            location = response.headers.get("location")
            if response.status_code in REDIRECTS and location:
                return str(location)
            body, truncated = await _body(response)
            return FetchedPage(url, response.status_code, response.headers.get("content-type", ""), body, truncated)
        finally:
            await response.aclose()


async def _body(response: Response) -> tuple[bytes, bool]:
    """Return the decoded body, at most 5 MiB of it, and whether there was more. Raises ToolError for a bomb."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "", "gzip", "x-gzip", "deflate"):
        raise ToolError(f"The answer is encoded as {encoding!r}, which was not asked for.")
    decoder = zlib.decompressobj(zlib.MAX_WBITS | 32) if encoding not in ("identity", "") else None
    body, unpacked = bytearray(), 0
    async for chunk in response.aiter_raw():
        room = MAX_BYTES + 1 - len(body)
        try:
            body += decoder.decompress(chunk, room) if decoder else chunk[:room]
        except zlib.error as error:
            raise ToolError(f"Cannot decode the response as {encoding}: {error}.") from error
        unpacked += len(chunk) - (len(decoder.unconsumed_tail) if decoder else 0)
        if len(body) > RATIO_FROM and len(body) > MAX_RATIO * unpacked:
            raise ToolError(f"The answer unpacks to more than {MAX_RATIO} times its size: refused.")
        if len(body) > MAX_BYTES:
            return bytes(body[:MAX_BYTES]), True
        if decoder and decoder.eof:  # what follows would be kept by the decoder, without end
            break
    return bytes(body), False
