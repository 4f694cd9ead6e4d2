"""Which requests the gateway changes, and what stays as the client sent it."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from orch import ArchivalConfig
from orchestrator.gateway.gateway_world import (
    HEADERS,
    ChatClient,
    Client,
    MessagesClient,
    ResponsesClient,
    Worker,
    World,
    archives_in,
    has_recall_tools,
    without_markers,
)
from wire.model_server import call

Worlds = Callable[..., World]
RICH: list[Any] = [
    {
        "role": "user",
        "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "A page."}},
            {"type": "document", "source": {"type": "file", "file_id": "file_1"}, "citations": {"enabled": True}},
            {
                "type": "text",
                "text": "What is this? \u00e9 \u2713",
                "cache_control": {"type": "ephemeral", "ttl": "1h"},
            },
        ],
    },
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "A thought.", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "c2VjcmV0"},
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
            {
                "type": "web_search_tool_result",
                "tool_use_id": "srvtoolu_1",
                "content": [{"type": "web_search_result", "url": "https://x.example", "encrypted_content": "ZW4="}],
            },
            {
                "type": "text",
                "text": "It says so.",
                "citations": [{"type": "char_location", "cited_text": "A", "document_index": 0, "end_char_index": 1}],
            },
            {"type": "a_block_of_a_beta", "value": [1.50, None, True], "nested": {"cache_control": "of the block"}},
            {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {"cache_control": "an argument"}},
            {"type": "tool_use", "id": "toolu_2", "name": "read_file", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": True, "content": "no such file"},
            {
                "type": "tool_result",
                "tool_use_id": "toolu_1",
                "content": [{"type": "search_result", "source": "s", "title": "t", "content": []}],
            },
            {"type": "text", "text": "Go on."},
        ],
    },
    {"role": "system", "content": "A system message in the middle."},
]
"""Messages with every kind of block, in the middle of a turn."""


def test_with_mode_off_every_request_passes_unchanged(client: Client, world: Worlds) -> None:
    """With the mode "off", bodies of all sizes are byte-identical, and nothing is stored."""
    made = world(Worker(), mode="off")
    made.turns(client, 8)
    exchange = made.gateway.begin(client.path, client.headers, body := client.body())
    assert exchange.unchanged
    assert exchange.request == body
    assert not made.folder.exists() or not list(made.folder.iterdir())


def test_short_conversations_pass_unchanged_and_leave_no_folder(client: Client, world: Worlds) -> None:
    """A request without a finished turn of some size is byte-identical, and no folder is created for it."""
    made = world()
    client.say("What is the capital of France? " * 300)
    body = client.body()
    exchange = made.gateway.begin(client.path, client.headers, body)
    assert exchange.unchanged
    assert exchange.request == body
    assert list(made.folder.iterdir()) == []


def test_long_conversations_become_small_and_get_recall_tools(client: Client, world: Worlds) -> None:
    """Old turns are archived, the rest is sent byte for byte, and the client's tools come before the recall tools."""
    made = world(Worker())
    made.turns(client, 12)
    made.answer = lambda _: call({"call": "read_file", "input": {"path": "last.py"}})
    client.say("What did the second result say?")
    made.send(client)
    exchange = made.gateway.begin(client.path, client.headers, body := client.body())
    sent = json.loads(exchange.request)
    assert len(exchange.request) < len(body) / 3
    assert archives_in(sent)
    assert sent["tools"][0] == client.tool("read_file")
    assert has_recall_tools(sent)
    assert exchange.request.count(json.dumps(client.items[-2]).encode()) == 1
    assert without_markers(sent[client.field][-1]) == client.items[-1]
    assert {name: value for name, value in sent.items() if name not in ("tools", client.field)} == {
        name: value for name, value in json.loads(body).items() if name not in ("tools", client.field)
    }


def test_blocks_of_every_kind_pass(world: Worlds) -> None:
    """Messages that are not archived are byte-identical: signatures, citations, server tools, unknown blocks."""
    made = world(Worker())
    client = MessagesClient()
    made.turns(client, 8)
    client.fields = {
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
        "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
        "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
        "unknown_beta_field": {"a": [1.0, 1e-7, None]},
    }
    client.items += RICH
    body = client.body()
    exchange = made.gateway.begin(client.path, client.headers, body)
    assert len(exchange.request) < len(body)
    for item in RICH[1:]:
        assert json.dumps(item).encode() in exchange.request
    sent = json.loads(exchange.request)
    assert sent["messages"][-4]["content"][:4] == RICH[0]["content"]
    for name in client.fields:
        assert sent[name] == client.fields[name]
    assert b'"unknown_beta_field":{"a": [1.0, 1e-07, null]}' in exchange.request


