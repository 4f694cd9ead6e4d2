"""Content for local models is sent to a server on this machine or not at all.

The tests inspect the requests to two servers on loopback. The address of the remote provider counts as remote.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from orch import (
    ArchivalConfig,
    AsyncOrchestrator,
    Config,
    ConfigError,
    Consent,
    OrchError,
    PolicyCall,
    PolicyConfig,
    Question,
    SubagentsConfig,
    Verdict,
)
from orch.testing import fake_world
from orch_protocol.agent.config import SummaryConfig, TriggerConfig
from wire.model_server import ModelServer, Request, call, fail, say
from wire.test_end_to_end import read

SECRET = "s3cret-4711"
MODELS = ["anthropic:claude-sonnet-5-5", "openai:gpt-4o", "openai:gpt-6-luna"]
NEST = ["spawn_subagent", "query_subagent", "collect_subagent"]
SEED = ArchivalConfig(enabled=True, async_=False, profile="seed", trigger=TriggerConfig(tool_call_threshold=1))

Begin = Callable[..., Any]


def mine(call: PolicyCall, config: PolicyConfig) -> Verdict:  # noqa: ARG001
    """Restrict the content of `mine.txt` to local models."""
    return Verdict(model="local" if any(path.endswith("/mine.txt") for path in call.paths) else "any")


def saw(server: ModelServer) -> list[bool]:
    """Return whether the secret is in the request, for each request to `server`."""
    return [SECRET.encode() in request.raw for request in server.requests]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file for local models only, and a file for all models."""
    (tmp_path / "mine.txt").write_text(f"the code is {SECRET}\n")
    (tmp_path / "open.txt").write_text("the weather is fine\n")
    return tmp_path


@pytest.fixture
async def far() -> AsyncIterator[ModelServer]:
    """The server of a remote provider. It must not get the secret and must refuse nothing."""
    async with ModelServer() as server:
        yield server
    assert not any(saw(server))
    assert server.refused == []


@pytest.fixture
async def here() -> AsyncIterator[ModelServer]:
    """The server of a local model on this machine. It must refuse nothing."""
    async with ModelServer() as server:
        server.installed = ["qwen3:8b"]
        yield server
    assert server.refused == []


@pytest.fixture
def begin(far: ModelServer, here: ModelServer, folder: Path) -> Begin:
    """A function that creates roots whose model is remote."""

    def begin(model: str = MODELS[0], **more: Any) -> AsyncOrchestrator:
        elsewhere = far.url.replace("127.0.0.1", "0.0.0.0")
        env = {
            "ANTHROPIC_API_KEY": "k1",
            "ANTHROPIC_BASE_URL": elsewhere,
            "OPENAI_API_KEY": "k2",
            "OPENAI_BASE_URL": f"{elsewhere}/v1",
            "OLLAMA_HOST": here.url,
        }
        config = Config(subagents=SubagentsConfig(allow_nested=True))
        options: dict[str, Any] = {"config": config, "home": folder / "home", "env": env, "policy": mine}
        return AsyncOrchestrator(model, **(options | more))

    return begin


@pytest.mark.parametrize(("model", "world"), [(MODELS[0], dict), *((model, fake_world) for model in MODELS[1:])])
async def test_local_only_conversation_switches_to_the_local_model(
    begin: Begin, far: ModelServer, here: ModelServer, folder: Path, model: str, world: Callable[[], Any]
) -> None:
    """After a local-only call, the local model answers in this turn, in the next turn and after a revival.

    The tests run with and without separate processes.
    """
    far.script += [call(read("open.txt")), call(read("mine.txt"))]
    here.script += map(say, ["I know it.", "Still.", "Ever."])
    async with begin(model, run="r", **world()) as root:
        agent = await root.spawn("Look", tools=["read_file"], cwd=folder, name="a")
        reply = await agent.query("Which code?")
        assert (reply.text, reply.local, (await agent.state()).model) == ("I know it.", True, "ollama:qwen3:8b")
        assert (await agent.query("And now?")).text == "Still."
    async with begin(model, run="r", **world()) as root:
        assert (await (await root.get("a")).query("And ever?")).text == "Ever."
    assert (len(far.requests), saw(here)) == (2, [True, True, True])
    assert [request.body["model"] for request in here.requests] == ["qwen3:8b"] * 3


