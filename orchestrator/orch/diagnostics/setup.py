"""Finds the models that a new user can use: keys in the environment, and model servers on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.agent.config import parse_model
from orch_protocol.core.errors import BackendTimeoutError, ConfigError
from orch_protocol.core.messages import Text, Usage, text_of
from orch_worker.backends.base import ONE_REQUEST
from orch_worker.backends.local_servers import PORTS, ask_server
from orch_worker.backends.models import ModelCatalog
from orch_worker.backends.registry import make_backend
from orch_worker.backends.server_answers import ModelServer, ServedModel

from ..config.models import Catalog, keys_in

__all__ = ["ModelChoice", "TestCall", "find_choices", "test_call"]

SECONDS: Final = 1.0
TEST_SECONDS: Final = 180.0
"""Time limit of the test call. A server may load its model first."""
ANSWER: Final = 1_024
"""Tokens that the answer may have. Some models reason before they answer."""
QUESTION: Final = "Reply with the word OK."
EMBEDDINGS: Final = ("embed", "rerank", "bge-")


class ModelChoice(Struct, frozen=True):
    """A model to choose. `reason` says why it can be used. `context` is in tokens; 0 means unknown."""

    model: str
    reason: str
    context: int = 0


class TestCall(Struct, frozen=True):
    """The answer to one request, its usage, and the time in seconds."""

    answer: str
    usage: Usage
    seconds: float
    context: int


async def find_choices(known: ModelCatalog, env: Mapping[str, str], servers: Sequence[str] = ()) -> list[ModelChoice]:
    """Return the usable models: those of providers with a key, those of `servers`, and those on the usual ports.

    A key selects only the default model of its provider.
    """
    choices = [
        ModelChoice(f"{name}:{about.default}", f"{key} is set", known.look_up(name, about.default).context)
        for name, about in known.providers.items()
        if about.default and (key := next((key for key in about.keys if env.get(key)), None))
    ]
    urls = dict.fromkeys((*servers, *(f"http://localhost:{port}/v1" for port in PORTS)))
    found = await asyncio.gather(*(asyncio.to_thread(_ask, url, url in servers) for url in urls))
    for url, server in zip(urls, found, strict=True):
        if server is not None:
            choices += _choices_of(url, server)
    return choices


def _ask(url: str, required: bool) -> ModelServer | None:
    """Return what the server at `url` says, or None if there is no model server. Raise ConfigError if it `required`."""
    try:
        return ask_server(url, seconds=SECONDS, load=False)
    except (OSError, ValueError, ConfigError) as error:
        if required:
            other = "pass the address of another one, such as http://localhost:8080/v1"
            if isinstance(error, OSError):
                reason = error.strerror or str(error)
                text = f"no model server answers at {url}: {reason}; start the server, or {other}"
            else:
                text = f"cannot use {url} as a model server: {error}; {other}"
            raise ConfigError(text) from None
        return None


def _choices_of(url: str, server: ModelServer) -> Iterator[ModelChoice]:
    program = server.kind or "a model server"
    for each in sorted(server.models, key=_order):
        loaded = ", loaded" if each.loaded else ""
        yield ModelChoice(f"{url}#{each.name}", f"{program} at {url}{loaded}", each.context)


def _order(model: ServedModel) -> tuple[bool, bool]:
    """Return the order in a list: chat models before others, loaded models first."""
    return any(part in model.name.lower() for part in EMBEDDINGS), not model.loaded


async def test_call(model: str, known: ModelCatalog, env: Mapping[str, str]) -> TestCall:
    """Send one short request to `model` and return the answer. Raises BackendError, ConfigError."""
    spec = await Catalog(known, env).complete(parse_model(model))
    if "api" in spec.options:
        spec = replace(spec, options=spec.options | {"output": min(spec.options.get("output") or ANSWER, ANSWER)})
    backend = make_backend(spec, keys_in(env, known))
    backend.prefix = ONE_REQUEST
    backend.append_user([Text(QUESTION)])
    begin = monotonic()
    try:
        async with asyncio.timeout(TEST_SECONDS):
            turn = await backend.assistant_turn()
    except TimeoutError:
        raise BackendTimeoutError(f"{model} did not answer within {TEST_SECONDS:g} s") from None
    finally:
        with suppress(Exception):
            await backend.close()
    return TestCall(text_of(turn.message), turn.usage, monotonic() - begin, backend.info().context_limit)
