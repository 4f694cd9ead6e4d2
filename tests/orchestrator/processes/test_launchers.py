"""Launching, as far as it needs no process."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest

from orch.processes import descriptors, worker_logs
from orch.processes.base import LaunchRequest
from orch.processes.environment import clean_environment, command
from orch.processes.exec import ChildProcess, ChildProcesses, ExecLauncher, birth_pipe
from orch.processes.restart_intensity import RestartIntensity
from orch.processes.zygote import ZygoteLauncher
from orch_protocol.agent.spec import Limits, WorkerBirth
from orch_protocol.core.errors import LaunchError, UnsupportedPlatformError
from orch_protocol.wire.zygote_messages import LENGTH_BYTES, MAX_BIRTH, decode_birth
from orchestrator.tree_double import Forest, Timer


def request(folder: Path) -> LaunchRequest:
    """Return a request for a worker that is never started."""
    return LaunchRequest("a1", 1, b"ident", "ipc://x", WorkerBirth(b"t"), "lean", str(folder / "a1.log"), str(folder))


class TestEnvironment:
    """What a process of ours is started with."""

    @pytest.mark.parametrize(
        "name",
        [
            *("ANTHROPIC_API_KEY", "ANTHROPIC_CUSTOM_HEADERS", "OPENAI_ORG_ID", "MY_API_KEY", "SOME_APIKEY", "TOKEN"),
            *("GITHUB_TOKEN", "my_secret_thing", "DB_PASSWORD", "AWS_ACCESS_KEY_ID", "SSH_PRIVATE_KEY", "MY_PASS"),
            *("GOOGLE_APPLICATION_CREDENTIALS", "NPM_AUTH", "SENTRY_DSN", "SLACK_WEBHOOK", "STRIPE_ACCOUNT"),
            *("DATABASE_URL", "MY_VARIABLE", "SSH_AUTH_SOCK", "CONDA_TOKEN", "XDG_SECRET"),
        ],
    )
    def test_secrets_stay_behind(self, name: str) -> None:
        """The environment is an allow list; names on it that look like secrets are withheld too."""
        made = clean_environment("run", {name: "canary"})
        assert name not in made
        assert made["ORCH_WITHHELD"] == name
        assert "canary" not in "".join(made.values())

    def test_addresses_with_a_password_stay_behind(self) -> None:
        """Only a proxy may have one: without its proxy a process might reach nothing."""
        found = {"HTTPS_PROXY": "http://me:pw@proxy:3128", "no_proxy": "localhost"}
        made = clean_environment("run", found | {"XDG_SERVER": "ftp://me:canary@host/"})
        assert made.items() >= found.items()
        assert "XDG_SERVER" not in made

    @pytest.mark.parametrize(
        "name",
        [
            *("PATH", "HOME", "LANG", "LC_TIME", "TZ", "TERM", "TMPDIR", "XDG_RUNTIME_DIR", "LD_LIBRARY_PATH"),
            *(
                "SSL_CERT_FILE",
                "REQUESTS_CA_BUNDLE",
                "GIT_SSL_CAINFO",
                "CUDA_VISIBLE_DEVICES",
                "OMP_NUM_THREADS",
                "VIRTUAL_ENV",
            ),
            *(
                "CONDA_PREFIX",
                "ORCH_HOME",
                "ORCH_ENVIRONMENT__PASS",
                "PYTHONUTF8",
                "PYTHONDONTWRITEBYTECODE",
                "ALL_PROXY",
            ),
        ],
    )
    def test_variables_on_the_list_are_passed(self, name: str) -> None:
        """What interpreters, locales, certificates, proxies and orch itself need is passed unchanged."""
        made = clean_environment("run", {name: "value"})
        assert made[name] == "value"
        assert "ORCH_WITHHELD" not in made

    def test_configuration_passes_more_by_name_and_glob(self) -> None:
        """A name in `environment.pass` is passed even if it looks like a secret."""
        named = {"SLACK_WEBHOOK": "a", "STRIPE_KEY": "b", "STRIPE_ACCOUNT": "c"}
        made = clean_environment("run", named | {"OTHER": "d"}, ["SLACK_WEBHOOK", "STRIPE_*"])
        assert made.items() >= named.items()
        assert "OTHER" not in made
        assert made["ORCH_WITHHELD"] == "OTHER"

    def test_names_withheld_by_a_parent_process_are_remembered(self) -> None:
        """The daemon's workers know what the user's shell has and the daemon was not given."""
        daemon = clean_environment("daemon", {"SLACK_WEBHOOK": "a", "PATH": "/bin"})
        assert clean_environment("run", daemon)["ORCH_WITHHELD"] == "SLACK_WEBHOOK"

    def test_run_is_named(self) -> None:
        """ORCH_RUN is this run, whatever it was."""
        assert clean_environment("run-7", {"ORCH_RUN": "run-6"})["ORCH_RUN"] == "run-7"

    def test_packages_come_first_and_the_current_folder_never(self) -> None:
        """Our packages lead the import path, relative parts become absolute, empty ones (the current folder) go."""
        path = clean_environment("run", {"PYTHONPATH": ":/usr/share/mine:lib:"})["PYTHONPATH"].split(":")
        assert path[-2:] == ["/usr/share/mine", os.path.abspath("lib")]
        assert any((Path(folder) / "orch_worker").is_dir() for folder in path[:-2])
        assert "" not in path

    def test_interpreter_does_not_turn_interactive(self) -> None:
        """Variables that make an interpreter wait for a person are dropped."""
        assert "PYTHONINSPECT" not in clean_environment("run", {"PYTHONINSPECT": "1"})

    def test_current_folder_is_not_on_the_import_path(self) -> None:
        """Processes run by module name with -P."""
        assert command("shim", "3") == [sys.executable, "-P", "-m", "orch_worker", "shim", "3"]


class TestPlatform:
    """Where launching is impossible."""

    @pytest.mark.parametrize("launcher", [ExecLauncher, ZygoteLauncher])
    async def test_windows_is_told_of_wsl(self, launcher: type[ExecLauncher], monkeypatch: pytest.MonkeyPatch) -> None:
        """Starting on Windows is an error that names the way out."""
        monkeypatch.setattr(sys, "platform", "win32")
        with pytest.raises(UnsupportedPlatformError, match="WSL"):
            await launcher("run", Path("x")).start()

    async def test_forking_is_for_linux(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Elsewhere the forking launcher names the other one."""
        monkeypatch.setattr(sys, "platform", "darwin")
        with pytest.raises(UnsupportedPlatformError, match="exec launcher"):
            await ZygoteLauncher("run", Path("x")).start()

    async def test_no_interpreter_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A program that does not know its interpreter is told what to set."""
        monkeypatch.setattr(sys, "executable", "")
        with pytest.raises(LaunchError, match=r"sys\.executable is empty"):
            await ExecLauncher("run", Path("x")).start()

    async def test_folder_that_is_not_there_is_an_error(self, tmp_path: Path) -> None:
        """A log that cannot be opened is named."""
        with pytest.raises(LaunchError, match=r"cannot write to .*gone"):
            await ExecLauncher("run", tmp_path / "gone").start()
        with pytest.raises(LaunchError, match=r"cannot write to .*processes\.log"):
            await ZygoteLauncher("run", tmp_path / "gone").start()

    async def test_stopped_launcher_launches_nothing(self, tmp_path: Path) -> None:
        """After stop a launch is refused."""
        for launcher in (ZygoteLauncher("run", tmp_path), ExecLauncher("run", tmp_path)):
            await launcher.stop()
            with pytest.raises(LaunchError, match="stopped"):
                await launcher.launch(request(tmp_path))


class TestIntensity:
    """Restarts in a window."""

    def test_fourth_restart_in_a_minute_is_refused(self) -> None:
        """Three restarts pass, the fourth does not, until the first is a minute old."""
        now = 0.0
        intensity = RestartIntensity(clock=lambda: now)
        assert [intensity.allow() for _ in range(4)] == [True, True, True, False]
        now = 59.9
        assert not intensity.allow()
        now = 60.0
        assert [intensity.allow() for _ in range(4)] == [True, True, True, False]


class TestBoot:
    """How long a process may take to be up."""

    def test_a_loaded_machine_has_time_for_an_sdk_and_a_tool_that_spawns_hears_of_it(self, tmp_path: Path) -> None:
        """An import of four seconds may be one of a minute; the agent and its zygote are given up at one time."""
        forest = Forest()
        forest.spawn(up=False)
        [timer] = forest.told(Timer)
        assert ZygoteLauncher("run", tmp_path)._boot_timeout == timer.seconds > 90
        assert timer.seconds + 5 < Limits().tool_seconds


class TestDescriptors:
    """Descriptors of this process alone."""

    def test_release_closes_once(self) -> None:
        """A released descriptor is closed, and releasing it again does not close its successor."""
        reader, writer = map(descriptors.register, os.pipe())
        assert descriptors.is_registered(reader)
        descriptors.release(reader)
        assert not descriptors.is_registered(reader)
        successor = os.dup(writer)
        descriptors.release(reader)
        os.fstat(successor)
        os.close(successor)
        descriptors.release(writer)

    def test_sockets_are_closed_as_objects(self) -> None:
        """A held socket knows that it was closed, so that no later collection closes the number again."""
        left, right = map(descriptors.register, socket.socketpair())
        descriptors.release(left)
        assert left.fileno() == -1
        descriptors.release(right)

    def test_birth_waits_in_its_pipe(self) -> None:
        """The pipe holds the birth before anybody reads, and both ends are closed in programs that are executed."""
        birth = WorkerBirth(b"token", {"name": "value"})
        reader, lifeline = birth_pipe(birth)
        assert not os.get_inheritable(reader)
        assert not os.get_inheritable(lifeline)
        size = int.from_bytes(os.read(reader, LENGTH_BYTES))
        assert decode_birth(os.read(reader, size)) == birth
        descriptors.release(reader)
        descriptors.release(lifeline)

    def test_birth_too_large_is_a_launch_error(self) -> None:
        """Keys that no pipe takes are refused before anything is started."""
        with pytest.raises(LaunchError, match="fewer or shorter keys"):
            birth_pipe(WorkerBirth(b"", {"name": "x" * MAX_BIRTH}))


class TestLogs:
    """Files that processes write to."""

    def test_short_log_is_left_alone(self, tmp_path: Path) -> None:
        """A log within the limit is not touched."""
        log = tmp_path / "log"
        log.write_bytes(b"x" * worker_logs.LIMIT)
        worker_logs.trim(log)
        assert log.stat().st_size == worker_logs.LIMIT

    def test_a_log_that_is_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        """Nobody may ever read it: an error says so at once."""
        os.mkfifo(tmp_path / "log")
        with pytest.raises(OSError, match="No such device"):
            worker_logs.open_log(tmp_path / "log")

    def test_long_log_keeps_its_end(self, tmp_path: Path) -> None:
        """A flooded log is cut to whole lines of its end, says so, and its writer goes on behind them."""
        log = tmp_path / "log"
        output = worker_logs.open_log(log)
        os.write(output, b"".join(b"line %d\n" % number for number in range(200_000)))
        worker_logs.trim(log)
        os.write(output, b"after\n")
        os.close(output)
        lines = log.read_bytes().splitlines()
        assert log.stat().st_size < worker_logs.LIMIT
        assert lines[0] == b"[earlier output dropped]"
        assert lines[1].startswith(b"line ")
        assert lines[-2:] == [b"line 199999", b"after"]

    def test_log_that_is_gone_is_no_error(self, tmp_path: Path) -> None:
        """A missing log has an empty end and needs no cut."""
        worker_logs.trim(tmp_path / "gone")
        assert worker_logs.read_tail(tmp_path / "gone") == ""

    def test_tail_begins_where_this_run_began(self, tmp_path: Path) -> None:
        """What was written before is not quoted, unless the file was cut since."""
        log = tmp_path / "log"
        log.write_text("old\nnew\n")
        assert worker_logs.read_tail(log, since=4) == "new"
        assert worker_logs.read_tail(log, since=100) == "old\nnew"
        assert worker_logs.read_tail(log, most=2) == "w"

    async def test_logs_of_living_workers_are_kept_short(self, tmp_path: Path) -> None:
        """A worker's flooded log is cut while the worker lives."""
        log = tmp_path / "a1.log"
        log.write_bytes(b"line\n" * worker_logs.LIMIT)
        ends: list[None] = []
        children = ChildProcesses(lambda: ends.append(None))
        child = fake_child(str(log))[0]
        children.add(child)
        assert log.stat().st_size < worker_logs.LIMIT
        child.report(0)
        await child.ended
        await asyncio.sleep(0)
        assert list(children) == []
        assert ends == [None]


