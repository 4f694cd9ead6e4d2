"""The root's journal: what happened to its agents, one entry a line. The tree is the fold of these entries.

Times are seconds since the epoch. Prompts stay in the agents' transcripts; here is their head alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from orch_protocol.archive import Source
from orch_protocol.budget import Amounts, Budget, BudgetChange
from orch_protocol.errors import ErrorInfo, StoreError
from orch_protocol.messages import Reply, Usage
from orch_protocol.models import Answers
from orch_protocol.spec import AgentSpec, BackendSpec, Durability, QueueMode
from orch_protocol.taint import Mark
from orch_protocol.text import scrub
from orch_protocol.wire import DECODE_ERRORS
from orch_worker.lines import Sealed
from orch_worker.rewriting import Rewriting, rewriting
from orch_worker.store import AppendLog, scan

__all__ = [
    "Answered",
    "Archived",
    "Asked",
    "Budgeted",
    "CatalogChanged",
    "Chosen",
    "Collected",
    "Ended",
    "Entry",
    "Heard",
    "Hearing",
    "Journal",
    "Kept",
    "KeptRun",
    "Killed",
    "Launched",
    "LetGo",
    "Localised",
    "Marked",
    "Moved",
    "Narrowed",
    "Opened",
    "PlanApproved",
    "Pruned",
    "PutAside",
    "Resumed",
    "RootBudgeted",
    "Spawned",
    "Spent",
    "Steered",
    "Stopping",
    "Titled",
    "Unsaid",
    "Up",
    "Woken",
    "decoded",
]

HEADER = b'{"type":"orch_journal","version":1}'
LARGE = 4 << 20
"""Bytes from which on a journal is written anew at the start of a root, when no more than `WORTH` of it is left."""
WORTH = 0.5


class _Entry(Struct, frozen=True, gc=False, kw_only=True, tag_field="type", omit_defaults=True):
    at: float


class Opened(_Entry, frozen=True, gc=False, kw_only=True, tag="opened"):
    """A root took the run over."""

    pid: int


class _Agent(_Entry, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    id: str


class Spawned(_Agent, frozen=True, gc=False, kw_only=True, tag="spawned"):
    """An agent exists. `request_id` is the caller's, for a repeated request.

    A `cold` one has a transcript already, and no process until it is asked; `repaired` tells what was wrong with what
    it was made from.
    """

    spec: AgentSpec
    request_id: str | None = None
    cold: bool = False
    repaired: str = ""


class Launched(_Agent, frozen=True, gc=False, kw_only=True, tag="launched"):
    """A process was asked for."""

    incarnation: int


class Up(_Agent, frozen=True, gc=False, kw_only=True, tag="up"):
    """The process has opened its transcript and waits; `repaired` tells what was wrong with that."""

    pid: int
    model: str = ""
    context_tokens: int = 0
    context_limit: int = 0
    repaired: str = ""


class Asked(_Agent, frozen=True, gc=False, kw_only=True, tag="asked"):
    """A query was accepted. `asker` is the agent that asks, None for the user's program.

    `stays` says that the answer is there until somebody takes it, however many queries follow.
    """

    query_id: str
    head: str
    asker: str | None = None
    waits: bool = False
    wake: str | int | None = None
    from_inbox: bool = False
    request_id: str | None = None
    stays: bool = False


class Answered(_Agent, frozen=True, gc=False, kw_only=True, tag="answered"):
    """A query is over, one way or the other. `taken_by` says who waited and so got the answer.

    `ended` says that the user ended it together with the agent's process.
    """

    query_id: str
    reply: Reply | None = None
    error: ErrorInfo | None = None
    usage: Usage = Usage()
    context_tokens: int = 0
    taken_by: str | None = None
    ended: bool = False


class Collected(_Agent, frozen=True, gc=False, kw_only=True, tag="collected"):
    """Somebody took the answer."""

    query_id: str
    by: str


class Stopping(_Agent, frozen=True, gc=False, kw_only=True, tag="stopping"):
    """The process was asked to leave; its agent goes cold."""


class Ended(_Agent, frozen=True, gc=False, kw_only=True, tag="ended"):
    """The process is gone. `status` is what the agent is now: cold, died, failed or killed; `starting` when another
    process is about to be started. With `crash` it counts against how many there may be."""

    incarnation: int
    status: str
    code: int | None = None
    error: str | None = None
    crash: bool = False


class Killed(_Agent, frozen=True, gc=False, kw_only=True, tag="killed"):
    """The agent was killed on purpose."""

    by: str


class Resumed(_Agent, frozen=True, gc=False, kw_only=True, tag="resumed"):
    """A killed or failed agent may answer again."""


class Budgeted(BudgetChange, frozen=True, gc=False, kw_only=True, tag_field="type", tag="budgeted"):
    """The agent may use so much from now on, with everything that it used before."""

    at: float
    id: str


class RootBudgeted(_Entry, frozen=True, gc=False, kw_only=True, tag="root_budgeted"):
    """All agents together may use so much, for as long as the configuration says what it said then."""

    change: BudgetChange
    configured: Budget


class Localised(_Agent, frozen=True, gc=False, kw_only=True, tag="localised"):
    """The agent's conversation is for models of this machine alone from now on: for the one behind `backend`."""

    backend: BackendSpec


