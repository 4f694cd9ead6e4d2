"""Instructions that coding assistants send as messages. They stay in force when the turns around them are archived."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.gateway.gateway_world import (
    HEADERS,
    Client,
    MessagesClient,
    ResponsesClient,
    Worker,
    World,
    archives_in,
    has_recall_tools,
)
from wire.model_server import Answer, call, say

Worlds = Callable[..., World]
RULES = "<system-reminder>\n# claudeMd\nContents of CLAUDE.md: {rules}\n</system-reminder>"
ENVIRONMENT = "# Environment\n - Primary working directory: /data/project\n - Platform: linux"
BETAS = {"anthropic-beta": "claude-code-20250219,per-turn-control-2026-07-01"}
TOOLS = {"type": "additional_tools", "id": "at_1", "role": "developer"}
AGENTS_FILE = "# AGENTS.md instructions for /data/project\n\n<INSTRUCTIONS>\nWrite tests first.\n</INSTRUCTIONS>"
CONTEXT = "<environment_context>\n  <cwd>/data/project</cwd>\n</environment_context>"


def claude_code(*, rules: str = "Write tests first.", session: str = "s1") -> MessagesClient:
    """Return a client whose conversation begins as one of Claude Code."""
    client = MessagesClient("", metadata={"user_id": json.dumps({"session_id": session})})
    client.headers = HEADERS | BETAS | {"x-claude-code-session-id": session}
    client.items = [
        {"role": "user", "content": [text(RULES.format(rules=rules)), text("Look at the project.")]},
        system(ENVIRONMENT),
    ]
    return client


def codex() -> ResponsesClient:
    """Return a client whose conversation begins as one of Codex with a model that gets its tools as an item."""
    client = ResponsesClient("", prompt_cache_key="01a2", tools=[])
    client.fields.pop("tools")
    client.body = lambda *, stream=True: json.dumps(  # type: ignore[method-assign]
        {"model": "m", "stream": stream} | client.fields | {"input": client.items}
    ).encode()
    client.items = [
        TOOLS | {"tools": [{"type": "custom", "name": "exec", "description": "Run JavaScript."}]},
        message("developer", "You are a coding agent. Be precise."),
        message("user", AGENTS_FILE, CONTEXT),
        message("user", "Look at the project."),
    ]
    return client


def text(value: str) -> dict[str, Any]:
    """Return a block of text of the Messages API."""
    return {"type": "text", "text": value}


def system(value: str) -> dict[str, Any]:
    """Return a system message of the Messages API as Claude Code sends it."""
    return {"role": "system", "content": [text(value)], "output_config": {"effort": "medium"}}


def message(role: str, *texts: str) -> dict[str, Any]:
    """Return a message of the Responses API."""
    content = [{"type": "input_text", "text": each} for each in texts]
    return {"type": "message", "id": f"msg_{role}", "role": role, "content": content}


def turns(world: World, client: Client, count: int, first: int = 0) -> None:
    """Let `client` have `count` turns through the gateway."""
    for turn in range(first, first + count):
        if turn:
            client.say(f"Prompt {turn}. " + "Look at this part. " * 10)
        while world.send(client):
            pass


def test_instructions_of_claude_code_stay_when_their_turn_is_archived(world: Worlds) -> None:
    """The reminder, the environment and later system messages are sent whole, in an order that the server accepts."""
    made, client = world(Worker(thinks=0)), claude_code()
    turns(made, client, 5)
    client.say("Prompt 5")
    client.items.append(system("The user has switched to plan mode."))
    while made.send(client):
        pass
    turns(made, client, 8, first=6)
    sent = made.last(client)
    assert archives_in(sent)
    assert len(json.dumps(sent)) < len(json.dumps(client.items)) / 3
    assert sent[0]["content"][0] == text(RULES.format(rules="Write tests first."))
    systems = [item for item in sent if item["role"] == "system"]
    found = [block["text"] for item in systems for block in item["content"]]
    assert found == [ENVIRONMENT, "The user has switched to plan mode."]
    assert all(item["output_config"] == {"effort": "medium"} for item in systems)


@pytest.mark.parametrize("make", [claude_code, codex])
def test_requests_begin_the_same_between_folds(make: Callable[[], Client], world: Worlds) -> None:
    """Instructions keep their place, so that the server finds the beginning of the request in its cache."""
    made, client = world(Worker(thinks=0)), make()
    turns(made, client, 14)
    bodies = [json.loads(body)[client.field] for body in made.sent]
    same = 0
    for last, items in itertools.pairwise(bodies):
        if archives_in(last) == archives_in(items):
            assert without_markers_and_lists(items)[: len(last)] == without_markers_and_lists(last)
            same += bool(archives_in(items))
    assert same > 5


def without_markers_and_lists(items: list[Any]) -> list[Any]:
    """Return messages without cache markers, and texts as blocks."""
    found = []
    for item in items:
        content = item.get("content", [])
        blocks = [text(content)] if isinstance(content, str) else content
        found.append(item | {"content": [{**block, "cache_control": None} for block in blocks]})
    return found


def test_changed_instructions_continue_the_conversation(world: Worlds) -> None:
    """A continued session with another reminder uses the same archives, and the server gets the new reminder."""
    made, client = world(Worker(thinks=0)), claude_code()
    turns(made, client, 10)
    before = archives_in(made.last(client))
    made.restart()
    client.items[0]["content"][0] = text(RULES.format(rules="Write no tests."))
    client.items[1]["content"] = "# Environment\n - Today's date is 2026-12-24."
    client.say("Go on.")
    made.send(client)
    sent = json.dumps(made.last(client))
    assert before
    assert before <= archives_in(made.last(client))
    assert "Write no tests." in sent
    assert "2026-12-24" in sent
    assert "Write tests first." not in sent
    assert len(list(made.folder.glob("*/gateway.jsonl"))) == 1


def test_sessions_with_the_same_instructions_are_not_mixed(world: Worlds) -> None:
    """Two sessions that begin with the same instructions and prompt have different folders."""
    made = world(Worker(thinks=0))
    first, second = claude_code(session="s1"), claude_code(session="s2")
    turns(made, first, 6)
    turns(made, second, 6)
    assert len(list(made.folder.glob("*/gateway.jsonl"))) == 2
    assert not archives_in(made.last(second)) & archives_in(first.items)


def test_a_system_message_for_one_turn_is_archived_with_its_turn(world: Worlds) -> None:
    """The server ignores such a message in later turns."""
    made, client = world(Worker(thinks=0)), claude_code()
    client.items[1] |= {"clear_at": "next_user_message"}
    client.headers["anthropic-beta"] += ",system-message-clear-at-2026"
    turns(made, client, 12)
    assert archives_in(made.last(client))
    assert ENVIRONMENT not in json.dumps(made.last(client))


def test_instructions_of_codex_stay_when_their_turn_is_archived(world: Worlds) -> None:
    """Developer messages, AGENTS.md and the environment stay in their order before the archived turns."""
    made, client = world(Worker(thinks=0)), codex()
    turns(made, client, 10)
    sent = made.last(client)
    assert archives_in(sent)
    kept = [item for item in sent if item.get("type") != "additional_tools"][:2]
    assert kept == client.items[1:3]
    tasks = [line for line in json.dumps(sent).split("\\n") if "task:" in line]
    assert tasks
    assert not any("AGENTS.md" in line for line in tasks)


def test_recall_tools_are_added_where_the_client_defines_its_tools(world: Worlds) -> None:
    """A request whose tools are in an item gets the recall tools in such an item, and no field with tools."""
    made, client = world(Worker(thinks=0)), codex()
    turns(made, client, 10)
    client.say("What was the first result?")
    script = [call({"call": "search_archive", "input": {"query": "result 1 of anyone"}}), say("A line of the file.")]
    made.answer = lambda _: script.pop(0)
    assert made.send(client) == []
    body = json.loads(made.sent[-1])
    assert "tools" not in body
    assert not has_recall_tools(body)
    own, ours = (item for item in body["input"] if item.get("type") == "additional_tools")
    assert own == client.items[0]
    assert [tool["name"] for tool in ours["tools"]] == ["search_archive", "read_archive"]
    assert "result 1 of anyone" in body["input"][-1]["output"]


def test_results_of_custom_tools_can_be_recalled(world: Worlds) -> None:
    """Calls of tools with free text and their results are archived, and a recall finds them."""
    made, client = world(), codex()
    for turn in range(10):
        id = f"call_{turn}"
        made.answer = script(Answer(blocks=({"custom": "exec", "input": f'text("{turn}")'},)), say("Done. " * 9))
        client.say(f"Prompt {turn}.")
        made.send(client)
        id = client.items[-1]["call_id"]
        client.items.append({"type": "custom_tool_call_output", "call_id": id, "output": f"needle-{turn} " * 200})
        made.send(client)
    client.say("What did the first call print?")
    made.answer = script(call({"call": "search_archive", "input": {"query": "needle-0"}}), say("It printed a needle."))
    made.send(client)
    assert archives_in(made.last(client))
    assert "needle-0" in json.dumps(made.last(client)[-1])


def script(*answers: Answer) -> Callable[[Any], Answer]:
    """Return a model that gives these answers in order."""
    waiting = list(answers)
    return lambda _: waiting.pop(0)
