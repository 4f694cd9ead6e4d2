"""Real processes: how they start, which descriptors and variables they have, and what they report."""

from __future__ import annotations

import asyncio
import json
import os
import re
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
from orch_protocol.agent.spec import Template
from orch_worker.system import linux

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="these processes are tied together by Linux"),
    pytest.mark.usefixtures("entries"),
]


class TestWorker:
    """One worker."""

    async def test_ends_are_reported_and_outputs_are_logged(
        self, launcher: ZygoteLauncher, tmp_path: Path, ear: Ear
    ) -> None:
        """The root gets the exit code or the signal of each worker, also when a hundred end at once or a thread runs.

        The log of a worker contains printed text, direct writes to stderr, tracebacks and exit messages. The shared log
        stays empty. After the end of a worker, `terminate` and `kill` do nothing.
        """
        fields = {
            "print:hello": (0, "hello\nfrom below\n"),
            "raise:because": (1, "RuntimeError: because\n"),
            "exit-with:no disk": (1, "no disk\n"),
        }
        for what, (code, text) in fields.items():
            worker = await launcher.launch(request(tmp_path, what, what[:3]))
            assert await ended(worker) == code
            assert (tmp_path / f"{what[:3]}.log").read_text().endswith(text)
        assert (tmp_path / "processes.log").read_text() == ""

        whats = ["exit:0", "exit:7", "die:9", "return"] * 25
        workers = await asyncio.gather(*(launcher.launch(request(tmp_path, what)) for what in whats))
        assert [await ended(worker) for worker in workers] == [0, 7, -9, 0] * 25
        assert await ended(await launcher.launch(request(tmp_path, "thread"))) == 0

        workers = [await launcher.launch(request(tmp_path, "idle", ear=ear)) for _ in range(2)]
        for _ in workers:
            await ear.listen()
        workers[0].terminate()
        workers[1].kill()
        assert [await ended(worker) for worker in workers] == [-15, -9]
        for worker in workers:
            worker.terminate()
            worker.kill()

        worker = await launcher.launch(replace(request(tmp_path, "raise:because"), log=str(tmp_path / "gone" / "log")))
        assert await ended(worker) == 1
        assert "because" in (tmp_path / "processes.log").read_text()

    async def test_worker_has_its_init_and_is_isolated(
        self, launcher: ZygoteLauncher, tmp_path: Path, ear: Ear
    ) -> None:
        """The worker has its arguments, is tied to its zygote, and has one more descriptor: the zygote's socket."""
        worker = await launcher.launch(request(tmp_path, "describe", ear=ear))
        report = await ear.listen()
        assert report["pid"] == report["group"] == worker.pid
        assert (report["token"], report["keys"], report["ident"]) == ("token", {"KEY": "canary"}, "ident")
        assert (report["incarnation"], report["spool"]) == (3, str(tmp_path))
        log = str(tmp_path / "a1.log")
        assert report["fds"]["0"] == "/dev/null"
        assert (report["fds"]["1"], report["fds"]["2"]) == (log, log)
        assert report["fds"]["3"].startswith("pipe:")
        assert report["other fds"] == [4]
        assert report["ignored"] == sorted([signal.SIGPIPE, signal.SIGXFSZ])
        assert report["blocked"] == []
        assert (report["dumpable"], report["core"], report["death signal"]) == (0, [0, 0], signal.SIGKILL)
        assert report["adopts"]
        assert report["gc"]
        assert report["run"] == "run-1"
        assert await ended(worker) == 0

    async def test_debug_switch_leaves_memory_readable(
        self, tmp_path: Path, ear: Ear, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """ORCH_DEBUG_DUMPABLE=1 allows debuggers to attach."""
        monkeypatch.setenv("ORCH_DEBUG_DUMPABLE", "1")
        launcher = ZygoteLauncher("run", tmp_path, entry=ENTRY)
        await launcher.start()
        await launcher.launch(request(tmp_path, "describe", ear=ear))
        assert (await ear.listen())["dumpable"] == 1
        await launcher.stop()

    async def test_cancelled_launch_leaves_no_worker(self, launcher: ZygoteLauncher, tmp_path: Path) -> None:
        """A process that is forked after the cancellation is ended."""
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


def descriptor_count(pid: int) -> int:
    """Return the number of open descriptors of the process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


class TestDescriptors:
    """Descriptors and environments of processes."""

    async def test_each_worker_costs_the_root_two_descriptors(self, launcher: ZygoteLauncher, tmp_path: Path) -> None:
        """The zygote also has two for each worker, and closes them when the worker ends. Workers do not
        inherit them.
        """
        zygote = await zygote_pid(launcher, tmp_path)
        ours, its = len(os.listdir("/proc/self/fd")), os.listdir(f"/proc/{zygote}/fd")
        first = await launcher.launch(request(tmp_path, "idle"))
        workers = await asyncio.gather(*(launcher.launch(request(tmp_path, "idle")) for _ in range(39)))
        assert len(os.listdir("/proc/self/fd")) == ours + 2 * 40
        await eventually(lambda: len(os.listdir(f"/proc/{zygote}/fd")) == len(its) + 2 * 40)
        # A worker closes the inherited descriptors after the fork, so the last worker may not have finished.
        for worker in workers:
            await eventually(lambda pid=worker.pid: descriptor_count(pid) == descriptor_count(first.pid))
        for worker in (first, *workers):
            worker.kill()
        await eventually(lambda: os.listdir(f"/proc/{zygote}/fd") == its)

    async def test_forked_child_of_the_program_inherits_no_descriptors(
        self, launcher: ZygoteLauncher, tmp_path: Path
    ) -> None:
        """The child has no lifeline, control socket or pidfd, and cannot kill a worker."""
        worker = await launcher.launch(request(tmp_path, "idle"))
        held = held_by(launcher, worker)

        def in_child() -> list[str]:
            worker.kill()  # must have no effect
            return sorted(held & descriptors())

        assert len(held) == 5
        assert forked(in_child) == []
        assert not worker.ended.done()

    async def test_no_process_has_a_key_in_its_environment(
        self, tmp_path: Path, ear: Ear, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The environments of shim, zygote and worker contain ORCH_RUN and no secret."""
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
            if os.access(f"/proc/{pid}/environ", os.R_OK):  # only the superuser can read that of a worker
                assert b"ORCH_RUN=run-2" in contents(pid, "environ")
                assert b"canary" not in contents(pid, "environ")
            assert b"canary" not in contents(pid, "cmdline")
        await launcher.stop()


def forked(function: Callable[[], Any]) -> Any:
    """Return the result of `function`, encoded as JSON, from a fork of this process."""
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
    """Return the descriptors of the launcher and of `worker` in this process, each with its target."""
    forker = launcher._zygotes["lean"]
    numbers = [worker._pidfd, worker._lifeline, forker._pidfd, forker._lifeline, forker._control.fileno()]
    return {f"{number}: {os.readlink(f'/proc/self/fd/{number}')}" for number in numbers}


CLIENTS = ["anthropic._client", "anthropic.lib.bedrock._client", "anthropic.lib.vertex._client"]
"""The modules with clients that the SDK imports with its package."""


class TestSdkTemplate:
    """The templates in which SDKs were used."""

    @pytest.mark.parametrize(
        ("template", "imported"),
        [
            ("lean", []),
            ("anthropic", CLIENTS),
            ("openai", ["openai._client", "openai.lib.azure"]),
        ],
    )
    async def test_template_has_imported_its_sdk_and_no_other(
        self, tmp_path: Path, ear: Ear, template: Template, imported: list[str]
    ) -> None:
        """Workers inherit the SDK and the TLS context. The template starts no thread and logs nothing."""
        launcher = ZygoteLauncher("run", tmp_path, entry="fake_worker:main_of_sdk")
        await launcher.start()
        try:
            launcher.warm(template)
            await launcher.launch(request(tmp_path, "", ear=ear, template=template))
            report = await ear.listen()
        finally:
            await launcher.stop()
        fields = {"imported": imported, "compactor": template != "lean", "made": int(template != "lean")}
        assert len(report.pop("sockets")) == 1  # on which the zygote takes requests for tool hosts
        assert report == {"agent": "a1", **fields, "tasks": 1}
        assert (tmp_path / "processes.log").read_text() == ""


class TestExec:
    """Workers that start with a new interpreter."""

    async def test_exit_codes_and_guards(self, tmp_path: Path, ear: Ear) -> None:
        """An executed worker has the arguments, the isolation and the exit codes of a forked one."""
        before = descriptors()
        launcher = ExecLauncher("run-3", tmp_path, entry=ENTRY)
        await launcher.start()
        workers = [
            await launcher.launch(request(tmp_path, what, "a1", ear=ear if what == "describe" else None))
            for what in ("describe", "exit:7", "die:9", "raise:because")
        ]
        report = await ear.listen()
        assert (report["token"], report["keys"]) == ("token", {"KEY": "canary"})
        assert report["pid"] == report["group"] == workers[0].pid
        assert report["other fds"] == []
        assert report["dumpable"] == 0
        assert report["run"] == "run-3"
        assert [await ended(worker) for worker in workers] == [0, 7, -9, 1]
        assert "RuntimeError: because" in (tmp_path / "a1.log").read_text()
        await launcher.stop()
        assert descriptors() == before

    def test_killed_root_leaves_nothing(self, root: Launch, ear: Ear) -> None:
        """Executed workers end with their lifelines, although the program has forked a child."""
        program, workers, others = root("idle", 3, "exec", "fork")
        ear.hear(3)
        program.kill()
        workers.wait()
        assert len(others.left()) == 1

    async def test_worker_with_a_missing_entry_point_exits_with_1(self, tmp_path: Path) -> None:
        """The worker's log contains the traceback."""
        launcher = ExecLauncher("run", tmp_path, entry="no_such_module:main")
        await launcher.start()
        worker = await launcher.launch(request(tmp_path, "idle"))
        assert await ended(worker) == 1
        assert "No module named 'no_such_module'" in (tmp_path / "a1.log").read_text()
        await launcher.stop()

    async def test_exit_is_detected_without_pidfds(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A thread waits for the worker, and signals are sent with the process object."""
        monkeypatch.setattr("orch.processes.exec.PIDFDS", False)
        launcher = ExecLauncher("run", tmp_path, entry=ENTRY)
        await launcher.start()
        workers = [await launcher.launch(request(tmp_path, what)) for what in ("exit:7", "idle", "idle")]
        assert await ended(workers[0]) == 7
        workers[1].kill()
        assert await ended(workers[1]) == -9
        await launcher.stop()
        assert await ended(workers[2]) == -9


def test_launchers_import_without_unix_modules() -> None:
    """The launchers can be imported on systems without forks, pidfds and Unix sockets."""
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


def test_exit_code_of_a_reaped_process_is_read_from_its_pidfd() -> None:
    """On kernels before Linux 6.15, the result is None."""
    kernel = tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2])
    code = 7 if kernel >= (6, 15) else None
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "raise SystemExit(7)"])
    pidfd = os.pidfd_open(child.pid)
    assert child.wait() == 7
    assert (linux.exit_status(pidfd), linux.reap(pidfd)) == (code, code)
    os.close(pidfd)
