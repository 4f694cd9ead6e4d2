"""Sessions of ours that archived: each request is replayed as it was made."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_history import PROFILES, Life, steps
from orch.replay.readers import read_recordings
from orch.replay.report import ReplayPricing, recorded_input, replay
from orch_protocol.core.errors import DamagedError
from orch_protocol.core.messages import Message, Usage, assistant, user

SESSION = "session.jsonl"


class Told(Life):
    """An agent whose model reports the tokens of each request as those of what its conversation shows."""

    requests: list[list[Message]]

    def ask(self, *work: Message) -> None:
        """Live through a whole turn, in which what can go goes before each request."""
        self.begin(f"ask {self.queries + 1}")
        for message in (*work, assistant(f"answer {self.queries}")):
            if message.role == "user":
                self.say(message)
                continue
            self.archive(None)
            shown = [each for each in self.transcript.session.view if each.content]
            self.requests.append(shown)
            tokens = 1000 + sum(len(str(each)) for each in shown) // 4
            self.transcript.message(message, f"q{self.queries}", Usage(tokens, 10))
        self.end()
        ids = self.archive()
        if ids and self.queries % 3 == 0:
            self.summarise(ids[0], "Outcome: better said", at_once=bool(self.queries % 2))


@pytest.mark.parametrize("profile", ["eager", "tight", "phases"])
def test_each_request_is_what_it_was(tmp_path: Path, profile: str) -> None:
    """Turns, phases and eras have left it where they left the session; a better record came when it came there."""
    life = Told(tmp_path / "a", PROFILES[profile])
    life.requests = []
    for number in range(9):
        life.ask(*steps(4, f"c{number}_", 40))
    kinds = {record.kind for record in life.records()}
    assert kinds >= ({"phase"} if profile == "phases" else {"turn"})
    life.close()
    [recording] = read_recordings(tmp_path / "a" / SESSION)
    contexts = [context for _, context in recording.contexts()]
    assert contexts == life.requests
    assert [len(each.message.content) for each in recording.messages].count(0) == 0
    assert len(recording.calls) == len(contexts) == 45


def test_what_it_reports_is_what_a_replay_of_it_takes(tmp_path: Path) -> None:
    """Within 10 %, though policies begin from the whole of what was ever said, which is far more."""
    life = Told(tmp_path / "a", PROFILES["tight"])
    life.requests = []
    for number in range(12):
        life.ask(*steps(4, f"c{number}_", 40))
    life.close()
    recordings = read_recordings(tmp_path / "a" / SESSION)
    told = recorded_input(recordings, ReplayPricing())
    assert told is not None
    assert abs(told[1] / told[0] - 1) < 0.1
    everything = replay(recordings, "none", ReplayPricing(items=0), tmp_path / "archives")
    assert everything.bill.input_tokens > 1.5 * told[0]


def test_a_call_without_result_moves_what_comes_behind_it(tmp_path: Path) -> None:
    """It gets one in the replay; archives stay in their places."""
    life = Told(tmp_path / "a")
    life.requests = []
    life.begin("cut short")
    life.say(*steps(1)[:1])
    life.ask(*steps(2, "d", 40))
    life.ask(*steps(2, "e", 40))
    [holder] = [record.id for record in life.records()][-1:]
    life.close()
    [recording] = read_recordings(tmp_path / "a" / SESSION)
    last = recording.contexts()[-1][1]
    assert last[-5:] == life.requests[-1][-5:]
    assert holder not in str(last)
    assert "word0" not in str(last[:-4])
    assert user("ask 3") in last


def test_one_of_which_messages_are_deleted_measures_nothing(tmp_path: Path) -> None:
    """What they took is nowhere any more. Those of another branch are not missed."""
    life = Told(tmp_path / "a")
    life.requests = []
    life.ask(*steps(2, "c", 40))
    behind = life.transcript.session.leaf
    life.go(None)
    life.ask(*steps(1, "d", 40))
    life.prune(life.records()[0].timestamp)
    [recording] = read_recordings(tmp_path / "a" / SESSION)
    assert len(recording.calls) == 2
    life.go(behind)
    life.close()
    with pytest.raises(DamagedError, match="6 messages were deleted permanently"):
        read_recordings(tmp_path / "a" / SESSION)
