"""A worker for benches. It is an ordinary worker with handlers for two signals.

SIGUSR1 starts a garbage collection. SIGUSR2 enters C code and never releases the interpreter lock. `launcher` is for
AsyncOrchestrator. If ORCH_BENCH_WITHOUT is in the environment, the zygote leaves out one preparation of its heap.
"""

from __future__ import annotations

import gc
import itertools
import os
import signal
from pathlib import Path
from typing import Any

# These imports are at the top, as in the ordinary module, because imports after the fork would use private memory.
from orch_worker.process import zygote
from orch_worker.process.main import main as serve

WITHOUT = "ORCH_BENCH_WITHOUT"

if os.environ.get(WITHOUT) == "heap_fill":
    zygote.fill_heap_holes = list
elif os.environ.get(WITHOUT) == "warm_up":
    zygote.run_warm_up_agent = lambda _: None


def collect(*_: object) -> None:
    """Run a full garbage collection."""
    gc.collect()


def hold_lock(*_: object) -> None:
    """Run in C forever. No bytecode, no signal handler and no other thread runs after this call."""
    sum(itertools.repeat(0))


def main(**birth: Any) -> int:
    """Run as an ordinary worker with the two signal handlers."""
    signal.signal(signal.SIGUSR1, collect)
    signal.signal(signal.SIGUSR2, hold_lock)
    return serve(**birth)


def launcher(run_id: str, folder: Path) -> Any:
    """Return the launcher that starts these workers."""
    from orch.processes.zygote import ZygoteLauncher

    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    return ZygoteLauncher(run_id, folder, entry="entries:main")
