"""The service that sends the events of an agent's turns to a client."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ..service import USERS_ONLY, Empty, StreamingService

__all__ = ["WATCH", "WatchAgent"]


class WatchAgent(Struct, frozen=True, forbid_unknown_fields=True):
    """Send the events of each turn of `ref` until the client disconnects: TurnStarted, each TurnEvent, TurnEnded.

    - `messages`: first send RecentMessages with this number of messages before the current turn. For the current turn,
      send TurnStarted. Then send TurnSoFar as soon as the agent's process has sent it, and then the following events.
    - `approve`: the client answers approval questions of the agent and its subagents, including questions that are
      already open, and receives each QuestionClosed.
    - `progress`: the client receives the tool calls of these agents.
    """

    ref: str
    approve: bool = False
    progress: bool = False
    messages: int = 0


WATCH: Final = StreamingService("watch", WatchAgent, Empty, USERS_ONLY, "Watch the events of an agent.")
