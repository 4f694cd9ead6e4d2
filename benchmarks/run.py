"""Run all benches and write the results into docs/reference/benchmarks.md between two markers.

With `--quick`, nothing is written. A few rounds show whether the benches work, but not what the figures are.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from harness import Row, table
from venvs import ROOT

HERE = Path(__file__).resolve().parent
BENCHES = (
    "bench_start.py",
    "bench_roundtrip.py",
    "bench_calls.py",
    "bench_memory.py",
    "bench_scale.py",
    "bench_herd.py",
    "bench_cli.py",
    "bench_first_use.py",
    "bench_kill.py",
    "bench_wire.py",
    "bench_streams.py",
    "bench_proxy.py",
    "bench_hooks.py",
    "bench_sandbox.py",
    "bench_tool_host.py",
    "bench_import.py",
    "bench_replay.py",
    "bench_gateway.py",
    "bench_records.py",
    "bench_lookups.py",
    "bench_archival.py",
    "bench_holders.py",
    "bench_recall.py",
    "bench_estimate.py",
    "bench_injection.py",
    "bench_sessions.py",
    "bench_workspace.py",
    "stress_spawn.py",
)
START, END = "<!-- bench:start -->", "<!-- bench:end -->"
BENCH_SECONDS = 3600


def between(text: str, body: str) -> str:
    """Return `text` with `body` between the markers. Raises ValueError unless each marker occurs exactly once."""
    if text.count(START) != 1 or text.count(END) != 1 or text.index(START) > text.index(END):
        raise ValueError(f"expected one {START} and, after it, one {END}")
    head, _, rest = text.partition(START)
    return f"{head}{START}\n{body}\n{END}{rest.partition(END)[2]}"


def machine() -> str:
    """Return one sentence about the machine and the software that the figures depend on, with the date of the
    measurement.
    """
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    cpu = models[0].partition(":")[2].strip() if models else platform.machine()
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return (
        f"{len(os.sched_getaffinity(0))} cores ({cpu}), {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, {today}."
    )


def rows_of(bench: str, flags: list[str]) -> list[Row]:
    """Run one bench and return its rows. If the bench fails, return one row that states this."""
    print(f"{bench} ...", file=sys.stderr, flush=True)
    command = [sys.executable, str(HERE / bench), "--json", *flags]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=BENCH_SECONDS)
    except subprocess.TimeoutExpired:
        return [Row(bench, None, None, None, "", "", False, f"not done within {BENCH_SECONDS} s")]
    if done.returncode:
        return [Row(bench, None, None, None, "", "", False, f"ended with {done.returncode}")]
    return [Row(**row) for row in json.loads(done.stdout)]


def main() -> None:
    """Run the benches.

    The exit code is 1 if a bench failed. With `--check`, it is also 1 if a figure missed its bound.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing installed for peers, nothing written")
    parser.add_argument("--json", action="store_true", help="print one JSON array instead of a table")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a row misses its must")
    parser.add_argument("only", nargs="*", help="benches to run, by file name (default: all)")
    given = parser.parse_args()
    unknown = set(given.only) - set(BENCHES)
    if unknown:
        parser.error(f"no such bench: {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)}")
    flags = ["--quick"] if given.quick else []
    rows = [row for bench in given.only or BENCHES for row in rows_of(bench, flags)]
    print(json.dumps([row.as_dict() for row in rows], indent=2) if given.json else table(rows), flush=True)
    if not given.quick and not given.only:
        page = ROOT / "docs" / "reference" / "benchmarks.md"
        page.write_text(between(page.read_text(), f"{machine()}\n\n{table(rows)}"))
    sys.exit(any(row.ok is False and (given.check or row.skipped) for row in rows))


if __name__ == "__main__":
    main()