def fake_child(log: str = "") -> tuple[ChildProcess, int, int]:
    """Return a child whose pidfd is a pipe, the pipe's other end, and the end that its worker would hold."""
    pidfd, end = os.pipe()
    worker, lifeline = map(descriptors.register, os.pipe())
    return ChildProcess(os.getpid(), pidfd, lifeline, log), end, worker


class TestChild:
    """A worker as the root holds it."""

    async def test_report_settles_the_end_and_closes_both_descriptors(self) -> None:
        """The reported code is the result; the lifeline reads end of file afterwards."""
        child, end, worker = fake_child()
        child.report(7)
        child.report(8)
        assert await child.ended == 7
        assert os.read(worker, 1) == b""
        child.kill()
        os.close(end)
        descriptors.release(worker)

    async def test_report_after_the_end_is_still_heard(self) -> None:
        """A pidfd that fires before its zygote's report waits for it."""
        child, end, worker = fake_child()
        os.close(end)
        for _ in range(3):
            await asyncio.sleep(0)
        assert not child.ended.done()
        child.report(-9)
        assert await child.ended == -9
        descriptors.release(worker)

    async def test_end_that_nobody_reports_is_unknown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without a report in time and without the kernel's memory, the code is None."""
        monkeypatch.setattr("orch.processes.exec.REPORT_SECONDS", 0.0)
        child, end, worker = fake_child()
        os.close(end)
        assert await child.ended is None
        descriptors.release(worker)
