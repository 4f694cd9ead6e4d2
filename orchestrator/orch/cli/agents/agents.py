"""The commands `orch list`, `show`, `resume` and `budget`."""

from __future__ import annotations

from ...client.calling_agent import calling_agent
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
    parser.add_argument("--all", action="store_true", help="include killed agents")
    parser.add_argument(
        "--runs", action="store_true", help="with --json: include agents of programs, as the table does"
    )
    parser.add_argument(
        "--tree", action="store_true", help="show subagents below their parents, with the usage of each branch"
    )
    command.run_argument(parser)


def _list(arguments: Namespace) -> int:
    runs = arguments.run is None and (arguments.runs or (not arguments.json and calling_agent() is None))
    rows = Connection(run=arguments.run).call("list", {"all": arguments.all, "runs": runs})
    if arguments.json:
        print(to_json([{key: row[key] for key in ROW} for row in rows]))
    else:
        visible = command.without_deleted(rows)
        print(terminal.agent_tree(visible) if arguments.tree else terminal.agent_table(visible))
    return 0


def _show_arguments(parser: ArgumentParser) -> None:
    command.agent_argument(parser)
    parser.add_argument(
        "--prompt", action="store_true", help="show the system prompt and tools of the agent's next request"
    )
    parser.add_argument(
        "--messages",
        type=command.non_negative_int,
        default=20,
        metavar="N",
        help="number of latest messages to show (20)",
    )


def _show(arguments: Namespace) -> int:
    if arguments.prompt:
        from ...render.resources.prompts import page

        prompt = Connection(run=arguments.run).call("prompt", {"ref": arguments.ref})
        command.print_result(arguments, prompt, page(prompt) if not arguments.json else "")
        return 0
    shown = Connection(run=arguments.run).call("show", {"ref": arguments.ref, "messages": arguments.messages})
    command.print_result(arguments, shown, terminal.agent_page(shown) if not arguments.json else "")
    return 0


def _resume_arguments(parser: ArgumentParser) -> None:
    command.agent_argument(parser)
    parser.add_argument(
        "--credentials", action="store_true", help="use this shell's API keys and base URLs for the agent from now on"
    )
    parser.add_argument(
        "--all", action="store_true", help="with --credentials: apply to every agent that used the same credentials"
    )
    command.budget_arguments(parser, "this agent and its subagents together", allow_none=True)


def _resume(arguments: Namespace) -> int:
    params = {"ref": arguments.ref, "budget": command.budget(arguments)}
    if arguments.credentials or arguments.all:
        params |= {"credentials": arguments.credentials, "all": arguments.all}
    row = Connection(run=arguments.run).call("resume", params)
    command.print_result(arguments, {key: row[key] for key in ROW}, row["id"])
    return 0


def _budget_arguments(parser: ArgumentParser) -> None:
    command.run_argument(parser)
    command.budget_arguments(parser, "all agents together", allow_none=True)


def _budget(arguments: Namespace) -> int:
    shown = Connection(run=arguments.run).call("budget", {"change": command.budget(arguments)})
    command.print_result(arguments, shown, terminal.budget(shown))
    return 0


VERBS = {
    "list": CliCommand(
        "List agents, oldest first. Agents of a program are listed with the name of its run.",
        "orch list --tree",
        _list_arguments,
        _list,
    ),
    "show": CliCommand(
        "Show one agent and the end of its conversation.", "orch show 1 --messages 5", _show_arguments, _show
    ),
    "resume": CliCommand(
        "Make a killed or failed agent usable again; raise an agent's budget; or give it this shell's API keys.",
        "orch resume 1 --max-cost 2.50",
        _resume_arguments,
        _resume,
    ),
    "budget": CliCommand(
        "Show or change the budget that all agents share. A change takes effect immediately.",
        "orch budget --max-cost 20 --max-tokens none",
        _budget_arguments,
        _budget,
    ),
}
