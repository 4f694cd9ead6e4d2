"""Values as data: what comes back is equal, what cannot be data is told, and nothing that is read runs code."""

from __future__ import annotations

import io
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from orch_worker.tools.values import codec
from orch_worker.tools.values.codec import NotTransferableError, decode_value, encode_value

np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")


def there_and_back(value: Any) -> Any:
    """Return `value` as another process would have it."""
    data = encode_value(value)
    return decode_value(data.kind, data.data)


class Mine:
    """Something of a user's."""


class TestPlainData:
    """Data of Python itself."""

    @pytest.mark.parametrize(
        "value",
        [
            None,
            0,
            2**70,
            -(2**64),
            1.5,
            float("inf"),
            "text \U0001f600",
            b"\x00\xff",
            [],
            {},
            [1, "a", None, [True]],
            {"a": {"b": [1.0]}},
            (1, (2, {3})),
            {1: "one", b"k": (1,), None: 2},
            frozenset({1}),
            1 + 2j,
            [2**63, 1],
            datetime(2026, 1, 1, 12, tzinfo=UTC),
            [date(2026, 1, 1), Decimal("1.10")],
        ],
    )
    def test_comes_back_equal(self, value: Any) -> None:
        """A value of any of Python's own types of data is what it was, of the same type."""
        back = there_and_back(value)
        assert (back, type(back)) == (value, type(value))

    def test_not_a_number(self) -> None:
        """What is not equal to itself stays so, also among numbers."""
        assert repr(there_and_back([1.0, float("nan")])) == "[1.0, nan]"

    def test_json_where_json_will_do(self) -> None:
        """What JSON can say is JSON, which anybody can read."""
        assert encode_value({"a": [1, 2.5, None, "x"]}).data == b'{"a":[1,2.5,null,"x"]}'
        assert encode_value({"a": (1,)}).kind == "data"

    @pytest.mark.parametrize(
        ("value", "told"),
        [
            (Mine(), r"a value of type \S*Mine is not plain data"),
            ([0, {"k": Mine()}], r"its \[1\]\['k'\] is of type \S*Mine"),
            ({"f": len}, "return what it computes instead"),
            ({(1, 2): 3}, "a key is of type tuple"),
            ("\ud800", "half characters"),
            (open, "return what it computes instead"),
        ],
    )
    def test_what_is_no_data_is_told(self, value: Any, told: str) -> None:
        """The error names the part that cannot go, and what to do."""
        with pytest.raises(NotTransferableError, match=told):
            encode_value(value)

    def test_what_holds_itself(self) -> None:
        """A list within itself is refused, not followed for ever."""
        held: list[Any] = []
        held.append(held)
        with pytest.raises(NotTransferableError, match="holds itself"):
            encode_value(held)


