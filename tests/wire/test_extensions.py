"""The example extensions, as a user would install them: by the command line, with real processes and the real SDKs."""

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
    """A shell whose models are at the server, in a folder with a note."""
    with opened(tmp_path) as shell:
        shell.env |= environment(server) | {"ORCH_MODEL": MODEL, "TMPDIR": str(tmp_path)}
        (shell.folder / "note.txt").write_text("user pump, password: hunter2, 123-45-6789\n")
        yield shell


async def typed(shell: Shell, *argv: str, **options: Any) -> str:
    """Return what a command prints."""
    done = await asyncio.to_thread(shell.run, *argv, **options)
    return done.stdout.decode()


def installed(shell: Shell, name: str) -> None:
    """Put an example where a user's own extensions lie."""
    shutil.copytree(EXAMPLES / name, shell.home / "extensions" / name)


async def test_redactor(server: ModelServer, shell: Shell) -> None:
    """What patterns name never reaches the model or the disk, and a tool of the extension says how much it was."""
    installed(shell, "redactor")
    server.script += [call(read("note.txt")), call({"call": "count_redactions", "input": {}}), say("Done.")]
    assert await typed(shell, "run", "Read the note") == "Done.\n"
    seen = json.dumps([request.body for request in server.requests])
    assert "user pump, [redacted] [redacted]" in seen
    assert "2 so far" in seen
    assert "hunter2" not in seen
    kept = b"".join(path.read_bytes() for path in (shell.home / "sessions").rglob("*") if path.is_file())
    assert b"hunter2" not in kept


async def test_prompt_pack(server: ModelServer, shell: Shell) -> None:
    """Its texts are in the system text of every request; once it is disabled they are not."""
    installed(shell, "prompt_pack")
    server.script += [say("Fine."), say("Fine.")]
    await typed(shell, "run", "Hello")
    await typed(shell, "extensions", "disable", "prompt_pack")
    await typed(shell, "run", "Hello")
    told = ["the answer first" in json.dumps(request.body["system"]) for request in server.requests]
    assert told == [True, False]


async def test_cost_guard(server: ModelServer, shell: Shell) -> None:
    """Agents of one run share what they may spend: the one that comes when it is spent asks no model."""
    installed(shell, "cost_guard")
    server.otherwise = lambda _: say("Fine.", usage={"input": 10_000, "output": 1000})
    shell.env |= {"COST_GUARD_USD": "0.03", "ORCH_ENVIRONMENT__PASS": "CENSUS,COST_GUARD_USD"}
    assert await typed(shell, "run", "Hello") == "Fine.\n"
    assert "is spent: no model is asked any more" in await typed(shell, "run", "Hello", code=1)
    assert len(server.requests) == 1


async def test_a_projects_runs_once_it_is_trusted(server: ModelServer, shell: Shell) -> None:
    """Until then it does nothing, and running says nothing of it; afterwards it acts in every agent, at any depth."""
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


async def test_todo(server: ModelServer, shell: Shell) -> None:
    """Its command lists marks without a model, and lets one work them off; its key and widget are in the catalog."""
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


async def test_a_daemon_hears_that_a_catalog_has_changed(server: ModelServer, shell: Shell) -> None:
    """Disabling an extension takes its templates from sessions that somebody looks at, and says so as an event."""
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
