"""Commands: what they get, what is taken of what they write, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest

from orch_worker.tools.api.base import ApiKeys, ToolContext, ToolError, ToolOutput
from orch_worker.tools.shell.command import RunningCommand
from orch_worker.tools.shell.jobs import MAX_LOG, MAX_RUNNING, Jobs
from orch_worker.tools.shell.shell import bash, bg_kill, bg_status

LEFT = "[processes it left behind, now ended: 1; what is to go on needs background]"


@pytest.fixture
def context(tmp_path: Path) -> Any:
    """An agent whose tools carry the mark of the census, and whose jobs end with it."""
    (tmp_path / "cwd").mkdir()
    (tmp_path / "session").mkdir()
    env = {"CENSUS": os.environ["CENSUS"]}
    context = ToolContext(tmp_path / "cwd", env=env, folder=tmp_path / "session", seconds=30.0)
    yield context
    context.belongings.close()


async def run(context: ToolContext, command: str, **input: Any) -> ToolOutput:
    """Run `command`."""
    return await bash.run(context, {"command": command, **input})


async def status(context: ToolContext, id: str | None = None, **input: Any) -> str:
    """Ask for the status of one job, or of all."""
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
    """Return how many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


def children() -> list[str]:
    """Return this process's children, alive or not yet reaped, each as it is called."""
    tasks = Path("/proc/self/task").glob("*/children")
    return [Path(f"/proc/{pid}/comm").read_text() for task in tasks for pid in task.read_text().split()]


