"""Tables and search hits of the CLI at the width of the terminal, with text snapshots at 80 and 120 columns.

`ORCH_WRITE_SNAPSHOTS=1 pytest tests/orchestrator/cli/test_widths.py` writes the files again.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from pathlib import Path

import pytest

from orch.cli import run
from orch.cli.agents import runs
from orch.cli.resources import costs
from orch.imports.catalog import ImportCatalog, ImportRecord
from orch.render.columns import cut, display_width, format_columns, wrap
from orch.sessions.daily_usage import DailyUsage, ModelUsage, ToolUsage
from orch_protocol.core.messages import Usage
from orchestrator.daemon_double import ARCHIVE, ROW, Desk, opened
from source_tree import ROOT

SNAPSHOTS = Path(__file__).parent / "snapshots"
WRITE = bool(os.environ.get("ORCH_WRITE_SNAPSHOTS"))  # read before the fixture removes the variable
LATER = "2099-01-01T00:00:00Z"
"""A time with the age 0."""
TASK = "Find out why the second pump of the station in the north does not stop when the water is too warm\nand say so"
WIDE = "ポンプの制御プログラムを調べて、温度の上限がどこで設定されているかを説明してください。変更はしないでください"
MODEL = "anthropic:claude-sonnet-5-5"
USAGE = {"input_tokens": 1200, "output_tokens": 300, "cost_usd": 0.0123, "cost_known": True}
AGENT = ROW | {
    "name": "investigator-of-the-pumps-in-the-north",
    "model": MODEL,
    "task": TASK,
    "created_at": LATER,
    "last_activity": LATER,
    "context_tokens": 123_456,
    "context_limit": 200_000,
    "usage": USAGE,
    "tree_usage": USAGE,
}
FOLDER = "/srv/projects/of/pumps/installations/north/stations/pumps/controller"
COMMANDS = {
    "list": ["list"],
    "tree": ["list", "--tree"],
    "sessions": ["session", "list"],
    "runs": ["runs"],
    "archives": ["archive", "list"],
    "search": ["archive", "search", "pump"],
    "imports": ["import", "--list"],
    "costs": ["costs"],
    "replay": ["replay", ".", "--policy", "none,compaction"],
}


class Terminal(io.StringIO):
    """A terminal that stores its output."""

    def isatty(self) -> bool:
        return True


def imported(number: int, title: str) -> ImportRecord:
    """Return the record of a session that was imported from a file that does not exist."""
    return ImportRecord(
        id=f"a1b2c3d4e5f{number}",
        source=f"{FOLDER}/.claude/projects/pumps/0b8e6a52-3f0e-4f63-9a1e-2b7d9c6a001{number}.jsonl",
        number=1,
        conversations=1,
        shape="Claude Code",
        title=title,
        cwd=FOLDER,
        started="2026-01-01T00:00:00Z",
        ended=f"2026-01-0{number}T00:00:00Z",
        turns=12,
        messages=345,
        record="Ran: pytest",
        size=1,
        modified_ns=1,
        sha256="",
        left_out=0,
        store="1",
    )


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    """A fake daemon with long names, tasks, folders and models."""
    desk = opened(monkeypatch, tmp_path)
    monkeypatch.setattr(runs, "Connection", desk)
    child = {"id": "4f2a91c03be7", "seq": 2, "parent_id": "abc", "name": "reader", "task": WIDE, "pending": TASK}
    desk.answers["list"] = [AGENT, AGENT | child]
    desk.answers["runs"] = [
        {"name": "nightly-report-of-the-stations", "state": "running", "pid": 77, "agents": 3, "busy": 1, "error": ""}
        | {"cost_usd": 1.25, "last_activity": LATER, "cwd": FOLDER},
        {"name": "old", "state": "ended", "pid": None, "agents": 0, "busy": 0, "cost_usd": 0, "last_activity": ""}
        | {"cwd": "", "error": "cannot read the journal"},
    ]
    desk.answers["list_archives"] = [ARCHIVE | {"task": TASK, "created_at": LATER, "owner": "4f2a91c03be7"}]
    hit = {"id": "4f2a91c03be7", "entry": 12, "text": f"{TASK}\n{WIDE}\n{'x' * 130}", "exact": True, "task": TASK}
    source = {"source": imported(1, "").source, "session": TASK, "turn": 3, "date": "2026-01-01", "record": TASK}
    desk.answers["search_archive"] = [hit, hit | source]
    used = Usage(123_456, 7890, 1_200_000, cost_usd=1.2345, model_calls=45)
    models = {MODEL: ModelUsage(45, used), "openrouter:vendor/model": ModelUsage(2, Usage(1, 1, cost_known=False))}
    days = {"2026-01-31": DailyUsage(models, {"run_python": ToolUsage(3, 1)})}
    monkeypatch.setattr(costs, "daily_usage", lambda *_: days)
    return desk


def output(monkeypatch: pytest.MonkeyPatch, name: str, stdout: io.StringIO, columns: int = 80) -> str:
    """Return what the command `name` prints on `stdout`."""
    if name == "imports":  # only for this command: `archive search` reads imported sessions too
        catalog = ImportCatalog(Path(os.environ["ORCH_HOME"]))
        for record in (imported(1, TASK), imported(2, WIDE)):
            (catalog.folder / record.id).mkdir(parents=True)
            catalog.put(record)
    if name == "replay":
        for file in (f"{'recording-of-the-station/' * 3}north.jsonl", "south.jsonl"):
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / "examples/bug_hunt/session.jsonl", file)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "stdout", stdout)
    assert run(COMMANDS[name]) == 0
    return stdout.getvalue()


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_no_line_is_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch, name: str, columns: int) -> None:
    """Text is cut or wrapped. Ids, names, models and numbers are complete: rows take two lines if necessary."""
    printed = output(monkeypatch, name, Terminal(), columns)
    assert [line for line in printed.splitlines() if display_width(line) > columns] == []
    file = SNAPSHOTS / f"{name}_{columns}.txt"
    if WRITE:
        SNAPSHOTS.mkdir(exist_ok=True)
        file.write_text(printed)
    assert printed == file.read_text()


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("name", COMMANDS)
def test_output_into_a_pipe_is_complete(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Nothing is cut, and each row of a table is one line."""
    printed = output(monkeypatch, name, io.StringIO())
    assert "…" not in printed
    expected: dict[str, list[str]] = {
        "list": [AGENT["name"], MODEL, " ".join(TASK.split())],
        "runs": [FOLDER],
        "archives": [" ".join(TASK.split())],
        "search": ["x" * 130, WIDE],
        "imports": [WIDE, imported(1, "").source],
        "costs": [MODEL, ">=$0.0000"],
    }
    assert [text for text in expected.get(name, []) if text not in printed] == []


