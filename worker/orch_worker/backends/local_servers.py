"""Asks model servers on this machine for their models and context windows.

`locate` resolves the model name `local`. `LocalServers` completes a spec with what the server says about its model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from time import monotonic, sleep
from typing import Any, Final
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError

from ..system.threads import DAEMON_THREADS
from .models import (
    UNKNOWN_CONTEXT,
    Model,
    ModelCatalog,
    ProviderConfig,
    is_loopback,
    names_address,
    served_name,
    shipped_model,
)
from .server_answers import (
    KOBOLDCPP,
    LLAMA_CPP,
    ModelServer,
    read_koboldcpp,
    read_lm_studio,
    read_models,
    read_ollama,
    read_props,
)

__all__ = ["LOCAL", "PORTS", "LocalServers", "ask_server", "installed", "locate"]

LOCAL: Final = "local"
PORTS: Final = (8080, 11434, 1234, 8000, 30000, 5001, 5000, 1337)
"""The usual ports of llama.cpp, Ollama, LM Studio, vLLM, SGLang, KoboldCpp, TabbyAPI and Jan."""
SECONDS: Final = 2.0
LOAD_SECONDS: Final = 60.0
"""Time limit for a server that loads its model. Only a loaded model has a known context window."""
POLL_SECONDS: Final = 0.2
FRESH_SECONDS: Final = 5.0
"""How long an answer is used for further agents with the same model."""
MAX_BYTES: Final = 4 << 20
MAX_NAMED: Final = 20
VERSION: Final = "/v1"
APIS: Final = frozenset({"chat", "responses", "messages"})


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
    with _Connection(url, "", seconds) as connection:
        try:
            return [tag.name for tag in msgspec.convert(connection.get(""), type=_OllamaModels).models]
        except msgspec.ValidationError as error:
            raise ValueError(f"the response is not a list of models: {error}") from error


class LocalServers:
    """The model servers that were asked, with their last answers. `load` is an argument of `ask_server`."""

    def __init__(self, *, load: bool = True) -> None:
        self._load = load
        self._answers: dict[tuple[str, str], tuple[float, ModelServer]] = {}

    async def complete(self, spec: BackendSpec, key: str = "") -> BackendSpec:
        """Return the complete `spec` with what its server says about the model: context window and images.

        A model without a listed price that gets no key is free, and so are all models of a server that runs its models
        itself. A smaller context in the user's models.json is kept. Servers on other machines are not asked. A server
        that does not answer changes nothing. If the spec is an address without the name of a model, the name of the
        server's only model is added. `key` is sent to the server. Raise ConfigError for a wrong address, and for a
        wrong or missing name.
        """
        url = str(spec.options.get("base_url", ""))
        by_address = names_address(spec)
        unnamed = by_address and not served_name(spec)
        is_local = is_loopback(url) or (spec.options.get("flags") or {}).get("local", False)
        if spec.options.get("api") not in APIS or not (is_local or unnamed):
            return spec
        name = served_name(spec) or ("" if unnamed else spec.model)
        if not spec.options.get("price_known", True) and not spec.options.get("keys"):
            spec = _free(spec)
        try:
            # Addresses for the Messages API do not contain the version.
            server = await self._ask(url + VERSION * (spec.options["api"] == "messages"), name, key)
        except (OSError, ValueError) as error:
            if unnamed:
                raise ConfigError(
                    f"the model {spec.provider}:{spec.model} does not name a model, and its server does not list its "
                    f"models ({error}): start the server, or write {url}#NAME"
                ) from None
            return spec
        if by_address:
            spec = _named(spec, url, server)
        return _with_served_model(spec, server)

    async def _ask(self, url: str, name: str, key: str) -> ModelServer:
        asked, server = self._answers.get((url, name), (0.0, None))
        if server is None or monotonic() - asked > FRESH_SECONDS:
            server = await asyncio.get_running_loop().run_in_executor(
                DAEMON_THREADS, partial(ask_server, url, name, key, load=self._load)
            )
            self._answers[url, name] = (monotonic(), server)
        return server


def ask_server(url: str, name: str = "", key: str = "", seconds: float = SECONDS, *, load: bool = True) -> ModelServer:
    """Return the models of the server at `url`, with all facts about the model `name`, or about the only model.

    With `load`, wait until the server has loaded this model: a context window is known only then. Raise ConfigError if
    the server answers at another path, OSError if it does not answer, ValueError if it does not list its models.
    """
    base = url.rstrip("/")
    root = base.removesuffix(VERSION)
    with _Connection(root, key, seconds) as connection:
        path = base.removeprefix(root)
        problem = "the response is not a list of models"
        try:
            server = read_models(connection.get(f"{path}/models", load=load))
        except ValueError as error:
            server, problem = None, str(error)
        if server is None:
            if not path and read_models(connection.find(f"{VERSION}/models")) is not None:
                raise ConfigError(
                    f"the model server at {base} answers at {base}{VERSION}: add {VERSION} to the address"
                )
            raise ValueError(problem)
        name = name or (server.models[0].name if len(server.models) == 1 else "")
        if server.kind == LLAMA_CPP:
            found = server.find(name)
            several = f"?model={quote(name)}&autoload=false" if found is not None and found.loaded is not None else ""
            return read_props(server, name, connection.find(f"/props{several}"))
        if server.kind == KOBOLDCPP:
            return read_koboldcpp(server, connection.find("/api/extra/true_max_context_length"))
        if server.kind:
            return server
        if (studio := read_lm_studio(connection.find("/api/v0/models"))) is not None:
            return studio
        ollama = read_ollama(server, connection.find("/api/ps"))
        if ollama is None:
            return server
        found = ollama.find(name)
        if load and found is not None and not found.loaded:
            connection.find("/api/generate", {"model": found.name}, LOAD_SECONDS)  # loads the model, and returns
            ollama = read_ollama(server, connection.find("/api/ps")) or ollama
        return ollama


def _named(spec: BackendSpec, url: str, server: ModelServer) -> BackendSpec:
    """Return `spec`, whose model is an address, with the name of a model that the server has. Raise ConfigError."""
    name, names = served_name(spec), [each.name for each in server.models]
    if name and (not names or server.find(name) is not None):
        return spec
    if not name and len(names) == 1:
        return replace(
            spec, model=f"{spec.model.partition('#')[0]}#{names[0]}", options=spec.options | {"served_name": names[0]}
        )
    listed = ", ".join(names[:MAX_NAMED]) or "no model"
    problem = f"has no model {name!r}" if name else "needs the name of a model"
    raise ConfigError(f"{url} {problem}; it lists {listed}: write {url}#NAME")


def _with_served_model(spec: BackendSpec, server: ModelServer) -> BackendSpec:
    """Return the complete `spec` with the facts that `server` reports about its model."""
    model = msgspec.convert(spec.options, Model)
    shipped = shipped_model(spec.provider, spec.model)
    found = server.find(model.served_name or spec.model)
    if server.kind and shipped is not None and model.prices == shipped.prices:
        spec = _free(spec)  # The server runs the model itself: it is another model than the one of the provider.
    if found is None:
        return spec
    options = dict(spec.options)
    usual = shipped.context if shipped is not None else UNKNOWN_CONTEXT
    if found.context:
        is_users = model.context != usual
        options |= {"context": min(model.context, found.context) if is_users else found.context}
        options["context_reported"] = True
    elif found.longest:
        options["context"] = min(model.context, found.longest)
    if found.images is False:
        options["flags"] = {**(options.get("flags") or {}), "images": False}
    return replace(spec, options=options)


def _free(spec: BackendSpec) -> BackendSpec:
    """Return the complete `spec` without prices."""
    options = {name: value for name, value in spec.options.items() if name not in ("prices", "price_known", "ceiling")}
    return replace(spec, options=options)


class _Connection:
    """A connection to a model server. `root` is an address without /v1."""

    def __init__(self, root: str, key: str, seconds: float) -> None:
        target = urlsplit(root)
        if not target.hostname:
            raise ValueError("invalid address: it has no host name")
        connect = HTTPSConnection if target.scheme == "https" else HTTPConnection
        self._connection = connect(target.hostname, target.port, timeout=seconds)
        self._path = target.path.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def get(self, path: str, *, load: bool = False) -> Any:
        """Return the JSON at `path`. With `load`, wait until the server has loaded its model.

        Raise OSError if the server cannot be reached, ValueError for an invalid answer.
        """
        deadline = monotonic() + LOAD_SECONDS
        while True:
            status, body = self._send(path, None)
            if status != 503 or not load or b"oading" not in body or monotonic() > deadline:
                break
            sleep(POLL_SECONDS)
        if status != 200:
            needs_key = status in (401, 403)
            remedy = ": it requires a key; add it as a provider to $ORCH_HOME/models.json" if needs_key else ""
            raise ValueError(f"HTTP status {status}{remedy}")
        try:
            return msgspec.json.decode(body)
        except msgspec.MsgspecError as error:
            raise ValueError(f"the response is not a list of models: {error}") from error

    def find(self, path: str, body: dict[str, Any] | None = None, seconds: float | None = None) -> Any:
        """Return the JSON at `path`, or None if the server has none there. With `body`, send a POST request."""
        if seconds is not None and self._connection.sock is not None:
            self._connection.sock.settimeout(seconds)
        try:
            status, answer = self._send(path, body)
            return msgspec.json.decode(answer) if status == 200 else None
        except (OSError, ValueError, msgspec.MsgspecError):
            return None

    def _send(self, path: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
        try:
            content = None if body is None else msgspec.json.encode(body)
            self._connection.request("GET" if body is None else "POST", self._path + path, content, self._headers)
            response = self._connection.getresponse()
            answer = response.read(MAX_BYTES)
            if not response.isclosed():
                self._connection.close()  # the rest of a longer answer
            return response.status, answer
        except HTTPException as error:
            self._connection.close()
            raise ValueError(f"the response is not valid HTTP: {error}") from error
        except OSError:
            self._connection.close()
            raise
