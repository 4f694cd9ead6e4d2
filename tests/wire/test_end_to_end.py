"""Agents in separate processes with the model server: whole turns, the choice of the model, and kill -9."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from orch import AsyncOrchestrator, Config, Limits, SubagentsConfig
from orch.processes.in_process import InProcessLauncher
from orch.testing import FakeLauncher, fake_world
from orch_protocol.core.errors import AgentDiedError, BackendError, ConfigError, ToolNotGrantedError
from wire.model_server import Answer, ModelServer, Request, call, fail, say

MODEL = "anthropic:claude-sonnet-5-5"


def read(path: str) -> dict[str, Any]:
    """Return a call that reads `path`."""
    return {"call": "read_file", "input": {"path": path}}


def environment(server: ModelServer) -> dict[str, str]:
    """Return the environment of a user whose models are at `server`."""
    return {
        "ANTHROPIC_API_KEY": "k1",
        "ANTHROPIC_BASE_URL": server.url,
        "OPENAI_API_KEY": "k2",
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "PATH": os.environ["PATH"],
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two files."""
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text(f"this is {name}\n")
    return tmp_path


@pytest.fixture
async def root(server: ModelServer, tmp_path: Path) -> AsyncIterator[AsyncOrchestrator]:
    """A root with real processes and a model at `server`. No process may be left after the test."""
    before = set(psutil.Process().children(recursive=True))
    async with AsyncOrchestrator(MODEL, home=tmp_path / "home", env=environment(server)) as root:
        yield root
    left = [child for child in psutil.Process().children(recursive=True) if child not in before]
    assert not psutil.wait_procs(left, timeout=5)[1]


async def test_agent_process_is_killed_and_continues(
    server: ModelServer, root: AsyncOrchestrator, folder: Path
) -> None:
    """An agent whose process is killed during a turn continues with its conversation.

    The turn before the kill has parallel calls and a failed request. The server refuses incomplete conversations, so an
    answer after the kill means that the conversation is complete.
    """
    stuck = Answer(gate=asyncio.Event())
    server.script += [
        call(read("one.txt"), read("two.txt"), thinking="Both."),
        fail(529, "overloaded_error", retry_after="0"),
        say("Two files.", usage={"input": 100, "output": 10, "cache_read": 50}),
        call(read("one.txt"), read("two.txt"), thinking="Again."),
        stuck,
    ]
    agent = await root.spawn("Read the files", cwd=folder)
    row = await agent.state()
    assert row.model == MODEL
    assert row.context_limit == 1_000_000

    reply = await agent.query("What do they say?")
    assert (reply.text, reply.stop_reason, reply.steps, reply.tool_calls) == ("Two files.", "end_turn", 2, 2)
    assert reply.usage.cache_read_tokens == 50
    assert reply.usage.cost_usd > 0
    assert reply.usage.cost_known
    results = server.requests[1].body["messages"][2]["content"]
    assert [part["type"] for part in results] == ["tool_result", "tool_result"]
    assert "this is one" in str(results[0])
    assert "this is two" in str(results[1])

    asking = asyncio.create_task(agent.query("Once more?"))
    while len(server.requests) < 5:
        server.arrived.clear()
        await server.arrived.wait()
    pid = (await agent.state()).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(AgentDiedError):
        await asking
    server.script.append(say("Here I am."))
    assert (await agent.query("Are you there?")).text == "Here I am."
    assert server.refused == []
    sent = server.requests[-1].body["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant"] * 3 + ["user"]
    thoughts = [block for message in sent for block in message["content"] if block["type"] == "thinking"]
    assert [thought["thinking"] for thought in thoughts] == ["Both.", "Again."]
    assert "cut short" in str(sent[-1])
    assert pid != (await agent.state()).pid