ROWS = [["ID", "TEXT", "N"], ["abcdef", "one two three four five six", "17"]]


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (None, "ID      TEXT                          N\nabcdef  one two three four five six  17"),
        (30, "ID      TEXT                 N\nabcdef  one two three fou…  17"),
        (28, "ID      TEXT               N\nabcdef  one two three f…  17"),
        (27, "ID      TEXT\n     N\nabcdef  one two three four…\n    17"),
    ],
)
def test_columns_are_cut_before_rows_are_folded(width: int | None, expected: str) -> None:
    """Only columns of text are cut, to 16 columns at least. Then further lines of a row are indented."""
    assert format_columns(ROWS, {2}, text={1}, width=width) == expected


def test_cells_that_are_never_cut_stay_complete() -> None:
    """An id that is wider than the terminal stays in one line, so that it can be copied."""
    assert format_columns([["ID", "N"], ["x" * 30, "1"]], width=20) == f"ID\n    N\n{'x' * 30}\n    1"


@pytest.mark.parametrize(
    ("text", "width", "start", "expected"),
    [
        ("one two", 7, False, "one two"),
        ("one two", 6, False, "one t…"),
        ("one two", 5, False, "one…"),
        ("/a/b/file", 6, True, "…/file"),
        ("ポンプ", 5, False, "ポン…"),
        ("ポンプ", 4, False, "ポ…"),
        ("ポンプ", 4, True, "…プ"),
        ("e\u0301e\u0301e\u0301", 3, False, "e\u0301e\u0301e\u0301"),
    ],
)
def test_cut_text_fits_and_has_an_ellipsis(text: str, width: int, start: bool, expected: str) -> None:
    """Wide characters take two columns, and combining characters take none."""
    assert cut(text, width, start=start) == expected
    assert display_width(expected) <= width


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one two three", ["  one two", "  three"]),
        ("one  two", ["  one  two"]),
        ("onetwothreefour", ["  onetwoth", "  reefour"]),
        ("a\n\nb", ["  a", "  ", "  b"]),
        ("a\tb", ["  a", "  b"]),
        ("ポンプ ポンプ", ["  ポンプ", "  ポンプ"]),
        ("ポンプポンプ", ["  ポンプポ", "  ンプ"]),
    ],
)
def test_text_is_wrapped_at_spaces(text: str, expected: list[str]) -> None:
    """A word that is wider than the line is broken. Without a width nothing changes."""
    assert wrap(text, 10, "  ") == expected
    assert wrap(text, None) == text.splitlines()


def test_a_width_below_the_indentation_gives_a_character_per_line() -> None:
    """The output does not stop, although it is wider than such a terminal."""
    assert wrap("ab", 1, "  ") == ["  a", "  b"]
    assert format_columns(ROWS, text={1}, width=3).split() == ["ID", "…", "N", "abcdef", "…", "17"]
