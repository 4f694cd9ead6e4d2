"""Skills for a folder: where they are found, which of them an agent has, and what the agent reads about them."""

from __future__ import annotations

import asyncio
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from orch import Config, ConfigError, Skill, SkillsConfig, SubagentsConfig
from orch.config.trust import revoke
from orch.resources.extensions import extension_specs
from orch.resources.extensions import find as find_extensions
from orch.resources.extensions import trust as trust_extension
from orch.resources.skill_discovery import Found, SkillCatalogs, find, trust
from orch.services.agents.spawn import describe
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ToolNotGrantedError
from orch_protocol.resources.skills import SkillSpec, SkillsSpec
from orch_protocol.services.agents.spawn import Spawn
from orch_worker.prompt.instructions import stable_parts
from orch_worker.skills.catalog import SkillCatalog
from orch_worker.skills.skill_file import read_skill_file, skill_in
from orch_worker.tools.api.base import ToolContext
from orch_worker.tools.dispatch.presets import make_toolbox
from orchestrator.root_double import World, opened

RULES = SkillsConfig()
BACKEND = BackendSpec("scripted")


def put(place: Path, name: str = "pump", description: str = "Pumps.", body: str = "Look.") -> Path:
    """Write a skill below `place`."""
    (place / name).mkdir(parents=True)
    (place / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {description}\n---\n{body}\n")
    return place / name


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, with the current folder set to an empty project."""
    (tmp_path / "home").mkdir()
    (tmp_path / "project").mkdir()
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "home"


@pytest.fixture
def project(home: Path) -> Path:
    """Return the project's folder for skills."""
    return home.parent / "project" / ".orch" / "skills"


def there(home: Path, rules: SkillsConfig = RULES, **more: Any) -> dict[str, str]:
    """Return the names of the skills for the project, with the reason why each one is off."""
    return {each.name: each.why_off for each in find(home.parent / "project", home, rules, **more)}


class TestProviders:
    """The sources of skills."""

    def test_user_skills_are_on_and_project_skills_are_off(self, home: Path, project: Path) -> None:
        """A skill of a project is off until the user trusts it."""
        put(home / "skills", "own")
        put(project)
        assert there(home)["own"] == ""
        assert "was not trusted: read it, then orch skills trust pump" in there(home)["pump"]

    def test_trust_ends_when_the_skill_changes(self, home: Path, project: Path) -> None:
        """A trusted skill is on until a file in its folder changes or the trust is revoked."""
        folder = put(project)
        trust(folder, home)
        assert there(home) == {"pump": ""}
        (folder / "more.md").write_text("And tell nobody.\n")
        assert "was changed since it was trusted" in there(home)["pump"]
        trust(folder, home)
        assert revoke(home, "skill", folder)
        assert not revoke(home, "skill", folder)
        assert "was not trusted" in there(home)["pump"]

    def test_configured_skill_folders_are_used(self, home: Path, tmp_path: Path) -> None:
        """A relative folder belongs to the project, so its skills need trust."""
        put(tmp_path / "others", "elsewhere")
        put(home.parent / "project" / ".agents" / "skills", "theirs")
        rules = SkillsConfig(folders=(str(tmp_path / "others"), ".agents/skills", "nowhere"))
        found = there(home, rules)
        assert found["elsewhere"] == ""
        assert "was not trusted" in found["theirs"]

    def test_skills_of_claude_code_are_found(self, home: Path, project: Path) -> None:
        """They need trust like all skills of a project, and come after those in `.orch/skills`."""
        theirs = home.parent / "project" / ".claude" / "skills"
        put(theirs, "theirs")
        trust(put(theirs, "pump"), home)
        trust(put(project, "pump"), home)
        assert "was not trusted" in there(home)["theirs"]
        first, second = (each for each in find(home.parent / "project", home, RULES) if each.name == "pump")
        assert (first.path, first.why_off) == (str(project / "pump"), "")
        assert "has the same name" in second.why_off

    def test_packaged_skills_are_found_by_their_entry_point(
        self, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An unknown name is an error that lists the known names."""
        put(tmp_path / "site" / "offering", "packed")
        (tmp_path / "site" / "offering" / "__init__.py").write_text("")
        monkeypatch.syspath_prepend(tmp_path / "site")
        offered = [EntryPoint("short", "offering", "orch.skills")]
        monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: offered)
        [found] = find(home.parent, home, SkillsConfig(load=("short",)))
        assert (found.name, found.where, found.why_off) == ("packed", "package", "")
        with pytest.raises(ConfigError, match=r"skills.load: .*offers 'long' as orch.skills; there are: short"):
            find(home.parent, home, SkillsConfig(load=("long",)))

    def test_extension_skills_must_be_in_its_manifest(self, home: Path) -> None:
        """Its name begins with the extension's name. A skill that is not in the manifest is off."""
        pack = home / "extensions" / "pack"
        put(pack / "skills", "review")
        put(pack / "skills", "sneak")
        (pack / "extension.toml").write_text('name = "pack"\n[permissions]\nskills = ["review"]\n')
        (pack / "extension.py").write_text("def register(extension): ...\n")
        extensions = extension_specs(find_extensions(home.parent, home), home)
        found = there(home, extensions=extensions)
        assert found["pack:review"] == ""
        assert "permissions.skills of extension 'pack' has no 'sneak'" in found["pack:sneak"]

    def test_skills_of_a_trusted_project_extension_are_on(self, home: Path) -> None:
        """The trust in the extension includes its skills."""
        pack = home.parent / "project" / ".orch" / "extensions" / "pack"
        put(pack / "skills", "review")
        (pack / "extension.toml").write_text('name = "pack"\n[permissions]\nskills = ["review"]\n')
        (pack / "extension.py").write_text("def register(extension): ...\n")
        assert extension_specs(find_extensions(home.parent / "project", home), home) == ()
        trust_extension(pack, home)
        extensions = extension_specs(find_extensions(home.parent / "project", home), home)
        [found] = find(home.parent / "project", home, RULES, extensions=extensions)
        assert found.skill is not None
        assert (found.skill.trusted, found.why_off) == (str(pack), "")

    def test_project_skill_gives_way_to_one_of_the_same_name(self, home: Path, project: Path, tmp_path: Path) -> None:
        """Skills of the program precede skills of the user, of configured folders and of the project."""
        put(home / "skills")
        put(tmp_path / "others")
        trust(put(project), home)
        rules = SkillsConfig(folders=(str(tmp_path / "others"),))
        found = find(home.parent / "project", home, rules, own=[SkillSpec("pump", "Mine.")])
        assert [(each.where, not each.why_off) for each in found] == [
            ("program", True),
            *((where, False) for where in ("user", "folder", "project")),
        ]
        assert "another skill (program) has the same name" in found[1].why_off

    def test_invalid_skill_is_off_and_hides_no_other(self, home: Path) -> None:
        """The reason names the file and the error. A folder without SKILL.md is ignored."""
        put(home / "skills", "good")
        put(home / "skills", "Bad")
        put(home / "skills", "empty", body="")
        (put(home / "skills", "linked") / "x").symlink_to("/etc/hostname")
        (home / "skills" / "notes").mkdir()
        found = {each.name: each for each in find(home.parent, home, RULES)}
        assert {name for name, each in found.items() if each.broken} == {"Bad", "empty", "linked"}
        assert "Bad/SKILL.md: line 2, name: 'Bad' has capital letters" in found["Bad"].why_off
        assert found["good"].why_off == ""

    def test_unchanged_skills_are_not_read_again(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A changed folder is read again."""
        folder = put(home / "skills")
        monkeypatch.setattr("orch.resources.skill_discovery.SETTLED_NS", -(10**12))
        read: list[Path] = []
        monkeypatch.setattr(
            "orch.resources.skill_discovery.skill_in", lambda held, path: read.append(path) or skill_in(held, path)
        )
        skill_catalogs = SkillCatalogs()
        first = skill_catalogs.look(folder)
        assert skill_catalogs.look(folder) is first
        (folder / "more.md").write_text("x")
        assert skill_catalogs.look(folder).hash != first.hash
        assert len(read) == 2


class TestProgram:
    """Skills that a program registers."""

    async def test_registered_skills_are_accepted_all_or_none(self, tmp_path: Path) -> None:
        """Duplicate names and invalid skills are errors, and no skill is added."""

        class Two:
            def skills(self) -> list[Skill]:
                return [Skill("a", "First.", "Do a."), Skill("b", "Second.", "Do b.", files={"x/y.md": "y"})]

        async with opened(tmp_path / "home") as world:
            assert world.register_skill(Two()) == ("a", "b")
            for wrong, why in (
                (Skill("a", "Again.", "Do."), "a skill named 'a' already exists"),
                (Skill("A b", "d", "Do."), "skill 'A b': name: 'A b' has capital letters"),
                (Skill("c", "d" * 1025, "Do."), "skill 'c': description: it has 1025"),
                (Skill("c", "d", " "), "skill 'c' has no body"),
                (Skill("c", "d", "Do.", files={"../x": ""}), "invalid path '../x': it must be a relative path"),
                ("c", "a skill must be a Skill, or an object with skills"),
            ):
                with pytest.raises(ConfigError, match=why):
                    world.register_skill(wrong)  # type: ignore[arg-type]
            assert [each.name for each in world.skills.list(tmp_path) if each.where == "program"] == ["a", "b"]
            agent = await world.scripted("done")
            assert [skill.name for skill in spec_of(world, agent).skills] == ["a", "b"]

    @pytest.mark.parametrize(
        "text", ["plain", "a: b", "# x", "yes", "'", 'a "b"', "- x", "1", "line\nline", "*a", "é: ü"]
    )
    def test_any_skill_round_trips_as_a_file(self, tmp_path: Path, text: str) -> None:
        made = Skill("s", text, "Do.", allowed_tools=("Read",), license=text, metadata={"k": text})
        (tmp_path / "s").mkdir()
        (tmp_path / "s" / "SKILL.md").write_text(made.text())
        found = read_skill_file(tmp_path / "s")
        assert (found.description, found.license, found.metadata) == (text, text, {"k": text})
        assert found.allowed == ("Read",)


async def test_trusted_skill_of_claude_code_reaches_an_agent(tmp_path: Path) -> None:
    """The project has no other folder with skills."""
    async with opened(tmp_path / "home") as world:
        trust(put(tmp_path / ".claude" / "skills"), tmp_path / "home")
        agent = await world.scripted("done", cwd=tmp_path)
        assert [skill.name for skill in spec_of(world, agent).skills] == ["pump"]


def spec_of(world: World, agent: Any) -> SkillsSpec:
    """Return the skills that an agent has."""
    return world.supervisor.tree.agents[agent.id].spec.skills


def offered(*names: str) -> list[Found]:
    """Return discovered skills of the user with these names."""
    return [Found(name, "user", skill=SkillSpec(name, "d", hash="0")) for name in names]


class TestAgents:
    """The skills of an agent."""

    def test_agent_has_all_named_or_preset_skills(self, tmp_path: Path) -> None:
        """An agent without skills has no tool `read_skill`."""

        def made(config: Config = Config(), **asked: Any) -> tuple[list[str], bool]:  # noqa: B008
            spec = describe(Spawn("t", **asked), None, config, tmp_path, BACKEND, skills=offered("a", "b"))
            return [skill.name for skill in spec.skills.skills], "read_skill" in spec.tools

        assert made() == (["a", "b"], True)
        assert made(skills=("b",), preset="minimal") == (["b"], True)
        assert made(skills=(), tools=("all",)) == ([], False)
        presets = Config(skills=SkillsConfig(presets={"minimal": (), "work": ("b", "none such")}))
        assert made(presets, preset="minimal") == ([], False)
        assert made(presets, preset="work") == (["b"], True)
        assert made(presets, preset="work", skills=("a",)) == (["a"], True)
        with pytest.raises(ConfigError, match="no skill 'c'; available: a, b"):
            made(skills=("c",))

    def test_disabled_skill_states_the_reason(self, tmp_path: Path) -> None:
        """A spawn that names the skill fails with the reason; a spawn that names no skills leaves it out."""
        off = [Found("a", "project", skill=SkillSpec("a", "d"), why_off="it was not trusted: read it")]
        assert describe(Spawn("t"), None, Config(), tmp_path, BACKEND, skills=off).skills == SkillsSpec()
        with pytest.raises(ConfigError, match="skill 'a' is off: it was not trusted"):
            describe(Spawn("t", skills=("a",)), None, Config(), tmp_path, BACKEND, skills=off)

    def test_child_has_only_skills_of_its_parent(self, tmp_path: Path) -> None:
        """A name or a preset can only select skills of the parent. Skills that a worker sends are ignored."""
        config = Config(skills=SkillsConfig(presets={"minimal": ("a",)}), subagents=SubagentsConfig(allow_nested=True))
        above = describe(Spawn("t", tools=("all",)), None, config, tmp_path, BACKEND, skills=offered("a", "b"))
        more = (SkillSpec("c", "Obey."),)

        def below(**asked: Any) -> list[str]:
            spec = describe(Spawn("t", own_skills=more, **asked), above, Config(), tmp_path, BACKEND)
            return [skill.name for skill in spec.skills.skills]

        assert below() == ["a", "b"]
        assert below(preset="minimal") == ["a"]
        assert below(skills=("b",)) == ["b"]
        assert below(skills=()) == []
        with pytest.raises(ToolNotGrantedError, match="cannot give skill 'c', because it does not have"):
            below(skills=("c",))

    async def test_broken_skill_is_reported_once_and_does_not_stop_the_spawn(
        self, home: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The agent has the other skills."""
        put(home / "skills", "good")
        put(home / "skills", "Bad")
        async with opened(home) as world:
            agents = [await world.scripted("done", cwd=home.parent / "project") for _ in range(2)]
            assert [skill.name for skill in spec_of(world, agents[1]).skills] == ["good"]
        assert capsys.readouterr().err.count("orch: skill 'Bad' is left out: ") == 1

    async def test_skills_can_be_switched_off(self, home: Path) -> None:
        """No skill is discovered, and a spawn that names a skill fails."""
        put(home / "skills", "good")
        async with opened(home, config=Config(skills=SkillsConfig(enabled=False))) as world:
            agent = await world.scripted("done")
            assert spec_of(world, agent) == SkillsSpec()
            with pytest.raises(
                ConfigError, match=r"skill 'good' was requested, but skills are disabled \(skills.enabled\)"
            ):
                await world.scripted("done", skills=["good"])
            with pytest.raises(ConfigError, match="skills must be a list of names; got 'good'"):
                await world.scripted("done", skills="good")

    async def test_skill_body_is_read_on_demand_and_restricts_tools(self, home: Path, tmp_path: Path) -> None:
        """After the skill is read, tools that it does not name need approval until the end of the turn."""
        folder = put(home / "skills")
        text = (folder / "SKILL.md").read_text()
        (folder / "SKILL.md").write_text(text.replace("---\nLook", "allowed-tools: Read\n---\nLook"))
        asked: list[str] = []

        def approve(question: Any) -> bool:
            asked.append(question.reason)
            return False

        read = {"tool": "read_skill", "input": {"name": "pump"}}
        listing = {"tool": "list_files", "input": {}}
        items = [listing, read, listing, "one", listing, "two"]
        async with opened(home, approve=approve) as world:
            agent = await world.scripted(items=items, cwd=tmp_path / "project", tools=["file"])
            shown = (await agent.prompt_parts()).render("stable")
            await asyncio.sleep(0)
            await agent.query("go")
            await agent.query("go on")
            seen = str((await agent.show()).messages)
        assert "Look." in seen
        assert [reason.count("not among the tools that skill 'pump' names") for reason in asked] == [1]
        assert shown.endswith("- pump: Pumps.")

    def test_agent_without_skills_has_no_skill_prompt_or_tool(self, tmp_path: Path) -> None:
        """No part of the prompt, no tool and no argument of a tool mentions skills."""

        def skill_texts(*names: str) -> str:
            found = offered(*names)
            spec = describe(Spawn("t", tools=("all",)), None, Config(), tmp_path, BACKEND, skills=found)
            shelf = SkillCatalog(spec.skills, None) if names else None  # type: ignore[arg-type]
            tools = make_toolbox(spec.tools, (), ToolContext(tmp_path, skills=shelf)).specs()
            parts = stable_parts(spec, [tool.name for tool in tools])
            return f"{parts}{tools}"

        assert "skill" not in skill_texts()
        assert "read_skill" in skill_texts("a")
        assert "Names of your skills that it gets" in skill_texts("a")

    async def test_change_of_a_read_skill_is_reported_from_the_next_turn(self, home: Path, tmp_path: Path) -> None:
        """A new process of the agent reports it, too, until the agent reads the skill again."""
        folder = put(home / "skills")
        read = {"tool": "read_skill", "input": {"name": "pump"}}
        async with opened(home) as world:
            agent = await world.scripted(
                items=[read, "one", "two", read, "three", "four"], cwd=tmp_path / "project", tools=[]
            )
            await agent.query("go")
            (folder / "SKILL.md").write_text((folder / "SKILL.md").read_text() + "Twice.\n")
            world.launcher.worker(agent.id).die(9)
            await agent.query("go on")
            text = "Skills that were changed since you read them: pump. Read them again with read_skill."
            assert (await shown(agent)) == text
            await agent.query("and on")
            await agent.query("to the end")
            assert (await shown(agent)) == ""

    async def test_sandbox_allows_reading_the_agents_skills(self, home: Path, tmp_path: Path) -> None:
        """The sandbox of a subagent contains only the folders of its own skills."""
        folders = [str(put(home / "skills", name)) for name in ("a", "b")]
        nested = Config(subagents=SubagentsConfig(allow_nested=True))
        below = {"tool": "spawn_subagent", "input": {"task": "t", "tools": [], "skills": ["b"]}}
        async with opened(home, config=nested) as world:
            agent = await world.scripted(items=[below, "done"], cwd=tmp_path / "project", tools=["spawn_subagent"])
            await agent.query("go")
            specs = [node.spec for node in world.supervisor.tree.agents]
            assert [list(spec.sandbox.read) for spec in specs] == [folders, folders[1:]]


async def shown(agent: Any) -> str:
    """Return the volatile part of the last prompt, after pending callbacks have run."""
    prompt = await agent.prompt_parts()
    await asyncio.sleep(0)
    return str(prompt.render("volatile"))
