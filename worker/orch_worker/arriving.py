"""A response while it arrives, as hooks hear of it: what came while they were at work they are told in one piece."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from orch_protocol.hook_events import Event, MessageStart, MessageUpdate

__all__ = ["Arriving"]


class Arriving:
    """Tells `run` of one response; `listened` are the names of the stages that anybody hears. Nobody waits for it.

    `add` takes the next piece of text, `again` says that there is nothing of the response after all, as its request is
    made again.
    """

    def __init__(
        self, run: Callable[[Event], Awaitable[object]], listened: frozenset[str], provider: str, model: str
    ) -> None:
        self._run = run
        self._listened = listened
        self._who = provider, model
        self._attempt = 1
        self._begun = 0
        """The attempt of which it is told that it has begun."""
        self._pieces: list[str] = []
        self._work: asyncio.Task[None] | None = None

    def add(self, text: str) -> None:
        """Tell of `text`, which has just arrived."""
        self._pieces.append(text)
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._tell())

    def again(self) -> None:
        """The response begins anew: what came of it is void."""
        self._attempt += 1
        self._pieces.clear()

    async def whole(self) -> None:
        """The response is there: return when hooks have heard of all of it."""
        if self._work is not None:
            await asyncio.wait([self._work])
        await self._tell()

    def stop(self) -> None:
        """Tell nothing more."""
        if self._work is not None:
            self._work.cancel()

    async def _tell(self) -> None:
        while self._pieces or self._begun < self._attempt:
            if self._begun < self._attempt:
                self._begun = self._attempt
                if "message_start" in self._listened:
                    await self._run(MessageStart(provider=self._who[0], model=self._who[1], attempt=self._begun))
                continue  # it may have begun anew meanwhile
            text = "".join(self._pieces)
            self._pieces.clear()
            if "message_update" in self._listened:
                await self._run(MessageUpdate(text=text))
