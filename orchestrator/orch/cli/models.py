"""The verb about models: which are known, what they take and cost, and whether there is a key."""

from __future__ import annotations

import asyncio
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from orch_protocol.config import parse_model
from orch_protocol.errors import ConfigError
from orch_worker.backends import models
from orch_worker.backends.local import LOCAL, locate
from orch_worker.backends.models import Model, Models

from .. import paths
from . import render, words
from .verb import Verb

__all__ = ["VERBS"]

HEAD: Final = ["MODEL", "CONTEXT", "INPUT", "OUTPUT", "CACHED", "KEY"]
RIGHT: Final = frozenset({1, 2, 3, 4})
ANY: Final = "*"


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="MODEL", nargs="?", help="PROVIDER:MODEL, a model's name, or local")


def _models(arguments: Namespace) -> int:
    known = models.load(paths.home(os.environ))
    if arguments.name is not None:
        about = _look_up(known, words.clean(arguments.name))
        words.say(arguments, about, _page(about))
        return 0
    listed = list(_listed(known))
    words.say(arguments, listed, render.columns([HEAD, *map(_cells, listed)], RIGHT))
    return 0


def _listed(known: Models) -> Iterator[dict[str, Any]]:
    """Yield every entry; a `*` behind a name stands for whatever else begins like that."""
    for provider in known.providers:
        for name in known.models.get(provider, {"": None}):
            about = _about(known, provider, name)
            yield about if name and about["price_known"] else about | {"model": about["model"] + ANY}


def _look_up(known: Models, name: str) -> dict[str, Any]:
    """Return what is known of the model that somebody calls `name`. Raises ConfigError."""
    spec = asyncio.run(locate(parse_model(name), known, os.environ)) if name == LOCAL else parse_model(name)
    if spec.provider in known.providers:
        model = spec.model or known.provider(spec.provider).default
        if not model:
            raise ConfigError(f"which model of {spec.provider}? Write {spec.provider}:MODEL")
        return _about(known, spec.provider, model)
    found = {provider: known.listed_as(provider, name) or "" for provider in known.providers}
    provider = max(found, key=lambda each: len(found[each]))
    if not found[provider]:
        raise ConfigError(
            f"no listed model begins {name!r}: to say whose it is, write PROVIDER:MODEL, with one of {', '.join(found)}"
        )
    return _about(known, provider, name)


def _about(known: Models, provider: str, name: str) -> dict[str, Any]:
    """Return one model as data; prices are USD per million tokens."""
    model: Model = known.look_up(provider, name)
    return {
        "model": f"{provider}:{name}",
        "listed_as": known.listed_as(provider, name),
        "api": model.api,
        "context": model.context,
        "output": model.output or None,
        "price_known": model.price_known,
        "prices": [msgspec.structs.asdict(price) for price in model.prices],
        "keys": list(model.keys),
        "key": next((key for key in model.keys if os.environ.get(key)), None),
    }


def _cells(about: dict[str, Any]) -> list[str]:
    first = about["prices"][0] if about["prices"] else {}
    prices = [_dollars(first.get(kind)) for kind in ("input", "output", "cache_read")]
    if not about["price_known"]:
        prices = ["?"] * 3
    elif not about["prices"]:
        prices = ["free"] * 3
    return [render.safe(about["model"]), render.count(about["context"]), *prices, about["key"] or _wanted(about, 1)]


def _wanted(about: dict[str, Any], most: int | None = None) -> str:
    return f"no {' or '.join(about['keys'][:most])}" if about["keys"] else "none needed"


def _page(about: dict[str, Any]) -> str:
    """Return one model for people: what it is known as, and what that means."""
    known_as = about["listed_as"]
    facts = {
        "known as": f"{known_as}{'' if about['price_known'] else ANY}" if known_as else "any model of that provider",
        "API": about["api"],
        "context": f"{about['context']:,} tokens",
        "reply": f"at most {about['output']:,} tokens" if about["output"] else "",
        "key": f"{about['key']}, which is set" if about["key"] else _wanted(about),
    }
    page = [render.safe(about["model"]), *(f"  {name + ':':10}{value}" for name, value in facts.items() if value)]
    if about["price_known"] and not about["prices"]:
        return "\n".join([*page, "  price:    free"])
    label = "price:"
    if not about["price_known"]:
        page.append(f"  {label:10}not known; costs are a floor, by the lowest prices of that provider:")
        label = ""
    for price in about["prices"]:
        above = f", for more than {price['above']:,} tokens" if price["above"] else ""
        kinds = [("input", "in"), ("output", "out"), ("cache_read", "cached"), ("cache_write", "into the cache")]
        said = ", ".join(f"{_dollars(price[kind])} {what}" for kind, what in kinds if price[kind] is not None)
        page.append(f"  {label:10}{said} per million tokens{above}")
        label = ""
    return "\n".join(page)


def _dollars(price: float | None) -> str:
    return "?" if price is None else f"${price:g}"


VERBS = {
    "models": Verb(
        "List the models that are known, or say what is known of one. Asks no daemon.",
        "orch models; orch models local",
        _arguments,
        _models,
    ),
}
