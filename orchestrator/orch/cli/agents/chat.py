"""The command `orch chat` opens a chat with an agent on the terminal."""

from __future__ import annotations

import os
import signal
import sys

from ...client.connection import Connection
from ...client.failure import CommandError
from ...render import terminal
from ..command import CliCommand
from .approval_prompt import VARIABLE, Approval, approval_of, approve_argument, choose_approval, scope_of
from .spawn import agent_option_params, agent_options, history_argument, history_params, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Awaitable
    from typing import Any

    from ...chat.app import Chat

__all__ = ["VERBS"]

STARTING = "starting ..."
TASK = "Talk with the person at the terminal and do what they ask."


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("ref", metavar="REF", nargs="?", help="continue with this agent (default: start a new one)")
    agent_options(parser)
    history_argument(parser)
    approve_argument(parser)
    parser.add_argument("--no-color", action="store_true", help="do not use colors, as with NO_COLOR=1")


def _chat(arguments: Namespace) -> int:
    if arguments.json:
        raise CommandError(
            "UsageError", "orch chat has no JSON output; use `orch run --json` or `orch query --stream --json`", 2
        )
    if arguments.ref is not None and (flags := _new_agent_flags(arguments)):
        raise CommandError(
            "UsageError",
            f"{', '.join(flags)} cannot be changed for the existing agent {arguments.ref}; leave REF out to "
            "start a new one",
            2,
        )
    if sys.stdin is None:
        raise CommandError("UsageError", "standard input is closed; run orch chat at a terminal, or pipe prompts in", 2)
    arguments.dry_run = False
    approval = _approval(arguments)
    if _is_plain():
        if sys.stdin.isatty() and sys.stderr.isatty():
            print(STARTING, file=sys.stderr, flush=True)
        return _start_chat(arguments, approval)
    sys.stdout.write(f"{STARTING}\r")  # before the imports, which take longer than a person waits without a response
    sys.stdout.flush()
    try:
        from ...chat.screen import buffer_early_keys

        with buffer_early_keys(sys.stdin.fileno()):  # keeps text that is typed before the chat starts
            return _start_chat(arguments, approval)
    finally:
        _erase_line()


def _erase_line() -> None:
    """Erase the line that says that the chat starts."""
    sys.stdout.write("\r\x1b[K")
    sys.stdout.flush()


def _approval(arguments: Namespace) -> Approval:
    """Return how calls that need approval are answered. If stdin is a terminal, the chat asks the questions itself."""
    if sys.stdin.isatty():
        return choose_approval(arguments.approve, os.environ.get(VARIABLE), json=False, reach="foreground")
    return approval_of(arguments)


def _start_chat(arguments: Namespace, approval: Approval) -> int:
    ref = arguments.ref or _spawn_agent(arguments)
    import asyncio
    import gc

    gc.enable()  # this command may run for hours
    return asyncio.run(_run_chat(arguments, ref, approval))


def _spawn_agent(arguments: Namespace) -> str:
    params, model_note = agent_option_params(arguments)
    connection = Connection()
    params |= history_params(arguments) | {"task": TASK, "depth": 0, "request_id": os.urandom(8).hex()}
    signal.signal(signal.SIGHUP, signal.default_int_handler)  # This applies until the chat handles SIGHUP itself.
    try:
        spawned = spawn(connection, params, model_note)
    except KeyboardInterrupt:
        _kill_unconfirmed(connection, params)
        raise
    connection.close()
    return str(spawned["id"])


def _kill_unconfirmed(connection: Connection, params: dict[str, Any]) -> None:
    """Kill the agent that the spawn request `params` may have created.

    The command was interrupted before it got the id.
    """
    connection.close()
    second_connection = connection.sibling()
    try:
        id = second_connection.call("spawn", params)["id"]  # a request with the same request id returns the same agent
        second_connection.call("kill", {"refs": [id]})
    except CommandError:
        pass  # no daemon, or no agent: nothing to kill


async def _run_chat(arguments: Namespace, ref: str, approval: Approval) -> int:
    from ...chat.app import Chat
    from ...chat.daemon_connection import DaemonConnection

    connection, plain = DaemonConnection(), _is_plain()
    options: dict[str, Any] = {"mode": approval.mode, "chose_deny": approval.chose_deny}
    try:
        if plain:
            from ...chat.screen import LineInput, PlainScreen

            is_piped = not sys.stdin.isatty()
            ask_function = scope_of if is_piped else None  # piped lines are prompts; they do not answer questions
            chat = Chat(connection, PlainScreen(), ask_user=ask_function, echo=False, **options)
            await chat.switch_to(ref, is_new=arguments.ref is None)
            await _run_then_discard(chat, LineInput(chat, sys.stdin, wait_for_turns=is_piped).run())
        else:
            from ...chat.history import history_file
            from ...chat.screen import Screen
            from ...chat.text.live_text import LiveText
            from ...chat.text.markdown import Markdown
            from ...config import paths

            color = not (arguments.no_color or os.environ.get("NO_COLOR"))
            output = LiveText(Markdown() if color and terminal.supports_unicode(sys.stdout) else None)
            chat = Chat(connection, output, **options)
            screen = Screen(chat, history=history_file(paths.home(os.environ)), color=color)
            await chat.switch_to(ref, is_new=arguments.ref is None)
            _erase_line()
            await _run_then_discard(chat, screen.run())
        chat.absent.close()
    finally:
        connection.close()
    return 1 if plain and chat.failed else 0


async def _run_then_discard(chat: Chat, screen_run: Awaitable[None]) -> None:
    try:
        await screen_run
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # closing a terminal sends several SIGHUPs
        try:
            await chat.discard_unused()
        except CommandError:
            pass  # leave even if the daemon does not answer


def _is_plain() -> bool:
    """Return whether the terminal can only print text, or there is no terminal."""
    return os.environ.get("TERM", "dumb") in ("", "dumb") or not (sys.stdin.isatty() and sys.stdout.isatty())


def _new_agent_flags(arguments: Namespace) -> list[str]:
    """Return the given flags that apply only to a new agent."""
    other_names = {"ref", "approve", "no_color", "json"}
    flags = [name for name, value in vars(arguments).items() if name not in other_names and value not in (None, False)]
    return [f"--{name.removesuffix('_usd').replace('_', '-')}" for name in flags]


VERBS = {
    "chat": CliCommand(
        "Chat with an agent. Answers stream above the prompt; text entered during a turn steers it. Closing"
        " the terminal does not end the agent: `orch chat REF` returns to it.",
        "orch chat --preset work",
        _arguments,
        _chat,
    )
}
