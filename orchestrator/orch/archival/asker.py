"""Asking a caller's function for summaries: no longer than it may take, and never at the cost of the conversation."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from orch_protocol.config import SummaryConfig
from orch_protocol.errors import ConfigError
from orch_protocol.messages import Message
from orch_protocol.services import SummaryRequest
from orch_protocol.text import scrub

from .summary import ask

__all__ = ["Asker"]

MOST_WAITING: Final = 4
REASON_CHARS: Final = 300


class _Question(Struct):
    """One archive that is asked about, and what came of it: a text, or why there is none."""

    id: str
    text: str | None = None
    failure: tuple[str, str] | None = None


class Asker:
    """Asks `summarise` about archives, in threads that may take longer than anybody waits for them.

    Why there is no summary goes to `notes`, once for each kind of reason. Raises ConfigError for what cannot be called
    like that.
    """

    def __init__(self, summarise: Callable[[SummaryRequest], str], settings: SummaryConfig, notes: list[str]) -> None:
        if not callable(summarise) or inspect.iscoroutinefunction(summarise):
            kind = "an async function" if callable(summarise) else f"a {type(summarise).__name__}"
            raise ConfigError(f"summarise is {kind}: give a function that takes a SummaryRequest and returns text")
        self._summarise = summarise
        self._settings = settings
        self._notes = notes
        self._told: set[str] = set()
        self._late: list[tuple[threading.Thread, _Question]] = []

    def ask(self, id: str, messages: Sequence[Message]) -> str | None:
        """Return a summary of `messages`, the archive `id`; None when there is none in time. Never raises."""
        if sum(thread.is_alive() for thread, _ in self._late) >= MOST_WAITING:
            self._tell(id, ("busy", f"{MOST_WAITING} are being waited for"))
            return None
        question = _Question(id)
        # A thread, because nothing else gives up on a caller's function that does not return.
        thread = threading.Thread(target=self._work, args=(question, messages), name="orch-summary", daemon=True)
        thread.start()
        thread.join(self._settings.timeout_seconds)
        if thread.is_alive():
            self._late.append((thread, question))
            self._tell(id, ("late", f"not within {self._settings.timeout_seconds:g} s; put in when it comes"))
            return None
        return self._answer(question)

    def late(self) -> list[tuple[str, str]]:
        """Return the summaries, with the archives' ids, that came since they were last asked for. Waits for none."""
        done = [question for thread, question in self._late if not thread.is_alive()]
        self._late = [each for each in self._late if each[1] not in done]
        answers = [(question.id, self._answer(question)) for question in done]
        return [(id, text) for id, text in answers if text]

    def _work(self, question: _Question, messages: Sequence[Message]) -> None:
        settings = self._settings
        try:
            text = ask(messages, settings.style, settings.model, self._summarise)
        except BaseException as error:  # the caller's code: whatever it raises, the turn is archived
            name = type(error).__name__
            question.failure = (name, f"{name}: {error}")
        else:
            question.text = None if text is None else scrub(text)
            question.failure = ("unusable", f"what came back is no {settings.style} summary") if text is None else None

    def _answer(self, question: _Question) -> str | None:
        if question.failure is not None:
            self._tell(question.id, question.failure)
        return question.text

    def _tell(self, id: str, failure: tuple[str, str]) -> None:
        kind, reason = failure
        if kind not in self._told:
            self._told.add(kind)
            self._notes.append(f"no summary of archive {id}: {reason[:REASON_CHARS]} (said once)")
