"""The order of hits for the kinds of queries that a model asks: paths, identifiers, hashes, errors and expressions."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orch.api.archiver import Archiver
from orch.archival.store import search
from orch_protocol.agent.config import ArchivalConfig
from orch_protocol.core.errors import AgentNotFoundError, ConfigError
from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, assistant, user

HASH = "3fa94c17be20d5518a6f7e1b9c0d2e4f5a6b7c8d"
EDITS = {
    "Edit": ("file_path", {"old_string": "a = 1", "new_string": "a = 2\ncompute_total(a)"}),
    "edit": ("path", {"oldText": "a = 1", "newText": "a = 2\ncompute_total(a)"}),
    "edit_file": ("path", {"old_text": "a = 1", "new_text": "a = 2\ncompute_total(a)"}),
    "MultiEdit": ("file_path", {"edits": [{"old_string": "a = 1", "new_string": "a = 2\ncompute_total(a)"}]}),
    "Write": ("file_path", {"content": "a = 2\ncompute_total(a)\n"}),
    "apply_patch": ("", {"input": "*** Update File: lib/billing.py\n@@\n-a = 1\n+a = 2\n+compute_total(a)"}),
}


def turn(asked: str, *calls: tuple[str, dict[str, Any], str, bool], answer: str = "Done.") -> list[Message]:
    """Return a turn with one result for each call."""
    messages = [user(asked)]
    for number, (name, input, result, failed) in enumerate(calls):
        id = f"{asked[:12]}{number}"
        messages.append(Message("assistant", (ToolUse(id, name, input),)))
        messages.append(Message("user", (ToolResult(id, (Text(result),), failed),)))
    return [*messages, assistant(answer)]


def filler(number: int) -> list[Message]:
    """Return a turn of five calls about something else."""
    calls = [("bash", {"command": f"ls part{step}"}, f"module{number} step{step}", False) for step in range(5)]
    return turn(f"Look at {number}", *calls)


@pytest.fixture
def archiver(tmp_path: Path) -> Iterator[Archiver]:
    """An archiver of one conversation."""
    with Archiver(tmp_path, "orch", "seed") as made:
        yield made


def fold(archiver: Archiver, *turns: list[Message]) -> None:
    """Archive `turns` as one conversation."""
    archiver.fold([message for each in turns for message in each])


def long_turn(asked: str, *calls: tuple[str, dict[str, Any], str, bool], answer: str = "Done.") -> list[Message]:
    """Return a turn that is long enough to be archived."""
    return turn(asked, *calls, *[("bash", {"command": f"true {step}"}, "", False) for step in range(5)], answer=answer)


@pytest.mark.parametrize("tool", EDITS)
@pytest.mark.parametrize("query", ["lib/billing.py", "billing.py", "billing.py compute_total"])
def test_path_finds_its_latest_edit_first(archiver: Archiver, tool: str, query: str) -> None:
    """Reads, mentions and older edits of the file follow."""
    key, change = EDITS[tool]
    input = {**({key: "lib/billing.py"} if key else {}), **change}
    older = json.loads(json.dumps(input).replace("a = 2", "a = 3"))
    read = ("read", {"path": "lib/billing.py"}, "lib/billing.py: compute_total(a) is in billing.py", False)
    other = (
        "Edit",
        {"file_path": "doc.md", "old_string": "x", "new_string": "see lib/billing.py compute_total"},
        "",
        False,
    )
    fold(
        archiver,
        long_turn("first", (tool, older, "edited", False)),
        long_turn("second", (tool, input, "edited", False)),
        long_turn("third", read, other, answer="The function compute_total is in lib/billing.py."),
    )
    first, second = archiver.search(query)[:2]
    assert [first.turn, second.turn] == [2, 1]
    assert [first.age, second.age] == [1, 2]
    assert "billing.py" in first.text


def test_deep_path_and_other_files_of_the_same_name(archiver: Archiver) -> None:
    """A path finds its own file, in absolute and relative form, and a name finds the latest of all."""
    edit = {"old_string": "a", "new_string": "b"}
    fold(
        archiver,
        long_turn("one", ("Edit", {"file_path": "/srv/app/web/index.ts", **edit}, "", False)),
        long_turn("two", ("Edit", {"file_path": "/srv/app/api/index.ts", **edit}, "", False)),
    )
    assert [archiver.search(query)[0].turn for query in ("/srv/app/web/index.ts", "web/index.ts", "index.ts")] == [
        1,
        1,
        2,
    ]


@pytest.mark.parametrize(
    "query", [f"what did commit {HASH} change", f"the commit {HASH[:8]} please", f"{HASH[:12]} broke"]
)
def test_hash_in_a_longer_query_matches_by_itself(archiver: Archiver, query: str) -> None:
    """A hash matches its abbreviation and its longer form."""
    commit = ("bash", {"command": "git commit -m x"}, f"[main {HASH[:10]}] x\n 1 file changed", False)
    fold(archiver, long_turn("commit", commit), *map(filler, range(3)))
    assert f"[main {HASH[:10]}]" in archiver.search(query)[0].text


def test_identifier_in_a_longer_query_matches_by_itself(archiver: Archiver) -> None:
    """The rare word decides, also if the other words occur together elsewhere."""
    fold(
        archiver,
        long_turn("a", ("bash", {"command": "grep"}, "def settle_invoice_v2(x): pass", False)),
        long_turn("b", answer="Where is the function, and what does the function do in the code?"),
        *map(filler, range(3)),
    )
    assert "settle_invoice_v2" in archiver.search("where is the function settle_invoice_v2 in the code")[0].text


def test_error_query_finds_failed_output_first(archiver: Archiver) -> None:
    """The failed result precedes newer text and edits with the same words."""
    failed = ("bash", {"command": "mix test"}, "ValueError: valve stuck\nexit code 1", True)
    edit = (
        "Edit",
        {"file_path": "a.py", "old_string": "x", "new_string": "raise ValueError('valve stuck')"},
        "",
        False,
    )
    fold(archiver, long_turn("a", failed), long_turn("b", edit, answer="The ValueError: valve stuck is gone."))
    assert archiver.search("ValueError valve stuck")[0].text.startswith("ValueError: valve stuck")


def test_equal_matches_are_newest_first_and_equal_passages_appear_once(archiver: Archiver) -> None:
    """Ten runs with the same line give one hit; runs with different lines give a hit each, newest first."""
    runs = [("bash", {"command": "pytest"}, f"suite run {number % 3}: passed", False) for number in range(9)]
    fold(archiver, turn("run", *runs))
    hits = archiver.search("suite run passed")
    assert [hit.text for hit in hits] == [f"suite run {number}: passed" for number in (2, 1, 0)]
    assert [hit.entry for hit in hits] == [19, 17, 15]


def test_regular_expression_finds_lines(archiver: Archiver) -> None:
    """An expression is used if its text occurs nowhere; one that could search forever is taken as words."""
    fold(archiver, long_turn("a", ("read", {"path": "x"}, "\n".join(f"def step_{n}(): ..." for n in range(50)), False)))
    (hit,) = archiver.search(r"def step_4[23]\(")
    assert "def step_42(): ..." in hit.text
    assert hit.line == 43
    assert archiver.search(r"(step|stop)_49")[0].line == 50
    assert isinstance(archiver.search("(a+)+$" * 5), list)
    assert archiver.search("def step_7():")[0].line == 8


def test_regular_expression_is_compared_for_a_limited_time(archiver: Archiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time limit, the hits are those of the newest archives. A search without a hit is an error."""
    lines = "\n".join("a" * 8 for _ in range(200))
    fold(archiver, *[long_turn(f"turn {n}", ("read", {"path": "x"}, f"{lines}\npin{n}", False)) for n in range(3)])
    assert len(archiver.search(r"p\w{2}\d")) == 3
    clock = itertools.count()
    monkeypatch.setattr(search, "monotonic", lambda: next(clock) * search.REGEX_SECONDS / 300)
    (hit,) = archiver.search(r"p\w{2}\d")
    assert "pin2" in hit.text
    with pytest.raises(ConfigError, match=r"'\(a\|a\)\*b!' takes too long"):
        archiver.search("(a|a)*b!")
    assert next(clock) < 620


