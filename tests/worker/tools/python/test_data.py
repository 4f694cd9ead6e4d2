"""`describe_data` and `describe_variables`: tables in files of several formats and in variables of `run_python`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orch_protocol.core.messages import Text, ToolUse
from orch_worker.tools.api.base import ToolContext, ToolError
from orch_worker.tools.dispatch.presets import load
from orch_worker.tools.dispatch.toolbox import Toolbox
from orch_worker.tools.python import data
from orch_worker.tools.python.python import run_python
from orch_worker.tools.values import tables
from orch_worker.tools.values.repr import MAX_COLUMNS, Columns, parse_cell

DESCRIBE, VARIABLES = load(["data"])

PUMPS = """\
id,name,opened,flow,on
1,north,2024-05-01,1.5,true
2,"south, old",2024-06-01,,false
3,north,,2.5,true
"""


async def describe(folder: Path, name: str, content: str | bytes, **more: Any) -> str:
    """Return the text of `describe_data` for a file with this name and content."""
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return (await DESCRIBE.run(ToolContext(folder, seconds=30.0), {"path": name, **more})).text


def cells(text: str) -> dict[str, list[str]]:
    """Return the rows of the table of columns in `text` by name: type, missing, distinct and values."""
    lines = text.partition("\ncolumn | ")[2].partition("\n\n")[0].splitlines()[1:]
    return {cells[0]: cells[1:] for cells in (line.split(" | ") for line in lines)}


class TestFiles:
    """Tables in files: describe_data."""

    async def test_description_lists_columns_and_first_rows(self, tmp_path: Path) -> None:
        """The description shows type, missing values, distinct values and range of each column."""
        text = await describe(tmp_path, "pumps.csv", PUMPS, rows=2)
        assert text.splitlines() == [
            "pumps.csv: separated by commas, 3 rows, 5 columns",
            "",
            "column | type | missing | distinct | values",
            "id | integer | 0 | 3 | 1 to 3, mean 2",
            "name | text | 0 | 2 | 'north' 2, 'south, old' 1",
            "opened | date | 1 | 2 | 2024-05-01 to 2024-06-01",
            "flow | number | 1 | 2 | 1.5 to 2.5, mean 2",
            "on | boolean | 0 | 2 | 'True' 2, 'False' 1",
            "",
            "The first 2 of 3 rows:",
            "id | name | opened | flow | on",
            "1 | north | 2024-05-01 | 1.5 | True",
            "2 | south, old | 2024-06-01 |  | False",
        ]

    @pytest.mark.parametrize(
        ("name", "content", "kind"),
        [
            ("a.tsv", "x\ty\n1\ta,b\n2\tc", "separated by tabs"),
            ("a.csv", "x;y\n1;a,b\n2;c,d", "separated by semicolons"),
            ("a.csv", "x|y\n1|a\n2|c", "separated by bars"),
            ("a.csv", "\ufeffx,y\n1,a\n2,c", "separated by commas"),
            ("a.csv", "x,y\n1,a\n2,c".encode("utf-16"), "separated by commas"),
            ("a.csv", 'x,y\r\n1,"a\nb"\r\n\r\n2,c\r\n', "separated by commas"),
            ("a.jsonl", '{"x": 1, "y": "a"}\n\n{"x": 2, "y": "c"}\n', "JSON lines"),
            ("a.ndjson", '{"x": 1, "y": "a"}\n{"x": 2, "y": "c"}', "JSON lines"),
            ("a.json", '[{"x": 1, "y": "a"}, {"x": 2, "y": "c"}]', "list of objects"),
            ("a.json", '{"x": [1, 2], "y": ["a", "c"]}', "dict of columns"),
            ("a.json", '{"count": 2, "of": [], "rows": [{"x": 1, "y": "a"}, {"x": 2, "y": "c"}]}', "under 'rows'"),
        ],
    )
    async def test_all_formats_give_the_same_columns(
        self, tmp_path: Path, name: str, content: str | bytes, kind: str
    ) -> None:
        """A table has the same columns in CSV with any separator, in JSON and in JSON lines."""
        text = await describe(tmp_path, name, content)
        assert kind in text.splitlines()[0]
        assert "2 rows, 2 columns" in text.splitlines()[0]
        found = cells(text)
        assert list(found) == ["x", "y"]
        assert found["x"] == ["integer", "0", "2", "1 to 2, mean 1.5"]
        assert found["y"][0] == "text"

    async def test_table_without_a_header_has_numbered_columns(self, tmp_path: Path) -> None:
        """A first row that contains numbers is a row of data, and the columns are numbered."""
        text = await describe(tmp_path, "a.csv", "1,a\n2,b\n")
        assert "without a header, 2 rows" in text
        assert list(cells(text)) == ["column_1", "column_2"]

    async def test_missing_and_duplicate_column_names_are_made_unique(self, tmp_path: Path) -> None:
        """A column without a name is numbered, and a duplicate name gets a suffix."""
        assert list(cells(await describe(tmp_path, "a.csv", ",x,x\na,b,c\n"))) == ["column_1", "x", "x_2"]

    async def test_rows_of_unequal_length_are_reported(self, tmp_path: Path) -> None:
        """Rows with too many or too few fields are counted, and missing fields are missing values."""
        text = await describe(tmp_path, "a.csv", "x,y\n1,2\n3\n4,5,6\n")
        assert "[2 rows have more or fewer fields than the first]" in text
        assert cells(text)["y"][:2] == ["integer", "1"]

    async def test_non_object_lines_are_counted(self, tmp_path: Path) -> None:
        """Lines that are not JSON objects are counted, and the other lines are described."""
        text = await describe(tmp_path, "a.jsonl", '{"x": 1}\n{"x": \n[1]\n{"x": 2, "y": null}\n')
        assert "2 rows, 2 columns" in text
        assert "[2 lines are no JSON objects, the first of them line 2]" in text
        assert cells(text)["y"][:2] == ["nothing", "2"]

    async def test_other_encodings_are_read_and_reported(self, tmp_path: Path) -> None:
        """A file that is not UTF-8 is read as Latin-1, and the description says so."""
        text = await describe(tmp_path, "a.csv", "x,y\nGrün,1\n".encode("latin-1"))
        assert "[it is not UTF-8: read as Latin-1]" in text
        assert "Grün" in text

    @pytest.mark.parametrize(
        ("name", "content", "why"),
        [
            ("a.txt", "x", r"'a.txt' is not one of \.csv, .*use read_file for text"),
            ("a.csv", b"a\0b", "is a binary file"),
            ("a.json", "{", "is not valid JSON"),
            ("a.json", "[1, 2]", "contains no table but a list of 2 values"),
            ("a.json", '"word"', "contains no table but the value 'word'"),
        ],
    )
    async def test_files_without_a_table_are_refused_with_a_hint(
        self, tmp_path: Path, name: str, content: str | bytes, why: str
    ) -> None:
        """The error says why the file contains no table, or which tool to use instead."""
        with pytest.raises(ToolError, match=why):
            await describe(tmp_path, name, content)

    async def test_endless_line_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A line over the maximum length is an error, so that an endless line cannot fill the memory."""
        monkeypatch.setattr(tables, "MAX_LINE", 100)
        with pytest.raises(ToolError, match="a line of more than 100 characters"):
            await describe(tmp_path, "a.csv", "x,y\n" + '"' + "1" * 1000)

    @pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
    @pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
    async def test_chunk_boundaries_do_not_matter(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, encoding: str
    ) -> None:
        """The description is the same if a chunk ends inside a character, a field or a line ending."""
        content = end.join(["x,y", "ä,東京", '"a,b",c', "z,😀"])
        for size in (1, 2, 3, 1000):
            monkeypatch.setattr(tables, "CHUNK", size)
            text = await describe(tmp_path, "a.csv", content.encode(encoding))
            assert text.splitlines()[-3:] == ["ä | 東京", "a,b | c", "z | 😀"]
            assert "3 rows, 2 columns" in text

    async def test_large_json_document_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A JSON file over the size limit is an error, because a JSON file is read completely."""
        monkeypatch.setattr(tables, "MAX_WHOLE", 10)
        with pytest.raises(ToolError, match="13 bytes: a JSON file is read completely"):
            await describe(tmp_path, "a.json", '[{"x": 12345}')

    @pytest.mark.parametrize(
        ("path", "why"), [("../x.csv", "outside"), ("sub", "folder"), ("nope.csv", "does not exist")]
    )
    async def test_paths_outside_the_folder_are_refused(self, tmp_path: Path, path: str, why: str) -> None:
        """A path outside the working folder, a folder and a missing file are errors."""
        (tmp_path / "w" / "sub").mkdir(parents=True)
        (tmp_path / "x.csv").write_text("a\n1\n")
        with pytest.raises(ToolError, match=why):
            await DESCRIBE.run(ToolContext(tmp_path / "w", seconds=30.0), {"path": path})

    async def test_empty_file_has_no_columns(self, tmp_path: Path) -> None:
        """An empty file and a file with only a header are described without an error."""
        assert "0 rows, 0 columns" in await describe(tmp_path, "a.csv", "")
        assert "0 rows, 2 columns" in await describe(tmp_path, "a.csv", "x,y\n")

    async def test_timeout_describes_the_part_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """After the time limit, only the rows read so far are described, and a note says so."""
        monkeypatch.setattr(data, "CHECKED_ROWS", 2)
        (tmp_path / "a.csv").write_text("x\n" + "1\n" * 10)
        text = (await DESCRIBE.run(ToolContext(tmp_path, seconds=0.0), {"path": "a.csv"})).text
        assert "2 rows" in text
        assert "[time was up: there are more rows" in text

    async def test_long_description_is_stored_under_a_handle(self, tmp_path: Path) -> None:
        """A description that is too long is cut, and the complete text can be read with `read_handle`."""
        (tmp_path / "a.csv").write_text(",".join(f"measurement_{n}" for n in range(900)) + "\n" + ",".join("1" * 900))
        box = Toolbox(load(["data", "read_handle"]), ToolContext(tmp_path, folder=tmp_path))
        use = ToolUse("c", "describe_data", {"path": "a.csv"})
        (shown,) = box.limit_results([use], [await box.dispatch(use)])
        (block,) = shown.result.content
        assert isinstance(block, Text)
        assert len(block.text) <= 30_000
        assert "read_handle with .h_001" in block.text

    @pytest.mark.parametrize("library", tables.FRAMES)
    async def test_parquet_is_read_with_an_installed_library(
        self, tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each supported library can read the file, and an invalid file is an error."""
        installed = pytest.importorskip(library)
        if library == "pandas":
            pytest.importorskip("pyarrow", reason="pandas reads Parquet through it")
        monkeypatch.setattr(tables, "FRAMES", (library,))
        monkeypatch.setattr(tables, "check_reads_safely", lambda *_: None)
        made = installed.DataFrame({"x": [1, 2, None], "when": ["a", "b", "c"]})
        (made.write_parquet if library == "polars" else made.to_parquet)(tmp_path / "a.parquet")
        text = (await DESCRIBE.run(ToolContext(tmp_path, seconds=30.0), {"path": "a.parquet"})).text
        assert f"{library}.DataFrame, 3 rows, 2 columns" in text
        assert cells(text)["x"][1] == "1"
        (tmp_path / "a.parquet").write_bytes(b"PAR1")
        with pytest.raises(ToolError, match=f"cannot be read by {library}"):
            await DESCRIBE.run(ToolContext(tmp_path, seconds=30.0), {"path": "a.parquet"})

    async def test_large_parquet_file_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A Parquet file over the size limit is an error, because a Parquet file is read completely."""
        monkeypatch.setattr(tables, "FRAMES", ("msgspec.json",))
        monkeypatch.setattr("msgspec.json.read_parquet", None, raising=False)
        monkeypatch.setattr(tables, "MAX_PARQUET", 3)
        with pytest.raises(ToolError, match="the maximum for Parquet files"):
            await describe(tmp_path, "a.parquet", b"PAR1")

    async def test_parquet_without_a_library_names_what_to_install(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The error names the libraries and the environment in which to install one of them."""
        monkeypatch.setattr(tables, "FRAMES", ("nothing_of_the_kind", "nor_this"))
        with pytest.raises(ToolError, match="install nothing_of_the_kind or nor_this in the environment of orch"):
            await describe(tmp_path, "a.parquet", b"PAR1")


