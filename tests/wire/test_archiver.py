"""`Archiver` in plain loops with the real SDKs: the server accepts the conversations that the archiver returns."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from orch import ArchivalConfig, Archiver
from orch_worker.conversation.live_subagents import ARCHIVES
from wire.model_server import Answer, Request, call, say
from wire.model_server_beside import Apart

CONFIGS = {
    "tight": ArchivalConfig(profile="economy", high_tokens=1500, low_tokens=400, rollup_tokens=500, prompt_tokens=60),
    "phases": ArchivalConfig(profile="balanced", turns=False, high_tokens=1200, low_tokens=300, gate=False),
    "seed": ArchivalConfig(profile="seed"),
    "balanced": ArchivalConfig(),
}
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TURNS = 14


class Worker:
    """A model with random turns: several parallel calls, with thinking and text before them."""

    def __init__(self) -> None:
        self.chance = random.Random(11)
        self.left = 0

    def __call__(self, _: Request) -> Answer:
        """Return the next response of the turn, or the first response of the next turn."""
        chance = self.chance
        if self.left == 0:
            self.left = chance.choice([1, 2, 3, 9])
        self.left -= 1
        if not self.left:
            return say("Done: " + "all is well. " * chance.randint(1, 40))
        calls = [
            {"call": "read_file", "input": {"path": f"src/{chance.random()}.py"}}
            for _ in range(chance.choice([1, 1, 3]))
        ]
        return call(*calls, text=chance.choice(["", "Let me see."]), thinking=chance.choice(["", "I wonder."]))


def result(input: Any) -> str:
    """Return the result of a call of `read_file`."""
    return f"{input}\n" + "a line of the file\n" * 60


class Blocks:
    """A loop over the Messages API."""

    format = "anthropic"

    def __init__(self, env: dict[str, str]) -> None:
        self.client = anthropic.Anthropic(
            api_key=env["ANTHROPIC_API_KEY"], base_url=env["ANTHROPIC_BASE_URL"], max_retries=0
        )
        self.tools = [{"name": "read_file", "description": "Read.", "input_schema": PARAMETERS}]

    def prompt(self, text: str) -> Any:
        """Return a user message."""
        return {"role": "user", "content": text}

    def step(self, request: list[Any], tools: list[Any]) -> tuple[list[Any], list[Any]]:
        """Request a response. Return its messages, and the messages with the results of its calls."""
        reply = self.client.messages.create(model="m", max_tokens=1000, messages=request, tools=[*self.tools, *tools])
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": result(block.input)}
            for block in reply.content
            if block.type == "tool_use"
        ]
        return [{"role": "assistant", "content": reply.content}], [
            {"role": "user", "content": results}
        ] if results else []


class Chat:
    """A loop over Chat Completions."""

    format = "openai"

    def __init__(self, env: dict[str, str]) -> None:
        self.client = openai.OpenAI(api_key=env["OPENAI_API_KEY"], base_url=env["OPENAI_BASE_URL"], max_retries=0)
        function = {"name": "read_file", "description": "Read.", "parameters": PARAMETERS}
        self.tools = [{"type": "function", "function": function}]

    def prompt(self, text: str) -> Any:
        """Return a user message."""
        return {"role": "user", "content": text}

    def step(self, request: list[Any], tools: list[Any]) -> tuple[list[Any], list[Any]]:
        """Request a response. Return its messages, and the messages with the results of its calls."""
        reply = self.client.chat.completions.create(model="m", messages=request, tools=[*self.tools, *tools])
        message = reply.choices[0].message
        results = [
            {"role": "tool", "tool_call_id": each.id, "content": result(each.function.arguments)}
            for each in message.tool_calls or []
        ]
        return [message], results


class Items(Chat):
    """A loop over the Responses API. The server stores nothing."""

    format = "responses"
    store: Any = False

    def __init__(self, env: dict[str, str]) -> None:
        super().__init__(env)
        function = {"name": "read_file", "description": "Read.", "parameters": PARAMETERS}
        self.tools = [{"type": "function", "strict": False, **function}]

    def step(self, request: list[Any], tools: list[Any]) -> tuple[list[Any], list[Any]]:
        """Request a response. Return its items, and the items with the results of its calls."""
        reply = self.client.responses.create(
            model="m",
            input=request,
            tools=[*self.tools, *tools],
            store=self.store,
            include=["reasoning.encrypted_content"],
        )
        results = [
            {"type": "function_call_output", "call_id": item.call_id, "output": result(item.arguments)}
            for item in reply.output
            if item.type == "function_call"
        ]
        return list(reply.output), results


LOOPS: tuple[Callable[[dict[str, str]], Any], ...] = (Blocks, Chat, Items)


@pytest.fixture
def apart() -> Iterator[Apart]:
    """A model server in a thread, with the model `Worker`."""
    with Apart(Worker()) as running:
        yield running


@pytest.mark.parametrize("dumped", [False, True], ids=["objects", "data"])
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_servers_accept_archiver_output(
    loop: Callable[[dict[str, str]], Any], config: str, dumped: bool, apart: Apart, tmp_path: Path
) -> None:
    """The server accepts a conversation that is folded before each request, and `unfold` returns all messages.

    The conversation consists of objects of the SDK or of plain data.
    """
    talk = loop(apart.env)
    live: list[Any] = []
    whole: list[Any] = []
    with talk.client, Archiver(tmp_path, talk.format, config=CONFIGS[config]) as archiver:
        for number in range(TURNS):
            new = [talk.prompt(f"Look into part {number}. " + "Please. " * 20)]
            while new:
                whole += new
                live = archiver.fold([*live, *new])
                assert plain(archiver.unfold(live)) == plain(whole)
                found, new = talk.step(archiver.request(live), archiver.tools())
                found = plain(found) if dumped else found
                whole += found
                live += found
        kinds = {record.kind for record in archiver.archives(merged=True)}
    assert apart.server.refused == []
    assert kinds >= {"tight": {"turn", "phase", "era"}, "phases": {"phase"}, "seed": {"turn"}}.get(config, {"turn"})
    assert ARCHIVES.encode() in apart.server.requests[-1].raw


class CompatibleItems(Items):
    """A loop over the Responses API of a server that does not accept `store`."""

    store = openai.omit


@pytest.mark.parametrize("loop", [Chat, CompatibleItems], ids=["chat", "responses"])
def test_compatible_servers_accept_archiver_output(loop: Callable[[dict[str, str]], Any], tmp_path: Path) -> None:
    """The archiver sends later system messages as user messages, which compatible servers accept."""
    late = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "Use metres."}]},
    ]
    if loop is CompatibleItems:
        late[1]["content"] = [{"type": "input_text", "text": "Use metres."}]
    with Apart(Worker(), compatible=True) as apart:
        talk = loop(apart.env)
        live: list[Any] = [{"role": "system", "content": "You are terse."}]
        with talk.client, Archiver(tmp_path, talk.format, config=CONFIGS["tight"]) as archiver:
            for number in range(TURNS):
                new = [*late[number : number + 1], talk.prompt(f"Look into part {number}. " + "Please. " * 20)]
                while new:
                    live = archiver.fold([*live, *new])
                    found, new = talk.step(archiver.request(live), archiver.tools())
                    live += found
        assert apart.server.refused == []
        raw = b"".join(request.raw for request in apart.server.requests)
        assert ARCHIVES.encode() in raw
        assert b"[A note of the system:]" in raw


def plain(messages: Sequence[Any]) -> list[Any]:
    """Return `messages` as plain data."""
    if isinstance(messages, (list, tuple)):
        return [plain(each) for each in messages]
    if hasattr(messages, "model_dump"):
        return messages.model_dump(exclude_none=True)  # type: ignore[no-any-return]
    if isinstance(messages, dict):
        return {key: plain(value) for key, value in messages.items()}  # type: ignore[return-value]
    return messages
