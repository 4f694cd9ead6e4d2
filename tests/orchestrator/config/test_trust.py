"""Trust in the configuration of a project."""

import os
from pathlib import Path

import pytest

from orch.config import config
from orch.config.config import load
from orch.config.trust import is_trusted, project_file, revoke, trust
from orch_protocol.core.errors import ConfigError
from orchestrator.config.test_config import write


def test_trust_depends_on_content_and_folder(home: Path, project: Path, tmp_path: Path) -> None:
    """A changed file and a copy in another folder are not trusted."""
    own = write(project_file(project), 'model = "openai:1"\n')
    assert trust(project, home, config.check) == own
    assert load(project, {}, home=home).config.model == "openai:1"
    linked = tmp_path / "link"
    linked.symlink_to(project)
    assert is_trusted(linked, own.read_bytes(), home)
    assert not is_trusted(tmp_path, own.read_bytes(), home)
    write(own, 'model = "openai:evil"\n')
    assert load(project, {}, home=home).config.model is None
    trust(project, home, config.check)
    assert revoke(home, "project", project)
    assert not revoke(home, "project", project)
    assert load(project, {}, home=home).config.model is None


def test_trust_record_is_private(home: Path, project: Path) -> None:
    """The record is private under any umask."""
    write(project_file(project), "")
    before = os.umask(0)
    try:
        trust(project, home, config.check)
    finally:
        os.umask(before)
    modes = {file.name: file.stat().st_mode & 0o777 for file in home.iterdir()}
    assert modes == {"trust.json": 0o600, "trust.json.lock": 0o600}


def test_trusting_a_folder_without_configuration_is_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing to trust: .*config\.toml"):
        trust(tmp_path, home, config.check)


@pytest.mark.parametrize("text", ["= 3", "modle = 3", 'model = "nope:1"', "limits.max_turns = 0"])
def test_invalid_file_cannot_be_trusted(home: Path, project: Path, text: str) -> None:
    """The error has the file and the line."""
    own = write(project_file(project), text)
    with pytest.raises(ConfigError, match=f"not trusted: {own}, line 1"):
        trust(project, home, config.check)
    assert not is_trusted(project, own.read_bytes(), home)


def test_damaged_trust_record_is_an_error(home: Path, project: Path) -> None:
    """A damaged record counts neither as empty nor as complete."""
    write(home / "trust.json", "[")
    write(project_file(project), "")
    with pytest.raises(ConfigError, match=r"cannot read .*trust\.json"):
        load(project, {}, home=home)
