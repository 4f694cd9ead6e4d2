"""A turn as shown in a cell. The turn's text and tool calls are shown as Markdown and as plain text. No I/O."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from orch_protocol.core.messages import Reply
from orch_protocol.services.agents.status import AgentRow
from orch_protocol.wire.worker_messages import TurnEvent

from ..chat.printing import turn_output
from ..render import terminal
from ..render.transcript import TurnPrinter

__all__ = ["TerminalView", "TurnView", "View", "sanitize_markdown", "usage_line"]


COMPLETED: Final = "end_turn"
SHORT: Final = 100
FENCES: Final = ("```", "~~~")
CODE: Final = re.compile(
    r"((?:^```.*?(?:^```[ \t]*$|\Z))|(?:^~~~.*?(?:^~~~[ \t]*$|\Z))|`[^`\n]+`)", re.DOTALL | re.MULTILINE
)
MARKS: Final = {"running": "…", "done": "✓", "failed": "✗"}


class View(Protocol):
    """Receives the events of a turn."""

    def event(self, event: TurnEvent) -> None:
        """Handle an event."""

    def subagents(self, rows: Sequence[AgentRow]) -> None:
        """Handle the current list of subagents."""

    def reply(self, reply: Reply) -> None:
        """Handle the end of the turn."""

    def failed(self, reason: str) -> None:
        """Handle a turn that ended without a reply."""


class _ReplyText(Struct):
    text: str
    is_complete: bool = False


class _ToolCall(Struct):
    name: str
    arguments: str
    state: Literal["running", "done", "failed"] = "running"
    error: str = ""


class _Note(Struct):
    text: str


class TurnView:
    """Collects the events of a turn. If parts of the text are lost, uses the complete text of the response."""

    def __init__(self) -> None:
        self._items: list[_ReplyText | _ToolCall | _Note] = []
        self._children: tuple[str, ...] = ()
        self._finished = False

    def event(self, event: TurnEvent) -> None:
        """Add an event."""
        if event.kind == "text":
            self._reply_text().text += event.text
        elif event.kind == "message":
            if event.text:
                reply_text = self._reply_text()
                reply_text.text, reply_text.is_complete = event.text, True
        elif event.kind == "tool_call":
            self._items.append(_ToolCall(event.name, event.text))
        elif event.kind == "tool_result":
            self._done(event)
        elif event.kind == "retry":
            if self._items and isinstance(self._items[-1], _ReplyText) and not self._items[-1].is_complete:
                self._items.pop()
            self._items.append(_Note(f"the request is repeated: {event.text}"))
        else:
            name = f"{event.kind} {event.name}".rstrip()
            self._items.append(_Note(f"{name}: {event.text}"))

    def subagents(self, rows: Sequence[AgentRow]) -> None:
        """Set the list of running subagents."""
        self._children = tuple(f"{row.name}: {row.status}, {row.task}" for row in rows if row.status == "busy")

    def reply(self, reply: Reply) -> None:
        """Add the end of the turn."""
        self._finished, self._children = True, ()
        last = next((item for item in reversed(self._items) if isinstance(item, _ReplyText)), None)
        if reply.text and (last is None or last.text != reply.text):
            self._items.append(_ReplyText(reply.text, is_complete=True))
        if reply.stop_reason != COMPLETED:
            self._items.append(_Note(f"the turn ended early: {reply.stop_reason}"))
        if reply.warning:
            self._items.append(_Note(reply.warning))
        self._items.append(_Note(usage_line(reply)))

    def failed(self, reason: str) -> None:
        """Add the end of a turn without a reply."""
        self._finished, self._children = True, ()
        self._items.append(_Note(reason))

    def markdown(self) -> str:
        """Return the turn as Markdown. The agent's text contains no HTML tags, and displaying it loads nothing."""
        return "\n\n".join(self._markdown())

    def text(self) -> str:
        """Return the turn as text without control characters."""
        return "\n".join(terminal.safe(line) for line in self._lines())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:  # noqa: ARG002
        return {"text/plain": self.text(), "text/markdown": self.markdown()}

    def _reply_text(self) -> _ReplyText:
        last = self._items[-1] if self._items else None
        if isinstance(last, _ReplyText) and not last.is_complete:
            return last
        added = _ReplyText("")
        self._items.append(added)
        return added

    def _done(self, event: TurnEvent) -> None:
        call = next(
            (
                item
                for item in self._items
                if isinstance(item, _ToolCall) and item.name == event.name and item.state == "running"
            ),
            None,
        )
        if call is not None:
            call.state = "failed" if event.is_error else "done"
            call.error = event.text if event.is_error else ""

    def _markdown(self) -> Iterator[str]:
        done: list[str] = []
        for item in self._items:
            if isinstance(item, _ToolCall):
                done.append(
                    f"- {MARKS[item.state]} {_span(item.name)} {_span(terminal.truncate_line(_call_text(item), SHORT))}"
                )
                continue
            if done:
                yield "\n".join(done)
                done = []
            if isinstance(item, _ReplyText):
                yield sanitize_markdown(item.text)
            else:
                yield f"*{_plain(terminal.truncate_line(item.text, 2 * SHORT))}*"
        done += [f"- {_span(terminal.truncate_line(child, SHORT))}" for child in self._children]
        if done:
            yield "\n".join(done)
        if not self._finished:
            yield "*at work …*"

    def _lines(self) -> Iterator[str]:
        for item in self._items:
            if isinstance(item, _ToolCall):
                yield f"{MARKS[item.state]} {item.name} {terminal.truncate_line(_call_text(item), SHORT)}"
            elif isinstance(item, _ReplyText):
                yield item.text
            else:
                yield f"[{terminal.truncate_line(item.text, 2 * SHORT)}]"
        yield from (f"… {terminal.truncate_line(child, SHORT)}" for child in self._children)
        if not self._finished:
            yield "…"


