"""Restart delays and limits for processes that crash at startup or during a turn. Pure functions.

The delay doubles with each crash of an agent. If an agent crashes too often within a minute without a finished turn,
the agent fails. If too many processes in a row fail to start, no process of any agent is started for a while, because
the agents are probably not the cause.
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
"""Fraction by which a delay varies at random. Processes that ended together then do not restart together."""
MAX_FAILED_STARTS: Final = 12
"""Number of failed starts in a row after which no process is started."""


def count_recent(times: Sequence[float], now: float) -> int:
    """Return how many of `times` are in the time window that ends at `now`."""
    return sum(now - WINDOW < at <= now for at in times)


def restart_delay(crashes: Sequence[float], now: float, max_restarts: int) -> float | None:
    """Return the delay in seconds before the restart of an agent that crashes now.

    `crashes` are the times of the agent's earlier crashes. Return None if there are at least `max_restarts` crashes
    within the window.
    """
    crash_count = count_recent(crashes, now)
    return None if crash_count >= max_restarts else min(MAX_DELAY, FIRST_DELAY * 2.0**crash_count)


def check_starts(failed_starts: Sequence[float], now: float) -> None:
    """Raise LaunchError if too many recent starts failed in a row. `failed_starts` are the times of failed starts."""
    if (number := count_recent(failed_starts, now)) >= MAX_FAILED_STARTS:
        wait = WINDOW - (now - sorted(failed_starts)[-MAX_FAILED_STARTS])
        raise LaunchError(
            f"{number} processes in a row ended within {WINDOW:g} s before they were ready; no process is started for "
            f"{max(1.0, wait):.0f} s. Run `orch show` for a failed agent to see the reason, and `orch doctor` to "
            "check this machine"
        )
