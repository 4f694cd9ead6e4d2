"""Values under handles: what is too large to be shown, or came from another agent, kept as it is and read in parts.

What can be made data is in a file, and is what it was when it was kept. The rest is the very object in this process:
it changes when code changes it, and goes with the process.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.core.errors import AgentError, NoValueError
from orch_protocol.core.messages import Reply
from orch_protocol.core.taint import Bit, TaintLabel, bits_in, inherited_labels, taint_label
from orch_protocol.core.values import TakenValue, TakeValue
from orch_protocol.services.resources import TAKE_VALUE

from ...system.files import regular_open_regular
from ...system.isolated_read import FatalBytesError, check_reads_safely
from ..api.base import ToolContext, ToolError
from .codec import EXTENSIONS, Kind, NotTransferableError, decode_value, encode_value
from .repr import bytes_text, summarize_value
from .store import TEXT, HandleFile, HandleMetadata, ValueFiles, handle_name

__all__ = [
    "MOST",
    "Handles",
    "StoredValue",
    "UnknownHandleError",
    "ValueStore",
    "adopt_value",
    "all_of",
    "data_of",
    "value_of",
]


MOST_STORED: Final = 64 << 20
MOST_ON_DISK: Final = 512 << 20
MOST_IN_MEMORY: Final = 256 << 20
READERS: Final = frozenset({"read_handle", "run_python"})
KINDS: Final = {ending: kind for kind, ending in EXTENSIONS.items()}


class StoredValue(Struct, frozen=True):
    """What is under a handle, such as `.h_001`. `stored` says whether it outlives the process, `note` what it is."""

    handle: str
    stored: bool
    note: HandleMetadata

    @property
    def head(self) -> str:
        """What it is, in one line."""
        note = self.note
        return ", ".join(filter(None, (note.type, note.extent, bytes_text(note.size))))

    def text(self, granted: frozenset[str]) -> str:
        """Return the marker that stands for the value: handle, type, extent, size, beginning, and how an agent with the
        tools `granted` reads it."""
        how = [
            "read_handle shows any part (op: head, tail, slice, schema, search)" * ("read_handle" in granted),
            f'in run_python it is handles["{self.handle[1:]}"]' * ("run_python" in granted),
            "none of your tools reads it, but whoever spawned you can take it by its handle"
            * granted.isdisjoint(READERS),
            "" if self.stored else f"not stored, so gone when this process ends: {self.note.why}",
        ]
        return "\n".join([f"[{self.handle}: {self.head}", *self.note.lines, f"{'; '.join(filter(None, how))}]"])


class ValueStore:
    """The values of one agent. Any thread may ask.

    What would take more room than there is lets the oldest go that is not pinned: `on_disk` and `in_memory` are how
    many bytes there may be.
    """

    def __init__(self, context: ToolContext, on_disk: int = MOST_ON_DISK, in_memory: int = MOST_IN_MEMORY) -> None:
        self._stash = context.own(ValueFiles) if context.folder is not None else None
        self._on_disk, self._in_memory = on_disk, in_memory
        self._alive: dict[str, Any] = {}
        self._notes: dict[str, HandleMetadata] = {}
        self._bits: dict[str, frozenset[Bit]] = {}
        self._lock = self._stash.lock if self._stash is not None else threading.RLock()
        self._told: list[str] = []
        self._read: tuple[str, Any] | None = None

    def keep(self, value: Any, *, bits: Collection[Bit] = (), local: bool = False) -> StoredValue:
        """Keep `value` and return what it is kept as. Raises OSError when a file cannot be written."""
        look = summarize_value(value)
        note = HandleMetadata(look.type, look.extent, look.size, look.lines, local=local)
        try:
            return self._stored(value, note, bits)
        except NotTransferableError as error:
            return self._hold(value, replace(note, why=str(error)), bits)

    def store(self, value: Any, *, bits: Collection[Bit] = (), local: bool = False) -> StoredValue:
        """Keep `value` as data. Raises NotTransferableError when it is none, or too large; OSError."""
        look = summarize_value(value)
        return self._stored(value, HandleMetadata(look.type, look.extent, look.size, look.lines, local=local), bits)

    def file(self, handle: str) -> HandleFile:
        """Return the file that holds what is stored under `handle`. Raises ToolError."""
        with self._lock:
            if (note := self._notes.get(handle_name(handle))) is not None:
                raise ToolError(f".{handle_name(handle)} is in this process alone: {note.why}.")
            return self._file(handle)

    def adopt(self, kind: str, data: bytes, note: HandleMetadata, *, bits: Collection[Bit] = ()) -> StoredValue:
        """Keep a value that is data already. Raises ToolError without a session folder, OSError."""
        if self._stash is None:
            raise ToolError("nothing is stashed here: this agent has no session folder")
        with self._lock:
            note = replace(note, kind=kind)
            handle = self._stash.put(data, EXTENSIONS[kind], bits, note)
            kept = StoredValue(handle, stored=True, note=self._stash.noted(handle) or note)
            self._make_room_on_disk(handle_name(handle))
        return kept

    def get(self, handle: str) -> StoredValue:
        """Return what is under `handle`. Raises ToolError when nothing is, or nothing any more."""
        with self._lock:
            name = handle_name(handle)
            if (note := self._notes.get(name)) is not None and name in self._alive:
                return StoredValue(f".{name}", stored=False, note=note)
            file = self._file(handle)
            assert self._stash is not None
            note = self._stash.noted(name) or self._described(name, file.ending)
            return StoredValue(f".{name}", stored=True, note=note)

    def load(self, handle: str, *, again: bool = False) -> Any:
        """Return the value under `handle`; with `again` maybe the same object as the last time, not to be changed.

        Raises ToolError, OSError.
        """
        with self._lock:
            name = handle_name(handle)
            if name in self._alive:
                return self._alive[name]
            file = self._file(handle)
            if again and self._read is not None and self._read[0] == name:
                return self._read[1]
            value = self._unpacked(name, file.ending)
            if again:
                self._read = (name, value)
            return value

    def marks(self, handle: str) -> tuple[TaintLabel, ...]:
        """Return what reading `handle` brings into a conversation."""
        held = self._bits.get(handle_name(handle))
        if held is not None:
            return tuple(taint_label(bit, f"what is kept as {handle}") for bit in sorted(held))
        return self._stash.marks(handle) if self._stash is not None else ()

    def pin(self, handle: str, pinned: bool = True) -> StoredValue:
        """Let a value never go to make room, or let it go again. Raises ToolError, OSError."""
        with self._lock:
            kept = self.get(handle)
            name, note = handle_name(handle), replace(kept.note, pinned=pinned)
            if name in self._notes:
                self._notes[name] = note
            if self._stash is not None:
                self._stash.note(name, note)
            return replace(kept, note=note)

    def drop(self, handle: str, why: str = "it was dropped") -> None:
        """Let a value be gone. Raises ToolError, OSError."""
        with self._lock:
            kept = self.get(handle)
            self._let_go(handle_name(handle), kept.note, why)

    def told(self) -> list[str]:
        """Return, once, what there is to be said of values that had to go."""
        with self._lock:
            told, self._told = self._told, []
            return told

    def rows(self) -> list[StoredValue]:
        """Return everything that can be read, in the order in which it was kept."""
        found = []
        for handle in self:
            try:
                found.append(self.get(handle))
            except (ToolError, OSError):
                continue  # it is gone
        return found

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            names = set(self._alive)
            if self._stash is not None:
                names |= set(self._stash.files())
        return iter([f".{name}" for name in sorted(names, key=lambda name: int(name[2:]))])

    def _stored(self, value: Any, note: HandleMetadata, bits: Collection[Bit]) -> StoredValue:
        if self._stash is None:
            raise NotTransferableError("this agent has no session folder")
        data = encode_value(value) if note.size <= MOST_STORED else None
        if data is None or len(data.data) > MOST_STORED:
            raise NotTransferableError(
                f"values of more than {bytes_text(MOST_STORED)} are not stored: write it to a file"
            )
        return self.adopt(data.kind, data.data, note, bits=bits)

    def _hold(self, value: Any, note: HandleMetadata, bits: Collection[Bit]) -> StoredValue:
        with self._lock:
            for name, held in self._alive.items():
                if held is value:
                    self._bits[name] |= frozenset(bits)
                    known = self._notes[name] = replace(self._notes[name], local=self._notes[name].local or note.local)
                    return StoredValue(f".{name}", stored=False, note=known)
            if self._stash is not None:
                name = self._stash.next()
                self._stash.note(name, note)
            else:
                name = f"h_{1 + max((int(name[2:]) for name in self._notes), default=0):03}"
            self._alive[name], self._notes[name], self._bits[name] = value, note, frozenset(bits)
            self._make_room_in_memory(name)
        return StoredValue(f".{name}", stored=False, note=note)

    def _make_room_on_disk(self, but: str) -> None:
        assert self._stash is not None
        files = {name: file for name, file in self._stash.files().items() if file.ending != TEXT}
        sizes = {name: file.path.stat().st_size for name, file in files.items()}
        over = sum(sizes.values()) - self._on_disk
        for name in sorted(sizes, key=lambda name: int(name[2:])):
            if over <= 0:
                return
            note = self._stash.noted(name) or self._described(name, files[name].ending)
            if name != but and not note.pinned:
                over -= sizes[name]
                self._let_go(name, note, f"stored values may take {bytes_text(self._on_disk)}, and it was the oldest")

    def _make_room_in_memory(self, but: str) -> None:
        over = sum(self._notes[name].size for name in self._alive) - self._in_memory
        for name in list(self._alive):
            if over <= 0:
                return
            note = self._notes[name]
            if name != but and not note.pinned:
                over -= note.size
                most = bytes_text(self._in_memory)
                self._let_go(name, note, f"values in memory may take {most} under handles, and it was the oldest")

    def _let_go(self, name: str, note: HandleMetadata, why: str) -> None:
        self._alive.pop(name, None)
        self._notes.pop(name, None)
        self._bits.pop(name, None)
        if self._read is not None and self._read[0] == name:
            self._read = None
        if self._stash is not None:
            self._stash.note(name, replace(note, lines=(), gone=why))
            self._stash.drop(name)
        self._told.append(f"[.{name} ({note.type}) is gone: {why}.]")

    def _file(self, handle: str) -> HandleFile:
        """Return the file under `handle`. Raises ToolError when there is none, which says why."""
        name = handle_name(handle)
        if self._stash is None:
            raise ToolError(f"No value {handle!r}. Available: {', '.join(self) or 'none'}.")
        if (file := self._stash.files().get(name)) is not None:
            return file
        note = self._stash.noted(name)
        if note is not None and not note.gone:
            raise ToolError(f".{name} is gone with the process that held it. It could not be stored: {note.why}.")
        raise ToolError(self._stash.missing(handle))

    def _unpacked(self, name: str, ending: str) -> Any:
        assert self._stash is not None
        try:
            return decode_value(KINDS.get(ending, ending), self._stash.read(name))
        except NotTransferableError as error:
            raise ToolError(f".{name} cannot be read: {error}.") from error

    def _described(self, name: str, ending: str) -> HandleMetadata:
        """Return what is known of a file without a note."""
        look = summarize_value(self._unpacked(name, ending))
        return HandleMetadata(look.type, look.extent, look.size, look.lines, kind=KINDS.get(ending, ending))


class UnknownHandleError(KeyError):
    """There is nothing under that handle, or nothing any more; says which and why."""

    __str__ = Exception.__str__


class Handles:
    """What code sees of the values: `handles["h_001"]`, or `handles[1]`, is a copy of what was kept.

    What could not be stored is the object itself. `seen` is called with each handle that is read, `brought` returns
    what those have brought along, which whatever is kept may be of, and whether one is local.
    """

    def __init__(
        self,
        values: ValueStore,
        seen: Callable[[str], None],
        brought: Callable[[], tuple[tuple[TaintLabel, ...], bool]],
    ) -> None:
        self._values = values
        self._seen = seen
        self._brought = brought

    def __getitem__(self, handle: str | int) -> Any:
        try:
            value = self._values.load(str(handle))
        except ToolError as error:
            raise UnknownHandleError(str(error)) from None
        self._seen(str(handle))
        return value

    def __contains__(self, handle: object) -> bool:
        return f".{handle_name(str(handle))}" in list(self._values)

    def __iter__(self) -> Iterator[str]:
        return (handle[1:] for handle in self._values)

    def __len__(self) -> int:
        return len(list(self._values))

    def __repr__(self) -> str:
        lines = [f"{kept.handle[1:]}: {kept.head}{', pinned' * kept.note.pinned}" for kept in self._values.rows()]
        return "\n".join(lines) or "<no handles>"

    def keep(self, value: Any) -> str:
        """Keep `value`, however small, and return its handle."""
        marks, local = self._brought()
        return self._values.keep(value, bits=bits_in(marks), local=local).handle[1:]

    def pin(self, handle: str | int) -> None:
        """Let a value never go to make room."""
        self._change(self._values.pin, handle)

    def unpin(self, handle: str | int) -> None:
        """Let it go again when there is no room."""
        self._change(lambda name: self._values.pin(name, pinned=False), handle)

    def drop(self, handle: str | int) -> None:
        """Let a value be gone."""
        self._change(self._values.drop, handle)

    def _change(self, how: Callable[[str], object], handle: str | int) -> None:
        try:
            how(str(handle))
        except ToolError as error:
            raise UnknownHandleError(str(error)) from None


# --- Taking over values of other agents ---

MOST: Final = 64 << 20
MOST_SECONDS: Final = 1.0
ASK: Final = "[Ask it for what was left out.]"
DEADLY: Final[dict[Kind, tuple[str, str]]] = {"arrow": ("polars", "read_ipc")}
"""What reads values of these kinds, and may end its process where they are not what they say."""


async def adopt_value(context: ToolContext, ref: str, name: str, *, local: bool) -> str:
    """Return the marker of the handle under which the value of `name` in the agent `ref` is kept here from now on; or
    that there is none, and why."""
    try:
        id, marker = await _taken_over(context, ref, name, local=local)
    except (AgentError, ToolError) as error:
        return f"[No value of {name!r} was returned: {error}]"
    except OSError as error:
        return f"[No value of {name!r} was returned: it cannot be kept here: {error.strerror}]"
    return f"{name} of agent {id} is kept here:\n{marker}"


async def all_of(context: ToolContext, reply: Reply) -> str:
    """Return the marker of the handle under which all of `reply`, which has a part of it, is kept here; where that
    cannot be had or read, what the agent can do instead."""
    if READERS.isdisjoint(context.granted):
        return ASK
    try:
        async with asyncio.timeout(MOST_SECONDS):  # the answer itself must still get through
            _, marker = await _taken_over(context, reply.id, reply.whole, local=reply.local)
    except (AgentError, ToolError, OSError) as error:
        print(f"{reply.whole} of {reply.id} was not taken over: {error}", flush=True)
        return ASK
    return f"All of it is kept here:\n{marker}"


async def _taken_over(context: ToolContext, ref: str, name: str, *, local: bool) -> tuple[str, str]:
    """Keep the value of `name` in the agent `ref` here; return that one's id, and the marker of the handle."""
    taken = await context.call_root(TAKE_VALUE, TakeValue(ref, name), context.seconds)
    values = context.own(ValueStore)
    kept = await asyncio.to_thread(_keep, values, taken, local)
    return taken.id, "\n".join([kept.text(context.granted), *values.told()])


