"""The parts of launching that need no process."""

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
from orch_worker.system.secrets import CREDENTIAL_VARIABLES
from orchestrator.tree_double import Forest, Timer


def request(folder: Path) -> LaunchRequest:
    """Return a request for a worker that is never started."""
    return LaunchRequest("a1", 1, b"ident", "ipc://x", WorkerBirth(b"t"), "lean", str(folder / "a1.log"), str(folder))


class TestEnvironment:
    """The environment of new processes."""

    @pytest.mark.parametrize(
        "name",
        [
            *("ANTHROPIC_API_KEY", "ANTHROPIC_CUSTOM_HEADERS", "OPENAI_ORG_ID", "MY_API_KEY", "SOME_APIKEY", "TOKEN"),
            *("GITHUB_TOKEN", "my_secret_thing", "DB_PASSWORD", "AWS_ACCESS_KEY_ID", "SSH_PRIVATE_KEY", "MY_PASS"),
            *("GOOGLE_APPLICATION_CREDENTIALS", "NPM_AUTH", "SENTRY_DSN", "SLACK_WEBHOOK", "STRIPE_ACCOUNT"),
            *("DATABASE_URL", "MY_VARIABLE", "SSH_AUTH_SOCK", "CONDA_TOKEN", "XDG_SECRET"),
        ],
    )
    def test_secret_variables_are_not_passed(self, name: str) -> None:
        """Only listed variables are passed. Their values appear nowhere, and ORCH_WITHHELD contains the withheld
        names."""
        made = clean_environment("run", {name: "canary"})
        assert name not in made
        assert made["ORCH_WITHHELD"] == name
        assert "canary" not in "".join(made.values())

    def test_urls_with_passwords_are_not_passed(self) -> None:
        """URLs of proxies are passed with their passwords."""
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
    def test_allowed_variables_are_passed(self, name: str) -> None:
        """Workers receive variables for interpreters, locales, certificates, proxies and orch."""
        made = clean_environment("run", {name: "value"})
        assert made[name] == "value"
        assert "ORCH_WITHHELD" not in made

    @pytest.mark.parametrize("name", CREDENTIAL_VARIABLES)
    def test_places_of_credentials_are_passed(self, name: str) -> None:
        """Workers hide these places from commands. A value that is no place may be a secret."""
        for value in ("/keys/one:/keys/two", "~/keys"):
            assert clean_environment("run", {name: value})[name] == value
        if name.startswith("AWS_"):
            assert name not in clean_environment("run", {name: "canary"})

    def test_configured_names_and_globs_are_passed(self) -> None:
        """A name in `environment.pass` is passed even if it looks like a secret."""
        named = {"SLACK_WEBHOOK": "a", "STRIPE_KEY": "b", "STRIPE_ACCOUNT": "c"}
        made = clean_environment("run", named | {"OTHER": "d"}, ["SLACK_WEBHOOK", "STRIPE_*"])
        assert made.items() >= named.items()
        assert "OTHER" not in made
        assert made["ORCH_WITHHELD"] == "OTHER"

    def test_withheld_names_are_recorded_for_workers(self) -> None:
        """Workers of the daemon know which variables of the user's shell the daemon did not receive."""
        daemon = clean_environment("daemon", {"SLACK_WEBHOOK": "a", "PATH": "/bin"})
        assert clean_environment("run", daemon)["ORCH_WITHHELD"] == "SLACK_WEBHOOK"

    def test_orch_run_names_this_run(self) -> None:
        """A value of ORCH_RUN in the environment is replaced."""
        assert clean_environment("run-7", {"ORCH_RUN": "run-6"})["ORCH_RUN"] == "run-7"

    def test_import_path_starts_with_orch_and_excludes_the_current_folder(self) -> None:
        """Relative folders become absolute, and empty ones, which mean the current folder, are removed."""
        path = clean_environment("run", {"PYTHONPATH": ":/usr/share/mine:lib:"})["PYTHONPATH"].split(":")
        assert path[-2:] == ["/usr/share/mine", os.path.abspath("lib")]
        assert any((Path(folder) / "orch_worker").is_dir() for folder in path[:-2])
        assert "" not in path

    def test_interactive_interpreter_variables_are_dropped(self) -> None:
        """With PYTHONINSPECT, an interpreter would wait for a person."""
        assert "PYTHONINSPECT" not in clean_environment("run", {"PYTHONINSPECT": "1"})

    def test_processes_run_with_safe_path(self) -> None:
        """The command contains `-P -m`."""
        assert command("shim", "3") == [sys.executable, "-P", "-m", "orch_worker", "shim", "3"]


