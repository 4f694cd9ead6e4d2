"""Asks a model to summarize an archive, with a prompt from the root."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from orch_protocol.agent.spec import BackendSpec, ToolSpec
from orch_protocol.core.messages import Message, Text, Usage, text_of
from orch_protocol.services.archives.archiving import SUMMARIZE_ARCHIVE, SummarizeArchive, SummaryOrder

from ..backends.base import ONE_REQUEST, Backend, PromptPrefix
from ..backends.registry import is_remote
from ..tools.api.root_client import CallRoot
from ..tools.dispatch.budget_client import BudgetClient

__all__ = ["ArchiveSummary", "CachedRequest", "Summarizer", "writer_of"]

STEP_SECONDS: Final = 60.0
TIMEOUT_FACTOR: Final = 4
"""Total time limit of a summary, as a multiple of the time limit of one answer. A long turn is summarized in parts."""


class CachedRequest(Struct, frozen=True):
    """The agent's last request, which its provider has cached. `conversation` may continue after it."""

    system: str = ""
    prefix: PromptPrefix = PromptPrefix()
    conversation: tuple[Message, ...] = ()


class ArchiveSummary(Struct, frozen=True):
    """The record `stub` of an archive with a summary, which `model` (`PROVIDER:NAME`) wrote with `usage`."""

    stub: str
    usage: Usage | None = None
    model: str = ""


class Summarizer:
    """Summarizes archives of one agent with the model of `spec`, unless the root names another model.

    `make` creates a backend. `budget` reserves the budget of requests. `tools` are the same as in the agent's own
    requests.
    """

    def __init__(
        self,
        spec: BackendSpec,
        make: Callable[[BackendSpec], Backend],
        call: CallRoot,
        budget: BudgetClient,
        *,
        tools: Sequence[ToolSpec],
        seconds: float,
    ) -> None:
        self._only_local = False
        self.answered_by(spec)
        self._make = make
        self._call = call
        self._budget = budget
        self._tools = tools
        self._seconds = seconds

    def answered_by(self, spec: BackendSpec) -> None:
        """Use `spec` as the agent's own model from now on."""
        self._spec = writer_of(spec)
        self._uses_own_model = self._spec is spec

    def restrict_to_local(self, spec: BackendSpec) -> None:
        """Allow only local models from now on. `spec` is the agent's own model."""
        self._spec, self._uses_own_model, self._only_local = writer_of(spec), True, True

    @property
    def is_available(self) -> bool:
        """Whether a model is available for summaries."""
        return self._spec is not None

    @property
    def uses_own_model(self) -> bool:
        """Whether summaries use the agent's own model, whose provider has cached the conversation."""
        return self._uses_own_model

    async def summary(self, order: SummaryOrder, cached: CachedRequest) -> ArchiveSummary | None:
        """Return a summary of the archive, or None if none is ready in time.

        `cached` is the agent's conversation before the archiving. Raise OrchError if the model or the root fails.
        """
        answer, asked, used, model = None, 0, Usage(), ""
        backend: Backend | None = None
        try:
            async with asyncio.timeout(self._seconds * TIMEOUT_FACTOR):
                while True:
                    request = SummarizeArchive(order.holder, answer, order.with_conversation)
                    step = await self._call(SUMMARIZE_ARCHIVE, request, STEP_SECONDS)
                    if step.request is None:
                        return None if step.stub is None else ArchiveSummary(step.stub, used, model)
                    if backend is None:
                        spec = self._chosen(step.backend) or BackendSpec("extractive")
                        backend, model = self._make(spec), f"{spec.provider}:{spec.model}".removesuffix(":")
                    # The summary request and its answer do not become part of the conversation, and tool calls in the
                    # answer are not run.
                    if order.with_conversation:
                        backend.load(cached.conversation, asked)
                        backend.append_system(cached.system, self._tools)
                        backend.prefix = cached.prefix
                        # At the tail, the prompt follows the cache markers, so that the request writes no cache.
                        backend.tail = step.request.prompt
                    else:
                        backend.load((), asked)
                        backend.append_system(step.request.system, ())
                        backend.prefix = ONE_REQUEST
                        backend.append_user((Text(step.request.prompt),))
                    reservation = await self._budget.reserve(backend, outside_turn=True)
                    turn = await self._budget.response(backend, reservation)
                    usage = turn.usage.with_one_model_call()
                    self._budget.spend(usage, reservation)
                    used += usage
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
    """Return the backend that writes summaries, or None if `spec` cannot generate text."""
    if spec.provider == "extractive":
        return None
    if spec.provider == "scripted":
        items = spec.options.get("summaries")
        return BackendSpec("scripted", options={"items": items}) if items else None
    return spec
