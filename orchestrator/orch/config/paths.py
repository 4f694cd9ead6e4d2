"""Locations of orch's files. Each user has one private folder, `$ORCH_HOME`. Folders are created on demand.

Importing this module is cheap, because the thin CLI imports it. pathlib, hashlib and orch's errors are imported on
demand.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping

TYPE_CHECKING = False  # importing typing would take a fifth of the thin CLI's time
if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "DAEMON_RUN",
    "SCRATCH_PREFIX",
    "UNNAMED_RUN_PREFIX",
    "announced_socket",
    "checked_path",
    "control_socket",
    "conversations_dir",
    "current_folder",
    "daemon_dir",
    "ensure_private_folder",
    "gateway_dir",
    "home",
    "home_text",
    "imports_dir",
    "is_in_use",
    "link_socket",
    "lock_owner",
    "orch_folders",
    "private_dir",
    "root_socket",
    "run_dir",
    "runs_dir",
    "sessions_dir",
    "sessions_of",
    "shared_folder",
    "socket_path",
    "write_gitignore",
]

DAEMON_RUN = "daemon"
"""The name of the run of the per-user daemon."""
UNNAMED_RUN_PREFIX = "run-"
"""The prefix of the names of unnamed runs. Named runs cannot use this prefix."""
SCRATCH_PREFIX = "scratch-"
"""Prefix of the temporary folders of commands."""
IGNORED = "/sessions/\n/runs/\n/daemon/\n/imports/\n/gateway/\n"
CONTROL = "control.sock"
MAX_SOCKET_PATH = 100
"""The maximum length in bytes. The kernel's limit is 107; the difference is reserved for suffixes."""


def home_text(env: Mapping[str, str] | None = None) -> str:
    """Return the absolute path of orch's folder: `$ORCH_HOME`, `$XDG_DATA_HOME/orch` or `~/.local/share/orch`.

    Raises ConfigError for a user without a home folder, and for a path that is not UTF-8.
    """
    env = os.environ if env is None else env
    if chosen := env.get("ORCH_HOME"):
        return _require_utf8(os.path.abspath(os.path.expanduser(chosen)))
    data = env.get("XDG_DATA_HOME", "")
    if not os.path.isabs(data):  # the XDG specification requires relative paths to be ignored
        user_home = env.get("HOME") or os.path.expanduser("~")
        if not os.path.isabs(user_home):  # the user has no database entry and no variable, as in some containers
            from orch_protocol.core.errors import ConfigError

            raise ConfigError(
                "cannot find the home folder: HOME is not set and the user database has no entry. Set ORCH_HOME"
            )
        data = os.path.join(user_home, ".local", "share")
    return _require_utf8(os.path.join(data, "orch"))


def home(env: Mapping[str, str] | None = None, chosen: str | os.PathLike[str] | None = None) -> Path:
    """Return orch's folder, or the `chosen` folder. The folder may not exist yet (see `private_dir`).

    Raises ConfigError under the same conditions as `home_text`.
    """
    from pathlib import Path

    return Path(home_text(env) if chosen is None else _require_utf8(os.path.abspath(os.path.expanduser(chosen))))


def current_folder() -> Path:
    """Return the current folder. Raises ConfigError when it was deleted."""
    from pathlib import Path

    try:
        return Path.cwd()
    except FileNotFoundError:
        from orch_protocol.core.errors import ConfigError

        raise ConfigError("the current folder no longer exists; change to an existing one") from None


def checked_path(parameter: str, path: str | os.PathLike[str] | None) -> str | None:
    """Return `path` as text. Return None for None. Raises ConfigError for other types.

    `parameter` is the name of the parameter for the error message.
    """
    if path is None:
        return None
    try:
        text = os.fspath(path)
        if isinstance(text, str) and b"\0" not in os.fsencode(text):
            return text
    except (TypeError, UnicodeEncodeError):
        pass  # for example a lone surrogate
    from orch_protocol.core.errors import ConfigError

    raise ConfigError(f"{parameter} must be a path (string or Path); got {path!r}")


def _require_utf8(path: str) -> str:
    """Return `path`.

    Raises ConfigError if it is not valid UTF-8, because messages to other processes contain the path.
    """
    try:
        path.encode()
    except UnicodeEncodeError:
        from orch_protocol.core.errors import ConfigError

        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise ConfigError(f"the path {shown} is not UTF-8: set ORCH_HOME to a UTF-8 path") from None
    return path


def sessions_dir(home: Path) -> Path:
    """Return the folder of session folders."""
    return home / "sessions"