async def test_session_changes_keep_a_conversation_local(
    begin: Begin, far: ModelServer, here: ModelServer, folder: Path
) -> None:
    """After local-only content, the local model answers even after a checkout and in a later root.

    Selecting a remote model is an error.
    """
    far.script += [say("Fine."), call(read("mine.txt"))]
    here.otherwise = lambda _: say("I know it.")
    async with begin(run="r", **fake_world()) as root:
        agent = await root.spawn("Look", tools=["read_file"], cwd=folder, name="a")
        await agent.set_model(MODELS[2])
        await agent.query("How is the weather?")
        asked = (await agent.session.tree()).leaf
        await agent.set_thinking("low")
        await agent.set_model(MODELS[0])
        assert (await agent.query("Which code?")).local
        with pytest.raises(ConfigError, match="only local models may be used in this conversation"):
            await agent.set_model(MODELS[2])
        await agent.session.checkout(asked)
        assert (await agent.query("And now?")).text == "I know it."
    async with begin(run="r", **fake_world()) as root:
        agent = await root.get("a")
        assert (await agent.query("And ever?")).text == "I know it."
        assert (await agent.state()).model == "ollama:qwen3:8b"
    assert [request.body["model"] for request in far.requests] == ["gpt-6-luna", "claude-sonnet-5-5"]
    assert far.requests[1].body["output_config"] == {"effort": "low"}


async def test_local_only_call_without_a_local_model_is_refused(
    begin: Begin, far: ModelServer, here: ModelServer, folder: Path
) -> None:
    """Without a local model, the call does not run, and the model gets the reason."""
    here.installed = []
    far.script += [call(read("mine.txt")), say("I may not.")]
    async with begin(**fake_world()) as root:
        agent = await root.spawn("Look", tools=["read_file"], cwd=folder)
        reply = await agent.query("Which code?")
        assert (reply.text, reply.tool_calls, reply.local) == ("I may not.", 0, False)
        assert "only a local model may read the result, and no local model is available" in str(far.requests[1].body)


async def test_local_provider_on_another_machine_is_not_local(
    begin: Begin, far: ModelServer, here: ModelServer, folder: Path
) -> None:
    """If the local provider is on another machine, the call is refused, and the other machine gets no request."""
    far.script += [call(read("mine.txt")), say("I may not.")]
    root = begin(**fake_world())
    root._env = {**root._env, "OLLAMA_HOST": here.url.replace("127.0.0.1", "0.0.0.0")}
    async with root:
        await (await root.spawn("Look", tools=["read_file"], cwd=folder)).query("Which code?")
    assert "which is not this machine" in str(far.requests[1].body)
    assert here.requests == []


async def test_unreachable_local_model_is_an_error(
    begin: Begin, far: ModelServer, here: ModelServer, folder: Path
) -> None:
    """If the local model fails, the query fails, and no other model is used."""
    far.script += [call(read("mine.txt"))]
    here.script += [say("I know it.")]
    async with begin(**fake_world()) as root:
        agent = await root.spawn("Look", tools=["read_file"], cwd=folder)
        await agent.query("Which code?")
        here.otherwise = lambda _: say("", status=404)
        with pytest.raises(Exception, match="ollama"):
            await agent.query("And now?")
    assert len(far.requests) == 1


async def test_local_only_answer_of_a_child_switches_its_parent(
    begin: Begin, far: ModelServer, here: ModelServer, folder: Path
) -> None:
    """After a local-only answer of a child, the next request of the parent is sent to the local model."""
    down = {"call": "spawn_subagent", "input": {"task": "look", "tools": ["read_file"], "query": "Which code?"}}
    far.script += [call(down), call(read("mine.txt"))]
    here.script += [say(f"It is {SECRET}."), say("My child knows it.")]
    async with begin(**fake_world()) as root:
        agent = await root.spawn("Ask", tools=["read_file", *NEST], cwd=folder)
        reply = await agent.query("Which code?")
        assert (reply.text, reply.local) == ("My child knows it.", True)
    assert saw(here) == [True, True]


