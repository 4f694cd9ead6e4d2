"""The time that archiving takes, and the size of a conversation with archiving. Uses an `Archiver` without agents."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple, TypeVar

import harness
import msgspec
from harness import Args, Row
from synthetic import Worker

from orch.api.archiver import Archiver
from orch.archival.adapters import format_named
from orch.archival.store.store import ArchiveRecord, ArchiveStore, StoredMessage
from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, user
from orch_worker.conversation.tokens import TokenEstimator

ENTRIES, ENTRY_CHARS = 40, 700
COMMITS = 20
ARCHIVES = 1000
TURNS, TURN_STEPS, TURN_WORDS = 10_000, 5, 1_000
FACTS = 1000
FOLD_TURNS, FOLD_STEPS, FOLD_WORDS = 400, 3, 300

T = TypeVar("T")


def measure(args: Args) -> list[Row]:
    """Run each measurement in its own folder."""
    with harness.scratch() as folder:
        return [
            commit(folder / "commit", args.rounds),
            *folds(folder / "folds", FOLD_TURNS // 8 if args.quick else FOLD_TURNS, args.rounds),
            *long_session(folder / "long", ARCHIVES // 10 if args.quick else ARCHIVES),
            *endless(folder / "endless", TURNS // 50 if args.quick else TURNS),
        ]


def commit(folder: Path, rounds: int) -> Row:
    """Return the time until an archive of 40 entries is on disk. The peer is one append and sync of the same bytes."""
    archive = ArchiveStore.open(folder / "ours")
    record = ArchiveRecord("", 0, "turn", "t", 0, 1, 2, 20, 1, 9000, 0, "", "orch", "done", "because")
    plain = os.open(folder / "plain", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    worker = Worker(1)

    def ours() -> float:
        took = []
        for number in range(COMMITS):
            messages = [StoredMessage(message) for message in entries(worker, number)]
            begin = perf_counter()
            archive.add(record, messages)
            took.append(perf_counter() - begin)
        return median(took)

    def peer() -> float:
        took = []
        for number in range(COMMITS):
            data = msgspec.json.encode(entries(worker, number))
            begin = perf_counter()
            os.write(plain, data)
            os.fdatasync(plain)
            took.append(perf_counter() - begin)
        return median(took)

    sides: dict[str, list[float]] = {"ours": [], "peer": []}
    for number in range(rounds + 1):
        for name, side in (("ours", ours), ("peer", peer))[:: -1 if number % 2 else 1]:
            value = 1e3 * side()
            if number:
                sides[name].append(value)
    os.close(plain)
    archive.close()
    figure = f"archive of {ENTRIES} entries, 30 KB, to the disk (ms; peer: one append and fdatasync of the same bytes)"
    return harness.compared(figure, sides["ours"], sides["peer"], must="<= 3", aim="<= 1.5")


def entries(worker: Worker, number: int) -> list[Message]:
    """Return 40 messages with about 30 KB in total."""
    messages = []
    for step in range(ENTRIES // 2):
        id = f"c{number}_{step}"
        messages.append(Message("assistant", (ToolUse(id, "bash", {"command": worker.text(8)}),)))
        messages.append(Message("user", (ToolResult(id, (Text(worker.text(ENTRY_CHARS * 2 // 6)),)),)))
    return messages


def folds(folder: Path, turns: int, rounds: int) -> list[Row]:
    """Return the time of a fold at `turns` turns with the messages of one new step, and of the folds of all turns.

    The peer reads the JSON text of the request. In the profile `seed`, all turns stay in the conversation, because
    they are below its thresholds. In the profile `balanced`, almost all are archived.
    """
    rows: list[Row] = []
    write = format_named("anthropic").write
    for profile, kept in (("seed", "all in the request"), ("balanced", "archived")):
        worker, live, took = Worker(4), [], []
        with Archiver(folder / profile, "anthropic", profile) as archiver:
            for number in range(turns):
                live = live + [write(message) for message in worker.turn(number, FOLD_STEPS, FOLD_WORDS)]
                seconds, live = timed(lambda live=live: archiver.fold(live))
                took.append(seconds)
            live = archiver.fold([*live, write(user("And now?"))])
            sides: dict[str, list[Timed]] = {"ours": [], "peer": []}
            for step in range(2 * rounds):
                live = live + [write(message) for message in worker.turn(turns + step, 1, FOLD_WORDS)[1:3]]
                text = json.dumps(archiver.request(live))
                peer, _ = timed(lambda text=text: json.loads(text))
                ours, live = timed(lambda live=live: archiver.fold(live))
                if not archiver.folded:
                    sides["ours"].append(ours)
                    sides["peer"].append(peer)
        figure = f"fold of one new step at {turns} turns, {kept} ({len(text) >> 10} KB)"
        for kind, most in (("CPU", "<= 25"), ("wall", "<= 250")):
            values = [[1e3 * getattr(each, kind.lower()) for each in sides[side]] for side in ("ours", "peer")]
            rows.append(
                harness.compared(
                    f"{kind} of a {figure} (ms; peer: json.loads of the request)", *values, must="<= 1.5", aim="<= 1"
                )
            )
            p99 = 1e3 * sorted(getattr(each, kind.lower()) for each in took)[-1 - turns // 100]
            rows.append(
                harness.counted(f"{kind} p99 of the folds of {turns} turns, {kept} (ms)", p99, must=most, aim="<= 15")
            )
    return rows


class Timed(NamedTuple):
    """The time of a call in seconds."""

    cpu: float
    wall: float


def timed(act: Callable[[], T]) -> tuple[Timed, T]:
    """Return the time of `act`, and its result."""
    gc.collect()
    cpu, wall = process_time(), perf_counter()
    result = act()
    return Timed(process_time() - cpu, perf_counter() - wall), result


def long_session(folder: Path, count: int) -> list[Row]:
    """Return the time of an archive late in a session compared with an early archive, and whether the prefix stays
    unchanged.

    The early archives belong to a second session. Both sessions run in alternating turns, so that a slow phase of the
    machine affects both.
    """
    part = min(100, count // 4)
    with Archiver(folder / "long", "orch", "economy") as long, Archiver(folder / "fresh", "orch", "economy") as fresh:
        sides = Session(long), Session(fresh)
        for _ in range(count - part):
            sides[0].turn()
        for side in sides:
            side.took.clear()
        for number in range(part):
            for side in sides[:: -1 if number % 2 else 1]:
                side.turn()
    figure = f"time of an archive, the last {part} of {count} (ms; peer: the first {part})"
    last, first = (1e3 * median(side.took) for side in sides)
    broken = sides[0].broken
    return [
        harness.compared(figure, [last], [first], must="<= 1.5", aim="<= 1.1"),
        harness.counted(f"archives of {count} that changed a message before the archived turn", broken, must="== 0"),
    ]


class Session:
    """A conversation that is folded after each turn.

    It records the time of each fold, and how often the prefix changed.
    """

    def __init__(self, archiver: Archiver) -> None:
        self.took: list[float] = []
        self.broken = 0
        self._archiver = archiver
        self._worker = Worker(2)
        self._live: list[Message] = []
        self._turns = 0

    def turn(self) -> None:
        """Add a turn and fold the conversation."""
        live = [*self._live, *self._worker.turn(self._turns, 3, 300)]
        self._turns += 1
        begin = perf_counter()
        folded = self._archiver.fold(live)
        self.took.append(perf_counter() - begin)
        changed = next((place for place, message in enumerate(folded) if message is not live[place]), len(folded))
        new = {each.id for each in self._archiver.folded}
        merged = any(each.kind == "era" for each in self._archiver.folded)
        records = (
            place
            for place in range(changed, len(folded))
            if not new.isdisjoint(each.id for each in self._archiver.live(folded[place : place + 1]))
        )
        # The prompt before the record may be shortened.
        self.broken += bool(new) and not merged and next(records, len(folded)) > changed + 1
        self._live = folded


def endless(folder: Path, count: int) -> list[Row]:
    """Return the largest request over `count` turns of 9k tokens in 5 calls, and the share of planted facts that are
    found.
    """
    worker = Worker(3)
    estimator = TokenEstimator()
    largest = 0
    with Archiver(folder, "orch", "economy") as archiver:
        live: list[Message] = []
        for number in range(count):
            for message in worker.turn(number, TURN_STEPS, TURN_WORDS, {"fact": f"fact_{number} is {7 * number}"}):
                live.append(message)
                if message.role == "user":
                    live = archiver.fold(live)
                    largest = max(largest, estimator.messages(archiver.request(live)))
        asked = worker.random.sample(range(count - 1), min(FACTS, count - 1))
        found = sum(known(archiver, f"fact_{number} is {7 * number}") for number in asked)
    return [
        harness.counted(
            f"largest request of {count} turns of 9k tokens, economy (tokens)", largest, must="<= 24000", aim="<= 12000"
        ),
        harness.counted(
            f"share of {len(asked)} planted facts found by one search and read back", found / len(asked), must=">= 1"
        ),
    ]


def known(archiver: Archiver, fact: str) -> bool:
    """Return whether the first hit for `fact` contains `fact` and leads to a message that contains `fact`."""
    hits: Sequence = archiver.search(fact, 1)
    return bool(hits) and hits[0].exact and fact in str(archiver.read_archive(hits[0].id, hits[0].entry, hits[0].entry))


if __name__ == "__main__":
    harness.main(measure)
