"""The prompt of the chat: the effect of keys, without a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.data_structures import Size
from prompt_toolkit.document import Document
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from orch.chat import screen as screens
from orch.chat.history import history_file
from orch.chat.screen import Screen
from orchestrator.chat.test_app import Talk, question

ENTER, ALT_ENTER, CTRL_C, CTRL_D, CTRL_J, UP = "\r", "\x1b\r", "\x03", "\x04", "\n", "\x1b[A"
CTRL_A, CTRL_E, CTRL_X = "\x01", "\x05", "\x18"


class Paper(DummyOutput):
    """A terminal that stores its output."""

    def __init__(self) -> None:
        self.written = ""

    def write(self, data: str) -> None:
        self.written += data

    def write_raw(self, data: str) -> None:
        self.written += data

    def get_size(self) -> Size:
        return Size(rows=30, columns=100)


class Desk:
    """A chat on a screen, with keys that a test can press."""

    def __init__(self, talk: Talk, keys: PipeInput, paper: Paper, screen: Screen) -> None:
        self.talk, self.keys, self.paper, self.screen = talk, keys, paper, screen

    async def press(self, text: str, until: Callable[[], Any]) -> None:
        """Press keys, and wait until the condition is true."""
        self.keys.send_text(text)
        await self.until(until)

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until the condition is true."""
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110  # yields; there is no event to wait for
                await asyncio.sleep(0)

    def said(self) -> list[str]:
        """Return the prompts that were sent."""
        return [params["prompt"] for params in self.talk.wire.of("submit")]

    def asked(self, id: str) -> bool:
        """Return whether the question `id` is on the screen."""
        return self.screen._shown_id == id

    @property
    def typed(self) -> str:
        """The text in the input line."""
        return self.screen._session.default_buffer.text


@asynccontextmanager
async def desk(monkeypatch: pytest.MonkeyPatch, history: Path | None = None, **how: Any) -> AsyncIterator[Desk]:
    """Open a screen with a chat, and close it at the end."""
    monkeypatch.setattr(screens, "GATHER_SECONDS", 0)
    talk, paper = await Talk(**how).begin(), Paper()
    with create_pipe_input() as keys, create_app_session(input=keys, output=paper):
        screen = Screen(talk.chat, history=history, input=keys, output=paper)
        running = asyncio.create_task(screen.run())
        try:
            yield Desk(talk, keys, paper, screen)
        finally:
            talk.chat.done.set()
            await running


async def test_enter_steers_and_alt_enter_follows_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """During a turn, Enter sends a steering message and Alt-Enter a follow-up."""
    async with desk(monkeypatch) as at:
        await at.press("go" + ENTER, lambda: at.said() == ["go"])
        at.talk.began()
        await at.press("left" + ENTER, lambda: len(at.talk.wire.of("steer")) == 1)
        await at.press("right" + ALT_ENTER, lambda: len(at.talk.wire.of("steer")) == 2)
        assert [each["follow_up"] for each in at.talk.wire.of("steer")] == [False, True]
        await at.until(lambda: "> left" in at.paper.written)


