"""A transcript whose conversation goes back, and on another way."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from orch_protocol.core.errors import StoreError
from orch_protocol.core.messages import Usage, assistant, text_of, user
from orch_protocol.session.entries import CustomMessage, Label, SessionInfo
from orch_protocol.session.tree import AddMessage, SessionEdit, SetTitle
from orch_worker.session.log.append_log import AppendLog
from orch_worker.session.transcript import Transcript, read_session
from worker.session.test_transcript import opened, reply, reply_to, state


class TestBranches:
    """Going back, and what is said beside the conversation."""

    def test_a_move_is_on_disk_at_once(self, transcript: Transcript, folder: Path) -> None:
        """Whoever reads the file next goes on where the conversation went back to, a killed process or not."""
        first = transcript.message(user("a"), "q1")
        transcript.message(assistant("b"), "q1")
        transcript.checkout(first.id)
        assert transcript.session.messages == read_session(folder).messages == (user("a"),)
        transcript.message(user("c"), "q2")
        assert state(read_session(folder)) == state(transcript.session)
        transcript.checkout(None, "It came to nothing.")
        assert text_of(transcript.session.messages[0]).endswith("It came to nothing.")
        assert state(read_session(folder)) == state(transcript.session)

    def test_there_is_no_such_entry(self, transcript: Transcript) -> None:
        """Nothing is recorded, and it says which."""
        transcript.message(user("a"), "q1")
        before = transcript.log.end
        with pytest.raises(StoreError, match="'nowhere'"):
            transcript.checkout("nowhere")
        with pytest.raises(StoreError, match="'nowhere'"):
            transcript.label("nowhere", "x")
        assert transcript.log.end == before

    def test_a_lost_entry_is_none_to_go_back_to(self, transcript: Transcript, folder: Path) -> None:
        """It is known by name alone."""
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

    def test_a_disk_that_is_full_moves_nothing(self, transcript: Transcript, monkeypatch: pytest.MonkeyPatch) -> None:
        """The conversation is where it was, in memory and in the file."""
        first = transcript.message(user("a"), "q1")
        transcript.message(assistant("b"), "q1")

        def full(_descriptor: int, _data: object) -> int:
            raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(AppendLog, "_write", staticmethod(full))
        with pytest.raises(StoreError, match="disk full"):
            transcript.checkout(first.id)
        assert transcript.session.messages == (user("a"), assistant("b"))

    def test_the_last_turn_is_the_one_that_was_last(self, transcript: Transcript, folder: Path) -> None:
        """Whatever branch was gone back to since: a root asks for what became of the query it put last."""
        first = transcript.message(user("a"), "q1")
        transcript.turn_end("q1", reply("q1"))
        transcript.message(user("b"), "q2")
        transcript.turn_end("q2", reply("q2", "second"))
        transcript.checkout(first.id)
        transcript.label(first.id, "here")
        assert reply_to(folder, "q2") == reply("q2", "second")
        assert transcript.session.reply("q2") is None
        assert transcript.session.usage == Usage(2, 4, cost_usd=0.5)

    def test_names_and_words_of_programs(self, transcript: Transcript, folder: Path) -> None:
        """A label, a name, a note to the model: each an entry that follows the last one."""
        first = transcript.message(user("a"), "q1")
        transcript.label(first.id, "start")
        transcript.change(SessionEdit("11111111", SetTitle("pumps")))
        for _ in range(2):  # asked for twice, done once
            transcript.change(SessionEdit("22222222", AddMessage("clock", "It is noon.", display=False)))
        *_, label, name, told = transcript.session.entries
        assert (label, name) == (
            Label(id=label.id, parent_id=first.id, timestamp=label.timestamp, target_id=first.id, label="start"),
            SessionInfo(id=name.id, parent_id=label.id, timestamp=name.timestamp, name="pumps"),
        )
        assert isinstance(told, CustomMessage)
        assert (told.message, told.display) == (user("It is noon."), False)
        assert state(read_session(folder)) == state(transcript.session)
