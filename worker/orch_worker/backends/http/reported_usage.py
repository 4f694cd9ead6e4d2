"""Token counts as providers report them: checked and clamped to the context window before anything is charged."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from orch_protocol.core.messages import Usage

__all__ = ["CheckedUsage", "ReportedUsage", "checked"]


class ReportedUsage(Struct):
    """The counts of one response, of any type; None where the provider reported nothing.

    `inclusive`: `input` includes the cached tokens, as OpenAI counts; otherwise they come on top.
    """

    input: Any = None
    output: Any = None
    cache_read: Any = None
    cache_write: Any = None
    inclusive: bool = False


class CheckedUsage(Struct, frozen=True):
    """`usage` has each count within 0 and the window, 0 where there was no usable one.

    `input_known` and `output_known` are false for counts that have to be estimated. `problem` names the first count
    that was missing, clamped or of a wrong type; empty if all are as reported.
    """

    usage: Usage
    input_known: bool
    output_known: bool
    problem: str = ""


def checked(reported: ReportedUsage, window: int) -> CheckedUsage:
    """Return `reported` with integers clamped to 0..`window`; other values than integers count as unknown.

    The request as a whole is at most `window` tokens too. Cache counts are optional and 0 when missing.
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
    most = counts.get("input", window) if reported.inclusive else window
    read = min(counts.get("cache_read", 0), most)
    written = min(counts.get("cache_write", 0), most - read)
    total = counts.get("input", 0)
    fresh = max(0, total - read - written) if reported.inclusive else min(total, window - read - written)
    return CheckedUsage(
        Usage(fresh, counts.get("output", 0), read, written),
        input_known="input" in counts,
        output_known="output" in counts,
        problem=problems[0] if problems else "",
    )
