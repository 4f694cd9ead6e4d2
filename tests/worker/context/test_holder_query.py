"""The messages that a holder receives from its archive."""

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
    """Return the source of an archive of `messages`."""
    transcript = Transcript.open(folder, agent="a", cwd="/")
    start = transcript.log.end
    for message in messages:
        transcript.message(message, "q")
    transcript.close()
    return ArchiveSource(str(folder), "a", "turn", "t", ((start, transcript.log.end - start),))


def test_holder_receives_messages_as_numbered_text(tmp_path: Path) -> None:
    """Calls and results are text, because a holder has no tools. Images follow the text of their message."""
    shown = shown_of(source(tmp_path, *MESSAGES), 0)
    assert [message.role for message in shown] == ["user", "assistant", "user", "assistant"]
    assert [[type(block) for block in message.content] for message in shown] == [[Text], [Text], [Text, Image], [Text]]
    texts = [text_of(message) for message in shown]
    assert [text.partition("\n")[0] for text in texts] == [f"[entry {number}]" for number in (1, 2, 3, 4)]
    assert "read_file" in texts[1]
    assert "port 4711" in texts[2]


def test_empty_message_keeps_its_number() -> None:
    """The numbers of later messages stay correct."""
    assert text_of(render_messages([Message("assistant", ()), user("x")], 0)[0]) == "[entry 1]\n(nothing)"


@pytest.mark.parametrize("limit", [1_000, 2_000, 5_000])
def test_longest_messages_are_cut_to_fit_the_window(limit: int) -> None:
    """Each long message keeps a part, and short messages stay complete."""
    texts = ["short", "x" * 9_000, "y" * 3_000]
    shown = [text_of(message).partition("\n")[2] for message in render_messages([user(text) for text in texts], limit)]
    room = int(limit * CHARS_PER_TOKEN * SHARE)
    assert shown[0] == "short"
    assert sum(map(len, shown)) <= room + 200
    assert shown[2] == texts[2] or abs(len(shown[1]) - len(shown[2])) < 20
    assert "read_archive" in shown[1]


def test_images_that_fill_the_window_are_left_out() -> None:
    """Images may take half of the share of archived messages. The texts of omitted images stay."""
    messages = [user(["look", Image("image/png", "", "a.png")])] * 2
    for limit, images in ((11_000, 1), (10_000, 0)):
        shown = render_messages(messages, limit)
        assert [len(message.content) - 1 for message in shown] == [images, images]
        assert text_of(shown[1]).startswith("[entry 2]\nlook\n[image: a.png]")


def test_era_holder_reads_records_without_a_file() -> None:
    """The source of an era contains the records of its members."""
    shown = shown_of(ArchiveSource("/nowhere", "a", "era", "t", shown=(user("one"), assistant("two"))), 0)
    assert [text_of(message) for message in shown] == ["[entry 1]\none", "[entry 2]\ntwo"]


def test_missing_transcript_is_named(tmp_path: Path) -> None:
    """The error contains the path."""
    with pytest.raises(StoreError, match=r"session\.jsonl"):
        shown_of(ArchiveSource(str(tmp_path), "a", "turn", "t", ((0, 10),)), 0)
