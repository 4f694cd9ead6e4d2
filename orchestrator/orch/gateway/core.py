"""The gateway's core: requests of clients in, requests to the server out; responses in, responses to clients out.

The core sends nothing. It reads and writes only the state of its store. What it does not understand passes unchanged.
"""

from __future__ import annotations

import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final, Literal

import msgspec

from orch_protocol.core.errors import OrchError
from orch_worker.backends.formats.lenient_json import split_items
from orch_worker.backends.formats.server_sent_events import EventDecoder
from orch_worker.system.threads import describe_exception

from ..archival.adapters import format_named
from ..archival.recall import TOOLS
from .api import Api, Operation, RecallCall, Rewriter, decode_value, encode_value
from .chat import CHAT
from .client_request import ClientRequest, conversation_key, read_request
from .conversation import Conversation, Prepared
from .messages import MESSAGES
from .receipt import ConversationReceipt, Receipt, add_lines, receipt_of, tokens_in
from .receipt_log import ReceiptLog
from .responses import RESPONSES
from .store import Store
from .usage import UsageReader, Used

__all__ = ["Exchange", "Gateway", "operation_of"]

APIS: Final[tuple[Api, ...]] = (MESSAGES, CHAT, RESPONSES)
RECALL_NAMES: Final = frozenset(name for name, _, _ in TOOLS)
MIN_BYTES: Final = 4000
"""Minimum size of a conversation that is archived, unless it already has archives."""
MIN_ITEMS: Final = 3
"""Minimum number of items of a conversation with a finished turn."""
MAX_OPEN: Final = 64
"""Maximum number of conversations whose files are open."""
MAX_HELD_BYTES: Final = 64 << 20
"""Maximum size of the open conversations, unless a single one is larger."""
MAX_RESULTS: Final = 256
"""Maximum number of stored responses whose recalls have results that the server has not got yet."""
MAX_CLIENTS: Final = 256
"""Maximum number of clients with a name whose costs are kept."""
MAX_ROUNDS: Final = 8
"""Maximum number of responses in a row whose recall calls are answered with archived messages."""
NO_MORE_ROUNDS: Final = "Error: too many recalls for one response. Answer with what you have read."
NO_ARCHIVES: Final = "Error: this conversation has no archives."
NO_STATE: Final = "Error: the archives of this conversation cannot be read now."
EMPTY_LINE: Final = b"\n\n"
EVENT_END: Final = re.compile(rb"(?>\r\n|\r|\n){2}")
MAX_EVENT_BYTES: Final = 32 << 20
"""Maximum size of an event that is read. The rest of a stream with a larger one passes unchanged."""
MAX_END: Final = 4
"""The length of the longest end of an event."""
UNKNOWN_FORM: Final = (LookupError, TypeError, ValueError, AttributeError, RecursionError, msgspec.MsgspecError)
"""Errors of code that reads JSON data of an unknown form."""

log: Final = logging.getLogger("orch.gateway")


def operation_of(path: str) -> tuple[Api, Operation] | None:
    """Return the API and the operation of a POST request to `path`. Return None if the gateway does not change it."""
    return next(((api, found) for api in APIS if (found := api.operation(path))), None)