def sessions_of(home: Path, chosen: str | None) -> Path:
    """Return the folder of session folders.

    The folder is `chosen` (relative to `home`). With None, the folder is the default in `home`. The result does not
    depend on the current folder, so that later processes find the same folder. Raises ConfigError for an invalid path.
    """
    if chosen is None:
        return sessions_dir(home)
    from pathlib import Path

    path = os.path.expanduser(chosen)
    if not path.strip() or path.startswith("~") or "\0" in path:
        from orch_protocol.core.errors import ConfigError

        raise ConfigError(f"session_dir = {chosen!r} is not the path of a folder: set a path or remove the setting")
    return Path(os.path.abspath(home / path))


def imports_dir(home: Path) -> Path:
    """Return the folder of imported sessions."""
    return home / "imports"


def runs_dir(home: Path) -> Path:
    """Return the folder of run folders, one per root."""
    return home / "runs"


def run_dir(home: Path, run: str) -> Path:
    """Return the folder of the run `run`."""
    return runs_dir(home) / run


def is_in_use(folder: Path) -> bool:
    """Return whether a running process has locked `folder`."""
    return lock_owner(folder) is not None


def lock_owner(folder: Path) -> int | None:
    """Return the process that has locked `folder`. Return None if it released the lock or has ended."""
    try:
        pid = int((folder / "lock").read_text())
        if pid <= 0:  # os.kill would address a process group
            return None
        os.kill(pid, 0)
    except PermissionError:
        return pid
    except (OSError, ValueError, OverflowError):
        return None
    return pid