def data_of(taken: TakenValue) -> bytes:
    """Return the bytes of the file that holds a value. Raises NoValueError when they are not those that were stored."""
    try:
        with regular_open_regular(Path(taken.path)) as file:
            data = file.read(MOST + 1)
    except OSError as error:
        raise NoValueError(f"what {taken.name!r} was cannot be read: {error.strerror or 'it is no file'}") from error
    if len(data) > MOST or not hashlib.sha256(data).hexdigest().startswith(taken.value.digest or "-"):
        raise NoValueError(f"the file of {taken.name!r} is not the one that was stored: ask for it again")
    return data


def value_of(taken: TakenValue) -> Any:
    """Return the value itself. Raises NoValueError, also where reading it would end this process."""
    data = _tasted(taken)
    try:
        return decode_value(taken.value.kind, data)
    except NotTransferableError as error:
        raise NoValueError(f"{taken.name!r} of agent {taken.id}: {error}") from error


def _tasted(taken: TakenValue) -> bytes:
    """Return the bytes that hold a value, of which nobody dies who reads them. Raises NoValueError."""
    data = data_of(taken)
    if (reader := DEADLY.get(taken.value.kind)) is not None:
        try:
            check_reads_safely(*reader, data)
        except FatalBytesError as error:
            raise NoValueError(f"{taken.name!r} of agent {taken.id} cannot be read: {error}") from error
    return data


def _keep(values: ValueStore, taken: TakenValue, local: bool) -> StoredValue:
    value = taken.value
    if value.kind not in EXTENSIONS:
        raise NoValueError(f"{taken.name!r} is of a kind that is not known here: {value.kind!r}")
    try:
        data = _tasted(taken)
    finally:
        Path(taken.path).unlink(missing_ok=True)  # a copy, made for this agent
    note = HandleMetadata(value.type, value.extent, value.size, value.lines, local=local or value.local)
    return values.adopt(value.kind, data, note, bits=bits_in(inherited_labels(value.marks, taken.id)))