class Chosen(_Agent, frozen=True, gc=False, kw_only=True, tag="chosen"):
    """`answers` is who answers for the agent from now on."""

    answers: Answers


class Marked(_Agent, frozen=True, gc=False, kw_only=True, tag="marked"):
    """All that came to the agent with what other agents asked it."""

    marks: tuple[Mark, ...]


class Narrowed(_Agent, frozen=True, gc=False, kw_only=True, tag="narrowed"):
    """The agent may not use these of its tools any more: all of them, those of before included."""

    withdrawn: tuple[str, ...]


class PlanApproved(_Agent, frozen=True, gc=False, kw_only=True, tag="plan_approved"):
    """Somebody approved the agent's plan: it is not in plan mode any more."""


class Steered(_Agent, frozen=True, gc=False, kw_only=True, tag="steered"):
    """Something was said to the agent, to be heard while it works."""

    steer_id: str
    text: str
    follow_up: bool = False


class Heard(_Agent, frozen=True, gc=False, kw_only=True, tag="heard"):
    """What was said is in the agent's conversation."""

    steer_id: str


class Titled(_Agent, frozen=True, gc=False, kw_only=True, tag="titled"):
    """What the agent's session is called now, "" for nothing; its file says so, too."""

    title: str


class CatalogChanged(_Agent, frozen=True, gc=False, kw_only=True, tag="catalog_changed"):
    """Other commands can be executed in the agent's session than before; for whoever shows them."""

    digest: str


class Unsaid(_Agent, frozen=True, gc=False, kw_only=True, tag="unsaid"):
    """What was said is not to be heard any more."""

    steer_ids: tuple[str, ...]


class Hearing(_Agent, frozen=True, gc=False, kw_only=True, tag="hearing"):
    """How many of the things said to the agent it hears at once from now on."""

    steering: QueueMode
    follow_up: QueueMode


class Archived(_Agent, frozen=True, gc=False, kw_only=True, tag="archived"):
    """Parts of the agent's conversation are holders' now: their ids and what they are about. Its transcript says all
    of it, and knows better. `problem` says why nothing could be archived."""

    holders: tuple[tuple[str, str], ...] = ()
    context_tokens: int = 0
    problem: str = ""


class Spent(_Agent, frozen=True, gc=False, kw_only=True, tag="spent"):
    """The agent used something beside its turns: for a summary of what it had archived."""

    usage: Usage


