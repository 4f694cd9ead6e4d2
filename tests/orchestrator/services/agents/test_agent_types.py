"""Agent types: the tools, model and prompt of an agent that a user or an agent spawns with a type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch import Config, ConfigError
from orch.config.models import Catalog
from orch.resources.agent_types import find_types, trust
from orch.services import serve_worker
from orch.services.agents.agent_types import apply_type_to_request
from orch_protocol.services.agents.spawn import Spawn, Spawned
from orch_protocol.wire.worker_messages import RootCall
from orch_worker.backends import models
from orchestrator.root_double import NEST, World, nesting, opened
from virtual_clock import virtual


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a project, which is also the current folder."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def put(folder: Path, name: str, head: str = "", body: str = "You review changes.") -> None:
    """Write the file of an agent type."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(f"---\ndescription: Agent {name}.\n{head}\n---\n{body}\n")


def put_trusted(world: World, project: Path, name: str, head: str) -> None:
    """Write an agent type of the project and trust it."""
    put(project / ".orch" / "agents", name, head)
    trust(next(each for each in world.agent_types() if each.name == name), world.home)


def spec_of(world: World, id: str) -> Any:
    return world.supervisor.tree.agents[id].spec


async def below(world: World, parent: str, **asked: Any) -> Any:
    """Return the spec of an agent that the agent `parent` spawns."""
    payload = msgspec.Raw(msgspec.msgpack.encode(Spawn("t", script=("done",), **asked)))
    answer = await serve_worker(world.supervisor, parent, RootCall("spawn", payload))
    return spec_of(world, msgspec.msgpack.decode(answer, type=Spawned).id)


@virtual
async def test_a_users_type_supplies_prompt_and_tools(tmp_path: Path) -> None:
    """The agent has the tools and the prompt of its type, and its state shows the name of the type."""
    put(tmp_path / "agents", "reviewer", "tools: Read, Bash")
    async with opened(tmp_path) as world:
        agent = await world.scripted("done", agent="reviewer")
        spec = spec_of(world, agent.id)
        assert set(spec.tools) == {"read_file", "describe_data", "bash", "bg_kill", "bg_status"}
        assert (spec.agent_type, (await agent.state()).preset) == ("reviewer", "reviewer")
        assert spec.prompt.identity == "You review changes."
        assert spec.prompt.source == f"agent type reviewer ({tmp_path / 'agents' / 'reviewer.md'})"
        assert spec.context.level == "brief"  # as for the default preset


@virtual
async def test_a_preset_and_tools_limit_a_type(tmp_path: Path) -> None:
    """A preset or tool list given with a type is an upper limit; tools that the type excludes are removed from it."""
    put(tmp_path / "agents", "reviewer", "tools: Read, Bash")
    put(tmp_path / "agents", "plain", "disallowedTools: Grep")
    async with opened(tmp_path) as world:
        small = spec_of(world, (await world.scripted("x", agent="reviewer", preset="minimal")).id)
        assert (small.tools, small.preset) == (("read_file",), "minimal")
        named = spec_of(world, (await world.scripted("x", agent="reviewer", tools=["bash"])).id)
        assert (named.tools, named.preset) == (("bash",), "")
        plain = spec_of(world, (await world.scripted("x", agent="plain", preset="minimal")).id)
        assert plain.tools == ("list_files", "read_file")
        usual = spec_of(world, (await world.scripted("x", agent="plain")).id)
        assert usual.preset == "investigate"
        assert "grep_files" not in usual.tools
        assert "read_file" in usual.tools


