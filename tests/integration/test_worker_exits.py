"""Real processes: how they end, and that no process outlives its root."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from integration.worker_processes import (
    DEADLINE,
    ENTRY,
    Ear,
    Launch,
    Watch,
    below,
    ended,
    request,
    shim_of,
    stop,
    zygote_pid,
)
from orch.processes.base import WorkerProcess
from orch.processes.zygote import ZygoteLauncher
from orch_protocol.core.errors import LaunchError

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="these processes are tied together by Linux"),
    pytest.mark.usefixtures("entries"),
]


class TestEnd:
    """The processes below a root whose program ends."""

    COUNT = 5

    @pytest.mark.parametrize("what", ["idle", "compute", "stopped"])
    def test_killed_root_leaves_no_process(self, what: str, root: Launch, ear: Ear) -> None:
        """Sleeping, computing and stopped workers end, even if the program has forked a child."""
        program, workers, others = root("idle" if what == "stopped" else what, self.COUNT, "fork")
        report = ear.hear(self.COUNT)
        if what == "stopped":
            for worker in report:
                stop(int(worker["pid"]))
        program.kill()
        workers.wait()
        assert len(self.wait_for_one(others)) == 1

    def wait_for_one(self, watch: Watch) -> list[int]:
        """Return the one process of `watch` that is left after the others have ended."""
        deadline = time.monotonic() + DEADLINE
        while len(left := watch.left()) > 1:
            assert time.monotonic() < deadline, left
            time.sleep(0.005)
        return left

    def test_lifeline_alone_ends_a_worker(self, root: Launch, ear: Ear) -> None:
        """A worker without a death signal outlives its shim, and ends with the root."""
        program, workers, others = root("lifeline-only", 5)
        ear.hear(5)
        program.send_signal(signal.SIGSTOP)
        os.kill(shim_of(program.pid), signal.SIGKILL)
        others.wait()
        assert len(workers.left()) == 5
        program.kill()
        workers.wait()

    def test_process_chain_alone_ends_workers(self, root: Launch, ear: Ear) -> None:
        """The chain of shim and zygote ends workers without lifelines, also with descriptors leaked to a fork."""
        program, workers, others = root("chain-only", 5, "leak")
        ear.hear(5)
        program.kill()
        workers.wait()
        assert len(self.wait_for_one(others)) == 1

    def test_stopped_shim_and_zygote_do_not_keep_workers(self, root: Launch, ear: Ear) -> None:
        """When the root is killed, workers, shim and zygote end, although shim and zygote are stopped."""
        program, workers, others = root("idle", 5)
        ear.hear(5)
        for pid in others.left():
            stop(pid)
        program.kill()
        workers.wait()
        others.wait()

    def test_terminal_signals_spare_shim_and_zygote(self, root: Launch, ear: Ear) -> None:
        """Shim and zygote survive SIGINT, SIGTERM and SIGHUP, which the root handles."""
        program, workers, others = root("idle", 1)
        ear.hear()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            for pid in others.left():
                os.kill(pid, number)
        assert len(others.left()) == 2
        assert len(workers.left()) == 1
        program.kill()
        workers.wait()
        others.wait()

    @pytest.mark.parametrize("option", ["sigchld-ignored", "sigchld-blocked"])
    def test_sigchld_handling_of_the_program_does_not_matter(self, option: str, root: Launch) -> None:
        """Exit codes are correct if the program ignores or blocks SIGCHLD."""
        program, workers, others = root("exit:7", 5, option, "report")
        assert json.loads(program.stdout.readline()) == [7] * 5
        assert program.wait(DEADLINE) == 0
        workers.wait()
        others.wait()

    def test_thread_that_started_the_launcher_may_end(self, tmp_path: Path, ear: Ear) -> None:
        """Processes belong to the program, and not to the thread that started them."""
        loop = asyncio.new_event_loop()
        launcher = ZygoteLauncher("run", tmp_path, entry=ENTRY)

        async def begin() -> WorkerProcess:
            await launcher.start()
            return await launcher.launch(request(tmp_path, "idle", ear=ear))

        workers: list[WorkerProcess] = []
        thread = threading.Thread(target=lambda: workers.append(loop.run_until_complete(begin())))
        thread.start()
        thread.join()
        ear.hear()

        async def go_on() -> int | None:
            code = await ended(await launcher.launch(request(tmp_path, "exit:7", "a2")))
            assert not workers[0].ended.done()
            await launcher.stop()
            return code

        assert loop.run_until_complete(go_on()) == 7
        loop.close()


class TestFailure:
    """Shims and zygotes that are killed, cannot start, or do not answer."""

    async def test_killed_zygote_is_replaced(self, launcher: ZygoteLauncher, tmp_path: Path) -> None:
        """The workers of the zygote end, a pending launch fails, and the next launch succeeds."""
        zygote = await zygote_pid(launcher, tmp_path)
        workers = [await launcher.launch(request(tmp_path, "idle")) for _ in range(5)]
        stop(zygote)
        under_way = asyncio.create_task(launcher.launch(request(tmp_path, "idle")))
        await asyncio.sleep(0)
        os.kill(zygote, signal.SIGKILL)
        with pytest.raises(LaunchError, match="lean zygote ended"):
            await under_way
        # A worker exits with 1 if the zygote ended before the worker was tied to it.
        assert {await ended(worker) for worker in workers} <= {-9, 1, None}
        assert await ended(await launcher.launch(request(tmp_path, "exit:7"))) == 7

    async def test_killed_shim_is_replaced_with_its_zygote(self, launcher: ZygoteLauncher, tmp_path: Path) -> None:
        """The workers below the shim end, and the next launch succeeds."""
        workers = [await launcher.launch(request(tmp_path, "idle")) for _ in range(5)]
        with Watch(below(os.getpid())) as watch:
            os.kill(shim_of(os.getpid()), signal.SIGKILL)
            assert {await ended(worker) for worker in workers} <= {-9, 1, None}
            watch.wait()
        assert await ended(await launcher.launch(request(tmp_path, "exit:7"))) == 7

    async def test_zygote_restarts_are_limited(self, tmp_path: Path) -> None:
        """After three restarts in a minute a launch raises LaunchError. After the minute it succeeds."""
        now = 0.0
        launcher = ZygoteLauncher("run", tmp_path, entry=ENTRY, clock=lambda: now)
        await launcher.start()
        for _ in range(4):
            zygote = await zygote_pid(launcher, tmp_path)
            worker = await launcher.launch(request(tmp_path, "idle"))
            os.kill(zygote, signal.SIGKILL)
            await ended(worker)
        with pytest.raises(LaunchError, match="restarted 3 times within 60 s"):
            await launcher.launch(request(tmp_path, "exit:7"))
        now = 60.0
        assert await ended(await launcher.launch(request(tmp_path, "exit:7"))) == 7
        await launcher.stop()

    async def test_import_error_of_the_zygote_is_in_the_launch_error(self, tmp_path: Path) -> None:
        """The LaunchError names the missing module."""
        launcher = ZygoteLauncher("run", tmp_path, entry="no_such_module:main")
        await launcher.start()
        with pytest.raises(LaunchError, match=r"could not load its template(.|\n)*No module named 'no_such_module'"):
            await launcher.launch(request(tmp_path, "idle"))
        await launcher.stop()

    async def test_invalid_interpreter_is_an_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A missing interpreter, or one that exits at once, raises LaunchError without a wait."""
        monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
        with pytest.raises(LaunchError, match=r"shim process could not be started.*no-python"):
            await ZygoteLauncher("run", tmp_path, entry=ENTRY).start()
        monkeypatch.setattr(sys, "executable", "/bin/false")
        launcher = ZygoteLauncher("run", tmp_path, entry=ENTRY)
        await launcher.start()
        with pytest.raises(LaunchError, match="shim process ended with 1"):
            await launcher.launch(request(tmp_path, "idle"))
        await launcher.stop()

    async def test_stopped_zygote_times_out(self, tmp_path: Path) -> None:
        """The launch raises LaunchError, and existing workers continue."""
        launcher = ZygoteLauncher("run", tmp_path, entry=ENTRY)
        await launcher.start()
        worker = await launcher.launch(request(tmp_path, "idle"))
        zygote = await zygote_pid(launcher, tmp_path)
        launcher._boot_timeout = 0.1
        stop(zygote)
        with pytest.raises(LaunchError, match=r"started no worker within 0\.1 s"):
            await launcher.launch(request(tmp_path, "idle"))
        assert not worker.ended.done()
        await launcher.stop()

    async def test_current_folder_cannot_shadow_modules(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Files in the current folder with the names of imported modules do not affect the launch."""
        for name in ("zmq", "json", "signal", "socket", "msgspec", "orch_worker"):
            (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')")
        monkeypatch.chdir(tmp_path)
        launcher = ZygoteLauncher("run", tmp_path, entry=ENTRY)
        await launcher.start()
        assert await ended(await launcher.launch(request(tmp_path, "exit:7"))) == 7
        await launcher.stop()


class TestOrphans:
    """Processes that the tools of workers leave behind."""

    async def test_detached_tool_of_a_dead_worker_is_ended(
        self, launcher: ZygoteLauncher, tmp_path: Path, ear: Ear
    ) -> None:
        """The process ends when its worker has ended, and processes of other workers continue."""
        workers = {agent: await launcher.launch(request(tmp_path, "tool", agent, ear=ear)) for agent in ("one", "two")}
        report = {str(report["agent"]): int(report["orphan"]) for report in [await ear.listen() for _ in workers]}
        with Watch({report["one"]}) as first, Watch({report["two"]}) as second:
            assert first.left()
            workers["one"].kill()
            await ended(workers["one"])
            await asyncio.to_thread(first.wait)
            assert second.left()
            await launcher.stop()
            second.wait()
