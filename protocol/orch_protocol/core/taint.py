"""Three things that are dangerous together: untrusted content, sensitive data, and acting on the world. As data."""

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
"""Content that somebody else wrote; what is not for everybody; changing something, or saying something outside."""

BITS: Final[tuple[Bit, ...]] = ("untrusted", "sensitive", "acts")
MOST: Final = 8
"""So many things that brought one bit are told of; more would say nothing new."""
WIDTH: Final = 160
AGENT: Final = "agent "
SHAPES: Final = str.maketrans("[]", "()")


class TaintLabel(Struct, frozen=True, gc=False):
    """A bit of a conversation, and what brought it: a call, an agent, an archive, on one line."""

    bit: Bit
    by: str = ""


class TaintConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What counts as untrusted and as sensitive, and what becomes of a call that would bring all three together."""

    mode: Literal["ask", "deny", "off"] = "ask"
    trusted_hosts: tuple[str, ...] = ()
    """Hosts whose pages are trusted; `*.example.org` is all below that."""
    untrusted_paths: tuple[str, ...] = ()
    """Files that others wrote. `.` is the folder that an agent works in."""
    sensitive_paths: tuple[str, ...] = ()
    """Besides credentials and `personal_paths`."""
    tools: dict[str, tuple[Bit, ...]] = {}
    """By tool, in place of what it says itself: which of the three a call of it brings."""


def taint_label(bit: Bit, by: str) -> TaintLabel:
    """Return a mark; whatever is in `by` becomes a part of one line in which no label begins or ends."""
    return TaintLabel(bit, plain_line(by.translate(SHAPES), WIDTH))


def bits_in(marks: Iterable[TaintLabel]) -> frozenset[Bit]:
    """Return which bits `marks` are about."""
    return frozenset(each.bit for each in marks)


def join_labels(known: tuple[TaintLabel, ...], marks: Iterable[TaintLabel]) -> tuple[TaintLabel, ...]:
    """Return `known` with what of `marks` is new, as far as one bit needs no more than a few."""
    if not (new := [each for each in marks if each not in known]):
        return known
    counts = {bit: sum(each.bit == bit for each in known) for bit in BITS}
    for each in new:
        if each not in known and counts.get(each.bit, MOST) < MOST:
            counts[each.bit] += 1
            known = (*known, each)
    return known


def without_sources(marks: Iterable[TaintLabel]) -> tuple[TaintLabel, ...]:
    """Return `marks` without what brought them, which is not to be kept: that they are there counts all the same."""
    bits = bits_in(marks)
    return tuple(TaintLabel(bit) for bit in BITS if bit in bits)


def inherited_labels(marks: Iterable[TaintLabel], agent: str) -> tuple[TaintLabel, ...]:
    """Return what of `marks`, those of `agent`, goes over to who is told something by it: content, not deeds.

    Of a long way the first agent is named, so that what goes to and fro stays what it was.
    """
    return tuple(
        each if each.by.startswith(AGENT) else taint_label(each.bit, f"{AGENT}{agent}: {each.by}")
        for each in marks
        if each.bit != "acts"
    )
