"""The repository in the worktree of an agent.

The agent can write every file of it, also its configuration. Therefore, the root runs no git command in this
repository. It opens the files without following links, and takes refs and objects from them as data.
"""

from __future__ import annotations

import codecs
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from orch_protocol.core.errors import WorktreeError
from orch_worker.system.files import open_regular_file
from orch_worker.system.safe_descent import FOLDER, open_below

__all__ = [
    "GIT_FOLDER",
    "AgentHead",
    "alternates",
    "copy_index",
    "create",
    "head",
    "link_objects",
    "move",
    "write_refs",
]

GIT_FOLDER: Final = ".git"
PACKED: Final = "packed-refs"
HEADER: Final = "# pack-refs with: sorted \n"
MAX_REF: Final = 4096
MAX_PACKED: Final = 64 << 20
MAX_INDEX: Final = 1 << 30
_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REF: Final = re.compile(r"refs/heads/(?!.*(//|\.\.|/\.|\.lock(/|$)))[^\s\x00-\x1f~^:?*\[\\]+")
_SHARD: Final = re.compile(r"[0-9a-f]{2}")
_LOOSE: Final = re.compile(r"[0-9a-f]{38}|[0-9a-f]{62}")
_PACK: Final = re.compile(r"pack-[0-9a-f]+\.(pack|idx)")


class AgentHead(Struct, frozen=True):
    """The HEAD of an agent's repository. `ref` is "" if it is detached, and `commit` is "" if it has no commit."""

    ref: str
    commit: str


def create(top: str, branch: str, commit: str, refs: Mapping[str, str], config: str, common: str) -> None:
    """Create the repository in the new worktree `top`, with `branch` at `commit`.

    It uses the objects of the user's repository `common`, and has copies of `refs`, a mapping of names to ids. Raises
    OSError.
    """
    folder = Path(top, GIT_FOLDER)
    for name in ("objects/info", "objects/pack", "refs/heads", "refs/tags", "info"):
        (folder / name).mkdir(parents=True)
    for name in ("shallow", "info/exclude"):
        # A link could lead to a file that the agent may not read.
        with suppress(FileNotFoundError), open_regular_file(Path(common, name), Path(common)) as source:
            (folder / name).write_bytes(source.read())
    files = {
        "config": config,
        "objects/info/alternates": f"{_quoted_line(os.path.join(common, 'objects'))}\n",
        PACKED: _packed({**refs, f"refs/heads/{branch}": commit}),
        "HEAD": f"ref: refs/heads/{branch}\n",
    }
    for name, text in files.items():
        (folder / name).write_bytes(os.fsencode(text))


def head(top: str) -> AgentHead | None:
    """Return the HEAD of the agent's repository in the worktree `top`.

    Return None if `.git` is not a folder. The agent may have replaced it.
    """
    try:
        if not stat.S_ISDIR(os.lstat(os.path.join(top, GIT_FOLDER)).st_mode):
            return None
    except OSError:
        return None
    text = _read(top, "HEAD").strip()
    if not text.startswith("ref: "):
        return AgentHead("", _commit(text))
    ref = text.removeprefix("ref: ").strip()
    if not _REF.fullmatch(ref):
        return AgentHead("", "")
    return AgentHead(ref, _commit(_read(top, ref).strip()) or _commit(_packed_refs(top).get(ref, "")))


def copy_index(top: str, target: str) -> None:
    """Copy the index of the agent to `target`. Do nothing if the agent has no index.

    Git compares the times of changed files with the time of the index, so the copy has the same time.
    """
    with suppress(OSError), open_regular_file(Path(top, GIT_FOLDER, "index"), Path(top)) as source:
        status = os.fstat(source.fileno())
        if status.st_size <= MAX_INDEX:
            with open(target, "wb") as copy:
                shutil.copyfileobj(source, copy)
            os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def link_objects(top: str, target: str) -> None:
    """Make the agent's objects available in the new folder `target`, with hard links.

    Files that are not objects or packs are left out, so that git does not read lists of other folders with objects.
    """
    os.mkdir(target)
    for shard in (*_listed(top, "objects", _SHARD), "pack"):
        source = f"objects/{shard}"
        place = os.path.join(target, shard)
        os.mkdir(place)
        with suppress(OSError), _folder(top, source) as folder:
            for name in os.listdir(folder):
                if not (_PACK if shard == "pack" else _LOOSE).fullmatch(name):
                    continue
                link = os.path.join(place, name)
                os.link(name, link, src_dir_fd=folder, follow_symlinks=False)
                if not stat.S_ISREG(os.lstat(link).st_mode):
                    os.unlink(link)


