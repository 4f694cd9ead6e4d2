"""The command `orch map` starts an agent for each item, queries it once, and prints the results in order.

The scheduling, the ids of the items and the results are those of `Orchestrator.map`; see `orch.api.fan_out`. Each
request to the daemon waits in a thread.
"""

from __future__ import annotations

import asyncio
import glob
import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from orch_protocol.core.errors import BadReplyError, ConfigError, ContextOverflowError, OrchError
from orch_protocol.core.messages import Reply
from orch_protocol.core.text import decode_text
from orch_protocol.policy.budget import Budget
from orch_protocol.services.agents.spawn import Spawn

from ...api.fan_out import (
    CORRECTION,
    MapItem,
    MapProgress,
    MapResult,
    Place,
    complete_reply,
    default_name,
    make_items,
    run_items,
    stops_at,
    task_of,
)
from ...api.return_types import ReturnType
from ...api.structured_output import prompt_for_value
from ...client.connection import ENDED, Connection
from ...client.failure import CommandError
from ...render import terminal
from ...render.approvals import DETACHED_WAYS, denied_note
from .. import command
from ..command import CliCommand
from .query import INTERRUPTED, returned_type, returns_argument, stable_fields
from .spawn import agent_option_params, agent_options
from .typed_query import ask_for_value, whole_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

__all__ = ["VERBS"]

WORKERS = 4
FRESH_AGENT_ERRORS = frozenset({BadReplyError.__name__, ContextOverflowError.__name__})
"""After these errors, the same question would fail again in the conversation of the agent."""


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "prompt", metavar="PROMPT", help="the prompt with {item}, or {item.FIELD} for JSON; - reads it from stdin"
    )
    items = parser.add_mutually_exclusive_group(required=True)
    items.add_argument(
        "--over", metavar="GLOB", nargs="+", action="extend", help="each file that matches is an item; repeatable"
    )
    items.add_argument("--lines", metavar="FILE", help="each line of FILE is an item; - reads stdin")
    items.add_argument("--json-lines", metavar="FILE", help="each line of FILE is an item in JSON; - reads stdin")
    parser.add_argument("--key", metavar="FIELD", help="the field of a JSON item that identifies it (default: all)")
    parser.add_argument(
        "--workers",
        metavar="N",
        type=command.positive_int,
        default=WORKERS,
        help=f"how many agents work at a time (default: {WORKERS})",
    )
    returns_argument(parser)
    parser.add_argument("--stop-on-error", action="store_true", help="start no more items after an error")
    agent_options(
        parser,
        name="name of the map; another name asks all items again (default: derived from PROMPT and --returns)",
        budget="all items together, earlier runs included",
    )


def _map(arguments: Namespace) -> int:
    arguments.dry_run = False
    source = arguments.lines or arguments.json_lines
    command.one_from_stdin(arguments.prompt, source)
    template = command.text(arguments.prompt)
    try:
        items = make_items(_values(arguments), template, _key(arguments))
        expected = returned_type(arguments)
        schema = "" if expected is None else json.dumps(expected.schema, sort_keys=True)
        if expected is not None:
            items = [replace(item, prompt=prompt_for_value(item.prompt, expected)) for item in items]
    except ConfigError as error:
        raise CommandError("ConfigError", str(error), error.exit_code) from error
    if not items:
        raise CommandError("ConfigError", f"no items: {source} has no lines", 2)
    name = arguments.name or default_name(template, schema)
    params, model_note = agent_option_params(arguments)
    if model_note is not None:
        print(model_note, file=sys.stderr)
    job = _Map(name, params, expected, shows_progress=sys.stderr.isatty() and not arguments.json)
    results = asyncio.run(job.run(items, arguments.workers, arguments.stop_on_error))
    return _print(arguments, job, results)


# --- Items ---


def _values(arguments: Namespace) -> list[Any]:
    """Return the items that the options name. Raises CommandError."""
    if arguments.over is not None:
        return _files(arguments.over)
    file = arguments.lines or arguments.json_lines
    try:
        text = command.text("-") if file == "-" else decode_text(Path(file).read_bytes())
    except (OSError, ConfigError) as error:
        raise CommandError("ConfigError", f"cannot read items from {file}: {error}", 2) from error
    lines = [line for line in text.splitlines() if line.strip()]
    if arguments.lines is not None:
        return lines
    values = []
    for number, line in enumerate(lines, 1):
        try:
            values.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise CommandError("ConfigError", f"{file}, item {number}: not JSON: {error}", 2) from error
    return values


def _files(patterns: list[str]) -> list[str]:
    """Return the files that match the patterns, sorted within each pattern. Raises CommandError."""
    found: dict[str, None] = {}
    for pattern in patterns:
        files = sorted(path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path))
        if not files and os.path.isfile(pattern):
            files = [pattern]  # a name with [ or ]
        if not files and os.path.isdir(pattern):
            inside = os.path.join(glob.escape(pattern), "**", "*")
            raise CommandError(
                "ConfigError", f"--over: {pattern!r} is a folder; for all files in it, use {inside!r}", 2
            )
        if not files:
            raise CommandError("ConfigError", f"--over: no file matches {pattern!r} in {os.getcwd()}", 2)
        found |= dict.fromkeys(files)
    return list(found)


