"""The `orch` command. The module of a verb is imported when the verb runs. The verb sends its request to the daemon.

To start quickly, this module and the frequently used verbs import only argparse, json and socket.
"""

from __future__ import annotations

import gc
import io
import os
import sys

from orch_protocol.services.verbs import VERBS as SERVICE_VERBS

__all__ = ["main", "run"]

VERBS = {
    "spawn": ("orch.cli.agents.spawn", "start an agent and print its id"),
    "query": ("orch.cli.agents.query", "ask an agent and print its answer"),
    "collect": ("orch.cli.agents.query", "take the answer to a query submitted with --no-wait"),
    "run": ("orch.cli.agents.run_once", "ask a new agent, print its answer, and end it"),
    "map": ("orch.cli.agents.map_items", "ask a new agent about each file or line, several at a time"),
    "chat": ("orch.cli.agents.chat", "chat with an agent interactively"),
    "send": ("orch.cli.agents.send", "send part of a file, or any text, to an agent (for editors)"),
    "queue": ("orch.cli.agents.queue", "show or retract messages an agent has not received yet"),
    "cancel": ("orch.cli.agents.query", "cancel the running turn of an agent"),
    "list": ("orch.cli.agents.agents", "list agents"),
    "runs": ("orch.cli.agents.runs", "list the runs of the daemon and of programs"),
    "show": ("orch.cli.agents.agents", "show one agent and the end of its conversation"),
    "execute": ("orch.cli.agents.execute", "run a slash command in an agent's session, such as /status"),
    "events": ("orch.cli.system.events", "show what happened to agents, in order"),
    "resume": ("orch.cli.agents.agents", "let a killed or failed agent answer again"),
    "budget": ("orch.cli.agents.agents", "show or change the budget of all agents together"),
    **{
        verb.words: ("orch.cli.service_verbs", verb.summary)
        for verbs in SERVICE_VERBS.values()
        for verb in verbs
        if " " not in verb.words
    },
    "archive": ("orch.cli.sessions.archive", "search, read and ask archived turns"),
    "import": ("orch.cli.sessions.import_past", "copy sessions of other programs, to search them"),
    "session": ("orch.cli.sessions.session", "show, branch, fork, import and export sessions"),
    "proxy": ("orch.cli.system.proxy", "archive the conversations of any client, by its base URL"),
    "wrap": ("orch.cli.system.wrap", "start a coding assistant whose conversations are archived"),
    "forget": ("orch.cli.sessions.forget", "delete a session permanently"),
    "memory": ("orch.cli.resources.memory", "show and edit what agents remember about a project"),
    "workspace": ("orch.cli.resources.workspace", "show and pin the workspace objects of an agent"),
    "prompts": ("orch.cli.prompts", "list and fill in prompt templates"),
    "hooks": ("orch.cli.resources.hooks", "list, enable, disable and create hooks"),
    "skills": ("orch.cli.resources.skills", "list, install, create and test skills"),
    "agent-types": ("orch.cli.resources.agent_types", "list, show and trust agent types"),
    "extensions": ("orch.cli.resources.extensions", "list, enable and trust extensions"),
    "costs": ("orch.cli.resources.costs", "show daily costs of models and tools"),
    "models": ("orch.cli.resources.models", "list known models: limits, prices, keys"),
    "daemon": ("orch.cli.system.admin", "start, stop or inspect the daemon"),
    "config": ("orch.cli.system.admin", "show the configuration or trust a project's"),
    "demo": ("orch.cli.system.demo", "show what orch does, without a model key"),
    "replay": (
        "orch.cli.sessions.replay",
        "compare the cost of a recorded session under other policies",
    ),
    "init": ("orch.cli.system.init", "choose a model: find keys and local servers, and try one"),
    "completion": ("orch.cli.system.completion", "print the code that completes commands in a shell"),
    "version": ("orch.cli.system.version", "print the version"),
    "doctor": ("orch.cli.system.doctor", "check whether this machine meets orch's requirements"),
    "fsck": ("orch.cli.system.fsck", "find and repair damaged files"),
}
"""The module and the summary of each verb."""

