"""Starting what tools run at the level that the agent's sandbox has for them.

A thread gives up its own rights, files and network, which the kernel takes from that thread alone, and starts processes
from there: they are born without. So a command costs no more than before, and nothing of ours runs in between.
"""

from __future__ import annotations

import asyncio
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
from ...system.threads import ASIDE
from ..api.base import ToolContext, ToolError
from .command import Start, StartedProcess, end_first, start_process
from .path_covers import SCRATCH, HiddenPaths, PathCovers, orch_folders

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from ...sandbox.bubblewrap import SandboxPaths
    from ...sandbox.launcher_client import CommandLauncher

__all__ = ["CommandSandbox", "covered_starter", "limit_command", "mounts_missing", "process_starter"]

T = TypeVar("T")
_Key: TypeAlias = tuple["Level", tuple[Cover, ...]]
_Identities: TypeAlias = tuple["tuple[int, int] | None", ...]

MOST_LAUNCHERS: Final = 3
"""An agent keeps so many: usually one, and one for calls that may use credentials."""

UNITS: Final = {"cpu_seconds": ("-t", 1), "memory_mb": ("-d", 1024), "file_mb": ("-f", 2048), "open_files": ("-n", 1)}


def process_starter(context: ToolContext, tool: str, read: Sequence[str] = ()) -> Start:
    """Return what starts processes for `tool`, which may read what is at or below `read` too."""
    sandbox = context.sandbox
    if sandbox.of(tool) == "L0" and sandbox.limits == ToolLimits():
        return start_process
    return partial(context.own(CommandSandbox).start, sandbox.of(tool), tuple(read))


async def covered_starter(context: ToolContext, tool: str, *, credentials: bool = False) -> tuple[Start, HiddenPaths]:
    """Return what starts commands for `tool`, and what is hidden from them: denied paths, credentials, orch's folders.

    With `credentials` those can be read. Where there are no mount namespaces nothing is hidden. Raises ToolError when
    that is not allowed, or when the namespaces that the agent was promised cannot be had; then nothing runs.
    """
    policy, sandbox = context.policy, context.sandbox
    if why := mounts_missing(context):
        if context.in_process and sandbox.of(tool) < "L2" and sys.platform == "linux":
            raise ToolError(
                "Nothing was run: commands of an agent in the program's own process could act as the user, for there "
                f"are {why}. Let the agent have a process of its own, or use sandbox level L2."
            )
        if policy.require_denied_paths and policy.denied_paths:
            raise ToolError(f"Nothing was run: policy.require_denied_paths is set, and there are {why}.")
        return process_starter(context, tool), HiddenPaths()
    finder, cell = context.own(PathCovers), context.own(CommandSandbox)
    covered = (
        finder.find(credentials=credentials)
        if finder.is_quick
        else await _aside(partial(finder.find, credentials=credentials))
    )
    if covered.incomplete and policy.require_denied_paths:
        raise ToolError(f"Nothing was run: policy.require_denied_paths is set, and there are {covered.incomplete}.")
    if not covered.covers:
        return process_starter(context, tool), covered
    level = sandbox.of(tool)
    try:
        start = cell.ready_start(level, covered.covers)
        if start is None:
            start = await _aside(partial(cell.covered_start, level, covered.covers))
    except OSError as error:
        raise ToolError(
            f"Nothing was run: denied paths cannot be hidden from commands: {error_text(error)}."
        ) from error
    return start, covered


def mounts_missing(context: ToolContext) -> str:
    """Return why this agent's commands run without mount namespaces of their own, "" when they have them."""
    if context.sandbox.covers_paths is not None:
        return "" if context.sandbox.covers_paths else "no mount namespaces here"
    from ...sandbox.launcher_client import unavailable_reason

    return unavailable_reason()


