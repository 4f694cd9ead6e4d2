"""Policies for growing conversations. Before each request, a policy decides which messages stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from orch_protocol.agent.config import ArchivalConfig, SummaryConfig
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Message, Text, ToolResult
from orch_worker.backends.prices import Prices
from orch_worker.conversation.stubs import summary_message
from orch_worker.conversation.tokens import TokenEstimator

from ..api.archiver import Archiver
from ..archival.conversation_items import profile_estimator
from ..archival.plan.economics import summary_cost
from ..archival.plan.plan import SUMMARY_TOKENS
from .readers import Scale

__all__ = ["DEFAULT", "NAMES", "Policy", "ReplaySetting", "policy_named"]

FULL_SHARE: Final = 0.85
KEPT_TOKENS: Final = 20_000
COMPACTED_TOKENS: Final = 3_000
MASK_KEEPS: Final = 10
MASK_LEAST: Final = 20_000
CLEARED: Final = "[cleared]"
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
    def archiver(self) -> Archiver | None:
        """The archiver that stores the removed messages. None if the policy discards removed messages."""

    def before(self, context: list[Message], charge: Callable[[float], None]) -> list[Message]:
        """Return the messages that the next request contains instead of `context`.

        The policy calls `charge` with the cost of each extra model call, in units.
        """

    def tail(self, context: list[Message]) -> int:
        """Return the number of uncached tokens after `context` in each request."""

    def close(self) -> None:
        """Release all resources."""


class Nothing:
    """Sends the whole conversation with every request."""

    def __init__(self, setting: ReplaySetting) -> None:
        self.setting = setting
        self.collapses = 0

    @property
    def archiver(self) -> Archiver | None:
        return None

    def before(self, context: list[Message], charge: Callable[[float], None]) -> list[Message]:  # noqa: ARG002
        return context

    def tail(self, context: list[Message]) -> int:  # noqa: ARG002
        return 0

    def close(self) -> None:
        pass


class Compacting(Nothing):
    """Replaces all but the last 20k tokens by a summary of 3k tokens when the context window is 85 % full."""

    def before(self, context: list[Message], charge: Callable[[float], None]) -> list[Message]:
        setting = self.setting
        sizes = [setting.scale.size(message) for message in context]
        live = setting.scale.beside + sum(sizes)
        if live <= FULL_SHARE * setting.window:
            return context
        cut, kept = len(context), 0
        while cut and kept + sizes[cut - 1] <= KEPT_TOKENS:
            cut -= 1
            kept += sizes[cut]
        while cut < len(context) and any(isinstance(block, ToolResult) for block in context[cut].content):
            cut += 1
        charge(live * setting.prices.read + COMPACTED_TOKENS * setting.prices.output)
        self.collapses += 1
        return [summary_message(filler_text(COMPACTED_TOKENS, setting.scale.estimator)), *context[cut:]]


class Masking(Nothing):
    """Clears all tool results except the last 10, whenever this frees 20k tokens."""

    def before(self, context: list[Message], charge: Callable[[float], None]) -> list[Message]:  # noqa: ARG002
        places = [
            place
            for place, message in enumerate(context)
            if any(isinstance(block, ToolResult) and not _is_cleared(block) for block in message.content)
        ]
        size = self.setting.scale.size
        cleared = {place: _cleared(context[place]) for place in places[:-MASK_KEEPS]}
        if sum(size(context[place]) - size(message) for place, message in cleared.items()) < MASK_LEAST:
            return context
        self.collapses += 1
        return [cleared.get(place, message) for place, message in enumerate(context)]


class Archiving(Nothing):
    """Uses an archival profile. The archives are stored in the folder of the replay.

    Summaries consist of filler text, because their cost depends only on their length.
    """

    def __init__(self, setting: ReplaySetting, config: ArchivalConfig, *, summaries: bool = True) -> None:
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
    def archiver(self) -> Archiver:
        return self._archiver

    def before(self, context: list[Message], charge: Callable[[float], None]) -> list[Message]:
        setting, folder = self.setting, self._archiver
        live = setting.scale.beside + setting.scale.sizes(context)
        folded = folder.fold(context)
        for each in folder.folded:
            self.collapses += 1
            if each.summarized:
                charge(summary_cost(each.tokens, live, setting.summary_tokens, setting.prices))
        return folded

    def tail(self, context: list[Message]) -> int:
        return self.setting.scale.estimator.text(self._archiver.block(context))

    def close(self) -> None:
        self._archiver.close()


_PHASE: Final = ArchivalConfig(profile="balanced", turns=False)

_MAKERS: Final[dict[str, Callable[[ReplaySetting], Policy]]] = {
    "none": Nothing,
    "compaction": Compacting,
    "compaction-1m": lambda setting: Compacting(msgspec.structs.replace(setting, window=1_000_000)),
    "mask": Masking,
    "turn": lambda setting: Archiving(setting, ArchivalConfig(profile="seed")),
    "phase": lambda setting: Archiving(setting, _PHASE),
    "economy": lambda setting: Archiving(setting, ArchivalConfig(profile="economy")),
    "balanced": lambda setting: Archiving(setting, ArchivalConfig(profile="balanced")),
    "roomy": lambda setting: Archiving(setting, ArchivalConfig(profile="roomy")),
    "auto": lambda setting: Archiving(setting, ArchivalConfig()),
    "auto-receipt": lambda setting: Archiving(setting, ArchivalConfig(), summaries=False),
}

NAMES: Final = tuple(_MAKERS)
DEFAULT: Final = ("none", "compaction", "mask", "turn", "phase", "auto", "economy", "roomy")


def policy_named(name: str, setting: ReplaySetting) -> Policy:
    """Return the policy `name` for one conversation. Raises ConfigError for an unknown name."""
    maker = _MAKERS.get(name)
    if maker is None:
        raise ConfigError(f"unknown policy {name!r}: choose from {', '.join(NAMES)}")
    return maker(setting)


def filler_text(tokens: int, estimator: TokenEstimator) -> str:
    """Return about `tokens` tokens of meaningless text."""
    once = estimator.text(FILLER * 20) / 20
    text = FILLER * (int(tokens / once) + 2)
    return text[: int(len(text) * tokens / max(estimator.text(text), 1))]


def _is_cleared(result: ToolResult) -> bool:
    return result.content == (Text(CLEARED),)


def _cleared(message: Message) -> Message:
    blocks = (
        msgspec.structs.replace(block, content=(Text(CLEARED),)) if isinstance(block, ToolResult) else block
        for block in message.content
    )
    return Message(message.role, tuple(blocks))
