"""Credentials of callers: which keys and servers an agent of the daemon uses."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from orch.policy.credentials import CallerCredentials, ProgramCredentials, fingerprint, groups_of, read_salt
from orch.tree.agents.state import AgentRecord, TreeState
from orch.tree.journal.entries import AgentSpawned, CredentialsRecord, CredentialsSet, decode_entry, encode_entry
from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.errors import BackendError, ConfigError, CredentialsError
from orch_worker.backends import models

KNOWN = models.load()
GROUPS = groups_of(KNOWN)
SALT = b"salt"
A = {"OPENAI_API_KEY": "key-of-a", "OPENAI_BASE_URL": "http://a/v1"}
B = {"OPENAI_API_KEY": "key-of-b", "OPENAI_BASE_URL": "http://a/v1"}
REFUSED = BackendError("openai said 401: no (set OPENAI_API_KEY to a key that may use gpt)")


class Desk:
    """The credentials of a daemon, its agents, and the notices to callers."""

    def __init__(self, *entries: AgentSpawned) -> None:
        self.secrets: set[str] = set()
        self.credentials = CallerCredentials(KNOWN, SALT, self.secrets)
        self.nodes = self.credentials.agents = TreeState(entries)
        self.said: list[str] = []

    def calling(self, values: dict[str, str], method: str = "query"):  # type: ignore[no-untyped-def]
        return self.credentials.on_behalf_of(values, method, self.said.append)

    def spawn(
        self, id: str, values: dict[str, str], provider: str = "openai", parent: str | None = None
    ) -> AgentRecord:
        """Spawn an agent for a caller with `values`, and record it."""
        with self.calling(values, "spawn"):
            record = self.credentials.record() if parent is None else None
        self.nodes.apply(spawned(id, provider, parent, record))
        return self.nodes[id]

    def restarted(self) -> Desk:
        """Return the next daemon's state: the journal, but no values."""
        entries = [spawned(n.spec.id, n.spec.backend.provider, n.spec.parent_id, n.credentials) for n in self.nodes]
        return Desk(*(entry for each in entries if isinstance(entry := decode_entry(encode_entry(each)), AgentSpawned)))


def spawned(id: str, provider: str, parent: str | None, record: CredentialsRecord | None) -> AgentSpawned:
    options = {"base_url": "http://a/v1"} if provider == "openai" else {}
    spec = AgentSpec(id, 1, id, "task", BackendSpec(provider, "m", options), "/s", "/c", parent_id=parent)
    return AgentSpawned(at=1.0, id=id, spec=spec, credentials=record)


def test_fingerprint_is_salted_and_covers_the_variables_of_one_provider() -> None:
    """The fingerprint depends on the salt, the key and the address. It does not contain the key."""
    openai = GROUPS["openai"]
    mark = fingerprint(SALT, openai, A)
    assert mark == fingerprint(SALT, openai, A | {"ANTHROPIC_API_KEY": "k", "HOME": "/"})
    others = [fingerprint(SALT, openai, B), fingerprint(b"other", openai, A)]
    others.append(fingerprint(SALT, openai, A | {"OPENAI_BASE_URL": "http://b/v1"}))
    assert len({mark, *others}) == 4
    assert "key-of-a" not in mark
    assert fingerprint(SALT, openai, {}) == ""
    assert fingerprint(SALT, openai, {"OPENAI_BASE_URL": "http://a"}).startswith("url-")


