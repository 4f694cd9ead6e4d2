"""The verbs about what agents are asked and told: query, collect, steer, cancel."""

from __future__ import annotations

import os
import sys
import time

from ...client.connection import Connection
from ...client.failure import CommandError
from ...config.interrupts import Presses
from ...render import terminal as render
from ...render.approvals import denied_note
from .. import command
from ..command import CliCommand
from .agents import ROW
from .approval_prompt import Approval, Approver, approval_of, approve_argument, print_notice
from .progress import before

TYPE_CHECKING = False

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable
    from typing import Any

    from ...client.connection import OnEvent

__all__ = [
    "INTERRUPTED",
    "VERBS",
    "StatusLine",
    "agreed",
    "ask",
    "progress_argument",
    "query",
    "query_arguments",
    "stream_argument",
    "wait",
]


# --- Waiting for an answer ---

INTERRUPTED = "Interrupted"
AGAIN_SECONDS = 2.0
NARROW = 80


def wait(
    connection: Connection,
    method: str,
    params: dict[str, Any],
    *,
    on_event: OnEvent | None = None,
    quiet: bool = False,
    ends: bool = False,
) -> Any:
    """Ask and wait, with a StatusLine unless `quiet`. Raises Failure.

    Ctrl-C ends the waiting, never the agent; at a terminal a second one within 2 s cancels what the agent does. With
    `ends` the caller ends the agent itself, and that is not offered.
    """
    ref, terminal = params["ref"], sys.stderr.isatty()
    line = StatusLine(connection.sibling(), ref) if terminal and not quiet else None
    update = line.update if line is not None else None
    offered = terminal and not ends
    message = f"stopped waiting; agent {ref} works on. Its answer: orch collect {ref}. To end it: orch cancel {ref}"
    with Presses(2 if offered else 1):
        try:
            try:
                return connection.call(method, params, on_event=on_event, on_silence=update)
            except KeyboardInterrupt:
                connection.close()
                if line is not None:
                    line.close()
                if offered:
                    again = f"Ctrl-C again within {AGAIN_SECONDS:g} s cancels what it does"
                    print(f"\norch: agent {ref} works on; {again}", file=sys.stderr, flush=True)
                    time.sleep(AGAIN_SECONDS)
        except KeyboardInterrupt:
            message = _cancelled(connection.sibling(), ref)
        finally:
            if line is not None:
                line.close()
    raise CommandError(INTERRUPTED, message, 130)


def _cancelled(connection: Connection, ref: str) -> str:
    """Cancel what the agent does; return what is to be said of that."""
    collect = f"orch collect {ref}"
    try:
        row = connection.call("cancel", {"ref": ref})
    except CommandError as failure:
        return f"agent {ref} could not be cancelled: {failure}"
    finally:
        connection.close()
    if row["pending"] is None:
        return f"agent {ref} was done already. Its answer: {collect}"
    return f"what agent {ref} did was cancelled. What it had by then: {collect}"


