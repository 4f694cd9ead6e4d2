"""`orch doctor`: is everything there that orch needs? One line a check, exit 1 when one fails."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import resource
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, NamedTuple

from orch_protocol.errors import LockedError, OrchError
from orch_protocol.ids import new_id
from orch_worker.lock import FolderLock

from .. import config, paths
from ..leftovers import marked
from . import render
from .connection import Connection
from .failure import Failure, explain
from .verb import Verb, dump

__all__ = ["CHECKS", "VERBS", "Finding"]

MODULES: Final = ("msgspec", "multiprocess", "structlog", "tenacity", "zmq")
FREE_BYTES: Final = 100 << 20
COMFORTABLE_BYTES: Final = 1 << 30
DESCRIPTORS: Final = 1024


class Finding(NamedTuple):
    """What a check found. `warn` works, but not well."""

    level: Literal["ok", "warn", "fail"]
    detail: str


def python() -> Finding:
    """Python is new enough."""
    found = ".".join(map(str, sys.version_info[:3]))
    return Finding("ok" if sys.version_info >= (3, 11) else "fail", f"{found} at {sys.executable}")


def platform() -> Finding:
    """Workers can be started here."""
    if sys.platform == "linux":
        return Finding("ok", f"linux {os.uname().release}")
    if sys.platform == "win32":
        return Finding("fail", "Windows has no fork: use WSL")
    return Finding("warn", f"{sys.platform}: workers are started one by one, which is slower")


def dependencies() -> Finding:
    """Every package orch is built on can be imported."""
    missing = []
    for name in MODULES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            missing.append(f"{name} ({error})")
    for requirement in _requirements():
        try:
            importlib.metadata.version(requirement)
        except importlib.metadata.PackageNotFoundError:
            missing.append(requirement)
    return Finding("fail", f"missing: {', '.join(missing)}") if missing else Finding("ok", "all there")


def processes() -> Finding:
    """The kernel offers what keeps track of processes."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        return Finding("fail", f"no pidfd ({error}): Linux 5.3 or newer, and a sandbox that allows it, is needed")
    return Finding("ok", "fork and pidfd work") if hasattr(os, "fork") else Finding("fail", "no fork")


def descriptors() -> Finding:
    """Enough files may be open for a crowd of agents."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft >= DESCRIPTORS or soft == resource.RLIM_INFINITY
    return Finding("ok" if enough else "warn", f"{soft} open files, up to {hard}" + ("" if enough else ": ulimit -n"))


def home() -> Finding:
    """ORCH_HOME can be written, and locked."""
    folder = paths.home()
    try:
        _try_lock(folder if folder.exists() else _existing(folder))
    except OrchError as error:
        return Finding("fail", str(error))
    mode = folder.stat().st_mode & 0o777 if folder.exists() else 0o700
    if mode & 0o077:
        return Finding("warn", f"{folder} is open to others (mode {mode:04o}): chmod 700")
    return Finding("ok", str(folder))


def disk() -> Finding:
    """There is room for transcripts."""
    free = shutil.disk_usage(_existing(paths.home())).free
    level: Literal["ok", "warn", "fail"] = "ok" if free >= COMFORTABLE_BYTES else "warn"
    return Finding(level if free >= FREE_BYTES else "fail", f"{render.count(free)}B free")


def socket() -> Finding:
    """The daemon's socket has a path the kernel takes."""
    path = paths.control_socket()
    inside = path.startswith(paths.home_text())
    return Finding("ok", path if inside else f"{path} (ORCH_HOME is too long for it)")


def configuration() -> Finding:
    """The configuration can be read."""
    loaded = config.load(Path.cwd(), os.environ)
    if loaded.notes:
        return Finding("warn", "; ".join(loaded.notes))
    return Finding("ok", f"model {loaded.config.model or 'none: the offline extractive backend answers'}")


def daemon() -> Finding:
    """The daemon, if there is one, answers and speaks our version."""
    connection = Connection(start=None)
    if not connection.dial():
        return Finding("ok", "not running; commands start it")
    connection.call("list")
    status = connection.call("daemon_status")
    return Finding("ok", f"process {status['pid']}, {status['agents']} agents")


def leftovers() -> Finding:
    """No unnamed run was left behind by a program that ended badly. Named ones are there to be opened again."""
    dead = [folder for folder in paths.own_runs(paths.home()) if _ownerless(folder)]
    alive = [str(pid) for pid, env in marked() if env["ORCH_RUN"] in {str(folder) for folder in dead}]
    if alive:
        return Finding("fail", f"processes without their root: kill -9 {' '.join(alive)}")
    if dead:
        return Finding("warn", f"of ended programs; the next start removes them: {', '.join(map(str, dead))}")
    return Finding("ok", "none")


CHECKS: Final[tuple[Callable[[], Finding], ...]] = (
    *(python, platform, dependencies, processes, descriptors, home, disk, socket, configuration, daemon, leftovers),
)


def _doctor(arguments: Namespace) -> int:
    found = {check.__name__: _examine(check) for check in CHECKS}
    if arguments.json:
        print(dump([{"check": name, "level": level, "detail": detail} for name, (level, detail) in found.items()]))
    else:
        for name, (level, detail) in found.items():
            print(f"{level:5}{name:15}{render.safe(detail)}")
    return 1 if any(finding.level == "fail" for finding in found.values()) else 0


def _examine(check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except (OrchError, Failure) as error:
        return Finding("fail", str(error))
    except OSError as error:
        return Finding("fail", explain(error))


def _requirements() -> list[str]:
    try:
        lines = importlib.metadata.requires("orch") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in lines if "extra ==" not in line]


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder


def _try_lock(folder: Path) -> None:
    """Make, lock and remove a folder in `folder`. Raises StoreError."""
    scratch = folder / f"doctor-{new_id()}"
    try:
        FolderLock.acquire(scratch).release()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _ownerless(folder: Path) -> bool:
    try:
        FolderLock.acquire(folder).release()
    except LockedError:
        return False
    return True


VERBS = {
    "doctor": Verb(
        "Check what orch needs of this machine. Exits with 1 when something is missing.",
        "orch doctor",
        lambda _: None,
        _doctor,
    )
}
