"""Which model answers a turn: the agent's own, or another one that was named for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from orch_protocol.errors import ConfigError
from orch_protocol.models import FindModel
from orch_protocol.spec import BackendSpec

from .backends.base import Backend
from .backends.movable import Movable
from .tools.base import CallRoot

__all__ = ["Answering", "model_of"]

FIND_SECONDS: Final = 30.0


def model_of(spec: BackendSpec) -> str:
    """Return the model behind `spec`, as `provider:name`."""
    return f"{spec.provider}:{spec.model}" if spec.model else spec.provider


class Answering:
    """Lets other models answer for the agent whose own is `own`, a turn at a time, through its `backend`.

    `make` makes the backend of a complete spec; `record` is told of each change, after it.
    """

    def __init__(
        self,
        own: BackendSpec,
        backend: Backend,
        call_root: CallRoot,
        make: Callable[[BackendSpec], Backend],
        record: Callable[[BackendSpec], None],
    ) -> None:
        self._own = self._now = own
        self._backend = backend
        self._call_root = call_root
        self._make = make
        self._record = record

    @property
    def away(self) -> bool:
        """Whether another model than the agent's own answers just now."""
        return self._now is not self._own

    @property
    def now(self) -> BackendSpec:
        """What the model is that answers just now."""
        return self._now

    @property
    def own(self) -> str:
        """The agent's own model, as `provider:name`."""
        return model_of(self._own)

    async def turn(self, model: str | None = None) -> None:
        """Let `model`, `provider:name` or `local`, answer from the next request on, the agent's own without one.

        Raises ConfigError, also for a model that may not be asked; the one that answered then goes on.
        """
        if model is None or model == self.own:
            to = self._own
        elif model == model_of(self._now):
            return
        elif not isinstance(self._backend, Movable):
            raise ConfigError(f"{self._own.provider} answers by itself: no other model can in its place")
        else:
            to = await self._find(model)
        if to is self._now:
            return
        assert isinstance(self._backend, Movable)
        await self._backend.move(self._make(to))
        self._now = to
        self._record(to)

    def stays(self, here: BackendSpec) -> None:
        """The conversation has moved to `here`, a model of this machine, for good."""
        self._own = self._now = here

    def _find(self, model: str) -> Awaitable[BackendSpec]:
        found: Awaitable[BackendSpec] = self._call_root("find_model", FindModel(model), FIND_SECONDS)
        return found
