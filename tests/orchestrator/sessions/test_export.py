"""Exporting conversations: complete content, archived turns in place of their records, and escaped text."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_history import PROFILES, Life, steps
from foreign_sessions import PICTURE, pi_tree, tree_rows
from orch.sessions.export import CHOICES, export_conversation, export_pages
from orch.sessions.formats.conversation import ForeignEntry, ImportedSession
from orch.sessions.formats.detect import read_conversation
from orch.sessions.html_page import html_page, markdown_page
from orch.sessions.import_ import write_session
from orch_protocol.core.errors import ConfigError, StoreError
from orch_protocol.core.messages import (
    Image,
    Message,
    Opaque,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Usage,
    assistant,
    text_of,
    user,
)
from orch_protocol.services.agents.status import AgentRow
from orch_protocol.session.entries import AnyMessageEntry, Checkout, Label, MessageEntry, SessionInfo
from orch_protocol.session.tree import SessionEdit, SetModel, SetThinking
from orch_worker.backends.formats.normalize_messages import with_model
from orch_worker.session.entry_codec import UnknownEntry
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.session import SessionState
from orch_worker.session.transcript import Transcript
from recordings import chat, dump_lines

DOT = Image("image/png", PICTURE)


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AppendLog, "_fdatasync", staticmethod(lambda _: None))
    monkeypatch.setattr(AppendLog, "_sync_folder", staticmethod(lambda _: None))


def agent(folder: Path) -> AgentRow:
    """Return the row of an agent whose session is in `folder`."""
    return AgentRow(
        *("a", 1, "reader", None, 1, "agent", "cold", "read <b>two</b> files", "anthropic:some-model", "", None),
        *("2026-01-01T00:00:00.000Z", "", None, 0, 0, 0, Usage()),
        cwd="/srv",
        folder=str(folder),
    )


def recorded(folder: Path, *messages: Message) -> AgentRow:
    """Return an agent whose session has `messages`."""
    transcript = Transcript.open(folder, agent="a", cwd="/srv")
    transcript.seed(messages)
    transcript.close()
    return agent(folder)


def again(row: AgentRow, format: str, folder: Path) -> ImportedSession:
    """Export the session in `format`, and return the conversation that is read from the result."""
    path = folder / f"out.{format}"
    export_conversation(row, format, path)
    return read_conversation(path)


def fold(found: ImportedSession) -> SessionState:
    """Return the session state of the entries."""
    kept = [UnknownEntry(each.id, each.parent_id) if isinstance(each, ForeignEntry) else each for each in found.entries]
    return SessionState.fold(kept)


def whole(found: ImportedSession) -> tuple[Message, ...]:
    """Return the messages of the last branch, with archived messages in place of their records."""
    by_id = {entry.id: entry for entry in found.entries}
    path: list[AnyMessageEntry] = []
    at: str | None = found.entries[-1].id
    while at is not None:
        entry = by_id[at]
        if isinstance(entry, AnyMessageEntry):
            path.append(entry)
        at = entry.parent_id
    parents = [None, *(entry.id for entry in path[:0:-1])]
    return SessionState.fold(
        [msgspec.structs.replace(entry, parent_id=parent) for entry, parent in zip(path[::-1], parents, strict=True)]
    ).messages


class TestPi:
    """Export as a session of pi."""

    def test_pi_export_has_the_pi_format(self, tmp_path: Path) -> None:
        """Version, ids, parents, roles and timestamps have pi's format, and each result is a line."""
        use = Message("assistant", (Thinking("Hm.", "c2ln", "anthropic"), ToolUse("c1", "read", {"path": "x"})))
        row = recorded(
            tmp_path / "a", user("Read"), use, Message("user", (ToolResult("c1", (Text("x"), DOT)), Text("go on")))
        )
        header, *lines = [json.loads(line) for line in export_conversation(row, "pi").splitlines()]
        assert (header["type"], header["version"], header["cwd"]) == ("session", 3, "/srv")
        assert [line["parentId"] for line in lines] == [None, *(line["id"] for line in lines[:-1])]
        assert all(len(line["id"]) == 8 and int(line["id"], 16) >= 0 for line in lines)
        asked, called, result, listed = [line["message"] for line in lines]
        assert asked == {"role": "user", "content": [{"type": "text", "text": "Read"}], "timestamp": asked["timestamp"]}
        assert called["content"] == [
            {"type": "thinking", "thinking": "Hm.", "thinkingSignature": "c2ln"},
            {"type": "toolCall", "id": "c1", "name": "read", "arguments": {"path": "x"}},
        ]
        assert [called[key] for key in ("provider", "model", "stopReason")] == ["anthropic", "some-model", "toolUse"]
        assert called["usage"].keys() == {"input", "output", "cacheRead", "cacheWrite", "totalTokens", "cost"}
        assert [result[key] for key in ("role", "toolCallId", "toolName", "isError")] == [
            "toolResult",
            "c1",
            "read",
            False,
        ]
        assert result["content"][1] == {"type": "image", "data": PICTURE, "mimeType": "image/png"}
        assert listed["content"] == [{"type": "text", "text": "go on"}]
        assert result["timestamp"] > 1_700_000_000_000

    def test_pi_session_round_trips(self, tmp_path: Path) -> None:
        """An imported session of pi has the same entries after the export."""
        found = read_conversation(dump_lines(tmp_path / "s.jsonl", pi_tree()))
        write_session(tmp_path / "a", "a", found.cwd, found, tmp_path / "s.jsonl")
        assert again(agent(tmp_path / "a"), "pi", tmp_path).entries == found.entries

    def test_assistant_rows_can_be_exported_to_pi(self, tmp_path: Path) -> None:
        """The messages and ids of an imported transcript are unchanged."""
        found = read_conversation(dump_lines(tmp_path / "s.jsonl", tree_rows()))
        write_session(tmp_path / "a", "a", found.cwd, found, tmp_path / "s.jsonl")
        back = again(agent(tmp_path / "a"), "pi", tmp_path)
        assert fold(back).messages == fold(found).messages
        assert [entry.id for entry in back.entries] == [entry.id for entry in found.entries]

    def test_pi_export_contains_archived_turns(self, tmp_path: Path) -> None:
        """The export has the archived messages instead of their records."""
        life = Life(tmp_path / "a", PROFILES["tight"])
        for number in range(12):
            life.begin(f"ask {number}")
            life.say(*steps(2, f"t{number}", 60), assistant(f"answer {number}"))
            life.end()
            life.archive()
        text = [text_of(message) for message in life.said.values()]
        assert len(life.transcript.session.messages) < len(text) // 2
        life.close()
        back = again(agent(tmp_path / "a"), "pi", tmp_path)
        assert [text_of(entry.message) for entry in back.entries if isinstance(entry, MessageEntry)] == text
        assert fold(back).messages == whole(read_conversation(tmp_path / "a" / "session.jsonl"))

    def test_pi_export_continues_at_the_last_line(self, tmp_path: Path) -> None:
        """After a checkout, the last line of the export follows the entry that was checked out."""
        transcript = Transcript.open(tmp_path / "a", agent="a", cwd="/")
        for text in ("one", "two", "three"):
            transcript.message(user(text) if text != "two" else assistant(text))
        first, second, _third = [entry.id for entry in transcript.session.entries]
        transcript.append(Checkout(id="00000001", parent_id=second, timestamp="t"))
        shown = transcript.session.messages
        transcript.close()
        back = again(agent(tmp_path / "a"), "pi", tmp_path)
        assert fold(back).messages == shown == (user("one"), assistant("two"))
        assert isinstance(back.entries[-1], SessionInfo)
        assert (back.entries[-1].parent_id, back.entries[0].id) == (second, first)

    def test_blocks_unknown_to_pi_are_counted(self, tmp_path: Path) -> None:
        """A block of a user message that only one provider supports is left out, and a note counts it."""
        row = recorded(tmp_path / "a", Message("user", (Text("see"), Opaque("anthropic", {"type": "document"}))))
        pages, notes = export_pages(row, "pi")
        assert "document" not in "".join(pages)
        assert notes == ["left out, because pi cannot store it: 1 Opaque"]

    def test_model_and_level_are_exported_in_pis_terms(self, tmp_path: Path) -> None:
        """A thinking level that pi does not have becomes the highest one, with a note."""
        transcript = Transcript.open(tmp_path / "a", agent="abc", cwd="/srv")
        transcript.message(user("one"), "q1")
        for number, change in enumerate(
            (SetModel("anthropic:claude-sonnet-5-5"), SetThinking("high"), SetThinking("max"))
        ):
            transcript.change(SessionEdit(f"{number:08}", change))
        transcript.close()
        pages, notes = export_pages(agent(tmp_path / "a"), "pi")
        rows = [json.loads(row) for row in "".join(pages).splitlines()][2:]
        keys = ("type", "provider", "modelId", "thinkingLevel")
        assert [tuple(row[key] for key in keys if key in row) for row in rows] == [
            ("model_change", "anthropic", "claude-sonnet-5-5"),
            ("thinking_level_change", "high"),
            ("thinking_level_change", "xhigh"),
        ]
        assert notes == ["left out, because pi cannot store it: 1 thinking level above xhigh"]


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(lambda text: bool(text.strip()))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=3,
)


