"""Many agents that are asked at once.

The bench measures the first texts of a hundred agents whose root, zygote and workers start with the measurement, and of
the same agents when they are asked again. The peer is one process without isolation that imports the SDK and sends as
many requests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import harness
from harness import Args, Row

AGENTS = 100
MODEL = "claude-sonnet-5-5"
ROOT = str(Path(__file__).with_name("herd_root.py"))
PEER = str(harness.PEERS / "plain_herd.py")
BOUNDS = {
    ("all cold", "first"): ("<= 2", "<= 1"),
    ("all cold", "cpu"): ("<= 3", "<= 2"),
    ("asked again", "first"): ("<= 1", "<= 0.5"),
    ("asked again", "cpu"): ("<= 1.5", "<= 1"),
}
Figures = dict[str, float]


def figures(*command: str) -> tuple[Figures, Figures]:
    """Run a program, and return its figures for the first requests and for the next ones."""
    with subprocess.Popen(
        [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        cold = process.stdout.readline()
        warm = process.communicate("\n", timeout=harness.PEER_SECONDS)[0]
    if not cold or not warm:
        raise RuntimeError(f"{' '.join(command)} printed {cold + warm!r} (exit code {process.returncode})")
    return json.loads(cold), json.loads(warm)


async def measure(args: Args) -> list[Row]:
    """Start both sides anew in each round."""
    server = harness.Peer(sys.executable, "model_server.py")
    measured: dict[str, list[tuple[Figures, Figures]]] = {"ours": [], "peer": []}
    try:
        with harness.scratch() as folder:
            url = server.ask()["url"]

            def ours() -> float:
                home = folder / str(len(measured["ours"]))
                measured["ours"].append(figures(ROOT, str(home), url, f"anthropic:{MODEL}", str(AGENTS)))
                return 0.0

            def peer() -> float:
                measured["peer"].append(figures(PEER, url, MODEL, str(AGENTS)))
                return 0.0

            await harness.interleave(args.rounds, ours=ours, peer=peer)
    finally:
        server.close()
    rows = []
    for index, state in enumerate(("all cold", "asked again")):
        for key, name in (("first", "p50 of the first text (ms"), ("cpu", "CPU until all have one (s")):
            took, peer_took = ([pair[index][key] for pair in measured[side][1:]] for side in ("ours", "peer"))
            figure = f"{AGENTS} agents asked at once, {state}: {name}; peer: one process, {AGENTS} requests)"
            must, aim = BOUNDS[state, key]
            rows.append(harness.compared(figure, took, peer_took, must=must, aim=aim))
    return rows


if __name__ == "__main__":
    harness.main(measure, affinity="all", rounds=5, quick_rounds=2)
