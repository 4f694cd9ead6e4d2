"""The view of a turn in a notebook cell."""

from __future__ import annotations

import pytest

from orch.notebook.view import TurnView, sanitize_markdown
from orch_protocol.core.messages import Reply, Usage
from orch_protocol.services.agents.status import AgentRow
from orch_protocol.wire.worker_messages import TurnEvent

REPLY = Reply("abc", "q1", "Done.", usage=Usage(1200, 34, cost_usd=0.0125), tool_calls=1)


def view(*events: tuple[str, str] | tuple[str, str, str] | tuple[str, str, str, bool]) -> TurnView:
    """Return the view of a turn with `events`: kind, text, name, and whether the event is an error."""
    made = TurnView()
    for number, (kind, text, *more) in enumerate(events, 1):
        name, is_error = (*more, "", False)[:2] if len(more) < 2 else more
        made.event(TurnEvent(number, kind, text, name, is_error=bool(is_error)))  # type: ignore[arg-type]
    return made


def test_streamed_pieces_are_replaced_by_the_whole_response() -> None:
    """Until the response arrives, the pieces are shown as one text."""
    shown = view(("text", "Let "), ("text", "me"))
    assert shown.text() == "Let me\n…"
    shown.event(TurnEvent(3, "message", "Let me see."))
    assert shown.text() == "Let me see.\n…"


def test_retried_request_discards_its_text() -> None:
    """The view replaces the text of a failed request by the reason for the retry."""
    assert view(("text", "Half a"), ("retry", "429")).text() == "[the request is repeated: 429]\n…"


def test_calls_are_shown_with_their_outcome() -> None:
    """Several results of the same tool are assigned to its calls in order."""
    shown = view(("tool_call", "{1}", "bash"), ("tool_call", "{2}", "bash"), ("tool_result", "exit 1", "bash", True))
    assert shown.text().splitlines() == ["✗ bash {1}: exit 1", "… bash {2}", "…"]
    shown.event(TurnEvent(4, "tool_result", "ok", "bash"))
    assert shown.text().splitlines()[1] == "✓ bash {2}"
    assert "- ✗ <code>bash</code> <code>{1}: exit 1</code>\n- ✓ <code>bash</code>" in shown.markdown()


def test_end_shows_usage_and_unstreamed_reply() -> None:
    """A streamed reply is not repeated, and the cost is shown if it is known."""
    shown = view(("message", "Done."))
    shown.reply(REPLY)
    assert shown.text() == "Done.\n[1 tool call, 1,234 tokens, $0.0125]"
    silent = TurnView()
    silent.reply(REPLY)
    assert silent.text().startswith("Done.\n")


def test_early_end_and_failure_are_marked() -> None:
    """A turn that ended early or failed has a mark, so that its text is not taken for an answer."""
    shown = TurnView()
    shown.reply(Reply("abc", "q1", "", stop_reason="cancelled"))
    assert "[the turn ended early: cancelled]" in shown.text()
    failed = TurnView()
    failed.failed("no key")
    assert failed.text() == "[no key]"


def test_working_subagents_are_shown_until_the_end() -> None:
    """Idle subagents are not shown, and the reply removes all of them."""
    row = AgentRow("c", 2, "reader", "abc", 2, "agent", "busy", "Read it", "m", "p", 7, "", "", None, 1, 2, 3, Usage())
    shown = TurnView()
    shown.subagents(
        [row, AgentRow(**{name: getattr(row, name) for name in row.__struct_fields__} | {"status": "idle"})]
    )
    assert shown.text().splitlines() == ["… reader: busy, Read it", "…"]
    shown.reply(REPLY)
    assert "reader" not in shown.text()


def test_terminal_output_has_no_control_characters() -> None:
    """Texts of models and tools can neither move the cursor nor set a title."""
    found = view(("message", "a\x1b]0;b\x07c"), ("tool_call", "\x9b2J", "bash\x1b")).text()
    assert not any((ord(char) < 32 and char != "\n") or 127 <= ord(char) < 160 for char in found)


@pytest.mark.parametrize(
    "expected",
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
def test_markdown_output_contains_no_html_or_images(expected: str) -> None:
    """For any Markdown parser, the only tags are those of code, and no image is loaded."""
    made = sanitize_markdown(expected)
    for ours in ("<pre>", "</pre>", "<code>", "</code>"):
        made = made.replace(ours, "")
    assert "<" not in made
    assert "![" not in made


def test_code_is_rendered_verbatim() -> None:
    """Code is escaped in blocks and in lines; the Markdown of other text stays."""
    assert sanitize_markdown("**a** `x<y`") == "**a** <code>x&lt;y</code>"
    assert sanitize_markdown("so:\n```py\nif a < b: [1]\n```\nend") == (
        "so:\n<pre><code>if a &lt; b: &#91;1]\n</code></pre>\nend"
    )
