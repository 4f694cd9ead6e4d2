"""Conversations for other programs and people: whole, what was archived in its place, and nothing of it believed."""

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
from orch.sessions.formats.conversation import ImportedSession, Kept
from orch.sessions.formats.detect import read_conversation
from orch.sessions.html_page import html_page, markdown_page
from orch.sessions.import_ import plant
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
from orch_protocol.services.requests import AgentRow
from orch_protocol.session.entries import Checkout, Label, MessageEntry, SessionInfo, Telling
from orch_protocol.session.tree import SessionEdit, SetModel, SetThinking
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.session import SessionState, UnknownEntry
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
    """Return an agent that has said `messages`."""
    transcript = Transcript.open(folder, agent="a", cwd="/srv")
    transcript.seed(messages)
    transcript.close()
    return agent(folder)


def again(row: AgentRow, format: str, folder: Path) -> ImportedSession:
    """Return what is read from what was written."""
    path = folder / f"out.{format}"
    export_conversation(row, format, path)
    return read_conversation(path)


def fold(found: ImportedSession) -> SessionState:
    """Return the session that the entries are."""
    kept = [UnknownEntry(each.id, each.parent_id) if isinstance(each, Kept) else each for each in found.entries]
    return SessionState.fold(kept)


def whole(found: ImportedSession) -> tuple[Message, ...]:
    """Return the conversation with everything that was archived, as one list."""
    by_id = {entry.id: entry for entry in found.entries}
    path: list[Telling] = []
    at: str | None = found.entries[-1].id
    while at is not None:
        entry = by_id[at]
        if isinstance(entry, Telling):
            path.append(entry)
        at = entry.parent_id
    parents = [None, *(entry.id for entry in path[:0:-1])]
    return SessionState.fold(
        [msgspec.structs.replace(entry, parent_id=parent) for entry, parent in zip(path[::-1], parents, strict=True)]
    ).messages


class TestPi:
    """Sessions that pi reads."""

    def test_lines_are_as_pi_writes_them(self, tmp_path: Path) -> None:
        """A header of version 3, ids of 8 hex digits, parents, its roles, one result a line, milliseconds."""
        use = Message("assistant", (Thinking("Hm.", "c2ln", "anthropic"), ToolUse("c1", "read", {"path": "x"})))
        row = recorded(
            tmp_path / "a", user("Read"), use, Message("user", (ToolResult("c1", (Text("x"), DOT)), Text("go on")))
        )
        header, *lines = [json.loads(line) for line in export_conversation(row, "pi").splitlines()]
        assert (header["type"], header["version"], header["cwd"]) == ("session", 3, "/srv")
        assert [line["parentId"] for line in lines] == [None, *(line["id"] for line in lines[:-1])]
        assert all(len(line["id"]) == 8 and int(line["id"], 16) >= 0 for line in lines)
        asked, called, result, said = [line["message"] for line in lines]
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
        assert said["content"] == [{"type": "text", "text": "go on"}]
        assert result["timestamp"] > 1_700_000_000_000

    def test_a_session_of_pi_comes_back_as_it_was(self, tmp_path: Path) -> None:
        """Entries, ids, branches, labels, usage, models, compactions, the place where it goes on."""
        found = read_conversation(dump_lines(tmp_path / "s.jsonl", pi_tree()))
        plant(tmp_path / "a", "a", found.cwd, found, tmp_path / "s.jsonl")
        assert again(agent(tmp_path / "a"), "pi", tmp_path).entries == found.entries

    def test_rows_of_an_assistant_become_a_session_of_pi(self, tmp_path: Path) -> None:
        """What was read from elsewhere is the same conversation in pi."""
        found = read_conversation(dump_lines(tmp_path / "s.jsonl", tree_rows()))
        plant(tmp_path / "a", "a", found.cwd, found, tmp_path / "s.jsonl")
        back = again(agent(tmp_path / "a"), "pi", tmp_path)
        assert fold(back).messages == fold(found).messages
        assert [entry.id for entry in back.entries] == [entry.id for entry in found.entries]

    def test_what_was_archived_is_there_whole(self, tmp_path: Path) -> None:
        """No stub and no summary of an archive: everything that was said, in its place."""
        life = Life(tmp_path / "a", PROFILES["tight"])
        for number in range(12):
            life.begin(f"ask {number}")
            life.say(*steps(2, f"t{number}", 60), assistant(f"answer {number}"))
            life.end()
            life.archive()
        said = [text_of(message) for message in life.said.values()]
        assert len(life.transcript.session.messages) < len(said) // 2
        life.close()
        back = again(agent(tmp_path / "a"), "pi", tmp_path)
        assert [text_of(entry.message) for entry in back.entries if isinstance(entry, MessageEntry)] == said
        assert fold(back).messages == whole(read_conversation(tmp_path / "a" / "session.jsonl"))

    def test_where_it_goes_on_is_the_last_line(self, tmp_path: Path) -> None:
        """A conversation that went back to an earlier entry goes on there in pi too."""
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

    def test_what_pi_has_no_place_for_is_told(self, tmp_path: Path) -> None:
        """Blocks of a user that only one provider knows are left out, and counted."""
        row = recorded(tmp_path / "a", Message("user", (Text("see"), Opaque("anthropic", {"type": "document"}))))
        pages, notes = export_pages(row, "pi")
        assert "document" not in "".join(pages)
        assert notes == ["left out, for pi has no place for it: 1 Opaque"]

    def test_what_was_chosen_is_as_pi_has_it(self, tmp_path: Path) -> None:
        """Model and level, under the words that it knows; what it has no word for is told."""
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
        assert notes == ["left out, for pi has no place for it: 1 level of thinking above xhigh"]


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(lambda text: bool(text.strip()))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=3,
)


