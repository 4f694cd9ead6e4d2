"""The savings of archival for recorded sessions, and the share of facts that can still be found.

The costs include forced recalls: edits of text that has left the conversation.

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
PEERS = ("history-file", "claude-code", "pi", "api-clearing", "api-compaction")
POLICIES = ("none", "compaction", "compaction-1m", "mask", *PEERS, "turn", "phase", "balanced", "economy", "roomy")


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
        harness.skipped("cost, balanced (peer: compaction)", reason, must="<= 0.6", aim="<= 0.36"),
        harness.skipped("cost, economy (peer: compaction)", reason, must="<= 0.49", aim="<= 0.42"),
        harness.skipped("cost, balanced (peer: mask)", reason, must="<= 0.45", aim="<= 0.33"),
        harness.skipped("cost, balanced (peer: none)", reason, must="<= 1", aim="<= 0.98"),
    ]


def recorded(file: Path, folder: Path, quick: bool) -> list[Row]:
    """Return the results of the policies for one file: the cost in dollars, and the share of facts that can still be
    found.
    """
    found = read_recordings(file)
    terms = ReplayPricing(items=50 if quick else EVIDENCE_ITEMS)
    cheap = ReplayPricing(items=0)
    outcomes = {name: replay(found, name, terms if name == "balanced" else cheap, folder) for name in POLICIES}
    units = {name: outcome.units for name, outcome in outcomes.items()}
    rows = []
    if told := recorded_input(found, terms):
        figure = f"{file.name}: input tokens, computed from the recorded requests (M; peer: as the provider reported)"
        rows.append(_ratio(figure, told[1] / 1e6, told[0] / 1e6, must="<= 1.1", aim="<= 1.03"))
    if units["compaction"] < units["none"]:
        best = min("compaction", "compaction-1m", key=lambda name: units[name])
        if outcomes["none"].bill.peak_tokens > 1_000_000:
            best = "compaction"
        rows += [
            _cost(file, units, "balanced", best, "<= 0.6", "<= 0.36"),
            _cost(file, units, "economy", best, "<= 0.49", "<= 0.42"),
            _cost(file, units, "roomy", best, "<= 0.55", "<= 0.45"),
            _cost(file, units, "turn", best, "<= 0.6", "<= 0.5"),
            _cost(file, units, "phase", best, "<= 0.6", "<= 0.55"),
            _cost(file, units, "balanced", "mask", "<= 0.45", "<= 0.33"),
            *(_cost(file, units, "balanced", peer, "<= 1", "<= 0.5") for peer in PEERS),
        ]
        rows += evidence(file, outcomes["balanced"])
    else:
        rows.append(_cost(file, units, "balanced", "none", "<= 1", "<= 0.98"))
    return rows


def evidence(file: Path, outcome: Outcome) -> Iterator[Row]:
    """Yield a row for each kind of fact.

    The row shows the share of removed facts that the conversation, or the answer to one search, contains.
    """
    for kind in KINDS:
        share = outcome.evidence[kind]
        must = {"numbers": ">= 0.99", "paths": ">= 0.98"}.get(kind, ">= 1")
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
