"""Folders are looked at once for all agents in them, and again when something in them is another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orch import Config, ContextConfig, SubagentsConfig
from orch.supervisor import project_facts
from orch.supervisor.project_facts import MOST, ProjectFacts
from orch_protocol.agent.project import ProjectSurvey
from orch_worker.prompt import project_scan
from orchestrator.root_double import opened
from virtual_clock import virtual

RULES = ContextConfig(files=("AGENTS.md", "docs/house.md"))
Survey = Callable[..., ProjectSurvey]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project."""
    folder = tmp_path / "p"
    (folder / "src" / "deep").mkdir(parents=True)
    for name in ("AGENTS.md", "README.md", "pyproject.toml", ".gitignore", "src/a.py", "src/deep/b.py"):
        (folder / name).write_text("*.log\n")
    return folder


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were looked at. What was changed a moment ago counts as settled."""
    monkeypatch.setattr(project_facts, "SETTLED_NS", -(10**12))
    seen: list[Path] = []
    original: Survey = project_facts.survey_project

    def survey(rules: Any, context: Any, note: Any) -> ProjectSurvey:
        seen.append(context.cwd)
        return original(rules, context, note)

    monkeypatch.setattr(project_facts, "survey_project", survey)
    return seen


@virtual
async def test_a_folder_is_looked_at_once(folder: Path, looks: list[Path]) -> None:
    """For one who asks after another, and for two at once; other context files are another look."""
    there = ProjectFacts()
    first = await there.of(folder, RULES)
    assert await there.of(folder, RULES) is first
    assert looks == [folder]
    await asyncio.gather(there.of(folder, ContextConfig()), there.of(folder, ContextConfig()))
    assert len(looks) == 2


@virtual
@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "AGENTS.md").write_text("Other rules."),
        lambda folder: (folder / "AGENTS.md").unlink(),
        lambda folder: (folder / "README.md").write_text("Other words."),
        lambda folder: (folder / "pyproject.toml").write_text("[project]"),
        lambda folder: (folder / ".gitignore").write_text("*.py\n"),
        lambda folder: (folder / "src" / "deep" / "c.py").write_text(""),
        lambda folder: (folder / "src" / "deep" / "b.py").unlink(),
        lambda folder: (folder / "docs").mkdir(),
        lambda folder: (folder / "src").rename(folder / "lib"),
    ],
)
async def test_what_has_changed_is_seen(folder: Path, looks: list[Path], change: Callable[[Path], object]) -> None:
    """A file that is told of, one that is ignored by, one more or less anywhere below."""
    there = ProjectFacts()
    await there.of(folder, RULES)
    change(folder)
    after = await there.of(folder, RULES)
    assert len(looks) == 2
    assert after == await ProjectFacts().of(folder, RULES)


@virtual
async def test_a_context_file_in_a_folder_is_seen_to_come(folder: Path, looks: list[Path]) -> None:
    """Also where there was no such folder."""
    there = ProjectFacts()
    await there.of(folder, RULES)
    (folder / "docs").mkdir()
    await there.of(folder, RULES)
    (folder / "docs" / "house.md").write_text("Be kind.")
    assert [page.path for page in (await there.of(folder, RULES)).pages] == ["AGENTS.md", "docs/house.md"]
    assert len(looks) == 3


@virtual
async def test_what_was_changed_just_now_is_looked_at_again(
    folder: Path, looks: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It might be changed once more without another time stamp."""
    monkeypatch.setattr(project_facts, "SETTLED_NS", 10**12)
    there = ProjectFacts()
    await there.of(folder, RULES)
    await there.of(folder, RULES)
    assert len(looks) == 2


@virtual
async def test_what_time_cut_short_is_looked_at_again(
    folder: Path, looks: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that was seen in part is not taken for what it is."""
    monkeypatch.setattr(project_facts, "WALK_SECONDS", -1.0)
    there = ProjectFacts()
    await there.of(folder, RULES)
    await there.of(folder, RULES)
    assert len(looks) == 2


@virtual
async def test_a_bounded_number_is_kept(tmp_path: Path, looks: list[Path]) -> None:
    """The folder that was asked about longest ago is forgotten."""
    there = ProjectFacts()
    folders = [tmp_path / f"f{number}" for number in range(MOST + 1)]
    for each in folders:
        each.mkdir()
        await there.of(each, RULES)
    looks.clear()
    await there.of(folders[-1], RULES)
    await there.of(folders[0], RULES)
    assert looks == [folders[0]]


@virtual
async def test_agents_ask_their_root(
    tmp_path: Path, folder: Path, looks: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three agents in a folder are told the same by one look, which none of them makes itself."""
    monkeypatch.setattr(project_scan, "survey_project", None)
    config = Config(subagents=SubagentsConfig(context=RULES))
    async with opened(tmp_path / "home", config=config) as world:
        texts = set()
        for _ in range(3):
            agent = await world.scripted("done", preset="work", cwd=folder)
            await agent.query("go")
            texts.add((await agent.prompt_parts()).render("context"))
            await asyncio.sleep(0)
    assert len(looks) == len(texts) == 1
