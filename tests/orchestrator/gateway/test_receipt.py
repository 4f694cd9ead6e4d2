"""The receipt: what conversations cost, and what they would have cost without the gateway."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from msgspec import to_builtins

import orch.gateway
from orch.gateway import receipt_log
from orch.gateway.core import Gateway
from orch.gateway.store import FileStore
from orch_worker.session.log.append_log import AppendLog
from orchestrator.gateway.billed_client import MODELS, STEP, BilledClient, counts, kind_of, prepared
from orchestrator.gateway.gateway_world import TIGHT, ChatClient, Client, MessagesClient, Worker, World
from wire.model_server import call, say

Worlds = Callable[..., World]


@pytest.mark.parametrize("pause", [STEP, 400.0], ids=["warm", "cold"])
def test_replayed_cost_is_what_the_server_would_bill(client: Client, world: Worlds, pause: float) -> None:
    """The cost without the gateway is the bill for the client's own requests, within 5 %, with and without pauses."""
    billed = BilledClient(world, prepared(client), Worker(5, thinks=0))
    billed.turns(14, pause)
    receipt = billed.receipt
    assert receipt.requests == len(billed.direct)
    assert receipt.cost_without_usd == pytest.approx(billed.direct_usd(), rel=0.05)
    assert receipt.received_tokens == pytest.approx(sum(map(sum, map(counts, billed.direct))), rel=0.05)
    assert receipt.sent_tokens < receipt.received_tokens * 0.8
    assert receipt.unpriced_requests == receipt.uncounted_requests == 0


def test_unchanged_conversations_cost_the_same(client: Client, world: Worlds) -> None:
    """Without a change, the cost with and without the gateway is the reported one, also with the mode "off"."""
    billed = BilledClient(world, prepared(client), Worker(5), mode="off")
    billed.turns(5)
    receipt = billed.receipt
    assert receipt.cost_usd == receipt.cost_without_usd == pytest.approx(billed.direct_usd())
    assert receipt.received_tokens == receipt.sent_tokens == sum(map(sum, map(counts, billed.direct)))
    assert receipt.cache_read_tokens == sum(each.read for each in billed.direct)


def test_requests_without_markers_are_not_cached_without_the_gateway(world: Worlds) -> None:
    """The server of the Messages API caches only up to the client's markers, so none means the full price."""
    billed = BilledClient(world, prepared(MessagesClient(), markers=False), Worker(5))
    billed.turns(14)
    assert billed.receipt.cost_without_usd == pytest.approx(billed.direct_usd(), rel=0.05)
    assert sum(each.read for each in billed.direct) == 0


def test_recalls_are_counted_with_their_cost(client: Client, world: Worlds) -> None:
    """A recall costs a request and output; without the gateway there is neither."""
    billed = BilledClient(world, prepared(client), Worker(5))
    billed.turns(14)
    before = billed.receipt
    answers = [call({"call": "search_archive", "input": {"query": "result"}}), say("Here.")]
    billed.worker = lambda _: answers.pop(0)
    client.say("What was in the first file?")
    assert billed.send() == []
    after = billed.receipt
    assert after.requests == before.requests + 1
    assert after.recalls == before.recalls + 1
    assert after.output_tokens == before.output_tokens + 100
    one_request = after.cost_without_usd - before.cost_without_usd
    assert 0 < one_request < before.cost_without_usd


def test_receipt_survives_a_restart(client: Client, world: Worlds) -> None:
    """After a restart, the sums are the same, and the replay continues with a warm cache."""
    billed = BilledClient(world, prepared(client), Worker(5))
    billed.turns(8)
    before = billed.receipt
    billed.world.restart()
    assert billed.receipt == before
    billed.turns(6)
    assert billed.receipt.cost_without_usd == pytest.approx(billed.direct_usd(), rel=0.05)


def test_torn_line_loses_one_request(world: Worlds, tmp_path: Path) -> None:
    """A process that was killed while it wrote a line leaves the receipt of all earlier requests."""
    billed = BilledClient(world, prepared(MessagesClient()), Worker(5))
    billed.turns(3)
    before = billed.receipt
    billed.client.say("And now?")
    billed.send()
    billed.world.gateway.close()
    (path,) = tmp_path.glob("receipts/*/receipts.jsonl")
    path.write_bytes(path.read_bytes()[:-20])
    billed.world.restart()
    assert billed.receipt == before
    billed.turns(1)
    assert billed.receipt.requests > before.requests
    assert billed.world.warnings == []