class TestLibraries:
    """Arrays and data frames."""

    @pytest.mark.parametrize("dtype", ["int8", "float32", "complex128", "bool", "datetime64[ns]", "U3"])
    def test_arrays(self, dtype: str) -> None:
        """An array keeps shape and type."""
        array = np.zeros((2, 3), dtype=dtype)
        back = there_and_back(array)
        assert (back.shape, back.dtype, (back == array).all()) == (array.shape, array.dtype, True)

    def test_one_number_of_numpys(self) -> None:
        """One number is a number."""
        assert there_and_back({"mean": float(np.float64(2.5))}) == {"mean": 2.5}
        assert there_and_back(np.int64(3)) == 3

    def test_frames_of_pandas(self) -> None:
        """Columns of every common type, indexes and names of several levels come back as they were."""
        frame = pd.DataFrame(
            {
                "whole": [1, 2],
                "broken": [1.5, None],
                "text": ["x", None],
                "kind": pd.Categorical(["u", "v"], ordered=True),
                "when": pd.to_datetime(["2026-01-01", None]),
                "where": pd.to_datetime(["2026-01-01", "2026-06-01"], utc=True).tz_convert("Europe/Berlin"),
                "maybe": pd.array([1, None], dtype="Int64"),
                "truth": pd.array([True, None], dtype="boolean"),
                "lists": [[1], [2, 3]],
                "span": pd.to_timedelta(["1s", "2s"]),
            },
            index=pd.Index(["p", "q"], name="key"),
        )
        pd.testing.assert_frame_equal(there_and_back(frame), frame)
        deep = pd.DataFrame(
            [[1, 2], [3, 4]],
            columns=pd.MultiIndex.from_tuples([("a", "b"), ("a", "c")]),
            index=pd.MultiIndex.from_tuples([("x", 1), ("y", 2)], names=["m", "n"]),
        )
        pd.testing.assert_frame_equal(there_and_back(deep), deep)
        twice = pd.DataFrame([[1, 2]], columns=["same", "same"])
        pd.testing.assert_frame_equal(there_and_back(twice), twice)
        days = pd.Series([1, 2], index=pd.date_range("2026-01-01", periods=2, freq="D"), name="s")
        pd.testing.assert_series_equal(there_and_back(days), days)

    def test_frames_of_polars(self) -> None:
        """Columns of every type but objects come back as they were; so does one column."""
        frame = pl.DataFrame({"a": [1, None], "b": ["x", None], "c": [[1], [2]], "d": [date(2026, 1, 1), None]})
        frame = frame.with_columns(pl.col("b").cast(pl.Categorical).alias("e"))
        assert there_and_back(frame).equals(frame)
        assert there_and_back(frame).schema == frame.schema
        column = there_and_back(pl.Series("name", [1, 2]))
        assert (column.name, column.to_list()) == ("name", [1, 2])

    def test_python_objects_in_them(self) -> None:
        """Objects in an array or a column are refused by name, never pickled."""
        with pytest.raises(NotTransferableError, match=r"tolist"):
            encode_value(np.array([Mine()]))
        with pytest.raises(NotTransferableError, match="column 'a'"):
            encode_value(pd.DataFrame({"a": [Mine()]}))
        with pytest.raises(NotTransferableError, match="column 'a'"):
            encode_value(pl.DataFrame({"a": pl.Series([Mine()], dtype=pl.Object)}))
        with pytest.raises(NotTransferableError, match=r"column 'p' is of type period"):
            encode_value(pd.DataFrame({"p": pd.period_range("2026", periods=2)}))

    def test_arrays_that_are_more_than_their_numbers(self) -> None:
        """What a masked array hides would be there again: it says what to do."""
        for array in (np.ma.masked_array([1, 2], mask=[0, 1]), np.rec.array([(1, 2)])):
            with pytest.raises(NotTransferableError, match=r"cannot store an array of type .*\.filled\(\)"):
                encode_value(array)

    def test_lists_that_hold_one_another_many_times(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A small value that is without end when it is written out is refused before it is."""
        monkeypatch.setattr(codec, "MOST_PARTS", 10_000)
        many: Any = [b"1"]
        for _ in range(60):
            many = [many, many]
        with pytest.raises(NotTransferableError, match=r"parts, or .* of text"):
            encode_value(many)
        with pytest.raises(NotTransferableError, match=r"parts, or .* of text"):
            encode_value([[[["x" * 1_000_000] * 1_000]]])


class TestReading:
    """What another process sent is not believed."""

    def test_a_pickle_is_never_opened(self, tmp_path: Any) -> None:
        """An array file that holds a pickle, as it would run code, is refused whole."""

        class Trap:
            def __reduce__(self) -> tuple[Any, tuple[str]]:
                return exec, (f"open({str(tmp_path / 'ran')!r}, 'w')",)

        into = io.BytesIO()
        np.save(into, np.array([Trap()], dtype=object), allow_pickle=True)
        for kind, data in [("array", into.getvalue()), *((kind, pickle.dumps(Trap())) for kind in ("data", "columns"))]:
            with pytest.raises(NotTransferableError, match="cannot read the stored value"):
                decode_value(kind, data)
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize("kind", ["json", "data", "array", "arrow", "columns", "text"])
    def test_rubbish(self, kind: str) -> None:
        """Bytes that are no such thing are an error that says so."""
        with pytest.raises(NotTransferableError, match="cannot read the stored value"):
            decode_value(kind, b"\xc1\xff rubbish")

    def test_a_reader_that_panics(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What polars raises of some bytes is no Exception, and an error like others all the same."""
        kind = type("PanicException", (BaseException,), {})

        def panics(_: bytes) -> None:
            raise kind("slice index")

        monkeypatch.setitem(codec.READERS, "arrow", panics)
        with pytest.raises(NotTransferableError, match="cannot read the stored value: PanicException: slice index"):
            decode_value("arrow", b"")

    def test_unknown_kind(self) -> None:
        """A kind of a later version is refused by name."""
        with pytest.raises(NotTransferableError, match="not known here: 'pickle'"):
            decode_value("pickle", b"")
