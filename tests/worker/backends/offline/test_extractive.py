"""The extractive backend, which needs no model, over real files and conversations."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_doubles import Talk, assert_valid
from orch_protocol.core.errors import BackendError
from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, assistant, text_of, tool_uses, user
from orch_protocol.services.archives.recall import SearchHit
from orch_worker.backends.offline.extractive import HEADER, ExtractiveBackend
from orch_worker.conversation.recalled import with_hits
from orch_worker.tools.dispatch.presets import load

LOOK = ("list_files", "grep_files", "read_file")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small project."""
    files = {
        "README.md": "# Ledger\n\nKeeps accounts.\n\nIt promises that no entry is ever lost.\n",
        "src/ledger.py": "LIMIT = 7\n\n\ndef append_entry(entry: str) -> None:\n    store.write(entry)\n",
        "src/store.py": "def write(entry: str) -> None:\n    file.write(entry)\n    file.flush()\n",
        "docs/説明.md": "これは台帳です。\n設定ファイルは config.toml にあります。\n",
        **{f"data/{number}.txt": f"plain entry {number}\n" for number in range(20)},
    }
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return tmp_path


def talk(cwd: Path, *tools: str) -> Talk:
    """Return a conversation with the backend, to which `tools` are granted."""
    return Talk(ExtractiveBackend(), *load(tools), cwd=cwd)


class TestLooking:
    """The tool calls of the backend."""

    async def test_backend_answers_through_calls_of_granted_tools(self, project: Path) -> None:
        """The backend lists, searches and reads files through real tool calls, and then answers."""
        look = talk(project, *LOOK)
        reply = await look.ask("Where is append_entry defined?")
        used = [call.name for message in look.recorded for call in tool_uses(message)]
        assert list(dict.fromkeys(used)) == ["list_files", "grep_files", "read_file"]
        assert (reply.stop_reason, reply.steps, reply.tool_calls) == ("end_turn", 3, len(used))
        assert_valid(look.recorded)

    @pytest.mark.parametrize("granted", [(), ("list_files",), ("grep_files",), ("read_file",), LOOK[:2], LOOK[1:]])
    async def test_ungranted_tools_are_never_called(self, project: Path, granted: tuple[str, ...]) -> None:
        """The backend answers with any set of granted tools."""
        look = talk(project, *granted)
        reply = await look.ask("Where is append_entry defined, in src/ledger.py?")
        assert {call.name for message in look.recorded for call in tool_uses(message)} <= set(granted)
        assert not any(result.is_error for result in look.results())
        assert reply.text.startswith(HEADER)
        assert ("src/ledger.py:4" in reply.text) is bool({"grep_files", "read_file"} & set(granted))

    async def test_file_named_in_the_question_is_read(self, project: Path) -> None:
        """A second file in the question that does not exist causes no error."""
        look = talk(project, "read_file")
        reply = await look.ask("What does src/store.py flush, and nowhere.py?")
        assert "src/store.py:1" in reply.text
        assert reply.stop_reason == "end_turn"

    async def test_same_question_same_answer(self, project: Path) -> None:
        """Three agents give the same answer to the same question."""
        texts = {(await talk(project, *LOOK).ask("How is an entry written?")).text for _ in range(3)}
        assert len(texts) == 1

    async def test_own_earlier_answers_are_not_quoted(self, project: Path) -> None:
        """The earlier question, its tool calls and its answer are excluded from later searches."""
        look = talk(project, *LOOK)
        first = await look.ask("What is promised?")
        again = await look.ask("What is promised?")
        assert again.text == first.text
        assert "entry 1" not in again.text


