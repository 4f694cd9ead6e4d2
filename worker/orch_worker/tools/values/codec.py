"""Values that can go from one process to another: as data, in forms that run no code when they are read.

Plain data as JSON, or as msgpack where JSON has no form for it; text and bytes as they are; arrays of numpy as .npy
without pickled objects; data frames of polars as Arrow, of pandas column by column. Nothing is ever unpickled.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from importlib import import_module
from typing import Any, Final

import msgspec
from msgspec import Struct

from .repr import PANIC, is_array, is_frame, is_series, library_of, type_name

__all__ = [
    "EXTENSIONS",
    "EncodedValue",
    "EncodingError",
    "Kind",
    "NotTransferableError",
    "array_bytes",
    "arrow_bytes",
    "columns_bytes",
    "decode_value",
    "encode_value",
    "read_array",
    "read_arrow",
    "read_columns",
]


# --- Arrays and data frames as bytes that hold data alone ---

SERIES: Final = "\0series"
NUMPY_KINDS: Final = "biufcmMSU"
Plain = Callable[[Any, str], Any]


class EncodingError(Exception):
    """A value has no form here; says which part of it and what to do."""


def array_bytes(array: Any) -> bytes:
    """Return an array of numpy's as .npy. Raises Unfit for one of Python objects."""
    numpy = sys.modules["numpy"]
    if type(array) not in (numpy.ndarray, numpy.memmap):
        raise EncodingError(
            f"cannot store an array of type {type(array).__name__}: convert it to a plain array, with "
            ".filled() for a masked array or numpy.asarray() for other types"
        )
    if array.dtype.hasobject:
        raise EncodingError(
            f"cannot store an array of type {array.dtype}, because it holds Python objects: use .tolist()"
        )
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
            raise EncodingError(f"column {name.removeprefix(SERIES)!r} holds Python objects: give it a type of its own")
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
        raise EncodingError(f"{where} is of type {name}, which is not supported: convert it to text or numbers")
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


Kind = str
TUPLE: Final = 1
SET: Final = 2
FROZENSET: Final = 3
MARKED: Final[dict[type, int]] = {tuple: TUPLE, set: SET, frozenset: FROZENSET}
INTEGER: Final = 4
COMPLEX: Final = 5
WRITTEN: Final[dict[type, tuple[int, Callable[[Any], str], Callable[[str], Any]]]] = {
    datetime: (6, datetime.isoformat, datetime.fromisoformat),
    date: (7, date.isoformat, date.fromisoformat),
    time: (8, time.isoformat, time.fromisoformat),
    Decimal: (9, str, Decimal),
}
"""What is written as text: its mark, and how it is written and read."""
DEEPEST: Final = 100
MOST_PARTS: Final = 8 << 20
"""Values in a value, counted each time that one is met: a list that holds another one twice is as large as two."""
MOST_TEXT: Final = 64 << 20
"""Characters, and bytes, in all of them."""
WIDE: Final = 1 << 63
SCALARS: Final = frozenset({bool, int, float, str, type(None)})
EXTENSIONS: Final[dict[Kind, str]] = {
    "text": "txt",
    "json": "json",
    "data": "msgpack",
    "bytes": "bin",
    "array": "npy",
    "arrow": "arrow",
    "columns": "columns",
}
"""How the names of files end that hold a value of each kind."""


class NotTransferableError(Exception):
    """A value cannot leave its process as data; says which part of it, and what to do."""


class EncodedValue(Struct, frozen=True):
    """A value as data: what `kind` of data, as `decode_value` reads it."""

    kind: Kind
    data: bytes


def encode_value(value: Any) -> EncodedValue:
    """Return `value` as data that is equal to it when it is read again. Raises NotTransferableError."""
    try:
        if type(value) is str:
            return EncodedValue("text", value.encode())
        if type(value) in (bytes, bytearray):
            return EncodedValue("bytes", bytes(value))
        if is_array(value):
            return EncodedValue("array", array_bytes(value))
        if (is_frame(value) or is_series(value)) and library_of(value) == "polars":
            return EncodedValue("arrow", arrow_bytes(value))
        if is_frame(value) or is_series(value):
            return EncodedValue("columns", columns_bytes(value, _plain))
        if library_of(value) == "numpy" and isinstance(value, sys.modules["numpy"].generic):
            value = value.item()
        walk = _ValueWalk()
        plain = walk.plain(value, "", DEEPEST)
        if walk.json:
            return EncodedValue("json", msgspec.json.encode(plain))
        return EncodedValue("data", msgspec.msgpack.encode(plain))
    except EncodingError as error:
        raise NotTransferableError(str(error)) from error
    except RecursionError:
        raise NotTransferableError(f"it is nested more than {DEEPEST} deep, or holds itself: make it flatter") from None
    except UnicodeEncodeError:
        raise NotTransferableError(
            "it holds text with half characters (surrogates): encode it to bytes first"
        ) from None


def decode_value(kind: Kind, data: bytes) -> Any:
    """Decode `data` of `kind`. Raises NotTransferableError for invalid data or a missing package."""
    read = READERS.get(kind)
    if read is None:
        raise NotTransferableError(f"it is of a kind that is not known here: {kind!r}")
    try:
        return read(data)
    except ImportError as error:
        raise NotTransferableError(f"reading it needs {error.name}, which is not installed here") from error
    except BaseException as error:  # whatever a reader says of bytes that it does not understand
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        raise NotTransferableError(f"cannot read the stored value: {type(error).__name__}: {error}") from error


