"""The command `orch chat`: conflicting options, and input and output without terminal features."""

from __future__ import annotations

import asyncio
import errno
import io
import sys

import pytest

from orch.chat.screen import LineInput, PlainScreen
from orch.cli import run
from orch.client.failure import CommandError
from orchestrator.chat.test_app import AGENT, Talk, question

Captured = pytest.CaptureFixture[str]


class Screen(io.StringIO):
    """A terminal that can only print."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["--json"], "orch chat has no JSON output"),
        (["1", "--model", "local", "--plan"], "--model, --plan cannot be changed for the existing agent 1"),
        (["1", "--history", "h.json"], "--history cannot be changed for the existing agent 1"),
        (["1", "--max-cost", "2"], "--max-cost cannot be changed for the existing agent 1"),
        (["--approve", "ask"], "needs a terminal"),
    ],
)
def test_conflicting_options_are_refused_before_anything_starts(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, argv: list[str], why: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    for name in ("orch.cli.agents.chat.Connection", "orch.chat.daemon_connection.DaemonConnection"):
        monkeypatch.setattr(name, lambda: pytest.fail("connected to the daemon"))
    assert run(["chat", *argv]) == 2
    assert why in capsys.readouterr().err


def test_start_is_reported_before_the_slow_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is written before the module of the screen is imported, and is erased after an error."""
    out = Screen()
    monkeypatch.setattr("sys.stdin", Screen())
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setitem(sys.modules, "orch.chat.screen", None)  # an import raises ImportError
    with pytest.raises(ImportError):
        run(["chat"])
    assert out.getvalue() == "starting ...\r\r\x1b[K"


class Typist:
    """An iterator over lines of input."""

    def __init__(self, talk: Talk, *lines: str) -> None:
        self._talk = talk
        self._lines = list(lines)

    def __iter__(self) -> Typist:
        return self

    def __next__(self) -> str:
        if not self._lines:
            raise StopIteration
        return self._lines.pop(0)


async def printed(talk: Talk, *lines: str, waits: bool) -> tuple[str, str]:
    """Return stdout and stderr of a chat with these input lines. With `waits`, each turn sends the same text."""
    out, err = Screen(), Screen()
    output = PlainScreen(out, err)
    talk.chat.output = output
    talk.chat._turn_log._output = output
    reading = LineInput(talk.chat, Typist(talk, *lines), wait_for_turns=waits)  # type: ignore[arg-type]
    running = asyncio.create_task(reading.run())
    while not running.done():
        await asyncio.sleep(0)
        if waits and talk.chat.working is not None:
            talk.began()
            talk.chat.event({"n": 1, "kind": "text", "text": "said\x1b[2J"})
            talk.chat.event({"n": 2, "kind": "message", "text": "said\x1b[2J", "step": 1})
            await talk.ended()
    await running
    return out.getvalue(), err.getvalue()


async def test_input_lines_are_sent_one_after_the_other() -> None:
    """A backslash continues a line. At the end of the input the chat keeps live agents."""
    talk = await Talk(echo=False).begin()
    talk.wire.answers["list"] = [AGENT]
    out, err = await printed(talk, "one\n", "two\\\n", "three\n", waits=True)
    assert [each["prompt"] for each in talk.wire.of("submit")] == ["one", "two\nthree"]
    assert out == "said\\x1b[2J\n" * 2
    assert err.endswith("agent 1 (n) is kept: orch chat 1 continues the chat\n")
    assert talk.wire.of("kill") == []


async def test_paste_mode_ends_with_the_input() -> None:
    """A backslash at the end of a pasted line is text, and the lines so far are sent."""
    talk = await Talk(echo=False).begin()
    talk.wire.executes("paste", kind="paste")
    await printed(talk, "/paste\n", "#define X \\\n", "  3\n", waits=True)
    assert [each["prompt"] for each in talk.wire.of("submit")] == ["#define X \\\n  3"]


@pytest.mark.parametrize("why", [BrokenPipeError(), OSError(errno.ENOSPC, "No space left on device")], ids=str)
async def test_unwritable_output_ends_the_chat(why: OSError) -> None:
    """The chat raises the error in the middle of a turn, and sends no further line."""

    class Closed(Screen):
        def write(self, _: str) -> int:
            raise why

    talk = await Talk(echo=False).begin()
    talk.chat.output = talk.chat._turn_log._output = PlainScreen(Closed(), Screen())
    reading = LineInput(talk.chat, Typist(talk, "one\n", "two\n"), wait_for_turns=True)  # type: ignore[arg-type]
    running = asyncio.create_task(reading.run())
    while talk.chat.working is None:  # noqa: ASYNC110  # yields
        await asyncio.sleep(0)
    talk.began()
    talk.chat.event({"n": 1, "kind": "text", "text": "said"})
    with pytest.raises(type(why), match=why.strerror):
        await running
    assert len(talk.wire.of("submit")) == 1


@pytest.mark.parametrize(("method", "line"), [("submit", "go"), ("execute", "/nonsense")])
async def test_refused_or_failed_turn_sets_the_exit_code(method: str, line: str) -> None:
    """A later turn that succeeds resets the failure."""
    talk = await Talk().begin()
    talk.wire.answers[method] = CommandError("ConfigError", "there is no such thing")
    await talk.chat.process_input(line)
    assert talk.chat.failed
    talk.wire.answers["submit"] = {"id": "abc", "query_id": "q"}
    await talk.chat.process_input("go")
    await talk.ended(error=None)
    assert not talk.chat.failed


async def test_plain_screen_prints_a_question_once() -> None:
    """The question of a subagent is written to stderr."""
    talk = await Talk(echo=False).begin()
    LineInput(talk.chat, Typist(talk), wait_for_turns=False)  # type: ignore[arg-type]
    err = Screen()
    talk.chat.output = PlainScreen(Screen(), err)
    talk.chat.event(question(agent_id="kid"))
    talk.chat.changed()
    assert err.getvalue().count("Allow it?") == 1
    assert "wants: rm x" in err.getvalue()
