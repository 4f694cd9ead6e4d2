"""Events for a client that watches an agent's turns, including turns that other clients started."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ..core.errors import ErrorInfo
from ..core.messages import Message, Reply

__all__ = ["QuestionClosed", "RecentMessages", "TurnEnded", "TurnStarted"]


class RecentMessages(Struct, frozen=True):
    """The last messages of the conversation before the current turn.

    `before` is the number of messages before those.
    """

    messages: tuple[Message, ...]
    before: int = 0
    kind: Literal["spoken"] = "spoken"


class TurnStarted(Struct, frozen=True):
    """A turn began. If `met` is True, the turn began before the client connected, and `prompt` may be shortened.

    `asker` is the agent that sent the query. None means that the user sent it. If `from_inbox` is True, the prompt is a
    notification about subagents. `request_id` is the id that the client gave its request.
    """

    query_id: str
    prompt: str
    asker: str | None = None
    from_inbox: bool = False
    request_id: str | None = None
    met: bool = False
    kind: Literal["began"] = "began"


class TurnEnded(Struct, frozen=True):
    """A turn ended. Exactly one of `reply` and `error` is set."""

    query_id: str
    reply: Reply | None = None
    error: ErrorInfo | None = None
    kind: Literal["ended"] = "ended"


class QuestionClosed(Struct, frozen=True):
    """The approval question `id` was answered, or its timeout has passed."""

    id: str
    kind: Literal["question_over"] = "question_over"