def _key(arguments: Namespace) -> Any:
    field = arguments.key
    if field is None:
        return None
    if arguments.json_lines is None:
        raise CommandError("UsageError", "--key names a field of JSON items: use it with --json-lines", 2)

    def key(value: Any) -> str:
        if not isinstance(value, dict) or field not in value:
            raise ConfigError(f"--key: the item {json.dumps(value)[:80]} has no field {field!r}")
        found = value[field]
        return found if isinstance(found, str) else json.dumps(found)

    return key


# --- Requests ---


class _Stopped(Exception):
    """The user has cancelled the map."""


class _Map:
    """Runs one map with the daemon. `params` are the spawn parameters, with the budget of the whole map."""

    def __init__(
        self, name: str, params: dict[str, Any], expected: ReturnType[Any] | None, *, shows_progress: bool
    ) -> None:
        self.name, self._expected = name, expected
        self._params = params | {"name": None, "budget": {}}
        self._parent_params = params | {"name": name, "isolation": None, "start": False}
        self._shows_progress = shows_progress
        self._cancelled = threading.Event()
        self._local = threading.local()
        self.parent, self._budget = "", Budget()
        self.progress = MapProgress(0)
        self.interrupted = False

    async def run(self, items: list[MapItem], workers: int, stop_on_error: bool) -> list[MapResult[Any]]:
        """Return the results. The first Ctrl-C starts no more items, the second cancels the turns in progress."""
        loop, stop = asyncio.get_running_loop(), asyncio.Event()

        def interrupt() -> None:
            self.interrupted = True
            if stop.is_set():
                self._cancelled.set()
                return
            stop.set()
            self._clear_line()
            print(
                f"orch: {self.progress.working} items are still in progress; press Ctrl-C again to cancel them",
                file=sys.stderr,
            )

        workers = min(workers, len(items))
        with ThreadPoolExecutor(workers, "orch-map") as threads:
            self.parent = await loop.run_in_executor(threads, self._open, len(items))
            loop.add_signal_handler(signal.SIGINT, interrupt)
            try:
                return await run_items(
                    items,
                    lambda item: loop.run_in_executor(threads, self._answer, item),
                    workers=workers,
                    stop_on_error=stop_on_error,
                    stops=stops_at(self._budget, None),
                    stop=stop,
                    on_progress=self._show,
                )
            finally:
                self._cancelled.set()
                loop.remove_signal_handler(signal.SIGINT)
                self._clear_line()

    def _open(self, count: int) -> str:
        """Return the id of the agent that has the budget of the map. Spawn this agent if it does not exist."""
        budget = {name: value for name, value in self._parent_params["budget"].items() if value is not None}
        try:
            found = self._call("state", {"ref": self.name})
        except CommandError as failure:
            if failure.kind not in ("AgentNotFoundError", "AmbiguousRefError"):
                raise
            found = None
        if found is not None and found["name"] == self.name:  # not a number or a prefix of an id
            row = self._call("resume", {"ref": found["id"], "budget": budget})
        else:
            row = self._call("spawn", self._parent_params | {"task": f"A map of {count} items"})
        self._budget = msgspec.convert(self._call("state", {"ref": row["id"]})["budget"], Budget)
        return str(row["id"])

    def _call(self, method: str, params: dict[str, Any]) -> Any:
        """Return the result of a request on the connection of this thread. Raises _Stopped after a cancellation."""

        def check() -> None:
            if self._cancelled.is_set():
                raise _Stopped

        check()
        connection = self._connection()
        try:
            return connection.call(method, params, on_silence=check)
        except BaseException:
            connection.close()  # the daemon cancels a query whose client has disconnected
            raise

    def _connection(self) -> Connection:
        if not hasattr(self._local, "connection"):
            self._local.connection = Connection()
        found: Connection = self._local.connection
        return found

    def _answer(self, item: MapItem) -> MapResult[Any]:
        """Return the result of one item. Raises CommandError if the daemon has ended."""
        result: MapResult[Any] = MapResult(item.key, item.value)
        agent, before = "", (0.0, 0)
        try:
            params = self._params | {"task": task_of(item, self.name)}
            id = Place(self.parent, item).request(msgspec.convert(params, Spawn), None).item
            agent = self._call("spawn", params | {"parent": self.parent, "item": id})["id"]
            before = self._used(agent)
            value, reply = self._ask(agent, id, item.prompt)
            result = replace(result, value=value, reply=msgspec.convert(reply, Reply))
        except _Stopped:
            return replace(result, agent=agent, error="cancelled", error_type=INTERRUPTED, exit_code=130)
        except CommandError as failure:
            if failure.kind in ENDED:
                raise CommandError(
                    failure.kind,
                    f"{failure}. The same command continues the map: finished items are kept",
                    failure.exit_code,
                ) from failure
            result = replace(result, error=str(failure), error_type=failure.kind, exit_code=failure.exit_code)
        except OrchError as error:
            result = replace(result, error=str(error), error_type=type(error).__name__, exit_code=error.exit_code)
        if not agent:
            return result
        cost, calls = self._used(agent)
        if result.error_type in FRESH_AGENT_ERRORS:
            self._call("kill", {"refs": [agent]})
        kept = result.error is None and calls == before[1]
        return replace(result, agent=agent, cost_usd=cost - before[0], kept=kept)

    def _ask(self, agent: str, id: str, prompt: str) -> tuple[Any, dict[str, Any]]:
        """Return the value and the reply. Raises CommandError, or OrchError for an incomplete reply."""
        questions = iter((id, id + CORRECTION))

        def send(fields: dict[str, Any]) -> dict[str, Any]:
            params = {"ref": agent, "prompt": fields["prompt"], "item": next(questions)}
            reply: dict[str, Any] = self._call("query", params)
            complete_reply(msgspec.convert(reply, Reply))
            return reply

        if self._expected is not None:
            found, reply = ask_for_value(self._connection(), prompt, self._expected, send)
            return found.data, reply
        reply = send({"prompt": prompt})
        return whole_text(self._connection(), reply), reply

    def _used(self, agent: str) -> tuple[float, int]:
        """Return the cost in USD and the number of model calls of the agent and its subagents."""
        usage = self._call("state", {"ref": agent})["tree_usage"]
        return usage["cost_usd"], usage["model_calls"]

    # Progress.

    def _show(self, progress: MapProgress) -> None:
        self.progress = progress
        if self._shows_progress:
            sys.stderr.write(f"\r{progress_text(progress)}\x1b[K")
            sys.stderr.flush()

    def _clear_line(self) -> None:
        if self._shows_progress:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def progress_text(progress: MapProgress) -> str:
    """Return the progress of a map as one line."""
    parts = [f"{progress.done} of {progress.total} done"]
    parts += [f"{progress.kept} kept"] if progress.kept else []
    parts += [f"{progress.failed} failed"] if progress.failed else []
    parts += [f"{progress.working} in progress", f"${progress.cost_usd:.4f}"]
    if progress.seconds_left is not None:
        parts.append(f"about {_duration(progress.seconds_left)} left")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


