"""Starts commands of tools at the agent's sandbox level.

A dedicated thread drops its rights, file access and network. The kernel applies these restrictions to this thread only,
and processes that the thread starts inherit them. Therefore, a restricted command needs no more time to start, and no
helper process is necessary.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from orch_protocol.policy.sandbox import Level, ToolLimits

from ...sandbox.launcher import AllowedFiles, Cover, confine
from ...system.files import error_text
from ...system.threads import DAEMON_THREADS
from ..api.archive_texts import archive_texts
from ..api.base import ToolContext, ToolError
from .command import Start, StartedProcess, prefer_oom_kill, start_process
from .path_covers import SCRATCH, HiddenPaths, PathCovers, orch_folders

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from ...sandbox.bubblewrap import SandboxPaths
    from ...sandbox.launcher_client import CommandLauncher, LauncherProcess

__all__ = ["CommandSandbox", "covered_starter", "limit_command", "mounts_missing", "process_starter"]

T = TypeVar("T")
_Key: TypeAlias = tuple["Level", tuple[Cover, ...], tuple[str, ...]]
_Identities: TypeAlias = tuple["tuple[int, int] | None", ...]

MAX_LAUNCHERS: Final = 3
"""Maximum number of launchers per agent: usually one launcher, another launcher for calls that may use credentials, and
from L2 on one for git tools, which read the whole repository.
"""

MAX_ATTEMPTS: Final = 3
"""Maximum number of launchers for one command, because other programs may replace hidden files all the time."""

UNITS: Final = {"cpu_seconds": ("-t", 1), "memory_mb": ("-d", 1024), "file_mb": ("-f", 2048), "open_files": ("-n", 1)}


def process_starter(context: ToolContext, tool: str, read: Sequence[str] = ()) -> Start:
    """Return the function that starts processes for `tool`.

    From level L2 on, the processes may also read the paths in `read` and below.
    """
    sandbox, level = context.sandbox, context.sandbox.of(tool)
    if level == "L0" and sandbox.limits == ToolLimits():
        return start_process
    return partial(context.agent_object(CommandSandbox).start, level, tuple(read) if level >= "L2" else ())


async def covered_starter(context: ToolContext, tool: str, *, read: Sequence[str] = ()) -> tuple[Start, HiddenPaths]:
    """Return the function that starts commands for `tool`, and the paths hidden from them.

    Denied paths, orch's folders, and credentials except `context.credentials` are hidden. From level L2 on, commands
    may also read the paths in `read` and below, except hidden paths. Without mount namespaces, nothing is hidden. Raise
    ToolError, without running anything, if the configuration does not allow this, if some denied paths cannot be
    hidden, or if promised namespaces cannot be created.
    """
    policy, sandbox = context.policy, context.sandbox
    if why := mounts_missing(context):
        if context.in_process and sandbox.of(tool) < "L2" and sys.platform == "linux":
            raise ToolError(
                "Nothing was run: commands of an agent in the program's own process could act as the user, for there "
                f"are {why}. Give the agent its own process, or use sandbox level L2."
            )
        if policy.require_denied_paths and policy.denied_paths:
            raise ToolError(f"Nothing was run: policy.require_denied_paths is set, and there are {why}.")
        return process_starter(context, tool, read), HiddenPaths()
    finder, command_sandbox = context.agent_object(PathCovers), context.agent_object(CommandSandbox)
    hidden_paths = (
        finder.find(context.credentials)
        if finder.is_quick
        else await _run_in_thread(partial(finder.find, context.credentials))
    )
    if hidden_paths.problem:
        raise ToolError(f"Nothing was run: denied paths cannot be hidden from commands: {hidden_paths.problem}.")
    if not hidden_paths.covers:
        return process_starter(context, tool, read), hidden_paths
    key = _key(sandbox.of(tool), hidden_paths.covers, read)
    try:
        start = command_sandbox.ready_start(key)
        if start is None:
            start = await _run_in_thread(partial(command_sandbox.covered_start, key))
    except OSError as error:
        raise ToolError(
            f"Nothing was run: denied paths cannot be hidden from commands: {error_text(error)}."
        ) from error
    return start, hidden_paths


def mounts_missing(context: ToolContext) -> str:
    """Return why the agent's commands run without their own mount namespaces.

    Return "" if the commands have their own mount namespaces.
    """
    if context.sandbox.covers_paths is not None:
        return "" if context.sandbox.covers_paths else "no mount namespaces here"
    from ...sandbox.launcher_client import unavailable_reason

    return unavailable_reason()


async def _run_in_thread(function: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(DAEMON_THREADS, function)


class CommandSandbox:
    """The sandbox of one agent's commands: launchers, one thread for each level in use, and a separate home folder."""

    def __init__(self, context: ToolContext) -> None:
        self._sandbox, self._cwd = context.sandbox, context.cwd
        self._hidden, self._context = tuple(orch_folders(context)), context
        self._threads: dict[tuple[Level, tuple[str, ...]], ThreadPoolExecutor] = {}
        self._launchers: dict[_Key, tuple[_Identities, CommandLauncher]] = {}
        self._lock, self._creation_lock, self._closed = threading.Lock(), threading.Lock(), False
        self._temporary_home: Path | None = None
        self.forked_launcher: LauncherProcess | None = None
        """A process for the next launcher."""
        if context.folder is None:
            from tempfile import mkdtemp

            self._home = self._temporary_home = Path(mkdtemp(prefix="orch-tools-"))
        else:
            self._home = context.folder / SCRATCH
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._home / "tmp").mkdir(mode=0o700, exist_ok=True)

    @property
    def launchers(self) -> tuple[int, ...]:
        """The pids of the launcher processes of this agent."""
        with self._lock:
            return tuple(launcher.pid for _, launcher in self._launchers.values())

    def environment(self) -> dict[str, str]:
        """Return the variables for the home folder of sandboxed commands."""
        return {"HOME": str(self._home), "TMPDIR": str(self._home / "tmp")}

    def start(
        self,
        level: Level,
        read: tuple[str, ...],
        argv: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        output: int,
    ) -> subprocess.Popen[bytes]:
        """Start `argv` at `level`. If the level is not available, raise ToolError without starting anything."""
        argv = limit_command(argv, self._sandbox.limits)
        if level == "L0":
            return start_process(argv, cwd, env, output)
        if level == "L3":
            return self._in_namespaces(read, (), argv, cwd, env, output)
        try:
            thread = self._threads.get((level, read)) or self._start_thread(level, read)
        except OSError as error:
            raise _unavailable_error(level, error_text(error)) from error
        return thread.submit(start_process, argv, cwd, env, output).result()

    def ready_start(self, key: _Key) -> Start | None:
        """Return the function that starts processes at the level of `key`, with the covers of `key` hidden.

        Return None if the function does not exist yet. In this case, call `covered_start`.
        """
        level, covers, read = key
        if level == "L3":
            return partial(self._in_namespaces, read, covers)
        with self._lock:
            entry = self._launchers.get(key)
            if entry is None or entry[0] != _identities(covers) or not entry[1].alive:
                return None
            self._launchers[key] = self._launchers.pop(key)
        return partial(self._launch, key, entry[1])

    def covered_start(self, key: _Key) -> Start:
        """Create and return the function for `ready_start`. Raise OSError if creation fails."""
        # Calls that run at the same time share one launcher, because a new launcher ends the commands of the old one.
        with self._creation_lock:
            return self.ready_start(key) or partial(self._launch, key, self._new_launcher(key))

    def _new_launcher(self, key: _Key) -> CommandLauncher:
        level, covers, read = key
        identities = _identities(covers)
        from ...sandbox.launcher_client import CommandLauncher

        with self._lock:
            process, self.forked_launcher = self.forked_launcher, None
        files = self._allowed_files(read) if level >= "L2" else None
        launcher = CommandLauncher(covers, self._home, level, files, process)
        with self._lock:
            old = [self._launchers.pop(key)] if key in self._launchers else []
            if self._closed:
                launcher.close()
                raise OSError("the agent has ended")
            self._launchers[key] = identities, launcher
            while len(self._launchers) > MAX_LAUNCHERS:
                old.append(self._launchers.pop(next(iter(self._launchers))))
        for _, each in old:
            each.close()
        return launcher

    def _launch(
        self,
        key: _Key,
        launcher: CommandLauncher,
        argv: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        output: int,
        *,
        attempts: int = MAX_ATTEMPTS,
    ) -> StartedProcess:
        """Start `argv` with `launcher`. If a hidden path was replaced since the start of the launcher, replace it."""
        try:
            process = launcher.start(limit_command(argv, self._sandbox.limits), cwd, env, output)
        except OSError as error:
            if error.errno != errno.ESTALE or attempts == 1:
                raise
            return self._launch(key, self._new_launcher(key), argv, cwd, env, output, attempts=attempts - 1)
        prefer_oom_kill(process.pid)
        return process

    def close(self) -> None:
        """End the threads and launchers. Delete the home folder if it is temporary."""
        for thread in self._threads.values():
            thread.shutdown(wait=False)
        self._threads.clear()
        with self._lock:
            self._closed = True
            launchers = [launcher for _, launcher in self._launchers.values()]
            self._launchers.clear()
        if self.forked_launcher is not None:
            self.forked_launcher.connection.close()
        for launcher in launchers:
            launcher.close()
        if self._temporary_home is not None:
            shutil.rmtree(self._temporary_home, ignore_errors=True)

    def _start_thread(self, level: Level, read: tuple[str, ...]) -> ThreadPoolExecutor:
        from concurrent.futures import ThreadPoolExecutor

        thread = ThreadPoolExecutor(1, thread_name_prefix=f"cell-{level}")
        try:
            thread.submit(confine, level, self._allowed_files(read)).result()
        except BaseException:
            thread.shutdown(wait=False)
            raise
        self._threads[level, read] = thread
        return thread

    def _in_namespaces(
        self,
        read: tuple[str, ...],
        covers: tuple[Cover, ...],
        argv: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        output: int,
    ) -> subprocess.Popen[bytes]:
        from ...sandbox import bubblewrap, seccomp

        if why := bubblewrap.unavailable_reason() or seccomp.unavailable_reason():
            raise _unavailable_error("L3", why)
        # In a separate network namespace, all sockets are allowed. In the shared network, only internet sockets are
        # allowed.
        network = self._sandbox.network
        filter_fd = seccomp.memory_file(seccomp.build_filter(sockets=network, network=network))
        try:
            command = bubblewrap.bubblewrap_command(
                self._sandbox_paths(read), os.path.realpath(cwd), filter_fd, argv, covers
            )
            return start_process(command, cwd, env, output, (filter_fd,))
        finally:
            os.close(filter_fd)

    def _allowed_files(self, read: tuple[str, ...]) -> AllowedFiles:
        from ...sandbox.bubblewrap import DEVICES, KERNEL

        paths = self._sandbox_paths(read)
        return AllowedFiles((*paths.read, *KERNEL), (*paths.write, *DEVICES), paths.network)

    def _sandbox_paths(self, read: tuple[str, ...]) -> SandboxPaths:
        from ...sandbox.bubblewrap import sandbox_paths

        sandbox = self._sandbox
        readable = (*sandbox.read, *read, *archive_texts(self._context))
        return sandbox_paths(
            self._cwd, self._home, read=readable, write=sandbox.write, network=sandbox.network, hidden=self._hidden
        )


