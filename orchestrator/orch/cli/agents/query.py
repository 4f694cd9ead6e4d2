"""The verbs for queries: query, collect, cancel."""

from __future__ import annotations

import os
import sys
import time

from ...client.calling_agent import calling_agent
from ...client.connection import Connection
from ...client.failure import CommandError
from ...config.interrupts import InterruptLimit
from ...render import terminal as render
from ...render.approvals import DETACHED_WAYS
from ...render.columns import DEFAULT_WIDTH, cut, output_width
from ...render.worktrees import worktree_note
from .. import command
from ..command import CliCommand
from .agents import ROW
from .approval_prompt import Approval, Approver, approval_of, approve_argument, check_detached, report_denied

TYPE_CHECKING = False

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable
    from typing import Any

    from orch_protocol.core.messages import Image

    from ...api.return_types import ReturnType
    from ...client.connection import OnEvent

__all__ = [
    "INTERRUPTED",
    "VERBS",
    "StatusLine",
    "ask",
    "image_argument",
    "progress_argument",
    "prompt_params",
    "query",
    "query_arguments",
    "read_images",
    "returned_type",
    "returns_argument",
    "stable_fields",
    "stream_argument",
    "wait",
]


# --- Waiting for a reply ---

INTERRUPTED = "Interrupted"
CANCEL_WINDOW_SECONDS = 2.0


def wait(
    connection: Connection,
    method: str,
    params: dict[str, Any],
    *,
    on_event: OnEvent | None = None,
    quiet: bool = False,
    kills_agent: bool = False,
) -> Any:
    """Send a request and wait for its result. Show a StatusLine unless `quiet` is set. Raises CommandError.

    Ctrl-C stops the wait, but not the agent. On a terminal, a second Ctrl-C within 2 s cancels the agent's turn. With
    `kills_agent`, the caller ends the agent itself, and a second Ctrl-C has no effect.
    """
    ref, terminal = params["ref"], sys.stderr.isatty()
    status_line = StatusLine(connection.sibling(), ref) if terminal and not quiet else None
    update = status_line.update if status_line is not None else None
    can_cancel = terminal and not kills_agent
    message = (
        f"stopped waiting; agent {ref} continues. Get its answer: orch collect {ref}. Cancel it: orch cancel {ref}"
    )
    with InterruptLimit(2 if can_cancel else 1):
        try:
            try:
                return connection.call(method, params, on_event=on_event, on_silence=update)
            except KeyboardInterrupt:
                connection.close()
                if status_line is not None:
                    status_line.close()
                if can_cancel:
                    hint = f"press Ctrl-C again within {CANCEL_WINDOW_SECONDS:g} s to cancel its turn"
                    print(f"\norch: agent {ref} continues; {hint}", file=sys.stderr, flush=True)
                    time.sleep(CANCEL_WINDOW_SECONDS)
        except KeyboardInterrupt:
            message = _cancel_turn(connection.sibling(), ref)
        finally:
            if status_line is not None:
                status_line.close()
    raise CommandError(INTERRUPTED, message, 130)


def _cancel_turn(connection: Connection, ref: str) -> str:
    """Cancel the agent's turn and return a message about the outcome."""
    collect = f"orch collect {ref}"
    try:
        row = connection.call("cancel", {"ref": ref})
    except CommandError as failure:
        return f"could not cancel agent {ref}: {failure}"
    finally:
        connection.close()
    if row["pending"] is None:
        return f"agent {ref} had already finished. Get its answer: {collect}"
    return f"cancelled the turn of agent {ref}. Get its partial answer: {collect}"


