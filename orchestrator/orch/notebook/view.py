"""A turn as a cell shows it: what was said and done so far, as Markdown and as plain text. No I/O."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal, Protocol

import msgspec
from msgspec import Struct

from orch_protocol.core.messages import Reply
from orch_protocol.services.requests import AgentRow
from orch_protocol.wire.worker_messages import TurnEvent

from ..chat.printing import turn_output
from ..render import terminal
from ..render.transcript import TurnPrinter

__all__ = ["Told", "TurnView", "View", "sanitize_markdown", "usage_line"]


NATURAL: Final = "end_turn"
SHORT: Final = 100
FENCES: Final = ("```", "~~~")
CODE: Final = re.compile(
    r"((?:^```.*?(?:^```[ \t]*$|\Z))|(?:^~~~.*?(?:^~~~[ \t]*$|\Z))|`[^`\n]+`)", re.DOTALL | re.MULTILINE
)
MARKS: Final = {"running": "…", "done": "✓", "failed": "✗"}


class View(Protocol):
    """Is told of a turn."""

    def event(self, event: TurnEvent) -> None:
        """Something happened."""

    def below(self, rows: Sequence[AgentRow]) -> None:
        """These are there for it too."""

    def reply(self, reply: Reply) -> None:
        """The turn is over."""

    def failed(self, why: str) -> None:
        """It is, and there is no reply."""


class _Said(Struct):
    text: str
    whole: bool = False


class _Did(Struct):
    name: str
    what: str
    state: Literal["running", "done", "failed"] = "running"
    why: str = ""


class _Note(Struct):
    text: str


class TurnView:
    """Folds the events of a turn. Text that was lost on its way is made up for by what comes whole."""

    def __init__(self) -> None:
        self._items: list[_Said | _Did | _Note] = []
        self._children: tuple[str, ...] = ()
        self._over = False

    def event(self, event: TurnEvent) -> None:
        """Take in what happened."""
        if event.kind == "text":
            self._saying().text += event.text
        elif event.kind == "message":
            if event.text:
                saying = self._saying()
                saying.text, saying.whole = event.text, True
        elif event.kind == "tool_call":
            self._items.append(_Did(event.name, event.text))
        elif event.kind == "tool_result":
            self._done(event)
        elif event.kind == "retry":
            if self._items and isinstance(self._items[-1], _Said) and not self._items[-1].whole:
                self._items.pop()
            self._items.append(_Note(f"the request is made again: {event.text}"))
        else:
            name = f"{event.kind} {event.name}".rstrip()
            self._items.append(_Note(f"{name}: {event.text}"))

    def below(self, rows: Sequence[AgentRow]) -> None:
        """Take in who else is at work for this."""
        self._children = tuple(f"{row.name}: {row.status}, {row.task}" for row in rows if row.status == "busy")

    def reply(self, reply: Reply) -> None:
        """Take in the end of the turn."""
        self._over, self._children = True, ()
        last = next((item for item in reversed(self._items) if isinstance(item, _Said)), None)
        if reply.text and (last is None or last.text != reply.text):
            self._items.append(_Said(reply.text, whole=True))
        if reply.stop_reason != NATURAL:
            self._items.append(_Note(f"the turn ended early: {reply.stop_reason}"))
        if reply.warning:
            self._items.append(_Note(reply.warning))
        self._items.append(_Note(usage_line(reply)))

    def failed(self, why: str) -> None:
        """Take in that there is no reply."""
        self._over, self._children = True, ()
        self._items.append(_Note(why))

    def markdown(self) -> str:
        """Return all of it as Markdown, in which nothing that was said is a tag or loads anything."""
        return "\n\n".join(self._markdown())

    def text(self) -> str:
        """Return all of it as text that no terminal obeys."""
        return "\n".join(terminal.safe(line) for line in self._lines())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:  # noqa: ARG002
        return {"text/plain": self.text(), "text/markdown": self.markdown()}

    def _saying(self) -> _Said:
        last = self._items[-1] if self._items else None
        if isinstance(last, _Said) and not last.whole:
            return last
        said = _Said("")
        self._items.append(said)
        return said

    def _done(self, event: TurnEvent) -> None:
        did = next(
            (
                item
                for item in self._items
                if isinstance(item, _Did) and item.name == event.name and item.state == "running"
            ),
            None,
        )
        if did is not None:
            did.state = "failed" if event.is_error else "done"
            did.why = event.text if event.is_error else ""

    def _markdown(self) -> Iterator[str]:
        done: list[str] = []
        for item in self._items:
            if isinstance(item, _Did):
                done.append(
                    f"- {MARKS[item.state]} {_span(item.name)} {_span(terminal.truncate_line(_what(item), SHORT))}"
                )
                continue
            if done:
                yield "\n".join(done)
                done = []
            if isinstance(item, _Said):
                yield sanitize_markdown(item.text)
            else:
                yield f"*{_plain(terminal.truncate_line(item.text, 2 * SHORT))}*"
        done += [f"- {_span(terminal.truncate_line(child, SHORT))}" for child in self._children]
        if done:
            yield "\n".join(done)
        if not self._over:
            yield "*at work …*"

    def _lines(self) -> Iterator[str]:
        for item in self._items:
            if isinstance(item, _Did):
                yield f"{MARKS[item.state]} {item.name} {terminal.truncate_line(_what(item), SHORT)}"
            elif isinstance(item, _Said):
                yield item.text
            else:
                yield f"[{terminal.truncate_line(item.text, 2 * SHORT)}]"
        yield from (f"… {terminal.truncate_line(child, SHORT)}" for child in self._children)
        if not self._over:
            yield "…"


def usage_line(reply: Reply) -> str:
    """Return in a line what a turn took."""
    usage = reply.usage
    tokens = usage.input_tokens + usage.output_tokens
    cost = f", ${usage.cost_usd:.4f}" if usage.cost_usd else ""
    return f"{terminal.pluralize(reply.tool_calls, 'tool call')}, {tokens:,} tokens{cost}"


def sanitize_markdown(text: str) -> str:
    """Return Markdown whose only tags are those of code, ours, and whose images are links.

    A page that shows what a model said must not run it, nor tell a stranger by an image's address that it was looked
    at. Notebooks trust what they show, and readers of Markdown do not agree on where code ends: so nothing that was
    said is ever left to be taken for a tag.
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


