"""A worker for benches alone: an ordinary one that two signals make do what no tool would.

SIGUSR1 collects garbage, SIGUSR2 enters C and never gives the interpreter lock back. `launcher` is for
AsyncOrchestrator. With ORCH_BENCH_WITHOUT in the environment the zygote leaves out one preparation of its heap.
"""

from __future__ import annotations

import gc
import itertools
import os
import signal
from pathlib import Path
from typing import Any

# At the top, as in the ordinary entry's module: what is imported after the fork would be private memory.
from orch_worker.process import zygote
from orch_worker.process.main import main as serve

WITHOUT = "ORCH_BENCH_WITHOUT"

if os.environ.get(WITHOUT) == "heap_fill":
    zygote.fill_heap_holes = list
elif os.environ.get(WITHOUT) == "warm_up":
    zygote.run_warm_up_agent = lambda _: None


def collect(*_: object) -> None:
    """Collect everything that can be."""
    gc.collect()


def hold_lock(*_: object) -> None:
    """Run in C for ever: no bytecode, so no signal handler and no other thread, ever again."""
    sum(itertools.repeat(0))


def main(**birth: Any) -> int:
    """Be the worker that it would have been, with the two handlers in place."""
    signal.signal(signal.SIGUSR1, collect)
    signal.signal(signal.SIGUSR2, hold_lock)
    return serve(**birth)


def launcher(run_id: str, folder: Path) -> Any:
    """Return the launcher whose workers are these."""
    from orch.processes.zygote import ZygoteLauncher

    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    return ZygoteLauncher(run_id, folder, entry="entries:main")