class StatusLine:
    """A line on stderr with the current activity of the agent `ref` and its descendants."""

    def __init__(self, connection: Connection, ref: str) -> None:
        self._connection: Connection | None = connection
        self._ref = ref
        self._id: str | None = None
        self._is_shown = False

    def update(self) -> None:
        """Refresh the line. If the refresh fails, the line is removed, and the waiting request reports the error."""
        if self._connection is None:
            return
        try:
            self._id = self._id or self._connection.call("state", {"ref": self._ref})["id"]
            line = render.activity_line(self._connection.call("list"), self._id)
        except CommandError:
            self.close()
            return
        width = output_width(sys.stderr) or DEFAULT_WIDTH
        sys.stderr.write(f"\r{cut(line, width - 1)}\x1b[K")
        sys.stderr.flush()
        self._is_shown = True

    def close(self) -> None:
        """Remove the line."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._is_shown:
            self._is_shown = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


REPLY_FIELDS = ("id", "query_id", "text", "stop_reason", "usage", "tool_calls", "files_changed", "warning", "denied")
VALUE_FIELDS = ("type", "extent", "kind", "handle", "lines")
USAGE_FIELDS = ("input_tokens", "output_tokens", "cost_usd")
COMPLETE_REASONS = ("end_turn", "stop_sequence")
LIMIT_REASONS = ("max_turns", "max_tokens", "timeout", "budget")


def stable_fields(reply: dict[str, Any]) -> dict[str, Any]:
    """Return those fields of a reply that are a stable interface for scripts."""
    fields = {key: reply[key] for key in REPLY_FIELDS} | {key: reply[key] for key in ("worktree",) if key in reply}
    return fields | {"usage": {key: reply["usage"][key] for key in USAGE_FIELDS}}


def exit_code_of(reply: dict[str, Any]) -> int:
    """Return the exit code for `reply`. The code is 0 only if the agent ended the turn itself."""
    return 0 if reply["stop_reason"] in COMPLETE_REASONS else 5 if reply["stop_reason"] in LIMIT_REASONS else 1


def _with_progress(on_other_event: OnEvent | None) -> OnEvent:
    """Return a callback that prints each event of a call as a line on stderr, and passes other events to
    `on_other_event`.
    """

    def handle_event(event: dict[str, Any]) -> None:
        if event["kind"] == "call":
            from ...render.progress import progress_line

            clear = "\r\x1b[K" if sys.stderr.isatty() else ""
            print(f"{clear}{progress_line(event)}", file=sys.stderr, flush=True)
        elif on_other_event is not None:
            on_other_event(event)

    return handle_event


def query_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of a query."""
    command.agent_argument(parser)
    parser.add_argument("prompt", metavar="PROMPT", help="the prompt; - reads it from stdin")
    image_argument(parser)
    group = parser.add_mutually_exclusive_group()
    help = "print the query id and return; get the answer with `orch collect`"
    group.add_argument("--no-wait", action="store_true", help=help)
    stream_argument(group)
    returns_argument(group)
    progress_argument(parser)
    approve_argument(parser)
    _timeout_argument(parser)


def _timeout_argument(parser: ArgumentParser) -> None:
    parser.add_argument("--timeout", type=command.seconds, metavar="S", help="wait at most S seconds")


def _check_timeout(arguments: Namespace) -> None:
    if arguments.no_wait and arguments.timeout is not None:
        raise CommandError("UsageError", "--no-wait and --timeout cannot be combined; leave one out", 2)


def _query_arguments(parser: ArgumentParser) -> None:
    query_arguments(parser)
    _return_argument(parser)


def _return_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--return-name",
        metavar="NAME",
        help="print the type and file of the Python variable NAME of the agent's run_python",
    )


def image_argument(parser: ArgumentParser) -> None:
    """Add `--image`."""
    parser.add_argument(
        "--image", metavar="FILE", action="append", help="image of the prompt: PNG, JPEG, GIF or WebP; repeatable"
    )


def read_images(arguments: Namespace) -> list[Image]:
    """Return the images given with `--image`. Raises CommandError."""
    if not arguments.image:
        return []
    from orch_protocol.core.errors import ConfigError
    from orch_protocol.core.messages import Image

    try:
        return [Image.open(file) for file in arguments.image]
    except ConfigError as error:
        raise CommandError("ConfigError", f"--image: {error}", error.exit_code) from error


def prompt_params(prompt: str, images: list[Image]) -> dict[str, Any]:
    """Return the parameters of a query for `prompt`, followed by `images`."""
    if not images:
        return {"prompt": prompt}
    from msgspec import to_builtins

    from orch_protocol.core.messages import prompt_of

    return {"prompt": prompt_of([prompt, *images])[0], "images": to_builtins(images)}


def stream_argument(parser: Any) -> None:
    """Add `--stream`."""
    parser.add_argument(
        "--stream", action="store_true", help="stream the turn to the terminal; with --json: its events"
    )


def returns_argument(parser: Any) -> None:
    """Add `--returns`."""
    parser.add_argument(
        "--returns",
        metavar="FILE",
        help="print a JSON value that matches the JSON schema in FILE; one retry if it fails",
    )


def progress_argument(parser: Any) -> None:
    """Add `--progress`."""
    parser.add_argument("--progress", action="store_true", help="print each tool call to stderr, also of subagents")


def returned_type(arguments: Namespace) -> ReturnType[Any] | None:
    """Return the type that the option `--returns` names. Return None if the option is not used."""
    file = getattr(arguments, "returns", None)
    if file is None:
        return None
    from .typed_query import type_in_file

    return type_in_file(file)


