"""Models as JSON data, as a table and as pages."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import asdict

from orch_protocol.agent.models import Price
from orch_protocol.services.models.models import ModelRow

from ...config.models import ANY
from .. import terminal
from ..columns import format_columns

__all__ = ["data", "table"]

HEAD: Final = ["MODEL", "CONTEXT", "INPUT", "OUTPUT", "CACHED", "KEY"]
RIGHT: Final = frozenset({1, 2, 3, 4})


def table(rows: list[ModelRow]) -> str:
    """Return models as a table, one per line."""
    return format_columns([HEAD, *map(_cells, rows)], RIGHT)


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


def _wanted(row: ModelRow, limit: int | None = None) -> str:
    return f"no {' or '.join(row.keys[:limit])}" if row.keys else "none needed"


def page(row: ModelRow) -> str:
    """Return one model as a page with its listed name, its limits and its prices."""
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
        page.append(f"  {label:10}unknown; costs are lower bounds, computed with the lowest prices of the provider:")
        label = ""
    for price in row.prices:
        above = f", for more than {price.above:,} tokens" if price.above else ""
        kinds = [
            (price.input, "in"),
            (price.output, "out"),
            (price.cache_read, "cached"),
            (price.cache_write, "into the cache"),
        ]
        text = ", ".join(f"{_dollars(each)} {what}" for each, what in kinds if each is not None)
        page.append(f"  {label:10}{text} per million tokens{above}")
        label = ""
    return "\n".join(page)


def _dollars(price: float | None) -> str:
    return "?" if price is None else f"${price:g}"
