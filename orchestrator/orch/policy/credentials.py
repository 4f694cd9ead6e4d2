"""Credentials of agents: whose keys and servers an agent's models are reached with.

A program has one set, its environment. The daemon has one for each caller: a command sends the variables that the model
catalog names, and an agent keeps those of the command that spawned it. Agents below it, its holders and its summaries
use the same ones. Values stay in memory; on disk an agent has salted fingerprints, by which a later caller with the
same variables is recognized.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
from collections.abc import Callable, Iterator, Mapping, MutableSet
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from orch_protocol.core.errors import BackendError, ConfigError, CredentialsError
from orch_worker.backends.models import ModelCatalog
from orch_worker.system.secrets import SEARCH_KEY

from ..tree.agents.state import AgentRecord, TreeState
from ..tree.journal.entries import CredentialsRecord

__all__ = [
    "CallerCredentials",
    "Credentials",
    "ProgramCredentials",
    "VariableGroup",
    "fingerprint",
    "groups_of",
    "read_salt",
]

Say: TypeAlias = Callable[[str], object]

WEB_SEARCH: Final = "web_search"
KEY_PREFIX: Final = "key-"
ADDRESS_PREFIX: Final = "url-"
"""Beginnings of fingerprints: of variables with a secret among them, and without one."""
SALT: Final = "credentials.salt"
SALT_BYTES: Final = 32
REFUSAL_TEXTS: Final = (" said 401", " said 403", " to a key that may use ")


class VariableGroup(Struct, frozen=True):
    """The variables of one provider. With `required` its models cannot be asked without one of `keys`."""

    name: str
    keys: tuple[str, ...]
    secrets: tuple[str, ...]
    address: str = ""

    @property
    def required(self) -> bool:
        """Whether the provider refuses requests without a key."""
        return bool(self.keys) and self.name != WEB_SEARCH

    def of(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return the group's part of `values`."""
        return {name: values[name] for name in (*self.secrets, self.address) if name and values.get(name)}


def groups_of(known: ModelCatalog) -> dict[str, VariableGroup]:
    """Return the variables of each provider in the catalog `known`, and of web search."""
    found = {WEB_SEARCH: VariableGroup(WEB_SEARCH, (SEARCH_KEY,), (SEARCH_KEY,))}
    for name, about in known.providers.items():
        headers = known.headers_of(name)
        secrets = dict.fromkeys((*about.keys, *filter(None, (about.headers_variable,)), *headers))
        found[name] = VariableGroup(name, about.keys, tuple(secrets), about.base_url_variable)
    return found


def fingerprint(salt: bytes, group: VariableGroup, values: Mapping[str, str]) -> str:
    """Return the salted fingerprint of the group's part of `values`, "" where it has none."""
    part = group.of(values)
    if not part:
        return ""
    body = json.dumps([group.name, sorted(part.items())]).encode()
    digest = hmac.new(salt, body, hashlib.sha256).hexdigest()[:32]
    return f"{KEY_PREFIX if any(name in part for name in group.secrets) else ADDRESS_PREFIX}{digest}"


def read_salt(home: Path) -> bytes:
    """Return the salt of fingerprints in `home`, making it where there is none. Only its user may read it.

    The caller holds the lock of the daemon.
    """
    path, new = home / SALT, home / f"{SALT}.new"
    with contextlib.suppress(FileNotFoundError):
        if len(salt := path.read_bytes()) == SALT_BYTES:
            return salt
    salt = os.urandom(SALT_BYTES)
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(salt)
    new.replace(path)
    return salt


class ClientRequest(NamedTuple):
    """The command that a request came from: fingerprints of what it offers by group, and its verb.

    `say` prints a line on its stderr.
    """

    offered: dict[str, str]
    method: str
    say: Say


_caller: ContextVar[ClientRequest | None] = ContextVar("caller", default=None)


class Credentials(Protocol):
    """Which variables models are reached with."""

    nodes: TreeState
    """The agents of the root, set before anything else is asked."""

    def values(self, id: str | None) -> Mapping[str, str] | None:
        """Return the variables for the agent `id`, for the current caller when `id` is None.

        None stands for those that the root was made with.
        """

    def record(self, id: str | None = None) -> CredentialsRecord | None:
        """Return what to put on record for an agent that the current caller makes, or a copy of the agent `id`."""

    def missing(self, node: AgentRecord) -> str:
        """Return the names of the variables that the agent waits for, "" when it can work."""

    def version(self, node: AgentRecord) -> str:
        """Return what changes when the agent's credentials do."""

    def admit(self, node: AgentRecord) -> CredentialsRecord | None:
        """Check that a query can be put to the agent, and tell the caller when its own variables are not used.

        Returns what is to be on record from now on, None for no change. Raises CredentialsError.
        """

    def replacement(self, node: AgentRecord) -> CredentialsRecord:
        """Return the record of the agent with what the current caller offers. Raises ConfigError."""

    def same(self, one: AgentRecord, other: AgentRecord) -> bool:
        """Whether `other` has credentials of its own, and for the provider of `one` the same ones as `one`."""

    def address(self, provider: str, id: str) -> str:
        """Return the address of the provider's server for the agent `id`, "" where it has none of its own."""

    def hint(self, node: AgentRecord, error: BackendError) -> str:
        """Return advice where the provider refused the agent's key and the caller has another one, else ""."""

    def source(self, node: AgentRecord) -> str:
        """Return where the agent's credentials are from, for people. Never a value."""


