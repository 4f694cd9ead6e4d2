"""A key is planted, everything is done that uses keys, and then it is looked for wherever one could have been left."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from orch import AsyncOrchestrator, Config
from orch_protocol.config import ArchivalConfig
from orch_protocol.errors import OrchError
from wire.model_server import ModelServer, call, fail, say

KEY = "sk-planted-4b1d9f2e7c"
MODEL = "anthropic:claude-sonnet-5-5"
PRY = "env; cat /proc/$PPID/environ /proc/$PPID/cmdline; tr '\\0' ' ' < /proc/self/environ; set"


def environments() -> list[bytes]:
    """Return what the system tells of each process below this one: environment and arguments."""
    told = []
    for process in psutil.Process().children(recursive=True):
        for name in ("environ", "cmdline"):
            try:
                told.append(Path(f"/proc/{process.pid}/{name}").read_bytes())
            except OSError:
                continue  # gone, or hidden even from us
    return told


def written(folder: Path) -> list[Path]:
    """Return every file below `folder`."""
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("provider", ["good", "refused"])
async def test_a_planted_key_is_found_nowhere(
    provider: str,
    server: ModelServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """In no environment, argument, transcript, journal, archive, log or error, nor in what was printed; the model's
    server alone has seen it. So also where the server refuses it, and answers with what it was sent."""
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
    told = [str(tmp_path)]
    async with AsyncOrchestrator(MODEL, home=tmp_path / "home", run="r", config=config) as root:
        agent = await root.spawn("Look for keys", tools=["bash", "run_python", "read_file"], cwd=tmp_path)
        seen = environments()
        try:
            told.append(repr(await agent.query("Which?")))
        except OrchError as error:
            assert provider == "refused"
            told += [str(error), repr(error), repr(error.__cause__)]
        seen += environments()
        told += [repr(await agent.state()), repr(await root.agents(all=True))]
    captured = capfd.readouterr()
    told += [captured.out, captured.err]
    assert any(KEY in value for request in server.requests for value in request.headers.values())
    assert len(seen) >= 6
    assert [text for text in seen if KEY.encode() in text] == []
    assert [text for text in told if KEY in text] == []
    files = written(tmp_path)
    assert {"session.jsonl", "journal.jsonl", "processes.log"} <= {path.name for path in files}
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


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
