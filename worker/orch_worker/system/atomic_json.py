"""Small JSON files of a user. Each file is read and replaced as a whole, so that readers never see a partial file."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from orch_protocol.core.errors import ConfigError

from .atomic_write import atomic_write
from .files import io_error

__all__ = ["change_json", "file_lock", "read", "write"]

T = TypeVar("T")


def read(file: Path, kind: type[T], default: T, remedy: str) -> T:
    """Return the content of `file`. Return `default` if the file does not exist.

    Raise ConfigError if the file cannot be read. The message recommends removing the file and ends with the text
    `remedy`.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except FileNotFoundError:
        return default
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file} ({error}): remove the file and {remedy}") from error


def write(file: Path, data: Any, *, durable: bool = True) -> None:
    """Replace the content of `file` by `data`. Only the user can read the file. Raise StoreError if writing fails.

    If `durable` is True, the new content survives a power loss as soon as the function returns. Otherwise, a power loss
    may restore the old content.
    """
    try:
        with atomic_write(file, sync="all" if durable else "none") as opened:
            opened.write(msgspec.json.encode(data, order="sorted"))
    except OSError as error:
        raise io_error("write", file, error) from error


def change_json(file: Path, kind: type[T], default: T, remedy: str, update: Callable[[T], T]) -> T:
    """Replace the content of `file` by the result of `update`, and return the old content. The folder must exist.

    A lock serializes concurrent changes, including changes by other processes. Raise StoreError if writing fails, and
    ConfigError if the file cannot be read.
    """
    with file_lock(file.with_name(f"{file.name}.lock")):
        old = read(file, kind, default, remedy)
        if (new := update(old)) != old:
            write(file, new)
    return old


@contextmanager
def file_lock(file: Path) -> Iterator[int]:
    """Hold an exclusive lock on `file` during the block. Yield the descriptor of the file, which is open for appending.

    The file is created if necessary. The folder of the file must exist. Raise StoreError if the file cannot be opened.
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
