"""The command `orch demo` demonstrates orch in about ten seconds, without a model key."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from orch_protocol.core.ids import new_id

from ...client.failure import CommandError
from ...config import paths
from ...config.config import load
from ...demo.play import DemoResult, play
from ...demo.screen import DemoScreen, make_screen
from ...gateway.clients.table import EXAMPLE as WRAP
from ...render.terminal import to_json
from ...supervisor.recovery.orphan_cleanup import processes_with_token, stored_token
from .. import command
from ..command import CliCommand
from ..scratch import scratch

__all__ = ["VERBS", "shell_command"]

MAX_USD: Final = 2.0
"""The maximum total cost of `orch demo --live` in US dollars."""


def _demo(arguments: Namespace) -> int:
    start = time.monotonic()
    screen = DemoScreen(open(os.devnull, "w")) if arguments.json else make_screen()  # noqa: SIM115
    model = _live_model(arguments) if arguments.live else None
    run = f"demo-{new_id()}"
    with scratch() as home:
        result = play(screen, home, run=run, model=model, max_usd=MAX_USD)
        token = stored_token(paths.run_dir(home, run))
    remaining = [pid for pid, env in processes_with_token() if env["ORCH_RUN"] == token]
    seconds = round(time.monotonic() - start, 1)
    if arguments.json:
        print(to_json(msgspec.to_builtins(result) | {"left": remaining, "seconds": seconds}))
    else:
        _print_summary(screen, result, len(remaining), seconds)
    return 1 if remaining else 0


def _live_model(arguments: Namespace) -> str:
    """Return the configured model if the user agrees to the maximum cost. Raises CommandError."""
    model = arguments.model or load(None, os.environ).config.model
    if model is None:
        raise CommandError(
            "ConfigError", "no model configured: set ORCH_MODEL=provider:model and its key, or run 'orch init'", 1
        )
    print(f"The demo will use {model}. It costs at most ${MAX_USD:.2f}: all agents share a budget of that size.")
    if not sys.stdin.isatty():
        raise CommandError("UsageError", "orch demo --live asks before it spends money; run it at a terminal", 2)
    if not command.confirm():
        raise CommandError("Cancelled", "nothing was started", 1)
    return str(model)


def _print_summary(screen: DemoScreen, result: DemoResult, remaining_count: int, seconds: float) -> None:
    program = shell_command(os.environ, Path(sys.argv[0]), Path(sys.executable))
    screen.heading(f"That was orch, in {seconds:.0f} s")
    screen.say(f"{result.steps} steps, {len(result.fan_out.answers)} reviews. Processes left: {remaining_count}.")
    screen.say("Choose a model: an API key, or a server on this machine.")
    screen.untruncated(f"   {program} init")
    screen.say("Then take one of three doors. Search your own past sessions (needs no model):")
    screen.untruncated(f"   {program} import ~/.claude")
    screen.say("Archive the sessions of a coding assistant, or of any client by one URL:")
    screen.untruncated(f"   {program} {WRAP.removeprefix('orch ')}")
    screen.untruncated(f"   {program} proxy")
    screen.say("Ask about each of many files:")
    screen.untruncated(f"   {program} map 'Review {{item}}' --over '**/*.py'")


def shell_command(env: Mapping[str, str], program: Path, python: Path) -> str:
    """Return how to start orch in the shell that started `program` with the interpreter `python`.

    The result is "orch" if orch is on the PATH of the shell, "uv run orch" after `uv run`, and otherwise the path of
    the program. `env` is the environment of the program.
    """
    folders = env.get("PATH", os.defpath).split(os.pathsep)
    if "UV" in env and Path(folders[0]) == python.parent:
        del folders[0]  # uv adds this folder for the program; the shell does not have it
    if shutil.which("orch", path=os.pathsep.join(folders)):
        return "orch"
    if "UV_RUN_RECURSION_DEPTH" in env:  # uv sets it for the commands of `uv run`
        return "uv run orch"
    if program.name == "orch" and program.is_file():
        return shlex.quote(os.path.relpath(program))
    return f"{shlex.quote(str(python))} -m orch"


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--live", action="store_true", help="use a real model; prints the highest cost and asks first")
    parser.add_argument("--model", metavar="PROVIDER:MODEL", help="model for --live (the configured one)")


VERBS = {
    "demo": CliCommand(
        "Demonstrate orch in about ten seconds: a long session, archives, a kill, a team. Needs no key.",
        "orch demo",
        _arguments,
        _demo,
    )
}
