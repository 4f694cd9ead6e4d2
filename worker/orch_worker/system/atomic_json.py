"""Small records of a user's, a JSON file each: read whole, and replaced whole, so that nobody ever sees half of one."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from orch_protocol.core.errors import ConfigError

from .files import io_error, sync_folder

__all__ = ["change_json", "file_lock", "read", "write"]

T = TypeVar("T")


def read(file: Path, kind: type[T], otherwise: T, then: str) -> T:
    """Return what `file` holds, `otherwise` when there is none.

    Raises ConfigError when it cannot be read, which says to remove it, and `then` what to do.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except FileNotFoundError:
        return otherwise
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read ({error}): remove it, and {then}") from error


def write(file: Path, data: Any, *, durable: bool = True) -> None:
    """Let `file`, which its user alone may read, hold `data` and nothing else. Raises StoreError.

    When it returns that survives a loss of power, unless it is not to be `durable`: then either content may be there.
    """
    beside = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as opened:
            os.fchmod(descriptor, 0o600)
            opened.write(msgspec.json.encode(data, order="sorted"))
            if durable:
                opened.flush()
                os.fsync(descriptor)
        os.replace(beside, file)
        if durable:
            sync_folder(file.parent)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise io_error("write", file, error) from error


def change_json(file: Path, kind: type[T], otherwise: T, then: str, changed: Callable[[T], T]) -> T:
    """Let `file`, whose folder is there, hold what `changed` makes of what it holds; return what it held. Whoever does
    so at the same time, in whatever process, does it before or after.

    Raises ConfigError as `read` does, StoreError.
    """
    with file_lock(file.with_name(f"{file.name}.lock")):
        held = read(file, kind, otherwise, then)
        if (new := changed(held)) != held:
            write(file, new)
    return held


@contextmanager
def file_lock(file: Path) -> Iterator[int]:
    """Let one process at a time do what the block does, by the lock on `file`, which is made; its descriptor appends.

    Its folder is there. Raises StoreError when that cannot be had.
    """
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise io_error("lock", file, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
