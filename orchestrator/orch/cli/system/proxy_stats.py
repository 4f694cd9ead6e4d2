"""The command `orch proxy stats` shows what conversations cost through the gateway. It needs no running proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...config import paths
from .. import command
from ..command import CliCommand

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

__all__ = ["STATS"]


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--last", metavar="N", type=command.positive_int, default=10, help="number of conversations to list (10)"
    )


def _stats(arguments: Namespace) -> int:
    import msgspec

    from ...gateway.receipt_log import read_receipt
    from .receipt_text import receipt_text

    receipt = read_receipt(paths.conversations_dir(paths.home()))
    command.print_result(arguments, msgspec.to_builtins(receipt), receipt_text(receipt, arguments.last))
    return 0


STATS = CliCommand(
    "Show what conversations cost through the proxy, from the usage that servers report, and what they would have cost "
    "without it, from a replay of what clients sent. It also works while no proxy is running.",
    "orch proxy stats --last 5",
    _arguments,
    _stats,
)
