"""The policies of other programs: when they begin, what they keep, and what a summary costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch.replay.policies import Policy, ReplaySetting
from orch.replay.policy_names import policy_named
from orch.replay.readers import Scale
from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, assistant, user
from orch_worker.backends.prices import Prices
from orch_worker.conversation.tokens import PLAIN, TokenEstimator

SCALE = Scale(TokenEstimator(PLAIN), 0, measured=False)


def work(number: int, tokens: int, tool: str = "grep", path: str = "") -> list[Message]:
    """Return a call and a result of about `tokens` tokens."""
    call = ToolUse(f"c{number}", tool, {"path": path} if path else {"pattern": "x"})
    return [Message("assistant", (call,)), Message("user", (ToolResult(call.id, (Text("word" * tokens),)),))]


class Played:
    """A conversation under a policy. `costs` are the costs of extra requests."""

    def __init__(self, name: str, tmp_path: Path, window: int = 200_000) -> None:
        self.policy: Policy = policy_named(name, ReplaySetting(SCALE, Prices(), tmp_path, window))
        self.context: list[Message] = [user("start")]
        self.costs: list[float] = []

    def add(self, *messages: Message) -> list[Message]:
        """Return the request after `messages`."""
        self.context = [*self.context, *messages]
        self.context = self.policy.before(self.context, self.costs.append)
        return self.context

    def largest(self, step: int = 1_000) -> int:
        """Return the largest request before the policy changes the conversation during a turn."""
        before = 0
        for number in range(1, 400):
            self.add(*work(number, step))
            if self.policy.collapses:
                return before
            before = SCALE.sizes(self.context)
        return before


@pytest.mark.parametrize(
    ("name", "window", "limit"),
    [
        ("compaction", 200_000, 170_000),
        ("history-file", 200_000, 170_000),
        ("claude-code", 200_000, 167_000),
        ("claude-code", 1_000_000, 400_000),
        ("pi", 200_000, 200_000),
        ("api-compaction", 200_000, 150_000),
        ("api-clearing", 200_000, 100_000),
    ],
)
def test_peer_begins_at_its_published_limit(tmp_path: Path, name: str, window: int, limit: int) -> None:
    """The largest request is just below the limit. With a large window, Claude Code does not begin in this session."""
    assert limit - 2_000 <= Played(name, tmp_path, window).largest() <= max(limit, 410_000 if window > 200_000 else 0)


@pytest.mark.parametrize(
    ("name", "low", "high"), [("compaction", 22_000, 23_100), ("claude-code", 3_000, 3_100), ("pi", 22_000, 24_100)]
)
def test_peer_keeps_what_it_publishes(tmp_path: Path, name: str, low: int, high: int) -> None:
    """After a summary of 3,000 tokens, compaction and pi keep about 20,000 tokens, and Claude Code keeps nothing."""
    played = Played(name, tmp_path)
    played.largest()
    assert low <= SCALE.sizes(played.context) <= high
    assert len(played.costs) == 1


def test_pi_compacts_earlier_before_a_prompt_and_summarizes_without_cache(tmp_path: Path) -> None:
    """A prompt above 183,616 tokens is compacted; results are cut to 2,000 characters for the summary."""
    played = Played("pi", tmp_path)
    for number in range(18):
        played.add(*work(number, 10_000))
    assert played.policy.collapses == 0
    played.add(assistant("word" * 5_000), user("next"))
    assert played.policy.collapses == 1
    [cost] = played.costs
    assert 16 * 500 + 3_000 * 5 < cost < 18 * 530 + 3_000 * 5


def test_claude_code_shows_the_last_five_files_again(tmp_path: Path) -> None:
    """Of files with more than 5,000 tokens only the path is shown, also after the next compaction."""
    played = Played("claude-code", tmp_path)
    for number in range(8):
        played.add(*work(number, 6_000 if number == 6 else 1_000, "Read", f"/src/file{number}.py"))
    for _ in range(2):
        played.add(*work(100, 170_000))
        shown = [str(message.content) for message in played.context[1:]]
        assert ["word" in text for text in shown] == [True, False, True, True, True]
        assert [f"/src/file{number}.py" in text for number, text in zip((7, 6, 5, 4, 3), shown, strict=True)] == [
            True
        ] * 5


def test_api_clears_results_one_by_one_above_its_limit(tmp_path: Path) -> None:
    """Three results stay. Later requests keep the messages that were cleared before."""
    played = Played("api-clearing", tmp_path)
    for number in range(12):
        played.add(*work(number, 10_000))
    before = list(played.context)
    after = played.add(*work(12, 10_000))
    assert [index for index, message in enumerate(before) if after[index] is not message] == [len(before) - 5]
    assert sum("word" in str(message.content) for message in after) == 3
    assert played.costs == []


def test_history_file_finds_removed_text(tmp_path: Path) -> None:
    """A search returns the whole line; without a file, nothing is found."""
    for name, found in (("history-file", "made src/pump.py today"), ("compaction", "")):
        played = Played(name, tmp_path)
        played.add(assistant("First line\nmade src/pump.py today\nlast line"), user("go on"))
        played.largest()
        assert played.policy.recall("src/pump.py") == found
        assert played.policy.recall("no such text") == ""
