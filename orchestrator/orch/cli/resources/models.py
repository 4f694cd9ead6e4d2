"""The verb about models: which are known, what they take and cost, and whether there is a key."""

from __future__ import annotations

import asyncio
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Container
from typing import Any, Final

from msgspec.structs import asdict

from orch_protocol.agent.config import parse_model
from orch_protocol.agent.models import ModelRow, Price
from orch_protocol.core.errors import ConfigError
from orch_worker.backends import models
from orch_worker.backends.local_servers import LOCAL, locate
from orch_worker.backends.models import Models

from ...config import paths
from ...config.models import ANY, about, listed
from ...render import terminal
from .. import command
from ..command import Verb

__all__ = ["VERBS", "data", "table"]

HEAD: Final = ["MODEL", "CONTEXT", "INPUT", "OUTPUT", "CACHED", "KEY"]
RIGHT: Final = frozenset({1, 2, 3, 4})


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="MODEL", nargs="?", help="PROVIDER:MODEL, a model's name, or local")


def _models(arguments: Namespace) -> int:
    known, keys = models.load(paths.home(os.environ)), {name for name, value in os.environ.items() if value}
    if arguments.name is not None:
        row = _look_up(known, command.clean(arguments.name), keys)
        command.say(arguments, data(row), _page(row))
        return 0
    rows = list(listed(known, keys))
    command.say(arguments, list(map(data, rows)), table(rows))
    return 0


def table(rows: list[ModelRow]) -> str:
    """Return models as a table, one a line."""
    return terminal.columns([HEAD, *map(_cells, rows)], RIGHT)


def _look_up(known: Models, name: str, keys: Container[str]) -> ModelRow:
    """Return what is known of the model that somebody calls `name`. Raises ConfigError."""
    spec = asyncio.run(locate(parse_model(name), known, os.environ)) if name == LOCAL else parse_model(name)
    if spec.provider in known.providers:
        model = spec.model or known.provider(spec.provider).default
        if not model:
            raise ConfigError(f"which model of {spec.provider}? Write {spec.provider}:MODEL")
        return about(known, spec.provider, model, keys)
    found = {provider: known.listed_as(provider, name) or "" for provider in known.providers}
    provider = max(found, key=lambda each: len(found[each]))
    if not found[provider]:
        raise ConfigError(
            f"no listed model begins {name!r}: to say whose it is, write PROVIDER:MODEL, with one of {', '.join(found)}"
        )
    return about(known, provider, name, keys)


def data(row: ModelRow) -> dict[str, Any]:
    """Return one model as JSON data."""
    return asdict(row) | {"keys": list(row.keys), "thinks": list(row.thinks), "prices": list(map(asdict, row.prices))}


def _cells(row: ModelRow) -> list[str]:
    first = row.prices[0] if row.prices else Price()
    prices = [_dollars(each) for each in (first.input, first.output, first.cache_read)]
    if not row.price_known:
        prices = ["?"] * 3
    elif not row.prices:
        prices = ["free"] * 3
    return [terminal.safe(row.model), terminal.count(row.context), *prices, row.key or _wanted(row, 1)]


def _wanted(row: ModelRow, most: int | None = None) -> str:
    return f"no {' or '.join(row.keys[:most])}" if row.keys else "none needed"


def _page(row: ModelRow) -> str:
    """Return one model for people: what it is known as, and what that means."""
    known_as = row.listed_as
    facts = {
        "known as": f"{known_as}{'' if row.price_known else ANY}" if known_as else "any model of that provider",
        "API": row.api,
        "context": f"{row.context:,} tokens",
        "reply": f"at most {row.output:,} tokens" if row.output else "",
        "thinks": ", ".join(row.thinks),
        "key": f"{row.key}, which is set" if row.key else _wanted(row),
    }
    page = [terminal.safe(row.model), *(f"  {name + ':':10}{value}" for name, value in facts.items() if value)]
    if row.price_known and not row.prices:
        return "\n".join([*page, "  price:    free"])
    label = "price:"
    if not row.price_known:
        page.append(f"  {label:10}not known; costs are a floor, by the lowest prices of that provider:")
        label = ""
    for price in row.prices:
        above = f", for more than {price.above:,} tokens" if price.above else ""
        kinds = [
            (price.input, "in"),
            (price.output, "out"),
            (price.cache_read, "cached"),
            (price.cache_write, "into the cache"),
        ]
        said = ", ".join(f"{_dollars(each)} {what}" for each, what in kinds if each is not None)
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
