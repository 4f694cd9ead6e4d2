"""Code of extensions is held to the files, hosts and programs that their manifests name, by what Python tells of it.

Python tells an audit hook of each file that it opens, each connection, each program that it starts. Whose doing that is
follows from what runs: a hook or tool of an extension (a context variable, which tasks and threads inherit), or code in
its folder (a frame of the stack). What code in C does without Python is not told, and so not held.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar, copy_context
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final

from msgspec import UNSET

from orch_protocol.hooks.patches import Patch, PromptPatch, RequestPatch, SystemPatch
from orch_protocol.resources.extensions import Manifest

from ..hooks.hook import Handler, is_async

__all__ = ["PROMPT_STAGES", "Grip", "held_to_tiers", "hold"]


ANYWHERE: Final = "*"
DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
OF_THE_MACHINE: Final = (*DEVICES, "/usr/share/zoneinfo", "/etc/localtime", "/etc/mime.types")
TEMPORARY: Final = "$TMPDIR"
"""Stands for the folder of temporary files, wherever that is."""
WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class NotPermittedError(PermissionError):
    """An extension did what its manifest does not permit. Its text is all that it says, whoever names a file to it."""

    def __str__(self) -> str:
        return str(self.args[0])


class Grip:
    """What one extension, in the folder `place`, may do for an agent that works in `cwd`."""

    def __init__(self, manifest: Manifest, place: Path, cwd: Path) -> None:
        may = manifest.permissions
        self.name = manifest.name
        self.place = os.path.realpath(place)
        self._writes = _real(may.writes, cwd)
        self._reads = (*_real(may.reads, cwd), *self._writes, self.place, *_python())
        self._hosts = frozenset(each.lower() for each in may.network)
        self._addresses: set[str] = set()
        """Addresses that hosts it may reach were found at."""
        self._programs = may.programs

    def may_open(self, path: object, *, write: bool, itself: bool = False) -> None:
        """Raise PermissionError unless the file may be opened; with `itself` what the path names, and not where that
        leads if it is a link. A descriptor may: it was opened before."""
        if isinstance(path, int) or path is None:
            return
        name = os.fsdecode(path)  # type: ignore[arg-type]
        folder, entry = os.path.split(name.rstrip(os.sep)) if itself else (name, "")
        real = os.path.join(os.path.realpath(folder), entry) if entry not in ("", "..") else os.path.realpath(name)
        allowed = (*self._writes, DEVICES[0]) if write else self._reads
        if not any(real == each or real.startswith(each.rstrip(os.sep) + os.sep) for each in allowed):
            what, where = ("change", "writes") if write else ("read", "reads")
            self.refuse(f"may not {what} {real}: permissions.{where} has no such path")

    def may_resolve(self, host: object) -> None:
        """Raise PermissionError unless the address of `host` may be asked for."""
        name = _text(host).lower()
        if name and (name[0].isdigit() or ":" in name):
            self.may_reach((name,))
        elif name and name not in self._hosts | self._addresses and ANYWHERE not in self._hosts:
            self.refuse(f"may not reach {name}: permissions.network has no such host")

    def may_reach(self, address: object) -> None:
        """Raise PermissionError unless something may be sent to `address`."""
        if isinstance(address, (str, bytes)):  # a socket in the file system
            self.may_open(address, write=True)
            return
        if not isinstance(address, tuple) or not address or ANYWHERE in self._hosts:
            return
        host = _text(address[0]).lower()
        if host in self._hosts or host in self._addresses:
            return
        for name in sorted(self._hosts):
            self._addresses |= _addresses(name)
        if host not in self._addresses:
            self.refuse(f"may not reach {host}: permissions.network has no such host")

    def may_start(self, event: str) -> None:
        """Raise PermissionError unless programs may be started."""
        if not self._programs:
            self.refuse(f"may not start programs ({event}): permissions.programs is not set")

    def refuse(self, why: str) -> None:
        """Raise NotPermittedError."""
        raise NotPermittedError(f"extension {self.name!r} {why}")

    def held(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`, which runs with this grip on it, and whatever it starts."""
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004

            @wraps(function)
            async def later(*args: Any, **kwargs: Any) -> Any:
                token = _by.set(self)
                try:
                    return await function(*args, **kwargs)
                finally:
                    _by.reset(token)

            return later

        @wraps(function)
        def now(*args: Any, **kwargs: Any) -> Any:
            token = _by.set(self)
            try:
                return function(*args, **kwargs)
            finally:
                _by.reset(token)

        return now


