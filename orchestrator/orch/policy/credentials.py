"""Credentials of agents. Credentials are the keys and the server addresses that an agent's models use.

A program has one set of credentials, which is its environment. The daemon has one set for each caller. A command sends
the variables that the model catalog names. An agent uses the variables of the command that spawned the agent. The
agent's descendants, holders and summaries use the same variables. The values stay in memory; on disk, orch stores only
salted fingerprints of the values. The fingerprints show whether a later caller offers the same values.
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
from orch_worker.backends.models import CatalogFile, ModelCatalog, is_loopback, valid_catalog
from orch_worker.system.atomic_write import atomic_write
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

PrintLine: TypeAlias = Callable[[str], object]

WEB_SEARCH: Final = "web_search"
KEY_PREFIX: Final = "key-"
ADDRESS_PREFIX: Final = "url-"
"""The prefixes of fingerprints: `key-` if the variables include a secret, otherwise `url-`.
"""
SALT: Final = "credentials.salt"
SALT_BYTES: Final = 32
REFUSAL_TEXTS: Final = (" said 401", " said 403", " to a key that may use ")


class VariableGroup(Struct, frozen=True):
    """The variables of one provider.

    If `required` is True, the models of the provider cannot be used without one of `keys`.
    """

    name: str
    keys: tuple[str, ...]
    secrets: tuple[str, ...]
    address: str = ""

    @property
    def required(self) -> bool:
        """Whether the provider rejects requests without a key."""
        return bool(self.keys) and self.name != WEB_SEARCH

    def of(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of this group that are in `values`."""
        return {name: values[name] for name in (*self.secrets, self.address) if name and values.get(name)}


def groups_of(known: ModelCatalog) -> dict[str, VariableGroup]:
    """Return the variables of web search and those of each provider in the catalog `known`."""
    found = {WEB_SEARCH: VariableGroup(WEB_SEARCH, (SEARCH_KEY,), (SEARCH_KEY,))}
    for name, provider_info in known.providers.items():
        headers = known.variables_of(name)
        secrets = dict.fromkeys((*provider_info.keys, *filter(None, (provider_info.headers_variable,)), *headers))
        found[name] = VariableGroup(name, provider_info.keys, tuple(secrets), provider_info.base_url_variable)
    return found


def fingerprint(salt: bytes, group: VariableGroup, values: Mapping[str, str]) -> str:
    """Return the salted fingerprint of the group's variables in `values`.

    Return "" if `values` has none of these variables.
    """
    part = group.of(values)
    if not part:
        return ""
    body = json.dumps([group.name, sorted(part.items())]).encode()
    digest = hmac.new(salt, body, hashlib.sha256).hexdigest()[:32]
    return f"{KEY_PREFIX if any(name in part for name in group.secrets) else ADDRESS_PREFIX}{digest}"


def read_salt(home: Path) -> bytes:
    """Return the salt for fingerprints in `home`. If there is none, create it. Only the user may read the file.

    The caller must hold the lock of the daemon.
    """
    path = home / SALT
    with contextlib.suppress(FileNotFoundError):
        if len(salt := path.read_bytes()) == SALT_BYTES:
            return salt
    salt = os.urandom(SALT_BYTES)
    with atomic_write(path, locked=True) as file:
        file.write(salt)
    return salt


class ClientRequest(NamedTuple):
    """The command that sent a request.

    The fields are the verb of the command and the fingerprints of its variables by group. `print_line` prints a line on
    the command's stderr.
    """

    offered: dict[str, str]
    method: str
    print_line: PrintLine


_caller: ContextVar[ClientRequest | None] = ContextVar("caller", default=None)


