"""Connections to models with the real SDKs: proxies, certificates, and addresses that are not valid."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from orch import AsyncOrchestrator
from orch.processes.in_process import InProcessLauncher
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import BackendError, ConfigError
from orch_protocol.core.messages import text_of
from orch_worker.backends import models
from orch_worker.backends.http.proxies import proxy_of
from orch_worker.backends.http.remote import RemoteBackend, headers_in
from orch_worker.backends.http.transport import ssl_context, ssl_context_for
from orch_worker.backends.registry import complete, make_backend
from wire.api_backends import KEYS, MESSAGES, Peer, Talk
from wire.model_server import ModelServer, say
from wire.test_summaries import environment

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
VARIABLES = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
)


BACKENDS: list[RemoteBackend] = []
"""The backends of the current test."""


@pytest.fixture(autouse=True)
async def close_backends() -> AsyncIterator[None]:
    """Close the backends of the test."""
    yield
    while BACKENDS:
        await BACKENDS.pop().close()


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the variables of proxies and certificates, and forget the TLS context of other tests."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    ssl_context.cache_clear()
    yield
    ssl_context.cache_clear()


def talk_to(peer: Peer, address: str, **options: Any) -> Talk:
    """Return a conversation with a model of `peer` at `address`."""
    spec = BackendSpec(peer.provider, peer.model, {"base_url": address + peer.prefix, **options})
    backend = make_backend(complete(spec, models.load(), {}, KEYS), KEYS)
    return _talk(backend)


def _talk(backend: object) -> Talk:
    assert isinstance(backend, RemoteBackend)
    BACKENDS.append(backend)
    return Talk(backend)


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[int]:
    """Serve on loopback with `serve` and return the port. All connections are closed at the end."""
    tasks: list[asyncio.Task[None]] = []

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await serve(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    def start(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.create_task(run(reader, writer)))

    async with await asyncio.start_server(start, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)


def socks_server(target: int, asked: list[bytes]) -> AbstractAsyncContextManager[int]:
    """Serve SOCKS5 on loopback, and connect each client to the port `target`. Store the addresses in `asked`."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        methods = (await reader.readexactly(2))[1]
        await reader.readexactly(methods)
        writer.write(b"\x05\x00")
        head = await reader.readexactly(5)
        asked.append(await reader.readexactly(head[4] + 2))
        writer.write(b"\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x00")
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", target)
        try:
            await asyncio.gather(relay(reader, server_writer), relay(server_reader, writer))
        finally:
            server_writer.close()

    return listening(serve)


