"""Real processes: how they end, and that nothing outlives its root."""

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
    """`kill -9` of the root ends everything, whatever it is doing."""

    COUNT = 20

    @pytest.mark.parametrize("what", ["idle", "compute", "stopped"])
    def test_killed_root_leaves_nothing(self, what: str, root: Launch, ear: Ear) -> None:
        """Workers that sleep, hold the interpreter in C, or are stopped end with the root, though it had forked."""
        program, workers, others = root("idle" if what == "stopped" else what, self.COUNT, "fork")
        told = ear.hear(self.COUNT)
        if what == "stopped":
            for worker in told:
                stop(int(worker["pid"]))
        program.kill()
        workers.wait()
        assert len(self.wait_for_one(others)) == 1

    def wait_for_one(self, watch: Watch) -> list[int]:
        """Return the one process of `watch` that stays when the others have ended."""
        deadline = time.monotonic() + DEADLINE
        while len(left := watch.left()) > 1:
            assert time.monotonic() < deadline, left
            os.sched_yield()
        return left

    def test_lifeline_alone_is_enough(self, root: Launch, ear: Ear) -> None:
        """Without shim, zygote and death signal a worker still ends with its root."""
        program, workers, others = root("lifeline-only", 5)
        ear.hear(5)
        program.send_signal(signal.SIGSTOP)
        os.kill(shim_of(program.pid), signal.SIGKILL)
        others.wait()
        assert len(workers.left()) == 5
        program.kill()
        workers.wait()

    def test_chain_alone_is_enough(self, root: Launch, ear: Ear) -> None:
        """Without lifelines, and with every descriptor leaked to a fork, workers still end with their root."""
        program, workers, others = root("chain-only", 5, "leak")
        ear.hear(5)
        program.kill()
        workers.wait()
        assert len(self.wait_for_one(others)) == 1

    def test_stopped_shim_and_zygote_do_not_keep_workers(self, root: Launch, ear: Ear) -> None:
        """When shim and zygote are stopped the root's end still reaches everybody."""
        program, workers, others = root("idle", 5)
        ear.hear(5)
        for pid in others.left():
            stop(pid)
        program.kill()
        workers.wait()
        others.wait()

    def test_polite_signals_to_everybody_spare_the_processes(self, root: Launch, ear: Ear) -> None:
        """Shim and zygote leave SIGINT, SIGTERM and SIGHUP to the root; they end with it."""
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
    def test_programs_own_sigchld_does_not_matter(self, option: str, root: Launch) -> None:
        """Exit codes are right and everything ends where the program ignores or blocks SIGCHLD."""
        program, workers, others = root("exit:7", 5, option, "report")
        assert json.loads(program.stdout.readline()) == [7] * 5
        assert program.wait(DEADLINE) == 0
        workers.wait()
        others.wait()

    def test_thread_that_starts_the_launcher_may_end(self, tmp_path: Path, ear: Ear) -> None:
        """Processes belong to the program, not to the thread that happened to start them."""
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
    """Shim and zygotes that die, do not come up, or do not answer."""

    async def test_killed_zygote_takes_its_workers_and_comes_back(
        self, launcher: ZygoteLauncher, tmp_path: Path
    ) -> None:
        """Workers of a dead zygote end, a launch under way fails, the next one works."""
        zygote = await zygote_pid(launcher, tmp_path)
        workers = [await launcher.launch(request(tmp_path, "idle")) for _ in range(5)]
        stop(zygote)
        under_way = asyncio.create_task(launcher.launch(request(tmp_path, "idle")))
        await asyncio.sleep(0)
        os.kill(zygote, signal.SIGKILL)
        with pytest.raises(LaunchError, match="lean zygote ended"):
            await under_way
        # 1: a worker that had not yet tied itself to the zygote, and found it gone.
        assert {await ended(worker) for worker in workers} <= {-9, 1, None}
        assert await ended(await launcher.launch(request(tmp_path, "exit:7"))) == 7

    async def test_killed_shim_takes_everything_and_comes_back(self, launcher: ZygoteLauncher, tmp_path: Path) -> None:
        """Workers of a dead shim end, the next launch starts a new shim and zygote."""
        workers = [await launcher.launch(request(tmp_path, "idle")) for _ in range(5)]
        with Watch(below(os.getpid())) as watch:
            os.kill(shim_of(os.getpid()), signal.SIGKILL)
            assert {await ended(worker) for worker in workers} <= {-9, 1, None}
            watch.wait()
        assert await ended(await launcher.launch(request(tmp_path, "exit:7"))) == 7

    async def test_restarts_are_limited(self, tmp_path: Path) -> None:
        """A zygote that keeps dying is restarted three times a minute, then the launch says so."""
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

    async def test_template_that_cannot_load_says_why(self, tmp_path: Path) -> None:
        """An import that fails in the zygote is in the error of the launch."""
        launcher = ZygoteLauncher("run", tmp_path, entry="no_such_module:main")
        await launcher.start()
        with pytest.raises(LaunchError, match=r"could not load its template(.|\n)*No module named 'no_such_module'"):
            await launcher.launch(request(tmp_path, "idle"))
        await launcher.stop()

    async def test_interpreter_that_does_not_start_says_why(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A wrong interpreter is an error, not a wait."""
        monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
        with pytest.raises(LaunchError, match=r"shim process could not be started.*no-python"):
            await ZygoteLauncher("run", tmp_path, entry=ENTRY).start()
        monkeypatch.setattr(sys, "executable", "/bin/false")
        launcher = ZygoteLauncher("run", tmp_path, entry=ENTRY)
        await launcher.start()
        with pytest.raises(LaunchError, match="shim process ended with 1"):
            await launcher.launch(request(tmp_path, "idle"))
        await launcher.stop()

    async def test_zygote_that_does_not_answer_is_not_waited_for(self, tmp_path: Path) -> None:
        """A launch from a stopped zygote fails at its deadline; the zygote's workers are spared."""
        launcher = ZygoteLauncher("run", tmp_path, entry=ENTRY)
        await launcher.start()
        worker = await launcher.launch(request(tmp_path, "idle"))
        zygote = await zygote_pid(launcher, tmp_path)
        launcher._boot_timeout = 0.1
        stop(zygote)
        with pytest.raises(LaunchError, match=r"made no worker within 0\.1 s"):
            await launcher.launch(request(tmp_path, "idle"))
        assert not worker.ended.done()
        await launcher.stop()

    async def test_current_folder_cannot_shadow_modules(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A folder full of modules named like ours and the standard library's is harmless to start from."""
        for name in ("zmq", "json", "signal", "socket", "msgspec", "orch_worker"):
            (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')")
        monkeypatch.chdir(tmp_path)
        launcher = ZygoteLauncher("run", tmp_path, entry=ENTRY)
        await launcher.start()
        assert await ended(await launcher.launch(request(tmp_path, "exit:7"))) == 7
        await launcher.stop()


class TestOrphans:
    """What the tools of workers leave behind."""

    async def test_tool_of_a_dead_worker_is_ended(self, launcher: ZygoteLauncher, tmp_path: Path, ear: Ear) -> None:
        """A detached tool ends soon after its worker, and not before; other workers' tools stay."""
        workers = {agent: await launcher.launch(request(tmp_path, "tool", agent, ear=ear)) for agent in ("one", "two")}
        told = {str(told["agent"]): int(told["orphan"]) for told in [await ear.listen() for _ in workers]}
        with Watch({told["one"]}) as first, Watch({told["two"]}) as second:
            assert first.left()
            workers["one"].kill()
            await ended(workers["one"])
            await asyncio.to_thread(first.wait)
            assert second.left()
            await launcher.stop()
            second.wait()