def write_refs(top: str, refs: Mapping[str, str], own: str) -> None:
    """Update the copies of the user's refs in the agent's repository. The agent's branch `own` does not change.

    Raises OSError, WorktreeError.
    """
    old = _packed_refs(top)
    new = {**old, **{name: id for name, id in refs.items() if name != own}}
    if new != old:
        _replace(top, PACKED, os.fsencode(_packed(new)))


def move(top: str, at: AgentHead, commit: str, index: str) -> None:
    """Move the agent's HEAD `at` to `commit`, and make the file `index` its index. Raises OSError, WorktreeError."""
    with open(index, "rb") as file:
        _replace(top, "index", file.read(), os.fstat(file.fileno()).st_mtime_ns)
    _replace(top, at.ref or "HEAD", f"{commit}\n".encode())


def alternates(common: str) -> tuple[str, ...]:
    """Return the folders from which git takes the objects of the user's repository `common`, with links resolved.

    The first is the folder of the repository itself. Others come from lists, and these folders can have such lists too.
    """
    found: dict[str, None] = {os.path.realpath(os.path.join(common, "objects")): None}
    waiting = list(found)
    while waiting:
        folder = waiting.pop()
        with suppress(OSError), open(os.path.join(folder, "info", "alternates"), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                continue
            for line in file.read(MAX_PACKED).split(b"\n"):
                if line and not line.startswith(b"#"):
                    place = os.path.realpath(os.path.join(folder, os.fsdecode(_unquoted(line))))
                    if place not in found:
                        found[place] = None
                        waiting.append(place)
    return tuple(found)


def _unquoted(line: bytes) -> bytes:
    if not line.startswith(b'"'):
        return line
    text: bytes = codecs.escape_decode(line.strip().strip(b'"'))[0]
    return text


def _read(top: str, name: str, limit: int = MAX_REF) -> str:
    """Return the content of a file of the agent's repository, "" if it is not a regular file below `top`."""
    try:
        with open_regular_file(Path(top, GIT_FOLDER, name), Path(top)) as file:
            return os.fsdecode(file.read(limit))
    except (OSError, ValueError):
        return ""


def _commit(text: str) -> str:
    return text if _COMMIT.fullmatch(text) else ""


def _packed_refs(top: str) -> dict[str, str]:
    refs = {}
    for line in _read(top, PACKED, MAX_PACKED).splitlines():
        id, _, name = line.partition(" ")
        if name.startswith("refs/") and _commit(id):
            refs[name] = id
    return refs


def _packed(refs: Mapping[str, str]) -> str:
    return HEADER + "".join(f"{id} {name}\n" for name, id in sorted(refs.items(), key=lambda ref: os.fsencode(ref[0])))


@contextmanager
def _folder(top: str, name: str, *, create: bool = False) -> Iterator[int]:
    """Yield a descriptor of a folder of the agent's repository, without following links. Raises OSError."""
    path = "/".join(part for part in (GIT_FOLDER, name) if part)
    if create and os.path.dirname(path):
        with (
            _folder(top, os.path.dirname(name), create=os.path.dirname(name) != "") as above,
            suppress(FileExistsError),
        ):
            if name:
                os.mkdir(os.path.basename(name), dir_fd=above)
    descriptor = open_below(top, path, FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _listed(top: str, name: str, pattern: re.Pattern[str]) -> list[str]:
    with suppress(OSError), _folder(top, name) as folder:
        return [each for each in os.listdir(folder) if pattern.fullmatch(each)]
    return []


def _replace(top: str, name: str, content: bytes, time: int | None = None) -> None:
    """Replace a file of the agent's repository. The lock file is the one that git uses.

    `time` is the time of the file in nanoseconds. Raises WorktreeError if git of the agent holds the lock, and OSError.
    """
    base, lock = os.path.basename(name), f"{os.path.basename(name)}.lock"
    with _folder(top, os.path.dirname(name), create=True) as folder:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(lock, flags, 0o666, dir_fd=folder)
        except FileExistsError:
            path = os.path.join(top, GIT_FOLDER, f"{name}.lock")
            raise WorktreeError(
                f"{path} exists: another git process is running in the worktree; wait for it, or remove the file"
            ) from None
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                if time is not None:
                    os.utime(descriptor, ns=(time, time))
            os.replace(lock, base, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(lock, dir_fd=folder)
            raise


def _quoted_line(path: str) -> str:
    """Return `path` for a file with one path in each line."""
    if "\n" not in path:
        return path
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
