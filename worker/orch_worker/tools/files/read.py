"""The tools read_file, list_files and grep_files. The tools read only below the agent's folder and never block."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, repeat, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final
from unicodedata import normalize

from msgspec import Meta
from msgspec.structs import replace

from orch_protocol.core.images import media_type_of
from orch_protocol.core.messages import MAX_ENCODED, Image
from orch_protocol.core.text import TextEncodingError, decode_text, without_mark

from ...system.file_names import actual_path, shown_name
from ...system.files import NotRegularError, open_regular_file
from ...system.safe_descent import FOLDER, open_below
from ..api.archive_texts import archive_texts
from ..api.base import ToolContext, ToolError, ToolOutput, tool
from .gitignore import expand_braces, glob_regex, walk
from .read_stamps import ReadStamps, state_of
from .search import PatternSearch, SearchTimeoutError

if TYPE_CHECKING:
    from ...policy.file_filter import FileFilter

__all__ = ["grep_files", "list_files", "open_inside", "path_inside", "read_file"]

MAX_READ_CHARS: Final = 28_000
MAX_IMAGE_BYTES: Final = MAX_ENCODED * 3 // 4
MAX_LINE_BYTES: Final = 8_000
MAX_LINE_SHOWN: Final = 2_000
MAX_MATCH_SHOWN: Final = 300
MAX_GREP_BYTES: Final = 5_000_000
MAX_GREP_CHARS: Final = 28_000
SNIFF_BYTES: Final = 8_192

Line = Annotated[int, Meta(ge=1)]
Results = Annotated[int, Meta(ge=1, le=1000)]


@tool
def read_file(context: ToolContext, path: str, offset: Line = 1, limit: Line = 2000) -> str | Image:
    """Read lines of a text file, each with its number. A PNG, JPEG, GIF or WebP file is returned as an image.

    Args:
        path: The file, relative to the working folder.
        offset: The first line to read.
        limit: Maximum number of lines.
    """
    context, path = _in_archive_texts(context, path)
    with open_inside(context, path) as file:
        head, size = file.read(SNIFF_BYTES), os.fstat(file.fileno()).st_size
        if media_type_of(head):
            return _image(file, path, size)
        try:
            without_mark(head)
        except TextEncodingError as error:
            raise ToolError(f"{path!r} cannot be read as text: {error}, such as with iconv.") from None
        if b"\0" in head:
            raise ToolError(f"{path!r} is a binary file of {size:,} bytes; it has no lines.")
        file.seek(0)
        context.agent_object(ReadStamps).record(str(path_inside(context, path)), state_of(os.fstat(file.fileno())))
        return _numbered_text(file, path, offset, limit, _deadline(context))


def _image(file: BinaryIO, path: str, size: int) -> Image:
    """Return the image in `file`. Raises ToolError."""
    if size > MAX_IMAGE_BYTES:
        raise ToolError(f"{path!r} is an image of {size:,} bytes; at most {MAX_IMAGE_BYTES:,} bytes can be shown.")
    file.seek(0)
    return Image.from_bytes(file.read(MAX_IMAGE_BYTES), os.path.basename(path))


@tool
def list_files(
    context: ToolContext, path: str = ".", glob: str | None = None, max_results: Results = 300
) -> ToolOutput:
    """List the files below a folder, except caches, dependencies and files ignored by .gitignore.

    Args:
        path: The folder, relative to the working folder.
        glob: Only files whose path matches, such as "*.py", "*.{c,h}" or "src/**/*.md".
        max_results: Maximum number of files.
    """
    found: list[str] = []
    count, stop_at, note = 0, _deadline(context), ""
    file_filter = context.file_filter("list_files", path_inside(context, path))
    for shown_path, _ in _find_files(context, path, glob, stop_at, file_filter):
        count += 1
        if count <= max_results:
            found.append(shown_name(shown_path))
    if time.monotonic() > stop_at:
        note = "\n[time was up before every folder was seen]"
    if count > max_results:
        note = f"\n[{count - max_results:,} more files; narrow with path or glob]{note}"
    return _filtered_output("\n".join(found) or f"No files below {path!r}{_match_suffix(glob)}.", note, file_filter)


@tool
def grep_files(
    context: ToolContext,
    pattern: str,
    path: str = ".",
    glob: str | None = None,
    ignore_case: bool = False,
    max_results: Results = 100,
    max_per_file: Results = 1000,
) -> ToolOutput:
    """Search text files for a regular expression, line by line. Returns lines of the form `file:line: text`.

    Args:
        pattern: A Python regular expression.
        path: The folder or file to search, relative to the working folder.
        glob: Only files whose path matches, such as "*.py", "*.{c,h}" or "src/**/*.md".
        ignore_case: Whether to ignore case.
        max_results: Maximum number of lines.
        max_per_file: Maximum number of lines from one file.
    """
    context, path = _in_archive_texts(context, path)
    root = context.cwd.resolve()
    found: list[str] = []
    file_filter = context.file_filter("grep_files", path_inside(context, path))
    size, searched, too_large, stop_at, note = 0, 0, 0, _deadline(context), ""
    with PatternSearch(pattern, stop_at=stop_at, ignore_case=ignore_case) as search:
        for name, target in _find_files(context, path, glob, stop_at, file_filter):
            shown_path, text = shown_name(name), _searchable_text(target, root)
            if text is None:
                too_large += 1
                continue
            searched += bool(text)
            try:
                for number, line in islice(_matching_lines(search, text), max_per_file):
                    found.append(f"{shown_path}:{number}: {line}")
                    size += len(found[-1]) + 1
                    if len(found) >= max_results or size > MAX_GREP_CHARS:
                        note = "\n[stopped at so many results; there may be more: narrow the pattern, path or glob]"
                        break
            except SearchTimeoutError as error:
                note = f"\n[stopped at {shown_path}: {error}]"
            if note or time.monotonic() > stop_at:
                break
    if not note and time.monotonic() > stop_at:
        note = "\n[time was up before every file was searched]"
    if too_large:
        note += f"\n[{too_large} files over {MAX_GREP_BYTES // 1_000_000} MB not searched]"
    return _filtered_output(
        "\n".join(found) or f"No match for {pattern!r} in {searched:,} text files.", note, file_filter
    )


def path_inside(context: ToolContext, path: str) -> Path:
    """Return the real path of `path`, which is relative to the context's folder.

    Raise ToolError if the path is outside this folder, or if it is another path than the policy judged, because a link
    was changed in the meantime.
    """
    root = context.cwd.resolve()
    try:
        target = (root / actual_path(str(root), path)).resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise ToolError(f"{path!r} is not a path: {error}.") from error
    if not target.is_relative_to(root):
        raise ToolError(f"{path!r} is outside the working folder. Only files below the working folder can be read.")
    if context.judged_path is not None and str(target) != context.judged_path:
        raise ToolError(f"{path!r} was changed while the call was checked, and leads to another file now. Call again.")
    return target


def _in_archive_texts(context: ToolContext, path: str) -> tuple[ToolContext, str]:
    """Return `context` and `path`. For a path in the texts of the agent's own archives, this folder is the root."""
    try:
        target = (context.cwd / path).resolve()
    except (OSError, ValueError, RuntimeError):
        return context, path  # the tool reports the error
    inside = [folder for folder in map(Path, archive_texts(context)) if target.is_relative_to(folder)]
    return (replace(context, cwd=inside[0]), str(target)) if inside else (context, path)


