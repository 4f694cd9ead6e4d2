"""Replays of orch sessions with archives: each request is replayed as it was made."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_history import PROFILES, Life, steps
from orch.replay.readers import read_recordings
from orch.replay.report import ReplayPricing, recorded_input, replay
from orch_protocol.core.messages import Message, Usage, assistant, user

SESSION = "session.jsonl"


class Told(Life):
    """An agent whose model reports the tokens of each request, and whose requests are recorded."""

    requests: list[list[Message]]

    def ask(self, *work: Message) -> None:
        """Run a whole turn with `work`. Before each request, archive what is due."""
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
            self.summarize(ids[0], "Outcome: better said", at_once=bool(self.queries % 2))


@pytest.mark.parametrize("profile", ["eager", "tight", "phases"])
def test_replayed_own_requests_equal_the_recorded_ones(tmp_path: Path, profile: str) -> None:
    """The replay archives turns, phases and eras at the recorded places."""
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


def test_reported_and_replayed_sizes_agree_within_ten_percent(tmp_path: Path) -> None:
    """A replay without archives sends at least 1.5 times as many tokens."""
    life = Told(tmp_path / "a", PROFILES["tight"])
    life.requests = []
    for number in range(12):
        life.ask(*steps(4, f"c{number}_", 40))
    life.close()
    recordings = read_recordings(tmp_path / "a" / SESSION)
    found = recorded_input(recordings, ReplayPricing())
    assert found is not None
    assert abs(found[1] / found[0] - 1) < 0.1
    everything = replay(recordings, "none", ReplayPricing(items=0), tmp_path / "archives")
    assert everything.bill.input_tokens > 1.5 * found[0]


def test_call_without_result_gets_one_in_the_replay(tmp_path: Path) -> None:
    """The result that the replay adds does not move the positions of archives."""
    life = Told(tmp_path / "a")
    life.requests = []
    life.begin("cut short")
    life.say(*steps(1)[:1])
    life.ask(*steps(2, "d", 40))
    life.ask(*steps(2, "e", 40))
    [holder] = [record.id for record in life.records()][-1:]
    life.close()
    [recording] = read_recordings(tmp_path / "a" / SESSION)
    last = list(recording.contexts())[-1][1]
    assert last[-5:] == life.requests[-1][-5:]
    assert holder not in str(last)
    assert "word0" not in str(last[:-4])
    assert user("ask 3") in last


def test_deleted_messages_are_left_out_and_counted(tmp_path: Path) -> None:
    """Only deleted messages of the session's branch are counted; their calls are not replayed."""
    life = Told(tmp_path / "a")
    life.requests = []
    life.ask(*steps(2, "c", 40))
    behind = life.transcript.session.leaf
    life.go(None)
    life.ask(*steps(1, "d", 40))
    life.prune(life.records()[0].timestamp)
    [recording] = read_recordings(tmp_path / "a" / SESSION)
    assert len(recording.calls) == 2
    assert recording.skipped == ()
    life.go(behind)
    life.ask(*steps(1, "e", 40))
    life.close()
    [recording] = read_recordings(tmp_path / "a" / SESSION)
    assert recording.skipped == ("6 messages were deleted permanently",)
    assert len(recording.calls) == 2
    assert replay([recording], "none", ReplayPricing(items=0), tmp_path / "archives").bill.requests == 2
