"""Which project's configuration is trusted, and by what."""

import os
from pathlib import Path

import pytest

from orch.config import config
from orch.config.config import load
from orch.config.trust import is_trusted, project_file, trust, untrust
from orch_protocol.core.errors import ConfigError
from orchestrator.config.test_config import write


def test_trust_is_by_content_and_folder(home: Path, project: Path, tmp_path: Path) -> None:
    """A trusted file holds in full; an edit, or the same file in another folder, asks anew; untrust forgets."""
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
    assert untrust(project, home)
    assert not untrust(project, home)
    assert load(project, {}, home=home).config.model is None


def test_the_record_of_trust_is_private(home: Path, project: Path) -> None:
    """Nobody else may add a folder to it."""
    write(project_file(project), "")
    before = os.umask(0)
    try:
        trust(project, home, config.check)
    finally:
        os.umask(before)
    modes = {file.name: file.stat().st_mode & 0o777 for file in home.iterdir()}
    assert modes == {"trust.json": 0o600, "trust.json.lock": 0o600}


def test_trusting_nothing_is_an_error(home: Path, tmp_path: Path) -> None:
    """A folder without configuration cannot be trusted ahead of time."""
    with pytest.raises(ConfigError, match=r"nothing to trust: .*config\.toml"):
        trust(tmp_path, home, config.check)


@pytest.mark.parametrize("text", ["= 3", "modle = 3", 'model = "nope:1"', "limits.max_turns = 0"])
def test_a_file_that_does_not_do_is_not_trusted(home: Path, project: Path, text: str) -> None:
    """Why is said with file and line, and nothing is on record."""
    own = write(project_file(project), text)
    with pytest.raises(ConfigError, match=f"not trusted: {own}, line 1"):
        trust(project, home, config.check)
    assert not is_trusted(project, own.read_bytes(), home)


def test_a_damaged_record_of_trust_is_an_error(home: Path, project: Path) -> None:
    """It is never taken for an empty or a full one."""
    write(home / "trust.json", "[")
    write(project_file(project), "")
    with pytest.raises(ConfigError, match=r"trust\.json cannot be read"):
        load(project, {}, home=home)
