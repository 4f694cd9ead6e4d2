"""The checks of `orch doctor`, which examine whether this machine meets orch's requirements.

Each check returns a finding.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.metadata
import os
import re
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, NamedTuple

from orch_protocol.agent.config import parse_model
from orch_protocol.core.errors import LockedError, OrchError, SandboxError
from orch_protocol.core.ids import new_id
from orch_protocol.policy.sandbox import BY_NAME_ONLY, WORDS
from orch_worker.backends import models
from orch_worker.sandbox.launcher_client import unavailable_reason
from orch_worker.sandbox.probe import available_levels, describe
from orch_worker.session.log.lock import FolderLock
from orch_worker.session.log.log_reader import read_header
from orch_worker.system.secrets import SEARCH_KEY

from ..client.connection import Connection
from ..client.failure import CommandError, describe_os_error
from ..config import config, paths
from ..config.models import Catalog, keys_in
from ..config.version import DISTRIBUTION
from ..policy import sandbox as sandboxing
from ..processes.environment import withheld_variables
from ..render import terminal
from ..supervisor.recovery.orphan_cleanup import (
    kill_orphans,
    processes_with_token,
    stored_token,
    sweep_runs,
    unnamed_runs,
)
from ..tree.journal.journal import HEADER, JOURNAL

__all__ = ["CHECKS", "Finding", "clean_up", "findings", "run_check"]
MODULES: Final = ("msgspec", "multiprocess", "structlog", "tenacity", "zmq")
FREE_BYTES: Final = 100 << 20
FREE_FILES: Final = 1000
COMFORTABLE_BYTES: Final = 1 << 30
DESCRIPTORS: Final = 1024
PROCESSES: Final = 512
MEMORY_BYTES: Final = 512 << 20
SHELL_ONLY: Final = ("_", "OLDPWD", "PWD", "SHLVL")
"""Variables that a shell sets by itself."""


class Finding(NamedTuple):
    """The result of a check.

    If `warn` is True, orch works with restrictions.
    """

    level: Literal["ok", "warn", "fail"]
    detail: str


def python() -> Finding:
    """Check the version of Python."""
    found = ".".join(map(str, sys.version_info[:3]))
    return Finding("ok" if sys.version_info >= (3, 11) else "fail", f"{found} at {sys.executable}")


def platform() -> Finding:
    """Check that this platform can start workers."""
    if sys.platform == "linux":
        return Finding("ok", f"linux {os.uname().release}")
    if sys.platform == "win32":
        return Finding("fail", "Windows has no fork: use WSL")
    return Finding("warn", f"{sys.platform}: each worker starts a new interpreter, which is slower")


def dependencies() -> Finding:
    """Check that all required packages can be imported."""
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
    """Check that the kernel has the features that orch needs to supervise processes."""
    if sys.platform != "linux" and hasattr(os, "fork"):
        return Finding(
            "warn",
            "each worker is a new process that a thread watches; this is slower than a fork, and detached processes "
            "of tools may outlive the worker",
        )
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        return Finding("fail", f"no pidfd ({error}): Linux 5.3 or newer, and a sandbox that allows it, is needed")
    if not hasattr(os, "fork"):
        return Finding("fail", "no fork")
    return Finding("ok", "fork and pidfd work: workers are forked from a process that has imported everything once")


def sandbox() -> Finding:
    """Check that the configured sandbox level is available."""
    offer, wanted = available_levels(), config.load(Path.cwd(), os.environ).config.sandbox
    try:
        sandboxing.check_required_levels(wanted, lambda: offer)
    except SandboxError as error:
        return Finding("fail", str(error))
    at = offer.nearest(wanted.level)
    text = f"tools run at {at} ({WORDS[at]}); this machine has {describe(offer)}"
    if at < wanted.level:
        return Finding("warn", f"sandbox.level is {wanted.level}, and {text}")
    return Finding("ok", text)


def denied_paths() -> Finding:
    """Check that denied paths, credentials and the files of orch can be hidden from commands."""
    rules = config.load(Path.cwd(), os.environ).config.policy
    if not (why := unavailable_reason()):
        return Finding("ok", "unreadable for commands, as are credentials and the files of orch")
    if rules.require_denied_paths and rules.denied_paths:
        what = f"policy.require_denied_paths is set: {sandboxing.REFUSED}"
        return Finding("fail", f"{BY_NAME_ONLY} ({why}), and {what}")
    return Finding("warn", f"{BY_NAME_ONLY} ({why}): {sandboxing.EXPOSED}; {sandboxing.ACTS_AS_USER}")


def limits() -> Finding:
    """Check that the limits of processes and memory are high enough for many agents."""
    facts, tight = [], False
    for what, limit, cap, minimum in (
        ("processes", "RLIMIT_NPROC", "pids.max", PROCESSES),
        ("memory", "RLIMIT_AS", "memory.max", MEMORY_BYTES),
    ):
        # Use the lower limit. A missing limit counts as no limit.
        soft = resource.getrlimit(getattr(resource, limit))[0] if hasattr(resource, limit) else resource.RLIM_INFINITY
        bounds = [bound for bound in (soft, _cgroup_limit(cap)) if bound not in (None, resource.RLIM_INFINITY)]
        unit = "B" if what == "memory" else ""
        facts.append(f"{what}: {terminal.count(min(bounds)) + unit if bounds else 'no limit'}")
        tight |= bool(bounds) and min(bounds) < minimum
    return Finding("warn" if tight else "ok", ", ".join(facts))


def keys() -> Finding:
    """List the names of the available provider keys."""
    found = sorted(name for name in keys_in(os.environ, models.load(paths.home())) if not name.startswith("{"))
    return Finding("ok", ", ".join(found) or "none; without a key, only offline answers and local models are available")


def environment() -> Finding:
    """List the names of the variables that the shell has but the daemon and the workers do not get."""
    passed = config.load(None, os.environ).config.environment.pass_
    hidden = {*SHELL_ONLY, *models.load(paths.home()).credentials, SEARCH_KEY}
    names = [name for name in withheld_variables(os.environ, passed) if name not in hidden]
    if not names:
        return Finding("ok", "nothing is withheld from workers")
    return Finding("ok", f"not passed to workers: {' '.join(names)} (environment.pass adds some)")


def descriptors() -> Finding:
    """Check that the limit of open files is high enough for many agents."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    expected = soft >= DESCRIPTORS or soft == resource.RLIM_INFINITY
    return Finding(
        "ok" if expected else "warn", f"{soft} open files, up to {hard}" + ("" if expected else ": ulimit -n")
    )


