"""What one agent remembers: what it is told of it in each turn, and what it adds. The disk is looked at beside it."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterable
from typing import Final

from orch_protocol.core.errors import ConfigError, OrchError
from orch_protocol.core.ids import new_entry_id
from orch_protocol.resources.memory import MemorySpec, Note, NoteSource

from ..conversation.tokens import TokenEstimator
from ..policy.taint import TaintLabels
from ..session.transcript import timestamp
from .notes import check_note, make_memory, memory_text, notes_within, rank_notes

__all__ = ["MemorySession"]

LOOK_SECONDS: Final = 3.0
MOST_FLUSHED: Final = 20
LOCAL: Final = "this conversation is for models of this machine alone, and notes are for all: nothing was noted"


class MemorySession:
    """What the agent with that id remembers, as `spec` says.

    Notes bear the `marks` of its conversation; while that `is_local` it adds none. Raises ConfigError when there is no
    such provider.
    """

    def __init__(self, spec: MemorySpec, agent: str, marks: TaintLabels, is_local: Callable[[], bool]) -> None:
        self._spec = spec
        self._agent = agent
        self._marks = marks
        self._is_local = is_local
        self._memory = make_memory(spec)
        self._size = TokenEstimator().text
        self._turn = ""

    @property
    def flushes(self) -> bool:
        """Whether what is worth knowing is to be written down before a conversation is compacted."""
        return self._spec.flush and not self._is_local()

    async def turn_began(self, turn: str, prompt: str) -> str:
        """Return what the requests of the query `turn` are told; nothing when that cannot be had in time.

        What a marked conversation has noted is not among it: who asks for it gets it with its marks.
        """
        self._turn = turn
        if not self._spec.tokens:
            return ""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                notes = await asyncio.to_thread(self._memory.notes)
        except (OrchError, TimeoutError) as error:
            print(f"memory: {error or 'it did not answer in time'}", flush=True)
            return ""
        except Exception:
            traceback.print_exc()  # the provider may be anybody's
            return ""
        open_ones = [note for note in notes if not note.marks]
        return memory_text(notes_within(rank_notes(open_ones, prompt), self._spec.tokens, self._size))

    async def recall(self, query: str, tokens: int) -> list[Note]:
        """Return the notes that say most about `query`, the best first, in `tokens`. Raises StoreError."""
        notes = await asyncio.to_thread(self._memory.notes)
        return notes_within(rank_notes(notes, query), tokens, self._size)

    async def remember(self, text: str, source: NoteSource = "agent") -> Note:
        """Keep `text`, and return the note as it is kept. Raises ConfigError for what is none, StoreError."""
        if self._is_local():
            raise ConfigError(LOCAL)
        try:
            said = check_note(text, self._spec.note_chars)
        except ValueError as error:
            raise ConfigError(f"that cannot be noted: {error}") from error
        note = Note(new_entry_id(()), said, timestamp(), source, self._agent, self._turn, self._marks.content)
        return await asyncio.to_thread(self._memory.add, note)

    async def flush(self, texts: Iterable[str]) -> None:
        """Keep what a conversation that is compacted leaves behind, as far as that can be done. Does not raise."""
        for text in list(texts)[:MOST_FLUSHED]:
            try:
                await self.remember(text[: self._spec.note_chars], "compaction")
            except OrchError as error:
                print(f"memory: {error}", flush=True)
            except Exception:
                traceback.print_exc()
