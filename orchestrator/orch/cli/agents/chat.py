"""`orch chat`: talk with an agent at the terminal."""

from __future__ import annotations

import os
import signal
import sys

from ...client.connection import Connection
from ...client.failure import CommandError
from ...render import terminal
from ..command import CliCommand
from .approval_prompt import VARIABLE, Approval, approval_of, approve_argument, choose_approval, print_notice, scope_of
from .run_once import kill_unconfirmed
from .spawn import agent_option_params, agent_options, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Awaitable
    from typing import Any

    from ...chat.app import Chat

__all__ = ["VERBS"]

TASK = "Talk with the person at the terminal and do what they ask."


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("ref", metavar="REF", nargs="?", help="the agent to go on with; without, another one begins")
    agent_options(parser)
    approve_argument(parser)
    parser.add_argument("--no-color", action="store_true", help="tell nothing by colour, as with NO_COLOR")


def _chat(arguments: Namespace) -> int:
    if arguments.json:
        raise CommandError("UsageError", "a chat is for people; for programs: orch run, orch query --stream --json", 2)
    if arguments.ref is not None and (given := _kinds(arguments)):
        raise CommandError(
            "UsageError", f"agent {arguments.ref} is what it is: {', '.join(given)} is for another one", 2
        )
    if sys.stdin is None:
        raise CommandError("UsageError", "standard input is closed: what is to be said cannot come; pipe it in", 2)
    arguments.dry_run = False
    approval = _approval(arguments)
    if _is_plain():
        print_notice(approval, json=False)
        return _begin(arguments, approval)
    from ...chat.screen import buffer_early_keys

    with buffer_early_keys(sys.stdin.fileno()):  # a person types as soon as the command is given
        return _begin(arguments, approval)


def _approval(arguments: Namespace) -> Approval:
    """Return how calls that need approval are answered: a chat whose input is a terminal asks in the chat itself."""
    if sys.stdin.isatty():
        return choose_approval(arguments.approve, os.environ.get(VARIABLE), json=False, reach="foreground")
    return approval_of(arguments)


def _begin(arguments: Namespace, approval: Approval) -> int:
    ref = arguments.ref or _begun(arguments)
    import asyncio
    import gc

    gc.enable()  # this command lives for hours
    return asyncio.run(_talk(arguments, ref, approval))


def _begun(arguments: Namespace) -> str:
    """Start an agent and return its id."""
    params, says = agent_option_params(arguments)
    connection = Connection()
    params |= {"task": TASK, "depth": 0, "request_id": os.urandom(8).hex()}
    signal.signal(signal.SIGHUP, signal.default_int_handler)  # until there is somebody who can leave
    try:
        spawned = spawn(connection, params, says)
    except KeyboardInterrupt:
        kill_unconfirmed(connection, params)
        raise
    connection.close()
    return str(spawned["id"])


async def _talk(arguments: Namespace, ref: str, approval: Approval) -> int:
    from ...chat.app import Chat
    from ...chat.daemon_connection import DaemonConnection

    link, plain = DaemonConnection(), _is_plain()
    answers: dict[str, Any] = {"mode": approval.mode, "chose_deny": approval.chose_deny}
    try:
        if plain:
            from ...chat.screen import LineInput, PlainScreen

            waits = not sys.stdin.isatty()
            asker = scope_of if waits else None  # what is piped in are prompts, not answers
            chat = Chat(link, PlainScreen(), ask_user=asker, echo=False, **answers)
            await chat.meet(ref, fresh=arguments.ref is None)
            await _talked(chat, LineInput(chat, sys.stdin, waits=waits).run())
        else:
            from ...chat.history import history_file
            from ...chat.screen import Screen
            from ...chat.text.live_text import LiveText
            from ...chat.text.markdown import Markdown
            from ...config import paths

            color = not (arguments.no_color or os.environ.get("NO_COLOR"))
            sheet = LiveText(Markdown() if color and terminal.supports_unicode(sys.stdout) else None)
            chat = Chat(link, sheet, **answers)
            screen = Screen(chat, history=history_file(paths.home(os.environ)), color=color)
            await chat.meet(ref, fresh=arguments.ref is None)
            await _talked(chat, screen.run())
        chat.absent.close()
    finally:
        link.close()
    return 1 if plain and chat.failed else 0


async def _talked(chat: Chat, talk: Awaitable[None]) -> None:
    try:
        await talk
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # of a terminal that is gone several come
        try:
            await chat.gone()
        except CommandError:
            pass  # a daemon that does not answer keeps nobody here


def _is_plain() -> bool:
    """Say whether the terminal, if there is one, can do no more than print."""
    return os.environ.get("TERM", "dumb") in ("", "dumb") or not (sys.stdin.isatty() and sys.stdout.isatty())


def _kinds(arguments: Namespace) -> list[str]:
    """Return the flags that say what a new agent is to be."""
    other = {"ref", "approve", "no_color", "json"}
    given = [name for name, value in vars(arguments).items() if name not in other and value not in (None, False)]
    return [f"--{name.removesuffix('_usd').replace('_', '-')}" for name in given]


VERBS = {
    "chat": CliCommand(
        "Talk with an agent: what it says streams above a prompt that is always there. What is typed while it works "
        "steers it. A terminal that is closed loses nothing: the agent works on, and orch chat REF comes back to it.",
        "orch chat --preset work",
        _arguments,
        _chat,
    )
}
