"""The terminal screen of a chat. The output scrolls, and an input line below the output always accepts input."""

from __future__ import annotations

import asyncio
import base64
import errno
import signal
import sys
import termios
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.application import in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import DynamicKeyBindings, KeyBindings, KeyPressEvent, merge_key_bindings
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import ColorDepth, Output
from prompt_toolkit.shortcuts import print_formatted_text
from prompt_toolkit.styles import Style

from orch_protocol.core.text import scrub

from ..render import terminal
from .app import Chat
from .commands import END
from .completion import suggestions
from .text.live_text import LiveText
from .text.styled_text import Piece, fit

__all__ = ["LineInput", "PlainScreen", "Screen", "buffer_early_keys"]


STYLE: Final = Style.from_dict(
    {
        "call": "ansicyan",
        "error": "ansired",
        "task": "ansicyan",
        "note": "ansibrightblack",
        "you": "bold",
        "ask": "ansiyellow",
        "add": "ansigreen",
        "del": "ansired",
        "hunk": "ansimagenta",
        "strong": "bold",
        "em": "italic",
        "heading": "bold underline",
        "code": "ansicyan",
        "link": "underline",
        "quote": "italic",
        "strike": "strike",
        "bottom-toolbar": "noreverse",
        "bottom-toolbar.text": "",
    }
)
GATHER_SECONDS: Final = 0.04
"""Output is collected for this number of seconds, because the input line is redrawn for each output."""
REFRESH_SECONDS: Final = 1.0
IDLE_SECONDS: Final = 4.0
LIVE_ROWS: Final = 6
"""The maximum height in rows of incomplete output above the input line. The first rows of higher output scroll away."""
CONTINUATION_SECONDS: Final = 1.0
"""A line that is begun this early after a question has interrupted a line continues the interrupted line."""
PROMPT: Final = "> "
PROSE: Final = frozenset({"task", "note", "error", "ask", "you", "call", "add", "del"})
"""Styles of lines whose further rows are indented."""
HANG: Final = "  "
DEFAULT: Final = "DEFAULT_BUFFER"


