"""Hooks in real processes with each API: their effects on requests at any depth, and their failures."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from orch import Abort, AsyncOrchestrator, Config, SubagentsConfig
from orch.testing import fake_world
from orch_protocol.agent.config import HooksConfig
from orch_protocol.hooks.stages import STAGES
from wire.each_api import MODELS
from wire.model_server import ModelServer, call, say
from wire.test_end_to_end import MODEL, environment, read

HOOKS = """
from orch import Block, hook

@hook("tool_result", priority=10)
def redact(event, ctx):
    if "secret" in event.text:
        return event.patch(text=event.text.replace("secret", "*****"))

@hook("context")
def remind(event, ctx):
    return {"inject": [f"depth {ctx.depth}, process of its own"]}

@hook("before_provider_request")
async def brief(event, ctx):
    return event.patch(system="Be brief.")

@hook("tool_call")
def guard(event, ctx):
    if event.name == "read_file" and event.input["path"] == "two.txt":
        return Block("two is private")

@hook("*")
def watch(event, ctx):
    print("seen", event.stage, ctx.depth, flush=True)
"""


class House:
    """A folder with a file of hooks, and roots whose agents load these hooks."""

    def __init__(self, server: ModelServer, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.file = folder / "hooks.py"
        self.file.write_text(HOOKS)

    def root(self, *names: str, **options: Any) -> AsyncOrchestrator:
        """Return a root whose agents load the hooks `names` of the file. Without names, they load the whole file."""
        load = tuple(f"{self.file}:{name}" for name in names) or (str(self.file),)
        hooks = HooksConfig(load=() if names == ("",) else load)
        config = Config(MODEL, hooks=hooks, subagents=SubagentsConfig(allow_nested=True))
        return AsyncOrchestrator(config=config, home=self.folder / "home", env=environment(self.server), **options)

    def sent(self, number: int = -1) -> str:
        """Return the body of the request `number` as text."""
        return json.dumps(self.server.requests[number].body)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two files that contain secrets."""
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text(f"{name} is a secret\n")
    return tmp_path


@pytest.fixture
async def house(server: ModelServer, folder: Path) -> AsyncIterator[House]:
    """A House without a root. The server must not refuse a request."""
    yield House(server, folder)
    assert server.refused == []


async def test_hook_effects_reach_model_and_record(house: House) -> None:
    """Hooks redact a result before it is recorded, and block a call.

    Hooks can also add messages and system text to one request.
    """
    async with house.root() as root:
        for number, model in enumerate(MODELS):
            house.server.script += [call(read("one.txt"), read("two.txt")), say("Done.")]
            agent = await root.spawn("Read", model=model, tools=["read_file"], cwd=house.folder)
            reply = await agent.query("Go")
            shown = await agent.show()
            assert (reply.text, reply.tool_calls) == ("Done.", 1), model
            first, second = house.sent(2 * number), house.sent(2 * number + 1)
            assert "Be brief." in first
            assert "depth 1, process of its own" in first
            assert second.count("process of its own") == 1
            assert "one is a *****" in second
            assert "two is private" in second
            assert "process of its own" not in str(shown.messages)
    kept = b"".join(path.read_bytes() for path in (house.folder / "home" / "sessions").rglob("*") if path.is_file())
    assert b"a secret" not in kept


async def test_children_have_the_hooks_of_their_root(house: House) -> None:
    """The hooks of a root also run in the processes of subagents."""
    spawning = {"call": "spawn_subagent", "input": {"task": "help", "tools": ["read_file"], "query": "read one.txt"}}
    house.server.script += [call(spawning), call(read("one.txt")), say("Read."), say("Done.")]
    async with house.root("redact", "remind") as root:
        agent = await root.spawn("Lead", tools=["spawn_subagent", "query_subagent", "read_file"], cwd=house.folder)
        assert (await agent.query("Go")).text == "Done."
    assert "depth 2, process of its own" in house.sent(1)
    assert "one is a *****" in house.sent(2)


async def test_failing_hooks_end_no_agent(house: House) -> None:
    """If hooks raise at each stage, calls get error results, the turn ends, and the next turn works."""
    at = {kind: [name for name, stage in STAGES.items() if kind in stage.kinds] for kind in ("observe", "transform")}
    at["control"] = ["tool_call", "tool_result", "steering_received"]  # elsewhere, a failing guard ends the turn
    text = "from orch import hook\n"
    for kind, stages in at.items():
        text += f"@hook(*{stages!r}, kind={kind!r})\ndef {kind}(event, ctx):\n    raise ValueError('broken')\n"
    house.file.write_text(text)
    async with house.root(**fake_world()) as root:
        for model in MODELS:
            house.server.script += [call(read("one.txt"), read("two.txt")), say("Done."), say("Again.")]
            agent = await root.spawn("Read", model=model, tools=["read_file"], cwd=house.folder)
            assert (await agent.query("Go")).text == "Done."
            assert house.sent().count("failed: ValueError: broken") == 2, model
            assert (await agent.query("And?")).text == "Again."


ENDS = ("before_turn", "context", "before_provider_request", "after_provider_response", "tool_call", "before_output")


async def test_aborted_turn_leaves_a_valid_conversation(house: House) -> None:
    """A hook can abort the turn at each of six stages. The reply is its message, and the next turn works."""
    async with house.root("", **fake_world()) as root:
        agents = [await root.spawn("Read", model=each, tools=["read_file"], cwd=house.folder) for each in MODELS]
        for agent, stage in product(agents, ENDS):
            house.server.script += [call(read("one.txt"), read("two.txt")), say("Done.")]
            name = root.register_hook(lambda _event, _ctx, at=stage: Abort(f"not at {at}"), stage, name="ender")
            reply = await agent.query("Go")
            assert (reply.text, reply.stop_reason) == (f"not at {stage}", "aborted")
            root.unregister_hook(name)
            house.server.script.clear()
            house.server.script.append(say("Fine."))
            assert (await agent.query("And now?")).text == "Fine."
