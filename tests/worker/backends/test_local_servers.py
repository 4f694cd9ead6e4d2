"""Resolving the model `local` by means of servers on loopback that list their models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError
from orch_worker.backends import models
from orch_worker.backends.local_servers import locate
from orch_worker.backends.models import ModelCatalog, ProviderConfig

LOCAL = BackendSpec("local")


def known(*candidates: str) -> ModelCatalog:
    """Return a catalog in which the provider `here` has these candidates."""
    here = ProviderConfig("chat", "http://localhost:1/v1", "HERE", "/v1", listing="/tags", candidates=candidates)
    return ModelCatalog(providers={"far": ProviderConfig("chat", "http://far"), "here": here}, models={})


@asynccontextmanager
async def serving(body: bytes, status: int = 200) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Serve `body` to every request. Yield the address and the list of request lines."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).splitlines()[0])
        head = f"HTTP/1.1 {status} So\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", asked


def tags(*names: str) -> bytes:
    return json.dumps({"models": [{"name": name, "size": 1} for name in names]}).encode()


@pytest.mark.parametrize(
    ("candidates", "listed", "found"),
    [
        (["b", "a"], ["a:8b", "b:3b"], "b:3b"),
        (["c", "a:8b"], ["a:3b", "a:8b"], "a:8b"),
        (["a"], ["ab:1b", "a:latest"], "a:latest"),
        (["a"], ["a"], "a"),
    ],
)
async def test_first_listed_candidate_is_chosen(candidates: Sequence[str], listed: Sequence[str], found: str) -> None:
    """Candidates are tried in order; a candidate without a tag matches any tag of the server."""
    async with serving(tags(*listed)) as (address, asked):
        assert await locate(LOCAL, known(*candidates), {"HERE": address}) == BackendSpec("here", found)
        assert asked == [b"GET /tags HTTP/1.1"]


async def test_provider_other_than_local_is_not_resolved() -> None:
    """The spec is returned unchanged without a request to a server."""
    spec = BackendSpec("here", "a")
    assert await locate(spec, known("a"), {}) is spec


async def test_no_matching_candidate_is_an_error() -> None:
    """The error lists the models of the server and the candidates."""
    async with serving(tags("x:1b", "y:2b")) as (address, _):
        with pytest.raises(ConfigError, match=r"here at .*/tags lists x:1b, y:2b, and none of a, b:8b: pull one"):
            await locate(LOCAL, known("a", "b:8b"), {"HERE": address})
    async with serving(tags()) as (address, _):
        with pytest.raises(ConfigError, match="lists no model"):
            await locate(LOCAL, known("a"), {"HERE": address})


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (b"<html>", 200, "not a list of models"),
        (b'{"models": [1]}', 200, "not a list of models"),
        (b"", 404, "HTTP status 404"),
    ],
)
async def test_response_that_is_not_a_model_list_is_an_error(body: bytes, status: int, why: str) -> None:
    """The error states the cause and the setting."""
    async with serving(body, status) as (address, _):
        with pytest.raises(ConfigError, match=f"here does not list its models.*{why}.*set HERE"):
            await locate(LOCAL, known("a"), {"HERE": address})


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "http://", "http://127.0.0.1:port"])
async def test_unreachable_local_server_is_an_error(address: str) -> None:
    """The error for a closed port or an invalid address names the setting."""
    with pytest.raises(ConfigError, match=r"`local`: here does not list its models at .*: start it, or set HERE"):
        await locate(LOCAL, known("a"), {"HERE": address})


async def test_hanging_local_server_times_out() -> None:
    left = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        left.set()

    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ConfigError, match="here does not list its models"):
            await locate(LOCAL, known("a"), {"HERE": address}, seconds=0.05)
        await left.wait()


async def test_local_without_candidates_or_with_a_name_is_not_resolved() -> None:
    """`local` needs candidates in models.json and cannot be combined with a model name."""
    with pytest.raises(ConfigError, match=r"models.json names no candidates"):
        await locate(LOCAL, known(), {})
    with pytest.raises(ConfigError, match="`local` cannot be combined with a model, here 'a'"):
        await locate(BackendSpec("local", "a"), known("a"), {})


def test_built_in_candidates_name_a_server_with_a_model_list() -> None:
    """The shipped providers with candidates are local and have a path that lists their models."""
    providers = [about for about in models.load().providers.values() if about.candidates]
    assert providers
    assert all(about.listing.startswith("/") and about.flags["local"] for about in providers)