RESERVED_MEMORY = bytearray(4 << 20)
"""Address space for the report of an error when no more is left. The pages are not used."""
USAGE = 2
INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit the process."""
    # A command runs for milliseconds. Garbage collection and interpreter shutdown would take a fifth of that time.
    gc.disable()
    _open_standard_descriptors()
    try:
        os._exit(_run_and_flush(sys.argv[1:]))
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)  # Ctrl-C was pressed again during the message or the final flush


def _run_and_flush(argv: list[str]) -> int:
    code = run(argv)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        code = code or 1
    except OSError as error:
        code = code or _report_error(argv, error)
    return code


def run(argv: list[str]) -> int:
    """Run one command line and return its exit code.

    The codes mean: 0 ok, 1 failed, 2 usage error, 3 not found, 4 still running, 5 limit reached.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # an unencodable name must not abort a listing
    try:
        if sys.stdout is None:
            return _print_error(
                argv, "OSError", "standard output is closed; keep it open or redirect it to /dev/null", 1
            )
        return _dispatch(argv)
    except BrokenPipeError:
        return 1  # the reader closed the pipe
    except (KeyboardInterrupt, Exception) as error:
        sys.last_value = error  # keeps objects in its frames, because Ctrl-C would interrupt their destructors
        if isinstance(error, KeyboardInterrupt):
            return _print_error(argv, "Interrupted", "interrupted", INTERRUPTED)
        return _report_error(argv, error)


def _dispatch(argv: list[str]) -> int:
    if "_ARGCOMPLETE" in os.environ:  # the shell asks for completions
        __import__(VERBS["completion"][0], fromlist=["complete"]).complete(VERBS)
    name = argv[0] if argv else ""
    if name == "help" and argv[1:]:
        name, argv = argv[1], [argv[1], "--help"]
    if name in VERBS:
        module_name = VERBS[name][0]
        module = __import__(module_name, fromlist=["VERBS"])  # importing importlib takes a millisecond
        code: int = module.VERBS[name].run(name, argv[1:])
        return code
    if name in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if name in ("-V", "--version"):
        from ..config.version import __version__

        print(f"orch {__version__}")
        return 0
    if not name:
        print(_overview(), file=sys.stderr)
        return USAGE
    from difflib import get_close_matches

    matches = get_close_matches(name, VERBS, n=1)
    hint = f"did you mean {matches[0]!r}?" if matches else "see: orch --help"
    return _print_error(argv, "UsageError", f"unknown command {name!r}; {hint}", USAGE)


def _overview() -> str:
    verbs = "\n".join(f"  {name:14}{summary}" for name, (_, summary) in VERBS.items())
    return f"""\
usage: orch COMMAND ...

Run AI agents as processes: spawn, query, kill, and query them again.

{verbs}

REF: agent number, id or unique prefix, name, or "latest". `orch COMMAND --help` shows an example.
Exit code: 0 ok, 1 failed, 2 usage, 3 not found, 4 still running, 5 limit reached, 130 interrupted."""


def _report_error(argv: list[str], error: Exception) -> int:
    """Print the error and return the exit code.

    Unexpected errors are raised again, so that Python shows a traceback.
    """
    if (code := getattr(error, "exit_code", None)) is not None:
        kind, outcome = getattr(error, "kind", type(error).__name__), getattr(error, "outcome", "")
        return _print_error(argv, kind, str(error), code, outcome)
    if (message := _memory_error(error)) is not None:
        return _print_error(argv, type(error).__name__, message, 1)
    if isinstance(error, OSError):
        from ..client.failure import describe_os_error

        return _print_error(argv, "OSError", describe_os_error(error), 1)
    raise error


def _memory_error(error: Exception) -> str | None:
    """Return the message if a limit of the address space can be the cause of `error`."""
    RESERVED_MEMORY.clear()
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    try:
        from orch_worker.system.memory_limit import with_memory_limit

        message = with_memory_limit(text)
    except (ImportError, MemoryError, OSError):  # there is no memory for the check
        return None
    return message if message != text else None


def _print_error(argv: list[str], kind: str, message: str, code: int, outcome: str = "") -> int:
    """Print an error on stderr. With --json the error is an object, otherwise a sentence. stdout contains only data."""
    if "--json" in argv or "--json-events" in argv:
        import json

        outcome_field = {"outcome": outcome} if outcome not in ("", "failed") else {}
        line = json.dumps({"error": {"type": kind, "message": message} | outcome_field})
    else:
        from ..render.terminal import safe

        line = f"orch: {safe(message)}"
    try:
        print(line, file=sys.stderr)
    except OSError:
        pass  # stderr is closed; the exit code still reports the error
    return code


def _open_standard_descriptors() -> None:
    """Open the standard descriptors that are closed. Otherwise a file that is opened later would get such a number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    stream: io.TextIOWrapper = sys.stderr  # type: ignore[assignment]
    encoding = stream.encoding
    sys.stderr = _LossyStderr(stream.detach(), encoding, line_buffering=True)


class _LossyStderr(io.TextIOWrapper):
    """A stderr that ignores write errors, so that they do not prevent output on stdout."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            pass
