"""Installs skills from a folder, a zip file or a git repository.

A skill is validated first, and then copied completely.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import Struct

from orch_protocol.core.errors import ConfigError, EntryNotFoundError
from orch_protocol.resources.skills import SkillSpec
from orch_worker.session.entry_codec import timestamp
from orch_worker.skills.skill_file import FILES, file_of, name_in
from orch_worker.system import atomic_json
from orch_worker.system.folder_digest import MAX_BYTES, skill_files

from ..config import paths
from ..config.trust import revoke
from .skill_discovery import SkillCatalogs

__all__ = ["Installed", "install", "installed_from", "record_source", "remove"]


# --- Record of installed skills and their sources ---

RECOVERY_HINT: Final = "install again what you need to know the source of"


class Installed(Struct, frozen=True):
    """The source of an installed skill.

    `commit` is the commit of a git repository, `at` is the time of the installation. `hash` identifies the installed
    content.
    """

    source: str
    hash: str
    at: str
    commit: str = ""
    path: str = ""


def installed_from(folder: Path, home: Path) -> Installed | None:
    """Return the source of the skill in `folder`. Return None if the skill was not installed. Raises ConfigError."""
    return _record(home).get(_key(folder))


def record_source(folder: Path, home: Path, row: Installed | None) -> None:
    """Record the source of the skill in `folder`. None removes the record. Raises ConfigError, StoreError."""
    paths.private_dir(home)
    key = _key(folder)

    def update(known: dict[str, Installed]) -> dict[str, Installed]:
        return {each: was for each, was in known.items() if each != key} | ({key: row} if row is not None else {})

    atomic_json.change_json(_file(home), dict[str, Installed], {}, RECOVERY_HINT, update)


def _file(home: Path) -> Path:
    return home / "installed_skills.json"


def _record(home: Path) -> dict[str, Installed]:
    return atomic_json.read(_file(home), dict[str, Installed], {}, RECOVERY_HINT)


def _key(folder: Path) -> str:
    return os.path.join(os.path.realpath(folder.parent), folder.name)


GIT_SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.25
MAX_CLONED: Final = 512 << 20
"""The maximum size of a repository and its files in bytes, so that a clone cannot fill the disk."""
MAX_FILES: Final = 2_000
MAX_DEPTH: Final = 3
MAX_NAME_BYTES: Final = 255
_GIT: Final = re.compile(r"(?:https?|ssh|git|file)://|[\w.-]+@[\w.-]+:|.*\.git/?$")
_KEYS: Final = re.compile(r"(?<=://)[^/\s]+@")
"""Credentials in an address."""


def install(
    source: str, into: Path, home: Path, *, path: str = "", ref: str = "", force: bool = False
) -> tuple[SkillSpec, Installed]:
    """Copy the skill in `source` to a folder with the skill's name below `into`, and record the source.

    `source` is a folder, a zip file, or the address of a git repository. `path` is the path of the skill in `source`.
    `ref` is a branch or tag of a repository. With `force` an existing skill is replaced. Raises ConfigError if the
    skill is invalid, contains links, is too large, already exists, or cannot be downloaded.
    """
    is_private = into.is_relative_to(home)  # the installed skill is private to the user, like everything in the home
    if is_private:
        paths.private_dir(into)
    else:
        into.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=".install-", dir=into))
    try:
        with _open_source(source, ref, stage) as (root, commit):
            found = _locate_skill(root, path, source)
            name = name_in(file_of(found)) or found.name
            if not _is_valid_name(name):
                name = "skill"  # the skill has no valid name; the check below reports this
            copy = stage / name
            try:
                _copy(found, copy)
            except OSError as error:
                raise ConfigError(f"{source} cannot be copied: {error.strerror}") from error
        for each in (copy, *copy.rglob("*")) if is_private else ():
            each.chmod(each.stat().st_mode & 0o700)
        skill = SkillCatalogs().look(copy)
        target = into / name
        known = installed_from(target, home)
        if os.path.lexists(target) and not force:
            origin = f", from {known.source}" if known is not None else ""
            raise ConfigError(f"{into} already contains a skill {name!r}{origin}: use --force to replace it")
        if os.path.lexists(target):
            target.rename(stage / ".old")
        try:
            copy.rename(target)
        except OSError:
            if (stage / ".old").exists():
                (stage / ".old").rename(target)
            raise
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    row = Installed(_KEYS.sub("", source), skill.hash, timestamp(), commit, path)
    record_source(target, home, row)
    return SkillSpec(skill.name, skill.description, hash=skill.hash, path=str(target), allowed=skill.allowed), row


def remove(name: str, into: Path, home: Path, *, force: bool = False) -> Path:
    """Remove the skill `name` from the folder `into`. Raises ConfigError, EntryNotFoundError.

    Without `force`, the skill must have been installed and must be unchanged.
    """
    target = into / name
    if not _is_valid_name(name) or not os.path.lexists(target):
        raise EntryNotFoundError(f"skill {name!r} is not installed in {into}")
    row = installed_from(target, home)
    if not force and row is None:
        raise ConfigError(f"skill {name!r} in {into} was not installed by orch: use --force to remove it")
    if not force and row is not None and SkillCatalogs().look(target).hash != row.hash:
        raise ConfigError(f"skill {name!r} was changed after the installation: use --force to remove it")
    if target.is_symlink():
        target.unlink()
    else:
        shutil.rmtree(target)
    record_source(target, home, None)
    revoke(home, "skill", target)
    return target


def _is_valid_name(name: str) -> bool:
    """Return whether `name` is a valid name of a skill folder.

    Folders with other names are never created or removed.
    """
    return (
        0 < len(os.fsencode(name)) <= MAX_NAME_BYTES
        and name[0] != "."
        and PurePosixPath(name).name == name
        and "\0" not in name
    )


@contextmanager
def _open_source(source: str, ref: str, stage: Path) -> Iterator[tuple[Path, str]]:
    """Yield the folder of `source` and the commit.

    A zip file is unpacked, a repository is cloned. Raises ConfigError.
    """
    source_path = Path(source).expanduser()
    unpacked = stage / ".source"
    if zipfile.is_zipfile(source_path):
        _unpack(source_path, unpacked)
        yield unpacked, ""
    elif source_path.is_dir() and not _is_repository(source_path):
        if ref:
            raise ConfigError(f"{source} is a folder, not a repository: it has no revision {ref!r}")
        yield source_path.absolute(), ""
    elif source_path.is_dir() or _GIT.match(source):
        yield unpacked, _clone(source_path.absolute().as_uri() if source_path.is_dir() else source, ref, unpacked)
    else:
        raise ConfigError(f"{source} is neither a folder, nor a zip file, nor the address of a git repository")


def _is_repository(folder: Path) -> bool:
    """Return whether a folder is a git repository. Only committed skills of a repository are installed."""
    if any((folder / name).is_file() for name in FILES):
        return False
    return (folder / ".git").exists() or all((folder / name).exists() for name in ("HEAD", "objects", "refs"))


def _clone(address: str, ref: str, to: Path) -> str:
    """Clone the repository and return its commit. Raises ConfigError."""
    branch = ["--branch", ref] if ref else []
    safe = ["-c", "protocol.ext.allow=never", "-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=false"]
    _git([*safe, "clone", "--quiet", "--depth", "1", "--single-branch", *branch, "--", address, str(to)], address, to)
    return _git(["-C", str(to), "rev-parse", "HEAD"], address, to).strip()


def _git(arguments: list[str], address: str, to: Path) -> str:
    """Run git and return its output. The size of the folder `to` and the time are limited. Raises ConfigError."""
    display_address = _KEYS.sub("", address)
    try:
        git = subprocess.Popen(
            ["git", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=os.environ | {"GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1"},
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise ConfigError(f"cannot download {display_address}: git is not installed") from error
    try:
        output, errors = _wait_for_git(git, display_address, to)
    finally:
        if git.returncode is None:  # git downloads in a child process, which would otherwise continue
            os.killpg(git.pid, signal.SIGKILL)
            git.communicate()
    if git.returncode:
        why = _KEYS.sub("", " ".join(errors.split()))[-400:]
        raise ConfigError(f"cannot download {display_address}: {why or f'git ended with {git.returncode}'}")
    return output


def _wait_for_git(git: subprocess.Popen[str], display_address: str, to: Path) -> tuple[str, str]:
    """Wait for git and return its output. Raises ConfigError if git takes too long or writes too much."""
    deadline = time.monotonic() + GIT_SECONDS
    while True:
        try:
            output = git.communicate(timeout=POLL_SECONDS)
        except subprocess.TimeoutExpired as error:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"cannot download {display_address}: git did not end within {GIT_SECONDS:g} s"
                ) from error
            output = None
        if _exceeds(to, MAX_CLONED):
            raise ConfigError(f"cannot download {display_address}: it is larger than {MAX_CLONED >> 20} MiB")
        if output is not None:
            return output


def _exceeds(folder: Path, limit: int) -> bool:
    """Return whether the files below `folder` are larger than `limit` bytes. The files may change during the check."""
    size = 0
    for folder_path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += os.lstat(os.path.join(folder_path, name)).st_size
                if size > limit:
                    return True
    return False


def _unpack(file: Path, to: Path) -> None:
    size = 0
    try:
        with zipfile.ZipFile(file) as archive:
            members = [each for each in archive.infolist() if not each.is_dir()]
            if len(members) > MAX_FILES:
                raise ConfigError(f"{file} holds {len(members):,} files: no skill needs so many")
            for each in members:
                path = PurePosixPath(each.filename)
                if path.is_absolute() or ".." in path.parts or stat.S_ISLNK(each.external_attr >> 16):
                    raise ConfigError(
                        f"{file}: member {each.filename!r} is a link or lies outside the archive; nothing was unpacked"
                    )
                size += each.file_size
                if size > MAX_BYTES:
                    raise ConfigError(f"{file} holds more than {MAX_BYTES >> 20} MiB")
                target = to.joinpath(*path.parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(each) as packed, target.open("xb") as output_file:
                    output_file.write(packed.read(each.file_size + 1)[: each.file_size])
                target.chmod(0o755 if (each.external_attr >> 16) & 0o100 else 0o644)
    except ConfigError:
        raise
    except Exception as error:  # unpackers raise many kinds of errors for invalid data
        raise ConfigError(f"{file} cannot be unpacked: {error}") from error


def _locate_skill(root: Path, path: str, source: str) -> Path:
    """Return the folder of the skill in `root`. Raises ConfigError.

    The result is the folder `path` in `root`, or the only skill folder below that folder.
    """
    relative = PurePosixPath(path)
    if relative.is_absolute() or ".." in relative.parts:
        raise ConfigError(f"invalid path {path!r}: it must be a relative path below {source}")
    base = root.joinpath(*relative.parts)
    if not Path(os.path.realpath(base)).is_relative_to(os.path.realpath(root)):
        raise ConfigError(f"{path!r} is a link to a place outside {source}")
    if any((base / name).is_file() for name in FILES):
        return base
    found = sorted(_skills_below(base)) if base.is_dir() and not base.is_symlink() else []
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConfigError(f"{source} holds no skill{f' at {path!r}' if path else ''}: no folder with a {FILES[0]}")
    names = ", ".join(each.relative_to(root).as_posix() for each in found[:20])
    raise ConfigError(f"{source} holds {len(found)} skills: choose one with --path; there are {names}")


def _skills_below(base: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(base):
        here = Path(folder)
        depth = len(here.relative_to(base).parts)
        folders[:] = [] if depth >= MAX_DEPTH else sorted(name for name in folders if name != ".git")
        if any(name in files for name in FILES):
            folders.clear()
            yield here


def _copy(found: Path, to: Path) -> None:
    """Copy the files of a skill. Raises ConfigError for links and other special files."""
    size = 0
    to.mkdir()
    for path in skill_files(found):
        size += path.stat().st_size
        if size > MAX_BYTES:
            raise ConfigError(f"{found} is larger than {MAX_BYTES >> 20} MiB: skills are for code and texts")
        target = to / path.relative_to(found)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target, follow_symlinks=False)
        target.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
