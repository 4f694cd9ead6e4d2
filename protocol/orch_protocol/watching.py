"""What somebody who watches an agent is told of its turns, whoever asks it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .errors import ErrorInfo
from .messages import Reply

__all__ = ["QuestionOver", "TurnBegan", "TurnEnded", "WatchAgent"]


class WatchAgent(Struct, frozen=True, forbid_unknown_fields=True):
    """Tell of each turn of `ref`, whoever asks it, until the watcher is gone: TurnBegan, each TurnEvent, TurnEnded.

    Of a turn under way what is left of it. With `approve` the watcher is asked what needs approval of the agent and
    of those below it, also what was asked before and waits, and told of each QuestionOver; with `progress` it is told
    of each of their calls.
    """

    ref: str
    approve: bool = False
    progress: bool = False


class TurnBegan(Struct, frozen=True):
    """A turn begins, or (`met`) had begun when the watching did: then `prompt` may be its head alone.

    `asker` is the agent that asks, None for the user; with `from_inbox` it is what the agent was told by those below
    it. `request_id` is that of the request it came by. `n` is the number of the turn's last TurnEvent so far, and
    `text` the response under way as far as it is known. `streamed`: TurnEvents of it are going to come.
    """

    query_id: str
    prompt: str
    asker: str | None = None
    from_inbox: bool = False
    request_id: str | None = None
    n: int = 0
    text: str = ""
    streamed: bool = True
    met: bool = False
    kind: Literal["began"] = "began"


class TurnEnded(Struct, frozen=True):
    """A turn is over. Exactly one of `reply` and `error` is set."""

    query_id: str
    reply: Reply | None = None
    error: ErrorInfo | None = None
    kind: Literal["ended"] = "ended"


class QuestionOver(Struct, frozen=True):
    """The question `id` waits for no answer any more: somebody gave one, or the time for it is over."""

    id: str
    kind: Literal["question_over"] = "question_over"
