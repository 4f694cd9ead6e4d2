"""Print the shares of tests/ that use the public API, the pure core, contracts, and internals.

A test file counts at the lowest level that it imports. The lists below define the levels; AGENTS.md repeats them.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {"orch": "orchestrator", "orch_worker": "worker", "orch_protocol": "protocol"}
LEVELS: dict[str, tuple[str, ...]] = {
    "public API": ("orch.api", "orch.testing", "orch.cli"),
    # Data and decisions, without files, processes or a clock.
    "pure core": (
        "orch_protocol",
        "orch.archival.adapters",
        "orch.archival.plan",
        "orch.chat.text",
        "orch.policy.budget_rules",
        "orch.policy.budgets",
        "orch.policy.caller",
        "orch.policy.rate_limits",
        "orch.render",
        "orch.replay.recalls",
        "orch.replay.peers",
        "orch.replay.policies",
        "orch.replay.policy_names",
        "orch.sessions.formats",
        "orch.tree",
        "orch_worker.backends",
        "orch_worker.context.compaction_rules",
        "orch_worker.conversation",
        "orch_worker.policy",
        "orch_worker.prompt.builder",
        "orch_worker.session.entry_tree",
        "orch_worker.session.log.record_format",
        "orch_worker.session.plan",
        "orch_worker.session.visible_messages",
        "orch_worker.tools.dispatch.presets",
        "orch_worker.tools.dispatch.result_limits",
        "orch_worker.tools.values.codec",
        "orch_worker.tools.values.repr",
    ),
    # Interfaces between folders. They change only for a reason.
    "contracts": (
        "orch.client.failure",
        "orch.processes.base",
        "orch.processes.in_process",
        "orch.services",
        "orch.supervisor.supervisor",
        "orch_worker.hooks.hook",
        "orch_worker.hooks.loader",
        "orch_worker.session.log.append_log",
        "orch_worker.session.log.lock",
        "orch_worker.session.session_reader",
        "orch_worker.session.transcript",
        "orch_worker.tools.api",
        "orch_worker.tools.dispatch.toolbox",
    ),
}
"""The modules and packages of each level, highest level first. All other modules are internals."""


def imported(path: Path) -> set[str]:
    """Return the modules of orch that the file at `path` imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {module(name) for name in names if name.partition(".")[0] in SOURCES}
    return found


def module(name: str) -> str:
    """Return the module that the dotted name `name` refers to. The name may be a module or a member of a module."""
    parts = name.split(".")
    while len(parts) > 1:
        place = ROOT.joinpath(SOURCES[parts[0]], *parts)
        if place.with_suffix(".py").exists() or place.is_dir():
            break
        parts.pop()
    return ".".join(parts)


def level(name: str) -> int:
    """Return the index of the level of the module `name`. For internals, return the number of levels."""
    if name == "orch":
        return 0
    for index, names in enumerate(LEVELS.values()):
        if any(name == each or name.startswith(f"{each}.") for each in names):
            return index
    return len(LEVELS)


def main() -> None:
    """Print the share of lines of each level, and the internals that most lines depend on."""
    lines: Counter[int] = Counter()
    internals: Counter[str] = Counter()
    for path in sorted((ROOT / "tests").rglob("*.py")):
        count = len(path.read_text().splitlines())
        found = {name: level(name) for name in imported(path)}
        lowest = max(found.values(), default=0)
        lines[lowest] += count
        if lowest == len(LEVELS):
            internals.update({name: count for name, each in found.items() if each == lowest})
    for index, label in enumerate([*LEVELS, "internals"]):
        print(f"{label:12} {lines[index]:7,} lines {lines[index] / lines.total():5.0%}")
    print("internals that most lines depend on:")
    for name, count in internals.most_common(15):
        print(f"  {count:6,} {name}")


if __name__ == "__main__":
    main()