@st.composite
def conversations(draw: st.DrawFn, *, rich: bool) -> tuple[Message, ...]:
    """Draw a conversation that is valid for an API. `rich` adds content that only some formats can contain."""
    made: list[Message] = [Message("system", (Text(draw(TEXTS)),))] if draw(st.booleans()) else []
    for turn in range(draw(st.integers(1, 3))):
        asked = [Text(draw(TEXTS)), *([DOT] if draw(st.booleans()) else [])]
        made.append(Message("user", tuple(asked)))
        for step in range(draw(st.integers(0, 2))):
            uses = [ToolUse(f"c{turn}{step}{n}", "read", {"v": draw(VALUES)}) for n in range(draw(st.integers(1, 2)))]
            before = (Thinking(draw(TEXTS), "sig", "anthropic"),) if rich and draw(st.booleans()) else ()
            made.append(Message("assistant", (*before, *uses)))
            results = [
                ToolResult(use.id, (Text(draw(TEXTS)), *([DOT] if rich else [])), rich and draw(st.booleans()))
                for use in uses
            ]
            made.append(Message("user", tuple(results)))
        made.append(Message("assistant", (Text(draw(TEXTS)),)))
    return tuple(made)


class TestLists:
    """Export as a list of messages for an API."""

    @pytest.mark.parametrize("format", ["pi", "anthropic"])
    @settings(max_examples=40)
    @given(messages=conversations(rich=True))
    def test_thinking_calls_and_images_round_trip(
        self, tmp_path_factory: pytest.TempPathFactory, format: str, messages: tuple[Message, ...]
    ) -> None:
        """Failed calls and images in results are unchanged, too. In a file of pi, each response has a model."""
        folder = tmp_path_factory.mktemp("s")
        row = recorded(folder / "a", *messages)
        assert SessionState.fold(read_entries(row)).messages == messages
        model = "some-model" if format == "pi" else ""
        read = tuple(Message(message.role, with_model(message.content, model)) for message in messages)
        assert fold(again(row, format, folder)).messages == read

    @pytest.mark.parametrize("format", ["openai", "responses"])
    @settings(max_examples=40)
    @given(messages=conversations(rich=False))
    def test_common_content_round_trips_in_every_format(
        self, tmp_path_factory: pytest.TempPathFactory, format: str, messages: tuple[Message, ...]
    ) -> None:
        """Text, images of users, calls and results are unchanged."""
        folder = tmp_path_factory.mktemp("s")
        row = recorded(folder / "a", *messages)
        assert fold(again(row, format, folder)).messages == messages

    def test_message_list_round_trips(self, tmp_path: Path) -> None:
        """An imported list of chat messages equals the exported list."""
        messages = chat(2)
        path = tmp_path / "m.json"
        path.write_text(json.dumps(messages))
        write_session(tmp_path / "a", "a", "/", read_conversation(path), path)
        got = json.loads(export_conversation(agent(tmp_path / "a"), "openai"))
        for message in messages:
            message.pop("name", None)
            for use in message.get("tool_calls", ()):
                use["function"]["arguments"] = json.dumps(
                    json.loads(use["function"]["arguments"]), separators=(",", ":")
                )
        assert got == messages

    def test_content_without_a_place_in_the_format_is_counted(self, tmp_path: Path) -> None:
        """Chat messages have no place for thinking, marks of errors and images in results. A note counts them."""
        use = Message("assistant", (Thinking("Hm.", "c2ln", "anthropic"), ToolUse("c1", "read", {})))
        row = recorded(
            tmp_path / "a", user("q"), use, Message("user", (ToolResult("c1", (Text("x"), DOT), is_error=True),))
        )
        pages, notes = export_pages(row, "openai")
        assert "Hm." not in "".join(pages)
        (note,) = notes
        assert note.endswith("cannot contain it: 1 thinking, 1 error flags of results, 1 images in results")

    def test_own_format_is_exported_verbatim(self, tmp_path: Path) -> None:
        """An incomplete last line is left out, with a note."""
        row = recorded(tmp_path / "a", user("q"), assistant("a"))
        path = tmp_path / "a" / "session.jsonl"
        sound = path.read_text()
        path.write_text(sound + '{"type":"mess')
        pages, notes = export_pages(row, "jsonl")
        assert "".join(pages) == sound
        assert "never finished" in notes[0]


