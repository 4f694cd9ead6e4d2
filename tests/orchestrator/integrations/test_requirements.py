"""What the integrations need."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from orch.integrations import langchain, openai_agents
from orch.integrations.conversations import encode_messages, imported
from orch_protocol.core.errors import ConfigError


@pytest.mark.parametrize(
    ("make", "module", "package"),
    [(openai_agents.Archival, "agents", "openai-agents"), (langchain.archival, "langchain", "langchain")],
)
def test_a_missing_framework_is_named_with_its_command(
    make: Callable[..., Any], module: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is raised when the integration is used, and nothing is created."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"needs the package '{module}': pip install {package}$"):
        make(tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []


def test_a_framework_that_cannot_be_imported_raises_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing dependency of an installed framework is not reported as the framework."""
    (tmp_path / "some_framework.py").write_text("import nothing_of_the_kind\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="nothing_of_the_kind"):
        imported("some_framework", "some-framework")
    assert isinstance(imported("json", "json"), ModuleType)


def test_messages_that_cannot_be_encoded_stay_unchanged() -> None:
    """Objects of an SDK are encoded as their data."""

    class Item:
        def model_dump(self, **_: Any) -> Any:
            return {"role": "user"}

    assert encode_messages([Item(), {"a": 1}]) == [b'{"role":"user"}', b'{"a":1}']
    assert encode_messages([{"a": object()}]) == []
    assert encode_messages([{"a": "\ud800"}]) == []
