"""The output of `orch demo`: width, colors, live lines, charts, figures of the recorded session, and quotations."""

from __future__ import annotations

import importlib.util
import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from orch.demo.bug_hunt import copy_project, read_script
from orch.demo.chart import svg_chart, text_chart
from orch.demo.fan_out import Work, work_lines
from orch.demo.file_reader import FileReader
from orch.demo.long_session import (
    TOKENS_PER_CELL,
    PlayedSession,
    RequestSizes,
    progress_line,
    read_session,
    request_sizes,
    session_cost,
    show_session,
)
from orch.demo.play import best_line, quotations
from orch.demo.screen import DemoScreen, make_screen
from orch.replay.report import ReplayPricing
from orch_protocol.core.messages import Message, Text, ToolResult
from orch_worker.backends.custom.contract import BackendRequest
from source_tree import ROOT

EXAMPLE = ROOT / "examples" / "bug_hunt"
SNAPSHOTS = Path(__file__).parent / "snapshots"


class Out(io.TextIOWrapper):
    """Standard output with a given encoding, at a terminal or not."""

    def __init__(self, *, terminal: bool = False, encoding: str = "utf-8") -> None:
        self.bytes = io.BytesIO()
        self._terminal = terminal
        super().__init__(self.bytes, encoding=encoding, write_through=True)

    def isatty(self) -> bool:
        return self._terminal

    @property
    def text(self) -> str:
        return self.bytes.getvalue().decode(self.encoding)


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that sets the width of the terminal."""
    return lambda width: monkeypatch.setenv("COLUMNS", str(width))


@pytest.mark.parametrize(
    ("terminal", "environ", "live", "color"),
    [
        (True, {}, True, True),
        (True, {"NO_COLOR": "1"}, True, False),
        (True, {"CI": "true"}, False, False),
        (True, {"TERM": "dumb"}, False, False),
        (False, {}, False, False),
    ],
)
def test_screen_is_live_and_colored_at_a_terminal_only(
    columns: Any, terminal: bool, environ: dict[str, str], live: bool, color: bool
) -> None:
    """A pipe, CI and TERM=dumb get plain lines; NO_COLOR removes the colors and keeps the live lines."""
    columns(100)
    out = Out(terminal=terminal)
    screen = make_screen(out, environ)
    screen.heading("Title")
    screen.update(["first"])
    screen.update(["second"])
    screen.lines(["last"])
    assert (screen.live, "\x1b[1m" in out.text) == (live, color)
    assert ("first" in out.text, "\x1b[1A\x1b[J" in out.text) == (live, live)
    assert out.text.endswith("   last\n")


@pytest.mark.parametrize(
    ("width", "used", "live"), [(40, 80, False), (80, 80, True), (100, 100, True), (300, 120, True)]
)
def test_screen_uses_80_to_120_columns(columns: Any, width: int, used: int, live: bool) -> None:
    """A narrower terminal wraps lines, so no line is replaced in it."""
    columns(width)
    screen = make_screen(Out(terminal=True), {})
    assert (screen.width, screen.live) == (used, live)


def test_updates_fit_the_height_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines above the first row of a terminal cannot be replaced, so only the last lines are written."""
    monkeypatch.setenv("LINES", "4")
    out = Out(terminal=True)
    screen = make_screen(out, {})
    screen.update(["one", "two", "three", "four"])
    screen.lines(["last"])
    assert out.text == "   two\n   three\n   four\n\x1b[3A\x1b[J   last\n"


def test_screen_lines_fit_its_width() -> None:
    """Paragraphs and quotations are wrapped, tables are cut, and commands and paths stay whole."""
    out = Out()
    screen = DemoScreen(out, width=80)
    for write in (screen.heading, screen.say, screen.figure, screen.quote):
        write("seven words that are said again and again " * 9)
    screen.lines(["x" * 200])
    assert max(map(len, out.text.splitlines())) == 80
    screen.untruncated("y" * 200)
    assert out.text.endswith(f"   {'y' * 200}\n")


