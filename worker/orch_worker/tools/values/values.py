"""Values under handles. Values under handles are too large to show, or come from another agent.

Values are stored completely and read in parts. A value that can be encoded is stored in a file and does not change. Any
other value is kept as an object in this process. Code can change such an object, and the object is lost when the
process ends.
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
from orch_protocol.services.resources.values import TAKE_VALUE, TakenValue, TakeValue

from ...system.files import open_regular_file
from ...system.isolated_read import FatalBytesError, check_reads_safely
from ..api.base import ToolContext, ToolError
from .codec import EXTENSIONS, Kind, NotTransferableError, decode_value, encode_value
from .repr import bytes_text, summarize_value
from .store import TEXT, HandleFile, HandleMetadata, ValueFiles, handle_name

__all__ = [
    "MAX_TAKEN_BYTES",
    "Handles",
    "StoredValue",
    "UnknownHandleError",
    "ValueStore",
    "adopt_value",
    "read_taken_bytes",
    "store_full_reply",
    "value_of",
]


MAX_STORED: Final = 64 << 20
MAX_ON_DISK: Final = 512 << 20
MAX_IN_MEMORY: Final = 256 << 20
READERS: Final = frozenset({"read_handle", "run_python"})
KINDS: Final = {ending: kind for kind, ending in EXTENSIONS.items()}


class StoredValue(Struct, frozen=True):
    """The value under a handle such as `.h_001`.

    `stored` is True if the value outlives the process. `note` is the metadata of the value.
    """

    handle: str
    stored: bool
    note: HandleMetadata

    @property
    def head(self) -> str:
        """A one-line description."""
        note = self.note
        return ", ".join(filter(None, (note.type, note.extent, bytes_text(note.size))))

    def text(self, granted: frozenset[str]) -> str:
        """Return the marker for the conversation: handle, type, extent, size, first items, and how to read the value.

        `granted` are the names of the agent's tools.
        """
        instructions = [
            "read_handle shows any part (op: head, tail, slice, schema, search)" * ("read_handle" in granted),
            f'in run_python it is handles["{self.handle[1:]}"]' * ("run_python" in granted),
            "none of your tools can read it, but your parent can get it by its handle" * granted.isdisjoint(READERS),
            "" if self.stored else f"not stored, so gone when this process ends: {self.note.not_stored_reason}",
        ]
        return "\n".join(
            [f"[{self.handle}: {self.head}", *self.note.lines, f"{'; '.join(filter(None, instructions))}]"]
        )


class ValueStore:
    """The values of one agent. Thread-safe.

    If the limits `on_disk` or `in_memory` (bytes) are exceeded, the oldest unpinned values are dropped.
    """

    def __init__(self, context: ToolContext, on_disk: int = MAX_ON_DISK, in_memory: int = MAX_IN_MEMORY) -> None:
        self._files = context.agent_object(ValueFiles) if context.folder is not None else None
        self._on_disk, self._in_memory = on_disk, in_memory
        self._objects: dict[str, Any] = {}
        self._notes: dict[str, HandleMetadata] = {}
        self._bits: dict[str, frozenset[Bit]] = {}
        self._lock = self._files.lock if self._files is not None else threading.RLock()
        self._notices: list[str] = []
        self._cached: tuple[str, Any] | None = None

    def keep(self, value: Any, *, bits: Collection[Bit] = (), local: bool = False) -> StoredValue:
        """Store `value`, encoded or as an object. Return its handle. Raise OSError if a file cannot be written."""
        summary = summarize_value(value)
        note = HandleMetadata(summary.type, summary.extent, summary.size, summary.lines, local=local)
        try:
            return self._store_encoded(value, note, bits)
        except NotTransferableError as error:
            return self._store_object(value, replace(note, not_stored_reason=str(error)), bits)

    def store(self, value: Any, *, bits: Collection[Bit] = (), local: bool = False) -> StoredValue:
        """Store `value` in encoded form.

        Raise OSError if writing fails, and NotTransferableError if the value cannot be encoded or is too large.
        """
        summary = summarize_value(value)
        return self._store_encoded(
            value, HandleMetadata(summary.type, summary.extent, summary.size, summary.lines, local=local), bits
        )

    def file(self, handle: str) -> HandleFile:
        """Return the file of the value under `handle`. Raise ToolError if there is no file."""
        with self._lock:
            if (note := self._notes.get(handle_name(handle))) is not None:
                raise ToolError(f".{handle_name(handle)} exists only in this process: {note.not_stored_reason}.")
            return self._file(handle)

    def adopt(self, kind: str, data: bytes, note: HandleMetadata, *, bits: Collection[Bit] = ()) -> StoredValue:
        """Store a value that is already encoded.

        Raise OSError if writing fails, and ToolError if the agent has no session folder.
        """
        if self._files is None:
            raise ToolError("no values are stored: this agent has no session folder")
        with self._lock:
            note = replace(note, kind=kind)
            handle = self._files.put(data, EXTENSIONS[kind], bits, note)
            stored_value = StoredValue(handle, stored=True, note=self._files.metadata(handle) or note)
            self._make_room_on_disk(handle_name(handle))
        return stored_value

    def get(self, handle: str) -> StoredValue:
        """Return the handle and metadata of a value. Raise ToolError if the value does not exist or was dropped."""
        with self._lock:
            name = handle_name(handle)
            if (note := self._notes.get(name)) is not None and name in self._objects:
                return StoredValue(f".{name}", stored=False, note=note)
            file = self._file(handle)
            assert self._files is not None
            note = self._files.metadata(name) or self._describe_file(name, file.extension)
            return StoredValue(f".{name}", stored=True, note=note)

    def load(self, handle: str, *, use_cache: bool = False) -> Any:
        """Return the value under `handle`. If `use_cache` is True, the result may be cached and must not be modified.

        Raise ToolError if there is no such value, and OSError if reading fails.
        """
        with self._lock:
            name = handle_name(handle)
            if name in self._objects:
                return self._objects[name]
            file = self._file(handle)
            if use_cache and self._cached is not None and self._cached[0] == name:
                return self._cached[1]
            value = self._decode_file(name, file.extension)
            if use_cache:
                self._cached = (name, value)
            return value

    def taint_labels(self, handle: str) -> tuple[TaintLabel, ...]:
        """Return the taint labels of the value under `handle`."""
        bits = self._bits.get(handle_name(handle))
        if bits is not None:
            return tuple(taint_label(bit, f"what is kept as {handle}") for bit in sorted(bits))
        return self._files.taint_labels(handle) if self._files is not None else ()

    def pin(self, handle: str, pinned: bool = True) -> StoredValue:
        """Pin or unpin a value. Pinned values are not dropped when space is needed.

        Raise ToolError if there is no such value, and OSError if writing fails.
        """
        with self._lock:
            stored_value = self.get(handle)
            name, note = handle_name(handle), replace(stored_value.note, pinned=pinned)
            if name in self._notes:
                self._notes[name] = note
            if self._files is not None:
                self._files.note(name, note)
            return replace(stored_value, note=note)

    def drop(self, handle: str, why: str = "it was dropped") -> None:
        """Drop a value. Raise ToolError if there is no such value, and OSError if deletion fails."""
        with self._lock:
            stored_value = self.get(handle)
            self._remove(handle_name(handle), stored_value.note, why)

    def take_notices(self) -> list[str]:
        """Return the messages about dropped values since the last call."""
        with self._lock:
            notices, self._notices = self._notices, []
            return notices

    def rows(self) -> list[StoredValue]:
        """Return all readable values, oldest first."""
        found = []
        for handle in self:
            try:
                found.append(self.get(handle))
            except (ToolError, OSError):
                continue  # The value was dropped in the meantime.
        return found

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            names = set(self._objects)
            if self._files is not None:
                names |= set(self._files.files())
        return iter([f".{name}" for name in sorted(names, key=lambda name: int(name[2:]))])

    def _store_encoded(self, value: Any, note: HandleMetadata, bits: Collection[Bit]) -> StoredValue:
        if self._files is None:
            raise NotTransferableError("this agent has no session folder")
        data = encode_value(value) if note.size <= MAX_STORED else None
        if data is None or len(data.data) > MAX_STORED:
            raise NotTransferableError(
                f"values of more than {bytes_text(MAX_STORED)} are not stored: write the value to a file"
            )
        return self.adopt(data.kind, data.data, note, bits=bits)

    def _store_object(self, value: Any, note: HandleMetadata, bits: Collection[Bit]) -> StoredValue:
        with self._lock:
            for name, stored_object in self._objects.items():
                if stored_object is value:
                    self._bits[name] |= frozenset(bits)
                    metadata = self._notes[name] = replace(
                        self._notes[name], local=self._notes[name].local or note.local
                    )
                    return StoredValue(f".{name}", stored=False, note=metadata)
            if self._files is not None:
                name = self._files.next_handle()
                self._files.note(name, note)
            else:
                name = f"h_{1 + max((int(name[2:]) for name in self._notes), default=0):03}"
            self._objects[name], self._notes[name], self._bits[name] = value, note, frozenset(bits)
            self._make_room_in_memory(name)
        return StoredValue(f".{name}", stored=False, note=note)

    def _make_room_on_disk(self, new_name: str) -> None:
        assert self._files is not None
        files = {name: file for name, file in self._files.files().items() if file.extension != TEXT}
        sizes = {name: file.path.stat().st_size for name, file in files.items()}
        excess_bytes = sum(sizes.values()) - self._on_disk
        for name in sorted(sizes, key=lambda name: int(name[2:])):
            if excess_bytes <= 0:
                return
            note = self._files.metadata(name) or self._describe_file(name, files[name].extension)
            if name != new_name and not note.pinned:
                excess_bytes -= sizes[name]
                self._remove(name, note, f"stored values may take {bytes_text(self._on_disk)}, and it was the oldest")

    def _make_room_in_memory(self, new_name: str) -> None:
        excess_bytes = sum(self._notes[name].size for name in self._objects) - self._in_memory
        for name in list(self._objects):
            if excess_bytes <= 0:
                return
            note = self._notes[name]
            if name != new_name and not note.pinned:
                excess_bytes -= note.size
                limit = bytes_text(self._in_memory)
                self._remove(name, note, f"values in memory may take {limit} under handles, and it was the oldest")

    def _remove(self, name: str, note: HandleMetadata, why: str) -> None:
        self._objects.pop(name, None)
        self._notes.pop(name, None)
        self._bits.pop(name, None)
        if self._cached is not None and self._cached[0] == name:
            self._cached = None
        if self._files is not None:
            self._files.note(name, replace(note, lines=(), deletion_reason=why))
            self._files.drop(name)
        self._notices.append(f"[.{name} ({note.type}) is gone: {why}.]")

    def _file(self, handle: str) -> HandleFile:
        """Return the file under `handle`. If there is no file, raise ToolError with the reason."""
        name = handle_name(handle)
        if self._files is None:
            raise ToolError(f"No value {handle!r}. Available: {', '.join(self) or 'none'}.")
        if (file := self._files.files().get(name)) is not None:
            return file
        note = self._files.metadata(name)
        if note is not None and not note.deletion_reason:
            raise ToolError(
                f".{name} is gone with the process that held it. It could not be stored: {note.not_stored_reason}."
            )
        raise ToolError(self._files.missing(handle))

    def _decode_file(self, name: str, extension: str) -> Any:
        assert self._files is not None
        try:
            return decode_value(KINDS.get(extension, extension), self._files.read(name))
        except NotTransferableError as error:
            raise ToolError(f".{name} cannot be read: {error}.") from error

    def _describe_file(self, name: str, extension: str) -> HandleMetadata:
        """Return metadata for a file that has no note."""
        summary = summarize_value(self._decode_file(name, extension))
        return HandleMetadata(
            summary.type, summary.extent, summary.size, summary.lines, kind=KINDS.get(extension, extension)
        )


class UnknownHandleError(KeyError):
    """There is no value under this handle, or the value was dropped. The message gives the reason."""

    __str__ = Exception.__str__


class Handles:
    """The values as the agent's code sees them. `handles["h_001"]` or `handles[1]` returns a copy of the stored value.

    A value that could not be stored is returned as the object itself. `on_read` is called with each handle that code
    reads. `current_labels` returns the taint labels of the values read so far, and whether one of these values is
    local-only. New values inherit the labels.
    """

    def __init__(
        self,
        values: ValueStore,
        on_read: Callable[[str], None],
        current_labels: Callable[[], tuple[tuple[TaintLabel, ...], bool]],
    ) -> None:
        self._values = values
        self._on_read = on_read
        self._current_labels = current_labels

    def __getitem__(self, handle: str | int) -> Any:
        try:
            value = self._values.load(str(handle))
        except ToolError as error:
            raise UnknownHandleError(str(error)) from None
        self._on_read(str(handle))
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
        """Store `value`, which may have any size, and return its handle."""
        labels, local = self._current_labels()
        return self._values.keep(value, bits=bits_in(labels), local=local).handle[1:]

    def pin(self, handle: str | int) -> None:
        """Pin a value, so that it is not dropped when space is needed."""
        self._change(self._values.pin, handle)

    def unpin(self, handle: str | int) -> None:
        """Unpin a value, so that it may be dropped when space is needed."""
        self._change(lambda name: self._values.pin(name, pinned=False), handle)

    def drop(self, handle: str | int) -> None:
        """Drop a value."""
        self._change(self._values.drop, handle)

    def _change(self, action: Callable[[str], object], handle: str | int) -> None:
        try:
            action(str(handle))
        except ToolError as error:
            raise UnknownHandleError(str(error)) from None


# --- Values of other agents ---

MAX_TAKEN_BYTES: Final = 64 << 20
MAX_SECONDS: Final = 1.0
ASK_HINT: Final = "[Ask it for what was left out.]"
CRASHING_READERS: Final[dict[Kind, tuple[str, str]]] = {"arrow": ("polars", "read_ipc")}
"""Libraries and functions that decode these kinds of values and may crash on invalid data."""


async def adopt_value(context: ToolContext, ref: str, name: str, *, local: bool) -> str:
    """Store the value `name` of the agent `ref` here. Return its marker, or the reason for a failure."""
    try:
        id, marker = await _copy_value(context, ref, name, local=local)
    except (AgentError, ToolError) as error:
        return f"[No value of {name!r} was returned: {error}]"
    except OSError as error:
        return f"[No value of {name!r} was returned: it cannot be stored here: {error.strerror}]"
    return f"{name} of agent {id} is kept here:\n{marker}"


async def store_full_reply(context: ToolContext, reply: Reply) -> str:
    """Store the complete text of the shortened `reply`. Return its marker.

    On failure, return a text that suggests what the agent can do instead.
    """
    if READERS.isdisjoint(context.granted):
        return ASK_HINT
    try:
        async with asyncio.timeout(MAX_SECONDS):  # The reply itself must not be delayed.
            _, marker = await _copy_value(context, reply.id, reply.whole, local=reply.local)
    except (AgentError, ToolError, OSError) as error:
        print(f"{reply.whole} of {reply.id} was not copied: {error}", flush=True)
        return ASK_HINT
    return f"All of it is kept here:\n{marker}"


async def _copy_value(context: ToolContext, ref: str, name: str, *, local: bool) -> tuple[str, str]:
    """Store the value `name` of the agent `ref` here. Return the agent's id and the marker of the handle."""
    taken = await context.call_root(TAKE_VALUE, TakeValue(ref, name), context.seconds)
    values = context.agent_object(ValueStore)
    stored = await asyncio.to_thread(_adopt, values, taken, local)
    return taken.id, "\n".join([stored.text(context.granted), *values.take_notices()])