class TestBash:
    """A command to its end."""

    async def test_one_that_is_made_as_its_parent_ends_is_ended(self, context: ToolContext) -> None:
        """Twenty times a process leaves its session and ends, just after it made another: the census finds none."""
        for _ in range(20):
            said = await run(context, "(setsid setsid sleep 61 >/dev/null 2>&1 &); echo done")
            assert said.text.startswith("done\n")

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
    async def test_output_and_status(self, context: ToolContext, command: str, text: str) -> None:
        """Both outputs in their order, and how it ended; anything but 0 is an error."""
        if command.startswith("ulimit"):
            command = f"ulimit -c 0; {command}"
        output = await run(context, command)
        assert output.text == text
        assert output.is_error == ("[exit status 0]" not in text)

    async def test_runs_in_the_folder(self, context: ToolContext) -> None:
        """The working folder is the agent's."""
        await run(context, "echo x > made")
        assert os.listdir(context.cwd) == ["made"]

    async def test_environment_is_a_list_of_what_may_pass(
        self, context: ToolContext, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Variables come from the agent's, and no secret, none of this process's own, and not ORCH_HOME."""
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
    async def test_endless_output(self, context: ToolContext, command: str) -> None:
        """A command that never stops writing is ended, and both ends of a mebibyte of it are kept."""
        output = await run(context, command)
        assert output.is_error
        assert output.text.endswith("[killed: it wrote more than 64 MiB; send long output to a file]")
        assert len(output.text) < 1_100_000

    async def test_long_output_of_a_command_that_ends(self, context: ToolContext) -> None:
        """Below that, the command is let finish, and its last words are kept."""
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
    async def test_what_is_left_behind_is_ended(self, context: ToolContext, command: str) -> None:
        """A command returns when its leader has, pipe held or not, and takes all it started along."""
        output = await run(context, command)
        assert output.text.startswith("hi\n")
        assert re.search(r"\[processes it left behind, now ended: \d", output.text)
        assert output.text.endswith("[exit status 0]")
        assert not output.is_error

    async def test_last_words_of_a_pipeline(self, context: ToolContext) -> None:
        """Who is still busy writing when the leader ends is heard for a moment."""
        output = await run(context, "exec 1> >(sleep 0.05; cat); echo late")
        assert "late" in output.text

    @pytest.mark.parametrize("trap", ["", "trap '' TERM INT HUP; ", "kill -STOP $$; "])
    async def test_timeout(self, context: ToolContext, trap: str) -> None:
        """A command past its time is ended, also one that ignores signals or is stopped; what it wrote is told."""
        output = await run(context, f"echo begun; {trap}setsid sleep 600 & sleep 600; sleep 600", timeout=0.3)
        assert output.is_error
        assert output.text.startswith("begun\n[timed out after ")

    async def test_deadline_of_the_call(self, context: ToolContext) -> None:
        """A call ends its command ahead of its own deadline, so that the output is not lost."""
        short = ToolContext(context.cwd, env=context.env, seconds=0.3)
        assert (await run(short, "echo begun; sleep 600", timeout=500)).text.startswith("begun\n[timed out")

    async def test_cancel(self, context: ToolContext) -> None:
        """A cancelled call leaves nothing running."""
        task = asyncio.create_task(run(context, "touch up; setsid sleep 600 & sleep 600"))
        async with asyncio.timeout(20):
            while not (context.cwd / "up").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # The census that follows finds nothing; what is dead is buried by the time the next command is.
        assert (await run(context, "echo on")).text.startswith("on")

    async def test_nothing_is_kept_open(self, context: ToolContext) -> None:
        """However a command ends, its descriptors are closed and it is reaped."""
        await run(context, "true")
        before = descriptors()
        for command in ("true", "sleep 600 &", "yes", "exit 1"):
            await run(context, command, timeout=5)
        await run(context, "sleep 600", timeout=0.05)
        assert descriptors() == before
        assert children() == []

    @pytest.mark.parametrize("command", ["echo a\0b", "echo " + "x" * 3_000_000])
    async def test_what_cannot_be_started(self, context: ToolContext, command: str) -> None:
        """A command that the system does not take is an error, and leaves nothing open."""
        before = descriptors()
        with pytest.raises(ToolError, match="cannot be started"):
            await run(context, command)
        assert descriptors() == before

    async def test_folder_that_is_gone(self, context: ToolContext) -> None:
        """Where there is no folder to run in, the error says so."""
        with pytest.raises(ToolError, match=r"cannot be started in .*No such file or directory"):
            await run(ToolContext(context.cwd / "gone"), "true")


class TestJobs:
    """Commands in the background."""

    async def test_life_of_a_job(self, context: ToolContext) -> None:
        """A job is started, looked at while it runs, ended, and its output stays."""
        id = await start(context, "echo one; echo two; exec sleep 600")
        await until(context, id, "two")
        assert re.fullmatch(rf"{id} running for \d+ s: echo one; .*", await status(context))
        shown = await status(context, id)
        assert re.fullmatch(rf"one\ntwo\n\n\[{id} running for \d+ s; bytes 0 to 8 of 8; go on with offset=8\]", shown)
        assert (await bg_kill.run(context, {"id": id})).text == f"{id} ended with signal SIGTERM."
        assert (await bg_kill.run(context, {"id": id})).text == f"{id} ended with signal SIGTERM already."
        assert await status(context, id, offset=4) == f"two\n\n[{id} ended with signal SIGTERM; bytes 4 to 8 of 8]"

    async def test_waiting_for_a_job(self, context: ToolContext) -> None:
        """Waiting ends with the job, or when the time is up."""
        id = await start(context, "sleep 0.05; echo done; exit 3")
        assert await status(context, id, wait=20) == f"done\n\n[{id} ended with exit status 3; bytes 0 to 5 of 5]"
        endless = await start(context, "sleep 600")
        assert "running for" in await status(context, endless, wait=0.05)

    async def test_output_in_parts(self, context: ToolContext) -> None:
        """Following the offsets gives the whole output; without one, its end is shown."""
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

    async def test_stubborn_job(self, context: ToolContext) -> None:
        """A job that ignores being asked is killed, with what it started elsewhere."""
        id = await start(context, "trap '' TERM; setsid sleep 600 & echo up; while :; do sleep 600; done")
        await until(context, id, "up")
        assert (await bg_kill.run(context, {"id": id})).text == f"{id} ended with signal SIGKILL."

    async def test_log_has_an_end(self, context: ToolContext) -> None:
        """A job that writes without end runs on; its log is full at some point, and what is dropped is counted."""
        id = await start(context, "yes")
        async with asyncio.timeout(30):
            while "bytes of output dropped" not in await status(context, id, wait=0.05):
                pass
        await bg_kill.run(context, {"id": id})
        assert f"of {MAX_LOG:,}]" in await status(context, id)

    async def test_jobs_end_with_the_agent(self, context: ToolContext) -> None:
        """Closing what the agent keeps ends every job, also one that ignores signals. Who starts one is told."""
        assert "It ends with your process" in (await run(context, "exec sleep 600", background=True)).text
        for command in ("sleep 600", "trap '' TERM; echo up; sleep 600", "setsid sleep 600 & sleep 600", "true"):
            await start(context, command)
        await until(context, "job_3", "up")
        context.belongings.close()
        assert children() == []

    async def test_output_outlives_the_process(self, context: ToolContext) -> None:
        """Another process of the same agent reads the old output, and numbers its own jobs on."""
        id = await start(context, "echo kept")
        await status(context, id, wait=20)
        again = ToolContext(context.cwd, env=context.env, folder=context.folder)
        shown = await status(again, id)
        assert shown == f"kept\n\n[{id} ended with exit status 0; bytes 0 to 5 of 5]"
        assert await start(again, "true") == "job_2"
        again.belongings.close()

    async def test_what_became_of_jobs_is_known_to_the_next_process(self, context: ToolContext) -> None:
        """Those that ended by themselves are told with their exit status, those that went with the process as such."""
        done, cut = await start(context, "exit 3"), await start(context, "exec sleep 600")
        await status(context, done, wait=20)
        context.belongings.close()
        again = ToolContext(context.cwd, env=context.env, folder=context.folder)
        told = [f"{done} ended with exit status 3", f"{cut} ended with the process that ran it"]
        assert await status(again) == "\n".join(told)
        assert (await bg_kill.run(again, {"id": cut})).text == f"{told[1]} already."
        third = await start(again, "exec sleep 600")
        assert [line.partition(" running")[0] for line in (await status(again)).splitlines()] == [*told, third]
        again.belongings.close()

    async def test_too_many_jobs(self, context: ToolContext) -> None:
        """There is a most of running jobs; one that has ended makes room."""
        ids = [await start(context, "exec sleep 600") for _ in range(MAX_RUNNING)]
        with pytest.raises(ToolError, match="16 jobs are running already"):
            await start(context, "true")
        await bg_kill.run(context, {"id": ids[3]})
        assert await start(context, "true") == "job_17"

    async def test_unknown_job(self, context: ToolContext) -> None:
        """A job that never was is an error that names those there are."""
        assert await status(context) == "There are no jobs."
        await start(context, "true")
        for tool in (bg_status, bg_kill):
            with pytest.raises(ToolError, match=r"No job 'job_9'\. Jobs: job_1\."):
                await tool.run(context, {"id": "job_9"})

    async def test_without_a_session_folder(self, context: ToolContext) -> None:
        """Without a place for output there are no jobs."""
        with pytest.raises(ToolError, match="no session folder"):
            await run(ToolContext(context.cwd), "true", background=True)

    async def test_failed_start_leaves_nothing(self, context: ToolContext) -> None:
        """A job that cannot be started is no job."""
        before = descriptors()
        with pytest.raises(ToolError, match="cannot be started"):
            await run(context, "a\0b", background=True)
        assert context.own(Jobs).all() == []
        assert descriptors() == before


async def test_loop_that_ends_first(context: ToolContext) -> None:
    """A command whose caller is gone is closed without the loop's help."""
    command = RunningCommand(["sleep", "600"], cwd=context.cwd, env=dict(context.env), sink=lambda _: None)
    command.close()
    assert command.code == -9
    command.close()