class Screen:
    """Shows `chat` on a terminal. `history` is the file of the input history, or None. `color` enables colors.

    `input` and `output` default to the terminal.
    """

    def __init__(
        self,
        chat: Chat,
        *,
        history: Path | None = None,
        color: bool = True,
        input: Input | None = None,
        output: Output | None = None,
    ) -> None:
        self._chat = chat
        self._saved_input = ""
        """Input that returns to the input line when no question is open."""
        self._saved_at: float | None = None
        """The time when a question interrupted the typing of a line. None after the next line."""
        self._continues_saved_input = False
        """Whether the first key after the interruption came so early that it continues the interrupted line."""
        self._shown_id = ""
        """The question shown on the screen. Input can answer only this question."""
        self._extension_keys: tuple[dict[str, str] | None, KeyBindings] = None, KeyBindings()
        self._needs_blank_line = False
        """Whether a blank line is needed before the next prompt."""
        self._dirty = asyncio.Event()
        chat.changed = self._dirty.set
        self._tasks: set[asyncio.Task[Any]] = set()
        starts_with_slash = Condition(lambda: self._session.default_buffer.text.startswith("/"))
        self._session: PromptSession[str] = PromptSession(
            message=self._message,
            multiline=True,
            prompt_continuation="  ",
            history=_history(history),
            completer=_Completer(chat),
            complete_while_typing=starts_with_slash,
            complete_in_thread=True,
            bottom_toolbar=self._bar,
            key_bindings=merge_key_bindings([DynamicKeyBindings(self._extension_bindings), self._keys()]),
            style=STYLE,
            color_depth=None if color else ColorDepth.DEPTH_1_BIT,
            enable_suspend=True,
            erase_when_done=True,
            input=input,
            output=output,
        )
        # Some built-in keys of the library accept the line. Without this handler they would end the chat.
        self._session.default_buffer.accept_handler = lambda _: True
        self._session.default_buffer.on_text_insert += self._detect_continuation
        chat.output.resize(self._session.output.get_size().columns)

    async def run(self) -> None:
        """Run until the user leaves or the terminal is closed."""
        self._print(self._chat.output.take())
        async with self._background_tasks():
            try:
                await self._session.prompt_async()
            except EOFError:
                return  # the terminal was closed; the agent continues
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                return  # the terminal was closed
        self._print(self._chat.output.take())

    @asynccontextmanager
    async def _background_tasks(self) -> AsyncIterator[None]:
        """Run background tasks and signal handlers during the block."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGHUP)
        for number in signals:
            loop.add_signal_handler(number, self._chat.done.set)
        tasks = [asyncio.create_task(each) for each in (self._show(), self._watch(), self._end())]
        try:
            yield
        finally:
            for task in (*tasks, *self._tasks):
                task.cancel()
            await asyncio.gather(*tasks, *self._tasks, return_exceptions=True)
            for number in signals:
                loop.remove_signal_handler(number)

    # Output.

    def _message(self) -> FormattedText:
        """Return the incomplete output and the open question, which are shown before the cursor."""
        lines = self._chat.output.live[-LIVE_ROWS:]
        lines += [[("call", call)] for call in self._chat.open_calls[-LIVE_ROWS:]]
        lines += [[("note", each)] for each in self._chat.commands.widgets["panel"]]
        if self._chat.question_id == self._shown_id and (input_hint := self._chat.input_hint):
            lines.append([("ask", input_hint)])
        return FormattedText([*self._format_lines(lines), ("class:you", PROMPT)])

    def _bar(self) -> FormattedText:
        return FormattedText(_format_pieces(self._chat.bar(self._session.output.get_size().columns - 1)))

    async def _show(self) -> None:
        while True:
            await self._dirty.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._dirty.clear()
            self._take_draft()
            output, app = self._chat.output, self._session.app
            output.resize(self._session.output.get_size().columns)
            output.scroll(LIVE_ROWS)
            question_id = self._chat.question_id
            if output.pending and app.is_running:
                async with in_terminal():
                    self._print(output.take())
            self._shown_id = question_id
            app.invalidate()

    def _print(self, lines: Iterable[list[Piece]]) -> None:
        text: list[tuple[str, str]] = []
        for line in lines:
            if self._needs_blank_line and line and line[0][0] == "you" and line[0][1].startswith(PROMPT):
                text.append(("", "\n"))
            self._needs_blank_line = any(piece.strip() for _, piece in line)
            text += self._format_lines([line])
        if text:
            print_formatted_text(
                FormattedText(text),
                end="",
                style=STYLE,
                output=self._session.output,
                color_depth=self._session.color_depth,
                include_default_pygments_style=False,
            )

    def _format_lines(self, lines: Iterable[list[Piece]]) -> list[tuple[str, str]]:
        """Return the rows of `lines` at the width of the terminal."""
        width, text = self._session.output.get_size().columns, []
        for line in lines:
            for row in fit(line, width, HANG if line and line[0][0] in PROSE else ""):
                text += [*_format_pieces(row), ("", "\n")]
        return text

    def _take_draft(self) -> None:
        """When a question arrives, save and clear the input. After the answer, restore the input."""
        chat, buffer = self._chat, self._session.default_buffer
        self._saved_input, chat.draft = _on_lines(self._saved_input, chat.draft), ""
        if chat.question_id:
            if not self._shown_id and buffer.text:
                self._saved_input = _on_lines(self._saved_input, buffer.text)
                self._saved_at = chat.clock()
                self._continues_saved_input = False
                buffer.reset()
        elif self._saved_input:
            buffer.document = Document(_on_lines(self._saved_input, buffer.text))
            self._saved_input = ""
            self._saved_at = None
        if chat.copied is not None:
            # This is the escape sequence for the terminal's clipboard. Terminals without support for it ignore it.
            data = base64.b64encode(chat.copied.encode("utf-8", "replace")).decode()
            self._session.output.write_raw(f"\x1b]52;c;{data}\x07")
            self._session.output.flush()
            chat.copied = None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_SECONDS if self._chat.is_active else IDLE_SECONDS)
            await self._chat.refresh_rows()

    async def _end(self) -> None:
        await self._chat.done.wait()
        if self._session.app.is_running:
            self._session.app.exit(result="")

    # Input.

    def _keys(self) -> KeyBindings:
        keys, in_input = KeyBindings(), has_focus(DEFAULT)

        @keys.add("enter", filter=in_input)
        def _enter(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            is_completing = buffer.complete_state is not None and buffer.complete_state.current_completion is not None
            if is_completing and not buffer.text.startswith("/"):
                buffer.complete_state = None  # Enter accepts only the completion here
            elif _continues(buffer.document) and not self._chat.commands.pasting:
                buffer.delete_before_cursor()
                buffer.newline(copy_margin=False)
            else:
                self._enter(event, follow_up=False)

        @keys.add("escape", "enter", filter=in_input)
        def _alt_enter(event: KeyPressEvent) -> None:
            self._enter(event, follow_up=True)

        @keys.add("c-j", filter=in_input)
        def _newline(event: KeyPressEvent) -> None:
            event.current_buffer.newline(copy_margin=False)

        @keys.add("c-x", "c-e", filter=in_input)
        def _edit(event: KeyPressEvent) -> None:
            event.current_buffer.open_in_editor()

        @keys.add("c-c")
        @keys.add("<sigint>")
        def _interrupt(event: KeyPressEvent) -> None:
            self._start(self._interrupt(event.current_buffer.text))

        @keys.add("c-d", filter=in_input & Condition(lambda: not self._session.default_buffer.text))
        def _leave(_: KeyPressEvent) -> None:
            self._start(self._chat.leave())

        @keys.add(Keys.BracketedPaste, filter=in_input)
        def _paste(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text(self._chat.pastes.fold(event.data))

        return keys

    def _extension_bindings(self) -> KeyBindings:
        """Return the key bindings of extensions. Each key runs a command line. The chat's own keys take precedence."""
        commands_by_key = self._chat.commands.keys
        if self._extension_keys[0] is not commands_by_key:
            keys = KeyBindings()
            for key, line in commands_by_key.items():
                keys.add(*key.split(" "), filter=has_focus(DEFAULT))(partial(self._run, line))
            self._extension_keys = commands_by_key, keys
        return self._extension_keys[1]

    def _run(self, line: str, _: KeyPressEvent) -> None:
        if not self._chat.input_hint:
            self._start(self._chat.process_input(line))

    def _enter(self, event: KeyPressEvent, *, follow_up: bool) -> None:
        buffer = event.current_buffer
        text, chat = buffer.text, self._chat
        is_continuation, self._saved_at = self._saved_at is not None and self._continues_saved_input, None
        if chat.question_id and is_continuation:
            buffer.reset()
            self._saved_input += text
            chat.output.note("  (not sent: this text returns to the input line after the answer)", "ask")
            chat.changed()
            return
        if text.strip() and not chat.is_choice(text):
            buffer.append_to_history()
        buffer.reset()
        if chat.question_id and chat.question_id != self._shown_id:
            self._saved_input = _on_lines(self._saved_input, text)  # typed before the question was visible
            return
        self._start(chat.process_input(text, follow_up=follow_up, question_id=chat.question_id))

    def _detect_continuation(self, _: Buffer) -> None:
        """Decide, at the first key after a question has interrupted a line, whether the key continues that line."""
        if self._saved_at is not None and len(self._session.default_buffer.text) == 1:
            self._continues_saved_input = self._chat.clock() - self._saved_at < CONTINUATION_SECONDS

    async def _interrupt(self, typed: str) -> None:
        if await self._chat.interrupt(typed=bool(typed)) == "clear":
            self._session.default_buffer.reset()

    def _start(self, coroutine: Any) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Completer(Completer):
    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    def get_completions(self, document: Document, _: CompleteEvent) -> Iterable[Completion]:
        """Yield completions at the cursor."""
        commands, folder = self._chat.commands, str(self._chat.agent["cwd"])  # paths are relative to the agent's folder
        before = document.text_before_cursor
        for each in suggestions(before, commands.known, self._chat.rows, commands.arguments, cwd=folder):
            yield Completion(each.text, start_position=-each.length, display_meta=each.description)


