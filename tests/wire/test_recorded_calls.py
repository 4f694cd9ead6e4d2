"""Calls with names, ids and arguments that APIs refuse in later requests, and the reasons why responses end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orch import AsyncOrchestrator, Message, Text, ToolResult, ToolUse, user
from orch.testing import fake_world
from orch_protocol.core.messages import tool_uses
from wire.api_backends import CHAT, MESSAGES, RESPONSES, Peer, Talk
from wire.each_api import each_model
from wire.model_server import Answer, ModelServer, call, say
from wire.test_end_to_end import environment, folder, read
from wire.test_malformed import COMPLETED, END, block, chunk, delta, item, start, stream

__all__ = ["folder"]

Begin = Callable[..., Talk]
NAMES = ("", "functions.read_file", "mcp.github/list_issues", "read_file<|channel|>commentary", "x" * 129, "a\ud800b")
PARTS = {"path": "one.txt"}


def names_in(body: dict[str, Any]) -> list[str]:
    """Return the names of the calls in a request."""
    return list(_names(body))


def _names(body: dict[str, Any]) -> Iterator[str]:
    for row in body.get("messages") or body["input"]:
        if row.get("type") == "function_call":
            yield row["name"]
        yield from (each["function"]["name"] for each in row.get("tool_calls") or ())
        if isinstance(row.get("content"), list):
            yield from (part["name"] for part in row["content"] if part["type"] == "tool_use")


@each_model
async def test_agent_continues_after_calls_with_invalid_names(model: str, server: ModelServer, folder: Path) -> None:
    """The model is told which tools exist. The transcript contains the names that the model used."""
    server.script += [call(*({"call": name, "input": PARTS} for name in NAMES)), call(read("one.txt")), say("Read.")]
    async with AsyncOrchestrator(model, home=folder / model, env=environment(server), **fake_world()) as root:
        agent = await root.spawn("x", tools=["read_file"], cwd=folder)
        assert (await agent.query("Read it")).text == "Read."
        assert (await agent.query("Sure?")).text == "done"
        shown = (await agent.show(10_000)).messages
        calls = [use.name for message in shown for use in tool_uses(message)]
        assert calls[:-1] == [name.replace("\ud800", "\N{REPLACEMENT CHARACTER}") for name in NAMES]
        sent = names_in(server.requests[-1].body)
        assert len(set(sent)) == len(NAMES) + 1
        assert sent[-1] == "read_file"
        assert sent[:-1] == names_in(server.requests[1].body)  # The cached prefix stays valid.
        assert "Granted: read_file" in server.requests[1].raw.decode()


@each_model
async def test_history_fork_and_summary_with_invalid_calls(model: str, server: ModelServer, folder: Path) -> None:
    """Requests with an imported history, of a fork and for a compaction are accepted."""
    history: list[Message] = []
    for name, id in zip(NAMES, ("", "", "same", "same", "i" * 200, "\x00\n"), strict=True):
        use = Message("assistant", (ToolUse(id, name, {"a": "\x00\ud800"}),))
        history += [user(f"Call {name!r}. " + "x" * 400), use, Message("user", (ToolResult(id, (Text("no"),)),))]
    async with AsyncOrchestrator(model, home=folder / model, env=environment(server), **fake_world()) as root:
        agent = await root.spawn("x", tools=["read_file"], cwd=folder, history=history)
        assert (await agent.query("Go on")).text == "done"
        copy = await agent.session.fork((await agent.session.tree()).leaf)
        await copy.query("And you?")
        await agent.session.compact()
        await agent.query("Still there?")
        assert len(set(names_in(server.requests[0].body))) == len(NAMES)


@pytest.mark.parametrize("model", ["anthropic:claude-sonnet-5-5", "openai:gpt-6-luna", "openai:gpt-4o"])
async def test_imported_file_with_unusual_calls(server: ModelServer, tmp_path: Path, model: str) -> None:
    """Calls without id, name or text arguments are read from files with messages of each provider."""
    given: list[Any] = [{"a": 1}, '{"a": 1}', "[1]", None]
    uses = [{"type": "tool_use", "name": "a.b", "input": each} for each in given]
    functions = [{"type": "function", "function": {"name": "a.b", "arguments": each}} for each in given]
    items = [{"type": "function_call", "name": "a.b", "arguments": each} for each in given]
    asked = {"role": "user", "content": "Do it"}
    files = {
        "blocks": [asked, {"role": "assistant", "content": [{"type": "text", "text": "So."}, *uses]}],
        "chat": [asked, {"role": "assistant", "content": None, "tool_calls": functions}],
        "items": [asked, *items],
    }
    async with AsyncOrchestrator(model, home=tmp_path / "home", env=environment(server), **fake_world()) as root:
        for name, messages in files.items():
            path = tmp_path / f"{name}.json"
            path.write_text(json.dumps(messages))
            agent = await root.sessions.import_(path, tools=[])
            assert (await agent.query("And now?")).text == "done"
            sent = names_in(server.requests[-1].body)
            assert len(sent) == 4
            assert len(set(sent)) == 1
    assert server.refused == []


def response(peer: Peer, arguments: Any, reason: Any, *, end: bool = True) -> Answer:
    """Return a response with a call whose arguments and reason of the end are as given."""
    if peer == MESSAGES:
        use = {"type": "tool_use", "id": "a", "name": "weather", "input": {}}
        ended = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 1}}
        piece = delta(0, type="input_json_delta", partial_json=arguments)
        return Answer(raw=stream(start(), block(0, use), piece, ended, *([END] if end else [])))
    if peer == CHAT:
        function = {"name": "weather", "arguments": arguments}
        called = chunk({"tool_calls": [{"index": 0, "id": "a", "function": function}]})
        return Answer(raw=stream(called, chunk({}, reason), *([b"data: [DONE]\n\n"] if end else [])))
    use = {"type": "function_call", "call_id": "a", "name": "weather", "arguments": arguments}
    short = {"status": "incomplete", "incomplete_details": {"reason": reason}, "usage": None}
    ended = {"type": "response.incomplete", "response": short} if reason != "stop" else COMPLETED
    return Answer(raw=stream(item(use), ended))


async def test_complete_calls_run_after_an_unknown_reason(
    server: ModelServer, talk: Talk, peer: Peer, capsys: pytest.CaptureFixture[str]
) -> None:
    """One warning names the reason. Calls with incomplete arguments do not run."""
    server.script += [response(peer, '{"city": "Rome"}', "eos"), response(peer, '{"city": "Oslo"}', "eos")]
    for city in ("Rome", "Oslo"):
        turn = await talk.ask()
        assert turn.stop_reason == "tool_use"
        assert tool_uses(turn.message)[0].input == {"city": city}
        talk.answer(turn)
    assert capsys.readouterr().out.count("ended a response with the unknown reason 'eos'") == 1
    server.script += [response(peer, '{"city": "Ro', "eos")]
    assert (await talk.ask()).stop_reason == "error"
    assert server.refused == []


@pytest.mark.parametrize("reason", ["length", "model_length", "max_tokens", "content_filter", "error", "abort"])
async def test_calls_do_not_run_after_a_reason_for_an_incomplete_response(
    server: ModelServer, begin: Begin, reason: str
) -> None:
    server.script += [response(CHAT, '{"city": "Rome"}', reason)]
    assert (await begin(CHAT).ask()).stop_reason in ("max_tokens", "refusal", "error")


@pytest.mark.parametrize("arguments", ["", " "])
async def test_call_without_arguments_does_not_run_after_an_unknown_reason(
    server: ModelServer, begin: Begin, arguments: str
) -> None:
    """The response may have ended before the arguments."""
    server.script += [response(CHAT, arguments, "eos"), response(CHAT, arguments, "stop")]
    talk = begin(CHAT)
    turn = await talk.ask()
    assert (turn.stop_reason, tool_uses(turn.message)[0].input) == ("error", {"invalid_json": ""})
    talk.answer(turn)
    turn = await talk.turn()
    assert (turn.stop_reason, tool_uses(turn.message)[0].input) == ("tool_use", {})


@pytest.mark.parametrize("reason", [None, ""])
@pytest.mark.parametrize("peer", [MESSAGES, CHAT], ids=["messages", "chat"])
async def test_complete_calls_run_if_the_stream_ends_without_a_reason(
    server: ModelServer, begin: Begin, peer: Peer, reason: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the end mark of the stream, the response was probably cut off, and the request is repeated."""
    server.script += [response(peer, '{"city": "Rome"}', reason), response(peer, '{"city": "O', None), say("well")]
    talk = begin(peer)
    turn = await talk.ask()
    assert (turn.stop_reason, len(tool_uses(turn.message))) == ("tool_use", 1)
    assert "ended a response with" in capsys.readouterr().out
    talk.answer(turn)
    assert (await talk.turn()).stop_reason == "end_turn"
    server.script += [response(peer, '{"city": "Rome"}', None, end=False), say("well")]
    assert (await talk.ask()).stop_reason == "end_turn"
    assert len(talk.retries) == 2


