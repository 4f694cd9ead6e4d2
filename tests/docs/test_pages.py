"""The tables of docs/ and the code name the same things."""

from __future__ import annotations

import re
import tomllib
from inspect import signature
from itertools import dropwhile, takewhile
from typing import get_args

import msgspec

import orch
from orch.cli import VERBS
from orch.commands.builtin_commands import COMMANDS
from orch.config.config import TABLES, flatten, leaves, unflatten
from orch_protocol.agent.config import Config
from orch_protocol.core import errors
from orch_protocol.resources.slash_commands import EffectKind
from orch_protocol.services.requests import Status
from orch_protocol.session.entries import Entry
from orch_protocol.wire.tool_events import CallOutcome
from orch_worker.backends import models
from orch_worker.backends.registry import PROVIDERS
from orch_worker.tools.dispatch.presets import BUILTIN, PRESETS
from source_tree import ROOT


def page(name: str) -> str:
    """Return the text of a page of docs/."""
    return (ROOT / "docs" / name).read_text()


def first_cells(name: str, heading: str) -> list[str]:
    """Return the code in the first column of the first table at or below the line that begins with `heading`."""
    lines = dropwhile(lambda line: not line.startswith(heading), page(name).splitlines())
    rows = takewhile(lambda line: line.startswith("|"), dropwhile(lambda line: not line.startswith("|---"), lines))
    return [code for row in rows for code in re.findall(r"`([^`]+)`", row.split("|")[1])]


def test_errors_page_lists_every_error() -> None:
    """docs/errors.md names each error there is, with the exit code it has."""
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\d+) \|$", page("errors.md"), re.MULTILINE)
    classes = {name: getattr(errors, name) for name in errors.__all__ if name.endswith("Error")}
    assert {name: int(code) for name, code in rows} == {name: error.exit_code for name, error in classes.items()}


def test_config_page_shows_every_setting() -> None:
    """The example in docs/config.md sets each key to its default; some stand for what is unset."""
    text = page("config.md").partition("## All settings")[2].partition("```toml\n")[2].partition("```")[0]
    tables = tomllib.loads(re.sub(r"^# (?=\w+ =)", "", text, flags=re.MULTILINE))
    shown = flatten(msgspec.convert(unflatten(dict(leaves(tables))), Config))
    unset = {"subagents.default_tools": ("read_file",), "subagents.chat_models": ("ollama:*",)}
    unset |= {"archival.summary.model": "ollama:qwen3:8b", "archival.phase": True, "archival.gate": True}
    sizes = {"high": 40_000, "low": 15_000, "rollup": 6_000, "prompt": 2_000}
    unset |= {f"archival.{name}_tokens": size for name, size in sizes.items()}
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
    unset |= {f"sandbox.limits.{name}": most for name, most in limits.items()}
    unset |= {"sandbox.presets.work": "L2", "sandbox.tools.bash": "L3"}
    unset |= {"policy.function": "house_rules:judge", "hooks.content_safety.kinds": ("card", "iban")}
    unset |= {"policy.taint.tools.bash": ("acts",), "hooks.injection_guard.tools": ("fetch_url",)}
    unset |= {"hooks.output_sandbox.tools": ("bash",), "hooks.cost_tracker.warn_usd": 5.0}
    unset |= {f"hooks.summarization.{k}": v for k, v in (("mode", "compact"), ("tokens", 50_000), ("messages", 200))}
    set_ = {key: value for key, value in flatten(Config()).items() if key not in TABLES}
    unset |= {"skills.presets.minimal": ()}
    for phase in ("assess", "reflect"):
        unset |= {f"hooks.{phase}.model": "anthropic:claude-haiku-4-5", f"hooks.{phase}.max_cost_usd": 0.01}
    assert shown == set_ | {"model": "extractive:", **unset}


def test_tools_page_lists_tools_and_presets() -> None:
    """docs/tools.md names each built-in tool, and each preset with exactly its tools."""
    assert first_cells("tools.md", "## Built-in tools") == list(BUILTIN)
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|$", page("tools.md"), re.MULTILINE)
    shown = {name: tuple(re.findall(r"`(\w+)`", cell)) for name, cell in rows if name in PRESETS}
    assert shown == PRESETS


def test_backends_page_describes_every_provider() -> None:
    """docs/backends.md has a section for each backend there is, and for no other."""
    headings = re.findall(r"^## (.+)$", page("backends.md"), re.MULTILINE)
    assert sorted(headings) == sorted([*PROVIDERS, *models.load().providers])


def test_cli_page_lists_every_command() -> None:
    """docs/cli.md names each command of `orch`."""
    assert {cell.split()[1] for cell in first_cells("cli.md", "| command")} == set(VERBS)


def test_agents_page_explains_every_argument_of_spawn() -> None:
    """docs/agents.md explains each argument of `spawn`."""
    taken = set(signature(orch.Orchestrator.spawn).parameters) - {"self"}
    assert sorted(first_cells("agents.md", "## Spawn")) == sorted(taken)


def test_policy_page_explains_every_outcome() -> None:
    """docs/policy.md explains each outcome of a call that observers are told of."""
    assert first_cells("policy.md", "## Observers and dry runs") == list(get_args(CallOutcome))


def test_processes_page_lists_every_status() -> None:
    """docs/processes.md explains each status an agent can have."""
    assert first_cells("processes.md", "## Where an agent is in its life") == list(Status.__args__)  # type: ignore[attr-defined]


def test_sessions_page_lists_every_entry() -> None:
    """docs/sessions.md explains each type of entry."""
    kinds = [member.__struct_config__.tag for member in Entry.__args__]
    assert sorted(first_cells("sessions.md", "## Entries")) == sorted(kinds)


def test_api_page_shows_every_name() -> None:
    """docs/api.md names everything that `orch` offers, but for errors, and each method."""
    text = page("api.md")
    names = {name for name in orch.__all__ if not name.endswith("Error")}
    for cls, called in ((orch.Orchestrator, "o"), (orch.Subagent, "agent")):
        names |= {f"{called}.{name}" for name in dir(cls) if not name.startswith("_")}
    assert sorted(name for name in names if f"`{name}" not in text) == []


def test_commands_page_lists_every_command() -> None:
    """docs/commands.md has each command that every session has, as it is written, and each effect."""
    written = [cell.replace("\\|", "|") for cell in re.findall(r"^\| `(/.*?)` \|", page("commands.md"), re.MULTILINE)]
    assert written == [each.row.usage for each in COMMANDS]
    assert set(first_cells("commands.md", "| effect")) == set(get_args(EffectKind))
