"""Encoding of values: round trips, values that cannot be encoded, and decoding without running code."""

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
    """Return `value` after encoding and decoding, as another process receives it."""
    data = encode_value(value)
    return decode_value(data.kind, data.data)


class Mine:
    """A class of a user, which cannot be encoded."""


class TestPlainData:
    """Built-in types and types of the standard library."""

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
    def test_plain_values_round_trip_with_their_types(self, value: Any) -> None:
        """Decoding returns an equal value of the same type."""
        back = there_and_back(value)
        assert (back, type(back)) == (value, type(value))

    def test_nan_round_trips(self) -> None:
        """NaN in a list of numbers is NaN after decoding."""
        assert repr(there_and_back([1.0, float("nan")])) == "[1.0, nan]"

    def test_json_values_are_stored_as_json(self) -> None:
        """Values that JSON can represent are stored as JSON, so that other programs can read them."""
        assert encode_value({"a": [1, 2.5, None, "x"]}).data == b'{"a":[1,2.5,null,"x"]}'
        assert encode_value({"a": (1,)}).kind == "data"

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (Mine(), r"a value of type \S*Mine is not plain data"),
            ([0, {"k": Mine()}], r"its \[1\]\['k'\] is of type \S*Mine"),
            ({"f": len}, "return what it computes instead"),
            ({(1, 2): 3}, "a key is of type tuple"),
            ("\ud800", "lone surrogates"),
            (open, "return what it computes instead"),
        ],
    )
    def test_unsupported_value_names_the_part(self, value: Any, expected: str) -> None:
        """The error names the part of the value that cannot be encoded, or says what to return instead."""
        with pytest.raises(NotTransferableError, match=expected):
            encode_value(value)

    def test_recursive_list_is_refused(self) -> None:
        """A list that contains itself is an error and does not cause an endless loop."""
        held: list[Any] = []
        held.append(held)
        with pytest.raises(NotTransferableError, match="contains itself"):
            encode_value(held)


class TestLibraries:
    """Arrays and data frames."""

    @pytest.mark.parametrize("dtype", ["int8", "float32", "complex128", "bool", "datetime64[ns]", "U3"])
    def test_arrays_keep_shape_and_type(self, dtype: str) -> None:
        """A decoded array has the shape, type and content of the original."""
        array = np.zeros((2, 3), dtype=dtype)
        back = there_and_back(array)
        assert (back.shape, back.dtype, (back == array).all()) == (array.shape, array.dtype, True)

    def test_numpy_scalar_round_trips(self) -> None:
        """A NumPy integer is equal to its decoded value."""
        assert there_and_back({"mean": float(np.float64(2.5))}) == {"mean": 2.5}
        assert there_and_back(np.int64(3)) == 3

    def test_pandas_frames_round_trip(self) -> None:
        """Frames and series keep column types, indexes, multi-level names and duplicate names."""
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

    def test_polars_frames_round_trip(self) -> None:
        """Frames keep the types of their columns, and series keep their name."""
        frame = pl.DataFrame({"a": [1, None], "b": ["x", None], "c": [[1], [2]], "d": [date(2026, 1, 1), None]})
        frame = frame.with_columns(pl.col("b").cast(pl.Categorical).alias("e"))
        assert there_and_back(frame).equals(frame)
        assert there_and_back(frame).schema == frame.schema
        column = there_and_back(pl.Series("name", [1, 2]))
        assert (column.name, column.to_list()) == ("name", [1, 2])

    def test_python_objects_in_arrays_and_frames_are_refused(self) -> None:
        """The error names the column, because such values would need a pickle."""
        with pytest.raises(NotTransferableError, match=r"tolist"):
            encode_value(np.array([Mine()]))
        with pytest.raises(NotTransferableError, match="column 'a'"):
            encode_value(pd.DataFrame({"a": [Mine()]}))
        with pytest.raises(NotTransferableError, match="column 'a'"):
            encode_value(pl.DataFrame({"a": pl.Series([Mine()], dtype=pl.Object)}))
        with pytest.raises(NotTransferableError, match=r"column 'p' is of type period"):
            encode_value(pd.DataFrame({"p": pd.period_range("2026", periods=2)}))

    def test_masked_arrays_are_refused_with_a_hint(self) -> None:
        """The error suggests `filled`, because encoding would reveal the masked values."""
        for array in (np.ma.masked_array([1, 2], mask=[0, 1]), np.rec.array([(1, 2)])):
            with pytest.raises(NotTransferableError, match=r"cannot store an array of type .*\.filled\(\)"):
                encode_value(array)

    def test_exponentially_nested_lists_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A small value that would be very large when written out is refused before it is encoded."""
        monkeypatch.setattr(codec, "MAX_PARTS", 10_000)
        many: Any = [b"1"]
        for _ in range(60):
            many = [many, many]
        with pytest.raises(NotTransferableError, match=r"parts or .* of text"):
            encode_value(many)
        with pytest.raises(NotTransferableError, match=r"parts or .* of text"):
            encode_value([[[["x" * 1_000_000] * 1_000]]])


class TestReading:
    """Decoding of bytes from another process, which are not trusted."""

    def test_array_file_with_a_pickle_is_refused(self, tmp_path: Any) -> None:
        """Bytes that contain a pickle are an error, and the code in the pickle does not run."""

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
    def test_malformed_bytes_are_an_error(self, kind: str) -> None:
        """Malformed bytes raise a NotTransferableError instead of an exception of a library."""
        with pytest.raises(NotTransferableError, match="cannot read the stored value"):
            decode_value(kind, b"\xc1\xff rubbish")

    def test_polars_panic_becomes_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A panic of polars raises a NotTransferableError, although the panic is a BaseException."""
        kind = type("PanicException", (BaseException,), {})

        def panics(_: bytes) -> None:
            raise kind("slice index")

        monkeypatch.setitem(codec.READERS, "arrow", panics)
        with pytest.raises(NotTransferableError, match="cannot read the stored value: PanicException: slice index"):
            decode_value("arrow", b"")

    def test_unknown_value_kind_is_refused_by_name(self) -> None:
        """A value with a kind of a later version is an error that names the kind."""
        with pytest.raises(NotTransferableError, match="unknown kind of value 'pickle'"):
            decode_value("pickle", b"")
