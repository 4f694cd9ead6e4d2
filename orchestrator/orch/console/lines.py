"""A terminal that can do nothing, or none at all: lines in, lines out."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from typing import TextIO

from ..cli import render
from .chat import Chat
from .commanding import END
from .sheet import Sheet

__all__ = ["Lines", "Printed"]


class Printed(Sheet):
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
            stream.write(render.safe(text.replace("\r\n", "\n")) if safe else text)
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


class Lines:
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
        sheet = self._chat.sheet if isinstance(self._chat.sheet, Printed) else Printed()
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
