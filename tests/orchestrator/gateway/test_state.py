"""The state of conversations: which requests belong together, and what happens if the state cannot be used."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import orch.gateway
from orch import ArchivalConfig
from orch.gateway.core import MAX_OPEN, Gateway
from orch.gateway.store import FileStore
from orch_protocol.core.errors import ConfigError, StoreError
from orch_worker.session.log.append_log import AppendLog
from orchestrator.gateway.gateway_world import CLIENTS, TIGHT, Client, MessagesClient, Worker, World, archives_in
from wire.model_server import call, say

Worlds = Callable[..., World]


def long(client: Client, world: World) -> bytes:
    """Give `client` a conversation that is archived. Return the body of its request."""
    world.answer = Worker()
    world.turns(client, 10)
    client.say("What now?")
    return client.body()


@pytest.mark.parametrize("make", [orch.gateway.client, orch.gateway.async_client])
def test_client_refuses_a_folder_that_it_cannot_use(make: Callable[..., object], tmp_path: Path) -> None:
    """The error comes before the first request, which would pass unchanged. A missing folder is created."""
    (tmp_path / "agent.py").write_text("")
    with pytest.raises(ConfigError, match=r"agent\.py is not a folder: pass a new or existing folder"):
        make(tmp_path / "agent.py")
    with pytest.raises(StoreError, match=r"cannot create .*agent\.py"):
        make(tmp_path / "agent.py" / "inside")
    with pytest.raises(StoreError, match="cannot create /proc/conversations: "):
        make("/proc/conversations")
    with pytest.raises(StoreError, match="cannot write to /proc/self: "):
        make("/proc/self")
    make(tmp_path / "new" / "conversations")
    assert list((tmp_path / "new" / "conversations").iterdir()) == []


def test_stats_of_a_missing_folder_are_an_error(tmp_path: Path) -> None:
    """A misspelt name must not look like a folder without requests."""
    with pytest.raises(ConfigError, match=r"there is no folder '.*nope': pass the folder of orch.gateway.client"):
        orch.gateway.stats(tmp_path / "nope")
    assert orch.gateway.stats(tmp_path).total.requests == 0


def test_each_conversation_has_a_folder(client: Client, world: Worlds) -> None:
    """Another session, and another beginning in the same session, have folders of their own."""
    made = world()
    body = long(client, made)
    other = type(client)("s2")
    other.items = [{"role": "user", "content": "Another beginning."}, *client.items[1:]]
    for headers in (client.headers, other.headers):
        for each in (body, other.body()):
            made.gateway.begin(client.path, headers, each)
    folders = [path for path in made.folder.iterdir() if path.is_dir()]
    assert len(folders) == 4
    assert all((folder / "gateway.jsonl").exists() for folder in folders)


def test_two_histories_with_the_same_beginning_are_not_mixed(client: Client, world: Worlds) -> None:
    """Two conversations without a session begin with the same turns; neither finds archives of the other."""
    made = world(Worker())
    first, second = type(client)(""), type(client)("")
    made.turns(first, 3)
    second.items = list(first.items)
    first.name, second.name = "alpha", "bravo"
    for each in (first, second):
        made.answer = Worker(len(each.name) + each.name.count("b"))
        made.turns(each, 8)
        made.gateway.begin(each.path, each.headers, each.body())
    begun = len(made.sent)
    for each in (first, second, first, second):
        script = [call({"call": "search_archive", "input": {"query": "result"}}), say("Yes.")]
        made.answer = lambda _, script=script: script.pop(0)  # type: ignore[misc]
        each.say("What was it?")
        assert made.send(each) == []
    assert len(made.sent) == begun + 8
    assert len(made.conversations()) == 1
    assert not [sent for sent in made.sent if b"alpha" in sent and b"bravo" in sent]


def test_a_conversation_that_continues_under_another_beginning_is_folded_again(world: Worlds) -> None:
    """If the client changes the first message of a session, its requests are still folded."""
    client = MessagesClient()
    made = world()
    body = long(client, made)
    first = json.loads(made.gateway.begin(client.path, client.headers, body).request)
    client.items[0] = {"role": "user", "content": "[It is Tuesday.] Prompt 0."}
    second = json.loads(made.gateway.begin(client.path, client.headers, client.body()).request)
    assert archives_in(first)
    assert archives_in(second)
    assert not archives_in(first) & archives_in(second)


def test_a_deleted_folder_is_created_again(world: Worlds) -> None:
    """The user may delete the folder of a conversation at any time; its turns are archived again."""
    client = MessagesClient()
    made = world()
    body = long(client, made)
    assert archives_in(json.loads(made.gateway.begin(client.path, client.headers, body).request))
    (folder,) = (path for path in made.folder.iterdir() if path.is_dir())
    shutil.rmtree(folder)
    assert archives_in(json.loads(made.gateway.begin(client.path, client.headers, body).request))
    assert (folder / "gateway.jsonl").exists()


def test_a_session_in_the_metadata_is_a_session(world: Worlds) -> None:
    """Without a header, the field of the API names the session."""
    made = world()
    for kind, fields in (
        ("messages", {"metadata": {"user_id": "user_1_session_2"}}),
        ("chat", {"prompt_cache_key": "thread 1"}),
        ("responses", {"prompt_cache_key": "thread 1"}),
    ):
        client = CLIENTS[kind]("")
        long(client, made)
        before = set(made.folder.iterdir())
        for value in ("one", "two"):
            client.fields |= {name: json.loads(json.dumps(each).replace("1", value)) for name, each in fields.items()}
            made.gateway.begin(client.path, client.headers, client.body())
        assert len(set(made.folder.iterdir()) - before) == 2


def test_a_locked_folder_lets_requests_pass(client: Client, world: Worlds) -> None:
    """If another gateway has the folder of a conversation open, requests pass unchanged, with one warning."""
    made = world()
    body = long(client, made)
    made.gateway.begin(client.path, client.headers, body)
    warnings: list[str] = []
    other = Gateway(FileStore(made.folder, config=TIGHT), warn=warnings.append)
    for _ in range(3):
        assert other.begin(client.path, client.headers, body).request == body
    assert len(warnings) == 1
    assert "in use by process" in warnings[0]
    made.gateway.close()
    assert len(other.begin(client.path, client.headers, body).request) < len(body)


def test_a_folder_that_is_a_file_lets_requests_pass(client: Client, tmp_path: Path) -> None:
    """If no folder can be created, requests pass unchanged, with a warning."""
    (tmp_path / "file").write_text("no folder")
    made = World(tmp_path / "file")
    body = long(client, made)
    assert made.gateway.begin(client.path, client.headers, body).request == body
    assert len(made.warnings) == 1


@pytest.mark.parametrize("name", ["gateway.jsonl", "archive-000001.jsonl"])
@pytest.mark.parametrize("damage", ["cut", "flip", "foreign", "empty"])
def test_damaged_files_lose_nothing(name: str, damage: str, client: Client, world: Worlds) -> None:
    """With damaged files the request is still complete: it passes unchanged, or old turns are archived again."""
    made = world()
    body = long(client, made)
    made.gateway.begin(client.path, client.headers, body)
    made.gateway.close()
    (path,) = made.folder.glob(f"*/{name}")
    data = path.read_bytes()
    middle = len(data) // 2
    path.write_bytes(
        {
            "cut": data[:-9],
            "flip": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
            "foreign": b'{"type": "something else"}\n' + data,
            "empty": b"",
        }[damage]
    )
    made.restart()
    sent = made.gateway.begin(client.path, client.headers, body).request
    known = {
        record.id for each in made.gateway.open_conversations() for record in each.state.archiver.archives(merged=True)
    }
    assert sent == body or archives_in(json.loads(sent)) <= known
    if damage != "empty":
        assert made.warnings
    client.rules.check(json.loads(sent), client.headers, made.issued)


def test_a_full_disk_lets_requests_pass(client: Client, world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """If nothing can be written, nothing more is archived; what is archived already stays so. Later it works again."""
    made = world()
    body = long(client, made)
    first = made.gateway.begin(client.path, client.headers, body).request

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(AppendLog, "_write", staticmethod(full))
        other = type(client)("s2")
        other.items = client.items
        assert made.gateway.begin(client.path, other.headers, body).request == body
        client.items.pop()
        made.turns(client, 3)
        client.say("And now?")
        sent = made.gateway.begin(client.path, client.headers, client.body()).request
        assert archives_in(json.loads(sent)) == archives_in(json.loads(first))
    assert any("disk full" in warning for warning in made.warnings)
    assert len(made.gateway.begin(client.path, other.headers, body).request) < len(body)


def test_only_some_conversations_stay_open(world: Worlds) -> None:
    """The files of the conversation that was used least recently are closed; it is opened again when it continues."""
    client = MessagesClient()
    made = world()
    body = long(client, made)
    first = made.gateway.begin(client.path, client.headers, body).request
    for number in range(MAX_OPEN):
        made.gateway.begin(client.path, client.headers | {"x-session-id": f"other {number}"}, body)
    assert len(made.gateway.open_conversations()) == MAX_OPEN
    assert made.gateway.begin(client.path, client.headers, body).request == first
    assert made.warnings == []


def test_the_memory_for_conversations_is_bounded(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a size, the conversation that was used least recently is closed, but never the current one."""
    client = MessagesClient()
    made = world()
    body = long(client, made)
    monkeypatch.setattr("orch.gateway.core.MAX_HELD_BYTES", 1000)
    for session in ("one", "two", "one"):
        assert len(made.gateway.begin(client.path, client.headers | {"x-session-id": session}, body).request) < len(
            body
        )
        assert len(made.gateway.open_conversations()) == 1