class _SafeHistory(FileHistory):
    """A history file that ignores write errors."""

    def store_string(self, string: str) -> None:
        """Append an entry."""
        with suppress(OSError):
            super().store_string(scrub(string))


def _on_lines(*texts: str) -> str:
    """Return the texts that are not empty, on separate lines."""
    return "\n".join(filter(None, texts))


def _continues(document: Document) -> bool:
    return document.is_cursor_at_the_end and document.text_before_cursor.endswith("\\")


def _history(file: Path | None) -> History:
    return InMemoryHistory() if file is None else _SafeHistory(str(file))


def _format_pieces(line: Iterable[Piece]) -> list[tuple[str, str]]:
    return [(f"class:{style}" if style else "", text) for style, text in line]


# --- Keys pressed before the input line exists ---

INPUT: Final = 0
MODES: Final = 3
"""Indexes of the input and local modes in the attributes from termios."""


@contextmanager
def buffer_early_keys(descriptor: int) -> Iterator[None]:
    """Keep typed keys for the next reader of the terminal.

    The keys are not echoed, and Enter stays distinct from Ctrl-J. Ctrl-C still interrupts the program.
    """
    try:
        saved = termios.tcgetattr(descriptor)
    except termios.error:
        yield  # not a terminal
        return
    attributes = list(saved)
    attributes[INPUT] &= ~termios.ICRNL
    attributes[MODES] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(descriptor, termios.TCSANOW, attributes)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(descriptor, termios.TCSANOW, saved)


