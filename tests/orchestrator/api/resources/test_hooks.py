"""`o.hooks`, `o.skills` and `o.prompt_templates`: lists of what is configured and registered."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch_protocol.core.errors import ConfigError
from orchestrator.root_double import opened


async def test_registered_hooks_are_listed_and_switched(tmp_path: Path) -> None:
    """Each with its stages; `audit_log` is always on."""
    async with opened(tmp_path) as o:
        o.register_hook(lambda _event, _ctx: None, "turn_end", name="count")
        rows = {row.name: row for row in o.hooks.list()}
        assert rows["count"].stages == ("turn_end",)
        assert rows["count"].enabled
        assert o.hooks.disable("count")
        assert not o.hooks.disable("count")
        assert not next(row for row in o.hooks.list() if row.name == "count").enabled
        assert o.hooks.enable("count")
        with pytest.raises(ConfigError, match="always on"):
            o.hooks.disable("audit_log")


async def test_registered_templates_are_listed(tmp_path: Path) -> None:
    """By name, with those of the configuration."""
    async with opened(tmp_path) as o:
        o.register_prompt_template("reviewer", "Review {{what}}.")
        assert [template.name for template in o.prompt_templates.list()] == ["reviewer"]
