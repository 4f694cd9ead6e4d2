"""Who answers is what the session has on record, whatever the root knew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from orch import Config, ScriptedBackend, SubagentsConfig
from orch.policy.caller import USER, AgentCaller
from orch.services.agents.spawn import spec_of
from orch.services.models.model_selection import announced_model, answers_at, holds
from orch.services.sessions.import_export import _gone_on_with
from orch.sessions.formats.conversation import ImportedSession
from orch.tree.agents.state import answered_by
from orch_protocol.agent.models import RecordModel
from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.errors import AgentBusyError, AgentDiedError, ConfigError
from orch_protocol.core.ids import new_entry_id
from orch_protocol.services.requests import Spawn
from orch_protocol.session.entries import ThinkingLevelChange
from orch_protocol.session.tree import SessionEdit, SetModel, SetThinking
from orch_worker.session.transcript import NAME, Transcript
from orchestrator.root_double import NEST, opened


def note(folder: str, agent: str, *changes: SetModel | SetThinking) -> None:
    """Write changes into the session of an agent without a process, as a root does that dies before it knows of it."""
    transcript = Transcript.open(Path(folder), agent=agent, cwd="/")
    for change in changes:
        transcript.change(SessionEdit(new_entry_id(transcript.session.places), change))
    transcript.close()


async def test_what_is_on_record_alone_holds_all_the_same(tmp_path: Path) -> None:
    """The root learns of it with the next question; a script's process makes way for a model, which is told."""
    async with opened(tmp_path) as o:
        agent = await o.scripted("one", "two", context="none", tools=[])
        assert (await agent.query("first")).text == "one"
        await agent.kill()
        await agent.resume()
        folder = (await agent.state()).folder
        note(folder, agent.id, SetThinking("low"))
        assert (await agent.query("second")).text == "two"
        assert o.supervisor.tree.agents[agent.id].spec.backend.thinking == "low"

        await agent.kill()
        await agent.resume()
        note(folder, agent.id, SetModel("extractive"))
        with pytest.raises(ConfigError, match="extractive goes on with the conversation, in a process of its own"):
            await agent.query("third")
        assert "one" in (await agent.query("Which was the one?")).text
        assert (await agent.state()).model == "extractive"

        await agent.kill()
        await agent.resume()
        note(folder, agent.id, SetModel("nowhere:model"))
        with pytest.raises(ConfigError, match="unknown provider 'nowhere'"):
            await agent.query("fourth")
        await agent.session.title("Nothing else is kept from happening")
        assert (await agent.session.tree()).model == "nowhere:model"
        there = (await agent.session.tree()).leaf
        assert await agent.set_model("extractive") == "extractive"
        assert (await agent.query("Which was the one?")).text

        # Nobody answers there in the place of who is on record, also not who was chosen just before.
        await agent.set_model("extractive")
        assert (await agent.session.tree()).model == "extractive"
        await agent.session.checkout(there)
        assert (await agent.session.tree()).model == "nowhere:model"
        with pytest.raises(ConfigError, match="unknown provider 'nowhere'"):
            await agent.query("fifth")


async def test_a_session_of_ours_goes_on_with_the_model_of_whoever_takes_it_over(tmp_path: Path) -> None:
    """What it had as its own elsewhere is history: nobody need have a key for that here."""
    async with opened(tmp_path) as o:
        agent = await o.scripted("one", context="none", tools=[])
        await agent.query("first")
        await agent.set_model("extractive")
        await agent.kill()
        folder = (await agent.state()).folder
        note(folder, agent.id, SetModel("nowhere:model"))
        other = await o.sessions.import_(Path(folder) / NAME, backend=ScriptedBackend([{"loop": ["two"]}]))
        assert (await other.session.tree()).model == "scripted"
        assert (await other.query("second")).text == "two"
        kinds = [(row.type, row.head) for row in (await other.session.tree()).entries if row.type == "model_change"]
        assert [head for _, head in kinds] == ["extractive", "nowhere:model", "scripted"]


async def test_what_was_chosen_holds_in_a_later_root_and_on_its_branch(tmp_path: Path) -> None:
    """What answered before is there again where the conversation goes back behind it, and in a copy from there."""
    async with opened(tmp_path, run="one") as o:
        agent = await o.scripted("one", {"loop": ["more"]}, context="none", tools=[], name="reader")
        await agent.query("first")
        before = (await agent.session.tree()).leaf
        await agent.set_model("extractive")
    async with opened(tmp_path, run="one") as o:
        agent = await o.get("reader")
        assert (await agent.state()).model == "extractive"
        assert "Offline search" in (await agent.query("Which was one?")).text
        copy = await agent.session.fork(before)
        assert (await copy.state()).model == "scripted"
        await agent.session.checkout(before)
    async with opened(tmp_path, run="one") as o:
        agent, copy = await o.get("reader"), await o.get(copy.id)
        assert [(await each.state()).model for each in (agent, copy)] == ["scripted"] * 2
        assert [(await each.query("again")).text for each in (agent, copy)] == ["more"] * 2


