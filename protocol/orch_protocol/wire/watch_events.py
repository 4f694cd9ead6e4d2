"""What somebody who watches an agent is told of its turns, whoever asks it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ..core.errors import ErrorInfo
from ..core.messages import Message, Reply

__all__ = ["QuestionClosed", "RecentMessages", "TurnEnded", "TurnStarted", "WatchAgent"]


class WatchAgent(Struct, frozen=True, forbid_unknown_fields=True):
    """Tell of each turn of `ref`, whoever asks it, until the watcher is gone: TurnStarted, each TurnEvent, TurnEnded.

    With `messages` first RecentMessages: so many before the turn under way. Of that a TurnStarted, then, as soon as its
    process says so, a TurnSoFar, and the events after it. With `approve` the watcher is asked what needs approval of
    the agent and of those below it, also what was asked before and waits, and told of each QuestionClosed; with
    `progress` it is told of each of their calls.
    """

    ref: str
    approve: bool = False
    progress: bool = False
    messages: int = 0


class RecentMessages(Struct, frozen=True):
    """The last messages of the conversation before the turn under way, and how many there are before these."""

    messages: tuple[Message, ...]
    before: int = 0
    kind: Literal["spoken"] = "spoken"


class TurnStarted(Struct, frozen=True):
    """A turn begins, or (`met`) had begun when the watching did: then `prompt` may be its head alone.

    `asker` is the agent that asks, None for the user; with `from_inbox` it is what the agent was told by those below
    it. `request_id` is that of the request it came by.
    """

    query_id: str
    prompt: str
    asker: str | None = None
    from_inbox: bool = False
    request_id: str | None = None
    met: bool = False
    kind: Literal["began"] = "began"


class TurnEnded(Struct, frozen=True):
    """A turn is over. Exactly one of `reply` and `error` is set."""

    query_id: str
    reply: Reply | None = None
    error: ErrorInfo | None = None
    kind: Literal["ended"] = "ended"


class QuestionClosed(Struct, frozen=True):
    """The question `id` waits for no answer any more: somebody gave one, or the time for it is over."""

    id: str
    kind: Literal["question_over"] = "question_over"
