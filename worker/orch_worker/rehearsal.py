"""A worker's part, played in the zygote before it forks: what every worker would work out anew is then shared.

Python rewrites functions to suit their work after they have run some times, notes where attributes were found, and
imports and makes some things only when they are first used. In a fork each of these makes a page of memory its own.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct

from orch_protocol.commands import Init, Nothing, Ping, Query
from orch_protocol.spec import AgentSpec, BackendSpec, Birth
from orch_protocol.wire import Channel

from .host import Host
from .store import unsynced
from .tools.presets import resolve

__all__ = ["rehearse"]

TIMES: Final = 10
"""Python rewrites a function after eight calls."""
SECONDS: Final = 10.0
"""So long may one life last, which is over in some milliseconds."""
TOOL: Final = "list_files"


def rehearse(folder: Path) -> None:
    """Play a short life of an agent some times, in `folder`, which is made for it and removed.

    Where that cannot be done, or takes too long, only the head start is lost.
    """
    there = {*threading.enumerate()}
    shutil.rmtree(folder, ignore_errors=True)  # a zygote that was killed could not
    try:
        with unsynced():
            for number in range(TIMES):
                if asyncio.run(_play(folder / str(number))):
                    break
    except Exception:
        traceback.print_exc()
    finally:
        for thread in {*threading.enumerate()} - there:  # those of its tools: none may be there when there are forks
            thread.join(SECONDS)
        shutil.rmtree(folder, ignore_errors=True)


async def _play(folder: Path) -> int:
    host = Host(lambda on_data: _Root(on_data, folder), birth=Birth(b""), incarnation=1, spool=folder)
    async with asyncio.timeout(SECONDS):
        return await host.serve()


class _Root:
    """The other end of a host's line: makes it an agent in `folder`, pings it, asks it something and lets it leave."""

    def __init__(self, on_data: Callable[[bytes], None], folder: Path) -> None:
        self._on_data = on_data
        self._channel = Channel(1, folder)
        script = BackendSpec("scripted", options={"items": [{"tool": TOOL, "input": {}}, "done"]})
        spec = AgentSpec("a1", 1, "agent", "task", script, str(folder), str(folder.parent), tools=resolve(None, None))
        self._answers: dict[str, tuple[str, Struct]] = {
            "hello": ("init", Init(spec)),
            "ready": ("ping", Ping(b"1")),
            "pong": ("query", Query("Begin")),
            "finished": ("stop", Nothing()),
        }

    def send(self, data: bytes) -> None:
        """Take a frame from the host, and answer it a moment later."""
        received = self._channel.decode(data)
        if received is not None and (answer := self._answers.get(received[0].kind)):
            kind, body = answer
            frame = self._channel.encode(kind, body, kind, now=0.0)
            asyncio.get_running_loop().call_soon(self._on_data, frame)

    def close(self) -> None:
        """Do nothing: what was sent is there."""
