"""API keys do not leak. The tests use a known key in many ways, and search for it in all places."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from orch import AsyncOrchestrator, Config
from orch.processes.base import Launcher
from orch.processes.exec import ExecLauncher
from orch.processes.in_process import InProcessLauncher
from orch.processes.zygote import ZygoteLauncher
from orch_protocol.agent.config import ArchivalConfig
from orch_protocol.core.errors import OrchError
from orch_protocol.core.messages import Text, ToolResult
from wire.model_server import ModelServer, call, fail, say

KEY = "sk-planted-4b1d9f2e7c"
MODEL = "anthropic:claude-sonnet-5-5"
PRY = "env; cat /proc/$PPID/environ /proc/$PPID/cmdline; tr '\\0' ' ' < /proc/self/environ; set"


def environments() -> list[bytes]:
    """Return the environment and the arguments of each process below this process."""
    collected = []
    for process in psutil.Process().children(recursive=True):
        for name in ("environ", "cmdline"):
            try:
                collected.append(Path(f"/proc/{process.pid}/{name}").read_bytes())
            except OSError:
                continue  # the process ended, or its data is not readable
    return collected


def written(folder: Path) -> list[Path]:
    """Return every file below `folder`."""
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("provider", ["good", "refused"])
async def test_planted_key_is_found_nowhere(
    provider: str,
    server: ModelServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The key is in no environment, argument, transcript, journal, archive, log, error or output.

    This is also true if the server repeats the key in a refusal.
    """
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    refusal = fail(401, "authentication_error", f"invalid x-api-key: {KEY}")
    script = [
        call({"call": "bash", "input": {"command": PRY}}, {"call": "run_python", "input": {"code": PYTHON}}),
        call({"call": "read_file", "input": {"path": "missing"}}),
        fail(529, "overloaded_error", f"busy, {KEY}", retry_after="0"),
        say("Nothing there."),
        say("A summary."),
        say("More."),
    ]
    server.script += script if provider == "good" else [refusal]
    config = Config(archival=ArchivalConfig(enabled=True))
    found = [str(tmp_path)]
    async with AsyncOrchestrator(MODEL, home=tmp_path / "home", run="r", config=config) as root:
        agent = await root.spawn("Look for keys", tools=["bash", "run_python", "read_file"], cwd=tmp_path)
        seen = environments()
        try:
            found.append(repr(await agent.query("Which?")))
        except OrchError as error:
            assert provider == "refused"
            found += [str(error), repr(error), repr(error.__cause__)]
        seen += environments()
        found += [repr(await agent.state()), repr(await root.agents(all=True))]
    captured = capfd.readouterr()
    found += [captured.out, captured.err]
    assert any(KEY in value for request in server.requests for value in request.headers.values())
    assert len(seen) >= 6
    assert [text for text in seen if KEY.encode() in text] == []
    assert [text for text in found if KEY in text] == []
    files = written(tmp_path)
    assert {"session.jsonl", "journal.jsonl", "processes.log"} <= {path.name for path in files}
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


async def test_key_in_a_project_file_is_redacted(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is redacted in results of commands, background jobs, reads, searches and Python code.

    Requests, events, replies and stored files do not contain the key. The log of a job, which the tool host writes,
    contains what the command printed.
    """
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    project = tmp_path / "project"
    project.mkdir()
    (project / ".env").write_text(f"ANTHROPIC_API_KEY={KEY}\n")
    looks = [
        {"call": "bash", "input": {"command": "cat .env"}},
        {"call": "bash", "input": {"command": IN_PIECES, "background": True}},
        {"call": "read_file", "input": {"path": ".env"}},
        {"call": "grep_files", "input": {"pattern": "KEY", "path": ".env"}},
        {"call": "run_python", "input": {"code": "print(open('.env').read()); int(open('.env').read())"}},
    ]
    wait = {"call": "bg_status", "input": {"id": "job_1", "wait": 20}}
    server.script += [*map(call, looks), call(wait), say("Seen.")]
    collected: list[str] = []
    async with AsyncOrchestrator(MODEL, home=tmp_path / "home", run="r") as root:
        agent = await root.spawn("Look", tools=["code", "file", "python"], cwd=project)
        collected.append(repr(await agent.query("Where is it?", on_event=lambda event: collected.append(repr(event)))))
    collected += [str(request.body) for request in server.requests]
    assert [text for text in collected if KEY in text] == []
    assert collected[-1].count("[a key]") > len(looks)
    files = [path for path in written(tmp_path / "home") if KEY.encode() in path.read_bytes()]
    assert [path.name for path in files] == ["job_1.log"]


IN_PIECES = "cut -c1-24 .env | tr -d '\\n'; sleep 0.1; cut -c25- .env"


PYTHON = """
import os, sys
print(dict(os.environ), sys.argv)
for name in ("environ", "cmdline", "status"):
    for pid in (os.getpid(), os.getppid()):
        try:
            print(open(f"/proc/{pid}/{name}", "rb").read())
        except OSError as error:
            print(error)
"""


FIND_KEY = """
import gc, os
found = {value for value in os.environ.values() if value.startswith("sk-planted")}
for each in gc.get_objects():
    values = each.values() if isinstance(each, dict) else each if isinstance(each, (list, tuple, set)) else ()
    found |= {value for value in list(values) if isinstance(value, str) and value.startswith("sk-planted")}
print("found:", sorted(value[::-1] for value in found if "-" + "4b1d" in value))
"""


@pytest.mark.parametrize("launcher", [ZygoteLauncher, ExecLauncher, InProcessLauncher])
async def test_code_cannot_find_the_key(
    launcher: Callable[[str, Path], Launcher], server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that runs the agent's code has no object and no variable with the key, not even reversed."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    server.script += [call({"call": "run_python", "input": {"code": FIND_KEY}}), say("done")]
    async with AsyncOrchestrator(home=tmp_path / "home", launcher=launcher) as o:
        agent = await o.spawn("x", tools=["run_python"], model=MODEL, cwd=tmp_path)
        await agent.query("go")
        [result] = [
            block.content[0]
            for message in (await agent.show()).messages
            for block in message.content
            if isinstance(block, ToolResult)
        ]
        assert isinstance(result, Text)
        assert result.text.strip() == "found: []"