class TestColumns:
    """The types and statistics of a column."""

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("", None),
            ("N/A", None),
            ("null", None),
            (" 7 ", 7),
            ("-3", -3),
            ("007", "007"),
            ("0", 0),
            ("1e3", 1000.0),
            (".5", 0.5),
            ("1.", 1.0),
            ("1,5", "1,5"),
            ("TRUE", True),
            ("2024-02-30", "2024-02-30"),
            ("9" * 50, "9" * 50),
            ("inf", "inf"),
        ],
    )
    def test_cell_types_are_inferred(self, text: str, value: Any) -> None:
        """A cell becomes a number, a boolean or None. Ambiguous text, such as `007`, stays text."""
        found = parse_cell(text)
        assert found == value
        assert isinstance(found, type(value))

    @pytest.mark.parametrize(
        ("values", "kind", "extent"),
        [
            ([1, 2.5], "number", "1 to 2.5, mean 1.75"),
            ([1, "x", 2], "mixed: integer 2, text 1", "1 to 1 characters"),
            (["2024-01-01", "2024-01-01T10:00:00Z"], "time", "2024-01-01 to 2024-01-01T10:00:00Z"),
            (["2024-01-01", "soon"], "mixed: date 1, text 1", "4 to 4 characters"),
            (["a", "bcd"], "text", "1 to 3 characters"),
            (["a"] * 3 + ["b"], "text", "'a' 3, 'b' 1"),
            ([f"{n % 7}x" for n in range(70)], "text", "'0x' 10, '1x' 10, '2x' 10, ..."),
            ([float("nan"), None], "nothing", ""),
            ([[1], {"a": 1}], "mixed: list 1, object 1", ""),
            ([10**400], "huge integer", f"'1{'0' * 56}...' 1"),
            ([1e20, 3.0], "number", "3 to 1e+20, mean 5e+19"),
        ],
    )
    def test_column_statistics_depend_on_the_type(self, values: list[Any], kind: str, extent: str) -> None:
        """A column is described by its range, by its frequent values or by the lengths of its texts."""
        columns = Columns()
        for value in values:
            columns.add({"c": tables._parse_dates(value)})
        found = cells(f"\n{columns.text()}")["c"]
        assert found[0] == kind
        assert found[3] == extent

    def test_distinct_values_are_counted_up_to_a_bound(self) -> None:
        """More than 500 distinct values are shown as `>500`."""
        columns = Columns()
        for number in range(501):
            columns.add({"c": str(number)})
        assert cells(f"\n{columns.text()}")["c"][2] == ">500"

    def test_excess_columns_are_omitted(self) -> None:
        """Columns after the first MAX_COLUMNS are not described, and a note says so."""
        columns = Columns()
        columns.add({f"c{number}": 1 for number in range(MAX_COLUMNS + 5)})
        assert len(columns) == MAX_COLUMNS
        assert "[more than 1,000 columns: the others are left out]" in columns.text()

    def test_long_cells_are_cut(self) -> None:
        """In the first rows, a long cell is cut and shown on one line."""
        columns = Columns()
        columns.add({"c": "two\nlines | " + "x" * 1000})
        last = columns.text().splitlines()[-1]
        assert last.startswith("two lines \\| xxx")
        assert len(last) == 60


