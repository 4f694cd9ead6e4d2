"""Real processes: what is started, what it holds, and that nothing outlives its root."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orch.launchers.base import LaunchRequest, WorkerProcess
from orch.launchers.exec import ExecLauncher
from orch.launchers.zygote import ZygoteLauncher
from orch_protocol.errors import LaunchError
from orch_protocol.spec import Birth, Template
from orch_worker import kernel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these processes are tied together by Linux")

HERE = Path(__file__).parent
ENTRY = "stand_in:main"
DEADLINE = 20.0
Launch = Callable[..., Any]


class Ear:
    """A datagram socket on which stand-in workers tell that they are up."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "ear")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._socket.settimeout(DEADLINE)

    def hear(self, count: int = 1) -> list[dict[str, Any]]:
        """Return what the next `count` workers told, by agent id."""
        heard = [json.loads(self._socket.recv(1 << 16)) for _ in range(count)]
        return sorted(heard, key=lambda told: str(told["agent"]))

    async def listen(self) -> dict[str, Any]:
        """Return what the next worker told; the loop runs on."""
        return (await asyncio.to_thread(self.hear))[0]

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


@pytest.fixture(autouse=True)
def _entries_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every process of ours import the stand-in, as a user's own modules are: by PYTHONPATH."""
    roots = [str(HERE.parents[1] / root) for root in ("orchestrator", "worker", "protocol")]
    monkeypatch.setenv("PYTHONPATH", ":".join([*roots, str(HERE)]))


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[Ear]:
    """Listen for workers."""
    ear = Ear(tmp_path)
    yield ear
    ear.close()


@pytest.fixture
async def launcher(tmp_path: Path) -> AsyncIterator[ZygoteLauncher]:
    """A started forking launcher; after the test nothing of it is left, not even a descriptor."""
    before = descriptors()
    launcher = ZygoteLauncher("run-1", tmp_path, entry=ENTRY)
    await launcher.start()
    with Watch(below(os.getpid())) as watch:
        yield launcher
        await launcher.stop()
        watch.wait()
    assert descriptors() == before


class Watch:
    """Processes by pidfd, so that their ends can be waited for whoever reaps them."""

    def __init__(self, pids: set[int]) -> None:
        self._pidfds = {}
        for pid in pids:
            try:
                self._pidfds[pid] = os.pidfd_open(pid)
            except ProcessLookupError:
                pass  # gone already

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        for pidfd in self._pidfds.values():
            kernel.kill(pidfd)
        try:
            self.wait()
        finally:
            for pidfd in self._pidfds.values():
                os.close(pidfd)

    def wait(self, seconds: float = DEADLINE) -> None:
        """Wait until every process has ended."""
        deadline = time.monotonic() + seconds
        while left := self.left():
            poller = select.poll()
            poller.register(self._pidfds[left[0]], select.POLLIN)
            if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise AssertionError(f"{len(left)} of {len(self._pidfds)} processes are left: {left}")

    def left(self) -> list[int]:
        """Return the pids of those that have not ended."""
        poller = select.poll()
        for pidfd in self._pidfds.values():
            poller.register(pidfd, select.POLLIN)
        ended = {pidfd for pidfd, _ in poller.poll(0)}
        return [pid for pid, pidfd in self._pidfds.items() if pidfd not in ended]


def descriptors() -> set[str]:
    """Return what this process holds, without what the test's own event loop adds at its first thread."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{number}: {os.readlink(f'/proc/self/fd/{number}')}")
        except FileNotFoundError:
            pass  # the listing's own
    return found


def children(pid: int) -> list[int]:
    """Return the pids of the children of `pid`."""
    return [int(found) for found in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def below(pid: int) -> set[int]:
    """Return the pids of everything under the shim of the process `pid`, and the shim's."""
    shims = [child for child in children(pid) if b"\0shim\0" in Path(f"/proc/{child}/cmdline").read_bytes()]
    found: set[int] = set()
    while shims:
        found.add(pid := shims.pop())
        shims += children(pid)
    return found


def shim_of(pid: int) -> int:
    """Return the pid of the shim of the process `pid`."""
    return next(child for child in children(pid) if b"\0shim\0" in Path(f"/proc/{child}/cmdline").read_bytes())


def request(
    folder: Path, what: str, agent: str = "a1", ear: Ear | None = None, template: Template = "lean"
) -> LaunchRequest:
    """Return a request for a stand-in worker that does `what`."""
    address = what + (f"@{ear.path}" if ear else "")
    birth = Birth(b"token", {"KEY": "canary"})
    return LaunchRequest(agent, 3, b"ident", address, birth, template, str(folder / f"{agent}.log"), str(folder))


def stop(pid: int) -> None:
    """Stop the process `pid`, and return when it has stopped."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + DEADLINE
    while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "T":
        assert time.monotonic() < deadline, pid
        os.sched_yield()


async def ended(worker: WorkerProcess) -> int | None:
    """Return the exit code of `worker` once it is gone."""
    return await asyncio.wait_for(worker.ended, DEADLINE)


async def zygote_pid(launcher: ZygoteLauncher, folder: Path) -> int:
    """Return the pid of the lean zygote, which is then warm."""
    worker = await launcher.launch(request(folder, "idle", "probe"))
    zygote = parent_of(worker.pid)
    worker.kill()
    await ended(worker)
    return zygote


async def eventually(condition: Callable[[], bool]) -> None:
    """Return once `condition` holds."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0)


def parent_of(pid: int) -> int:
    """Return the pid of the parent of `pid`."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


class TestWorker:
    """One worker."""

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


@pytest.fixture
def root(tmp_path: Path, ear: Ear) -> Iterator[Launch]:
    """Run a program with workers; return it, its workers and its other processes."""
    programs = []

    def run(what: str, count: int, *options: str) -> tuple[subprocess.Popen[bytes], Watch, Watch]:
        argv = [sys.executable, str(HERE / "root.py"), str(tmp_path), ear.path, what, str(count), *options]
        program = subprocess.Popen(argv, stdout=subprocess.PIPE)
        programs.append(program)
        assert program.stdout is not None
        pids = json.loads(program.stdout.readline())
        watches = Watch(set(pids["workers"])), Watch({*pids["others"], *([pids["child"]] if "child" in pids else [])})
        opened.extend(watches)
        return program, *watches

    opened: list[Watch] = []
    yield run
    for program in programs:
        program.kill()
        program.wait()
        assert program.stdout is not None
        program.stdout.close()
    for watch in opened:
        with watch:
            pass


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


class TestSdkTemplate:
    """The template that has used every SDK once."""

    async def test_warm_template_forks_workers_that_share_its_context(self, tmp_path: Path, ear: Ear) -> None:
        """It boots without a word on its log, a thread or a socket, and its workers find the context made."""
        launcher = ZygoteLauncher("run", tmp_path, entry="stand_in:main_of_sdk")
        await launcher.start()
        launcher.warm("sdk")
        await launcher.launch(request(tmp_path, "", ear=ear, template="sdk"))
        told = await ear.listen()
        assert told == {"agent": "a1", "made": 1, "sockets": [], "tasks": 1}
        assert (tmp_path / "processes.log").read_text() == ""
        await launcher.stop()


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
        monkeypatch.setattr("orch.launchers.exec.PIDFDS", False)
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
import orch.launchers.zygote, orch.launchers.exec
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
    assert kernel.exit_status(pidfd) in (7, None)
    assert kernel.reap(pidfd) in (7, None)
    os.close(pidfd)
