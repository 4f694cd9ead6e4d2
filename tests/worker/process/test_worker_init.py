"""The first and last moments of a worker, as far as they need no process."""

from __future__ import annotations

import pytest

from orch_worker.process import worker_init
from orch_worker.system.importing import load


@pytest.mark.parametrize(("value", "code"), [(None, 0), (0, 0), (7, 7), (True, 1), (256 + 3, 3), (-1, 255)])
def test_exit_codes_are_those_of_sys_exit(value: object, code: int) -> None:
    """None is success; a number is itself, as far as the system carries it."""
    assert worker_init._code(value) == code


def test_exit_with_words_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    """`sys.exit("why")` says why on stderr and exits 1."""
    assert worker_init._code("no transcript") == 1
    assert capsys.readouterr().err == "no transcript\n"


def test_entry_is_named_by_module_and_function() -> None:
    """`module:function` is imported when asked for."""
    import json

    assert load("json:dumps") is json.dumps


@pytest.mark.parametrize(
    ("entry", "error"), [("no_such_module_at_all:main", ImportError), ("json:no_such_name", AttributeError)]
)
def test_entry_that_is_not_there_is_an_error(entry: str, error: type[Exception]) -> None:
    """A module or function that does not exist is named in the error."""
    with pytest.raises(error, match="no_such"):
        load(entry)
