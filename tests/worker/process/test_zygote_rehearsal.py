"""The worker's part, played before anybody is there to see it."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from orch_worker.process import zygote
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.transcript import read_session


async def test_play_is_a_whole_life(tmp_path: Path) -> None:
    """The agent is made, asked, calls a tool, answers, and leaves by itself."""
    await asyncio.wait_for(zygote._run_agent_once(tmp_path / "agent"), 10)
    session = read_session(tmp_path / "agent")
    assert [message.role for message in session.messages] == ["user", "assistant", "user", "assistant"]
    (reply,) = session.replies.values()
    assert (reply.text, reply.tool_calls) == ("done", 1)


def test_rehearsal_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is played often enough to matter, says nothing, and leaves no file, descriptor or thread."""
    played: list[Path] = []
    play = zygote._run_agent_once
    monkeypatch.setattr(zygote, "_run_agent_once", lambda folder: played.append(folder) or play(folder))
    before = [set(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task")]
    zygote.run_warm_up_agent(tmp_path / "rehearsal")
    after = [set(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task")]
    assert all(now <= then for now, then in zip(after, before, strict=True))
    assert len(set(played)) == zygote.WARM_UP_RUNS > 8
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")


def test_rehearsal_is_over_when_the_threads_of_its_tools_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that take a while to end when they have said what came of it: the zygote forks with none."""
    before, waited = set(threading.enumerate()), threading.Event()
    run, join = threading.Thread.run, threading.Thread.join

    def run_on(thread: threading.Thread) -> None:
        run(thread)
        waited.wait(20)

    def join_now(thread: threading.Thread, timeout: float | None = None) -> None:
        waited.set()
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "run", run_on)
    monkeypatch.setattr(threading.Thread, "join", join_now)
    zygote.run_warm_up_agent(tmp_path / "r")
    left = set(threading.enumerate()) - before
    waited.set()
    assert not left


def test_what_a_killed_zygote_left_is_removed(tmp_path: Path) -> None:
    """A rehearsal that was cut short does not stand in the way of the next, and is gone with it."""
    (tmp_path / "rehearsal" / "0").mkdir(parents=True)
    (tmp_path / "rehearsal" / "0" / "session.jsonl").write_text("something else")
    zygote.run_warm_up_agent(tmp_path / "rehearsal")
    assert not list(tmp_path.iterdir())


def test_rehearsal_waits_for_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody will read what it writes; afterwards everything is synced as before."""
    synced: list[object] = []
    before = [AppendLog._fdatasync, AppendLog._sync_folder]
    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.setattr(AppendLog, "_fdatasync", staticmethod(synced.append))
    zygote.run_warm_up_agent(tmp_path / "rehearsal")
    assert not synced
    monkeypatch.undo()
    assert [AppendLog._fdatasync, AppendLog._sync_folder] == before


def test_failed_rehearsal_is_told_and_survived(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Where its folder cannot be made, the log says so and the zygote goes on."""
    (tmp_path / "file").touch()
    zygote.run_warm_up_agent(tmp_path / "file" / "rehearsal")
    assert "StoreError" in capfd.readouterr().err


def test_a_rehearsal_that_does_not_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whoever waits for the zygote is not to wait for this."""
    monkeypatch.setattr(zygote, "WARM_UP_TIMEOUT_SECONDS", 0.0)
    monkeypatch.setattr(zygote._RehearsalRoot, "send", lambda *_: None)
    zygote.run_warm_up_agent(tmp_path / "rehearsal")
    assert "TimeoutError" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())