@contextmanager
def open_inside(context: ToolContext, path: str) -> Iterator[BinaryIO]:
    """Open the file `path` for reading.

    Raise ToolError if the path is outside the context's folder or is not a regular file.
    """
    target, root = path_inside(context, path), context.cwd.resolve()
    if _is_folder(target, path, root):
        raise ToolError(f"{path!r} is a folder: use list_files.")
    try:
        with open_regular_file(target, root) as file:
            yield file
    except OSError as error:
        raise _unreadable_error(path, error) from error


def _deadline(context: ToolContext) -> float:
    # This is before the timeout of the call, so that partial results are returned.
    return time.monotonic() + context.seconds * 0.8


def _match_suffix(glob: str | None) -> str:
    return f" match {glob!r}" if glob else ""


def _is_folder(target: Path, path: str, root: Path) -> bool:
    try:
        return stat.S_ISDIR(target.stat().st_mode)
    except FileNotFoundError:
        raise ToolError(f"{path!r} does not exist.{_suggestion(target, root)}") from None
    except OSError as error:
        raise _unreadable_error(path, error) from error


def _unreadable_error(path: str, error: OSError) -> ToolError:
    if isinstance(error, NotRegularError):
        return ToolError(f"{path!r} is not a regular file.")
    return ToolError(f"{path!r} cannot be read: {error.strerror}.")


def _suggestion(target: Path, root: Path) -> str:
    import difflib

    try:
        folder = open_below(str(root), str(target.parent.relative_to(root)), FOLDER)
        try:
            names = {name.lower(): name for name in sorted(os.listdir(folder))}
        finally:
            os.close(folder)
    except (OSError, ValueError):  # The folder does not exist, or it is the working folder itself.
        return ""
    similar_names = difflib.get_close_matches(target.name.lower(), names, n=3)
    shown = " or ".join(f"'{shown_name(names[name])}'" for name in similar_names)
    return f" Did you mean {shown}?" if similar_names else ""


