"""How often processes that end before their work is begun, or in the middle of it, are followed by others. Pure.

An agent whose process ends like that waits before the next one is started, longer each time; after so many within a
minute, without a turn that was finished, it has failed. When many starts in a row fail, whosever they are, nothing is
started for a while: it is not the agents' fault then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from orch_protocol.core.errors import LaunchError

__all__ = ["JITTER", "check_starts", "count_recent", "restart_delay"]

WINDOW: Final = 60.0
FIRST_DELAY: Final = 0.1
MAX_DELAY: Final = 5.0
JITTER: Final = 0.5
"""By this part of it a pause is longer or shorter, by chance: those that ended together do not come back together."""
MAX_FAILED_STARTS: Final = 12
"""So many starts in a row that failed are enough."""


def count_recent(times: Sequence[float], now: float) -> int:
    """Return how many of `times` count at `now`."""
    return sum(now - WINDOW < at <= now for at in times)


def restart_delay(crashes: Sequence[float], now: float, most: int) -> float | None:
    """Return how many seconds to wait before the next process of an agent whose processes ended at `crashes`, and one
    now; None when it has had `most` others in the last minute."""
    before = count_recent(crashes, now)
    return None if before >= most else min(MAX_DELAY, FIRST_DELAY * 2.0**before)


def check_starts(failed: Sequence[float], now: float) -> None:
    """Raise LaunchError while the starts that `failed`, in a row, are too many to try another."""
    if (number := count_recent(failed, now)) >= MAX_FAILED_STARTS:
        wait = WINDOW - (now - sorted(failed)[-MAX_FAILED_STARTS])
        raise LaunchError(
            f"{number} processes in a row ended within {WINDOW:g} s before they were up: no other is started for "
            f"{max(1.0, wait):.0f} s. `orch show` of an agent that failed says why, and `orch doctor` what this "
            "machine lacks"
        )
