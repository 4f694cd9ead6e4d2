"""Archival for other agent loops.

An Archiver takes and returns plain messages, and stores archived messages in a folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec
from msgspec import Struct

from orch_protocol.agent.config import ArchivalConfig, Profile
from orch_protocol.core.errors import AgentNotFoundError, ConfigError, DamagedError
from orch_protocol.core.messages import Message, StopReason
from orch_protocol.services.archives.archiving import SummaryRequest
from orch_protocol.services.archives.recall import SearchHit
from orch_worker.backends.prices import Prices
from orch_worker.context.holder_query import DAMAGED, render_messages
from orch_worker.conversation.live_subagents import LiveSubagent, archives_block
from orch_worker.conversation.recalled import with_hits
from orch_worker.conversation.tokens import TokenEstimator
from orch_worker.prompt.instructions import HOLDER_IDENTITIES

from ..archival.adapters import format_named, request_with
from ..archival.caller_archives import ArchiveFiler
from ..archival.conversation_items import ConversationItem, ItemReader, profile_estimator
from ..archival.fold import ArchivedRange, RangeArchiver
from ..archival.message_order import MessageOrder
from ..archival.plan.explanation import explain
from ..archival.recall import TOOLS, call_tool, check_entries, check_search
from ..archival.store.catalog import ArchiveRecord
from ..archival.store.search import Search
from ..archival.store.store import ArchiveStore
from ..archival.store.unfold import unfold
from ..config.archival_profiles import archival_rules
from ..supervisor import ephemeral_sessions
from ..supervisor.ephemeral_sessions import is_in_memory
from ..tree.agents.agent_record import archive_deleted_error

if TYPE_CHECKING:
    from .sync import Orchestrator

__all__ = ["ArchiveQueries", "Archiver", "HolderQuestion"]


# --- Questions to an archive ---

MAX_PASSAGES = 8


class HolderQuestion(Struct, frozen=True):
    """The task and the history of a subagent that answers the question `prompt` about an archive.

    If `persist` is True, there is no in-memory file system, and the session has to be deleted after the answer.
    """

    task: str
    history: tuple[Message, ...]
    prompt: str
    persist: bool


class ArchiveQueries:
    """Answers questions about archives with a model. The first question starts a root unless the caller passed one."""

    def __init__(self, archive: ArchiveStore, search: Search, root: Orchestrator | None) -> None:
        self._archive = archive
        self._search = search
        self._caller_root = root
        self._root = root

    def question(self, id: str, question: str) -> HolderQuestion:
        """Return what a subagent needs to answer `question` from the contents of the archive `id`.

        Raises ConfigError, AgentNotFoundError, AmbiguousRefError or StoreError.
        """
        check_entries(id, 1, None)
        self._archive.check_open()
        record = self._archive.find(id)
        if record.deleted:
            raise archive_deleted_error(record.id, record.deleted)
        task = HOLDER_IDENTITIES[record.kind].format(task=record.task)
        history = render_messages(self._full_messages(record), 0)
        # The subagent leaves nothing on disk, because a deletion of the archive removes no copies outside its folder.
        persist = not is_in_memory(ephemeral_sessions.MEMORY)
        return HolderQuestion(task, history, self._with_passages(record, question), persist)

    def query(self, id: str, question: str) -> str:
        """Return a model's answer to `question` from the contents of an archive. Raises AgentError or BackendError."""
        asked = self.question(id, question)
        root = self._open_root()
        agent = root.spawn(asked.task, preset="holder", history=asked.history, persist=asked.persist)
        try:
            return agent.query(asked.prompt).text
        finally:
            agent.kill()
            if asked.persist:
                root.sessions.forget(agent.id)

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
        return self._archive.readable_messages(record)

    def _with_passages(self, record: ArchiveRecord, question: str) -> str:
        if record.kind != "era":
            return question
        return with_hits(question, self._search.passages(question, record.id, MAX_PASSAGES))


def _identity(message: Message) -> Message:
    return message