def _numbered_text(file: BinaryIO, path: str, offset: int, limit: int, stop_at: float) -> str:
    shown: list[str] = []
    size, number, notes, is_undecodable = 0, 0, [], False
    for number, raw in _read_lines(file):
        if number < offset:
            if number % 10_000 == 0 and time.monotonic() > stop_at:
                raise ToolError(f"{path!r}: the time limit was reached at line {number:,}, before line {offset:,}.")
            continue
        line = raw.rstrip(b"\r\n").decode(errors="replace").removeprefix("\ufeff" if number == 1 else "")
        is_undecodable = is_undecodable or "\N{REPLACEMENT CHARACTER}" in line
        if len(line) > MAX_LINE_SHOWN:
            line = f"{line[:MAX_LINE_SHOWN]} [line cut]"
        size += len(line) + 8
        if shown and (len(shown) >= limit or size > MAX_READ_CHARS):
            notes.append(f"[more lines follow: go on with offset={number}]")
            break
        shown.append(f"{number:>6}\t{line}")
    if not shown:
        return f"[{path} is empty]" if number == 0 else f"[{path} has {number:,} lines, none from {offset:,} on]"
    if is_undecodable:
        notes.append("[not all of it is UTF-8: undecodable bytes are shown as \N{REPLACEMENT CHARACTER}]")
    return "\n".join(shown + notes)


def _read_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield each line's number and its first MAX_LINE_BYTES bytes."""
    number, at_start = 1, True
    while chunk := file.readline(MAX_LINE_BYTES):
        if at_start:
            yield number, chunk
        at_start = chunk.endswith(b"\n")
        number += at_start


def _filtered_output(text: str, note: str, file_filter: FileFilter | None) -> ToolOutput:
    return (
        ToolOutput(text + note)
        if file_filter is None
        else ToolOutput(text + note + file_filter.note, marks=file_filter.taint_labels)
    )


def _find_files(
    context: ToolContext, path: str, glob: str | None, stop_at: float, file_filter: FileFilter | None
) -> Iterator[tuple[str, Path]]:
    """Yield the files below the folder `path`, or the file `path`, in order.

    Each file comes with its path relative to the context's folder and its real path. The search ends at `stop_at`.
    """
    root, start = context.cwd.resolve(), path_inside(context, path)
    if not _is_folder(start, path, root):
        yield start.relative_to(root).as_posix(), start
        return
    globs = [glob_regex(normalize("NFC", each)) for each in expand_braces(glob)] if glob else None
    prefix = "" if start == root else f"{start.relative_to(root).as_posix()}/"
    for found_path, _ in walk(root, start, takewhile(lambda _: time.monotonic() < stop_at, repeat(None))):
        if file_filter is not None and file_filter.skips(str(root / found_path)):
            continue  # Files are counted independently of the glob, because the count of matches would reveal names.
        names = [normalize("NFC", name) for name in (found_path.removeprefix(prefix), found_path)]
        matches = globs is None or any(regex.fullmatch(name) for regex in globs for name in names)
        if matches and (file_filter is None or file_filter.may_show(str(root / found_path))):
            yield found_path, root / found_path


def _searchable_text(target: Path, root: Path) -> str | None:
    """Return the text of a file.

    Return "" for a binary, unreadable or non-regular file, and None for a file that is too large.
    """
    try:
        with open_regular_file(target, root) as file:
            if os.fstat(file.fileno()).st_size > MAX_GREP_BYTES:
                return None
            data = file.read(MAX_GREP_BYTES)
    except OSError:
        return ""
    return "" if b"\0" in data[:SNIFF_BYTES] else decode_text(data, lossy=True, keep_line_ends=True)


def _matching_lines(search: PatternSearch, text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each matching line. Raise SearchTimeoutError if the search takes too long."""
    lines = [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")] if text else []
    for index, start, _ in search.search(lines):
        yield index + 1, _excerpt(lines[index], start)


def _excerpt(line: str, start: int) -> str:
    if len(line) <= MAX_MATCH_SHOWN:
        return line
    begin = max(0, min(start - MAX_MATCH_SHOWN // 3, len(line) - MAX_MATCH_SHOWN))
    end = begin + MAX_MATCH_SHOWN
    return f"{'[...] ' if begin else ''}{line[begin:end]}{' [...]' if end < len(line) else ''}"
