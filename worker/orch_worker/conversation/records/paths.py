"""Lists of paths: one common root, files grouped by folder, and paths that shell commands change or read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from posixpath import basename, isabs, join, normpath, splitext
from typing import Final

from .facts import ChangedFile
from .shell import Step

__all__ = ["changed_by", "common_root", "grouped", "listed_folders", "looks_like_file", "read_by", "relative"]

MIN_PARTS: Final = 3
"""A root has at least this number of parts, counting the empty part before the first slash."""
_FILE: Final = re.compile(
    r"[~\w@+./\\:-]*[\w)\]]\.[A-Za-z][\w]{0,9}$|(?:^|/)(?:Makefile|Dockerfile|Rakefile|Gemfile|Procfile|Justfile|LICENSE|README)$"
)
_SCRATCH: Final = ("/dev/", "/proc/")
_SED_IN_PLACE: Final = re.compile(r"(?:^|\s)(?:-i\S*|--in-place\S*|-[a-zA-Z]*i)(?:\s|$)")
_CREATES: Final = re.compile(r"^\s*(?:\*\s*creating|create(?:d)?|CREATE|\+\s+created)\s+:?\s*(\S+)", re.MULTILINE)
_CREATE_MODE: Final = re.compile(r"^ (create|delete) mode \d+ (\S+)$", re.MULTILINE)


def looks_like_file(word: str) -> bool:
    """Return whether `word` is the path of a file rather than an option, a pattern or a text."""
    return (
        0 < len(word) < 300
        and not word.startswith(("-", "http:", "https:", *_SCRATCH))
        and not any(char in word for char in "*?{}$|<>=\"'`,;()^ \n")
        and bool(_FILE.search(word))
    )


def common_root(paths: Sequence[str]) -> str:
    """Return the folder that most of the absolute `paths` are in, as deep as it pays. Return "" if there is none."""
    counts: Counter[str] = Counter()
    for path in dict.fromkeys(paths):
        parts = path.split("/")
        if not isabs(path):
            continue
        for stop in range(MIN_PARTS, len(parts)):
            counts["/".join(parts[:stop])] += 1
    best = max(counts, key=lambda root: (len(root) * (counts[root] - 1), -len(root)), default="")
    return best if best and counts[best] > 1 else ""


def relative(path: str, root: str) -> str:
    """Return `path` relative to the folder `root`, if it is in the folder."""
    if root and path == root:
        return "."
    return path[len(root) + 1 :] if root and path.startswith(f"{root}/") else path


def grouped(entries: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return one text for each folder and file type of `entries`, for example `lib/{a@3,+b@7}.py`.

    Each entry is a path, a mark before the name, and a suffix after the name.
    """
    groups: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    for path, mark, suffix in entries:
        folder, _, name = path.rpartition("/")
        stem, extension = splitext(name)
        groups.setdefault((f"{folder}/" if folder else "", extension), []).append((stem, mark, suffix))
    texts = []
    for (folder, extension), members in groups.items():
        if len(members) == 1:
            stem, mark, suffix = members[0]
            texts.append(f"{mark}{folder}{stem}{extension}{suffix}")
        else:
            texts.append(
                f"{folder}{{{','.join(f'{mark}{stem}{suffix}' for stem, mark, suffix in members)}}}{extension}"
            )
    return texts


def listed_folders(paths: Sequence[str], chars: int) -> str:
    """Return the folders of `paths` with their numbers of files, in at most `chars` characters if possible.

    Parent folders replace folders until the text fits.
    """
    depth = max((path.count("/") for path in paths), default=0)
    text = ""
    while True:
        counts = Counter("/".join(path.split("/")[:-1][:depth]) or "." for path in paths)
        text = ", ".join(f"{folder}/ ({count})" for folder, count in counts.items())
        if len(text) <= chars or not depth:
            return text
        depth -= 1


def changed_by(step: Step, output: str = "") -> Iterator[ChangedFile]:
    """Yield the files that a successful command changes, as far as its text and its `output` tell."""
    for target in step.targets:
        if not target.startswith(_SCRATCH) and not any(char in target for char in "*?{}$`("):
            yield ChangedFile(_in(step, target))
    words = step.words
    name = words[0].rpartition("/")[2] if words else ""
    arguments = [word for word in words[1:] if not word.startswith("-")]
    if name == "git" and arguments:
        name, arguments = f"git {arguments[0]}", arguments[1:]
    plain = [word for word in arguments if not any(char in word for char in "*?{}$`(|;")]
    if name in ("rm", "git rm", "unlink", "trash") or name == "rmdir":
        yield from (ChangedFile(_in(step, path), removed=True) for path in plain)
    elif name in ("mv", "git mv", "move") and len(arguments) >= 2 and plain == arguments:
        yield from _moved_files(step, arguments)
    elif name in ("cp", "copy", "install") and len(arguments) == 2 and plain == arguments:
        if looks_like_file(arguments[1]):
            yield ChangedFile(_in(step, arguments[1]), created=True)
    elif (name in ("sed", "gsed", "perl") and _SED_IN_PLACE.search(step.text)) or name == "tee":
        for word in words[1:]:
            if looks_like_file(word) and not word.startswith("s/"):
                yield ChangedFile(_in(step, word))
    elif name == "touch":
        yield from (ChangedFile(_in(step, path), created=True) for path in plain)
    for match in _CREATES.finditer(output[:20_000]):
        if looks_like_file(match[1]):
            yield ChangedFile(_in(step, match[1]), created=True)
    if name == "git commit":
        for match in _CREATE_MODE.finditer(output[:20_000]):
            yield ChangedFile(_in(step, match[2]), created=match[1] == "create", removed=match[1] == "delete")


def read_by(step: Step) -> Iterator[str]:
    """Yield the files that a command reads or searches and that its text names."""
    words = step.words
    name = words[0].rpartition("/")[2] if words else ""
    if name not in (
        "cat",
        "head",
        "tail",
        "less",
        "more",
        "sed",
        "awk",
        "grep",
        "egrep",
        "rg",
        "nl",
        "wc",
        "jq",
        "diff",
        "bat",
    ):
        return
    if name == "sed" and _SED_IN_PLACE.search(step.text):
        return
    arguments = [word for word in words[1:] if not word.startswith("-")]
    if name in ("grep", "egrep", "rg", "awk", "jq") or (
        name == "sed" and arguments and not looks_like_file(arguments[0])
    ):
        arguments = arguments[1:]  # the first argument is a pattern or a program
    for word in arguments:
        if looks_like_file(word):
            yield _in(step, word)


def _moved_files(step: Step, arguments: Sequence[str]) -> Iterator[ChangedFile]:
    *sources, target = arguments
    into = (
        target.endswith("/")
        or len(sources) > 1
        or target in (".", "..")
        or (looks_like_file(sources[0]) and not looks_like_file(target))
    )
    for source in sources:
        path = join(target, basename(source.rstrip("/"))) if into else target
        yield ChangedFile(_in(step, path), before=_in(step, source))


def _in(step: Step, path: str) -> str:
    path = path.strip("'\"")
    return normpath(join(step.folder, path)) if path and not path.startswith("~") else path
