"""The policies of a replay, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from orch_protocol.agent.config import ArchivalConfig
from orch_protocol.core.errors import ConfigError

from .peers import ApiClearing, ApiCompaction, ClaudeCode, Compacting, HistoryFile, Masking, Pi
from .policies import Archiving, Nothing, Policy, ReplaySetting

__all__ = ["DEFAULT", "NAMES", "policy_named"]

_PHASE: Final = ArchivalConfig(profile="balanced", turns=False)

_MAKERS: Final[dict[str, Callable[[ReplaySetting], Policy]]] = {
    "none": Nothing,
    "compaction": Compacting,
    "compaction-1m": lambda setting: Compacting(msgspec.structs.replace(setting, window=1_000_000)),
    "history-file": HistoryFile,
    "claude-code": ClaudeCode,
    "pi": Pi,
    "api-clearing": ApiClearing,
    "api-compaction": ApiCompaction,
    "mask": Masking,
    "turn": lambda setting: Archiving(setting, ArchivalConfig(profile="seed"), summaries=True),
    "phase": lambda setting: Archiving(setting, _PHASE),
    "balanced": lambda setting: Archiving(setting, ArchivalConfig()),
    "balanced-summaries": lambda setting: Archiving(setting, ArchivalConfig(), summaries=True),
    "economy": lambda setting: Archiving(setting, ArchivalConfig(profile="economy")),
    "roomy": lambda setting: Archiving(setting, ArchivalConfig(profile="roomy")),
}

NAMES: Final = tuple(_MAKERS)
DEFAULT: Final = (
    "none",
    "compaction",
    "history-file",
    "claude-code",
    "pi",
    "api-clearing",
    "api-compaction",
    "balanced",
    "economy",
    "roomy",
)


def policy_named(name: str, setting: ReplaySetting) -> Policy:
    """Return the policy `name` for one conversation. Raises ConfigError for an unknown name."""
    maker = _MAKERS.get(name)
    if maker is None:
        raise ConfigError(f"unknown policy {name!r}: choose from {', '.join(NAMES)}")
    return maker(setting)
