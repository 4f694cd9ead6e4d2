"""Bytes that end the process that reads them: another one reads them first."""

from __future__ import annotations

import base64
import hashlib
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from orch_protocol.core.errors import NoValueError
from orch_protocol.core.values import TakenValue, ValueInfo
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
"""An Arrow file with one text, which says of that that it is 2**62 bytes long."""


def library(monkeypatch: pytest.MonkeyPatch, folder: Path, reads: str) -> None:
    """Let a file in `folder` be the library that reads, in the process that does so first; it is not there here."""
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
        ("return 'x' * (4 << 30)", False),  # which raises, for there is no room for it
    ],
)
def test_who_dies_of_it_is_somebody_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reads: str, deadly: bool
) -> None:
    """Whatever becomes of the process that reads first: this one goes on, and knows whether the other one survived."""
    library(monkeypatch, tmp_path, reads)
    if deadly:
        with pytest.raises(FatalBytesError, match="a process that read it died of that"):
            check_reads_safely("polars", "read_ipc", b"it")
    else:
        check_reads_safely("polars", "read_ipc", b"it")


def test_where_nobody_can_try_it_it_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be tried by another process is not risked in this one."""
    monkeypatch.setattr(sys, "executable", "/no/python")
    with pytest.raises(FatalBytesError, match="no process could be started that reads it first: No such file"):
        check_reads_safely("polars", "read_ipc", b"it")


def test_a_frame_that_lies_about_its_length_ends_no_process(tmp_path: Path) -> None:
    """A program that takes such a value of an agent is told, and goes on."""
    pytest.importorskip("polars")
    (tmp_path / "value").write_bytes(LYING)
    value = ValueInfo(".h_001", "", "", 0, (), "arrow", "value", hashlib.sha256(LYING).hexdigest()[:32])
    with pytest.raises(NoValueError, match="'rows' of agent a2 cannot be read: a process that read it died of that"):
        value_of(TakenValue("a2", "rows", str(tmp_path / "value"), value))


async def test_a_file_that_ends_who_reads_it_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file of a stranger's that an agent is to describe costs no more than an error."""
    library(monkeypatch, tmp_path, "os.abort()")
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(ToolError, match="cannot be read by polars: a process that read it died of that"):
        await describe_data.run(ToolContext(tmp_path, seconds=30.0), {"path": "a.parquet"})