def test_archived_blocks_come_back_unchanged(world: Worlds) -> None:
    """Blocks of every kind are archived without loss: a turn with them is folded, and the server refuses nothing."""
    made = world()
    client = MessagesClient()
    client.items = [*RICH[:3], {"role": "assistant", "content": "Here it is. " * 300}]
    for turn in range(6):
        client.items += [
            {"role": "user", "content": f"Question {turn}"},
            {"role": "assistant", "content": f"Answer {turn}. " * 200},
        ]
    client.say("And now?")
    exchange = made.gateway.begin(client.path, client.headers, client.body())
    assert archives_in(json.loads(exchange.request))
    assert b"a_block_of_a_beta" not in exchange.request
    assert made.warnings == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", b"{not json"),
        ("/v1/messages", b"[1, 2]"),
        ("/v1/messages", b'{"messages": "text"}'),
        ("/v1/messages", b'{"messages": [1, null, []]}'),
        ("/v1/messages", b'{"messages": [{"role": "user"}, {"role": "x"}, {"content": 3}]}'),
        ("/v1/messages", b""),
        ("/v1/models", b"{}"),
        ("/v1/messages/batches", b'{"requests": []}'),
        ("/v1/chat/completions", b'{"messages": {"role": "user"}}'),
        ("/v1/responses", b'{"input": "a text"}'),
        ("/v1/embeddings", b'{"input": ["a", "b", "c"]}'),
    ],
)
def test_what_is_not_understood_passes_unchanged(path: str, body: bytes, world: Worlds) -> None:
    """Bodies that are not JSON or have another form, and other paths, pass as they are."""
    exchange = world().gateway.begin(path, HEADERS, body)
    assert exchange.unchanged
    assert exchange.request == body


def long(client: Client, world: World) -> None:
    """Give `client` a conversation that would be archived."""
    world.turns(client, 10)
    client.say("What now?")


@pytest.mark.parametrize("fields", [{"n": 2}, {"functions": [{"name": "f"}]}])
def test_chat_requests_that_cannot_be_continued_pass_unchanged(fields: Any, world: Worlds) -> None:
    """Requests for several choices, and with the first form of calls, pass unchanged."""
    client = ChatClient()
    made = world(Worker())
    long(client, made)
    client.fields = fields
    assert made.gateway.begin(client.path, client.headers, client.body()).unchanged


@pytest.mark.parametrize(
    "fields", [{"previous_response_id": "resp_1"}, {"conversation": "conv_1"}, {"background": True}]
)
def test_responses_with_state_on_the_server_pass_unchanged(fields: Any, world: Worlds) -> None:
    """If the server adds to the conversation, the gateway does not know it, and changes nothing."""
    client = ResponsesClient()
    made = world(Worker())
    long(client, made)
    client.fields |= fields
    assert made.gateway.begin(client.path, client.headers, client.body()).unchanged


def test_conversations_that_the_server_compacted_pass_unchanged(world: Worlds) -> None:
    """The server ignores what is before its own compaction, so archiving would not help."""
    client = MessagesClient()
    made = world(Worker())
    long(client, made)
    client.items[-2]["content"].insert(0, {"type": "compaction", "content": "A summary."})
    assert made.gateway.begin(client.path, client.headers, client.body()).unchanged


def test_a_client_with_tools_of_the_same_names_is_not_changed(client: Client, world: Worlds) -> None:
    """If the client has a tool `search_archive` of its own, its calls belong to the client."""
    made = world(Worker())
    long(client, made)
    client.fields |= {"tools": [client.tool("search_archive")]}
    assert made.gateway.begin(client.path, client.headers, client.body()).unchanged


def test_tokens_are_counted_of_the_folded_conversation(world: Worlds) -> None:
    """A request for the number of tokens contains what the request for a response would contain."""
    client = MessagesClient()
    made = world(Worker())
    long(client, made)
    asked = made.gateway.begin(client.path, client.headers, client.body())
    counted = made.gateway.begin("/v1/messages/count_tokens", client.headers, client.body())
    assert counted.request == asked.request
    assert not counted.reads


def marked_client(ttl: str = "") -> MessagesClient:
    """Return a client that sets cache markers in its system text and at the end of its messages."""
    marker = {"type": "ephemeral"} | ({"ttl": ttl} if ttl else {})
    return MessagesClient(system=[{"type": "text", "text": "You help.", "cache_control": marker}])


