"""Presets, and the tools they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch_protocol.agent.spec import ToolSpec
from orch_protocol.core.errors import ConfigError, ToolNotGrantedError
from orch_worker.tools.api.base import ToolContext
from orch_worker.tools.dispatch.presets import BUILTIN, CATEGORIES, PRESETS, granted_tools, load, make_toolbox

LOOK = ("list_files", "grep_files", "read_file")
GIT = ("git_status", "git_diff", "git_log")
INVESTIGATE = (*LOOK, *GIT, "py_help", "web_search", "fetch_url", "read_handle")
CHANGE = ("write_file", "replace_in_file")
RUN = ("bash", "bg_status", "bg_kill", "run_python", "run_python_script", "installed_packages")
AGENTS = tuple(name for name, row in BUILTIN.items() if row.category == "agents")


@pytest.mark.parametrize(
    ("preset", "tools", "names"),
    [
        (None, None, INVESTIGATE),
        ("minimal", None, LOOK),
        ("investigate", None, INVESTIGATE),
        ("work", None, (*INVESTIGATE, *CHANGE, *RUN)),
        ("holder", None, ()),
        (None, ["file"], (*LOOK, *CHANGE)),
        (None, ["git", "read_file", "git_log"], (*GIT, "read_file")),
        (None, ["core"], (*LOOK, *CHANGE, *RUN[:3], *GIT, "read_handle")),
        (None, ["agents"], AGENTS),
        (None, ["chat"], ("chat", "list_models")),
        (None, ["list_models"], ("list_models",)),
        (None, ["all"], tuple(BUILTIN)),
        (None, (), ()),
        ("minimal", ["read_file", "read_file"], ("read_file",)),
    ],
)
def test_resolve(preset: str | None, tools: list[str] | None, names: tuple[str, ...]) -> None:
    """What each preset and category grants; tools beat the preset, none are a choice too, neither means the default."""
    assert granted_tools(preset, tools) == names


def test_unknown_preset() -> None:
    """An unknown preset is an error that lists the presets there are."""
    with pytest.raises(ConfigError, match=r"Unknown preset 'minimum'. Use: holder, .*Did you mean 'minimal'\?"):
        granted_tools("minimum")
    with pytest.raises(ConfigError, match=r"Unknown preset 'x'\. Use: holder, investigate, minimal, work$"):
        granted_tools("x", ["read_file"])


def test_unknown_tool() -> None:
    """An unknown tool is an error that lists the tools there are and the one that was meant."""
    with pytest.raises(ToolNotGrantedError, match=r"Unknown tool 'readfile'. Known: list_files, .*'read_file'\?"):
        granted_tools(None, ["readfile"])
    with pytest.raises(ToolNotGrantedError, match=r"Unknown tool 'pyhton'.* category: .*Did you mean 'python'\?"):
        granted_tools(None, ["pyhton"])


def test_text_is_no_list_of_tools() -> None:
    """A single name where a list belongs is not taken letter by letter."""
    with pytest.raises(ConfigError, match="list of names"):
        granted_tools(None, "read_file")


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


def test_a_category_is_no_tool() -> None:
    """Names of categories and of tools are told apart, but for one that means the same as both; all are in one."""
    assert set(CATEGORIES) & set(BUILTIN) == {"chat"}
    assert set(CATEGORIES) == {row.category for row in BUILTIN.values()} | {"core", "all"}


def test_looking_presets_change_nothing() -> None:
    """What investigate and minimal grant writes no file and runs no command of the model's."""
    assert not {*CHANGE, *RUN[:-1]} & {*PRESETS["investigate"], *PRESETS["minimal"]}


def test_toolbox_holds_exactly_the_grant() -> None:
    """The toolbox of an agent has its built-in tools and its root's, and no others."""
    mine = ToolSpec("area", "Multiply.", {"type": "object"})
    box = make_toolbox(("read_file",), (mine,), ToolContext(Path("/")))
    assert [spec.name for spec in box.specs()] == ["read_file", "area"]