def test_quotation_is_wrapped_to_two_lines() -> None:
    """The number at the end of the quotation is not split, and control characters are escaped."""
    out = Out()
    line = "2026-03-29T05:03:19Z ERROR mail     station=17 smtp timeout after 30 s, queued as 17-0329-0502\x1b"
    DemoScreen(out, width=80).quote(line)
    assert out.text == (
        "   > 2026-03-29T05:03:19Z ERROR mail     station=17 smtp timeout after 30 s,\n"
        "   > queued as 17-0329-0502\\x1b\n"
    )


def test_screen_draws_with_ascii_where_nothing_else_can_be_written() -> None:
    """Charts, bars and shortened quotations contain only ASCII characters."""
    out = Out(encoding="ascii")
    screen = DemoScreen(out, width=80)
    course = RequestSizes((3000, 9000), (3000, 4000))
    screen.lines(text_chart(course.without, course.archived, width=60, unicode=screen.unicode))
    screen.lines([progress_line(course, 1, unicode=screen.unicode)])
    screen.quote("word " * 99)
    assert out.text.endswith(" ...\n")


def test_chart_shows_both_curves() -> None:
    """A column is filled up to the size with archives, and dotted up to the size without archives."""
    lines = text_chart([1000] * 8 + [2000, 9000], [1000] * 9 + [3000], width=60)
    assert lines[1] == "9k |         ·"
    assert lines[7:10] == ["   |         █", "   |        ·█", "   |██████████"]
    assert lines[10:] == [" 0 +----------", "    step 1  10"]


@pytest.mark.parametrize("width", [40, 76, 116])
def test_chart_fits_the_width(width: int) -> None:
    """Many steps are sampled, and the axis shows their number."""
    lines = text_chart(range(1, 1001), [1] * 1000, width=width)
    assert max(map(len, lines[1:])) <= width
    assert lines[-1].endswith("1000")


def test_chart_of_nothing_can_be_drawn() -> None:
    """Charts can be drawn for a session without tokens."""
    _, *rows, _, steps = text_chart([0], [0], width=40)
    assert [row.partition("|")[2] for row in rows] == [""] * 9
    assert steps.strip().startswith("step 1")
    assert svg_chart([0], [0]).count('points="64.0,312.0"') == 2


def test_svg_chart_has_a_line_for_each_curve() -> None:
    """The highest value is at the top, and the last step is at the right."""
    svg = svg_chart([0, 100], [0, 50])
    assert svg.count("<polyline ") == 2
    assert '"64.0,312.0 696.0,24.0"' in svg
    assert '"64.0,312.0 696.0,168.0"' in svg


def test_sizes_and_cost_come_from_the_recorded_session(tmp_path: Path) -> None:
    """The sizes grow with each step and agree with the recorded ones, and archives reduce the cost."""
    recording = read_session(EXAMPLE / "session.jsonl")
    course = request_sizes(recording)
    assert len(course.without) == len(course.archived) == len(read_script().steps)
    assert list(course.without) == sorted(course.without)
    assert course.archived[-1] > 20_000
    assert abs(course.sent_without / course.sent - 1) < 0.1
    without, archived = session_cost(recording, tmp_path, ReplayPricing(items=0))
    assert 0 < archived < 0.8 * without


def test_recorded_session_follows_the_script() -> None:
    """The recording has the prompts, texts and tool calls of script.json, in the same order."""
    script = json.loads((EXAMPLE / "script.json").read_text())
    expected = []
    for turn in script["turns"]:
        for step in turn["steps"]:
            calls = step.get("tools") or ([step] if "tool" in step else [])
            expected.append((step.get("text", ""), [call["tool"] for call in calls]))
    collected = []
    prompts = []
    for line in (EXAMPLE / "session.jsonl").read_text().splitlines():
        message = json.loads(line).get("message") or {}
        blocks = message.get("content") or []
        text = "".join(block.get("text", "") for block in blocks if block["type"] == "text")
        if message.get("role") == "assistant":
            collected.append((text, [block["name"] for block in blocks if block["type"] == "tool_use"]))
        elif message.get("role") == "user" and text:
            prompts.append(text)
    assert collected == expected
    _, *asked = prompts  # the first message is about the project
    assert len(asked) == len(script["turns"])
    for prompt, turn in zip(asked, script["turns"], strict=True):
        assert turn["prompt"] in prompt


