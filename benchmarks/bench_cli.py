"""CPU time of commands and of the import.

`orch list` runs with twenty agents and a running daemon. The commands are compared with the smallest Python process,
the import of the blocking API with the import of a provider's SDK, and the first `orch run` without a daemon with a
program that imports the SDK and sends one request.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

import harness
from harness import Args, Row

AGENTS = 20
CALLS_A_ROUND = 5
CALL_SECONDS = 60
ORCH = str(Path(sys.executable).with_name("orch"))
IMPORT = (sys.executable, "-P", "-c", "from orch import Orchestrator")
SDK = (sys.executable, "-P", "-c", "import anthropic")
MODEL = "claude-sonnet-5-5"
COLD_QUERY = (sys.executable, str(Path(__file__).with_name("cold_query.py")), ORCH)
FRESH_ASKER = (sys.executable, str(harness.PEERS / "fresh_asker.py"), "anthropic")


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
    """Measure commands that need no daemon, then `orch list`."""
    return [*await start_rows(args), *await query_rows(args), await list_row(args)]


async def start_rows(args: Args) -> list[Row]:
    """Measure `orch --version`, and the import of the blocking API."""
    env = dict(os.environ)
    took = await harness.interleave(
        args.rounds,
        version=lambda: median(cpu_ms([ORCH, "--version"], env) for _ in range(CALLS_A_ROUND)),
        smallest=lambda: median(cpu_ms(harness.PASS, env) for _ in range(CALLS_A_ROUND)),
        imported=lambda: cpu_ms(IMPORT, env),
        sdk=lambda: cpu_ms(SDK, env),
    )
    version = "CPU of `orch --version` (ms; peer: python -I -S -c pass)"
    imported = "CPU of `from orch import Orchestrator` (ms; peer: import anthropic)"
    return [
        harness.compared(version, took["version"], took["smallest"], must="<= 3", aim="<= 1.5"),
        harness.compared(imported, took["imported"], took["sdk"], must="<= 0.1", aim="<= 0.06"),
    ]


async def query_rows(args: Args) -> list[Row]:
    """Measure the first question from the shell: its time, and the CPU time of all processes that it starts."""
    walls: dict[str, list[float]] = {"ours": [], "peer": []}
    server = harness.Peer(sys.executable, "model_server.py")
    try:
        with harness.scratch() as home:
            url = server.ask()["url"]
            given = {"ORCH_HOME": str(home), "ORCH_MODEL": f"anthropic:{MODEL}"}
            env = {**os.environ, **given, "ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": url}

            def ours() -> float:
                done = subprocess.run(COLD_QUERY, env=env, cwd=home, capture_output=True, text=True, check=True)
                figures: dict[str, float] = json.loads(done.stdout)
                walls["ours"].append(figures["wall"])
                return figures["cpu"]

            def peer() -> float:
                begin = perf_counter()
                cpu = cpu_ms([*FRESH_ASKER, url, MODEL], env)
                walls["peer"].append(1000 * (perf_counter() - begin))
                return cpu

            took = await harness.interleave(max(args.rounds // 3, 1), ours=ours, peer=peer)
    finally:
        server.close()
    peer_name = "new process with the SDK)"
    cpu = f"CPU of the first `orch run`, no daemon, all processes (ms; peer: {peer_name}"
    wall = f"answer of the first `orch run`, no daemon (ms; peer: {peer_name}"
    return [
        harness.compared(cpu, took["ours"], took["peer"], must="<= 2", aim="<= 1.5"),
        harness.compared(wall, walls["ours"][1:], walls["peer"][1:], must="<= 2", aim="<= 1.5"),
    ]


async def list_row(args: Args) -> Row:
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
    return harness.compared(figure, took["ours"], took["peer"], must="<= 6", aim="<= 3")


if __name__ == "__main__":
    harness.main(measure)
