"""The scan of a project folder is shared by all agents in it and repeated after a change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orch import Config, ContextConfig, SubagentsConfig
from orch.supervisor import project_facts
from orch.supervisor.project_facts import MAX_CACHED, ProjectFacts
from orch_protocol.agent.project import ProjectSurvey
from orch_worker.prompt import project_scan
from orchestrator.root_double import opened
from virtual_clock import virtual

RULES = ContextConfig(files=("AGENTS.md", "docs/house.md"))
Survey = Callable[..., ProjectSurvey]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project folder with context files and sources."""
    folder = tmp_path / "p"
    (folder / "src" / "deep").mkdir(parents=True)
    for name in ("AGENTS.md", "README.md", "pyproject.toml", ".gitignore", "src/a.py", "src/deep/b.py"):
        (folder / name).write_text("*.log\n")
    return folder


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The scanned folders. Recent changes count as settled."""
    monkeypatch.setattr(project_facts, "SETTLED_NS", -(10**12))
    seen: list[Path] = []
    original: Survey = project_facts.survey_project

    def survey(rules: Any, context: Any, note: Any) -> ProjectSurvey:
        seen.append(context.cwd)
        return original(rules, context, note)

    monkeypatch.setattr(project_facts, "survey_project", survey)
    return seen


@virtual
async def test_folder_is_scanned_once_for_concurrent_and_later_agents(folder: Path, looks: list[Path]) -> None:
    """Other context files need another scan."""
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
async def test_changed_files_cause_a_new_scan(
    folder: Path, looks: list[Path], change: Callable[[Path], object]
) -> None:
    """A change of a described file, of an ignore file, or of the list of files at any depth causes a scan."""
    there = ProjectFacts()
    await there.of(folder, RULES)
    change(folder)
    after = await there.of(folder, RULES)
    assert len(looks) == 2
    assert after == await ProjectFacts().of(folder, RULES)


@virtual
async def test_new_context_file_in_a_subfolder_is_noticed(folder: Path, looks: list[Path]) -> None:
    """A new context file causes a scan even if its folder did not exist during the first scan."""
    there = ProjectFacts()
    await there.of(folder, RULES)
    (folder / "docs").mkdir()
    await there.of(folder, RULES)
    (folder / "docs" / "house.md").write_text("Be kind.")
    assert [page.path for page in (await there.of(folder, RULES)).pages] == ["AGENTS.md", "docs/house.md"]
    assert len(looks) == 3


@virtual
async def test_very_recent_change_is_scanned_again(
    folder: Path, looks: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may change again within the resolution of its time stamp."""
    monkeypatch.setattr(project_facts, "SETTLED_NS", 10**12)
    there = ProjectFacts()
    await there.of(folder, RULES)
    await there.of(folder, RULES)
    assert len(looks) == 2


@virtual
async def test_incomplete_scan_is_repeated(folder: Path, looks: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan that reached its time limit is not reused."""
    monkeypatch.setattr(project_facts, "WALK_SECONDS", -1.0)
    there = ProjectFacts()
    await there.of(folder, RULES)
    await there.of(folder, RULES)
    assert len(looks) == 2


@virtual
async def test_cached_scans_are_bounded(tmp_path: Path, looks: list[Path]) -> None:
    """The folder with the oldest use is dropped from the cache."""
    there = ProjectFacts()
    folders = [tmp_path / f"f{number}" for number in range(MAX_CACHED + 1)]
    for each in folders:
        each.mkdir()
        await there.of(each, RULES)
    looks.clear()
    await there.of(folders[-1], RULES)
    await there.of(folders[0], RULES)
    assert looks == [folders[0]]


@virtual
async def test_agents_share_the_scan_of_their_root(
    tmp_path: Path, folder: Path, looks: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three agents in a folder use one scan of the root and make no scan in their workers."""
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
