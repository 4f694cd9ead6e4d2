"""The live prompt: what keys do, without a terminal."""

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
    """A terminal that keeps what is written."""

    def __init__(self) -> None:
        self.written = ""

    def write(self, data: str) -> None:
        """Keep it."""
        self.written += data

    def write_raw(self, data: str) -> None:
        """Keep it."""
        self.written += data

    def get_size(self) -> Size:
        """Return a size."""
        return Size(rows=30, columns=100)


class Desk:
    """A talk at a screen, and keys to press."""

    def __init__(self, talk: Talk, keys: PipeInput, paper: Paper, screen: Screen) -> None:
        self.talk, self.keys, self.paper, self.screen = talk, keys, paper, screen

    async def press(self, text: str, until: Callable[[], Any]) -> None:
        """Press keys, and return once something holds."""
        self.keys.send_text(text)
        await self.until(until)

    async def until(self, holds: Callable[[], Any]) -> None:
        """Return once something holds."""
        async with asyncio.timeout(20):
            while not holds():  # noqa: ASYNC110  # gives way; there is no event to wait for
                await asyncio.sleep(0)

    def said(self) -> list[str]:
        """Return the prompts that were asked."""
        return [params["prompt"] for params in self.talk.wire.of("submit")]

    def asked(self, id: str) -> bool:
        """Whether that question is on the screen."""
        return self.screen._topic == id

    @property
    def typed(self) -> str:
        """What stands behind the prompt."""
        return self.screen._session.default_buffer.text


@asynccontextmanager
async def desk(monkeypatch: pytest.MonkeyPatch, history: Path | None = None, **how: Any) -> AsyncIterator[Desk]:
    """Open a screen, and leave it."""
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


async def test_enter_says_and_alt_enter_follows_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the agent works the one steers it, and the other is heard when it would stop."""
    async with desk(monkeypatch) as at:
        await at.press("go" + ENTER, lambda: at.said() == ["go"])
        at.talk.began()
        await at.press("left" + ENTER, lambda: len(at.talk.wire.of("steer")) == 1)
        await at.press("right" + ALT_ENTER, lambda: len(at.talk.wire.of("steer")) == 2)
        assert [each["follow_up"] for each in at.talk.wire.of("steer")] == [False, True]
        await at.until(lambda: "> left" in at.paper.written)


async def test_lines_end_with_ctrl_j_or_a_backslash(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt may have several of them."""
    async with desk(monkeypatch) as at:
        await at.press(f"one{CTRL_J}two\\{ENTER}three{ENTER}", lambda: at.said() == ["one\ntwo\nthree"])


async def test_a_megabyte_is_pasted_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands folded in the line, is said whole, and a newline in it says nothing early."""
    text = "0123456789abcde\n" * (1 << 16)
    async with desk(monkeypatch) as at:
        await asyncio.to_thread(at.keys.send_text, f"read \x1b[200~{text}\x1b[201~")
        await at.until(lambda: at.typed.endswith("lines]"))
        assert at.said() == []
        await at.press(ENTER, lambda: at.said() == [f"read {text}"])
        await at.until(lambda: "1,048,576 characters" in at.paper.written)
        assert len(at.paper.written) < 50_000


async def test_a_question_lays_aside_what_was_being_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a prompt is no answer; it is there again when the question is answered."""
    async with desk(monkeypatch) as at:
        await at.press("run the te", lambda: at.typed == "run the te")
        at.talk.chat.event(question())
        await at.until(lambda: at.typed == "" and at.asked("q1"))
        await at.press("sts" + ENTER, lambda: at.screen._aside == "run the tests")
        assert at.talk.wire.of("answer") == []
        await at.press("y" + ENTER, lambda: at.talk.wire.of("answer"))
        await at.until(lambda: at.typed == "run the tests")


async def test_what_is_on_its_way_allows_nothing_that_was_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A yes that is typed as a question comes, or as the next one does, is laid aside, and answers neither."""
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
    """A key that is pressed at a screen."""

    def __init__(self, screen: Screen) -> None:
        self.current_buffer = screen._session.default_buffer


async def test_ctrl_c_clears_ends_and_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was typed; the turn; the chat, when it comes twice."""
    async with desk(monkeypatch) as at:
        await at.press("half", lambda: at.typed == "half")
        await at.press(CTRL_C, lambda: at.typed == "")
        at.talk.began(request_id=None)
        await at.press(CTRL_C, lambda: at.talk.wire.of("cancel") == [{"ref": "abc"}])
        await at.talk.ended()
        at.talk.now = 60.0
        await at.press(CTRL_C, lambda: "Ctrl-D, leaves" in at.paper.written)
        await at.press(CTRL_C, at.talk.chat.done.is_set)


