"""`orch session list`, `show`, `tree`, `checkout`, `branch`, `label`, `title`, `model`, `thinking`, `compact`, `fork`:
conversations as trees."""

from __future__ import annotations

import sys

from ...client.connection import Connection
from ...render import terminal
from ...render.sessions import LAST, compaction, latest, page, table, tree_lines
from .. import command
from ..command import CliCommand, key_argument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

__all__ = ["ACTIONS"]


def _entry(parser: ArgumentParser, what: str) -> None:
    parser.add_argument("entry", metavar="ENTRY", help=f"{what}: id, beginning of an id, or label; root: the beginning")


def _session(arguments: Namespace, most: int | None) -> dict[str, Any]:
    shown: dict[str, Any] = Connection().call("session", {"ref": arguments.key, "most": most})
    return shown


def _change(arguments: Namespace, change: dict[str, Any], *, ask_anew: bool = False) -> dict[str, Any]:
    asked = {"ref": arguments.key, "change": change, "ask_anew": ask_anew}
    changed: dict[str, Any] = Connection().call("change_session", asked)
    return changed


def _list_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="those of killed agents too")
    parser.add_argument("--runs", action="store_true", help="with --json: those of programs too, as the table has them")


def _list(arguments: Namespace) -> int:
    rows = latest(Connection().call("list", {"all": arguments.all, "runs": arguments.runs or not arguments.json}))
    command.print_result(arguments, rows, table(command.without_deleted(rows)) if rows else "")
    if not rows and not arguments.json:
        print("orch: there is no session yet; orch spawn TASK begins one", file=sys.stderr)
    return 0


def _show(arguments: Namespace) -> int:
    shown = _session(arguments, None if arguments.json else LAST)
    command.print_result(arguments, shown, "" if arguments.json else page(shown))
    return 0


def _tree_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument("--all", action="store_true", help="every entry, not only those in which something was said")


def _tree(arguments: Namespace) -> int:
    shown = _session(arguments, None)
    command.print_result(
        arguments, shown, "" if arguments.json else "\n".join(tree_lines(shown["entries"], every=arguments.all))
    )
    return 0


def _checkout_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    _entry(parser, "where the conversation is to go on")
    _summary(parser)


def _summary(parser: ArgumentParser) -> None:
    parser.add_argument("--summary", metavar="TEXT", help="what the model is told of what it leaves; - is stdin")
    parser.add_argument("--summarize", action="store_true", help="let its model write that, if it has one")


def _checkout(arguments: Namespace) -> int:
    return _move(arguments, ask_anew=False)


def _branch(arguments: Namespace) -> int:
    return _move(arguments, ask_anew=True)


def _move(arguments: Namespace, *, ask_anew: bool) -> int:
    summary = command.text(arguments.summary) if arguments.summary is not None else None
    move = {"type": "move", "to": arguments.entry, "summary": summary, "summarize": arguments.summarize}
    changed = _change(arguments, move, ask_anew=ask_anew)
    command.print_result(arguments, changed, terminal.safe_for_stdout(changed["text"] or "") if ask_anew else "")
    return 0


def _label_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    _entry(parser, "what is to be called that")
    parser.add_argument("label", metavar="LABEL", nargs="?", help="its name; without one it has none any more")


def _label(arguments: Namespace) -> int:
    changed = _change(arguments, {"type": "label", "target": arguments.entry, "label": arguments.label})
    command.print_result(arguments, changed, "")
    return 0


def _title_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument("title", metavar="TITLE", nargs="?", help="its name; without one it has none any more")


def _title(arguments: Namespace) -> int:
    command.print_result(arguments, _change(arguments, {"type": "name", "name": arguments.title}), "")
    return 0


def _model_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument("model", metavar="MODEL", help="PROVIDER:MODEL, or local; orch models lists them")


def _model(arguments: Namespace) -> int:
    changed = _change(arguments, {"type": "model", "model": arguments.model})
    command.print_result(arguments, changed, terminal.safe(changed["model"]))
    return 0


