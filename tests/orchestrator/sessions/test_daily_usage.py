"""The daily usage of models and tools, and the command `orch costs`."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from orch.cli import run
from orch.cli.resources import costs
from orch.sessions import daily_usage as module
from orch.sessions.daily_usage import ModelUsage, ToolUsage, daily_usage
from orch_protocol.core.archives import RecordUpgrade
from orch_protocol.core.messages import Message, Reply, ToolResult, ToolUse, Usage, assistant, user
from orch_worker.session import transcript as transcripts
from orch_worker.session.transcript import Transcript
from orchestrator.root_double import opened
from virtual_clock import virtual

DAYS = ("2026-01-30", "2026-01-31")
ONE = Usage(100, 10, 50, cost_usd=0.25, model_calls=1)
LOST = Usage(40, 0, cost_usd=0.125, model_calls=1)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ORCH_HOME with a session of two days and of two models."""
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    write_session(tmp_path / "sessions" / "a", monkeypatch)
    return tmp_path


def write_session(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a session: a turn with a call and a failed request, and on the next day a turn of another model."""
    days = iter(DAYS)

    def begin_day() -> None:
        day = next(days)
        monkeypatch.setattr(transcripts, "timestamp", lambda: f"{day}T12:00:00.000Z")

    begin_day()
    transcript = Transcript.open(folder, agent="a", cwd="/srv")
    transcript.message(user("look"), "q1")
    transcript.message(Message("assistant", (ToolUse("1", "bash", {}),)), "q1", ONE, model="anthropic:x")
    result = Message("user", (ToolResult("1", (), is_error=True),))
    transcript.message(result, "q1", Usage(30, 3, cost_usd=0.5, model_calls=1, tool_calls=1, tool_seconds=2.0))
    transcript.message(assistant("no"), "q1", ONE, model="anthropic:x")
    spent = ONE + ONE + Usage(30, 3, cost_usd=0.5, model_calls=1, tool_calls=1, tool_seconds=2.0) + LOST
    transcript.turn_end("q1", Reply("a", "q1", "no", usage=spent))
    begin_day()
    transcript.message(user("again"), "q2")
    unknown = Usage(100, 10, cost_usd=0.25, model_calls=1, cost_known=False)
    transcript.message(assistant("yes"), "q2", unknown, model="local:y")
    transcript.turn_end("q2", Reply("a", "q2", "yes", usage=unknown))
    transcript.close()


def days_of(home: Path) -> dict[str, module.DailyUsage]:
    """Return the usage of the sessions in `home`."""
    return daily_usage(home / "sessions", home / "evidence" / module.COSTS)


def test_requests_are_counted_by_day_and_model(home: Path) -> None:
    """Failed requests, and models that tools called, count too. The sum of a turn is that of its reply."""
    days = days_of(home)
    assert list(days) == [*reversed(DAYS)]
    assert days[DAYS[0]].models["anthropic:x"] == ModelUsage(3, ONE + ONE + LOST)
    assert days[DAYS[0]].models["models called by tools"].usage.cost_usd == 0.5
    assert days[DAYS[0]].cost_usd == 1.125
    assert days[DAYS[0]].tools == {"bash": ToolUsage(1, 1)}
    assert days[DAYS[1]].models.keys() == {"local:y"}


def test_summaries_of_archives_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A summary that is written during a turn does not belong to the usage of this turn."""
    monkeypatch.setattr(transcripts, "timestamp", lambda: f"{DAYS[0]}T12:00:00.000Z")
    transcript = Transcript.open(tmp_path / "sessions" / "a", agent="a", cwd="/srv")
    transcript.message(user("look"), "q1")
    transcript.upgrade(RecordUpgrade("h", "Found it."), ONE, "anthropic:small")
    transcript.message(assistant("no"), "q1", ONE, model="anthropic:x")
    transcript.turn_end("q1", Reply("a", "q1", "no", usage=ONE + LOST))
    transcript.close()
    models = days_of(tmp_path)[DAYS[0]].models
    assert models == {"anthropic:small": ModelUsage(1, ONE), "anthropic:x": ModelUsage(2, ONE + LOST)}


def test_costs_of_a_run_are_those_of_its_agents(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other sessions do not count, and stay in the cache."""
    write_session(home / "sessions" / "b", monkeypatch)
    everything = days_of(home)
    rows = [{"folder": str(home / "sessions" / "b")}]
    monkeypatch.setattr(costs, "Connection", lambda run: Namespace(call=lambda *_: rows if run == "report" else []))
    assert run(["costs", "--run", "report", "--json"]) == 0
    sums = json.loads(capsys.readouterr().out)
    assert sums[DAYS[1]]["models"]["local:y"]["requests"] == 1
    assert everything[DAYS[1]].models["local:y"].requests == 2
    assert run(["costs", "--run", "other"]) == 0
    assert capsys.readouterr().out == "no costs: no session of the run 'other' contains a request\n"
    monkeypatch.setattr(module, "_usage_in", lambda _: pytest.fail("a file was read again"))
    assert days_of(home) == everything


def test_unchanged_files_are_not_read_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed file, a new session and a deleted one are noticed. A damaged cache is replaced."""
    read: list[str] = []
    real = module._usage_in
    monkeypatch.setattr(module, "_usage_in", lambda path: [read.append(Path(path).parent.name), real(path)][1])
    first = days_of(home)
    assert days_of(home) == first
    assert read == ["a"]
    write_session(home / "sessions" / "a" / "holders" / "h", monkeypatch)
    assert days_of(home)[DAYS[0]].models["anthropic:x"].requests == 6
    (home / "sessions" / "a" / "holders" / "h" / "session.jsonl").unlink()
    assert days_of(home) == first
    assert read == ["a", "h"]
    (home / "evidence" / module.COSTS).write_text("{")
    assert days_of(home) == first
    assert read == ["a", "h", "a"]


def test_unreadable_session_does_not_hide_the_others(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files of other programs, an empty folder and a file in the place of a folder are left out, with one message."""
    first = days_of(home)
    for name in ("foreign", "other", "empty"):
        (home / "sessions" / name).mkdir()
    for name in ("foreign", "other"):
        (home / "sessions" / name / "session.jsonl").write_text('{"type":"other"}\n')
    (home / "sessions" / "file").touch()
    assert days_of(home) == first
    assert run(["costs", "--json"]) == 0
    out, err = capsys.readouterr()
    assert list(json.loads(out)) == list(first)
    assert re.fullmatch(r"orch: 2 session files not counted; the first: \S+/session\.jsonl .*\n", err)


def test_costs_are_printed_without_configuration(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output is a table or JSON, with sums and a mark for unknown prices."""
    assert run(["costs"]) == 0
    out = capsys.readouterr().out
    assert ">=$0.2500" in out
    assert "$1.3750 in all" in out
    assert "bash      1       1" in out
    assert run(["costs", "--days", "1", "--json"]) == 0
    [(day, sums)] = json.loads(capsys.readouterr().out).items()
    assert (day, sums["models"]["local:y"]["requests"]) == (DAYS[1], 1)
    assert home.joinpath("evidence", module.COSTS).stat().st_mode & 0o077 == 0


def test_costs_of_an_empty_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the folder of the sessions. An invalid number of days is refused."""
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert run(["costs"]) == 0
    assert f"no session in {tmp_path / 'sessions'} contains a request" in capsys.readouterr().out
    for days in ("0", "-1"):
        assert run(["costs", "--days", days]) == 2
        assert f"argument --days: '{days}' is not a whole number above 0" in capsys.readouterr().err


@virtual
async def test_turns_of_agents_and_copies_are_counted_once(tmp_path: Path) -> None:
    """The sums equal the usage in the rows of the agents. A fork repeats no costs."""
    script: list[Any] = [{"tool": "list_files", "input": {}}, "one", "two"]
    async with opened(tmp_path) as world:
        agent = await world.scripted(items=script, cwd=tmp_path)
        await agent.query("go")
        used = (await agent.state()).usage
        await agent.session.fork()
        [day] = days_of(tmp_path).values()
        assert day.models["scripted"].requests == used.model_calls == 2
        assert day.models["scripted"].usage.input_tokens == used.input_tokens
        assert day.tools == {"list_files": ToolUsage(1, 0)}
