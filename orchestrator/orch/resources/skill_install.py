"""Skills from elsewhere: copied from a folder, a zip file or a git repository, checked first, whole or not at all."""

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

from orch_protocol.core.errors import ConfigError
from orch_protocol.resources.skills import SkillSpec
from orch_worker.session.transcript import timestamp
from orch_worker.skills.skill_file import FILES, file_of, name_in
from orch_worker.system import atomic_json
from orch_worker.system.folder_digest import MOST_BYTES, skill_files

from ..config import paths
from .skill_discovery import SkillCatalogs, untrust

__all__ = ["Installed", "install", "installed_from", "record_source", "remove"]


# --- What skills were installed from where ---

AGAIN: Final = "install again what you need to know the source of"


class Installed(Struct, frozen=True):
    """Where a skill was installed from, which `commit` of a repository, when, and the `hash` that it had then."""

    source: str
    hash: str
    at: str
    commit: str = ""
    path: str = ""


def installed_from(folder: Path, home: Path) -> Installed | None:
    """Return where the skill in `folder` was installed from, None when it was not. Raises ConfigError."""
    return _record(home).get(_key(folder))


def record_source(folder: Path, home: Path, row: Installed | None) -> None:
    """Take down where the skill in `folder` is from; None: it is not there any more. Raises ConfigError, StoreError."""
    paths.private_dir(home)
    key = _key(folder)

    def noted(known: dict[str, Installed]) -> dict[str, Installed]:
        return {each: was for each, was in known.items() if each != key} | ({key: row} if row is not None else {})

    atomic_json.change_json(_file(home), dict[str, Installed], {}, AGAIN, noted)


def _file(home: Path) -> Path:
    return home / "installed_skills.json"


def _record(home: Path) -> dict[str, Installed]:
    return atomic_json.read(_file(home), dict[str, Installed], {}, AGAIN)


def _key(folder: Path) -> str:
    return os.path.join(os.path.realpath(folder.parent), folder.name)


GIT_SECONDS: Final = 120.0
LOOK_SECONDS: Final = 0.25
MOST_CLONED: Final = 512 << 20
"""Bytes of a repository with its files: some hold a skill beside much else, none may fill a disk."""
MOST_FILES: Final = 2_000
DEPTH: Final = 3
LONGEST: Final = 255
_GIT: Final = re.compile(r"(?:https?|ssh|git|file)://|[\w.-]+@[\w.-]+:|.*\.git/?$")
_KEYS: Final = re.compile(r"(?<=://)[^/\s]+@")
"""What may stand in an address to let one in."""


def install(
    source: str, into: Path, home: Path, *, path: str = "", ref: str = "", force: bool = False
) -> tuple[SkillSpec, Installed]:
    """Copy the skill in `source` below the folder `into`, under its name, and take down where it is from.

    `source` is a folder, a zip file, or the address of a git repository; `path` says where in it the skill is, `ref`
    which branch or tag of a repository. With `force` it takes the place of one that is there.
    Raises ConfigError: it is no skill, holds links, is too large, is there already, or cannot be had.
    """
    private = into.is_relative_to(home)  # the user's own, like all that is there
    if private:
        paths.private_dir(into)
    else:
        into.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=".install-", dir=into))
    try:
        with _opened(source, ref, stage) as (root, commit):
            found = _within(root, path, source)
            name = name_in(file_of(found)) or found.name
            if not _is_one(name):
                name = "skill"  # which its file does not say, as whoever checks it will tell
            copy = stage / name
            try:
                _copy(found, copy)
            except OSError as error:
                raise ConfigError(f"{source} cannot be copied: {error.strerror}") from error
        for each in (copy, *copy.rglob("*")) if private else ():
            each.chmod(each.stat().st_mode & 0o700)
        skill = SkillCatalogs().look(copy)
        target = into / name
        known = installed_from(target, home)
        if os.path.lexists(target) and not force:
            whence = f", from {known.source}" if known is not None else ""
            raise ConfigError(
                f"there is a skill {name!r} in {into} already{whence}: --force puts this one in its place"
            )
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
    """Remove the skill `name` from the folder `into`; without `force` one alone that was installed, and is as it was.

    Raises ConfigError.
    """
    target = into / name
    if not _is_one(name) or not os.path.lexists(target):
        raise ConfigError(f"skill {name!r} is not installed in {into}")
    row = installed_from(target, home)
    if not force and row is None:
        raise ConfigError(f"skill {name!r} in {into} was not installed from anywhere: --force removes it all the same")
    if not force and row is not None and SkillCatalogs().look(target).hash != row.hash:
        raise ConfigError(f"skill {name!r} was changed since it was installed: --force removes it all the same")
    if target.is_symlink():
        target.unlink()
    else:
        shutil.rmtree(target)
    record_source(target, home, None)
    untrust(target, home)
    return target


def _is_one(name: str) -> bool:
    """Say whether `name` can be that of a folder which is a skill: nothing else is ever made, or removed."""
    return (
        0 < len(os.fsencode(name)) <= LONGEST
        and name[0] != "."
        and PurePosixPath(name).name == name
        and "\0" not in name
    )


