"""What is for a local model goes to a server of this machine, or nowhere: read on the wire, with two servers.

Both listen on loopback. The one that stands for a provider elsewhere is called by an address that counts as elsewhere.
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
    """Say that what is in `mine.txt` is for local models."""
    return Verdict(model="local" if any(path.endswith("/mine.txt") for path in call.paths) else "any")


def saw(server: ModelServer) -> list[bool]:
    """Return of each request to `server` whether it held the secret."""
    return [SECRET.encode() in request.raw for request in server.requests]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file that is nobody else's business."""
    (tmp_path / "mine.txt").write_text(f"the code is {SECRET}\n")
    (tmp_path / "open.txt").write_text("the weather is fine\n")
    return tmp_path


@pytest.fixture
async def far() -> AsyncIterator[ModelServer]:
    """A provider elsewhere, which never sees the secret and refuses nothing."""
    async with ModelServer() as server:
        yield server
    assert not any(saw(server))
    assert server.refused == []


@pytest.fixture
async def here() -> AsyncIterator[ModelServer]:
    """A server of this machine with a model, which refuses nothing."""
    async with ModelServer() as server:
        server.installed = ["qwen3:8b"]
        yield server
    assert server.refused == []


@pytest.fixture
def begin(far: ModelServer, here: ModelServer, folder: Path) -> Begin:
    """Makes roots whose model is elsewhere."""

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
async def test_the_next_request_goes_to_the_local_model_and_all_after_it(
    begin: Begin, far: ModelServer, here: ModelServer, folder: Path, model: str, world: Callable[[], Any]
) -> None:
    """From the call on, each request of the conversation goes here: in this turn, the next one, and after a revival.

    In processes of their own, and without.
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


async def test_what_was_chosen_before_takes_nothing_away(
    begin: Begin, far: ModelServer, here: ModelServer, folder: Path
) -> None:
    """A conversation that is bound to this machine stays here: where it goes back, with another level of thinking, in a
    later root; and no model elsewhere can be chosen for it."""
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
        with pytest.raises(ConfigError, match="this conversation is for local models alone"):
            await agent.set_model(MODELS[2])
        await agent.session.checkout(asked)
        assert (await agent.query("And now?")).text == "I know it."
    async with begin(run="r", **fake_world()) as root:
        agent = await root.get("a")
        assert (await agent.query("And ever?")).text == "I know it."
        assert (await agent.state()).model == "ollama:qwen3:8b"
    assert [request.body["model"] for request in far.requests] == ["gpt-6-luna", "claude-sonnet-5-5"]
    assert far.requests[1].body["output_config"] == {"effort": "low"}


async def test_without_a_local_model_the_call_is_refused(
    begin: Begin, far: ModelServer, here: ModelServer, folder: Path
) -> None:
    """Nothing is read, the model hears why, and the conversation goes on where it was."""
    here.installed = []
    far.script += [call(read("mine.txt")), say("I may not.")]
    async with begin(**fake_world()) as root:
        agent = await root.spawn("Look", tools=["read_file"], cwd=folder)
        reply = await agent.query("Which code?")
        assert (reply.text, reply.tool_calls, reply.local) == ("I may not.", 0, False)
        assert "is for a model on this machine, and there is none" in str(far.requests[1].body)


async def test_a_local_server_elsewhere_is_none(
    begin: Begin, far: ModelServer, here: ModelServer, folder: Path
) -> None:
    """Where `local` leads to another machine the call is refused."""
    far.script += [call(read("mine.txt")), say("I may not.")]
    root = begin(**fake_world())
    root._env = {**root._env, "OLLAMA_HOST": here.url.replace("127.0.0.1", "0.0.0.0")}
    async with root:
        await (await root.spawn("Look", tools=["read_file"], cwd=folder)).query("Which code?")
    assert "which is not this machine" in str(far.requests[1].body)
    assert here.requests == []


async def test_a_local_model_that_is_gone_is_not_gone_around(
    begin: Begin, far: ModelServer, here: ModelServer, folder: Path
) -> None:
    """Once the conversation stays here, a server that does not answer is an error, and never another model's work."""
    far.script += [call(read("mine.txt"))]
    here.script += [say("I know it.")]
    async with begin(**fake_world()) as root:
        agent = await root.spawn("Look", tools=["read_file"], cwd=folder)
        await agent.query("Which code?")
        here.otherwise = lambda _: say("", status=404)
        with pytest.raises(Exception, match="ollama"):
            await agent.query("And now?")
    assert len(far.requests) == 1


