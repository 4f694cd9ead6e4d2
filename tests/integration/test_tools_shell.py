"""Commands: their environment, their output and their end, after which none of their processes is left."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest

from leak_check import command_lines
from orch_worker.system.secrets import ApiKeys
from orch_worker.tools.api.base import ToolContext, ToolError, ToolOutput
from orch_worker.tools.shell.command import RunningCommand
from orch_worker.tools.shell.jobs import MAX_LOG, MAX_RUNNING, Jobs
from orch_worker.tools.shell.shell import bash, bg_kill, bg_status


@pytest.fixture
def context(tmp_path: Path) -> Any:
    """An agent whose processes the leak check can find, and whose jobs end after the test."""
    (tmp_path / "cwd").mkdir()
    (tmp_path / "session").mkdir()
    env = {"CENSUS": os.environ["CENSUS"]}
    context = ToolContext(tmp_path / "cwd", env=env, folder=tmp_path / "session", seconds=30.0)
    yield context
    context.tool_state.close()


async def run(context: ToolContext, command: str, **input: Any) -> ToolOutput:
    return await bash.run(context, {"command": command, **input})


async def status(context: ToolContext, id: str | None = None, **input: Any) -> str:
    """Return the status of one job, or of all jobs."""
    return (await bg_status.run(context, ({"id": id} if id else {}) | input)).text


async def start(context: ToolContext, command: str) -> str:
    """Start a job and return its id."""
    text = (await run(context, command, background=True)).text
    match = re.match(r"Started (job_\d+)\.", text)
    assert match, text
    return match[1]


async def until(context: ToolContext, id: str, word: str) -> None:
    """Wait until the job `id` has written `word`."""
    async with asyncio.timeout(20):
        while word not in await status(context, id, limit=20_000, wait=0.01):
            pass


def descriptors() -> int:
    """Return the number of open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


def children() -> list[str]:
    """Return the program names of this process's children, including zombies."""
    tasks = Path("/proc/self/task").glob("*/children")
    return [Path(f"/proc/{pid}/comm").read_text() for task in tasks for pid in task.read_text().split()]


