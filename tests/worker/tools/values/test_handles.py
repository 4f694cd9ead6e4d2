"""Values under handles: storage, reading, use in code, eviction and description."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from orch_protocol.core.messages import Text, ToolUse
from orch_worker.tools.api.base import ToolContext, ToolError, ToolOutput
from orch_worker.tools.dispatch.result_limits import MAX_SHOWN
from orch_worker.tools.dispatch.toolbox import Toolbox
from orch_worker.tools.python.python import run_python
from orch_worker.tools.values import store
from orch_worker.tools.values.handles import read_handle
from orch_worker.tools.values.repr import is_large, memory_bytes, one_line_repr, summarize_value
from orch_worker.tools.values.store import ValueFiles, copy_values, delete_other_values
from orch_worker.tools.values.values import ValueStore

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
np = pytest.importorskip("numpy")

OBJECTS = "class Thing: pass\nthings = [Thing() for _ in range(2000)]\nthings"


def written(folder: Path) -> list[str]:
    """Return the contents of all files below `folder`."""
    return [file.read_text() for file in folder.rglob("*") if file.is_file()]


@pytest.mark.parametrize("make", [list, tuple, set, frozenset])
def test_summary_counts_all_items(make: Any) -> None:
    """The number belongs to the value, not to a sample. Of very large values, the summary says what was counted."""
    assert summarize_value(make(range(20_000))).lines[0] == "items: 20,000 int"
    assert summarize_value(make(range(150_000))).lines[0] == "items: 150,000; the first 100,000: 100,000 int"
    mixed = make([*range(1_500), *"ab"])
    assert summarize_value(mixed).lines[0] in ("items: 1,500 int, 2 str", "items: 2 str, 1,500 int")


def test_summary_of_other_sequences_counts_a_sample() -> None:
    """Iterating over them can run code of the agent."""
    assert summarize_value(range(20_000)).lines[0] == "items: 20,000; the first 1,000: 1,000 int"


class Agent:
    """An agent with a session folder. A second object with the same folder is the same agent in a new process."""

    def __init__(self, folder: Path | None, *tools: Any) -> None:
        self.context = ToolContext(Path("/"), agent_id="a1", folder=folder, seconds=30.0)
        self.box = Toolbox(tools or (run_python, read_handle), self.context)
        self.values = self.context.agent_object(ValueStore)

    async def run(self, code: str) -> ToolOutput:
        """Return the result of `run_python`."""
        return await run_python.run(self.context, {"code": code})

    async def read(self, handle: str, **input: Any) -> str:
        """Return the text of `read_handle`."""
        return (await read_handle.run(self.context, {"handle": handle, **input})).text


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


class TestMarkers:
    """The markers that replace large values."""

    @pytest.mark.parametrize(
        ("code", "expected"),
        [
            ("list(range(5000))", "list, 5,000 items"),
            ("{'a': 'x' * 5000}", "dict, 1 item"),
            ("'word ' * 2000", "str, 10,000 characters"),
            ("import numpy; numpy.zeros((100, 30))", "numpy.ndarray, 100 x 30 of float64, 23.4 KB"),
            ("import pandas; pandas.DataFrame({'a': range(99), 'b': [None] * 99})", "pandas.DataFrame, 99 rows x 2"),
            ("import polars; polars.DataFrame({'a': range(99)})", "polars.DataFrame, 99 rows x 1 column"),
        ],
    )
    async def test_large_value_is_replaced_by_a_handle(self, agent: Agent, code: str, expected: str) -> None:
        """The marker shows type, size and beginning of the value and how to read the value."""
        text = (await agent.run(code)).text
        assert text.startswith(f"[.h_001: {expected}")
        assert 'in run_python it is handles["h_001"]]' in text
        assert "read_handle shows any part" in text
        assert len(text) < 2_000

    @pytest.mark.parametrize("code", ["list(range(50))", "'x' * 100", "{}", "7", "import numpy; numpy.zeros(3)"])
    async def test_small_value_is_shown_as_repr(self, agent: Agent, code: str) -> None:
        """No handle is created for a small value."""
        assert "h_001" not in (await agent.run(code)).text
        assert list(agent.values) == []

    async def test_frame_marker_shows_columns_types_and_rows(self, agent: Agent) -> None:
        """The marker of a data frame shows type, missing values and range of each column, and the first rows."""
        text = (
            await agent.run("import pandas; pandas.DataFrame({'n': range(99), 's': ['x', None] * 49 + ['y']})")
        ).text
        assert "n | int64 | 0 | 0 to 98" in text
        assert "| 49 |" in text
        assert "0 | x" in text

    async def test_marker_omits_read_handle_when_not_granted(self, tmp_path: Path) -> None:
        """Without `read_handle`, the marker mentions only the access in `run_python`."""
        text = (await Agent(tmp_path, run_python).run("list(range(5000))")).text
        assert "read_handle" not in text
        assert 'handles["h_001"]' in text

    async def test_marker_names_other_readers_when_the_agent_has_none(self, agent: Agent) -> None:
        """An agent that cannot read the value learns that the agent's parent can take the value."""
        text = agent.values.keep(list(range(5000))).text(frozenset({"query_subagent"}))
        assert "none of your tools can read it, but your parent can get it" in text

    async def test_unserializable_object_lasts_as_long_as_the_process(self, agent: Agent) -> None:
        """The marker says why the object is not stored, and the object can be read in this process."""
        text = (await agent.run(OBJECTS)).text
        assert "not stored, so gone when this process ends: its [0] is of type Thing" in text
        assert "Thing" in await agent.read(".h_001", op="head", count=1)

    async def test_same_value_reuses_its_handle(self, agent: Agent) -> None:
        """Showing the same value twice creates one handle."""
        await agent.run("xs = list(range(5000))\nxs")
        assert ".h_001" in (await agent.run("xs")).text
        assert list(agent.values) == [".h_001"]

    async def test_handle_is_a_snapshot_of_the_value(self, agent: Agent) -> None:
        """Later changes of the original list do not change the value under the handle."""
        await agent.run("xs = list(range(5000))\nxs")
        await agent.run("xs.clear()")
        assert (await agent.run("len(handles['h_001']), len(xs)")).text == "(5000, 0)"

    async def test_marker_of_a_step_is_bounded(self, agent: Agent) -> None:
        """The marker of a value of several megabytes has fewer than 1,000 characters."""
        call = ToolUse("c", "run_python", {"code": "[{'k': 'v' * 100}] * 100_000"})
        (shown,) = agent.box.limit_results([call], [await agent.box.dispatch(call)])
        (block,) = shown.result.content
        assert isinstance(block, Text)
        assert len(block.text) < 1_000


