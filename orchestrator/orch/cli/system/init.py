"""The command `orch init` finds keys and model servers, writes the chosen model to config.toml, and tries it."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

import msgspec

from orch_protocol.core.errors import ConfigError, OrchError
from orch_worker.backends import models
from orch_worker.backends.local_servers import PORTS

from ...client.connection import replace_invalid_utf8
from ...client.failure import CommandError
from ...config import paths
from ...config.config import check_model
from ...config.user_config import set_text, text_setting
from ...diagnostics.setup import ModelChoice, find_choices, test_call
from ...render import terminal
from .. import command
from ..command import CliCommand

__all__ = ["VERBS"]

MAX_LISTED = 30
INTERRUPTED = 130
NOTHING = (
    "no key and no model server found: set the key of a provider (`orch models` lists the variables), or start a model "
    f"server on one of the ports {', '.join(map(str, PORTS))} of this machine (--server URL for another address), and "
    "repeat; or pass --model"
)


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--model", metavar="MODEL", action=command.SetOnce, help="use this model, and ask nothing")
    parser.add_argument("--server", metavar="URL", action="append", help="also look at this address; repeatable")
    parser.add_argument("--yes", action="store_true", help="use the first model that is found, and ask nothing")
    parser.add_argument("--replace", action="store_true", help="replace the model that config.toml sets")
    parser.add_argument("--no-test", action="store_true", help="send no request to the model")


def _init(arguments: Namespace) -> int:
    home = paths.private_dir(paths.home())
    paths.write_gitignore(home)
    known, servers = models.load(home), [replace_invalid_utf8(url) for url in arguments.server or ()]
    named = None if arguments.model is None else replace_invalid_utf8(arguments.model)
    if named is not None:
        check_model(named, home)
    choices = [] if named is not None else asyncio.run(find_choices(known, os.environ, servers))
    file, old = home / "config.toml", text_setting(home, "model")
    result = {"model": old, "config": str(file), "written": False, "choices": msgspec.to_builtins(choices)}
    asks = not (arguments.yes or arguments.json or named is not None)
    if asks and not sys.stdin.isatty():
        raise CommandError("UsageError", "cannot ask: standard input is no terminal; pass --yes, --model or --json", 2)
    if named is None and not choices:
        raise CommandError("ConfigError", NOTHING, 1)
    if arguments.json and named is None and not arguments.yes:
        command.print_result(arguments, result, "")
        return 0
    model = _ask(choices, home) if asks else named or choices[0].model
    if not model:
        print("orch: nothing was changed", file=sys.stderr)
        return 0
    if old not in (None, model) and not arguments.replace:
        if asks:
            print(terminal.safe(f"{file} sets model = {old!r}. Replace it with {model!r}?"), flush=True)
        if not asks or not command.confirm():
            message = f"{file} already sets the model {old!r}: pass --replace to replace it. Nothing was changed"
            raise CommandError("ConfigError", message, 1)
    result |= {"model": model, "written": set_text(home, "model", model)}
    lines = [f"{'Wrote' if result['written'] else 'Unchanged:'} model = {terminal.safe(model)!r} in {file}"]
    code = 0 if arguments.no_test else _test(model, known, result, lines)
    if code:
        lines.append("The setting stays. To choose another model: orch init --replace. To try this one again:")
        lines.append(f"orch init --model {shlex.quote(terminal.safe(model))}")
    if os.environ.get("ORCH_MODEL") not in (None, "", model):
        lines.append(f"ORCH_MODEL={terminal.safe(os.environ['ORCH_MODEL'])} overrides it in this shell")
    if not code:
        lines.append("Next: orch chat, or orch run 'Describe this folder'")
    command.print_result(arguments, result, "\n".join(lines))
    return code


def _ask(choices: list[ModelChoice], home: Path) -> str:
    """Let the user choose a model. Return "" for none. Raises CommandError after Ctrl-C."""
    print("Models that can be used:")
    for number, each in enumerate(choices[:MAX_LISTED], 1):
        context = f", context {each.context:,}" if each.context else ""
        print(terminal.safe(f"  {number:2}  {each.model}  ({each.reason}{context})"))
    while True:
        try:
            typed = input(f"Number or model [1 = {terminal.safe(choices[0].model)}; q to leave]: ").strip()
        except EOFError:
            print()
            return ""
        except KeyboardInterrupt:
            print()
            raise CommandError("Interrupted", "interrupted: nothing was changed", INTERRUPTED) from None
        if typed in ("q", "quit"):
            return ""
        if not typed:
            return choices[0].model
        if typed.isdecimal() and 1 <= int(typed) <= len(choices):
            return choices[int(typed) - 1].model
        try:
            check_model(typed, home)
        except ConfigError as error:
            print(f"There is no model {typed}." if typed.isdecimal() else terminal.safe(f"{error}"))
        else:
            return typed


def _test(model: str, known: models.ModelCatalog, result: dict[str, object], lines: list[str]) -> int:
    """Send the test call. Add the outcome to `result` and `lines`. Return the exit code."""
    if sys.stderr.isatty():
        print(f"orch: asking {terminal.safe(model)} ...", file=sys.stderr)
    try:
        call = asyncio.run(test_call(model, known, os.environ))
    except KeyboardInterrupt:
        message = f"interrupted: the test call was not finished, and config.toml has model = {model!r}"
        raise CommandError("Interrupted", message, INTERRUPTED) from None
    except OrchError as error:
        result["error"] = {"type": type(error).__name__, "message": str(error)}
        lines.append(f"The test call failed: {terminal.safe(str(error))}")
        return error.exit_code
    cost = terminal.safe(f"${call.usage.cost_usd:.4f}" if call.usage.cost_known else "at an unknown price")
    result |= {"answer": call.answer, "seconds": round(call.seconds, 2), "context": call.context}
    result["usage"] = msgspec.to_builtins(call.usage)
    answer = terminal.truncate_line(terminal.safe(call.answer), 60)
    lines.append(f"It answered {answer!r} in {call.seconds:.1f} s, {cost}; context {call.context:,} tokens")
    return 0


VERBS = {
    "init": CliCommand(
        "Find keys and model servers on this machine, write the chosen model to config.toml, and send one test call.",
        "orch init; orch init --yes; orch init --model http://localhost:8080/v1#qwen3-coder --json",
        _arguments,
        _init,
    )
}
