"""The `orch` command. Thin: a verb is imported when it is asked for, and a request goes to the daemon as one line.

Nothing here or in the verbs that people type all day imports more than argparse, json and socket.
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
    "chat": ("orch.cli.agents.chat", "chat with an agent interactively"),
    "send": ("orch.cli.agents.send", "send part of a file, or any text, to an agent (for editors)"),
    "queue": ("orch.cli.agents.queue", "show or retract messages an agent has not received yet"),
    "cancel": ("orch.cli.agents.query", "cancel the running turn of an agent"),
    "list": ("orch.cli.agents.agents", "list agents"),
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
    "session": ("orch.cli.sessions.session", "show, branch, fork, import and export sessions"),
    "memory": ("orch.cli.resources.memory", "show and edit what agents remember about a project"),
    "workspace": ("orch.cli.resources.workspace", "show and pin the artifacts of an agent"),
    "prompts": ("orch.cli.prompts", "list and fill in prompt templates"),
    "hooks": ("orch.cli.resources.hooks", "list, enable, disable and create hooks"),
    "skills": ("orch.cli.resources.skills", "list, install, create and test skills"),
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
    "doctor": ("orch.cli.system.doctor", "check whether this machine meets orch's requirements"),
    "fsck": ("orch.cli.system.fsck", "find and repair damaged files"),
}
"""Each verb, the module it lives in, and what it does."""

USAGE = 2
INTERRUPTED = 130


def main() -> None:
    """Run the command line and leave the process."""
    # A command lives for milliseconds: collecting cycles and taking the interpreter apart would be a fifth of them.
    gc.disable()
    _take_descriptors()
    try:
        os._exit(_run_to_the_end(sys.argv[1:]))
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)  # again, while it was said that the first one was heard, or what was printed went out


def _run_to_the_end(argv: list[str]) -> int:
    code = run(argv)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        code = code or 1
    except OSError as error:
        code = code or _fail(argv, error)
    return code


def run(argv: list[str]) -> int:
    """Run one command line and return its exit code: 0 ok, 1 failed, 2 usage, 3 not found, 4 still running, 5 limit."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a name in another script must not end a listing
    try:
        if sys.stdout is None:
            return _complain(argv, "OSError", "standard output is closed: leave it open, or use >/dev/null", 1)
        return _dispatch(argv)
    except KeyboardInterrupt:
        return _complain(argv, "Interrupted", "interrupted", INTERRUPTED)
    except BrokenPipeError:
        return 1  # whoever read our output has seen enough
    except Exception as error:
        return _fail(argv, error)


def _dispatch(argv: list[str]) -> int:
    name = argv[0] if argv else ""
    if name == "help" and argv[1:]:
        name, argv = argv[1], [argv[1], "--help"]
    if name in VERBS:
        home = VERBS[name][0]
        module = __import__(home, fromlist=["VERBS"])  # importlib itself would cost a millisecond
        code: int = module.VERBS[name].run(name, argv[1:])
        return code
    if name in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if name in ("-V", "--version"):
        from ..config.version import version

        print(f"orch {version()}")
        return 0
    if not name:
        print(_overview(), file=sys.stderr)
        return USAGE
    from difflib import get_close_matches

    close = get_close_matches(name, VERBS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "see: orch --help"
    return _complain(argv, "UsageError", f"there is no command {name!r}; {hint}", USAGE)


def _overview() -> str:
    verbs = "\n".join(f"  {name:14}{what}" for name, (_, what) in VERBS.items())
    return f"""\
usage: orch COMMAND ...

Agents that are processes: spawn one, ask it, kill it, ask it again.

{verbs}

REF: agent number, id or unique prefix, name, or "latest". `orch COMMAND --help` shows an example.
Exit code: 0 ok, 1 failed, 2 usage, 3 not found, 4 still running, 5 limit reached, 130 interrupted."""


def _fail(argv: list[str], error: Exception) -> int:
    """Say what went wrong and return the exit code. Raises what is a defect, which must show where it is."""
    if (code := getattr(error, "exit_code", None)) is not None:
        kind, outcome = getattr(error, "kind", type(error).__name__), getattr(error, "outcome", "")
        return _complain(argv, kind, str(error), code, outcome)
    if isinstance(error, OSError):
        from ..client.failure import describe_os_error

        return _complain(argv, "OSError", describe_os_error(error), 1)
    raise error


def _complain(argv: list[str], kind: str, message: str, code: int, outcome: str = "") -> int:
    """Say on stderr what went wrong: a sentence, or with --json an object. stdout stays data."""
    if "--json" in argv or "--json-events" in argv:
        import json

        ended = {"outcome": outcome} if outcome not in ("", "failed") else {}
        said = json.dumps({"error": {"type": kind, "message": message} | ended})
    else:
        from ..render.terminal import safe

        said = f"orch: {safe(message)}"
    try:
        print(said, file=sys.stderr)
    except OSError:
        pass  # nobody can be told; the exit code is left
    return code


def _take_descriptors() -> None:
    """Let no descriptor of the three standard ones be closed: the next file or socket would become it."""
    while (taken := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(taken)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    said: io.TextIOWrapper = sys.stderr  # type: ignore[assignment]
    encoding = said.encoding
    sys.stderr = _LossyStderr(said.detach(), encoding, line_buffering=True)


class _LossyStderr(io.TextIOWrapper):
    """stderr, which people read: that it is full, or nobody reads it any more, keeps no data from stdout."""

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
