"""Looking at files: read_file, list_files, grep_files. Nothing outside the agent's folder, nothing that can block."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, repeat, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

from msgspec import Meta

from ...system.files import NotRegularError, regular_open_regular
from ...system.safe_descent import FOLDER, open_below
from ..api.base import ToolContext, ToolError, ToolOutput, tool
from .gitignore import expand_braces, glob_regex, walk
from .read_stamps import ReadStamps, state_of
from .search import PatternSearch, SearchTimeoutError

if TYPE_CHECKING:
    from ...policy.file_filter import FileFilter

__all__ = ["grep_files", "list_files", "open_inside", "path_inside", "read_file"]

MAX_READ_CHARS: Final = 28_000
MAX_LINE_BYTES: Final = 8_000
MAX_LINE_SHOWN: Final = 2_000
MAX_MATCH_SHOWN: Final = 300
MAX_GREP_BYTES: Final = 5_000_000
MAX_GREP_CHARS: Final = 28_000
SNIFF_BYTES: Final = 8_192

Line = Annotated[int, Meta(ge=1)]
Results = Annotated[int, Meta(ge=1, le=1000)]


@tool(category="file")
def read_file(context: ToolContext, path: str, offset: Line = 1, limit: Line = 2000) -> str:
    """Read lines of a text file, each with its number.

    Args:
        path: The file, relative to the working folder.
        offset: The first line to read.
        limit: How many lines to read at most.
    """
    with open_inside(context, path) as file:
        if b"\0" in file.read(SNIFF_BYTES):
            size = os.fstat(file.fileno()).st_size
            raise ToolError(f"{path!r} is a binary file of {size:,} bytes; it has no lines.")
        file.seek(0)
        context.own(ReadStamps).note(str(path_inside(context, path)), state_of(os.fstat(file.fileno())))
        return _numbered_text(file, path, offset, limit, _stop_at(context))


@tool(category="file")
def list_files(
    context: ToolContext, path: str = ".", glob: str | None = None, max_results: Results = 300
) -> ToolOutput:
    """List the files below a folder, without caches, dependencies and what .gitignore names.

    Args:
        path: The folder, relative to the working folder.
        glob: Only files whose path matches, such as "*.py", "*.{c,h}" or "src/**/*.md".
        max_results: How many to list at most.
    """
    found: list[str] = []
    count, stop_at, note = 0, _stop_at(context), ""
    sieve = context.sieve("list_files", path_inside(context, path))
    for shown, _ in _files(context, path, glob, stop_at, sieve):
        count += 1
        if count <= max_results:
            found.append(shown)
    if time.monotonic() > stop_at:
        note = "\n[time was up before every folder was seen]"
    if count > max_results:
        note = f"\n[{count - max_results:,} more files; narrow with path or glob]{note}"
    return _sifted("\n".join(found) or f"No files below {path!r}{_that_match(glob)}.", note, sieve)


@tool(category="file")
def grep_files(
    context: ToolContext,
    pattern: str,
    path: str = ".",
    glob: str | None = None,
    ignore_case: bool = False,
    max_results: Results = 100,
    max_per_file: Results = 1000,
) -> ToolOutput:
    """Search text files for a regular expression, line by line. Answers with `file:line: text`.

    Args:
        pattern: A Python regular expression.
        path: The folder or file to search, relative to the working folder.
        glob: Only files whose path matches, such as "*.py", "*.{c,h}" or "src/**/*.md".
        ignore_case: Whether capital letters match small ones.
        max_results: How many lines to return at most.
        max_per_file: How many lines of one file to return at most.
    """
    root = context.cwd.resolve()
    found: list[str] = []
    sieve = context.sieve("grep_files", path_inside(context, path))
    size, searched, too_large, stop_at, note = 0, 0, 0, _stop_at(context), ""
    with PatternSearch(pattern, stop_at=stop_at, ignore_case=ignore_case) as seeker:
        for shown, target in _files(context, path, glob, stop_at, sieve):
            text = _searchable(target, root)
            if text is None:
                too_large += 1
                continue
            searched += bool(text)
            try:
                for number, line in islice(_matches(seeker, text), max_per_file):
                    found.append(f"{shown}:{number}: {line}")
                    size += len(found[-1]) + 1
                    if len(found) >= max_results or size > MAX_GREP_CHARS:
                        note = "\n[stopped at so many results; there may be more: narrow the pattern, path or glob]"
                        break
            except SearchTimeoutError as error:
                note = f"\n[stopped at {shown}: {error}]"
            if note or time.monotonic() > stop_at:
                break
    if not note and time.monotonic() > stop_at:
        note = "\n[time was up before every file was searched]"
    if too_large:
        note += f"\n[{too_large} files over {MAX_GREP_BYTES // 1_000_000} MB not searched]"
    return _sifted("\n".join(found) or f"No match for {pattern!r} in {searched:,} text files.", note, sieve)


def path_inside(context: ToolContext, path: str) -> Path:
    """Return the real path of `path`, taken relative to the context's folder. Raises ToolError when it leaves it."""
    root = context.cwd.resolve()
    try:
        target = (root / path).resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise ToolError(f"{path!r} is not a path: {error}.") from error
    if not target.is_relative_to(root):
        raise ToolError(f"{path!r} is outside the working folder; only files below it can be looked at.")
    return target


