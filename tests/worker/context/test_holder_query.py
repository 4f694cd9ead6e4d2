"""What a holder is shown of what it holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch_protocol.core.archives import ArchiveSource
from orch_protocol.core.errors import StoreError
from orch_protocol.core.messages import Image, Message, Text, ToolResult, ToolUse, assistant, text_of, user
from orch_worker.context.holder_query import SHARE, render_messages
from orch_worker.context.holder_query import archived_text as shown_of
from orch_worker.conversation.tokens import CHARS_PER_TOKEN
from orch_worker.session.transcript import Transcript

MESSAGES = (
    user("which port?"),
    Message("assistant", (ToolUse("c", "read_file", {"path": "x"}),)),
    Message("user", (ToolResult("c", (Text("port 4711"), Image("image/png", "QQ==")), is_error=True),)),
    assistant("4711"),
)


def source(folder: Path, *messages: Message) -> ArchiveSource:
    """Return the source of a holder of `messages`."""
    transcript = Transcript.open(folder, agent="a", cwd="/")
    start = transcript.log.end
    for message in messages:
        transcript.message(message, "q")
    transcript.close()
    return ArchiveSource(str(folder), "a", "turn", "t", ((start, transcript.log.end - start),))


def test_every_message_is_text_under_its_number(tmp_path: Path) -> None:
    """Calls and results too: who has no tools can be shown none."""
    shown = shown_of(source(tmp_path, *MESSAGES), 0)
    assert [message.role for message in shown] == ["user", "assistant", "user", "assistant"]
    assert all(len(message.content) == 1 and isinstance(message.content[0], Text) for message in shown)
    texts = [text_of(message) for message in shown]
    assert [text.partition("\n")[0] for text in texts] == [f"[entry {number}]" for number in (1, 2, 3, 4)]
    assert "read_file" in texts[1]
    assert "port 4711" in texts[2]


def test_one_that_says_nothing_keeps_its_number() -> None:
    """Else those behind it would be cited wrongly."""
    assert text_of(render_messages([Message("assistant", ()), user("x")], 0)[0]) == "[entry 1]\n(nothing)"


@pytest.mark.parametrize("limit", [1_000, 2_000, 5_000])
def test_what_does_not_fit_is_cut_the_longest_first(limit: int) -> None:
    """Into a share of the model's window, as far as each keeps a little; the short ones stay whole."""
    texts = ["short", "x" * 9_000, "y" * 3_000]
    shown = [text_of(message).partition("\n")[2] for message in render_messages([user(text) for text in texts], limit)]
    room = int(limit * CHARS_PER_TOKEN * SHARE)
    assert shown[0] == "short"
    assert sum(map(len, shown)) <= room + 200
    assert shown[2] == texts[2] or abs(len(shown[1]) - len(shown[2])) < 20
    assert "read_archive" in shown[1]


def test_what_an_era_is_shown_needs_no_file() -> None:
    """Its records were worked out for it."""
    shown = shown_of(ArchiveSource("/nowhere", "a", "era", "t", shown=(user("one"), assistant("two"))), 0)
    assert [text_of(message) for message in shown] == ["[entry 1]\none", "[entry 2]\ntwo"]


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    """With its path."""
    with pytest.raises(StoreError, match=r"session\.jsonl"):
        shown_of(ArchiveSource(str(tmp_path), "a", "turn", "t", ((0, 10),)), 0)
