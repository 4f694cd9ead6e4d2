"""The code that all benches share: arguments, interleaved rounds, medians, rows and the printed table.

A bench is a module with a function `measure(args) -> list[Row]` that ends in `main(measure)`. Both sides of a
comparison run in the same rounds, on the same CPUs and in alternating order. A slow phase of the machine therefore
affects both sides. A figure is the median over rounds. A ratio is the median of the ratios of all rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import venvs

PASS = (sys.executable, "-I", "-S", "-c", "pass")
PEER_SECONDS = 120.0
RECORDINGS = "BENCH_RECORDINGS"
PEERS = Path(__file__).resolve().parent / "peers"

Side = Callable[[], float | Awaitable[float]]


@dataclass(frozen=True)
class Row:
    """One line of the table.

    `must` and `aim` are bounds of `ratio`. Without a peer, they are bounds of `ours`.
    """

    figure: str
    ours: float | None
    peer: float | None
    ratio: float | None
    must: str
    aim: str
    ok: bool | None
    skipped: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the row as JSON data."""
        return asdict(self)


@dataclass(frozen=True)
class Args:
    """How to run a bench.

    The bench runs `rounds` interleaved rounds on the CPUs `affinity`, with the recorded sessions `files`. `python` is
    an interpreter with another version of orch, for benches that compare versions.
    """

    quick: bool
    json: bool
    affinity: frozenset[int]
    rounds: int
    files: tuple[Path, ...] = ()
    python: Path | None = None


def satisfies(value: float, bound: str) -> bool:
    """Return whether `value` satisfies `bound`, such as "<= 0.5", ">= 50" or "== 0"."""
    operator, _, limit = bound.partition(" ")
    return {"<=": value <= float(limit), ">=": value >= float(limit), "==": value == float(limit)}[operator]


def compared(
    figure: str, ours: Sequence[float], peer: Sequence[float], *, must: str, aim: str, inverse: bool = False
) -> Row:
    """Return the row for two series that were measured in the same rounds.

    If `inverse` is True, the ratio is peer / ours, which means "x times faster".
    """
    if not ours or len(ours) != len(peer):
        raise ValueError(f"{figure}: {len(ours)} rounds of ours against {len(peer)} of the peer's")
    pairs = zip(peer, ours, strict=True) if inverse else zip(ours, peer, strict=True)
    ratio = median(above / below for above, below in pairs)
    return Row(figure, _short(median(ours)), _short(median(peer)), _short(ratio), must, aim, satisfies(ratio, must))


def counted(figure: str, value: float, *, must: str, aim: str = "") -> Row:
    """Return the row for a figure without a peer."""
    return Row(figure, _short(value), None, None, must, aim or must, satisfies(value, must))


def skipped(figure: str, reason: str, *, must: str, aim: str, ours: Sequence[float] = ()) -> Row:
    """Return the row for a comparison without a peer. If `ours` was measured, the row shows it."""
    return Row(figure, _short(median(ours)) if ours else None, None, None, must, aim, None, reason)


async def interleave(rounds: int, **sides: Side) -> dict[str, list[float]]:
    """Run every side once in each round, in alternating order.

    Return the values of each side. The first round is discarded.
    """
    values: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name in reversed(sides) if number % 2 else sides:
            value = sides[name]()
            if inspect.isawaitable(value):
                value = await value
            if number:
                values[name].append(value)
    return values


def timed_pass() -> float:
    """Return the seconds from the start to the end of the smallest Python process."""
    begin = perf_counter()
    subprocess.run(PASS, check=True, stdin=subprocess.DEVNULL)
    return perf_counter() - begin


