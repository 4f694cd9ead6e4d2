"""What the forkserver imports before it forks, and freezes: the packages of our template of that name; its worker."""

from __future__ import annotations

import gc
import os

gc.disable()

import zmq_echo  # noqa: E402

if os.environ["PRELOAD"] == "sdk":
    import anthropic  # noqa: F401
    import openai  # noqa: F401

gc.enable()
gc.collect()
gc.freeze()
FROZEN_BY = os.getpid()


def worker(address: str) -> None:
    """Answer messages at `address`, if this process was forked with everything imported."""
    if os.getpid() == FROZEN_BY:
        raise RuntimeError("the forkserver did not preload: a failed preload is silent")
    zmq_echo.serve(address)