class TestBash:
    """Commands in the foreground."""

    async def test_process_leaving_its_session_at_the_end_is_ended(self, context: ToolContext) -> None:
        """In twenty races between a command's end and a new session, the leak check finds no process."""
        for _ in range(20):
            output = await run(context, "(setsid setsid sleep 61 >/dev/null 2>&1 &); echo done")
            assert output.text.startswith("done\n")
            assert "sleep 61" not in command_lines()

    @pytest.mark.parametrize(
        ("command", "text"),
        [
            ("echo out; echo err >&2", "out\nerr\n[exit status 0]"),
            ("true", "[exit status 0]"),
            ("echo no; exit 3", "no\n[exit status 3]"),
            ("nonsense-of-a-command 2>/dev/null", "[exit status 127]"),
            ("kill -SEGV $$", "[signal SIGSEGV]"),
            ("kill -35 $$", "[signal 35]"),
            ("cat", "[exit status 0]"),
            ("read line || echo nobody", "nobody\n[exit status 0]"),
            ("(echo x > /dev/tty) 2>/dev/null || echo no terminal", "no terminal\n[exit status 0]"),
            ("printf '\\033[31mred\\033[0m 1%%\\r99%%\\r\\n'; printf '\\0\\377'", "99%\n\ufffd\ufffd\n[exit status 0]"),
            ("[[ $(ps -o sid= -p $$ | tr -d ' ') == $$ ]] && echo own session", "own session\n[exit status 0]"),
            ("ulimit -c", "0\n[exit status 0]"),
        ],
    )
    async def test_output_is_interleaved_and_status_reported(
        self, context: ToolContext, command: str, text: str
    ) -> None:
        """The result contains stdout and stderr in order, and a status other than 0 is an error."""
        if command.startswith("ulimit"):
            command = f"ulimit -c 0; {command}"
        output = await run(context, command)
        assert output.text == text
        assert output.is_error == ("[exit status 0]" not in text)

    async def test_runs_in_the_folder(self, context: ToolContext) -> None:
        """A command runs in the agent's folder."""
        await run(context, "echo x > made")
        assert os.listdir(context.cwd) == ["made"]

    async def test_environment_is_an_allow_list(self, context: ToolContext, monkeypatch: pytest.MonkeyPatch) -> None:
        """A command has no secrets, no other variables of the worker, and no ORCH_HOME."""
        secrets = ["SOME_API_KEY", "GITHUB_TOKEN", "DB_PASSWORD", "AWS_PROFILE", "AWS_SECRET_ACCESS_KEY", "MY_SECRET"]
        for name in (*secrets, "UNASKED"):
            monkeypatch.setenv(name, "canary")
        monkeypatch.setenv("ORCH_HOME", "/of/the/user")
        env = {**context.env, **dict.fromkeys(secrets, "canary"), "ORCH_HOME": "/o", "COLOUR": "green", "TERM": "xterm"}
        keys = ApiKeys(TAVILY_API_KEY="canary")
        given = ToolContext(context.cwd, env=env, keys=keys)
        text = (await run(given, "env")).text
        assert "canary" not in text
        names = {line.partition("=")[0] for line in text.splitlines()}
        assert {"PATH", "HOME", "COLOUR", "TERM", "ORCH_CALL"} <= names
        assert "TERM=dumb" in text.splitlines()
        assert not names & {*secrets, "UNASKED", "TAVILY_API_KEY", "ORCH_HOME"}

    @pytest.mark.parametrize("command", ["yes", "cat /dev/urandom", "tr '\\0' a < /dev/zero", "yes >&2 & wait"])
    async def test_endless_output_ends_the_command(self, context: ToolContext, command: str) -> None:
        """The result contains about a mebibyte of the output, and the reason."""
        output = await run(context, command)
        assert output.is_error
        assert output.text.endswith("[killed: it wrote more than 64 MiB; send long output to a file]")
        assert len(output.text) < 1_100_000

    async def test_long_output_of_a_finite_command_keeps_its_end(self, context: ToolContext) -> None:
        """Below the limit the command finishes, and the result contains the beginning and the end of the output."""
        output = await run(context, "head -c 20000000 /dev/zero | tr '\\0' a; echo; echo the end")
        assert output.text.startswith("aaa")
        assert output.text.endswith("\nthe end\n[exit status 0]")
        assert "[... 18,9" in output.text
        assert not output.is_error

    @pytest.mark.parametrize(
        "command",
        [
            "sleep 600 & echo hi",
            "nohup sleep 600 & echo hi",
            "setsid sleep 600 & echo hi",
            "(setsid sleep 600 >/dev/null 2>&1 &) ; echo hi",
            "setsid bash -c 'trap \"\" TERM HUP INT; while :; do sleep 600; done' & echo hi",
        ],
    )
    async def test_leftover_processes_of_a_command_are_ended(self, context: ToolContext, command: str) -> None:
        """The call returns when the shell exits, even if another process has the pipe open."""
        output = await run(context, command)
        assert output.text.startswith("hi\n")
        assert re.search(r"\[processes it left behind, now ended: \d", output.text)
        assert output.text.endswith("[exit status 0]")
        assert not output.is_error

    async def test_output_after_the_leaders_exit_is_read_briefly(self, context: ToolContext) -> None:
        """The result contains text that another process writes shortly after the shell's exit."""
        output = await run(context, "exec 1> >(sleep 0.05; cat); echo late")
        assert "late" in output.text

    @pytest.mark.parametrize("trap", ["", "trap '' TERM INT HUP; ", "kill -STOP $$; "])
    async def test_timeout_ends_a_command(self, context: ToolContext, trap: str) -> None:
        """The command ends even if it ignores signals or is stopped, and its output is returned."""
        output = await run(context, f"echo begun; {trap}setsid sleep 600 & sleep 600; sleep 600", timeout=0.3)
        assert output.is_error
        assert output.text.startswith("begun\n[timed out after ")

    async def test_command_ends_before_the_deadline_of_its_call(self, context: ToolContext) -> None:
        """The result contains the output, because the command ends first."""
        short = ToolContext(context.cwd, env=context.env, seconds=0.3)
        assert (await run(short, "echo begun; sleep 600", timeout=500)).text.startswith("begun\n[timed out")

    async def test_cancelled_call_ends_its_command(self, context: ToolContext) -> None:
        """The leak check finds no process of a cancelled call, and the next command runs."""
        task = asyncio.create_task(run(context, "touch up; setsid sleep 600 & sleep 600"))
        async with asyncio.timeout(20):
            while not (context.cwd / "up").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # The leak check follows the test. Zombies of the call are reaped with the next command.
        assert (await run(context, "echo on")).text.startswith("on")

    async def test_command_leaves_no_descriptors_or_zombies(self, context: ToolContext) -> None:
        """Success, failure, endless output, a background process and a timeout leave the number of descriptors
        unchanged.
        """
        await run(context, "true")
        before = descriptors()
        for command in ("true", "sleep 600 &", "yes", "exit 1"):
            await run(context, command, timeout=5)
        await run(context, "sleep 600", timeout=0.05)
        await run(context, "true")  # reaps processes that ended after their call
        assert descriptors() == before
        assert children() == []

    @pytest.mark.parametrize("command", ["echo a\0b", "echo " + "x" * 3_000_000])
    async def test_unstartable_command_is_an_error(self, context: ToolContext, command: str) -> None:
        """A command that the system refuses is a ToolError, and leaves no descriptor open."""
        before = descriptors()
        with pytest.raises(ToolError, match="cannot be started"):
            await run(context, command)
        assert descriptors() == before

    async def test_missing_folder_is_an_error(self, context: ToolContext) -> None:
        """The ToolError names the folder and the reason."""
        with pytest.raises(ToolError, match=r"cannot be started in .*No such file or directory"):
            await run(ToolContext(context.cwd / "gone"), "true")


