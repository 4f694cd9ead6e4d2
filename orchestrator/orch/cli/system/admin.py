"""The verbs about orch itself: daemon and config."""

from __future__ import annotations

import os
import sys

from ...client.connection import GONE, NOT_RUNNING, Connection, await_end
from ...client.failure import CommandError
from ...config import paths
from ...render.approvals import expiry, permission_lines
from ...render.config import table, toml_value
from ...render.terminal import to_json
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
        help="with start and run: run no tool of any agent at less; see orch doctor",
    )


def _daemon(arguments: Namespace) -> int:
    if arguments.require_sandbox is not None and arguments.action not in ("start", "run"):
        raise CommandError("ConfigError", "--require-sandbox goes with: orch daemon start, orch daemon run", 2)
    return ACTIONS[arguments.action](arguments)


def _sandbox_settings(least: str | None) -> dict[str, str]:
    return {"ORCH_SANDBOX__LEVEL": least, "ORCH_SANDBOX__REQUIRE": "true"} if least is not None else {}


def _run(arguments: Namespace) -> int:
    from ...client.start import run_daemon

    if Connection(start=None).dial():
        raise CommandError("LockedError", "a daemon is running already: orch daemon stop, then run it here", 1)
    run_daemon({**os.environ, **_sandbox_settings(arguments.require_sandbox)})


def _start(arguments: Namespace) -> int:
    least = arguments.require_sandbox
    connection = Connection({**os.environ, **_sandbox_settings(least)})
    status = connection.call("daemon_status")
    if least is not None and not (status["sandbox_required"] and status["sandbox"] >= least):
        raise CommandError(
            "ConfigError",
            f"daemon {status['pid']} is running and does not require {least}: orch daemon stop, then start it so",
            1,
        )
    connection.call("daemon_keys")  # asked for explicitly, it uses this environment's keys for callers without any
    return _print_status(arguments, status)


def _status(arguments: Namespace) -> int:
    return _print_status(arguments, Connection(start=None).call("daemon_status"))


def _print_status(arguments: Namespace, status: dict[str, Any]) -> int:
    if arguments.json:
        print(to_json(status))
    else:
        rows = {**status, **status.get("settings", {})}
        rows.pop("settings", None)
        width = max(map(len, rows)) + 2
        print("\n".join(f"{key:{width}}{'' if value is None else value}".rstrip() for key, value in rows.items()))
    return 0


def _stop(arguments: Namespace) -> int:
    connection = Connection(start=None)
    try:
        pid = connection.call("daemon_stop")["pid"]
    except CommandError as failure:
        if failure.kind not in (NOT_RUNNING, GONE):
            raise
        pid = _on_its_way_out()
    if pid is not None:
        await_end(pid)
    else:
        print("orch: no daemon is running", file=sys.stderr)
    if arguments.json:
        print(to_json({"pid": pid}))
    elif pid is not None:
        print(pid)
    return 0


def _on_its_way_out() -> int | None:
    """Return the pid of a daemon that listens no more, or not yet, by the lock it holds."""
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
    return CommandError("StoreError", f"{paths.home_text()} is no folder: set ORCH_HOME to one", 1)


def _logs(arguments: Namespace) -> int:
    log = Connection(start=None).log
    try:
        with open(log, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()[-LOG_LINES:]
    except FileNotFoundError:
        raise CommandError("NotFound", f"there is no log yet at {log}: no daemon was ever started here", 3) from None
    except NotADirectoryError:
        raise _no_home() from None
    print(to_json({"path": log, "lines": lines}) if arguments.json else "\n".join(lines))
    return 0


ACTIONS = {"start": _start, "run": _run, "stop": _stop, "status": _status, "logs": _logs}


def _config_arguments(parser: ArgumentParser) -> None:
    actions = parser.add_argument("action", choices=["show", "trust", "untrust", "permissions"], help="what to do")
    actions.metavar = "show|trust|untrust|permissions"
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default=".", help="a project's folder (this one)")
    parser.add_argument("--revoke", metavar="ID|all", help="with permissions: take one back, or all of the folder's")


def _config(arguments: Namespace) -> int:
    from pathlib import Path

    from ...config import config, trust
    from ..agents.spawn_settings import settings_not_in_effect

    folder = Path(arguments.folder).absolute()
    if not folder.is_dir():
        raise CommandError("ConfigError", f"{folder} is no folder", 2)
    if arguments.revoke is not None and arguments.action != "permissions":
        raise CommandError("ConfigError", "--revoke goes with: orch config permissions", 2)
    if arguments.action == "permissions":
        return _permissions(arguments, str(folder.resolve()))
    if arguments.action == "trust":
        file = trust.trust(folder, paths.home(), config.check)
        print(to_json({"trusted": str(file)}) if arguments.json else f"trusted as it is now: {file}")
        return 0
    if arguments.action == "untrust":
        was = trust.untrust(folder, paths.home())
        said = f"no longer trusted: {folder}" if was else f"was not trusted: {folder}"
        print(to_json({"untrusted": was}) if arguments.json else said)
        return 0
    loaded = config.load(folder, os.environ)
    for note in loaded.notes:
        print(f"orch: {note}", file=sys.stderr)
    values = config.flatten(loaded.config)
    try:
        theirs = settings_not_in_effect(loaded)
    except CommandError as failure:  # what is configured can be told all the same
        print(f"orch: {failure}", file=sys.stderr)
        theirs = {}
    if arguments.json:
        told = {key: {"value": value, "source": loaded.sources[key]} for key, value in values.items()}
        print(to_json({key: row | ({"daemon": theirs[key]} if key in theirs else {}) for key, row in told.items()}))
    else:
        other = {key: f" (the daemon was started with {toml_value(value)})" for key, value in theirs.items()}
        print(table(values, {key: f"{loaded.sources[key]}{other.get(key, '')}" for key in values}))
    return 0


def _permissions(arguments: Namespace, folder: str) -> int:
    """List what was approved for the folder, or take it back: for projects, and for sessions of a daemon that runs."""
    found = _permitted(arguments.revoke, folder)
    if arguments.json:
        kept = ("id", "scope", "tool", "subject", "exactly", "agent_id")
        print(to_json([{key: each[key] for key in kept} | {"expires": expiry(each)} for each in found]))
        return 0
    what = "revoked: " if arguments.revoke is not None else ""
    for each in found:
        print(f"{what}{permission_lines([each])}")
    return 0


def _permitted(revoke: str | None, folder: str) -> list[dict[str, Any]]:
    """Return the permissions for the folder, or those that were taken back: by the daemon, if one runs."""
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

    known = ApprovalBroker(paths.home())
    if revoke is None:
        return list(to_builtins(known.permissions(folder)))
    return list(to_builtins(known.revoke(None if revoke == "all" else [revoke], folder)))


VERBS = {
    "daemon": CliCommand(
        "Start, run in the foreground, stop or look at the process that keeps the agents. Verbs that need it start it.",
        "orch daemon status --json",
        _daemon_arguments,
        _daemon,
    ),
    "config": CliCommand(
        "Show every setting with its source, trust a project's file, list or revoke what was approved for it.",
        "orch config show; orch config trust .",
        _config_arguments,
        _config,
    ),
}