def test_size_of_the_file_is_limited(world: Worlds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long file is replaced by its sums; the replay continues, and old conversations are part of the total."""
    monkeypatch.setattr(receipt_log, "MAX_BYTES", 6000)
    monkeypatch.setattr("orch.gateway.receipt.MAX_CONVERSATIONS", 5)
    billed = BilledClient(world, prepared(MessagesClient()), Worker(5))
    for number in range(60):
        billed.now += STEP
        client = prepared(MessagesClient(f"session {number}"))
        client.say("Hello.")
        billed.world.send(client, stream=False)
    billed.outputs = 0
    billed.turns(12)
    (path,) = tmp_path.glob("receipts/*/receipts.jsonl")
    assert path.stat().st_size < 13_000
    receipt = billed.world.gateway.receipt()
    assert receipt.total.requests == 60 + len(billed.direct)
    assert len(receipt.conversations) == 5
    assert receipt.conversations[0].requests == len(billed.direct)
    assert receipt.conversations[0].cost_without_usd == pytest.approx(billed.direct_usd(), rel=0.05)
    total = receipt.total
    billed.world.restart()
    assert billed.world.gateway.receipt().total == total


def test_files_contain_no_text_and_no_key(client: Client, world: Worlds, tmp_path: Path) -> None:
    """The receipt has numbers, hashes and names of models only."""
    client.headers = client.headers | {"authorization": "Bearer sk-secret", "x-session-id": "session-name"}
    billed = BilledClient(world, prepared(client), Worker(5))
    billed.turns(8)
    (path,) = tmp_path.glob("receipts/*/receipts.jsonl")
    content = path.read_bytes()
    assert MODELS[kind_of(client)].encode() in content
    secrets = ["sk-secret", "session-name", "Prompt", "result", "You help", "read_file", str(tmp_path)]
    assert [text for text in secrets if text.encode() in content] == []


@pytest.mark.parametrize("model", ["gpt-unlisted", "", None, 7])
def test_unknown_models_have_tokens_and_no_cost(world: Worlds, model: Any) -> None:
    """The receipt says for how many requests the price is unknown."""
    client = ChatClient(model=model)
    client.say("Hello.")
    made = world()
    made.send(client, stream=False)
    total = made.gateway.receipt().total
    assert (total.unpriced_requests, total.cost_usd, total.sent_tokens) == (1, 0.0, 10)


def test_prices_of_the_user_apply(world: Worlds, tmp_path: Path) -> None:
    """A price in models.json of the user applies to the model in the request."""
    models = tmp_path / "home"
    models.mkdir()
    price = {"input": 1.0, "output": 2.0, "cache_read": 0.5}
    (models / "models.json").write_text(json.dumps({"models": {"openai": {"mine": {"prices": [price]}}}}))
    client = ChatClient(model="mine")
    client.say("Hello.")
    made = world(models=models)
    made.send(client, stream=False)
    assert made.gateway.receipt().total.cost_usd == pytest.approx((10 * 1.0 + 5 * 2.0) / 1e6)


def test_responses_without_counts_are_named(world: Worlds) -> None:
    """Servers report the tokens of a Chat Completions stream only if the client asks for them."""
    client = ChatClient()
    client.say("Hello.")
    made = world()
    made.send(client)
    total = made.gateway.receipt().total
    assert (total.requests, total.uncounted_requests, total.unpriced_requests) == (1, 1, 0)


def test_two_processes_have_one_receipt(client: Client, world: Worlds, tmp_path: Path) -> None:
    """Gateways over the same folder write files of their own, and the receipt contains both."""
    made = world()
    other = Gateway(FileStore(tmp_path, config=TIGHT), warn=made.warnings.append)
    client.say("Hello.")
    made.send(client, stream=False)
    client.say("And now?")
    made.gateway, first = other, made.gateway
    made.send(client, stream=False)
    assert to_builtins(first.receipt()) == to_builtins(other.receipt())
    assert first.receipt().total.requests == 2
    first.close()
    assert made.warnings == []


@pytest.mark.parametrize("damage", ["folder", "file", "full disk"])
def test_receipt_that_cannot_be_written_stops_no_client(
    world: Worlds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """The request passes, and the problem is reported once."""
    match damage:
        case "folder":
            (tmp_path / "receipts").write_text("not a folder")
        case "file":
            (tmp_path / "receipts" / "1" / "receipts.jsonl").mkdir(parents=True)
        case _:

            def fail(_descriptor: int, _data: Any) -> int:
                raise OSError(28, "No space left on device")

            monkeypatch.setattr(AppendLog, "_write", staticmethod(fail))
    client = MessagesClient()
    client.say("Hello.")
    made = world()
    for _ in range(3):
        assert made.send(client, stream=False) == []
        client.say("And then?")
    assert len(made.warnings) == 1
    assert "receipt" in made.warnings[0]


def test_clients_with_names_have_receipts_of_their_own(client: Client, world: Worlds) -> None:
    """Two clients at one gateway each see what their own requests cost."""
    made = world()
    client.say("Hello.")
    for name in ("first", "second", "first"):
        exchange = made.gateway.begin(client.path, client.headers, client.body(), name)
        made.stream(exchange, client)
        exchange.close()
    assert [made.gateway.receipt_of_client(name).total.requests for name in ("first", "second", "none")] == [2, 1, 0]
    assert len(made.gateway.receipt_of_client("first").conversations) == 1


def test_a_response_before_a_lost_connection_is_counted(tmp_path: Path) -> None:
    """If the request after a recall fails, the receipt of an HTTP client has the response with the recall."""
    client = MessagesClient()
    for turn in range(6):
        client.say(f"Prompt {turn}. " + "Look at this part. " * 30)
        client.items.append({"role": "assistant", "content": f"Answer {turn}. " + "All is well. " * 60})
    client.say("And now?")
    recall = {"type": "tool_use", "id": "toolu_1", "name": "search_archive", "input": {"query": "part"}}
    usage = {"input_tokens": 20, "output_tokens": 5}
    answers = [{"type": "message", "role": "assistant", "model": "m", "id": "msg_1", "content": [recall]}]
    answers[0] |= {"stop_reason": "tool_use", "stop_sequence": None, "usage": usage}

    def answer(_request: httpx2.Request) -> httpx2.Response:
        if not answers:
            raise httpx2.ConnectError("lost")
        return httpx2.Response(200, json=answers.pop())

    http = orch.gateway.client(tmp_path, config=TIGHT, transport=httpx2.MockTransport(answer))
    with http, pytest.raises(httpx2.ConnectError):
        http.post(f"http://model.test{client.path}", headers=client.headers, content=client.body())
    total = orch.gateway.stats(tmp_path).total
    assert (total.requests, total.recalls, total.output_tokens) == (1, 1, 5)


def test_a_server_without_a_prompt_cache_is_recognized(tmp_path: Path) -> None:
    """If no response reports cached tokens, the cost without the gateway contains none either."""
    client = MessagesClient()

    def answer(request: httpx2.Request) -> httpx2.Response:
        usage = {"input_tokens": len(request.content) // 4, "output_tokens": 5}
        said = {"type": "message", "role": "assistant", "model": "m", "id": "msg_1", "stop_reason": "end_turn"}
        return httpx2.Response(200, json=said | {"content": [{"type": "text", "text": "Yes."}], "usage": usage})

    with orch.gateway.client(tmp_path, config=TIGHT, transport=httpx2.MockTransport(answer)) as http:
        for turn in range(12):
            client.say(f"Prompt {turn}. " + "Look at this part. " * 30)
            http.post(f"http://model.test{client.path}", headers=client.headers, content=client.body())
            client.items.append({"role": "assistant", "content": f"Answer {turn}. " + "All is well. " * 60})
    total = orch.gateway.stats(tmp_path).total
    assert total.sent_tokens < total.received_tokens * 0.9
    assert total.cost_usd / total.sent_tokens == pytest.approx(total.cost_without_usd / total.received_tokens, rel=0.1)
