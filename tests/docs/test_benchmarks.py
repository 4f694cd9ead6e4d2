"""The calculations of the benches: medians, ratios, verdicts and the table of all rows."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from source_tree import ROOT


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The shared module of the benches. The benches are programs, not a package."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("harness")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program that runs all benches."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("run")


def test_ratio_is_the_median_of_paired_rounds(harness: ModuleType) -> None:
    """A round that is slow on both sides does not change the ratio."""
    row = harness.compared("spawn", [10.0, 40.0, 12.0], [10.0, 40.0, 8.0], must="<= 1.5", aim="<= 0.5")
    assert (row.ours, row.peer, row.ratio, row.ok, row.skipped) == (12.0, 10.0, 1.0, True, None)


def test_inverse_ratio_says_how_many_times_faster(harness: ModuleType) -> None:
    """With `inverse`, the ratio is the peer's figure divided by the figure of orch."""
    row = harness.compared("spawn", [2.0], [100.0], must=">= 60", aim=">= 150", inverse=True)
    assert (row.ratio, row.ok) == (50.0, False)


def test_sides_of_unequal_length_are_refused(harness: ModuleType) -> None:
    """Two series with different numbers of rounds are an error."""
    with pytest.raises(ValueError, match="2 rounds of ours against 1"):
        harness.compared("spawn", [1.0, 2.0], [1.0], must="<= 1", aim="<= 1")


def test_figure_without_peer_is_compared_with_its_bound(harness: ModuleType) -> None:
    """A figure without a peer has no ratio, and its bound determines the verdict."""
    row = harness.counted("left", 1, must="== 0")
    assert (row.ours, row.ratio, row.aim, row.ok) == (1.0, None, "== 0", False)


def test_missing_peer_gives_no_verdict(harness: ModuleType) -> None:
    """A row whose peer is missing has a reason and no verdict."""
    row = harness.skipped("query", "no Ray", must="<= 1", aim="<= 1", ours=[3.0, 1.0, 2.0])
    assert (row.ours, row.peer, row.ok, row.skipped) == (2.0, None, None, "no Ray")


def test_rows_have_the_promised_keys(harness: ModuleType) -> None:
    """A row as JSON is a flat object with eight fields."""
    row = json.loads(json.dumps(harness.counted("left", 0, must="== 0").as_dict()))
    assert list(row) == ["figure", "ours", "peer", "ratio", "must", "aim", "ok", "skipped"]


@pytest.mark.parametrize(
    ("value", "bound", "kept"),
    [(0.5, "<= 0.5", True), (0.51, "<= 0.5", False), (50, ">= 50", True), (49, ">= 50", False), (0, "== 0", True)],
)
def test_bounds(harness: ModuleType, value: float, bound: str, kept: bool) -> None:
    """A bound is an operator and a number, and the number itself satisfies `<=` and `>=`."""
    assert harness.satisfies(value, bound) is kept


async def test_sides_take_turns_in_alternating_order(harness: ModuleType) -> None:
    """Each round runs every side, in the opposite order of the round before. The first round is not measured."""
    order: list[str] = []
    clock: Iterator[int] = iter(range(100))

    def side(name: str) -> float:
        order.append(name)
        return next(clock)

    async def awaited() -> float:
        return side("b")

    took = await harness.interleave(2, a=lambda: side("a"), b=awaited)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert took == {"a": [3, 4], "b": [2, 5]}


def test_affinity_names_cpus(harness: ModuleType) -> None:
    """`one` is the first available CPU, and `all` is every available CPU. Numbers are the numbers of CPUs."""
    allowed = frozenset({2, 3, 5})
    assert [harness.parse_affinity(text, allowed) for text in ("one", "all", "3,5")] == [{2}, allowed, {3, 5}]


@pytest.mark.parametrize("text", ["0", "", "two"])
def test_invalid_affinity_is_refused(harness: ModuleType, text: str) -> None:
    """CPUs that do not exist and unknown words are errors that name the valid values."""
    with pytest.raises(ValueError, match="give one, all, or numbers out of"):
        harness.parse_affinity(text, frozenset({2, 3}))


