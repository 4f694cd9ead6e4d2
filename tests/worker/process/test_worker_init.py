"""The start and the exit of a worker, tested without a process."""

from __future__ import annotations

import pytest

from orch_worker.process import worker_init
from orch_worker.system.importing import load


@pytest.mark.parametrize(("value", "code"), [(None, 0), (0, 0), (7, 7), (True, 1), (256 + 3, 3), (-1, 255)])
def test_exit_codes_follow_sys_exit(value: object, code: int) -> None:
    """None becomes 0, and a number becomes its last eight bits."""
    assert worker_init._code(value) == code


def test_exit_message_is_printed_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """An exit with a text has the exit code 1, as with `sys.exit`."""
    assert worker_init._code("no transcript") == 1
    assert capsys.readouterr().err == "no transcript\n"


def test_entry_point_is_imported_by_name() -> None:
    """The entry point `module:function` is resolved to the function."""
    import json

    assert load("json:dumps") is json.dumps


@pytest.mark.parametrize(
    ("entry", "error"), [("no_such_module_at_all:main", ImportError), ("json:no_such_name", AttributeError)]
)
def test_missing_entry_point_is_an_error(entry: str, error: type[Exception]) -> None:
    """The error names the missing module or function."""
    with pytest.raises(error, match="no_such"):
        load(entry)
