"""A single-threaded process that hides paths in a mount namespace of its own and starts commands there.

A user namespace cannot be entered by a process with threads, and forking one is unsafe; so an agent starts this process
once for each set of covered paths and asks it, over a socket, for each command. It holds no capability when it
serves its first request. The commands are children of the process that asked, not of this one.
"""

from __future__ import annotations

import ctypes
import errno
import marshal
import os
import signal
import socket
import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..system import linux
from . import landlock

if TYPE_CHECKING:
    from orch_protocol.policy.sandbox import Level

__all__ = ["AllowedFiles", "Cover", "confine", "hide", "main", "receive", "send"]

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWUSER: Final = 0x10000000
CLONE_PARENT: Final = 0x00008000
CLONE_NUMBERS: Final = {"x86_64": 56, "aarch64": 220, "riscv64": 220}

MS_RDONLY: Final = 1
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MS_REMOUNT: Final = 32
MS_BIND: Final = 4096
MS_REC: Final = 16384
MS_SLAVE: Final = 1 << 19
MS_RELATIME: Final = 1 << 21
ST_RELATIME: Final = 4096
SAME_FLAGS: Final = 2 | 4 | 8 | 1024 | 2048
"""Flags of a mount that have the same value in statvfs and mount: nosuid, nodev, noexec, noatime, nodiratime."""
MNT_DETACH: Final = 2

LENGTH_BYTES: Final = 8
FAILED: Final = 127


class Cover(NamedTuple):
    """A file or folder that commands cannot read. `writable` and `readable` are folders and files below it that stay
    visible."""

    path: str
    writable: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()


class AllowedFiles(NamedTuple):
    """Files and folders that commands can read, and those that they can write too, by Landlock; and the network."""

    read: tuple[str, ...]
    write: tuple[str, ...]
    network: bool


# --- Messages: a length and marshal data, both ends run the same interpreter ---


def send(line: socket.socket, message: Any, descriptors: Sequence[int] = ()) -> None:
    """Send `message`, with `descriptors` beside it. Raises OSError."""
    data = marshal.dumps(message)
    head = len(data).to_bytes(LENGTH_BYTES, "little")
    if descriptors:
        socket.send_fds(line, [head], descriptors)
    else:
        line.sendall(head)
    line.sendall(data)


