"""Transcripts with branches: going back, labels, titles and custom messages."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from orch_protocol.core.errors import StoreError
from orch_protocol.core.messages import Usage, assistant, text_of, user
from orch_protocol.session.entries import CustomMessage, Label, SessionInfo
from orch_protocol.session.tree import AddMessage, SessionEdit, SetTitle
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.session_reader import read_session
from orch_worker.session.transcript import Transcript
from worker.session.test_transcript import opened, reply, reply_to, state


class TestBranches:
    def test_move_is_on_disk_at_once(self, transcript: Transcript, folder: Path) -> None:
        """A process that reads the file continues from the target of the move."""
        first = transcript.message(user("a"), "q1")
        transcript.message(assistant("b"), "q1")
        transcript.checkout(first.id)
        assert transcript.session.messages == read_session(folder).messages == (user("a"),)
        transcript.message(user("c"), "q2")
        assert state(read_session(folder)) == state(transcript.session)
        transcript.checkout(None, "It came to nothing.")
        assert text_of(transcript.session.messages[0]).endswith("It came to nothing.")
        assert state(read_session(folder)) == state(transcript.session)

    def test_move_to_an_unknown_entry_is_refused(self, transcript: Transcript) -> None:
        """The error names the entry, and no entry is recorded."""
        transcript.message(user("a"), "q1")
        before = transcript.log.end
        with pytest.raises(StoreError, match="'nowhere'"):
            transcript.checkout("nowhere")
        with pytest.raises(StoreError, match="'nowhere'"):
            transcript.label("nowhere", "x")
        assert transcript.log.end == before

    def test_move_to_a_lost_entry_is_refused(self, transcript: Transcript, folder: Path) -> None:
        """An entry whose line is damaged cannot be the target of a move."""
        transcript.message(user("first"), "q1")
        lost = transcript.message(assistant("second"), "q1")
        transcript.message(user("third"), "q2")
        transcript.close()
        path = folder / "session.jsonl"
        path.write_bytes(path.read_bytes().replace(b"second", b"SECOND"))
        again = opened(folder)
        with pytest.raises(StoreError, match=lost.id):
            again.checkout(lost.id)
        again.close()

    def test_full_disk_leaves_the_position_unchanged(
        self, transcript: Transcript, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = transcript.message(user("a"), "q1")
        transcript.message(assistant("b"), "q1")

        def full(_descriptor: int, _data: object) -> int:
            raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(AppendLog, "_write", staticmethod(full))
        with pytest.raises(StoreError, match="disk full"):
            transcript.checkout(first.id)
        assert transcript.session.messages == (user("a"), assistant("b"))

    def test_last_turn_is_the_latest_on_any_branch(self, transcript: Transcript, folder: Path) -> None:
        """After going back, `read_last_turn` still finds the last query, although its branch is not current."""
        first = transcript.message(user("a"), "q1")
        transcript.turn_end("q1", reply("q1"))
        transcript.message(user("b"), "q2")
        transcript.turn_end("q2", reply("q2", "second"))
        transcript.checkout(first.id)
        transcript.label(first.id, "here")
        assert reply_to(folder, "q2") == reply("q2", "second")
        assert transcript.session.reply("q2") is None
        assert transcript.session.usage == Usage(2, 4, cost_usd=0.5)

    def test_labels_names_and_custom_messages_are_entries(self, transcript: Transcript, folder: Path) -> None:
        """A label, a title and a custom message are entries, and an edit with the same id is recorded once."""
        first = transcript.message(user("a"), "q1")
        transcript.label(first.id, "start")
        transcript.change(SessionEdit("11111111", SetTitle("pumps")))
        for _ in range(2):  # the second request has no effect
            transcript.change(SessionEdit("22222222", AddMessage("clock", "It is noon.", display=False)))
        *_, label, name, found = transcript.session.entries
        assert (label, name) == (
            Label(id=label.id, parent_id=first.id, timestamp=label.timestamp, target_id=first.id, label="start"),
            SessionInfo(id=name.id, parent_id=label.id, timestamp=name.timestamp, name="pumps"),
        )
        assert isinstance(found, CustomMessage)
        assert (found.message, found.display) == (user("It is noon."), False)
        assert state(read_session(folder)) == state(transcript.session)
