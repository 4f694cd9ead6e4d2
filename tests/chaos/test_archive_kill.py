"""kill -9 of an agent that archives, again and again: nothing that was told of is lost, and no message is twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from agent_history import Life
from orch_worker.session.transcript import read_session
from session_file import Remains

ROUNDS = 15
SECONDS = 30.0
AGENT = """
import sys
from pathlib import Path
from agent_history import PROFILES, Life, steps
from orch_protocol.core.messages import assistant

life = Life(Path(sys.argv[1]), PROFILES["tight"])
print("up", flush=True)
turn = int(sys.argv[2])
while True:
    turn += 1
    life.queries = turn - 1
    life.begin(f"ask {turn}")
    for step in range(3):
        life.say(*steps(1, f"t{turn}.{step}", 60))
        for holder in life.archive(None):
            print("holder", holder, flush=True)
    life.say(assistant(f"answer {turn}"))
    life.end()
    print("turn", turn, flush=True)
    for holder in life.archive():
        print("holder", holder, flush=True)
"""


def killed(folder: Path, turn: int, lines: int) -> list[list[str]]:
    """Let the agent live until it has said so many lines, kill it, and return what it said."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", AGENT, str(folder), str(turn)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as agent:
        assert agent.stdout is not None
        heard = [agent.stdout.readline() for _ in range(lines)]
        agent.send_signal(signal.SIGKILL)
        rest, _ = agent.communicate(timeout=SECONDS)
    return [line.split() for line in [*heard, *rest.splitlines(keepends=True)] if line.endswith("\n")]


def test_what_was_told_of_survives_kills(tmp_path: Path) -> None:
    """Every turn and every archive; what is archived reads the same whoever reads it."""
    folder, chance, turn, holders = tmp_path / "agent", random.Random(11), 0, set[str]()
    for _ in range(ROUNDS):
        said = killed(folder, turn, chance.randint(1, 12))
        told = [int(what) for kind, *rest in said if kind == "turn" for what in rest]
        turn = max([turn, *told]) + 1  # the one under way may have been begun
        holders |= {what for kind, *rest in said if kind == "holder" for what in rest}
        remains = Remains(folder)
        remains.check()
        assert holders <= set(remains.collapses)
        assert {f"q{number}" for number in told} <= set(read_session(folder).replies)
    life = Life(folder)
    for record in life.records():
        held = [remains.messages[id]["message"] for id in remains.held(record.id)]
        assert held == json.loads(msgspec.json.encode(life.read(record.id)))
    life.close()
