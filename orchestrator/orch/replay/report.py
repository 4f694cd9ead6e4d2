"""Replay recordings with different policies and report the results."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, structs

from orch_protocol.core.messages import Message
from orch_worker.backends.prices import Prices, dollars

from ..archival.plan.plan import SUMMARY_TOKENS
from ..render.columns import format_columns
from .bill import Bill, Meter
from .policies import Policy, ReplaySetting
from .policy_names import policy_named
from .readers import Recording, Scale, scale_of
from .recalls import RecallMeter, edit_needs
from .retained_facts import KINDS, Share, evidence_in, reachable_shares

__all__ = [
    "USD_PER_MILLION",
    "ModelPrice",
    "Outcome",
    "Point",
    "ReplayPricing",
    "ReplayedFile",
    "files_table",
    "legend",
    "recorded_input",
    "replay",
    "report",
    "table",
    "totals",
]

MAX_ITEMS: Final = 500
USD_PER_MILLION: Final = 3.0


class ModelPrice(Struct, frozen=True):
    """What a model costs: `usd` for a million uncached input tokens, and `prices` relative to it.

    `model` is the name of the model, or "" if no model has this price.
    """

    model: str = ""
    prices: Prices = Prices()
    usd: float = USD_PER_MILLION


class ReplayPricing(Struct, frozen=True):
    """Parameters of a replay.

    `models` contains the prices of models by the name that recordings use. All other recordings have the price `price`.
    `beside` is the number of tokens of the system prompt and the tools. If `beside` is None, the recorded number or a
    default is used. `lifetime` is the number of seconds until a cache entry expires; None means that entries do not
    expire. `items` is the maximum number of facts of each kind to search for; 0 means none.
    """

    price: ModelPrice = ModelPrice()
    models: Mapping[str, ModelPrice] = {}
    beside: int | None = None
    lifetime: float | None = None
    window: int = 200_000
    summary_tokens: int = SUMMARY_TOKENS
    items: int = MAX_ITEMS

    def price_of(self, recording: Recording) -> ModelPrice:
        """Return the price of the model that `recording` names."""
        return self.models.get(recording.model, self.price)


class Point(Struct, frozen=True):
    """The state of a policy at one model call.

    A point contains the tokens of the request, and the cumulative cost in units with forced recalls.
    """

    context: int
    units: float


class Outcome(Struct, frozen=True):
    """The result of one policy for all recordings. One unit costs as much as an uncached input token at `price`.

    `edits` is the number of edits of text that an earlier message contains. `recalls` is the number of these edits
    whose text has left the conversation, and `recall_units` the cost of looking it up. `course` contains one point for
    each model call, in the order of the recordings.
    """

    name: str
    bill: Bill = Bill()
    collapses: int = 0
    holders: int = 0
    edits: int = 0
    recalls: int = 0
    recall_units: float = 0.0
    evidence: dict[str, Share] = {}
    over_window: int = 0
    course: tuple[Point, ...] = ()

    @property
    def units(self) -> float:
        """The cost in units with forced recalls."""
        return self.bill.units + self.recall_units

    def scaled(self, factor: float) -> Outcome:
        """Return the outcome with all costs multiplied by `factor`."""
        bill = structs.replace(self.bill, units=self.bill.units * factor, extra_units=self.bill.extra_units * factor)
        course = tuple(Point(point.context, point.units * factor) for point in self.course)
        return structs.replace(self, bill=bill, recall_units=self.recall_units * factor, course=course)

    def __add__(self, other: Outcome) -> Outcome:
        kinds = {**self.evidence, **other.evidence}
        before = self.units
        return Outcome(
            self.name,
            self.bill + other.bill,
            self.collapses + other.collapses,
            self.holders + other.holders,
            self.edits + other.edits,
            self.recalls + other.recalls,
            self.recall_units + other.recall_units,
            {kind: self.evidence.get(kind, Share()) + other.evidence.get(kind, Share()) for kind in kinds},
            self.over_window + other.over_window,
            (*self.course, *(Point(point.context, before + point.units) for point in other.course)),
        )


def replay(
    recordings: Sequence[Recording],
    name: str,
    terms: ReplayPricing,
    folder: Path,
    progress: Callable[[int], None] = lambda _: None,
    *,
    first: int = 0,
) -> Outcome:
    """Return the result of the policy `name` for `recordings`.

    Archives are written to numbered folders under `folder`; `first` is the number of the first folder. `progress` is
    called after each model call with the number of calls so far. Raises StoreError, ConfigError.
    """
    outcome = Outcome(name)
    done = 0

    def count_step() -> None:
        nonlocal done
        done += 1
        progress(done)

    for number, recording in enumerate(recordings, first):
        scale = scale_of(recording, terms.beside)
        where = folder / f"{name}-{number:04d}"
        price = terms.price_of(recording)
        setting = ReplaySetting(scale, price.prices, where, terms.window, terms.summary_tokens)
        policy = policy_named(name, setting)
        try:
            replayed = _run(recording, policy, name, scale, terms, count_step)
            outcome += replayed if price.usd == terms.price.usd else replayed.scaled(price.usd / terms.price.usd)
        finally:
            policy.close()
    return outcome


def _run(
    recording: Recording,
    policy: Policy,
    name: str,
    scale: Scale,
    terms: ReplayPricing,
    progress: Callable[[], None],
) -> Outcome:
    prices = terms.price_of(recording).prices
    meter = Meter(prices, terms.lifetime)
    needs = edit_needs(recording)
    recalls = RecallMeter(recording, needs, scale, prices)
    calls = set(recording.calls)
    context: list[Message] = []
    parts: list[tuple[object, int]] = [("system", scale.beside)]
    course: list[Point] = []
    for place, each in enumerate(recording.messages):
        if place in calls:
            before, context = context, policy.before(context, meter.extra)
            output = each.output_tokens or scale.size(each.message)
            request = policy.request(context)
            if context is not before or request is not context:
                parts = parts[:1]
            parts += ((message, scale.size(message)) for message in islice(request, len(parts) - 1, None))
            live = meter.request(parts, output, at=each.at)
            recalls.request(place, context, live)
            progress()
            course.append(Point(live, meter.bill.units + recalls.units))
        if each.message.content:
            context.append(each.message)
    return Outcome(
        name,
        meter.bill,
        policy.collapses,
        policy.archives,
        sum(map(len, needs.values())),
        recalls.recalls,
        recalls.units,
        _evidence(recording, context, policy, terms.items) if terms.items else {},
        sum(point.context > terms.window for point in course),
        tuple(course),
    )


def _evidence(recording: Recording, context: list[Message], policy: Policy, items: int) -> dict[str, Share]:
    kept = {id(message) for message in context}
    evicted = [each.message for each in recording.messages if id(each.message) not in kept]
    return reachable_shares(evidence_in(evicted), context, policy.recall, items)


def recorded_input(recordings: Sequence[Recording], terms: ReplayPricing) -> tuple[int, int] | None:
    """Return the input tokens that the recordings report, and the estimated tokens of the same requests.

    Return None if the recordings report no usage.
    """
    reported_total = ours = 0
    for recording in recordings:
        scale = scale_of(recording, terms.beside)
        for place, tokens in recording.context_sizes(scale.size):
            if reported := recording.messages[place].input_tokens:
                reported_total += reported
                ours += scale.beside + round(tokens)
    return (reported_total, ours) if reported_total else None


class ReplayedFile(Struct, frozen=True):
    """One file of a report.

    `calls` contains the number of model calls of each conversation. `recorded` contains the input tokens that the file
    reports and the estimated tokens of the same requests, or is None. `skipped` lists what was left out or repaired.
    `priced` contains the model that each conversation names, and the price that was used. `assumed` is the number of
    conversations without usage, for which the size of the system prompt and the tools is assumed.
    """

    file: str
    calls: tuple[int, ...]
    recorded: tuple[int, int] | None
    outcomes: tuple[Outcome, ...]
    skipped: tuple[str, ...] = ()
    priced: tuple[tuple[str, ModelPrice], ...] = ()
    assumed: int = 0


def report(files: Sequence[ReplayedFile], terms: ReplayPricing, unread: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the results as JSON data.

    `unread` contains the files that could not be read, with the reasons.
    """
    outcomes = totals(files)
    recorded = [each.recorded for each in files if each.recorded is not None]
    archiving = next((each for each in outcomes if each.name == "balanced"), None) or next(
        (each for each in outcomes if each.holders), None
    )
    return {
        "files": [each.file for each in files],
        "recordings": sum(len(each.calls) for each in files),
        "calls": sum(sum(each.calls) for each in files),
        "recorded": {
            "input_tokens": sum(reported for reported, _ in recorded),
            "replayed": sum(ours for _, ours in recorded),
        }
        if recorded
        else None,
        "prices": _prices(files),
        "assumed_system_prompts": sum(each.assumed for each in files),
        "policies": [_row(each, outcomes, terms) for each in outcomes],
        "evidence": {kind: archiving.evidence.get(kind, Share()).ratio for kind in KINDS} if archiving else None,
        "sessions": [_file_row(each, terms) for each in files],
        "unread": [{"file": file, "reason": reason} for file, reason in (unread or {}).items()],
    }


