"""Errors as data: they are sent between processes and keep class and message."""

from __future__ import annotations

import pytest

from orch_protocol.core import errors
from orch_protocol.core.errors import ErrorInfo, OrchError, error_from, error_info

CLASSES = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, OrchError)]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_error_round_trips_with_its_class_and_message(kind: type[OrchError]) -> None:
    """An error that was converted to data and back has the same class and message."""
    back = error_from(error_info(kind("what, which, what to do")))
    assert type(back) is kind
    assert str(back) == "what, which, what to do"


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_is_in_the_documented_tree(kind: type[OrchError]) -> None:
    """The docstring of the module contains each error, indented below its parent."""
    lines = (errors.__doc__ or "").splitlines()
    depth = {line.split()[-1]: line.index(line.split()[-1]) for line in lines if line.strip().endswith("Error")}
    assert kind.__name__ in depth
    if kind is not OrchError:
        parent = kind.__bases__[0].__name__
        assert depth[kind.__name__] > depth[parent]


def test_foreign_error_becomes_orch_error_with_its_name() -> None:
    """An exception of another library becomes an OrchError whose message contains the name of its class."""
    back = error_from(error_info(KeyError("x")))
    assert type(back) is OrchError
    assert str(back) == "KeyError: 'x'"


def test_unknown_error_class_becomes_orch_error() -> None:
    """An error of a newer version, whose class does not exist here, becomes an OrchError."""
    assert type(error_from(ErrorInfo("FutureError", "new"))) is OrchError
