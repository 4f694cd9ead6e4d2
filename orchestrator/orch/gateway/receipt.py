"""The receipt: what conversations cost through the gateway, and what they would have cost without it.

The cost with the gateway follows from the tokens that the server reports. The cost without it is the same for requests
that were not changed. For other requests, it is replayed from what the client sent: its messages, its cache markers,
and the time between requests. All functions are pure.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.core.messages import Usage
from orch_worker.backends.formats.lenient_json import decode_plain
from orch_worker.backends.models import Model, ModelCatalog
from orch_worker.backends.prices import cost
from orch_worker.conversation.tokens import IMAGE_TOKENS

from ..replay.bill import AUTOMATIC_STEP, HOUR, Beginning, Charge, Mark, PromptCache
from .client_request import ClientRequest, digest_of
from .usage import Used

__all__ = [
    "BYTES_PER_TOKEN",
    "Bookkeeper",
    "ConversationReceipt",
    "Entry",
    "Kept",
    "Line",
    "Receipt",
    "add_lines",
    "compacted",
    "model_named",
    "receipt_of",
    "tokens_in",
]

BYTES_PER_TOKEN: Final = 4
"""The estimated size of a token."""
UNCACHED_REQUESTS: Final = 3
"""After so many requests of a conversation without cached tokens, its server seems to have no prompt cache."""
HEAD_FIELDS: Final = ("tools", "system", "instructions")
"""The fields that precede the conversation in what the server caches."""
MARKER: Final = b'"cache_control"'
ONE_HOUR_PATTERN: Final = re.compile(rb'"ttl"\s*:\s*"1h"')
FIVE_MINUTES: Final = 300.0
DAY: Final = 86_400.0
MIN_CACHED_TOKENS: Final = 1024
"""Both providers cache no shorter beginnings."""
ENCODED_FILE_BYTES: Final = 2000
"""Minimum size of a string without spaces that counts as an encoded image or file."""
MAX_REPLAYED: Final = 256
"""Maximum number of conversations whose last request is kept in memory."""
MAX_CONVERSATIONS: Final = 1000
"""Maximum number of conversations that a receipt lists one by one."""
PROVIDERS: Final[Mapping[str, str]] = {"anthropic": "anthropic", "openai": "openai", "responses": "openai"}
"""The provider of each message format, whose prices apply first."""


class Entry(Struct, frozen=True, tag="request", omit_defaults=True):
    """One request of a client with all responses of the server to it.

    `used` and `without` are the tokens with and without the gateway, `usd` and `usd_without` their cost; None means
    that the price is unknown. `received` is the number of tokens that the client sent. `same` is the number of parts
    that begin the request as they began the last one; `parts` are the others, each with its hash and estimated tokens.
    """

    conversation: str
    at: float
    api: str
    model: str
    used: Used = Used()
    without: Used = Used()
    received: int = 0
    responses: int = 0
    recalls: int = 0
    usd: float | None = None
    usd_without: float | None = None
    same: int = 0
    parts: list[tuple[str, int]] = []
    marks: list[Mark] = []


class ConversationReceipt(Struct, frozen=True, omit_defaults=False):
    """The sums of one conversation, or of several.

    `received_tokens` is what the client sent, as the server would have counted it. `sent_tokens` is what the server
    got; it includes `cache_read_tokens` and `cache_write_tokens`. `requests` are those of the client. `recalls` are
    calls of recall tools. `unpriced_requests` used a model whose price is unknown, and `uncounted_requests` got
    no token counts; neither are part of the costs. Times are in seconds since 1970.
    """

    conversation: str = ""
    api: str = ""
    model: str = ""
    first_request_at: float = 0.0
    last_request_at: float = 0.0
    requests: int = 0
    recalls: int = 0
    received_tokens: int = 0
    sent_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    cost_without_usd: float = 0.0
    unpriced_requests: int = 0
    uncounted_requests: int = 0

    def __add__(self, other: ConversationReceipt) -> ConversationReceipt:
        """Return the sum. The name, API and model are those of `other`."""
        times = [each for each in (self.first_request_at, other.first_request_at) if each]
        sums = {name: getattr(self, name) + getattr(other, name) for name in SUMS}
        last = max(self.last_request_at, other.last_request_at)
        return replace(other, first_request_at=min(times, default=0.0), last_request_at=last, **sums)


SUMS: Final = (
    "requests",
    "recalls",
    "received_tokens",
    "sent_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "output_tokens",
    "cost_usd",
    "cost_without_usd",
    "unpriced_requests",
    "uncounted_requests",
)


class Kept(Struct, frozen=True, tag="kept", omit_defaults=True):
    """The sums of a conversation whose entries were removed, and its last request if the server may still cache it."""

    sums: ConversationReceipt
    parts: list[tuple[str, int]] = []
    beginnings: list[Beginning] = []


Line: TypeAlias = Entry | Kept
"""A line of a receipt's file."""


class Receipt(Struct, frozen=True):
    """The receipt of all conversations in a folder.

    `conversations` are the last ones, the one with the latest request first. `total` includes older ones too.
    """

    total: ConversationReceipt
    conversations: list[ConversationReceipt]


