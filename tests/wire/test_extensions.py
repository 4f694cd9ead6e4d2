"""The example extensions, installed as a user installs them, with real processes and the real SDKs."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from integration.command_shell import Shell, opened
from source_tree import ROOT
from wire.model_server import ModelServer, call, say
from wire.test_end_to_end import MODEL, environment, read

EXAMPLES = ROOT / "examples" / "extensions"


@pytest.fixture
async def shell(server: ModelServer, tmp_path: Path) -> AsyncIterator[Shell]:
    """A shell whose models are at `server`, in a folder with a note that contains secrets."""
    with opened(tmp_path) as shell:
        shell.env |= environment(server) | {"ORCH_MODEL": MODEL, "TMPDIR": str(tmp_path)}
        (shell.folder / "note.txt").write_text("user pump, password: hunter2, 123-45-6789\n")
        yield shell


async def typed(shell: Shell, *argv: str, **options: Any) -> str:
    """Return the output of a command."""
    done = await asyncio.to_thread(shell.run, *argv, **options)
    return done.stdout.decode()


def installed(shell: Shell, name: str) -> None:
    """Install an example in the home of the shell."""
    shutil.copytree(EXAMPLES / name, shell.home / "extensions" / name)


async def test_redactor_extension_removes_matches(server: ModelServer, shell: Shell) -> None:
    """The extension removes secrets from requests and stored files, and its tool returns their number."""
    installed(shell, "redactor")
    server.script += [call(read("note.txt")), call({"call": "count_redactions", "input": {}}), say("Done.")]
    assert await typed(shell, "run", "Read the note") == "Done.\n"
    seen = json.dumps([request.body for request in server.requests])
    assert "user pump, [redacted] [redacted]" in seen
    assert "2 so far" in seen
    assert "hunter2" not in seen
    kept = b"".join(path.read_bytes() for path in (shell.home / "sessions").rglob("*") if path.is_file())
    assert b"hunter2" not in kept


async def test_prompt_pack_extension_adds_system_text(server: ModelServer, shell: Shell) -> None:
    """The extension adds its text to the system text until it is disabled."""
    installed(shell, "prompt_pack")
    server.script += [say("Fine."), say("Fine.")]
    await typed(shell, "run", "Hello")
    await typed(shell, "extensions", "disable", "prompt_pack")
    await typed(shell, "run", "Hello")
    listed = ["the answer first" in json.dumps(request.body["system"]) for request in server.requests]
    assert listed == [True, False]


async def test_cost_guard_extension_shares_a_limit(server: ModelServer, shell: Shell) -> None:
    """When all agents together have reached the limit, agents send no more requests."""
    installed(shell, "cost_guard")
    server.otherwise = lambda _: say("Fine.", usage={"input": 10_000, "output": 1000})
    shell.env |= {"COST_GUARD_USD": "0.03", "ORCH_ENVIRONMENT__PASS": "CENSUS,COST_GUARD_USD"}
    assert await typed(shell, "run", "Hello") == "Fine.\n"
    assert "is spent: no model is asked any more" in await typed(shell, "run", "Hello", code=1)
    assert len(server.requests) == 1


async def test_project_extension_runs_once_trusted(server: ModelServer, shell: Shell) -> None:
    """The hooks of a project's extension run only after the user trusted it, and then in agents at any depth."""
    shutil.copytree(EXAMPLES / "redactor", shell.folder / ".orch" / "extensions" / "redactor")
    spawning = {"call": "spawn_subagent", "input": {"task": "help", "tools": ["read_file"], "query": "read it"}}
    for trusted in (False, True):
        if trusted:
            await typed(shell, "extensions", "trust", "redactor")
        server.requests.clear()
        server.script += [call(spawning), call(read("note.txt")), say("Read."), say("Done.")]
        tools = ["--tools", "spawn_subagent,query_subagent,read_file"]
        await typed(shell, "run", "Go", *tools, ORCH_SUBAGENTS__ALLOW_NESTED="true")
        seen = json.dumps([request.body for request in server.requests])
        assert ("hunter2" not in seen) is trusted


async def test_todo_extension_adds_command_key_and_widget(server: ModelServer, shell: Shell) -> None:
    """The command of the extension lists marks without a model, or lets the agent work on them.

    The key and the widget of the extension are in the catalog.
    """
    installed(shell, "todo")
    marked = f"{'todo'.upper()} open valve 7"
    (shell.folder / "pump.py").write_text(f"x = 1\n# {marked}\n")
    server.script += [say("Ready."), say("Done.")]
    await typed(shell, "spawn", "Mend the pump", "--name", "mender", "--query", "Ready?")
    assert await typed(shell, "execute", "mender", "/todo") == f"pump.py:2: {marked}\n"
    assert await typed(shell, "execute", "mender", "/todo --count gasket") == "0\n"
    assert await typed(shell, "execute", "mender", "/todo --do") == "Done.\n"
    assert len(server.requests) == 2
    assert f"pump.py:2: {marked}" in json.dumps(server.requests[-1].body["messages"])
    catalog = json.loads(await typed(shell, "execute", "mender", "/help", "--json"))["data"]
    assert [(key["key"], key["command"]) for key in catalog["keys"]] == [("f6", "/todo")]
    assert [(widget["title"], widget["command"]) for widget in catalog["widgets"]] == [("to do", "/todo --count")]
    shown = await typed(shell, "extensions", "show", "todo")
    assert "commands:      /todo [WANTED...] [--count] [--do]" in shown
    assert "keys:          f6: /todo" in shown


async def test_daemon_reports_a_changed_catalog(server: ModelServer, shell: Shell) -> None:
    """Disabling an extension emits `catalog_changed` and removes its templates from open sessions."""
    installed(shell, "todo")
    (shell.home / "extensions" / "todo" / "prompts").mkdir()
    (shell.home / "extensions" / "todo" / "prompts" / "plan.md").write_text("Plan {{text}}.")
    server.script += [say("Ready.")]
    await typed(shell, "spawn", "Mend the pump", "--name", "mender", "--query", "Ready?")
    assert "/todo:plan" in await typed(shell, "execute", "mender", "/help")
    await typed(shell, "extensions", "disable", "todo")
    events = [json.loads(line) for line in (await typed(shell, "events", "--json")).splitlines()]
    assert [event["kind"] for event in events if event["kind"] == "catalog_changed"] == ["catalog_changed"]
    assert "/todo:plan" not in await typed(shell, "execute", "mender", "/help")
