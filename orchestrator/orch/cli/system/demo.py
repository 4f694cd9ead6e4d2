"""`orch demo`: show in half a minute what orch does, without a key."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Final

import msgspec

from orch_protocol.core.ids import new_id

from ...client.failure import CommandError
from ...config import paths
from ...config.config import load
from ...demo.play import DemoResult, play
from ...demo.screen import DemoScreen, screen_of
from ...render.terminal import to_json
from ...supervisor.recovery.orphan_cleanup import processes_with_token, stored_token
from ..command import CliCommand
from ..scratch import scratch

__all__ = ["VERBS"]

MAX_USD: Final = 2.0
"""What all agents of `orch demo --live` may cost together."""


def _demo(arguments: Namespace) -> int:
    began = time.monotonic()
    screen = DemoScreen(open(os.devnull, "w")) if arguments.json else screen_of()  # noqa: SIM115
    folder = Path(arguments.folder).absolute()
    model = _live_model(arguments) if arguments.live else None
    run = f"demo-{new_id()}"
    with scratch() as home:
        played = play(screen, home, folder, run=run, model=model, max_usd=MAX_USD)
        token = stored_token(paths.run_dir(home, run))
    left = [pid for pid, env in processes_with_token() if env["ORCH_RUN"] == token]
    seconds = round(time.monotonic() - began, 1)
    if arguments.json:
        print(to_json(msgspec.to_builtins(played) | {"left": left, "seconds": seconds}))
    else:
        _close(screen, played, len(left), seconds)
    return 1 if left else 0


def _live_model(arguments: Namespace) -> str:
    """Return the configured model after the user has agreed to its highest possible cost. Raises Failure."""
    model = arguments.model or load(None, os.environ).config.model
    if model is None:
        raise CommandError(
            "ConfigError", "no model configured: set ORCH_MODEL=provider:model and its key, or run 'orch init'", 1
        )
    print(f"The demo will use {model}. It costs at most ${MAX_USD:.2f}: all agents share a budget of that size.")
    if not sys.stdin.isatty():
        raise CommandError("UsageError", "orch demo --live asks before it costs money: run it at a terminal", 2)
    if input("Continue? [y/N] ").strip().lower() not in ("y", "yes"):
        raise CommandError("Cancelled", "nothing was started", 1)
    return str(model)


def _close(screen: DemoScreen, played: DemoResult, left: int, seconds: float) -> None:
    saved = 100 - 100 * played.tokens_with / max(played.tokens_without, 1)
    found = "an archived detail found" if played.recalled else "archives searched"
    orch = _command()
    screen.heading("That was orch")
    screen.lines(
        [
            f"{played.steps} steps with {saved:.0f} % fewer tokens, {found}, a killed process",
            f"replaced, three agents at once; in {seconds:.0f} s. Processes left: {left}.",
            "Try next:",
        ]
    )
    screen.uncut(f"{orch} run 'What does this project do?'   # ask about this folder")
    screen.uncut(f"{orch} chat                               # talk to an agent")
    screen.uncut(f"{orch} doctor                             # check this machine")


def _command() -> str:
    """Return how to start orch in this shell: the name if it is found, else the path of the program that runs."""
    if shutil.which("orch"):
        return "orch"
    program = Path(sys.argv[0])
    if program.name == "orch" and program.is_file():
        return shlex.quote(os.path.relpath(program))
    return f"{shlex.quote(sys.executable)} -m orch"


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default=".", help="folder for the three subagents (.)")
    parser.add_argument("--live", action="store_true", help="use a real model; prints the highest cost and asks first")
    parser.add_argument("--model", metavar="PROVIDER:MODEL", help="model for --live (the configured one)")


VERBS = {
    "demo": CliCommand(
        "Show what orch does, in half a minute: a long session, archives, a kill, three agents. No key needed.",
        "orch demo",
        _arguments,
        _demo,
    )
}
