"""Archival for anybody's loop: plain messages in, plain messages out, and a folder with everything that left them."""

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
from orch_protocol.services.archiving import SummaryRequest
from orch_protocol.services.recall import SearchHit
from orch_worker.context.holder_query import render_messages
from orch_worker.conversation.live_subagents import LiveSubagent, live_block
from orch_worker.conversation.recalled import with_hits
from orch_worker.conversation.tokens import TokenEstimator
from orch_worker.prompt.instructions import WITNESS

from ..archival.adapters import format_named, with_note
from ..archival.caller_archives import ArchiveFiler
from ..archival.conversation_items import ItemReader
from ..archival.fold import ArchivedRange, RangeArchiver
from ..archival.plan import plan
from ..archival.plan.economics import Prices
from ..archival.recall import TOOLS, answer, check_entries, check_search
from ..archival.store.catalog import ArchiveRecord, SearchableCatalog
from ..archival.store.search import Search
from ..archival.store.store import ArchiveStore
from ..archival.store.unfold import unfold
from ..config.archival_profiles import rules_of

if TYPE_CHECKING:
    from .sync import Orchestrator

__all__ = ["ArchiveQueries", "Archiver"]


# --- Asking an archive of a caller's loop ---

PASSAGES = 8


class ArchiveQueries:
    """Answers from one archive. Without a root to spawn in, one is started by the first question, for all of them."""

    def __init__(self, archive: SearchableCatalog, search: Search, root: Orchestrator | None) -> None:
        self._archive = archive
        self._search = search
        self._given = root
        self._root = root

    def query(self, record: ArchiveRecord, question: str) -> str:
        """Return what a model says to `question` that sees what the archive holds. Raises AgentError, BackendError."""
        agent = self._opened().spawn(
            WITNESS[record.kind].format(task=record.task),
            preset="holder",
            history=render_messages(self._shown(record), 0),
        )
        try:
            return agent.query(self._with_passages(record, question)).text
        finally:
            agent.kill()

    def close(self) -> None:
        """End the root that was started here, if one was."""
        if self._root is not None and self._given is None:
            self._root.close()
        self._root = self._given

    def _opened(self) -> Orchestrator:
        if self._root is None:
            from .sync import Orchestrator  # processes are for those who ask

            self._root = Orchestrator()
        return self._root

    def _shown(self, record: ArchiveRecord) -> list[Message]:
        stored = self._contents(record)
        if record.kind == "era":
            return stored  # more than anybody reads at once: its members' records are among its messages
        return unfold(self._archive, stored, _identity, self._contents)

    def _contents(self, record: ArchiveRecord) -> list[Message]:
        return [stored.message for stored in self._archive.messages(record.id)]

    def _with_passages(self, record: ArchiveRecord, question: str) -> str:
        if record.kind != "era":
            return question
        below = {member.id for member in self._archive.below(record)}
        return with_hits(question, self._search.passages(question, below, PASSAGES))


def _identity(message: Message) -> Message:
    return message


