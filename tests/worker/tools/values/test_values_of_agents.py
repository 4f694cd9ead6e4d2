"""Values of other agents: what is taken over is what was stored, with what it brings along, and never runs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch_protocol.core.errors import NoValueError
from orch_protocol.core.taint import taint_label
from orch_protocol.core.values import TakenValue, TakeValue, ValueInfo
from orch_protocol.services.service import AnyService
from orch_worker.system.isolated_read import FatalBytesError
from orch_worker.tools.api.base import ToolContext
from orch_worker.tools.dispatch.toolbox import Toolbox
from orch_worker.tools.python.export import export
from orch_worker.tools.python.namespace import Namespace
from orch_worker.tools.python.python import run_python
from orch_worker.tools.values.handles import read_handle
from orch_worker.tools.values.values import ValueStore, adopt_value, value_of

ROWS = [{"n": n} for n in range(3)]


def taken(folder: Path, data: bytes = b"[1,2]", **changed: Any) -> TakenValue:
    """Return what the root says of a value whose file holds `data`."""
    (folder / "value").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()[:32]
    value = ValueInfo(".h_001", "list", "2 items", 88, ("items: 2 int",), "json", "value", digest)
    return TakenValue("a2", "rows", str(folder / "value"), msgspec.structs.replace(value, **changed))


def parent(folder: Path, answer: Any) -> ToolContext:
    """Return the context of an agent whose root answers with `answer`."""

    async def call_root(called: AnyService, params: Any, _seconds: float | None = None) -> Any:
        service = called.name
        assert (service, params) == ("take_value", TakeValue("a2", "rows"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    (folder / "own").mkdir()
    context = ToolContext(Path("/"), agent_id="a1", folder=folder / "own", call_root=call_root, seconds=30.0)
    Toolbox([run_python, read_handle], context)
    return context


class TestTaking:
    """What an agent gets."""

    async def test_it_is_a_handle_here(self, tmp_path: Path) -> None:
        """The marker names the handle, what it is, and whose it was. The file it is from, a copy, is removed."""
        context = parent(tmp_path, taken(tmp_path))
        text = await adopt_value(context, "a2", "rows", local=False)
        assert text.splitlines()[:2] == ["rows of agent a2 is kept here:", "[.h_001: list, 2 items, 88 bytes"]
        assert not (tmp_path / "value").exists()
        assert context.own(ValueStore).load(".h_001") == [1, 2]

    async def test_what_it_brings_along(self, tmp_path: Path) -> None:
        """What the child's conversation was marked with, and that it was for local models, comes with each reading."""
        marks = (taint_label("untrusted", "https://example.org"), taint_label("acts", "bash"))
        context = parent(tmp_path, taken(tmp_path, marks=marks))
        await adopt_value(context, "a2", "rows", local=True)
        read = await read_handle.run(context, {"handle": ".h_001"})
        ran = await run_python.run(context, {"code": "handles[1]"})
        for output in (read, ran):
            assert ([each.bit for each in output.marks], output.local) == (["untrusted"], True)

    @pytest.mark.parametrize(
        ("changed", "why"),
        [
            ({"digest": "0" * 32}, "not the one that was stored"),
            ({"digest": ""}, "not the one that was stored"),
            ({"kind": "pickle"}, "of a kind that is not known here: 'pickle'"),
        ],
    )
    async def test_what_is_not_believed(self, tmp_path: Path, changed: dict[str, str], why: str) -> None:
        """A file that is another one, or of a kind that nobody reads, is refused; the answer goes on without it."""
        context = parent(tmp_path, taken(tmp_path, **changed))
        text = await adopt_value(context, "a2", "rows", local=False)
        assert text.startswith("[No value of 'rows' was returned: ")
        assert why in text
        assert list(context.own(ValueStore)) == []

    async def test_what_would_end_this_process_is_not_taken_over(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Bytes of which another process died are not kept here, where each reading would be the end."""

        def taste(library: str, _reader: str, data: bytes) -> None:
            raise FatalBytesError(f"{library} on {len(data)} bytes")

        monkeypatch.setattr("orch_worker.tools.values.values.check_reads_safely", taste)
        context = parent(tmp_path, taken(tmp_path, b"frame", kind="arrow"))
        text = await adopt_value(context, "a2", "rows", local=False)
        assert text == "[No value of 'rows' was returned: 'rows' of agent a2 cannot be read: polars on 5 bytes]"
        assert list(context.own(ValueStore)) == []

    async def test_the_roots_no_is_told(self, tmp_path: Path) -> None:
        """Why there is no value stands behind the answer."""
        context = parent(tmp_path, NoValueError("no name 'rows' is bound; nothing is"))
        text = await adopt_value(context, "a2", "rows", local=False)
        assert text == "[No value of 'rows' was returned: no name 'rows' is bound; nothing is]"

    def test_a_program_gets_the_value(self, tmp_path: Path) -> None:
        """What cannot be read is an error that names the agent."""
        assert value_of(taken(tmp_path)) == [1, 2]
        with pytest.raises(NoValueError, match="'rows' of agent a2: cannot read the stored value"):
            value_of(taken(tmp_path, b"["))


class TestGiving:
    """What an agent lets go."""

    def child(self, folder: Path, *tools: Any) -> ToolContext:
        context = ToolContext(Path("/"), agent_id="a2", folder=folder, seconds=30.0)
        Toolbox(tools, context)
        return context

    async def test_a_name_becomes_a_file(self, tmp_path: Path) -> None:
        """However small the value is, it is stored under a handle and told with its hash."""
        context = self.child(tmp_path, run_python)
        await run_python.run(context, {"code": f"rows = {ROWS!r}"})
        value = await export(context, "rows")
        assert (value.handle, value.type, value.extent, value.kind) == (".h_001", "list", "3 items", "json")
        data = (tmp_path / "stash" / value.file).read_bytes()
        assert (msgspec.json.decode(data), hashlib.sha256(data).hexdigest()[:32]) == (ROWS, value.digest)
        assert (await export(context, "h_001")) == value

    async def test_nothing_is_a_value(self, tmp_path: Path) -> None:
        """None is one like any other."""
        context = self.child(tmp_path, run_python)
        await run_python.run(context, {"code": "nothing = None"})
        assert (await export(context, "nothing")).type == "NoneType"

    @pytest.mark.parametrize("name", ["handles", "input", "__builtins__", "rows", "a b", "rows[0]", "", "import os"])
    async def test_no_such_name(self, tmp_path: Path, name: str) -> None:
        """Names are looked up and nothing is evaluated; those that are not the agent's are none."""
        with pytest.raises(NoValueError):
            await export(self.child(tmp_path, run_python), name)

    async def test_without_run_python(self, tmp_path: Path) -> None:
        """An agent that runs no code has no names, and none is made for it."""
        context = self.child(tmp_path, read_handle)
        with pytest.raises(NoValueError, match="has no run_python"):
            await export(context, "rows")
        assert context.own(Namespace).bound() == {}

    async def test_too_large(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is too large to be stored says what to do instead."""
        monkeypatch.setattr("orch_worker.tools.values.values.MOST_STORED", 100)
        context = self.child(tmp_path, run_python)
        await run_python.run(context, {"code": "rows = 'x' * 1000"})
        with pytest.raises(NoValueError, match="more than 100 bytes are not stored: write it to a file"):
            await export(context, "rows")
