"""A recorded session as data: its messages, what each model call was reported to take, its own compactions."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Final, TypeAlias

from msgspec import Struct

from orch_protocol.archive import Collapse, Upgrade
from orch_protocol.errors import StoreError
from orch_protocol.messages import Message
from orch_worker.estimate import PLAIN, Estimator, Ratios
from orch_worker.view import View

__all__ = ["ASSUMED_BESIDE", "Archived", "Change", "Compaction", "Recorded", "Recording", "Scale", "scale_of"]

ASSUMED_BESIDE: Final = 12_000


class Recorded(Struct, frozen=True):
    """One message. Of an assistant's, `input_tokens` and `output_tokens` are what its call was reported to take.

    `at` is when, in seconds, if the recording tells; `id` the entry of a session file that it was.
    """

    message: Message
    input_tokens: int | None = None
    output_tokens: int | None = None
    at: float | None = None
    id: str = ""


class Compaction(Struct, frozen=True):
    """What the session itself did before message `before`: those before `kept` became `summary`."""

    before: int
    kept: int
    summary: str


class Archived(Struct, frozen=True):
    """What the session itself did before message `before`: a part of it went to a holder, or a stub reads better."""

    before: int
    change: Collapse | Upgrade


Change: TypeAlias = Compaction | Archived
"""What a session did about its own past."""


class Recording(Struct, frozen=True):
    """One conversation. `shape` is what it was recorded as; `ratios` those of the model it was recorded with."""

    name: str
    shape: str
    messages: tuple[Recorded, ...]
    changes: tuple[Change, ...] = ()
    ratios: Ratios = PLAIN

    @property
    def calls(self) -> list[int]:
        """The places of the messages that a model call gave: the first of each run of assistant messages."""
        return [
            place
            for place, each in enumerate(self.messages)
            if each.message.role == "assistant" and (not place or self.messages[place - 1].message.role != "assistant")
        ]

    def contexts(self) -> list[tuple[int, list[Message]]]:
        """Return each call's place and the messages its request really had: what the session itself did is done."""
        found: list[tuple[int, list[Message]]] = []
        calls = set(self.calls)
        changes: dict[int, list[Change]] = defaultdict(list)
        for change in self.changes:
            changes[change.before].append(change)
        view: View[int] = View()
        for place, each in enumerate(self.messages):
            for change in changes.get(place, ()):
                _apply(view, change)
            if place in calls:
                found.append((place, [message for message in view if message.content]))
            view.add(each.id or f"#{place}", each.message, place)
        return found


def _apply(view: View[int], change: Change) -> None:
    if isinstance(change, Compaction):
        stop = next((at for at, item in enumerate(view.items) if item.note >= change.kept), len(view.items))
        view.compact(change.summary, stop, f"#{change.before}", lambda _: -1)
    elif isinstance(change.change, Collapse):
        with contextlib.suppress(StoreError):  # as in the session: what is not shown any more cannot leave
            start, _ = view.part(change.change.first, change.change.last)
            view.collapse(change.change, view.items[start].note)
    else:
        view.upgrade(change.change)


class Scale:
    """How to size a recording's messages: an estimator, and the tokens beside the messages of each request.

    `told` says whether the recording itself told both, by the usage it reports.
    """

    def __init__(self, estimator: Estimator, beside: int, told: bool) -> None:
        self.estimator = estimator
        self.beside = beside
        self.told = told
        self._sizes: dict[int, tuple[Message, int]] = {}

    def size(self, message: Message) -> int:
        """Return about how many tokens `message` is."""
        known = self._sizes.get(id(message))
        if known is None or known[0] is not message:
            known = self._sizes[id(message)] = (message, self.estimator.message(message))
        return known[1]

    def sizes(self, messages: Iterable[Message]) -> int:
        """Return about how many tokens `messages` are together."""
        return sum(map(self.size, messages))


def scale_of(recording: Recording, beside: int | None = None) -> Scale:
    """Return the scale at which estimates meet what `recording` reports; without reports, the assumed one.

    `beside` overrides the tokens of system prompt and tools. A system message counts as part of them.
    """
    estimator = Estimator(recording.ratios)
    sizes = {id(each.message): estimator.raw(each.message) for each in recording.messages}
    reported: list[tuple[float, int]] = []
    for place, context in recording.contexts():
        tokens = recording.messages[place].input_tokens
        if tokens:
            raw = sum(sizes.get(id(message)) or estimator.raw(message) for message in context)
            estimator.observe(raw, tokens)
            reported.append((raw, tokens))
    if beside is None and reported:
        raw, tokens = reported[0]
        beside = max(0, round(tokens - raw * estimator.factor))
    elif beside is None:
        system = [each.message for each in recording.messages if each.message.role == "system"]
        beside = max(0, ASSUMED_BESIDE - estimator.messages(system))
    return Scale(estimator, beside, len(reported) > 1)
