"""What a model said, as the object that it was to say."""

from __future__ import annotations

from typing import TypeVar

import msgspec

__all__ = ["understood"]

T = TypeVar("T")


def understood(said: str, kind: type[T]) -> T:
    """Return the one JSON object in `said`, whatever stands around it. Raises ValueError, which says what is wrong."""
    begin, end = said.find("{"), said.rfind("}")
    if begin < 0 or end < begin:
        raise ValueError("there is no JSON object in the answer")
    try:
        return msgspec.json.decode(said[begin : end + 1].encode("utf-8", "replace"), type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"the answer is not as it was asked for: {error}") from error