class TestReading:
    """Reading values with read_handle."""

    async def test_read_handle_pages_items(self, agent: Agent) -> None:
        """Items are numbered from 0, and each page states its range and the total."""
        await agent.run("[n * n for n in range(5000)]")
        assert (await agent.read(".h_001", op="head", count=2)).splitlines() == [
            "[0] 0",
            "[1] 1",
            "[items 0 to 2 of 5,000]",
        ]
        assert (await agent.read("h_001", op="tail", count=1)).startswith("[4999] 24990001\n")
        assert (await agent.read("1", op="slice", lines="-2:-1")).startswith(f"{4998**2}\n[item 4,998: ")
        assert (await agent.read(".h_001", op="slice", lines="10:12")).splitlines()[:2] == ["[10] 100", "[11] 121"]

    @pytest.mark.parametrize("library", ["pandas", "polars"])
    async def test_table_rows_are_shown_with_column_names(self, agent: Agent, library: str) -> None:
        """Rows of a data frame follow a line with the column names, and a search shows row numbers."""
        await agent.run(f"import {library} as l\nl.DataFrame({{'a': range(500), 'b': ['v'] * 500}})")
        assert (await agent.read(".h_001", op="slice", lines="100:102")).splitlines() == [
            "a | b",
            "100 | v",
            "101 | v",
            "[rows 100 to 102 of 500]",
        ]
        assert (await agent.read(".h_001", op="schema")).splitlines()[1].startswith("a | ")
        assert await agent.read(".h_001", search="^49[89] ") == "498: 498 | v\n499: 499 | v"

    async def test_arrays_are_read_along_the_first_axis(self, agent: Agent) -> None:
        """Items of arrays and series are read by position, not by the index of a series."""
        await agent.run("import numpy, pandas\nnumpy.arange(3000).reshape(1000, 3)")
        await agent.run("pandas.Series(range(100), index=range(900, 1000))")
        assert (await agent.read(".h_001", op="tail", count=1)).startswith("[999] [2997, 2998, 2999]\n")
        assert (await agent.read(".h_002", op="head", count=1)).startswith("[0] 0\n")
        assert "shape (1000, 3), type int64" in await agent.read(".h_001", op="schema")

    async def test_keys_and_single_entries_can_be_read(self, agent: Agent) -> None:
        """A long entry of a dict is read in parts with `offset`."""
        await agent.run("{'long': 'ab' * 50_000, 'short': 1}")
        assert "'long': str, 100,000 characters" in await agent.read(".h_001", op="summary")
        whole, offset = "", 0
        while True:
            part = await agent.read(".h_001", op="slice", lines="0", offset=offset, limit=28_000)
            text, _, note = part.rpartition("\n[key 0: characters ")
            whole += text
            if "go on with offset=" not in note:
                break
            offset = int(note.rpartition("=")[2].rstrip("]"))
        assert whole == f"'long': {'ab' * 50_000!r}"

    async def test_pages_of_a_long_list_are_complete(self, agent: Agent) -> None:
        """The pages contain each item exactly once, and no page is truncated."""
        await agent.run("[f'item {n} ' + '.' * 100 for n in range(1000)]")
        seen, lines = [], ":"
        while lines:
            call = ToolUse("c", "read_handle", {"handle": ".h_001", "op": "slice", "lines": lines})
            (shown,) = agent.box.limit_results([call], [await agent.box.dispatch(call)])
            (block,) = shown.result.content
            assert isinstance(block, Text)
            assert len(block.text) < MAX_SHOWN
            assert "left out" not in block.text
            *rows, note = block.text.splitlines()
            seen += [int(row.split()[2]) for row in rows]
            lines = note.partition('go on with lines="')[2].rstrip('"]')
        assert seen == list(range(1000))

    async def test_stored_text_is_read_by_lines(self, agent: Agent) -> None:
        """The stored text of a tool result can be read and searched by line number."""
        handle = agent.context.agent_object(ValueFiles).keep("".join(f"line {n}\n" for n in range(3000)))
        assert (await agent.read(handle, op="tail", count=2)).splitlines() == [
            "line 2998",
            "line 2999",
            "[lines 2,998 to 3,000 of 3,000]",
        ]
        assert (await agent.read(handle, op="search", search="line 2999", lines="2000:")) == "2999: line 2999"

    async def test_search_in_a_handle_continues_at_the_named_line(self, agent: Agent) -> None:
        """A search with many matches stops and names the lines that remain, and no match is lost."""
        await agent.run("list(range(5000))")
        found, lines = [], ":"
        while lines:
            *hits, last = (await agent.read(".h_001", search="7", lines=lines)).splitlines()
            stopped = last.startswith("[stopped here")
            found += [int(hit.partition(":")[0]) for hit in ([*hits] if stopped else [*hits, last])]
            lines = last.partition('lines="')[2].rstrip('"]') if stopped else ""
        assert found == [n for n in range(5000) if "7" in str(n)]

    @pytest.mark.parametrize(
        ("input", "expected"),
        [
            ({"op": "slice"}, "slice needs lines"),
            ({"op": "slice", "lines": "a:b"}, "Invalid range"),
            ({"op": "slice", "lines": "9000:"}, "There are 5,000 items, numbered from 0; none in '9000:'"),
            ({"op": "search"}, "`search` needs a pattern"),
            ({"search": "(a+"}, "is not a regular expression"),
        ],
    )
    async def test_invalid_range_or_pattern_is_an_error_with_a_hint(
        self, agent: Agent, input: dict[str, Any], expected: str
    ) -> None:
        """The error says what is wrong with the range or the pattern."""
        await agent.run("list(range(5000))")
        with pytest.raises(ToolError, match=expected.replace("(", r"\(").replace("+", r"\+")):
            await agent.read(".h_001", **input)