def test_recorded_sessions_are_given_or_found_in_the_folder(
    harness: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without arguments, the sessions are the JSON files of the configured folder.

    A folder without such files is an error.
    """
    monkeypatch.setenv(harness.RECORDINGS, str(tmp_path))
    with pytest.raises(ValueError, match=rf"{harness.RECORDINGS}={tmp_path}: no \*\.json"):
        harness.recordings([])
    for name in ("b.jsonl", "a.json", "README.md"):
        (tmp_path / name).touch()
    assert harness.recordings([]) == (tmp_path / "a.json", tmp_path / "b.jsonl")
    assert harness.recordings([Path("own.json")]) == (Path("own.json"),)
    monkeypatch.delenv(harness.RECORDINGS)
    assert harness.recordings([]) == ()


def test_bench_receives_the_recorded_sessions_folder(harness: ModuleType) -> None:
    """A bench runs against the wheel, so it gets no variables of the checkout or of orch."""
    env = {harness.RECORDINGS: "/r", "ORCH_HOME": "/h", "ORCH_MODEL": "m", "PYTHONPATH": "/p", "HOME": "/root"}
    assert harness.venvs.passed_on(env) == {harness.RECORDINGS: "/r", "HOME": "/root"}


def test_table_shows_verdicts(harness: ModuleType) -> None:
    """A satisfied bound is `ok`, a violated bound is bold, and a missing peer has its reason."""
    rows = [
        harness.counted("left", 0, must="== 0"),
        harness.counted("bad", 2, must="== 0"),
        harness.skipped("query", "no Ray", must="<= 1", aim="<= 1"),
    ]
    lines = harness.table(rows).splitlines()
    assert lines[2] == "| left | 0 | - | - | == 0 | == 0 | ok |"
    assert lines[3].endswith("| **missed** |")
    assert lines[4].endswith("| skipped: no Ray |")


def test_table_replaces_the_text_between_the_markers(run: ModuleType) -> None:
    """The rest of the page stays the same, and a second run changes nothing."""
    before = f"head\n{run.START}\nold\n{run.END}\ntail\n"
    after = run.between(before, "new")
    assert after == f"head\n{run.START}\nnew\n{run.END}\ntail\n"
    assert run.between(after, "new") == after


@pytest.mark.parametrize("markers", ["", "{s}", "{e}{s}", "{s}{e}{e}"])
def test_missing_markers_are_refused(run: ModuleType, markers: str) -> None:
    """A page without exactly one pair of markers is an error."""
    with pytest.raises(ValueError, match="expected one"):
        run.between(markers.format(s=run.START, e=run.END), "new")


def test_every_bench_is_run(run: ModuleType) -> None:
    """The runner lists each bench file in its folder, and no other file."""
    there = {path.name for pattern in ("bench_*.py", "stress_*.py") for path in run.HERE.glob(pattern)}
    assert set(run.BENCHES) == there


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
def test_bench_model_answers_with_the_stated_number_of_words(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """The answer has the length that its head states, and contains every word as a separate event."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "peers"))
    server = importlib.import_module("model_server")
    head, _, body = server.answer(path).decode().partition("\r\n\r\n")
    assert f"content-length: {len(body)}" in head
    assert body.count(json.dumps(server.WORD)) == server.PIECES


def test_sizes_of_requests_are_read_from_a_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The sizes are the input tokens that the session reports for each response."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    holders = importlib.import_module("bench_holders")
    lines = [
        {"type": "session"},
        {"type": "message", "usage": {"input_tokens": 700}},
        {"type": "message"},
        {"type": "turn_end", "usage": {"input_tokens": 5}},
        {"type": "message", "usage": {"input_tokens": 900}},
    ]
    (tmp_path / "session.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert list(holders.requests(tmp_path / "session.jsonl")) == [700, 900]


def test_hooks_are_compiled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code that runs only if there are hooks is removed, and other code stays."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    hooks = importlib.import_module("bench_hooks")
    source = (
        "if self._hooks is not None:\n    hear()\nelse:\n    stay()\n"
        "said = [text] if hooks is None else hooks.said(text)\nif other is not None:\n    go()\n"
    )
    left = "stay()\nsaid = [text]\nif other is not None:\n    go()"
    assert importlib.import_module("ast").unparse(hooks.without_hooks(source)) == left
    assert "hooks.step_end" not in importlib.import_module("ast").unparse(
        hooks.without_hooks((ROOT / "worker" / "orch_worker" / "agent" / "turn.py").read_text())
    )


def test_machine_facts_name_the_python(run: ModuleType) -> None:
    """The line above the table contains the number of cores and the version of Python."""
    assert "cores" in run.machine()
    assert "Python 3." in run.machine()


def test_calls_are_counted_by_phase_and_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only calls in the given phase count, and only modules in packages of orch are listed."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "peers"))
    counter = importlib.import_module("count_calls")
    log = tmp_path / "log"
    log.write_text(
        "1 7 orch.tree.tree\n1 8 orch_worker.agent.turn\n1 8 orchard\n1 7 orch.tree.tree\n2 7 orch.api.agent\n"
    )
    names = ["orch.tree.tree", "orch_worker.agent.turn"]
    assert counter.summary(log, 1) == {"calls": 3, "modules": 2, "names": names, "all_calls": 4}


def test_calls_are_compared_with_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """With another version, each figure has a ratio. Without one, only the figure is shown."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    calls = importlib.import_module("bench_calls")
    ours = [{action: dict.fromkeys(calls.FIGURES, 3) for action in calls.ACTIONS}]
    peer = [{action: dict.fromkeys(calls.FIGURES, 4) for action in calls.ACTIONS}]
    assert {row.ratio for row in calls.rows(ours, peer)} == {0.75}
    assert [row.ours for row in calls.rows(ours, [])] == [3.0] * 6


def test_bench_of_records_measures_what_records_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each figure of a session that edits and reads files has its bound."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    bench = importlib.import_module("bench_records")
    lines: list[Any] = [{"role": "user", "content": "Fix the modules"}]
    for number in range(40):
        for name, path in (("read_file", f"src/base_{number % 5}.py"), ("edit_file", f"src/module_{number}.py")):
            function = {"name": name, "arguments": json.dumps({"path": path, "new_text": "word " * 300})}
            calls = [{"id": f"{name}{number}", "type": "function", "function": function}]
            lines.append({"role": "assistant", "content": None, "tool_calls": calls})
            lines.append({"role": "tool", "tool_call_id": f"{name}{number}", "content": "line of code\n" * 200})
    session = tmp_path / "session.json"
    session.write_text(json.dumps([*lines, {"role": "assistant", "content": "Fixed."}]))
    rows = {row.figure.partition(": ")[2]: row for row in bench.recorded(session, tmp_path / "archive")}
    assert rows["edited files that the records name (40)"].ours == 1
    assert all(row.ok for row in rows.values())
    assert len(rows) == 3


RECORDED = sorted(Path(os.environ["BENCH_RECORDINGS"]).glob("*.json*")) if os.environ.get("BENCH_RECORDINGS") else []


@pytest.mark.skipif(not RECORDED, reason="BENCH_RECORDINGS names no folder with recorded sessions")
@pytest.mark.parametrize("session", RECORDED, ids=lambda path: str(path.stem))
def test_records_of_recorded_sessions_keep_the_bounds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, session: Path
) -> None:
    """At least 95 % of the edited files and 70 % of the files used later, in at most 3,000 tokens."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    bench = importlib.import_module("bench_records")
    assert [row.figure for row in bench.recorded(session, tmp_path) if not row.ok] == []


def test_lines_of_code_are_neither_empty_nor_comments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The programs of the first use are compared by these lines."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    bench = importlib.import_module("bench_first_use")
    program = tmp_path / "program.py"
    program.write_text("import os\n\n# why\nfor name in os.environ:\n    # this\n    print(name)  # and that\n")
    assert bench.lines(program) == 3


def test_each_framework_has_the_programs_of_the_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each program belongs to orch or to a framework, and each framework has a fan-out."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    bench = importlib.import_module("bench_first_use")
    names = {"orch", *(each.program for each in bench.FRAMEWORKS)}
    there = {path.stem for path in bench.PROGRAMS.glob("*.py")}
    assert {name for name in there if name.startswith("fan_out_")} == {f"fan_out_{name}" for name in names}
    assert there <= {f"{kind}_{name}" for kind in ("fan_out", "own_loop") for name in names}


@pytest.mark.parametrize(
    ("body", "item", "answer"),
    [
        ({"messages": [{"role": "user", "content": "Review number 7"}]}, "7", '{"verdict": "reviewed 7"}'),
        ({"messages": [{"role": "user", "content": "What is in a.log?"}], "tools": []}, None, "read_file"),
        ({"messages": [{"role": "tool", "content": "What is in a.log?"}]}, None, "It says that all is quiet."),
    ],
)
def test_model_of_the_first_use_answers_questions(
    monkeypatch: pytest.MonkeyPatch, body: dict[str, Any], item: str | None, answer: str
) -> None:
    """It answers a review with a value, a question about a file with a call, and a result with a text."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "peers"))
    model = importlib.import_module("review_model")
    found, message = model.completion(body, 1)
    assert found == item
    assert answer in (message["content"] or message["tool_calls"][0]["function"]["name"])


def test_model_of_the_first_use_answers_in_the_requested_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value is wrapped if the schema wraps it, and is the argument of a tool that takes the result."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "peers"))
    model = importlib.import_module("review_model")
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Review number 7"}]}
    schema = {"json_schema": {"schema": {"properties": {"response": {}}}}}
    wrapped = model.completion(body | {"response_format": schema}, 1)[1]["content"]
    assert json.loads(wrapped) == {"response": {"verdict": "reviewed 7"}}
    tools = [{"type": "function", "function": {"name": "final_result"}}]
    [call] = model.completion(body | {"tools": tools}, 1)[1]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"verdict": "reviewed 7"}
