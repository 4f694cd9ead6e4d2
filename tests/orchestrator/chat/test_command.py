"""`orch chat` as it is typed: what goes together and what does not, and lines where a terminal can do little."""

from __future__ import annotations

import asyncio
import errno
import io

import pytest

from orch.chat.screen import LineInput, PlainScreen
from orch.cli import run
from orch.client.failure import CommandError
from orchestrator.chat.test_app import AGENT, Talk, question

Captured = pytest.CaptureFixture[str]


class Screen(io.StringIO):
    """A terminal that can do no more than print."""

    def isatty(self) -> bool:
        """It is one."""
        return True


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["--json"], "a chat is for people"),
        (["1", "--model", "local", "--plan"], "agent 1 is what it is: --model, --plan is for another one"),
        (["1", "--max-cost", "2"], "--max-cost is for another one"),
        (["--approve", "ask"], "needs a terminal"),
    ],
)
def test_what_does_not_go_together_is_refused(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, argv: list[str], why: str
) -> None:
    """Before anything is started."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert run(["chat", *argv]) == 2
    assert why in capsys.readouterr().err


class Typist:
    """Types lines when they are wanted."""

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
    """Return what is said and what is told when these lines are typed and the agent says nothing."""
    out, err = Screen(), Screen()
    sheet = PlainScreen(out, err)
    talk.chat.sheet = sheet
    talk.chat._story._sheet = sheet
    reading = LineInput(talk.chat, Typist(talk, *lines), waits=waits)  # type: ignore[arg-type]
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


async def test_each_line_is_said_when_the_last_was_answered() -> None:
    """A backslash goes on with the next line; at the end it is left, and who lives is kept."""
    talk = await Talk(echo=False).begin()
    talk.wire.answers["list"] = [AGENT]
    out, err = await printed(talk, "one\n", "two\\\n", "three\n", waits=True)
    assert [each["prompt"] for each in talk.wire.of("submit")] == ["one", "two\nthree"]
    assert out == "said\\x1b[2J\n" * 2
    assert err.endswith("agent 1 (n) is kept: orch chat 1 comes back to it\n")
    assert talk.wire.of("kill") == []


async def test_lines_that_are_taken_as_they_come_end_where_the_input_does() -> None:
    """A backslash at the end of one stays; nothing that was typed is lost."""
    talk = await Talk(echo=False).begin()
    talk.wire.executes("paste", kind="paste")
    await printed(talk, "/paste\n", "#define X \\\n", "  3\n", waits=True)
    assert [each["prompt"] for each in talk.wire.of("submit")] == ["#define X \\\n  3"]


@pytest.mark.parametrize("why", [BrokenPipeError(), OSError(errno.ENOSPC, "No space left on device")], ids=str)
async def test_where_what_is_said_cannot_be_written_the_chat_ends(why: OSError) -> None:
    """In the middle of a turn too, whose end it does not wait for; with what was in the way."""

    class Closed(Screen):
        def write(self, _: str) -> int:
            raise why

    talk = await Talk(echo=False).begin()
    talk.chat.sheet = talk.chat._story._sheet = PlainScreen(Closed(), Screen())
    reading = LineInput(talk.chat, Typist(talk, "one\n", "two\n"), waits=True)  # type: ignore[arg-type]
    running = asyncio.create_task(reading.run())
    while talk.chat.working is None:  # noqa: ASYNC110  # gives way
        await asyncio.sleep(0)
    talk.began()
    talk.chat.event({"n": 1, "kind": "text", "text": "said"})
    with pytest.raises(type(why), match=why.strerror):
        await running
    assert len(talk.wire.of("submit")) == 1


@pytest.mark.parametrize(("method", "line"), [("submit", "go"), ("execute", "/nonsense")])
async def test_what_is_refused_has_failed(method: str, line: str) -> None:
    """As a turn that fails has: the exit code of the command says so. What is said next may go well."""
    talk = await Talk().begin()
    talk.wire.answers[method] = CommandError("ConfigError", "there is no such thing")
    await talk.chat.take(line)
    assert talk.chat.failed
    talk.wire.answers["submit"] = {"id": "abc", "query_id": "q"}
    await talk.chat.take("go")
    await talk.ended(error=None)
    assert not talk.chat.failed


async def test_a_question_is_asked_once_and_answered_by_a_line() -> None:
    """With what may be answered."""
    talk = await Talk(echo=False).begin()
    LineInput(talk.chat, Typist(talk), waits=False)  # type: ignore[arg-type]
    err = Screen()
    talk.chat.sheet = PlainScreen(Screen(), err)
    talk.chat.event(question(agent_id="kid"))
    talk.chat.changed()
    assert err.getvalue().count("allow it?") == 1
    assert "wants: rm x" in err.getvalue()
