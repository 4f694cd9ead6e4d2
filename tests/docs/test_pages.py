"""The tables of docs/ agree with the code."""

from __future__ import annotations

import re
import tomllib
from ast import literal_eval
from importlib import import_module
from inspect import signature
from itertools import dropwhile, takewhile
from typing import get_args

import msgspec

import orch
from agent_doubles import Root
from orch.cli import VERBS
from orch.commands.builtin_commands import COMMANDS
from orch.config.config import TABLES, flatten, leaves, unflatten
from orch_protocol.agent.config import Config
from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core import errors
from orch_protocol.policy.builtin_tools import BUILTIN_TOOLS
from orch_protocol.resources.slash_commands import EffectKind
from orch_protocol.services.agents.status import Status
from orch_protocol.session.entries import Entry
from orch_protocol.wire.tool_events import CallOutcome
from orch_worker.backends import models
from orch_worker.backends.registry import PROVIDERS
from orch_worker.hooks.hook import HookContext
from orch_worker.tools.dispatch.presets import PRESETS, load
from source_tree import ROOT


def page(name: str) -> str:
    """Return the text of a page of docs/."""
    return (ROOT / "docs" / name).read_text()


def test_calls_of_tools_in_examples_use_existing_arguments() -> None:
    """A scripted call with an unknown argument fails, but the script continues, so the example shows nothing."""
    schemas = {name: load((name,))[0].input_schema["properties"] for name in BUILTIN_TOOLS}
    found = 0
    for file in [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py"), ROOT / "README.md"]:
        for name, input in re.findall(r'"tool": "(\w+)",\s*"input": \{([^{}]*)', file.read_text()):
            arguments = set(re.findall(r'"(\w+)":', input))
            if name in schemas:
                found += 1
                assert arguments <= set(schemas[name]), f"{file}: {name}"
    assert found > 20


def test_programs_with_different_items_have_different_run_names() -> None:
    """A run with the same name continues the earlier one, so that the agents of two programs would be mixed."""
    programs = [ROOT / "README.md", ROOT / "docs/start/coming_from.md", *(ROOT / "examples").rglob("*.py")]
    names = {file: set(re.findall(r'\brun="([\w-]+)"', file.read_text())) for file in programs}
    used = [name for found in names.values() for name in found]
    assert len(used) == len(set(used)) >= 3, names


def first_cells(name: str, heading: str) -> list[str]:
    """Return the code in the first column of the first table at or below the line that begins with `heading`."""
    lines = dropwhile(lambda line: not line.startswith(heading), page(name).splitlines())
    rows = takewhile(lambda line: line.startswith("|"), dropwhile(lambda line: not line.startswith("|---"), lines))
    return [code for row in rows for code in re.findall(r"`([^`]+)`", row.split("|")[1])]


def test_errors_page_lists_every_error() -> None:
    """docs/reference/errors.md lists each error with its exit code."""
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\d+) \|$", page("reference/errors.md"), re.MULTILINE)
    classes = {name: getattr(errors, name) for name in errors.__all__ if name.endswith("Error")}
    assert {name: int(code) for name, code in rows} == {name: error.exit_code for name, error in classes.items()}


