"""`--progress` and `--dry-run`: events of tool calls on stderr and in the JSON stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch.cli import run
from orch_protocol.wire.tool_events import CallEvent
from orchestrator.daemon_double import Desk, opened

Captured = pytest.CaptureFixture[str]

EVENT: dict[str, Any] = msgspec.to_builtins(
    CallEvent(
        "dry_run",
        "bash",
        {"command": "rm x\x1b[2K"},
        decision="ask",
        reason="so",
        agent_id="abc",
        agent="n",
        depth=1,
        query_id="q1",
    )
)
LINE = "n: would need approval: bash rm x\\x1b[2K (so)\n"


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    """A fake daemon that sends the event of a call during a request."""
    made = opened(monkeypatch, tmp_path)
    made.events = [EVENT, {"n": 1, "kind": "text", "text": "4"}]
    return made


def asked(desk: Desk, method: str) -> dict[str, Any]:
    """Return the parameters of the one call of `method`."""
    (params,) = [params for name, params in desk.asked if name == method]
    return params


@pytest.mark.parametrize("verb", [["query", "n", "go"], ["run", "go"]], ids=lambda verb: verb[0])
@pytest.mark.parametrize("extra", [[], ["--stream"], ["--json"]], ids=["plain", "stream", "json"])
def test_progress_writes_calls_to_stderr(desk: Desk, capsys: Captured, verb: list[str], extra: list[str]) -> None:
    """Each event is one escaped line on stderr; stdout does not contain the event."""
    if not extra:
        desk.events = [EVENT]
    assert run([*verb, "--progress", *extra]) == 0
    assert asked(desk, "query")["progress"] is True
    out, err = capsys.readouterr()
    assert LINE in err
    assert "would need approval" not in out


def test_json_stream_includes_call_events(desk: Desk, capsys: Captured) -> None:
    """With `--stream --json --progress`, the event of a call is a line of stdout like the other events."""
    assert len(desk.events) == 2
    assert run(["query", "n", "go", "--stream", "--json", "--progress"]) == 0
    out, err = capsys.readouterr()
    assert [json.loads(line).get("kind") for line in out.splitlines()] == ["call", "text", None]
    assert err == ""


def test_call_events_are_not_sent_without_the_flag(desk: Desk) -> None:
    """Without `--progress`, the query does not request events of calls."""
    desk.events = []
    assert run(["run", "go"]) == 0
    assert "progress" not in asked(desk, "query")
    assert asked(desk, "spawn")["policy"]["rules"]["dry_run"] is False


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_dry_run_reports_verdicts(desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """A dry run is started by the flag or by the configuration, and prints the verdict on each call."""
    if how == "variable":
        monkeypatch.setenv("ORCH_POLICY__DRY_RUN", "true")
    desk.events = [EVENT]
    assert run(["run", "go", *(["--dry-run"] if how == "flag" else [])]) == 0
    assert asked(desk, "spawn")["policy"]["rules"]["dry_run"] is True
    assert asked(desk, "query")["progress"] is True
    assert capsys.readouterr().err.endswith(LINE)