def test_places_in_records_are_readable_and_merged_archives_are_not(tmp_path: Path) -> None:
    """Each place in the record of an era is an entry of the era, and no hit names an archive in it."""
    config = ArchivalConfig(profile="economy", high_tokens=3_000, low_tokens=800, rollup_tokens=200)
    with Archiver(tmp_path, "orch", config=config) as archiver:
        live: list[Message] = []
        for number in range(14):
            edit = {"file_path": f"lib/part{number}.py", "old_string": "a", "new_string": f"b{number} " * 800}
            for message in long_turn(f"edit {number}", ("Edit", edit, "edited", False)):
                live = archiver.fold([*live, message])
        eras = [record for record in archiver.archives() if record.kind == "era"]
        assert eras
        for record in eras:
            places = re.findall(r"part(\d+)@(\d+)", record.record)
            assert len(places) == record.turns
            for number, entry in places:
                assert f"lib/part{number}.py" in str(archiver.read_archive(record.id, int(entry), int(entry)))
            for id in record.members:
                with pytest.raises(AgentNotFoundError, match=f"was merged into archive {record.id}: read {record.id}"):
                    archiver.read_archive(id)
        shown = {record.id for record in archiver.archives()}
        for number in range(14):
            hit = archiver.search(f"part{number}.py")[0]
            assert hit.id in shown
            assert (hit.turn, hit.age) == (number + 1, 13 - number)
            assert f"lib/part{number}.py" in str(archiver.read_archive(hit.id, hit.entry, hit.entry))