async def test_local_only_answer_is_withheld_without_a_local_model(
    begin: Begin, far: ModelServer, here: ModelServer, folder: Path
) -> None:
    """Without a local model, the parent gets a notice in place of the answer."""
    down = {"call": "spawn_subagent", "input": {"task": "look", "tools": ["read_file"], "query": "Which code?"}}

    def last(_: Request) -> Any:
        here.installed = []
        return say(f"It is {SECRET}.")

    here.otherwise = last
    far.script += [call(down), call(read("mine.txt")), say("It will not say.")]
    async with begin(**fake_world()) as root:
        agent = await root.spawn("Ask", tools=["read_file", *NEST], cwd=folder)
        assert (await agent.query("Which code?")).text == "It will not say."
    assert "Withheld: only a local model may read the result of spawn_subagent" in str(far.requests[2].body)


async def test_local_only_content_makes_its_receivers_local(
    begin: Begin, far: ModelServer, here: ModelServer, folder: Path
) -> None:
    """Agents that get local-only content in a task or a prompt use the local model."""
    new = {
        "call": "spawn_subagent",
        "input": {"task": f"think of {SECRET}", "tools": [], "query": f"What of {SECRET}?"},
    }
    old = {"call": "query_subagent", "input": {"id": "old", "prompt": f"And of {SECRET}?"}}
    far.script += [say("ready"), call(read("mine.txt"))]
    here.script += [call(new), say("nice"), call(old), say("well"), say("All think.")]
    async with begin(**fake_world()) as root:
        child = await root.spawn("Wait", tools=[], cwd=folder, name="old")
        agent = await root.spawn("Ask", tools=["read_file", *NEST], cwd=folder, peers=[child])
        assert (await child.query("Are you there?")).text == "ready"
        assert (await agent.query("Ask around")).text == "All think."
        assert [row.model for row in await root.agents()] == ["ollama:qwen3:8b"] * 3


async def test_local_only_archives_are_summarized_and_answered_locally(
    begin: Begin, far: ModelServer, here: ModelServer, folder: Path
) -> None:
    """The local model summarizes local-only archives, even if a remote model is configured for summaries."""
    archival = ArchivalConfig(
        enabled=True,
        async_=False,
        profile="seed",
        trigger=SEED.trigger,
        summary=SummaryConfig(style="paragraph", model=MODELS[1]),
    )
    config = Config(subagents=SubagentsConfig(allow_nested=True), archival=archival)
    far.script += [call(read("mine.txt"))]
    here.script += [say("I know it."), say(f"The code was {SECRET}."), say(f"It was {SECRET}.")]
    async with begin(config=config, **fake_world()) as root:
        agent = await root.spawn("Look", tools=["read_file"], cwd=folder)
        reply = await agent.query("Which code?")
        (archive,) = await root.archives.list()
        holder = await root.get(archive.id)
        assert (await holder.query("Which code was it?")).text == f"It was {SECRET}."
        assert reply.local
    assert (len(far.requests), len(here.requests)) == (1, 3)


async def test_earlier_holders_become_local(begin: Begin, far: ModelServer, here: ModelServer, folder: Path) -> None:
    """When an agent becomes local-only, the holders of its earlier archives do too."""
    archival = ArchivalConfig(enabled=True, async_=False, profile="seed", trigger=SEED.trigger)
    config = Config(subagents=SubagentsConfig(allow_nested=True), archival=archival)
    far.script += [call(read("open.txt")), say("Fine.")]
    async with begin(config=config, **fake_world()) as root:
        agent = await root.spawn("Look", tools=["read_file"], cwd=folder)
        await agent.query("Which weather?")
        holder = await root.get((await root.archives.list())[0].id)
        assert (await holder.query("Which?")).local is False
        asked = len(far.requests)
        far.script.append(call(read("mine.txt")))
        assert (await agent.query("Which code?")).local
        assert (await holder.state()).model == "ollama:qwen3:8b"
        assert (await holder.query("Which?")).local
    assert len(far.requests) == asked + 1
    assert len(here.requests) >= 2


