"""Log the Python calls of a process, and those of its child processes, while the bench requests this.

`bench_calls.py` copies this file as `sitecustomize.py` into a folder in PYTHONPATH. The folder contains two other
files. `phase` contains one byte with the number of the current phase; 0 turns the log off. `log` gets a line for each
`call` event of `sys.setprofile`, with the phase, the process id and the module.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

folder = Path(__file__).parent
with open(folder / "phase", "rb") as file:
    phase = mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ)


def log_call(frame: FrameType, event: str, _arg: Any) -> None:
    """Write one line when a Python function is called or resumed during a phase.

    The file is opened again for each line. This takes time, which is not measured, and needs no descriptor that
    survives a fork.
    """
    if event == "call" and phase[0]:
        descriptor = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        os.write(descriptor, f"{phase[0]} {os.getpid()} {frame.f_globals.get('__name__')}\n".encode())
        os.close(descriptor)


def profile_thread() -> None:
    """Profile this thread and the threads that this thread starts."""
    threading.setprofile(log_call)
    sys.setprofile(log_call)


os.register_at_fork(after_in_child=profile_thread)
profile_thread()