# --- Output ---


def _print(arguments: Namespace, job: _Map, results: list[MapResult[Any]]) -> int:
    """Print the results and a summary. Return the exit code."""
    typed = arguments.returns is not None
    text = "\n\n".join(map(_text, filter(_is_started, results)))
    command.print_result(arguments, [_data(each, typed) for each in results], text)
    progress = job.progress
    if not arguments.json:
        total = terminal.pluralize(progress.total, "item")
        counts = (
            f"{progress.done - progress.failed} of {total} answered ({progress.kept} kept), {progress.failed} failed"
        )
        if waiting := progress.total - progress.done:
            counts += f", {waiting} not started"
        print(f"orch: map {job.name}: {counts}, ${progress.cost_usd:.4f}", file=sys.stderr)
        if progress.done - progress.failed < progress.total:
            print("orch: the same command asks the other items again", file=sys.stderr)
        if denied := sum(each.reply.denied for each in results if each.reply is not None):
            print(f"orch: {denied_note(denied, DETACHED_WAYS)}", file=sys.stderr)
    if job.interrupted:
        return 130
    codes = {each.exit_code for each in filter(_is_started, results)} - {0}
    return codes.pop() if len(codes) == 1 else int(bool(codes))


def _is_started(result: MapResult[Any]) -> bool:
    """Return whether the item was asked, or has a kept reply."""
    return result.error is None or result.error_type != ""


def _data(result: MapResult[Any], typed: bool) -> dict[str, Any]:
    data: dict[str, Any] = {"key": result.key, "item": result.item, "agent": result.agent}
    if typed:
        data["value"] = result.value
    reply = stable_fields(msgspec.to_builtins(result.reply)) if result.reply is not None else None
    return data | {
        "reply": reply,
        "error": result.error,
        "error_type": result.error_type,
        "exit_code": result.exit_code,
        "cost_usd": result.cost_usd,
        "kept": result.kept,
    }


def _text(result: MapResult[Any]) -> str:
    if result.error is not None:
        text = f"error: {terminal.safe(result.error)}"
    elif isinstance(result.value, str):
        text = terminal.safe_for_stdout(result.value)
    else:
        text = json.dumps(result.value, ensure_ascii=False)
    return f"{terminal.safe(result.key)}:\n{text}"


VERBS = {
    "map": CliCommand(
        "Start an agent for each file or line, ask each agent once, and print the answers in order. After an "
        "interruption, the same command asks only the items that were not answered.",
        "orch map 'Review {item}' --over 'src/**/*.py' --workers 6 --returns review.json --json",
        _arguments,
        _map,
    ),
}
