"""Live Python in the worker: names that stay, output that is taken, time that is up."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest

from orch_protocol.core.messages import Text, ToolUse
from orch_worker.tools.api.base import ToolContext, ToolError, ToolOutput
from orch_worker.tools.dispatch.toolbox import Toolbox
from orch_worker.tools.python.namespace import Namespace
from orch_worker.tools.python.python import installed_packages, run_python


async def run(context: ToolContext, code: str) -> ToolOutput:
    """Run `code` for the agent of `context`."""
    return await run_python.run(context, {"code": code})


@pytest.fixture
def context() -> ToolContext:
    return ToolContext(Path("/"), agent_id="a1", seconds=30.0)


class TestRunPython:
    """run_python."""

    @pytest.mark.parametrize(
        ("code", "shown"),
        [
            ("1 + 1", "2"),
            ("print('a')\n'b'", "a\n'b'"),
            ("x = 1", ""),
            ("None", ""),
            ("", ""),
            ("# nothing", ""),
            ("for i in range(2): print(i)", "0\n1"),
            ("import sys; print('e', file=sys.stderr)", "e"),
            ("print('\\udc80')", "?"),
            ("__name__", "'__main__'"),
            ("def f() -> Nowhere: pass\nf.__annotations__", "NameError"),
            ("raise SystemExit", "SystemExit"),
        ],
    )
    async def test_output_and_last_value(self, context: ToolContext, code: str, shown: str) -> None:
        """What is printed and the value of the last expression are the result."""
        output = await run(context, code)
        assert output.text == shown or (shown == "NameError" and "NameError: name 'Nowhere'" in output.text)

    async def test_long_output_takes_no_memory_beyond_its_own(self, context: ToolContext) -> None:
        """Half a gigabyte is printed, in long texts and in many: what is not shown is not kept."""
        code = "text = 'x' * (1 << 26)\nfor _ in range(7): print(text)\nfor _ in range(1 << 10): print('y' * (1 << 16))"
        await run(context, "1")
        tracemalloc.start()
        try:
            output = await run(context, code)
            assert tracemalloc.get_traced_memory()[1] < (1 << 26) + (8 << 20)
        finally:
            tracemalloc.stop()
        assert len(output.text) < 2 << 20
        assert "bytes left out" in output.text

    async def test_names_stay(self, context: ToolContext) -> None:
        """What one call binds, the next one sees; another agent does not."""
        await run(context, "import math\nx = 20")
        assert (await run(context, "x + 1")).text == "21"
        assert (await run(context, "math.sqrt(_ + 4)")).text == "5.0"
        other = await run(ToolContext(Path("/"), agent_id="a2"), "x")
        assert (other.is_error, "NameError: name 'x' is not defined" in other.text) == (True, True)

    async def test_errors_show_the_code(self, context: ToolContext) -> None:
        """A traceback begins at the code, shows its lines, and says nothing of what runs it."""
        output = await run(context, "def half(x):\n    return x / 0\nprint('before')\nhalf(1)")
        assert output.is_error
        assert output.text.startswith("before\nTraceback (most recent call last):\n")
        assert "    return x / 0\n" in output.text
        assert output.text.endswith("ZeroDivisionError: division by zero")
        assert "orch_worker" not in output.text
        assert (await run(context, "1 +")).text.endswith("SyntaxError: invalid syntax")

    @pytest.mark.parametrize(("code", "failed"), [("exit()", False), ("raise SystemExit(0)", False), ("exit(3)", True)])
    async def test_exit_ends_the_code_alone(self, context: ToolContext, code: str, failed: bool) -> None:
        """Code that exits does not take the worker along."""
        assert (await run(context, f"import sys\n{code.replace('exit(', 'sys.exit(')}")).is_error == failed
        assert (await run(context, "1")).text == "1"

    async def test_nobody_answers_input(self, context: ToolContext) -> None:
        """Asking for input fails at once instead of waiting for a person."""
        assert "EOFError: cannot read input for 'sure? '" in (await run(context, "input('sure? ')")).text

    async def test_output_is_bounded(self, context: ToolContext) -> None:
        """However much is printed, a mebibyte is kept: both ends."""
        output = await run(context, "print('x' * 5_000_000)\nprint('end')")
        assert len(output.text) < 1_100_000
        assert output.text.endswith("end")
        assert "bytes left out" in output.text

    @pytest.mark.parametrize(
        "code", ["while True: pass", "while True:\n try:\n  while True: pass\n except Exception: pass"]
    )
    async def test_endless_code_is_stopped(self, code: str) -> None:
        """Code past its deadline is stopped, says what it printed, and leaves the names usable."""
        context = ToolContext(Path("/"), seconds=0.1)
        output = await run(context, f"print('here', flush=True)\n{code}")
        assert output.is_error
        assert output.text == "here\n[not done after 0 s; it was stopped]"
        context = ToolContext(Path("/"), belongings=context.belongings)
        assert (await run(context, "1")).text == "1"

    async def test_code_that_cannot_be_stopped(self) -> None:
        """Code that never gets back to the interpreter is left behind, and told of, until it is done."""
        context = ToolContext(Path("/"), seconds=0.05)
        await run(context, "import threading\nlatch = threading.Event()")
        # A wait without a deadline returns to the interpreter only when it is over.
        output = await run(context, "latch.wait()")
        assert "cannot be stopped: it still runs" in output.text
        with pytest.raises(ToolError, match="still runs and cannot be stopped: use run_python_script"):
            await run(context, "1")
        left = next(thread for thread in threading.enumerate() if thread.name.startswith("<python"))
        context.own(Namespace).names["latch"].set()
        left.join()
        assert (await run(context, "1")).text == "1"

    async def test_cancelled_call_stops_its_code(self, context: ToolContext) -> None:
        """A turn that is cancelled does not leave a loop running."""
        names = context.own(Namespace).names
        names["ready"] = threading.Event()
        code = "import threading\nme = threading.current_thread()\nready.set()\nwhile True: pass"
        task = asyncio.create_task(run(context, code))
        await asyncio.to_thread(names["ready"].wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        names["me"].join()

    async def test_agents_of_one_process_are_told_apart(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Two agents that print at once, and the program itself, each keep their own output."""
        one, two = (ToolContext(Path("/"), agent_id=name) for name in "ab")
        code = "import threading, time\nfor _ in range(200): print('{0}')"
        outputs = await asyncio.gather(run(one, code.format("one")), run(two, code.format("two")))
        print("program")
        assert [set(output.text.split()) for output in outputs] == [{"one"}, {"two"}]
        assert capsys.readouterr().out == "program\n"

    async def test_streams_are_given_back(self, context: ToolContext) -> None:
        """After a run, the standard streams are the ones from before, also after a failed one."""
        before = sys.stdout, sys.stderr
        await run(context, "1/0")
        assert (sys.stdout, sys.stderr) == before

    async def test_prints_where_the_program_has_closed_its_own_stream(
        self, context: ToolContext, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What a run prints is not the program's, whose stream is not touched for it."""
        closed = io.StringIO()
        closed.close()
        monkeypatch.setattr(sys, "stdout", closed)
        assert (await run(context, "print('here', flush=True)")).text.strip() == "here"

    async def test_runs_alone_and_in_order(self, context: ToolContext) -> None:
        """Calls of one step run one after the other, in call order."""
        box = Toolbox([run_python], context)
        calls = [ToolUse(str(n), "run_python", {"code": f"x = {n}; x" if n == 0 else "x += 1; x"}) for n in range(6)]
        outcomes = await asyncio.gather(*map(box.dispatch, calls))
        assert [outcome.result.content for outcome in outcomes] == [(Text(str(n)),) for n in range(6)]


class TestInstalledPackages:
    """installed_packages."""

    async def list(self, **input: object) -> str:
        return (await installed_packages.run(ToolContext(Path("/")), input)).text

    async def test_names_and_versions(self) -> None:
        """Packages are listed with their versions, found by any spelling of part of a name."""
        lines = (await self.list(pattern="PyTest_Async")).splitlines()
        assert [line.split()[0] for line in lines] == ["pytest-asyncio"]
        assert lines[0].split()[1][0].isdigit()

    async def test_bounds(self) -> None:
        """A list that is cut says how much is missing; one that is empty says so."""
        lines = (await self.list(limit=1)).splitlines()
        assert len(lines) == 2
        assert lines[1].endswith("more; narrow with pattern]")
        assert await self.list(pattern="zebra-stripes") == "No installed package has 'zebra-stripes' in its name."
