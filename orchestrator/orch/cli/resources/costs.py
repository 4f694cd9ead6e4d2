"""`orch costs`: what models and tools were used for, day by day, as the hook `cost_tracker` counts it."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Final

import msgspec

from orch_worker.hooks.builtin.cost_tracker import FILE
from orch_worker.hooks.builtin.usage_log import DailyUsage, UsageLog, add_usage

from ...config import config, paths
from ...policy.hook_records import EVIDENCE
from ...render import terminal
from .. import command
from ..command import CliCommand

__all__ = ["VERBS"]

MODELS: Final = ["DAY", "MODEL", "REQUESTS", "IN", "OUT", "CACHED", "COST"]
TOOLS: Final = ["TOOL", "CALLS", "ERRORS", "SECONDS"]
NONE: Final = 'nothing was counted: set load = ["cost_tracker"] under [hooks], see docs/hooks.md'


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--days", metavar="N", type=command.positive_int, default=7, help="the last N days with any (7)"
    )


def _costs(arguments: Namespace) -> int:
    home = paths.home(os.environ)
    folder = config.load(Path.cwd(), os.environ).config.hooks.evidence or home / EVIDENCE
    days = dict(list(UsageLog(Path(folder) / FILE).days().items())[: arguments.days])
    command.print_result(arguments, msgspec.to_builtins(days), _page(days) if days else NONE)
    return 0


def _page(days: dict[str, DailyUsage]) -> str:
    total = DailyUsage()
    rows = [MODELS]
    for day, sums in days.items():
        total = add_usage(total, sums)
        for name, model in sorted(sums.models.items(), key=lambda each: -each[1].usage.cost_usd):
            took = model.usage
            counts = (model.requests, took.input_tokens, took.output_tokens, took.cache_read_tokens)
            unknown = " by estimate" if took.ceiling_usd else " or more"
            cost = f"${took.cost_usd:.4f}" + ("" if took.cost_known else unknown)
            rows.append([day, terminal.truncate_line(name, 40), *map(terminal.count, counts), cost])
    used = [
        [terminal.truncate_line(name, 40), str(tool.calls), str(tool.errors), f"{tool.seconds:.1f}"]
        for name, tool in sorted(total.tools.items(), key=lambda each: -each[1].seconds)
    ]
    parts = [terminal.format_columns(rows, frozenset({2, 3, 4, 5, 6})), f"${total.cost_usd:.4f} in all"]
    if used:
        parts.append("\n" + terminal.format_columns([TOOLS, *used], frozenset({1, 2, 3})))
    return "\n".join(parts)


VERBS = {
    "costs": CliCommand(
        "Show what models and tools were used for, by day (UTC), in all agents that run with the hook cost_tracker.",
        "orch costs --days 30",
        _arguments,
        _costs,
    )
}
