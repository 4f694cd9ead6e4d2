"""What a profile stands for, with the settings that override it laid over."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from orch_protocol.agent.config import ArchivalConfig, Profile
from orch_protocol.core.errors import ConfigError

__all__ = ["Rules", "rules_of"]

NEVER: Final = 1 << 60


class Rules(Struct, frozen=True):
    """Everything that decides what is archived when. Sizes are estimated tokens.

    Without `gate` finished turns are archived by the seed's triggers; with it, by what is expected to pay.
    """

    profile: Profile
    turns: bool
    phase: bool
    gate: bool
    high: int
    low: int
    rollup: int
    answer: int
    prompt: int
    block_entries: int
    tail_block: bool

    @property
    def bounded(self) -> bool:
        """Whether conversations are bounded: folded past the high water, `low` plus the record budget `rollup` stay.

        The system prompt, the current turn's prompt and its last step are not counted.
        """
        return self.turns and self.phase and self.rollup > 0 and self.high < NEVER


_PROFILES: Final = {
    "seed": Rules("seed", True, False, False, NEVER, NEVER, 0, 400, NEVER, 4, True),
    "economy": Rules("economy", True, True, True, 20_000, 8_000, 3_000, 400, 1_000, 4, True),
    "balanced": Rules("balanced", True, True, True, 40_000, 15_000, 6_000, 400, 2_000, 4, True),
    "roomy": Rules("roomy", True, True, True, 60_000, 20_000, 12_000, 400, 4_000, 4, True),
}


def rules_of(config: ArchivalConfig) -> Rules:
    """Return the rules of the configured profile, with what `config` sets itself in place of the profile's.

    Raises ConfigError when they contradict each other.
    """
    base = _PROFILES[config.profile]
    high = base.high if config.high_tokens is None else config.high_tokens
    low = min(base.low, high // 2) if config.low_tokens is None else config.low_tokens
    if low > high:
        which = f"the profile {config.profile!r} has" if config.high_tokens is None else "is"
        raise ConfigError(
            f"archival.low_tokens = {low} is greater than archival.high_tokens, which {which} {high}. "
            "Set low_tokens to at most high_tokens"
        )
    return Rules(
        profile=config.profile,
        phase=base.phase if config.phase is None else config.phase,
        gate=base.gate if config.gate is None else config.gate,
        high=high,
        low=low,
        rollup=base.rollup if config.rollup_tokens is None else config.rollup_tokens,
        answer=config.answer_tokens,
        prompt=base.prompt if config.prompt_tokens is None else config.prompt_tokens,
        block_entries=config.block_entries,
        tail_block=config.placement == "tail",
        turns=config.turns,
    )