async def _aside(act: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(ASIDE, act)


class CommandSandbox:
    """What confines the processes of one agent: launchers, a thread for each level in use, and a home of their own."""

    def __init__(self, context: ToolContext) -> None:
        self._sandbox, self._cwd = context.sandbox, context.cwd
        self._hidden = tuple(orch_folders(context))
        self._threads: dict[tuple[Level, tuple[str, ...]], ThreadPoolExecutor] = {}
        self._launchers: dict[_Key, tuple[_Identities, CommandLauncher]] = {}
        self._lock, self._closed = threading.Lock(), False
        self._made: Path | None = None
        if context.folder is None:
            from tempfile import mkdtemp

            self._home = self._made = Path(mkdtemp(prefix="orch-tools-"))
        else:
            self._home = context.folder / SCRATCH
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._home / "tmp").mkdir(mode=0o700, exist_ok=True)

    @property
    def launchers(self) -> tuple[int, ...]:
        """The ids of the processes that start commands for this agent."""
        with self._lock:
            return tuple(launcher.pid for _, launcher in self._launchers.values())

    def environment(self) -> dict[str, str]:
        """Return the variables that lead to the home that confined processes have instead of the user's."""
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
        """Start `argv` at `level`. Raises ToolError when that level cannot be had now: then nothing was started."""
        argv = limit_command(argv, self._sandbox.limits)
        if level == "L0":
            return start_process(argv, cwd, env, output)
        if level == "L3":
            return self._in_namespaces(read, (), argv, cwd, env, output)
        try:
            thread = self._threads.get((level, read)) or self._thread(level, read)
        except OSError as error:
            raise _refused(level, error_text(error)) from error
        return thread.submit(start_process, argv, cwd, env, output).result()

    def ready_start(self, level: Level, covers: tuple[Cover, ...]) -> Start | None:
        """Return what starts processes at `level` with `covers` hidden, None where that is yet to be made."""
        if level == "L3":
            return partial(self._in_namespaces, (), covers)
        with self._lock:
            known = self._launchers.get(_key(level, covers))
            if known is None or known[0] != _identities(covers) or not known[1].alive:
                return None
            self._launchers[_key(level, covers)] = self._launchers.pop(_key(level, covers))
        return partial(self._launch, known[1])

    def covered_start(self, level: Level, covers: tuple[Cover, ...]) -> Start:
        """Make what `ready_start` returns. Raises OSError when it cannot be had."""
        key, identities = _key(level, covers), _identities(covers)
        from ...sandbox.launcher_client import CommandLauncher

        launcher = CommandLauncher(covers, self._home, level, self._files(()) if level >= "L2" else None)
        with self._lock:
            old = [self._launchers.pop(key)] if key in self._launchers else []
            if self._closed:
                launcher.close()
                raise OSError("the agent has ended")
            self._launchers[key] = identities, launcher
            while len(self._launchers) > MOST_LAUNCHERS:
                old.append(self._launchers.pop(next(iter(self._launchers))))
        for _, each in old:
            each.close()
        return partial(self._launch, launcher)

    def _launch(
        self, launcher: CommandLauncher, argv: Sequence[str], cwd: Path, env: Mapping[str, str], output: int
    ) -> StartedProcess:
        process = launcher.start(limit_command(argv, self._sandbox.limits), cwd, env, output)
        end_first(process.pid)
        return process

    def close(self) -> None:
        """Let the threads go, and a home that nobody else has the care of."""
        for thread in self._threads.values():
            thread.shutdown(wait=False)
        self._threads.clear()
        with self._lock:
            self._closed = True
            launchers = [launcher for _, launcher in self._launchers.values()]
            self._launchers.clear()
        for launcher in launchers:
            launcher.close()
        if self._made is not None:
            shutil.rmtree(self._made, ignore_errors=True)

    def _thread(self, level: Level, read: tuple[str, ...]) -> ThreadPoolExecutor:
        from concurrent.futures import ThreadPoolExecutor

        thread = ThreadPoolExecutor(1, thread_name_prefix=f"cell-{level}")
        try:
            thread.submit(confine, level, self._files(read)).result()
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
            raise _refused("L3", why)
        # In a network of its own any socket will do; in that of all others, those of the internet.
        network = self._sandbox.network
        filter = seccomp.memory_file(seccomp.build_filter(sockets=network, network=network))
        try:
            within = bubblewrap.bubblewrap_command(self._reach(read), os.path.realpath(cwd), filter, argv, covers)
            return start_process(within, cwd, env, output, (filter,))
        finally:
            os.close(filter)

    def _files(self, read: tuple[str, ...]) -> AllowedFiles:
        from ...sandbox.bubblewrap import DEVICES, KERNEL

        reach = self._reach(read)
        return AllowedFiles((*reach.read, *KERNEL), (*reach.write, *DEVICES), reach.network)

    def _reach(self, read: tuple[str, ...]) -> SandboxPaths:
        from ...sandbox.bubblewrap import sandbox_paths

        sandbox = self._sandbox
        named = (*sandbox.read, *read)
        return sandbox_paths(
            self._cwd, self._home, read=named, write=sandbox.write, network=sandbox.network, hidden=self._hidden
        )


def _key(level: Level, covers: tuple[Cover, ...]) -> _Key:
    return level, covers


def _identities(covers: Iterable[Cover]) -> _Identities:
    """Return which files are there now: one that took another's place is not hidden by a mount on the old one."""
    found: list[tuple[int, int] | None] = []
    for path in (path for cover in covers for path in (cover.path, *cover.writable, *cover.readable)):
        try:
            status = os.stat(path)
            found.append((status.st_dev, status.st_ino))
        except OSError:
            found.append(None)
    return tuple(found)


def limit_command(argv: Sequence[str], limits: ToolLimits) -> Sequence[str]:
    """Return what runs `argv` within `limits`, or nothing where the system does not take them."""
    asked = [(flag, factor * most) for name, (flag, factor) in UNITS.items() if (most := getattr(limits, name))]
    lines = [f"ulimit {flag} {most}" for flag, most in asked]
    if limits.processes:  # shells do not agree on its letter
        lines.append(f"{{ ulimit -u {limits.processes} 2>/dev/null || ulimit -p {limits.processes}; }}")
    return ["/bin/sh", "-c", " && ".join([*lines, 'exec "$@"']), "sh", *argv] if lines else argv


def _refused(level: Level, why: str) -> ToolError:
    return ToolError(f"Nothing was run: it is to run at sandbox level {level}, which cannot be had here: {why}.")