class TestJobs:
    """Commands in the background."""

    async def test_life_of_a_job(self, context: ToolContext) -> None:
        """A job is started, observed and ended, and its output can be read afterwards."""
        id = await start(context, "echo one; echo two; exec sleep 600")
        await until(context, id, "two")
        assert re.fullmatch(rf"{id} running for \d+ s: echo one; .*", await status(context))
        shown = await status(context, id)
        assert re.fullmatch(rf"one\ntwo\n\n\[{id} running for \d+ s; bytes 0 to 8 of 8; go on with offset=8\]", shown)
        assert (await bg_kill.run(context, {"id": id})).text == f"{id} ended with signal SIGTERM."
        assert (await bg_kill.run(context, {"id": id})).text == f"{id} ended with signal SIGTERM already."
        assert await status(context, id, offset=4) == f"two\n\n[{id} ended with signal SIGTERM; bytes 4 to 8 of 8]"

    async def test_waiting_for_a_job(self, context: ToolContext) -> None:
        """Waiting ends when the job ends, or after the given time."""
        id = await start(context, "sleep 0.05; echo done; exit 3")
        assert await status(context, id, wait=20) == f"done\n\n[{id} ended with exit status 3; bytes 0 to 5 of 5]"
        endless = await start(context, "sleep 600")
        assert "running for" in await status(context, endless, wait=0.05)

    async def test_output_in_parts(self, context: ToolContext) -> None:
        """The parts from offset to offset are the whole output. Without an offset, the end is shown."""
        id = await start(context, "seq 1 3000")
        await status(context, id, wait=20)
        whole, offset = "", 0
        while True:
            part, _, note = (await status(context, id, offset=offset, limit=5_000)).rpartition("\n[")
            whole += part
            if "go on" not in note:
                break
            offset = int(note.rpartition("=")[2].rstrip("]"))
        assert whole == "".join(f"{number}\n" for number in range(1, 3001))
        assert "\n3000\n" in await status(context, id)

    async def test_job_ignoring_sigterm_is_killed(self, context: ToolContext) -> None:
        """`bg_kill` also kills the descendants of the job."""
        id = await start(context, "trap '' TERM; setsid sleep 600 & echo up; while :; do sleep 600; done")
        await until(context, id, "up")
        assert (await bg_kill.run(context, {"id": id})).text == f"{id} ended with signal SIGKILL."

    async def test_job_log_is_bounded(self, context: ToolContext) -> None:
        """The job continues at the bound, and the status counts the dropped bytes."""
        id = await start(context, "yes")
        async with asyncio.timeout(30):
            while "bytes of output dropped" not in await status(context, id, wait=0.05):
                pass
        await bg_kill.run(context, {"id": id})
        assert f"of {MAX_LOG:,}]" in await status(context, id)

    async def test_jobs_end_with_the_agent(self, context: ToolContext) -> None:
        """Jobs that ignore signals end, too, and the result of a start states that jobs end with the process."""
        assert "The job also ends with your process" in (await run(context, "exec sleep 600", background=True)).text
        for command in ("sleep 600", "trap '' TERM; echo up; sleep 600", "setsid sleep 600 & sleep 600", "true"):
            await start(context, command)
        await until(context, "job_3", "up")
        context.tool_state.close()
        assert children() == []

    async def test_job_output_survives_the_process(self, context: ToolContext) -> None:
        """The next process can read the output, and continues the numbers of jobs."""
        id = await start(context, "echo kept")
        await status(context, id, wait=20)
        again = ToolContext(context.cwd, env=context.env, folder=context.folder)
        shown = await status(again, id)
        assert shown == f"kept\n\n[{id} ended with exit status 0; bytes 0 to 5 of 5]"
        assert await start(again, "true") == "job_2"
        again.tool_state.close()

    async def test_next_process_knows_the_outcome_of_jobs(self, context: ToolContext) -> None:
        """The outcome is an exit status, or the end of the process that ran the job."""
        done, cut = await start(context, "exit 3"), await start(context, "exec sleep 600")
        await status(context, done, wait=20)
        context.tool_state.close()
        again = ToolContext(context.cwd, env=context.env, folder=context.folder)
        found = [f"{done} ended with exit status 3", f"{cut} ended with the process that ran it"]
        assert await status(again) == "\n".join(found)
        assert (await bg_kill.run(again, {"id": cut})).text == f"{found[1]} already."
        third = await start(again, "exec sleep 600")
        assert [line.partition(" running")[0] for line in (await status(again)).splitlines()] == [*found, third]
        again.tool_state.close()

    async def test_running_jobs_are_limited(self, context: ToolContext) -> None:
        """The 17th running job is an error until another job ends."""
        ids = [await start(context, "exec sleep 600") for _ in range(MAX_RUNNING)]
        with pytest.raises(ToolError, match="16 jobs are already running"):
            await start(context, "true")
        await bg_kill.run(context, {"id": ids[3]})
        assert await start(context, "true") == "job_17"

    async def test_unknown_job_lists_the_known_ones(self, context: ToolContext) -> None:
        """The ToolError of `bg_status` and `bg_kill` lists the existing jobs."""
        assert await status(context) == "There are no jobs."
        await start(context, "true")
        for tool in (bg_status, bg_kill):
            with pytest.raises(ToolError, match=r"No job 'job_9'\. Jobs: job_1\."):
                await tool.run(context, {"id": "job_9"})

    async def test_jobs_need_a_session_folder(self, context: ToolContext) -> None:
        """The session folder stores the output of jobs."""
        with pytest.raises(ToolError, match="no session folder"):
            await run(ToolContext(context.cwd), "true", background=True)

    async def test_failed_job_start_leaves_nothing(self, context: ToolContext) -> None:
        """The job is not listed, and leaves no descriptor open."""
        before = descriptors()
        with pytest.raises(ToolError, match="cannot be started"):
            await run(context, "a\0b", background=True)
        assert context.agent_object(Jobs).all() == []
        assert descriptors() == before


async def test_closed_event_loop_leaves_no_command(context: ToolContext) -> None:
    """`close` ends the command without the event loop, and can be repeated."""
    command = RunningCommand(["sleep", "600"], cwd=context.cwd, env=dict(context.env), sink=lambda _: None)
    command.close()
    assert command.code == -9
    command.close()