@pytest.mark.parametrize("given", [{"city": "Rome"}, {"city": "\ud800"}, {}])
async def test_arguments_are_accepted_as_an_object(
    server: ModelServer, talk: Talk, peer: Peer, given: dict[str, str]
) -> None:
    """Some servers send the arguments of a call as an object instead of its JSON text."""
    server.script += [response(peer, given, "stop" if peer != MESSAGES else "tool_use")]
    turn = await talk.ask()
    assert turn.stop_reason == "tool_use"
    expected = {key: value.replace("\ud800", "\N{REPLACEMENT CHARACTER}") for key, value in given.items()}
    assert tool_uses(turn.message)[0].input == expected
    assert talk.retries == []


async def test_object_replaces_the_arguments_before_it(server: ModelServer, begin: Begin) -> None:
    """A server may repeat the call with more of its arguments, each time as an object."""
    pieces: list[Any] = [{}, {"city": "R"}, {"city": "Rome"}, ""]
    calls = [{"tool_calls": [{"index": 0, "id": "a", "function": {"name": "weather", "arguments": p}}]} for p in pieces]
    server.script.append(Answer(raw=stream(*map(chunk, calls), chunk({}, "tool_calls"))))
    turn = await begin(CHAT).ask()
    assert [use.input for use in tool_uses(turn.message)] == [{"city": "Rome"}]


@pytest.mark.parametrize("arguments", [[1], 7, "[1]"])
async def test_other_arguments_are_an_error_for_the_model(server: ModelServer, begin: Begin, arguments: object) -> None:
    """Arguments that are not an object do not make each later request fail."""
    for peer in (CHAT, RESPONSES):
        server.script += [response(peer, arguments, "stop"), say("well")]
        talk = begin(peer)
        turn = await talk.ask()
        assert list(tool_uses(turn.message)[0].input) == ["invalid_json"]
        talk.answer(turn)
        await talk.turn()
        assert server.refused == []
