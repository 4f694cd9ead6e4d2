"""What a value is, in a line, without running code that nobody knows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orch_worker.workspace.describe_value import describe_value, is_ours


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
def test_a_value_of_a_known_type_is_told_by_type_size_and_beginning(value: Any, kind: str, text: str) -> None:
    """And by about how much memory it takes."""
    found = describe_value(value)
    assert (found.kind, found.text) == (kind, text)
    assert found.size > 0


def test_a_number_of_many_digits_is_told_by_its_size() -> None:
    """Writing it out would take long, or is not allowed."""
    assert describe_value(2**100_000).text == "about 2 ** 100000"


def test_of_a_long_list_the_first_hundred_speak_for_the_size_of_the_rest() -> None:
    """About."""
    assert 400_000 < describe_value(["x" * 1000] * 500).size < 600_000


def test_tables_are_told_by_their_columns() -> None:
    """And arrays by their shape, where these libraries are installed."""
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
    """A value whose every question does something."""

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


def test_no_code_of_a_value_of_an_unknown_type_is_run() -> None:
    """Not for itself, and not within a list: asking may take for ever."""
    hostile = Hostile()
    assert describe_value(hostile).text == ""
    assert describe_value([hostile, {1: hostile}]).text == "2 long: Hostile, dict of 1"
    assert Hostile.asked == []


class Broken(dict[str, int]):
    """A dict that lies about its type."""

    def items(self) -> Any:
        raise RuntimeError


def test_no_code_of_a_type_is_run_either() -> None:
    """What a value says of its class, a class of its module, an item of its size: by code, that may do anything."""

    def ran(_: object) -> object:
        raise AssertionError("this was run")

    meta = type("Meta", (type,), {"__module__": property(ran), "__name__": property(ran)})
    for kind in (
        type("Proxy", (), {"__class__": property(ran), "__sizeof__": ran}),
        meta("Odd", (), {}),
        type("Nowhere", (), {"__module__": None}),
    ):
        value = kind()
        assert is_ours(value)
        assert describe_value(value).kind.endswith(type.__dict__["__name__"].__get__(kind))
        assert describe_value([value]).text.startswith("1 long: ")
    is_ours(meta("Odd", (), {}))


def test_a_type_that_is_made_of_a_known_one_is_not_known() -> None:
    """Its methods are its own."""
    assert describe_value(Broken(a=1)).text == ""


def test_modules_and_what_comes_from_them_are_not_the_codes_own() -> None:
    """Functions and classes made in the namespace are."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("def f(a, b=1):\n    'Add.'\nclass C:\n    def go(self): ...", names)
    assert [is_ours(each) for each in (json, json.dumps, len, json.JSONDecoder, names["f"], names["C"], 3)] == [
        *[False] * 4,
        *[True] * 3,
    ]
    assert describe_value(names["f"]).text == "(a, b) Add."
    assert describe_value(names["C"]).text == "methods: go"