@virtual
async def test_a_projects_type_only_narrows(tmp_path: Path, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A project's type is off until it is trusted, and adds no tools to the default preset or to a given preset."""
    async with opened(tmp_path) as world:
        put(project / ".orch" / "agents", "fixer", "tools: Read, Bash")
        with pytest.raises(ConfigError, match=r"agent type 'fixer' is off: .*was not trusted"):
            await world.scripted("x", agent="fixer")
        put_trusted(world, project, "fixer", "tools: Read, Bash")
        agent = await world.scripted("x", agent="fixer")
        assert spec_of(world, agent.id).tools == ("read_file",)
        text = "agent type 'fixer' of the project does not get bash: pass a preset"
        assert text in capsys.readouterr().err
        wide = spec_of(world, (await world.scripted("x", agent="fixer", preset="work")).id)
        assert set(wide.tools) == {"read_file", "bash", "bg_kill", "bg_status"}


@virtual
async def test_agents_spawn_types_within_their_grant(tmp_path: Path, project: Path) -> None:
    """An agent can spawn the types that are on; a subagent has the type's prompt, and only tools of its parent."""
    put(tmp_path / "agents", "writer", "tools: Read, Write, Bash")
    put(project / ".claude" / "agents", "stranger")
    async with opened(tmp_path, config=nesting()) as world:
        put_trusted(world, project, "fixer", "tools: Read, Bash\ndisallowedTools: Bash")
        parent = await world.scripted("x", tools=[*NEST, "read_file", "write_file"])
        assert spec_of(world, parent.id).agent_types == {"writer": "Agent writer.", "fixer": "Agent fixer."}
        child = await below(world, parent.id, agent="writer")
        assert (child.tools, child.preset, child.prompt.identity) == (
            ("read_file", "write_file"),
            "",
            "You review changes.",
        )
        assert child.agent_types == {}  # it cannot spawn
        assert (await below(world, parent.id, agent="fixer")).tools == ("read_file",)
        assert (await below(world, parent.id, agent="writer", tools=("read_file", "bash"))).tools == ("read_file",)
        with pytest.raises(ConfigError, match="agent type 'stranger' is off"):
            await below(world, parent.id, agent="stranger")
        with pytest.raises(ConfigError, match="no agent type named 'critic'; available: writer, fixer"):
            await below(world, parent.id, agent="critic")


@virtual
async def test_types_are_those_of_the_users_project(tmp_path: Path, project: Path) -> None:
    """A subagent in a subfolder can spawn the types of the user's project folder, not those of the subfolder."""
    (project / "part").mkdir()
    put(project / "part" / ".orch" / "agents", "inner")
    async with opened(tmp_path, config=nesting()) as world:
        put_trusted(world, project, "outer", "tools: Task, Read")
        parent = await world.scripted("x", tools=[*NEST, "read_file"])
        child = await below(world, parent.id, agent="outer", cwd="part")
        assert set(child.agent_types) == {"outer"}


@virtual
async def test_a_type_that_cannot_be_used(tmp_path: Path) -> None:
    """Unknown tools, unknown type names and a second prompt raise ConfigError, and no agent is spawned."""
    put(tmp_path / "agents", "bad", "tools: Fly")
    put(tmp_path / "agents", "good")
    async with opened(tmp_path) as world:
        with pytest.raises(ConfigError, match=r"agent type 'bad' is off: .*bad\.md: tools: Unknown tool 'Fly'"):
            await world.scripted("x", agent="bad")
        with pytest.raises(ConfigError, match="no agent type named 'work'; available: good"):
            await world.scripted("x", agent="work")
        with pytest.raises(ConfigError, match="agent='good' or prompt_template, not both"):
            await world.scripted("x", agent="good", prompt_template="p")
        assert await world.agents(all=True) == []


@virtual
async def test_the_model_of_a_type(tmp_path: Path, project: Path) -> None:
    """A model with a provider is used as written, a family name only with a key; the request's model overrides both."""
    for name, model in {"exact": "openai:gpt-5", "family": "opus", "same": "inherit"}.items():
        put(tmp_path / "agents", name, f"model: {model}")
    types = find_types(project, tmp_path, Config())
    known = models.load(tmp_path)

    def model_of(agent: str, *keys: str, **asked: Any) -> tuple[str | None, str]:
        request, note = apply_type_to_request(
            Spawn("t", agent=agent, **asked), types, None, Config(), Catalog(known, {}, keys)
        )
        return request.model, note

    assert model_of("exact") == ("openai:gpt-5", "")
    assert model_of("same") == (None, "")
    found, note = model_of("family", "ANTHROPIC_API_KEY")
    assert found is not None
    assert (found.startswith("anthropic:claude-opus-"), note) == (True, "")
    assert model_of("family", model="local") == ("local", "")
    assert model_of("family") == (
        None,
        "model 'opus' of agent type 'family' is not available: the default model is used",
    )


@virtual
async def test_a_projects_model_is_one_that_agents_may_choose(tmp_path: Path, project: Path) -> None:
    """`subagents.models` limits the models of a project's types, but not those of the user's types."""
    put(tmp_path / "agents", "own", "model: ollama:big")
    async with opened(tmp_path, config=nesting(models=("ollama:small",))) as world:
        for name in ("small", "big"):
            put_trusted(world, project, name, f"model: ollama:{name}")
        parent = spec_of(world, (await world.scripted("x", tools=NEST)).id)
        types, catalog = find_types(project, tmp_path, world.config), Catalog(models.load(tmp_path), {}, ())

        def model_of(agent: str) -> tuple[str | None, str]:
            request, note = apply_type_to_request(Spawn("t", agent=agent), types, parent, world.config, catalog)
            return request.model, note

        assert (model_of("own"), model_of("small")) == (("ollama:big", ""), ("ollama:small", ""))
        model, note = model_of("big")
        assert model is None
        assert "'ollama:big' of agent type 'big' is not allowed for subagents (subagents.models)" in note
