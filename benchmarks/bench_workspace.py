"""The share of needed objects that a workspace shows, for different orders of objects, and the time of a turn with a
workspace.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import harness
from bench_hooks import Silence
from harness import Args, Row

from orch_protocol.core.workspace import Artifact, WorkspaceSpec
from orch_worker.conversation.tokens import TokenEstimator
from orch_worker.workspace import ranking

TURNS, MADE = 120, 4
BUDGET = 1_000
NEEDED_AGAIN = 0.6
"""The share of questions about an object of an earlier turn. The other questions are about a new object."""
VAGUE = 0.15
"""The share of questions that do not name their object. To answer them, the object must be visible."""
SIDES = 300

HELD = "share of later-needed objects that {tokens} tokens hold, {turns} turns (peer: {peer}; times more)"
COST = "a turn that reads a file, with a workspace (us; peer: without)"
IDLE = "a turn without tools, with a workspace of {count} objects (us; peer: without)"

_SUBJECTS = """
    pump valve seal rotor gasket flange turbine bearing sensor relay meter boiler burner filter piston
    clutch gear shaft nozzle duct fan coil fuse switch cable socket panel hinge lever spring bolt
    bracket hose tank drain vent grille motor dynamo magnet lamp mirror lens shutter camera tripod
    spindle bobbin loom needle"""
SUBJECTS = _SUBJECTS.split()
_ASPECTS = """
    flow pressure heat noise wear cost weight speed torque range delay voltage current leak drift"""
ASPECTS = _ASPECTS.split()
ASKED = (
    "How is the {aspect} of the {subject} worked out?",
    "Why does {name} say that about the {subject}?",
    "Compare the {aspect} with what {subject}s had before.",
    "Check {name} again, please.",
)


def life(seed: int, turns: int) -> list[tuple[list[Artifact], str, str]]:
    """Return the turns of a synthetic session.

    Each turn contains the objects that it creates, its question, and the object that the question needs.
    """
    chance = random.Random(seed)
    made: list[tuple[Artifact, str, str]] = []
    told = []
    for turn in range(1, turns + 1):
        again = made and chance.random() < NEEDED_AGAIN
        artifact, subject, aspect = chance.choice(made) if again else _one(chance, turn)
        new = [] if again else [(artifact, subject, aspect)]
        new += [_one(chance, turn) for _ in range(chance.randint(0, 2 * MADE))]
        name = artifact.name.partition(":")[2]
        question = chance.choice(ASKED).format(subject=subject, aspect=aspect, name=name)
        if chance.random() < VAGUE:
            question = "And what follows from that?"
        told.append(([each for each, _, _ in new], question, artifact.name))
        made += new
    return told


def _one(chance: random.Random, turn: int) -> tuple[Artifact, str, str]:
    subject, aspect = chance.choice(SUBJECTS), chance.choice(ASPECTS)
    number = chance.randint(1, 999)
    name, kind, tool = chance.choice(
        (
            (f"file:src/{subject}_{aspect}{number}.py", "file", "read_file"),
            (f"value:{subject}_{number}", chance.choice(("pandas.DataFrame", "list", "dict", "float")), "run_python"),
            (f"search:{aspect}{number} in src", "search", "grep_files"),
            (f"page:https://example.org/{subject}/{number}", "page", "fetch_url"),
            (f"result:bash make {subject}-{number}", "result", "bash"),
        )
    )
    words = " ".join(chance.choice((*ASPECTS, "table", "part", "line", "value", "list")) for _ in range(20))
    summary = f"the {aspect} of the {subject}: {words}"
    return Artifact(name, kind, summary, tool, turn=turn, used=turn, size=4_000), subject, aspect


Order = Callable[[Sequence[Artifact], str, int], list[Artifact]]


def by_recency(artifacts: Sequence[Artifact], prompt: str, turn: int) -> list[Artifact]:  # noqa: ARG001
    """Return `artifacts`, the latest object first."""
    return sorted(artifacts, key=lambda each: (-each.used, each.name))


def by_reference(artifacts: Sequence[Artifact], prompt: str, turn: int) -> list[Artifact]:
    """Return `artifacts` ordered by the weights of the original formula, in which recency has the highest weight."""
    ours = ranking.RECENCY_WEIGHT, ranking.OVERLAP_WEIGHT
    ranking.RECENCY_WEIGHT, ranking.OVERLAP_WEIGHT = 0.4, 0.3  # type: ignore[misc]
    try:
        return ranking.rank_artifacts(artifacts, prompt, turn)
    finally:
        ranking.RECENCY_WEIGHT, ranking.OVERLAP_WEIGHT = ours  # type: ignore[misc]


def held(order: Order, seeds: int, turns: int) -> float:
    """Return the share of needed objects that the workspace shows when their question is asked."""
    size = TokenEstimator().text
    found = asked = 0
    for seed in range(seeds):
        there: dict[str, Artifact] = {}
        for turn, (made, question, needed) in enumerate(life(seed, turns), 1):
            if needed in there:
                asked += 1
                told = ranking.pack_artifacts(order(list(there.values()), question, turn), BUDGET, size)
                found += needed in told.names
                there[needed] = _used(there[needed], turn)
            there |= {each.name: each for each in made}
    return found / asked


def _used(artifact: Artifact, turn: int) -> Artifact:
    from msgspec.structs import replace

    return replace(artifact, used=turn)


async def turns(folder: Path, times: int, *, kept: bool, calls: bool, count: int = 0) -> float:
    """Return the median microseconds of a turn of a runtime without processes. Its workspace has `count` objects."""
    from orch_protocol.agent.spec import AgentSpec, BackendSpec
    from orch_protocol.core.workspace import KeepArtifact
    from orch_protocol.wire.worker_messages import Query
    from orch_worker.agent.runtime import Runtime

    await asyncio.to_thread(folder.mkdir)
    await asyncio.to_thread((folder / "a.py").write_text, "def a(): ...\ndef b(): ...\n" * 50)
    loop: list[Any] = [{"tool": "read_file", "input": {"path": "a.py"}}, "ok"] if calls else ["ok"]
    backend = BackendSpec("scripted", options={"items": [{"loop": loop}]})
    spec = AgentSpec(
        "a1", 1, "a", "t", backend, str(folder), str(folder), tools=("read_file",),
        workspace=WorkspaceSpec(prune_turns=10**6) if kept else None,
    )  # fmt: skip
    runtime = Runtime(spec, {}, Silence())  # type: ignore[arg-type]
    if kept and count:
        chance = random.Random(1)
        runtime.transcript.workspace(tuple(KeepArtifact(_one(chance, 1)[0]) for _ in range(count)))
    taken = []
    for number in range(times):
        begin = perf_counter()
        await runtime.query(f"q{number}", Query("What of the flow of the pump?"), runtime.begin_turn())
        taken.append(perf_counter() - begin)
        await asyncio.sleep(0)
    runtime.close()
    return 1e6 * median(taken)


async def measure(args: Args) -> list[Row]:
    """Count the visible objects, and measure turns."""
    seeds, length = (4, 60) if args.quick else (20, TURNS)
    ours, recency, reference = (
        held(order, seeds, length) for order in (ranking.rank_artifacts, by_recency, by_reference)
    )
    rows = [
        harness.compared(
            HELD.format(tokens=f"{BUDGET:,}", turns=length, peer=peer), [ours], [other], must=must, aim=aim
        )
        for peer, other, must, aim in (
            ("by recency alone", recency, ">= 1.5", ">= 2"),
            ("recency weighed most", reference, ">= 1", ">= 1.1"),
        )
    ]
    times = SIDES // 5 if args.quick else SIDES
    with harness.scratch() as folder:
        made: list[int] = []

        def side(**how: Any) -> Callable[[], Any]:
            def once() -> Any:
                made.append(0)
                return turns(folder / str(len(made)), times, **how)

            return once

        sides = {
            "on": side(kept=True, calls=True),
            "off": side(kept=False, calls=True),
            "idle": side(kept=True, calls=False, count=200),
            "bare": side(kept=False, calls=False),
        }
        values = await harness.interleave(args.rounds, **sides)
    rows.append(harness.compared(COST, values["on"], values["off"], must="<= 3", aim="<= 1.5"))
    rows.append(harness.compared(IDLE.format(count=200), values["idle"], values["bare"], must=">= 0", aim="<= 20"))
    return rows


if __name__ == "__main__":
    harness.main(measure)
