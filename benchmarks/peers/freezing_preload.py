"""The modules that the forkserver imports and freezes before it forks, and the function of its workers.

The modules are those of the template of orch with the same name.
"""

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
    """Answer messages at `address`. This process must have been forked after all imports."""
    if os.getpid() == FROZEN_BY:
        raise RuntimeError("the forkserver did not preload: a failed preload is silent")
    zmq_echo.serve(address)
