"""Skills in requests: the system text lists each skill on one line, and a tool returns the text of a skill."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orch import AsyncOrchestrator, Config, Skill, SkillsConfig, SubagentsConfig
from orch.testing import FakeLauncher, fake_world
from wire.model_server import ModelServer, Request, call, say
from wire.test_end_to_end import environment

MODELS = ("anthropic:claude-sonnet-5-5", "openai:gpt-4o", "openai:gpt-6-luna")
READ = {"call": "read_skill", "input": {"name": "pump"}}
FORMS = {"call": "read_skill", "input": {"name": "pump", "file": "references/forms.md"}}
CHILD = {"call": "spawn_subagent", "input": {"task": "look", "tools": [], "skills": ["valve"], "query": "look"}}


def system(request: Request) -> str:
    """Return the system text of a request."""
    body = request.body
    messages = body.get("system") or body.get("instructions") or body["messages"][0]["content"]
    return messages if isinstance(messages, str) else str(messages[0]["text"])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with two skills."""
    for name, text in (("pump", "Close the red valve first."), ("valve", "Turn it left.")):
        folder = tmp_path / "home" / "skills" / name
        (folder / "references").mkdir(parents=True)
        (folder / "SKILL.md").write_text(f"---\nname: {name}\ndescription: Work on a {name}.\n---\n{text}\n")
        (folder / "references" / "forms.md").write_text("Form 27B.\n")
    return tmp_path / "home"


@pytest.mark.parametrize("model", MODELS)
async def test_skill_index_is_in_the_system_text_and_bodies_in_results(
    server: ModelServer, home: Path, model: str
) -> None:
    """The text and the files of a skill are only in tool results.

    A child lists the skills that it was given. An agent without skills has neither the list nor the tool.
    """
    config = Config(subagents=SubagentsConfig(allow_nested=True), skills=SkillsConfig(presets={"minimal": ()}))
    server.script += [call(READ, FORMS), call(CHILD), say("seen"), say("done"), say("bare")]
    async with AsyncOrchestrator(
        model, config=config, home=home, env=environment(server), **fake_world(FakeLauncher())
    ) as o:
        o.register_skill(Skill("gauge", "Read a gauge.", "Tap it twice."))
        o.register_prompt_template("fitter", "You are a fitter of {{what}}.")
        template = {"prompt_template": "fitter", "vars": {"what": "pumps"}}
        agent = await o.spawn("Mend it", tools=["spawn_subagent"], cwd=home, **template)
        assert (await agent.query("go")).text == "done"
        bare = await o.spawn("Nothing", preset="minimal", cwd=home)
        await bare.query("go")
    assert server.refused == []
    first, second, below, _, none = server.requests
    assert system(first).startswith("You are a fitter of pumps.")
    lines = [line for line in system(first).splitlines() if line.startswith("- ") and ": " in line]
    assert lines[-3:] == ["- gauge: Read a gauge.", "- pump: Work on a pump.", "- valve: Work on a valve."]
    assert "red valve" not in json.dumps(first.body)
    assert "Tap it" not in json.dumps(first.body)
    assert "Close the red valve first." in json.dumps(second.body)
    assert "Form 27B." in json.dumps(second.body)
    assert system(second) == system(first)
    assert "- valve: Work on a valve." in system(below)
    assert "pump" not in system(below)
    assert "read_skill" in json.dumps(below.body["tools"])
    assert "skill" not in json.dumps(none.body)
