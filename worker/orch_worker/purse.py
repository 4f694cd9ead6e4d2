"""What an agent may spend where a budget holds: before anything is asked of a model, the root puts the money aside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

from orch_protocol.messages import Usage
from orch_protocol.services import Reserve, Reserved, Settle

from .backends.base import Backend
from .tools.base import ToolContext

__all__ = ["Hold", "Purse"]


class Hold(Struct, frozen=True):
    """Money that was put aside for one response. `why` tells, if it is less than was asked for, of what it is a part.

    `settle` is to be called once, with what the response took, when that is on record.
    """

    settle: Callable[[Usage], None]
    why: str = ""


FREE = Hold(lambda _: None)


class Purse:
    """The agent's money, kept by its root. `budgeted` says whether anybody counts it, in the turn under way."""

    def __init__(self, context: ToolContext) -> None:
        self.budgeted = False
        self._call_root = context.call_root
        self._settling: set[asyncio.Task[None]] = set()

    async def reserve(self, backend: Backend, *, beside: bool = False) -> Hold:
        """Put aside what the next response of `backend` may cost, which it then holds to; `beside`: not for a turn.

        Waits while others hold what it needs. Raises BudgetExceededError when there is too little, ConfigError when
        nobody knows what the response may cost.
        """
        backend.most_usd = None
        quote = backend.quote() if self.budgeted else None
        if quote is None:
            return FREE
        if self._settling:
            await asyncio.wait(list(self._settling))
        want = Reserve(quote.least, quote.enough, quote.most, beside)
        reserved: Reserved = await self._call_root("reserve", want)
        backend.most_usd = reserved.usd
        return Hold(lambda usage: self._settle(reserved.id, usage), reserved.why)

    def _settle(self, id: str, usage: Usage) -> None:
        # Nobody waits for the answer but the next response: what tools ask of the root is asked behind it anyway.
        task = asyncio.get_running_loop().create_task(self._tell(Settle(id, usage.cost_usd)))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _tell(self, settle: Settle) -> None:
        try:
            await self._call_root("settle", settle)
        except Exception as error:
            # The money stays aside until the turn ends, and then counts by what is on record.
            print(f"not settled: {error}", flush=True)
