"""Encodes values for transfer between processes, in formats that run no code when they are decoded.

Plain data is encoded as JSON, or as msgpack if JSON cannot represent the data. Text and bytes are stored unchanged.
Numpy arrays are stored as .npy without pickled objects, polars data frames as Arrow, and pandas data frames column by
column. The decoders never use pickle.
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


# --- Arrays and data frames ---

SERIES: Final = "\0series"
NUMPY_KINDS: Final = "biufcmMSU"
Plain = Callable[[Any, str], Any]


class EncodingError(Exception):
    """A value cannot be encoded. The message names the remedy and the affected part of the value."""


def array_bytes(array: Any) -> bytes:
    """Return a numpy array in .npy format. Raise EncodingError for an array of Python objects."""
    numpy = sys.modules["numpy"]
    if type(array) not in (numpy.ndarray, numpy.memmap):
        raise EncodingError(
            f"cannot store an array of type {type(array).__name__}: convert it to a plain array, with "
            ".filled() for a masked array or numpy.asarray() for other types"
        )
    if array.dtype.hasobject:
        raise EncodingError(
            f"cannot store an array of type {array.dtype}, because it contains Python objects: use .tolist()"
        )
    buffer = io.BytesIO()
    numpy.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def read_array(data: bytes) -> Any:
    """Return the array encoded in `data`."""
    return import_module("numpy.lib.format").read_array(io.BytesIO(data), allow_pickle=False)


def arrow_bytes(frame: Any) -> bytes:
    """Return a polars data frame or series as an Arrow file. Raise EncodingError for columns of Python objects."""
    library = sys.modules["polars"]
    data_frame = library.DataFrame([frame.rename(SERIES + frame.name)]) if is_series(frame) else frame
    for name, kind in data_frame.schema.items():
        if str(kind) == "Object":
            raise EncodingError(
                f"column {name.removeprefix(SERIES)!r} contains Python objects: convert the column to another type"
            )
    buffer = io.BytesIO()
    data_frame.write_ipc(buffer)
    return buffer.getvalue()


def read_arrow(data: bytes) -> Any:
    """Return the data frame or series encoded in `data`."""
    frame = import_module("polars").read_ipc(io.BytesIO(data))
    if len(frame.columns) == 1 and frame.columns[0].startswith(SERIES):
        return frame.to_series(0).rename(frame.columns[0].removeprefix(SERIES))
    return frame


def columns_bytes(frame: Any, plain: Plain) -> bytes:
    """Return a pandas data frame or series as msgpack: names, index and typed columns.

    `plain` converts values to a form that msgpack supports. Raise EncodingError for unsupported columns, and the
    exceptions of `plain`.
    """
    if is_series(frame):
        series_name = plain(frame.name, "its name")
        body = {
            "series": series_name,
            "index": _encode_index(frame.index, plain),
            "columns": [_encode_column(frame, "it", plain)],
        }
        return msgspec.msgpack.encode(body)
    body = {
        "names": _encode_index(frame.columns, plain),
        "index": _encode_index(frame.index, plain),
        "columns": [
            _encode_column(frame.iloc[:, index], f" column {name!r}", plain) for index, name in enumerate(frame.columns)
        ],
    }
    return msgspec.msgpack.encode(body)


def read_columns(data: bytes, read: Callable[[bytes], Any]) -> Any:
    """Return the data frame or series encoded in `data`. `read` decodes msgpack."""
    pandas, body = import_module("pandas"), read(data)
    index = _read_index(pandas, body["index"])
    columns = [_read_column(pandas, each) for each in body["columns"]]
    if "series" in body:
        return pandas.Series(columns[0], index=index, name=body["series"])
    frame = pandas.DataFrame(dict(enumerate(columns)), index=index)
    frame.columns = _read_index(pandas, body["names"])
    return frame


def _encode_index(index: Any, plain: Plain) -> dict[str, Any]:
    kind = type(index).__name__
    if kind == "RangeIndex":
        return {"range": [index.start, index.stop, index.step], "name": plain(index.name, "its index")}
    if kind == "MultiIndex":
        levels = [
            _encode_column(index.get_level_values(each).to_series(), "its index", plain)
            for each in range(index.nlevels)
        ]
        return {"levels": levels, "names": [plain(name, "its index") for name in index.names]}
    freq = getattr(index, "freqstr", None)
    return {
        "values": _encode_column(index.to_series(), "its index", plain),
        "name": plain(index.name, "it"),
        "freq": freq,
    }


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


def _encode_column(column: Any, where: str, plain: Plain) -> dict[str, Any]:
    """Return a column as a dict with its type and values."""
    pandas, dtype = sys.modules["pandas"], column.dtype
    if isinstance(dtype, pandas.CategoricalDtype):
        codes, categories = column.cat.codes.to_numpy(), _encode_index(dtype.categories, plain)
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
    if name == "str":  # This type has only one kind of missing value.
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
    return (
        pandas.array(body["values"], dtype=body["dtype"])
        if body["dtype"] != "object"
        else _object_array(body["values"])
    )


def _object_array(values: list[Any]) -> Any:
    numpy = import_module("numpy")
    array = numpy.empty(len(values), dtype=object)
    for index, each in enumerate(values):
        array[index] = each
    return array


Kind = str
TUPLE: Final = 1
SET: Final = 2
FROZENSET: Final = 3
CONTAINER_CODES: Final[dict[type, int]] = {tuple: TUPLE, set: SET, frozenset: FROZENSET}
INTEGER: Final = 4
COMPLEX: Final = 5
TEXT_TYPES: Final[dict[type, tuple[int, Callable[[Any], str], Callable[[str], Any]]]] = {
    datetime: (6, datetime.isoformat, datetime.fromisoformat),
    date: (7, date.isoformat, date.fromisoformat),
    time: (8, time.isoformat, time.fromisoformat),
    Decimal: (9, str, Decimal),
}
"""Types that are encoded as text. Values are the extension code, the encoder and the decoder."""
MAX_DEPTH: Final = 100
MAX_PARTS: Final = 8 << 20
"""Maximum number of nested values. A value that occurs twice is counted twice."""
MAX_TEXT: Final = 64 << 20
"""Maximum total number of characters and bytes in nested values."""
INT64_LIMIT: Final = 1 << 63
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
"""File name extensions. Keys are kinds of values."""


class NotTransferableError(Exception):
    """A value cannot be transferred as data. The message names the remedy and the affected part of the value."""


class EncodedValue(Struct, frozen=True):
    """An encoded value. `kind` is the kind of its encoding."""

    kind: Kind
    data: bytes


def encode_value(value: Any) -> EncodedValue:
    """Return the encoded form of `value`. Decoding this form gives an equal value.

    Raise NotTransferableError if the value cannot be encoded.
    """
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
        plain = walk.plain(value, "", MAX_DEPTH)
        if walk.json:
            return EncodedValue("json", msgspec.json.encode(plain))
        return EncodedValue("data", msgspec.msgpack.encode(plain))
    except EncodingError as error:
        raise NotTransferableError(str(error)) from error
    except RecursionError:
        raise NotTransferableError(
            f"the value has more than {MAX_DEPTH} nested levels, or contains itself: use fewer levels"
        ) from None
    except UnicodeEncodeError:
        raise NotTransferableError(
            "the value contains text with lone surrogates: encode the text to bytes first"
        ) from None


def decode_value(kind: Kind, data: bytes) -> Any:
    """Return the value encoded in `data`. Raise NotTransferableError for invalid data or a missing package."""
    read = READERS.get(kind)
    if read is None:
        raise NotTransferableError(f"unknown kind of value {kind!r}")
    try:
        return read(data)
    except ImportError as error:
        raise NotTransferableError(f"reading the value needs {error.name}, which is not installed") from error
    except BaseException as error:  # Readers raise various exceptions for invalid bytes.
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        raise NotTransferableError(f"cannot read the stored value: {type(error).__name__}: {error}") from error


class _ValueWalk:
    """Converts a value for msgpack, and records whether JSON can represent it."""

    def __init__(self) -> None:
        self.json = True
        self._parts, self._text = MAX_PARTS, MAX_TEXT

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
        if kind in TEXT_TYPES:
            code, write, _ = TEXT_TYPES[kind]
            return msgspec.msgpack.Ext(code, write(value).encode())
        container_code = CONTAINER_CODES.get(kind)
        if container_code is None:
            raise NotTransferableError(_unsupported_text(value, where))
        return _ext(container_code, self._items(list(value), where, depth))

    def _items(self, values: list[Any], where: str, depth: int) -> list[Any]:
        kinds = set(map(type, values))
        self._count(len(values), sum(map(len, values)) if kinds == {str} else 0)
        if kinds == {str} or (kinds <= SCALARS and kinds.isdisjoint((int, float, str))):
            return values
        if kinds == {int} and values and min(values) >= -INT64_LIMIT and max(values) < INT64_LIMIT:
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
                    raise NotTransferableError(_unsupported_text(key, f"{where}, a key"))
                if type(key) is int and not -INT64_LIMIT <= key < INT64_LIMIT:
                    raise NotTransferableError(
                        f"a dict in the value ({where or 'top level'}) has an integer key beyond 64 bits: use text"
                    )
            found[key] = self.plain(each, f"{where}[{key!r}]", depth - 1)
        return found

    def _count(self, parts: int, text: int) -> None:
        self._parts -= parts
        self._text -= text
        if self._parts < 0 or self._text < 0:
            raise NotTransferableError(
                f"the value has over {MAX_PARTS:,} parts or {MAX_TEXT >> 20} MB of text: write the value to a file"
            )

    def _scalar(self, value: Any) -> Any:
        if type(value) is str:
            self._count(0, len(value))
        elif type(value) is float and not math.isfinite(value):
            self.json = False
        elif type(value) is int and not -INT64_LIMIT <= value < INT64_LIMIT:
            self.json = False
            return msgspec.msgpack.Ext(INTEGER, hex(value).encode())
        return value


def _plain(value: Any, where: str) -> Any:
    """Return `value` in a form that msgpack supports. `where` is the place of the value, for error messages."""
    return _ValueWalk().plain(value, where, MAX_DEPTH)


def _ext(code: int, content: Any) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, msgspec.msgpack.encode(content))


def _unsupported_text(value: Any, where: str) -> str:
    kind = type_name(value)
    subject = f"its {where.removeprefix(', ')} is of type {kind}, which" if where else f"a value of type {kind}"
    if hasattr(type(value), "__dataclass_fields__"):
        remedy = "make a dict of it, as dataclasses.asdict does"
    elif hasattr(type(value), "__struct_fields__"):
        remedy = "make a dict of it, as msgspec.to_builtins does"
    elif isinstance(value, (dict, list, tuple, set, str, int, float)):
        base = next(each.__name__ for each in (dict, list, tuple, set, str, int, float) if isinstance(value, each))
        remedy = f"make a plain {base} of it"
    elif isinstance(value, Mapping):
        remedy = "make a plain dict of it"
    elif callable(value):
        remedy = "return what it computes instead"
    else:
        remedy = "make text, numbers, lists or dicts of what matters in it, or write it to a file"
    return f"{subject} is not plain data, text, bytes, an array or a data frame: {remedy}"


def _read_ext(code: int, data: memoryview) -> Any:
    if code == INTEGER:
        return int(bytes(data), 16)
    for known_code, _, read in TEXT_TYPES.values():
        if code == known_code:
            return read(bytes(data).decode())
    content = _read_data(data)
    constructors: dict[int, Callable[[Any], Any]] = {TUPLE: tuple, SET: set, FROZENSET: frozenset}
    if code == COMPLEX:
        return complex(*content)
    if code not in constructors:
        raise ValueError(f"no value is marked with {code}")
    return constructors[code](content)


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
