"""Archival for other agent loops.

An Archiver takes and returns plain messages, and stores archived messages in a folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from orch_protocol.agent.config import ArchivalConfig, Profile
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Message, StopReason
from orch_protocol.services.archives.archiving import SummaryRequest
from orch_protocol.services.archives.recall import SearchHit
from orch_worker.backends.prices import Prices
from orch_worker.context.holder_query import render_messages
from orch_worker.conversation.live_subagents import LiveSubagent, live_block
from orch_worker.conversation.recalled import with_hits
from orch_worker.conversation.tokens import TokenEstimator
from orch_worker.prompt.instructions import HOLDER_IDENTITIES

from ..archival.adapters import format_named, with_note
from ..archival.caller_archives import ArchiveFiler
from ..archival.conversation_items import ItemReader, profile_estimator
from ..archival.fold import ArchivedRange, RangeArchiver
from ..archival.plan import plan
from ..archival.recall import TOOLS, call_tool, check_entries, check_search
from ..archival.store.catalog import ArchiveRecord, SearchableCatalog
from ..archival.store.search import Search
from ..archival.store.store import ArchiveStore
from ..archival.store.unfold import unfold
from ..config.archival_profiles import archival_rules

if TYPE_CHECKING:
    from .sync import Orchestrator

__all__ = ["ArchiveQueries", "Archiver"]


# --- Questions to an archive ---

MAX_PASSAGES = 8


class ArchiveQueries:
    """Answers questions about archives with a model. The first question starts a root unless the caller passed one."""

    def __init__(self, archive: SearchableCatalog, search: Search, root: Orchestrator | None) -> None:
        self._archive = archive
        self._search = search
        self._caller_root = root
        self._root = root

    def query(self, record: ArchiveRecord, question: str) -> str:
        """Return a model's answer to `question` from the contents of an archive. Raises AgentError or BackendError."""
        agent = self._open_root().spawn(
            HOLDER_IDENTITIES[record.kind].format(task=record.task),
            preset="holder",
            history=render_messages(self._full_messages(record), 0),
        )
        try:
            return agent.query(self._with_passages(record, question)).text
        finally:
            agent.kill()

    def close(self) -> None:
        """Close the root if this object started it."""
        if self._root is not None and self._caller_root is None:
            self._root.close()
        self._root = self._caller_root

    def _open_root(self) -> Orchestrator:
        if self._root is None:
            from .sync import Orchestrator  # imported here because only questions need processes

            self._root = Orchestrator()
        return self._root

    def _full_messages(self, record: ArchiveRecord) -> list[Message]:
        stored = self._contents(record)
        if record.kind == "era":
            return stored  # an era includes its members' records; their full content would be too long
        return unfold(self._archive, stored, _identity, self._contents)

    def _contents(self, record: ArchiveRecord) -> list[Message]:
        return [stored.message for stored in self._archive.messages(record.id)]

    def _with_passages(self, record: ArchiveRecord, question: str) -> str:
        if record.kind != "era":
            return question
        member_ids = {member.id for member in self._archive.descendants(record)}
        return with_hits(question, self._search.passages(question, member_ids, MAX_PASSAGES))


def _identity(message: Message) -> Message:
    return message


