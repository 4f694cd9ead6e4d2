"""`orch config`: show settings, trust and untrust a project's configuration."""

import json
from pathlib import Path
from typing import Any

import pytest

from orch.cli import run
from orchestrator.daemon_double import Desk, opened


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    """A fake daemon, an empty home and a clean environment."""
    return opened(monkeypatch, tmp_path)


Captured = pytest.CaptureFixture[str]


@pytest.mark.usefixtures("desk")
def test_config_show_prints_each_value_with_its_source(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each setting is a line, or an entry of a JSON object. Ignored settings are reported on stderr."""
    Path(".orch").mkdir()
    Path(".orch/config.toml").write_text('model = "evil:m"\n')
    monkeypatch.setenv("ORCH_LIMITS__MAX_TURNS", "3")
    assert run(["config", "show"]) == 0
    out, err = capsys.readouterr()
    lines = {line.split()[0]: line.split(maxsplit=2)[1:] for line in out.splitlines()}
    assert lines["limits.max_turns"] == ["3", "variable ORCH_LIMITS__MAX_TURNS"]
    assert lines["model"] == ["-", "default"]
    assert "ignored model" in err
    run(["config", "show", "--json"])
    data = json.loads(capsys.readouterr().out)
    assert data["limits.max_turns"] == {"value": 3, "source": "variable ORCH_LIMITS__MAX_TURNS"}


@pytest.mark.usefixtures("desk")
def test_config_trust_and_untrust_a_folder(capsys: Captured, tmp_path: Path) -> None:
    """The configuration of a folder applies after `trust` and does not apply after `untrust`."""
    Path(".orch").mkdir()
    Path(".orch/config.toml").write_text('model = "openai:fine"\n')

    def model() -> Any:
        run(["config", "show", "--json"])
        return json.loads(capsys.readouterr().out)["model"]["value"]

    assert run(["config", "trust"]) == 0
    assert str(tmp_path / "project" / ".orch" / "config.toml") in capsys.readouterr().out
    assert model() == "openai:fine"
    assert run(["config", "untrust", "."]) == 0
    assert "no longer trusted" in capsys.readouterr().out
    assert model() is None
    assert run(["config", "untrust", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"untrusted": False}
    assert run(["config", "trust", str(tmp_path)]) == 2
