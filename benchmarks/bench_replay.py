"""The savings of archival for recorded sessions, and the share of facts that can still be found.

Recorded sessions are given as files, or as a folder in $BENCH_RECORDINGS. Without sessions, the rows are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import harness
from harness import Args, Row

from orch.replay.readers import read_recordings
from orch.replay.report import Outcome, ReplayPricing, recorded_input, replay
from orch.replay.retained_facts import KINDS

EVIDENCE_ITEMS = 2000
POLICIES = ("none", "compaction", "compaction-1m", "mask", "turn", "phase", "auto", "economy", "roomy")


def measure(args: Args) -> list[Row]:
    """Replay each given file with every policy."""
    if not args.files:
        return not_given()
    with harness.scratch() as folder:
        return [row for file in args.files for row in recorded(file, folder / file.stem, args.quick)]


def not_given() -> list[Row]:
    """Return the rows for recordings as skipped rows."""
    reason = "no recorded session was given"
    return [
        harness.skipped("cost, auto (peer: compaction)", reason, must="<= 0.5", aim="<= 0.42"),
        harness.skipped("cost, economy (peer: compaction)", reason, must="<= 0.49", aim="<= 0.42"),
        harness.skipped("cost, auto (peer: mask)", reason, must="<= 0.45", aim="<= 0.33"),
        harness.skipped("cost, auto (peer: none)", reason, must="<= 1", aim="<= 0.98"),
    ]


def recorded(file: Path, folder: Path, quick: bool) -> list[Row]:
    """Return the results of the policies for one file: the cost in dollars, and the share of facts that can still be
    found.
    """
    found = read_recordings(file)
    terms = ReplayPricing(items=50 if quick else EVIDENCE_ITEMS)
    cheap = ReplayPricing(items=0)
    outcomes = {name: replay(found, name, terms if name == "auto" else cheap, folder) for name in POLICIES}
    units = {name: outcome.bill.units for name, outcome in outcomes.items()}
    rows = []
    if told := recorded_input(found, terms):
        figure = f"{file.name}: input tokens, computed from the recorded requests (M; peer: as the provider reported)"
        rows.append(_ratio(figure, told[1] / 1e6, told[0] / 1e6, must="<= 1.1", aim="<= 1.03"))
    if units["compaction"] < units["none"]:
        best = min("compaction", "compaction-1m", key=lambda name: units[name])
        if outcomes["none"].bill.peak_tokens > 1_000_000:
            best = "compaction"
        rows += [
            _cost(file, units, "auto", best, "<= 0.5", "<= 0.42"),
            _cost(file, units, "economy", best, "<= 0.49", "<= 0.42"),
            _cost(file, units, "roomy", best, "<= 0.55", "<= 0.45"),
            _cost(file, units, "turn", best, "<= 0.6", "<= 0.5"),
            _cost(file, units, "phase", best, "<= 0.6", "<= 0.55"),
            _cost(file, units, "auto", "mask", "<= 0.45", "<= 0.33"),
        ]
        rows += evidence(file, outcomes["auto"])
    else:
        rows.append(_cost(file, units, "auto", "none", "<= 1", "<= 0.98"))
    return rows


def evidence(file: Path, outcome: Outcome) -> Iterator[Row]:
    """Yield a row for each kind of fact.

    The row shows the share of removed facts that the conversation, or the answer to one search, contains.
    """
    for kind in KINDS:
        share = outcome.evidence[kind]
        must = ">= 0.99" if kind == "numbers" else ">= 1"
        yield harness.counted(
            f"{file.name}: {kind} that can still be found ({share.asked} searched)", share.ratio, must=must, aim=">= 1"
        )


def _cost(file: Path, units: dict[str, float], ours: str, peer: str, must: str, aim: str) -> Row:
    figure = f"{file.name}: cost, {ours} (in the price of a million input tokens; peer: {peer})"
    return _ratio(figure, units[ours] / 1e6, units[peer] / 1e6, must=must, aim=aim)


def _ratio(figure: str, ours: float, peer: float, *, must: str, aim: str) -> Row:
    return harness.compared(figure, [ours], [peer], must=must, aim=aim)


if __name__ == "__main__":
    harness.main(measure)