class Credentials(Protocol):
    """The variables that models use."""

    agents: TreeState
    """The agents of the root. The root assigns this attribute before it calls a method."""

    def values(self, id: str | None) -> Mapping[str, str] | None:
        """Return the variables for the agent `id`. If `id` is None, return those for the current caller.

        The result None means the environment in which the root was created.
        """

    def record(self, id: str | None = None) -> CredentialsRecord | None:
        """Return the record for an agent that the current caller creates.

        If `id` is set, return it for a copy of the agent `id`.
        """

    def missing(self, agent: AgentRecord) -> str:
        """Return the names of the variables that the agent waits for, "" if the agent can work."""

    def version(self, agent: AgentRecord) -> str:
        """Return a string that changes when the agent's credentials change."""

    def admit(self, agent: AgentRecord) -> CredentialsRecord | None:
        """Check that the agent can be queried. Raises CredentialsError.

        If the agent does not use the caller's own variables, notify the caller. Return the agent's new record, or None
        if the record did not change.
        """

    def replacement(self, agent: AgentRecord) -> CredentialsRecord:
        """Return the agent's record with the variables of the current caller. Raises ConfigError."""

    def same(self, one: AgentRecord, other: AgentRecord) -> bool:
        """Return whether `other` has its own credentials that equal the credentials of `one` for the model provider of
        `one`.
        """

    def address(self, provider: str, id: str) -> str:
        """Return the address of the provider's server for the agent `id`, "" for the default."""

    def hint(self, agent: AgentRecord, error: BackendError) -> str:
        """Return advice if the provider rejected the agent's key and the caller has another key, otherwise ""."""

    def source(self, agent: AgentRecord) -> str:
        """Return a text that states where the agent's credentials come from. The text contains no values."""


class ProgramCredentials:
    """Credentials of a program. All agents of the program use its environment."""

    agents: TreeState

    def values(self, id: str | None) -> Mapping[str, str] | None:  # noqa: ARG002
        return None

    def record(self, id: str | None = None) -> CredentialsRecord | None:  # noqa: ARG002
        return None

    def missing(self, agent: AgentRecord) -> str:  # noqa: ARG002
        return ""

    def version(self, agent: AgentRecord) -> str:  # noqa: ARG002
        return ""

    def admit(self, agent: AgentRecord) -> CredentialsRecord | None:  # noqa: ARG002
        return None

    def replacement(self, agent: AgentRecord) -> CredentialsRecord:  # noqa: ARG002
        raise ConfigError("agents of a program use the environment of the program; pass env= or keys= to Orchestrator")

    def same(self, one: AgentRecord, other: AgentRecord) -> bool:  # noqa: ARG002
        return False

    def address(self, provider: str, id: str) -> str:  # noqa: ARG002
        return ""

    def hint(self, agent: AgentRecord, error: BackendError) -> str:  # noqa: ARG002
        return ""

    def source(self, agent: AgentRecord) -> str:  # noqa: ARG002
        return "the program's environment"


