"""Policies for growing conversations. Before each request, a policy decides which messages stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from orch_protocol.agent.config import ArchivalConfig, SummaryConfig
from orch_protocol.core.messages import Message, tool_uses
from orch_worker.backends.prices import Prices
from orch_worker.conversation.archive_text import message_text
from orch_worker.conversation.recalled import shown_hits
from orch_worker.conversation.tokens import TokenEstimator

from ..api.archiver import Archiver
from ..archival.conversation_items import profile_estimator
from ..archival.plan.economics import summary_cost
from ..archival.plan.plan import SUMMARY_TOKENS, first_uncached_message
from .readers import Scale

__all__ = ["Archiving", "Nothing", "Policy", "ReplaySetting", "filler_text"]

FILLER: Final = "What happened here was told to the model in about so many words. "


class ReplaySetting(Struct, frozen=True):
    """Parameters of a policy. They are sizes, prices, the context window, and the length of a model's summary."""

    scale: Scale
    prices: Prices
    folder: Path
    window: int = 200_000
    summary_tokens: int = SUMMARY_TOKENS


class Policy(Protocol):
    """A policy applied to one conversation."""

    collapses: int
    """The number of times that the policy changed the conversation."""

    @property
    def archives(self) -> int:
        """The number of archives that the policy stored."""

    def recall(self, item: str) -> str:
        """Return the hits of one search for `item` in the removed messages, and the entry of the first hit.

        Return "" if the policy discards removed messages.
        """

    def before(self, context: list[Message], charge: Callable[[float], None]) -> list[Message]:
        """Return the messages that the next request contains instead of `context`.

        The policy calls `charge` with the cost of each extra model call, in units.
        """

    def request(self, context: list[Message]) -> list[Message]:
        """Return the messages of the request for `context`."""

    def close(self) -> None:
        """Release all resources."""


class Nothing:
    """Sends the whole conversation with every request."""

    def __init__(self, setting: ReplaySetting) -> None:
        self.setting = setting
        self.collapses = 0

    @property
    def archives(self) -> int:
        return 0

    def recall(self, item: str) -> str:  # noqa: ARG002
        return ""

    def before(self, context: list[Message], charge: Callable[[float], None]) -> list[Message]:  # noqa: ARG002
        return context

    def request(self, context: list[Message]) -> list[Message]:
        return context

    def close(self) -> None:
        pass


class Archiving(Nothing):
    """Uses an archival profile. The archives are stored in the folder of the replay.

    Summaries consist of filler text, because their cost depends only on their length.
    """

    def __init__(self, setting: ReplaySetting, config: ArchivalConfig, *, summaries: bool = False) -> None:
        super().__init__(setting)
        scale = setting.scale
        text = filler_text(setting.summary_tokens, scale.estimator)
        self._archiver = Archiver(
            setting.folder,
            "orch",
            summarize=(lambda _: text) if summaries else None,
            config=msgspec.structs.replace(config, summary=SummaryConfig(style="paragraph")),
            prices=setting.prices,
            beside=scale.beside,
            estimator=profile_estimator(config.profile, scale.estimator),
        )

    @property
    def archives(self) -> int:
        return len(self._archiver.archives(merged=True))

    def recall(self, item: str) -> str:
        hits = self._archiver.search(item)
        found = [shown_hits(hits)]
        if hits:
            found += map(message_text, self._archiver.read_archive(hits[0].id, hits[0].entry, hits[0].entry))
        return "\n".join(found)

    def before(self, context: list[Message], charge: Callable[[float], None]) -> list[Message]:
        setting, folder = self.setting, self._archiver
        sent = first_uncached_message(context)
        live = setting.scale.beside + setting.scale.sizes(context[:sent])
        answer = setting.scale.sizes(message for message in context[sent : sent + 1] if not tool_uses(message))
        folded = folder.fold(context)
        for each in folder.folded:
            self.collapses += 1
            if each.summarized:
                charge(summary_cost(each.tokens, live, setting.summary_tokens, setting.prices, unsent=answer))
        return folded

    def request(self, context: list[Message]) -> list[Message]:
        return self._archiver.request(context)

    def close(self) -> None:
        self._archiver.close()


def filler_text(tokens: int, estimator: TokenEstimator) -> str:
    """Return about `tokens` tokens of meaningless text."""
    once = estimator.text(FILLER * 20) / 20
    text = FILLER * (int(tokens / once) + 2)
    return text[: int(len(text) * tokens / max(estimator.text(text), 1))]
