"""The history of an agent without a process.

Turns are recorded, and the plans of the engine are applied as a worker would apply them.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from functools import lru_cache
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch.archival.engine import ArchiveEngine
from orch.archival.store.catalog import ArchiveRecord
from orch.archival.store.deletion import DeletedContent
from orch.archival.store.prune import ContentToDelete
from orch.archival.store.session_archives import SessionArchives
from orch.archival.store.shown import ShownArchives
from orch.tree.agents.agent_record import redacted_message
from orch_protocol.agent.config import ArchivalConfig, TriggerConfig
from orch_protocol.agent.spec import AgentSpec, BackendSpec, Durability
from orch_protocol.core.archives import ArchiveSource, RecordUpgrade
from orch_protocol.core.errors import AgentNotFoundError
from orch_protocol.core.ids import new_entry_id
from orch_protocol.core.messages import Message, Reply, StopReason, Text, ToolResult, ToolUse, assistant, user
from orch_protocol.services.archives.archiving import ArchivePlan, PlanArchiving
from orch_protocol.services.archives.recall import SearchHit
from orch_protocol.session.entries import AnyMessageEntry, MessageEntry
from orch_protocol.session.tree import AddMessage, SessionEdit
from orch_worker.backends.prices import Prices
from orch_worker.context.compaction_rules import safe_cuts
from orch_worker.conversation.stubs import holders_in, is_summary, stub_text
from orch_worker.session.entry_codec import MESSAGE_PREFIXES
from orch_worker.session.log.log_reader import load
from orch_worker.session.session_reader import read_session
from orch_worker.session.transcript import Transcript

__all__ = ["DELETED", "EAGER", "PROFILES", "Life", "at_once", "call", "result", "steps"]

DELETED = "2026-11-21T10:20:30.400Z"
"""The time of deletions."""
EAGER = ArchivalConfig(
    enabled=True, profile="seed", trigger=TriggerConfig(token_threshold=0, tool_call_threshold=0), answer_tokens=5
)
"""A configuration that archives every finished turn."""
PROFILES = {
    "eager": EAGER,
    "tight": ArchivalConfig(
        enabled=True,
        profile="economy",
        gate=False,
        trigger=TriggerConfig(token_threshold=100, tool_call_threshold=2),
        high_tokens=150,
        low_tokens=40,
        rollup_tokens=150,
        prompt_tokens=30,
    ),
    "phases": ArchivalConfig(enabled=True, profile="economy", turns=False, gate=False, high_tokens=100, low_tokens=30),
    "gated": ArchivalConfig(enabled=True, profile="economy", high_tokens=300, low_tokens=100, rollup_tokens=200),
}


def call(*ids: str, text: str = "") -> Message:
    """Return a response that makes the calls `ids`."""
    replies = (Text(text),) if text else ()
    return Message("assistant", (*replies, *(ToolUse(id, "read_file", {"path": f"{id}.txt"}) for id in ids)))


def result(*ids: str, text: str = "") -> Message:
    """Return the results of the calls `ids`."""
    return Message("user", tuple(ToolResult(id, (Text(text or f"what is in {id}.txt"),)) for id in ids))


def steps(count: int, name: str = "c", size: int = 1) -> list[Message]:
    """Return `count` calls with their results. Each result has `size` words."""
    pairs = [(f"{name}{number}", f"word{number} " * size) for number in range(count)]
    return [message for id, text in pairs for message in (call(id), result(id, text=text))]


def at_once(work: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
    """Call `work` now, in place of a thread."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    try:
        future.set_result(work(*arguments))
    except Exception as error:
        future.set_exception(error)
    return future


class Pruned(DeletedContent, frozen=True):
    """The content that was deleted by the last deletion, and by all deletions."""

    going: ContentToDelete