class CallerCredentials:
    """Credentials of the daemon. Each agent uses the variables that its caller offered.

    `salt` is the salt of fingerprints. Every secret that a caller offers is added to `secrets`, so that logs do not
    show the secret.
    """

    agents: TreeState

    def __init__(self, known: ModelCatalog | CatalogFile, salt: bytes, secrets: MutableSet[str] | None = None) -> None:
        self._source = known
        self._groups_of = (self._known, groups_of(self._known))
        self._salt = salt
        self._secrets = secrets if secrets is not None else set()
        self._sets: dict[str, dict[str, str]] = {}
        """Every set of variables that a caller offered, by fingerprint."""
        self._fallback: dict[str, str] = {}
        self._fallback_source = ""

    @property
    def _known(self) -> ModelCatalog:
        return valid_catalog(self._source)

    @property
    def _groups(self) -> dict[str, VariableGroup]:
        known = self._known
        if known is not self._groups_of[0]:
            self._groups_of = (known, groups_of(known))
        return self._groups_of[1]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the variables that commands send to the daemon."""
        names = (name for group in self._groups.values() for name in (*group.secrets, group.address))
        return tuple(dict.fromkeys(filter(None, names)))

    def offer(self, values: Mapping[str, str]) -> dict[str, str]:
        """Store the variables of a caller. Return their fingerprints by group."""
        found = {}
        for name, group in self._groups.items():
            if digest := fingerprint(self._salt, group, values):
                found[name] = digest
                part = self._sets[digest] = group.of(values)
                self._secrets |= {part[each] for each in group.secrets if each in part}
        return found

    def set_fallback(self, values: Mapping[str, str], source: str) -> None:
        """Use `values` for callers that have no key. `source` states where the values come from."""
        self._fallback, self._fallback_source = self.offer(values), source

    @contextmanager
    def on_behalf_of(self, values: Mapping[str, str], method: str, print_line: PrintLine) -> Iterator[None]:
        """Execute the `with` block on behalf of a caller that offers `values`."""
        token = _caller.set(ClientRequest(self.offer(values), method, print_line))
        try:
            yield
        finally:
            _caller.reset(token)

    def values(self, id: str | None) -> Mapping[str, str]:
        """Return the variables for the agent `id`. If `id` is None, return those for the current caller."""
        record = self._record_of(id)
        digests = record.fingerprints if record is not None else self._effective_fingerprints()
        return {name: value for digest in digests.values() for name, value in self._sets.get(digest, {}).items()}

    def record(self, id: str | None = None) -> CredentialsRecord | None:
        """Return the record for an agent that the current caller creates.

        If `id` is set, return it for a copy of the agent `id`.
        """
        if (found := self._record_of(id)) is not None:
            return found
        digests = self._effective_fingerprints()
        return CredentialsRecord(digests, self._source_of(digests)) if digests else None

    def missing(self, agent: AgentRecord) -> str:
        """Return the names of the variables that the agent waits for, "" if the agent can work."""
        group = self._groups.get(agent.spec.backend.provider)
        if group is None:
            return ""
        digest = self._agent_fingerprint(agent, group)
        if digest.startswith(KEY_PREFIX):
            return "" if digest in self._sets else " or ".join(group.keys or group.secrets)
        # A server on this machine needs no key.
        needs_key = group.required and not is_loopback(agent.spec.backend.options.get("base_url", ""))
        return " or ".join(group.keys) if needs_key else ""

    def version(self, agent: AgentRecord) -> str:
        """Return a string that changes when the agent's credentials change."""
        record = self._record_of(agent.spec.id)
        return " ".join(sorted(record.fingerprints.values())) if record is not None else ""

    def admit(self, agent: AgentRecord) -> CredentialsRecord | None:
        """Check that the agent can be queried. Raises CredentialsError.

        If the agent does not use the caller's own variables, notify the caller. Return the agent's new record, or None
        if the record did not change.
        """
        caller, group = _caller.get(), self._groups.get(agent.spec.backend.provider)
        if group is None:
            return None
        offered = caller.offered.get(group.name, "") if caller is not None else ""
        digest = self._agent_fingerprint(agent, group)
        if names := self.missing(agent):
            if not digest.startswith(KEY_PREFIX) and offered.startswith(KEY_PREFIX):
                return self._updated_record(agent)
            raise CredentialsError(
                f"agent {agent.spec.name!r} ({agent.spec.id}) waits for {names}, with the value that it was spawned "
                f"with: run any orch command in a shell with this value, or `orch resume {agent.spec.seq} "
                "--credentials` in a shell with another value"
            )
        if caller is not None and offered and digest and offered != digest:
            own, given = self._sets.get(digest, {}), self._sets[offered]
            other = ", ".join(sorted(name for name in own | given if own.get(name) != given.get(name)))
            caller.print_line(
                f"agent {agent.spec.name} uses its own {other}, not the value in this shell; `orch "
                f"resume {agent.spec.seq} --credentials` changes that"
            )
        return None

    def replacement(self, agent: AgentRecord) -> CredentialsRecord:
        """Return the agent's record with the variables of the current caller. Raises ConfigError."""
        caller, group = _caller.get(), self._groups.get(agent.spec.backend.provider)
        offered = caller.offered if caller is not None else {}
        if not offered or (
            group is not None and group.required and not offered.get(group.name, "").startswith(KEY_PREFIX)
        ):
            names = " or ".join(group.keys) if group is not None and group.keys else "variable of a model provider"
            raise ConfigError(f"this shell has no {names} for agent {agent.spec.name!r}; set it and repeat the command")
        return self._updated_record(agent)

    def address(self, provider: str, id: str) -> str:
        """Return the address of the provider's server for the agent `id`, "" for the default."""
        provider_info = self._known.providers.get(provider)
        return provider_info.address(self.values(id)) if provider_info is not None else ""

    def hint(self, agent: AgentRecord, error: BackendError) -> str:
        """Return advice if the provider rejected the agent's key and the caller has another key, otherwise ""."""
        caller, group = _caller.get(), self._groups.get(agent.spec.backend.provider)
        if caller is None or group is None or not any(text in str(error) for text in REFUSAL_TEXTS):
            return ""
        given = self._sets.get(caller.offered.get(group.name, ""), {})
        own = self._sets.get(self._agent_fingerprint(agent, group), {})
        other = [name for name in group.secrets if name in given and given[name] != own.get(name)]
        server = self._known.provider(group.name).address(given)
        if not other or server != agent.spec.backend.options.get("base_url", server):
            return ""
        return (
            f"this shell has another {' and '.join(other)}: `orch resume {agent.spec.seq} --credentials` gives it to "
            "the agent (--all: to every agent with the same credentials)"
        )

    def source(self, agent: AgentRecord) -> str:
        """Return a text that states where the agent's credentials come from. The text contains no values."""
        record = self._record_of(agent.spec.id)
        if record is None:
            return ""
        known = {digest: self._sets[digest] for digest in record.fingerprints.values() if digest in self._sets}
        names = sorted(name for part in known.values() for name in part)
        return f"{' '.join(names) or 'not received since the daemon started'} (from {record.source})"

    def same(self, one: AgentRecord, other: AgentRecord) -> bool:
        """Return whether `other` has its own credentials that equal the credentials of `one` for the model provider of
        `one`.
        """
        group = self._groups.get(one.spec.backend.provider)
        if other.credentials is None or group is None:
            return False
        digest = self._agent_fingerprint(one, group)
        return bool(digest) and other.credentials.fingerprints.get(group.name) == digest

    def _record_of(self, id: str | None) -> CredentialsRecord | None:
        """Return the record of the agent `id`.

        If the agent has none, return the record of the nearest ancestor that has a record.
        """
        return next((agent.credentials for agent in self.agents.chain(id) if agent.credentials is not None), None)

    def _agent_fingerprint(self, agent: AgentRecord, group: VariableGroup) -> str:
        """Return the fingerprint of the agent's variables of the group, "" if there are none.

        An agent without a record uses the daemon's own variables.
        """
        record = self._record_of(agent.spec.id)
        return (self._fallback if record is None else record.fingerprints).get(group.name, "")

    def _effective_fingerprints(self) -> dict[str, str]:
        """Return the fingerprints of the variables that apply to the current caller.

        If the caller has no key for a provider, the daemon's own variables apply.
        """
        caller = _caller.get()
        offered = caller.offered if caller is not None else {}
        own = {
            name: digest
            for name, digest in self._fallback.items()
            if digest.startswith(KEY_PREFIX) or name not in offered
        }
        return offered | {
            name: digest for name, digest in own.items() if not offered.get(name, "").startswith(KEY_PREFIX)
        }

    def _updated_record(self, agent: AgentRecord) -> CredentialsRecord:
        caller, record = _caller.get(), self._record_of(agent.spec.id)
        before = record.fingerprints if record is not None else {}
        digests = before | (caller.offered if caller is not None else {})
        return CredentialsRecord(digests, self._source_of(digests))

    def _source_of(self, digests: Mapping[str, str]) -> str:
        caller = _caller.get()
        offered = caller.offered if caller is not None else {}
        if caller is not None and any(digest == offered.get(name) for name, digest in digests.items()):
            return f"the shell that ran orch {caller.method.replace('_', '-')}"
        return self._fallback_source