@pytest.mark.timeout(180)
@pytest.mark.parametrize("model", [MODEL, "openai:gpt-6-luna"])
async def test_two_hundred_steps_with_interruptions_are_accepted(
    server: ModelServer, root: AsyncOrchestrator, folder: Path, model: str
) -> None:
    """The server accepts 200 requests with parallel calls, steering, a cancelled turn and kill -9.

    The steering message and the later prompts are in all requests after they were sent.
    """
    stuck, reached = Answer(gate=asyncio.Event()), {step: asyncio.Event() for step in (50, 90, 140)}

    def answer(_: Request) -> Answer:
        step = len(server.requests)
        if step in reached:
            reached[step].set()
            return stuck if step > 50 else call(read("one.txt"), read("two.txt"), read("gone.txt"))
        return call(read("one.txt"), read("two.txt"), thinking="Hm." * (step % 7 == 0)) if step < 200 else say("Done.")

    server.otherwise = answer
    limits = Limits(max_turns=1000)
    agent = await root.spawn("Read", tools=["read_file"], model=model, cwd=folder, limits=limits)
    first = asyncio.ensure_future(agent.query("Go through all of it"))
    await reached[50].wait()
    await agent.steer("Mind the gap.")
    steered = len(server.requests)
    await reached[90].wait()
    await agent.cancel()
    assert (await first).stop_reason == "cancelled"
    second = asyncio.ensure_future(agent.query("Go on"))
    await reached[140].wait()
    pid = (await agent.state()).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(AgentDiedError):
        await second
    reply = await agent.query("And on")
    assert (reply.text, reply.stop_reason, len(server.requests)) == ("Done.", "end_turn", 200)
    assert server.refused == []
    sent = [request.raw.decode() for request in server.requests]
    for text, first_in in (("Mind the gap.", range(51, steered + 2)), ("Go on", [91]), ("And on", [141])):
        holding = [number for number, body in enumerate(sent, 1) if text in body]
        assert holding[0] in first_in
        assert holding == list(range(holding[0], 201))
    assert server.requests[-1].raw.count(b"this is one") == 197


async def test_agents_of_one_root_use_different_models(
    server: ModelServer, root: AsyncOrchestrator, folder: Path
) -> None:
    """Agents of one root use models of different APIs.

    A refused key is an error that names its variable, and no process has a key in its environment.
    """

    def by_api(request: Request) -> Answer:
        return say(f"by {request.path}")

    server.otherwise = by_api
    agents = [await root.spawn("x", cwd=folder, model=model) for model in ("openai:gpt-6-luna", "openai:gpt-4o", MODEL)]
    replies = await asyncio.gather(*(agent.query("hi") for agent in agents))
    assert [reply.text for reply in replies] == ["by /v1/responses", "by /v1/chat/completions", "by /v1/messages"]
    server.script.append(fail(401, "authentication_error", "invalid key"))
    with pytest.raises(BackendError, match="set ANTHROPIC_API_KEY"):
        await agents[2].query("hi")
    assert (await agents[2].query("hi")).text == "by /v1/messages"
    for process in psutil.Process().children(recursive=True):
        assert not {"ANTHROPIC_API_KEY", "OPENAI_API_KEY"} & set(process.environ())


@pytest.mark.parametrize("how", ["fake", "in_process"])
async def test_in_process_agent_uses_its_model(server: ModelServer, folder: Path, how: str) -> None:
    """An agent in the process of the root gets its answers from its model."""
    where = fake_world(FakeLauncher()) if how == "fake" else {"launcher": InProcessLauncher}
    async with AsyncOrchestrator(MODEL, home=folder / "home", env=environment(server), **where) as root:
        agent = await root.spawn("x", cwd=folder)
        assert (await agent.query("hi")).text == "done"
    assert server.refused == []