class ProgramCredentials:
    """Those of a program: its environment holds for all of its agents."""

    nodes: TreeState

    def values(self, id: str | None) -> Mapping[str, str] | None:  # noqa: ARG002
        return None

    def record(self, id: str | None = None) -> CredentialsRecord | None:  # noqa: ARG002
        return None

    def missing(self, node: AgentRecord) -> str:  # noqa: ARG002
        return ""

    def version(self, node: AgentRecord) -> str:  # noqa: ARG002
        return ""

    def admit(self, node: AgentRecord) -> CredentialsRecord | None:  # noqa: ARG002
        return None

    def replacement(self, node: AgentRecord) -> CredentialsRecord:  # noqa: ARG002
        raise ConfigError("agents of a program use the program's environment: pass env= or keys= to Orchestrator")

    def same(self, one: AgentRecord, other: AgentRecord) -> bool:  # noqa: ARG002
        return False

    def address(self, provider: str, id: str) -> str:  # noqa: ARG002
        return ""

    def hint(self, node: AgentRecord, error: BackendError) -> str:  # noqa: ARG002
        return ""

    def source(self, node: AgentRecord) -> str:  # noqa: ARG002
        return "the program's environment"


class CallerCredentials:
    """Those of the daemon: each agent has what its caller offered.

    `salt` is that of fingerprints. Every secret that is offered is added to `secrets`, which logs leave out.
    """

    nodes: TreeState

    def __init__(self, known: ModelCatalog, salt: bytes, secrets: MutableSet[str] | None = None) -> None:
        self._known = known
        self._groups = groups_of(known)
        self._salt = salt
        self._secrets = secrets if secrets is not None else set()
        self._sets: dict[str, dict[str, str]] = {}
        """Every set of variables that was offered, by fingerprint."""
        self._fallback: dict[str, str] = {}
        self._fallback_source = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The variables that commands are to send."""
        names = (name for group in self._groups.values() for name in (*group.secrets, group.address))
        return tuple(dict.fromkeys(filter(None, names)))

    def offer(self, values: Mapping[str, str]) -> dict[str, str]:
        """Keep the variables of a caller, and return their fingerprints by group."""
        found = {}
        for name, group in self._groups.items():
            if mark := fingerprint(self._salt, group, values):
                found[name] = mark
                part = self._sets[mark] = group.of(values)
                self._secrets |= {part[each] for each in group.secrets if each in part}
        return found

    def fall_back_on(self, values: Mapping[str, str], source: str) -> None:
        """Use `values` for callers that have no key; `source` says where they are from."""
        self._fallback, self._fallback_source = self.offer(values), source

    @contextmanager
    def calling(self, values: Mapping[str, str], method: str, say: Say) -> Iterator[None]:
        """Let what is done in this block be done for a caller that offers `values`."""
        token = _caller.set(ClientRequest(self.offer(values), method, say))
        try:
            yield
        finally:
            _caller.reset(token)

    def values(self, id: str | None) -> Mapping[str, str]:
        """Return the variables for the agent `id`, for the current caller when `id` is None."""
        record = self._recorded(id)
        marks = record.fingerprints if record is not None else self._effective()
        return {name: value for mark in marks.values() for name, value in self._sets.get(mark, {}).items()}

    def record(self, id: str | None = None) -> CredentialsRecord | None:
        """Return what to put on record for an agent that the current caller makes, or a copy of the agent `id`."""
        if (found := self._recorded(id)) is not None:
            return found
        marks = self._effective()
        return CredentialsRecord(marks, self._source_now(marks)) if marks else None

    def missing(self, node: AgentRecord) -> str:
        """Return the names of the variables that the agent waits for, "" when it can work."""
        group = self._groups.get(node.spec.backend.provider)
        if group is None:
            return ""
        mark = self._mark(node, group)
        if mark.startswith(KEY_PREFIX):
            return "" if mark in self._sets else " or ".join(group.keys or group.secrets)
        return " or ".join(group.keys) if group.required else ""

    def version(self, node: AgentRecord) -> str:
        """Return what changes when the agent's credentials do."""
        record = self._recorded(node.spec.id)
        return " ".join(sorted(record.fingerprints.values())) if record is not None else ""

    def admit(self, node: AgentRecord) -> CredentialsRecord | None:
        """Check that a query can be put to the agent, and tell the caller when its own variables are not used.

        Returns what is to be on record from now on, None for no change. Raises CredentialsError.
        """
        caller, group = _caller.get(), self._groups.get(node.spec.backend.provider)
        if group is None:
            return None
        offered = caller.offered.get(group.name, "") if caller is not None else ""
        mark = self._mark(node, group)
        if names := self.missing(node):
            if not mark.startswith(KEY_PREFIX) and offered.startswith(KEY_PREFIX):
                return self._merged(node)
            raise CredentialsError(
                f"agent {node.spec.name!r} ({node.spec.id}) waits for the {names} that it was made with: run any orch "
                f"command where that is set, or `orch resume {node.spec.seq} --credentials` where another one is"
            )
        if caller is not None and offered and mark and offered != mark:
            own, given = self._sets.get(mark, {}), self._sets[offered]
            other = ", ".join(sorted(name for name in own | given if own.get(name) != given.get(name)))
            caller.say(
                f"agent {node.spec.name} uses the {other} it was made with, not this shell's; "
                f"`orch resume {node.spec.seq} --credentials` changes that"
            )
        return None

    def replacement(self, node: AgentRecord) -> CredentialsRecord:
        """Return the record of the agent with what the current caller offers. Raises ConfigError."""
        caller, group = _caller.get(), self._groups.get(node.spec.backend.provider)
        offered = caller.offered if caller is not None else {}
        if not offered or (
            group is not None and group.required and not offered.get(group.name, "").startswith(KEY_PREFIX)
        ):
            names = " or ".join(group.keys) if group is not None and group.keys else "variable of a model provider"
            raise ConfigError(f"this shell has no {names} to give to agent {node.spec.name!r}: set it and repeat")
        return self._merged(node)

    def address(self, provider: str, id: str) -> str:
        """Return the address of the provider's server for the agent `id`, "" where it has none of its own."""
        about = self._known.providers.get(provider)
        return about.address(self.values(id)) if about is not None else ""

    def hint(self, node: AgentRecord, error: BackendError) -> str:
        """Return advice where the provider refused the agent's key and the caller has another one, else ""."""
        caller, group = _caller.get(), self._groups.get(node.spec.backend.provider)
        if caller is None or group is None or not any(text in str(error) for text in REFUSAL_TEXTS):
            return ""
        given = self._sets.get(caller.offered.get(group.name, ""), {})
        own = self._sets.get(self._mark(node, group), {})
        other = [name for name in group.secrets if name in given and given[name] != own.get(name)]
        server = self._known.provider(group.name).address(given)
        if not other or server != node.spec.backend.options.get("base_url", server):
            return ""
        return (
            f"this shell has another {' and '.join(other)}: `orch resume {node.spec.seq} --credentials` gives it to "
            "the agent (--all: to every agent with the same credentials)"
        )

    def source(self, node: AgentRecord) -> str:
        """Return where the agent's credentials are from, for people. Never a value."""
        record = self._recorded(node.spec.id)
        if record is None:
            return ""
        known = {mark: self._sets[mark] for mark in record.fingerprints.values() if mark in self._sets}
        names = sorted(name for part in known.values() for name in part)
        return f"{' '.join(names) or 'not offered since the daemon started'} (from {record.source})"

    def same(self, one: AgentRecord, other: AgentRecord) -> bool:
        """Whether `other` has credentials of its own, and for the provider of `one` the same ones as `one`."""
        group = self._groups.get(one.spec.backend.provider)
        if other.credentials is None or group is None:
            return False
        mark = self._mark(one, group)
        return bool(mark) and other.credentials.fingerprints.get(group.name) == mark

    def _recorded(self, id: str | None) -> CredentialsRecord | None:
        """Return the record of the agent, or of the nearest one above it."""
        return next((node.credentials for node in self.nodes.chain(id) if node.credentials is not None), None)

    def _mark(self, node: AgentRecord, group: VariableGroup) -> str:
        """Return the fingerprint by which the agent's variables of the group are known, "" for none.

        An agent without any on record uses the daemon's own.
        """
        record = self._recorded(node.spec.id)
        return (self._fallback if record is None else record.fingerprints).get(group.name, "")

    def _effective(self) -> dict[str, str]:
        """Return the fingerprints of what the current caller offers; without a key of a provider, the daemon's own."""
        caller = _caller.get()
        offered = caller.offered if caller is not None else {}
        own = {
            name: mark for name, mark in self._fallback.items() if mark.startswith(KEY_PREFIX) or name not in offered
        }
        return offered | {name: mark for name, mark in own.items() if not offered.get(name, "").startswith(KEY_PREFIX)}

    def _merged(self, node: AgentRecord) -> CredentialsRecord:
        caller, record = _caller.get(), self._recorded(node.spec.id)
        before = record.fingerprints if record is not None else {}
        marks = before | (caller.offered if caller is not None else {})
        return CredentialsRecord(marks, self._source_now(marks))

    def _source_now(self, marks: Mapping[str, str]) -> str:
        caller = _caller.get()
        offered = caller.offered if caller is not None else {}
        if caller is not None and any(mark == offered.get(name) for name, mark in marks.items()):
            return f"the shell that ran orch {caller.method.replace('_', '-')}"
        return self._fallback_source