class TestCode:
    """The object `handles` in run_python."""

    async def test_handle_is_found_by_any_spelling(self, agent: Agent) -> None:
        """A handle is found by its number and by its name with or without the dot."""
        await agent.run("list(range(5000))")
        code = "handles['h_001'] == handles['.h_001'] == handles[1], len(handles), 'h_001' in handles, list(handles)"
        assert (await agent.run(code)).text == "(True, 1, True, ['h_001'])"
        assert (await agent.run("handles")).text.startswith("h_001: list, 5,000 items")

    async def test_stored_result_is_a_string_in_code(self, agent: Agent) -> None:
        """In code, `handles` returns the complete text of a stored tool result."""
        agent.context.agent_object(ValueFiles).keep("a,b\n1,2\n")
        assert (await agent.run("handles['h_001'].splitlines()")).text == "['a,b', '1,2']"

    async def test_code_can_keep_pin_and_drop_values(self, agent: Agent) -> None:
        """Code can keep a small value, and reading a dropped value is an error."""
        assert (await agent.run("handles.keep({'n': 1})")).text == "'h_001'"
        await agent.run("handles.pin(1)")
        assert agent.values.get("1").note.pinned
        await agent.run("handles.unpin(1)\nhandles.drop(1)")
        with pytest.raises(ToolError, match=r"\.h_001 is gone: it was dropped"):
            agent.values.get("1")

    async def test_unknown_handle_error_shows_only_the_agents_code(self, agent: Agent) -> None:
        """The error names the handle, and its traceback contains no code of orch."""
        text = (await agent.run("handles['h_009']")).text
        assert "There is no 'h_009'. Nothing is kept." in text
        assert "in __getitem__" not in text

    async def test_code_can_rebind_the_name_handles(self, agent: Agent) -> None:
        """An assignment to `handles` in one call is visible in the next call."""
        await agent.run("handles = 3")
        assert (await agent.run("handles")).text == "3"

    async def test_code_that_reads_a_tainted_handle_is_tainted(self, agent: Agent) -> None:
        """After code reads a tainted handle, later results are tainted too, because they may contain the value."""
        agent.context.agent_object(ValueFiles).keep("from the web", ["untrusted"])
        assert (await agent.run("1")).marks == ()
        assert [mark.bit for mark in (await agent.run("t = handles[1]")).marks] == ["untrusted"]
        assert [mark.bit for mark in (await agent.run("t")).marks] == ["untrusted"]

    @pytest.mark.parametrize("large", ["[seen] * 2000", "[object(), seen] * 2000"])
    async def test_kept_values_inherit_taint_and_locality(self, agent: Agent, large: str) -> None:
        """A value that code keeps has the taint and the locality of all values that the code has read."""
        agent.values.keep("from the web", bits=["untrusted"], local=True)
        await agent.run("seen = handles[1]")
        await agent.run(f"handles.keep({large})")
        read = await read_handle.run(agent.context, {"handle": ".h_002", "op": "summary"})
        assert ([mark.bit for mark in read.marks], read.local) == (["untrusted"], True)

    @pytest.mark.parametrize("what", ["a text", [1, 2], [object()]])
    def test_value_kept_twice_is_local_if_either_was(self, agent: Agent, tmp_path: Path, what: Any) -> None:
        """A value that is kept again as local becomes local, also for a stored tool result and in a new process."""
        if what == "a text":
            agent.context.agent_object(ValueFiles).keep(what)
        agent.values.keep(what)
        assert agent.values.keep(what, local=True).note.local
        assert agent.values.get(".h_001").note.local
        if "object" not in str(what):
            assert Agent(tmp_path).values.get(".h_001").note.local

    def test_locality_is_recorded_before_the_value(
        self, agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If the process is killed while it writes the metadata, no readable value remains."""

        write = store._write_file

        def killed(path: Path, data: bytes) -> None:
            if path.suffix == ".note":
                raise SystemExit
            write(path, data)

        monkeypatch.setattr("orch_worker.tools.values.store._write_file", killed)
        with pytest.raises(SystemExit):
            agent.values.keep([1, 2], local=True)
        monkeypatch.undo()
        assert list(Agent(tmp_path).values) == []

    def test_concurrent_keeps_get_different_handles(self, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
        """A thread that keeps a value while another one stores a result does not receive the same handle."""
        files, found = agent.context.agent_object(ValueFiles), []
        other = threading.Thread(target=lambda: found.append(agent.values.keep([1, 2]).handle))
        take = files.next_handle

        def interrupted() -> str:
            name = take()
            if not other.ident:
                other.start()
                other.join(0.05)
            return name

        monkeypatch.setattr(files, "next_handle", interrupted)
        first = files.keep("a result")
        other.join()
        assert {first, *found} == {".h_001", ".h_002"}


class TestRevival:
    """Values in a new process of the same agent."""

    async def test_stored_values_are_restored(self, agent: Agent, tmp_path: Path) -> None:
        """A new process reads values with their metadata and continues the numbering of handles."""
        await agent.run("import pandas\npandas.DataFrame({'a': range(99)})")
        again = Agent(tmp_path)
        assert (await again.read(".h_001", op="summary")).startswith(".h_001: pandas.DataFrame, 99 rows x 1 column")
        assert (await again.run("handles[1].a.sum()")).text.endswith("4851)")
        assert ".h_002" in (await again.run("list(range(5000))")).text

    async def test_lost_object_states_the_reason(self, agent: Agent, tmp_path: Path) -> None:
        """In a new process, the error for an object that was not stored says why it was not stored."""
        await agent.run(OBJECTS)
        with pytest.raises(ToolError, match=r"gone with the process that held it.*its \[0\] is of type Thing"):
            Agent(tmp_path).values.load(".h_001")

    async def test_first_result_after_a_restart_lists_lost_names_and_handles(
        self, agent: Agent, tmp_path: Path
    ) -> None:
        """The note about lost names and kept handles is part of the first result only."""
        await agent.run("import math\nx = 1\nlist(range(5000))")
        again = Agent(tmp_path)
        output = (await again.run("2")).text.splitlines()
        assert output == [
            "[This is a new Python process: what earlier calls had bound is gone (math, x). Handles are kept: .h_001.]",
            "2",
        ]
        assert (await again.run("2")).text == "2"

    async def test_deleted_archives_leave_no_handle_names(self, agent: Agent, tmp_path: Path) -> None:
        """After deletion, no file of the session contains names of variables or handles."""
        from orch_worker.tools.python import namespace

        await agent.run("secret_name = 1\nlist(range(5000))")
        delete_other_values(tmp_path, set())
        namespace.forget(tmp_path)
        assert written(tmp_path) == ["[]"]
        assert (await Agent(tmp_path).run("2")).text.startswith("[This is a new Python process")

    async def test_handles_without_a_session_folder_last_for_the_process(self) -> None:
        """The marker says that there is no session folder, and code can use the handle."""
        agent = Agent(None)
        assert "this agent has no session folder" in (await agent.run("list(range(5000))")).text
        assert (await agent.run("len(handles[1])")).text == "5000"


class TestCopies:
    """Values that a fork receives."""

    @pytest.mark.parametrize("links", [True, False])
    def test_fork_copies_the_handles_its_conversation_names(
        self, agent: Agent, links: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The values are copied with their metadata, as hard links or as copies."""

        def refuse(*_: object, **__: object) -> None:
            raise OSError(18, "Invalid cross-device link")

        if not links:
            monkeypatch.setattr("os.link", refuse)
        for start in range(2):
            agent.values.keep(list(range(start, 5000)))
        folder = agent.context.folder
        assert folder is not None
        copy = folder / "copy"
        copy.mkdir()
        copy_values(folder, copy, b"... read_handle with .h_002 shows any part ...")
        values = ValueStore(ToolContext(Path("/"), folder=copy))
        assert [(kept.handle, kept.note.extent) for kept in values.rows()] == [(".h_002", "4,999 items")]


class TestRoom:
    """Limits on the size of stored values."""

    def test_oldest_unpinned_value_is_evicted_and_reported(self, tmp_path: Path) -> None:
        """The agent receives one notice, and reading the evicted value is an error with the reason."""
        values = ValueStore(ToolContext(Path("/"), folder=tmp_path), on_disk=25_000)
        for start in range(3):
            values.keep(list(range(start, 2_000 + start)))
            values.pin(".h_001")
        assert list(values) == [".h_001", ".h_003"]
        assert values.take_notices() == [
            "[.h_002 (list) is gone: stored values may take 24.4 KB, and it was the oldest.]",
        ]
        assert values.take_notices() == []
        with pytest.raises(ToolError, match=r"\.h_002 is gone: stored values may take"):
            values.load(".h_002")

    def test_tool_results_are_not_evicted(self, tmp_path: Path) -> None:
        """Tool results do not count for the limit of values, because they document what the model saw."""
        context = ToolContext(Path("/"), folder=tmp_path)
        context.agent_object(ValueFiles).keep("x" * 100_000)
        values = ValueStore(context, on_disk=10)
        values.keep(list(range(2_000)))
        assert list(values) == [".h_001", ".h_002"]

    def test_in_memory_objects_have_their_own_limit(self, tmp_path: Path) -> None:
        """Objects that cannot be stored are evicted at a separate limit."""
        values = ValueStore(ToolContext(Path("/"), folder=tmp_path), in_memory=10_000)
        first, second = ([object() for _ in range(300)] for _ in range(2))
        values.keep(first)
        values.keep(second)
        assert list(values) == [".h_002"]
        assert "values in memory may take 9.8 KB" in values.take_notices()[0]

    def test_oversized_value_stays_in_memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The marker of a value over the maximum size says that the value is not stored."""
        monkeypatch.setattr("orch_worker.tools.values.values.MAX_STORED", 1_000)
        kept = ValueStore(ToolContext(Path("/"), folder=tmp_path)).keep(list(range(5_000)))
        assert "values of more than 1000 bytes are not stored" in kept.text(frozenset())

    def test_full_disk_raises_and_leaves_no_partial_value(self, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
        """If a value cannot be written, the error of the system is raised and no value remains."""

        def fail(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="No space"):
            agent.values.keep(list(range(5_000)))
        assert list(agent.values) == []


class TestGlimpses:
    """Short descriptions of values."""

    def test_describing_a_value_imports_no_library(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """pandas is not imported even for a value whose class claims to be from pandas."""
        monkeypatch.delitem(sys.modules, "pandas")
        stranger = type("DataFrame", (list,), {"__module__": "pandas.core.frame"})(range(3))
        assert summarize_value(stranger).extent == "3 items"
        assert "pandas" not in sys.modules

    def test_describing_a_value_whose_methods_raise(self) -> None:
        """A description leaves out the parts that fail and contains the type."""

        class Rude(list):  # type: ignore[type-arg]
            def __len__(self) -> int:
                raise RuntimeError

            __repr__ = __iter__ = __getitem__ = __len__  # type: ignore[assignment]

        assert summarize_value(Rude()).type.endswith("Rude")
        assert "Rude instance at" in one_line_repr(Rude())
        assert not is_large(Rude())

    def test_recursive_list_is_described_in_bounded_time(self) -> None:
        """A list that contains itself has a size and a description."""
        held: list[Any] = []
        held.append(held)
        assert not is_large([1, 2, 3])
        assert memory_bytes(held) < 10_000
        assert summarize_value(held).extent == "1 item"

    def test_memory_of_large_values_is_estimated(self) -> None:
        """The memory of a list is estimated, and arrays and data frames report their size."""
        assert 5_000_000 < memory_bytes([str(n) * 10 for n in range(100_000)]) < 20_000_000
        assert memory_bytes(np.zeros(1000)) == 8000
        assert memory_bytes(pd.DataFrame({"a": range(1000)})) > 8000
        assert memory_bytes(pl.DataFrame({"a": range(1000)})) == 8000


def test_two_processes_of_an_agent_never_share_a_handle(tmp_path: Path) -> None:
    """The worker and the tool host store values at the same time, and each sees the values of the other."""
    one, other = (ValueFiles(ToolContext(tmp_path, folder=tmp_path)) for _ in range(2))

    def keep_all(files: ValueFiles, name: str) -> list[str]:
        return [files.keep(f"{name} {number}") for number in range(100)]

    with ThreadPoolExecutor(2) as threads:
        kept = [handle for handles in threads.map(keep_all, (one, other), ("a", "b")) for handle in handles]
    assert len(set(kept)) == len(one.files()) == len(other.files()) == 200
    assert not list(tmp_path.glob("stash/*.note"))
