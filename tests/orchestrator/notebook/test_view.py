"""A turn as a cell of a notebook shows it."""

from __future__ import annotations

import pytest

from orch.notebook.view import TurnView, sanitize_markdown
from orch_protocol.core.messages import Reply, Usage
from orch_protocol.services.requests import AgentRow
from orch_protocol.wire.worker_messages import TurnEvent

REPLY = Reply("abc", "q1", "Done.", usage=Usage(1200, 34, cost_usd=0.0125), tool_calls=1)


def view(*events: tuple[str, str] | tuple[str, str, str] | tuple[str, str, str, bool]) -> TurnView:
    """Return the view of a turn in which that happened: kind, text, name, whether it is an error."""
    made = TurnView()
    for number, (kind, text, *more) in enumerate(events, 1):
        name, is_error = (*more, "", False)[:2] if len(more) < 2 else more
        made.event(TurnEvent(number, kind, text, name, is_error=bool(is_error)))  # type: ignore[arg-type]
    return made


def test_text_grows_and_what_was_lost_comes_whole() -> None:
    """Pieces are one text; the whole response replaces them."""
    shown = view(("text", "Let "), ("text", "me"))
    assert shown.text() == "Let me\n…"
    shown.event(TurnEvent(3, "message", "Let me see."))
    assert shown.text() == "Let me see.\n…"


def test_a_request_made_again_takes_back_its_text() -> None:
    """What was said by the one that failed is void; why it failed is said."""
    assert view(("text", "Half a"), ("retry", "429")).text() == "[the request is made again: 429]\n…"


def test_calls_run_and_end_well_or_not() -> None:
    """In order; of two calls of one tool the first result is the first call's."""
    shown = view(("tool_call", "{1}", "bash"), ("tool_call", "{2}", "bash"), ("tool_result", "exit 1", "bash", True))
    assert shown.text().splitlines() == ["✗ bash {1}: exit 1", "… bash {2}", "…"]
    shown.event(TurnEvent(4, "tool_result", "ok", "bash"))
    assert shown.text().splitlines()[1] == "✓ bash {2}"
    assert "- ✗ <code>bash</code> <code>{1}: exit 1</code>\n- ✓ <code>bash</code>" in shown.markdown()


def test_the_end_says_what_was_used() -> None:
    """A reply that was streamed is not said twice; one that was not is said; cost is there when there is one."""
    shown = view(("message", "Done."))
    shown.reply(REPLY)
    assert shown.text() == "Done.\n[1 tool call, 1,234 tokens, $0.0125]"
    silent = TurnView()
    silent.reply(REPLY)
    assert silent.text().startswith("Done.\n")


def test_an_early_end_and_a_failure_say_why() -> None:
    """Nobody takes them for an answer."""
    shown = TurnView()
    shown.reply(Reply("abc", "q1", "", stop_reason="cancelled"))
    assert "[the turn ended early: cancelled]" in shown.text()
    failed = TurnView()
    failed.failed("no key")
    assert failed.text() == "[no key]"


def test_who_else_is_at_work_is_shown_until_the_end() -> None:
    """Children that idle are not; with the reply all are gone."""
    row = AgentRow("c", 2, "reader", "abc", 2, "agent", "busy", "Read it", "m", "p", 7, "", "", None, 1, 2, 3, Usage())
    shown = TurnView()
    shown.below([row, AgentRow(**{name: getattr(row, name) for name in row.__struct_fields__} | {"status": "idle"})])
    assert shown.text().splitlines() == ["… reader: busy, Read it", "…"]
    shown.reply(REPLY)
    assert "reader" not in shown.text()


def test_a_terminal_gets_no_control_characters() -> None:
    """Nothing that a model or a tool says moves the cursor or sets a title."""
    said = view(("message", "a\x1b]0;b\x07c"), ("tool_call", "\x9b2J", "bash\x1b")).text()
    assert not any((ord(char) < 32 and char != "\n") or 127 <= ord(char) < 160 for char in said)


@pytest.mark.parametrize(
    "said",
    [
        "<script>alert(1)</script>",
        "`` ` `` <img src=x onerror=alert(1)> `",
        "```html\n<script>1</script>\n```",
        "$$\n```\n$$\n<img src=x>\n```",
        "~~~\n```\n~~~\n<b>\n```",
        "`<b>` ![see](https://example.invalid/?q=secret)",
        "```\n![see](https://example.invalid)\n</code></pre><img src=x>",
        "<!-- --> <?x?> <![CDATA[",
    ],
)
def test_nothing_said_becomes_a_tag_or_an_image(said: str) -> None:
    """Wherever a reader of Markdown thinks that code ends: no tag but those of code, no image that is loaded."""
    made = sanitize_markdown(said)
    for ours in ("<pre>", "</pre>", "<code>", "</code>"):
        made = made.replace(ours, "")
    assert "<" not in made
    assert "![" not in made


def test_code_reads_as_it_was_written() -> None:
    """In a block and in a line, and text beside it keeps its marks."""
    assert sanitize_markdown("**a** `x<y`") == "**a** <code>x&lt;y</code>"
    assert sanitize_markdown("so:\n```py\nif a < b: [1]\n```\nend") == (
        "so:\n<pre><code>if a &lt; b: &#91;1]\n</code></pre>\nend"
    )