def test_catalog_names_the_variables_that_commands_send() -> None:
    """The list contains keys, header variables and addresses of every provider, and the key for web search."""
    names = CallerCredentials(KNOWN, SALT).names
    assert {"OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "ANTHROPIC_CUSTOM_HEADERS", "OLLAMA_HOST"} <= {*names}
    assert "TAVILY_API_KEY" in names


def test_salt_is_made_once_and_private(tmp_path: Path) -> None:
    """The file has mode 0600."""
    assert read_salt(tmp_path) == read_salt(tmp_path)
    assert stat.S_IMODE((tmp_path / "credentials.salt").stat().st_mode) == 0o600


def test_agents_keep_the_credentials_of_their_callers() -> None:
    """A subagent has the credentials of its parent. Commands of another shell do not change them."""
    desk = Desk()
    desk.spawn("a", A)
    desk.spawn("b", B)
    desk.spawn("below", {}, parent="a")
    with desk.calling(B):
        assert dict(desk.credentials.values("a")) == dict(desk.credentials.values("below")) == A
        assert dict(desk.credentials.values(None)) == dict(desk.credentials.values("b")) == B
    assert desk.secrets == {"key-of-a", "key-of-b"}


def test_query_from_a_shell_with_another_key_uses_the_agents_own() -> None:
    """The caller gets one notice. A shell with the same key or without a key gets none."""
    desk = Desk()
    node = desk.spawn("a", A)
    for values in (A, {}, {"ANTHROPIC_API_KEY": "k"}):
        with desk.calling(values):
            assert desk.credentials.admit(node) is None
    assert desk.said == []
    with desk.calling(B):
        assert desk.credentials.admit(node) is None
    assert len(desk.said) == 1
    assert desk.said[0].startswith("agent a uses its own OPENAI_API_KEY, not the value in this shell; `orch resume 1")


def test_agent_waits_after_a_restart_until_the_same_credentials_are_offered() -> None:
    """Another shell's key does not end the wait. Any command from a shell with the same key does."""
    before = Desk()
    before.spawn("a", A)
    desk = before.restarted()
    node = desk.nodes["a"]
    assert desk.credentials.missing(node) == "OPENAI_API_KEY"
    with (
        desk.calling(B),
        pytest.raises(CredentialsError, match="waits for OPENAI_API_KEY, with the value that it was spawned with"),
    ):
        desk.credentials.admit(node)
    with desk.calling(A, "list"):
        pass
    assert desk.credentials.missing(node) == ""
    assert dict(desk.credentials.values("a")) == A


@pytest.mark.parametrize("provider", ["scripted", "extractive", "ollama"])
def test_agent_without_a_key_never_waits(provider: str) -> None:
    """Scripted and offline models and local servers need no key."""
    before = Desk()
    before.spawn("a", {**A, "OLLAMA_HOST": "http://h"}, provider)
    desk = before.restarted()
    assert desk.credentials.missing(desk.nodes["a"]) == ""
    with desk.calling({}):
        assert desk.credentials.admit(desk.nodes["a"]) is None


def test_agent_without_credentials_on_record_takes_those_of_the_next_caller() -> None:
    """An agent from a journal without credentials gets those of the caller that queries it."""
    desk = Desk(spawned("a", "openai", None, None))
    node = desk.nodes["a"]
    with desk.calling({}), pytest.raises(CredentialsError):
        desk.credentials.admit(node)
    with desk.calling(B):
        record = desk.credentials.admit(node)
    assert record is not None
    desk.nodes.apply(CredentialsSet(at=2.0, id="a", credentials=record))
    assert dict(desk.credentials.values("a")) == B


def test_daemons_own_keys_are_for_callers_without_one() -> None:
    """An address from a caller is never combined with the daemon's key."""
    desk = Desk()
    desk.credentials.set_fallback(A, "orch daemon start")
    assert dict(desk.credentials.values(desk.spawn("bare", {}).spec.id)) == A
    assert dict(desk.credentials.values(desk.spawn("other", B).spec.id)) == B
    assert dict(desk.credentials.values(desk.spawn("url", {"OPENAI_BASE_URL": "http://evil/v1"}).spec.id)) == A
    both = desk.spawn("both", {"ANTHROPIC_API_KEY": "k"})
    assert dict(desk.credentials.values("both")) == A | {"ANTHROPIC_API_KEY": "k"}
    assert desk.credentials.source(desk.nodes["bare"]).endswith("(from orch daemon start)")
    assert desk.credentials.source(both).endswith("(from the shell that ran orch spawn)")


def test_hint_offers_the_callers_other_key_for_the_same_server() -> None:
    """The hint is empty for the same key, for another server and for another error."""
    desk = Desk()
    node = desk.spawn("a", A)
    hint = "this shell has another OPENAI_API_KEY: `orch resume 1 --credentials` gives it to the agent"
    with desk.calling(B):
        assert desk.credentials.hint(node, REFUSED).startswith(hint)
        assert desk.credentials.hint(node, BackendError("openai said 500: oops")) == ""
    for values in (A, {}, B | {"OPENAI_BASE_URL": "http://b/v1"}):
        with desk.calling(values):
            assert desk.credentials.hint(node, REFUSED) == ""


def test_replacement_takes_what_the_caller_offers() -> None:
    """Other values stay. A caller without the key raises ConfigError."""
    desk = Desk()
    node = desk.spawn("a", A | {"ANTHROPIC_API_KEY": "k"})
    other = desk.spawn("b", A)
    assert desk.credentials.same(node, other)
    before = desk.credentials.version(node)
    with desk.calling(B, "resume"):
        desk.nodes.apply(CredentialsSet(at=2.0, id="a", credentials=desk.credentials.replacement(node)))
    assert dict(desk.credentials.values("a")) == B | {"ANTHROPIC_API_KEY": "k"}
    assert desk.credentials.version(node) != before
    assert not desk.credentials.same(node, other)
    with (
        desk.calling({"ANTHROPIC_API_KEY": "k2"}),
        pytest.raises(ConfigError, match="this shell has no OPENAI_API_KEY"),
    ):
        desk.credentials.replacement(node)


def test_record_survives_the_journal_without_values() -> None:
    """The journal contains no key."""
    desk = Desk()
    node = desk.spawn("a", A)
    line = encode_entry(spawned("a", "openai", None, node.credentials))
    assert b"key-of-a" not in line
    assert decode_entry(line) == spawned("a", "openai", None, node.credentials)


def test_new_address_applies_from_then_on() -> None:
    """The recorded address becomes part of the agent's spec, and its key stays."""
    desk = Desk()
    node = desk.spawn("a", A)
    desk.nodes.apply(CredentialsSet(at=2.0, id="a", base_url="http://new/v1"))
    assert node.spec.backend.options["base_url"] == "http://new/v1"
    assert dict(desk.credentials.values("a")) == A


def test_program_has_one_set_of_credentials() -> None:
    """Agents of a program use the variables of its environment. No agent waits, and a replacement is refused."""
    credentials = ProgramCredentials()
    node = TreeState([spawned("a", "openai", None, None)])["a"]
    assert credentials.missing(node) == ""
    assert credentials.admit(node) is None
    with pytest.raises(ConfigError, match="the environment of the program"):
        credentials.replacement(node)