class StatusLine:
    """One line on stderr that says what the agent `ref`, and those below it, do just now."""

    def __init__(self, connection: Connection, ref: str) -> None:
        self._connection: Connection | None = connection
        self._ref = ref
        self._id: str | None = None
        self._shown = False

    def update(self) -> None:
        """Ask, and show. What goes wrong is for whoever waits to find out; then there is no line."""
        if self._connection is None:
            return
        try:
            self._id = self._id or self._connection.call("state", {"ref": self._ref})["id"]
            said = render.activity_line(self._connection.call("list"), self._id)
        except CommandError:
            self.close()
            return
        sys.stderr.write(f"\r{said[: _width() - 1]}\x1b[K")
        sys.stderr.flush()
        self._shown = True

    def close(self) -> None:
        """Take the line away."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._shown:
            self._shown = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _width() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or NARROW
    except (OSError, ValueError):
        return NARROW


REPLY = ("id", "query_id", "text", "stop_reason", "usage", "tool_calls", "files_changed", "warning", "denied")
VALUE = ("type", "extent", "kind", "handle", "lines")
USAGE = ("input_tokens", "output_tokens", "cost_usd")
WHOLE = ("end_turn", "stop_sequence")
LIMITED = ("max_turns", "max_tokens", "timeout", "budget")


def agreed(reply: dict[str, Any]) -> dict[str, Any]:
    """Return what scripts may rely on of a reply."""
    chosen = {key: reply[key] for key in REPLY}
    return chosen | {"usage": {key: reply["usage"][key] for key in USAGE}}


def code_of(reply: dict[str, Any]) -> int:
    """Return what a command exits with that shows `reply`: not 0 for one that the agent did not end itself."""
    return 0 if reply["stop_reason"] in WHOLE else 5 if reply["stop_reason"] in LIMITED else 1


def query_arguments(parser: ArgumentParser) -> None:
    """Let the command ask an agent."""
    command.agent_argument(parser)
    parser.add_argument("prompt", metavar="PROMPT", help="what to ask; - reads it from stdin")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--no-wait", action="store_true", help="do not wait for the answer; collect takes it")
    stream_argument(how)
    progress_argument(parser)
    approve_argument(parser)
    _timeout_argument(parser)


def _timeout_argument(parser: ArgumentParser) -> None:
    parser.add_argument("--timeout", type=command.seconds, metavar="S", help="wait at most so many seconds")


def _check_timeout(arguments: Namespace) -> None:
    """Raise Failure for who waits so long, and does not."""
    if arguments.no_wait and arguments.timeout is not None:
        raise CommandError("UsageError", "--no-wait and --timeout contradict each other: leave one of them out", 2)


def _query_arguments(parser: ArgumentParser) -> None:
    query_arguments(parser)
    _return_argument(parser)


def _return_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--return-name", metavar="NAME", help="say what its run_python has bound to NAME then, and in which file it is"
    )


def stream_argument(parser: Any) -> None:
    """Let the command show a turn as it happens."""
    parser.add_argument("--stream", action="store_true", help="show the turn as it happens; with --json its events")


def progress_argument(parser: Any) -> None:
    """Let the command tell of each call."""
    parser.add_argument(
        "--progress", action="store_true", help="say on stderr what becomes of each call of a tool, at any depth"
    )


def query(arguments: Namespace) -> int:
    """Ask an agent."""
    _check_timeout(arguments)
    params = {"ref": arguments.ref, "prompt": command.text(arguments.prompt), "request_id": os.urandom(8).hex()}
    connection = Connection()
    if arguments.no_wait:
        if getattr(arguments, "return_name", None):
            raise CommandError(
                "UsageError", "--return-name is for when the answer is there: give it to orch collect", 2
            )
        submitted = connection.call("submit", params)
        command.print_result(arguments, submitted, submitted["id"])
        if (earlier := submitted["uncollected"]) and not arguments.json:
            answers = "an earlier answer was" if earlier == 1 else f"{earlier} earlier answers were"
            print(f"orch: {answers} not collected yet: collect takes what is oldest first", file=sys.stderr)
    else:
        approval = approval_of(arguments)
        return ask(arguments, connection, params | {"timeout": arguments.timeout}, approval)
    return 0


def ask(
    arguments: Namespace,
    connection: Connection,
    params: dict[str, Any],
    approval: Approval,
    *,
    ends: bool = False,
    known: dict[str, Any] | None = None,
    shows: Callable[[dict[str, Any]], None] | None = None,
) -> int:
    """Ask, wait and show the answer, or with --stream the whole turn; answer what needs approval as `approval` says.
    Return the exit code. Raises Failure.

    With `ends` the caller ends the agent then. As data the answer is the `reply` beside what is `known` already.
    `shows` shows it in another way.
    """
    print_notice(approval, json=arguments.json)
    params = params | ({"progress": True} if arguments.progress else {})
    if approval.mode == "deny":
        reply = _answer(arguments, connection, params, None, ends)
    else:
        approver = Approver(connection.sibling(), approval.mode)
        try:
            reply = _answer(arguments, connection, params | {"approve": True}, approver, ends)
        finally:
            approver.close()
    try:
        if shows is not None:
            shows(reply)
        else:
            told = agreed(reply) | _returned(arguments, connection, reply)
            _show(arguments, reply, told if known is None else known | {"reply": told})
    finally:
        denied = 0 if approval.chose_deny else _report_denied(arguments, reply)
    return code_of(reply) or denied


def _report_denied(arguments: Namespace, reply: dict[str, Any]) -> int:
    """Say on stderr how many calls were denied because nobody could be asked; return 1 if there are any, else 0."""
    if reply["denied"] and not arguments.json:
        print(f"orch: {denied_note(reply['denied'])}", file=sys.stderr)
    return 1 if reply["denied"] else 0


def _answer(
    arguments: Namespace, connection: Connection, params: dict[str, Any], approver: Approver | None, ends: bool
) -> dict[str, Any]:
    def waited(others: OnEvent | None, *, quiet: bool) -> dict[str, Any]:
        if arguments.progress and not (arguments.stream and arguments.json):
            others = before(others)
        on_event = approver.before(others) if approver is not None else others
        reply: dict[str, Any] = wait(connection, "query", params, on_event=on_event, quiet=quiet, ends=ends)
        return reply

    if not arguments.stream:
        return waited(None, quiet=arguments.json)
    from ...chat.printing import turn_output
    from ...render.transcript import TurnPrinter, json_line

    params |= {"stream": True}
    if arguments.json:
        return waited(json_line, quiet=True)
    shown = turn_output()
    transcript = TurnPrinter(shown)
    try:
        reply = waited(transcript.event, quiet=True)
        transcript.reply(reply)
        return reply
    finally:
        transcript.end()
        shown.over()


def _returned(arguments: Namespace, connection: Connection, reply: dict[str, Any]) -> dict[str, Any]:
    """Return what a value is that was asked for with the answer, and tell a person. Raises Failure, with the answer on
    stdout all the same."""
    name = getattr(arguments, "return_name", None)
    if not name:
        return {}
    try:
        taken = connection.call("take_value", {"ref": reply["id"], "name": name})
    except CommandError:
        _show(arguments, reply, agreed(reply))
        raise
    value = taken["value"]
    if not arguments.json:
        what = ", ".join(filter(None, (value["type"], value["extent"])))
        print(f"orch: {name} is {render.safe(what)}, in {taken['path']}", file=sys.stderr)
        for line in value["lines"]:
            print(f"  {render.safe(line)}", file=sys.stderr)
    told = {key: value[key] for key in VALUE}
    return {"value": {"name": name, "path": taken["path"], **told}}


def _show(arguments: Namespace, reply: dict[str, Any], data: dict[str, Any]) -> None:
    """Print an answer, unless it was streamed; on stderr what a person is to know of it besides."""
    streamed = arguments.stream and not arguments.json
    if not streamed:
        _say(arguments, reply["text"], data)
    if not reply["text"].strip():
        print(f"orch: agent {reply['id']} said nothing", file=sys.stderr)
    if reply["warning"]:
        print(f"orch: agent {reply['id']}: {render.safe(reply['warning'])}", file=sys.stderr)
    if not reply["tool_calls"] and (streamed or (sys.stderr.isatty() and not arguments.json)):
        print("orch: no tool was called for this", file=sys.stderr)  # whatever it says was done
    if reply.get("local") and sys.stderr.isatty():
        print("orch: this conversation is for local models alone by now", file=sys.stderr)


def _say(arguments: Namespace, text: str, data: dict[str, Any]) -> None:
    if arguments.json or not sys.stdout.isatty():
        command.print_result(arguments, data, text)
    elif text:
        from ...chat.printing import turn_output

        shown = turn_output()
        shown.text(f"{text}\n")
        shown.over()


def _collect_arguments(parser: ArgumentParser) -> None:
    command.agent_argument(parser)
    parser.add_argument("--again", action="store_true", help="print an answer that was already taken")
    parser.add_argument("--query", metavar="ID", default="", help="the answer to this query; --json prints query ids")
    _timeout_argument(parser)
    parser.add_argument("--no-wait", action="store_true", help="exit with 4 at once when there is no answer yet")
    _return_argument(parser)


def _collect(arguments: Namespace) -> int:
    _check_timeout(arguments)
    timeout = 0 if arguments.no_wait else arguments.timeout
    params = {"ref": arguments.ref, "timeout": timeout, "again": arguments.again}
    if arguments.query:
        params["query"] = arguments.query
    connection = Connection()
    reply = wait(connection, "collect", params, quiet=arguments.json)
    arguments.stream = False
    _show(arguments, reply, agreed(reply) | _returned(arguments, connection, reply))
    denied = _report_denied(arguments, reply)
    return code_of(reply) or denied


def _cancel_arguments(parser: ArgumentParser) -> None:
    command.agent_argument(parser)
    parser.add_argument("--hard", action="store_true", help="kill its process; its query fails, the next starts anew")


def _cancel(arguments: Namespace) -> int:
    row = Connection().call("cancel", {"ref": arguments.ref, "hard": arguments.hard})
    if row["pending"] is None and not arguments.json:
        print(f"orch: agent {render.safe(row['name'])} was not at work", file=sys.stderr)
    command.print_result(arguments, {key: row[key] for key in ROW}, row["id"])
    return 0


VERBS = {
    "query": CliCommand(
        "Ask an agent and print its answer. Ctrl-C ends the waiting; the agent works on, unless it comes twice.",
        'orch query 1 "Which file parses the configuration?" --timeout 60',
        _query_arguments,
        query,
    ),
    "collect": CliCommand(
        "Take the answer to a query nobody waited for, the oldest first. It is taken once; --again prints it anew.",
        "orch collect 1 --timeout 60",
        _collect_arguments,
        _collect,
    ),
    "cancel": CliCommand(
        "End what an agent does just now; its query is answered with stop reason cancelled.",
        "orch cancel 1",
        _cancel_arguments,
        _cancel,
    ),
}
