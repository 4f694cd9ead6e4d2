"""The web tools: allowed addresses, redirects, limits on size and time, and search."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orch_worker.system.secrets import ApiKeys
from orch_worker.tools.api.base import ToolContext, ToolError
from orch_worker.tools.dispatch.presets import make_toolbox
from orch_worker.tools.web import addresses
from orch_worker.tools.web.addresses import is_own_address, is_public, is_public_and_remote, resolve
from orch_worker.tools.web.http import MAX_BYTES, FetchedPage, fetch
from orch_worker.tools.web.web import fetch_url, search

LOOPBACK = """
    http://127.0.0.1/ http://127.1/ http://127.0.1/ http://2130706433/ http://0x7f000001/ http://0x7f.1/
    http://0177.0.0.1/ http://017700000001/ http://127.255.255.254/ http://0/ http://0.0.0.0/
    http://localhost/ http://LOCALHOST/ http://[::1]/ http://[::]/ http://[0:0:0:0:0:0:0:1]/
    http://[::ffff:127.0.0.1]/ http://[::ffff:7f00:1]/ http://[::127.0.0.1]/ http://[64:ff9b::7f00:1]/
    http://[2002:7f00:1::]/ http://\u2460\u2461\u2466.0.0.1/ http://127\u30020\u30020\u30021/
    http://\uff11\uff12\uff17.0.0.1/
""".split()  # noqa: SIM905

NOT_PUBLIC = """
    0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 127.0.0.1 169.254.169.254 172.16.0.1 192.0.0.192 192.0.2.1 192.88.99.1
    192.168.1.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.250 240.0.0.1 255.255.255.255 :: ::1
    ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 64:ff9b::7f00:1 64:ff9b::808:808
    64:ff9b:1::1 100::1 2001::1 2001:db8::1 2002:7f00:1:: 2002:808:808:: 5f00::1 fc00::1 fd00:ec2::254 fe80::1
    fe80::1%eth0 2606:4700::1%eth0 fec0::1 ff02::1 ff0e::1 example.org 127.1
""".split()  # noqa: SIM905

Handler = Callable[[bytes], bytes]


@asynccontextmanager
async def serving(answer: Handler) -> AsyncIterator[int]:
    """Serve HTTP on loopback and yield the port.

    `answer` receives the bytes of a request and returns the bytes of the response.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                (int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), 0
            )
            writer.write(answer(head + await reader.readexactly(length)))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def dripping(beginning: bytes) -> AsyncIterator[int]:
    """Serve responses that start with `beginning` and do not end, and yield the port."""
    over = asyncio.Event()

    async def drip(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(beginning)
        await over.wait()
        writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        over.set()


def http(body: bytes = b"ok", status: int = 200, **headers: str) -> bytes:
    """Return the bytes of an HTTP response."""
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    head = "\r\n".join([f"HTTP/1.1 {status} x", f"Content-Length: {len(body)}", "Connection: close", *lines, "", ""])
    return head.encode() + body


async def here(_host: str, _port: int) -> list[str]:
    """Resolve every name to loopback."""
    return ["127.0.0.1"]


async def get(url: str, **options: Any) -> FetchedPage:
    """Fetch `url` with loopback in place of the public network."""
    return await fetch(url, **({"seconds": 20.0, "resolve": here, "allowed": lambda _: True} | options))


class TestAddresses:
    """Addresses that may be fetched."""

    @pytest.mark.parametrize(
        "address",
        NOT_PUBLIC,
    )
    def test_non_public_addresses_are_recognized(self, address: str) -> None:
        """Private, loopback, link-local, reserved, multicast and embedded addresses are not public."""
        assert not is_public(address)

    @pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "2a00:1450::1"])
    def test_public_addresses_are_recognized(self, address: str) -> None:
        """Addresses that every machine on the internet can reach are public."""
        assert is_public(address)

    @pytest.mark.parametrize("url", LOOPBACK)
    async def test_all_spellings_of_loopback_are_refused(self, url: str) -> None:
        """`fetch_url` raises a ToolError for each spelling of a loopback address."""
        with pytest.raises(ToolError, match=r"not a public address: refused|cannot be resolved"):
            await fetch_url.run(ToolContext(Path("/")), {"url": url})

    @pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "0.0.0.0", "::1"])
    def test_own_addresses_are_recognized(self, address: str) -> None:
        """Loopback and unspecified addresses are addresses of this machine."""
        assert is_own_address(address)

    @pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "192.0.2.1", "no.address"])
    def test_addresses_of_other_machines_are_not_own(self, address: str) -> None:
        """Addresses of other machines, and text that is not an address, are not addresses of this machine."""
        assert not is_own_address(address)

    async def test_public_address_of_this_machine_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A fetch to a public address of this machine is refused, because its servers may be for this machine only."""
        monkeypatch.setattr(addresses, "is_public", lambda _: True)
        async with serving(lambda _: http()) as port:
            with pytest.raises(ToolError, match=r"leads to 127\.0\.0\.1, which is an address of this machine, or"):
                await get(f"http://site.test:{port}/", allowed=is_public_and_remote)

    async def test_own_address_check_is_skipped_where_any_address_can_be_bound(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If a program can bind any address, no public address counts as one of this machine."""
        monkeypatch.setattr(addresses, "_can_bind", lambda *_: True)
        assert not is_own_address("8.8.8.8")

    async def test_resolver_returns_each_address_once(self) -> None:
        """The resolver removes duplicate addresses."""
        assert await resolve("127.1", 80) == ["127.0.0.1"]

    @pytest.mark.parametrize("host", ["a..b", "x" * 70 + ".test"])
    async def test_invalid_host_name_is_an_error(self, host: str) -> None:
        """An invalid host name raises a ToolError instead of an exception of a library."""
        with pytest.raises(ToolError, match=r"is not a URL|cannot be resolved"):
            await get(f"http://{host}/", resolve=resolve)


