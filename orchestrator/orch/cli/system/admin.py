"""`orch daemon` and `orch config`."""

from __future__ import annotations

import os
import sys

from ...client.connection import GONE, NOT_RUNNING, Connection, await_end
from ...client.failure import CommandError
from ...config import paths
from ...render.approvals import expiry, permission_lines
from ...render.config import table, toml_value
from ...render.terminal import safe, to_json
from .. import command
from ..command import CliCommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from typing import Any

__all__ = ["VERBS"]

LOG_LINES = 50
LEVELS = ("L0", "L1", "L2", "L3")


def _daemon_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=["start", "run", "stop", "status", "logs"], help="what to do")
    parser.add_argument(
        "--require-sandbox",
        choices=LEVELS,
        help="with start and run: minimum sandbox level of all agents; see `orch doctor`",
    )
    parser.add_argument("--details", action="store_true", help="with start and status: print all settings")


def _daemon(arguments: Namespace) -> int:
    if arguments.require_sandbox is not None and arguments.action not in ("start", "run"):
        raise CommandError("ConfigError", "--require-sandbox needs `orch daemon start` or `orch daemon run`", 2)
    if arguments.details and arguments.action not in ("start", "status"):
        raise CommandError("UsageError", "--details needs `orch daemon status` or `orch daemon start`", 2)
    return ACTIONS[arguments.action](arguments)


def _sandbox_settings(minimum: str | None) -> dict[str, str]:
    return {"ORCH_SANDBOX__LEVEL": minimum, "ORCH_SANDBOX__REQUIRE": "true"} if minimum is not None else {}


def _run(arguments: Namespace) -> int:
    from ...client.start import run_daemon

    if Connection(start=None).dial():
        raise CommandError("LockedError", "a daemon is already running; stop it first: orch daemon stop", 1)
    run_daemon({**os.environ, **_sandbox_settings(arguments.require_sandbox)})


def _start(arguments: Namespace) -> int:
    minimum = arguments.require_sandbox
    connection = Connection({**os.environ, **_sandbox_settings(minimum)})
    status = connection.call("daemon_status")
    if minimum is not None and not (status["sandbox_required"] and status["sandbox"] >= minimum):
        raise CommandError(
            "ConfigError",
            f"daemon {status['pid']} is running without --require-sandbox {minimum}; restart it: orch daemon stop",
            1,
        )
    connection.call("daemon_keys")  # callers without keys use the keys of this environment
    return _print_status(arguments, status)


def _status(arguments: Namespace) -> int:
    return _print_status(arguments, Connection(start=None).call("daemon_status"))


def _print_status(arguments: Namespace, status: dict[str, Any]) -> int:
    if arguments.json:
        print(to_json(status))
        return 0
    from msgspec import json

    from orch_protocol.agent.config import Config

    from ...config.config import flatten
    from ...render.daemon import status_page

    defaults = json.decode(json.encode(flatten(Config())))
    print(status_page(status, defaults, details=arguments.details))
    return 0


def _stop(arguments: Namespace) -> int:
    connection = Connection(start=None)
    try:
        pid = connection.call("daemon_stop")["pid"]
    except CommandError as failure:
        if failure.kind not in (NOT_RUNNING, GONE):
            raise
        pid = _transitional_pid()
    if pid is not None:
        await_end(pid)
    else:
        print("orch: no daemon is running", file=sys.stderr)
    if arguments.json:
        print(to_json({"pid": pid}))
    elif pid is not None:
        print(pid)
    return 0


def _transitional_pid() -> int | None:
    """Return the pid of a daemon that is starting or ending. The lock that such a daemon holds contains the pid."""
    import fcntl

    try:
        with open(os.path.join(paths.home_text(), "daemon", "lock"), encoding="ascii") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(lock.read() or 0) or None
    except FileNotFoundError:
        pass
    except NotADirectoryError:
        raise _no_home() from None
    return None


def _no_home() -> CommandError:
    return CommandError("StoreError", f"{paths.home_text()} is not a folder; set ORCH_HOME to a folder", 1)