def http_proxy(asked: list[str], answer: bytes) -> AbstractAsyncContextManager[int]:
    """Serve on loopback, store the head of each request in `asked`, and answer with `answer`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(answer)

    return listening(serve)


class TestProxies:
    """Requests through proxies, and past them."""

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("NO_PROXY", "localhost,fd07:b51a:cc66:f0::/64,[::1]"),
            ("NO_PROXY", "[::bad,%%,http://"),
            ("ALL_PROXY", "socks5://127.0.0.1:9"),
            ("ALL_PROXY", "socks5h://127.0.0.1:9"),
            ("all_proxy", "socks://127.0.0.1:9"),
            ("HTTP_PROXY", "nonsense"),
            ("http_proxy", "http://[::1"),
        ],
    )
    async def test_loopback_model_works_with_any_proxy_setting(
        self, server: ModelServer, talk: Talk, monkeypatch: pytest.MonkeyPatch, name: str, value: str
    ) -> None:
        """Settings of proxies do not matter for a server on this machine."""
        monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
        monkeypatch.setenv(name, value)
        server.script.append(say("here"))
        assert text_of((await talk.ask()).message) == "here"

    @pytest.mark.parametrize("scheme", ["socks5", "socks5h", "socks"])
    async def test_model_is_reached_through_a_socks_proxy(
        self, server: ModelServer, peer: Peer, monkeypatch: pytest.MonkeyPatch, scheme: str
    ) -> None:
        """The SOCKS proxy gets the name of the host, and the answer arrives."""
        server.script.append(say("from afar"))
        asked: list[bytes] = []
        async with socks_server(int(server.url.rpartition(":")[2]), asked) as port:
            monkeypatch.setenv("ALL_PROXY", f"{scheme}://127.0.0.1:{port}")
            talk = talk_to(peer, "http://models.example:81")
            assert text_of((await talk.ask()).message) == "from afar"
            await talk.backend.close()
        assert asked == [b"models.example\x00\x51"]

    async def test_credentials_of_a_proxy_are_sent_and_never_shown(
        self, peer: Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A proxy that refuses its credentials is asked once, and the error names the variable without a password."""
        asked: list[str] = []
        refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n"
        async with http_proxy(asked, refusal) as port:
            monkeypatch.setenv("HTTPS_PROXY", f"http://me:hunter22@127.0.0.1:{port}")
            talk = talk_to(peer, "https://models.example")
            with pytest.raises(BackendError) as caught:
                await talk.ask()
            await talk.backend.close()
        assert len(asked) == 1
        assert asked[0].startswith("CONNECT models.example:443 ")
        assert "proxy-authorization: Basic bWU6aHVudGVyMjI=" in asked[0]
        assert f"the proxy http://127.0.0.1:{port} of HTTPS_PROXY refused" in str(caught.value)
        assert "hunter22" not in str(caught.value)

    async def test_lost_connection_names_the_proxy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """If the proxy is not running, the error names its variable."""
        monkeypatch.setenv("all_proxy", "http://127.0.0.1:9")
        talk = talk_to(MESSAGES, "http://models.example")
        with pytest.raises(BackendError, match=r"models\.example through the proxy http://127\.0\.0\.1:9 of all_proxy"):
            await talk.ask()

    @pytest.mark.parametrize("value", ["socks4://127.0.0.1:9", "http://127.0.0.1:99999", "ftp://x"])
    async def test_unusable_proxy_stops_only_its_requests(
        self, peer: Peer, monkeypatch: pytest.MonkeyPatch, value: str
    ) -> None:
        """The error of the first request names the variable, without a retry."""
        monkeypatch.setenv("HTTP_PROXY", value)
        talk = talk_to(peer, "http://models.example")
        with pytest.raises(ConfigError, match=r"^HTTP_PROXY is not the address of a proxy"):
            await talk.ask()
        assert talk.retries == []

    async def test_unreadable_entry_of_no_proxy_is_reported_once(
        self, server: ModelServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The first spawn prints a warning that names the entry. The model on this machine works."""
        env = {**environment(server), "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "fd07:zz::/64,x.example"}
        server.script.append(say("here"))
        async with AsyncOrchestrator("openai:gpt-4o", home=tmp_path, env=env, launcher=InProcessLauncher) as o:
            agents = [await o.spawn("x", preset="minimal", cwd=tmp_path) for _ in range(2)]
            assert (await agents[0].query("hi")).text == "here"
        assert capsys.readouterr().err.count("NO_PROXY contains 'fd07:zz::/64'") == 1

    def test_extra_for_socks_proxies_is_installed(self) -> None:
        """The check for the package of the extra finds the package."""
        assert proxy_of("https://models.example", {"ALL_PROXY": "socks5://p:1"}).url == "socks5://p:1"


class TestCertificates:
    """Variables that name the certificates of servers."""

    @pytest.mark.parametrize("name", ["SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"])
    async def test_missing_certificates_are_named_with_variable_and_path(
        self, peer: Peer, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        """A file that does not exist is one line with the variable and the path, without a retry."""
        monkeypatch.setenv(name, "/nonexistent/ca.pem")
        talk = talk_to(peer, "https://127.0.0.1:9")
        with pytest.raises(ConfigError) as caught:
            await talk.ask()
        assert str(caught.value).startswith(f"cannot read the certificates in {name}=/nonexistent/ca.pem: No such file")
        assert "\n" not in str(caught.value)
        assert talk.retries == []

    @pytest.mark.parametrize("name", ["SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"])
    async def test_missing_certificates_do_not_stop_a_plain_loopback_model(
        self, server: ModelServer, talk: Talk, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        """A server without TLS needs no certificates."""
        monkeypatch.setenv(name, "/nonexistent/ca.pem")
        server.script.append(say("here"))
        assert text_of((await talk.ask()).message) == "here"

    @pytest.mark.parametrize("name", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
    def test_file_without_certificates_is_named(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
    ) -> None:
        """A file of another kind is an error that names the variable and the path."""
        (tmp_path / "ca.pem").write_text("no certificate")
        monkeypatch.setenv(name, str(tmp_path / "ca.pem"))
        with pytest.raises(ConfigError, match=rf"{name}={tmp_path}/ca.pem: it contains no certificate"):
            ssl_context()
        monkeypatch.delenv(name)
        assert ssl_context_for("https://h") is ssl_context()

    def test_bundle_adds_to_the_certificates_of_the_system(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """REQUESTS_CA_BUNDLE may name a folder, and the certificates of the system stay."""
        before = len(ssl_context().get_ca_certs())
        ssl_context.cache_clear()
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path))
        assert len(ssl_context().get_ca_certs()) == before


class TestAddresses:
    """Addresses and headers that are not valid."""

    @pytest.mark.parametrize(
        ("url", "problem"),
        [
            ("http://my host:8080", "contains a blank"),
            ("http://host:8080 /v1", "contains a blank"),
            ("http://ho\x00st", "control character"),
            ("htp://host", "the scheme 'htp' is not http or https"),
            ("ws://host", "the scheme 'ws' is not http or https"),
            ("http://", "it names no host"),
            ("https:/example.com", "it names no host"),
            ("http:///v1", "it names no host"),
            ("http://host:99999", "out of range"),
            ("http://host:port", "could not be cast"),
            ("http://host:0", "the port is 0"),
            ("http://[::1", "Invalid IPv6"),
        ],
    )
    def test_invalid_address_names_its_setting(self, url: str, problem: str) -> None:
        """An address that is not valid is refused before an agent starts. The error names where it was set."""
        known, spec = models.load(), BackendSpec("anthropic", "claude-sonnet-5-5")
        provider = replace(known.providers["anthropic"], base_url=url)
        in_file = replace(known, providers={**known.providers, "anthropic": provider})
        option = replace(spec, options={"base_url": url})
        with pytest.raises(ConfigError, match=f"^ANTHROPIC_BASE_URL is not an address: .*{problem}"):
            complete(spec, known, {"ANTHROPIC_BASE_URL": url}, KEYS)
        with pytest.raises(ConfigError, match=rf"^base_url of provider 'anthropic' in models.json is .*{problem}"):
            complete(spec, in_file, {}, KEYS)
        with pytest.raises(ConfigError, match=rf"^the option base_url of the model anthropic:.*{problem}"):
            complete(option, known, {}, KEYS)

    def test_address_without_a_scheme(self) -> None:
        """A variable may omit the scheme, and blanks around the address do not matter. A file must name the scheme."""
        known, spec = models.load(), BackendSpec("anthropic", "claude-sonnet-5-5")
        found = complete(spec, known, {"ANTHROPIC_BASE_URL": " localhost:1234\n"}, KEYS)
        assert found.options["base_url"] == "http://localhost:1234"
        with pytest.raises(ConfigError, match="the scheme"):
            complete(replace(spec, options={"base_url": "localhost:1234"}), known, {}, KEYS)
        with pytest.raises(
            ConfigError, match=r"^ANTHROPIC_BASE_URL is not an address: .*it names no host; write http://"
        ):
            complete(spec, known, {"ANTHROPIC_BASE_URL": "http//localhost:1234"}, KEYS)

    def test_password_in_an_invalid_address_is_not_shown(self) -> None:
        """The error shows the address without its password."""
        env = {"ANTHROPIC_BASE_URL": "https://me:hunter22@host:99999"}
        with pytest.raises(ConfigError) as caught:
            complete(BackendSpec("anthropic", "claude-sonnet-5-5"), models.load(), env, KEYS)
        assert "hunter22" not in str(caught.value)

    @pytest.mark.parametrize("url", ["htp://127.0.0.1:9", "http://127.0.0.1:9\x01"])
    async def test_invalid_address_of_an_old_session_is_not_retried(self, peer: Peer, url: str) -> None:
        """If a session contains an address that cannot be used, the first request names the setting."""
        spec = complete(BackendSpec(peer.provider, peer.model), models.load(), {}, KEYS)
        backend = make_backend(replace(spec, options={**spec.options, "base_url": url}), KEYS)
        talk = _talk(backend)
        with pytest.raises(BackendError, match=f"check {peer.provider.upper()}_BASE_URL"):
            await talk.ask()
        assert talk.retries == []

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ('{"X-Team": "secret-1"}', "line 1: '{\"X-Team\"' is not the name of a header"),
            ("X-A: 1\nX-Team=secret-1", "line 2: it has no colon"),
            ("X Team: secret-1", "line 1: 'X Team' is not the name of a header"),
            (": secret-1", "line 1: '' is not the name of a header"),
        ],
    )
    def test_invalid_header_variable_is_named(self, text: str, problem: str) -> None:
        """A variable with headers in another format is refused. The error shows no value of a header."""
        spec = complete(BackendSpec("anthropic", "claude-sonnet-5-5"), models.load(), {}, KEYS)
        with pytest.raises(ConfigError) as caught:
            make_backend(spec, {**KEYS, "ANTHROPIC_CUSTOM_HEADERS": text})
        assert str(caught.value).startswith(f"ANTHROPIC_CUSTOM_HEADERS is invalid in {problem}")
        assert "secret-1" not in str(caught.value)

    def test_header_lines_are_read(self) -> None:
        """Empty lines, blanks and carriage returns do not matter."""
        assert headers_in("X-A: b:c\r\n\r\n  x_d :e \n", "V") == {"X-A": "b:c", "x_d": "e"}

    def test_invalid_header_name_in_the_file_is_named(self) -> None:
        """A header of models.json must have a valid name."""
        spec = complete(BackendSpec("anthropic", "claude-sonnet-5-5"), models.load(), {}, KEYS)
        spec = replace(spec, options={**spec.options, "headers": {"x y": "z"}})
        with pytest.raises(ConfigError, match=r"header 'x y' .*Change `headers` in \$ORCH_HOME/models\.json"):
            make_backend(spec, KEYS)
