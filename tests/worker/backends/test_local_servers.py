"""What model servers on loopback say: the model `local`, context windows, and models that are named by an address."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch.config.models import Catalog
from orch_protocol.agent.config import parse_model
from orch_protocol.agent.models import Price
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError
from orch_worker.backends import local_servers, models
from orch_worker.backends.local_servers import locate
from orch_worker.backends.models import Model, ModelCatalog, ProviderConfig

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


LLAMA_CPP = {
    "/v1/models": {
        "models": [{"name": "/m/smol.gguf", "size": ""}],
        "object": "list",
        "data": [
            {
                "id": "/m/smol.gguf",
                "aliases": ["/m/smol.gguf"],
                "owned_by": "llamacpp",
                "meta": {"n_ctx": 4096, "n_ctx_train": 8192},
            }
        ],
    },
    "/props": {
        "default_generation_settings": {"n_ctx": 1024},
        "total_slots": 4,
        "modalities": {"vision": False, "audio": False},
    },
}
ROUTER = {
    "/v1/models": {
        "object": "list",
        "data": [
            {"id": "qwen3", "owned_by": "llamacpp", "status": {"value": "loaded"}},
            {"id": "gemma", "owned_by": "llamacpp", "status": {"value": "unloaded"}},
        ],
    },
    "/props?model=qwen3&autoload=false": {"default_generation_settings": {"n_ctx": 16384}},
    "/props?model=gemma&autoload=false": {"error": {"code": 400, "message": "model is not loaded"}},
}
OLLAMA = {
    "/v1/models": {"object": "list", "data": [{"id": "qwen3:8b", "object": "model", "owned_by": "library"}]},
    "/api/ps": {"models": [{"name": "qwen3:8b", "model": "qwen3:8b", "size": 5, "context_length": 4096}]},
}
LM_STUDIO = {
    "/v1/models": {"object": "list", "data": [{"id": "qwen", "object": "model", "owned_by": "organization_owner"}]},
    "/api/v0/models": {
        "object": "list",
        "data": [
            {
                "id": "qwen",
                "type": "llm",
                "state": "loaded",
                "max_context_length": 32768,
                "loaded_context_length": 8192,
            },
            {"id": "sight", "type": "vlm", "state": "not-loaded", "max_context_length": 16384},
            {"id": "vectors", "type": "embeddings", "state": "not-loaded", "max_context_length": 512},
        ],
    },
}
VLLM = {
    "/v1/models": {
        "object": "list",
        "data": [{"id": "meta/llama", "owned_by": "vllm", "root": "meta/llama", "parent": None, "max_model_len": 2048}],
    }
}
TABBY = {"/v1/models": {"data": [{"id": "m", "owned_by": "tabbyAPI", "parameters": {"max_seq_len": 2048}}]}}
KOBOLD = {
    "/v1/models": {"object": "list", "data": [{"id": "koboldcpp/m", "owned_by": "koboldcpp"}]},
    "/api/extra/true_max_context_length": {"value": 2048},
}
PROXY = {
    "/v1/models": {"data": [{"id": "gpt-4o", "owned_by": "openai"}, {"id": "big", "owned_by": "openai"}]},
    "/api/ps": {"error": "not found"},
    "/api/v0/models": {"error": "Unexpected endpoint or method. (GET /api/v0/models)"},
}


@asynccontextmanager
async def answering(answers: dict[str, Any], key: str = "") -> AsyncIterator[tuple[str, list[str]]]:
    """Serve each of `answers` at its path, in turn if it is a list. Yield the address and the list of requests.

    With a `key`, requests without it are refused.
    """
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, path, _ = head.split(" ", 2)
                length = re.search(r"content-length: (\d+)", head, re.I)
                await reader.readexactly(int(length[1]) if length else 0)
                asked.append(f"{method} {path}")
                found = answers.get(path)
                if isinstance(found, list):
                    found = found.pop(0)
                status = 404 if found is None else 200
                if isinstance(found, tuple):
                    status, found = found
                if key and f"Authorization: Bearer {key}\r\n" not in head:
                    status, found = 401, {"error": "no key"}
                body = json.dumps(found).encode()
                writer.write(f"HTTP/1.1 {status} So\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


async def completed(model: str, env: dict[str, str], known: ModelCatalog | None = None, **keys: str) -> Model:
    """Return the options of the complete spec of `model`."""
    spec = await Catalog(known or models.load(), env, keys).complete(parse_model(model))
    return msgspec.convert(spec.options, Model)


@pytest.mark.parametrize(
    ("answers", "name", "context"),
    [
        (LLAMA_CPP, "any-name", 1024),
        ({"/v1/models": LLAMA_CPP["/v1/models"]}, "any-name", 4096),
        (ROUTER, "qwen3", 16384),
        (OLLAMA, "qwen3:8b", 4096),
        (LM_STUDIO, "qwen", 8192),
        (VLLM, "meta/llama", 2048),
        (TABBY, "m", 2048),
        (KOBOLD, "koboldcpp/m", 2048),
    ],
)
async def test_context_window_is_the_one_of_the_server(answers: dict[str, Any], name: str, context: int) -> None:
    """The window of the server replaces the assumed one, the model is free, and no key is needed."""
    async with answering(answers) as (url, _):
        model = await completed(f"openai:{name}", {"OPENAI_BASE_URL": f"{url}/v1"})
        assert (model.context, model.context_reported) == (context, True)
        assert model.is_free
        assert model.keys == ()


async def test_price_of_the_provider_does_not_apply_to_a_local_model_of_the_same_name() -> None:
    """A server that runs models itself is free; a proxy on this machine keeps the listed price of the model."""
    async with answering(LLAMA_CPP) as (url, _):
        assert (await completed("openai:gpt-4o", {"OPENAI_BASE_URL": f"{url}/v1"})).is_free
    async with answering(PROXY) as (url, _):
        env = {"OPENAI_BASE_URL": f"{url}/v1"}
        assert (await completed("openai:gpt-4o", env)).prices == models.load().look_up("openai", "gpt-4o").prices
        assert (await completed("openai:big", env)).is_free


async def test_context_in_models_json_is_kept_if_the_server_has_a_larger_one(tmp_path: Path) -> None:
    """A user can set a smaller context than that of the server, but not a larger one."""
    for own, expected in ((512, 512), (100_000, 1024)):
        own_model = {"models": {"openai": {"smol": {"context": own, "prices": [{"input": 1.0, "output": 2.0}]}}}}
        (tmp_path / "models.json").write_text(json.dumps(own_model))
        async with answering(LLAMA_CPP) as (url, _):
            model = await completed("openai:smol", {"OPENAI_BASE_URL": f"{url}/v1"}, models.load(tmp_path))
        assert model.context == expected
        assert model.prices == (Price(1.0, 2.0),)


async def test_model_that_is_not_loaded_has_at_most_the_longest_window() -> None:
    """The window of an unloaded model is unknown; the assumed window is reduced to the longest one of the model."""
    async with answering(LM_STUDIO) as (url, _):
        model = await completed("openai:sight", {"OPENAI_BASE_URL": f"{url}/v1"})
        assert (model.context, model.context_reported, model.flags.images) == (16384, False, True)
        assert not (await completed("openai:qwen", {"OPENAI_BASE_URL": f"{url}/v1"})).flags.images


async def test_model_is_loaded_to_learn_its_window() -> None:
    """Ollama decides the context when it loads the model, and llama.cpp answers only after that."""
    loaded = OLLAMA["/api/ps"]
    answers = OLLAMA | {"/api/ps": [{"models": []}, loaded], "/api/generate": {"done_reason": "load"}}
    async with answering(answers) as (url, asked):
        assert (await completed("ollama:qwen3:8b", {"OLLAMA_HOST": url})).context == 4096
        assert asked[-2:] == ["POST /api/generate", "GET /api/ps"]
    loading = (503, {"error": {"message": "Loading model", "type": "unavailable_error"}})
    async with answering(LLAMA_CPP | {"/v1/models": [loading, LLAMA_CPP["/v1/models"]]}) as (url, _):
        assert (await completed("openai:x", {"OPENAI_BASE_URL": f"{url}/v1"})).context == 1024


async def test_key_is_sent_to_a_server_on_this_machine() -> None:
    """A server that requires a key gets the key of the provider."""
    async with answering(VLLM, key="k-1") as (url, _):
        env = {"OPENAI_BASE_URL": f"{url}/v1"}
        assert (await completed("openai:meta/llama", env, OPENAI_API_KEY="k-1")).context == 2048
        assert (await completed("openai:meta/llama", env)).context == 128_000


async def test_answers_are_kept_for_further_agents() -> None:
    """Agents that are spawned together ask the server once."""
    async with answering(LLAMA_CPP) as (url, asked):
        catalog = Catalog(models.load(), {"OPENAI_BASE_URL": f"{url}/v1"}, {})
        for _ in range(5):
            await catalog.with_variables({"OPENAI_BASE_URL": f"{url}/v1"}).complete(BackendSpec("openai", "x"))
        assert asked == ["GET /v1/models", "GET /props"]


async def test_stopped_server_changes_nothing() -> None:
    """An agent can be spawned before its server is started."""
    assert (await completed("openai:x", {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"})).context == 128_000
    async with answering({}) as (url, _):
        assert (await completed("openai:x", {"OPENAI_BASE_URL": f"{url}/v1"})).context == 128_000


async def test_other_machines_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only servers on this machine get requests before the first query."""
    monkeypatch.setattr(local_servers, "ask_server", lambda *_, **__: pytest.fail("a request was sent"))
    assert (await completed("openai:x", {"OPENAI_BASE_URL": "http://far.example/v1"}, OPENAI_API_KEY="k")).keys
    assert (await completed("http://far.example/v1#x", {})).served_name == "x"