class PutAside(_Agent, frozen=True, gc=False, kw_only=True, tag="put_aside"):
    """The agent is about to use something in its query, `least` at least: what its budgets have is less by that."""

    query_id: str
    hold: str
    least: Amounts


class LetGo(_Agent, frozen=True, gc=False, kw_only=True, tag="let_go"):
    """What the agent used of what was put aside is on record, or nothing was."""

    hold: str


class Moved(_Agent, frozen=True, gc=False, kw_only=True, tag="moved"):
    """What a holder holds stands elsewhere now. None: a later entry says where."""

    source: Source | None


class Pruned(_Agent, frozen=True, gc=False, kw_only=True, tag="pruned"):
    """What `holders` of the agent held was deleted for good: ids, and when. So were the replies to its queries `turns`;
    with `session` all that was said to it, whose folder is "going" and then "gone".

    Nothing in the journal tells what they said; see `orch.deletions`.
    """

    holders: dict[str, str] = {}
    turns: dict[str, str] = {}
    session: Literal["", "going", "gone"] = ""


class Kept(_Agent, frozen=True, gc=False, kw_only=True, tag="kept"):
    """All that the entries before this one came to of the agent, a Node; they are in the file no more."""

    state: msgspec.Raw


class KeptRun(_Entry, frozen=True, gc=False, kw_only=True, tag="kept_run"):
    """All that they came to of what is no agent's."""

    state: msgspec.Raw


class Woken(_Agent, frozen=True, gc=False, kw_only=True, tag="woken"):
    """News for the agent, to be its next prompt."""

    text: str


Entry: TypeAlias = (
    Opened
    | Spawned
    | Launched
    | Up
    | Asked
    | Answered
    | Collected
    | Stopping
    | Ended
    | Killed
    | Resumed
    | Budgeted
    | RootBudgeted
    | Localised
    | Marked
    | PlanApproved
    | Narrowed
    | Woken
    | Steered
    | Heard
    | Titled
    | CatalogChanged
    | Chosen
    | Unsaid
    | Hearing
    | Archived
    | Spent
    | PutAside
    | LetGo
    | Moved
    | Pruned
    | Kept
    | KeptRun
)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Entry] = msgspec.json.Decoder(Entry)


def _encode(entry: Entry) -> bytes:
    try:
        return _encoder.encode(entry)
    except UnicodeEncodeError:
        return _encoder.encode(scrub(msgspec.to_builtins(entry)))


def decoded(line: bytes) -> Entry | None:
    """Return the entry that `line` is, None when it is none that this version knows."""
    try:
        return _decoder.decode(line)
    except DECODE_ERRORS:
        return None