def _key(level: Level, covers: tuple[Cover, ...], read: Sequence[str]) -> _Key:
    return level, covers, tuple(read) if level >= "L2" else ()


def _identities(covers: Iterable[Cover]) -> _Identities:
    """Return the device and inode numbers of the paths that stay visible, because these paths may be replaced.

    The launcher itself checks the hidden paths.
    """
    found: list[tuple[int, int] | None] = []
    for path in (path for cover in covers for path in (*cover.writable, *cover.readable)):
        try:
            status = os.stat(path)
            found.append((status.st_dev, status.st_ino))
        except OSError:
            found.append(None)
    return tuple(found)


def limit_command(argv: Sequence[str], limits: ToolLimits) -> Sequence[str]:
    """Return a command that runs `argv` within `limits`.

    The command fails if the system does not support the limits.
    """
    requested = [(flag, factor * limit) for name, (flag, factor) in UNITS.items() if (limit := getattr(limits, name))]
    lines = [f"ulimit {flag} {limit}" for flag, limit in requested]
    if limits.processes:  # The letter of this option differs between shells.
        lines.append(f"{{ ulimit -u {limits.processes} 2>/dev/null || ulimit -p {limits.processes}; }}")
    return ["/bin/sh", "-c", " && ".join([*lines, 'exec "$@"']), "sh", *argv] if lines else argv


def _unavailable_error(level: Level, why: str) -> ToolError:
    return ToolError(
        f"Nothing was run: the command must run at sandbox level {level}, which is not available here: {why}."
    )
