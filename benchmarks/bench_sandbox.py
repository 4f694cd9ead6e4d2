"""The time that a sandbox level adds to a command of the tool `bash`, and the time that hiding denied paths adds."""

from __future__ import annotations

import resource
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter, process_time_ns

import harness
from harness import Args, Row

from orch_protocol.policy.policy import PolicyConfig
from orch_protocol.policy.sandbox import LEVELS, Level, SandboxSpec
from orch_worker.sandbox import launcher_client, probe
from orch_worker.tools.api.base import ToolContext
from orch_worker.tools.shell.sandboxed_exec import CommandSandbox
from orch_worker.tools.shell.shell import bash

COMMANDS = 200
FIGURE = "a command at sandbox level {} (ms; peer: at L0)"
MUST: dict[Level, tuple[str, str]] = {
    "L1": ("<= 1.25", "<= 1.1"),
    "L2": ("<= 1.25", "<= 1.1"),
    "L3": ("<= 6", "<= 3"),
}


HIDDEN = "a command with 20 denied files hidden, of 2,000 ({}; peer: at L0)"
HIDDEN_MUST = ("<= 2.5", "<= 1.5")


async def measure(args: Args) -> list[Row]:
    """Run an empty command at each level, and once with hidden denied files."""
    times = max(1, (COMMANDS // 10 if args.quick else COMMANDS) // args.rounds)
    missing, no_mounts = probe.available_levels().missing, launcher_client.unavailable_reason()
    cpu: dict[str, list[float]] = {}
    with harness.scratch() as folder, ExitStack() as stack:

        def side(name: str, sandbox: SandboxSpec, policy: PolicyConfig) -> Callable[[], Awaitable[float]]:
            (cwd := folder / name).mkdir()
            context = ToolContext(cwd, folder=Path(folder, f"session-{name}"), sandbox=sandbox, policy=policy)
            stack.callback(context.tool_state.close)
            taken_cpu = cpu.setdefault(name, [])

            async def commands() -> float:
                taken, before = [], _cpu_ms(context)
                for _ in range(times):
                    began = perf_counter()
                    await bash.run(context, {"command": "true"})
                    taken.append(perf_counter() - began)
                taken_cpu.append((_cpu_ms(context) - before) / times)
                return 1e3 * median(taken)

            return commands

        plain = {
            level: side(level, SandboxSpec(level, covers_paths=False), PolicyConfig())
            for level in LEVELS
            if level not in missing
        }
        if not no_mounts:
            policy = PolicyConfig(denied_paths=("*.pem",))
            plain["hidden"] = side("hidden", SandboxSpec(covers_paths=True), policy)
            _fill(folder / "hidden")
        took = await harness.interleave(args.rounds, **plain)
    rows = []
    for level, (must, aim) in MUST.items():
        if why := missing.get(level):
            rows.append(harness.skipped(FIGURE.format(level), why, must=must, aim=aim, ours=[]))
        else:
            rows.append(harness.compared(FIGURE.format(level), took[level], took["L0"], must=must, aim=aim))
    kept = {name: values[-args.rounds :] for name, values in cpu.items()}
    for unit, values in (("ms", took), ("ms of CPU", kept)):
        must, aim = HIDDEN_MUST
        figure = HIDDEN.format(unit)
        if no_mounts:
            rows.append(harness.skipped(figure, no_mounts, must=must, aim=aim, ours=[]))
        else:
            rows.append(harness.compared(figure, values["hidden"], values["L0"], must=must, aim=aim))
    return rows


def _fill(folder: Path) -> None:
    for number in range(100):
        (folder / str(number)).mkdir()
        for name in range(20):
            (folder / str(number) / str(name)).write_text("x")
    for number in range(20):
        (folder / str(number) / "key.pem").write_text("x")


def _cpu_ms(context: ToolContext) -> float:
    """Return the CPU time of this process, of its ended children, and of the process that starts commands for
    `context`.
    """
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    launchers = [Path(f"/proc/{pid}/schedstat").read_text() for pid in context.agent_object(CommandSandbox).launchers]
    own = process_time_ns() + sum(int(text.split()[0]) for text in launchers)
    return own / 1e6 + 1e3 * (ended.ru_utime + ended.ru_stime)


if __name__ == "__main__":
    harness.main(measure)