def test_record_and_demo_run_the_same_task() -> None:
    """The task in record.py is equal to the task in orch.demo."""
    spec = importlib.util.spec_from_file_location("record", EXAMPLE / "record.py")
    assert spec is not None
    assert spec.loader is not None
    record = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(record)
    from orch.demo.bug_hunt import TASK

    assert record.TASK == TASK


def test_project_is_copied_without_caches(tmp_path: Path) -> None:
    """The agent changes the copy and not the example."""
    copy_project(tmp_path / "copy")
    assert (tmp_path / "copy" / "logs" / "ingest-2026-03-29.log").is_file()
    assert list((tmp_path / "copy").rglob("__pycache__")) == []


def test_quotations_of_an_offline_answer() -> None:
    """The lines of a quotation stay together, without their marks."""
    answer = (
        "Offline search (no model).\n\nREADME.md:3\n> # Pump\n>\n> It pumps.\n\nsrc/a.py:1\n> def a():\n>     pass\n"
    )
    assert quotations(answer) == ["# Pump\n\nIt pumps.", "def a():\n    pass"]
    assert quotations("Nothing found. Searched: 3 files.") == []


def test_table_shows_who_works_on_what() -> None:
    """A row has the process, the state, the file and the answer."""
    work = [
        Work("a.py", "1", 7, "done", "1 of 2 functions"),
        Work("folder/b.py", "2", 12345, "killed"),
        Work("c", "3", 0),
    ]
    assert work_lines(work) == [
        "PROCESS  STATE    FILE         ANSWER",
        "      7  done     a.py         1 of 2 functions",
        "  12345  killed   folder/b.py",
        "      -  working  c",
    ]


def test_model_of_the_map_reads_the_file_in_the_question() -> None:
    """It calls read_file, and counts the functions and those without a docstring."""
    source = '     1\tdef a():\n     2\t    """A."""\n     3\tdef b():\n     4\t    return 1'
    question = Message("user", (Text("Which functions in src/a.py have no docstring?"),))
    result = Message("user", (ToolResult("read", (Text(source),)),))

    def response(*messages: Message) -> list[Any]:
        cancelled = threading.Event()
        cancelled.set()  # the model does not wait
        return list(FileReader().respond(BackendRequest("", messages, (), 0, "", cancelled)))

    (call,) = response(question)
    assert (call.name, call.input) == ("read_file", {"path": "src/a.py"})
    (answer,) = response(question, Message("assistant", (call,)), result)
    assert json.loads(answer) == {"functions": 2, "undocumented": ["b"]}


def test_best_line_has_most_words_of_the_question() -> None:
    """The first of several equal lines is chosen; without lines, the result is empty."""
    lines = ["mail was sent", "smtp timeout, mail queued as 17-0329-0502", "smtp timeout, mail queued again"]
    assert best_line("Under which number was the mail queued after the smtp timeout?", lines) == lines[1]
    assert best_line("Which?", []) == ""


def test_progress_bar_shows_what_archives_save() -> None:
    """Filled cells are tokens that were sent, and dotted cells are tokens that archives saved."""
    line = progress_line(RequestSizes((9000,), (TOKENS_PER_CELL,)), 2, unicode=True)
    assert line == "question 2, step  1:  9,000 tokens without archives,  3,000 with  █··"
    assert progress_line(RequestSizes((), ()), 1, unicode=True).endswith("0 with  ")


@pytest.mark.parametrize("width", [80, 120])
def test_totals_and_chart_are_as_in_the_snapshot(width: int) -> None:
    """The sizes without archives are recorded, and the sizes with archives are invented."""
    without = request_sizes(read_session(EXAMPLE / "session.jsonl")).without
    course = RequestSizes(without, tuple(min(tokens, 4000 + 90 * at) for at, tokens in enumerate(without)))
    out = Out()
    show_session(DemoScreen(out, width=width), PlayedSession(course, 0.52, 0.34, "/tmp/orch-demo-x.svg"))
    assert out.text == (SNAPSHOTS / f"demo_totals_{width}.txt").read_text()
