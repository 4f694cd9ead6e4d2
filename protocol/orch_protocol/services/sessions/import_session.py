"""The service that imports conversations from files."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from ..service import USERS_ONLY, Service

__all__ = ["IMPORT_SESSION", "ImportSession", "Imported"]


class ImportSession(Struct, frozen=True, forbid_unknown_fields=True):
    """Create an agent, without a process, that continues the conversation in the file at `path`.

    - `which`: number of the conversation in the file, from 1. Required if the file contains several conversations.
    - `repair`: repair damage where possible and report it; otherwise damage is an error.
    - `here`: the base of relative paths. It is also the agent's working folder if the working folder named in the file
      does not exist.
    - `agent`: more settings of the agent, as fields of `Spawn`.
    - `at`: in a session file of orch, the entry or turn after which the conversation continues. `all`: copy all
      branches instead of the path to `at`.
    """

    path: str
    here: str
    which: int | None = None
    repair: bool = False
    agent: dict[str, Any] = {}
    at: str | None = None
    all: bool = True


class Imported(Struct, frozen=True):
    """The agent `id` continues an imported conversation with these numbers of messages and entries.

    - `shape`: the format of the file.
    - `branches`: number of other branches.
    - `below`: agents created for the subagents of the imported agent.
    - `repairs`: descriptions of repaired damage. `notes`: other differences from the file.
    """

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