def _what(did: _Did) -> str:
    return f"{did.what}: {did.why}" if did.why else did.what


def _span(text: str) -> str:
    return f"<code>{_escaped(text)}</code>" if text else ""


def _plain(text: str) -> str:
    return re.sub(r"([\\`*_\[\]#!])", r"\\\1", text).replace("<", "&lt;")


# --- A turn as a terminal is told of it, where nothing that was shown can be replaced ---


class Told:
    """Prints a turn as it goes on, as `orch query --stream` does."""

    def __init__(self) -> None:
        self._output = turn_output()
        self._turn = TurnPrinter(self._output)

    def event(self, event: TurnEvent) -> None:
        """Print what happened."""
        self._turn.event(msgspec.to_builtins(event))

    def below(self, rows: Sequence[AgentRow]) -> None:
        """Print nothing: who else is at work changes all the time."""

    def reply(self, reply: Reply) -> None:
        """Print what is left of the turn, and what it took."""
        self._turn.reply(msgspec.to_builtins(reply))
        self._over(reply.warning, usage_line(reply))

    def failed(self, why: str) -> None:
        """Print why there is no reply."""
        self._turn.end()
        self._over(why)

    def _over(self, *notes: str) -> None:
        self._output.over()
        for each in filter(None, notes):
            self._output.note(f"[{terminal.truncate_line(each, 200)}]")