def home() -> Finding:
    """Check that ORCH_HOME can be written and locked."""
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
    """Check that the disk has enough space for transcripts."""
    there = os.statvfs(_existing(paths.home()))
    free, files = there.f_bavail * there.f_frsize, there.f_favail
    text = f"{terminal.count(free)}B free"
    if there.f_files and files < FREE_FILES:  # some file systems do not count files
        return Finding("fail", f"{text}, but only {files} more files can be made: delete some")
    level: Literal["ok", "warn", "fail"] = "ok" if free >= COMFORTABLE_BYTES else "warn"
    return Finding(level if free >= FREE_BYTES else "fail", text)


def socket() -> Finding:
    """Check that the path of the daemon's socket is short enough for the kernel."""
    path = paths.control_socket()
    inside = path.startswith(paths.home_text())
    return Finding("ok", path if inside else f"{path} (ORCH_HOME is too long for it)")


def configuration() -> Finding:
    """Check that the configuration is valid, and name the model of new agents."""
    loaded = config.load(Path.cwd(), os.environ)
    default = config.default_model(paths.home(), os.environ).model
    name = loaded.config.model or default or config.OFFLINE
    if loaded.config.model is not None:
        reason = loaded.sources["model"]
    elif default is not None:
        reason = "its key is set, and no model is configured"
    else:
        reason = "offline: no model is configured, and no key is set"
    known = models.load(paths.home())
    catalog = Catalog(known, os.environ, None, loaded.config.budget.unknown_price)
    try:
        backend = asyncio.run(catalog.complete(parse_model(name)))
    except OrchError as error:
        return Finding("warn", "; ".join([f"model {name} ({reason}) cannot be used: {error}", *loaded.notes]))
    text = f"model {backend.provider}:{backend.model} ({reason})"
    return Finding("warn" if loaded.notes else "ok", "; ".join([text, *loaded.notes]))


