"""The file models.json is read again when it changes, in a running root and by commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orch import AsyncOrchestrator
from orch.config import paths
from orch.policy.credentials import CallerCredentials
from orch.testing import FakeLauncher, fake_world
from orch_protocol.core.errors import ConfigError
from orch_worker.backends.models import CatalogFile


def write(home: Path, **providers: Any) -> None:
    """Write models.json with these providers."""
    home.mkdir(exist_ok=True)
    (home / "models.json").write_text(json.dumps({"providers": providers}))


def provider(**more: Any) -> dict[str, Any]:
    return {"api": "chat", "base_url": "http://127.0.0.1:1/v1", **more}


async def test_changed_file_applies_to_the_next_agent(tmp_path: Path) -> None:
    """New providers, new limits and new keys apply without a restart. An invalid file is an error for new agents."""
    launcher = FakeLauncher()
    env = {"NEW_KEY": "key-1"}
    async with AsyncOrchestrator(home=tmp_path, env=env, **fake_world(launcher)) as root:
        with pytest.raises(ConfigError, match="unknown provider 'acme'"):
            await root.spawn("work", model="acme:m", name="a")
        write(tmp_path, acme=provider(context=5_000))
        a = await root.spawn("work", model="acme:m", name="a")
        assert (await a.state()).context_limit == 5_000
        write(tmp_path, acme=provider(context=60_000, keys=["NEW_KEY"]))
        b = await root.spawn("work", model="acme:m", name="b")
        assert (await b.state()).context_limit == 60_000
        assert launcher.workers[-1].request.birth.keys["NEW_KEY"] == "key-1"
        (tmp_path / "models.json").write_text("{")
        with pytest.raises(ConfigError, match=r"models\.json is invalid"):
            await root.spawn("work", model="acme:m", name="c")
        assert (await a.state()).status == "idle"
        (tmp_path / "models.json").unlink()
        with pytest.raises(ConfigError, match="unknown provider 'acme'"):
            await root.spawn("work", model="acme:m", name="c")


def test_commands_send_the_variables_of_a_new_provider(tmp_path: Path) -> None:
    """Neither the daemon nor the file with the names of variables must be older than models.json."""
    write(tmp_path, old=provider(keys=["OLD_KEY"]))
    env = {"ORCH_HOME": str(tmp_path)}
    credentials = CallerCredentials(CatalogFile(tmp_path), b"salt")
    (tmp_path / "daemon").mkdir()
    paths.write_variables(tmp_path / "daemon", credentials.names)
    assert "OLD_KEY" in paths.read_variables(env)
    write(tmp_path, old=provider(keys=["OLD_KEY"]), new=provider(keys=["NEW_KEY"]))
    assert {"OLD_KEY", "NEW_KEY", "TAVILY_API_KEY"} <= set(paths.read_variables(env))
    assert "new" in credentials.offer({"NEW_KEY": "k"})
    (tmp_path / "models.json").write_text("{")
    assert "NEW_KEY" in paths.read_variables(env)
    assert "new" in credentials.offer({"NEW_KEY": "k"})