class _ValueWalk:
    """One look through a value: what there is of it that msgpack has a form for, and whether JSON has one for all."""

    def __init__(self) -> None:
        self.json = True
        self._parts, self._text = MOST_PARTS, MOST_TEXT

    def plain(self, value: Any, where: str, depth: int) -> Any:
        kind = type(value)
        if kind in SCALARS:
            return self._scalar(value)
        if depth == 0:
            raise RecursionError
        if kind is list:
            return self._items(value, where, depth)
        if kind is dict:
            return self._mapping(value, where, depth)
        self.json = False
        if kind in (bytes, bytearray):
            self._count(0, len(value))
            return bytes(value)
        if kind is complex:
            return _ext(COMPLEX, [value.real, value.imag])
        if kind in WRITTEN:
            mark, write, _ = WRITTEN[kind]
            return msgspec.msgpack.Ext(mark, write(value).encode())
        code = MARKED.get(kind)
        if code is None:
            raise NotTransferableError(_unfit(value, where))
        return _ext(code, self._items(list(value), where, depth))

    def _items(self, values: list[Any], where: str, depth: int) -> list[Any]:
        kinds = set(map(type, values))
        self._count(len(values), sum(map(len, values)) if kinds == {str} else 0)
        if kinds == {str} or (kinds <= SCALARS and kinds.isdisjoint((int, float, str))):
            return values
        if kinds == {int} and values and min(values) >= -WIDE and max(values) < WIDE:
            return values
        if kinds == {float} and self.json and all(map(math.isfinite, values)):
            return values
        return [self.plain(each, f"{where}[{number}]", depth - 1) for number, each in enumerate(values)]

    def _mapping(self, value: dict[Any, Any], where: str, depth: int) -> dict[Any, Any]:
        found = {}
        self._count(len(value), 0)
        for key, each in value.items():
            if type(key) is not str:
                self.json = False
                if type(key) not in (*SCALARS, bytes) or (type(key) is float and not math.isfinite(key)):
                    raise NotTransferableError(_unfit(key, f"{where}, a key"))
                if type(key) is int and not -WIDE <= key < WIDE:
                    raise NotTransferableError(f"its {where or 'own'} has a key beyond 64 bits: make it text")
            found[key] = self.plain(each, f"{where}[{key!r}]", depth - 1)
        return found

    def _count(self, parts: int, text: int) -> None:
        self._parts -= parts
        self._text -= text
        if self._parts < 0 or self._text < 0:
            raise NotTransferableError(
                f"it has more than {MOST_PARTS:,} parts, or {MOST_TEXT >> 20} MB of text in them: write it to a file"
            )

    def _scalar(self, value: Any) -> Any:
        if type(value) is str:
            self._count(0, len(value))
        elif type(value) is float and not math.isfinite(value):
            self.json = False
        elif type(value) is int and not -WIDE <= value < WIDE:
            self.json = False
            return msgspec.msgpack.Ext(INTEGER, hex(value).encode())
        return value


def _plain(value: Any, where: str) -> Any:
    """Return what msgpack has a form for of `value`, which stands at `where`."""
    return _ValueWalk().plain(value, where, DEEPEST)


def _ext(code: int, inside: Any) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, msgspec.msgpack.encode(inside))


def _unfit(value: Any, where: str) -> str:
    kind = type_name(value)
    at = f"its {where.removeprefix(', ')} is of type {kind}, which" if where else f"a value of type {kind}"
    if hasattr(type(value), "__dataclass_fields__"):
        todo = "make a dict of it, as dataclasses.asdict does"
    elif hasattr(type(value), "__struct_fields__"):
        todo = "make a dict of it, as msgspec.to_builtins does"
    elif isinstance(value, (dict, list, tuple, set, str, int, float)):
        base = next(each.__name__ for each in (dict, list, tuple, set, str, int, float) if isinstance(value, each))
        todo = f"make a plain {base} of it"
    elif isinstance(value, Mapping):
        todo = "make a plain dict of it"
    elif callable(value):
        todo = "return what it computes instead"
    else:
        todo = "make text, numbers, lists or dicts of what matters in it, or write it to a file"
    return f"{at} is not plain data, text, bytes, an array or a data frame: {todo}"


def _read_ext(code: int, data: memoryview) -> Any:
    if code == INTEGER:
        return int(bytes(data), 16)
    for mark, _, read in WRITTEN.values():
        if code == mark:
            return read(bytes(data).decode())
    inside = _read_data(data)
    makers: dict[int, Callable[[Any], Any]] = {TUPLE: tuple, SET: set, FROZENSET: frozenset}
    if code == COMPLEX:
        return complex(*inside)
    if code not in makers:
        raise ValueError(f"no value is marked with {code}")
    return makers[code](inside)


def _read_data(data: bytes | memoryview) -> Any:
    return msgspec.msgpack.decode(data, ext_hook=_read_ext, strict=False)


READERS: Final[dict[Kind, Callable[[bytes], Any]]] = {
    "text": bytes.decode,
    "json": msgspec.json.decode,
    "data": _read_data,
    "bytes": bytes,
    "array": read_array,
    "arrow": read_arrow,
    "columns": lambda data: read_columns(data, _read_data),
}
