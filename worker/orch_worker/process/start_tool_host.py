"""Starts tool hosts: a worker that was forked asks its zygote, and other workers start a program."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from orch_protocol.wire.zygote_messages import ForkToolHost, encode

from ..tool_host.client import HostChannel

__all__ = ["fork_tool_host", "run_tool_host_program"]

STDERR: Final = 2
RETRY_SECONDS: Final = 0.01
ATTEMPTS: Final = 500


async def fork_tool_host(zygote: int, req: int) -> HostChannel:
    """Ask the zygote at the socket `zygote` to fork a tool host for the worker `req`. Raise OSError on failure.

    If the fork fails, the returned connection is at its end.
    """
    channel, inherited = _new_channel()
    try:
        for attempt in range(ATTEMPTS):
            try:
                with socket.socket(fileno=os.dup(zygote)) as control:
                    socket.send_fds(control, [encode(ForkToolHost(req))], [*inherited, STDERR])
                return channel
            except BlockingIOError:  # The zygote has many requests to handle.
                if attempt == ATTEMPTS - 1:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
        raise AssertionError
    except BaseException:
        channel.kill()
        raise
    finally:
        for descriptor in inherited:
            os.close(descriptor)


async def run_tool_host_program(environment: Mapping[str, str] | None = None, log: str = "") -> HostChannel:
    """Start a tool host as a program, with the variables of `environment` or of this process. Raise OSError on failure.

    Its output goes to the file `log`, or to that of this process.
    """
    channel, inherited = _new_channel()
    try:
        channel.process = _start_program(inherited, environment, log)
    except BaseException:
        channel.kill()
        raise
    finally:
        for descriptor in inherited:
            os.close(descriptor)
    return channel


def _start_program(
    descriptors: Sequence[int], environment: Mapping[str, str] | None, log: str
) -> subprocess.Popen[bytes]:
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600) if log else None
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "orch_worker", "tool_host", *map(str, descriptors)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            pass_fds=descriptors,
            process_group=0,
        )
    finally:
        if output is not None:
            os.close(output)


def _new_channel() -> tuple[HostChannel, list[int]]:
    """Return a channel, and the descriptors for the tool host: its end of the socket pair, and of the lifeline."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    reader, writer = os.pipe()
    return HostChannel(ours, writer), [theirs.detach(), reader]