_by: ContextVar[Grip | None] = ContextVar("orch_extension", default=None)
_grips: dict[str, Grip] = {}
"""By the folder of the extension."""
_files: dict[str, Grip | None] = {}
"""Whose each file of code is that was seen so far."""
_looking = threading.local()


def hold(grip: Grip) -> None:
    """Hold code in the extension's folder from now on. An audit hook is there as soon as there is an extension."""
    if not _grips:
        _listen()
    _grips[grip.place] = grip
    _files.clear()


def _listen() -> None:
    """Let Python tell of everything from now on, also of what it does not tell by itself, or not all of it."""
    import _posixsubprocess
    from concurrent.futures import ThreadPoolExecutor

    sys.addaudithook(_heard)
    threading.Thread.start = _started(threading.Thread.start)  # type: ignore[method-assign, assignment]
    ThreadPoolExecutor.submit = _submitted(ThreadPoolExecutor.submit)  # type: ignore[method-assign]
    _posixsubprocess.fork_exec = _told("os.posix_spawn", _posixsubprocess.fork_exec)
    os.open = _opened(os.open)
    os.mkfifo, os.mknod = _making(os.mkfifo), _making(os.mknod)
    if hasattr(os, "pidfd_open"):  # Linux has it
        os.pidfd_open = _told("os.kill", os.pidfd_open)
    os.supports_dir_fd.update((os.open, os.mkfifo, os.mknod))


def _heard(event: str, args: tuple[Any, ...]) -> None:
    check = CHECKS.get(event)
    if check is None or getattr(_looking, "now", False):
        return
    _looking.now = True  # what is done to look is told too
    try:
        if (grip := _by.get() or _of_the_stack()) is not None:
            check(grip, event, args)
    finally:
        _looking.now = False


