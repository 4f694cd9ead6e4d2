"""Taint labels for untrusted content, sensitive data and actions.

A conversation that combines untrusted content, sensitive data and actions is dangerous. The combination of the three is
called the lethal trifecta.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from .text import plain_line

__all__ = [
    "BITS",
    "Bit",
    "TaintConfig",
    "TaintLabel",
    "bits_in",
    "inherited_labels",
    "join_labels",
    "taint_label",
    "without_sources",
]

Bit: TypeAlias = Literal["untrusted", "sensitive", "acts"]
"""The kinds of taint.

- "untrusted": content written by other people
- "sensitive": private data
- "acts": a call that changes something or sends data out
"""

BITS: Final[tuple[Bit, ...]] = ("untrusted", "sensitive", "acts")
MAX_LABELS_PER_BIT: Final = 8
"""Maximum number of labels for one bit. More labels would add no information."""
WIDTH: Final = 160
AGENT: Final = "agent "
BRACKETS_TO_PARENTHESES: Final = str.maketrans("[]", "()")


class TaintLabel(Struct, frozen=True, gc=False):
    """A taint bit of a conversation, and the cause of this bit in one line: a call, an agent or an archive."""

    bit: Bit
    by: str = ""


class TaintConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Which content is untrusted or sensitive, and what happens to a call that would combine all three bits."""

    mode: Literal["ask", "deny", "off"] = "ask"
    trusted_hosts: tuple[str, ...] = ()
    """Hosts whose pages are trusted; `*.example.org` matches all subdomains."""
    untrusted_paths: tuple[str, ...] = ()
    """Files that other people wrote. `.` is the working folder of an agent."""
    sensitive_paths: tuple[str, ...] = ()
    """Sensitive files besides credentials and `personal_paths`."""
    tools: dict[str, tuple[Bit, ...]] = {}
    """The taint bits of each tool's calls. These bits override the bits that the tool declares."""


def taint_label(bit: Bit, by: str) -> TaintLabel:
    """Return a label for `bit`. The cause `by` becomes one plain line with parentheses instead of square brackets."""
    return TaintLabel(bit, plain_line(by.translate(BRACKETS_TO_PARENTHESES), WIDTH))


def bits_in(labels: Iterable[TaintLabel]) -> frozenset[Bit]:
    """Return the bits of `labels`."""
    return frozenset(each.bit for each in labels)


def join_labels(known: tuple[TaintLabel, ...], labels: Iterable[TaintLabel]) -> tuple[TaintLabel, ...]:
    """Return `known` and the new labels of `labels`, at most MAX_LABELS_PER_BIT labels for each bit."""
    if not (new := [each for each in labels if each not in known]):
        return known
    counts = {bit: sum(each.bit == bit for each in known) for bit in BITS}
    for each in new:
        if each not in known and counts.get(each.bit, MAX_LABELS_PER_BIT) < MAX_LABELS_PER_BIT:
            counts[each.bit] += 1
            known = (*known, each)
    return known


def without_sources(labels: Iterable[TaintLabel]) -> tuple[TaintLabel, ...]:
    """Return one label without a cause for each bit of `labels`.

    Use this function where the cause must not be stored.
    """
    bits = bits_in(labels)
    return tuple(TaintLabel(bit) for bit in BITS if bit in bits)


def inherited_labels(labels: Iterable[TaintLabel], agent: str) -> tuple[TaintLabel, ...]:
    """Return the labels that a conversation inherits with content from `agent`: `labels` without the bit "acts".

    A label that already names an agent stays unchanged. Therefore, labels do not grow when content passes through
    several agents.
    """
    return tuple(
        each if each.by.startswith(AGENT) else taint_label(each.bit, f"{AGENT}{agent}: {each.by}")
        for each in labels
        if each.bit != "acts"
    )
