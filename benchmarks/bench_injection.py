"""How often injection_guard takes a harmless tool result for an attack (false positives).

The tool results come from recorded sessions, which are given as files or as a folder in $BENCH_RECORDINGS. Without
sessions, the rows are skipped. The bench lists the results that the guard wraps on stderr.
"""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter

import harness
from harness import Args, Row

from orch.replay.readers import read_recordings
from orch_protocol.core.messages import ToolResult
from orch_protocol.hooks.options import InjectionGuard
from orch_worker.hooks.builtin.injection_guard import match_rules
from orch_worker.tools.dispatch.result_limits import text_in

FALSE = "injection_guard: results of recorded work that it wraps (share)"
WITHHELD = "injection_guard: results of recorded work that it withholds"
COST = "injection_guard: milliseconds per 100,000 characters"
MUST = {FALSE: "<= 0.01", WITHHELD: "== 0", COST: "<= 100"}
AIM = {FALSE: "<= 0.002", WITHHELD: "== 0", COST: "<= 30"}


def measure(args: Args) -> list[Row]:
    """Return three rows for the tool results in all files."""
    texts = [text for file in args.files for text in results_in(file)]
    if not texts:
        reason = "no recorded session was given" if not args.files else "no tool brought anything in them"
        return [harness.skipped(figure, reason, must=MUST[figure], aim=AIM[figure]) for figure in MUST]
    options = InjectionGuard()
    assert options.block is not None
    began = perf_counter()
    found = [match_rules(text) for text in texts]
    seconds = perf_counter() - began
    for text, (names, score) in zip(texts, found, strict=True):
        if score >= options.wrap:
            print(f"{score:g} {', '.join(names)}: {text[:80]!r}", file=sys.stderr)
    wrapped = sum(score >= options.wrap for _, score in found)
    figures = {
        FALSE: wrapped / len(texts),
        WITHHELD: sum(score >= options.block for _, score in found),
        COST: 1e8 * seconds / sum(map(len, texts)),
    }
    return [
        harness.counted(f"{len(texts)} results: {figure}", value, must=MUST[figure], aim=AIM[figure])
        for figure, value in figures.items()
    ]


def results_in(file: Path) -> list[str]:
    """Return the tool results in the recordings of `file`, each result once."""
    found: dict[str, None] = {}
    for recording in read_recordings(file):
        for recorded in recording.messages:
            found |= {text_in(block): None for block in recorded.message.content if isinstance(block, ToolResult)}
    return [text for text in found if text]


if __name__ == "__main__":
    harness.main(measure)