def add_lines(sums: dict[str, ConversationReceipt], lines: Iterable[Line]) -> None:
    """Add the lines of a file to the sums of the conversations. The name "" stands for older conversations."""
    for line in lines:
        added = line.sums if isinstance(line, Kept) else _sums_of(line)
        sums[added.conversation] = sums[added.conversation] + added if added.conversation in sums else added


def receipt_of(sums: Mapping[str, ConversationReceipt]) -> Receipt:
    """Return the receipt with the given sums of conversations."""
    total = sum(sums.values(), ConversationReceipt())
    listed = sorted((each for name, each in sums.items() if name), key=lambda each: -each.last_request_at)
    return Receipt(replace(total, conversation="", api="", model=""), listed[:MAX_CONVERSATIONS])


def compacted(lines: Iterable[Line], now: float) -> list[Line]:
    """Return lines with the same sums, at most one for each of the last conversations and one for the others.

    `now` is the time. A conversation whose cache has expired needs no parts of its last request.
    """
    lines = list(lines)
    sums: dict[str, ConversationReceipt] = {}
    add_lines(sums, lines)
    replays = Bookkeeper(lambda _api, _model: None)
    for line in lines:
        replays.restore(line)
    last = sorted((name for name in sums if name), key=lambda name: sums[name].last_request_at)[-MAX_CONVERSATIONS:]
    older = sum((each for name, each in sums.items() if name not in last), ConversationReceipt())
    kept: list[Line] = [Kept(replace(older, conversation="", api="", model=""))] if older.requests else []
    for name in last:
        cache = replays.cache_of(name)
        alive = [each for each in cache.beginnings if each.lives(now)] if cache else []
        parts = [(str(digest), tokens) for digest, tokens in cache.parts] if cache and alive else []
        kept.append(Kept(sums[name], parts, alive))
    return kept


def _sums_of(entry: Entry) -> ConversationReceipt:
    used = entry.used
    priced = entry.usd is not None and entry.usd_without is not None
    return ConversationReceipt(
        conversation=entry.conversation,
        api=entry.api,
        model=entry.model,
        first_request_at=entry.at,
        last_request_at=entry.at,
        requests=1,
        recalls=entry.recalls,
        received_tokens=entry.received,
        sent_tokens=used.input,
        cache_read_tokens=used.read,
        cache_write_tokens=used.written,
        output_tokens=used.output,
        cost_usd=entry.usd or 0.0 if priced else 0.0,
        cost_without_usd=entry.usd_without or 0.0 if priced else 0.0,
        unpriced_requests=int(bool(entry.responses) and not priced),
        uncounted_requests=int(not entry.responses),
    )


