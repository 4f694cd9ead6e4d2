"""Values under handles: kept, read in parts, seen by code, gone with a reason; and what is said of them."""

from __future__ import annotations

import sys
import threading
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
from orch_worker.tools.values.store import ValueFiles, keep_only, take_along
from orch_worker.tools.values.values import ValueStore

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
np = pytest.importorskip("numpy")

OBJECTS = "class Thing: pass\nthings = [Thing() for _ in range(2000)]\nthings"


def written(folder: Path) -> list[str]:
    """Return what the files below `folder` hold."""
    return [file.read_text() for file in folder.rglob("*") if file.is_file()]


class Agent:
    """One agent of a session folder; another one of the same folder is it, revived."""

    def __init__(self, folder: Path | None, *tools: Any) -> None:
        self.context = ToolContext(Path("/"), agent_id="a1", folder=folder, seconds=30.0)
        self.box = Toolbox(tools or (run_python, read_handle), self.context)
        self.values = self.context.own(ValueStore)

    async def run(self, code: str) -> ToolOutput:
        """Return what run_python says."""
        return await run_python.run(self.context, {"code": code})

    async def read(self, handle: str, **input: Any) -> str:
        """Return what read_handle says."""
        return (await read_handle.run(self.context, {"handle": handle, **input})).text


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


class TestMarkers:
    """What stands for a large value."""

    @pytest.mark.parametrize(
        ("code", "told"),
        [
            ("list(range(5000))", "list, 5,000 items"),
            ("{'a': 'x' * 5000}", "dict, 1 item"),
            ("'word ' * 2000", "str, 10,000 characters"),
            ("import numpy; numpy.zeros((100, 30))", "numpy.ndarray, 100 x 30 of float64, 23.4 KB"),
            ("import pandas; pandas.DataFrame({'a': range(99), 'b': [None] * 99})", "pandas.DataFrame, 99 rows x 2"),
            ("import polars; polars.DataFrame({'a': range(99)})", "polars.DataFrame, 99 rows x 1 column"),
        ],
    )
    async def test_a_large_value_is_a_handle(self, agent: Agent, code: str, told: str) -> None:
        """In its place stand handle, type, extent, size, beginning, and how to read on."""
        text = (await agent.run(code)).text
        assert text.startswith(f"[.h_001: {told}")
        assert 'in run_python it is handles["h_001"]]' in text
        assert "read_handle shows any part" in text
        assert len(text) < 2_000

    @pytest.mark.parametrize("code", ["list(range(50))", "'x' * 100", "{}", "7", "import numpy; numpy.zeros(3)"])
    async def test_a_small_value_is_shown(self, agent: Agent, code: str) -> None:
        """What fits is shown as Python shows it, and no handle is made."""
        assert "h_001" not in (await agent.run(code)).text
        assert list(agent.values) == []

    async def test_frames_say_columns_types_and_missing(self, agent: Agent) -> None:
        """A table is told by its columns: type, missing values, range; and its first rows."""
        text = (
            await agent.run("import pandas; pandas.DataFrame({'n': range(99), 's': ['x', None] * 49 + ['y']})")
        ).text
        assert "n | int64 | 0 | 0 to 98" in text
        assert "| 49 |" in text
        assert "0 | x" in text

    async def test_without_read_handle(self, tmp_path: Path) -> None:
        """An agent that has no read_handle is not told of it."""
        text = (await Agent(tmp_path, run_python).run("list(range(5000))")).text
        assert "read_handle" not in text
        assert 'handles["h_001"]' in text

    async def test_without_anything_that_reads_it(self, agent: Agent) -> None:
        """An agent that holds a value and cannot read it hears who can take it."""
        text = agent.values.keep(list(range(5000))).text(frozenset({"query_subagent"}))
        assert "none of your tools reads it, but whoever spawned you can take it" in text

    async def test_an_object_is_told_to_be_fleeting(self, agent: Agent) -> None:
        """A value that is no data is kept as long as the process, which is said, with the reason."""
        text = (await agent.run(OBJECTS)).text
        assert "not stored, so gone when this process ends: its [0] is of type Thing" in text
        assert "Thing" in await agent.read(".h_001", op="head", count=1)

    async def test_the_same_value_has_one_handle(self, agent: Agent) -> None:
        """Looking twice keeps nothing twice."""
        await agent.run("xs = list(range(5000))\nxs")
        assert ".h_001" in (await agent.run("xs")).text
        assert list(agent.values) == [".h_001"]

    async def test_a_handle_is_what_the_value_was(self, agent: Agent) -> None:
        """Code that goes on changing the value does not change what is kept."""
        await agent.run("xs = list(range(5000))\nxs")
        await agent.run("xs.clear()")
        assert (await agent.run("len(handles['h_001']), len(xs)")).text == "(5000, 0)"

    async def test_what_is_shown_of_a_step_stays_within_bounds(self, agent: Agent) -> None:
        """A value of megabytes costs the conversation a few lines."""
        call = ToolUse("c", "run_python", {"code": "[{'k': 'v' * 100}] * 100_000"})
        (shown,) = agent.box.shown([call], [await agent.box.dispatch(call)])
        (block,) = shown.result.content
        assert isinstance(block, Text)
        assert len(block.text) < 1_000


