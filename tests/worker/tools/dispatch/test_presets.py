"""Presets and categories of tools, and the tools that they grant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from orch_protocol.agent.spec import ToolSpec
from orch_protocol.core.errors import ConfigError, ToolNotGrantedError
from orch_protocol.policy.builtin_tools import BUILTIN_TOOLS, FILE_WRITERS, ToolFacts
from orch_worker.tools.api.base import Tool, ToolContext, tool
from orch_worker.tools.dispatch.presets import CATEGORIES, PRESETS, granted_tools, load, make_toolbox
from source_tree import ROOT

MINIMAL = ("list_files", "grep_files", "read_file")
INVESTIGATE = (*MINIMAL, "git_status", "git_diff", "git_log", "py_help", "web_search", "fetch_url", "read_handle")
WORK = (
    *INVESTIGATE,
    *("write_file", "replace_in_file", "bash", "bg_status", "bg_kill"),
    *("run_python", "run_python_script", "installed_packages"),
)


def of(*categories: str) -> tuple[str, ...]:
    """Return the tools of `categories`."""
    return tuple(name for name, facts in BUILTIN_TOOLS.items() if facts.category in categories)


@pytest.mark.parametrize(
    ("preset", "tools", "names"),
    [
        (None, None, INVESTIGATE),
        ("minimal", None, MINIMAL),
        ("investigate", None, INVESTIGATE),
        ("work", None, WORK),
        ("holder", None, ()),
        (None, ["file"], of("file")),
        (None, ["git", "read_file", "git_log"], (*of("git"), "read_file")),
        (None, ["core"], of("file", "code", "git", "memory")),
        (None, ["chat", "file"], (*of("chat"), *of("file"))),
        (None, ["chat"], of("chat")),
        (None, ["list_models"], ("list_models",)),
        (None, ["all"], tuple(BUILTIN_TOOLS)),
        (None, (), ()),
        ("minimal", ["read_file", "read_file"], ("read_file",)),
    ],
)
def test_grant_resolves_presets_categories_and_tools(
    preset: str | None, tools: list[str] | None, names: tuple[str, ...]
) -> None:
    """A list of tools replaces the preset. An empty list grants no tools, and None grants the default preset."""
    assert granted_tools(preset, tools) == names


def test_unknown_preset() -> None:
    """The error for an unknown preset lists the presets and suggests a similar name."""
    with pytest.raises(ConfigError, match=r"Unknown preset 'minimum'. Use: holder, .*Did you mean 'minimal'\?"):
        granted_tools("minimum")
    with pytest.raises(ConfigError, match=r"Unknown preset 'x'\. Use: holder, investigate, minimal, work$"):
        granted_tools("x", ["read_file"])


def test_unknown_tool() -> None:
    """The error for an unknown tool lists the known tools and suggests a similar name."""
    with pytest.raises(ToolNotGrantedError, match=r"Unknown tool 'readfile'. Known: list_files, .*'read_file'\?"):
        granted_tools(None, ["readfile"])
    with pytest.raises(ToolNotGrantedError, match=r"Unknown tool 'pyhton'.* category: .*Did you mean 'python'\?"):
        granted_tools(None, ["pyhton"])
    with pytest.raises(
        ToolNotGrantedError, match=r"'work' is a preset, not a tool: pass it as the preset. Tools: list_"
    ):
        granted_tools(None, ["work"])


def test_string_instead_of_a_tool_list_is_refused() -> None:
    """A single name in place of a list is an error and is not split into letters."""
    with pytest.raises(ConfigError, match="list of names"):
        granted_tools(None, "read_file")


def tools_in_modules() -> Iterator[tuple[str, str]]:
    """Yield the name and the module of each function of the worker that is decorated with `@tool`."""
    folder = ROOT / "worker"
    for path in sorted(folder.rglob("*.py")):
        if re.search(r"^@tool\b", path.read_text(), re.MULTILINE):
            module = import_module(".".join(path.relative_to(folder).with_suffix("").parts))
            defined = (each for each in vars(module).values() if isinstance(each, Tool))
            yield from ((each.name, module.__name__) for each in defined if each.function.__module__ == module.__name__)


def test_every_tool_has_a_row() -> None:
    """Each function with `@tool` is in the table with its module, and each row of the table is such a function."""
    assert set(tools_in_modules()) == {(name, facts.module) for name, facts in BUILTIN_TOOLS.items()}


def test_built_in_tools_are_described() -> None:
    """Each tool has a description, and a description of each argument."""
    tools = load(BUILTIN_TOOLS)
    assert all(each.description and each.input_schema["type"] == "object" for each in tools)
    described = [field for each in tools for field in each.input_schema["properties"].values()]
    assert all("description" in field for field in described)


def takes_any_string(schema: dict[str, Any]) -> bool:
    """Return whether an argument with this JSON Schema can be any string, or can contain one."""
    parts = [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else ())]
    if parts:
        return any(map(takes_any_string, parts))
    return "enum" not in schema and schema.get("type") not in ("integer", "number", "boolean", "null")


def wrong_arguments(each: Tool, facts: ToolFacts) -> list[str]:
    """Return the string arguments that are not in exactly one of the lists `paths` and `text` of `facts`.

    Also return the arguments in these lists that are not string arguments.
    """
    strings = {name for name, schema in each.input_schema["properties"].items() if takes_any_string(schema)}
    declared = (*facts.paths, *facts.text)
    wrong = sorted(name for name in {*strings, *declared} if name not in strings or declared.count(name) != 1)
    return [f"{each.name}: list the string argument {name!r} in either `paths` or `text`" for name in wrong]


def test_every_string_argument_is_declared_as_path_or_text() -> None:
    """The row of each tool states for each string argument whether the policy searches it for paths."""
    wrong = [wrong_arguments(each, BUILTIN_TOOLS[each.name]) for each in load(BUILTIN_TOOLS)]
    assert [line for lines in wrong for line in lines] == []


def test_undeclared_string_argument_is_reported_by_name() -> None:
    """A string argument that is neither a path nor text is reported, also in a list; numbers and choices are not."""

    @tool
    def word_count(text: str, files: list[str] | None = None, limit: int = 10) -> str:
        return f"{text} {files} {limit}"

    def facts(paths: tuple[str, ...] = (), text: tuple[str, ...] = ()) -> ToolFacts:
        return ToolFacts("m", "c", "read", paths=paths, text=text)

    report = "word_count: list the string argument {!r} in either `paths` or `text`"
    assert wrong_arguments(word_count, facts()) == [report.format("files"), report.format("text")]
    assert wrong_arguments(word_count, facts(("files",))) == [report.format("text")]
    assert wrong_arguments(word_count, facts(("files", "text"), ("text",))) == [report.format("text")]
    assert wrong_arguments(word_count, facts(("files",), ("text", "limit"))) == [report.format("limit")]
    assert wrong_arguments(word_count, facts(("files",), ("text",))) == []


def test_facts_of_a_tool_do_not_contradict_each_other() -> None:
    """A tool in the agent's folder takes paths or code. Tools with operation "exec" run code, except `bg_kill`."""
    rows = BUILTIN_TOOLS.items()
    assert [name for name, facts in rows if not facts.folderless and not facts.paths] == []
    assert [name for name, facts in rows if facts.operation == "exec" and not facts.runs_code] == ["bg_kill"]
    with_path = (*FILE_WRITERS, *(name for name, facts in rows if facts.recursive))
    assert [name for name in with_path if "path" not in BUILTIN_TOOLS[name].paths] == []