def read_taken_bytes(taken: TakenValue) -> bytes:
    """Return the bytes of a value's file. Raise NoValueError if the bytes differ from the stored bytes."""
    try:
        with open_regular_file(Path(taken.path)) as file:
            data = file.read(MAX_TAKEN_BYTES + 1)
    except OSError as error:
        raise NoValueError(f"cannot read the file of {taken.name!r}: {error.strerror or 'it is not a file'}") from error
    if len(data) > MAX_TAKEN_BYTES or not hashlib.sha256(data).hexdigest().startswith(taken.value.digest or "-"):
        raise NoValueError(f"the file of {taken.name!r} differs from the stored file: request the value again")
    return data


def value_of(taken: TakenValue) -> Any:
    """Return the value. Raise NoValueError if decoding fails or would crash this process."""
    data = _check_bytes(taken)
    try:
        return decode_value(taken.value.kind, data)
    except NotTransferableError as error:
        raise NoValueError(f"{taken.name!r} of agent {taken.id}: {error}") from error


def _check_bytes(taken: TakenValue) -> bytes:
    """Return the bytes of a value after a check that decoding does not crash. Raise NoValueError if the check fails."""
    data = read_taken_bytes(taken)
    if (reader := CRASHING_READERS.get(taken.value.kind)) is not None:
        try:
            check_reads_safely(*reader, data)
        except FatalBytesError as error:
            raise NoValueError(f"{taken.name!r} of agent {taken.id} cannot be read: {error}") from error
    return data


def _adopt(values: ValueStore, taken: TakenValue, local: bool) -> StoredValue:
    value = taken.value
    if value.kind not in EXTENSIONS:
        raise NoValueError(f"{taken.name!r} has the unknown kind {value.kind!r}")
    try:
        data = _check_bytes(taken)
    finally:
        Path(taken.path).unlink(missing_ok=True)  # The file is a copy that was made for this agent.
    note = HandleMetadata(value.type, value.extent, value.size, value.lines, local=local or value.local)
    return values.adopt(value.kind, data, note, bits=bits_in(inherited_labels(value.marks, taken.id)))
