"""Token counts as providers report them.

Before any cost is charged, the counts are checked and limited to the context window.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from orch_protocol.core.messages import Usage

__all__ = ["CheckedUsage", "ReportedUsage", "checked"]


class ReportedUsage(Struct):
    """The token counts of one response as the provider reported them. None means that a count was not reported.

    The values may have any type. `inclusive` is True if `input` includes the cached tokens, as with OpenAI. Otherwise
    the cached tokens are additional.
    """

    input: Any = None
    output: Any = None
    cache_read: Any = None
    cache_write: Any = None
    inclusive: bool = False


class CheckedUsage(Struct, frozen=True):
    """Token counts between 0 and the context window. Unusable counts are 0.

    `input_known` and `output_known` are False for counts that must be estimated. `problem` names the first count that
    was missing, was outside the limits, or had a wrong type. Otherwise `problem` is "".
    """

    usage: Usage
    input_known: bool
    output_known: bool
    problem: str = ""


def checked(reported: ReportedUsage, window: int) -> CheckedUsage:
    """Return the counts limited to 0..`window`. Values that are not integers count as unknown.

    The request as a whole is also limited to `window` tokens. Cache counts are optional; their default is 0.
    """
    counts: dict[str, int] = {}
    problems = []
    for name in ("input", "output", "cache_read", "cache_write"):
        value = getattr(reported, name)
        if isinstance(value, int) and not isinstance(value, bool):
            counts[name] = min(max(value, 0), window)
            if counts[name] != value:
                problems.append(f"{name} tokens: {value!r:.40}")
        elif value is not None or name in ("input", "output"):
            problems.append(f"{name} tokens: {'missing' if value is None else repr(value)[:40]}")
    limit = counts.get("input", window) if reported.inclusive else window
    read = min(counts.get("cache_read", 0), limit)
    written = min(counts.get("cache_write", 0), limit - read)
    total = counts.get("input", 0)
    fresh = max(0, total - read - written) if reported.inclusive else min(total, window - read - written)
    return CheckedUsage(
        Usage(fresh, counts.get("output", 0), read, written),
        input_known="input" in counts,
        output_known="output" in counts,
        problem=problems[0] if problems else "",
    )