def test_cache_markers_of_the_client_stay(world: Worlds) -> None:
    """A request contains at most four markers: the client's, and one at the end of what archiving keeps."""
    client = marked_client()
    made = world(Worker())
    long(client, made)
    made.answer = lambda _: call({"call": "read_file", "input": {"path": "last.py"}})
    made.send(client)
    sent = json.loads(made.gateway.begin(client.path, client.headers, client.body()).request)
    assert sent["system"] == client.fields["system"]
    assert sent["messages"][-1]["content"][-1]["cache_control"] == {"type": "ephemeral"}
    marked = [index for index, item in enumerate(sent["messages"]) if "cache_control" in json.dumps(item)]
    assert len(marked) == 2
    records = [index for index, item in enumerate(sent["messages"]) if "subagent_id" in json.dumps(item)]
    assert marked[0] >= records[-1]


def test_no_marker_is_added_beyond_four(world: Worlds) -> None:
    """If the client uses all four markers, the gateway adds none."""
    client = marked_client()
    made = world(Worker())
    long(client, made)
    block = client.fields["system"][0]
    client.fields["system"] = [block, block, block]
    client.items[-1]["content"] = [{"type": "text", "text": "What now?"}]
    request = made.gateway.begin(client.path, client.headers, client.body()).request
    assert request.count(b'"cache_control"') == 4


def test_a_marker_before_one_of_an_hour_is_one_of_an_hour(world: Worlds) -> None:
    """The API refuses a marker of five minutes before a marker of one hour."""
    client = MessagesClient()
    made = world(Worker())
    long(client, made)
    marker = {"type": "ephemeral", "ttl": "1h"}
    client.items[-1]["content"] = [{"type": "text", "text": "What now?", "cache_control": marker}]
    sent = json.loads(made.gateway.begin(client.path, client.headers, client.body()).request)
    marks = [
        block["cache_control"] for item in sent["messages"] for block in item["content"] if "cache_control" in block
    ]
    assert marks == [marker] * len(marks)
    assert len(marks) in (1, 2)


def test_a_request_is_the_same_bytes_again_after_a_restart(client: Client, world: Worlds) -> None:
    """The same history leads to the same request, also in another process that opens the folder."""
    made = world(Worker())
    long(client, made)
    first = made.gateway.begin(client.path, client.headers, client.body()).request
    assert made.gateway.begin(client.path, client.headers, client.body()).request == first
    made.restart()
    assert made.gateway.begin(client.path, client.headers, client.body()).request == first


def test_nothing_is_touched_where_folding_would_not_pay(client: Client, world: Worlds) -> None:
    """The first fold makes the server read the tools and the system text again, so they must not outweigh its gain."""
    made = world(Worker(), config=ArchivalConfig())
    made.turns(client, 25)
    client.say("And now?")
    client.fields["model"] = "a long name " * 40000
    body = client.body()
    assert made.gateway.begin(client.path, client.headers, body).request == body
    client.fields["model"] = "m"
    client.headers = client.headers | {"x-session-id": "another"}
    client.items.pop()
    made.turns(client, 35)
    client.say("And now?")
    assert len(made.gateway.begin(client.path, client.headers, client.body()).request) < len(client.body()) / 2


def test_small_turns_with_markers_of_the_client_pass_unchanged(world: Worlds) -> None:
    """A conversation whose turns are small is byte-identical, with the markers of the client."""
    client = marked_client()
    made = world(config=ArchivalConfig())
    for number in range(40):
        client.say(f"Question {number}: " + "is this so? " * 8)
        made.send(client)
    client.items.append({"role": "user", "content": [{"type": "text", "text": "And now?"}]})
    body = client.body()
    assert made.gateway.begin(client.path, client.headers, body).request == body
    assert body.count(b"cache_control") == 2


def test_images_do_not_make_a_conversation_look_long(world: Worlds) -> None:
    """An image counts as an image, not as its bytes, when the first fold has to pay for sending large tools again."""
    client = MessagesClient()
    made = world(Worker(1), config=ArchivalConfig())
    client.fields["tools"] = [client.tool("read_file") | {"description": "Read it. " * 10_000}]
    data = base64.b64encode(random.Random(1).randbytes(600_000)).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    client.items.append({"role": "user", "content": [{"type": "image", "source": source}]})
    client.items.append({"role": "assistant", "content": [{"type": "text", "text": "A pump."}]})
    made.turns(client, 8)
    client.say("And now?")
    assert made.gateway.begin(client.path, client.headers, client.body()).unchanged
    # Text of the same size is archived.
    client.items[0]["content"] = [{"type": "text", "text": "A pump has a valve. " * 40_000}]
    assert not made.gateway.begin(client.path, client.headers, client.body()).unchanged
