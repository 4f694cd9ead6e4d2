"""One conversation of a client: what the server got instead of the client's messages.

The client sends its whole history with each request. Two kinds of entries change it, and each belongs to a history that
is identified by the hash of all its messages, so the messages of one conversation never become part of another:

- A *view* is the result of a fold: the messages that replace the beginning of the history. It stays in use until the
  next fold, so the beginning of the requests stays the same and the server can cache it.
- A *hidden exchange* replaces the client's version of a response. It contains calls of recall tools and their results.

Instructions of the client are neither archived nor part of the hash. When the messages around them are archived, they
are placed beside the messages that replace these, as the client sends them now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from orch_protocol.core.errors import ConfigError, OrchError
from orch_worker.backends.formats.lenient_json import decode_lenient, decode_plain
from orch_worker.system.threads import describe_exception

from ..archival.adapters import format_named, role_of
from . import first_fold
from .api import Api, encode_value
from .client_request import asks, digest_of, split
from .receipt import tokens_in
from .store import State

__all__ = ["Conversation", "HiddenExchange", "Prepared"]

VIEW: Final = "gateway_view"
HIDDEN: Final = "gateway_hidden"
MAX_VIEWS: Final = 64
"""Maximum number of views in memory, so that a client can return to earlier states of a long conversation."""
MAX_ENTRIES_BYTES: Final = 8 << 20
"""Size of the stored entries above which views that are no longer in memory are removed."""
INSIDE: Final = -1
"""The start of an item that is replaced together with the item before it."""


class View(Struct, frozen=True):
    """The result of a fold: `items` replace the first `covered` items of the history with the hash `history`.

    `ids` are the archives in `items`. `record` is the index of the last item with a record; the first user message from
    there on ends with the text `listed`, the list of archives.
    """

    history: str
    covered: int
    items: list[Any]
    ids: list[str]
    record: int
    listed: str
    instructions: list[tuple[int, int]] = []
    """The indexes of items with instructions among the first `covered` of the client, each after the index of the item
    of `items` beside which they belong."""


class HiddenExchange(Struct, frozen=True):
    """The real form of a response: `items` replace the last `count` items of the history with the hash `history`.

    `results` are results of recall tools that belong before the next item of the client.
    """

    history: str
    count: int
    items: list[Any]
    results: list[Any]


class Prepared(Struct, frozen=True):
    """A request as the server gets it.

    `items` are the messages of the conversation without instructions. `encoded` are the encoded messages with
    instructions and the list of archives. `stable` is the index of the last of `encoded` that stays the same until the
    next fold. `history` is the hash of the client's items.
    """

    items: list[Any]
    encoded: list[bytes]
    stable: int
    history: str
    ids: list[str]
    """The archives that `items` show."""


class _Read(Struct, frozen=True):
    """An item as the client sent it: its bytes, its value without cache markers, and the hash of its identity.

    `rest` is the value without instructions, None if nothing is left. `is_first` is whether no response precedes it.
    """

    raw: bytes
    value: Any
    digest: bytes
    rest: Any
    instructions: Any
    is_first: bool


class _Restored(Struct, frozen=True):
    """An item with hidden exchanges. `raw` contains the bytes of the client if it sent the same item.

    `value` is the item without instructions, None if nothing is left. `source` is the index of the client's item if
    this contains instructions.
    """

    value: Any
    raw: bytes
    source: int | None = None


class Conversation:
    """The histories that begin with the same message in the same session.

    `beside` is the number of tokens of a request that are not in messages. `warn` is called with problems.
    """

    def __init__(self, api: Api, state: State, beside: int, warn: Callable[[str], None]) -> None:
        self.api = api
        self.beside = beside
        self.state = state
        self._warn = warn
        self._format = format_named(api.format)
        self.size = 0
        """Size in bytes of the last request's items, which are kept in memory."""
        self._read: list[_Read] = []
        self._max_size = MAX_ENTRIES_BYTES
        self._views: dict[str, View] = {}
        self._hidden: dict[str, HiddenExchange] = {}
        self._last_responses: dict[str, Any] = {}
        """The last response of hidden exchanges by the ids of its calls, also those of recalls."""
        self._encoded_views: dict[str, list[bytes]] = {}
        known = {record.id for record in state.archiver.archives(merged=True)}
        for kind, data in state.entries:
            try:
                if kind == VIEW and known.issuperset((view := msgspec.convert(data, View)).ids):
                    self._add_view(view)
                elif kind == HIDDEN:
                    self._add_hidden(msgspec.convert(data, HiddenExchange))
            except msgspec.ValidationError as error:
                warn(f"an entry of an unknown form was skipped: {error}")
        for note in state.notes:
            warn(note)

    def prepare(self, items: Sequence[bytes]) -> Prepared | None:
        """Return the request for the client's `items`. Return None if the request should pass unchanged.

        Raises LookupError, TypeError or ValueError for items of an unknown form.
        """
        read = self._items(items)
        histories = _histories(read)
        restored, starts = self._restore(read, histories)
        ends = (end for end in range(len(read), 0, -1) if histories[end] in self._views and starts[end] != INSIDE)
        view = self._views.get(histories[next(ends, 0)])
        covered = view.covered if view else 0
        tail = restored[starts[covered] :]
        given = _without_instructions(view, tail)
        rules, calls = self.state.archiver.rules, sum(role_of(item) == "assistant" for item in given)
        prices, tokens = self.state.archiver.prices, 0
        if view is None:  # a conversation that is folded already is not judged again
            tokens = sum(tokens_in(each.raw) for each in tail)
        try:
            if view is None and not first_fold.can_pay(rules, prices, tokens, self.beside, calls):
                folded = given
            else:
                folded = self.state.archiver.fold(given)
        except ConfigError as error:  # The server decides about a conversation that we do not understand.
            if view is not None:
                self._warn(f"nothing more is archived: {describe_exception(error)}")
            folded = given
        except (OrchError, OSError, LookupError) as error:  # Parts of a damaged folder are missing.
            self._warn(f"nothing more is archived: {describe_exception(error)}")
            folded = given
        if view is None:
            removed, added = _changed(given, folded), _changed(folded, given)
            kept = tokens - removed
            if not first_fold.pays(rules, prices, tokens, removed, added, kept, self.beside, calls):
                folded = given
        if len(folded) != len(given) or any(new is not old for new, old in zip(folded, given, strict=True)):
            view = self._new_view(folded, given, view, restored, starts[covered], starts, histories)
            tail = restored[starts[view.covered] :]
        if view is None and [each.raw for each in restored] == list(items):
            return None
        return self._prepared(view, read, tail, histories[-1])

    def recall(self, prepared: Prepared, name: str, input: dict[str, Any]) -> str:
        """Return the result of a call of a recall tool. It contains only archives that `prepared` shows."""
        archiver = self.state.archiver
        try:
            archiver.show(prepared.items)
            return archiver.call(name, input, among=prepared.ids)
        except (OrchError, OSError, LookupError) as error:
            return f"Error: {describe_exception(error)}"

    def hide(self, prepared: Prepared, visible: list[Any], items: list[Any], results: list[Any]) -> None:
        """Store that the client got `visible` instead of `items`, and the results that belong before its next item."""
        history = bytes.fromhex(prepared.history)
        for item in visible:
            history = _next_history(history, self._digest(item))
        exchange = HiddenExchange(history.hex(), len(visible), items, results)
        self._add_hidden(exchange)
        self._store(HIDDEN, exchange)

    def close(self) -> None:
        """Close the files."""
        self.state.close()

    def _add_hidden(self, exchange: HiddenExchange) -> None:
        self._hidden[exchange.history] = exchange
        for item in exchange.items:
            self._last_responses |= dict.fromkeys(self.api.call_ids(item), item)

    def _store(self, kind: str, entry: Struct) -> None:
        try:
            self.state.append(kind, msgspec.to_builtins(entry))
        except (OrchError, OSError) as error:
            self._warn(f"kept in memory only: {error}")
            return
        if self.state.size > self._max_size:
            self._remove_old_entries()

    def _remove_old_entries(self) -> None:
        """Remove stored views that are no longer in memory. After an error, all stay."""
        views = [(VIEW, msgspec.to_builtins(view)) for view in self._views.values()]
        hidden = [(HIDDEN, msgspec.to_builtins(exchange)) for exchange in self._hidden.values()]
        try:
            self.state.replace([*views, *hidden])
        except (OrchError, OSError) as error:
            self._warn(f"old entries were not removed: {error}")
        self._max_size = max(MAX_ENTRIES_BYTES, 2 * self.state.size)

    def _digest(self, item: Any) -> bytes:
        return digest_of(self.api.identity(item))

    def _items(self, items: Sequence[bytes]) -> list[_Read]:
        """Return `items` decoded. Items that are the same as in the last request are not decoded again."""
        last = self._read
        read: list[_Read] = []
        is_first = True
        for index, raw in enumerate(items):
            same = last[index] if index < len(last) and last[index].is_first == is_first else None
            if same is not None and same.raw == raw:
                read.append(same)
            else:
                value = decode_plain(raw)
                plain = self.api.without_markers(value) if b"cache_control" in raw else value
                if same is not None and same.value == plain:  # The client moved a marker.
                    read.append(msgspec.structs.replace(same, raw=raw))
                else:
                    read.append(self._new_item(raw, plain, same, is_first=is_first))
            is_first = is_first and asks(read[-1].value)
        self._read = read
        self.size = sum(map(len, items))
        return read

    def _new_item(self, raw: bytes, value: Any, last: _Read | None, *, is_first: bool) -> _Read:
        """Return an item. `last` is the item at its place in the last request, which the archiver knows."""
        parts = split(value, is_first=is_first)
        rest = last.rest if last is not None and last.rest == parts.rest else parts.rest
        digest = digest_of(["instructions", value["role"]]) if rest is None else self._digest(rest)
        return _Read(raw, value, digest, rest, parts.instructions, is_first)

    def _restore(self, read: Sequence[_Read], histories: Sequence[str]) -> tuple[list[_Restored], list[int]]:
        """Return the items with hidden exchanges, and the start of each of the client's items among them.

        An item inside a hidden exchange has no start.
        """
        restored: list[_Restored] = []
        starts: list[int] = []
        results: list[Any] = []
        for index, item in enumerate(read):
            starts.append(len(restored))
            source = None if item.instructions is None else index
            if results:
                restored += self._joined(results, item, source)
                results = []
            else:
                restored.append(_Restored(item.rest, item.raw, source))
            exchange = self._hidden.get(histories[index + 1])
            if exchange is not None and exchange.count <= index + 1:
                first = index + 1 - exchange.count
                del restored[starts[first] :]
                starts[first + 1 :] = [INSIDE] * (exchange.count - 1)
                restored += map(_encoded, exchange.items)
                results = exchange.results
            elif self._last_responses and (last := self._merged_with(item.value)):
                restored[-1] = _encoded(self.api.unmerged(item.value, last))
        return restored, [*starts, len(restored)]

    def _merged_with(self, item: Any) -> Any:
        """Return the last of the responses that `item` merges, if the history before them has changed. Or None."""
        found = (self._last_responses.get(id) for id in self.api.call_ids(item))
        return next(filter(None, found), None)

    def _joined(self, results: Sequence[Any], item: _Read, source: int | None) -> list[_Restored]:
        if item.rest is None:
            return [*map(_encoded, results), _Restored(None, item.raw, source)]
        values = self.api.join(results, item.rest)
        marked = self.api.join(results, decode_lenient(item.raw))
        return [_Restored(*each) for each in zip(values, map(encode_value, marked), strict=True)]

    def _new_view(
        self,
        folded: list[Any],
        given: list[Any],
        last: View | None,
        restored: Sequence[_Restored],
        start: int,
        starts: Sequence[int],
        histories: Sequence[str],
    ) -> View:
        """Return the view that changes `given` to `folded`.

        `given` are the items of the view `last` and those of `restored` from `start` on, which belong to no view yet.
        """
        new = [index for index in range(start, len(restored)) if restored[index].value is not None]
        same = 0
        while same < min(len(folded), len(new)) and folded[-1 - same] is given[-1 - same]:
            same += 1
        boundary = new[-same] if same else len(restored)
        while same and boundary > start and restored[boundary - 1].value is None:
            boundary -= 1  # Instructions before an item that stays are not moved.
        covered = next(index for index, first in enumerate(starts) if first >= boundary)
        items = folded[: len(folded) - sum(index >= starts[covered] for index in new)]
        archiver = self.state.archiver
        ids = [record.id for record in archiver.live(items)]
        record = next((index for index in range(len(items) - 1, -1, -1) if archiver.live(items[index : index + 1])), 0)
        listed = archiver.block(items) if ids else ""
        kept = self._kept_instructions(items, given, last, restored[start : starts[covered]])
        view = View(histories[covered], covered, items, ids, record, listed, kept)
        self._add_view(view)
        self._store(VIEW, view)
        return view

    def _kept_instructions(
        self, items: list[Any], given: list[Any], last: View | None, added: Sequence[_Restored]
    ) -> list[tuple[int, int]]:
        """Return the places of the instructions in a view with `items`, which replaces `given`. See `View`.

        Instructions of the view `last` and of the items `added` after it stay beside their item, if it is in `items`.
        """
        at = len(last.items) if last else 0
        beside = list(last.instructions) if last else []
        for each in added:
            if each.source is not None:
                index = at - 1 if each.value is None and at and not self.api.instructions_first else at
                beside.append((min(index, len(given) - 1), each.source))
            at += each.value is not None
        places = {id(item): index for index, item in enumerate(items)}
        users = [index for index, item in enumerate(items) if role_of(item) == "user"]
        kept: list[tuple[int, int]] = []
        for index, source in beside:
            place = places.get(id(given[index]))
            if place is None:
                before = next((places[id(each)] for each in reversed(given[:index]) if id(each) in places), -1)
                later = (user for user in users if user > before)
                place = next(later, users[-1] if users else len(items) - 1)
            kept.append((place, source))
        return sorted(kept)

    def _add_view(self, view: View) -> None:
        self._encoded_views.pop(view.history, None)  # A fold can merge archives without covering more of the history.
        self._views.pop(view.history, None)
        self._views[view.history] = view
        if len(self._views) > MAX_VIEWS:
            oldest = next(iter(self._views))
            del self._views[oldest]
            self._encoded_views.pop(oldest, None)

    def _prepared(self, view: View | None, read: Sequence[_Read], tail: Sequence[_Restored], history: str) -> Prepared:
        values = [*(view.items if view else ()), *(each.value for each in tail)]
        encoded = list(self._encoded_view(view)) if view else []
        stable = len(encoded) - 1
        encoded += [each.raw for each in tail]
        if view and view.listed:
            place = next((index for index in range(view.record, len(values)) if role_of(values[index]) == "user"), None)
            if place is not None:
                value = decode_lenient(encoded[place])
                encoded[place] = encode_value(self._format.with_text(value, view.listed))
                stable = max(stable, place)
        for index, sources in reversed(_by_place(view)):
            given = [read[source].instructions for source in sources]
            encoded[index : index + 1] = self.api.with_instructions(encoded[index], given)
            stable += len(encoded) - len(values)
            values[index : index + 1] = [None] * (len(encoded) - len(values) + 1)
        return Prepared(_without_instructions(view, tail), encoded, stable, history, view.ids if view else [])

    def _encoded_view(self, view: View) -> list[bytes]:
        encoded = self._encoded_views.get(view.history)
        if encoded is None:
            self._encoded_views[view.history] = encoded = [encode_value(item) for item in view.items]
        return encoded


def _without_instructions(view: View | None, tail: Sequence[_Restored]) -> list[Any]:
    return [*(view.items if view else ()), *(each.value for each in tail if each.value is not None)]


def _by_place(view: View | None) -> list[tuple[int, list[int]]]:
    """Return the instructions of `view` for each index of its items."""
    places: dict[int, list[int]] = {}
    for index, source in view.instructions if view else ():
        places.setdefault(index, []).append(source)
    return sorted(places.items())


def _changed(items: Sequence[Any], others: Sequence[Any]) -> int:
    """Return the number of tokens of those of `items` that are not objects in `others`."""
    known = set(map(id, others))
    return sum(tokens_in(encode_value(item)) for item in items if id(item) not in known)


def _next_history(history: bytes, digest: bytes) -> bytes:
    return hashlib.sha256(history + digest).digest()


def _histories(read: Sequence[_Read]) -> list[str]:
    """Return for each number of items the hash of as many items from the beginning."""
    history = hashlib.sha256(b"").digest()
    histories = [history.hex()]
    for item in read:
        history = _next_history(history, item.digest)
        histories.append(history.hex())
    return histories


def _encoded(value: Any) -> _Restored:
    return _Restored(value, encode_value(value))