def _logs(arguments: Namespace) -> int:
    log = Connection(start=None).log
    try:
        with open(log, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()[-LOG_LINES:]
    except FileNotFoundError:
        raise CommandError("NotFound", f"no log at {log}: no daemon was started yet", 3) from None
    except NotADirectoryError:
        raise _no_home() from None
    print(to_json({"path": log, "lines": lines}) if arguments.json else "\n".join(lines))
    return 0


ACTIONS = {"start": _start, "run": _run, "stop": _stop, "status": _status, "logs": _logs}


def _config_arguments(parser: ArgumentParser) -> None:
    actions = parser.add_argument("action", choices=["show", "trust", "untrust", "permissions"], help="what to do")
    actions.metavar = "show|trust|untrust|permissions"
    parser.add_argument(
        "folder", metavar="FOLDER", nargs="?", default=".", help="project folder (default: current folder)"
    )
    parser.add_argument("--revoke", metavar="ID|all", help="with permissions: revoke one, or all of the folder")


def _config(arguments: Namespace) -> int:
    from pathlib import Path

    from ...config import config, trust
    from ..agents.spawn_settings import settings_not_in_effect

    folder = Path(arguments.folder).absolute()
    if not folder.is_dir():
        raise CommandError("ConfigError", f"{folder} is not a folder", 2)
    if arguments.revoke is not None and arguments.action != "permissions":
        raise CommandError("ConfigError", "--revoke needs `orch config permissions`", 2)
    if arguments.action == "permissions":
        return _permissions(arguments, str(folder.resolve()))
    if arguments.action == "trust":
        file, code = trust.trust(folder, paths.home(), config.check)
        lines = [f"trusted in its present version: {file}", *(f"with code that it names: {path}" for path in code)]
        print(to_json({"trusted": str(file), "code": code}) if arguments.json else "\n".join(map(safe, lines)))
        return 0
    if arguments.action == "untrust":
        was_trusted = trust.revoke(paths.home(), "project", folder)
        text = f"no longer trusted: {folder}" if was_trusted else f"was not trusted: {folder}"
        print(to_json({"untrusted": was_trusted}) if arguments.json else text)
        return 0
    loaded = command.load_config(folder)
    values = config.flatten(loaded.config)
    try:
        daemon_values = settings_not_in_effect(loaded)
    except CommandError as failure:  # the configuration is shown even if the daemon's settings cannot be read
        print(f"orch: {failure}", file=sys.stderr)
        daemon_values = {}
    if arguments.json:
        settings = {key: {"value": value, "source": loaded.sources[key]} for key, value in values.items()}
        print(
            to_json(
                {
                    key: row | ({"daemon": daemon_values[key]} if key in daemon_values else {})
                    for key, row in settings.items()
                }
            )
        )
    else:
        daemon_notes = {
            key: f" (the daemon was started with {toml_value(value)})" for key, value in daemon_values.items()
        }
        print(table(values, {key: f"{loaded.sources[key]}{daemon_notes.get(key, '')}" for key in values}))
    return 0


def _permissions(arguments: Namespace, folder: str) -> int:
    """List or revoke the folder's permissions.

    The permissions belong to projects, and to sessions of a running daemon.
    """
    found = _list_or_revoke(arguments.revoke, folder)
    if arguments.json:
        fields = ("id", "scope", "tool", "subject", "exactly", "agent_id")
        print(to_json([{key: each[key] for key in fields} | {"expires": expiry(each)} for each in found]))
        return 0
    prefix = "revoked: " if arguments.revoke is not None else ""
    for each in found:
        print(f"{prefix}{permission_lines([each])}")
    return 0


def _list_or_revoke(revoke: str | None, folder: str) -> list[dict[str, Any]]:
    """Return the listed or revoked permissions for the folder.

    If a daemon is running, the permissions come from the daemon.
    """
    method = "permissions"
    params: dict[str, Any] = {"folder": folder}
    if revoke is not None:
        method = "revoke"
        params = {"all": True, "folder": folder} if revoke == "all" else {"ids": [revoke]}
    connection = Connection(start=None)
    try:
        found: list[dict[str, Any]] = connection.call(method, params)
    except CommandError as failure:
        if failure.kind not in (NOT_RUNNING, GONE):
            raise
    else:
        return found
    finally:
        connection.close()
    from msgspec import to_builtins

    from ...policy.approvals import ApprovalBroker

    broker = ApprovalBroker(paths.home())
    if revoke is None:
        return list(to_builtins(broker.permissions(folder)))
    return list(to_builtins(broker.revoke(None if revoke == "all" else [revoke], folder)))


VERBS = {
    "daemon": CliCommand(
        "Manage the daemon: the process that runs the agents. Commands that need it start it automatically.",
        "orch daemon status --details",
        _daemon_arguments,
        _daemon,
    ),
    "config": CliCommand(
        "Show every setting with its source; trust a project's file; list or revoke permissions of a project.",
        "orch config show; orch config trust .",
        _config_arguments,
        _config,
    ),
}
