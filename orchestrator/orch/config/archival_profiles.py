"""Archival profiles, and the rules computed from a profile and from settings that override the profile."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.agent.config import ArchivalConfig, Profile
from orch_protocol.core.errors import ConfigError

__all__ = ["ArchivalRules", "archival_rules"]

NEVER: Final = 1 << 60
CONDITIONS: Final = ("on_max_turns", "token_threshold", "tool_call_threshold")
"""The settings in `archival.trigger` that demand the archiving of a turn."""
WINDOW_SHARE: Final = 60
"""Percentage of the free part of the context window at which conversations are archived at the latest."""


class ArchivalRules(Struct, frozen=True, kw_only=True):
    """The rules that decide which turns are archived, and when. Sizes are estimated tokens.

    The fields are named like the settings in `ArchivalConfig`. With `gate`, finished turns are archived when archiving
    is expected to reduce the cost, or when they reach a configured trigger. Without `gate`, the triggers decide.
    """

    profile: Profile
    turns: bool = True
    phase: bool
    gate: bool
    high_tokens: int
    low_tokens: int
    rollup_tokens: int
    answer_tokens: int = 400
    prompt_tokens: int
    block_entries: int = 4
    placement: Literal["tail", "system"] = "tail"
    summary_style: Literal["none", "structured", "paragraph"] = "none"

    @property
    def bounded(self) -> bool:
        """Whether conversations have a maximum size.

        A conversation above `high_tokens` is reduced to `low_tokens` plus `rollup_tokens`. The system prompt, the
        current turn's prompt and its last step are not counted.
        """
        return self.turns and self.phase and self.rollup_tokens > 0 and self.high_tokens < NEVER

    def within(self, room: int) -> ArchivalRules:
        """Return these rules for a context window with `room` tokens for messages, so that archiving precedes
        compaction.

        Rules without a maximum size stay as they are.
        """
        high = room * WINDOW_SHARE // 100
        if not self.bounded or self.high_tokens <= high:
            return self
        return replace(
            self,
            high_tokens=high,
            low_tokens=min(self.low_tokens, high // 2),
            rollup_tokens=min(self.rollup_tokens, max(1, high // 4)),
            prompt_tokens=min(self.prompt_tokens, high // 4),
            answer_tokens=min(self.answer_tokens, high // 8),
        )


_PROFILES: Final = {
    "seed": ArchivalRules(
        profile="seed",
        phase=False,
        gate=False,
        high_tokens=NEVER,
        low_tokens=NEVER,
        rollup_tokens=0,
        prompt_tokens=NEVER,
        summary_style="structured",
    ),
    "economy": ArchivalRules(
        profile="economy",
        phase=True,
        gate=True,
        high_tokens=20_000,
        low_tokens=8_000,
        rollup_tokens=3_000,
        prompt_tokens=1_000,
    ),
    "balanced": ArchivalRules(
        profile="balanced",
        phase=True,
        gate=True,
        high_tokens=24_000,
        low_tokens=8_000,
        rollup_tokens=6_000,
        prompt_tokens=2_000,
    ),
    "roomy": ArchivalRules(
        profile="roomy",
        phase=True,
        gate=True,
        high_tokens=60_000,
        low_tokens=20_000,
        rollup_tokens=12_000,
        prompt_tokens=4_000,
    ),
}


def archival_rules(config: ArchivalConfig) -> ArchivalRules:
    """Return the rules of the configured profile. Settings in `config` override the profile.

    Raises ConfigError when rules contradict each other.
    """
    base = _PROFILES[config.profile]
    high = base.high_tokens if config.high_tokens is None else config.high_tokens
    low = min(base.low_tokens, high // 2) if config.low_tokens is None else config.low_tokens
    if low > high:
        which = f"the profile {config.profile!r} has" if config.high_tokens is None else "is"
        raise ConfigError(
            f"archival.low_tokens = {low} is greater than archival.high_tokens, which {which} {high}. "
            "Set low_tokens to at most high_tokens"
        )
    conditions = {name: getattr(config.trigger, name) for name in CONDITIONS}
    without_effect = next((name for name, value in conditions.items() if value is not None and value is not False), "")
    if without_effect and not (config.turns and config.trigger.depth_cap):
        setting, remedy = (
            ("turns = false", "turns to true") if not config.turns else ("trigger.depth_cap = 0", "it to 1")
        )
        value = str(conditions[without_effect]).lower()
        raise ConfigError(
            f"archival.trigger.{without_effect} = {value} has no effect, because with archival.{setting} no finished "
            f"turn is archived. Set {remedy}, or remove the trigger"
        )
    return ArchivalRules(
        profile=config.profile,
        phase=base.phase if config.phase is None else config.phase,
        gate=base.gate if config.gate is None else config.gate,
        high_tokens=high,
        low_tokens=low,
        rollup_tokens=base.rollup_tokens if config.rollup_tokens is None else config.rollup_tokens,
        answer_tokens=config.answer_tokens,
        prompt_tokens=base.prompt_tokens if config.prompt_tokens is None else config.prompt_tokens,
        block_entries=config.block_entries,
        placement=config.placement,
        turns=config.turns,
        summary_style=base.summary_style if config.summary.style is None else config.summary.style,
    )