@contextmanager
def open_inside(context: ToolContext, path: str) -> Iterator[BinaryIO]:
    """Open the file `path` for reading. Raises ToolError when it is not below the context's folder, or is no file."""
    target, root = path_inside(context, path), context.cwd.resolve()
    if _is_folder(target, path, root):
        raise ToolError(f"{path!r} is a folder: use list_files.")
    try:
        with regular_open_regular(target, root) as file:
            yield file
    except OSError as error:
        raise _unreadable(path, error) from error


def _stop_at(context: ToolContext) -> float:
    # Ahead of the call's own deadline, so that what was found so far is told rather than thrown away.
    return time.monotonic() + context.seconds * 0.8


def _that_match(glob: str | None) -> str:
    return f" match {glob!r}" if glob else ""


def _is_folder(target: Path, path: str, root: Path) -> bool:
    try:
        return stat.S_ISDIR(target.stat().st_mode)
    except FileNotFoundError:
        raise ToolError(f"{path!r} does not exist.{_similar(target, root)}") from None
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> ToolError:
    if isinstance(error, NotRegularError):
        return ToolError(f"{path!r} is not a regular file.")
    return ToolError(f"{path!r} cannot be read: {error.strerror}.")


def _similar(target: Path, root: Path) -> str:
    import difflib

    try:
        folder = open_below(str(root), str(target.parent.relative_to(root)), FOLDER)
        try:
            names = {name.lower(): name for name in sorted(os.listdir(folder))}
        finally:
            os.close(folder)
    except (OSError, ValueError):  # it is not there, or is the working folder itself
        return ""
    close = difflib.get_close_matches(target.name.lower(), names, n=3)
    return f" Did you mean {' or '.join(repr(names[name]) for name in close)}?" if close else ""


def _numbered_text(file: BinaryIO, path: str, offset: int, limit: int, stop_at: float) -> str:
    shown: list[str] = []
    size, number, notes, undecodable = 0, 0, [], False
    for number, raw in _lines(file):
        if number < offset:
            if number % 10_000 == 0 and time.monotonic() > stop_at:
                raise ToolError(f"{path!r}: time was up at line {number:,}, before line {offset:,}.")
            continue
        line = raw.rstrip(b"\r\n").decode(errors="replace").removeprefix("\ufeff" if number == 1 else "")
        undecodable = undecodable or "\N{REPLACEMENT CHARACTER}" in line
        if len(line) > MAX_LINE_SHOWN:
            line = f"{line[:MAX_LINE_SHOWN]} [line cut]"
        size += len(line) + 8
        if shown and (len(shown) >= limit or size > MAX_READ_CHARS):
            notes.append(f"[more lines follow: go on with offset={number}]")
            break
        shown.append(f"{number:>6}\t{line}")
    if not shown:
        return f"[{path} is empty]" if number == 0 else f"[{path} has {number:,} lines, none from {offset:,} on]"
    if undecodable:
        notes.append("[not all of it is UTF-8: undecodable bytes are shown as \N{REPLACEMENT CHARACTER}]")
    return "\n".join(shown + notes)


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the first MAX_LINE_BYTES bytes of each line, however long it is."""
    number, at_start = 1, True
    while chunk := file.readline(MAX_LINE_BYTES):
        if at_start:
            yield number, chunk
        at_start = chunk.endswith(b"\n")
        number += at_start


def _sifted(text: str, note: str, sieve: FileFilter | None) -> ToolOutput:
    return ToolOutput(text + note) if sieve is None else ToolOutput(text + note + sieve.note, marks=sieve.marks)


def _files(
    context: ToolContext, path: str, glob: str | None, stop_at: float, sieve: FileFilter | None
) -> Iterator[tuple[str, Path]]:
    """Yield, in order, the files below the folder `path` (or `path` itself), as shown and as they are.

    None is looked at any more from `stop_at` on.
    """
    root, start = context.cwd.resolve(), path_inside(context, path)
    if not _is_folder(start, path, root):
        yield start.relative_to(root).as_posix(), start
        return
    wanted = [glob_regex(each) for each in expand_braces(glob)] if glob else None
    below = "" if start == root else f"{start.relative_to(root).as_posix()}/"
    for shown, _ in walk(root, start, takewhile(lambda _: time.monotonic() < stop_at, repeat(None))):
        if sieve is not None and sieve.keeps_away(str(root / shown)):
            continue  # whatever the glob: how many fit would say what they are called
        named = (shown.removeprefix(below), shown)
        matches = wanted is None or any(regex.fullmatch(name) for regex in wanted for name in named)
        if matches and (sieve is None or sieve.lets(str(root / shown))):
            yield shown, root / shown


def _searchable(target: Path, root: Path) -> str | None:
    """Return the text of a file; "" for one that is binary, unreadable or no regular file, None for one too large."""
    try:
        with regular_open_regular(target, root) as file:
            if os.fstat(file.fileno()).st_size > MAX_GREP_BYTES:
                return None
            data = file.read(MAX_GREP_BYTES)
    except OSError:
        return ""
    return "" if b"\0" in data[:SNIFF_BYTES] else data.decode(errors="replace").removeprefix("\ufeff")


def _matches(seeker: PatternSearch, text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of the lines that match. Raises SearchTimeoutError."""
    lines = [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")] if text else []
    for place, start, _ in seeker.among(lines):
        yield place + 1, _around(lines[place], start)


def _around(line: str, start: int) -> str:
    if len(line) <= MAX_MATCH_SHOWN:
        return line
    begin = max(0, min(start - MAX_MATCH_SHOWN // 3, len(line) - MAX_MATCH_SHOWN))
    end = begin + MAX_MATCH_SHOWN
    return f"{'[...] ' if begin else ''}{line[begin:end]}{' [...]' if end < len(line) else ''}"
