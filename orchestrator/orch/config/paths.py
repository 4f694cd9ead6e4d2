"""Where orch keeps its files: one private folder a user, `$ORCH_HOME`. Nothing is created until asked for.

Importing this costs next to nothing, because the thin CLI does: pathlib, hashlib and our errors come when needed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the thin CLI a fifth of its time
if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "SCRATCH_PREFIX",
    "UNNAMED_RUN_PREFIX",
    "check_private_folder",
    "control_socket",
    "current_folder",
    "daemon_dir",
    "home",
    "home_text",
    "is_in_use",
    "link_socket",
    "orch_folders",
    "path_of",
    "private_dir",
    "root_socket",
    "run_dir",
    "runs_dir",
    "sessions_dir",
    "sessions_of",
    "socket_path",
    "write_gitignore",
]

UNNAMED_RUN_PREFIX = "run-"
"""How the run of a program that named none begins; no other does."""
SCRATCH_PREFIX = "scratch-"
"""How the folder of a command begins that needs one for as long as it runs."""
IGNORED = "/sessions/\n/runs/\n/daemon/\n"
CONTROL = "control.sock"
MAX_SOCKET_PATH = 100
"""Bytes. The kernel takes 107; the rest is left to whoever appends a suffix."""


def home_text(env: Mapping[str, str] | None = None) -> str:
    """Return the absolute path of orch's folder: `$ORCH_HOME`, `$XDG_DATA_HOME/orch` or `~/.local/share/orch`.

    Raises ConfigError for a user without a home, and for a path that is not UTF-8.
    """
    env = os.environ if env is None else env
    if chosen := env.get("ORCH_HOME"):
        return _require_utf8(os.path.abspath(os.path.expanduser(chosen)))
    data = env.get("XDG_DATA_HOME", "")
    if not os.path.isabs(data):  # a relative one is to be ignored, says its specification
        mine = env.get("HOME") or os.path.expanduser("~")
        if not os.path.isabs(mine):  # a user without an entry or a variable, as in some containers
            from orch_protocol.core.errors import ConfigError

            raise ConfigError(
                "cannot find the home folder: HOME is not set and the user database has no entry. Set ORCH_HOME"
            )
        data = os.path.join(mine, ".local", "share")
    return _require_utf8(os.path.join(data, "orch"))


def home(env: Mapping[str, str] | None = None, chosen: str | os.PathLike[str] | None = None) -> Path:
    """Return orch's folder, the `chosen` one if any, which may not exist yet (see `private_dir`).

    Raises ConfigError as `home_text` does.
    """
    from pathlib import Path

    return Path(home_text(env) if chosen is None else _require_utf8(os.path.abspath(os.path.expanduser(chosen))))


def current_folder() -> Path:
    """Return the folder that this program is in. Raises ConfigError when it is gone."""
    from pathlib import Path

    try:
        return Path.cwd()
    except FileNotFoundError:
        from orch_protocol.core.errors import ConfigError

        raise ConfigError("the folder that this program is in is gone: change to one that is there") from None


def path_of(name: str, place: str | os.PathLike[str] | None) -> str | None:
    """Return `place` as text, None for None. Raises ConfigError, which calls it `name`, for what is no path."""
    if place is None:
        return None
    try:
        path = os.fspath(place)
        if isinstance(path, str) and b"\0" not in os.fsencode(path):
            return path
    except (TypeError, UnicodeEncodeError):
        pass  # half a character, say
    from orch_protocol.core.errors import ConfigError

    raise ConfigError(f"{name} is a path, as text or a Path, not {place!r}")


def _require_utf8(path: str) -> str:
    """Return `path`, which other processes are to be told, and in messages that are UTF-8. Raises ConfigError."""
    try:
        path.encode()
    except UnicodeEncodeError:
        from orch_protocol.core.errors import ConfigError

        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise ConfigError(f"the path {shown} is not UTF-8: set ORCH_HOME to one that is") from None
    return path


def sessions_dir(home: Path) -> Path:
    """Return the folder of session folders."""
    return home / "sessions"


def sessions_of(home: Path, chosen: str | None) -> Path:
    """Return the folder of session folders that `chosen` names, None: the one in `home`; a relative one is below that.

    Whoever comes later, from whichever folder, has to find them again. Raises ConfigError for what names none.
    """
    if chosen is None:
        return sessions_dir(home)
    from pathlib import Path

    path = os.path.expanduser(chosen)
    if not path.strip() or path.startswith("~") or "\0" in path:
        from orch_protocol.core.errors import ConfigError

        raise ConfigError(f"session_dir = {chosen!r} names no folder: give its path, or leave it out")
    return Path(os.path.abspath(home / path))


def runs_dir(home: Path) -> Path:
    """Return the folder of run folders, one a root."""
    return home / "runs"


def run_dir(home: Path, run: str) -> Path:
    """Return the folder of the root called `run`."""
    return runs_dir(home) / run


def is_in_use(folder: Path) -> bool:
    """Return whether the process that locked `folder` last is still running."""
    try:
        pid = int((folder / "lock").read_text())
        if pid <= 0:  # os.kill would address a process group
            return False
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return True


def orch_folders(home: Path, run: Path, sessions: Path, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the folders of orch that agents of the run in `run` are kept from, as absolute paths.

    These are `home`, the home of `env` and the user's default one, as far as they exist (a daemon may serve there),
    `sessions`, and the folders of sockets whose path would be too long in a home. A folder below another one is left
    out.
    """
    sockets = [root_socket(run), socket_path(daemon_dir(home), CONTROL, env)]
    homes = [str(home)]
    for names in (env, {name: value for name, value in env.items() if name != "ORCH_HOME"}):
        other = _home_of(names)
        if other and os.path.isdir(other):
            homes.append(other)
            if os.path.islink(link := os.path.join(other, "daemon", CONTROL)):
                sockets.append(os.readlink(link))
    found = dict.fromkeys([*homes, str(sessions), str(run), *map(os.path.dirname, sockets)])
    return tuple(each for each in found if not any(each.startswith(os.path.join(above, "")) for above in found))