def usage_line(reply: Reply) -> str:
    """Return the usage of a turn on one line."""
    usage = reply.usage
    tokens = usage.input_tokens + usage.output_tokens
    cost = f", {terminal.format_cost(asdict(usage))}" if usage.cost_usd else ""
    return f"{terminal.pluralize(reply.tool_calls, 'tool call')}, {tokens:,} tokens{cost}"


def sanitize_markdown(text: str) -> str:
    """Return Markdown in which only code blocks use HTML tags, and in which links replace images.

    A page that shows a model's text must not run code from this text. The page must not load images either, because the
    address of an image could leak data. Notebooks trust their output, and Markdown renderers disagree about where code
    ends. Therefore the result contains no text of the model that could be a tag.
    """
    parts = CODE.split(text)
    parts[::2] = [part.replace("<", "&lt;").replace("![", "!&#91;") for part in parts[::2]]
    parts[1::2] = [_code(part) for part in parts[1::2]]
    return "".join(parts)


def _code(part: str) -> str:
    if not part.startswith(FENCES):
        return f"<code>{_escaped(part.strip('`'))}</code>"
    head, _, body = part.partition("\n")
    return f"<pre><code>{_escaped(body.removesuffix(head[:3]))}</code></pre>"


def _escaped(text: str) -> str:
    return html.escape(text, quote=False).replace("[", "&#91;")


def _call_text(call: _ToolCall) -> str:
    return f"{call.arguments}: {call.error}" if call.error else call.arguments


def _span(text: str) -> str:
    return f"<code>{_escaped(text)}</code>" if text else ""


def _plain(text: str) -> str:
    return re.sub(r"([\\`*_\[\]#!])", r"\\\1", text).replace("<", "&lt;")


# --- A turn in a terminal, where output cannot be replaced ---


class TerminalView:
    """Prints a turn while it runs, as `orch query --stream` does."""

    def __init__(self) -> None:
        self._output = turn_output()
        self._turn = TurnPrinter(self._output)

    def event(self, event: TurnEvent) -> None:
        """Print an event."""
        self._turn.event(msgspec.to_builtins(event))

    def subagents(self, rows: Sequence[AgentRow]) -> None:
        """Do nothing, because the list of subagents changes too often."""

    def reply(self, reply: Reply) -> None:
        """Print the rest of the turn and its usage."""
        self._turn.reply(msgspec.to_builtins(reply))
        self._finish(reply.warning, usage_line(reply))

    def failed(self, reason: str) -> None:
        """Print the reason why there is no reply."""
        self._turn.end()
        self._finish(reason)

    def _finish(self, *notes: str) -> None:
        self._output.finish()
        for each in filter(None, notes):
            self._output.note(f"[{terminal.truncate_line(each, 200)}]")