def _thinking_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument("level", metavar="LEVEL", help="off, minimal, low, medium, high, xhigh or max")


def _thinking(arguments: Namespace) -> int:
    changed = _change(arguments, {"type": "thinking", "level": arguments.level})
    command.print_result(arguments, changed, changed["thinking"])
    return 0


def _compact_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument("--instructions", metavar="TEXT", default="", help="what its writer is told; - is stdin")


def _compact(arguments: Namespace) -> int:
    asked = {"ref": arguments.key, "instructions": command.text(arguments.instructions)}
    done = Connection().call("compact", asked)
    command.print_result(arguments, done, "" if arguments.json else compaction(done))
    return 0


def _fork_arguments(parser: ArgumentParser) -> None:
    key_argument(parser)
    parser.add_argument(
        "entry", metavar="ENTRY", nargs="?", help="what the copy ends with (the end): id, beginning of one, or label"
    )
    parser.add_argument("--name", action=command.SetOnce, help="a name for the other agent")
    parser.add_argument("--model", action=command.SetOnce, metavar="MODEL", help="another model that is to answer")


def _fork(arguments: Namespace) -> int:
    asked = {"ref": arguments.key, "at": arguments.entry, "name": arguments.name, "model": arguments.model}
    forked = Connection().call("fork", asked)
    command.print_result(arguments, forked, forked["id"])
    return 0


ACTIONS = {
    "list": (
        "sessions, those that were active last first",
        CliCommand("List sessions: one an agent, the latest first.", "orch session list", _list_arguments, _list),
    ),
    "show": (
        "one session: where it is, its branches, what was said last",
        CliCommand(
            "Show a session. With --json all of its entries, each with its head.",
            "orch session show latest",
            key_argument,
            _show,
        ),
    ),
    "tree": (
        "everything that was said, branch by branch",
        CliCommand(
            "Draw the tree of a session; * is what the conversation has now.",
            "orch session tree reader",
            _tree_arguments,
            _tree,
        ),
    ),
    "checkout": (
        "let a conversation go on behind an entry it had",
        CliCommand(
            "Let a conversation go on behind an entry. What was said since stays, on a branch of its own.",
            "orch session checkout reader 1f22a6cc",
            _checkout_arguments,
            _checkout,
        ),
    ),
    "branch": (
        "the same, but before a question, which is printed",
        CliCommand(
            "Go back before a question and print it, to be asked in other words; behind any other entry as checkout.",
            "orch session branch reader 1f22a6cc",
            _checkout_arguments,
            _branch,
        ),
    ),
    "label": (
        "name an entry, so that it is found again",
        CliCommand(
            "Give an entry a name, or take it away.",
            "orch session label reader 1f22a6cc start",
            _label_arguments,
            _label,
        ),
    ),
    "title": (
        "name a session",
        CliCommand(
            "Give a session a name, or take it away.", "orch session title reader pumps", _title_arguments, _title
        ),
    ),
    "model": (
        "let another model go on with a conversation",
        CliCommand(
            "Let another model answer from here on, between turns, and print it. Going back before here undoes that.",
            "orch session model reader local",
            _model_arguments,
            _model,
        ),
    ),
    "thinking": (
        "let the model of a conversation think more, or less",
        CliCommand(
            "Let the model think so much from here on; print the level that it is told, which is the next that it has.",
            "orch session thinking reader high",
            _thinking_arguments,
            _thinking,
        ),
    ),
    "compact": (
        "let what was said first give way to a summary",
        CliCommand(
            "Compact a conversation between turns: a summary takes the place of all but the last ones.",
            "orch session compact reader --instructions 'Keep every figure.'",
            _compact_arguments,
            _compact,
        ),
    ),
    "fork": (
        "another agent with a copy of a conversation",
        CliCommand(
            "Make another agent whose session is a copy of one path, archives included, and print its id.",
            "orch session fork reader 1f22a6cc --name second",
            _fork_arguments,
            _fork,
        ),
    ),
}
