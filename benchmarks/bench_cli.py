"""CPU time of `orch list` with twenty agents and a running daemon, compared with the smallest Python process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import harness
from harness import Args, Row

AGENTS = 20
CALLS_A_ROUND = 5
CALL_SECONDS = 60
ORCH = str(Path(sys.executable).with_name("orch"))


def cpu_ms(command: Sequence[str], env: Mapping[str, str]) -> float:
    """Return the CPU milliseconds, user and system, that `command` takes. The output of `command` is discarded."""
    null = os.open(os.devnull, os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, null, descriptor) for descriptor in (0, 1)]
    pid = os.posix_spawn(command[0], command, env, file_actions=actions)
    os.close(null)
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    return 1000 * (usage.ru_utime + usage.ru_stime)


async def measure(args: Args) -> list[Row]:
    """Start a daemon with twenty agents, list the agents, and stop the daemon."""
    with harness.scratch() as home:
        env = {**os.environ, "ORCH_HOME": str(home)}
        (home / "config.toml").write_text(f"[subagents]\nmax_concurrent = {2 * AGENTS}\n")

        def orch(*arguments: str) -> str:
            command = [ORCH, *arguments]
            done = subprocess.run(command, env=env, cwd=home, capture_output=True, text=True, timeout=CALL_SECONDS)
            if done.returncode:
                raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
            return done.stdout

        try:
            for number in range(AGENTS):
                orch("spawn", f"task {number}", "--json")
            listed = json.loads(orch("list", "--json"))
            if len(listed) != AGENTS:
                raise RuntimeError(f"{len(listed)} agents listed, {AGENTS} spawned")
            took = await harness.interleave(
                args.rounds,
                ours=lambda: median(cpu_ms([ORCH, "list"], env) for _ in range(CALLS_A_ROUND)),
                peer=lambda: median(cpu_ms(harness.PASS, env) for _ in range(CALLS_A_ROUND)),
            )
        finally:
            orch("daemon", "stop")
    figure = f"CPU of `orch list`, {AGENTS} agents, daemon warm (ms; peer: python -I -S -c pass)"
    return [harness.compared(figure, took["ours"], took["peer"], must="<= 6", aim="<= 3")]


if __name__ == "__main__":
    harness.main(measure)
