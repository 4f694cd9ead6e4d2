"""Values that agents transfer to each other: checks, taint, locality and errors."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch_protocol.core.errors import NoValueError
from orch_protocol.core.taint import taint_label
from orch_protocol.core.values import ValueInfo
from orch_protocol.services.resources.values import TakenValue, TakeValue
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
    """Return the root's answer for a value whose file contains `data`."""
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
    """Taking a value from a subagent."""

    async def test_value_of_a_subagent_becomes_a_handle(self, tmp_path: Path) -> None:
        """The marker names type and subagent, and the transferred file is removed."""
        context = parent(tmp_path, taken(tmp_path))
        text = await adopt_value(context, "a2", "rows", local=False)
        assert text.splitlines()[:2] == ["rows of agent a2 is kept here:", "[.h_001: list, 2 items, 88 bytes"]
        assert not (tmp_path / "value").exists()
        assert context.agent_object(ValueStore).load(".h_001") == [1, 2]

    async def test_value_brings_taint_and_locality_of_the_child(self, tmp_path: Path) -> None:
        """Each reading of the value has the content labels and the locality of the subagent's conversation."""
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
            ({"digest": "0" * 32}, "differs from the stored file"),
            ({"digest": ""}, "differs from the stored file"),
            ({"kind": "pickle"}, "has the unknown kind 'pickle'"),
        ],
    )
    async def test_invalid_value_file_is_refused(self, tmp_path: Path, changed: dict[str, str], why: str) -> None:
        """A value with a wrong digest or an unknown kind is not stored, and the text gives the reason."""
        context = parent(tmp_path, taken(tmp_path, **changed))
        text = await adopt_value(context, "a2", "rows", local=False)
        assert text.startswith("[No value of 'rows' was returned: ")
        assert why in text
        assert list(context.agent_object(ValueStore)) == []

    async def test_value_that_crashes_a_reader_is_not_stored(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Bytes that crashed a test reader are not stored, because each later reading would crash the worker."""

        def taste(library: str, _reader: str, data: bytes) -> None:
            raise FatalBytesError(f"{library} on {len(data)} bytes")

        monkeypatch.setattr("orch_worker.tools.values.values.check_reads_safely", taste)
        context = parent(tmp_path, taken(tmp_path, b"frame", kind="arrow"))
        text = await adopt_value(context, "a2", "rows", local=False)
        assert text == "[No value of 'rows' was returned: 'rows' of agent a2 cannot be read: polars on 5 bytes]"
        assert list(context.agent_object(ValueStore)) == []

    async def test_refusal_of_the_root_follows_the_answer(self, tmp_path: Path) -> None:
        """If the root refuses the value, the text says that no value was returned and why."""
        context = parent(tmp_path, NoValueError("no variable 'rows'; there are no variables"))
        text = await adopt_value(context, "a2", "rows", local=False)
        assert text == "[No value of 'rows' was returned: no variable 'rows'; there are no variables]"

    def test_program_receives_the_value(self, tmp_path: Path) -> None:
        """A program receives the decoded value. An unreadable value is an error that names the agent."""
        assert value_of(taken(tmp_path)) == [1, 2]
        with pytest.raises(NoValueError, match="'rows' of agent a2: cannot read the stored value"):
            value_of(taken(tmp_path, b"["))


class TestGiving:
    """Exporting a value of an agent."""

    def child(self, folder: Path, *tools: Any) -> ToolContext:
        context = ToolContext(Path("/"), agent_id="a2", folder=folder, seconds=30.0)
        Toolbox(tools, context)
        return context

    async def test_named_value_is_exported_to_a_file(self, tmp_path: Path) -> None:
        """The exported value has a handle and a digest, and exporting the handle gives the same value."""
        context = self.child(tmp_path, run_python)
        await run_python.run(context, {"code": f"rows = {ROWS!r}"})
        value = await export(context, "rows")
        assert (value.handle, value.type, value.extent, value.kind) == (".h_001", "list", "3 items", "json")
        data = (tmp_path / "stash" / value.file).read_bytes()
        assert (msgspec.json.decode(data), hashlib.sha256(data).hexdigest()[:32]) == (ROWS, value.digest)
        assert (await export(context, "h_001")) == value

    async def test_none_is_a_valid_value(self, tmp_path: Path) -> None:
        """A variable with the value None is exported."""
        context = self.child(tmp_path, run_python)
        await run_python.run(context, {"code": "nothing = None"})
        assert (await export(context, "nothing")).type == "NoneType"

    @pytest.mark.parametrize("name", ["handles", "input", "__builtins__", "rows", "a b", "rows[0]", "", "import os"])
    async def test_export_takes_names_not_expressions(self, tmp_path: Path, name: str) -> None:
        """Expressions, built-in names and unknown names are errors, and nothing is evaluated."""
        with pytest.raises(NoValueError):
            await export(self.child(tmp_path, run_python), name)

    async def test_export_without_run_python_has_no_names(self, tmp_path: Path) -> None:
        """Without `run_python`, an export is an error and creates no variables."""
        context = self.child(tmp_path, read_handle)
        with pytest.raises(NoValueError, match="has no run_python"):
            await export(context, "rows")
        assert context.agent_object(Namespace).bound() == {}

    async def test_export_of_an_oversized_value_is_an_error_with_a_hint(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The error for a value over the maximum size suggests writing the value to a file."""
        monkeypatch.setattr("orch_worker.tools.values.values.MAX_STORED", 100)
        context = self.child(tmp_path, run_python)
        await run_python.run(context, {"code": "rows = 'x' * 1000"})
        with pytest.raises(NoValueError, match="more than 100 bytes are not stored: write the value to a file"):
            await export(context, "rows")