def receive(line: socket.socket) -> tuple[Any, list[int]] | None:
    """Return the next message and its descriptors, None at the end. Raises OSError."""
    head, descriptors, _, _ = socket.recv_fds(line, LENGTH_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
    head += _exactly(line, LENGTH_BYTES - len(head)) if head else b""
    data = _exactly(line, int.from_bytes(head, "little")) if len(head) == LENGTH_BYTES else b""
    return (marshal.loads(data), list(descriptors)) if data else None


def _exactly(line: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (more := line.recv(size - len(data))):
        data += more
    return bytes(data) if len(data) == size else b""


# --- Hiding paths ---


def hide(covers: Iterable[Cover], staging: str) -> None:
    """Enter a mount namespace in which `covers` cannot be read. Raises OSError naming the step that failed.

    Those with exceptions are covered first. `staging` is an existing folder that is used as a mount point for a moment.
    This process must have no threads.
    """
    _enter_namespaces()
    _mount("none", "/", None, MS_REC | MS_SLAVE)
    whole = []
    for cover in covers:
        try:
            is_folder = stat.S_ISDIR(os.stat(cover.path).st_mode)
        except OSError:
            continue  # removed since it was looked up, or out of reach without capabilities
        if is_folder and (cover.writable or cover.readable):
            _hide_around(cover)
        else:
            whole.append((cover.path, is_folder))
    _mount("tmpfs", staging, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=700,size=64k,nr_inodes=8")
    folder, file = os.path.join(staging, "folder"), os.path.join(staging, "file")
    os.mkdir(folder, 0)
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0))
    _remount_read_only("tmpfs", staging)
    for path, is_folder in whole:
        try:
            _mount(folder if is_folder else file, path, None, MS_BIND)
        except (FileNotFoundError, NotADirectoryError):
            pass  # removed, or below another covered folder
    _done(_libc.umount2(os.fsencode(staging), MNT_DETACH), "umount", staging)
    for path, _ in whole:
        _check(path)


def _hide_around(cover: Cover) -> None:
    """Cover a folder with an empty one in which only the exceptions can be reached."""
    kept = [*((path, True) for path in cover.writable), *((path, False) for path in cover.readable)]
    opened = []
    try:
        for path, writable in kept:
            try:
                opened.append((path, writable, os.open(path, os.O_PATH | os.O_CLOEXEC)))
            except (FileNotFoundError, NotADirectoryError):
                continue
        _mount("tmpfs", cover.path, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=111,size=1m,nr_inodes=4096")
        for path, writable, descriptor in sorted(opened):
            _show(path, descriptor, writable=writable)
        _remount_read_only("tmpfs", cover.path)
    finally:
        for _, _, descriptor in opened:
            os.close(descriptor)


def _show(path: str, descriptor: int, *, writable: bool) -> None:
    if os.path.lexists(path):
        return  # below another exception
    _make_folders(os.path.dirname(path))
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.mkdir(path, 0o700)
    else:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    _mount(f"/proc/self/fd/{descriptor}", path, None, MS_BIND | MS_REC)
    if not writable:
        flags = os.statvfs(path).f_flag
        kept = flags & SAME_FLAGS | (MS_RELATIME if flags & ST_RELATIME else 0)
        _mount("none", path, None, MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def _make_folders(path: str) -> None:
    """Make `path` and what is missing above it: folders to pass through that cannot be listed."""
    if not os.path.isdir(path):
        _make_folders(os.path.dirname(path))
        os.mkdir(path, 0o111)


def _enter_namespaces() -> None:
    """Enter a user and a mount namespace with the same user and group."""
    user, group = os.geteuid(), os.getegid()
    _done(_libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare")
    for name, line in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def _remount_read_only(what: str, path: str) -> None:
    _mount(what, path, None, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)


def _check(path: str) -> None:
    """Raise OSError unless `path` shows the empty file or folder that covers it."""
    try:
        status = os.stat(path)
    except OSError:
        return  # below another covered folder
    if stat.S_IMODE(status.st_mode):
        raise OSError(errno.EPERM, "it is not covered", path)


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    kind_ = None if kind is None else kind.encode()
    _done(_libc.mount(os.fsencode(source), os.fsencode(target), kind_, flags, data.encode() or None), "mount", target)


def _done(result: int, what: str, path: str | None = None) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}", path)


if linux.LINUX:
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]


def confine(level: Level, files: AllowedFiles | None) -> None:
    """Give up what `level` takes from this thread and what it starts, for good. Raises OSError."""
    landlock.give_up()
    if level < "L2" or files is None:
        return
    from . import seccomp

    if why := seccomp.unavailable_reason():
        raise OSError(why)
    landlock.restrict(files.read, files.write, network=files.network)
    seccomp.apply_filter(seccomp.build_filter(sockets=True, network=files.network))


# --- Starting commands ---


def _serve(line: socket.socket, nothing: int) -> None:
    """Start a command for each request until the other end is closed."""
    while (received := receive(line)) is not None:
        (argv, cwd, env), (output,) = received
        try:
            send(line, (_start(argv, cwd, env, nothing, output), 0, ""))
        except OSError as error:
            send(line, (0, error.errno or errno.EIO, error.strerror or str(error)))
        finally:
            os.close(output)


def _start(argv: Sequence[str], cwd: str, env: Mapping[str, str], nothing: int, output: int) -> int:
    """Start `argv` as a child of this process's parent and return its pid. Raises OSError."""
    reader, writer = os.pipe()
    try:
        # Not os.fork: the process that asked is to be the parent, which waits for it and ends it.
        pid = linux.syscall(CLONE_NUMBERS[os.uname().machine], CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            _become(argv, cwd, env, (nothing, output, output), writer)
        os.close(writer)
        writer = -1
        failed = os.read(reader, 16)
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)
    if failed:
        number = int(failed)
        raise OSError(number, os.strerror(number))
    return pid


def _become(argv: Sequence[str], cwd: str, env: Mapping[str, str], streams: Iterable[int], errors: int) -> None:
    try:
        os.setsid()
        os.chdir(cwd)
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and that would be inherited
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(argv[0], list(argv), env)
    except OSError as error:
        os.write(errors, b"%d" % (error.errno or errno.EIO))
    finally:
        os._exit(FAILED)


def main(descriptor: str) -> None:
    """Serve the socket `descriptor`: first hide what the other end says, then start commands."""
    with socket.socket(fileno=int(descriptor)) as line:
        line.set_inheritable(False)
        received = receive(line)
        if received is None:
            return
        covers, staging, level, files = received[0]
        try:
            nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            hide((Cover(*cover) for cover in covers), staging)
            confine(level, None if files is None else AllowedFiles(*files))
            linux.prctl(linux.PR_SET_DUMPABLE, 0)  # commands cannot trace it
        except OSError as error:
            send(line, f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error))
            return
        send(line, "")
        try:
            _serve(line, nothing)
        except OSError:
            pass  # the other end is gone