def test_presets_name_tools_that_exist() -> None:
    """Every tool of a preset is in BUILTIN_TOOLS."""
    assert all(name in BUILTIN_TOOLS for names in PRESETS.values() for name in names)


def test_categories_and_tools_have_distinct_names() -> None:
    """Only `chat` names both a category and a tool, and CATEGORIES contains the category of each tool."""
    assert set(CATEGORIES) & set(BUILTIN_TOOLS) == {"chat"}
    assert set(CATEGORIES) == {row.category for row in BUILTIN_TOOLS.values()} | {"core", "all"}


def test_read_only_presets_change_nothing() -> None:
    """`investigate` and `minimal` grant only tools that read, and `work` grants more than `investigate`."""
    granted = {*PRESETS["investigate"], *PRESETS["minimal"]}
    assert {BUILTIN_TOOLS[name].operation for name in granted} == {"read"}
    assert set(PRESETS["work"]) > set(PRESETS["investigate"])


def test_toolbox_holds_exactly_the_grant() -> None:
    """The toolbox of an agent contains the granted built-in tools and the root tools, and no other tools."""
    mine = ToolSpec("area", "Multiply.", {"type": "object"})
    box = make_toolbox(("read_file",), (mine,), ToolContext(Path("/")))
    assert [spec.name for spec in box.specs()] == ["read_file", "area"]
