"""The memory of one agent: the notes shown in each turn, and new notes. Threads do the disk access."""

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
from ..session.entry_codec import timestamp
from .notes import check_note, make_memory, memory_text, notes_within, rank_notes

__all__ = ["MemorySession"]

READ_SECONDS: Final = 3.0
MAX_FLUSHED: Final = 20
LOCAL_ONLY: Final = "no note was stored: this conversation is restricted to local models, and all agents can read notes"


class MemorySession:
    """The memory of the agent with the id `agent`, configured by `spec`.

    New notes get the `marks` of the conversation. While `is_local` returns True, no notes are added. The constructor
    raises ConfigError for an unknown provider.
    """

    def __init__(self, spec: MemorySpec, agent: str, marks: TaintLabels, is_local: Callable[[], bool]) -> None:
        self._spec = spec
        self._agent = agent
        self._marks = marks
        self._is_local = is_local
        self._memory = make_memory(spec)
        self._count_tokens = TokenEstimator().text
        self._turn = ""

    @property
    def flushes(self) -> bool:
        """Whether facts worth remembering are saved before a compaction."""
        return self._spec.flush and not self._is_local()

    async def turn_began(self, turn: str, prompt: str) -> str:
        """Return the memory block for the requests of the query `turn`, or "" if the notes cannot be read in time.

        Notes from conversations with taint labels are left out. The tool `recall` returns such notes with their labels.
        """
        self._turn = turn
        if not self._spec.tokens:
            return ""
        try:
            async with asyncio.timeout(READ_SECONDS):
                notes = await asyncio.to_thread(self._memory.notes)
        except (OrchError, TimeoutError) as error:
            print(f"memory: {error or 'it did not answer in time'}", flush=True)
            return ""
        except Exception:
            traceback.print_exc()  # A user's provider may raise any exception.
            return ""
        untainted = [note for note in notes if not note.marks]
        return memory_text(notes_within(rank_notes(untainted, prompt), self._spec.tokens, self._count_tokens))

    async def recall(self, query: str, tokens: int) -> list[Note]:
        """Return the notes most relevant to `query`, best first, in at most `tokens` tokens.

        Raise StoreError if reading fails.
        """
        notes = await asyncio.to_thread(self._memory.notes)
        return notes_within(rank_notes(notes, query), tokens, self._count_tokens)

    async def remember(self, text: str, source: NoteSource = "agent") -> Note:
        """Store `text` and return the note. Raise ConfigError for invalid text, and StoreError if writing fails."""
        if self._is_local():
            raise ConfigError(LOCAL_ONLY)
        try:
            checked_text = check_note(text, self._spec.note_chars)
        except ValueError as error:
            raise ConfigError(f"cannot store the note: {error}") from error
        note = Note(new_entry_id(()), checked_text, timestamp(), source, self._agent, self._turn, self._marks.content)
        return await asyncio.to_thread(self._memory.add, note)

    async def flush(self, texts: Iterable[str]) -> None:
        """Store `texts`, which come from a conversation that is being compacted. Errors are logged, not raised."""
        for text in list(texts)[:MAX_FLUSHED]:
            try:
                await self.remember(text[: self._spec.note_chars], "compaction")
            except OrchError as error:
                print(f"memory: {error}", flush=True)
            except Exception:
                traceback.print_exc()