class Archiver:
    """Archives finished turns of a conversation in a folder, and restores them unchanged.

        with Archiver("archive", format) as archiver:
            messages = archiver.fold(messages)  # before each request; continue with the result
            reply = client.chat.completions.create(messages=archiver.request(messages), tools=archiver.tools(), ...)

    `format` is the message format; see `orch.archival.adapters.FORMATS`. `profile` selects how much stays in the
    conversation; `config` contains detailed settings. `summarize` is a function that takes a `SummaryRequest` and
    returns the model's text; it is called for any `summary.style`, and "none" requests structured summaries. If
    `summarize` is None or fails, a computed receipt replaces an archived turn. A later `fold` inserts a summary that
    arrives late. `beside` is the number of tokens that a request contains in addition to its messages. `estimator`
    estimates tokens; None selects the estimator for the models of the format. `query` starts subagents of
    `orchestrator`. If `orchestrator` is None, `query` creates an orchestrator. An Archiver must be used from one
    thread.

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
        self.prices = prices or Prices()
        """The prices that decide what archiving pays."""
        self._summaries = summarize is not None
        self._beside = beside
        if not _is_path(folder):
            raise ConfigError(f"folder must be a path; got {folder!r}")
        if orchestrator is not None and iscoroutinefunction(getattr(orchestrator, "spawn", None)):
            raise ConfigError("orchestrator must be an Orchestrator, not an AsyncOrchestrator: `query` is blocking")
        if isinstance(beside, bool) or not isinstance(beside, int) or beside < 0:
            raise ConfigError(f"beside must be a number of tokens, 0 or more; got {beside!r}")
        self._archive = ArchiveStore.open(Path(folder))
        estimator = estimator or profile_estimator(self.config.profile, TokenEstimator(shape.ratios))
        self._pieces = ItemReader(shape, self._archive, estimator)
        self._order = MessageOrder()
        self._shown: list[ConversationItem] | None = None
        self._stop_reason: StopReason | None = None
        self._search = Search(self._archive)
        self.queries = ArchiveQueries(self._archive, self._search, orchestrator)
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
        self.queries.close()
        self._filer.store_late_summaries()
        self._search.close()
        self._archive.close()

    @property
    def notes(self) -> list[str]:
        """Damaged parts of the folder, and summaries that could not be created, one line each."""
        return list(self._archive.notes)

    def archives(self, *, merged: bool = False) -> list[ArchiveRecord]:
        """Return the archives that the conversation of the last `fold` shows, in the order of the conversation.

        Before the first `fold`, return the archives that belong to no other archive. If `merged` is True, return all
        archives that are not deleted, in creation order, including those that were merged into others.
        """
        if merged:
            return [record for record in self._archive.records.values() if not record.deleted]
        if self._shown is None:
            return [self._archive.records[id] for id in self._search.shown().ids]
        ids = dict.fromkeys(id for item in self._shown for id in item.holders)
        return [record for id in ids if not (record := self._archive.records[id]).deleted]

    def fold(self, messages: Sequence[Any], *, stop_reason: StopReason | None = None) -> list[Any]:
        """Archive the turns that the profile does not keep, and return the remaining messages.

        Call this method with the whole conversation before each model request. Archived messages are stored before they
        are removed. If the last turn has no final answer, `stop_reason` is the reason why the turn ended, for example
        "max_turns". The remaining messages are the same objects as in `messages`. Messages before the first change keep
        their position. `messages` itself is not modified. Raises ConfigError for an invalid message or an unknown
        `stop_reason`. Raises StoreError when the archive cannot be written; the conversation is then unchanged.
        """
        raws = _as_messages(messages)
        if stop_reason is not None and stop_reason not in get_args(StopReason):
            raise ConfigError(
                f"unknown stop_reason {stop_reason!r}: use one of {', '.join(get_args(StopReason))}, or None"
            )
        original = pieces = self._read(raws)
        self._stop_reason = stop_reason
        self._filer.store_late_summaries()
        pieces, folded = self._range_archiver.fold_all(
            pieces,
            self.config.trigger,
            self.prices,
            stop_reason,
            other_tokens=self._beside,
            summaries=self._summaries,
        )
        self._archive.sync()  # once, because a first fold may create thousands of archives
        self.folded = tuple(folded)
        pieces = self._filer.with_late_summaries(pieces, original, self.prices)
        self._archive.messages_shown, self._shown = self._pieces.messages(pieces), pieces
        if pieces == original:
            return raws
        given = dict(zip(map(id, original), raws, strict=True))
        return [given.get(id(piece), piece.raw) for piece in pieces]

    def show(self, messages: Sequence[Any]) -> None:
        """Tell the archiver which conversation the model sees, without archiving anything.

        Results of recall tools then name places in this conversation. Otherwise, they refer to the conversation of the
        last `fold`. Raises ConfigError for an invalid message.
        """
        pieces = self._pieces.read_all(_as_messages(messages))
        self._archive.messages_shown, self._shown = self._pieces.messages(pieces), pieces

    def explain(self) -> str:
        """Return what the last `fold` archived, why the rest stays in the conversation, and what would change that."""
        if self._shown is None:
            return "Nothing was archived, because `fold` was not called yet."
        reasons = [f"Archived {each.kind} {each.id} ({each.tokens} tokens): {each.reason}." for each in self.folded]
        view = self._pieces.view(self._shown, self._stop_reason, other_tokens=self._beside, summaries=self._summaries)
        reasons += explain(view, self.rules, self.config.trigger, self.prices)
        return "\n".join(reasons) or "Every turn of the conversation is archived."

    def unfold(self, messages: Sequence[Any]) -> list[Any]:
        """Return `messages` with all archived messages restored in place. Raises DamagedError if one is damaged."""
        return self._pieces.unfold(_as_messages(messages))

    def request(self, messages: Sequence[Any], *, recall: bool = True, cache_markers: bool = True) -> list[Any]:
        """Return `messages` as a request that lists the archived turns after the last record of an archive.

        The list changes only when turns are archived, so providers can cache it. If `recall` is False, the request
        contains neither this list nor instructions for the tools of `tools`; use this for requests without these tools.
        With placement "system" the request does not contain the list, and the caller inserts it.

        If the API of the format has cache markers, the request has up to three, unless `messages` contain markers or
        `cache_markers` is False. In formats with system messages, system messages after the first message become user
        messages, because servers with strict chat templates reject later system messages. Use the returned messages for
        one request only. Raises ConfigError for an invalid message.
        """
        raws = _as_messages(messages)
        pieces = self._read(raws)
        records = [index for index, piece in enumerate(pieces) if piece.holders]
        listed = ""
        if recall and records and self.rules.placement == "tail":
            listed = archives_block(self._rows(pieces), self.rules.block_entries)
        format = self._pieces.format
        request = request_with(format, raws, listed, records[-1] if records else 0)
        if not cache_markers:
            return request
        return format.with_cache_markers(request, records[-1] if records else None, listed=bool(listed))

    def block(self, messages: Sequence[Any]) -> str:
        """Return the list of archived turns for `messages`. Return "" if `messages` refer to no archives."""
        return archives_block(self.live(messages), self.rules.block_entries)

    def live(self, messages: Sequence[Any]) -> list[LiveSubagent]:
        """Return the archives that the records in `messages` refer to, in order."""
        return self._rows(self._pieces.read_all(_as_messages(messages)))

    def _rows(self, pieces: Sequence[ConversationItem]) -> list[LiveSubagent]:
        records = self._archive.records
        ids = (id for piece in pieces for id in piece.holders if not records[id].deleted)
        return [LiveSubagent(id, f"Archive: {records[id].task}") for id in ids]

    def _read(self, messages: list[Any]) -> list[ConversationItem]:
        pieces = self._pieces.read_all(messages)
        self._order.check(pieces)
        return pieces

    def observe(self, messages: Sequence[Any], input_tokens: int) -> None:
        """Calibrate the token estimates with the token count that the provider reported for a request.

        The request contained `messages`. `input_tokens` includes cached tokens.
        """
        if not isinstance(input_tokens, int):
            raise ConfigError(f"input_tokens must be the number that the provider reported; got {input_tokens!r}")
        estimator, pieces = self._pieces.estimator, self._pieces.read_all(_as_messages(messages))
        estimator.observe(sum(estimator.raw(piece.message) for piece in pieces), input_tokens)
        self._pieces.forget()

    def search(self, query: str, limit: int = 10, *, among: Collection[str] | None = None) -> list[SearchHit]:
        """Return up to `limit` passages of archives, best match first. A passage contains `query` or similar words.

        The query can be words, identifiers, parts of identifiers, paths, numbers or error messages, in any script.
        `hit.id` and `hit.entry` are arguments for `read_archive`. `among` restricts the search to these archives.
        Archives that the conversation of the last `fold` or `show` no longer shows are searched too; the turn of their
        hits is 0.
        """
        check_search(query, limit)
        self._archive.check_open()
        return self._search.search(query, limit, among)

    def read_archive(
        self, id: str, first: int = 1, last: int | None = None, *, among: Collection[str] | None = None
    ) -> list[Any]:
        """Return messages `first` to `last` (from 1, inclusive) of an archive, unchanged.

        `id` may be a unique prefix. If `among` is given, the archive must be one of these or part of one. Raises
        AgentNotFoundError or AmbiguousRefError. Raises DamagedError if one of these messages is damaged.
        """
        check_entries(id, first, last)
        record = self._existing(id)
        shown = self._search.shown(among)
        if among is not None and not shown.contains(record):
            raise AgentNotFoundError(
                f"archive {record.id} belongs to another conversation; search_archive finds the ids of archives"
            )
        shown.check(record)
        try:
            contents = self._pieces.original_messages(record)
            if record.kind == "phase" and record.prompts and not record.members:
                # This prompt contains the records of earlier phases, which do not belong to this phase.
                contents[:1] = self.unfold(contents[:1])[:1]
            return self.unfold(contents)[first - 1 : last]
        except DamagedError as error:
            return self._undamaged_entries(record, first, last, error)

    def _undamaged_entries(self, record: ArchiveRecord, first: int, last: int | None, error: DamagedError) -> list[Any]:
        """Return entries of a damaged archive. Raise `error` if one of them is damaged."""
        entries = self._archive.entries(record)
        chosen = entries[first - 1 : last]
        # If the record of a member is damaged, the numbers of the entries are unknown.
        if len(entries) != record.entries or any(each.message is DAMAGED for each in chosen):
            raise error
        return [raw for each in chosen for raw in self._pieces.original_entry(each)]

    def delete(self, *ids: str) -> list[ArchiveRecord]:
        """Permanently delete the content of archives, and of the archives that were merged into them.

        `ids` are ids or unique prefixes. Return the records of the deleted archives. Their text in the records of a
        conversation stays; `unfold` and the archives that contain them show a deletion marker instead of each message.
        If an id is unknown, nothing is deleted. Raises AgentNotFoundError, AmbiguousRefError, ArchiveDeletedError,
        ConfigError or StoreError.
        """
        if not ids:
            raise ConfigError("no archive given: pass at least one id of an archive")
        for id in ids:
            check_entries(id, 1, None)
        chosen = [self._existing(id).id for id in ids]
        self._archive.check_open()
        self._search.forget()
        return self._archive.delete(chosen)

    def _existing(self, id: str) -> ArchiveRecord:
        record = self._archive.find(id)
        if record.deleted:
            raise archive_deleted_error(record.id, record.deleted)
        return record

    def query(self, id: str, question: str) -> str:
        """Return a model's answer to `question` about the archive `id`.

        The answer names the entries that support it. The configured model answers; without a model, the answer consists
        of quotations. This method starts a process; `close` ends the process. Raises AgentNotFoundError,
        AmbiguousRefError or BackendError.
        """
        return self.queries.query(id, question)

    def tools(self) -> list[Any]:
        """Return the definitions of the tools search_archive and read_archive in this message format."""
        return [self._pieces.format.tool(*each) for each in TOOLS]

    def call(self, name: str, input: dict[str, Any], *, among: Collection[str] | None = None) -> str:
        """Return the result of a tool call as text of limited size. Errors of the tool are part of the text.

        If `among` is given, the tools find only these archives. Raises ConfigError for an unknown tool name.
        """

        def read(id: str, first: int, last: int | None) -> list[Message]:
            return [self._pieces.format.read(raw) for raw in self.read_archive(id, first, last, among=among)]

        return call_tool(name, input, partial(self.search, among=among), read)


def _as_messages(messages: Any) -> list[Any]:
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise ConfigError(f"messages must be a list in the format of the model's API; got {messages!r:.80}")
    return list(messages)


def _is_path(folder: Any) -> bool:
    if not isinstance(folder, (str, os.PathLike)):
        return False
    path = os.fspath(folder)
    return isinstance(path, str) and bool(path) and "\0" not in path


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