async def test_what_is_written_in_an_editor_comes_back_into_the_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Enter says it: whoever leaves the editor without a word has said nothing, and is still here."""
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf "%s and\\nmore" "$(cat "$1")" > "$1"\n')
    editor.chmod(0o700)
    monkeypatch.setenv("VISUAL", str(editor))
    async with desk(monkeypatch) as at:
        await at.press("draft" + CTRL_X + CTRL_E, lambda: at.typed == "draft and\nmore")
        assert at.said() == []
        await at.press(ENTER, lambda: at.said() == ["draft and\nmore"])


@pytest.mark.parametrize("keys", ["\x0f", "\x1b#"], ids=["Ctrl-O", "Alt-#"])
async def test_no_other_key_that_accepts_a_line_leaves(monkeypatch: pytest.MonkeyPatch, keys: str) -> None:
    """As shells have some, and so the library has them too."""
    async with desk(monkeypatch) as at:
        await at.press("go" + keys + CTRL_A, lambda: "go" in at.typed)
        await at.press("now " + ENTER, at.said)
        assert at.said()[0].startswith("now ")


async def test_ctrl_d_leaves_an_empty_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a line with text it deletes a character, as everywhere."""
    async with desk(monkeypatch) as at:
        await at.press("ab\x1b[D" + CTRL_D, lambda: at.typed == "a")
        await at.press(CTRL_C, lambda: at.typed == "")
        await at.press(CTRL_D, at.talk.chat.done.is_set)


async def test_a_terminal_that_is_gone_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The console ends, and the agent is neither cancelled nor ended."""
    async with desk(monkeypatch) as at:
        at.talk.began(request_id=None)
        at.keys.close()
        await at.until(lambda: not at.screen._session.app.is_running)
        assert at.talk.wire.of("cancel") == at.talk.wire.of("kill") == []


async def test_nothing_that_a_model_says_reaches_the_terminal_raw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in lines that are complete, nor in the one under way, nor in names and questions below."""
    hostile = "\x1b]0;owned\x07\x9b2J\u202e"
    async with desk(monkeypatch) as at:
        at.talk.began(request_id=None, prompt=f"prompt {hostile}")
        at.talk.wire.answers["list"] = [at.talk.chat.agent | {"activity": hostile, "model": hostile}]
        await at.talk.chat.look()
        at.talk.chat.event({"n": 1, "kind": "text", "text": f"one {hostile}\nlive {hostile}"})
        at.talk.chat.event(question(subject=hostile, agent=hostile, agent_id="kid"))
        await at.until(lambda: "live" in at.paper.written and "allow it?" in at.paper.written)
        assert not [each for each in ("\x1b]0", "\x07", "\x9b", "\u202e") if each in at.paper.written]


async def test_keys_of_extensions_run_their_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are brought, and none while a question is open."""
    async with desk(monkeypatch) as at:
        at.talk.wire.executes("todo", "nothing")
        at.talk.wire.answers["commands"] |= {"keys": [{"key": "c-x t", "command": "/todo"}], "digest": "2"}
        await at.talk.chat.commands.load("abc")
        await at.press("\x18t", lambda: at.talk.wire.of("execute"))
        assert at.talk.wire.of("execute") == [{"ref": "abc", "text": "/todo"}]
        at.talk.chat.event(question())
        await at.press("\x18tx", lambda: at.typed == "x")
        assert len(at.talk.wire.of("execute")) == 1


async def test_what_was_typed_is_remembered_for_its_owner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The next console has it, in a file that nobody else reads; answers to questions are not kept."""
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


async def test_what_cannot_be_remembered_is_said_all_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a disk that is full; and in this console it can be had again."""
    async with desk(monkeypatch, tmp_path / "gone" / "history") as at:
        await at.press("go" + ENTER, lambda: at.said() == ["go"])
        await at.press(UP, lambda: at.typed == "go")


async def test_what_is_copied_goes_to_the_terminals_clipboard(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the one sequence that terminals take for that, with nothing of the text in it as it is."""
    async with desk(monkeypatch) as at:
        at.talk.chat.copied = "text\x1b"
        at.talk.chat.changed()
        await at.until(lambda: "\x1b]52;c;dGV4dBs=\x07" in at.paper.written)


async def test_paths_are_completed_where_the_agent_works(tmp_path: Path) -> None:
    """Which may be another folder than that of the terminal: it is the agent that opens them."""
    (tmp_path / "valves.txt").touch()
    talk = await Talk().begin()
    talk.chat.agent = talk.chat.agent | {"cwd": str(tmp_path)}
    found = screens._Completer(talk.chat).get_completions(Document("look at val"), CompleteEvent())
    assert [each.text for each in found] == ["valves.txt"]
