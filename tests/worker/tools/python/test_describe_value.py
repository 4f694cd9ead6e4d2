"""The description of a value in one line, without running unknown code."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orch_worker.tools.python.describe_value import created_by_agent, describe_value


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (7, "int", "7"),
        (None, "NoneType", "None"),
        ("x" * 200, "str", f"'{'x' * 80}'... (200 long)"),
        ([], "list", "empty"),
        ([1, "a", [2, 3], {}], "list", "4 long: 1, 'a', list of 2, dict of 0"),
        (list(range(100)), "list", "100 long: 0, 1, 2, 3, 4, 5, ..."),
        ({"a": 1, "b": object()}, "dict", "2 keys: 'a': 1, 'b': object"),
    ],
)
def test_known_value_is_described_by_type_size_and_beginning(value: Any, kind: str, text: str) -> None:
    """The description also contains the approximate size in memory."""
    found = describe_value(value)
    assert (found.kind, found.text) == (kind, text)
    assert found.size > 0


def test_huge_integer_is_described_by_its_size() -> None:
    """The decimal form of a huge integer would take long or exceed the limit of Python."""
    assert describe_value(2**100_000).text == "about 2 ** 100000"


def test_size_of_a_long_list_is_extrapolated_from_a_hundred_items() -> None:
    """The estimate is within 20 percent."""
    assert 400_000 < describe_value(["x" * 1000] * 500).size < 600_000


def test_tables_and_arrays_are_described_by_columns_and_shape() -> None:
    """The test needs numpy, pandas and polars."""
    numpy, pandas, polars = map(pytest.importorskip, ("numpy", "pandas", "polars"))
    for value, kind, size, text in (
        (numpy.arange(8.0).reshape(2, 4), "numpy.ndarray", 64, "2 x 4 float64: 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, ..."),
        (numpy.int64(7), "numpy.int64", 8, "7"),
        (numpy.float32(0.5), "numpy.float32", 4, "0.5"),
        (numpy.array(3), "numpy.ndarray", 8, "a single number int64: 3"),
        (pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]}), "pandas.DataFrame", 16, "2 x 2: a int64, b "),
        (pandas.Series([1.5, 2.5]), "pandas.Series", 16, "2 long, float64: 1.5, 2.5"),
        (polars.DataFrame({"a": [1, 2], "b": ["x", "y"]}), "polars.DataFrame", 16, "2 x 2: a Int64, b String"),
        (polars.Series("a", [1, 2]), "polars.Series", 16, "2 long, Int64: 1, 2"),
    ):
        found = describe_value(value)
        assert (found.kind, found.text[: len(text)]) == (kind, text)
        assert found.size >= size


class Hostile:
    """A value that records every access."""

    asked: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        raise RuntimeError(name)

    def __len__(self) -> int:
        self.asked.append("len")
        return 3

    def __repr__(self) -> str:
        self.asked.append("repr")
        return "hostile"

    __str__ = __repr__


def test_no_code_of_unknown_types_is_run() -> None:
    """Describing a value, or a list that contains it, does not access its attributes."""
    hostile = Hostile()
    assert describe_value(hostile).text == ""
    assert describe_value([hostile, {1: hostile}]).text == "2 long: Hostile, dict of 1"
    assert Hostile.asked == []


class Broken(dict[str, int]):
    """A dict with an overridden method."""

    def items(self) -> Any:
        raise RuntimeError


def test_no_code_of_classes_is_run() -> None:
    """No property `__class__`, `__module__` or `__name__` and no `__sizeof__` is called."""

    def ran(_: object) -> object:
        raise AssertionError("this was run")

    meta = type("Meta", (type,), {"__module__": property(ran), "__name__": property(ran)})
    for kind in (
        type("Proxy", (), {"__class__": property(ran), "__sizeof__": ran}),
        meta("Odd", (), {}),
        type("Nowhere", (), {"__module__": None}),
    ):
        value = kind()
        assert created_by_agent(value)
        assert describe_value(value).kind.endswith(type.__dict__["__name__"].__get__(kind))
        assert describe_value([value]).text.startswith("1 long: ")
    created_by_agent(meta("Odd", (), {}))


def test_subclass_of_a_known_type_is_unknown() -> None:
    """A subclass may override any method."""
    assert describe_value(Broken(a=1)).text == ""


def test_imported_objects_do_not_count_as_defined_by_the_code() -> None:
    """Functions and classes that the code defines do."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("def f(a, b=1):\n    'Add.'\nclass C:\n    def go(self): ...", names)
    assert [
        created_by_agent(each) for each in (json, json.dumps, len, json.JSONDecoder, names["f"], names["C"], 3)
    ] == [
        *[False] * 4,
        *[True] * 3,
    ]
    assert describe_value(names["f"]).text == "(a, b) Add."
    assert describe_value(names["C"]).text == "methods: go"