def _home_of(env: Mapping[str, str]) -> str | None:
    from orch_protocol.core.errors import ConfigError

    try:
        return home_text(env)
    except ConfigError:
        return None  # this user has no home folder


def write_gitignore(home: Path) -> None:
    """Let neither Git nor agents that look through a folder come upon what orch itself keeps in `home`, below it."""
    try:
        with open(home / ".gitignore", "x", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(IGNORED)
    except OSError:
        pass  # it is there, perhaps with what its owner wants; or nothing can be written, which others say


def daemon_dir(home: Path) -> Path:
    """Return the folder of the per-user daemon's lock, pid file, socket and log."""
    return home / "daemon"


def private_dir(folder: Path, setting: str = "ORCH_HOME") -> Path:
    """Create `folder` and what is missing above it, each with mode 0700 whatever the umask is, and return it.

    A folder that exists is left as it is. StoreError when it cannot be made, which names the `setting` that it is from.
    """
    missing = []
    at = folder
    while not at.exists():
        missing.append(at)
        at = at.parent
    try:
        for each in reversed(missing):
            each.mkdir(mode=0o700, exist_ok=True)
            each.chmod(0o700)
        if not folder.is_dir():
            raise NotADirectoryError(20, "not a directory")
    except OSError as error:
        from orch_protocol.core.errors import StoreError

        raise StoreError(
            f"cannot create the folder {folder}: {error.strerror}. Make it writable or set {setting} to one that is"
        ) from error
    return folder


def socket_path(folder: Path | str, name: str, env: Mapping[str, str] | None = None) -> str:
    """Return where the socket `name` of `folder` is bound: inside it, unless that path is too long for a socket.

    Then it is a private folder of ours under `$XDG_RUNTIME_DIR`, where that is ours too, or /tmp, created here;
    StoreError if somebody else made that folder.
    """
    path = os.path.join(folder, name)
    if _fits(path):
        return path
    from hashlib import sha256

    short = f"{sha256(os.fsencode(folder)).hexdigest()[:16]}-{name}"
    runtime = (os.environ if env is None else env).get("XDG_RUNTIME_DIR", "")
    bases = [f"/tmp/orch-{os.getuid()}"]
    if os.path.isabs(runtime) and _is_ours(runtime):
        bases.insert(0, os.path.join(runtime, "orch"))
    for base in bases:
        if _fits(path := os.path.join(base, short)):
            check_private_folder(base)
            return path
    from orch_protocol.core.errors import StoreError

    raise StoreError(f"the socket name {name!r} is too long for any folder: shorten it")


def root_socket(run: Path) -> str:
    """Return where the root of the run in that folder is spoken to by its workers; see `socket_path`."""
    return socket_path(run, "root.sock")


def control_socket(env: Mapping[str, str] | None = None) -> str:
    """Return the path of the daemon's control socket: where a daemon says that it is, else where one would be."""
    folder = os.path.join(home_text(env), "daemon")
    if not _fits(link := os.path.join(folder, CONTROL)):
        try:
            return os.readlink(link)
        except OSError:
            pass  # there is none
    return socket_path(folder, CONTROL, env)


def link_socket(folder: Path | str, path: str) -> None:
    """Let whoever looks for the control socket in `folder` find it at `path`.

    What a long path falls back to depends on the environment, and a command's may be another than the daemon's is.
    """
    if path != (link := os.path.join(folder, CONTROL)):
        new = f"{link}.{os.getpid()}"
        os.symlink(path, new)
        os.replace(new, link)


VARIABLES = "variables"


def write_variables(folder: Path, names: Iterable[str]) -> None:
    """Let commands know which variables the daemon in `folder` wants to be sent."""
    new = folder / f"{VARIABLES}.{os.getpid()}"
    new.write_text("\n".join(names))
    new.replace(folder / VARIABLES)


def variables(env: Mapping[str, str] | None = None) -> list[str]:
    """Return the names that `write_variables` wrote for the daemon of `env`'s ORCH_HOME, none where it wrote none."""
    try:
        with open(os.path.join(home_text(env), "daemon", VARIABLES), encoding="utf-8") as file:
            return file.read().split()
    except OSError:
        return []


def _fits(path: str) -> bool:
    return len(os.fsencode(path)) <= MAX_SOCKET_PATH


def _is_ours(folder: str) -> bool:
    try:
        return os.stat(folder).st_uid == os.getuid()
    except OSError:
        return False


def check_private_folder(base: str) -> None:
    """Make sure that `base`, in a folder that is everybody's, is a real folder, ours, and closed to others.

    Raises StoreError when it is not.
    """
    from orch_protocol.core.errors import StoreError

    try:
        os.mkdir(base, 0o700)
        os.chmod(base, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise StoreError(
            f"cannot create {base}: {error.strerror}. Make its parent writable, or remove the file that blocks it"
        ) from error
    found = os.lstat(base)
    wrong = (
        "a link or no folder"
        if not stat.S_ISDIR(found.st_mode)
        else f"owned by uid {found.st_uid}"
        if found.st_uid != os.getuid()
        else f"open to others (mode {stat.S_IMODE(found.st_mode):04o})"
        if stat.S_IMODE(found.st_mode) != 0o700
        else None
    )
    if wrong:
        raise StoreError(f"refusing {base}: it is {wrong}. Remove it")
