"""Tests that run with a model of each API. All models run below one root, which imports their SDKs once."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from wire.model_server import ModelServer

__all__ = ["MODELS", "each_model"]

MODELS = ("anthropic:claude-sonnet-5-5", "openai:gpt-4o", "openai:gpt-6-luna")
"""One model for each message format."""


def each_model(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Call `test` with each `model` and the same fixtures.

    After each call, the script of the server must be used up, and no request may have been refused.
    """
    taken = inspect.signature(test).parameters

    async def run(server: ModelServer, **fixtures: Any) -> None:
        if "server" in taken:
            fixtures["server"] = server
        for model in MODELS:
            server.requests.clear()
            try:
                await test(model=model, **fixtures)
                assert server.refused == []
                assert not server.script
            except BaseException as error:
                error.add_note(f"with {model}")
                raise

    fixtures = [parameter for name, parameter in taken.items() if name not in ("model", "server")]
    server = inspect.Parameter("server", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__name__, run.__qualname__, run.__doc__, run.__module__ = (
        test.__name__,
        test.__qualname__,
        test.__doc__,
        test.__module__,
    )
    run.__signature__ = inspect.Signature([server, *fixtures])  # type: ignore[attr-defined]
    return run
