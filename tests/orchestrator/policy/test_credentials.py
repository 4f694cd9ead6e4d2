"""Whose keys and servers an agent of the daemon uses."""

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
    """A daemon's credentials, its agents, and what callers were told."""

    def __init__(self, *entries: AgentSpawned) -> None:
        self.secrets: set[str] = set()
        self.credentials = CallerCredentials(KNOWN, SALT, self.secrets)
        self.nodes = self.credentials.nodes = TreeState(entries)
        self.said: list[str] = []

    def calling(self, values: dict[str, str], method: str = "query"):  # type: ignore[no-untyped-def]
        return self.credentials.calling(values, method, self.said.append)

    def spawn(
        self, id: str, values: dict[str, str], provider: str = "openai", parent: str | None = None
    ) -> AgentRecord:
        """Put an agent on record that a caller with `values` spawns."""
        with self.calling(values, "spawn"):
            record = self.credentials.record() if parent is None else None
        self.nodes.apply(spawned(id, provider, parent, record))
        return self.nodes[id]

    def restarted(self) -> Desk:
        """Return what the next daemon knows: the journal, but no values."""
        entries = [spawned(n.spec.id, n.spec.backend.provider, n.spec.parent_id, n.credentials) for n in self.nodes]
        return Desk(*(entry for each in entries if isinstance(entry := decode_entry(encode_entry(each)), AgentSpawned)))


def spawned(id: str, provider: str, parent: str | None, record: CredentialsRecord | None) -> AgentSpawned:
    options = {"base_url": "http://a/v1"} if provider == "openai" else {}
    spec = AgentSpec(id, 1, id, "task", BackendSpec(provider, "m", options), "/s", "/c", parent_id=parent)
    return AgentSpawned(at=1.0, id=id, spec=spec, credentials=record)


def test_fingerprint_is_salted_and_covers_the_variables_of_one_provider() -> None:
    """Other variables do not change it; another value, address or salt does. No value can be read from it."""
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
    """Keys, header variables and addresses of every provider, and the key of the web search."""
    names = CallerCredentials(KNOWN, SALT).names
    assert {"OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "ANTHROPIC_CUSTOM_HEADERS", "OLLAMA_HOST"} <= {*names}
    assert "TAVILY_API_KEY" in names


def test_salt_is_made_once_and_private(tmp_path: Path) -> None:
    """Only its user may read the file."""
    assert read_salt(tmp_path) == read_salt(tmp_path)
    assert stat.S_IMODE((tmp_path / "credentials.salt").stat().st_mode) == 0o600


def test_agents_keep_the_credentials_of_their_callers() -> None:
    """So do agents below them; nothing of one shell reaches the agents of another. Logs leave out what was offered."""
    desk = Desk()
    desk.spawn("a", A)
    desk.spawn("b", B)
    desk.spawn("below", {}, parent="a")
    with desk.calling(B):
        assert dict(desk.credentials.values("a")) == dict(desk.credentials.values("below")) == A
        assert dict(desk.credentials.values(None)) == dict(desk.credentials.values("b")) == B
    assert desk.secrets == {"key-of-a", "key-of-b"}


def test_query_from_a_shell_with_another_key_uses_the_agents_own() -> None:
    """One line says so; a shell with the same key, or without any, is told nothing."""
    desk = Desk()
    node = desk.spawn("a", A)
    for values in (A, {}, {"ANTHROPIC_API_KEY": "k"}):
        with desk.calling(values):
            assert desk.credentials.admit(node) is None
    assert desk.said == []
    with desk.calling(B):
        assert desk.credentials.admit(node) is None
    assert len(desk.said) == 1
    assert desk.said[0].startswith("agent a uses the OPENAI_API_KEY it was made with, not this shell's; `orch resume 1")


def test_agent_waits_after_a_restart_until_the_same_credentials_are_offered() -> None:
    """Those of another shell do not do; any command of the first one does."""
    before = Desk()
    before.spawn("a", A)
    desk = before.restarted()
    node = desk.nodes["a"]
    assert desk.credentials.missing(node) == "OPENAI_API_KEY"
    with desk.calling(B), pytest.raises(CredentialsError, match="waits for the OPENAI_API_KEY that it was made with"):
        desk.credentials.admit(node)
    with desk.calling(A, "list"):
        pass
    assert desk.credentials.missing(node) == ""
    assert dict(desk.credentials.values("a")) == A


@pytest.mark.parametrize("provider", ["scripted", "extractive", "ollama"])
def test_agent_without_a_key_never_waits(provider: str) -> None:
    """Scripts, offline answers and local servers need nobody's key."""
    before = Desk()
    before.spawn("a", {**A, "OLLAMA_HOST": "http://h"}, provider)
    desk = before.restarted()
    assert desk.credentials.missing(desk.nodes["a"]) == ""
    with desk.calling({}):
        assert desk.credentials.admit(desk.nodes["a"]) is None


def test_agent_without_credentials_on_record_takes_those_of_the_next_caller() -> None:
    """As one of a journal from before they were recorded."""
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
    """Never mixed with a caller's: a server that the caller names does not get the daemon's key."""
    desk = Desk()
    desk.credentials.fall_back_on(A, "orch daemon start")
    assert dict(desk.credentials.values(desk.spawn("bare", {}).spec.id)) == A
    assert dict(desk.credentials.values(desk.spawn("other", B).spec.id)) == B
    assert dict(desk.credentials.values(desk.spawn("url", {"OPENAI_BASE_URL": "http://evil/v1"}).spec.id)) == A
    both = desk.spawn("both", {"ANTHROPIC_API_KEY": "k"})
    assert dict(desk.credentials.values("both")) == A | {"ANTHROPIC_API_KEY": "k"}
    assert desk.credentials.source(desk.nodes["bare"]).endswith("(from orch daemon start)")
    assert desk.credentials.source(both).endswith("(from the shell that ran orch spawn)")


def test_refused_key_is_advised_about_where_the_caller_has_another_for_that_server() -> None:
    """Not for the same key, another server, or another error."""
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
    """The rest stays; a caller without the key has nothing to give."""
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
    """What is written holds no key."""
    desk = Desk()
    node = desk.spawn("a", A)
    line = encode_entry(spawned("a", "openai", None, node.credentials))
    assert b"key-of-a" not in line
    assert decode_entry(line) == spawned("a", "openai", None, node.credentials)


def test_new_address_holds_from_then_on() -> None:
    """The model of the agent is asked there."""
    desk = Desk()
    node = desk.spawn("a", A)
    desk.nodes.apply(CredentialsSet(at=2.0, id="a", base_url="http://new/v1"))
    assert node.spec.backend.options["base_url"] == "http://new/v1"
    assert dict(desk.credentials.values("a")) == A


def test_program_has_one_set() -> None:
    """Its environment: no agent waits, and none can be given another shell's."""
    credentials = ProgramCredentials()
    node = TreeState([spawned("a", "openai", None, None)])["a"]
    assert credentials.missing(node) == ""
    assert credentials.admit(node) is None
    with pytest.raises(ConfigError, match="the program's environment"):
        credentials.replacement(node)