async def test_chat_tool_of_a_local_only_conversation_asks_local_models(
    begin: Begin, far: ModelServer, here: ModelServer, folder: Path
) -> None:
    """In a local-only conversation, `chat` refuses remote models and uses the local model."""
    away = {"call": "chat", "input": {"prompt": f"What of {SECRET}?", "model": MODELS[1]}}
    own = {"call": "chat", "input": {"prompt": f"What of {SECRET}?"}}
    far.script += [call(read("mine.txt"))]
    here.script += [call(away), call(own), say("Nice."), say("Done.")]
    async with begin(**fake_world()) as root:
        agent = await root.spawn("Look", tools=["read_file", "chat"], cwd=folder)
        assert (await agent.query("Which code?")).text == "Done."
    assert "only local models may be used in this conversation" in str(here.requests[1].body)
    assert len(far.requests) == 1


async def test_no_local_model_ask_lets_the_user_decide(
    begin: Begin, far: ModelServer, here: ModelServer, folder: Path
) -> None:
    """The question says that a remote model would read the result of the call.

    If the user denies the call, the remote model does not get the result.
    """
    here.installed = []
    asked: list[Question] = []

    def approve(question: Question) -> Consent:
        asked.append(question)
        return Consent(False)

    far.script += [call(read("mine.txt")), say("I may not.")]
    config = Config(policy=PolicyConfig(no_local_model="ask"))
    async with begin(config=config, approve=approve, **fake_world()) as root:
        await (await root.spawn("Look", tools=["read_file"], cwd=folder)).query("Which code?")
    assert "if you approve, a remote model reads the result" in asked[0].reason


async def test_errors_and_lists_hide_local_only_text_from_remote_models(
    begin: Begin, far: ModelServer, here: ModelServer, folder: Path
) -> None:
    """A remote model sees neither local-only errors nor local-only tasks of other agents. The user sees both."""
    task = {"task": f"think of {SECRET}", "tools": [], "query": f"What of {SECRET}?"}
    spawn = {"call": "spawn_subagent", "input": task}
    ask = {"call": "query_subagent", "input": {"id": "kid", "prompt": "Which code?"}}
    here.script += [call(spawn), say("nice"), fail(400, "invalid_request_error", f"not {SECRET}!")]
    far.script += [call(read("mine.txt")), call(ask), call({"call": "list_subagents", "input": {}}), say("It failed.")]
    async with begin(**fake_world()) as root:
        kid = await root.spawn("Look", tools=["read_file", *NEST], cwd=folder, name="kid")
        with pytest.raises(OrchError, match=SECRET):
            await kid.query("Which code?")
        agent = await root.spawn("Ask", tools=[*NEST, "list_subagents"], cwd=folder, peers=[kid])
        here.script.append(fail(400, "invalid_request_error", f"not {SECRET}!"))
        assert (await agent.query("Which code?")).text == "It failed."
        assert any(SECRET in row.task for row in await root.agents())
    assert "only local models may see its details" in str(far.requests[2].body)
    assert "(only for local models)" in str(far.requests[3].body)


async def test_remote_model_selected_before_does_not_answer_local_only_content(
    begin: Begin, far: ModelServer, here: ModelServer, folder: Path
) -> None:
    """A remote model that was selected earlier does not answer local-only content, even after a checkout.

    It can also not be selected again.
    """
    old = {"call": "query_subagent", "input": {"id": "old", "prompt": f"And of {SECRET}?"}}
    far.script += [say("ready"), call(read("mine.txt"))]
    here.script += [call(old), say("well"), say("All think.")]
    here.otherwise = lambda _: say("here")
    async with begin(**fake_world()) as root:
        child = await root.spawn("Wait", tools=[], cwd=folder, name="old")
        agent = await root.spawn("Ask", tools=["read_file", *NEST], cwd=folder, peers=[child])
        assert (await child.query("Are you there?")).text == "ready"
        before = (await child.session.tree()).leaf
        await child.set_model(MODELS[1])
        chosen = (await child.session.tree()).leaf
        assert (await agent.query("Ask around")).text == "All think."
        with pytest.raises(OrchError, match="only local models may be used"):
            await child.set_model(MODELS[1])
        for place in (before, chosen):
            await child.session.checkout(place)
            assert (await child.query(f"What of {SECRET}?")).text == "here"
        assert [row.model for row in await root.agents()] == ["ollama:qwen3:8b"] * 2
