"""Selects the model that answers: the agent's own model, as recorded in the conversation, or another model for one
turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from msgspec.structs import replace

from orch_protocol.agent.models import RecordModel
from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.services.models.model_selection import RESOLVE_MODEL
from orch_protocol.services.models.models import FIND_MODEL, FindModel
from orch_protocol.services.service import Empty

from ..backends.base import Backend
from ..backends.switchable import SwitchableBackend
from ..session.transcript import Transcript
from ..tools.api.root_client import CallRoot

__all__ = ["ModelSelection", "make_side_backend", "model_of"]

FIND_SECONDS: Final = 30.0


def model_of(spec: BackendSpec) -> str:
    """Return the model of `spec` as `provider:name`."""
    return f"{spec.provider}:{spec.model}" if spec.model else spec.provider


def make_side_backend(make_backend: Callable[[BackendSpec], Backend], spec: BackendSpec) -> Backend:
    """Return a backend for a short request outside the conversation, with the model's default reasoning effort."""
    return make_backend(replace(spec, thinking=""))


class ModelSelection:
    """Switches the model of the agent `spec` through `backend`, permanently or for one turn.

    The agent's own model is the model recorded on the current branch of `transcript`. `make_backend` creates a
    backend from a complete spec. `stop_worker` ends the process after the turn.
    """

    def __init__(
        self,
        spec: AgentSpec,
        backend: Backend,
        call_root: CallRoot,
        make_backend: Callable[[BackendSpec], Backend],
        transcript: Transcript,
        stop_worker: Callable[[], None],
    ) -> None:
        self._own_spec = self._current_spec = spec.backend
        self._default_thinking = (spec.born or spec.backend).thinking
        self._applied_choice = spec.chosen, spec.backend.thinking
        self._pending_choice: RecordModel | None = None
        self._backend = backend
        self._call_root = call_root
        self._make_backend = make_backend
        self._transcript = transcript
        self._stop_worker = stop_worker

    @property
    def uses_other_model(self) -> bool:
        """Whether the current model, or the model of the last recorded answer, is not the agent's own model."""
        answerer = self._transcript.session.answerer
        return self._current_spec is not self._own_spec or (bool(answerer) and answerer != self.own_name)

    @property
    def current(self) -> BackendSpec:
        """The current model."""
        return self._current_spec

    @property
    def next(self) -> BackendSpec:
        """The model of the next turn, as currently known."""
        return (
            self._pending_choice.backend
            if self._pending_choice is not None and self._is_current(self._pending_choice)
            else self._own_spec
        )

    @property
    def own_name(self) -> str:
        """The agent's own model, as `provider:name`."""
        return model_of(self._own_spec)

    @property
    def has_pending_choice(self) -> bool:
        """Whether the recorded model or reasoning effort differs from the current model or effort."""
        return self._pending_choice is not None or self._recorded_choice != self._applied_choice

    @property
    def _recorded_answerer(self) -> str:
        return self._transcript.session.answerer or self.own_name

    @property
    def _recorded_choice(self) -> tuple[str, str]:
        session = self._transcript.session
        return session.model, session.thinking or self._default_thinking

    def set_choice(self, choice: RecordModel | None) -> None:
        """Use the recorded choice `choice` from the next turn on. None means that there is no new choice."""
        if choice is not None:
            self._pending_choice = choice

    def _is_current(self, choice: RecordModel) -> bool:
        """Return whether `choice` matches the transcript, which may have changed in the meantime."""
        return (choice.chosen, choice.backend.thinking) == self._recorded_choice

    async def apply_choice(self) -> BackendSpec:
        """Switch to the model recorded in the conversation, and return this model.

        If necessary, the root resolves the model. Raise ConfigError if the model is not available.
        """
        choice = self._pending_choice
        if choice is None or not self._is_current(choice):
            choice = await self._call_root(RESOLVE_MODEL, Empty(), FIND_SECONDS)
        spec = choice.backend
        if isinstance(self._backend, SwitchableBackend):
            if spec != self._current_spec:
                await self._backend.switch_to(self._make_backend(spec))
        elif model_of(spec) != model_of(self._own_spec):
            self._stop_worker()  # This process cannot change its model. The next process starts with the new model.
            raise ConfigError(f"{model_of(spec)} continues the conversation in a new process: repeat the query")
        self._own_spec = self._current_spec = spec
        self._applied_choice, self._pending_choice = self._recorded_choice, None
        return spec

    async def use_model(self, model: str | None = None) -> None:
        """Use `model` (`provider:name` or `local`) from the next request on. None means the agent's own model.

        Raise ConfigError if the model is not available or not allowed. In this case, the current model stays.
        """
        if model is None or model == self.own_name:
            spec = self._own_spec
        elif model == model_of(self._current_spec):
            spec = self._current_spec
        elif not isinstance(self._backend, SwitchableBackend):
            raise ConfigError(f"{self._own_spec.provider} cannot be replaced by another model")
        else:
            spec = await self._find_model(model)
        if spec is not self._current_spec:
            assert isinstance(self._backend, SwitchableBackend)
            await self._backend.switch_to(self._make_backend(spec))
            self._current_spec = spec
        if self._recorded_answerer != model_of(spec):
            self._transcript.model_change(spec)

    def use_local(self, spec: BackendSpec) -> None:
        """Use the local model `spec` permanently, because the conversation may be sent to local models only."""
        self._own_spec = self._current_spec = spec
        self._applied_choice, self._pending_choice = self._recorded_choice, None

    def _find_model(self, model: str) -> Awaitable[BackendSpec]:
        found: Awaitable[BackendSpec] = self._call_root(FIND_MODEL, FindModel(model), FIND_SECONDS)
        return found