@contextmanager
def _opened(source: str, ref: str, stage: Path) -> Iterator[tuple[Path, str]]:
    """Yield the folder that `source` is, or was unpacked to, and the commit. Raises ConfigError."""
    place = Path(source).expanduser()
    unpacked = stage / ".source"
    if zipfile.is_zipfile(place):
        _unpack(place, unpacked)
        yield unpacked, ""
    elif place.is_dir() and not _is_repository(place):
        if ref:
            raise ConfigError(f"{source} is a folder, not a repository: it has no revision {ref!r}")
        yield place.absolute(), ""
    elif place.is_dir() or _GIT.match(source):
        yield unpacked, _clone(place.absolute().as_uri() if place.is_dir() else source, ref, unpacked)
    else:
        raise ConfigError(f"{source} is neither a folder, nor a zip file, nor the address of a git repository")


def _is_repository(place: Path) -> bool:
    """Say whether a folder is a bare repository, or one whose skills are to be had as they were committed."""
    if any((place / name).is_file() for name in FILES):
        return False
    return (place / ".git").exists() or all((place / name).exists() for name in ("HEAD", "objects", "refs"))


def _clone(address: str, ref: str, to: Path) -> str:
    """Clone the repository and return its commit. Raises ConfigError."""
    branch = ["--branch", ref] if ref else []
    safe = ["-c", "protocol.ext.allow=never", "-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=false"]
    _git([*safe, "clone", "--quiet", "--depth", "1", "--single-branch", *branch, "--", address, str(to)], address, to)
    return _git(["-C", str(to), "rev-parse", "HEAD"], address, to).strip()


def _git(arguments: list[str], address: str, to: Path) -> str:
    """Return what git prints, which fills `to` within bounds. Raises ConfigError."""
    shown = _KEYS.sub("", address)
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
        raise ConfigError(f"cannot download {shown}: git is not installed") from error
    try:
        said, complaint = _ended(git, shown, to)
    finally:
        if git.returncode is None:  # what fetches is a process of its own, which would go on
            os.killpg(git.pid, signal.SIGKILL)
            git.communicate()
    if git.returncode:
        why = _KEYS.sub("", " ".join(complaint.split()))[-400:]
        raise ConfigError(f"{shown} cannot be had: {why or f'git ended with {git.returncode}'}")
    return said


def _ended(git: subprocess.Popen[str], shown: str, to: Path) -> tuple[str, str]:
    """Return what git says when it has ended. Raises ConfigError when it takes too long, or too much."""
    over = time.monotonic() + GIT_SECONDS
    while True:
        try:
            said = git.communicate(timeout=LOOK_SECONDS)
        except subprocess.TimeoutExpired as error:
            if time.monotonic() > over:
                raise ConfigError(f"{shown} cannot be had: git did not end within {GIT_SECONDS:g} s") from error
            said = None
        if _is_more(to, MOST_CLONED):
            raise ConfigError(f"{shown} cannot be had: it holds more than {MOST_CLONED >> 20} MiB")
        if said is not None:
            return said


def _is_more(folder: Path, most: int) -> bool:
    """Say whether the files below `folder`, which comes and goes meanwhile, take more than `most` bytes."""
    size = 0
    for here, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += os.lstat(os.path.join(here, name)).st_size
                if size > most:
                    return True
    return False


def _unpack(file: Path, to: Path) -> None:
    size = 0
    try:
        with zipfile.ZipFile(file) as archive:
            members = [each for each in archive.infolist() if not each.is_dir()]
            if len(members) > MOST_FILES:
                raise ConfigError(f"{file} holds {len(members):,} files: no skill needs so many")
            for each in members:
                path = PurePosixPath(each.filename)
                if path.is_absolute() or ".." in path.parts or stat.S_ISLNK(each.external_attr >> 16):
                    raise ConfigError(
                        f"{file}: member {each.filename!r} is a link or lies outside the archive; nothing was unpacked"
                    )
                size += each.file_size
                if size > MOST_BYTES:
                    raise ConfigError(f"{file} holds more than {MOST_BYTES >> 20} MiB")
                target = to.joinpath(*path.parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(each) as packed, target.open("xb") as made:
                    made.write(packed.read(each.file_size + 1)[: each.file_size])
                target.chmod(0o755 if (each.external_attr >> 16) & 0o100 else 0o644)
    except ConfigError:
        raise
    except Exception as error:  # whatever unpackers say of bytes that they do not understand
        raise ConfigError(f"{file} cannot be unpacked: {error}") from error


def _within(root: Path, path: str, source: str) -> Path:
    """Return the folder of the skill in `root`: at `path`, at its top, or the only one below. Raises ConfigError."""
    at = PurePosixPath(path)
    if at.is_absolute() or ".." in at.parts:
        raise ConfigError(f"invalid path {path!r}: it must be a relative path below {source}")
    base = root.joinpath(*at.parts)
    if not Path(os.path.realpath(base)).is_relative_to(os.path.realpath(root)):
        raise ConfigError(f"{path!r} leads out of {source}, by a link")
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
        deep = len(here.relative_to(base).parts)
        folders[:] = [] if deep >= DEPTH else sorted(name for name in folders if name != ".git")
        if any(name in files for name in FILES):
            folders.clear()
            yield here


def _copy(found: Path, to: Path) -> None:
    """Copy the files of a skill. Raises ConfigError for links and whatever else is no file."""
    size = 0
    to.mkdir()
    for path in skill_files(found):
        size += path.stat().st_size
        if size > MOST_BYTES:
            raise ConfigError(f"{found} holds more than {MOST_BYTES >> 20} MiB: it is for code and texts")
        target = to / path.relative_to(found)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target, follow_symlinks=False)
        target.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