def read_entries(row: AgentRow) -> list[Any]:
    """Return the entries of the agent's file."""
    return list(read_conversation(Path(row.folder) / "session.jsonl").entries)


NASTY = "</pre><script src=http://x/>&\x1b[31m\x07\u202e<img onerror=alert(1)> ```\n# not a heading\r\nend"


class Tags(HTMLParser):
    """A parser that collects the tags, links and text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href") or name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.text += data


class TestPages:
    """Export as Markdown and HTML."""

    def talk(self, folder: Path) -> AgentRow:
        """Return an agent with markup and control characters in each part of its conversation."""
        row = recorded(
            folder,
            user(NASTY),
            Message("assistant", (Thinking(NASTY), Text(NASTY), ToolUse("c", NASTY, {NASTY: NASTY}))),
            Message("user", (ToolResult("c", (Text(NASTY), Image("image/svg+xml", "<svg>"), DOT), is_error=True),)),
            Message("assistant", (Opaque("x", {"type": NASTY}),)),
        )
        transcript = Transcript.open(folder, agent="a", cwd="/")
        first, leaf = transcript.session.entries[0].id, transcript.session.leaf
        transcript.append(Label(id="00000001", parent_id=leaf, timestamp="t", target_id=first, label=NASTY))
        transcript.close()
        return row

    def test_html_export_is_escaped_and_self_contained(self, tmp_path: Path) -> None:
        """The page loads and runs nothing, and has no control characters. Its images are part of the page."""
        text = export_conversation(self.talk(tmp_path / "a"), "html")
        tags = Tags()
        tags.feed(text)
        assert tags.seen <= {
            *("html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "section", "pre", "details"),
            *("summary", "img"),
        }
        assert tags.links == [f"data:image/png;base64,{PICTURE}"]
        assert not any(ord(each) < 32 and each not in "\n\t" for each in text)
        assert "\u202e" not in text
        assert tags.text.count("</pre><script src=http://x/>&\\x1b[31m\\x07\\u202e") >= 6
        assert "default-src 'none'" in text
        assert "read <b>two</b> files" in tags.text

    def test_markdown_export_has_safe_fences(self, tmp_path: Path) -> None:
        """Fences are longer than any fence in a call or result, and control characters are escaped."""
        text = export_conversation(self.talk(tmp_path / "a"), "md")
        assert not any(ord(each) < 32 and each not in "\n\t" for each in text)
        assert "````thinking\n</pre>" in text
        assert "\n\n## 1. user, 20" in text
        assert "Error:\n\n````text\n" in text

    def test_empty_page_is_valid(self) -> None:
        """A page without messages has a title and an end."""
        assert "".join(html_page("t", "a", [])).endswith("</html>\n")
        assert "".join(markdown_page("t", "a", [])) == "# t\n\na\n\n"


class TestRefusals:
    """Exports that fail."""

    def test_export_of_an_agent_never_asked_is_refused(self, tmp_path: Path) -> None:
        """An agent without queries has no session file."""
        with pytest.raises(ConfigError, match="nothing to export"):
            export_conversation(agent(tmp_path / "none"), "pi")

    def test_unknown_export_format_lists_the_known_ones(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=", ".join(CHOICES)):
            export_conversation(agent(tmp_path), "pdf")

    def test_missing_target_folder_is_named(self, tmp_path: Path) -> None:
        row = recorded(tmp_path / "a", user("q"))
        with pytest.raises(StoreError, match="no/such"):
            export_conversation(row, "md", tmp_path / "no" / "such" / "file")

    def test_failed_export_keeps_the_existing_file(self, tmp_path: Path) -> None:
        """A session that cannot be read raises StoreError, and no file is created or changed."""
        row = recorded(tmp_path / "a", user("q"))
        (tmp_path / "a" / "session.jsonl").write_text("not ours\n")
        out = tmp_path / "out"
        out.write_text("before")
        with pytest.raises(StoreError):
            export_conversation(row, "md", out)
        assert out.read_text() == "before"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "out"]