@st.composite
def conversations(draw: st.DrawFn, *, rich: bool) -> tuple[Message, ...]:
    """Draw a conversation as an API takes it; `rich`: with what only one of them has."""
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
    """Messages for an API."""

    @pytest.mark.parametrize("format", ["pi", "anthropic"])
    @settings(max_examples=40, deadline=None)
    @given(messages=conversations(rich=True))
    def test_what_is_read_back_is_what_was_said(
        self, tmp_path_factory: pytest.TempPathFactory, format: str, messages: tuple[Message, ...]
    ) -> None:
        """Thinking, calls, failures and pictures in results, whatever is in them: nothing is lost on the way."""
        folder = tmp_path_factory.mktemp("s")
        row = recorded(folder / "a", *messages)
        assert fold(again(row, format, folder)).messages == SessionState.fold(read_entries(row)).messages == messages

    @pytest.mark.parametrize("format", ["openai", "responses"])
    @settings(max_examples=40, deadline=None)
    @given(messages=conversations(rich=False))
    def test_what_every_api_has_is_read_back(
        self, tmp_path_factory: pytest.TempPathFactory, format: str, messages: tuple[Message, ...]
    ) -> None:
        """Text, pictures of users, calls and results: nothing is lost on the way."""
        folder = tmp_path_factory.mktemp("s")
        row = recorded(folder / "a", *messages)
        assert fold(again(row, format, folder)).messages == messages

    def test_a_list_comes_back_as_it_was(self, tmp_path: Path) -> None:
        """A list of messages, taken over and written out, is the same list."""
        messages = chat(2)
        path = tmp_path / "m.json"
        path.write_text(json.dumps(messages))
        plant(tmp_path / "a", "a", "/", read_conversation(path), path)
        got = json.loads(export_conversation(agent(tmp_path / "a"), "openai"))
        for message in messages:
            message.pop("name", None)
            for use in message.get("tool_calls", ()):
                use["function"]["arguments"] = json.dumps(
                    json.loads(use["function"]["arguments"]), separators=(",", ":")
                )
        assert got == messages

    def test_what_a_format_has_no_place_for_is_told(self, tmp_path: Path) -> None:
        """Thinking, failures and pictures in results are left out of chat messages, and counted."""
        use = Message("assistant", (Thinking("Hm.", "c2ln", "anthropic"), ToolUse("c1", "read", {})))
        row = recorded(
            tmp_path / "a", user("q"), use, Message("user", (ToolResult("c1", (Text("x"), DOT), is_error=True),))
        )
        pages, notes = export_pages(row, "openai")
        assert "Hm." not in "".join(pages)
        (note,) = notes
        assert note.endswith("place for it: 1 thinking, 1 marks of results as errors, 1 images in results")

    def test_our_own_file_as_it_is(self, tmp_path: Path) -> None:
        """Line for line; what was being written is not in it."""
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
    """Remembers what a page consists of."""

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
    """Markdown and HTML."""

    def talk(self, folder: Path) -> AgentRow:
        """Return an agent in whose conversation everything is nasty."""
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

    def test_html_is_only_what_was_meant(self, tmp_path: Path) -> None:
        """Text is text whatever it says; nothing is fetched, nothing runs, no control character is in it."""
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

    def test_markdown_shows_everything(self, tmp_path: Path) -> None:
        """Calls and results stand in fences that nothing in them closes; no control character is in it."""
        text = export_conversation(self.talk(tmp_path / "a"), "md")
        assert not any(ord(each) < 32 and each not in "\n\t" for each in text)
        assert "````thinking\n</pre>" in text
        assert "\n\n## 1. user, 20" in text
        assert "Error:\n\n````text\n" in text

    def test_an_empty_page(self) -> None:
        """A page without messages is one."""
        assert "".join(html_page("t", "a", [])).endswith("</html>\n")
        assert "".join(markdown_page("t", "a", [])) == "# t\n\na\n\n"


class TestRefusals:
    """What cannot be written out."""

    def test_an_agent_that_was_never_asked(self, tmp_path: Path) -> None:
        """There is no file yet."""
        with pytest.raises(ConfigError, match="nothing to export"):
            export_conversation(agent(tmp_path / "none"), "pi")

    def test_an_unknown_format(self, tmp_path: Path) -> None:
        """The error names those there are."""
        with pytest.raises(ConfigError, match=", ".join(CHOICES)):
            export_conversation(agent(tmp_path), "pdf")

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        """What cannot be written is named."""
        row = recorded(tmp_path / "a", user("q"))
        with pytest.raises(StoreError, match="no/such"):
            export_conversation(row, "md", tmp_path / "no" / "such" / "file")

    def test_a_file_stays_as_it_was(self, tmp_path: Path) -> None:
        """A conversation that cannot be read leaves the file that was there."""
        row = recorded(tmp_path / "a", user("q"))
        (tmp_path / "a" / "session.jsonl").write_text("not ours\n")
        out = tmp_path / "out"
        out.write_text("before")
        with pytest.raises(StoreError):
            export_conversation(row, "md", out)
        assert out.read_text() == "before"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "out"]
