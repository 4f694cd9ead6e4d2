"""A terminal: the conversation scrolls above, below it stands a prompt that always takes what is typed."""

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
from .text.styled_text import Piece, wrap

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
"""For how long what happens is gathered before it is shown: the prompt is drawn anew each time."""
LOOK_SECONDS: Final = 1.0
IDLE_SECONDS: Final = 4.0
LIVE_ROWS: Final = 6
"""So many rows of what is not complete stand above the prompt; what goes beyond scrolls away."""
PROMPT: Final = "> "
PROSE: Final = frozenset({"note", "error", "ask", "you", "call"})
"""Styles of lines of words, which end between these; others are as they are."""
HANG: Final = "  "
DEFAULT: Final = "DEFAULT_BUFFER"


class Screen:
    """Shows `chat` at a terminal. `history` is the file of what was typed, None to keep none; without `color` nothing
    is told by colour. `input` and `output` are the terminal's, unless they are given."""

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
        self._aside = ""
        self._topic = ""
        """The question that is on the screen: no other is answered by what is typed."""
        self._bound: tuple[dict[str, str] | None, KeyBindings] = None, KeyBindings()
        self._spaced = False
        """Whether a prompt has to be set off from what stands above it."""
        self._dirty = asyncio.Event()
        chat.changed = self._dirty.set
        self._tasks: set[asyncio.Task[Any]] = set()
        begins = Condition(lambda: self._session.default_buffer.text.startswith("/"))
        self._session: PromptSession[str] = PromptSession(
            message=self._message,
            multiline=True,
            prompt_continuation="  ",
            history=_history(history),
            completer=_Completer(chat),
            complete_while_typing=begins,
            complete_in_thread=True,
            bottom_toolbar=self._bar,
            key_bindings=merge_key_bindings([DynamicKeyBindings(self._brought), self._keys()]),
            style=STYLE,
            color_depth=None if color else ColorDepth.DEPTH_1_BIT,
            enable_suspend=True,
            erase_when_done=True,
            input=input,
            output=output,
        )
        # Keys of the library's that accept a line would end the prompt, and with it the chat.
        self._session.default_buffer.accept_handler = lambda _: True
        chat.sheet.resize(self._session.output.get_size().columns)

    async def run(self) -> None:
        """Show and listen until the person leaves, or the terminal is gone: then without a question."""
        self._print(self._chat.sheet.take())
        async with self._beside():
            try:
                await self._session.prompt_async()
            except EOFError:
                return  # the terminal is gone; the agent works on
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                return  # so it is
        self._print(self._chat.sheet.take())

    @asynccontextmanager
    async def _beside(self) -> AsyncIterator[None]:
        """Do meanwhile what goes on by itself."""
        loop = asyncio.get_running_loop()
        ends = (signal.SIGTERM, signal.SIGHUP)
        for number in ends:
            loop.add_signal_handler(number, self._chat.done.set)
        tasks = [asyncio.create_task(each) for each in (self._show(), self._watch(), self._end())]
        try:
            yield
        finally:
            for task in (*tasks, *self._tasks):
                task.cancel()
            await asyncio.gather(*tasks, *self._tasks, return_exceptions=True)
            for number in ends:
                loop.remove_signal_handler(number)

    # What is shown.

    def _message(self) -> FormattedText:
        """Return what stands before the cursor: the line under way, the question that is open."""
        found: list[tuple[str, str]] = []
        for line in self._chat.sheet.live[-LIVE_ROWS:]:
            found += [*_formatted(line), ("", "\n")]
        found += [("class:note", f"{each}\n") for each in self._chat.commands.widgets["panel"]]
        if self._chat.topic == self._topic and (asks := self._chat.asks):
            found.append(("class:ask", f"{asks}\n"))
        return FormattedText([*found, ("class:you", PROMPT)])

    def _bar(self) -> FormattedText:
        return FormattedText(_formatted(self._chat.bar(self._session.output.get_size().columns - 1)))

    async def _show(self) -> None:
        while True:
            await self._dirty.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._dirty.clear()
            self._take_draft()
            sheet, app = self._chat.sheet, self._session.app
            sheet.resize(self._session.output.get_size().columns)
            sheet.scroll(LIVE_ROWS)
            topic = self._chat.topic
            if sheet.pending and app.is_running:
                async with in_terminal():
                    self._print(sheet.take())
            self._topic = topic
            app.invalidate()

    def _print(self, lines: Iterable[list[Piece]]) -> None:
        text: list[tuple[str, str]] = []
        width = self._session.output.get_size().columns
        for line in lines:
            if self._spaced and line and line[0][0] == "you" and line[0][1].startswith(PROMPT):
                text.append(("", "\n"))
            self._spaced = any(piece.strip() for _, piece in line)
            for row in wrap(line, width, hang=HANG) if len(line) == 1 and line[0][0] in PROSE else [line]:
                text += [*_formatted(row), ("", "\n")]
        if text:
            print_formatted_text(
                FormattedText(text),
                end="",
                style=STYLE,
                output=self._session.output,
                color_depth=self._session.color_depth,
                include_default_pygments_style=False,
            )

    def _take_draft(self) -> None:
        """Lay aside what is being typed when a question comes, and take it up again when it is answered."""
        chat, buffer = self._chat, self._session.default_buffer
        self._aside, chat.draft = self._aside + chat.draft, ""
        if chat.topic:
            if not self._topic and buffer.text:
                self._aside += buffer.text
                buffer.reset()
        elif self._aside:
            buffer.insert_text(self._aside)
            self._aside = ""
        if chat.copied is not None:
            # What terminals take for their clipboard; those that do not, ignore it.
            data = base64.b64encode(chat.copied.encode("utf-8", "replace")).decode()
            self._session.output.write_raw(f"\x1b]52;c;{data}\x07")
            self._session.output.flush()
            chat.copied = None

    async def _watch(self) -> None:
        """Keep what is said of all agents up to date."""
        while True:
            await asyncio.sleep(LOOK_SECONDS if self._chat.lively else IDLE_SECONDS)
            await self._chat.look()

    async def _end(self) -> None:
        await self._chat.done.wait()
        if self._session.app.is_running:
            self._session.app.exit(result="")

    # What is typed.

    def _keys(self) -> KeyBindings:
        keys, here = KeyBindings(), has_focus(DEFAULT)

        @keys.add("enter", filter=here)
        def _enter(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            chosen = buffer.complete_state is not None and buffer.complete_state.current_completion is not None
            if chosen and not buffer.text.startswith("/"):
                buffer.complete_state = None  # the path is chosen, the prompt goes on
            elif _goes_on(buffer.document) and not self._chat.commands.pasting:
                buffer.delete_before_cursor()
                buffer.newline(copy_margin=False)
            else:
                self._enter(event, follow_up=False)

        @keys.add("escape", "enter", filter=here)
        def _alt_enter(event: KeyPressEvent) -> None:
            self._enter(event, follow_up=True)

        @keys.add("c-j", filter=here)
        def _newline(event: KeyPressEvent) -> None:
            event.current_buffer.newline(copy_margin=False)

        @keys.add("c-x", "c-e", filter=here)
        def _edit(event: KeyPressEvent) -> None:
            event.current_buffer.open_in_editor()

        @keys.add("c-c")
        @keys.add("<sigint>")
        def _interrupt(event: KeyPressEvent) -> None:
            self._start(self._interrupt(event.current_buffer.text))

        @keys.add("c-d", filter=here & Condition(lambda: not self._session.default_buffer.text))
        def _leave(_: KeyPressEvent) -> None:
            self._start(self._chat.leave())

        @keys.add(Keys.BracketedPaste, filter=here)
        def _paste(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text(self._chat.pastes.fold(event.data))

        return keys

    def _brought(self) -> KeyBindings:
        """Return the keys that extensions bring, each of which runs a line; those of the console go before them."""
        wanted = self._chat.commands.keys
        if self._bound[0] is not wanted:
            keys = KeyBindings()
            for key, line in wanted.items():
                keys.add(*key.split(" "), filter=has_focus(DEFAULT))(partial(self._run, line))
            self._bound = wanted, keys
        return self._bound[1]

    def _run(self, line: str, _: KeyPressEvent) -> None:
        if not self._chat.asks:
            self._start(self._chat.take(line))

    def _enter(self, event: KeyPressEvent, *, follow_up: bool) -> None:
        buffer = event.current_buffer
        text = buffer.text
        if text.strip() and not self._chat.asks:
            buffer.append_to_history()
        buffer.reset()
        if self._chat.topic and self._chat.topic != self._topic:
            self._aside += text  # it was on its way before the question was there to be read
            return
        self._start(self._chat.take(text, follow_up=follow_up, topic=self._chat.topic))

    async def _interrupt(self, typed: str) -> None:
        if await self._chat.interrupt(typed=bool(typed)) == "clear":
            self._session.default_buffer.reset()

    def _start(self, what: Any) -> None:
        task = asyncio.ensure_future(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Completer(Completer):
    """Completes with what the chat knows."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    def get_completions(self, document: Document, _: CompleteEvent) -> Iterable[Completion]:
        """Yield what may stand at the cursor."""
        known, folder = self._chat.commands, str(self._chat.agent["cwd"])  # which paths are for the agent to find in
        before = document.text_before_cursor
        for each in suggestions(before, known.known, self._chat.rows, known.arguments, cwd=folder):
            yield Completion(each.text, start_position=-each.length, display_meta=each.about)


class _Kept(FileHistory):
    """Keeps what was typed in a file, as long as that can be written: nobody is kept from saying it."""

    def store_string(self, string: str) -> None:
        """Write it down."""
        with suppress(OSError):
            super().store_string(scrub(string))


def _goes_on(document: Document) -> bool:
    return document.is_cursor_at_the_end and document.text_before_cursor.endswith("\\")


def _history(file: Path | None) -> History:
    return InMemoryHistory() if file is None else _Kept(str(file))


def _formatted(line: Iterable[Piece]) -> list[tuple[str, str]]:
    return [(f"class:{style}" if style else "", text) for style, text in line]


# --- Keys that are pressed before there is a prompt ---

INPUT: Final = 0
MODES: Final = 3
"""Where the two stand in what termios tells of a terminal."""


@contextmanager
def buffer_early_keys(descriptor: int) -> Iterator[None]:
    """Let keys wait for whoever reads them from the terminal, unseen, and Enter as what it is: no end of a line,
    which could be Ctrl-J. Ctrl-C interrupts as ever."""
    try:
        before = termios.tcgetattr(descriptor)
    except termios.error:
        yield  # it is no terminal
        return
    now = list(before)
    now[INPUT] &= ~termios.ICRNL
    now[MODES] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(descriptor, termios.TCSANOW, now)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(descriptor, termios.TCSANOW, before)


# --- A terminal that can do nothing, or none at all ---


class PlainScreen(LiveText):
    """A sheet that is printed as it is written: what the agent says on stdout, everything else on stderr."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        super().__init__()
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._open = False
        self.gone = asyncio.Event()
        """Set when what the agent says cannot be written any more."""
        self.why: OSError = BrokenPipeError()
        """Why not."""

    def text(self, text: str, style: str = "") -> None:
        """Print `text`, all of it as it is."""
        stream = self._err if style else self._out
        safe = self._out.isatty() or style
        try:
            stream.write(terminal.safe(text.replace("\r\n", "\n")) if safe else text)
            stream.flush()
        except OSError as error:
            self.why = error
            self.gone.set()
        if not style:
            self._open = not text.endswith("\n")

    def note(self, text: str, style: str = "note") -> None:
        """Print lines of their own."""
        self.close()
        self.text(f"{text}\n", style)

    def pieces(self, lines: object) -> None:
        """Print lines without their styles."""
        for line in lines:  # type: ignore[attr-defined]
            self.note("".join(text.replace("\n", "\\n") for _, text in line))

    def close(self) -> None:
        """Finish the line."""
        if self._open:
            self.text("\n")


class LineInput:
    """Reads `chat`'s lines from `source`. With `waits` each is said when the last one was answered; without, as it
    comes: while the agent works it steers."""

    def __init__(self, chat: Chat, source: TextIO, *, waits: bool) -> None:
        self._chat = chat
        self._source = source
        self._waits = waits
        self._asked = ""
        chat.changed = self._changed

    async def run(self) -> None:
        """Talk until the lines end. Raises OSError when what comes of them cannot be written."""
        loop, lines = asyncio.get_running_loop(), asyncio.Queue[str | None]()
        loop.add_signal_handler(signal.SIGINT, lambda: asyncio.ensure_future(self._chat.interrupt()))
        loop.add_signal_handler(signal.SIGHUP, self._chat.done.set)
        threading.Thread(target=_read, args=(loop, self._source, lines), daemon=True).start()
        sheet = self._chat.sheet if isinstance(self._chat.sheet, PlainScreen) else PlainScreen()
        talk = asyncio.ensure_future(self._talk(lines))
        ends = [talk, *(asyncio.ensure_future(each.wait()) for each in (self._chat.done, sheet.gone))]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if talk.done():
                talk.result()
            if sheet.gone.is_set():
                raise sheet.why
        finally:
            for each in ends:
                each.cancel()
            loop.remove_signal_handler(signal.SIGINT)
            loop.remove_signal_handler(signal.SIGHUP)

    async def _talk(self, lines: asyncio.Queue[str | None]) -> None:
        typed = ""
        while (said := await lines.get()) is not None:
            typed += said.rstrip("\r\n")
            if typed.endswith("\\") and not self._chat.commands.pasting:
                typed = f"{typed[:-1]}\n"
                continue
            await self._take(typed)
            typed = ""
        if typed.strip():
            await self._take(typed)
        await self._end()

    async def _take(self, typed: str) -> None:
        self._asked = ""
        await self._chat.take(typed)
        if self._waits:
            await self._chat.idle.wait()

    def _changed(self) -> None:
        """Say what is asked, once."""
        if (asks := self._chat.asks) != self._asked:
            self._asked = asks
            if asks:
                self._chat.sheet.note(asks, "ask")

    async def _end(self) -> None:
        """Leave, and keep what lives: nobody can be asked any more."""
        if self._chat.commands.pasting:
            await self._take(END)
        if self._waits:
            await self._chat.idle.wait()
        await self._chat.leave()
        if not self._chat.done.is_set():
            await self._chat.take("keep")


def _read(loop: asyncio.AbstractEventLoop, source: TextIO, lines: asyncio.Queue[str | None]) -> None:
    try:
        for line in source:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, None)
    except (RuntimeError, ValueError, OSError):
        pass  # nobody reads any more
