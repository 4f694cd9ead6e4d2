"""Pruning of random histories: deleted content is no longer in the file, and other content is unchanged."""

from __future__ import annotations

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_history import DELETED, PROFILES, Life, steps
from orch.tree.agents.agent_record import redacted_message
from orch_protocol.core.messages import Message, assistant
from orchestrator.archival.store.prune_samples import MARK, NEVER, session

pytestmark = pytest.mark.usefixtures("no_disk")


@pytest.mark.parametrize("profile", PROFILES)
@settings(max_examples=25)
@given(data=st.data())
def test_any_history_survives_any_pruning(profile: str, data: st.DataObject) -> None:
    """The conversation and younger archives are unchanged, deleted content is removed, and the agent continues."""
    with TemporaryDirectory() as folder:
        life = Life(Path(folder), PROFILES[profile])
        try:
            for number in range(data.draw(st.integers(1, 9))):
                life.begin(f"ask {number} " + "please " * data.draw(st.sampled_from([0, 0, 60])))
                for step in range(data.draw(st.integers(0, 4))):
                    life.say(*steps(1, f"needle{number}x{step}y", data.draw(st.sampled_from([1, 60]))))
                    if data.draw(st.booleans()):
                        life.archive(None)
                    if data.draw(st.integers(0, 4)) == 0:
                        life.compact(data.draw(st.integers(1, 12)))
                if data.draw(st.integers(0, 4)):
                    life.say(assistant(f"answer {number}"))
                    life.end()
                    life.archive()
                if data.draw(st.integers(0, 2)) == 0:
                    life.compact(data.draw(st.integers(1, 12)))
                if data.draw(st.integers(0, 2)) == 0:
                    prune_and_check(life, data.draw)
            life.check()
        finally:
            life.close()


def prune_and_check(life: Life, draw: st.DrawFn) -> None:
    known = life.records()
    before, held = session(life), {record.id: life.read(record.id) for record in known if not record.deleted}
    ledger, found = life.ledger(), dict(life.said)
    until = draw(st.sampled_from([record.timestamp for record in known] or [NEVER]))
    life.prune(until)
    after = session(life)
    gone = {record.id for record in life.records() if record.deleted}
    assert gone >= {record.id for record in known if record.timestamp <= until}
    assert before.pop("holders") - after.pop("holders") <= {each for each in ledger.view.holders() if each[0] in gone}
    assert after == before
    for record in known:
        if record.id in gone:
            continue
        for was, now in zip(held[record.id], life.read(record.id), strict=True):
            assert now in (was, redacted_message(was, DELETED))
            assert now == was or gone & _below(ledger, record.id)
    _nothing_tells(life, found)
    life.check()


def _below(ledger: Any, id: str) -> set[str]:
    members = set(ledger.records[id].members)
    return members.union(*(_below(ledger, member) for member in members))


def _nothing_tells(life: Life, was: dict[str, Message]) -> None:
    """Check that messages, replies and the records that are no longer shown contain no deleted content."""
    deleted = [str(message) for id, message in was.items() if life.said[id] != message]
    needles = set(re.findall(r"needle\d+x\d+y\d", "".join(deleted)))
    shown = life.ledger().visible_records()
    for line in life.transcript.path.read_text().splitlines():
        entry = json.loads(line)
        telling = entry["type"] in ("message", "turn_end")
        if entry["type"] == "archive" and "deleted" in entry:
            telling = entry["collapse"]["holder"] not in shown
            assert not telling or entry["collapse"]["record"]["record"] == MARK
        assert not telling or not needles & set(re.findall(r"needle\d+x\d+y\d", line))