# --- Terminals without capabilities, and pipes ---


class PlainScreen(LiveText):
    """An output that prints immediately. The agent's text is printed on stdout, and all other output on stderr."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        super().__init__()
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._open = False
        self.output_closed = asyncio.Event()
        """Set when the agent's text can no longer be written."""
        self.write_error: OSError = BrokenPipeError()
        """The error of the failed write."""

    def text(self, text: str, style: str = "") -> None:
        """Print `text` immediately."""
        stream = self._err if style else self._out
        safe = self._out.isatty() or style
        try:
            stream.write(terminal.safe(text.replace("\r\n", "\n")) if safe else text)
            stream.flush()
        except OSError as error:
            self.write_error = error
            self.output_closed.set()
        if not style:
            self._open = not text.endswith("\n")

    def note(self, text: str, style: str = "note") -> None:
        """Print separate lines."""
        self.close()
        self.text(f"{text}\n", style)

    def pieces(self, lines: object) -> None:
        """Print lines without their styles."""
        for line in lines:  # type: ignore[attr-defined]
            self.note("".join(text.replace("\n", "\\n") for _, text in line))

    def close(self) -> None:
        """End the current line."""
        if self._open:
            self.text("\n")


class LineInput:
    """Reads input lines for `chat` from `source`.

    With `wait_for_turns`, each line is sent after the answer to the previous line. Otherwise, each line is sent
    immediately. A line that is sent while the agent works is a steering message.
    """

    def __init__(self, chat: Chat, source: TextIO, *, wait_for_turns: bool) -> None:
        self._chat = chat
        self._source = source
        self._wait_for_turns = wait_for_turns
        self._shown_hint = ""
        chat.changed = self._changed

    async def run(self) -> None:
        """Process lines until the end of input. Raises OSError when output cannot be written."""
        loop, lines = asyncio.get_running_loop(), asyncio.Queue[str | None]()
        loop.add_signal_handler(signal.SIGINT, lambda: asyncio.ensure_future(self._chat.interrupt()))
        loop.add_signal_handler(signal.SIGHUP, self._chat.done.set)
        threading.Thread(target=_read, args=(loop, self._source, lines), daemon=True).start()
        output = self._chat.output if isinstance(self._chat.output, PlainScreen) else PlainScreen()
        reader = asyncio.ensure_future(self._read_lines(lines))
        waiters = [reader, *(asyncio.ensure_future(each.wait()) for each in (self._chat.done, output.output_closed))]
        try:
            await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
            if reader.done():
                reader.result()
            if output.output_closed.is_set():
                raise output.write_error
        finally:
            for each in waiters:
                each.cancel()
            loop.remove_signal_handler(signal.SIGINT)
            loop.remove_signal_handler(signal.SIGHUP)

    async def _read_lines(self, lines: asyncio.Queue[str | None]) -> None:
        typed = ""
        while (line := await lines.get()) is not None:
            typed += line.rstrip("\r\n")
            if typed.endswith("\\") and not self._chat.commands.pasting:
                typed = f"{typed[:-1]}\n"
                continue
            await self._process(typed)
            typed = ""
        if typed.strip():
            await self._process(typed)
        await self._end()

    async def _process(self, typed: str) -> None:
        self._shown_hint = ""
        await self._chat.process_input(typed)
        if self._wait_for_turns:
            await self._chat.idle.wait()

    def _changed(self) -> None:
        """Show the open question once."""
        if (input_hint := self._chat.input_hint) != self._shown_hint:
            self._shown_hint = input_hint
            if input_hint:
                self._chat.output.note(input_hint, "ask")

    async def _end(self) -> None:
        """Leave the chat and keep live agents.

        The user cannot be asked about these agents, because the input has ended.
        """
        if self._chat.commands.pasting:
            await self._process(END)
        if self._wait_for_turns:
            await self._chat.idle.wait()
        await self._chat.leave()
        if not self._chat.done.is_set():
            await self._chat.process_input("keep")


def _read(loop: asyncio.AbstractEventLoop, source: TextIO, lines: asyncio.Queue[str | None]) -> None:
    try:
        for line in source:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, None)
    except (RuntimeError, ValueError, OSError):
        pass  # the reader has ended
