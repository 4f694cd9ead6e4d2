"""One line of text for each event of a tool call."""

from __future__ import annotations

from orch_protocol.core.text import plain_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


__all__ = ["ABOUT", "call_subject", "progress_line"]

ABOUT = ("command", "code", "pattern", "path", "task", "prompt", "query", "url")
"""The arguments that best describe a call."""
SUBJECT = 80
REASON = 200
WOULD = {"allow": "would run", "ask": "would need approval", "deny": "would be denied"}


def progress_line(event: Mapping[str, Any], *, whole: bool = False) -> str:
    """Return one line for a CallEvent, with control characters escaped.

    With `whole`, the line of a finished call contains the call, for output without a line for its start.
    """
    indent, tool = "  " * (event["depth"] - 1), plain_line(event["tool"], SUBJECT)
    about = f"{tool} {call_subject(event['input'])}".rstrip()
    return f"{indent}{plain_line(event['agent'], SUBJECT)}: {_event_text(event, tool, about, whole)}"


def _event_text(event: Mapping[str, Any], tool: str, about: str, whole: bool) -> str:
    outcome, reason = event["outcome"], _line(event["reason"], REASON)
    if outcome == "start":
        return f"-> {about}{f' ({reason})' if reason and event['decision'] == 'allow' else ''}"
    if outcome == "dry_run":
        return f"{WOULD[event['decision']]}: {about}{f' ({reason})' if reason else ''}"
    if outcome in ("deny", "declined"):
        return f"{'denied' if outcome == 'deny' else 'declined'}: {about} ({reason})"
    if outcome == "task":
        return f"{about}: {_line(event['result'], SUBJECT)}"
    seconds = (event["elapsed_ms"] or 0) / 1000
    if whole:
        done = "ok" if event["success"] else f"failed: {_line(event['result'], REASON)}"
        return f"{about} -> {done}, {seconds:.1f} s"
    failed = "" if event["success"] else f" failed: {_line(event['result'], REASON)}"
    return f"<- {tool} {seconds:.1f} s{failed}"


def call_subject(input: Mapping[str, Any]) -> str:
    """Return the argument that best describes a call, as one line. Return all arguments if none of them is known."""
    text = next((input[name] for name in ABOUT if isinstance(input.get(name), str)), None)
    if text is None:
        text = ", ".join(f"{name}={value!r}" for name, value in input.items())
    return _line(text, SUBJECT)


def _line(text: str, width: int) -> str:
    return plain_line(" ".join(text[: 4 * width].split()), width)
