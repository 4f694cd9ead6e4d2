"""Replay recordings with different policies and report the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from orch_protocol.core.messages import Message
from orch_worker.backends.prices import Prices, dollars
from orch_worker.conversation.recalled import shown_hits

from ..archival.plan.plan import SUMMARY_TOKENS
from .bill import Bill, Meter
from .policies import Policy, ReplaySetting, policy_named
from .readers import Recording, Scale, scale_of
from .retained_facts import KINDS, Share, evidence_in, reachable_shares

__all__ = ["USD_PER_MILLION", "Outcome", "Point", "ReplayPricing", "recorded_input", "replay", "report", "table"]

MAX_ITEMS: Final = 500
USD_PER_MILLION: Final = 3.0
RECALL_OUTPUT: Final = 400


class ReplayPricing(Struct, frozen=True):
    """Parameters of a replay.

    `beside` is the number of tokens of the system prompt and the tools. If `beside` is None, the recorded number or a
    default is used. `lifetime` is the number of seconds until a cache entry expires; None means that entries do not
    expire. `usd` is the price of a million uncached input tokens. `items` is the maximum number of facts of each kind
    to search for; 0 means none.
    """

    prices: Prices = Prices()
    beside: int | None = None
    lifetime: float | None = None
    window: int = 200_000
    summary_tokens: int = SUMMARY_TOKENS
    usd: float = USD_PER_MILLION
    items: int = MAX_ITEMS


class Point(Struct, frozen=True):
    """The state of a policy at one model call.

    A point contains the tokens of the request, and the cumulative cost in units.
    """

    context: int
    units: float


class Outcome(Struct, frozen=True):
    """The result of one policy for all recordings.

    `recalls` is the cost in units if every 10 archived turns cause one recall. `course` contains one point for each
    model call, in the order of the recordings.
    """

    name: str
    bill: Bill = Bill()
    collapses: int = 0
    holders: int = 0
    recalls: float = 0.0
    evidence: dict[str, Share] = {}
    over_window: int = 0
    course: tuple[Point, ...] = ()


def replay(
    recordings: Sequence[Recording],
    name: str,
    terms: ReplayPricing,
    folder: Path,
    progress: Callable[[int], None] = lambda _: None,
) -> Outcome:
    """Return the result of the policy `name` for `recordings`.

    Archives are written to numbered folders under `folder`. `progress` is called after each model call with the number
    of calls so far. Raises StoreError, ConfigError.
    """
    outcome = Outcome(name)
    done = 0

    def count_step() -> None:
        nonlocal done
        done += 1
        progress(done)

    for number, recording in enumerate(recordings):
        scale = scale_of(recording, terms.beside)
        where = folder / f"{name}-{number:04d}"
        setting = ReplaySetting(scale, terms.prices, where, terms.window, terms.summary_tokens)
        policy = policy_named(name, setting)
        try:
            bill, context, course = _run(recording, policy, scale, terms, count_step)
            outcome = _added(outcome, policy, bill, recording, context, course, terms)
        finally:
            policy.close()
    return outcome


def _run(
    recording: Recording, policy: Policy, scale: Scale, terms: ReplayPricing, progress: Callable[[], None]
) -> tuple[Bill, list[Message], list[Point]]:
    meter = Meter(terms.prices, terms.lifetime)
    calls = set(recording.calls)
    context: list[Message] = []
    system = ("system", scale.beside)
    course: list[Point] = []
    for place, each in enumerate(recording.messages):
        if place in calls:
            context = policy.before(context, meter.extra)
            output = each.output_tokens or scale.size(each.message)
            parts = [system, *((message, scale.size(message)) for message in context)]
            tail = policy.tail(context)
            meter.request(parts, output, tail=tail, at=each.at)
            progress()
            course.append(Point(sum(tokens for _, tokens in parts) + tail, meter.bill.units))
        context = [*context, each.message]
    return meter.bill, context, course


def _added(
    outcome: Outcome,
    policy: Policy,
    bill: Bill,
    recording: Recording,
    context: list[Message],
    course: Sequence[Point],
    terms: ReplayPricing,
) -> Outcome:
    evidence = dict(outcome.evidence)
    archiver = policy.archiver
    kept = {id(message) for message in context}
    evicted = [each.message for each in recording.messages if id(each.message) not in kept]
    if terms.items:
        recall = None if archiver is None else lambda item: shown_hits(archiver.search(item))
        for kind, share in reachable_shares(evidence_in(evicted), context, recall, terms.items).items():
            evidence[kind] = evidence.get(kind, Share()) + share
    records = archiver.archives() if archiver else []
    turns = sum(record.kind == "turn" for record in records)
    recall_units = 0.0
    if records:
        # A recall is one more request. It contains the average conversation and the text of the archive, and its answer
        # is short.
        live = bill.input_tokens / max(bill.requests, 1)
        read = sum(record.tokens for record in records) / len(records)
        each_recall = live * terms.prices.read + min(read, 1_500) * terms.prices.write
        recall_units = (turns or len(records)) / 10 * (each_recall + RECALL_OUTPUT * terms.prices.output)
    return Outcome(
        outcome.name,
        outcome.bill + bill,
        outcome.collapses + policy.collapses,
        outcome.holders + len(records),
        outcome.recalls + recall_units,
        evidence,
        outcome.over_window + sum(point.context > terms.window for point in course),
        (*outcome.course, *(Point(point.context, outcome.bill.units + point.units) for point in course)),
    )


def recorded_input(recordings: Sequence[Recording], terms: ReplayPricing) -> tuple[int, int] | None:
    """Return the input tokens that the recordings report, and the estimated tokens of the same requests.

    Return None if the recordings report no usage.
    """
    reported_total = ours = 0
    for recording in recordings:
        scale = scale_of(recording, terms.beside)
        for place, context in recording.contexts():
            if reported := recording.messages[place].input_tokens:
                reported_total += reported
                ours += scale.beside + scale.sizes(context)
    return (reported_total, ours) if reported_total else None


def report(
    files: Sequence[Path], recordings: Sequence[Recording], outcomes: Sequence[Outcome], terms: ReplayPricing
) -> dict[str, Any]:
    """Return the results as JSON data."""
    recorded = recorded_input(recordings, terms)
    archiving = next((each for each in outcomes if each.name == "auto"), None) or next(
        (each for each in outcomes if each.holders), None
    )
    return {
        "files": [str(file) for file in files],
        "recordings": len(recordings),
        "calls": sum(len(recording.calls) for recording in recordings),
        "recorded": None if recorded is None else {"input_tokens": recorded[0], "replayed": recorded[1]},
        "policies": [_row(each, outcomes, terms) for each in outcomes],
        "evidence": {kind: archiving.evidence.get(kind, Share()).ratio for kind in KINDS} if archiving else None,
    }


def _row(outcome: Outcome, outcomes: Sequence[Outcome], terms: ReplayPricing) -> dict[str, Any]:
    base = next((each.bill.units for each in outcomes if each.name == "none"), 0.0)
    bill = outcome.bill
    return {
        "name": outcome.name,
        "cost_units": round(bill.units),
        "cost_usd": round(dollars(bill.units, terms.usd), 4),
        "cost_percent": round(100 * bill.units / base, 2) if base else None,
        "cost_with_recalls": round(bill.units + outcome.recalls),
        "input_tokens": bill.input_tokens,
        "cached_tokens": bill.cached_tokens,
        "output_tokens": bill.output_tokens,
        "peak_tokens": bill.peak_tokens,
        "over_window": outcome.over_window,
        "collapses": outcome.collapses,
        "holders": outcome.holders,
        "evidence": {kind: share.ratio for kind, share in outcome.evidence.items()},
        "evidence_items": {kind: [share.asked, share.all] for kind, share in outcome.evidence.items()},
    }


def table(data: dict[str, Any]) -> str:
    """Return the report `data` as a table."""
    head = (
        "POLICY",
        "COST",
        "OF NONE",
        "+RECALLS",
        "INPUT",
        "CACHED",
        "PEAK",
        "OVER",
        "ARCHIVES",
        *map(str.upper, KINDS),
    )
    rows = [head]
    for row in data["policies"]:
        percent = "-" if row["cost_percent"] is None else f"{row['cost_percent']:.1f} %"
        cached = 100 * row["cached_tokens"] / max(row["input_tokens"], 1)
        rows.append(
            (
                row["name"],
                f"${row['cost_usd']:.2f}",
                percent,
                f"x{row['cost_with_recalls'] / max(row['cost_units'], 1):.2f}",
                _short(row["input_tokens"]),
                f"{cached:.0f} %",
                _short(row["peak_tokens"]),
                str(row["over_window"]),
                str(row["holders"]),
                *(f"{100 * row['evidence'][kind]:.1f} %" if kind in row["evidence"] else "-" for kind in KINDS),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if not column else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _short(tokens: int) -> str:
    if tokens < 10_000:
        return str(tokens)
    return f"{tokens / 1000:.0f}k" if tokens < 10_000_000 else f"{tokens / 1e6:.1f}M"
