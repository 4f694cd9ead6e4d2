"""A root in another process whose deletion is interrupted at a file operation."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias

from orch import Config
from orch_protocol.core.errors import OrchError
from orch_worker.session.log.append_log import AppendLog
from orchestrator.root_double import World

__all__ = ["RUN", "Delete", "Fault", "interrupted"]

RUN = "mine"
CALLS = ((AppendLog, "append"), (os, "open"), (os, "replace"), (os, "unlink"), (os, "rmdir"))
Delete: TypeAlias = Callable[[World], Awaitable[object]]
Fault: TypeAlias = Literal["kill", "full disk"]


def interrupted(home: Path, config: Config, delete: Delete, step: int, fault: Fault) -> bool:
    """Open the run in `home` in another process and call `delete`.

    Return whether `delete` made `step` file operations. The last of these operations kills the process, or fails once
    as on a full disk.
    """
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    try:
        left = [step]

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def counting(*arguments: Any, **named: Any) -> Any:
                left[0] -= 1
                if not left[0] and fault == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if not left[0]:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return call(*arguments, **named)

            return counting

        async def deleting() -> None:
            async with World(home, run=RUN, config=config) as world:
                for where, name in CALLS:
                    setattr(where, name, counted(getattr(where, name)))
                with suppress(OrchError):
                    await delete(world)
                count = left[0]
                left[0] = -1
            os._exit(count <= 0)

        asyncio.run(deleting())
    finally:
        os._exit(1)
