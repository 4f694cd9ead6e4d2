"""The state of files after a sequence of changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from posixpath import isabs

from msgspec.structs import replace

from .facts import ChangedFile

__all__ = ["absolute_paths", "current_files"]


def current_files(changes: Sequence[ChangedFile], known: Mapping[str, str]) -> list[ChangedFile]:
    """Return the last state of each changed file, in the order of the last changes.

    `known` contains the absolute paths of files with relative paths; see `absolute_paths`.
    """
    files: dict[str, ChangedFile] = {}
    for change in changes:
        path, before = known.get(change.path, change.path), known.get(change.before, change.before)
        if change.removed:
            inside = [each for each in files if each == path or each.startswith(f"{path}/")]
            for each in inside:
                file = files.pop(each)
                files[each] = replace(file, removed=True, place=change.place)
            if not change.place.entry and path in inside:
                continue
            if path not in inside and not (inside and all(files[each].created for each in inside)):
                files[path] = replace(change, path=path)
            continue
        if before:
            # All files of a moved folder move with it.
            for each in [each for each in files if each.startswith(f"{before}/")]:
                moved = f"{path}{each[len(before) :]}"
                files[moved] = replace(files.pop(each), path=moved)
        if not change.place.entry and path in files and not before:
            # Git lists the files of a commit. The place of the edit tells more.
            files[path] = replace(files[path], created=files[path].created or change.created)
            continue
        source = files.pop(before, None) if before else None
        earlier = files.pop(path, None)
        if source is not None:
            origin = "" if source.created and not source.before else (source.before or before)
            files[path] = replace(change, path=path, created=source.created, before=origin)
        elif earlier is None or earlier.removed:
            created = change.created or (earlier is not None and earlier.created)
            files[path] = replace(change, path=path, created=created, before=before)
        else:
            files[path] = replace(change, path=path, created=earlier.created, before=before or earlier.before)
    return list(files.values())


def absolute_paths(paths: Sequence[str]) -> dict[str, str]:
    """Return the absolute path for each relative path of `paths`, if exactly one absolute path ends with it."""
    absolute = [path for path in dict.fromkeys(paths) if isabs(path)]
    if not absolute:
        return {}
    found: dict[str, set[str]] = {}
    for path in absolute:
        parts = path.split("/")
        for start in range(1, len(parts)):
            found.setdefault("/".join(parts[start:]), set()).add(path)
    return {
        path: next(iter(found[path]))
        for path in dict.fromkeys(paths)
        if path and not isabs(path) and len(found.get(path, ())) == 1
    }
