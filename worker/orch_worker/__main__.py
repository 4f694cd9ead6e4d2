"""The entry point of the processes that a root starts: `python -P -m orch_worker {shim|zygote|worker|tool_host} ...`.

Users do not run this command. Each role imports only its own module, because the shim must stay small, and because the
zygote decides which modules its workers share.
"""

from __future__ import annotations

import gc
import sys


def main(role: str = "", *arguments: str) -> None:
    if role == "shim":
        from orch_worker.process import shim

        shim.main(*arguments)
    elif role == "zygote":
        gc.disable()  # Until the heap is frozen, garbage collections only cost time.
        from orch_worker.process import zygote

        zygote.main(*arguments)
    elif role == "worker":
        from orch_worker.process import worker_init

        worker_init.main(*arguments)
    elif role == "tool_host":
        from orch_worker.process import tool_host

        tool_host.main(*arguments)
    else:
        sys.exit(f"orch_worker: {role!r} is not one of shim, zygote, worker, tool_host; `orch` starts these itself")


if __name__ == "__main__":
    main(*sys.argv[1:])
