"""The start and the end of a tool host, which the zygote forks or a worker starts as a program."""

from __future__ import annotations

import asyncio
import socket
import traceback
from typing import NoReturn

from ..system import linux
from ..tool_host.service import enter, receive_start, serve
from .worker_init import connect_process, end_process, prepare, protect_memory

__all__ = ["main", "run_tool_host"]


def run_tool_host(connection: int, lifeline: int, log: int | None = None) -> NoReturn:
    """Run as a tool host, then end the process without the interpreter's cleanup.

    `connection` is one end of the socket pair, and `lifeline` the read end of a pipe. `log` becomes stdout and stderr.
    `prepare` must have run, and signals must have their defaults.
    """
    code = 1
    try:
        [kept] = connect_process(lifeline, log, [connection])
        with socket.socket(fileno=kept) as worker:
            if (start := receive_start(worker)) is not None:
                context = enter(start)
                protect_memory()
                with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                    runner.run(serve(worker, context))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        end_process(code)


def main(connection: str, lifeline: str) -> NoReturn:
    """Run a tool host as a separate process. Both arguments are inherited descriptors."""
    linux.reset_signals()
    prepare()
    run_tool_host(int(connection), int(lifeline))