def _told(event: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function`, of whose calls Python says nothing by itself; processes of multiprocessing are started so."""

    def telling(*args: Any, **kwargs: Any) -> Any:
        _heard(event, ())
        return function(*args, **kwargs)

    return telling


def _opened(open: Callable[..., int]) -> Callable[..., int]:
    """Return `open`, which tells where a path begins that is seen from an open folder; Python tells the path alone."""

    @wraps(open)
    def opening(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is None or getattr(_looking, "now", False):
            return open(path, flags, mode, dir_fd=dir_fd)
        _heard("open", (_seen_from(path, dir_fd), None, flags))
        _looking.now = True
        try:
            return open(path, flags, mode, dir_fd=dir_fd)
        finally:
            _looking.now = False

    return opening


def _making(make: Callable[..., None]) -> Callable[..., None]:
    """Return `make`, which brings an entry into a folder and of which Python tells nothing."""

    @wraps(make)
    def making(path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> None:
        _heard("os.mkdir", (path, 0, -1 if dir_fd is None else dir_fd))
        make(path, *args, dir_fd=dir_fd, **kwargs)

    return making


def _submitted(submit: Callable[..., Any]) -> Callable[..., Any]:
    """Return `submit`, by which work in a pool is held as whoever hands it in, not as whoever made the thread."""

    @wraps(submit)
    def handed_in(pool: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return submit(pool, _as, _by.get() or _of_the_stack(), function, *args, **kwargs)

    return handed_in


def _as(grip: Grip | None, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    token = _by.set(grip)
    try:
        return function(*args, **kwargs)
    finally:
        _by.reset(token)


def _started(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """Return `start`, by which a thread is held as whoever starts it: Python tells of threads from 3.12 on alone."""

    def held(thread: threading.Thread) -> None:
        if (grip := _by.get() or _of_the_stack()) is not None:
            context = copy_context()
            context.run(_by.set, grip)
            thread.run = partial(context.run, thread.run)  # type: ignore[method-assign]
        start(thread)

    return held


def _of_the_stack() -> Grip | None:
    frame = sys._getframe()  # a thread may have been begun with a function in C, and there is no other then
    while frame is not None:
        name = frame.f_code.co_filename
        if name not in _files:
            _files[name] = next((each for place, each in _grips.items() if _is_in(name, place)), None)
        if (found := _files[name]) is not None:
            return found
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _is_in(name: str, place: str) -> bool:
    return name.endswith(".py") and os.path.realpath(name).startswith(place + os.sep)


def _opens(grip: Grip, _: str, args: tuple[Any, ...]) -> None:
    path, mode, flags = args
    write = bool(flags & WRITING) if mode is None else any(letter in str(mode) for letter in "wax+")
    grip.may_open(path, write=write)


def _reads(grip: Grip, _: str, args: tuple[Any, ...]) -> None:
    grip.may_open(args[0] if args[0] is not None else os.curdir, write=False)


def _changes(grip: Grip, event: str, args: tuple[Any, ...]) -> None:
    for path, folder in zip(args, FOLDERS[event], strict=False):
        seen = path if folder is None else _seen_from(path, args[folder])
        grip.may_open(seen, write=True, itself=True)
        if event not in OF_ENTRIES:
            grip.may_open(seen, write=True)


def _seen_from(path: Any, folder: Any) -> Any:
    """Return where `path` leads, seen from the open `folder`; of one that the system does not name, nowhere."""
    if isinstance(path, int) or not isinstance(folder, int) or folder < 0 or os.path.isabs(os.fspath(path)):
        return path
    try:
        return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(path))
    except OSError:
        return os.path.join(f"/dev/fd/{folder}", os.fsdecode(path))


def _connects(grip: Grip, _: str, args: tuple[Any, ...]) -> None:
    """Look where a database is; one in memory, or without a name, is in no file that anybody sees."""
    name = os.fsdecode(args[0])
    if not name.startswith("file:"):
        if name not in ("", ":memory:"):
            grip.may_open(name, write=True)
        return
    from urllib.parse import parse_qs, unquote, urlsplit

    said = urlsplit(name)
    path, mode = unquote(said.path), parse_qs(said.query).get("mode", [""])[-1]
    if path not in ("", ":memory:") and mode != "memory":
        grip.may_open(path, write=mode != "ro")


def _resolves(grip: Grip, _: str, args: tuple[Any, ...]) -> None:
    grip.may_resolve(args[0])


def _reaches(grip: Grip, _: str, args: tuple[Any, ...]) -> None:
    if args[1] is not None:
        grip.may_reach(args[1])


def _starts(grip: Grip, event: str, _: tuple[Any, ...]) -> None:
    grip.may_start(event)


FOLDERS: Final[dict[str, tuple[int | None, ...]]] = {
    **dict.fromkeys(("os.remove", "os.rmdir"), (1,)),
    **dict.fromkeys(("os.mkdir", "os.chmod"), (2,)),
    **dict.fromkeys(("os.chown", "os.utime"), (3,)),
    **dict.fromkeys(("os.rename", "os.link"), (2, 3)),
    **dict.fromkeys(("os.truncate", "os.setxattr", "os.removexattr"), (None,)),
}
"""For each path that is to be changed, which argument has the open folder that it is seen from."""
OF_ENTRIES: Final = frozenset({"os.remove", "os.rmdir", "os.mkdir", "os.rename"})
"""What is done to an entry of a folder, wherever that leads if it is a link."""
Check = Callable[[Grip, str, tuple[Any, ...]], None]
CHECKS: Final[dict[str, Check]] = {
    "open": _opens,
    **dict.fromkeys(("os.listdir", "os.scandir"), _reads),
    **dict.fromkeys(("os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "os.chown", "os.utime"), _changes),
    **dict.fromkeys(("os.rename", "os.link", "os.setxattr", "os.removexattr"), _changes),
    "sqlite3.connect": _connects,
    "os.symlink": lambda grip, _, args: grip.may_open(_seen_from(args[1], args[2]), write=True, itself=True),
    **dict.fromkeys(("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"), _resolves),
    **dict.fromkeys(("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg"), _reaches),
    **dict.fromkeys(("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn"), _starts),
    **dict.fromkeys(("os.fork", "os.forkpty", "os.kill", "os.killpg", "os.chdir"), _starts),
}
"""What is looked at of what Python tells."""


def _real(paths: Iterable[str], cwd: Path) -> tuple[str, ...]:
    named = [path.replace(TEMPORARY, tempfile.gettempdir()) if TEMPORARY in path else path for path in paths]
    return tuple(os.path.realpath(cwd / Path(path).expanduser()) for path in named)


def _python() -> tuple[str, ...]:
    """Return what may be read so that modules can be imported."""
    places = (sys.prefix, sys.base_prefix, *(each for each in sys.path if os.path.isabs(each)), *OF_THE_MACHINE)
    return tuple(dict.fromkeys(map(os.path.realpath, places)))


def _text(host: object) -> str:
    return host.decode("ascii", "replace") if isinstance(host, bytes) else str(host or "")


def _addresses(host: str) -> set[str]:
    import socket

    try:
        return {str(found[4][0]).lower() for found in socket.getaddrinfo(host, None)}
    except OSError:
        return set()


# --- Hooks of extensions that touch the prompt are held to the tiers that their manifests name ---

PROMPT_STAGES: Final = frozenset({"before_system_prompt", "after_system_prompt", "before_provider_request"})
"""Where a hook can change what the prompt says."""


def held_to_tiers(function: Handler, manifest: Manifest) -> Handler:
    """Return `function`, whose patches of the prompt touch the tiers that `manifest` permits and no others."""
    tiers = manifest.permissions.tiers

    def held(event: Any, said: Any) -> Any:
        patch = event.patch(**said) if isinstance(said, dict) and event.stage in PROMPT_STAGES else said
        if isinstance(patch, Patch):
            for tier in _touched(event, patch):
                if tier not in tiers:
                    raise PermissionError(
                        f"permissions.tiers has no {tier!r}: it may not change that part of the prompt"
                    )
        return patch

    if is_async(function):

        @functools.wraps(function)
        async def later(event: Any, ctx: Any) -> Any:
            return held(event, await function(event, ctx))

        return later

    @functools.wraps(function)
    def now(event: Any, ctx: Any) -> Any:
        return held(event, function(event, ctx))

    return now


def _touched(event: Any, patch: Patch) -> Iterator[str]:
    """Yield the tier of each part of the prompt that `patch` changes. The system text is what is stable."""
    if isinstance(patch, SystemPatch):
        if patch.text not in (UNSET, event.text):
            yield "stable"
    elif isinstance(patch, RequestPatch):
        if patch.system not in (UNSET, event.system):
            yield "stable"
        if patch.tail not in (UNSET, event.tail):
            yield "volatile"
    elif isinstance(patch, PromptPatch):
        there = {part.name: part.tier for part in event.parts}
        yield from (part.tier for field in (patch.add, patch.replace) if field for part in field)
        yield from (there[name] for name in patch.drop or () if name in there)
        yield from (there[part.name] for part in patch.replace or () if part.name in there)
