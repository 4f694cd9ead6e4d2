"""HTTP requests to verified addresses, with limits of time and size. The targets of redirects are verified too."""

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
MIN_RATIO_BYTES: Final = 1 << 20
CONNECT_SECONDS: Final = 10.0
PORTS: Final = {"http": 80, "https": 443}
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
HEADERS: Final = {
    "User-Agent": "Mozilla/5.0 (compatible; orch)",
    "Accept": "text/html, application/xhtml+xml, text/*, application/json, */*;q=0.5",
    "Accept-Encoding": "gzip, deflate",
}

Resolve = Callable[[str, int], Awaitable[list[str]]]


class FetchedPage(Struct, frozen=True):
    """The response for a URL. `truncated` is True if the body had more than 5 MiB."""

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
    """Return the page at `url`, within `seconds` and after at most five redirects. Raise ToolError if this fails.

    Each host is resolved once. All addresses of a host must be `allowed`, and the connection uses one of these
    addresses. Therefore, a resolver that later returns other addresses has no effect.
    """
    try:
        async with asyncio.timeout(seconds):
            for _ in range(MAX_REDIRECTS + 1):
                target = _parse_url(url)
                addresses = await resolve(target.hostname or "", _port(target))
                if blocked := next((address for address in addresses if not allowed(address)), None):
                    raise ToolError(
                        f"{url!r} leads to {blocked}, which is an address of this machine, or not a public address: "
                        "refused."
                    )
                response = await _get_page(target, addresses, tls)
                if isinstance(response, FetchedPage):
                    return response
                url = urljoin(url, response)
            raise ToolError(f"More than {MAX_REDIRECTS} redirects, the last to {url!r}: stopped.")
    except TimeoutError:
        raise ToolError(f"{url!r} was not loaded completely within {seconds:.0f} s.") from None


async def post_json(url: str, body: Any, *, headers: Mapping[str, str], seconds: float) -> FetchedPage:
    """Send `body` as JSON to a fixed service, and return the response. Raise ToolError if the request fails."""
    import httpx2

    request_headers = {**HEADERS, **headers, "Content-Type": "application/json"}
    try:
        async with asyncio.timeout(seconds):
            response = await _send_request("POST", url, request_headers, content=msgspec.json.encode(body))
    except TimeoutError:
        raise ToolError(f"{url!r} did not answer within {seconds:.0f} s.") from None
    except httpx2.HTTPError as error:
        raise ToolError(f"{url!r} did not answer: {error or type(error).__name__}.") from error
    if isinstance(response, str):
        raise ToolError(f"{url!r} redirects to {response!r}, which is not allowed.")
    return response


def _parse_url(url: str) -> SplitResult:
    """Return the parts of `url`. Raise ToolError unless `url` is a plain http or https address."""
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


async def _get_page(target: SplitResult, addresses: list[str], tls: ssl.SSLContext | None) -> FetchedPage | str:
    """Return the page, or the redirect target, from the first reachable address in `addresses`."""
    import httpx2

    host = (target.hostname or "").encode("idna").decode()
    host_header = (f"[{host}]" if ":" in host else host) + (f":{target.port}" if target.port is not None else "")
    path = (target.path or "/") + (f"?{target.query}" if target.query else "")
    why: Exception | str = "it has no address"
    for address in addresses:
        host_part = f"[{address}]" if ":" in address else address
        url = f"{target.scheme}://{host_part}:{_port(target)}{path}"
        try:
            response = await _send_request("GET", url, {**HEADERS, "Host": host_header}, host=host, tls=tls)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            why = error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise ToolError(f"{target.geturl()!r}: {error or type(error).__name__}.") from error
        else:
            return (
                msgspec.structs.replace(response, url=target.geturl())
                if isinstance(response, FetchedPage)
                else response
            )
    raise ToolError(f"{target.geturl()!r} cannot be reached: {why or type(why).__name__}.")


async def _send_request(
    method: str,
    url: str,
    headers: dict[str, str],
    *,
    host: str = "",
    content: bytes | None = None,
    tls: ssl.SSLContext | None = None,
) -> FetchedPage | str:
    """Return the response to one request, or the target of a redirect. `host` is the expected TLS name of the server.

    Raise HTTPError if the request fails, and ToolError for a response that is not acceptable.
    """
    import httpx2

    from ...backends.http.transport import ssl_context_for

    # Only the connection has a timeout here. The caller's timeout covers the rest.
    timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS)
    async with httpx2.AsyncClient(verify=tls or ssl_context_for(url), trust_env=False, timeout=timeout) as client:
        extensions = {"sni_hostname": host} if host else None
        request = client.build_request(method, url, headers=headers, content=content, extensions=extensions)
        response = await client.send(request, stream=True)
        try:
            location = response.headers.get("location")
            if response.status_code in REDIRECTS and location:
                return str(location)
            body, truncated = await _read_body(response)
            return FetchedPage(url, response.status_code, response.headers.get("content-type", ""), body, truncated)
        finally:
            await response.aclose()


async def _read_body(response: Response) -> tuple[bytes, bool]:
    """Return at most 5 MiB of the decoded body, and whether there is more. Raise ToolError for a decompression bomb."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "", "gzip", "x-gzip", "deflate"):
        raise ToolError(f"The response is encoded as {encoding!r}, which was not requested.")
    decoder = zlib.decompressobj(zlib.MAX_WBITS | 32) if encoding not in ("identity", "") else None
    body, bytes_read = bytearray(), 0
    async for chunk in response.aiter_raw():
        free_bytes = MAX_BYTES + 1 - len(body)
        try:
            body += decoder.decompress(chunk, free_bytes) if decoder else chunk[:free_bytes]
        except zlib.error as error:
            raise ToolError(f"Cannot decode the response as {encoding}: {error}.") from error
        bytes_read += len(chunk) - (len(decoder.unconsumed_tail) if decoder else 0)
        if len(body) > MIN_RATIO_BYTES and len(body) > MAX_RATIO * bytes_read:
            raise ToolError(f"The decompressed response has more than {MAX_RATIO} times the compressed size: refused.")
        if len(body) > MAX_BYTES:
            return bytes(body[:MAX_BYTES]), True
        if decoder and decoder.eof:  # The decoder would keep all further bytes in memory.
            break
    return bytes(body), False