class Archiver:
    """Folds finished work of a conversation into a folder, and gets every bit of it back.

        with Archiver("archive", format) as archiver:
            messages = archiver.fold(messages)  # before each request; go on with what it returns
            reply = client.chat.completions.create(messages=archiver.request(messages), tools=archiver.tools(), ...)

    `format` is the shape of the messages; see `orch.archival.adapters.FORMATS`. `profile` says how much stays in the
    conversation, `config` says it in detail. `summarize` is asked for summaries, by `SummaryRequest`, and returns the
    model's text; without it, and when it fails, what stays is a computed receipt; a late answer is put in by a later
    `fold`. `beside` is how many tokens of a request are not messages; `estimator` sizes them, by default for the
    format's family of models. `query` asks in subagents of `orchestrator`, by default one of its own. For one thread.

    Raises LockedError when another process has the folder open, StoreError when it cannot be used, ConfigError for
    arguments that do not fit.
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
        self.rules = rules_of(self.config)
        self.folded: tuple[ArchivedRange, ...] = ()
        """What the last `fold` archived, in order."""
        shape = format_named(format)
        self._prices = prices or Prices()
        self._summaries = summarize is not None
        self._beside = beside
        if not isinstance(folder, (str, os.PathLike)):
            raise ConfigError(f"a folder is a path, not {folder!r}")
        if orchestrator is not None and iscoroutinefunction(getattr(orchestrator, "spawn", None)):
            raise ConfigError("orchestrator is an Orchestrator, not an AsyncOrchestrator: `query` does not await")
        if isinstance(beside, bool) or not isinstance(beside, int) or beside < 0:
            raise ConfigError(f"beside is a number of tokens, not {beside!r}")
        self._archive = ArchiveStore.open(Path(folder))
        estimator = estimator or (TokenEstimator() if self.config.profile == "seed" else TokenEstimator(shape.ratios))
        self._pieces = ItemReader(shape, self._archive, estimator)
        self._search = Search(self._archive)
        self._witnesses = ArchiveQueries(self._archive, self._search, orchestrator)
        try:
            stored = self._search.added
            self._filing = ArchiveFiler(self._pieces, self._archive, self.config.summary, summarize, stored)
        except BaseException:
            self._archive.close()
            raise
        self._folding = RangeArchiver(self._pieces, self.rules, self._filing.store)

    def __enter__(self) -> Archiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take in the summaries that are there by now, and close the files; closing twice does nothing."""
        self._witnesses.close()
        self._filing.late()
        self._search.close()
        self._archive.close()

    @property
    def notes(self) -> list[str]:
        """What was damaged in the folder, and which summaries were not to be had, a line each."""
        return list(self._archive.notes)

    def archives(self) -> list[ArchiveRecord]:
        """Return every archive, in the order they were made."""
        return list(self._archive.records.values())

    def fold(self, messages: Sequence[Any], *, stop_reason: StopReason | None = None) -> list[Any]:
        """Return `messages` with what the profile lets go archived: durable before it is left out.

        Call it with the whole conversation before each request. `stop_reason` says how the last turn ended if not with
        an answer, such as "max_turns". What stays is the very same objects, and what stands before a change is as it
        was; `messages` itself is not touched. Raises ConfigError for what is no message, StoreError when the archive
        cannot be written: then the conversation is what it was.
        """
        before = pieces = [self._pieces.piece(raw, place) for place, raw in enumerate(_as_messages(messages))]
        self._filing.late()
        fresh = plan.first_uncached_message([piece.message for piece in pieces])
        pieces, folded = self._folding.fold_all(
            pieces,
            self.config.trigger,
            self._prices,
            stop_reason,
            beside=self._beside,
            summaries=self._summaries,
        )
        self.folded = tuple(folded)
        pieces = self._filing.upgraded(pieces, before, fresh, self._prices)
        self._pieces.keep(pieces)
        return [piece.raw for piece in pieces]

    def unfold(self, messages: Sequence[Any]) -> list[Any]:
        """Return `messages` with everything archived put back in its place."""
        return self._pieces.unfold(_as_messages(messages))

    def request(self, messages: Sequence[Any]) -> list[Any]:
        """Return `messages` as a request carries them: with the block of live subagents as its last content.

        In the formats that take system messages, those after the first message become user messages: servers with
        strict chat templates refuse them. Do not keep the result: each request has its own. With placement "system"
        the block is the caller's to place.
        """
        block = self.block(messages) if self.rules.tail_block else ""
        return with_note(self._pieces.format, _as_messages(messages), block)

    def block(self, messages: Sequence[Any]) -> str:
        """Return the block of live subagents for `messages`, "" when there are none."""
        return live_block(self.live(messages), self.rules.block_entries)

    def live(self, messages: Sequence[Any]) -> list[LiveSubagent]:
        """Return what the stubs in `messages` stand for, in order."""
        read = self._pieces.format.read
        holders = [id for raw in _as_messages(messages) for id in self._archive.holders(read(raw))]
        return [LiveSubagent(id, f"Archive: {self._archive.records[id].task}") for id in holders]

    def observe(self, messages: Sequence[Any], input_tokens: int) -> None:
        """Learn from a reply: the request with `messages` was `input_tokens` in all, cached ones included."""
        if not isinstance(input_tokens, int):
            raise ConfigError(f"input_tokens is what the provider reported, a number, not {input_tokens!r}")
        estimator, read = self._pieces.estimator, self._pieces.format.read
        estimator.observe(sum(estimator.raw(read(raw)) for raw in _as_messages(messages)), input_tokens)
        self._pieces.keep(())

    def search(self, query: str, limit: int = 10) -> list[SearchHit]:
        """Return up to `limit` places in archives where `query` stands, best first; where not, what resembles it.

        Words, identifiers and parts of them, paths, figures, error messages, any script. `hit.id` and `hit.entry` are
        for `read_archive`.
        """
        check_search(query, limit)
        self._archive.check_ours()
        return self._search.search(query, limit)

    def read_archive(self, id: str, first: int = 1, last: int | None = None) -> list[Any]:
        """Return the messages `first` to `last` (from 1, both included) of an archive, exactly as they were.

        `id` may be the unique beginning of one. Raises AgentNotFoundError, AmbiguousRefError, DamagedError.
        """
        check_entries(id, first, last)
        record = self._archive.find(id)
        contents = self._pieces.contents(record)
        if record.kind == "phase" and record.prompts:
            # Its prompt carries the stubs of the phases before it, which are no part of this one.
            contents[:1] = self.unfold(contents[:1])[:1]
        return self.unfold(contents)[first - 1 : last]

    def query(self, id: str, question: str) -> str:
        """Return what a model says to `question` that is shown the archive `id`, with the entries it has it from.

        The model is the configured one; without any, quotations. This alone starts a process, which `close` ends.
        Raises AgentNotFoundError, AmbiguousRefError, DamagedError, BackendError.
        """
        check_entries(id, 1, None)
        self._archive.check_ours()
        return self._witnesses.query(self._archive.find(id), question)

    def tools(self) -> list[Any]:
        """Return the definitions of search_archive and read_archive, for the model, in this format's shape."""
        return [self._pieces.format.tool(*each) for each in TOOLS]

    def call(self, name: str, input: dict[str, Any]) -> str:
        """Return what the tool `name` of `tools` answers to `input`: text of bounded size, never an exception.

        Raises ConfigError for a name that is none of them.
        """
        return answer(name, input, self.search, self._messages)

    def _messages(self, id: str, first: int, last: int | None) -> list[Any]:
        return [self._pieces.format.read(raw) for raw in self.read_archive(id, first, last)]


def _as_messages(messages: Any) -> Sequence[Any]:
    """Return `messages` if they are a list of such. Raises ConfigError."""
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise ConfigError(f"messages are a list, as the model's API takes them, not {messages!r:.80}")
    return messages


def _checked_config(config: ArchivalConfig, profile: Profile | None) -> ArchivalConfig:
    """Return `config` with `profile`, checked: a Struct made by hand takes any value. Raises ConfigError."""
    if not isinstance(config, ArchivalConfig):
        raise ConfigError(f"config is an ArchivalConfig, not {config!r}")
    given = msgspec.to_builtins(config) | ({} if profile is None else {"profile": profile})
    if given["profile"] not in get_args(Profile):
        raise ConfigError(f"unknown archival profile {given['profile']!r}: seed, economy, balanced or roomy")
    try:
        return msgspec.convert(given, ArchivalConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"archival settings do not fit: {error}") from error