async def test_what_cannot_be_chosen_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """A model nobody knows, one without a key, a script, a word that is no level; and nothing in a turn."""
    async with opened(tmp_path) as o:
        agent = await o.scripted({"text": "late", "sleep": 60}, context="none", tools=[])
        for model, why in [
            ("nowhere:model", "unknown provider 'nowhere'"),
            ("moonshot:kimi-k3", "needs a key"),
            ("", "which model is to answer"),
            ("scripted", "pass the script when the agent is spawned"),
        ]:
            with pytest.raises(ConfigError, match=why):
                await agent.set_model(model)
        with pytest.raises(ConfigError, match="'very much' is none of off, minimal"):
            await agent.set_thinking("very much")
        with pytest.raises(ConfigError, match="scripted does not support a thinking level"):
            await agent.set_thinking("low")
        working = agent.submit("Well?")
        for change in (agent.set_model("extractive"), agent.set_thinking("low")):
            with pytest.raises(AgentBusyError, match="is busy with: Well"):
                await change
        await agent.cancel(hard=True)
        with pytest.raises(AgentDiedError):
            await working
        assert not [row for row in (await agent.session.tree()).entries if row.type.endswith("_change")]


def test_what_an_agent_was_made_with_holds_where_nothing_is_on_record() -> None:
    """So nobody is asked for it; after a change too, where the conversation goes back behind that."""
    backend = BackendSpec("acme", "x", {"api": "chat"}, "high")
    spec = AgentSpec("a", 1, "a", "task", backend, "", "/")
    assert holds(spec, "", "")
    assert not holds(spec, "", "low")
    moved = answered_by(spec, RecordModel(replace(backend, thinking="low")))
    assert holds(moved, "", "low")
    assert not holds(moved, "", "")
    assert answered_by(moved, RecordModel(replace(backend, model="y"), "acme:y")).born == backend


async def test_a_level_that_is_asked_for_is_the_one_that_holds(tmp_path: Path) -> None:
    """What a file from elsewhere has on record gives way to it; and a model that takes none is not asked for one."""
    async with opened(tmp_path) as o:
        with pytest.raises(ConfigError, match="extractive does not support a thinking level"):
            await o.spawn("work", model="extractive", thinking="low")
        with pytest.raises(ConfigError, match="'much' is none of off"):
            await o.spawn("work", model="extractive", thinking="much")
    off = ThinkingLevelChange(id="1", parent_id=None, timestamp="", thinking_level="off")
    found = ImportedSession("x", "pi session", (off,))
    spec = AgentSpec("a", 1, "a", "task", BackendSpec("acme", "x", {}, "high"), "", "/")
    assert [getattr(each, "thinking_level", "") for each in _gone_on_with(found, spec, "high", "now").entries] == [
        "off",
        "high",
    ]
    assert _gone_on_with(found, spec, None, "now") == found  # its own is what is configured
    assert _gone_on_with(found, replace(spec, backend=BackendSpec("acme")), None, "now") == found


async def test_a_level_that_is_configured_is_for_models_that_are_asked_for_no_other(tmp_path: Path) -> None:
    """A model that takes none goes on by itself, and one that is chosen later is told. Subagents think as above."""
    thinks = {"flags": {"thinks": ["off", "low", "high"]}}
    (tmp_path / "models.json").write_text(json.dumps({"models": {"ollama": {"deep": thinks}}}))
    deep = {"model": "ollama:deep"}
    async with opened(tmp_path, config=Config(thinking="high", subagents=SubagentsConfig(allow_nested=True))) as o:
        root, parent = o.supervisor, await o.scripted("Fine.", tools=NEST)

        async def thinking(caller: str | None = None, **asked: Any) -> str | None:
            spec, _ = await spec_of(root, Spawn("t", **asked), AgentCaller(caller) if caller else USER)
            return announced_model(RecordModel(spec.backend, ""), wanted=False)

        assert await thinking(**deep) == "high"
        assert await thinking(**deep, usual_thinking="medium") == "high"  # the next that it has
        assert await thinking(**deep, usual_thinking="off", thinking="low") == "low"
        assert await thinking(model="ollama:plain") is None
        assert await thinking(script=("Fine.",)) is None
        assert await thinking(parent.id, **deep) == "high"
        calm = (await spec_of(root, Spawn("t", **deep, thinking="low"), USER))[0]
        assert (await answers_at(root, calm, "", "")).backend.thinking == "low"
        assert (await answers_at(root, root.tree.agents[parent.id].spec, "ollama:deep", "")).backend.thinking == "high"
        assert (await parent.execute("/thinking")).text == "as the model does by itself"
        assert (await parent.session.tree()).thinking == ""