class TestAnswering:
    """Answers, which consist of quotations with their positions."""

    async def test_quotes_with_file_and_line(self, project: Path) -> None:
        """The matching passage is among the first two quotations, with its file and line."""
        reply = await talk(project, *LOOK).ask("What does README promise?")
        first = reply.text.split("\n\n")[1:3]
        assert any(quote.startswith("README.md:5\n> It promises that no entry is ever lost.") for quote in first)

    async def test_definition_is_quoted_before_uses(self, project: Path) -> None:
        """The definition of a name is quoted before its uses."""
        reply = await talk(project, *LOOK).ask("LIMIT")
        assert reply.text.split("\n\n")[1].startswith("src/ledger.py:1\n> LIMIT = 7")

    async def test_definition_is_quoted_before_tests(self, project: Path) -> None:
        """A definition is quoted before a test that contains more of the terms."""
        (project / "tests").mkdir()
        (project / "tests/test_ledger.py").write_text("def test_append_entry() -> None:\n    append_entry('append')\n")
        reply = await talk(project, *LOOK).ask("Where is append_entry defined?")
        assert reply.text.split("\n\n")[1].startswith("src/ledger.py:4\n> def append_entry(")

    async def test_definition_is_found_behind_many_uses(self, tmp_path: Path) -> None:
        """If a search is cut because of many uses, a second search looks for the definition."""
        for number in range(80):
            (tmp_path / f"a{number}.py").write_text("open_valve()\n")
        (tmp_path / "z.py").write_text("def open_valve() -> None:\n    ...\n")
        reply = await talk(tmp_path, *LOOK).ask("Where is open_valve defined?")
        assert reply.text.split("\n\n")[1].startswith("z.py:1\n> def open_valve(")

    async def test_section_below_a_matching_heading_is_whole(self, tmp_path: Path) -> None:
        """The quotation is the whole section, with the number of the first line below the heading."""
        (tmp_path / "guide.md").write_text(
            "# Guide\n\nText.\n\n## Oil change\n\nFirst.\n\n- Second.\n\n## Other\n\nNo.\n"
        )
        reply = await talk(tmp_path, *LOOK).ask("How does an oil change work?")
        assert reply.text.split("\n", 2)[2] == "guide.md:7\n> First.\n> \n> - Second."

    @pytest.mark.parametrize("name", ["src/store.py", "store.py", "STORE.py"])
    async def test_named_file_answers_alone(self, project: Path, name: str) -> None:
        """A question that names a file, with or without its folder, is answered from that file only."""
        reply = await talk(project, *LOOK).ask(f"How is an entry written in {name}?")
        quoted = [block.split("\n")[0] for block in reply.text.split("\n\n")[1:] if "\n> " in block]
        assert quoted
        assert all(where.startswith("src/store.py:") for where in quoted)

    async def test_identifiers_are_found_by_part(self, project: Path) -> None:
        """A compound name in the question is found by its parts."""
        reply = await talk(project, *LOOK).ask("What does store.write do?")
        assert "src/store.py:1" in reply.text

    async def test_nothing_found(self, project: Path) -> None:
        """The answer names the terms without matches and the files that were searched."""
        reply = await talk(project, *LOOK).ask("Where are zebras and yaks?")
        searched = "Searched: 24 files (data/, docs/, src/, README.md)."
        assert reply.text == f"{HEADER}\n\nNothing found for zebras, yaks.\n{searched}"

    async def test_nothing_found_without_tools(self, tmp_path: Path) -> None:
        """Without tools, the answer gives the number of earlier messages that were searched."""
        look = talk(tmp_path)
        assert "Searched: nothing, since no tool to search with is granted." in (await look.ask("zebras?")).text
        look.recorded = [user("Is it done?"), assistant("All is done.")]
        look.backend = ExtractiveBackend()
        look.backend.load(look.recorded)
        assert "Searched: 2 earlier messages." in (await look.ask("zebras?")).text

    async def test_unmatched_terms_are_named_in_the_answer(self, project: Path) -> None:
        """An answer with quotations also names the terms without matches."""
        reply = await talk(project, *LOOK).ask("What do ledger and zebras promise?")
        assert "README.md:5" in reply.text
        assert reply.text.endswith("Nothing found for zebras.")

    async def test_answer_states_that_no_model_wrote_it(self, project: Path) -> None:
        """The first line of an answer is `HEADER`."""
        reply = await talk(project, *LOOK).ask("What is promised?")
        assert reply.text.split("\n")[0] == HEADER

    async def test_answer_has_a_maximum_length(self, tmp_path: Path) -> None:
        """An answer has at most 6,000 characters."""
        for number in range(30):
            lines = (f"needle {number}.{line} {'hay ' * 100}" for line in range(50))
            (tmp_path / f"{number}.txt").write_text("\n\n".join(lines))
        reply = await talk(tmp_path, *LOOK).ask("needle hay")
        assert 1_000 < len(reply.text) <= 6_000

    async def test_chinese_japanese_and_korean_text_is_matched_by_character_pairs(self, project: Path) -> None:
        """A Japanese question without spaces finds the Japanese file."""
        reply = await talk(project, *LOOK).ask("設定ファイルはどこですか")
        assert "docs/説明.md:" in reply.text
        assert "config.toml" in reply.text

    @pytest.mark.parametrize("question", ["What is here?", "Explain this project.", "?", "什么"])
    async def test_question_without_terms_gets_an_overview(self, project: Path, question: str) -> None:
        """The overview shows the beginning of the README and a list of files."""
        reply = await talk(project, *LOOK).ask(question)
        assert "README.md:1\n> # Ledger" in reply.text
        assert "24 files in: data/, docs/, src/, README.md" in reply.text

    async def test_question_without_terms_uses_the_terms_of_the_task(self, project: Path) -> None:
        """A question without terms is answered as a question about the task, also in later turns."""
        look = talk(project, *LOOK)
        first = await look.ask("Task: Find out what is promised\n\nQuery: Please report.")
        later = await look.ask("And?")
        assert "README.md:5" in first.text
        assert "README.md:5" in later.text

    async def test_framework_notices_are_not_search_terms(self, project: Path) -> None:
        """Text that the framework puts before a question is not searched for."""
        reply = await talk(project, *LOOK).ask("[The flush was interrupted by zebras.]\n\nWhat is promised?")
        assert "zebras" not in reply.text
        assert "README.md:5" in reply.text

    async def test_question_without_terms_in_an_empty_conversation_is_answered(self, tmp_path: Path) -> None:
        """A question without terms in an empty conversation gets an answer."""
        reply = await talk(tmp_path).ask("?")
        assert reply.text.startswith(f"{HEADER}\n\nNothing found for '?'")