def test_a_fault_of_the_gateway_lets_requests_pass(
    client: Client, world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected error in the gateway is reported, and the request passes unchanged."""
    made = world()
    body = long(client, made)

    def broken(*_: object) -> None:
        raise AssertionError("a fault")

    monkeypatch.setattr("orch.gateway.conversation.Conversation.prepare", broken)
    for _ in range(2):
        assert made.gateway.begin(client.path, client.headers, body).request == body
    assert made.warnings == [f"a request to {client.path} passes unchanged: AssertionError: a fault"]


@pytest.mark.parametrize("fails", [False, True])
def test_old_entries_are_removed_from_the_file(world: Worlds, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """A long conversation keeps a small file. If the file cannot be replaced, it stays, and nothing changes."""
    monkeypatch.setattr("orch.gateway.conversation.MAX_ENTRIES_BYTES", 4000)
    monkeypatch.setattr("orch.gateway.conversation.MAX_VIEWS", 2)
    if fails:

        def broken(*_: object) -> None:
            raise StoreError("cannot rewrite the file: disk full")

        monkeypatch.setattr("orch.gateway.store.replace_log", broken)
    client = MessagesClient()
    made = world(Worker(4, recalls=0.2))
    for turn in range(25):
        client.say(f"Prompt {turn}. " + "Look at this part. " * 10)
        while made.send(client):
            pass
    client.say("And now?")
    before = made.gateway.begin(client.path, client.headers, client.body()).request
    (path,) = made.folder.glob("*/gateway.jsonl")
    assert (path.stat().st_size > 40_000) == fails
    assert bool(made.warnings) == fails
    made.restart()
    assert made.gateway.begin(client.path, client.headers, client.body()).request == before


def test_prices_of_the_model_decide_what_archiving_pays(world: Worlds, tmp_path: Path) -> None:
    """If cached tokens cost as much as others, a conversation is archived earlier."""
    prices = {"dear": 1.0, "cheap": 0.01}
    entries = {
        name: {"prices": [{"input": 1.0, "output": 5.0, "cache_read": price, "cache_write": 1.25}]}
        for name, price in prices.items()
    }
    models = tmp_path / "home"
    models.mkdir()
    (models / "models.json").write_text(json.dumps({"models": {"anthropic": entries}}))
    made = world(Worker(1), config=ArchivalConfig(), models=models)
    clients = [MessagesClient(name, model=name) for name in prices]
    for client in clients:
        made.turns(client, 12)
        client.say("And now?")
    dear, cheap = (made.gateway.begin(each.path, each.headers, each.body()) for each in clients)
    assert (dear.unchanged, cheap.unchanged) == (False, True)
