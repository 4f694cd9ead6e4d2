"""Real processes: what is started, what it holds, and what it tells of itself."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from integration.worker_processes import (
    DEADLINE,
    ENTRY,
    Ear,
    Launch,
    Watch,
    below,
    children,
    descriptors,
    ended,
    eventually,
    request,
    stop,
    zygote_pid,
)
from orch.processes.exec import ExecLauncher
from orch.processes.zygote import ZygoteLauncher
from orch_worker.system import linux

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="these processes are tied together by Linux"),
    pytest.mark.usefixtures("entries"),
]


class TestWorker:
    """One worker."""

    async def test_a_worker_whose_log_cannot_be_made_lives_all_the_same(
        self, launcher: ZygoteLauncher, tmp_path: Path
    ) -> None:
        """Where no file can be made any more it is to say so itself: what it prints goes where the others' goes."""
        worker = await launcher.launch(replace(request(tmp_path, "raise:because"), log=str(tmp_path / "gone" / "log")))
        assert await ended(worker) == 1
        assert "because" in (tmp_path / "processes.log").read_text()

    async def test_hundred_quick_deaths_are_all_reported(self, launcher: ZygoteLauncher, tmp_path: Path) -> None:
        """Exit codes and signals of workers that end at once are never lost or mixed up."""
        whats = ["exit:0", "exit:7", "die:9", "return"] * 25
        workers = await asyncio.gather(*(launcher.launch(request(tmp_path, what)) for what in whats))
        assert [await ended(worker) for worker in workers] == [0, 7, -9, 0] * 25

    async def test_worker_is_what_it_was_asked_to_be(self, launcher: ZygoteLauncher, tmp_path: Path, ear: Ear) -> None:
        """A worker gets its birth and arguments, and is tied to its zygote and cut off from all else."""
        worker = await launcher.launch(request(tmp_path, "describe", ear=ear))
        told = await ear.listen()
        assert told["pid"] == told["group"] == worker.pid
        assert (told["token"], told["keys"], told["ident"]) == ("token", {"KEY": "canary"}, "ident")
        assert (told["incarnation"], told["spool"]) == (3, str(tmp_path))
        log = str(tmp_path / "a1.log")
        assert told["fds"]["0"] == "/dev/null"
        assert (told["fds"]["1"], told["fds"]["2"]) == (log, log)
        assert told["fds"]["3"].startswith("pipe:")
        assert told["other fds"] == []
        assert told["ignored"] == sorted([signal.SIGPIPE, signal.SIGXFSZ])
        assert told["blocked"] == []
        assert (told["dumpable"], told["core"], told["death signal"]) == (0, [0, 0], signal.SIGKILL)
        assert told["adopts"]
        assert told["gc"]
        assert told["run"] == "run-1"
        assert not told["dill"]
        assert await ended(worker) == 0

    async def test_output_and_tracebacks_go_to_the_log(self, launcher: ZygoteLauncher, tmp_path: Path) -> None:
        """What Python prints, what lies below it writes, why it raised and what it exits with are in its own file."""
        said = {
            "print:hello": (0, "hello\nfrom below\n"),
            "raise:because": (1, "RuntimeError: because\n"),
            "exit-with:no disk": (1, "no disk\n"),
        }
        for what, (code, text) in said.items():
            worker = await launcher.launch(request(tmp_path, what, what[:3]))
            assert await ended(worker) == code
            assert (tmp_path / f"{what[:3]}.log").read_text().endswith(text)
        assert (tmp_path / "processes.log").read_text() == ""

    async def test_lingering_thread_does_not_keep_a_worker(self, launcher: ZygoteLauncher, tmp_path: Path) -> None:
        """A worker whose main has returned ends, whatever its threads do."""
        assert await ended(await launcher.launch(request(tmp_path, "thread"))) == 0

    async def test_debug_switch_leaves_memory_readable(
        self, tmp_path: Path, ear: Ear, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With ORCH_DEBUG_DUMPABLE=1 debuggers can attach."""
        monkeypatch.setenv("ORCH_DEBUG_DUMPABLE", "1")
        launcher = ZygoteLauncher("run", tmp_path, entry=ENTRY)
        await launcher.start()
        await launcher.launch(request(tmp_path, "describe", ear=ear))
        assert (await ear.listen())["dumpable"] == 1
        await launcher.stop()

    async def test_terminate_and_kill_are_told_apart(self, launcher: ZygoteLauncher, tmp_path: Path, ear: Ear) -> None:
        """SIGTERM and SIGKILL end a worker with their own numbers; afterwards both do nothing."""
        workers = [await launcher.launch(request(tmp_path, "idle", ear=ear)) for _ in range(2)]
        for _ in workers:
            await ear.listen()
        workers[0].terminate()
        workers[1].kill()
        assert [await ended(worker) for worker in workers] == [-15, -9]
        for worker in workers:
            worker.terminate()
            worker.kill()

    async def test_cancelled_launch_leaves_no_worker(self, launcher: ZygoteLauncher, tmp_path: Path) -> None:
        """A launch that nobody waits for any more ends what it started."""
        zygote = await zygote_pid(launcher, tmp_path)
        stop(zygote)
        task = asyncio.create_task(launcher.launch(request(tmp_path, "idle", "cancelled")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        os.kill(zygote, signal.SIGCONT)
        last = await launcher.launch(request(tmp_path, "exit:0"))
        assert await ended(last) == 0
        with Watch(set(children(zygote))) as watch:
            watch.wait()


class TestDescriptors:
    """What processes hold."""

    async def test_two_hundred_workers_cost_the_zygote_nothing_and_the_root_two_each(
        self, launcher: ZygoteLauncher, tmp_path: Path
    ) -> None:
        """The zygote holds the same descriptors with 200 workers alive, the root two for each."""
        zygote = await zygote_pid(launcher, tmp_path)
        ours, its = len(os.listdir("/proc/self/fd")), os.listdir(f"/proc/{zygote}/fd")
        workers = await asyncio.gather(*(launcher.launch(request(tmp_path, "idle")) for _ in range(200)))
        assert len(workers) == 200
        await eventually(lambda: os.listdir(f"/proc/{zygote}/fd") == its)  # it answers before it tidies up
        assert len(os.listdir("/proc/self/fd")) == ours + 2 * 200

    async def test_a_fork_of_the_program_keeps_none(self, launcher: ZygoteLauncher, tmp_path: Path) -> None:
        """A child that the user's program forks holds no lifeline, control socket or pidfd of ours."""
        worker = await launcher.launch(request(tmp_path, "idle"))
        held = held_by(launcher, worker)

        def in_child() -> list[str]:
            worker.kill()  # must reach nobody
            return sorted(held & descriptors())

        assert len(held) == 5
        assert forked(in_child) == []
        assert not worker.ended.done()

    async def test_no_process_has_a_key_in_its_environment(
        self, tmp_path: Path, ear: Ear, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The environment of shim, zygote and worker holds ORCH_RUN and no secret."""
        for name in ("ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "MY_SECRET_1", "GITHUB_TOKEN"):
            monkeypatch.setenv(name, "canary-in-environ")
        launcher = ZygoteLauncher("run-2", tmp_path, entry=ENTRY)
        await launcher.start()
        worker = await launcher.launch(request(tmp_path, "idle", ear=ear))
        await ear.listen()
        pids = below(os.getpid())
        assert worker.pid in pids
        assert len(pids) == 3
        for pid in pids:
            if os.access(f"/proc/{pid}/environ", os.R_OK):  # a worker hides its own from all but the superuser
                assert b"ORCH_RUN=run-2" in contents(pid, "environ")
                assert b"canary" not in contents(pid, "environ")
            assert b"canary" not in contents(pid, "cmdline")
        await launcher.stop()


def forked(function: Callable[[], Any]) -> Any:
    """Return what `function` returns (as JSON) in a fork of this process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, json.dumps(function()).encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as file:
        result = json.load(file)
    os.waitpid(child, 0)
    return result


def contents(pid: int, name: str) -> bytes:
    """Return the contents of `/proc/<pid>/<name>`."""
    return Path(f"/proc/{pid}/{name}").read_bytes()


def held_by(launcher: ZygoteLauncher, worker: Any) -> set[str]:
    """Return the descriptors that the launcher holds for itself and `worker`, with what they are."""
    forker = launcher._forkers["lean"]
    numbers = [worker._pidfd, worker._lifeline, forker._pidfd, forker._lifeline, forker._control.fileno()]
    return {f"{number}: {os.readlink(f'/proc/self/fd/{number}')}" for number in numbers}


class TestSdkTemplate:
    """The template that has used every SDK once."""

    async def test_warm_template_forks_workers_that_share_its_context(self, tmp_path: Path, ear: Ear) -> None:
        """It boots without a word on its log, a thread or a socket, and its workers find the context made."""
        launcher = ZygoteLauncher("run", tmp_path, entry="fake_worker:main_of_sdk")
        await launcher.start()
        try:
            launcher.warm("sdk")
            await launcher.launch(request(tmp_path, "", ear=ear, template="sdk"))
            told = await ear.listen()
        finally:
            await launcher.stop()
        assert told == {"agent": "a1", "made": 1, "sockets": [], "tasks": 1}
        assert (tmp_path / "processes.log").read_text() == ""


class TestExec:
    """Workers with an interpreter of their own."""

    async def test_exit_codes_and_guards(self, tmp_path: Path, ear: Ear) -> None:
        """An executed worker is what a forked one is, but for the tie to a zygote."""
        before = descriptors()
        launcher = ExecLauncher("run-3", tmp_path, entry=ENTRY)
        await launcher.start()
        workers = [
            await launcher.launch(request(tmp_path, what, "a1", ear=ear if what == "describe" else None))
            for what in ("describe", "exit:7", "die:9", "raise:because")
        ]
        told = await ear.listen()
        assert (told["token"], told["keys"]) == ("token", {"KEY": "canary"})
        assert told["pid"] == told["group"] == workers[0].pid
        assert told["other fds"] == []
        assert told["dumpable"] == 0
        assert told["run"] == "run-3"
        assert [await ended(worker) for worker in workers] == [0, 7, -9, 1]
        assert "RuntimeError: because" in (tmp_path / "a1.log").read_text()
        await launcher.stop()
        assert descriptors() == before

    def test_killed_root_leaves_nothing(self, root: Launch, ear: Ear) -> None:
        """Executed workers end with their lifelines, though the program had forked."""
        program, workers, others = root("idle", 3, "exec", "fork")
        ear.hear(3)
        program.kill()
        workers.wait()
        assert len(others.left()) == 1

    async def test_worker_that_cannot_start_says_why_in_its_log(self, tmp_path: Path) -> None:
        """An entry that does not exist is a traceback in the log and exit code 1."""
        launcher = ExecLauncher("run", tmp_path, entry="no_such_module:main")
        await launcher.start()
        worker = await launcher.launch(request(tmp_path, "idle"))
        assert await ended(worker) == 1
        assert "No module named 'no_such_module'" in (tmp_path / "a1.log").read_text()
        await launcher.stop()

    async def test_end_is_seen_without_pidfds(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where the system has no pidfds a thread watches, and signals go by way of the process object."""
        monkeypatch.setattr("orch.processes.exec.PIDFDS", False)
        launcher = ExecLauncher("run", tmp_path, entry=ENTRY)
        await launcher.start()
        workers = [await launcher.launch(request(tmp_path, what)) for what in ("exit:7", "idle", "idle")]
        assert await ended(workers[0]) == 7
        workers[1].kill()
        assert await ended(workers[1]) == -9
        await launcher.stop()
        assert await ended(workers[2]) == -9


def test_importing_needs_nothing_that_windows_lacks() -> None:
    """The launchers can be imported where forks, pidfds, Unix sockets and their modules do not exist."""
    code = """
import asyncio, os, select, signal, socket, subprocess, sys
for module in ("fcntl", "resource", "pwd", "grp"):
    sys.modules[module] = None
for module, names in (
    (os, "fork register_at_fork pidfd_open waitid P_PIDFD WEXITED set_blocking"),
    (signal, "SIGKILL SIGCHLD SIGHUP pthread_sigmask pidfd_send_signal"),
    (socket, "AF_UNIX SOCK_SEQPACKET MSG_CMSG_CLOEXEC recv_fds send_fds"),
    (select, "poll"),
):
    for name in names.split():
        delattr(module, name)
import orch.processes.zygote, orch.processes.exec
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=DEADLINE)


def test_private_names_of_multiprocess_are_there() -> None:
    """The underscored names that forking relies on mean what they meant."""
    from multiprocess import get_context, process

    base = get_context("fork").Process
    assert base._start_method == "fork"
    assert issubclass(base, process.BaseProcess)
    assert "self._popen = self._Popen(self)" in inspect.getsource(process.BaseProcess.start)
    assert "self._target(*self._args, **self._kwargs)" in inspect.getsource(process.BaseProcess.run)
    assert isinstance(process._children, set)


def test_kernel_remembers_an_exit_code_for_pidfds() -> None:
    """The code of a reaped process is known from its pidfd where the kernel tells, and unknown elsewhere."""
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "raise SystemExit(7)"])
    pidfd = os.pidfd_open(child.pid)
    assert child.wait() == 7
    assert linux.exit_status(pidfd) in (7, None)
    assert linux.reap(pidfd) in (7, None)
    os.close(pidfd)
