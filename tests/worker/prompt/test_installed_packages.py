"""Descriptions of installed packages in the prompt."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from orch_protocol.agent.project import ContextConfig, ContextFile
from orch_protocol.core.messages import user
from orch_worker.conversation.framing import is_project
from orch_worker.conversation.tokens import TokenEstimator
from orch_worker.prompt.installed_packages import pages_of
from orch_worker.prompt.project import context_parts, context_text, project_parts
from orch_worker.prompt.project_scan import permitted_survey, survey_project
from orch_worker.tools.api.base import ToolContext


def install(folder: Path, name: str, text: str, environment: str = ".venv") -> Path:
    """Install the metadata of a package into an environment of the project. Return the folder of the packages."""
    place = folder / environment / "lib" / "python3.11" / "site-packages"
    (place / f"{name}-1.2.dist-info").mkdir(parents=True)
    (place / f"{name}-1.2.dist-info" / "METADATA").write_text(text)
    return place


METADATA = "Metadata-Version: 2.1\nName: zebra\nVersion: 1.2\nSummary: Counts stripes\n\nUse it like this.\n"


def test_package_info_has_version_summary_and_description(tmp_path: Path) -> None:
    """The text comes from the project's environment. The folder is noted, so that later changes are found."""
    place = install(tmp_path, "zebra", METADATA)
    noted: list[Path] = []
    assert pages_of(tmp_path, ["zebra"], noted.append) == (
        ContextFile("zebra", "zebra 1.2: Counts stripes\n\nUse it like this."),
    )
    assert noted == [place]


def test_package_info_falls_back_to_the_environment_of_orch() -> None:
    """The version is the installed one."""
    [page] = pages_of(Path("/nowhere"), ["msgspec"], lambda _: None)
    assert page.text.startswith(f"msgspec {msgspec.__version__}: ")


def test_images_and_badges_are_removed_from_descriptions(tmp_path: Path) -> None:
    """Images and badges contain no information for a model."""
    pictures = '<p align="center">\n  <img src="x">\n</p>\n\n[![badge](x)](y)\n![logo](z)\n.. image:: w\n\n\n\n'
    install(tmp_path, "zebra", METADATA.replace("Use it", f"{pictures}**Use** it"))
    [page] = pages_of(tmp_path, ["zebra"], lambda _: None)
    assert page.text == "zebra 1.2: Counts stripes\n\n**Use** it like this."


def test_missing_package_is_reported_as_missing(tmp_path: Path) -> None:
    """No exception is raised."""
    [page] = pages_of(tmp_path, ["no-such-package-at-all"], lambda _: None)
    assert (page.text, page.problem) == ("", "it is not installed")


@pytest.mark.parametrize("level", ["brief", "full"])
def test_package_info_is_a_separate_bounded_part(tmp_path: Path, level: str) -> None:
    """The part follows the project description. Without a description, it is left out."""
    install(tmp_path, "zebra", METADATA + "More of it.\n" * 500)
    rules = ContextConfig(packages=("zebra",))
    project = permitted_survey(survey_project(rules, ToolContext(tmp_path)), (), listed=True)
    parts = project_parts(project, level, rules, TokenEstimator())  # type: ignore[arg-type]
    docs = parts[-1]
    assert (docs.name, docs.tier, docs.owner) == ("docs:zebra", "context", "package zebra")
    assert docs.text.startswith("zebra 1.2: Counts stripes\n\nUse it like this.")
    assert docs.text.endswith("[It goes on: see py_help]")
    assert TokenEstimator().text(docs.text) <= 210
    text = context_text(parts)
    assert is_project(user(text))
    assert context_parts(text, rules.files)[-1].text == docs.text
    assert project_parts(project, "none", rules, TokenEstimator()) == ()
