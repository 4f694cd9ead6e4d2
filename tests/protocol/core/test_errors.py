"""Errors cross every boundary as data and come back as themselves."""

from __future__ import annotations

import pytest

from orch_protocol.core import errors
from orch_protocol.core.errors import ErrorInfo, OrchError, error_from, error_info

CLASSES = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, OrchError)]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_comes_back_as_its_own_class(kind: type[OrchError]) -> None:
    """Class and message survive the trip as data."""
    back = error_from(error_info(kind("what, which, what to do")))
    assert type(back) is kind
    assert str(back) == "what, which, what to do"


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_is_in_the_drawn_tree(kind: type[OrchError]) -> None:
    """The module's docstring shows the whole tree, under the right parent."""
    lines = (errors.__doc__ or "").splitlines()
    depth = {line.split()[-1]: line.index(line.split()[-1]) for line in lines if line.strip().endswith("Error")}
    assert kind.__name__ in depth
    if kind is not OrchError:
        parent = kind.__bases__[0].__name__
        assert depth[kind.__name__] > depth[parent]


def test_a_foreign_error_keeps_its_name_in_the_message() -> None:
    """An error that is not ours becomes an OrchError that says what it was."""
    back = error_from(error_info(KeyError("x")))
    assert type(back) is OrchError
    assert str(back) == "KeyError: 'x'"


def test_an_unknown_class_becomes_the_root_of_the_tree() -> None:
    """A newer peer's error is still an error of ours."""
    assert type(error_from(ErrorInfo("FutureError", "new"))) is OrchError