class Gateway:
    """Archives conversations of clients of model APIs. Use a Gateway from one thread.

    With the mode "off", every request passes unchanged. `warn` is called with each problem; None writes it to the log
    "orch.gateway". `clock` returns the time in seconds since 1970.
    """

    def __init__(
        self,
        store: Store,
        mode: Literal["on", "off"] = "on",
        *,
        warn: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.clock = clock
        self._store = store
        self.archives = mode == "on"
        """Whether conversations are archived. If not, every request passes unchanged."""
        self._warn = warn or log.warning
        self._open: OrderedDict[str, Conversation] = OrderedDict()
        self._warned: set[str] = set()
        self._results: OrderedDict[str, list[Any]] = OrderedDict()
        """Results of recalls that belong after a response that the server has stored, by the id of the response."""
        self._receipts: ReceiptLog | None = None
        self._clients: OrderedDict[str, dict[str, ConversationReceipt]] = OrderedDict()
        """The sums of the conversations of each client with a name."""

    def begin(self, path: str, headers: Mapping[str, str], body: bytes, client: str = "") -> Exchange:
        """Return the exchange for a POST request of a client. `path` is the path of the URL. Never raises.

        `client` is a name for `receipt_of_client`, "" if the client has none.

        If `exchange.unchanged` is True, send the client's request. Otherwise, send `exchange.request` in place of the
        body. See `Exchange` for the response.
        """
        api, operation = operation_of(path) or (None, None)
        if api is None:
            return Exchange(body)
        account = _Account(self, api, client) if operation == "respond" else None
        unchanged = Exchange(body, account=account)
        request = None
        try:
            request = read_request(api, headers, body)
            if account is not None:
                account.request = request
            if results := self._results.get(api.continued(request.fields)):
                items = [*map(encode_value, results), *request.items]
                return Exchange(body_of(request, request.raw_fields, items), account=account, is_changed=True)
            sender = self._begin(request) if self.archives else None
            return Exchange(body, sender, account=account) if sender else unchanged
        except UNKNOWN_FORM as error:
            reason = f"{type(error).__name__}: {error}"
            if request is None:
                log.debug("a request to %s passes unchanged: %s", path, reason)
            else:
                problem = f"its requests pass unchanged, because they have an unknown form: {reason}"
                self._report(f"conversation {request.key}: {problem}", request.key)
        except Exception as error:  # A fault of the gateway must not stop the client.
            self._report(f"a request to {path} passes unchanged: {describe_exception(error)}")
        return unchanged

    def prepare(self, api: Api, session: str, items: Sequence[bytes], beside: int) -> Prepared | None:
        """Return the request for the `items` of a conversation. Never raises.

        This is for programs with a client of their own, which answers recalls with `recall`. `items` are messages in
        the format of `api`, as JSON. `session` is the name of the session, "" if it has none. `beside` is the number of
        tokens of the request that are not in messages. Return None if the request should stay unchanged.
        """
        if not self.archives:
            return None
        try:
            if not items or not api.accepts({}, items):
                return None
            found = self._prepare(api, conversation_key(api, session, items), items, beside)
        except UNKNOWN_FORM as error:
            log.debug("a conversation stays unchanged: %s: %s", type(error).__name__, error)
        except Exception as error:  # A fault of the gateway must not stop the program.
            self._report(f"a conversation stays unchanged: {describe_exception(error)}")
        else:
            return found and found[1]
        return None

    def recall(
        self, api: Api, session: str, items: Sequence[bytes], beside: int, name: str, input: dict[str, Any]
    ) -> str:
        """Return the result of a call of a recall tool in the response to the request for `items`. Never raises.

        The result contains only archives that the request shows. See `prepare` for the arguments.
        """
        try:
            key = conversation_key(api, session, items)
            found = self._prepare(api, key, items, beside) if self.archives and items else None
            conversation = found and found[0]()
            if found and conversation:
                return conversation.recall(found[1], name, input)
        except UNKNOWN_FORM as error:
            log.debug("a recall was not answered: %s: %s", type(error).__name__, error)
        except Exception as error:  # A fault of the gateway must not stop the program.
            self._report(f"a recall was not answered: {describe_exception(error)}")
        return NO_ARCHIVES

    def open_conversations(self) -> list[Conversation]:
        """Return the conversations whose files are open, the one that was used least recently first."""
        return list(self._open.values())

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._close_first()
        if self._receipts is not None:
            receipts, self._receipts = self._receipts, None
            try:
                receipts.close()
            except (OrchError, OSError) as error:
                self._report(f"the receipt was not closed: {error}")

    def keep_results(self, response: str, results: list[Any]) -> None:
        """Add `results` to the request that continues the stored response with the id `response`."""
        self._results[response] = results
        if len(self._results) > MAX_RESULTS:
            self._results.popitem(last=False)

    def receipt(self) -> Receipt:
        """Return what the conversations cost. Raises StoreError."""
        return self._store.receipt()

    def receipt_of_client(self, client: str) -> Receipt:
        """Return what the conversations of `client` cost while this gateway has been open. See `begin`."""
        return receipt_of(self._clients.get(client, {}))

    def add_to_receipt(
        self,
        request: ClientRequest,
        at: float,
        responses: Sequence[Used],
        recalls: int,
        sent: int | None,
        client: str,
    ) -> None:
        """Add a request and the tokens of its responses to the receipt. Never raises. See `Bookkeeper.entry`."""
        try:
            if self._receipts is None:
                self._receipts = self._store.receipts()
            entry = self._receipts.add(request, at, responses, recalls, sent)
        except Exception as error:  # The receipt must not stop the client.
            self._report(f"a request is missing in the receipt: {describe_exception(error)}")
            return
        if client:
            add_lines(self._clients.setdefault(client, {}), [entry])
            self._clients.move_to_end(client)
            if len(self._clients) > MAX_CLIENTS:
                self._clients.popitem(last=False)

    def _close_first(self) -> None:
        """Close the conversation that was used least recently."""
        key, conversation = self._open.popitem(last=False)
        try:
            conversation.close()
        except (OrchError, OSError) as error:
            self._report(f"conversation {key} was not closed: {error}")

    def _report(self, problem: str, about: str = "") -> None:
        """Report a problem once. `about` is the name of what has one problem at most."""
        if (name := about or problem) not in self._warned:
            self._warned.add(name)
            self._warn(problem)

    def _begin(self, request: ClientRequest) -> _Sender | None:
        api, conversation, key = request.api, request.items, request.key
        if request.is_text or not conversation or not api.accepts(request.fields, conversation):
            return None
        if api.tool_names(request.fields) & RECALL_NAMES:
            return None
        beside = sum(map(tokens_in, request.raw_fields.values()))
        name = request.fields.get("model")
        found = self._prepare(api, key, conversation, beside, name if isinstance(name, str) else "")
        if found is None:
            return None
        find, prepared = found
        return _Sender(find, request, prepared, self.keep_results)

    def _prepare(
        self, api: Api, key: str, items: Sequence[bytes], beside: int, model: str = ""
    ) -> tuple[Callable[[], Conversation | None], Prepared] | None:
        """Return the request for `items`, and a function that returns its conversation. See `prepare`.

        Raises LookupError, TypeError or ValueError for items of an unknown form.
        """
        is_small = len(items) < MIN_ITEMS or sum(map(len, items)) < MIN_BYTES
        if is_small and key not in self._open and not self._store.exists(key):
            return None
        find = partial(self._conversation, key, api, beside, model)
        found = find()
        prepared = found.prepare(items) if found else None
        while len(self._open) > MAX_OPEN or (len(self._open) > 1 and self._held_bytes() > MAX_HELD_BYTES):
            self._close_first()
        return None if prepared is None else (find, prepared)

    def _conversation(self, key: str, api: Api, beside: int, model: str) -> Conversation | None:
        """Return the conversation `key`. Return None if its state cannot be used."""
        if key in self._open and self._store.exists(key):
            self._open.move_to_end(key)
            return self._open[key]
        if key in self._open:  # The user has deleted its folder.
            self._open.move_to_end(key, last=False)
            self._close_first()

        def warn(problem: str) -> None:
            self._report(f"conversation {key}: {problem}")

        try:
            state = self._store.open(key, api.format, beside, model)
            self._open[key] = conversation = Conversation(api, state, beside, warn)
        except (OrchError, OSError) as error:
            warn(f"its requests pass unchanged: {error}")
            return None
        return conversation

    def _held_bytes(self) -> int:
        return sum(conversation.size for conversation in self._open.values())


class _Sender:
    """Builds the requests of one exchange."""

    def __init__(
        self,
        find: Callable[[], Conversation | None],
        request: ClientRequest,
        prepared: Prepared,
        keep_results: Callable[[str, list[Any]], None],
    ) -> None:
        self.find = find
        """Return the conversation, and open its files again if they have been closed."""
        self.keep_results = keep_results
        """See `Gateway.keep_results`."""
        self.prepared = prepared
        self.api = request.api
        self._request = request
        self.added: list[Any] = []
        """Items of the exchange with the server that the client does not see."""
        self._fields = dict(request.raw_fields)
        if prepared.ids:
            format = format_named(self.api.format)
            tools = [format.tool(*each) for each in TOOLS]
            items = self.api.with_tools(self._fields, prepared.encoded, tools)
            if items is not None:
                self.prepared = msgspec.structs.replace(prepared, encoded=items)
                return
            own = split_items(request.raw_fields["tools"]) if request.fields.get("tools") else []
            self._fields["tools"] = _joined([*own, *map(encode_value, tools)])

    @property
    def tokens(self) -> int:
        """The estimated tokens of the first request."""
        return sum(map(tokens_in, (*self.prepared.encoded, *self._fields.values())))

    def body(self) -> bytes:
        """Return the body of the next request."""
        encoded = [*self.prepared.encoded, *map(encode_value, self.added)]
        if self.prepared.ids:
            encoded = self.api.marked(self._fields, encoded, self.prepared.stable, recalled=bool(self.added))
        return body_of(self._request, self._fields, encoded)


class _Account:
    """The tokens of one exchange. `request` is what the client sent, if it was understood."""

    def __init__(self, gateway: Gateway, api: Api, client: str) -> None:
        self.request: ClientRequest | None = None
        self._client = client
        self.recalls = 0
        self._counts = UsageReader(api)
        self._gateway = gateway
        self._at = gateway.clock()
        self._responses: list[Used] = []
        self._has_response = self._is_closed = False

    def feed(self, piece: bytes) -> None:
        """Read the next bytes of a stream."""
        self._has_response = True
        self._counts.feed(piece)

    def read(self, body: bytes) -> None:
        """Read a response without streaming."""
        self._has_response = True
        self._counts.read(body)

    def end_response(self) -> None:
        """Keep the counts of a response."""
        if used := self._counts.take():
            self._responses.append(used)

    def close(self, sender: _Sender | None) -> None:
        """Write the receipt once."""
        if self._has_response and not self._is_closed:
            self._is_closed = True
            if self.request is not None:
                sent = sender.tokens if sender else None
                self._gateway.add_to_receipt(self.request, self._at, self._responses, self.recalls, sent, self._client)


class Exchange:
    """The requests and responses for one request of a client.

    Send `request`. If `reads` is False, pass the response on unchanged. Otherwise give it to `feed` and `end`, or
    without streaming to `read`, if its status is 200. The results have the same bytes unless calls of recall tools are
    hidden. If these methods set `again`, send `request` again, which is then the next request; its response continues
    the response to the client.
    """

    def __init__(
        self,
        request: bytes,
        sender: _Sender | None = None,
        *,
        account: _Account | None = None,
        is_changed: bool = False,
    ) -> None:
        self.unchanged = sender is None and not is_changed
        self.request = request if sender is None else sender.body()
        self.reads = account is not None
        self.again = False
        """Whether the server has to be asked again."""
        self._rounds = 0
        self._pending = bytearray()
        """The beginning of an event that is not complete yet."""
        self._sender = sender
        self._failed = False
        self._rewriter: Rewriter | None = None
        self._account = account
        if sender is not None and sender.prepared.ids and account is not None:
            self._rewriter = sender.api.rewriter(set(RECALL_NAMES))

    def feed(self, piece: bytes) -> bytes:
        """Return the bytes of the stream that the client gets for `piece`."""
        self._checked_account().feed(piece)
        rewriter = self._rewriter
        if rewriter is None:
            return piece
        result = []
        for raw in self._events(piece):
            if self._failed or rewriter.ended:
                result.append(raw)
                continue
            try:
                result.append(self._rewritten(rewriter, raw))
            except UNKNOWN_FORM as error:
                log.debug("events of an unknown form pass unchanged: %s: %s", type(error).__name__, error)
                self._failed = True
                result += [rewriter.finish(), raw]
        if len(self._pending) > MAX_EVENT_BYTES and not self._failed:
            self._failed = True
            result.append(rewriter.finish())
        if self._failed:
            result.append(bytes(self._pending))
            self._pending.clear()
        return b"".join(result)

    def end(self) -> bytes:
        """Return the last bytes of the stream. Call this method at the end of each response of the server."""
        try:
            return self._end()
        finally:
            self._count()

    def _end(self) -> bytes:
        rest = bytes(self._pending)
        self._pending.clear()
        rewriter = self._rewriter
        if rewriter is None:
            return b""
        event = b""
        if rest and not self._failed and not rewriter.ended:
            try:  # Some servers leave out the empty line after the last event.
                rest = event = self._rewritten(rewriter, rest, EMPTY_LINE)
            except UNKNOWN_FORM as error:
                log.debug("the end of a stream passes unchanged: %s: %s", type(error).__name__, error)
        if self._failed or not rewriter.is_complete:
            self.again = False
            return rewriter.finish() + rest  # The server broke off; the client sees how far it came.
        try:
            if self._continues(rewriter):
                return event + EMPTY_LINE if event else b""
        except UNKNOWN_FORM as error:
            log.debug("a response of an unknown form passes unchanged: %s: %s", type(error).__name__, error)
        return rewriter.finish() + rest

    def read(self, body: bytes) -> bytes:
        """Return the body of the response that the client gets. The result means nothing if `again` is set."""
        self._checked_account().read(body)
        try:
            return self._read(body)
        finally:
            self._count()

    def _read(self, body: bytes) -> bytes:
        rewriter = self._rewriter
        if rewriter is None:
            return body
        try:
            rewriter.read(decode_value(body))
            return (
                b""
                if self._continues(rewriter)
                else encode_value(rewriter.body())
                if self._rounds
                else self._own(rewriter, body)
            )
        except UNKNOWN_FORM as error:
            log.debug("a response of an unknown form passes unchanged: %s: %s", type(error).__name__, error)
            self.again = False
            return body

    def close(self) -> None:
        """Write the receipt if the exchange has not ended: the client is gone, or the server refuses to continue.

        Calling this method at any time, and twice, is allowed.
        """
        if self._account is not None:
            self.again = False
            self._account.end_response()
            self._account.close(self._sender)

    def error(self, body: bytes) -> bytes:
        """Return the event for an error of a request that continues a stream."""
        self.again = False
        if self._rewriter is None:
            raise ValueError("the client has no response that could be continued")
        return self._rewriter.error_event(body)

    def _own(self, rewriter: Rewriter, body: bytes) -> bytes:
        """Return `body` itself if nothing in it was hidden."""
        merged = rewriter.body()
        return body if merged == decode_value(body) else encode_value(merged)

    def _checked_account(self) -> _Account:
        if self._account is None:
            raise ValueError("the response passes unchanged: `reads` is False")
        return self._account

    def _count(self) -> None:
        """Keep the counts of the response that has ended, and write the receipt if it is the last."""
        account = self._checked_account()
        account.end_response()
        if not self.again:
            account.close(self._sender)

    def _events(self, piece: bytes) -> list[bytes]:
        """Return the events that `piece` completes. Only the new bytes are searched for their ends."""
        searched = max(0, len(self._pending) - MAX_END + 1)
        self._pending += piece
        ends = [match.end() for match in EVENT_END.finditer(self._pending, searched)]
        if not ends:
            return []
        complete = bytes(self._pending[: ends[-1]])
        del self._pending[: ends[-1]]
        return [complete[start:end] for start, end in pairwise([0, *ends])]

    @staticmethod
    def _rewritten(rewriter: Rewriter, raw: bytes, missing: bytes = b"") -> bytes:
        """Return the bytes for the event `raw`. `missing` is what it needs at its end to be complete."""
        events = list(EventDecoder().feed(raw + missing))
        return b"".join(rewriter.feed(event, raw) for event in events) if events else raw

    def _continues(self, rewriter: Rewriter) -> bool:
        """Answer the recall calls of the response. Return whether the server has to be asked again."""
        self.again = False
        sender = self._sender
        if sender is None:
            return False
        reply = rewriter.reply()
        texts = [self._recall(sender, call) for call in reply.recalls]
        self._checked_account().recalls += len(texts)
        if reply.recalls and not reply.client_calls and self._rounds <= MAX_ROUNDS:
            self._rounds += 1
            sender.added += [*reply.items, *sender.api.result_items(reply.recalls, texts)]
            self.request, self.again = sender.body(), True
            rewriter.start()
            return True
        if reply.recalls or sender.added:
            visible = rewriter.visible()
            results = sender.api.result_items(reply.recalls, texts) if reply.recalls else []
            if visible and (conversation := sender.find()):
                conversation.hide(sender.prepared, visible, [*sender.added, *reply.items], results)
            if results and rewriter.response_id:
                sender.keep_results(rewriter.response_id, results)
        return False

    def _recall(self, sender: _Sender, call: RecallCall) -> str:
        if self._rounds >= MAX_ROUNDS:
            return NO_MORE_ROUNDS
        conversation = sender.find()
        return conversation.recall(sender.prepared, call.name, call.input) if conversation else NO_STATE


def body_of(request: ClientRequest, fields: Mapping[str, bytes], items: Iterable[bytes]) -> bytes:
    """Return the body of `request` with other encoded `fields` and `items`. The order of its fields stays."""
    names = dict.fromkeys([*request.order, *fields])
    values = {**fields, request.api.conversation: _joined(items)}
    return b"{" + b",".join(encode_value(name) + b":" + values[name] for name in names) + b"}"


def _joined(items: Iterable[bytes]) -> bytes:
    return b"[" + b",".join(items) + b"]"
