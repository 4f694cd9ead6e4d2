"""The facts that a receipt contains, as data."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
from msgspec import Struct

__all__ = [
    "EDIT_KEY",
    "PREFIX_CHARS",
    "ChangedFile",
    "CommandOutcome",
    "Commit",
    "Constant",
    "Deviation",
    "Effect",
    "Failure",
    "Place",
    "Request",
    "SeenFile",
    "Specification",
    "UserWords",
    "moved",
]

EDIT_KEY: Final = "edit "
"""The beginning of the key of a failed edit; the path of the file follows."""
PREFIX_CHARS: Final = 8
"""The number of characters of an archive id in a place. `read_archive` accepts a unique prefix."""


class Place(Struct, frozen=True, array_like=True):
    """The number of an entry of an archive, as `read_archive` takes it. 0 is an unknown number.

    `holder` is the beginning of the archive's id. It is "" for an entry of the archive that the record stands for.
    """

    entry: int = 0
    holder: str = ""

    def __str__(self) -> str:
        if not self.entry:
            return ""
        return f"{self.holder}:{self.entry}" if self.holder else str(self.entry)

    def moved(self, shift: int, holder: str) -> Place:
        """Return the place as an archive gives it that contains this archive.

        With a `holder`, the place stays an entry of the archive `holder`. Otherwise the entry moves by `shift`.
        """
        if not self.entry or self.holder:
            return self
        return Place(self.entry, holder[:PREFIX_CHARS]) if holder else Place(self.entry + shift)


NOWHERE = Place()


class ChangedFile(Struct, frozen=True, omit_defaults=True):
    """A changed file, with the place of its last change. `before` is the former path of a moved file."""

    path: str
    place: Place = NOWHERE
    created: bool = False
    removed: bool = False
    before: str = ""


class SeenFile(Struct, frozen=True, omit_defaults=True):
    """A file that was read. `weight` is higher for a file that was read as a whole, or several times."""

    path: str
    weight: int = 1


class CommandOutcome(Struct, frozen=True, omit_defaults=True):
    """A command that ran, without redirections and pipes.

    `exit_code` is None if unknown; `failed` then shows whether the command failed. `result` is the line of the output
    that states the result. `verifies` is True for tests, builds and checks.
    """

    line: str
    exit_code: int | None = None
    failed: bool = False
    result: str = ""
    verifies: bool = False
    place: Place = NOWHERE
    runs: int = 1

    @property
    def has_failed(self) -> bool:
        """Whether the command ended with an error."""
        return self.failed or bool(self.exit_code)

    def __str__(self) -> str:
        if self.result:
            return f"{self.line} -> {'FAILED: ' if self.has_failed else ''}{self.result}"
        if self.exit_code:
            return f"{self.line} (exit {self.exit_code})"
        return f"{self.line} (failed)" if self.failed else self.line


class Failure(Struct, frozen=True, omit_defaults=True):
    """A failing result, in its own words. `key` identifies the call; a later call with this key can resolve it."""

    key: str
    call: str
    text: str
    place: Place = NOWHERE
    resolved: bool = False

    def __str__(self) -> str:
        return f"{self.call}: {self.text}{' -> resolved' if self.resolved else ''}"


class Commit(Struct, frozen=True, omit_defaults=True):
    """A commit with the beginning of its hash. `rejected` is the reason if there is no commit.

    `checks` are the checks that the output of a hook names. `skips_hook` is True if the command skips hooks.
    """

    subject: str
    hash: str = ""
    rejected: str = ""
    place: Place = NOWHERE
    checks: tuple[str, ...] = ()
    skips_hook: bool = False

    def __str__(self) -> str:
        if self.rejected:
            return f"rejected «{self.subject}»: {self.rejected}"
        return f"{self.hash} {self.subject}".strip()


class Constant(Struct, frozen=True, omit_defaults=True):
    """A constant that an edit of the file `path` set."""

    name: str
    value: str
    path: str

    def __str__(self) -> str:
        return f"{self.name} {self.value}"


class Effect(Struct, frozen=True, omit_defaults=True):
    """A lasting effect. `key` identifies its object, for example a branch; a later effect replaces an earlier one."""

    key: str
    text: str
    over: bool = False

    def __str__(self) -> str:
        return self.text


class Request(Struct, frozen=True, omit_defaults=True):
    """A request of the user, and the beginning of the answer."""

    text: str
    answer: str = ""

    def __str__(self) -> str:
        return f"«{self.text}» -> {self.answer}" if self.answer else f"«{self.text}»"


class UserWords(Struct, frozen=True, omit_defaults=True):
    """Words of the user during the work. `refused` is the call that the user refused, if there is one."""

    text: str
    refused: str = ""
    place: Place = NOWHERE

    def __str__(self) -> str:
        words = f"«{self.text}»" if self.text else ""
        return f"refused {self.refused}{': ' if words else ''}{words}" if self.refused else words


class Specification(Struct, frozen=True, omit_defaults=True):
    """A task, an issue or a page that was fetched for the work.

    `constraints` are its lines and sentences that restrict the work, the most restrictive first.
    """

    name: str
    place: Place = NOWHERE
    constraints: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} ({self.place})" if self.place.entry else self.name


class Deviation(Struct, frozen=True, omit_defaults=True):
    """An edit that differs from the announcement before it."""

    announced: str
    typed: str
    path: str
    place: Place = NOWHERE

    def __str__(self) -> str:
        where = f"@{self.place}" if self.place.entry else ""
        return f"announced {self.announced}, typed {self.typed} in {self.path}{where}"


Fact = TypeVar("Fact", ChangedFile, CommandOutcome, Failure, Commit, UserWords, Specification, Deviation)


def moved(fact: Fact, shift: int, holder: str = "") -> Fact:
    """Return `fact` with its place moved; see `Place.moved`."""
    return msgspec.structs.replace(fact, place=fact.place.moved(shift, holder))