@pytest.mark.parametrize(
    ("answers", "written", "model"),
    [
        (LLAMA_CPP, "", "/m/smol.gguf"),
        (LLAMA_CPP, "#qwen3-coder", "qwen3-coder"),
        (OLLAMA, "#qwen3:8b", "qwen3:8b"),
        (VLLM, "", "meta/llama"),
    ],
)
async def test_address_names_a_model(answers: dict[str, Any], written: str, model: str) -> None:
    """The address of a server is a model without models.json; a server with one model needs no name."""
    async with answering(answers) as (url, _):
        spec = await Catalog(models.load(), {}, {}).complete(parse_model(f"{url}/v1{written}"))
        assert f"{spec.provider}:{spec.model}" == f"{url}/v1#{model}"
        options = msgspec.convert(spec.options, Model)
        assert (options.base_url, options.served_name, options.keys) == (f"{url}/v1", model, ())
        assert options.is_free
        assert await Catalog(models.load(), {}, {}).complete(parse_model(f"{url}/v1#{model}")) == spec


@pytest.mark.parametrize(
    ("answers", "written", "problem"),
    [
        (PROXY, "/v1", r"needs the name of a model; it lists gpt-4o, big: write http://127.0.0.1:\d+/v1#NAME"),
        (OLLAMA, "/v1#llama", r"has no model 'llama'; it lists qwen3:8b: write"),
        ({"/v1/models": {"object": "list", "data": None}, "/api/ps": {"models": []}}, "/v1", "it lists no model"),
        (OLLAMA, "#qwen3:8b", r"answers at http://127.0.0.1:\d+/v1: add /v1 to the address"),
        (PROXY, "", r"answers at http://127.0.0.1:\d+/v1: add /v1"),
        ({}, "/v1", r"does not name a model, and its server does not list its models \(HTTP status 404\): start"),
        ({"/v1/models": "x"}, "/v1", r"does not list its models \(the response is not a list of models\)"),
    ],
)
async def test_wrong_address_or_name_gets_a_suggestion(answers: dict[str, Any], written: str, problem: str) -> None:
    """The error says what the server offers."""
    async with answering(answers) as (url, _):
        with pytest.raises(ConfigError, match=problem):
            await completed(f"{url}{written}", {})


@pytest.mark.parametrize(
    ("model", "suggestion"),
    [
        ("gpt-4o", "did you mean openai:gpt-4o?"),
        ("Claude-Sonnet-5-5", "did you mean anthropic:claude-sonnet-5-5?"),
        ("qwen3:8b", "did you mean ollama:qwen3:8b?"),
        ("localhost:8080", "did you mean http://localhost:8080/v1?"),
        ("127.0.0.1:8080/v1#qwen", "did you mean http://127.0.0.1:8080/v1#qwen?"),
        ("http://me:secret@localhost/v1#x", "contains a password: add the server to .*models.json"),
        ("http://#x", "is not an address.*it names no host"),
        ("nowhere:x", "unknown provider 'nowhere': write the model as `local` or `provider:model`"),
    ],
)
async def test_model_without_a_provider_gets_a_suggestion(model: str, suggestion: str) -> None:
    """The name of a listed model, of an Ollama model, and an address without a scheme are recognized."""
    with pytest.raises(ConfigError, match=suggestion) as raised:
        await completed(model, {})
    assert "secret" not in str(raised.value)