class TestConversation:
    """Quotations from earlier messages."""

    async def test_entries_are_quoted_by_number(self, tmp_path: Path) -> None:
        """Without tools, the backend quotes texts and tool results of earlier messages with their entry numbers."""
        look = talk(tmp_path)
        look.recorded = [
            user("Which port does the server use?"),
            Message("assistant", (ToolUse("c1", "read_file", {"path": "conf"}),)),
            Message("user", (ToolResult("c1", (Text("host = h\nport = 8042\n"),)),)),
            assistant("The server listens on port 8042."),
        ]
        look.backend.load(look.recorded)
        reply = await look.ask("Which port?")
        assert "entry 3\n> host = h\n> port = 8042" in reply.text
        assert "entry 4\n> The server listens on port 8042." in reply.text

    async def test_large_transcript(self, tmp_path: Path) -> None:
        """The matching entry is found among 2,000 entries."""
        look = talk(tmp_path)
        look.recorded = [
            message for n in range(1000) for message in (user(f"step {n}"), assistant(f"did step {n} of the plan"))
        ]
        look.recorded[777] = assistant("the password of the vault is swordfish")
        look.backend.load(look.recorded)
        assert "entry 778\n> the password of the vault is swordfish" in (await look.ask("vault password")).text

    async def test_without_a_question(self) -> None:
        """A conversation without a question raises BackendError."""
        with pytest.raises(BackendError, match="cannot answer: the conversation has no text"):
            await ExtractiveBackend().assistant_turn()

    async def test_answer_is_streamed(self) -> None:
        """The streamed text is the text of the response."""
        backend, heard = ExtractiveBackend(), list[str]()
        backend.append_user([Text("zebra")])
        turn = await backend.assistant_turn(heard.append)
        assert heard == [text_of(turn.message)]
        assert turn.usage.cost_usd == 0.0
        assert turn.usage.output_tokens > 0


async def test_passages_attached_to_a_question_are_quoted(tmp_path: Path) -> None:
    """Search hits in a question are quoted and are not used as search terms."""
    hits = [
        SearchHit("a0123456789b", 3, "valve V0003 pressure 1.31 bar", False, "How is valve V0003?"),
        SearchHit("b0123456789b", 3, "valve V0004 pressure 9.99 bar", False, "How is valve V0004?"),
    ]
    reply = await talk(tmp_path).ask(with_hits("What was the pressure of valve V0003?", hits))
    assert "a0123456789b entry 3\n> valve V0003 pressure 1.31 bar" in reply.text
    assert "Nothing found" not in reply.text
