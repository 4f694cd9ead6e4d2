"""Conversations of programs that have messages in place of HTTP requests."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from orch.gateway.api import Api, encode_value
from orch.gateway.chat import CHAT
from orch.gateway.core import Gateway
from orch.gateway.responses import RESPONSES
from orch.gateway.store import FileStore
from orchestrator.gateway.gateway_world import TIGHT

ID = re.compile(r"\b[0-9a-f]{12}\b")


def conversation(name: str, turns: int = 6) -> list[Any]:
    """Return messages that the formats of both APIs of OpenAI have in common."""
    items: list[Any] = []
    for turn in range(turns):
        items.append({"role": "user", "content": f"Prompt {turn}"})
        items.append({"role": "assistant", "content": f"Answer {turn} of {name}. " + f"{name} is fine. " * 300})
    return [*items, {"role": "user", "content": "And now?"}]


def encoded(items: list[Any]) -> list[bytes]:
    """Return messages as JSON."""
    return [encode_value(item) for item in items]


def new_gateway(folder: Path, **options: Any) -> Gateway:
    """Return a gateway that folds early."""
    return Gateway(FileStore(folder, None, TIGHT), **options)


@pytest.mark.parametrize("api", [CHAT, RESPONSES])
def test_messages_are_folded_as_in_a_request(api: Api, tmp_path: Path) -> None:
    """The messages to send are the same as in the changed body of an HTTP request."""
    items = encoded(conversation("alpha"))
    prepared = new_gateway(tmp_path / "messages").prepare(api, "", items, 0)
    assert prepared
    path, field = ("/v1/chat/completions", "messages") if api is CHAT else ("/v1/responses", "input")
    body = b'{"model":"m","%s":[%s]}' % (field.encode(), b",".join(items))
    sent = json.loads(new_gateway(tmp_path / "bodies").begin(path, {}, body).request)[field]
    shown = [json.loads(item) for item in prepared.encoded]
    assert ID.sub("ID", json.dumps(shown)) == ID.sub("ID", json.dumps(sent))
    assert sum(map(len, prepared.encoded)) < sum(map(len, items)) / 2


def test_recalls_read_only_what_the_request_shows(tmp_path: Path) -> None:
    """Two conversations with the same beginning and session share a folder, but not their archives."""
    gateway = new_gateway(tmp_path)
    ours, others = (encoded(conversation(name)) for name in ("alpha", "bravo"))
    prepared, other = (gateway.prepare(CHAT, "s", items, 0) for items in (ours, others))
    assert prepared
    assert other
    assert len(list(tmp_path.iterdir())) == 1
    assert "alpha is fine" in gateway.recall(CHAT, "s", ours, 0, "search_archive", {"query": "is fine"})
    assert "bravo" not in gateway.recall(CHAT, "s", ours, 0, "search_archive", {"query": "bravo is fine"})
    assert "bravo" not in gateway.recall(CHAT, "s", ours, 0, "read_archive", {"id": other.ids[0]})
    assert "bravo is fine" in gateway.recall(CHAT, "s", others, 0, "read_archive", {"id": other.ids[0]})


def test_what_is_not_understood_stays_unchanged(tmp_path: Path) -> None:
    """Unknown forms, histories that the server keeps, and the mode "off"."""
    warnings: list[str] = []
    gateway = new_gateway(tmp_path, warn=warnings.append)
    items = encoded(conversation("alpha"))
    assert gateway.prepare(CHAT, "", [], 0) is None
    assert gateway.prepare(CHAT, "", [b"7", *items], 0) is None
    assert gateway.prepare(CHAT, "", [b'{"role":"tool"', *items], 0) is None
    assert gateway.prepare(RESPONSES, "", [b'{"type":"item_reference","id":"x"}', *items], 0) is None
    orphan = encode_value({"type": "function_call_output", "call_id": "c", "output": "text " * 2000})
    assert gateway.prepare(RESPONSES, "", [orphan, *items], 0) is None
    off = new_gateway(tmp_path / "off", mode="off")
    assert off.prepare(CHAT, "", items, 0) is None
    assert off.recall(CHAT, "", items, 0, "search_archive", {"query": "fine"}).startswith("Error: ")
    assert not (tmp_path / "off").exists()
    assert gateway.recall(CHAT, "", [], 0, "search_archive", {"query": "x"}).startswith("Error: ")
    assert gateway.recall(CHAT, "", items[:1], 0, "search_archive", {"query": "x"}).startswith("Error: ")
    assert warnings == []