def test_config_page_shows_every_setting() -> None:
    """The example in docs/reference/config.md contains each setting, with its default or with an example value."""
    text = page("reference/config.md").partition("## All settings")[2].partition("```toml\n")[2].partition("```")[0]
    tables = tomllib.loads(re.sub(r"^# (?=\w+ =)", "", text, flags=re.MULTILINE))
    shown = flatten(msgspec.convert(unflatten(dict(leaves(tables))), Config))
    unset = {"subagents.default_tools": ("read_file",), "subagents.chat_models": ("ollama:*",)}
    unset |= {
        "archival.summary.style": "none",
        "archival.summary.model": "ollama:qwen3:8b",
        "archival.phase": True,
        "archival.gate": True,
    }
    sizes = {"high": 24_000, "low": 8_000, "rollup": 6_000, "prompt": 2_000}
    unset |= {f"archival.{name}_tokens": size for name, size in sizes.items()}
    conditions = {"on_max_turns": True, "token_threshold": 8000, "tool_call_threshold": 5}
    unset |= {f"archival.trigger.{name}": value for name, value in conditions.items()}
    bounds = {"stable": 2_000, "context": 4_000, "volatile": 1_000}
    unset |= {f"prompt.{name}_tokens": size for name, size in bounds.items()}
    unset |= {"context_compaction.compact_tokens": 80_000, "session_dir": "/data/sessions", "thinking": "high"}
    unset |= {"prompt.template": "reviewer", "prompt.vars.language": "Rust"}
    unset |= {"subagents.max_cost_usd": 5.0, "budget.max_cost_usd": 50.0, "budget.unknown_price": 100.0}
    kinds = ("tokens", "seconds", "tool_seconds", "model_calls", "tool_calls", "processes")
    for section, limits in (
        ("subagents", (500_000, 1800, 600, 200, 400, 20)),
        ("budget", (5_000_000, 36_000, 18_000, 2000, 4000, 500)),
    ):
        unset |= {f"{section}.max_{kind}": limit for kind, limit in zip(kinds, limits, strict=True)}
    unset |= {"policy.approval_mode": "ask", "policy.allowed_paths": (".",), "policy.permissions.bash": "deny"}
    limits = {"cpu_seconds": 600, "memory_mb": 4000, "file_mb": 1000, "open_files": 1024, "processes": 500}
    unset |= {f"sandbox.limits.{name}": maximum for name, maximum in limits.items()}
    unset |= {"sandbox.presets.work": "L2", "sandbox.tools.bash": "L3"}
    unset |= {"policy.function": "house_rules:judge", "hooks.content_safety.kinds": ("card", "iban")}
    unset |= {"policy.taint.tools.bash": ("acts",), "hooks.injection_guard.tools": ("fetch_url",)}
    unset |= {"hooks.output_sandbox.tools": ("bash",), "hooks.cost_tracker.warn_usd": 5.0}
    unset |= {f"hooks.summarization.{k}": v for k, v in (("mode", "compact"), ("messages", 200))}
    set_ = {key: value for key, value in flatten(Config()).items() if key not in TABLES}
    unset |= {"skills.presets.minimal": ()}
    for phase in ("assess", "reflect"):
        unset |= {f"hooks.{phase}.model": "anthropic:claude-haiku-4-5", f"hooks.{phase}.max_cost_usd": 0.01}
    assert shown == set_ | {"model": "extractive:", **unset}


def test_tools_page_lists_tools_and_presets() -> None:
    """docs/guides/tools.md lists each built-in tool with its category, and each preset with its tools."""
    tools = [(cells[0].strip("`"), cells[1]) for cells in table("guides/tools.md", "| tool | category | purpose |")]
    assert tools == [(name, facts.category) for name, facts in BUILTIN_TOOLS.items()]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|$", page("guides/tools.md"), re.MULTILINE)
    shown = {name: tuple(re.findall(r"`(\w+)`", cell)) for name, cell in rows if name in PRESETS}
    assert shown == PRESETS


def test_backends_page_describes_every_provider() -> None:
    """docs/guides/backends.md has a section for each provider, and no other section."""
    headings = re.findall(r"^## (.+)$", page("guides/backends.md"), re.MULTILINE)
    assert sorted(headings) == sorted([*PROVIDERS, *models.load().providers])


def test_cli_page_lists_every_command() -> None:
    """docs/reference/cli.md lists each command of `orch`."""
    assert {cell.split()[1] for cell in first_cells("reference/cli.md", "| command")} == set(VERBS)