class TestVariables:
    """Variables of run_python: describe_variables."""

    @pytest.fixture
    def context(self, tmp_path: Path) -> ToolContext:
        """The context of a new agent."""
        return ToolContext(tmp_path, seconds=30.0)

    async def look(self, context: ToolContext, code: str, **input: Any) -> str:
        """Run `code` and return the text of `describe_variables`."""
        assert not (ran := await run_python.run(context, {"code": code})).is_error, ran.text
        return (await VARIABLES.run(context, input)).text

    async def test_bound_names_are_listed(self, context: ToolContext) -> None:
        """Variables are listed with type and size; functions, classes and modules are listed separately."""
        code = "import json\ndef f(): pass\nclass C: pass\n"
        code += "x = 7\nword = 'ab' * 100\nlisted = [1, 2]\nc = C()\nhuge = 10**9999"
        assert (await self.look(context, code)).splitlines() == [
            "x: int = 7",
            f"word: str, 200 long = '{'ab' * 29}a...",
            "listed: list, 2 long",
            "c: C",
            "huge: int",
            "functions and classes: f, C",
            "modules: json",
        ]

    async def test_empty_namespace_is_stated(self, context: ToolContext) -> None:
        """If nothing is bound, the list says so, and a request for one variable is an error."""
        assert "Nothing is bound" in (await VARIABLES.run(context, {})).text
        with pytest.raises(ToolError, match="No variable 'df': run_python has bound nothing"):
            await VARIABLES.run(context, {"name": "df"})

    @pytest.mark.parametrize(
        "value",
        ["[{'x': 1, 'y': 'a'}, {'x': 2}]", "{'x': [1, 2], 'y': ['a', None]}", "[(1, 'a'), (2, None)]"],
    )
    async def test_tabular_values_are_described_like_files(self, context: ToolContext, value: str) -> None:
        """Lists of objects, lists of rows and dicts of columns are described as tables."""
        text = await self.look(context, f"t = {value}", name="t")
        assert "2 rows, 2 columns" in text.splitlines()[0]
        assert [found[:2] for found in cells(text).values()] == [["integer", "0"], ["text", "1"]]

    async def test_other_values_are_shown_briefly(self, context: ToolContext) -> None:
        """A value that is not a table is shown with type, size and beginning, even if it is very large."""
        assert (
            await self.look(context, "v = {'a': [1, 2], 'b': 3}", name="v") == "v: dict, 2 long\n{'a': [1, 2], 'b': 3}"
        )
        text = await self.look(context, "v = list(range(10**6))", name="v")
        assert text.startswith("v: list, 1,000,000 long\n[0, 1, ")
        assert len(text) < 1000

    async def test_values_whose_methods_raise_are_listed(self, context: ToolContext) -> None:
        """A value of a class whose property and `__len__` raise is listed with its type."""
        code = "class Bad:\n  shape = property(lambda self: 1 / 0)\n  def __len__(self): raise ValueError\nbad = Bad()"
        assert "bad: Bad\n" in await self.look(context, code)

    @pytest.mark.parametrize("library", tables.FRAMES)
    async def test_data_frames_are_described_as_tables(self, context: ToolContext, library: str) -> None:
        """The description of a data frame has its column types and counts None as a missing value."""
        pytest.importorskip(library)
        columns = "{'x': [1, 2, None], 'd': [datetime.date(2024, 1, 2)] * 3}"
        text = await self.look(context, f"import {library}, datetime\ndf = {library}.DataFrame({columns})", name="df")
        assert f"{library}.DataFrame, 3 rows, 2 columns" in text
        found = cells(text)
        assert found["x"][0] in ("integer (Int64)", "number (float64)")
        assert found["x"][1] == "1"
        assert found["d"][0].startswith("date (")
        assert "df: " in (listed := (await VARIABLES.run(context, {})).text)
        assert ", 3 x 2" in listed