class Archiver:
    """Archives finished turns of a conversation in a folder, and restores them unchanged.

        with Archiver("archive", format) as archiver:
            messages = archiver.fold(messages)  # before each request; continue with the result
            reply = client.chat.completions.create(messages=archiver.request(messages), tools=archiver.tools(), ...)

    `format` is the message format; see `orch.archival.adapters.FORMATS`. `profile` selects how much stays in the
    conversation; `config` contains detailed settings. `summarize` is a function that takes a `SummaryRequest` and
    returns the model's text. If `summarize` is None or fails, a computed receipt replaces an archived turn. A later
    `fold` inserts a summary that arrives late. `beside` is the number of tokens that a request contains in addition to
    its messages. `estimator` estimates tokens; None selects the estimator for the models of the format. `query` starts
    subagents of `orchestrator`. If `orchestrator` is None, `query` creates an orchestrator. An Archiver must be used
    from one thread.

    Raises LockedError when another process has the folder open. Raises StoreError when the folder cannot be used.
    Raises ConfigError for invalid arguments.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        format: str,
        profile: Profile | None = None,
        summarize: Callable[[SummaryRequest], str] | None = None,
        *,
        config: ArchivalConfig | None = None,
        prices: Prices | None = None,
        beside: int = 0,
        estimator: TokenEstimator | None = None,
        orchestrator: Orchestrator | None = None,
    ) -> None:
        self.config = _checked_config(config or ArchivalConfig(), profile)
        self.rules = archival_rules(self.config)
        self.folded: tuple[ArchivedRange, ...] = ()
        """The ranges archived by the last `fold`, in order."""
        shape = format_named(format)
        self._prices = prices or Prices()
        self._summaries = summarize is not None
        self._beside = beside
        if not isinstance(folder, (str, os.PathLike)):
            raise ConfigError(f"folder must be a path; got {folder!r}")
        if orchestrator is not None and iscoroutinefunction(getattr(orchestrator, "spawn", None)):
            raise ConfigError("orchestrator must be an Orchestrator, not an AsyncOrchestrator: `query` is blocking")
        if isinstance(beside, bool) or not isinstance(beside, int) or beside < 0:
            raise ConfigError(f"beside must be a number of tokens, 0 or more; got {beside!r}")
        self._archive = ArchiveStore.open(Path(folder))
        estimator = estimator or profile_estimator(self.config.profile, TokenEstimator(shape.ratios))
        self._pieces = ItemReader(shape, self._archive, estimator)
        self._search = Search(self._archive)
        self._queries = ArchiveQueries(self._archive, self._search, orchestrator)
        try:
            stored = self._search.add_archive
            self._filer = ArchiveFiler(self._pieces, self._archive, self.config.summary, summarize, stored)
        except BaseException:
            self._archive.close()
            raise
        self._range_archiver = RangeArchiver(self._pieces, self.rules, self._filer.store)

    def __enter__(self) -> Archiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Store the summaries that have arrived, and close the files. Closing twice does nothing."""
        self._queries.close()
        self._filer.store_late_summaries()
        self._search.close()
        self._archive.close()

    @property
    def notes(self) -> list[str]:
        """Damaged parts of the folder, and summaries that could not be created, one line each."""
        return list(self._archive.notes)

    def archives(self) -> list[ArchiveRecord]:
        """Return every archive in creation order."""
        return list(self._archive.records.values())

    def fold(self, messages: Sequence[Any], *, stop_reason: StopReason | None = None) -> list[Any]:
        """Archive the turns that the profile does not keep, and return the remaining messages.

        Call this method with the whole conversation before each model request. Archived messages are stored before they
        are removed. If the last turn has no final answer, `stop_reason` is the reason why the turn ended, for example
        "max_turns". The remaining messages are the same objects as in `messages`. Messages before the first change keep
        their position. `messages` itself is not modified. Raises ConfigError for an invalid message. Raises StoreError
        when the archive cannot be written; the conversation is then unchanged.
        """
        original = pieces = [self._pieces.make_item(raw, index) for index, raw in enumerate(_as_messages(messages))]
        self._filer.store_late_summaries()
        first_uncached = plan.first_uncached_message([piece.message for piece in pieces])
        pieces, folded = self._range_archiver.fold_all(
            pieces,
            self.config.trigger,
            self._prices,
            stop_reason,
            other_tokens=self._beside,
            summaries=self._summaries,
        )
        self.folded = tuple(folded)
        pieces = self._filer.with_late_summaries(pieces, original, first_uncached, self._prices)
        self._pieces.cache(pieces)
        return [piece.raw for piece in pieces]

    def unfold(self, messages: Sequence[Any]) -> list[Any]:
        """Return `messages` with all archived messages restored in place."""
        return self._pieces.unfold(_as_messages(messages))

    def request(self, messages: Sequence[Any]) -> list[Any]:
        """Return `messages` as a request that ends with the live-subagents block.

        In formats with system messages, system messages after the first message become user messages, because servers
        with strict chat templates reject later system messages. Use the returned messages for one request only. With
        placement "system" the request does not contain the block, and the caller inserts it.
        """
        block = self.block(messages) if self.rules.placement == "tail" else ""
        return with_note(self._pieces.format, _as_messages(messages), block)

    def block(self, messages: Sequence[Any]) -> str:
        """Return the live-subagents block for `messages`. Return "" if `messages` refer to no archives."""
        return live_block(self.live(messages), self.rules.block_entries)

    def live(self, messages: Sequence[Any]) -> list[LiveSubagent]:
        """Return the archives that the records in `messages` refer to, in order."""
        read = self._pieces.format.read
        holders = [id for raw in _as_messages(messages) for id in self._archive.holders(read(raw))]
        return [LiveSubagent(id, f"Archive: {self._archive.records[id].task}") for id in holders]

    def observe(self, messages: Sequence[Any], input_tokens: int) -> None:
        """Calibrate the token estimates with the token count that the provider reported for a request.

        The request contained `messages`. `input_tokens` includes cached tokens.
        """
        if not isinstance(input_tokens, int):
            raise ConfigError(f"input_tokens must be the number that the provider reported; got {input_tokens!r}")
        estimator, read = self._pieces.estimator, self._pieces.format.read
        estimator.observe(sum(estimator.raw(read(raw)) for raw in _as_messages(messages)), input_tokens)
        self._pieces.cache(())

    def search(self, query: str, limit: int = 10) -> list[SearchHit]:
        """Return up to `limit` passages of archives, best match first. A passage contains `query` or similar words.

        The query can be words, identifiers, parts of identifiers, paths, numbers or error messages, in any script.
        `hit.id` and `hit.entry` are arguments for `read_archive`.
        """
        check_search(query, limit)
        self._archive.check_open()
        return self._search.search(query, limit)

    def read_archive(self, id: str, first: int = 1, last: int | None = None) -> list[Any]:
        """Return messages `first` to `last` (from 1, inclusive) of an archive, unchanged.

        `id` may be a unique prefix. Raises AgentNotFoundError, AmbiguousRefError or DamagedError.
        """
        check_entries(id, first, last)
        record = self._archive.find(id)
        contents = self._pieces.original_messages(record)
        if record.kind == "phase" and record.prompts:
            # This prompt contains the records of earlier phases, which do not belong to this phase.
            contents[:1] = self.unfold(contents[:1])[:1]
        return self.unfold(contents)[first - 1 : last]

    def query(self, id: str, question: str) -> str:
        """Return a model's answer to `question` about the archive `id`.

        The answer names the entries that support it. The configured model answers; without a model, the answer consists
        of quotations. This method starts a process; `close` ends the process. Raises AgentNotFoundError,
        AmbiguousRefError, DamagedError or BackendError.
        """
        check_entries(id, 1, None)
        self._archive.check_open()
        return self._queries.query(self._archive.find(id), question)

    def tools(self) -> list[Any]:
        """Return the definitions of the tools search_archive and read_archive in this message format."""
        return [self._pieces.format.tool(*each) for each in TOOLS]

    def call(self, name: str, input: dict[str, Any]) -> str:
        """Return the result of a tool call as text of limited size. Errors of the tool are part of the text.

        Raises ConfigError for an unknown tool name.
        """
        return call_tool(name, input, self.search, self._messages)

    def _messages(self, id: str, first: int, last: int | None) -> list[Any]:
        return [self._pieces.format.read(raw) for raw in self.read_archive(id, first, last)]


def _as_messages(messages: Any) -> Sequence[Any]:
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise ConfigError(f"messages must be a list in the format of the model's API; got {messages!r:.80}")
    return messages


def _checked_config(config: ArchivalConfig, profile: Profile | None) -> ArchivalConfig:
    """Set `profile` in `config`, validate all values, and return the new config. Raises ConfigError.

    Validation is necessary because a Struct that is created in code accepts any value.
    """
    if not isinstance(config, ArchivalConfig):
        raise ConfigError(f"config must be an ArchivalConfig; got {config!r}")
    fields = msgspec.to_builtins(config) | ({} if profile is None else {"profile": profile})
    if fields["profile"] not in get_args(Profile):
        raise ConfigError(f"unknown archival profile {fields['profile']!r}: use seed, economy, balanced or roomy")
    try:
        return msgspec.convert(fields, ArchivalConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"invalid archival settings: {error}") from error
