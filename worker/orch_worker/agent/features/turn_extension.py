"""The points of a turn at which extensions are called, and the list of an agent's active extensions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any, ClassVar, Concatenate, Literal, ParamSpec, Protocol, TypeAlias, TypeVar

from orch_protocol.core.messages import Message, Reply, StopReason, ToolUse, Usage
from orch_protocol.session.tree import CompactionDone
from orch_protocol.wire.worker_messages import Query

from ...backends.base import AssistantTurn, Backend, BackendInfo, OnText
from ...tools.dispatch.toolbox import CallOutcome, Dispatcher

__all__ = ["ActiveExtensions", "Dispatch", "ShorteningReason", "TurnAborted", "TurnExtension", "TurnState"]

P = ParamSpec("P")
R = TypeVar("R")

Dispatch: TypeAlias = Callable[..., Coroutine[Any, Any, CallOutcome]]
"""The type of a function that runs a tool call, such as `Dispatcher.dispatch`."""

ShorteningReason: TypeAlias = Literal["size", "refused", "hook", "archive"]
"""Why the conversation is shortened before a request.

- "size": the conversation reached its limit
- "refused": the provider refused the request as too long
- "hook": a hook requested a summary
- "archive": a hook requested archives
"""


class TurnAborted(Exception):
    """A hook ended the turn. The message of the exception is the reply."""


class TurnState(Protocol):
    """State of the running turn that extensions may read and change."""

    id: str
    """Id of the query."""
    prompt: str
    notes: list[str]
    """User messages that follow the prompt."""
    backend: Backend
    toolbox: Dispatcher
    steps: int
    """Number of responses so far."""
    text: str
    """Text of the last response that contained text."""
    shorten: ShorteningReason
    """Why the conversation will be shortened before the next request."""
    on_text: OnText | None
    """Called with each piece of text of the current response."""
    budget_note: str
    """Why a budget limited the last response, or "" if no budget limited the response."""

    @property
    def files_changed(self) -> Collection[str]:
        """Paths of the files changed by tools in this turn."""

    def add_usage(self, usage: Usage) -> None:
        """Add `usage` to the usage of the turn."""

    def emit(self, kind: str, text: str = "", name: str = "", *, is_error: bool = False) -> None:
        """Send an event of the turn to its watchers."""


class TurnExtension:
    """A feature that takes part in the turns of one agent.

    A subclass overrides the methods that it needs, and a turn calls only overridden methods. Therefore, a feature that
    is off costs nothing. Extensions are called in the order of the agent's list. Only `output` and `after_turn` are
    called in reverse order.
    """

    points: ClassVar[frozenset[str]] = frozenset()
    """Names of the methods that the class overrides."""

    def __init_subclass__(cls) -> None:
        names = (name for name in vars(TurnExtension) if not name.startswith("_"))
        cls.points = frozenset(name for name in names if getattr(cls, name) is not getattr(TurnExtension, name))

    async def turn_began(self, query_id: str, query: Query) -> None:
        """Prepare for the turn of `query`. If this method raises an OrchError, the turn ends."""

    async def before_turn(self, turn: TurnState) -> None:
        """Change `turn.prompt` and `turn.notes` before anything is recorded. Raise TurnAborted to end the turn."""

    async def before_prompt(self, turn: TurnState) -> None:
        """Contribute to the system prompt, or change `turn.prompt`, before the prompt is recorded.

        Raise TurnAborted to end the turn.
        """

    def prompt_recorded(self) -> None:
        """Called when the prompt is recorded, or at the end of a turn that ends before this point."""

    async def before_request(self, turn: TurnState) -> None:
        """Prepare a step: contribute to the end of the request, or set `turn.shorten`."""

    async def shorten_conversation(self, turn: TurnState, why: ShorteningReason) -> CompactionDone | None:
        """Shorten the conversation if needed. Return the compaction, or None if there was no compaction."""

    async def request(self, turn: TurnState, info: BackendInfo) -> None:
        """Change the request to the model `info`, or reserve the possible cost.

        Raise OrchError to prevent the request.
        """

    def request_refused(self) -> None:
        """Called when the provider refused the request as larger than the context window."""

    def request_retried(self) -> None:
        """Called when the request is sent again. The response received so far is invalid."""

    async def response(
        self,
        turn: TurnState,  # noqa: ARG002
        response: AssistantTurn,
        info: BackendInfo,  # noqa: ARG002
    ) -> tuple[AssistantTurn, BaseException | None]:
        """Return the response to record. Also return an exception to raise after the recording, or None."""
        return response, None

    def response_recorded(self, turn: TurnState, response: AssistantTurn, message: Message) -> None:
        """Called when the response is recorded as `message`."""

    def wrap_dispatch(self, dispatch: Dispatch) -> Dispatch:
        """Return a function that runs the tool calls of a step instead of `dispatch`."""
        return dispatch

    def call_ended(self, call: ToolUse, outcome: CallOutcome) -> None:
        """Called when the result of `call` is recorded."""

    async def step_end(self, calls: Sequence[ToolUse]) -> None:
        """Called when a response and the results of its calls are recorded. Raise TurnAborted to end the turn."""

    async def before_steering(self) -> None:
        """Called before the turn checks for steering messages."""

    async def steering(self, text: str) -> list[str]:
        """Return the messages to record instead of the steering message `text`."""
        return [text]

    async def pause(self) -> None:
        """Called when the turn has used all its steps and is about to continue with new steps."""

    async def reflect(self, turn: TurnState, stop: StopReason) -> str | None:
        """Return a user message to continue the turn, or None to end the turn."""

    async def output(self, text: str, stop: StopReason) -> tuple[str, StopReason]:
        """Return the text and stop reason of the reply."""
        return text, stop

    async def reply(self, reply: Reply) -> Reply:
        """Return the reply to record. Raise StoreError if data cannot be written."""
        return reply

    async def turn_end(self, reply: Reply) -> None:
        """Called when the reply is recorded."""

    async def turn_failed(self, error: Exception) -> None:
        """Called when the turn ended without a reply."""

    async def after_turn(self, stop: StopReason | None) -> None:
        """Called when the turn is over. `stop` is None if the turn has no reply."""


class ActiveExtensions:
    """The active extensions of an agent. The object maps each point of a turn to the methods that the turn calls.

    `set` replaces the extensions, even during a turn. The change applies from the next point of the turn on.
    """

    def __init__(self, *extensions: TurnExtension) -> None:
        self.set(extensions)

    def set(self, extensions: Iterable[TurnExtension]) -> None:
        """Replace the active extensions by `extensions`."""
        active = tuple(extensions)
        self.turn_began = _overriding(active, TurnExtension.turn_began)
        self.before_turn = _overriding(active, TurnExtension.before_turn)
        self.before_prompt = _overriding(active, TurnExtension.before_prompt)
        self.prompt_recorded = _overriding(active, TurnExtension.prompt_recorded)
        self.before_request = _overriding(active, TurnExtension.before_request)
        self.shorten_conversation = _overriding(active, TurnExtension.shorten_conversation)
        self.request = _overriding(active, TurnExtension.request)
        self.request_refused = _overriding(active, TurnExtension.request_refused)
        self.request_retried = _overriding(active, TurnExtension.request_retried)
        self.response = _overriding(active, TurnExtension.response)
        self.response_recorded = _overriding(active, TurnExtension.response_recorded)
        self.wrap_dispatch = _overriding(active, TurnExtension.wrap_dispatch)
        self.call_ended = _overriding(active, TurnExtension.call_ended)
        self.step_end = _overriding(active, TurnExtension.step_end)
        self.before_steering = _overriding(active, TurnExtension.before_steering)
        self.steering = _overriding(active, TurnExtension.steering)
        self.pause = _overriding(active, TurnExtension.pause)
        self.reflect = _overriding(active, TurnExtension.reflect)
        self.output = _overriding(active[::-1], TurnExtension.output)
        self.reply = _overriding(active, TurnExtension.reply)
        self.turn_end = _overriding(active, TurnExtension.turn_end)
        self.turn_failed = _overriding(active, TurnExtension.turn_failed)
        self.after_turn = _overriding(active[::-1], TurnExtension.after_turn)


def _overriding(
    active: Iterable[TurnExtension], point: Callable[Concatenate[TurnExtension, P], R]
) -> tuple[Callable[P, R], ...]:
    """Return the method `point` of each extension whose class overrides this method."""
    name, found = point.__name__, list[Callable[P, R]]()
    for each in active:
        if name in each.points:
            found.append(getattr(each, name))
    return tuple(found)
