"""The rehearsal of a zygote, which runs a complete agent before the first fork."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from orch_worker.process import zygote
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.session_reader import read_session


async def test_rehearsal_runs_a_complete_agent(tmp_path: Path) -> None:
    """The session contains a prompt, a tool call with its result, and a reply."""
    await asyncio.wait_for(zygote._run_agent_once(tmp_path / "agent"), 10)
    session = read_session(tmp_path / "agent")
    assert [message.role for message in session.messages] == ["user", "assistant", "user", "assistant"]
    (reply,) = session.replies.values()
    assert (reply.text, reply.tool_calls) == ("done", 1)


def test_rehearsal_leaves_no_file_descriptor_or_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The agent runs WARM_UP_RUNS times, and the rehearsal leaves no files and prints nothing."""
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


def test_rehearsal_waits_for_its_tool_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads of the rehearsal end before it returns, because the zygote must fork without threads."""
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


def test_rehearsal_folder_of_a_killed_zygote_is_removed(tmp_path: Path) -> None:
    """Files of an earlier rehearsal that was killed do not prevent a new rehearsal, which removes them."""
    (tmp_path / "rehearsal" / "0").mkdir(parents=True)
    (tmp_path / "rehearsal" / "0" / "session.jsonl").write_text("something else")
    zygote.run_warm_up_agent(tmp_path / "rehearsal")
    assert not list(tmp_path.iterdir())


def test_rehearsal_does_not_sync_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rehearsal calls no function that syncs files, and restores these functions afterwards."""
    synced: list[object] = []
    before = [AppendLog._fdatasync, AppendLog._sync_folder]
    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.setattr(AppendLog, "_fdatasync", staticmethod(synced.append))
    zygote.run_warm_up_agent(tmp_path / "rehearsal")
    assert not synced
    monkeypatch.undo()
    assert [AppendLog._fdatasync, AppendLog._sync_folder] == before


def test_failed_rehearsal_is_logged_and_ignored(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """If its folder cannot be created, the rehearsal prints the error and raises nothing."""
    (tmp_path / "file").touch()
    zygote.run_warm_up_agent(tmp_path / "file" / "rehearsal")
    assert "StoreError" in capfd.readouterr().err


def test_hanging_rehearsal_times_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A rehearsal that exceeds its time limit prints the error and leaves no files."""
    monkeypatch.setattr(zygote, "WARM_UP_TIMEOUT_SECONDS", 0.0)
    monkeypatch.setattr(zygote._RehearsalRoot, "send", lambda *_: None)
    zygote.run_warm_up_agent(tmp_path / "rehearsal")
    assert "TimeoutError" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())
