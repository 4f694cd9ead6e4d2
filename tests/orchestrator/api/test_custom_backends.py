"""Custom backends through the API: classes and objects, changes of the model, restarts, and subagents."""

from __future__ import annotations

from pathlib import Path

import pytest

from custom_backends import Caller, Coroutine, Echo, Words
from orch import AsyncOrchestrator, BackendInfo, Config, ScriptedBackend, SubagentsConfig
from orch.policy.caller import AgentCaller
from orch.services import call
from orch_protocol.core.errors import ConfigError, LaunchError, ToolNotGrantedError
from orch_protocol.services.agents.spawn import SPAWN, Spawn
from orch_protocol.services.models.models import FIND_MODEL, FindModel
from orchestrator.root_double import NEST, opened

ECHO = "custom_backends:Echo"


async def test_backend_class_is_a_model(tmp_path: Path) -> None:
    """The replies have usage and cost, and the state of the agent shows the class as its model."""
    async with opened(tmp_path) as o:
        agent = await o.spawn("work", model=ECHO, context="none", tools=[])
        reply = await agent.query("hello")
        assert (reply.text, reply.usage.output_tokens, reply.usage.cost_usd) == ("echo hello", 3, 0.25)
        assert (await agent.state()).model == ECHO


async def test_backend_object_is_shared_by_agents(tmp_path: Path) -> None:
    """Agents in this process share the object, which can call tools; the state shows the name from its `info`."""

    class Named(Caller):
        def info(self) -> BackendInfo:
            return BackendInfo("mine", "small", 9000)

    def double(x: int) -> int:
        """Double x."""
        return 2 * x

    async with opened(tmp_path) as o:
        backend = Named()
        agents = [await o.spawn("work", backend=backend, context="none", tools=[double]) for _ in range(2)]
        assert [(await agent.query("go")).text for agent in agents] == ["the tool returned 4"] * 2
        state = await agents[0].state()
        assert (state.model, state.context_limit) == ("mine:small", 9000)


async def test_the_model_can_be_changed(tmp_path: Path) -> None:
    """A conversation can continue with another class, also after a restart of its process."""
    async with opened(tmp_path) as o:
        agent = await o.spawn("work", model=ECHO, context="none", tools=[])
        await agent.query("one")
        assert await agent.set_model("custom_backends:Words:tiny") == "custom_backends:Words:tiny"
        assert (await agent.query("two")).text == "tiny [] {}"
        await agent.kill()
        await agent.resume()
        assert (await agent.query("three")).text == "tiny [] {}"
        await agent.set_model(ECHO)
        assert (await agent.query("four")).text == "echo four"


async def test_an_object_is_gone_with_its_program(tmp_path: Path) -> None:
    """In a new process, an agent with a backend object needs a class before it can continue."""
    async with opened(tmp_path, run="r") as o:
        agent = await o.spawn("work", backend=Echo(), context="none", tools=[])
        assert (await agent.query("one")).text == "echo one"
    async with opened(tmp_path, run="r") as o:
        agent = await o.get(agent.id)
        with pytest.raises(LaunchError, match="backend object of this agent is not in this process"):
            await agent.query("two")
        await agent.set_model("custom_backends:Echo")
        assert (await agent.query("three")).text == "echo three"


async def test_a_class_that_cannot_be_loaded(tmp_path: Path) -> None:
    """If a backend class cannot be created, the spawn raises LaunchError with the reason."""
    async with opened(tmp_path) as o:
        with pytest.raises(LaunchError, match=r"cannot create the backend custom_backends:Unready.*weights"):
            await o.spawn("work", model="custom_backends:Unready")


async def test_objects_are_checked(tmp_path: Path) -> None:
    """A backend object that cannot be used is refused before an agent is created."""
    async with opened(tmp_path) as o:
        with pytest.raises(ConfigError, match="Coroutine has a `respond` without `yield`"):
            await o.spawn("work", backend=Coroutine())
        for backend in (Echo(), ScriptedBackend(["done"])):
            with pytest.raises(ConfigError, match="pass model='local' or backend=, not both"):
                await o.spawn("work", model="local", backend=backend)
        with pytest.raises(ConfigError, match="must be an object such as ScriptedBackend"):
            await o.spawn("work", backend=Echo)  # type: ignore[arg-type]
        assert not o.supervisor.tree.agents


async def test_an_object_is_for_agents_in_this_process(tmp_path: Path) -> None:
    """If agents are separate processes, the error names the class to use instead."""
    o = AsyncOrchestrator(home=tmp_path, env={})
    with pytest.raises(ConfigError, match="pass model='custom_backends:Words'"):
        o.lent_backends.arguments(None, Words())


async def test_agents_name_no_class(tmp_path: Path) -> None:
    """An agent can query its own backend class, and others only if `subagents.chat_models` permits them."""
    for patterns in (None, (ECHO,)):
        async with opened(tmp_path, config=Config(subagents=SubagentsConfig(chat_models=patterns))) as o:
            agent = await o.spawn("work", model="custom_backends:Words", tools=["chat"])
            caller = AgentCaller(agent.id)
            if patterns is None:
                with pytest.raises(ToolNotGrantedError, match="cannot select the custom backend custom_backends:Echo"):
                    await call(o.supervisor, caller, FIND_MODEL, FindModel(ECHO))
                own = await call(o.supervisor, caller, FIND_MODEL, FindModel())
                assert own.model == "Words"
            else:
                found = await call(o.supervisor, caller, FIND_MODEL, FindModel(ECHO))
                assert found.options["api"] == ECHO


async def test_a_subagent_inherits_the_class(tmp_path: Path) -> None:
    """A subagent has the backend class of its parent, and cannot select another class."""
    async with opened(tmp_path, config=Config(subagents=SubagentsConfig(allow_nested=True))) as o:
        agent = await o.spawn("work", model=ECHO, tools=NEST)
        below = await call(o.supervisor, AgentCaller(agent.id), SPAWN, Spawn("help", tools=()))
        assert (await (await o.get(below.id)).query("hi")).text == "echo hi"
        with pytest.raises(ConfigError, match="model 'custom_backends:Words' is not allowed for subagents"):
            await call(o.supervisor, AgentCaller(agent.id), SPAWN, Spawn("x", tools=(), model="custom_backends:Words"))


async def test_a_session_from_elsewhere_names_no_class(tmp_path: Path) -> None:
    """A class that only the session file names is not imported until the user selects it."""
    async with opened(tmp_path) as o:
        agent = await o.spawn("work", model=ECHO, context="none", tools=[])
        await agent.set_model("custom_backends:Words")
        there = (await agent.session.tree()).leaf
        await agent.set_model(ECHO)
        await agent.session.checkout(there)
        with pytest.raises(ConfigError, match="names the custom backend custom_backends:Words: select it again"):
            await agent.query("hi")
        await agent.set_model("custom_backends:Words")
        assert (await agent.query("hi")).text == " [] {}"