def daemon() -> Finding:
    """Check that a running daemon has the same protocol version, or else that a new one can read the journal."""
    connection = Connection(start=None)
    if not connection.dial():
        read_header(paths.run_dir(paths.home(), paths.DAEMON_RUN) / JOURNAL, HEADER)
        return Finding("ok", "not running; commands start it")
    connection.call("list")
    status = connection.call("daemon_status")
    connection.close()
    return Finding("ok", f"process {status['pid']}, {status['agents']} agents")


def leftovers() -> Finding:
    """Check that killed programs have left no processes and no unnamed runs.

    Named runs do not count, because they can be reopened.
    """
    dead = [folder for folder in unnamed_runs(paths.home()) if _has_no_root(folder)]
    alive = [str(pid) for folder, pids in _run_processes().items() if _has_no_root(folder) for pid in pids]
    if alive:
        return Finding("fail", f"processes without their root: {' '.join(alive)}; orch doctor --clean ends them")
    if dead:
        dead_pids = ", ".join(map(str, dead))
        return Finding("warn", f"of ended programs; the next start, or orch doctor --clean, removes them: {dead_pids}")
    return Finding("ok", "none")


CHECKS: Final[tuple[Callable[[], Finding], ...]] = (
    *(python, platform, dependencies, processes, sandbox, denied_paths, descriptors, limits, home, disk, socket),
    *(configuration, keys, environment, daemon, leftovers),
)


def clean_up() -> Finding:
    """Remove the remains of killed programs. The finding lists the removed folders and the ended processes."""
    swept = sweep_runs(paths.home())
    ended = sum(count for _, count in swept)
    for folder in _run_processes():
        with contextlib.suppress(LockedError):  # a lock means that the root of the run is running
            lock = FolderLock.acquire(folder)
            ended += kill_orphans(folder)
            lock.release()
    actions = [f"removed {', '.join(str(folder) for folder, _ in swept)}"] if swept else []
    if swept or ended:
        actions.append(f"processes that were ended: {ended}")
    return Finding("ok", "; ".join(actions) or "nothing to remove")


def _run_processes() -> dict[Path, list[int]]:
    """Return the process ids of each run in this home, by run folder.

    The processes of roots, and this process, are left out.
    """
    found: dict[Path, list[int]] = {}
    runs = paths.runs_dir(paths.home()).glob("*")
    folders = {token: folder for folder in runs if (token := stored_token(folder))}
    for pid, env in processes_with_token():
        if folder := folders.get(env["ORCH_RUN"]):
            found.setdefault(folder, []).append(pid)
    return found


def findings() -> dict[str, Finding]:
    """Return the findings of all checks by name. Takes a few seconds."""
    return {check.__name__: run_check(check) for check in CHECKS}


def run_check(check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except (OrchError, CommandError) as error:
        return Finding("fail", str(error))
    except OSError as error:
        return Finding("fail", describe_os_error(error))


def _requirements() -> list[str]:
    try:
        lines = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in lines if "extra ==" not in line]


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder


def _cgroup_limit(name: str) -> int | None:
    """Return the limit `name` of this process's control group. Return None if there is no such limit."""
    try:
        path = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip()
        for folder in (f"/sys/fs/cgroup{path}", "/sys/fs/cgroup"):
            if (file := Path(folder, name)).exists():
                return int(file.read_text())
    except (OSError, ValueError):
        pass
    return None


def _try_lock(folder: Path) -> None:
    """Create a folder in `folder`, lock it and remove it. Raises StoreError."""
    scratch = folder / f"doctor-{new_id()}"
    try:
        FolderLock.acquire(scratch).release()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _has_no_root(folder: Path) -> bool:
    try:
        FolderLock.acquire(folder).release()
    except LockedError:
        return False
    return True
