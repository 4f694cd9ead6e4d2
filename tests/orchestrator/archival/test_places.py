"""Places in records: `read_archive` shows the named entry, also after merges."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_history import EAGER, Life
from orch import ArchivalConfig, Archiver
from orch.archival.store.catalog import ArchiveRecord
from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, assistant, user

pytestmark = pytest.mark.usefixtures("no_disk")
SMALL = ArchivalConfig(profile="economy", high_tokens=3_000, low_tokens=1_200, rollup_tokens=900, gate=False)


def edits(name: str, count: int, size: int) -> list[Message]:
    """Return `count` calls that edit different files, and their results."""
    messages = []
    for number in range(count):
        id = f"{name}-{number}"
        input = {"path": f"/srv/app/{name}_{number}.py", "old_text": "x", "new_text": "word " * size}
        messages.append(Message("assistant", (ToolUse(id, "edit_file", input),)))
        messages.append(Message("user", (ToolResult(id, (Text("done " * size),)),)))
    return messages


def named_path(record: ArchiveRecord) -> dict[tuple[str, int], str]:
    """Return the path for each place of a changed file in `record`."""
    places = {(file.place.holder or record.id, file.place.entry): file.path for file in record.receipt.files}
    return {place: path for place, path in places.items() if place[1]}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from([2, 60]), st.booleans()), min_size=2, max_size=14))
def test_places_of_a_loop_name_the_edit(
    tmp_path_factory: pytest.TempPathFactory, turns: list[tuple[int, int, bool]]
) -> None:
    """Turns, phases, merged phases and eras keep the places of their members."""
    context: list[Message] = []
    with Archiver(tmp_path_factory.mktemp("places") / "a", "orch", config=SMALL) as archiver:
        for turn, (count, size, answered) in enumerate(turns):
            context = archiver.fold([*context, user(f"turn {turn}")])
            steps = edits(f"turn{turn}", count, size)
            for place in range(0, len(steps), 2):
                context = archiver.fold([*context, *steps[place : place + 2]])
            if answered:
                context = archiver.fold([*context, assistant(f"answer {turn}")])
        found = 0
        for record in archiver.archives():
            for (holder, entry), path in named_path(record).items():
                (message,) = archiver.read_archive(holder, entry, entry)
                assert path in str(message), (record.kind, holder, entry)
                found += 1
        assert found or not any(record.receipt.files for record in archiver.archives())


@pytest.mark.parametrize("config", [EAGER, SMALL], ids=["turns", "phases and eras"])
@pytest.mark.parametrize("steps", [1, 7, 30])
def test_places_of_an_agent_name_the_edit(tmp_path: Path, config: ArchivalConfig, steps: int) -> None:
    """The archives of an agent's session are read from its file."""
    with closing(Life(tmp_path, msgspec.structs.replace(config, enabled=True))) as life:
        for turn in range(6):
            life.begin(f"turn {turn}")
            for place in range(0, 2 * steps, 2):
                life.say(*edits(f"turn{turn}", steps, 60)[place : place + 2])
                life.archive(None)
            life.say(assistant(f"answer {turn}"))
            life.end()
            life.archive()
        records = [record for record in life.records() if record.receipt.files]
        assert records or steps == 1
        for record in records:
            assert len(named_path(record)) == len(record.receipt.files)
            for (holder, entry), path in named_path(record).items():
                (id,) = (each.id for each in life.records() if each.id.startswith(holder))
                assert path in str(life.read(id)[entry - 1]), (record.kind, holder, entry)


def test_title_and_answer_of_a_turn_without_a_request(tmp_path: Path) -> None:
    """The title says what was done, and a long answer ends with a whole sentence and a mark."""
    answer = "The limit is right now. " * 200
    with Archiver(tmp_path / "a", "orch", "seed") as archiver:
        folded = archiver.fold([user("continue"), *edits("limits", 6, 40), assistant(answer)])
        (record,) = archiver.archives()
        assert archiver.read_archive(record.id, 14, 14) == [assistant(answer)]
    assert record.task.startswith("changed limits_5.py, limits_4.py")
    assert str(folded[1]).count("The limit is right now. [… the archive holds the rest: entry 14]") == 1
    assert folded[0] == user("continue")
