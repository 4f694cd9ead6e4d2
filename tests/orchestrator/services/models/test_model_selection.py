"""The model and the thinking level of a session: recorded, changed, restored with branches, and configured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from orch import Config, ScriptedBackend, SubagentsConfig
from orch.policy.caller import USER, AgentCaller
from orch.services.agents.spawn import spec_of
from orch.services.models.model_selection import effective_thinking, matches_session, resolve_recorded_model
from orch.services.sessions.import_session import _continue_with_model
from orch.sessions.formats.conversation import ImportedSession
from orch.tree.agents.state import with_model
from orch_protocol.agent.models import RecordModel
from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.errors import AgentBusyError, AgentDiedError, ConfigError
from orch_protocol.core.ids import new_entry_id
from orch_protocol.services.agents.spawn import Spawn
from orch_protocol.session.entries import ThinkingLevelChange
from orch_protocol.session.tree import SessionEdit, SetModel, SetThinking
from orch_worker.session.session_reader import NAME
from orch_worker.session.transcript import Transcript
from orchestrator.root_double import NEST, opened


def note(folder: str, agent: str, *changes: SetModel | SetThinking) -> None:
    """Write changes into the session of an agent without a process, as a root does that dies before it records them."""
    transcript = Transcript.open(Path(folder), agent=agent, cwd="/")
    for change in changes:
        transcript.change(SessionEdit(new_entry_id(transcript.session.places), change))
    transcript.close()


async def test_recorded_model_is_used_after_a_crash_of_the_root(tmp_path: Path) -> None:
    """The next query uses the recorded model and level; it raises an error if the model is not available."""
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
        with pytest.raises(ConfigError, match="extractive continues the conversation in a new process"):
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

        # At that entry, no model replaces the recorded one, not even the model chosen just before.
        await agent.set_model("extractive")
        assert (await agent.session.tree()).model == "extractive"
        await agent.session.checkout(there)
        assert (await agent.session.tree()).model == "nowhere:model"
        with pytest.raises(ConfigError, match="unknown provider 'nowhere'"):
            await agent.query("fifth")


async def test_imported_own_session_uses_the_importers_model(tmp_path: Path) -> None:
    """The import needs no key for the model that the session recorded."""
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


async def test_model_is_restored_with_the_branch(tmp_path: Path) -> None:
    """After a restart, after a checkout and in a fork, the agent has the model of its branch."""
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


async def test_invalid_model_choice_is_refused(tmp_path: Path) -> None:
    """Unknown models, models without a key, invalid thinking levels and changes during a turn raise errors."""
    async with opened(tmp_path) as o:
        agent = await o.scripted({"text": "late", "sleep": 60}, context="none", tools=[])
        for model, why in [
            ("nowhere:model", "unknown provider 'nowhere'"),
            ("moonshot:kimi-k3", "needs a key"),
            ("", "no model given"),
            ("scripted", "pass the script when the agent is spawned"),
        ]:
            with pytest.raises(ConfigError, match=why):
                await agent.set_model(model)
        with pytest.raises(ConfigError, match="unknown thinking level 'very much': use one of off, minimal"):
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


def test_going_back_before_a_model_change_restores_the_first_model() -> None:
    """A branch without a recorded model or level has those of the spawn."""
    backend = BackendSpec("acme", "x", {"api": "chat"}, "high")
    spec = AgentSpec("a", 1, "a", "task", backend, "", "/")
    assert matches_session(spec, "", "")
    assert not matches_session(spec, "", "low")
    moved = with_model(spec, RecordModel(replace(backend, thinking="low")))
    assert matches_session(moved, "", "low")
    assert not matches_session(moved, "", "")
    assert with_model(moved, RecordModel(replace(backend, model="y"), "acme:y")).born == backend


async def test_requested_level_overrides_the_recorded_one(tmp_path: Path) -> None:
    """An import without a requested level keeps the recorded one; models without levels refuse a requested level."""
    async with opened(tmp_path) as o:
        with pytest.raises(ConfigError, match="extractive does not support a thinking level"):
            await o.spawn("work", model="extractive", thinking="low")
        with pytest.raises(ConfigError, match="unknown thinking level 'much': use one of off"):
            await o.spawn("work", model="extractive", thinking="much")
    off = ThinkingLevelChange(id="1", parent_id=None, timestamp="", thinking_level="off")
    found = ImportedSession("x", "pi session", (off,))
    spec = AgentSpec("a", 1, "a", "task", BackendSpec("acme", "x", {}, "high"), "", "/")
    assert [
        getattr(each, "thinking_level", "") for each in _continue_with_model(found, spec, "high", "now").entries
    ] == [
        "off",
        "high",
    ]
    assert _continue_with_model(found, spec, None, "now") == found  # nothing is added
    assert _continue_with_model(found, replace(spec, backend=BackendSpec("acme")), None, "now") == found


async def test_configured_level_applies_without_a_requested_one(tmp_path: Path) -> None:
    """The configured level also applies to subagents and to models that are chosen later."""
    thinks = {"flags": {"thinks": ["off", "low", "high"]}}
    (tmp_path / "models.json").write_text(json.dumps({"models": {"ollama": {"deep": thinks}}}))
    deep = {"model": "ollama:deep"}
    subagents = SubagentsConfig(allow_nested=True, models=("ollama:*",))
    async with opened(tmp_path, config=Config(thinking="high", subagents=subagents)) as o:
        root, parent = o.supervisor, await o.scripted("Fine.", tools=NEST)

        async def thinking(caller: str | None = None, **asked: Any) -> str | None:
            spec, _ = await spec_of(root, Spawn("t", **asked), AgentCaller(caller) if caller else USER)
            return effective_thinking(RecordModel(spec.backend, ""), required=False)

        assert await thinking(**deep) == "high"
        assert await thinking(**deep, usual_thinking="medium") == "high"  # the model has no level `medium`
        assert await thinking(**deep, usual_thinking="off", thinking="low") == "low"
        assert await thinking(model="ollama:plain") is None
        assert await thinking(script=("Fine.",)) is None
        assert await thinking(parent.id, **deep) == "high"
        calm = (await spec_of(root, Spawn("t", **deep, thinking="low"), USER))[0]
        assert (await resolve_recorded_model(root, calm, "", "")).backend.thinking == "low"
        assert (
            await resolve_recorded_model(root, root.tree.agents[parent.id].spec, "ollama:deep", "")
        ).backend.thinking == "high"
        assert (await parent.execute("/thinking")).text == "model default"
        assert (await parent.session.tree()).thinking == ""