def shown(archiver: Archiver, query: str) -> str:
    """Return what the tool shows."""
    return archiver.call("search_archive", {"query": query})


@pytest.mark.parametrize(
    ("call", "result", "failed", "line"),
    [
        (
            "pytest tests/test_pump.py",
            "." * 900 + "\n\n41 passed, 2 skipped in 0.31s",
            False,
            "41 passed, 2 skipped in 0.31s",
        ),
        (
            "make pump",
            "cc -c pump.c\n" * 90 + "pump.c:7: error: no valve\nExit code 2",
            True,
            "exit 2: pump.c:7: error: no valve",
        ),
        ("curl pump.local/state", "stopped", False, "stopped"),
        ("grep -c pump log", "", False, "no output"),
    ],
)
def test_hit_on_a_command_shows_its_outcome(
    archiver: Archiver, call: str, result: str, failed: bool, line: str
) -> None:
    """The outcome is the result line of a check, the error of a failure, or a short result as a whole."""
    fold(archiver, long_turn("Check it", ("bash", {"command": call}, result, failed)))
    hit = archiver.search(call)[0]
    assert hit.beside == f"-> entry {hit.entry + 1}: {line}"
    assert f"$ {call}\n{hit.beside}" in shown(archiver, call)


def test_hit_on_a_result_shows_its_call_and_a_hit_on_a_prompt_its_reply(archiver: Archiver) -> None:
    """A large result of a read has the file, and a prompt the beginning of the reply."""
    text = "\n".join(f"{number}\tvalve_{number} = {number}" for number in range(200))
    calls = [("read_file", {"path": "src/valves.py"}, text, False), ("read_file", {"path": "b.py"}, text[9:], False)]
    fold(archiver, long_turn("Which gasket leaks?", *calls, answer="It is number 7."))
    assert archiver.search("valve_150")[0].beside == "<- entry 4: read_file path=b.py"
    assert archiver.search("gasket")[0].beside == "-> entry 16: It is number 7."


def test_an_edit_and_a_large_read_have_no_outcome(archiver: Archiver) -> None:
    """The hit shows the edit itself, and the first lines of a file say nothing."""
    edit = ("edit_file", {"path": "a.py", "old_text": "x = 1", "new_text": "x = 2"}, "The file was changed.", False)
    read = ("read_file", {"path": "long.py"}, "some line of it\n" * 90, False)
    fold(archiver, long_turn("Change it", edit, read))
    assert archiver.search("x = 2")[0].beside == ""
    assert archiver.search("path=long.py")[0].beside == ""


def test_passages_have_paths_below_the_folder_of_the_record(archiver: Archiver) -> None:
    """An absolute path stays if the query names it."""
    root = "/srv/projects/pump-controller"
    edits = [
        (
            "edit_file",
            {"path": f"{root}/src/{name}.py", "old_text": "a = 1", "new_text": f"{name}_limit = 80"},
            "ok",
            False,
        )
        for name in ("valve", "motor")
    ]
    fold(archiver, long_turn("Set limits", *edits))
    assert archiver.search("motor_limit")[0].text == "> edit_file motor.py\n-a = 1\n+motor_limit = 80"
    assert f"> edit_file {root}/src/motor.py" in archiver.search(f"{root}/src/motor.py")[0].text


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("gasket silenced", "# linter silences the gasket rule"),
        ("duplicate gaskets", "the gasket was duplicated"),
        ("removal of gasket merging", "they merge each gasket"),
    ],
)
def test_other_forms_of_words_match(archiver: Archiver, query: str, text: str) -> None:
    """An exact form has priority."""
    fold(archiver, filler(1), long_turn("Look", ("bash", {"command": "cat notes"}, f"a\n{text}\nb", False)), filler(2))
    assert text in archiver.search(query)[0].text
    fold(archiver, long_turn("Again", ("bash", {"command": "cat more"}, f"{query} here", False)), filler(3))
    assert f"{query} here" in archiver.search(query)[0].text