def query(arguments: Namespace) -> int:
    """Query an agent."""
    _check_timeout(arguments)
    if returned_type(arguments) is not None and getattr(arguments, "return_name", None):
        raise CommandError("UsageError", "--returns and --return-name cannot be combined; leave one out", 2)
    prompt_fields = prompt_params(command.text(arguments.prompt), read_images(arguments))
    params = {"ref": arguments.ref, **prompt_fields, "request_id": os.urandom(8).hex()}
    connection = Connection(run=arguments.run)
    if returned_type(arguments) is not None and calling_agent() is None:  # agents may not use `state`
        from ...api.structured_output import check_model

        check_model(connection.call("state", {"ref": arguments.ref})["model"])
    if arguments.no_wait:
        if getattr(arguments, "return_name", None):
            raise CommandError(
                "UsageError", "--return-name and --no-wait cannot be combined; pass --return-name to `orch collect`", 2
            )
        check_detached(arguments)
        submitted = connection.call("submit", params)
        command.print_result(arguments, submitted, submitted["query_id"])
        if (earlier := submitted["uncollected"]) and not arguments.json:
            text = "an earlier answer was" if earlier == 1 else f"{earlier} earlier answers were"
            print(f"orch: {text} not collected yet; `orch collect` returns the oldest first", file=sys.stderr)
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
    kills_agent: bool = False,
    extra_fields: dict[str, Any] | None = None,
    show_reply: Callable[[dict[str, Any]], None] | None = None,
) -> int:
    """Send a query, wait, and print the reply. With --stream, print the whole turn.

    `approval` is how calls that need approval are answered. `kills_agent` means that the caller ends the agent
    afterwards. With `--json`, the output is `extra_fields` with the reply under "reply". If `extra_fields` is None, the
    output is only the reply. If `show_reply` is set, this function is called instead of printing. Return the exit code.
    Raises CommandError.
    """
    params = params | ({"progress": True} if arguments.progress else {})

    def send_query(prompt: dict[str, Any]) -> dict[str, Any]:
        if approval.mode == "deny":
            return _send_and_wait(arguments, connection, params | prompt, None, kills_agent)
        approver = Approver(connection.sibling(), approval.mode)
        try:
            return _send_and_wait(arguments, connection, params | prompt | {"approve": True}, approver, kills_agent)
        finally:
            approver.close()

    expected = returned_type(arguments)
    value = None
    if expected is None:
        reply = send_query({})
    else:
        from .typed_query import ask_for_value

        value, reply = ask_for_value(connection, params["prompt"], expected, send_query)
    try:
        if show_reply is not None:
            show_reply(reply)
        elif value is not None:
            command.print_result(
                arguments, (extra_fields or {}) | {"value": value.data, "reply": stable_fields(reply)}, value.text
            )
        else:
            result = stable_fields(reply) | _returned_value(arguments, connection, reply)
            _print_reply(arguments, reply, result if extra_fields is None else extra_fields | {"reply": result})
    finally:
        denied = 0
        if not approval.chose_deny:
            denied = report_denied(reply["denied"], json=arguments.json, obstacle=approval.obstacle)
    return exit_code_of(reply) or denied


def _send_and_wait(
    arguments: Namespace, connection: Connection, params: dict[str, Any], approver: Approver | None, kills_agent: bool
) -> dict[str, Any]:
    def wait_for_reply(on_other_event: OnEvent | None, *, quiet: bool) -> dict[str, Any]:
        if arguments.progress and not (arguments.stream and arguments.json):
            on_other_event = _with_progress(on_other_event)
        on_event = approver.wrap(on_other_event) if approver is not None else on_other_event
        reply: dict[str, Any] = wait(
            connection, "query", params, on_event=on_event, quiet=quiet, kills_agent=kills_agent
        )
        return reply

    if not arguments.stream:
        return wait_for_reply(None, quiet=arguments.json)
    from ...chat.printing import turn_output
    from ...render.transcript import TurnPrinter, json_line

    params |= {"stream": True}
    if arguments.json:
        return wait_for_reply(json_line, quiet=True)
    output = turn_output()
    transcript = TurnPrinter(output)
    try:
        reply = wait_for_reply(transcript.event, quiet=True)
        transcript.reply(reply)
        return reply
    finally:
        transcript.end()
        output.finish()


