"""Agents that archive are killed repeatedly: no acknowledged turn or archive is lost, and no message is duplicated."""

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
from orch_worker.session.session_reader import read_session
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
    """Run the agent until it has printed `lines` lines, and kill it. Return the words of each complete line."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", AGENT, str(folder), str(turn)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as agent:
        assert agent.stdout is not None
        heard = [agent.stdout.readline() for _ in range(lines)]
        agent.send_signal(signal.SIGKILL)
        rest, _ = agent.communicate(timeout=SECONDS)
    return [line.split() for line in [*heard, *rest.splitlines(keepends=True)] if line.endswith("\n")]


def test_acknowledged_turns_and_archives_survive_kills(tmp_path: Path) -> None:
    """After each SIGKILL, the transcript contains all acknowledged turns and archives, and all readers return the same
    messages.
    """
    folder, chance, turn, holders = tmp_path / "agent", random.Random(11), 0, set[str]()
    for _ in range(ROUNDS):
        found = killed(folder, turn, chance.randint(1, 12))
        listed = [int(what) for kind, *rest in found if kind == "turn" for what in rest]
        turn = max([turn, *listed]) + 1  # the agent may have begun the next turn before the kill
        holders |= {what for kind, *rest in found if kind == "holder" for what in rest}
        remains = Remains(folder)
        remains.check()
        assert holders <= set(remains.collapses)
        assert {f"q{number}" for number in listed} <= set(read_session(folder).replies)
    life = Life(folder)
    for record in life.records():
        held = [remains.messages[id]["message"] for id in remains.held(record.id)]
        assert held == json.loads(msgspec.json.encode(life.read(record.id)))
    life.close()