async def test_ctrl_j_and_backslash_insert_a_line_break(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(monkeypatch) as at:
        await at.press(f"one{CTRL_J}two\\{ENTER}three{ENTER}", lambda: at.said() == ["one\ntwo\nthree"])


async def test_megabyte_paste_is_folded_and_sent_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line break in pasted text does not send the input."""
    text = "0123456789abcde\n" * (1 << 16)
    async with desk(monkeypatch) as at:
        await asyncio.to_thread(at.keys.send_text, f"read \x1b[200~{text}\x1b[201~")
        await at.until(lambda: at.typed.endswith("lines]"))
        assert at.said() == []
        await at.press(ENTER, lambda: at.said() == [f"read {text}"])
        await at.until(lambda: "1,048,576 characters" in at.paper.written)
        assert len(at.paper.written) < 50_000


async def test_question_sets_the_typed_text_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that continues the interrupted text is neither sent nor an answer. The text returns after the answer."""
    async with desk(monkeypatch) as at:
        await at.press("run the te", lambda: at.typed == "run the te")
        at.talk.chat.event(question())
        await at.until(lambda: at.typed == "" and at.asked("q1"))
        await at.press("sts" + ENTER, lambda: at.screen._saved_input == "run the tests")
        assert at.talk.wire.of("answer") == []
        await at.press("y" + ENTER, lambda: at.talk.wire.of("answer"))
        await at.until(lambda: at.typed == "run the tests")


async def test_lines_during_a_question_are_sent_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that are no answer steer the turn, one by one. The interrupted text returns on a separate line."""
    async with desk(monkeypatch) as at:
        at.talk.began(request_id=None)
        await at.press("half", lambda: at.typed == "half")
        at.talk.chat.event(question())
        await at.until(lambda: at.typed == "" and at.asked("q1"))
        at.talk.now = 2.0  # a line that begins this late does not continue the interrupted line
        for number, line in enumerate(("yes please", "use port 80"), 1):
            await at.press(line + ENTER, lambda number=number: len(at.talk.wire.of("steer")) == number)
        at.talk.wire.executes("status", "fine")
        await at.press("/status" + ENTER, lambda: at.talk.wire.of("execute"))
        assert [each["text"] for each in at.talk.wire.of("steer")] == ["yes please", "use port 80"]
        assert at.talk.wire.of("answer") == []
        await at.press("y" + ENTER, lambda: at.talk.wire.of("answer"))
        await at.until(lambda: at.typed == "half")
        at.talk.chat.draft = "late"
        at.talk.chat.changed()
        await at.until(lambda: at.typed == "late\nhalf")


async def test_typeahead_does_not_answer_a_new_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `y` that was typed before the question appeared is set aside."""
    async with desk(monkeypatch) as at:
        await at.press("y", lambda: at.typed == "y")
        at.talk.chat.event(question())
        at.talk.chat.event(question("q2"))
        at.screen._enter(Pressed(at.screen), follow_up=False)  # type: ignore[arg-type]
        await at.until(lambda: at.asked("q1"))
        assert at.talk.wire.of("answer") == at.talk.wire.of("submit") == []
        await at.press("n" + ENTER, lambda: at.talk.wire.of("answer"))
        await at.until(lambda: at.asked("q2"))
        await at.press("n" + ENTER, lambda: len(at.talk.wire.of("answer")) == 2)
        await at.until(lambda: at.typed == "y")
        assert [each["allow"] for each in at.talk.wire.of("answer")] == [False, False]


class Pressed:
    """The event of a key at a screen."""

    def __init__(self, screen: Screen) -> None:
        self.current_buffer = screen._session.default_buffer


async def test_ctrl_c_clears_cancels_and_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C clears the typed text, cancels a running turn, and leaves an idle chat when pressed twice."""
    async with desk(monkeypatch) as at:
        await at.press("half", lambda: at.typed == "half")
        await at.press(CTRL_C, lambda: at.typed == "")
        at.talk.began(request_id=None)
        await at.press(CTRL_C, lambda: at.talk.wire.of("cancel") == [{"ref": "abc"}])
        await at.talk.ended()
        at.talk.now = 60.0
        await at.press(CTRL_C, lambda: "Ctrl-D, leaves" in at.paper.written)
        await at.press(CTRL_C, at.talk.chat.done.is_set)


async def test_text_from_the_editor_returns_to_the_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The text is not sent until Enter is pressed."""
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf "%s and\\nmore" "$(cat "$1")" > "$1"\n')
    editor.chmod(0o700)
    monkeypatch.setenv("VISUAL", str(editor))
    async with desk(monkeypatch) as at:
        await at.press("draft" + CTRL_X + CTRL_E, lambda: at.typed == "draft and\nmore")
        assert at.said() == []
        await at.press(ENTER, lambda: at.said() == ["draft and\nmore"])


@pytest.mark.parametrize("keys", ["\x0f", "\x1b#"], ids=["Ctrl-O", "Alt-#"])
async def test_other_accept_keys_do_not_leave(monkeypatch: pytest.MonkeyPatch, keys: str) -> None:
    """The library binds these keys to accepting the input, as shells do; the chat does not send on them."""
    async with desk(monkeypatch) as at:
        await at.press("go" + keys + CTRL_A, lambda: "go" in at.typed)
        await at.press("now " + ENTER, at.said)
        assert at.said()[0].startswith("now ")


async def test_ctrl_d_leaves_on_an_empty_line_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a line with text, Ctrl-D deletes a character."""
    async with desk(monkeypatch) as at:
        await at.press("ab\x1b[D" + CTRL_D, lambda: at.typed == "a")
        await at.press(CTRL_C, lambda: at.typed == "")
        await at.press(CTRL_D, at.talk.chat.done.is_set)


async def test_lost_terminal_ends_the_console_without_touching_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The screen stops, and the chat neither cancels nor ends the agent."""
    async with desk(monkeypatch) as at:
        at.talk.began(request_id=None)
        at.keys.close()
        await at.until(lambda: not at.screen._session.app.is_running)
        assert at.talk.wire.of("cancel") == at.talk.wire.of("kill") == []


async def test_model_text_is_escaped_everywhere_on_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts, streamed text, agents' names and questions are written without control characters."""
    hostile = "\x1b]0;owned\x07\x9b2J\u202e"
    async with desk(monkeypatch) as at:
        at.talk.began(request_id=None, prompt=f"prompt {hostile}")
        at.talk.wire.answers["list"] = [at.talk.chat.agent | {"activity": hostile, "model": hostile}]
        await at.talk.chat.refresh_rows()
        at.talk.chat.event({"n": 1, "kind": "text", "text": f"one {hostile}\nlive {hostile}"})
        at.talk.chat.event(question(subject=hostile, agent=hostile, agent_id="kid"))
        await at.until(lambda: "live" in at.paper.written and "Allow it?" in at.paper.written)
        assert not [each for each in ("\x1b]0", "\x07", "\x9b", "\u202e") if each in at.paper.written]


async def test_extension_keys_run_their_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a question is open, the keys have no effect."""
    async with desk(monkeypatch) as at:
        at.talk.wire.executes("todo", "nothing")
        at.talk.wire.answers["commands"] |= {"keys": [{"key": "c-x t", "command": "/todo"}], "digest": "2"}
        await at.talk.chat.commands.load("abc")
        await at.press("\x18t", lambda: at.talk.wire.of("execute"))
        assert at.talk.wire.of("execute") == [{"ref": "abc", "text": "/todo"}]
        at.talk.chat.event(question())
        await at.press("\x18tx", lambda: at.typed == "x")
        assert len(at.talk.wire.of("execute")) == 1


async def test_input_history_is_stored_privately(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only the user can read the file, and answers to questions are not stored."""
    file = history_file(tmp_path)
    assert file is not None
    assert file.stat().st_mode & 0o777 == 0o600
    async with desk(monkeypatch, file) as at:
        await at.press("remember me" + ENTER, at.said)
        at.talk.chat.event(question())
        await at.until(lambda: at.asked("q1"))
        await at.press("y" + ENTER, lambda: at.talk.wire.of("answer"))
    async with desk(monkeypatch, file) as at:
        await at.press(UP, lambda: at.typed == "remember me")


async def test_unwritable_history_is_kept_in_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a history file, earlier input can be recalled in the same chat."""
    async with desk(monkeypatch, tmp_path / "gone" / "history") as at:
        await at.press("go" + ENTER, lambda: at.said() == ["go"])
        await at.press(UP, lambda: at.typed == "go")


async def test_copy_uses_the_terminals_clipboard_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sequence has the copied text in base64."""
    async with desk(monkeypatch) as at:
        at.talk.chat.copied = "text\x1b"
        at.talk.chat.changed()
        await at.until(lambda: "\x1b]52;c;dGV4dBs=\x07" in at.paper.written)


async def test_paths_are_completed_in_the_agents_folder(tmp_path: Path) -> None:
    """The agent opens the paths, so they are completed in its folder and not in the folder of the terminal."""
    (tmp_path / "valves.txt").touch()
    talk = await Talk().begin()
    talk.chat.agent = talk.chat.agent | {"cwd": str(tmp_path)}
    found = screens._Completer(talk.chat).get_completions(Document("look at val"), CompleteEvent())
    assert [each.text for each in found] == ["valves.txt"]
