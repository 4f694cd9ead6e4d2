"""OpenAI's Chat Completions API, and compatible servers, in the gateway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from orch_worker.backends.formats.chat import read_usage
from orch_worker.backends.formats.reported_usage import ReportedUsage
from orch_worker.backends.formats.server_sent_events import ServerSentEvent

from .api import Fields, Operation, RecallCall, Reply, decode_value, encode_event, parse_arguments
from .openai import OpenAiApi, error_event, session_of

__all__ = ["CHAT"]

PATH: Final = "/chat/completions"
END: Final = "[DONE]"
REASONING: Final = "reasoning"
"""The beginning of the names of fields with reasoning, which differ between servers."""
LEGACY_FIELDS: Final = ("functions", "function_call")
WAITING: Final = "tool_calls"
"""The finish reason of a response that waits for results of calls. Some servers give another one, such as "stop"."""
CUT_OFF: Final = ("length", "content_filter", "error")
"""Finish reasons of responses that are not complete, so that the arguments of a call may be cut off."""


class _ChatApi(OpenAiApi):
    format = "openai"
    conversation = "messages"

    def operation(self, path: str) -> Operation | None:
        return "respond" if path.endswith(PATH) else None

    def accepts(self, fields: Fields, items: Sequence[bytes]) -> bool:  # noqa: ARG002
        # Of several choices, the client continues with one that it does not name.
        return fields.get("n") in (None, 1) and not any(name in fields for name in LEGACY_FIELDS)

    def session(self, headers: Mapping[str, str], fields: Fields) -> str:
        return session_of(headers, fields)

    def tool_names(self, fields: Fields) -> set[str]:
        tools = fields.get("tools")
        return {_function(tool).get("name", "") for tool in tools} if isinstance(tools, list) else set()

    def without_markers(self, item: Any) -> Any:
        """Compatible servers accept the markers of the Messages API on parts."""
        content = item.get("content")
        if not isinstance(content, list):
            return {name: value for name, value in item.items() if name != "cache_control"}
        return item | {"content": [_unmarked(part) for part in content]}

    def identity(self, item: Any) -> Any:
        if item["role"] != "assistant":
            content = item.get("content")
            plain = {name: value for name, value in item.items() if value is not None and name != "content"}
            return [plain, [{"type": "text", "text": content}] if isinstance(content, str) else content]
        calls = [[call.get("id"), _function(call) or call] for call in item.get("tool_calls") or ()]
        return ["assistant", _text_of(item), item.get("refusal") or "", calls]

    def result_items(self, recalls: Sequence[RecallCall], texts: Sequence[str]) -> list[Any]:
        return [
            {"role": "tool", "tool_call_id": call.id, "content": text}
            for call, text in zip(recalls, texts, strict=True)
        ]

    def reported(self, usage: dict[str, Any]) -> ReportedUsage:
        return read_usage(usage)

    def call_ids(self, item: Any) -> list[str]:
        calls = item.get("tool_calls") or () if item.get("role") == "assistant" else ()
        return [call["id"] for call in calls if isinstance(call, dict) and isinstance(call.get("id"), str)]

    def unmerged(self, item: Any, last: Any) -> Any:
        """Servers can compare the reasoning in a message with calls."""
        without = {name: value for name, value in item.items() if not name.startswith(REASONING)}
        return without | {name: value for name, value in last.items() if name.startswith(REASONING)}

    def rewriter(self, names: set[str]) -> _ChatRewriter:
        return _ChatRewriter(names)


def _unmarked(part: Any) -> Any:
    if not isinstance(part, dict) or "cache_control" not in part:
        return part
    return {name: value for name, value in part.items() if name != "cache_control"}


def _function(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    return function if isinstance(function, dict) else {}


def _text_of(item: Any) -> Any:
    content = item.get("content")
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        return "".join(part["text"] for part in content)
    return content or ""


class _ChatRewriter:
    response_id = ""

    def __init__(self, names: set[str]) -> None:
        self.ended = False
        self._names = names
        self._id: Any = None
        self._shown: dict[str, Any] = {"role": "assistant", "content": None}
        """The merged message that the client gets."""
        self._shown_calls: list[dict[str, Any]] = []
        self._last: dict[str, Any] = {}
        self._earlier_output = self._output = 0
        self._rounds = 0
        self.start()

    def start(self) -> None:
        self.ended = False
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self._calls: list[dict[str, Any]] = []
        self._call_indexes: list[Any] = []
        self._held: list[tuple[dict[str, Any] | None, bytes]] = []
        self._finish: Any = None
        self._earlier_output, self._output = self._earlier_output + self._output, 0
        self._rounds += 1

    @property
    def is_complete(self) -> bool:
        return self.ended or bool(self._finish)

    def feed(self, event: ServerSentEvent, raw: bytes) -> bytes:
        if event.data.strip() == END:
            self.ended = True
            self._held.append((None, raw))
            return b""
        chunk = decode_value(event.data.encode())
        choices = chunk.get("choices")
        self._count(chunk)
        self._id = self._id or chunk.get("id")
        if not choices:
            if "error" in chunk:
                return raw
            if not self._finish:  # For example the first chunk of Azure, with the results of its filter.
                return self._at_end(chunk, raw)
            self._held.append((chunk, raw))
            return b""
        choice = choices[0]
        delta = choice.get("delta") or {}
        shown, changed = self._add(delta)
        if self._rounds > 1 and "role" in shown:
            shown, changed = {name: value for name, value in shown.items() if name != "role"}, True
        if choice.get("finish_reason"):
            self._finish = choice["finish_reason"]
        if changed:
            chunk = chunk | {"choices": [choice | {"delta": shown}]}
        if self._rounds > 1 and chunk.get("id") != self._id:
            chunk, changed = chunk | {"id": self._id}, True
        raw = encode_event(chunk) if changed else raw
        if self._finish:
            self._held.append((chunk, raw))
            return b""
        return b"" if changed and not shown and not chunk.get("usage") else raw

    def read(self, body: dict[str, Any]) -> None:
        (choice,) = body["choices"]
        message = choice["message"]
        self._message = {name: value for name, value in message.items() if name != "tool_calls"}
        self._calls = list(message.get("tool_calls") or ())
        for name, value in self._message.items():
            self._join_shown(name, value)
        self._shown_calls += [call for call in self._calls if not self._is_recall(call)]
        self._finish = choice.get("finish_reason")
        self._count(body)
        self._id = self._id or body.get("id")
        self._last, self.ended = body, True

    def reply(self) -> Reply:
        is_complete = self._finish not in CUT_OFF
        calls = [call for call in self._calls if is_complete or not self._is_recall(call)]
        recalls = tuple(
            RecallCall(call["id"], call["function"]["name"], parse_arguments(call["function"].get("arguments")))
            for call in calls
            if self._is_recall(call)
        )
        message = self._message | ({"tool_calls": calls} if calls else {})
        is_empty = not calls and not message.get("content") and not message.get("refusal")
        return Reply([] if is_empty else [message], recalls, len(calls) > len(recalls))

    def finish(self) -> bytes:
        return b"".join(self._at_end(chunk, raw) for chunk, raw in self._held)

    def body(self) -> dict[str, Any]:
        (choice,) = self._last["choices"]
        message = choice["message"] | self._shown
        message.pop("tool_calls", None)
        if self._shown_calls:
            message["tool_calls"] = self._shown_calls
        choice = choice | {"message": message, "finish_reason": self._client_finish()}
        return self._last | {"id": self._id, "choices": [choice]} | self._usage(self._last)

    def visible(self) -> list[Any]:
        calls = {"tool_calls": self._shown_calls} if self._shown_calls else {}
        message = self._shown | calls
        return [message] if calls or message.get("content") or message.get("refusal") else []

    def error_event(self, body: bytes) -> bytes:
        return error_event(body)

    def _is_recall(self, call: Any) -> bool:
        return _function(call).get("name") in self._names

    def _add(self, delta: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """Add a delta. Return the part of it that the client gets, and whether it differs from `delta`."""
        for name, value in delta.items():
            if name not in ("tool_calls", "role"):
                _join(self._message, name, value)
                self._join_shown(name, value)
        pieces = delta.get("tool_calls")
        if not pieces:
            return delta, False
        shown = []
        for piece in pieces:
            call = self._add_call(piece)
            if not self._is_recall(call):
                if not any(call is each for each in self._shown_calls):
                    self._shown_calls.append(call)
                place = next(index for index, each in enumerate(self._shown_calls) if call is each)
                shown.append(piece if piece.get("index") == place else piece | {"index": place})
        if all(new is old for new, old in zip(shown, pieces, strict=False)) and len(shown) == len(pieces):
            return delta, False
        rest = {name: value for name, value in delta.items() if name != "tool_calls"}
        return rest | ({"tool_calls": shown} if shown else {}), True

    def _add_call(self, piece: dict[str, Any]) -> dict[str, Any]:
        # Some servers give every call the index 0, so a new id also starts a new call.
        index, id = piece.get("index"), piece.get("id")
        known = next((at for at in range(len(self._calls) - 1, -1, -1) if self._call_indexes[at] == index), None)
        if known is None or (id and self._calls[known].get("id") and id != self._calls[known]["id"]):
            self._calls.append({})
            self._call_indexes.append(index)
            known = len(self._calls) - 1
        call = self._calls[known]
        for name, value in piece.items():
            if name == "function":
                function = call.setdefault("function", {})
                for field, part in value.items():
                    if field == "name":
                        function[field] = function.get(field) or part
                    else:
                        _join(function, field, part)
            elif name != "index" and value is not None:
                call[name] = value
        return call

    def _join_shown(self, name: str, value: Any) -> None:
        if name != "role":
            _join(self._shown, name, value)

    def _count(self, data: dict[str, Any]) -> None:
        usage = data.get("usage")
        output = usage.get("completion_tokens") if isinstance(usage, dict) else None
        if isinstance(output, int):
            self._output = output

    def _usage(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the field `usage` with the tokens of all responses that were merged."""
        usage = data.get("usage")
        if not isinstance(usage, dict) or not self._earlier_output:
            return {}
        total = {"completion_tokens": self._earlier_output + self._output}
        if isinstance(usage.get("total_tokens"), int):
            total["total_tokens"] = usage["total_tokens"] + self._earlier_output
        return {"usage": usage | total}

    def _client_finish(self) -> Any:
        """Return the finish reason for the client. If it sees no call, it must not wait for results."""
        return "stop" if self._finish == WAITING and not self._shown_calls else self._finish

    def _at_end(self, chunk: dict[str, Any] | None, raw: bytes) -> bytes:
        if chunk is None:
            return raw
        changes = self._usage(chunk)
        if self._rounds > 1 and chunk.get("id") != self._id:
            changes["id"] = self._id
        choices = chunk.get("choices")
        if choices and choices[0].get("finish_reason") not in (None, "", self._client_finish()):
            changes["choices"] = [choices[0] | {"finish_reason": self._client_finish()}]
        return encode_event(chunk | changes) if changes else raw


def _join(target: dict[str, Any], name: str, value: Any) -> None:
    """Add a delta of a field: texts and lists are continued, other values replaced."""
    old = target.get(name)
    if value is None:
        target.setdefault(name, None)
    else:
        continues = isinstance(old, (str, list)) and type(old) is type(value)
        target[name] = old + value if continues else value


CHAT: Final = _ChatApi()