class Peer:
    """A peer program. It answers each JSON line on stdin with a JSON line on stdout."""

    def __init__(self, python: str | Path, script: str, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.name = script
        self._process = subprocess.Popen(
            [str(python), str(PEERS / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )

    @property
    def pid(self) -> int:
        """The process id of the program."""
        return self._process.pid

    def ask(self, **question: Any) -> Any:
        """Return the answer to `question`.

        Raises RuntimeError if the peer has ended, or does not answer within PEER_SECONDS.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(PEER_SECONDS) else ""
        if not line:
            raise RuntimeError(f"{self.name} gave no answer to {question} (exit code {self._process.poll()})")
        return json.loads(line)

    def close(self) -> None:
        """Close the stdin of the program, so that it exits. Kill the program after 30 s."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a temporary folder on the disk of the checkout.

    The temporary folder of the system may be in memory, where a sync costs nothing.
    """
    folder = Path(tempfile.mkdtemp(dir=venvs.SCRATCH, prefix="t"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def table(rows: Sequence[Row]) -> str:
    """Return `rows` as a Markdown table."""
    lines = ["| figure | ours | peer | ratio | must | aim | |", "|---|--:|--:|--:|---|---|---|"]
    for row in rows:
        verdict = f"skipped: {row.skipped}" if row.skipped else ("ok" if row.ok else "**missed**")
        numbers = " | ".join("-" if number is None else f"{number:g}" for number in (row.ours, row.peer, row.ratio))
        lines.append(f"| {row.figure} | {numbers} | {row.must} | {row.aim} | {verdict} |")
    return "\n".join(lines)


def recordings(given: Sequence[Path]) -> tuple[Path, ...]:
    """Return the recorded sessions to measure. These are `given`, or all sessions in the folder that RECORDINGS names.

    Raises ValueError if that folder contains no sessions.
    """
    if given or not os.environ.get(RECORDINGS):
        return tuple(given)
    found = tuple(sorted(Path(os.environ[RECORDINGS]).glob("*.json*")))
    if not found:
        raise ValueError(f"{RECORDINGS}={os.environ[RECORDINGS]}: no *.json or *.jsonl is there")
    return found


def parse_affinity(text: str, allowed: frozenset[int]) -> frozenset[int]:
    """Return the CPUs that `text` names.

    `text` is "one" for the first allowed CPU, "all", or numbers such as "0,1".
    """
    if text == "one":
        return frozenset({min(allowed)})
    if text == "all":
        return allowed
    try:
        wanted = frozenset(int(number) for number in text.split(","))
    except ValueError:
        wanted = frozenset()
    if not wanted or not wanted <= allowed:
        raise ValueError(f"affinity {text!r}: give one, all, or numbers out of {sorted(allowed)}")
    return wanted


def main(
    measure: Callable[[Args], list[Row] | Awaitable[list[Row]]],
    *,
    affinity: str = "one",
    rounds: int = 15,
    quick_rounds: int = 3,
) -> None:
    """Run a bench from its command line and print its rows. The interpreter of the bench has the wheel of orch."""
    parser = argparse.ArgumentParser(description=inspect.getdoc(inspect.getmodule(measure)))
    parser.add_argument("--quick", action="store_true", help="few rounds, and no peer is installed for it")
    parser.add_argument("--json", action="store_true", help="print one JSON array of rows instead of a table")
    parser.add_argument("--affinity", default=affinity, help=f"CPUs of both sides: one, all, 0,1 (default {affinity})")
    parser.add_argument(
        "--rounds", type=int, help=f"interleaved rounds (default {rounds}, {quick_rounds} with --quick)"
    )
    parser.add_argument("files", nargs="*", type=Path, help=f"recorded sessions (default: those in ${RECORDINGS})")
    parser.add_argument("--python", type=Path, help="interpreter with another version of orch (bench_calls.py)")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a row misses its must")
    given = parser.parse_args()
    try:
        cpus = parse_affinity(given.affinity, frozenset(os.sched_getaffinity(0)))
        files = recordings(given.files)
    except ValueError as error:
        parser.error(str(error))
    if missing := [file for file in given.files if not file.is_file()]:
        parser.error(f"no such file: {missing[0]}")
    venvs.reexec_in_own()
    os.sched_setaffinity(0, cpus)
    args = Args(
        given.quick,
        given.json,
        cpus,
        given.rounds or (quick_rounds if given.quick else rounds),
        files,
        given.python,
    )
    found = measure(args)
    rows: list[Row] = asyncio.run(_awaited(found)) if inspect.isawaitable(found) else found  # type: ignore[assignment]
    print(json.dumps([row.as_dict() for row in rows], indent=2) if args.json else table(rows), flush=True)
    sys.exit(given.check and any(row.ok is False for row in rows))


async def _awaited(found: Awaitable[list[Row]]) -> list[Row]:
    return await found


def _short(value: float) -> float:
    """Return `value` with three significant digits. The median of a few rounds is not more precise."""
    return float(f"{value:.3g}")