async def test_what_a_child_answers_takes_its_parent_along(
    begin: Begin, far: ModelServer, here: ModelServer, folder: Path
) -> None:
    """A parent that is told what is for local models goes on with one, before its next request."""
    down = {"call": "spawn_subagent", "input": {"task": "look", "tools": ["read_file"], "query": "Which code?"}}
    far.script += [call(down), call(read("mine.txt"))]
    here.script += [say(f"It is {SECRET}."), say("My child knows it.")]
    async with begin(**fake_world()) as root:
        agent = await root.spawn("Ask", tools=["read_file", *NEST], cwd=folder)
        reply = await agent.query("Which code?")
        assert (reply.text, reply.local) == ("My child knows it.", True)
    assert saw(here) == [True, True]


async def test_what_a_child_answers_is_withheld_where_its_parent_cannot_follow(
    begin: Begin, far: ModelServer, here: ModelServer, folder: Path
) -> None:
    """When there is no local model any more, the parent hears that there was an answer, and not which."""
    down = {"call": "spawn_subagent", "input": {"task": "look", "tools": ["read_file"], "query": "Which code?"}}

    def last(_: Request) -> Any:
        here.installed = []
        return say(f"It is {SECRET}.")

    here.otherwise = last
    far.script += [call(down), call(read("mine.txt")), say("It will not say.")]
    async with begin(**fake_world()) as root:
        agent = await root.spawn("Ask", tools=["read_file", *NEST], cwd=folder)
        assert (await agent.query("Which code?")).text == "It will not say."
    assert "Withheld: what spawn_subagent brought" in str(far.requests[2].body)


async def test_what_is_told_to_others_stays_here_too(
    begin: Begin, far: ModelServer, here: ModelServer, folder: Path
) -> None:
    """Agents that are spawned or asked by one that stays here do so themselves, also one that was elsewhere before."""
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


async def test_what_is_archived_stays_here(begin: Begin, far: ModelServer, here: ModelServer, folder: Path) -> None:
    """Summaries are asked of the local model, also where another is configured, and holders answer by it."""
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


async def test_holders_that_were_there_before_stay_here_too(
    begin: Begin, far: ModelServer, here: ModelServer, folder: Path
) -> None:
    """What an agent archived before it was told anything private is answered for here from then on."""
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


async def test_other_models_are_not_asked_from_a_conversation_that_stays_here(
    begin: Begin, far: ModelServer, here: ModelServer, folder: Path
) -> None:
    """`chat` asks local models alone from there."""
    away = {"call": "chat", "input": {"prompt": f"What of {SECRET}?", "model": MODELS[1]}}
    own = {"call": "chat", "input": {"prompt": f"What of {SECRET}?"}}
    far.script += [call(read("mine.txt"))]
    here.script += [call(away), call(own), say("Nice."), say("Done.")]
    async with begin(**fake_world()) as root:
        agent = await root.spawn("Look", tools=["read_file", "chat"], cwd=folder)
        assert (await agent.query("Which code?")).text == "Done."
    assert "this conversation is for local models alone" in str(here.requests[1].body)
    assert len(far.requests) == 1


async def test_a_person_may_let_it_go_where_that_is_configured(
    begin: Begin, far: ModelServer, here: ModelServer, folder: Path
) -> None:
    """With `without_local = "ask"` and no local model, the question says so; a no keeps it, as everywhere."""
    here.installed = []
    asked: list[Question] = []

    def approve(question: Question) -> Consent:
        asked.append(question)
        return Consent(False)

    far.script += [call(read("mine.txt")), say("I may not.")]
    config = Config(policy=PolicyConfig(no_local_model="ask"))
    async with begin(config=config, approve=approve, **fake_world()) as root:
        await (await root.spawn("Look", tools=["read_file"], cwd=folder)).query("Which code?")
    assert "a yes lets it go to one that is elsewhere" in asked[0].reason


async def test_errors_and_lists_tell_nothing_to_who_is_elsewhere(
    begin: Begin, far: ModelServer, here: ModelServer, folder: Path
) -> None:
    """What an error quotes, what an agent works on, and what it is for are told to people, not to a model elsewhere."""
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
    assert "what there is to say of it is for local models alone" in str(far.requests[2].body)
    assert "(for local models alone)" in str(far.requests[3].body)


async def test_a_model_that_was_chosen_before_does_not_take_over_what_stays_here(
    begin: Begin, far: ModelServer, here: ModelServer, folder: Path
) -> None:
    """It was to answer the next question, and that is for local models alone; nor does it where somebody goes back."""
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
        with pytest.raises(OrchError, match="for local models alone"):
            await child.set_model(MODELS[1])
        for place in (before, chosen):
            await child.session.checkout(place)
            assert (await child.query(f"What of {SECRET}?")).text == "here"
        assert [row.model for row in await root.agents()] == ["ollama:qwen3:8b"] * 2