class TestFetch:
    """The requests of a fetch: URLs, addresses and headers."""

    @pytest.mark.parametrize(
        "url",
        [
            "file:///etc/passwd",
            "gopher://site.test/",
            "ftp://site.test/",
            "site.test",
            "//site.test/",
            "http://",
            "http:///path",
            "http://user@site.test/",
            "http://user:secret@site.test/",
            "http://site.test@127.0.0.1/",
            "http://127.0.0.1\\@site.test/",
            "http://site.test:99999/",
            "http://site.test:x/",
            "http://[::1/",
            "javascript:alert(1)",
            "data:text/html,x",
            "",
        ],
    )
    async def test_invalid_urls_are_refused_before_resolving(self, url: str) -> None:
        """URLs with other schemes, credentials or invalid syntax are errors, and no name is resolved."""

        async def never(host: str, port: int) -> list[str]:
            raise AssertionError(f"looked up {host}:{port}")

        with pytest.raises(ToolError):
            await get(url, resolve=never)

    async def test_request_goes_to_the_vetted_address_with_the_host_name(self) -> None:
        """The request has the host name in its header and contains no credentials."""
        seen: list[bytes] = []

        def answer(head: bytes) -> bytes:
            seen.append(head)
            return http(b"hi", Content_Type="text/plain")

        async with serving(answer) as port:
            page = await get(f"http://Site.test:{port}/a%20b/c d?q=1#part")
        assert page == FetchedPage(f"http://Site.test:{port}/a%20b/c d?q=1#part", 200, "text/plain", b"hi")
        assert seen[0].startswith(b"GET /a%20b/c%20d?q=1 HTTP/1.1\r\n")
        assert f"\r\nhost: site.test:{port}\r\n".encode() in seen[0].lower()
        assert b"authorization" not in seen[0].lower()
        assert b"cookie" not in seen[0].lower()

    async def test_tls_certificate_is_checked_for_the_host_name(self) -> None:
        """The TLS handshake contains the name of the host."""
        hello: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            hello.set_result(await reader.read(4096))
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            with pytest.raises(ToolError):
                await get(f"https://site.test:{server.sockets[0].getsockname()[1]}/")
        assert b"site.test" in await hello

    async def test_proxy_variables_are_ignored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A fetch uses no proxy, because a proxy would resolve the name again and could connect to any address."""
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        async with serving(lambda _: http(b"direct")) as port:
            assert (await get(f"http://site.test:{port}/")).body == b"direct"

    async def test_every_address_must_be_public(self) -> None:
        """A host with one private address among public addresses is refused."""

        async def both(_host: str, _port: int) -> list[str]:
            return ["8.8.8.8", "10.0.0.1"]

        with pytest.raises(ToolError, match=r"leads to 10\.0\.0\.1"):
            await get("http://site.test/", resolve=both, allowed=is_public)

    async def test_host_is_resolved_once(self) -> None:
        """Each fetch resolves the host once, so that it connects to the address that was checked."""
        answers = ["127.0.0.1", "127.0.0.2"]
        asked: list[str] = []

        async def rebinding(host: str, _port: int) -> list[str]:
            asked.append(host)
            return [answers[len(asked) - 1]]

        async with serving(lambda _: http(b"the first")) as port:
            url = f"http://rebinding.test:{port}/"
            assert (await get(url, resolve=rebinding, allowed="127.0.0.1".__eq__)).body == b"the first"
            with pytest.raises(ToolError, match=r"leads to 127\.0\.0\.2"):
                await get(url, resolve=rebinding, allowed="127.0.0.1".__eq__)
        assert asked == ["rebinding.test"] * 2

    async def test_next_address_is_tried(self) -> None:
        """If the first address of a host refuses the connection, the next address is used."""

        async def two(_host: str, _port: int) -> list[str]:
            return ["127.0.0.2", "127.0.0.1"]

        async with serving(lambda _: http()) as port:
            assert (await get(f"http://site.test:{port}/", resolve=two)).status == 200

    async def test_refused_connection_names_the_host(self) -> None:
        """The error for a refused connection contains the URL."""
        async with serving(lambda _: b"") as port:
            pass
        with pytest.raises(ToolError, match=rf"'http://site.test:{port}/' cannot be reached"):
            await get(f"http://site.test:{port}/")

    async def test_host_without_addresses_is_an_error(self) -> None:
        """A name that resolves to no address raises a ToolError."""

        async def none(_host: str, _port: int) -> list[str]:
            return []

        with pytest.raises(ToolError, match="has no address"):
            await get("http://site.test/", resolve=none)


class TestRedirects:
    """Redirects to other URLs."""

    @pytest.mark.parametrize(
        "target", ["http://inside.test:{port}/x", "//inside.test:{port}/x", "HTTP://INSIDE.TEST:{port}"]
    )
    async def test_redirect_to_loopback(self, target: str) -> None:
        """A redirect to a host with an address that is not allowed is an error and causes no second request."""
        requests: list[bytes] = []

        def answer(head: bytes) -> bytes:
            requests.append(head)
            return http(status=302, Location=target.format(port=port))

        async def names(host: str, _port: int) -> list[str]:
            return ["127.0.0.1"] if host == "site.test" else ["127.0.0.2"]

        async with serving(answer) as port:
            with pytest.raises(ToolError, match=r"leads to 127\.0\.0\.2"):
                await get(f"http://site.test:{port}/", resolve=names, allowed="127.0.0.1".__eq__)
        assert len(requests) == 1

    @pytest.mark.parametrize("target", ["file:///etc/passwd", "http://u:p@site.test/", "gopher://x/"])
    async def test_redirect_to_an_invalid_url_is_refused(self, target: str) -> None:
        """A redirect must lead to a URL with http or https and without credentials."""
        async with serving(lambda _: http(status=301, Location=target)) as port:
            with pytest.raises(ToolError, match=r"only http and https|credentials"):
                await get(f"http://site.test:{port}/")

    async def test_relative_redirects_are_followed(self) -> None:
        """Up to five redirects are followed, and the page has the last URL. A sixth redirect is an error."""

        def answer(head: bytes) -> bytes:
            step = int(head.split()[1].strip(b"/"))
            return http(status=302, Location=f"/{step + 1}") if step < 5 else http(b"there")

        async with serving(answer) as port:
            page = await get(f"http://site.test:{port}/0")
            assert (page.body, page.url) == (b"there", f"http://site.test:{port}/5")
            with pytest.raises(ToolError, match="More than 5 redirects"):
                await get(f"http://site.test:{port}/-1")

    async def test_redirect_without_location_is_a_page(self) -> None:
        """A response with a redirect status and no location is returned unchanged."""
        async with serving(lambda _: http(b"?", 302)) as port:
            assert (await get(f"http://site.test:{port}/")).status == 302


class TestBounds:
    """Limits on the size and the time of a fetch."""

    @pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "deflate"])
    async def test_compressed_page_is_decompressed(self, encoding: str) -> None:
        """A body with the encoding gzip or deflate is returned decompressed."""
        pack = zlib.compress if encoding == "deflate" else gzip.compress
        async with serving(lambda _: http(pack(b"hello " * 99), Content_Encoding=encoding)) as port:
            assert (await get(f"http://site.test:{port}/")).body == b"hello " * 99

    async def test_decompression_bomb_is_refused_early(self) -> None:
        """A body that decompresses to more than 100 times its compressed size is an error."""
        bomb = gzip.compress(b"\0" * 50_000_000)
        async with serving(lambda _: http(bomb, Content_Encoding="gzip")) as port:
            with pytest.raises(ToolError, match="more than 100 times the compressed size: refused"):
                await get(f"http://site.test:{port}/")

    async def test_bytes_after_the_compressed_stream_are_ignored(self) -> None:
        """The fetch returns the decompressed body without waiting for the end of the response."""
        page = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(b"all of it") + b"\0" * 9
        async with dripping(page) as port:
            assert (await get(f"http://site.test:{port}/", seconds=5.0)).body == b"all of it"

    async def test_long_body_is_cut_at_five_mebibytes(self) -> None:
        """A body of more than MAX_BYTES is cut and marked as truncated."""
        async with serving(lambda _: http(b"x" * (MAX_BYTES + 1))) as port:
            page = await get(f"http://site.test:{port}/")
        assert (len(page.body), page.truncated) == (MAX_BYTES, True)

    async def test_limit_applies_to_the_decompressed_body(self) -> None:
        """A small compressed body is cut if it decompresses to more than MAX_BYTES."""
        noise = b"".join(b"%d " % (number * number) for number in range(700_000))
        async with serving(lambda _: http(gzip.compress(noise, 1), Content_Encoding="gzip")) as port:
            page = await get(f"http://site.test:{port}/")
        assert (page.body, page.truncated) == (noise[:MAX_BYTES], True)

    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            (http(b"x", Content_Encoding="br"), "encoded as 'br', which was not requested"),
            (http(b"no gzip", Content_Encoding="gzip"), "Cannot decode the response as gzip"),
            (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 300_000, "site.test"),
            (b"not http at all\r\n\r\n", "site.test"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort", "site.test"),
            (b"", "site.test"),
        ],
    )
    async def test_malformed_responses_are_errors(self, answer: bytes, message: str) -> None:
        """The error names the page or describes the problem."""
        async with serving(lambda _: answer) as port:
            with pytest.raises(ToolError, match=message):
                await get(f"http://site.test:{port}/")

    async def test_endless_response_times_out(self) -> None:
        """A response that does not end is an error at the deadline."""
        async with dripping(b"HTTP/1.1 200 OK\r\n\r\nx") as port:
            with pytest.raises(ToolError, match="was not loaded completely within 0 s"):
                await get(f"http://site.test:{port}/", seconds=0.1)


class TestSearch:
    """Searches with web_search."""

    async def ask(self, answer: Handler, key: str = "canary", limit: int = 2) -> str:
        async with serving(answer) as port:
            return await search("zebras", key, limit, 20.0, f"http://127.0.0.1:{port}")

    async def test_search_sends_the_key_in_a_header_and_lists_results(self) -> None:
        """The result lists at most `limit` results in the order of the service."""
        seen: list[bytes] = []
        results = [
            {"title": f"T{n}", "url": f"https://a.test/{n}", "content": "two\n lines", "score": 1} for n in range(3)
        ]

        def answer(request: bytes) -> bytes:
            seen.append(request)
            return http(json.dumps({"query": "zebras", "results": results}).encode())

        assert await self.ask(answer) == "T0\nhttps://a.test/0\ntwo lines\n\nT1\nhttps://a.test/1\ntwo lines"
        head, _, body = seen[0].partition(b"\r\n\r\n")
        assert head.startswith(b"POST /search HTTP/1.1\r\n")
        assert b"authorization: bearer canary" in head.lower()
        assert json.loads(body) == {"query": "zebras", "max_results": 2}

    async def test_search_without_results_says_so(self) -> None:
        """If nothing is found, the result names the query."""
        assert await self.ask(lambda _: http(b'{"results": []}')) == "Nothing found for 'zebras'."

    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            (http(b"bad key canary", 401), r"status 401: bad key \(key\)"),
            (http(b"<html>"), "did not return search results"),
            (http(b'{"results": [{"title": 1}]}'), "did not return search results"),
            (http(status=302, Location="http://127.0.0.1/"), "redirects to"),
            (b"", "did not answer"),
        ],
    )
    async def test_search_errors_do_not_show_the_key(self, answer: bytes, message: str) -> None:
        """The key is masked in the error even if the response of the service contains the key."""
        with pytest.raises(ToolError, match=message) as caught:
            await self.ask(lambda _: answer)
        assert "canary" not in str(caught.value)

    @pytest.mark.parametrize(("keys", "seen"), [({}, 0), ({"TAVILY_API_KEY": ""}, 0), ({"TAVILY_API_KEY": "k"}, 1)])
    def test_search_tool_is_hidden_without_a_key(self, keys: dict[str, str], seen: int) -> None:
        """A missing key and an empty key both hide `web_search` from the agent."""
        box = make_toolbox(("web_search",), (), ToolContext(Path("/"), keys=ApiKeys(keys)))
        assert len(box.specs()) == seen
