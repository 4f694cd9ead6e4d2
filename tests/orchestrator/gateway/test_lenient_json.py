"""JSON that our library or the archives cannot represent, but that servers accept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orch_worker.backends.formats.lenient_json import decode_lenient, decode_plain, split_fields, split_items
from orchestrator.gateway.gateway_world import (
    HEADERS,
    Client,
    MessagesClient,
    Worker,
    World,
)

Worlds = Callable[..., World]
DEEP = b"[" * 1200 + b'"]"' + b"]" * 1200
RARE = {
    "integer above 64 bits": b"123456789012345678901234567890",
    "integer of 5000 digits": b"-" + b"9" * 5000,
    "number above the range": b"-1e400",
    "half of a pair": b'"cut \\ud83d"',
    "other half": b'"\\\\\\uDE00 cut"',
    "half before a pair": b'"\\ud83d\\ud83d\\ude00"',
    "name": b'{"\\ud83d": 1}',
    "invalid UTF-8": b'"\xed\xa0\xbd"',
    "deep": DEEP,
}
rare = pytest.mark.parametrize("value", RARE.values(), ids=RARE)


def with_value(client: Client, value: bytes) -> bytes:
    """Return the body of the request of `client` with `value` in place of the text "@"."""
    return client.body().replace(b'"@"', value)


@rare
def test_a_rare_value_changes_nothing_else(client: Client, world: Worlds, value: bytes) -> None:
    """The conversation stays archived, the item with the value is sent byte for byte, and its turn is archived too."""
    made = world(Worker())
    made.turns(client, 10)
    client.say("What now?")
    item = client.items[-1]
    item["note"] = "@"
    exchange = made.gateway.begin(client.path, client.headers, body := with_value(client, value))
    assert len(exchange.request) - len(value) < len(body) / 3
    assert value in exchange.request
    del item["note"]
    client.items.append({"role": "assistant", "content": "Look. " * 600})
    made.turns(client, 8)
    client.say("And now?")
    item["note"] = "@"
    later = made.gateway.begin(client.path, client.headers, body := with_value(client, value))
    assert len(later.request) < len(body) / 3
    assert value not in later.request
    assert made.warnings == []


@rare
def test_requests_with_a_rare_value_are_in_the_receipt(client: Client, world: Worlds, value: bytes) -> None:
    """Values of fields and of messages do not matter to the receipt."""
    made = world()
    client.say("Hello.")
    client.items[-1]["note"] = client.fields["extra"] = "@"
    exchange = made.gateway.begin(client.path, client.headers, body := with_value(client, value))
    assert exchange.request == body
    exchange.read(b"{}")
    assert made.gateway.receipt().total.requests == 1
    assert made.warnings == []


def test_values_that_cannot_be_represented_become_texts() -> None:
    """Their JSON text is kept, and the values around them too."""
    raw = b'{"a": [1, 1e400, 9223372036854775808, -1.5], "b\\ud800": "\\\\ud83d \\udc00 \\ud83d\\ude00", "c": null}'
    read = {"a": [1, "1e400", "9223372036854775808", -1.5], "b\\ud800": "\\ud83d \\udc00 \U0001f600", "c": None}
    assert decode_lenient(raw) == decode_plain(raw) == read
    assert decode_lenient(b"9223372036854775808") == 2**63
    assert decode_plain(b"9223372036854775808") == "9223372036854775808"
    value = decode_plain(DEEP)
    depth = 0
    while isinstance(value, list):
        (value,) = value
        depth += 1
    assert depth == 100
    assert value == DEEP[100:-100].decode()


def test_bytes_of_parts_are_kept() -> None:
    """A list and an object are split without a change of their parts."""
    parts = [b'{"a": [1, 2], "b": "],\\ud83d\\""}', b"1e400", b"[ ]", b'"\\udc00"', b"-7"]
    assert split_items(b" [ " + b" ,\n".join(parts) + b"]") == parts
    assert split_items(b"[]") == []
    body = b"{" + b",".join(b'"%d\\u0041" :  %s ' % (index, part) for index, part in enumerate(parts)) + b"}"
    assert split_fields(body) == {f"{index}A": part for index, part in enumerate(parts)}


@pytest.mark.parametrize("raw", [b'["\\ud83d"', b'["\\ud83d",]', b'{"a": "\\ud83d"]', b'["\\ud83d"] 1', b"[" * 1200])
@pytest.mark.parametrize("read", [split_items, decode_lenient, decode_plain])
def test_invalid_json_is_refused(read: Any, raw: bytes) -> None:
    """What is not JSON stays an error."""
    with pytest.raises((ValueError, RecursionError)):
        read(raw)


def test_a_conversation_of_an_unknown_form_is_reported_once(world: Worlds) -> None:
    """Its requests pass unchanged, and are in the receipt."""
    made = world()
    client = MessagesClient()
    client.items = [{"role": "user", "content": {"no": "list " * 1000}}] * 3
    for _ in range(2):
        exchange = made.gateway.begin(client.path, HEADERS, body := client.body())
        assert exchange.request == body
        exchange.read(b"{}")
        client.items.append(client.items[0])
    (warning,) = made.warnings
    assert "unknown form" in warning
    assert made.gateway.receipt().total.requests == 2
