"""What an orchestrator is given wrongly is refused with a reason, before anything is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orch import AsyncOrchestrator, ConfigError, ScriptedBackend
from orch.testing import fake_world


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"run": "../x"}, r"run '\.\./x' does not do"),
        ({"run": ""}, "run '' does not do"),
        ({"run": "x" * 300}, "up to 64 letters"),
        ({"run": "run-mine"}, "not with 'run-'"),
        ({"run": 5}, "run is not a int: 5"),
        ({"config": {}}, "config is not a dict"),
        ({"env": 5}, "env is not a int"),
        ({"keys": "k"}, "keys is not a str"),
        ({"home": ""}, "home is empty"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_bad_arguments_are_refused(tmp_path: Path, given: dict[str, Any], match: str) -> None:
    """The error names the argument and what to do; nothing is created."""
    with pytest.raises(ConfigError, match=match):
        AsyncOrchestrator(**({"home": tmp_path / "home"} | given))
    assert not (tmp_path / "home").exists()


def test_a_program_whose_folder_is_gone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands nowhere: no folder's configuration is its own, and no agent can work where it is."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ConfigError, match="the folder that this program is in is gone: change to one"):
        AsyncOrchestrator(home=tmp_path / "home")


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"tools": [None]}, "a tool is the name of one or a function, not None"),
        ({"tools": "read_file"}, "tools is a list"),
        ({"backend": "x"}, r"backend is an object such as ScriptedBackend.*'x'"),
        ({"env": 3}, "env=3"),
        ({"task": b"x"}, r"a task is text.*b'x'"),
        ({"cwd": "/nope"}, "the working folder /nope does not exist"),
        ({"cwd": "/n\udcff"}, "has a name that is not UTF-8: rename it"),
    ],
    ids=lambda value: str(value)[:24],
)
async def test_bad_spawns_are_refused(tmp_path: Path, given: dict[str, Any], match: str) -> None:
    """No agent comes of what is no task, tool, backend or environment."""
    async with AsyncOrchestrator(home=tmp_path, env={}, **fake_world()) as o:
        options = {"task": "t", "backend": ScriptedBackend(["x"])} | given
        with pytest.raises(ConfigError, match=match):
            await o.spawn(options.pop("task"), **options)
        assert await o.agents(all=True) == []
