"""Starting what tools run at the level that the agent's sandbox has for them.

A thread gives up its own rights, files and network, which the kernel takes from that thread alone, and starts processes
from there: they are born without. So a command costs no more than before, and nothing of ours runs in between.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orch_protocol.core.sandbox import Level, ToolLimits

from ...system.files import cause
from ..api.base import ToolContext, ToolError
from .command import Start, start_process

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from ...sandbox.bubblewrap import Reach

__all__ = ["Cell", "limited", "starter"]

SCRATCH: Final = "scratch"
SESSIONS: Final = "sessions"
UNITS: Final = {"cpu_seconds": ("-t", 1), "memory_mb": ("-d", 1024), "file_mb": ("-f", 2048), "open_files": ("-n", 1)}


def starter(context: ToolContext, tool: str, read: Sequence[str] = ()) -> Start:
    """Return what starts processes for `tool`, which may read what is at or below `read` too."""
    sandbox = context.sandbox
    if sandbox.of(tool) == "L0" and sandbox.limits == ToolLimits():
        return start_process
    return partial(context.own(Cell).start, sandbox.of(tool), tuple(read))


class Cell:
    """What confines the processes of one agent: a thread for each level in use, and a home of their own."""

    def __init__(self, context: ToolContext) -> None:
        self._sandbox, self._cwd = context.sandbox, context.cwd
        self._hidden = tuple(_orchs(context))
        self._threads: dict[tuple[Level, tuple[str, ...]], ThreadPoolExecutor] = {}
        self._made: Path | None = None
        if context.folder is None:
            from tempfile import mkdtemp

            self._home = self._made = Path(mkdtemp(prefix="orch-tools-"))
        else:
            self._home = context.folder / SCRATCH
        (self._home / "tmp").mkdir(mode=0o700, parents=True, exist_ok=True)

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
        argv = limited(argv, self._sandbox.limits)
        if level == "L0":
            return start_process(argv, cwd, env, output)
        if level == "L3":
            return self._in_namespaces(read, argv, cwd, env, output)
        try:
            thread = self._threads.get((level, read)) or self._thread(level, read)
        except OSError as error:
            raise _refused(level, cause(error)) from error
        return thread.submit(start_process, argv, cwd, env, output).result()

    def close(self) -> None:
        """Let the threads go, and a home that nobody else has the care of."""
        for thread in self._threads.values():
            thread.shutdown(wait=False)
        self._threads.clear()
        if self._made is not None:
            shutil.rmtree(self._made, ignore_errors=True)

    def _thread(self, level: Level, read: tuple[str, ...]) -> ThreadPoolExecutor:
        from concurrent.futures import ThreadPoolExecutor

        thread = ThreadPoolExecutor(1, thread_name_prefix=f"cell-{level}")
        try:
            thread.submit(_enter, level, self._reach(read)).result()
        except BaseException:
            thread.shutdown(wait=False)
            raise
        self._threads[level, read] = thread
        return thread

    def _in_namespaces(
        self, read: tuple[str, ...], argv: Sequence[str], cwd: Path, env: Mapping[str, str], output: int
    ) -> subprocess.Popen[bytes]:
        from ...sandbox import bubblewrap, seccomp

        if why := bubblewrap.missing() or seccomp.missing():
            raise _refused("L3", why)
        # In a network of its own any socket will do; in that of all others, those of the internet.
        network = self._sandbox.network
        filter = seccomp.memory_file(seccomp.program(sockets=network, network=network))
        try:
            within = bubblewrap.arguments(self._reach(read), os.path.realpath(cwd), filter, argv)
            return start_process(within, cwd, env, output, (filter,))
        finally:
            os.close(filter)

    def _reach(self, read: tuple[str, ...]) -> Reach:
        from ...sandbox.bubblewrap import reach

        sandbox = self._sandbox
        named = (*sandbox.read, *read)
        return reach(
            self._cwd, self._home, read=named, write=sandbox.write, network=sandbox.network, hidden=self._hidden
        )


def _orchs(context: ToolContext) -> Iterator[Path]:
    """Yield the folders of orch itself and those with the sessions of agents, one of which is the agent's own."""
    yield from map(Path, context.orch_folders)
    if (folder := context.folder) is not None:
        yield folder.parent
        if folder.parent.name == SESSIONS:  # where they are unless somebody said otherwise, also without a process
            yield folder.parent.parent


def limited(argv: Sequence[str], limits: ToolLimits) -> Sequence[str]:
    """Return what runs `argv` within `limits`, or nothing where the system does not take them."""
    asked = [(flag, factor * most) for name, (flag, factor) in UNITS.items() if (most := getattr(limits, name))]
    lines = [f"ulimit {flag} {most}" for flag, most in asked]
    if limits.processes:  # shells do not agree on its letter
        lines.append(f"{{ ulimit -u {limits.processes} 2>/dev/null || ulimit -p {limits.processes}; }}")
    return ["/bin/sh", "-c", " && ".join([*lines, 'exec "$@"']), "sh", *argv] if lines else argv


def _enter(level: Level, reach: Reach) -> None:
    """Give up what `level` takes, in this thread and for good."""
    from ...sandbox import landlock, seccomp
    from ...sandbox.bubblewrap import DEVICES, KERNEL

    landlock.give_up()
    if level >= "L2":
        if why := seccomp.missing():
            raise OSError(why)
        landlock.restrict((*reach.read, *KERNEL), (*reach.write, *DEVICES), network=reach.network)
        seccomp.apply(seccomp.program(sockets=True, network=reach.network))


def _refused(level: Level, why: str) -> ToolError:
    return ToolError(f"Nothing was run: it is to run at sandbox level {level}, which cannot be had here: {why}.")
