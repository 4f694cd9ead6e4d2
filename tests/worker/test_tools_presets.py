"""Presets, and the tools they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch_protocol.errors import ConfigError, ToolNotGrantedError
from orch_protocol.spec import ToolSpec
from orch_worker.tools.base import ToolContext
from orch_worker.tools.presets import BUILTIN, PRESETS, load, make_toolbox, resolve

LOOK = ("list_files", "grep_files", "read_file")


@pytest.mark.parametrize(
    ("preset", "tools", "names"),
    [
        (None, None, LOOK),
        ("minimal", None, LOOK),
        ("investigate", None, LOOK),
        ("holder", None, ()),
        (None, (), ()),
        ("minimal", ["read_file", "read_file"], ("read_file",)),
    ],
)
def test_resolve(preset: str | None, tools: list[str] | None, names: tuple[str, ...]) -> None:
    """Tools beat the preset, none are a choice too, and neither means the default."""
    assert resolve(preset, tools) == names


def test_unknown_preset() -> None:
    """An unknown preset is an error that lists the presets there are."""
    with pytest.raises(ConfigError, match=r"Unknown preset 'minimum'. Use: holder, .*Did you mean 'minimal'\?"):
        resolve("minimum")
    with pytest.raises(ConfigError, match=r"Unknown preset 'x'\. Use: holder, investigate, minimal$"):
        resolve("x", ["read_file"])


def test_unknown_tool() -> None:
    """An unknown tool is an error that lists the tools there are and the one that was meant."""
    with pytest.raises(ToolNotGrantedError, match=r"Unknown tool 'readfile'. Known: list_files, .*'read_file'\?"):
        resolve(None, ["readfile"])


def test_text_is_no_list_of_tools() -> None:
    """A single name where a list belongs is not taken letter by letter."""
    with pytest.raises(ConfigError, match="list of names"):
        resolve(None, "read_file")


def test_every_builtin_is_what_its_row_says() -> None:
    """Each tool of the table is found in its module, by its name, in its category, and says what it does."""
    tools = load(BUILTIN)
    assert [(tool.name, tool.category) for tool in tools] == [(name, row.category) for name, row in BUILTIN.items()]
    assert all(tool.description and tool.input_schema["type"] == "object" for tool in tools)
    described = [field for tool in tools for field in tool.input_schema["properties"].values()]
    assert all("description" in field for field in described)


def test_presets_name_tools_that_exist() -> None:
    """Every tool of a preset is in the table."""
    assert all(name in BUILTIN for names in PRESETS.values() for name in names)


def test_toolbox_holds_exactly_the_grant() -> None:
    """The toolbox of an agent has its built-in tools and its root's, and no others."""
    mine = ToolSpec("area", "Multiply.", {"type": "object"})
    box = make_toolbox(("read_file",), (mine,), ToolContext(Path("/")))
    assert [spec.name for spec in box.specs()] == ["read_file", "area"]
