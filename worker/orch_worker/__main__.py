"""`python -P -m orch_worker {shim|zygote|worker} ...`: how a root starts processes of ours. Not for people.

Each role imports its own module alone; the shim must stay small and the zygote decides what its workers share.
"""

from __future__ import annotations

import gc
import sys


def main(role: str = "", *arguments: str) -> None:
    if role == "shim":
        from orch_worker.process import shim

        shim.main(*arguments)
    elif role == "zygote":
        gc.disable()  # until the heap is frozen, collections only cost time
        from orch_worker.process import zygote

        zygote.main(*arguments)
    elif role == "worker":
        from orch_worker.process import worker_init

        worker_init.main(*arguments)
    else:
        sys.exit(f"orch_worker: {role!r} is not one of shim, zygote, worker; `orch` starts these itself")


if __name__ == "__main__":
    main(*sys.argv[1:])
