"""Text snapshots of a chat at 80 and 120 columns.

`ORCH_WRITE_SNAPSHOTS=1 pytest tests/orchestrator/chat/test_snapshots.py` writes the files again.
"""

from __future__ import annotations

import os
from io import StringIO
from pathlib import Path

import pytest
from prompt_toolkit.data_structures import Size
from prompt_toolkit.formatted_text import to_plain_text
from prompt_toolkit.input import DummyInput
from prompt_toolkit.output.plain_text import PlainTextOutput

from orch.chat.screen import Screen
from orch.chat.text.markdown import Markdown
from orch.commands.builtin_commands import COMMANDS
from orch.commands.help import _overview
from orchestrator.chat.chat_double import AGENT, Talk, event, question
from orchestrator.daemon_double import REPLY

SNAPSHOTS = Path(__file__).parent / "snapshots"
LONG = "The table of valves is in the file valves.txt, and each line of this file is the opening pressure of a valve."
PATH = "/srv/pumps/installations/north/documents/operations/valves.txt"
OLD = "valve 2 opens at 3 bar, and the operator of the pump station is informed before that by a message"


class Paper(PlainTextOutput):
    """A terminal with `columns` columns that stores its output."""

    def __init__(self, columns: int) -> None:
        self.paper = StringIO()
        super().__init__(self.paper)
        self.columns = columns

    def get_size(self) -> Size:
        return Size(rows=40, columns=self.columns)


async def conversation(columns: int) -> str:
    """Return the screen of a turn with calls, their outcomes, a question and an answer."""
    talk = await Talk().begin()
    talk.output.__init__(Markdown())  # type: ignore[misc]
    paper = Paper(columns)
    screen = Screen(talk.chat, input=DummyInput(), output=paper)
    await talk.chat.process_input("Make the second valve open later, and tell me which files of the station mention it")
    talk.began()
    talk.chat.event(event(1, "text", LONG))
    talk.chat.event(event(2, "message", LONG, step=1))
    talk.chat.event(event(3, "tool_call", f'{{"path":"{PATH}"}}', name="read_file"))
    talk.chat.event(event(4, "tool_call", '{"command":"grep -rn valve ."}', name="bash"))
    talk.chat.event(event(5, "tool_result", "valve 1: 2 bar\nvalve 2: 3 bar\n", name="read_file"))
    failure = "grep: ./private: Permission denied\n[exit status 2]"
    talk.chat.event(event(6, "tool_result", failure, name="bash", is_error=True))
    talk.chat.event(event(7, "steered", "use the pressures of the manual, and not the pressures of the old table"))
    edit = {"path": PATH, "old_text": OLD, "new_text": OLD.replace("3 bar", "4 bar")}
    talk.chat.event(question(tool="replace_in_file", input=edit, subject=PATH, reason="it changes a file"))
    row = AGENT | {"pending": "go", "activity": "tool: replace_in_file", "model": "anthropic:claude-sonnet-5-5"}
    talk.wire.answers["list"] = [row | {"context_tokens": 12_400, "context_limit": 200_000}]
    await talk.chat.refresh_rows()
    screen._print(talk.output.take())
    screen._shown_id = talk.chat.question_id
    talk.now = 4.0
    asked = to_plain_text(screen._message()) + "\n" + to_plain_text(screen._bar()) + "\n"
    talk.wire.executes("help", _overview([each.row for each in COMMANDS]))
    await talk.chat.process_input("/help")
    talk.wire.executes("status", f"1  n  abc\n  task:          {LONG}\n  status:        busy")
    await talk.chat.process_input("/status")
    await talk.chat.process_input("y")
    await talk.ended(reply=REPLY | {"text": "Valve 2 opens at 4 bar.", "steps": 2})
    screen._print(talk.output.take())
    return paper.paper.getvalue().replace("\r\n", "\n") + "--- at the question ---\n" + asked


@pytest.mark.parametrize("columns", [80, 120])
async def test_chat_matches_its_snapshot(columns: int) -> None:
    """No row is wider than the terminal, words are not broken, and no text is cut."""
    shown = await conversation(columns)
    file = SNAPSHOTS / f"chat_{columns}.txt"
    if os.environ.get("ORCH_WRITE_SNAPSHOTS"):
        file.write_text(shown)
    assert shown == file.read_text()
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= columns
