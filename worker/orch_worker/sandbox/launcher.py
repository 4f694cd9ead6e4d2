"""A single-threaded process that hides paths in its mount namespace and starts commands there.

A process with threads cannot enter a user namespace, and forking such a process is unsafe. Therefore, an agent starts
one launcher for each set of covered paths, and sends each command to this launcher over a socket. The launcher drops
all capabilities before the first command. Commands are children of the process that requested them, not of the
launcher.
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
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ..system import linux
from . import landlock

if TYPE_CHECKING:
    from orch_protocol.policy.sandbox import Level

__all__ = ["AllowedFiles", "Cover", "confine", "hide", "main", "receive", "receive_exactly", "send"]

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
"""Mount flags with the same value in statvfs and mount: nosuid, nodev, noexec, noatime, nodiratime."""
MNT_DETACH: Final = 2

LENGTH_BYTES: Final = 8
EXEC_FAILED: Final = 127


class Cover(NamedTuple):
    """A file or folder that commands cannot read.

    `writable` and `readable` are paths below the folder that stay visible.
    """

    path: str
    writable: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()


Identity: TypeAlias = "tuple[int, int] | None"
"""Device and inode number of a path. None means that the path does not exist or is not accessible."""


class AllowedFiles(NamedTuple):
    """Paths that commands can read, paths that commands can also write, and whether commands can use the network.

    Landlock applies these limits.
    """

    read: tuple[str, ...]
    write: tuple[str, ...]
    network: bool


# --- Messages: a length and marshal data; both ends run the same interpreter ---


def send(connection: socket.socket, message: Any, descriptors: Sequence[int] = ()) -> None:
    """Send `message` with `descriptors`. Raise OSError if sending fails."""
    data = marshal.dumps(message)
    header = len(data).to_bytes(LENGTH_BYTES, "little")
    if descriptors:
        socket.send_fds(connection, [header], descriptors)
    else:
        connection.sendall(header)
    connection.sendall(data)


def receive(connection: socket.socket) -> tuple[Any, list[int]] | None:
    """Return the next message and its descriptors, or None at the end of the stream.

    Raise OSError if receiving fails.
    """
    header, descriptors, _, _ = socket.recv_fds(connection, LENGTH_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
    header += receive_exactly(connection, LENGTH_BYTES - len(header)) if header else b""
    data = receive_exactly(connection, int.from_bytes(header, "little")) if len(header) == LENGTH_BYTES else b""
    return (marshal.loads(data), list(descriptors)) if data else None


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    """Return `size` bytes of a stream, or b"" if the stream ends before."""
    data = bytearray()
    while len(data) < size and (chunk := connection.recv(size - len(data))):
        data += chunk
    return bytes(data) if len(data) == size else b""


# --- Hiding paths ---


def hide(covers: Iterable[Cover], staging: str) -> None:
    """Enter a mount namespace in which `covers` cannot be read. Raise OSError that names the failed step.

    Covers with exceptions are mounted first. `staging` is an existing folder, which is used briefly as a mount point.
    This process must have no other threads.
    """
    covers = tuple(covers)
    _enter_namespaces()
    _mount("none", "/", None, MS_REC | MS_SLAVE)
    full_covers = []
    for cover in covers:
        try:
            is_folder = stat.S_ISDIR(os.stat(cover.path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            continue  # The path was deleted since the search.
        if is_folder and (cover.writable or cover.readable):
            _hide_except_visible(cover)
        else:
            full_covers.append((cover.path, is_folder))
    _mount("tmpfs", staging, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=700,size=64k,nr_inodes=8")
    folder, file = os.path.join(staging, "folder"), os.path.join(staging, "file")
    os.mkdir(folder, 0)
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0))
    empty = {True: _identity(folder), False: _identity(file)}
    _remount_read_only("tmpfs", staging)
    for path, is_folder in full_covers:
        try:
            _mount(folder if is_folder else file, path, None, MS_BIND)
        except (FileNotFoundError, NotADirectoryError):
            pass  # The path was deleted, or lies below another covered folder.
    _raise_on_failure(_libc.umount2(os.fsencode(staging), MNT_DETACH), "umount", staging)
    for path, is_folder in full_covers:
        if _identity(path) not in (empty[is_folder], None):  # None: the path lies below another covered folder.
            raise OSError(errno.EPERM, "it is not covered", path)
    _pin_parents(cover.path for cover in covers)


def _identity(path: str) -> Identity:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _pin_parents(paths: Iterable[str]) -> None:
    """Mount each folder above the covered `paths` on itself, with its covers.

    A mount point cannot be renamed. Without this, a command could rename a folder above a covered path, and the next
    command would find the path under a name that is not covered.
    """
    with open("/proc/self/mountinfo", "rb") as file:
        mounted = {_plain_path(line.split()[4]) for line in file} | {"/"}
    parents = {"/"}
    for path in paths:
        while (path := os.path.dirname(path)) not in parents:
            parents.add(path)
    for folder in sorted(parents - mounted):
        if os.path.isdir(folder):
            _mount(folder, folder, None, MS_BIND | MS_REC)


def _plain_path(field: bytes) -> str:
    """Return the path of a field of mountinfo, in which spaces and backslashes are octal numbers."""
    return os.fsdecode(field.decode("unicode_escape").encode("latin-1"))


def _hide_except_visible(cover: Cover) -> None:
    """Cover a folder with an empty folder that contains only the visible exceptions."""
    exceptions = [*((path, True) for path in cover.writable), *((path, False) for path in cover.readable)]
    opened = []
    try:
        for path, writable in exceptions:
            try:
                opened.append((path, writable, os.open(path, os.O_PATH | os.O_CLOEXEC)))
            except (FileNotFoundError, NotADirectoryError):
                continue
        _mount("tmpfs", cover.path, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=111,size=1m,nr_inodes=4096")
        for path, writable, descriptor in sorted(opened):
            _mount_visible(path, descriptor, writable=writable)
        _remount_read_only("tmpfs", cover.path)
    finally:
        for _, _, descriptor in opened:
            os.close(descriptor)


def _mount_visible(path: str, descriptor: int, *, writable: bool) -> None:
    if os.path.lexists(path):  # The path lies below another exception, or is one.
        is_link = os.path.realpath(path) != path  # A link could make another exception writable.
        if is_link or not writable or not os.statvfs(path).f_flag & os.ST_RDONLY:
            return
    else:
        _make_folders(os.path.dirname(path))
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.mkdir(path, 0o700)
        else:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    _mount(f"/proc/self/fd/{descriptor}", path, None, MS_BIND | MS_REC)
    if not writable:
        flags = os.statvfs(path).f_flag
        kept_flags = flags & SAME_FLAGS | (MS_RELATIME if flags & ST_RELATIME else 0)
        _mount("none", path, None, MS_REMOUNT | MS_BIND | MS_RDONLY | kept_flags)


def _make_folders(path: str) -> None:
    """Create `path` and its missing parents. The new folders can be traversed but not listed."""
    if not os.path.isdir(path):
        _make_folders(os.path.dirname(path))
        os.mkdir(path, 0o111)


def _enter_namespaces() -> None:
    """Enter new user and mount namespaces with the same user and group ids."""
    user, group = os.geteuid(), os.getegid()
    _raise_on_failure(_libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare")
    for name, line in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def _remount_read_only(source: str, path: str) -> None:
    _mount(source, path, None, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)


def _mount(source: str, target: str, fs_type: str | None, flags: int, data: str = "") -> None:
    encoded_type = None if fs_type is None else fs_type.encode()
    _raise_on_failure(
        _libc.mount(os.fsencode(source), os.fsencode(target), encoded_type, flags, data.encode() or None),
        "mount",
        target,
    )


def _raise_on_failure(result: int, operation: str, path: str | None = None) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{operation}: {os.strerror(number)}", path)


if linux.LINUX:
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]


def confine(level: Level, files: AllowedFiles | None) -> None:
    """Permanently apply the restrictions of `level` to this thread and its children. Raise OSError if a step fails."""
    landlock.drop_capabilities()
    if level < "L2" or files is None:
        return
    from . import seccomp

    if why := seccomp.unavailable_reason():
        raise OSError(why)
    landlock.restrict(files.read, files.write, network=files.network)
    seccomp.apply_filter(seccomp.build_filter(sockets=True, network=files.network))


# --- Starting commands ---


def _serve(connection: socket.socket, stdin: int, identities: Mapping[str, Identity]) -> None:
    """Start one command for each request, until the other end closes the socket.

    `identities` are those of the covered paths. If one of them has changed, the answer is ESTALE: if another process
    replaces or deletes a covered path, the kernel removes the cover.
    """
    while (received := receive(connection)) is not None:
        (argv, cwd, env), (output,) = received
        try:
            if any(_identity(path) != identity for path, identity in identities.items()):
                raise OSError(errno.ESTALE, "a hidden path was replaced")
            send(connection, (_start_command(argv, cwd, env, stdin, output), 0, ""))
        except OSError as error:
            send(connection, (0, error.errno or errno.EIO, error.strerror or str(error)))
        finally:
            os.close(output)


def _start_command(argv: Sequence[str], cwd: str, env: Mapping[str, str], stdin: int, output: int) -> int:
    """Start `argv` as a child of this process's parent, and return the pid of the child.

    Raise OSError if starting fails.
    """
    reader, writer = os.pipe()
    try:
        # os.fork cannot be used: CLONE_PARENT makes the requesting process the parent, so that it can wait for the
        # command.
        pid = linux.syscall(CLONE_NUMBERS[os.uname().machine], CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            _exec_command(argv, cwd, env, (stdin, output, output), writer)
        os.close(writer)
        writer = -1
        failure = os.read(reader, 16)
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)
    if failure:
        number = int(failure)
        raise OSError(number, os.strerror(number))
    return pid


def _exec_command(
    argv: Sequence[str], cwd: str, env: Mapping[str, str], streams: Iterable[int], error_pipe: int
) -> None:
    try:
        os.setsid()
        os.chdir(cwd)
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        # Python ignores these signals, and exec would keep this setting.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(argv[0], list(argv), env)
    except OSError as error:
        os.write(error_pipe, b"%d" % (error.errno or errno.EIO))
    finally:
        os._exit(EXEC_FAILED)


def main(descriptor: str) -> None:
    """Serve the socket `descriptor`: hide the paths that the first message names, then start commands."""
    with socket.socket(fileno=int(descriptor)) as connection:
        connection.set_inheritable(False)
        received = receive(connection)
        if received is None:
            return
        covers, staging, level, files = received[0]
        try:
            stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            hide((Cover(*cover) for cover in covers), staging)
            confine(level, None if files is None else AllowedFiles(*files))
            linux.prctl(linux.PR_SET_DUMPABLE, 0)  # Commands must not be able to trace this process.
            identities = {path: _identity(path) for path, *_ in covers}
        except OSError as error:
            send(connection, f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error))
            return
        send(connection, "")
        try:
            _serve(connection, stdin, identities)
        except OSError:
            pass  # The other end closed the socket.
