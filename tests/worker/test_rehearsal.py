"""The worker's part, played before anybody is there to see it."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from orch_worker import rehearsal
from orch_worker.transcript import read_session


async def test_play_is_a_whole_life(tmp_path: Path) -> None:
    """The agent is made, asked, calls a tool, answers, and leaves by itself."""
    await asyncio.wait_for(rehearsal._play(tmp_path / "agent"), 10)
    session = read_session(tmp_path / "agent")
    assert [message.role for message in session.messages] == ["user", "assistant", "user", "assistant"]
    (reply,) = session.replies.values()
    assert (reply.text, reply.tool_calls) == ("done", 1)


def test_rehearsal_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is played often enough to matter, says nothing, and leaves no file, descriptor or thread."""
    played: list[Path] = []
    play = rehearsal._play
    monkeypatch.setattr(rehearsal, "_play", lambda folder: played.append(folder) or play(folder))
    monkeypatch.setattr(rehearsal, "IN_MEMORY", tmp_path)
    before = [set(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task")]
    rehearsal.rehearse()
    after = [set(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task")]
    assert all(now <= then for now, then in zip(after, before, strict=True))
    assert len(set(played)) == rehearsal.TIMES > 8
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")


def test_failed_rehearsal_is_told_and_survived(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where there is no room for its folder, the log says so and the zygote goes on."""

    def full(**_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
    rehearsal.rehearse()
    assert "No space left on device" in capfd.readouterr().err