def _prices(files: Sequence[ReplayedFile]) -> list[dict[str, Any]]:
    """Return the prices that were used, those of the most conversations first.

    An assumed price has the name of the recorded model, whose price is unknown, or "".
    """
    uses = Counter((price.model or recorded, not price.model, price.usd) for e in files for recorded, price in e.priced)
    return [
        {"model": model, "is_assumed": is_assumed, "usd_per_million": usd, "recordings": count}
        for (model, is_assumed, usd), count in uses.most_common()
    ]


def totals(files: Sequence[ReplayedFile]) -> list[Outcome]:
    """Return the outcome of each policy for all `files` together."""
    found: dict[str, Outcome] = {}
    for file in files:
        for outcome in file.outcomes:
            found[outcome.name] = found[outcome.name] + outcome if outcome.name in found else outcome
    return list(found.values())


def _row(outcome: Outcome, outcomes: Sequence[Outcome], terms: ReplayPricing) -> dict[str, Any]:
    bill = outcome.bill
    return {
        "name": outcome.name,
        **_cost(outcome, outcomes, terms),
        "recalls": outcome.recalls,
        "edits": outcome.edits,
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


def _cost(outcome: Outcome, outcomes: Sequence[Outcome], terms: ReplayPricing) -> dict[str, Any]:
    base = next((each.bill.units for each in outcomes if each.name == "none"), 0.0)
    return {
        "cost_units": round(outcome.bill.units),
        "cost_usd": round(dollars(outcome.bill.units, terms.price.usd), 4),
        "cost_with_recalls": round(outcome.units),
        "cost_with_recalls_usd": round(dollars(outcome.units, terms.price.usd), 4),
        "cost_percent": round(100 * outcome.bill.units / base, 2) if base else None,
        "cost_with_recalls_percent": round(100 * outcome.units / base, 2) if base else None,
    }


def _file_row(file: ReplayedFile, terms: ReplayPricing) -> dict[str, Any]:
    return {
        "file": file.file,
        "recordings": len(file.calls),
        "calls": sum(file.calls),
        "skipped": list(file.skipped),
        "policies": [{"name": each.name, **_cost(each, file.outcomes, terms)} for each in file.outcomes],
    }


def table(data: dict[str, Any]) -> str:
    """Return the policies of the report `data` as a table. "WITH THEM" is the share of `none` with forced recalls."""
    head = (
        "POLICY",
        "COST",
        "OF NONE",
        "RECALLS",
        "WITH THEM",
        "INPUT",
        "CACHED",
        "PEAK",
        "OVER",
        "ARCHIVES",
        *map(str.upper, KINDS),
    )
    rows = [head]
    for row in data["policies"]:
        cached = 100 * row["cached_tokens"] / max(row["input_tokens"], 1)
        rows.append(
            (
                row["name"],
                f"${row['cost_usd']:.2f}",
                _percent(row["cost_percent"]),
                str(row["recalls"]),
                _percent(row["cost_with_recalls_percent"]),
                _short(row["input_tokens"]),
                f"{cached:.0f} %",
                _short(row["peak_tokens"]),
                str(row["over_window"]),
                str(row["holders"]),
                *(_percent(100 * row["evidence"][kind]) if kind in row["evidence"] else "-" for kind in KINDS),
            )
        )
    return _aligned(rows)


def legend(*, with_files: bool) -> str:
    """Return what the columns of `table` mean, and those of `files_table` if it is shown."""
    lines = [
        "OF NONE: share of the cost of none; WITH THEM: the share with forced RECALLS",
        "OVER: requests that exceed the window; PATHS to EDITS: what can still be found",
    ]
    return "\n".join([*lines, *(["The costs of files include forced recalls."] if with_files else [])])


def files_table(data: dict[str, Any]) -> str:
    """Return the files of the report `data` as a table.

    The columns are the calls, the cost of the first policy, and the costs of the others in percent of it. All costs
    include the forced recalls.
    """
    names = [row["name"] for row in data["policies"]]
    paths = [os.path.abspath(each["file"]) for each in data["sessions"]]
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    labels = [os.path.relpath(path, folder) for path in paths]
    rows = [("FILE", "CALLS", *map(str.upper, names))]
    for label, each in zip([*labels, "total"], [*data["sessions"], data], strict=True):
        costs = [row["cost_with_recalls_usd"] for row in each["policies"]]
        shares = (_percent(100 * cost / costs[0] if costs[0] else None) for cost in costs[1:])
        rows.append((label, str(each["calls"]), f"${costs[0]:.2f}", *shares))
    return _aligned(rows, paths={0})


def _aligned(rows: Sequence[Sequence[str]], paths: Collection[int] = ()) -> str:
    return format_columns(rows, range(1, len(rows[0])), paths=paths)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"


def _short(tokens: int) -> str:
    if tokens < 10_000:
        return str(tokens)
    return f"{tokens / 1000:.0f}k" if tokens < 10_000_000 else f"{tokens / 1e6:.1f}M"