class Journal:
    """The open journal of a run. Its owner holds the run folder's lock."""

    def __init__(self, log: AppendLog, entries: list[Entry], notes: list[str], synced: tuple[type[Entry], ...]) -> None:
        self.log = log
        self._synced = frozenset(synced)
        self.entries = entries
        self.notes = notes
        self._owed: list[Entry] = []
        self._unkept: set[str] = set()

    @classmethod
    def open(cls, path: Path, *, durability: Durability = "process") -> Journal:
        """Open or create the journal at `path`. Lines that are damaged or unknown are kept, skipped and noted."""
        log, loaded = AppendLog.open(path, header=HEADER)
        entries: list[Entry] = []
        notes = [f"{path}: {loaded.report}"] if loaded.report else []
        for number, line in enumerate(loaded.objects):
            try:
                entries.append(_decoder.decode(line))
            except DECODE_ERRORS as error:
                notes.append(f"{path}: entry {number + 1} skipped: {error}")
        synced = (Budgeted, Collected, Killed, Localised, Marked, Narrowed, PlanApproved, RootBudgeted)
        return cls(log, entries, notes, (*synced, Spawned) if durability == "power" else synced)

    def append(self, entries: list[Entry]) -> None:
        """Write `entries`, behind those that are owed, in one write: all or none. Raises StoreError.

        A collect, a kill, a budget, an approved plan, what was taken from an agent and where a conversation may be read
        are on the disk when this returns, with durability "power" a spawn too: no transcript has it.
        """
        entries = self._owed + [entry for entry in entries if self._is_kept(entry)]
        if entries:
            sync = not self._synced.isdisjoint(map(type, entries))
            self.log.append(*map(_encode, entries), sync=sync)
            self._owed = []

    def _is_kept(self, entry: Entry) -> bool:
        """Whether `entry` is about an agent that is kept, or about none."""
        if isinstance(entry, Spawned) and not entry.spec.persist:
            self._unkept.add(entry.id)
        return getattr(entry, "id", None) not in self._unkept

    def record(self, entries: list[Entry]) -> None:
        """Write what is a fact already. When that fails (a full disk) it is owed, and written with what comes next."""
        try:
            self.append(entries)
        except StoreError:
            self._owed = self._owed + [entry for entry in entries if self._is_kept(entry)]

    def taken(self) -> list[Entry]:
        """Return the entries that were in the file when it was opened; they are not kept here any longer."""
        entries, self.entries = self.entries, []
        return entries

    def shorten(self, kept: Callable[[], Sequence[Entry]]) -> bool:
        """Let the file hold what `kept` returns alone, to which all that it holds came, if that halves a large one;
        return whether it did. The old file is whole until the new one is.

        What follows is numbered as if nothing had been left out. A file with lines that are damaged or not known, or
        for which there is no room, stays as it is. No `sync` may be under way. Raises StoreError when it is gone then.
        """
        if self.log.end < LARGE or self.notes or self._owed:
            return False
        try:
            lines = [_encoder.encode(entry) for entry in kept()]
        except UnicodeEncodeError:  # half a character, which has been in no file so far
            return False
        if sum(map(len, lines)) > WORTH * self.log.end or len(lines) >= self.log.seq:
            return False
        first = self.log.seq - len(lines)
        try:
            self.sync()
            with self._anew() as new:
                new.append(HEADER, Sealed(b"", 0, 1, b"", more=False))
                for number, line in enumerate(lines, first + 1):
                    new.append(line, Sealed(b"", 0, number, b"", more=False))
        except StoreError:
            self.log.append()  # says so when it is not open
            return False
        return True

    @contextmanager
    def _anew(self) -> Iterator[Rewriting]:
        """Yield what is to be the file, which is closed meanwhile."""
        log, on_dirty = self.log, self.log.on_dirty
        log.close()
        try:
            with rewriting(log.path) as new:
                yield new
        finally:
            self.log, _ = AppendLog.open(log.path, header=HEADER)
            self.log.on_dirty = on_dirty

    def rewrite(self, change: Callable[[Sequence[Entry]], Sequence[Entry]]) -> None:
        """Let the entries be what `change` makes of them, one for one: the old file is whole until the new one is.

        What is owed or cannot be read stays as it is. No `sync` may be under way. Raises StoreError.
        """
        self.sync()
        with open(self.log.path, "rb") as file:
            lines = list(scan(file))
        entries = {at: it for at, (_, _, line, _) in enumerate(lines) if line and (it := decoded(line.object))}
        changed = dict(zip(entries, change(list(entries.values())), strict=True))
        if all(changed[place] is entry for place, entry in entries.items()):
            return
        with self._anew() as new:
            for place, (_, line, sealed, _) in enumerate(lines):
                if sealed is None:
                    new.keep(line)
                    continue
                same = place not in entries or changed[place] is entries[place]
                new.append(sealed.object if same else _encode(changed[place]), sealed)

    def sync(self) -> None:
        """Bring everything to the disk; may run in another thread than `append`. Raises StoreError."""
        if self.log.dirty:
            self.log.sync()

    def close(self) -> None:
        """Sync and close."""
        self.log.close()
