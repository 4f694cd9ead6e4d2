"""Archives the conversations of any client of a model API. Importing this package does not load an HTTP client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .receipt_log import stats
    from .transport import async_client, client

__all__ = ["async_client", "client", "stats"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "stats":
        from .receipt_log import stats

        return stats
    from . import transport

    return getattr(transport, name)