class TestReading:
    """read_handle."""

    async def test_head_tail_slice_of_items(self, agent: Agent) -> None:
        """Items are numbered from 0; each page says where it goes on."""
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
    async def test_rows_of_tables(self, agent: Agent, library: str) -> None:
        """Rows of a table come under the names of its columns."""
        await agent.run(f"import {library} as l\nl.DataFrame({{'a': range(500), 'b': ['v'] * 500}})")
        assert (await agent.read(".h_001", op="slice", lines="100:102")).splitlines() == [
            "a | b",
            "100 | v",
            "101 | v",
            "[rows 100 to 102 of 500]",
        ]
        assert (await agent.read(".h_001", op="schema")).splitlines()[1].startswith("a | ")
        assert await agent.read(".h_001", search="^49[89] ") == "498: 498 | v\n499: 499 | v"

    async def test_arrays_and_columns(self, agent: Agent) -> None:
        """Arrays are read along their first axis, a column by places and not by its index."""
        await agent.run("import numpy, pandas\nnumpy.arange(3000).reshape(1000, 3)")
        await agent.run("pandas.Series(range(100), index=range(900, 1000))")
        assert (await agent.read(".h_001", op="tail", count=1)).startswith("[999] [2997, 2998, 2999]\n")
        assert (await agent.read(".h_002", op="head", count=1)).startswith("[0] 0\n")
        assert "shape (1000, 3), type int64" in await agent.read(".h_001", op="schema")

    async def test_keys_and_one_of_them_whole(self, agent: Agent) -> None:
        """One line that is long is read by offsets, and so to its end."""
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

    async def test_pages_of_a_long_list_lose_nothing(self, agent: Agent) -> None:
        """Page after page, following the lines that each names, every item is seen once, and no page is cut again."""
        await agent.run("[f'item {n} ' + '.' * 100 for n in range(1000)]")
        seen, lines = [], ":"
        while lines:
            call = ToolUse("c", "read_handle", {"handle": ".h_001", "op": "slice", "lines": lines})
            (shown,) = agent.box.shown([call], [await agent.box.dispatch(call)])
            (block,) = shown.result.content
            assert isinstance(block, Text)
            assert len(block.text) < MAX_SHOWN
            assert "left out" not in block.text
            *rows, note = block.text.splitlines()
            seen += [int(row.split()[2]) for row in rows]
            lines = note.partition('go on with lines="')[2].rstrip('"]')
        assert seen == list(range(1000))

    async def test_lines_of_a_text(self, agent: Agent) -> None:
        """A long result of a tool is lines too."""
        handle = agent.context.own(ValueFiles).keep("".join(f"line {n}\n" for n in range(3000)))
        assert (await agent.read(handle, op="tail", count=2)).splitlines() == [
            "line 2998",
            "line 2999",
            "[lines 2,998 to 3,000 of 3,000]",
        ]
        assert (await agent.read(handle, op="search", search="line 2999", lines="2000:")) == "2999: line 2999"

    async def test_search_stops_and_goes_on(self, agent: Agent) -> None:
        """A search that finds much stops, and goes on from the lines that it names."""
        await agent.run("list(range(5000))")
        found, lines = [], ":"
        while lines:
            *hits, last = (await agent.read(".h_001", search="7", lines=lines)).splitlines()
            stopped = last.startswith("[stopped here")
            found += [int(hit.partition(":")[0]) for hit in ([*hits] if stopped else [*hits, last])]
            lines = last.partition('lines="')[2].rstrip('"]') if stopped else ""
        assert found == [n for n in range(5000) if "7" in str(n)]

    @pytest.mark.parametrize(
        ("input", "told"),
        [
            ({"op": "slice"}, "slice needs lines"),
            ({"op": "slice", "lines": "a:b"}, "Invalid range"),
            ({"op": "slice", "lines": "9000:"}, "There are 5,000 items, numbered from 0; none in '9000:'"),
            ({"op": "search"}, "search needs a pattern"),
            ({"search": "(a+"}, "is not a regular expression"),
        ],
    )
    async def test_errors_say_what_to_do(self, agent: Agent, input: dict[str, Any], told: str) -> None:
        """A wrong range or pattern is an error that says how to say it."""
        await agent.run("list(range(5000))")
        with pytest.raises(ToolError, match=told.replace("(", r"\(").replace("+", r"\+")):
            await agent.read(".h_001", **input)


