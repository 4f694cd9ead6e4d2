"""`run_python` and `installed_packages`: persistent names, captured output and time limits."""

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
        """The result contains the printed output and the value of the last expression."""
        output = await run(context, code)
        assert output.text == shown or (shown == "NameError" and "NameError: name 'Nowhere'" in output.text)

    async def test_printed_output_uses_bounded_memory(self, context: ToolContext) -> None:
        """Half a gigabyte of output in long and in short texts needs little memory."""
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

    async def test_names_persist_between_calls(self, context: ToolContext) -> None:
        """Names of one agent are not visible to code of another agent."""
        await run(context, "import math\nx = 20")
        assert (await run(context, "x + 1")).text == "21"
        assert (await run(context, "math.sqrt(_ + 4)")).text == "5.0"
        other = await run(ToolContext(Path("/"), agent_id="a2"), "x")
        assert (other.is_error, "NameError: name 'x' is not defined" in other.text) == (True, True)

    async def test_traceback_shows_only_the_agents_code(self, context: ToolContext) -> None:
        """A traceback starts with the agent's code, shows its lines, and contains no lines of orch."""
        output = await run(context, "def half(x):\n    return x / 0\nprint('before')\nhalf(1)")
        assert output.is_error
        assert output.text.startswith("before\nTraceback (most recent call last):\n")
        assert "    return x / 0\n" in output.text
        assert output.text.endswith("ZeroDivisionError: division by zero")
        assert "orch_worker" not in output.text
        assert (await run(context, "1 +")).text.endswith("SyntaxError: invalid syntax")

    @pytest.mark.parametrize(("code", "failed"), [("exit()", False), ("raise SystemExit(0)", False), ("exit(3)", True)])
    async def test_exit_ends_the_code_not_the_worker(self, context: ToolContext, code: str, failed: bool) -> None:
        """After code that exits, the next call works. Only a non-zero exit status is an error."""
        assert (await run(context, f"import sys\n{code.replace('exit(', 'sys.exit(')}")).is_error == failed
        assert (await run(context, "1")).text == "1"

    async def test_input_fails_at_once(self, context: ToolContext) -> None:
        """`input` raises an EOFError instead of waiting for a person."""
        assert "EOFError: cannot read input for 'sure? '" in (await run(context, "input('sure? ')")).text

    async def test_output_is_bounded(self, context: ToolContext) -> None:
        """Output of 5 MB is cut to about 1 MB and keeps its end."""
        output = await run(context, "print('x' * 5_000_000)\nprint('end')")
        assert len(output.text) < 1_100_000
        assert output.text.endswith("end")
        assert "bytes left out" in output.text

    @pytest.mark.parametrize(
        "code", ["while True: pass", "while True:\n try:\n  while True: pass\n except Exception: pass"]
    )
    async def test_endless_code_is_stopped(self, code: str) -> None:
        """Code that exceeds its deadline is stopped, its output so far is shown, and the next call works."""
        context = ToolContext(Path("/"), seconds=0.1)
        output = await run(context, f"print('here', flush=True)\n{code}")
        assert output.is_error
        assert output.text == "here\n[not done after 0 s; it was stopped]"
        context = ToolContext(Path("/"), tool_state=context.tool_state)
        assert (await run(context, "1")).text == "1"

    async def test_uninterruptible_code_is_abandoned_and_reported(self) -> None:
        """While code that cannot be stopped still runs, later calls are refused."""
        context = ToolContext(Path("/"), seconds=0.05)
        await run(context, "import threading\nlatch = threading.Event()")
        # A wait without a deadline returns to the interpreter only at the end of the wait.
        output = await run(context, "latch.wait()")
        assert "cannot be stopped: it still runs" in output.text
        with pytest.raises(ToolError, match="is still running and cannot be stopped: use run_python_script"):
            await run(context, "1")
        left = next(thread for thread in threading.enumerate() if thread.name.startswith("<python"))
        context.agent_object(Namespace).names["latch"].set()
        left.join()
        assert (await run(context, "1")).text == "1"

    async def test_cancelled_call_stops_its_code(self, context: ToolContext) -> None:
        """After a call is cancelled, the thread of its endless loop ends."""
        names = context.agent_object(Namespace).names
        names["ready"] = threading.Event()
        code = "import threading\nme = threading.current_thread()\nready.set()\nwhile True: pass"
        task = asyncio.create_task(run(context, code))
        await asyncio.to_thread(names["ready"].wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        names["me"].join()

    async def test_output_of_concurrent_agents_is_separated(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Two agents and the program print at the same time, and each receives only its own output."""
        one, two = (ToolContext(Path("/"), agent_id=name) for name in "ab")
        code = "import threading, time\nfor _ in range(200): print('{0}')"
        outputs = await asyncio.gather(run(one, code.format("one")), run(two, code.format("two")))
        print("program")
        assert [set(output.text.split()) for output in outputs] == [{"one"}, {"two"}]
        assert capsys.readouterr().out == "program\n"

    async def test_standard_streams_are_restored(self, context: ToolContext) -> None:
        """After code that raised an exception, `sys.stdout` and `sys.stderr` are the same objects as before."""
        before = sys.stdout, sys.stderr
        await run(context, "1/0")
        assert (sys.stdout, sys.stderr) == before

    async def test_output_is_captured_when_the_program_closed_its_stream(
        self, context: ToolContext, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Code can print although `sys.stdout` of the program is closed."""
        closed = io.StringIO()
        closed.close()
        monkeypatch.setattr(sys, "stdout", closed)
        assert (await run(context, "print('here', flush=True)")).text.strip() == "here"

    async def test_calls_of_one_step_run_one_after_the_other(self, context: ToolContext) -> None:
        """Six calls that change the same variable run in call order."""
        box = Toolbox([run_python], context)
        calls = [ToolUse(str(n), "run_python", {"code": f"x = {n}; x" if n == 0 else "x += 1; x"}) for n in range(6)]
        outcomes = await asyncio.gather(*map(box.dispatch, calls))
        assert [outcome.result.content for outcome in outcomes] == [(Text(str(n)),) for n in range(6)]


class TestInstalledPackages:
    async def list(self, **input: object) -> str:
        return (await installed_packages.run(ToolContext(Path("/")), input)).text

    async def test_names_and_versions(self) -> None:
        """Packages are listed with their versions, and a pattern matches any spelling of a part of the name."""
        lines = (await self.list(pattern="PyTest_Async")).splitlines()
        assert [line.split()[0] for line in lines] == ["pytest-asyncio"]
        assert lines[0].split()[1][0].isdigit()

    async def test_bounds(self) -> None:
        """A shortened list says that there are more packages, and an empty list names the pattern."""
        lines = (await self.list(limit=1)).splitlines()
        assert len(lines) == 2
        assert lines[1].endswith("more; narrow with pattern]")
        assert await self.list(pattern="zebra-stripes") == "No installed package has 'zebra-stripes' in its name."
