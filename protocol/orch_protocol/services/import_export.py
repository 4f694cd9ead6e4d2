"""Taking conversations over from files: what is asked of a root, and what it says."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from .service import USERS_ONLY, Service

__all__ = ["IMPORT_SESSION", "ImportSession", "Imported"]


class ImportSession(Struct, frozen=True, forbid_unknown_fields=True):
    """Let there be an agent, cold, that goes on with the conversation in the file at `path`.

    `which` (from 1) is needed when the file holds several. With `repair` damage is set right where it can be, and
    reported; without, it is an error. `here` is the folder from which `path` and `cwd` go out, and the one for an agent
    whose file names none that is there. `agent` is what else it is to be: the fields of a `Spawn`.

    Of an orch session file, `at` is the entry or turn after which the conversation continues, and without `all` only
    the path to it is copied, instead of all branches.
    """

    path: str
    here: str
    which: int | None = None
    repair: bool = False
    agent: dict[str, Any] = {}
    at: str | None = None
    all: bool = True


class Imported(Struct, frozen=True):
    """The agent `id` goes on with a conversation of `messages` messages on `entries` entries, out of a file of the
    shape `shape`. `branches` are ends of it that are not where it goes on, `below` agents for those that this one had
    started, `repairs` what was damaged, and `notes` what else is not as it was."""

    id: str
    seq: int
    name: str
    task: str
    shape: str
    entries: int
    messages: int
    branches: int = 0
    below: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


IMPORT_SESSION: Final = Service("import", ImportSession, Imported, USERS_ONLY, "Import a session file as a new agent.")
