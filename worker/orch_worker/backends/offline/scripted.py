"""A backend that returns scripted responses, for tests, examples and benchmarks.

The backend uses neither a model nor the network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from orch_protocol.agent.spec import BackendSpec, ToolSpec
from orch_protocol.core.errors import BackendError, ConfigError, ErrorInfo, OrchError, error_from
from orch_protocol.core.messages import Block, Message, StopReason, Text, ToolUse, Usage, text_of
from orch_protocol.policy.budget import BudgetAmounts

from ...conversation.framing import split_first_prompt
from ..base import AssistantTurn, BackendInfo, Conversation, CostEstimate, OnText

__all__ = ["RecordedRequest", "ScriptedBackend", "from_spec"]


class _ScriptedCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A scripted tool call: name, arguments, and an optional id."""

    tool: str
    input: dict[str, Any] = {}
    id: str | None = None


class _ScriptedResponse(Struct, frozen=True, forbid_unknown_fields=True):
    """One scripted response, or a loop of responses."""

    text: str | None = None
    echo: bool = False
    tool: str | None = None
    input: dict[str, Any] = {}
    tools: tuple[_ScriptedCall, ...] = ()
    stop_reason: StopReason | None = None
    sleep: Annotated[float, Meta(ge=0)] = 0.0
    error: str | None = None
    message: str = ""
    loop: tuple[Any, ...] | None = None
    times: Annotated[int, Meta(ge=1)] | None = None

    def calls(self) -> tuple[_ScriptedCall, ...]:
        return (*([_ScriptedCall(self.tool, self.input)] if self.tool else []), *self.tools)


class _RepeatedResponses(Struct, frozen=True):
    items: tuple[_ScriptedResponse, ...]
    times: int | None


class RecordedRequest(Struct, frozen=True):
    """The content of one request: system text, tools, messages and tail."""

    system: str
    tools: tuple[ToolSpec, ...]
    messages: tuple[Message, ...]
    tail: str


OnRequest: TypeAlias = Callable[[RecordedRequest], None]


class ScriptedBackend(Conversation):
    """Returns `items`, one item per response:

    - `"text"` or `{"text": "..."}`: a text. `{"echo": true}`: the last query.
    - `{"tool": "read_file", "input": {"path": "x"}}`: a tool call, optionally with `text`. `{"tools": [{...}, {...}]}`:
      several calls at once.
    - `{"error": "RateLimitError", "message": "..."}`: raises this error of `orch_protocol.core.errors`.
    - `{"loop": [...]}`: repeats these items forever, or `n` times with `"times": n`.

    Each response may have `sleep` (a delay in seconds) and `stop_reason`. A request after the last item raises
    BackendError.

    The number of assistant messages in the conversation determines the position in the script, so a restarted agent
    continues with the next item. An error that was raised just before a restart may be raised again.

    `summaries` are the responses to requests for summaries. Each archive starts with the first response. Without
    `summaries`, no summary is requested. The constructor raises ConfigError for an invalid item.
    """

    def __init__(self, items: Sequence[Any], summaries: Sequence[Any] = ()) -> None:
        super().__init__()
        self._parts = _parse(items)
        self._fails = any(item.error is not None for part in self._parts for item in part.items)
        _parse(summaries)
        self._items = tuple(items)
        self._summaries = tuple(summaries)
        self._next = 0
        self._raised: set[int] = set()
        """Positions of errors that were already raised."""
        self.on_request: OnRequest | None = None
        """Called with each request before the response."""

    def spec(self) -> BackendSpec:
        """Return the script as data for `spawn` and for the worker."""
        summaries = {"summaries": list(self._summaries)} if self._summaries else {}
        return BackendSpec("scripted", options={"items": list(self._items), **summaries})

    async def assistant_turn(self, on_text: OnText | None = None) -> AssistantTurn:
        """Return the next item as a response."""
        if self.on_request is not None:
            system, _, tail = self._request()
            self.on_request(RecordedRequest(system, self.tools, tuple(self._messages_to_send()), tail))
        item = self._at(self._next)
        if item is None:
            raise BackendError(
                f"the script has no more items: its {len(self._items)} items gave {self._next} responses, "
                "and one more was asked for"
            )
        if item.sleep:
            await asyncio.sleep(item.sleep)
        if item.error is not None:
            self._raised.add(self._next)
            self._next += 1
            raise error_from(ErrorInfo(item.error, item.message or f"scripted {item.error}"))
        message = self._message(item)
        if on_text is not None and (text := text_of(message)):
            on_text(text)
        usage = Usage(self.context_tokens(), self.estimator.message(message))
        ended: StopReason = "tool_use" if item.tool or item.tools else "end_turn"
        return AssistantTurn(message, item.stop_reason or ended, usage)

    def estimate_cost(self, *, priced: bool) -> CostEstimate:  # noqa: ARG002
        """Return the exact number of tokens of the next response."""
        item = self._at(self._next)
        output_tokens = self.estimator.message(self._message(item)) if item is not None else 0
        takes = BudgetAmounts(tokens=self.context_tokens() + output_tokens)
        return CostEstimate(takes, takes, takes)

    def append_assistant(self, message: Message) -> None:
        """Add an assistant message and advance the script by one item."""
        super().append_assistant(message)
        self._advance(1)

    def load(self, messages: Sequence[Message], responses: int | None = None) -> None:
        """Replace the conversation. The script continues after the first `responses` items."""
        super().load(messages)
        self._next = 0
        self._advance(sum(message.role == "assistant" for message in messages) if responses is None else responses)
        while self._next in self._raised:
            self._next += 1  # The conversation was shortened for a retry, so do not raise the same error again.

    def info(self) -> BackendInfo:
        """Return the provider and the model."""
        return BackendInfo("scripted", "")

    def _message(self, item: _ScriptedResponse) -> Message:
        content: list[Block] = []
        text = self._last_user_text() if item.echo else item.text
        if text is not None:
            content.append(Text(text))
        content += [
            ToolUse(call.id or f"call_{self._next + 1}_{number}", call.tool, call.input)
            for number, call in enumerate(item.calls(), 1)
        ]
        return Message("assistant", tuple(content))

    def _last_user_text(self) -> str:
        texts = (text_of(message) for message in reversed(self._messages_to_send()) if message.role == "user")
        return split_first_prompt(next(filter(None, texts), ""))[1]

    def _at(self, position: int) -> _ScriptedResponse | None:
        for part in self._parts:
            length = len(part.items)
            if part.times is None or position < length * part.times:
                return part.items[position % length]
            position -= length * part.times
        return None

    def _advance(self, responses: int) -> None:
        """Advance by `responses` responses, and by the errors before each of them."""
        if not self._fails:
            self._next += responses
            return
        for _ in range(responses):
            errors = 0
            while (item := self._at(self._next)) is not None and item.error is not None and errors < len(self._items):
                self._next, errors = self._next + 1, errors + 1
            self._next += 1


