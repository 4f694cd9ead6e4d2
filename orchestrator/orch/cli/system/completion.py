"""The command `orch completion` prints shell code. With this code, the shell asks `complete` for each Tab.

The parser of the completion contains the names of all verbs, but the arguments only of the verb that was typed, so that
no other module is imported. Agents are those of a running daemon; a Tab never starts one.
"""

from __future__ import annotations

import os
import sys
from argparse import Action, ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, TextIO

from ...client.connection import Connection
from ...client.failure import CommandError
from ...config import paths
from .. import command
from ..command import CliCommand, CommandGroup

__all__ = ["VARIABLE", "VERBS", "complete"]

VARIABLE: Final = "_ARGCOMPLETE"
"""The variable with which the shell code asks for completions."""
SHELLS: Final = ("bash", "zsh", "fish")
AGENTS: Final = frozenset({"REF", "KEY", "KEY|FILE", "SESSION"})
"""Names of arguments that refer to agents."""
FILES: Final = ("FILE", "FOLDER", "DIR", "PATH", "PICTURE")
"""Parts of the names of arguments that are files or folders."""
LATEST: Final = "latest"
SECONDS: Final = 2.0
"""The time limit of a Tab. A daemon that hangs answers later."""

Verbs = Mapping[str, tuple[str, CliCommand | CommandGroup | None]]


def complete(
    verbs: Mapping[str, tuple[str, str]],
    *,
    output: TextIO | None = None,
    end: Callable[[int], object] = os._exit,
) -> None:
    """Write the completions for the command line in the environment to `output`, and end the process with `end`.

    `verbs` contains the module and the summary of each verb. The default for `output` is the descriptor that the shell
    code passes.
    """
    import argcomplete
    from argcomplete.lexers import split_line

    _, _, _, words, _ = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))
    typed = words[1:]
    if typed[:1] == ["help"]:
        typed = []
    name = typed[0] if typed else ""
    chosen: Verbs = {word: (summary, None) for word, (_, summary) in verbs.items()}
    if name in verbs:
        module = __import__(verbs[name][0], fromlist=["VERBS"])
        chosen = {**chosen, name: (verbs[name][1], module.VERBS[name])}
    parser = ArgumentParser("orch", allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="print the version")
    subparsers = _add_verbs(parser, chosen, typed)
    helped = subparsers.add_parser("help", help="show the help of a command")
    helped.add_argument("verb", choices=list(verbs))
    argcomplete.autocomplete(parser, always_complete_options=False, output_stream=output, exit_method=end)


def _add_verbs(parser: ArgumentParser, verbs: Verbs, typed: Sequence[str]) -> _SubParsersAction[ArgumentParser]:
    """Add `verbs` to `parser`. Only the verb of the words `typed` gets its arguments."""
    subparsers = parser.add_subparsers()
    for name, (summary, verb) in verbs.items():
        below = subparsers.add_parser(name, help=summary, allow_abbrev=False)
        if name not in typed:
            continue
        if isinstance(verb, CliCommand):
            verb.add_arguments(below)
            for action in below._actions:
                _add_completer(action)
        elif isinstance(verb, CommandGroup):
            _add_verbs(below, verb.verbs, typed[typed.index(name) + 1 :])
    return subparsers


def _add_completer(action: Action) -> None:
    """Let `action` complete references to agents, names of runs, names of files, or its choices.

    Other values have no completions.
    """
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    completer: Callable[..., list[str] | dict[str, str]] | None = None
    if metavar in AGENTS or action.dest == "ref":
        completer = _agents
    elif action.dest == "run":
        completer = _runs
    elif action.choices is None and not any(word in metavar for word in FILES):
        completer = _nothing
    if completer is not None:
        vars(action)["completer"] = completer


def _agents(prefix: str, parsed_args: Namespace, **_: Any) -> dict[str, str]:
    """Return the names and ids of agents that begin with `prefix`, with their tasks.

    Return {} if no daemon is running, or if the daemon does not answer in time.
    """
    import signal

    connection = Connection(start=None, run=getattr(parsed_args, "run", None))
    previous = signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        rows = connection.call("list", {"all": True})
    except CommandError:
        return {}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        connection.close()
    rows = [row for row in rows if row["kind"] == "agent" and not row["deleted"]]
    found = {row["name"]: f"{row['status']}: {row['task']}" for row in rows}
    if prefix:  # ids are long: they are offered only when the user types one
        found |= {row["id"]: f"{row['name']}: {row['task']}" for row in rows}
    if rows:
        found[LATEST] = "the most recently active agent"
    return {name: " ".join(text.split())[:60] for name, text in found.items() if name.startswith(prefix)}


def _give_up(*_: object) -> NoReturn:
    raise CommandError("DaemonSilent", f"the daemon has not answered within {SECONDS:g} s")


def _runs(prefix: str, **_: Any) -> list[str]:
    """Return the names of runs that begin with `prefix`."""
    try:
        names = os.listdir(paths.runs_dir(paths.home()))
    except OSError:
        return []
    return sorted(name for name in names if name.startswith(prefix))


def _nothing(**_: Any) -> list[str]:
    return []


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def _completion(arguments: Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    code = shellcode(["orch"], shell=arguments.shell)
    command.print_result(arguments, {"shell": arguments.shell, "code": code}, code.strip())
    if sys.stdout.isatty():
        print(f"orch: put this code into effect: {EFFECT[arguments.shell]}", file=sys.stderr)
    return 0


EFFECT: Final = {
    "bash": 'eval "$(orch completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(orch completion zsh)" in ~/.zshrc, after compinit',
    "fish": "mkdir -p ~/.config/fish/completions; orch completion fish > ~/.config/fish/completions/orch.fish",
}
VERBS = {
    "completion": CliCommand(
        "Print the code with which bash, zsh or fish completes commands, options, agents and runs.",
        'orch completion bash  # in ~/.bashrc: eval "$(orch completion bash)"',
        _arguments,
        _completion,
    )
}
