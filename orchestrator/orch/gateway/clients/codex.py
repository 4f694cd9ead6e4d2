"""Codex. It reads its server from its configuration, which options replace for one start."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.text import TextEncodingError, decode_text

from ..proxy.upstreams import OPENAI
from .client import Client, Launch, Plan, Surroundings, own_url, read_json

__all__ = ["CODEX"]

PROVIDER: Final = "model_provider"
BASE_URL: Final = "openai_base_url"
CHATGPT: Final = "chatgpt"
CHATGPT_URL: Final = "https://chatgpt.com/backend-api/codex"
"""The server for logins with ChatGPT, whose tokens the server for API keys refuses."""
NOT_COMPRESSED: Final = "features.enable_request_compression=false"
"""The proxy reads no bodies in the encoding that Codex uses for logins with ChatGPT."""
OPTIONS: Final = ("-c", "--config")
PROFILE_OPTIONS: Final = ("-p", "--profile")
LOCAL_OPTIONS: Final = ("--oss", "--local-provider")


def _plan(surroundings: Surroundings) -> Plan:
    home = surroundings.env.get("CODEX_HOME")
    folder = Path(home) if home else surroundings.user_home / ".codex"
    config = _config(folder / "config.toml")
    given = surroundings.arguments
    profile = next(_values(given, PROFILE_OPTIONS), config.get("profile"))
    if isinstance(profile, str):
        profiles = config.get("profiles")
        own = profiles.get(profile) if isinstance(profiles, dict) else None
        config = config | (own if isinstance(own, dict) else {}) | _config(folder / f"{profile}.config.toml")
    settings = config | {name: value for name, _, value in (each.partition("=") for each in _values(given, OPTIONS))}
    if any(each.partition("=")[0] in LOCAL_OPTIONS for each in _before_dashes(given)):
        raise ConfigError("codex uses a local model here: start it without orch wrap, or with another provider")
    provider = _text(settings.get(PROVIDER)) or OPENAI
    if provider != OPENAI:
        return _other_provider(surroundings, config, provider)
    own_server = own_url(_text(settings.get(BASE_URL)), surroundings.proxy_url)
    with_chatgpt = not own_server and not surroundings.env.get("CODEX_API_KEY") and _has_chatgpt_login(folder)
    arguments = _without(given, BASE_URL)

    def launch(base_url: str) -> Launch:
        server = f"{base_url}/{CHATGPT}" if with_chatgpt else f"{base_url}/{OPENAI}/v1"
        return Launch(("-c", f'{BASE_URL}="{server}"', "-c", NOT_COMPRESSED, *arguments), {})

    return Plan(launch, {OPENAI: own_server} if own_server else {CHATGPT: CHATGPT_URL} if with_chatgpt else {})


def _other_provider(surroundings: Surroundings, config: dict[str, Any], provider: str) -> Plan:
    """Return the plan for a provider of the configuration, which has its own server."""
    key = f"model_providers.{provider}.base_url"
    providers = config.get("model_providers")
    table = providers.get(provider) if isinstance(providers, dict) else None
    overridden = (
        value for name, _, value in (e.partition("=") for e in _values(surroundings.arguments, OPTIONS)) if name == key
    )
    url = _text(next(overridden, table.get("base_url") if isinstance(table, dict) else None))
    server = own_url(url, surroundings.proxy_url)
    if not server:
        raise ConfigError(
            f"codex uses the provider {provider!r}, whose server orch wrap does not know: set base_url in "
            f"[model_providers.{provider}] of its config.toml, or start codex without orch wrap"
        )
    name = re.sub(r"[^a-z0-9_-]", "-", f"codex-{provider.lower()}")

    def launch(base_url: str) -> Launch:
        return Launch(
            ("-c", f'{key}="{base_url}/{name}"', "-c", NOT_COMPRESSED, *_without(surroundings.arguments, key)), {}
        )

    return Plan(launch, {name: server})


def _has_chatgpt_login(folder: Path) -> bool:
    login = read_json(folder / "auth.json")
    return bool(login.get("tokens")) and not login.get("OPENAI_API_KEY")


def _config(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(decode_text(path.read_bytes()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TextEncodingError) as error:
        raise ConfigError(f"cannot read {path}, which may set another server: {error}") from error


def _text(value: Any) -> str:
    """Return a text of the configuration. In options, quotes may surround it."""
    return value.strip().strip("\"'") if isinstance(value, str) else ""


def _before_dashes(arguments: Sequence[str]) -> Sequence[str]:
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _values(arguments: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """Yield the values of the options `names`."""
    for start, stop in _places(arguments, names):
        yield arguments[start + 1] if stop - start == 2 else arguments[start].partition("=")[2]


def _places(arguments: Sequence[str], names: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each option `names` with its value."""
    options = _before_dashes(arguments)
    for index, argument in enumerate(options):
        if argument in names and index + 1 < len(options):
            yield index, index + 2
        elif argument.partition("=")[0] in names and "=" in argument:
            yield index, index + 1


def _without(arguments: Sequence[str], key: str) -> tuple[str, ...]:
    """Return `arguments` without the options that set `key`."""
    places = list(_places(arguments, OPTIONS))
    values = list(_values(arguments, OPTIONS))
    removed = {
        index
        for (start, stop), value in zip(places, values, strict=True)
        if value.partition("=")[0].strip() == key
        for index in range(start, stop)
    }
    return tuple(argument for index, argument in enumerate(arguments) if index not in removed)


CODEX: Final = Client("codex", "codex", "npm install -g @openai/codex", _plan)