class TestPlatform:
    """Platforms and conditions where launching is impossible."""

    @pytest.mark.parametrize("launcher", [ExecLauncher, ZygoteLauncher])
    async def test_windows_is_refused_with_a_hint_to_wsl(
        self, launcher: type[ExecLauncher], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The error recommends WSL."""
        monkeypatch.setattr(sys, "platform", "win32")
        with pytest.raises(UnsupportedPlatformError, match="WSL"):
            await launcher("run", Path("x")).start()

    async def test_fork_launcher_requires_linux(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """On other platforms, the error recommends the exec launcher."""
        monkeypatch.setattr(sys, "platform", "darwin")
        with pytest.raises(UnsupportedPlatformError, match="exec launcher"):
            await ZygoteLauncher("run", Path("x")).start()

    async def test_missing_interpreter_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The error contains the name of the empty setting."""
        monkeypatch.setattr(sys, "executable", "")
        with pytest.raises(LaunchError, match=r"sys\.executable is empty"):
            await ExecLauncher("run", Path("x")).start()

    async def test_missing_log_folder_is_an_error(self, tmp_path: Path) -> None:
        """The error contains the path of the log."""
        with pytest.raises(LaunchError, match=r"cannot write to .*gone"):
            await ExecLauncher("run", tmp_path / "gone").start()
        with pytest.raises(LaunchError, match=r"cannot write to .*processes\.log"):
            await ZygoteLauncher("run", tmp_path / "gone").start()

    async def test_stopped_launcher_refuses_launches(self, tmp_path: Path) -> None:
        """`launch` after `stop` raises LaunchError."""
        for launcher in (ZygoteLauncher("run", tmp_path), ExecLauncher("run", tmp_path)):
            await launcher.stop()
            with pytest.raises(LaunchError, match="stopped"):
                await launcher.launch(request(tmp_path))


class TestIntensity:
    """The limit of restarts in a period."""

    def test_fourth_restart_in_a_minute_is_refused(self) -> None:
        """Another restart is possible when the first one is a minute old."""
        now = 0.0
        intensity = RestartIntensity(clock=lambda: now)
        assert [intensity.allow() for _ in range(4)] == [True, True, True, False]
        now = 59.9
        assert not intensity.allow()
        now = 60.0
        assert [intensity.allow() for _ in range(4)] == [True, True, True, False]


class TestBoot:
    """The time limit for the start of a process."""

    def test_slow_import_on_a_loaded_machine_does_not_time_out(self, tmp_path: Path) -> None:
        """Agent and zygote have the same time limit of more than 90 seconds."""
        forest = Forest()
        forest.spawn(up=False)
        [timer] = forest.told(Timer)
        assert ZygoteLauncher("run", tmp_path)._boot_timeout == timer.seconds > 90
        assert timer.seconds + 5 < Limits().tool_seconds


class TestDescriptors:
    """The registry of descriptors that only this process may have."""

    def test_descriptor_is_released_once(self) -> None:
        """Releasing a descriptor again does not close a new descriptor with the same number."""
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
        """Closing the socket object prevents that garbage collection closes a reused descriptor later."""
        left, right = map(descriptors.register, socket.socketpair())
        descriptors.release(left)
        assert left.fileno() == -1
        descriptors.release(right)

    def test_worker_init_is_written_to_a_pipe_before_launch(self) -> None:
        """The ends of the pipe are closed on exec."""
        birth = WorkerBirth(b"token", {"name": "value"})
        reader, lifeline = birth_pipe(birth)
        assert not os.get_inheritable(reader)
        assert not os.get_inheritable(lifeline)
        size = int.from_bytes(os.read(reader, LENGTH_BYTES))
        assert decode_birth(os.read(reader, size)) == birth
        descriptors.release(reader)
        descriptors.release(lifeline)

    def test_oversized_worker_init_is_a_launch_error(self) -> None:
        """Keys that do not fit into a pipe are refused before a process starts."""
        with pytest.raises(LaunchError, match="use fewer API keys"):
            birth_pipe(WorkerBirth(b"", {"name": "x" * MAX_BIRTH}))


class TestLogs:
    """The log files of processes."""

    def test_short_log_is_not_truncated(self, tmp_path: Path) -> None:
        """The size of a log at the limit stays the same."""
        log = tmp_path / "log"
        log.write_bytes(b"x" * worker_logs.MAX_LOG_BYTES)
        worker_logs.trim(log)
        assert log.stat().st_size == worker_logs.MAX_LOG_BYTES

    def test_fifo_in_place_of_a_log_does_not_block(self, tmp_path: Path) -> None:
        """Opening it raises OSError at once."""
        os.mkfifo(tmp_path / "log")
        with pytest.raises(OSError, match="No such device"):
            worker_logs.open_log(tmp_path / "log")

    def test_long_log_keeps_its_end(self, tmp_path: Path) -> None:
        """The log keeps whole lines after a notice, and its writer continues."""
        log = tmp_path / "log"
        output = worker_logs.open_log(log)
        os.write(output, b"".join(b"line %d\n" % number for number in range(200_000)))
        worker_logs.trim(log)
        os.write(output, b"after\n")
        os.close(output)
        lines = log.read_bytes().splitlines()
        assert log.stat().st_size < worker_logs.MAX_LOG_BYTES
        assert lines[0] == b"[earlier output dropped]"
        assert lines[1].startswith(b"line ")
        assert lines[-2:] == [b"line 199999", b"after"]

    def test_missing_log_is_no_error(self, tmp_path: Path) -> None:
        """The tail of a missing log is empty."""
        worker_logs.trim(tmp_path / "gone")
        assert worker_logs.read_tail(tmp_path / "gone") == ""

    def test_log_tail_begins_at_the_start_of_this_run(self, tmp_path: Path) -> None:
        """If the file was truncated after that position, the tail includes earlier lines."""
        log = tmp_path / "log"
        log.write_text("old\nnew\n")
        assert worker_logs.read_tail(log, since=4) == "new"
        assert worker_logs.read_tail(log, since=100) == "old\nnew"
        assert worker_logs.read_tail(log, limit=2) == "w"

    async def test_logs_of_running_workers_are_truncated(self, tmp_path: Path) -> None:
        """The log of a new child is truncated at once."""
        log = tmp_path / "a1.log"
        log.write_bytes(b"line\n" * worker_logs.MAX_LOG_BYTES)
        ends: list[None] = []
        children = ChildProcesses(lambda: ends.append(None))
        child = fake_child(str(log))[0]
        children.add(child)
        assert log.stat().st_size < worker_logs.MAX_LOG_BYTES
        child.set_exit_code(0)
        await child.ended
        await asyncio.sleep(0)
        assert list(children) == []
        assert ends == [None]


def fake_child(log: str = "") -> tuple[ChildProcess, int, int]:
    """Return a child with a pipe in place of its pidfd, the other end of that pipe, and the worker's end of the
    lifeline."""
    pidfd, end = os.pipe()
    worker, lifeline = map(descriptors.register, os.pipe())
    return ChildProcess(os.getpid(), pidfd, lifeline, log), end, worker


class TestChild:
    """A worker process as the root represents it."""

    async def test_exit_report_settles_the_end_and_closes_both_descriptors(self) -> None:
        """A second report has no effect. After the end, the worker's end of the lifeline reads end of file."""
        child, end, worker = fake_child()
        child.set_exit_code(7)
        child.set_exit_code(8)
        assert await child.ended == 7
        assert os.read(worker, 1) == b""
        child.kill()
        os.close(end)
        descriptors.release(worker)

    async def test_exit_report_after_the_pidfd_is_awaited(self) -> None:
        """When the pidfd fires before the zygote's report, the child waits for the exit code in the report."""
        child, end, worker = fake_child()
        os.close(end)
        for _ in range(3):
            await asyncio.sleep(0)
        assert not child.ended.done()
        child.set_exit_code(-9)
        assert await child.ended == -9
        descriptors.release(worker)

    async def test_unreported_exit_has_no_code(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """If no report arrives in time, the exit code is None."""
        monkeypatch.setattr("orch.processes.exec.REPORT_SECONDS", 0.0)
        child, end, worker = fake_child()
        os.close(end)
        assert await child.ended is None
        descriptors.release(worker)
