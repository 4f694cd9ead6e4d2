"""Forced recalls: edits of text that has left the conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orch.replay.policy_names import NAMES
from orch.replay.readers import Recording, read_recordings, scale_of
from orch.replay.recalls import RECALL_OUTPUT, recall_tokens
from orch.replay.report import Outcome, ReplayPricing, replay
from orch_worker.backends.prices import Prices

LINE = "    result = compute_everything(first, second)"
FILLING = "a line of some other file\n" * 400


def call(number: int, name: str, result: str, **input: Any) -> list[dict[str, Any]]:
    """Return a call and its result."""
    function = {"name": name, "arguments": json.dumps(input)}
    return [
        {"role": "assistant", "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": result},
    ]


def recorded(tmp_path: Path, *edits: dict[str, Any], turns: int = 30) -> Recording:
    """Return a session that reads a line first, then does other work in `turns` turns, and then makes `edits`."""
    messages = [{"role": "user", "content": "start"}, *call(0, "read_file", f"{LINE}\n{FILLING}", path="a.py")]
    for turn in range(1, turns + 1):
        messages += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": f"go on {turn}"}]
        messages += call(turn, "read_file", FILLING, path=f"{turn}.py")
    for number, edit in enumerate(edits, turns + 1):
        messages += call(number, "edit", "ok", **edit)
    path = tmp_path / "m.json"
    path.write_text(json.dumps([*messages, {"role": "assistant", "content": "All done."}]))
    (found,) = read_recordings(path)
    return found


def outcome(recording: Recording, name: str, tmp_path: Path) -> Outcome:
    """Return the outcome of a policy in a window of 60,000 tokens."""
    return replay([recording], name, ReplayPricing(items=0, window=60_000), tmp_path / "archives")


EDIT = {"path": "a.py", "old_string": f"{LINE}\n", "new_string": "    result = 1\n"}


@pytest.mark.parametrize("name", NAMES)
def test_edit_of_text_outside_the_conversation_is_a_recall(tmp_path: Path, name: str) -> None:
    """Each policy that removed the line needs one recall. The line is in the conversation for the edit after it."""
    found = outcome(recorded(tmp_path, EDIT, EDIT), name, tmp_path)
    keeps = name in ("none", "compaction-1m", "turn")
    assert (found.edits, found.recalls) == (2, 0 if keeps else 1)
    assert (found.units > found.bill.units) == bool(found.recalls)


def test_recall_costs_one_more_request(tmp_path: Path) -> None:
    """The request is read from the cache, the call and its text are written; the request after the edit reads both."""
    recording = recorded(tmp_path, EDIT)
    found = outcome(recording, "compaction", tmp_path)
    assert found.recalls == 1
    tokens, prices = recall_tokens(scale_of(recording)) + RECALL_OUTPUT, Prices()
    live = found.course[-2].context
    expected = live * prices.read + tokens * (prices.write + prices.read) + RECALL_OUTPUT * prices.output
    assert found.recall_units == pytest.approx(expected)
    assert found.course[-1].units == pytest.approx(found.units)


@pytest.mark.parametrize(
    ("input", "edits"),
    [
        ({"path": "a.py", "edits": [{"oldText": LINE, "newText": "x"}, {"oldText": LINE, "newText": "y"}]}, 2),
        ({"path": "a.py", "old_str": LINE, "new_str": ""}, 1),
        ({"patch": f"*** Update File: a.py\n@@\n-{LINE}\n+    pass\n"}, 1),
        ({"path": "a.py", "content": LINE}, 0),
        ({"path": "a.py", "old_string": "x = 1", "new_string": "y"}, 0),
        ({"path": "a.py", "old_string": "text that was never in any message", "new_string": "y"}, 0),
        ({"old_string": 5, "edits": ["x"], "patch": None}, 0),
    ],
)
def test_edits_of_all_tools_are_found(tmp_path: Path, input: dict[str, Any], edits: int) -> None:
    """Replacements, lists of them and patches count; new files, short lines and unknown text do not."""
    assert outcome(recorded(tmp_path, input, turns=1), "none", tmp_path).edits == edits
