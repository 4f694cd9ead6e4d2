"""Asking a model what an archive is about, in words that the root gives: beside the conversation or apart from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec import Struct

from orch_protocol.agent.spec import BackendSpec, ToolSpec
from orch_protocol.core.messages import Message, Text, text_of
from orch_protocol.services.archiving import SUMMARIZE_ARCHIVE, SummarizeArchive, SummaryOrder

from ..backends.base import Backend, PromptPrefix
from ..backends.registry import is_remote
from ..tools.api.root_client import CallRoot
from ..tools.dispatch.budget_client import BudgetClient

__all__ = ["CallService", "Summarizer", "writer_of"]

STEP_SECONDS: Final = 60.0
PATIENCE: Final = 4
"""So many times the time for one answer may all of them take: a long turn is asked about in parts."""


class CallService(Protocol):
    """Asks the root for a service."""

    async def __call__(self, service: str, params: Struct, seconds: float | None = None) -> Struct:
        """Return the service's result."""


class Summarizer:
    """Has summaries written for one agent, by the model behind `spec` unless the root names another.

    `make` makes a backend of a spec, which is paid from `purse`; `system` and `tools` are what the agent's own requests
    begin with.
    """

    def __init__(
        self,
        spec: BackendSpec,
        make: Callable[[BackendSpec], Backend],
        call: CallRoot,
        purse: BudgetClient,
        *,
        tools: Sequence[ToolSpec],
        seconds: float,
    ) -> None:
        self._only_local = False
        self.answered_by(spec)
        self._make = make
        self._call = call
        self._purse = purse
        self.system, self.prefix = "", PromptPrefix()
        """What the agent's last request began with, which its provider has cached."""
        self._tools = tools
        self._seconds = seconds

    def answered_by(self, spec: BackendSpec) -> None:
        """The model behind `spec` is the agent's own from now on."""
        self._spec = writer_of(spec)
        self._beside = self._spec is spec

    def stay(self, spec: BackendSpec) -> None:
        """Let only models of this machine read what was archived: the one behind `spec`, the agent's own by now."""
        self._spec, self._beside, self._only_local = writer_of(spec), True, True

    @property
    def there(self) -> bool:
        """Whether there is a model to ask."""
        return self._spec is not None

    @property
    def beside(self) -> bool:
        """Whether the agent's own model is asked, which has the conversation in its cache."""
        return self._beside

    async def stub(self, order: SummaryOrder, conversation: Sequence[Message]) -> str | None:
        """Return what is to stand for the archive, None when no summary is to be had in time.

        `conversation` is what the agent's was before the archive left it. Raises OrchError.
        """
        answer, asked = None, 0
        backend: Backend | None = None
        try:
            async with asyncio.timeout(self._seconds * PATIENCE):
                while True:
                    said = SummarizeArchive(order.holder, answer, order.beside)
                    step = await self._call(SUMMARIZE_ARCHIVE, said, STEP_SECONDS)
                    if step.request is None:
                        return step.stub
                    if backend is None:
                        backend = self._make(self._chosen(step.backend) or BackendSpec("extractive"))
                    # Nothing of it becomes part of the conversation: calls that the model asks for are not made.
                    backend.load(conversation if order.beside else (), asked)
                    if order.beside:
                        backend.append_system(self.system, self._tools)
                        backend.prefix = self.prefix
                    else:
                        backend.append_system(step.request.system, ())
                    backend.append_user((Text(step.request.prompt),))
                    hold = await self._purse.reserve(backend, beside=True)
                    turn = await self._purse.response(backend, hold)
                    self._purse.spend(turn.usage.of_a_response(), hold)
                    answer, asked = text_of(turn.message), asked + 1
        except TimeoutError:
            print(f"archiving: no summary of {order.holder} in time", flush=True)
            return None
        finally:
            if backend is not None:
                await backend.close()

    def _chosen(self, named: BackendSpec | None) -> BackendSpec | None:
        return self._spec if named is None or (self._only_local and is_remote(named)) else named


def writer_of(spec: BackendSpec) -> BackendSpec | None:
    """Return what summaries are asked of; None for a backend that has no words of its own."""
    if spec.provider == "extractive":
        return None
    if spec.provider == "scripted":
        items = spec.options.get("summaries")
        return BackendSpec("scripted", options={"items": items}) if items else None
    return spec