def orch_folders(home: Path, run: Path, sessions: Path, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the folders of orch that are hidden from agents of the run in `run`, as absolute paths.

    The hidden folders are `home`, `sessions`, the home of `env`, the user's default home, and folders of sockets. The
    home of `env` and the default home are included if they exist, because a daemon may use them. Sockets have a
    separate folder if their path in a home would be too long. Folders inside other listed folders are omitted.
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
        return None  # the user has no home folder


def write_gitignore(home: Path) -> None:
    """Write a .gitignore, so that Git and agents that search a folder skip orch's own files in `home`."""
    try:
        with open(home / ".gitignore", "x", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(IGNORED)
    except OSError:
        pass  # it exists, perhaps with changes of the user; later steps report write errors


def daemon_dir(home: Path) -> Path:
    """Return the folder of the per-user daemon's lock, pid file, socket and log."""
    return home / "daemon"


def gateway_dir(home: Path) -> Path:
    """Return the folder of the proxy's lock, socket, token and log, and of its conversations."""
    return home / "gateway"


def conversations_dir(home: Path) -> Path:
    """Return the folder of the proxy's conversations and receipts."""
    return gateway_dir(home) / "conversations"


def private_dir(folder: Path, setting: str = "ORCH_HOME") -> Path:
    """Create `folder` and its missing parents with mode 0700, and return `folder`. The umask has no effect.

    An existing folder is unchanged. If the folder cannot be created, raises StoreError, which names `setting`.
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
            f"cannot create the folder {folder}: {error.strerror}. Make it writable or change {setting}"
        ) from error
    return folder


def socket_path(folder: Path | str, name: str, env: Mapping[str, str] | None = None) -> str:
    """Return the path of the socket `name` of `folder`.

    The socket is in `folder`. If this path is too long for a socket, the socket is in a private folder instead. The
    private folder is under `$XDG_RUNTIME_DIR` if the user owns this folder, otherwise under /tmp. This function creates
    the private folder. Raises StoreError if it is not private.
    """
    path = os.path.join(folder, name)
    if _fits(path):
        return path
    from hashlib import sha256

    short = f"{sha256(os.fsencode(folder)).hexdigest()[:16]}-{name}"
    runtime = (os.environ if env is None else env).get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and _is_owned_by_user(runtime):
        base = os.path.join(runtime, "orch")
        if _fits(path := os.path.join(base, short)):
            ensure_private_folder(base)
            return path
    if _fits(path := os.path.join(shared_folder("/tmp"), short)):
        return path
    from orch_protocol.core.errors import StoreError

    raise StoreError(f"the socket name {name!r} is too long for any folder: shorten it")


def root_socket(run: Path) -> str:
    """Return the path of the root's socket for workers. `run` is the folder of the run; see `socket_path`."""
    return socket_path(run, "root.sock")


def control_socket(env: Mapping[str, str] | None = None) -> str:
    """Return the path of the daemon's control socket. If the daemon announced no path, return the default path."""
    return announced_socket(os.path.join(home_text(env), "daemon"), CONTROL, env)


def announced_socket(folder: Path | str, name: str, env: Mapping[str, str] | None = None) -> str:
    """Return the path of the socket `name` of `folder`. If no process announced a path, return the default path."""
    if not _fits(link := os.path.join(folder, name)):
        try:
            return os.readlink(link)
        except OSError:
            pass  # the link does not exist
    return socket_path(folder, name, env)


def link_socket(folder: Path | str, path: str, name: str = CONTROL) -> None:
    """Create a link in `folder` to its socket `name` at `path`.

    Commands need the link if the socket is outside `folder`. The path of the socket then depends on the environment,
    and a command may have another environment than the daemon.
    """
    if path != (link := os.path.join(folder, name)):
        new = f"{link}.{os.getpid()}"
        os.symlink(path, new)
        os.replace(new, link)


VARIABLES_FILE = "variables"


def write_variables(folder: Path, names: Iterable[str]) -> None:
    """Write a file in `folder` with the names of the variables that commands send to the daemon."""
    from orch_worker.system.atomic_write import atomic_write

    with atomic_write(folder / VARIABLES_FILE, sync="none") as file:
        file.write("\n".join(names).encode())


def read_variables(env: Mapping[str, str] | None = None) -> list[str]:
    """Return the names written by `write_variables` for the daemon of the ORCH_HOME in `env`.

    Return [] if there are none. If models.json is newer, its providers can need other variables: write the names again.
    """
    home = home_text(env)
    path = os.path.join(home, "daemon", VARIABLES_FILE)
    try:
        written = os.stat(path).st_mtime_ns
        models = os.path.join(home, "models.json")
        if os.path.exists(models) and os.stat(models).st_mtime_ns >= written:
            _rewrite_variables(home)
        with open(path, encoding="utf-8") as file:
            return file.read().split()
    except OSError:
        return []


def _rewrite_variables(home: str) -> None:
    from pathlib import Path

    from orch_protocol.core.errors import ConfigError
    from orch_worker.backends import models
    from orch_worker.system.secrets import SEARCH_KEY

    try:
        write_variables(Path(home, "daemon"), (*models.load(Path(home)).credentials, SEARCH_KEY))
    except ConfigError:
        pass  # the daemon reports the error if the command needs the file


def _fits(path: str) -> bool:
    return len(os.fsencode(path)) <= MAX_SOCKET_PATH


def shared_folder(parent: str) -> str:
    """Return the user's private folder in `parent`, where other users can create files. Create it if necessary.

    Another user can take its name, `orch-UID`. The folder then has a random suffix. All processes of the user find the
    same folder, because it is the first one that is private. Raises StoreError if `parent` is not writable.
    """
    from orch_protocol.core.errors import StoreError

    base = os.path.join(parent, f"orch-{os.getuid()}")
    try:
        ensure_private_folder(base)
        return base
    except StoreError as error:
        if found := _private_folders(parent, f"{base}-"):
            return found[0]
        from tempfile import mkdtemp

        try:
            made = mkdtemp(prefix=f"{os.path.basename(base)}-", dir=parent)
        except OSError:
            raise error from None
    first = _private_folders(parent, f"{base}-")[0]
    if first != made:  # another process was faster
        os.rmdir(made)
    return first


def _private_folders(parent: str, prefix: str) -> list[str]:
    """Return the folders in `parent` that begin with `prefix` and that only this user can open, in order."""
    candidates = (os.path.join(parent, name) for name in sorted(os.listdir(parent)))
    return [each for each in candidates if each.startswith(prefix) and not _why_not_private(each)]


def _is_owned_by_user(folder: str) -> bool:
    try:
        return os.stat(folder).st_uid == os.getuid()
    except OSError:
        return False


def ensure_private_folder(base: str) -> None:
    """Create `base` in a shared folder.

    If `base` exists, check that `base` is a folder, owned by this user and closed to other users. Raises StoreError if
    the check fails.
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
    if wrong := _why_not_private(base):
        raise StoreError(f"refusing {base}: it is {wrong}. Remove it")


def _why_not_private(base: str) -> str:
    """Return why other users may open or replace the folder `base`, or "" if only this user can use it."""
    try:
        found = os.lstat(base)
    except FileNotFoundError:
        return "gone"
    if not stat.S_ISDIR(found.st_mode):
        return "a link or no folder"
    if found.st_uid != os.getuid():
        return f"owned by uid {found.st_uid}"
    if stat.S_IMODE(found.st_mode) != 0o700:
        return f"open to others (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""