def _returned_value(arguments: Namespace, connection: Connection, reply: dict[str, Any]) -> dict[str, Any]:
    """Return the requested value and describe the value on stderr.

    On an error, print the reply and raise CommandError.
    """
    name = getattr(arguments, "return_name", None)
    if not name:
        return {}
    try:
        exported = connection.call("take_value", {"ref": reply["id"], "name": name})
    except CommandError:
        _print_reply(arguments, reply, stable_fields(reply))
        raise
    value = exported["value"]
    if not arguments.json:
        description = ", ".join(filter(None, (value["type"], value["extent"])))
        print(f"orch: {name} is {render.safe(description)}, in {exported['path']}", file=sys.stderr)
        for line in value["lines"]:
            print(f"  {render.safe(line)}", file=sys.stderr)
    value_fields = {key: value[key] for key in VALUE_FIELDS}
    return {"value": {"name": name, "path": exported["path"], **value_fields}}


def _print_reply(arguments: Namespace, reply: dict[str, Any], data: dict[str, Any]) -> None:
    """Print the reply if it was not streamed. Print remarks about the reply on stderr."""
    streamed = arguments.stream and not arguments.json
    if not streamed:
        _print_text(arguments, reply["text"], data)
    if not reply["text"].strip():
        print(f"orch: agent {reply['id']} returned an empty answer", file=sys.stderr)
    if not arguments.json and (note := worktree_note(reply)):
        print(f"orch: {render.safe(note)}", file=sys.stderr)
    if reply["warning"]:
        print(f"orch: agent {reply['id']}: {render.safe(reply['warning'])}", file=sys.stderr)
    if not reply["tool_calls"] and (streamed or (sys.stderr.isatty() and not arguments.json)):
        print("orch: the answer used no tool", file=sys.stderr)  # even if the reply claims tool use
    if reply.get("local") and sys.stderr.isatty():
        print("orch: this conversation is now restricted to local models", file=sys.stderr)


def _print_text(arguments: Namespace, text: str, data: dict[str, Any]) -> None:
    if arguments.json or not sys.stdout.isatty():
        command.print_result(arguments, data, text)
    elif text:
        from ...chat.printing import turn_output

        output = turn_output()
        output.text(f"{text}\n")
        output.finish()


def _collect_arguments(parser: ArgumentParser) -> None:
    command.agent_argument(parser)
    parser.add_argument("--again", action="store_true", help="print an answer that was already collected")
    parser.add_argument(
        "--query", metavar="ID", default="", help="collect the answer to this query (--json prints query ids)"
    )
    _timeout_argument(parser)
    parser.add_argument("--no-wait", action="store_true", help="exit immediately with 4 if there is no answer yet")
    _return_argument(parser)


def _collect(arguments: Namespace) -> int:
    _check_timeout(arguments)
    timeout = 0 if arguments.no_wait else arguments.timeout
    params = {"ref": arguments.ref, "timeout": timeout, "again": arguments.again}
    if arguments.query:
        params["query"] = arguments.query
    connection = Connection(run=arguments.run)
    reply = wait(connection, "collect", params, quiet=arguments.json)
    arguments.stream = False
    _print_reply(arguments, reply, stable_fields(reply) | _returned_value(arguments, connection, reply))
    denied = report_denied(reply["denied"], json=arguments.json, ways=DETACHED_WAYS)
    return exit_code_of(reply) or denied


def _cancel_arguments(parser: ArgumentParser) -> None:
    command.agent_argument(parser)
    parser.add_argument(
        "--hard",
        action="store_true",
        help="kill the agent's process: the query fails, and the next query starts a new process",
    )


def _cancel(arguments: Namespace) -> int:
    row = Connection(run=arguments.run).call("cancel", {"ref": arguments.ref, "hard": arguments.hard})
    if row["pending"] is None and not arguments.json:
        print(f"orch: agent {render.safe(row['name'])} had no running turn", file=sys.stderr)
    command.print_result(arguments, {key: row[key] for key in ROW}, row["id"])
    return 0


VERBS = {
    "query": CliCommand(
        "Query an agent and print its answer. Ctrl-C stops waiting, and the agent continues; a second "
        "Ctrl-C cancels its turn.",
        'orch query 1 "Which file parses the configuration?" --timeout 60',
        _query_arguments,
        query,
    ),
    "collect": CliCommand(
        "Print the answer to a query submitted with --no-wait, oldest first. Each answer is returned once; "
        "--again prints it again.",
        "orch collect 1 --timeout 60",
        _collect_arguments,
        _collect,
    ),
    "cancel": CliCommand(
        "Cancel the running turn of an agent. Its query returns with stop reason 'cancelled'.",
        "orch cancel 1",
        _cancel_arguments,
        _cancel,
    ),
}