class TestChoosing:
    """The choice of the model."""

    async def test_missing_key_is_reported_at_spawn(self, tmp_path: Path) -> None:
        """The error of `spawn` names the variable of the missing key, and no agent is created."""
        async with AsyncOrchestrator(MODEL, home=tmp_path, env={}, **fake_world()) as root:
            with pytest.raises(ConfigError, match="set ANTHROPIC_API_KEY"):
                await root.spawn("x")
            assert await root.agents(all=True) == []

    async def test_local_resolves_to_the_first_available_candidate(self, server: ModelServer, tmp_path: Path) -> None:
        """The model `local` is the first configured candidate that the local server lists.

        If the server lists none of the candidates, `spawn` is an error that names both lists.
        """
        (tmp_path / "models.json").write_text('{"providers": {"ollama": {"candidates": ["big", "small"]}}}')
        server.installed = ["tiny:1b", "small:3b"]
        env = {"OLLAMA_HOST": server.url.removeprefix("http://")}
        async with AsyncOrchestrator("local", home=tmp_path, env=env, **fake_world()) as root:
            agent = await root.spawn("x")
            assert (await agent.query("hi")).text == "done"
            assert (await agent.state()).model == "ollama:small:3b"
            server.installed = ["tiny:1b"]
            with pytest.raises(ConfigError, match="lists tiny:1b, and none of big, small"):
                await root.spawn("y")
            assert len(await root.agents(all=True)) == 1

    async def test_key_alone_selects_the_providers_default_model(
        self, server: ModelServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Without a configured model, a key selects the default model of its provider, and one notice is printed."""
        async with AsyncOrchestrator(home=tmp_path, env=environment(server), **fake_world()) as root:
            agent = await root.spawn("x")
            await root.spawn("y")
            assert (await agent.state()).model == MODEL
            assert (await agent.query("hi")).text == "done"
        errors = capsys.readouterr().err.splitlines()
        assert [line for line in errors if "no model configured" in line] == [errors[0]]
        assert MODEL in errors[0]

    async def test_offline_backend_is_used_without_key_and_model(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Without a key and a model, agents use offline search, and the first successful spawn prints a notice."""
        async with AsyncOrchestrator(home=tmp_path, env={}, **fake_world()) as root:
            with pytest.raises(ToolNotGrantedError, match="nonsense"):
                await root.spawn("x", tools=["nonsense"])
            assert capsys.readouterr().err == ""
            assert (await (await root.spawn("x")).state()).model == "extractive"
        assert "offline search" in capsys.readouterr().err

    async def test_custom_provider_from_models_json_is_used(self, server: ModelServer, tmp_path: Path) -> None:
        """A provider that only $ORCH_HOME/models.json defines is used with its key."""
        own = '{"providers": {"acme": {"api": "chat", "base_url": "URL/v1", "keys": ["ACME_API_KEY"]}}}'
        (tmp_path / "models.json").write_text(own.replace("URL", server.url))
        env = {"ACME_API_KEY": "k"}
        async with AsyncOrchestrator("acme:large", home=tmp_path, env=env, **fake_world()) as root:
            reply = await (await root.spawn("x")).query("hi")
        assert (reply.text, reply.usage.cost_known) == ("done", False)
        assert server.requests[0].headers["authorization"] == "Bearer k"

    async def test_children_inherit_their_parents_model(self, server: ModelServer, tmp_path: Path) -> None:
        """An agent that another agent spawns uses the model of its parent."""
        config = Config(subagents=SubagentsConfig(allow_nested=True))
        spawning = {"call": "spawn_subagent", "input": {"task": "help", "tools": ["read_file"]}}
        server.script += [call(spawning), say("done")]
        async with AsyncOrchestrator(
            MODEL, config=config, home=tmp_path, env=environment(server), **fake_world()
        ) as root:
            agent = await root.spawn("x", model="openai:gpt-4o", tools=["spawn_subagent", "read_file"])
            await agent.query("go")
            assert [row.model for row in await root.agents()] == 2 * ["openai:gpt-4o"]

    async def test_chat_tool_asks_another_model(self, server: ModelServer, tmp_path: Path) -> None:
        """The tool `chat` sends only its prompt to another model, and its usage counts for the agent.

        A model that the configuration does not allow is refused.
        """
        question = {"call": "chat", "input": {"prompt": "Is 7 prime?", "model": "openai:gpt-4o"}}
        refused = {"call": "chat", "input": {"prompt": "?", "model": "openai:gpt-6-luna"}}
        more = {"input": 1000, "output": 1}
        server.script += [call(question, refused), say("Yes.", usage=more), say("It is.")]
        allowed = Config(subagents=SubagentsConfig(chat_models=("openai:gpt-4*",)))
        async with AsyncOrchestrator(
            MODEL, config=allowed, home=tmp_path, env=environment(server), **fake_world()
        ) as root:
            reply = await (await root.spawn("x", tools=["chat"])).query("go")
        assert [request.path.rpartition("/")[2] for request in server.requests] == [
            "messages",
            "completions",
            "messages",
        ]
        assert server.requests[1].body["messages"] == [{"role": "user", "content": "Is 7 prime?"}]
        assert (reply.text, reply.tool_calls, reply.usage.input_tokens) == ("It is.", 2, 1020)
        results = server.requests[2].body["messages"][-1]["content"]
        assert [result["content"][0]["text"].partition(".")[0] for result in results] == [
            "Yes",
            "'openai:gpt-6-luna' is not a model that agents may query",
        ]

    async def test_sdk_of_the_configured_model_is_preloaded(self, server: ModelServer, tmp_path: Path) -> None:
        """Only the SDK of the configured model is loaded in advance, and none if the model has no key."""
        with_key = environment(server)
        for model, env, warmed in (
            (MODEL, with_key, ["anthropic"]),
            ("openai:gpt-6-luna", with_key, ["openai"]),
            (MODEL, {}, ["lean"]),
            ("extractive:", {}, ["lean"]),
        ):
            launcher = FakeLauncher()
            async with AsyncOrchestrator(model, home=tmp_path, env=env, **fake_world(launcher)):
                assert launcher.warmed == warmed