def test_agents_page_explains_every_argument_of_spawn() -> None:
    """docs/guides/agents.md explains each argument of `spawn`."""
    taken = {name for name in signature(orch.Orchestrator.spawn).parameters if name != "self" and name[0] != "_"}
    assert sorted(first_cells("guides/agents.md", "## Spawn")) == sorted(taken)


async def test_hooks_page_explains_every_field_of_the_context() -> None:
    """docs/guides/hooks.md explains each public attribute of the context of a hook."""
    spec = AgentSpec("a1", 1, "a", "task", BackendSpec("scripted"), "/nowhere", "/work")
    context = HookContext("h", spec, send_message=lambda *_: None, call_root=Root(), emit=lambda _: None)
    shown = [cell.partition("(")[0] for cell in first_cells("guides/hooks.md", "`ctx` has")]
    assert sorted(shown) == [name for name in dir(context) if not name.startswith("_")]


def test_policy_page_explains_every_outcome() -> None:
    """docs/concepts/policy.md explains each outcome that observers get."""
    assert first_cells("concepts/policy.md", "## Observers and dry runs") == list(get_args(CallOutcome))


def test_processes_page_lists_every_status() -> None:
    """docs/concepts/processes.md explains each status of an agent."""
    assert first_cells("concepts/processes.md", "## Where an agent is in its life") == list(Status.__args__)  # type: ignore[attr-defined]


def test_sessions_page_lists_every_entry() -> None:
    """docs/concepts/sessions.md explains each type of entry."""
    kinds = [member.__struct_config__.tag for member in Entry.__args__]
    assert sorted(first_cells("concepts/sessions.md", "## Entries")) == sorted(kinds)


def test_api_page_shows_every_name() -> None:
    """docs/reference/api.md names each export of `orch` except errors, and each method of the main classes."""
    text = page("reference/api.md")
    names = {name for name in orch.__all__ if not name.endswith("Error")}
    for cls, called in ((orch.Orchestrator, "o"), (orch.Subagent, "agent")):
        names |= {f"{called}.{name}" for name in dir(cls) if not name.startswith("_")}
    assert sorted(name for name in names if f"`{name}" not in text) == []


def test_commands_page_lists_every_command() -> None:
    """docs/reference/commands.md lists each built-in command with its usage, and each effect."""
    written = [
        cell.replace("\\|", "|") for cell in re.findall(r"^\| `(/.*?)` \|", page("reference/commands.md"), re.MULTILINE)
    ]
    assert written == [each.row.usage for each in COMMANDS]
    assert set(first_cells("reference/commands.md", "| effect")) == set(get_args(EffectKind))


def table(name: str, head: str) -> list[list[str]]:
    """Return the cells of the rows of the table in page `name` whose first line is `head`."""
    lines = list(dropwhile(lambda line: line != head, page(name).splitlines()))
    rows = [line.strip("| ").split(" | ") for line in takewhile(lambda line: line.startswith("|"), lines[2:])]
    assert rows
    return rows


def test_parity_page_states_the_arguments_and_defaults_of_tools() -> None:
    """Each `name=default` in the last column is an argument of the tool in the first column."""
    checked = []
    for tool, _, here in table("reference/parity.md", "| tool | there | here |"):
        name = tool.strip("`")
        builtin = BUILTIN_TOOLS[name]
        parameters = signature(getattr(import_module(builtin.module), name).function).parameters
        for argument, value in re.findall(r"`(\w+)=([^`]+)`", here):
            assert parameters[argument].default == literal_eval(value), (name, argument)
            checked.append(name)
    assert checked


def test_parity_page_states_the_defaults_of_settings() -> None:
    """If the last column begins with a value, this value is the default of the setting in the first column."""
    defaults, checked = flatten(Config()), []
    for setting, _, here in table("reference/parity.md", "| setting | there | here |"):
        if found := re.match(r"`([\w.]+)`(?:;|$)", here):
            assert str(defaults[setting.strip("`")]) in (found[1], f"{found[1]}.0"), setting
            checked.append(setting)
    assert checked