class Bookkeeper:
    """Makes the entries of requests. It keeps what the server would have cached of each conversation without us.

    `model_of` returns the model with a message format and a name, and None if its price is unknown.
    """

    def __init__(self, model_of: Callable[[str, str], Model | None]) -> None:
        self._model_of = model_of
        self._caches: OrderedDict[str, PromptCache] = OrderedDict()
        self._uncached: dict[str, int | None] = {}
        """The number of requests of each conversation since its server reported no use of a cache. None: it did."""
        self._parts: dict[str, dict[tuple[int, int], tuple[str, int]]] = {}
        """For each conversation, the hash and tokens of each part of its last request, by the Python hash and size of
        its bytes. A request repeats most parts of the last one."""

    def cache_of(self, conversation: str) -> PromptCache | None:
        """Return what the server would have cached of a conversation. None if nothing is known."""
        return self._caches.get(conversation)

    def entry(
        self, request: ClientRequest, at: float, responses: Sequence[Used], recalls: int, sent: int | None
    ) -> Entry:
        """Return the entry of a request at the time `at`.

        `responses` are the tokens of the server's responses. `sent` is the estimated number of tokens that were sent to
        the server, None if the request was not changed.
        """
        parts, marks = self._read(request)
        cache = self._cache(request.key, request.api.format)
        head = len(HEAD_FIELDS)
        if responses and responses[0].read > parts[0][1] and cache.parts:
            # The server has read more than the tools from its cache, so a change of a text before the conversation did
            # not matter: servers ignore some of them.
            parts[1:head] = [(str(digest), tokens) for digest, tokens in cache.parts[1:head]]
        pairs = zip(cache.parts, parts, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0][0] == pair[1][0], pairs))
        charge = cache.charge(parts, marks, at)
        used = sum(responses, Used())
        if self._has_no_cache(request.key, used):
            charge = Charge(fresh=charge.read + charge.written + charge.fresh)
        without, received = used, used.input
        if responses and (sent is not None or len(responses) > 1):
            scale = responses[0].input / max(sent if sent is not None else sum(tokens for _, tokens in parts), 1)
            without = _scaled(charge, scale, responses[-1].output, is_automatic=request.api.format != "anthropic")
            received = without.input
        name = request.fields.get("model")
        model = self._model_of(request.api.format, name) if isinstance(name, str) else None
        usd = None if model is None else sum(_usd(model, each) for each in responses)
        usd_without = usd if without is used or model is None else _usd(model, without)
        return Entry(
            conversation=request.key,
            at=at,
            api=request.api.format,
            model=name[:200] if isinstance(name, str) else "",
            used=used,
            without=without,
            received=received,
            responses=len(responses),
            recalls=recalls,
            usd=usd,
            usd_without=usd_without,
            same=same,
            parts=parts[same:],
            marks=marks,
        )

    def restore(self, line: Line) -> None:
        """Continue after a line that was written before."""
        if isinstance(line, Kept):
            if line.parts:
                cache = self._cache(line.sums.conversation, line.sums.api)
                cache.parts, cache.beginnings = line.parts, line.beginnings
        else:
            cache = self._cache(line.conversation, line.api)
            cache.charge([*cache.parts[: line.same], *line.parts], line.marks, line.at)
            self._has_no_cache(line.conversation, line.used)

    def restart(self, lines: Iterable[Line]) -> None:
        """Continue after `lines`, and after nothing else."""
        self._caches.clear()
        self._uncached.clear()
        for line in lines:
            self.restore(line)

    def _has_no_cache(self, conversation: str, used: Used) -> bool:
        """Count a request. Return whether the server seems to have no prompt cache."""
        count = self._uncached.get(conversation, 0)
        if count is not None and used.input:
            count = None if used.read or used.written else count + 1
            self._uncached[conversation] = count
        return count is not None and count >= UNCACHED_REQUESTS

    def _cache(self, conversation: str, api: str) -> PromptCache:
        cache = self._caches.get(conversation)
        if cache is None:
            step = 0 if api == "anthropic" else AUTOMATIC_STEP
            self._caches[conversation] = cache = PromptCache(step, MIN_CACHED_TOKENS)
        self._caches.move_to_end(conversation)
        if len(self._caches) > MAX_REPLAYED:
            oldest, _ = self._caches.popitem(last=False)
            self._parts.pop(oldest, None)
            self._uncached.pop(oldest, None)
        return cache

    def _read(self, request: ClientRequest) -> tuple[list[tuple[str, int]], list[Mark]]:
        """Return the parts of a request and its cache markers."""
        known = self._parts.get(request.key, {})
        now: dict[tuple[int, int], tuple[str, int]] = {}
        head = [request.raw_fields.get(name, b"") for name in HEAD_FIELDS]
        head[0] = request.raw_fields.get("model", b"") + head[0]
        parts = []
        marks = []
        for index, raw in enumerate([*head, *request.items]):
            key = (hash(raw), len(raw))
            part = known.get(key) or now.get(key)
            if part is None:
                digest = digest_of(raw.decode(errors="replace")) if index < len(head) else _digest(request, raw)
                part = digest.hex()[:16], tokens_in(raw)
            now[key] = part
            parts.append(part)
            if MARKER in raw:
                marks.append(Mark(index + 1, HOUR if ONE_HOUR_PATTERN.search(raw) else FIVE_MINUTES))
        self._parts[request.key] = now
        if request.api.format != "anthropic":
            kept = DAY if request.fields.get("prompt_cache_retention") == "24h" else FIVE_MINUTES
            marks = [Mark(len(parts), kept)]
        elif automatic := request.raw_fields.get("cache_control"):
            marks.append(Mark(len(parts), HOUR if ONE_HOUR_PATTERN.search(automatic) else FIVE_MINUTES))
        return parts, marks


def tokens_in(raw: bytes) -> int:
    """Return the estimated tokens of an encoded part of a request. Encoded images and files count as one image each."""
    size = len(raw)
    if b"base64" in raw:
        texts = raw.split(b'"')  # A regular expression takes four times as long.
        files = [len(text) for text in texts if len(text) >= ENCODED_FILE_BYTES and b" " not in text]
        size += len(files) * IMAGE_TOKENS * BYTES_PER_TOKEN - sum(files)
    return size // BYTES_PER_TOKEN


def model_named(models: ModelCatalog, api: str, name: str) -> Model | None:
    """Return the model `name` of a server with the message format `api`. Return None if its price is unknown.

    `name` can have the form provider/model.
    """
    found = models.find_priced(name, PROVIDERS.get(api, ""))
    return found[1] if found is not None else None


def _digest(request: ClientRequest, raw: bytes) -> bytes:
    """Return the hash of what the server caches of an item. Clients may send an item with a marker in another form."""
    value = decode_plain(raw)
    try:
        return digest_of(request.api.identity(request.api.without_markers(value)))
    except (LookupError, TypeError, ValueError, AttributeError):
        return digest_of(value)


def _scaled(charge: Charge, scale: float, output: int, *, is_automatic: bool) -> Used:
    read, written, fresh, hour = (
        round(tokens * scale) for tokens in (charge.read, charge.written, charge.fresh, charge.written_1h)
    )
    if is_automatic:
        return Used(fresh + written, read, 0, output)
    return Used(fresh, read, written, output, hour)


def _usd(model: Model, used: Used) -> float:
    usage = Usage(used.fresh, used.output, used.read, used.written)
    return cost(model, usage, used.written_1h).cost_usd