def from_spec(spec: BackendSpec, keys: Mapping[str, str]) -> ScriptedBackend:  # noqa: ARG001
    """Return the backend of `spec`. The option `items` of `spec` is the script."""
    items = spec.options.get("items")
    if not isinstance(items, (list, tuple)) or spec.options.keys() - {"items", "summaries"}:
        raise ConfigError(f"the scripted backend takes items and summaries, lists; not {sorted(spec.options)}")
    return ScriptedBackend(items, spec.options.get("summaries", ()))


def _parse(items: Sequence[Any]) -> tuple[_RepeatedResponses, ...]:
    if not isinstance(items, (list, tuple)):
        raise ConfigError("a script must be a list of items, one for each response")
    parts = tuple(_parts(items))
    if any(part.times is None for part in parts[:-1]):
        raise ConfigError("a loop without times never ends: it must be the last item of the script")
    return parts


def _parts(items: Sequence[Any]) -> Iterator[_RepeatedResponses]:
    for number, raw in enumerate(items, 1):
        item = _item(raw, f"script item {number}")
        if item.loop is None:
            yield _RepeatedResponses((item,), 1)
        else:
            where = f"script item {number}, loop item"
            yield _RepeatedResponses(
                tuple(_item(inner, f"{where} {place}") for place, inner in enumerate(item.loop, 1)), item.times
            )


def _item(raw: Any, where: str) -> _ScriptedResponse:
    try:
        item = _ScriptedResponse(text=raw) if isinstance(raw, str) else msgspec.convert(raw, _ScriptedResponse)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from error
    kinds = [
        name
        for name, given in {
            "text": item.text is not None or bool(item.calls()),
            "echo": item.echo,
            "error": item.error is not None,
            "loop": item.loop is not None,
        }.items()
        if given
    ]
    if len(kinds) != 1:
        found = " and ".join(kinds) or "neither"
        raise ConfigError(f"{where}: use exactly one of text or tools, echo, error, loop; found {found}")
    if item.times is not None and item.loop is None:
        raise ConfigError(f"{where}: `times` is allowed only with `loop`")
    if item.loop is not None and ("loop item" in where or not item.loop):
        raise ConfigError(f"{where}: a loop must contain at least one response, and no other loop")
    if item.error is not None and type(error_from(ErrorInfo(item.error, ""))).__name__ != item.error:
        raise ConfigError(f"{where}: unknown error {item.error!r}: use a class of {OrchError.__module__}")
    return item