class TestCode:
    """`handles` in run_python."""

    async def test_by_any_spelling(self, agent: Agent) -> None:
        """A handle is found by number, and with and without its dot."""
        await agent.run("list(range(5000))")
        code = "handles['h_001'] == handles['.h_001'] == handles[1], len(handles), 'h_001' in handles, list(handles)"
        assert (await agent.run(code)).text == "(True, 1, True, ['h_001'])"
        assert (await agent.run("handles")).text.startswith("h_001: list, 5,000 items")

    async def test_results_of_tools(self, agent: Agent) -> None:
        """The whole of a long result is a text in code."""
        agent.context.own(ValueFiles).keep("a,b\n1,2\n")
        assert (await agent.run("handles['h_001'].splitlines()")).text == "['a,b', '1,2']"

    async def test_keep_pin_drop(self, agent: Agent) -> None:
        """Code may keep what is small, too, and let go what it needs no more."""
        assert (await agent.run("handles.keep({'n': 1})")).text == "'h_001'"
        await agent.run("handles.pin(1)")
        assert agent.values.get("1").note.pinned
        await agent.run("handles.unpin(1)\nhandles.drop(1)")
        with pytest.raises(ToolError, match=r"\.h_001 is gone: it was dropped"):
            agent.values.get("1")

    async def test_no_such_handle(self, agent: Agent) -> None:
        """The error names the handle, and shows no code but the agent's own."""
        text = (await agent.run("handles['h_009']")).text
        assert "There is no 'h_009'. Nothing is kept." in text
        assert "in __getitem__" not in text

    async def test_handles_is_no_name_of_theirs(self, agent: Agent) -> None:
        """It is not listed among what code has bound; code that binds it has it."""
        await agent.run("handles = 3")
        assert (await agent.run("handles")).text == "3"

    async def test_what_a_handle_brings_stays_told(self, agent: Agent) -> None:
        """Code that has read something untrusted is marked by it from then on: what it prints may be of that."""
        agent.context.own(ValueFiles).keep("from the web", ["untrusted"])
        assert (await agent.run("1")).marks == ()
        assert [mark.bit for mark in (await agent.run("t = handles[1]")).marks] == ["untrusted"]
        assert [mark.bit for mark in (await agent.run("t")).marks] == ["untrusted"]

    @pytest.mark.parametrize("large", ["[seen] * 2000", "[object(), seen] * 2000"])
    async def test_what_code_keeps_brings_what_it_may_be_of(self, agent: Agent, large: str) -> None:
        """What was kept by name, data or an object, is as untrusted and as local as what had been read before it."""
        agent.values.keep("from the web", bits=["untrusted"], local=True)
        await agent.run("seen = handles[1]")
        await agent.run(f"handles.keep({large})")
        read = await read_handle.run(agent.context, {"handle": ".h_002", "op": "summary"})
        assert ([mark.bit for mark in read.marks], read.local) == (["untrusted"], True)

    @pytest.mark.parametrize("what", ["a text", [1, 2], [object()]])
    def test_the_same_value_kept_again_is_local_when_either_is(self, agent: Agent, tmp_path: Path, what: Any) -> None:
        """Also one that a result had brought, without a word about it; also in another process."""
        if what == "a text":
            agent.context.own(ValueFiles).keep(what)
        agent.values.keep(what)
        assert agent.values.keep(what, local=True).note.local
        assert agent.values.get(".h_001").note.local
        if "object" not in str(what):
            assert Agent(tmp_path).values.get(".h_001").note.local

    def test_a_value_is_known_to_be_local_before_it_is_there(
        self, agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A process that is killed between the two leaves no value that anybody may read."""

        write = store._written

        def killed(path: Path, data: bytes) -> None:
            if path.suffix == ".note":
                raise SystemExit
            write(path, data)

        monkeypatch.setattr("orch_worker.tools.values.store._written", killed)
        with pytest.raises(SystemExit):
            agent.values.keep([1, 2], local=True)
        monkeypatch.undo()
        assert list(Agent(tmp_path).values) == []

    def test_two_that_keep_at_once_have_two_handles(self, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
        """A result and a value: while the one is being written, nothing else takes its handle."""
        files, found = agent.context.own(ValueFiles), []
        other = threading.Thread(target=lambda: found.append(agent.values.keep([1, 2]).handle))
        take = files.next

        def interrupted() -> str:
            name = take()
            if not other.ident:
                other.start()
                other.join(0.05)
            return name

        monkeypatch.setattr(files, "next", interrupted)
        first = files.keep("a result")
        other.join()
        assert {first, *found} == {".h_001", ".h_002"}


class TestRevival:
    """What another process of the same agent finds."""

    async def test_data_is_there(self, agent: Agent, tmp_path: Path) -> None:
        """Stored values are as they were, with what is known of them; numbers go on."""
        await agent.run("import pandas\npandas.DataFrame({'a': range(99)})")
        again = Agent(tmp_path)
        assert (await again.read(".h_001", op="summary")).startswith(".h_001: pandas.DataFrame, 99 rows x 1 column")
        assert (await again.run("handles[1].a.sum()")).text.endswith("4851)")
        assert ".h_002" in (await again.run("list(range(5000))")).text

    async def test_objects_are_gone_and_why(self, agent: Agent, tmp_path: Path) -> None:
        """A handle whose value could not be stored says so, and why."""
        await agent.run(OBJECTS)
        with pytest.raises(ToolError, match=r"gone with the process that held it.*its \[0\] is of type Thing"):
            Agent(tmp_path).values.load(".h_001")

    async def test_the_agent_hears_what_is_gone(self, agent: Agent, tmp_path: Path) -> None:
        """The first result in another process names what was bound, and the handles that are there; once."""
        await agent.run("import math\nx = 1\nlist(range(5000))")
        again = Agent(tmp_path)
        said = (await again.run("2")).text.splitlines()
        assert said == [
            "[This is a new Python process: what earlier calls had bound is gone (math, x). Handles are kept: .h_001.]",
            "2",
        ]
        assert (await again.run("2")).text == "2"

    async def test_deleting_archives_leaves_no_names(self, agent: Agent, tmp_path: Path) -> None:
        """What was deleted for good is in no note either; handles that nothing names are gone with theirs."""
        from orch_worker.tools.python import namespace

        await agent.run("secret_name = 1\nlist(range(5000))")
        keep_only(tmp_path, set())
        namespace.forget(tmp_path)
        assert written(tmp_path) == ["[]"]
        assert (await Agent(tmp_path).run("2")).text.startswith("[This is a new Python process")

    async def test_without_a_folder(self) -> None:
        """An agent without a session folder has handles as long as it lives."""
        agent = Agent(None)
        assert "this agent has no session folder" in (await agent.run("list(range(5000))")).text
        assert (await agent.run("len(handles[1])")).text == "5000"


class TestCopies:
    """What an agent that is made of another one takes along."""

    @pytest.mark.parametrize("links", [True, False])
    def test_what_its_conversation_names(self, agent: Agent, links: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """Handles that are named come along with their notes, by link or by copy; others stay behind."""

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
        take_along(folder, copy, b"... read_handle with .h_002 shows any part ...")
        values = ValueStore(ToolContext(Path("/"), folder=copy))
        assert [(kept.handle, kept.note.extent) for kept in values.rows()] == [(".h_002", "4,999 items")]


class TestRoom:
    """What there is room for."""

    def test_the_oldest_goes_and_is_told(self, tmp_path: Path) -> None:
        """Values past the bound let the oldest go that is not pinned; its handle says why, and the agent hears it."""
        values = ValueStore(ToolContext(Path("/"), folder=tmp_path), on_disk=25_000)
        for start in range(3):
            values.keep(list(range(start, 2_000 + start)))
            values.pin(".h_001")
        assert list(values) == [".h_001", ".h_003"]
        assert values.told() == [
            "[.h_002 (list) is gone: stored values may take 24.4 KB, and it was the oldest.]",
        ]
        assert values.told() == []
        with pytest.raises(ToolError, match=r"\.h_002 is gone: stored values may take"):
            values.load(".h_002")

    def test_results_of_tools_stay(self, tmp_path: Path) -> None:
        """Long results are the record of what was seen: they do not go."""
        context = ToolContext(Path("/"), folder=tmp_path)
        context.own(ValueFiles).keep("x" * 100_000)
        values = ValueStore(context, on_disk=10)
        values.keep(list(range(2_000)))
        assert list(values) == [".h_001", ".h_002"]

    def test_objects_in_memory(self, tmp_path: Path) -> None:
        """Objects that only the process has are bounded by themselves."""
        values = ValueStore(ToolContext(Path("/"), folder=tmp_path), in_memory=10_000)
        first, second = ([object() for _ in range(300)] for _ in range(2))
        values.keep(first)
        values.keep(second)
        assert list(values) == [".h_002"]
        assert "values in memory may take 9.8 KB" in values.told()[0]

    def test_what_is_too_large_to_be_stored(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its marker says that it lives as long as the process."""
        monkeypatch.setattr("orch_worker.tools.values.values.MOST_STORED", 1_000)
        kept = ValueStore(ToolContext(Path("/"), folder=tmp_path)).keep(list(range(5_000)))
        assert "values of more than 1000 bytes are not stored" in kept.text(frozenset())

    def test_a_full_disk(self, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
        """A value that cannot be written is an error of the system, and no half of it is left."""

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "rename", fail)
        with pytest.raises(OSError, match="No space"):
            agent.values.keep(list(range(5_000)))
        assert list(agent.values) == []


class TestGlimpses:
    """What is said of values."""

    def test_libraries_are_not_imported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing is imported to look at a value, also at one that says it is of pandas."""
        monkeypatch.delitem(sys.modules, "pandas")
        stranger = type("DataFrame", (list,), {"__module__": "pandas.core.frame"})(range(3))
        assert summarize_value(stranger).extent == "3 items"
        assert "pandas" not in sys.modules

    def test_values_that_raise(self) -> None:
        """Code of somebody else's that fails when it is looked at costs what it would have said."""

        class Rude(list):  # type: ignore[type-arg]
            def __len__(self) -> int:
                raise RuntimeError

            __repr__ = __iter__ = __getitem__ = __len__  # type: ignore[assignment]

        assert summarize_value(Rude()).type.endswith("Rude")
        assert "Rude instance at" in one_line_repr(Rude())
        assert not is_large(Rude())

    def test_what_holds_itself(self) -> None:
        """A list within itself is looked at for a moment."""
        held: list[Any] = []
        held.append(held)
        assert not is_large([1, 2, 3])
        assert memory_bytes(held) < 10_000
        assert summarize_value(held).extent == "1 item"

    def test_memory_of_much_is_estimated(self) -> None:
        """A part is looked at, and the rest is about as much."""
        assert 5_000_000 < memory_bytes([str(n) * 10 for n in range(100_000)]) < 20_000_000
        assert memory_bytes(np.zeros(1000)) == 8000
        assert memory_bytes(pd.DataFrame({"a": range(1000)})) > 8000
        assert memory_bytes(pl.DataFrame({"a": range(1000)})) == 8000
