"""Compaction in a turn, and on request: a summary replaces the beginning of the conversation."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from orch_protocol.agent.spec import CompactionSpec
from orch_protocol.core.errors import StoreError
from orch_protocol.session.entries import CompactionReason
from orch_protocol.session.tree import CompactionDone

from ...backends.base import Backend
from .turn_extension import ShorteningReason, TurnExtension, TurnState

if TYPE_CHECKING:
    from ...context.compactor import Compactor
    from ...hooks.session_events import ArchivalHooks

__all__ = ["CompactionExtension"]

MAX_REFUSALS: Final = 6
"""Number of refusals of one request after which compaction cannot make the request any shorter."""
FREED_SHARE: Final = 0.9
"""Share of the maximum size below which a refused request needs no summary."""


class CompactionExtension(TurnExtension):
    """Compacts the conversation with `backend` according to `rules`.

    If `rules` is None, the conversation is compacted only at the request of a hook or the user. `make_compactor`
    creates the compactor before the first compaction. `hooks` returns the archiving hooks. `on_compacted` is called
    after each compaction.
    """

    def __init__(
        self,
        rules: CompactionSpec | None,
        backend: Backend,
        *,
        make_compactor: Callable[[], Compactor],
        hooks: Callable[[], ArchivalHooks | None],
        on_compacted: Callable[[], None],
    ) -> None:
        self._rules = rules
        self._backend = backend
        self._make_compactor = make_compactor
        self._hooks = hooks
        self._on_compacted = on_compacted
        self._compactor: Compactor | None = None
        self._refusals = 0
        """How many times the provider refused the next request."""
        self._refused_tokens = 0

    async def before_request(self, turn: TurnState) -> None:  # noqa: ARG002
        """Begin with a request that was not refused yet."""
        self._refusals = 0

    def request_refused(self) -> None:
        """Count the refusals of a request."""
        self._refusals += 1
        self._refused_tokens = self._backend.context_tokens()

    async def shorten_conversation(self, turn: TurnState, why: ShorteningReason) -> CompactionDone | None:
        """Compact the conversation if needed. After an error, the conversation is unchanged.

        Raise StoreError if the compaction cannot be written.
        """
        reason: CompactionReason = "size" if why == "archive" else why
        if not self._is_due(reason):
            return None
        try:
            return await self.compact(turn.id, reason, refusals=self._refusals if reason == "refused" else 0)
        except StoreError:
            raise
        except Exception:
            traceback.print_exc()
            return None

    def _is_due(self, reason: CompactionReason) -> bool:
        if reason == "hook":
            return True
        if self._rules is None:
            return False
        window, tokens = self._backend.info().context_limit, self._backend.context_tokens()
        if reason == "refused":
            from ...context.compaction_rules import max_request_tokens

            # If archiving has freed enough, a summary is not necessary.
            limit = max_request_tokens(self._rules, window, self._refused_tokens, refusals=self._refusals)
            return self._refusals <= MAX_REFUSALS and tokens >= FREED_SHARE * limit
        return 0 < self._rules.compaction_threshold(window) <= tokens

    async def compact(
        self, turn: str, reason: CompactionReason, instructions: str = "", refusals: int = 0
    ) -> CompactionDone | None:
        """Compact the conversation. Return None if nothing can be compacted.

        `refusals` is the number of times that the provider refused the request.

        Raise StoreError if the compaction cannot be written. Raise ConfigError if the user requested this compaction
        and the compaction is not possible.
        """
        if self._compactor is None:
            self._compactor = self._make_compactor()
        compaction = await self._compactor.compact(turn, reason, self._hooks(), instructions, refusals)
        if compaction is not None:
            self._on_compacted()
        return compaction
