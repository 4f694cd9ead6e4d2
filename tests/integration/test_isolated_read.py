"""Data that crashes the process that reads it: a test process reads the data first."""

from __future__ import annotations

import base64
import hashlib
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from orch_protocol.core.errors import NoValueError
from orch_protocol.core.values import ValueInfo
from orch_protocol.services.resources.values import TakenValue
from orch_worker.system.isolated_read import FatalBytesError, check_reads_safely
from orch_worker.tools.api.base import ToolContext, ToolError
from orch_worker.tools.python.data import describe_data
from orch_worker.tools.values.values import value_of

LYING = zlib.decompress(
    base64.b85decode(
        "c-pN}Jr4mv5PcV02p2gYg>pLzjZVogkZ9Dz1<8fPZ4TZ23co?=SE*Dgh2*?hOOR;9Y-VQn&70Y~ch?&X`olJ$0GzWdt3mc2V*y3v85J(XeIj"
        "|TM^*SI;w@%PuhTt-02S5(lr2}ffGc^*^=)uBLfQUhPU`Uc{W*44?JS?CBkP{4Pv}j@14_JCkrP-%I1ip!4&N<sx%&>=<L4Z)27RQXC4MyNT"
        "}*XsR&ypZ8yP*1^)d-p+N{GU3H5ku!uV^y=!F-(<Uu=6y+r8>-$_w*|4rwE%jw6w|9;aQW6%CcH=bimTm"
    )
)
"""An Arrow file with one text, and with 2**62 bytes as the length of that text."""


def library(monkeypatch: pytest.MonkeyPatch, folder: Path, reads: str) -> None:
    """Put a module `polars` in `folder`, which the test process imports. This process has another `polars`."""
    (folder / "polars.py").write_text(f"import os\ndef read_ipc(file):\n    {reads}\nread_parquet = read_ipc\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(sys.modules, "polars", SimpleNamespace(read_parquet=None))


@pytest.mark.parametrize(
    ("reads", "deadly"),
    [
        ("return file.read()", False),
        ("raise ValueError('it is none')", False),
        ("os.abort()", True),
        ("os._exit(0)", True),
        ("return 'x' * (4 << 30)", False),  # raises an exception, because there is not enough memory
    ],
)
def test_crash_during_a_trial_read_is_survived(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reads: str, deadly: bool
) -> None:
    """A crash of the test process raises FatalBytesError. An exception in the test process does not."""
    library(monkeypatch, tmp_path, reads)
    if deadly:
        with pytest.raises(FatalBytesError, match="reading the data crashed a test process"):
            check_reads_safely("polars", "read_ipc", b"it")
    else:
        check_reads_safely("polars", "read_ipc", b"it")


def test_data_is_not_read_without_a_test_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the test process cannot be started, `check_reads_safely` raises FatalBytesError."""
    monkeypatch.setattr(sys, "executable", "/no/python")
    with pytest.raises(FatalBytesError, match="cannot start the process that reads the data first: No such file"):
        check_reads_safely("polars", "read_ipc", b"it")


def test_frame_with_a_wrong_length_is_an_error(tmp_path: Path) -> None:
    """`value_of` raises NoValueError for a value of an agent that crashes its reader."""
    pytest.importorskip("polars")
    (tmp_path / "value").write_bytes(LYING)
    value = ValueInfo(".h_001", "", "", 0, (), "arrow", "value", hashlib.sha256(LYING).hexdigest()[:32])
    with pytest.raises(
        NoValueError, match="'rows' of agent a2 cannot be read: reading the data crashed a test process"
    ):
        value_of(TakenValue("a2", "rows", str(tmp_path / "value"), value))


async def test_file_that_crashes_its_reader_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`describe_data` raises a ToolError that names the reader."""
    library(monkeypatch, tmp_path, "os.abort()")
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(ToolError, match="cannot be read by polars: reading the data crashed a test process"):
        await describe_data.run(ToolContext(tmp_path, seconds=30.0), {"path": "a.parquet"})
