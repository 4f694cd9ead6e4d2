"""Arrays and data frames as bytes that hold data alone: .npy, Arrow, and pandas column by column. Nothing is pickled.

Libraries are imported here to read what was written with them; to write, they are there.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import msgspec

from .library import is_series

__all__ = ["Unfit", "array_bytes", "arrow_bytes", "columns_bytes", "read_array", "read_arrow", "read_columns"]

SERIES: Final = "\0series"
NUMPY_KINDS: Final = "biufcmMSU"
Plain = Callable[[Any, str], Any]


class Unfit(Exception):
    """A value has no form here; says which part of it and what to do."""


def array_bytes(array: Any) -> bytes:
    """Return an array of numpy's as .npy. Raises Unfit for one of Python objects."""
    numpy = sys.modules["numpy"]
    if type(array) not in (numpy.ndarray, numpy.memmap):
        raise Unfit(
            f"an array of type {type(array).__name__} is more than its numbers: make a plain one of it, as "
            ".filled() of a masked one and numpy.asarray() of others do"
        )
    if array.dtype.hasobject:
        raise Unfit(f"an array of type {array.dtype} holds Python objects: make a list of it (.tolist())")
    into = io.BytesIO()
    numpy.save(into, array, allow_pickle=False)
    return into.getvalue()


def read_array(data: bytes) -> Any:
    """Return the array in `data`."""
    return import_module("numpy.lib.format").read_array(io.BytesIO(data), allow_pickle=False)


def arrow_bytes(frame: Any) -> bytes:
    """Return a data frame, or one column, of polars as an Arrow file. Raises Unfit for one of Python objects."""
    library = sys.modules["polars"]
    held = library.DataFrame([frame.rename(SERIES + frame.name)]) if is_series(frame) else frame
    for name, kind in held.schema.items():
        if str(kind) == "Object":
            raise Unfit(f"column {name.removeprefix(SERIES)!r} holds Python objects: give it a type of its own")
    into = io.BytesIO()
    held.write_ipc(into)
    return into.getvalue()


def read_arrow(data: bytes) -> Any:
    """Return the data frame, or the one column, in `data`."""
    frame = import_module("polars").read_ipc(io.BytesIO(data))
    if len(frame.columns) == 1 and frame.columns[0].startswith(SERIES):
        return frame.to_series(0).rename(frame.columns[0].removeprefix(SERIES))
    return frame


def columns_bytes(frame: Any, plain: Plain) -> bytes:
    """Return a data frame, or one column, of pandas as msgpack: names, index and columns, each with its type.

    `plain` returns what msgpack has a form for. Raises Unfit, and what `plain` raises.
    """
    if is_series(frame):
        named = plain(frame.name, "its name")
        body = {"series": named, "index": _index(frame.index, plain), "columns": [_column(frame, "it", plain)]}
        return msgspec.msgpack.encode(body)
    body = {
        "names": _index(frame.columns, plain),
        "index": _index(frame.index, plain),
        "columns": [
            _column(frame.iloc[:, place], f" column {name!r}", plain) for place, name in enumerate(frame.columns)
        ],
    }
    return msgspec.msgpack.encode(body)


def read_columns(data: bytes, read: Callable[[bytes], Any]) -> Any:
    """Return the data frame, or the one column, in `data`, which `read` reads as msgpack."""
    pandas, body = import_module("pandas"), read(data)
    index = _read_index(pandas, body["index"])
    columns = [_read_column(pandas, each) for each in body["columns"]]
    if "series" in body:
        return pandas.Series(columns[0], index=index, name=body["series"])
    frame = pandas.DataFrame(dict(enumerate(columns)), index=index)
    frame.columns = _read_index(pandas, body["names"])
    return frame


def _index(index: Any, plain: Plain) -> dict[str, Any]:
    kind = type(index).__name__
    if kind == "RangeIndex":
        return {"range": [index.start, index.stop, index.step], "name": plain(index.name, "its index")}
    if kind == "MultiIndex":
        levels = [
            _column(index.get_level_values(each).to_series(), "its index", plain) for each in range(index.nlevels)
        ]
        return {"levels": levels, "names": [plain(name, "its index") for name in index.names]}
    freq = getattr(index, "freqstr", None)
    return {"values": _column(index.to_series(), "its index", plain), "name": plain(index.name, "it"), "freq": freq}


def _read_index(pandas: Any, body: dict[str, Any]) -> Any:
    if "range" in body:
        return pandas.RangeIndex(*body["range"], name=body["name"])
    if "levels" in body:
        return pandas.MultiIndex.from_arrays(
            [_read_column(pandas, each) for each in body["levels"]], names=body["names"]
        )
    index = pandas.Index(_read_column(pandas, body["values"]), name=body["name"])
    if body["freq"] is not None and hasattr(index, "freq"):
        index.freq = body["freq"]
    return index


def _column(column: Any, where: str, plain: Plain) -> dict[str, Any]:
    """Return one column as a dict of data: its type, and its values."""
    pandas, dtype = sys.modules["pandas"], column.dtype
    if isinstance(dtype, pandas.CategoricalDtype):
        codes, categories = column.cat.codes.to_numpy(), _index(dtype.categories, plain)
        return {"codes": array_bytes(codes), "categories": categories, "ordered": bool(dtype.ordered)}
    if getattr(dtype, "tz", None) is not None:
        moments = column.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
        return {"moments": array_bytes(moments), "tz": str(dtype.tz)}
    if getattr(dtype, "kind", "O") in NUMPY_KINDS and str(dtype) == str(column.to_numpy().dtype):
        return {"array": array_bytes(column.to_numpy())}
    values = [None if each is pandas.NA or each is pandas.NaT else each for each in column.to_list()]
    name = str(dtype)
    if name not in ("object", "str", "string", "boolean") and not name.lstrip("U").startswith(("Int", "Float")):
        raise Unfit(f"{where} is of type {name}, for which there is no form: make text or numbers of it")
    if name == "str":  # where it is missing is one thing
        values = [each if isinstance(each, str) else None for each in values]
    return {"values": plain(values, where), "dtype": name}


def _read_column(pandas: Any, body: dict[str, Any]) -> Any:
    if "array" in body:
        return read_array(body["array"])
    if "codes" in body:
        categories = _read_index(pandas, body["categories"])
        dtype = pandas.CategoricalDtype(categories, ordered=body["ordered"])
        return pandas.Categorical.from_codes(read_array(body["codes"]), dtype=dtype)
    if "moments" in body:
        return pandas.DatetimeIndex(read_array(body["moments"])).tz_localize("UTC").tz_convert(body["tz"])
    return pandas.array(body["values"], dtype=body["dtype"]) if body["dtype"] != "object" else _objects(body["values"])


def _objects(values: list[Any]) -> Any:
    numpy = import_module("numpy")
    held = numpy.empty(len(values), dtype=object)
    for place, each in enumerate(values):
        held[place] = each
    return held
