"""`orch list`, `show`, `resume` and `budget`."""

from __future__ import annotations

from ...client.connection import Connection
from ...render import terminal
from ...render.terminal import to_json
from .. import command
from ..command import CliCommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

__all__ = ["ROW", "VERBS"]

ROW = (
    *("id", "seq", "name", "parent_id", "depth", "kind", "status", "task", "model", "preset", "pid", "created_at"),
    *("last_activity", "pending", "context_tokens", "context_limit", "queries", "usage", "budget", "spent", "outcome"),
    "run",
)


def _list_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="killed ones too")
    parser.add_argument(
        "--runs", action="store_true", help="with --json: agents of programs too, as the table has them"
    )
    parser.add_argument("--tree", action="store_true", help="children below their parents, usage of whole branches")


def _list(arguments: Namespace) -> int:
    rows = Connection().call("list", {"all": arguments.all, "runs": arguments.runs or not arguments.json})
    if arguments.json:
        print(to_json([{key: row[key] for key in ROW} for row in rows]))
    else:
        there = command.without_deleted(rows)
        print(terminal.agent_tree(there) if arguments.tree else terminal.agent_table(there))
    return 0


def _show_arguments(parser: ArgumentParser) -> None:
    command.agent_argument(parser)
    parser.add_argument("--prompt", action="store_true", help="what its next request says besides the conversation")
    parser.add_argument(
        "--messages", type=command.non_negative_int, default=20, metavar="N", help="how much of what was said (20)"
    )


def _show(arguments: Namespace) -> int:
    if arguments.prompt:
        from ...render.resources.prompts import page

        prompt = Connection().call("prompt", {"ref": arguments.ref})
        command.print_result(arguments, prompt, page(prompt) if not arguments.json else "")
        return 0
    shown = Connection().call("show", {"ref": arguments.ref, "messages": arguments.messages})
    command.print_result(arguments, shown, terminal.agent_page(shown) if not arguments.json else "")
    return 0


def _resume_arguments(parser: ArgumentParser) -> None:
    command.agent_argument(parser)
    parser.add_argument(
        "--credentials", action="store_true", help="use this shell's model keys and addresses for it from now on"
    )
    parser.add_argument(
        "--all", action="store_true", help="with --credentials: for every agent that had the same credentials"
    )
    command.budget_arguments(parser, "it, killed or not, with its subagents,", lifts=True)


def _resume(arguments: Namespace) -> int:
    params = {"ref": arguments.ref, "budget": command.budget(arguments)}
    if arguments.credentials or arguments.all:
        params |= {"credentials": arguments.credentials, "all": arguments.all}
    row = Connection().call("resume", params)
    command.print_result(arguments, {key: row[key] for key in ROW}, row["id"])
    return 0


def _budget_arguments(parser: ArgumentParser) -> None:
    command.budget_arguments(parser, "all agents together", lifts=True)


def _budget(arguments: Namespace) -> int:
    shown = Connection().call("budget", {"change": command.budget(arguments)})
    command.print_result(arguments, shown, terminal.budget(shown))
    return 0


VERBS = {
    "list": CliCommand(
        "List agents, oldest first; agents of programs show the name of their run.",
        "orch list --tree",
        _list_arguments,
        _list,
    ),
    "show": CliCommand(
        "Show one agent and the end of its conversation.", "orch show 1 --messages 5", _show_arguments, _show
    ),
    "resume": CliCommand(
        "Let a killed or failed agent answer again, or let any agent spend more or use this shell's keys.",
        "orch resume 1 --max-cost 2.50",
        _resume_arguments,
        _resume,
    ),
    "budget": CliCommand(
        "Show what all agents together may use and did, or let them use more, also while they work.",
        "orch budget --max-cost 20 --max-tokens none",
        _budget_arguments,
        _budget,
    ),
}