class Life:
    """One agent, with the data of its root and of its process. `said` contains all messages by entry id."""

    def __init__(self, folder: Path, config: ArchivalConfig = EAGER, *, durability: Durability = "process") -> None:
        self.folder = folder
        self.durability: Durability = durability
        self.config = config
        self.said: dict[str, Message] = {}
        self.queries = 0
        self.loop = asyncio.Runner()
        self.transcript = self.opened()
        self.archives = ArchiveEngine(config, at_once)
        self.spec = AgentSpec(
            id="agent", seq=1, name="agent", task="t", backend=BackendSpec("extractive"), folder=str(folder), cwd="/"
        )

    def opened(self) -> Transcript:
        """Return the transcript as the agent's next process opens it."""
        return Transcript.open(self.folder, agent="agent", cwd="/", durability=self.durability)

    def close(self) -> None:
        """Close the agent's files."""
        self.transcript.close()
        self.forget()
        self.loop.close()

    # Actions of the agent.

    def work(self, number: int, phases: int, words: int = 60) -> None:
        """Run a turn that is archived phase by phase, and as a whole at the end."""
        self.begin(f"ask {number}")
        for phase in range(phases):
            self.say(*steps(1, f"t{number}.{phase}", words))
            self.archive(None)
        self.say(assistant(f"answer {number}"))
        self.end()
        self.archive()

    def say(self, *messages: Message, turn: str | None = None) -> None:
        """Record messages of the current turn."""
        for message in messages:
            entry = self.transcript.message(message, f"q{self.queries}" if turn is None else turn)
            self.said[entry.id] = entry.message

    def seed(self, *messages: Message) -> None:
        """Begin the conversation with messages of another conversation."""
        self.transcript.seed(messages)
        self.said |= {entry.id: entry.message for entry in self.entries()}

    def entries(self) -> list[MessageEntry]:
        """Return the messages that the worker still has in memory."""
        return [entry for entry in self.transcript.session.entries if isinstance(entry, MessageEntry)]

    def begin(self, asked: str) -> None:
        """Start a turn with the prompt `asked`."""
        self.queries += 1
        self.transcript.turn = f"q{self.queries}"
        interrupted = self.transcript.session.interrupted
        if interrupted is not None:
            self.transcript.turn_start(f"q{self.queries}", interrupted)
        self.say(user(asked))

    def end(self, stop_reason: StopReason = "end_turn", text: str = "done") -> None:
        """Record the end of the turn."""
        turn = f"q{self.queries}"
        self.transcript.turn_end(turn, Reply("agent", turn, text, stop_reason))

    def go(self, to: str | None, summary: str | None = None) -> None:
        """Go back to the entry `to`. If `to` is None, go back to the beginning."""
        self.transcript.checkout(to, summary)
        self._heard()

    def inform(self, text: str) -> None:
        """Add a message of a program."""
        entry = new_entry_id(self.transcript.session.places)
        self.transcript.change(SessionEdit(entry, AddMessage("test", text)))
        self._heard()

    def compact(self, stop: int) -> None:
        """Replace the first `stop` visible messages by a summary, if the conversation can be cut there."""
        items, found = self.transcript.session.view.items, self.transcript.session.view.project_items
        cuts = [cut for cut in safe_cuts(items, found) if cut <= stop]
        if cuts:
            kept = items[cuts[-1]].first
            self.transcript.compaction(summary=f"summary of {self.queries}", first_kept_entry_id=kept)

    def _heard(self) -> None:
        session = self.transcript.session
        entry = session.entries[-1]
        if isinstance(entry, AnyMessageEntry):
            self.said[entry.id] = entry.message

    def turn(self, *work: Message, asked: str = "", answer: str | None = None, stop: StopReason = "end_turn") -> str:
        """Run a whole turn and return its query id."""
        self.begin(asked or f"ask {self.queries + 1}")
        self.say(*work)
        if stop == "end_turn":
            self.say(assistant(answer if answer is not None else f"answer {self.queries}"))
        self.end(stop)
        return f"q{self.queries}"

    # Actions of the root and the worker.

    def plan(self, stop_reason: StopReason | None = "end_turn", *, summaries: bool = False) -> ArchivePlan:
        """Return the engine's plan for archiving now."""
        items = self.transcript.session.view.items
        ask = PlanArchiving(stop_reason, items[-1].last if items else "", 0, 1.0, summaries)
        return self.loop.run(self.archives.plan(self.spec, ask, Prices()))

    def archive(self, stop_reason: StopReason | None = "end_turn") -> list[str]:
        """Archive what the engine plans now. Return the holders."""
        plan = self.plan(stop_reason)
        self.transcript.archive(plan.collapses)
        return [collapse.holder for collapse in plan.collapses]

    def summarize(self, holder: str, text: str, *, at_once: bool = True) -> None:
        """Record a better text for the record of a holder."""
        record = self.ledger().records[holder]
        self.transcript.upgrade(RecordUpgrade(holder, stub_text(record.kind, holder, text, record.answer), at_once))

    def prune(self, before: str, when: str = DELETED, *, killed: bool = False) -> Pruned:
        """Delete the archives that were created at `before` or earlier, while the agent has no process.

        If `killed` is True, finish a deletion that was interrupted.
        """
        self.transcript.close()
        going = self.loop.run(self.archives.delete(self.spec, before, when))
        done = self.loop.run(self.archives.finish_deletion(self.spec, rewritten=going.due or killed))
        deleted = Pruned(done.archives, done.turns, going)
        self.transcript = self.opened()
        gone = {entry.id for entry in self._entries() if getattr(entry, "deleted", "")}
        self.said |= {id: redacted_message(message, when) for id, message in self.said.items() if id in gone}
        return deleted

    def restart(self) -> None:
        """Continue with another process of the agent."""
        self.transcript.close()
        self.transcript = self.opened()

    def die(self) -> None:
        """Kill the agent's process and continue with another process. The first process syncs nothing."""
        os.close(self.transcript.log._descriptor)
        self.transcript.log._descriptor = -1
        self.restart()

    def forget(self) -> None:
        """Continue with another root."""
        self.loop.run(self.archives.close())
        self.archives = ArchiveEngine(self.config, at_once)

    # Queries about the state.

    def ledger(self) -> SessionArchives:
        """Return the archives of the file, read by a new reader."""
        ledger = SessionArchives(self.folder)
        ledger.catch_up()
        return ledger

    def records(self) -> list[ArchiveRecord]:
        """Return all archives that the engine knows."""
        return self.loop.run(self.archives.list_records(self.spec))

    def read(self, holder: str, first: int = 1, last: int | None = None) -> list[Message]:
        """Return the messages of an archive, also of one that was merged into another."""
        record = self.loop.run(self.archives.record(self.spec, holder))
        return self.ledger().read(record.id, first, last)

    def source(self, holder: str) -> ArchiveSource:
        """Return the location of the messages that a holder gets."""
        return self.loop.run(self.archives.source(self.spec, holder))

    def spoil(self, was: bytes, now: bytes) -> None:
        """Replace the first occurrence of `was` in the file by `now`."""
        path = self.folder / "session.jsonl"
        path.write_bytes(path.read_bytes().replace(was, now, 1))

    def search(self, query: str) -> list[SearchHit]:
        """Return the hits for `query` in the archives."""
        return self.loop.run(self.archives.search(self.spec, query, 10))

    def check(self) -> None:
        """Check the conditions that are true at every moment. Raises AssertionError."""
        session, known = self.transcript.session, self.records()
        again, fresh = read_session(self.folder), self.ledger()
        shown = [(item.message, item.first, item.last) for item in session.view.items]
        for other in (again.view, fresh.view):
            assert [(item.message, item.first, item.last) for item in other.items] == shown
        mine = self.loop.run(self.archives._pool.work(self.folder, lambda shelves: shelves.archives.view))
        assert [(item.message, item.first, item.last) for item in mine.items] == shown
        for name in (
            "messages",
            "replies",
            "responses",
            "interrupted",
            "turns",
            "was_queried",
            "usage",
            "leaf",
            "places",
        ):
            assert getattr(again, name) == getattr(session, name), name
        assert list(fresh.records.values()) == known
        self._check_records(known)
        self._check_union(known)
        self._check_shown(fresh)

    def _check_records(self, known: list[ArchiveRecord]) -> None:
        for record in known:
            if record.deleted:
                continue
            messages = self.read(record.id)
            ids = self._ids(record.spans)
            assert [self.said[id] for id in ids] == messages, "an archive reads otherwise than what was said"
            assert len(messages) == record.count
            path = self._path(ids[-1])
            order = {id: place for place, id in enumerate(path)}
            places = [order[id] for id in ids]
            assert places == sorted(set(places)), "what an archive holds is not in order"
            # Other archives hold what is between the prompt and the steps of a phase.
            gaps = {id for a, b in pairwise(places) for id in path[a + 1 : b]}
            others = (each for each in known if each.number < record.number) if record.kind == "phase" else ()
            missing = gaps.difference(*(self._ids(each.own) for each in others)) if gaps else gaps
            assert not missing, "what an archive holds has gaps"

    def _check_shown(self, fresh: SessionArchives) -> None:
        """Check that each message of a shown archive has one place, and that reading this place returns the message."""
        shown = ShownArchives(fresh)
        listed = [record.id for record in self.loop.run(self.archives.list_shown(self.spec))]
        assert listed == list(shown.ids)
        assert {id for id in fresh.visible_records() if not fresh.records[id].deleted} <= set(listed)
        for record in fresh.records.values():
            if not shown.contains(record) or record.deleted:
                continue
            texts = [fresh.records[id].record for id in listed]
            if record.id not in listed and not any(f"{record.id[:8]}:" in text for text in texts):
                with pytest.raises(AgentNotFoundError, match="was merged into archive"):
                    shown.check(record)
            for index, message in enumerate(fresh.own_messages(record)):
                if message is not None:
                    place = shown.locate(record, index)
                    assert place is not None
                    assert fresh.read(place.id, place.entry, place.entry) == [message]

    def _check_union(self, known: list[ArchiveRecord]) -> None:
        holders = set(self._path(kind="archive"))
        known = [record for record in known if record.id in holders]
        own = [id for record in known for id in self._ids(record.own)]
        assert len(own) == len(set(own)), "two archives hold the same as their own"
        order = self._path()
        at = {id: place for place, id in enumerate(order)}
        held = {record.id: (record.members, set(self._ids(record.own))) for record in known}
        behind, shown = 0, set[str]()
        for _, group in groupby(self.transcript.session.view.items, key=lambda item: (item.first, item.last)):
            items = list(group)
            start, stop = at[items[0].first], at[items[-1].last] + 1
            assert start == behind, "between two that are shown something is missing, or twice"
            behind = stop
            # A prompt stays. The records of its phases follow the prompt.
            there = {item.first for item in items if _begins(item.message, self.said[item.first])}
            if is_summary(items[0].message):
                there |= set(order[start:stop])
            waiting = [id for item in items for id in holders_in(item.message)]
            while waiting:
                members, own = held[waiting.pop()]
                there |= own
                waiting += members
            missing, more = set(order[start:stop]) - there, there - set(order[start:stop])
            assert not missing, "a holder lacks something of what its stub stands for"
            assert more <= shown, "a holder holds more than its stub stands for, and the prompt before that"
            shown |= there
        assert behind == len(order)

    def _path(self, last: str | None = None, kind: str = "message") -> list[str]:
        """Return the messages on the path to the entry `last`, or to the end. For another `kind`, return the holders of
        archives.

        This method does not use code of orch.
        """
        with (self.folder / "session.jsonl").open("rb") as file:
            lines = [_row(line) for line in file if line.endswith(b"}\n")][1:]
        by_id = {line["id"]: line for line in lines}
        found, at = [], last or (lines[-1]["id"] if lines else None)
        while at is not None:
            line = by_id[at]
            if kind == "message" and line["type"] in ("message", "custom_message", "branch_summary"):
                found.append(at)
            if line["type"] == kind == "archive":
                found.append(line["collapse"]["holder"])
            at = line["parentId"]
        return found[::-1]

    def _entries(self) -> list[AnyMessageEntry]:
        """Return all messages of the file."""
        lines = (line for line in load(self.transcript.path).objects if line.startswith(MESSAGE_PREFIXES))
        return [msgspec.json.decode(line, type=AnyMessageEntry) for line in lines]

    def _ids(self, spans: Any) -> list[str]:
        """Return the ids of the messages on these lines. This method does not use code of orch."""
        data = (self.folder / "session.jsonl").read_bytes()
        lines = [_row(line) for start, length in spans for line in data[start : start + length].splitlines()]
        return [line["id"] for line in lines if line["type"] in ("message", "custom_message", "branch_summary")]


@lru_cache(maxsize=10_000)
def _row(line: bytes) -> dict[str, Any]:
    """Return the entry on `line`. The result is cached, because every archive needs it."""
    row: dict[str, Any] = json.loads(line)
    return row


def _begins(message: Message, text: Message | None) -> bool:
    return text is not None and message.role == text.role and message.content[: len(text.content)] == text.content
