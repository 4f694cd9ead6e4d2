"""Resolves the model name `local` to the first candidate that a model server on this machine offers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError

from .models import ModelCatalog, ProviderConfig

__all__ = ["LOCAL", "installed", "locate"]

LOCAL: Final = "local"
SECONDS: Final = 2.0
MAX_BYTES: Final = 4 << 20


class _OllamaModel(Struct):
    name: str


class _OllamaModels(Struct):
    models: list[_OllamaModel]


async def locate(
    spec: BackendSpec, known: ModelCatalog, env: Mapping[str, str], *, seconds: float = SECONDS
) -> BackendSpec:
    """Return `spec` with `local` replaced by a model. `seconds` is the time limit for each server.

    Raise ConfigError if no server answers, or if no server has a candidate.
    """
    if spec.provider != LOCAL:
        return spec
    if spec.model:
        raise ConfigError(
            f"`local` cannot be combined with a model, here {spec.model!r}: write `local` alone, or `provider:model`"
        )
    problems = []
    for name, about in known.providers.items():
        if not about.candidates:
            continue
        url = _url(about, env)
        try:
            available = await installed(about, env, seconds)
        except TimeoutError:
            problems.append(_silent_server_text(name, about, url, f"nothing within {seconds:g} s"))
        except (OSError, ValueError) as error:
            problems.append(_silent_server_text(name, about, url, str(error)))
        else:
            if (model := _first_available(about.candidates, available)) is not None:
                return BackendSpec(name, model, spec.options)
            problems.append(
                f"{name} at {url} lists {', '.join(available) or 'no model'}, and none of "
                f"{', '.join(about.candidates)}: "
                "pull one, or set `candidates` of that provider in $ORCH_HOME/models.json"
            )
    raise ConfigError("`local`: " + ("; ".join(problems) or "models.json names no candidates"))


async def installed(about: ProviderConfig, env: Mapping[str, str], seconds: float = SECONDS) -> list[str]:
    """Return the models of the server. Raise ValueError, OSError, or (after `seconds`) TimeoutError."""
    async with asyncio.timeout(seconds):
        return await asyncio.to_thread(_request_models, _url(about, env), seconds)


def _url(about: ProviderConfig, env: Mapping[str, str]) -> str:
    return about.address(env).removesuffix(about.base_path) + about.listing


def _first_available(candidates: Sequence[str], listed: Sequence[str]) -> str | None:
    """Return the server's name of the first item of `candidates` that the server has, or None if it has none of them.

    A candidate without a tag matches any tag.
    """
    for candidate in candidates:
        for name in listed:
            if candidate in (name, name.partition(":")[0]):
                return name
    return None


def _silent_server_text(name: str, about: ProviderConfig, url: str, why: str) -> str:
    elsewhere = f", or set {about.base_url_variable} if it is elsewhere" if about.base_url_variable else ""
    return f"{name} does not list its models at {url} ({why}): start it{elsewhere}"


def _request_models(url: str, seconds: float) -> list[str]:
    """Return the models of the server.

    Raise OSError if the server cannot be reached, ValueError for an invalid answer.
    """
    from http.client import HTTPConnection, HTTPException, HTTPSConnection

    target = urlsplit(url)
    if target.hostname is None:
        raise ValueError("invalid address: it has no host name")
    connect = HTTPSConnection if target.scheme == "https" else HTTPConnection
    connection = connect(target.hostname, target.port, timeout=seconds)
    try:
        connection.request("GET", target.path)
        response = connection.getresponse()
        body = response.read(MAX_BYTES)
        if response.status != 200:
            raise ValueError(f"HTTP status {response.status}")
        return [tag.name for tag in msgspec.json.decode(body, type=_OllamaModels).models]
    except (HTTPException, msgspec.MsgspecError) as error:
        raise ValueError(f"the response is not a list of models: {error}") from error
    finally:
        connection.close()
