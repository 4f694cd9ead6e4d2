"""Which model answers a turn: the agent's own, as its conversation has it, or another one that was named for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from msgspec.structs import replace

from orch_protocol.agent.models import FindModel, RecordModel
from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.services.models import FIND_MODEL, RESOLVE_MODEL
from orch_protocol.services.service import Empty

from ..backends.base import Backend
from ..backends.switchable import SwitchableBackend
from ..session.transcript import Transcript
from ..tools.api.root_client import CallRoot

__all__ = ["ModelSelection", "beside", "model_of"]

FIND_SECONDS: Final = 30.0


def model_of(spec: BackendSpec) -> str:
    """Return the model behind `spec`, as `provider:name`."""
    return f"{spec.provider}:{spec.model}" if spec.model else spec.provider


def beside(make: Callable[[BackendSpec], Backend], spec: BackendSpec) -> Backend:
    """Return the backend that is asked beside the conversation: as it thinks by itself, for what is short there."""
    return make(replace(spec, thinking=""))


class ModelSelection:
    """Lets models answer for the agent that `spec` describes, through its `backend`: its own, or others for a turn.

    Its own is the one that the `transcript` has on record where the conversation is. `make` makes the backend of a
    complete spec; `leave` ends the process after the turn.
    """

    def __init__(
        self,
        spec: AgentSpec,
        backend: Backend,
        call_root: CallRoot,
        make: Callable[[BackendSpec], Backend],
        transcript: Transcript,
        leave: Callable[[], None],
    ) -> None:
        self._own = self._now = spec.backend
        self._born = (spec.born or spec.backend).thinking
        self._settled = spec.chosen, spec.backend.thinking
        self._due: RecordModel | None = None
        self._backend = backend
        self._call_root = call_root
        self._make = make
        self._transcript = transcript
        self._leave = leave

    @property
    def away(self) -> bool:
        """Whether another model than the agent's own answers just now, or did last by what is on record."""
        return self._now is not self._own or self._on_record != self.own

    @property
    def now(self) -> BackendSpec:
        """What the model is that answers just now."""
        return self._now

    @property
    def next(self) -> BackendSpec:
        """What the model is that answers the next turn, as far as anybody has said so."""
        return self._due.backend if self._due is not None and self._fits(self._due) else self._own

    @property
    def own(self) -> str:
        """The agent's own model, as `provider:name`."""
        return model_of(self._own)

    @property
    def unsettled(self) -> bool:
        """Whether the agent's own model is to be another, or to think more or less, than it was."""
        return self._due is not None or self._recorded != self._settled

    @property
    def _on_record(self) -> str:
        return self._transcript.session.answerer or self.own

    @property
    def _recorded(self) -> tuple[str, str]:
        session = self._transcript.session
        return session.model, session.thinking or self._born

    def choose(self, answers: RecordModel | None) -> None:
        """Somebody says who is to answer from the next turn on, as is on record already; None: nobody says so."""
        if answers is not None:
            self._due = answers

    def _fits(self, answers: RecordModel) -> bool:
        """Say whether that is what is on record: somebody else may have changed it meanwhile, or gone elsewhere."""
        return (answers.chosen, answers.backend.thinking) == self._recorded

    async def settle(self) -> BackendSpec:
        """Let the model answer that the conversation has on record, and return what it is.

        The root says what it takes, where it has not said so. Raises ConfigError when it cannot be asked.
        """
        answers = self._due
        if answers is None or not self._fits(answers):
            answers = await self._call_root(RESOLVE_MODEL, Empty(), FIND_SECONDS)
        to = answers.backend
        if isinstance(self._backend, SwitchableBackend):
            if to != self._now:
                await self._backend.move(self._make(to))
        elif model_of(to) != model_of(self._own):
            self._leave()  # only the next process can have another model: the root knows of it by now
            raise ConfigError(f"{model_of(to)} goes on with the conversation, in a process of its own: ask again")
        self._own = self._now = to
        self._settled, self._due = self._recorded, None
        return to

    async def turn(self, model: str | None = None) -> None:
        """Let `model`, `provider:name` or `local`, answer from the next request on, the agent's own without one.

        Raises ConfigError, also for a model that may not be asked; the one that answered then goes on.
        """
        if model is None or model == self.own:
            to = self._own
        elif model == model_of(self._now):
            to = self._now
        elif not isinstance(self._backend, SwitchableBackend):
            raise ConfigError(f"{self._own.provider} answers by itself: no other model can in its place")
        else:
            to = await self._find(model)
        if to is not self._now:
            assert isinstance(self._backend, SwitchableBackend)
            await self._backend.move(self._make(to))
            self._now = to
        if self._on_record != model_of(to):
            self._transcript.model_change(to)

    def stays(self, here: BackendSpec) -> None:
        """The conversation has moved to `here`, a model of this machine, for good: whatever was chosen before."""
        self._own = self._now = here
        self._settled, self._due = self._recorded, None

    def _find(self, model: str) -> Awaitable[BackendSpec]:
        found: Awaitable[BackendSpec] = self._call_root(FIND_MODEL, FindModel(model), FIND_SECONDS)
        return found
