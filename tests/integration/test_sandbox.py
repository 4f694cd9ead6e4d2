"""Tool processes try to leave the sandbox, at each level that the machine supports."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from integration.command_shell import Shell
from leak_check import command_lines
from orch_protocol.policy.sandbox import LEVELS, Level, SandboxSpec, ToolLimits
from orch_worker.sandbox import probe
from orch_worker.system.programs import PROGRAM_PATH
from orch_worker.tools.api.base import ToolContext, ToolError, ToolOutput
from orch_worker.tools.python.python import py_help, run_python, run_python_script
from orch_worker.tools.shell.git import git_log, git_status
from orch_worker.tools.shell.shell import bash, bg_kill, bg_status

CONFINED: tuple[Level, ...] = ("L2", "L3")


def at(context: ToolContext, level: Level, **more: object) -> ToolContext:
    """Return `context` with its tools at `level`. Skip the test if the machine does not support `level`."""
    if why := probe.available_levels().missing.get(level):
        pytest.skip(f"no {level} on this machine: {why}")
    return replace(context, sandbox=SandboxSpec(level, **more))  # type: ignore[arg-type]


@pytest.fixture
def context(tmp_path: Path) -> Iterator[ToolContext]:
    """An agent in a folder that is next to a secret."""
    (tmp_path / "cwd").mkdir()
    (tmp_path / "session").mkdir()
    (tmp_path / "secret").write_text("not to be seen")
    env = {"CENSUS": os.environ["CENSUS"], "HOME": str(tmp_path)}
    context = ToolContext(tmp_path / "cwd", env=env, folder=tmp_path / "session", seconds=30.0)
    yield context
    context.tool_state.close()


async def sh(context: ToolContext, command: str) -> ToolOutput:
    return await bash.run(context, {"command": command})


async def python(context: ToolContext, code: str) -> str:
    """Return the output of the script `code`, which runs in a separate process."""
    return (await run_python_script.run(context, {"code": code})).text


def capabilities() -> str:
    """Return the effective capabilities of this process, as the kernel shows them."""
    return Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0]


@contextmanager
def beside() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for its input."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        yield other
        other.communicate(b"\n", timeout=30)


TRIES = """
import ctypes, os, socket, sys
def tries(name, act):
    try:
        act()
    except OSError as error:
        print(name, "refused")
    else:
        print(name, "DONE")
"""


class TestFiles:
    """Files outside the agent's folder."""

    @pytest.mark.parametrize("level", CONFINED)
    async def test_paths_out_of_the_folder_are_closed(self, context: ToolContext, level: Level) -> None:
        """Plain paths, `..`, symbolic links, hard links, renames and /proc do not lead to a file outside."""
        context = at(context, level)
        secret = context.cwd.parent / "secret"
        (context.cwd / "link").symlink_to(secret)
        (context.cwd / "up").symlink_to(context.cwd.parent)
        code = f"""{TRIES}
secret = {str(secret)!r}
for road in (secret, "../secret", "link", "up/secret", f"/proc/self/cwd/../secret", f"/proc/1/root{{secret}}"):
    tries("read", lambda: print(open(road).read()))
    tries("write", lambda: open(road, "w").write("spoilt"))
tries("hard link", lambda: os.link(secret, "mine"))
tries("rename", lambda: os.rename("link", secret))
tries("make", lambda: open({str(secret.with_name("made"))!r}, "w"))
tries("system", lambda: open("/usr/made", "w"))
"""
        output = await python(context, code)
        assert "not to be seen" not in output, output
        assert output.count("refused") + output.count("DONE") == 16, output
        assert level == "L3" or "DONE" not in output, output  # at L3 there is another folder of that name
        assert secret.read_text() == "not to be seen"
        assert not secret.with_name("made").exists()

    @pytest.mark.parametrize("level", CONFINED)
    async def test_sandbox_applies_to_descendants_of_a_command(self, context: ToolContext, level: Level) -> None:
        """A descendant with another session and a cleared environment cannot read the secret."""
        context = at(context, level)
        output = await sh(context, "setsid env -i /bin/sh -c '(cat ../secret && echo DONE) & wait'")
        assert "DONE" not in output.text

    @pytest.mark.parametrize("level", CONFINED)
    async def test_swapped_links_never_lead_outside(self, context: ToolContext, level: Level) -> None:
        """In two thousand races no write creates a file outside the folder."""
        context = at(context, level)
        code = f"""
import os, threading
os.mkdir("a"); os.symlink({str(context.cwd.parent)!r}, "b")
done = False
def swap():
    while not done:
        os.rename("a", "c"); os.rename("b", "a"); os.rename("c", "b")
threading.Thread(target=swap, daemon=True).start()
for _ in range(2000):
    for name in "ab":
        try:
            open(name + "/raced", "w").close()
        except OSError:
            pass
done = True
"""
        await python(context, code)
        assert not (context.cwd.parent / "raced").exists()

    @pytest.mark.parametrize("level", CONFINED)
    async def test_terminals_of_other_programs_are_unreachable(self, context: ToolContext, level: Level) -> None:
        """A script cannot open the terminal of another program of the same user."""
        context = at(context, level)
        master, slave = os.openpty()
        try:
            name = os.ttyname(slave)
            output = await python(context, f"{TRIES}\ntries('terminal', lambda: open({name!r}, 'r+b', 0))")
        finally:
            os.close(master)
            os.close(slave)
        assert "terminal refused" in output

    @pytest.mark.parametrize("level", CONFINED)
    async def test_own_folder_and_home_are_writable(
        self, context: ToolContext, level: Level, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The home is a scratch folder of the session, not the user's home, and its files persist between calls."""
        context = at(context, level)
        monkeypatch.setenv("ORCH_HOME", "/of/the/user")
        assert context.folder is not None
        output = await sh(
            context, "echo a > made && cat made && echo b > ~/kept && mktemp && echo $HOME && ls /usr/bin/env"
        )
        assert not output.is_error, output.text
        assert (context.cwd / "made").read_text() == "a\n"
        assert str(context.folder / "scratch") in output.text.splitlines()
        assert (await sh(context, "cat ~/kept; echo ${ORCH_HOME-none}")).text.startswith("b\nnone\n")

    @pytest.mark.parametrize("level", CONFINED)
    async def test_configured_paths_are_reachable(self, context: ToolContext, level: Level) -> None:
        """A `read` path can be read and not written, and a `write` path can be written."""
        folder = context.cwd.parent
        (folder / "more").mkdir()
        context = at(context, level, read=(str(folder / "secret"),), write=("../more",))
        output = await sh(context, "cat ../secret && echo x > ../more/made && echo y > ../secret")
        assert output.text.startswith("not to be seen")
        assert (folder / "more" / "made").read_text() == "x\n"
        assert (folder / "secret").read_text() == "not to be seen"
        assert output.is_error

    @pytest.mark.parametrize("level", CONFINED)
    async def test_repository_above_the_folder_is_read_by_git_tools_only(
        self, context: ToolContext, level: Level
    ) -> None:
        """An agent in a subfolder of a repository sees the history with the git tools, and cannot read it with
        commands.
        """
        context = at(context, level)
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(context.cwd.parent)]
        (context.cwd / "file").write_text("1")
        for command in (["init", "-q"], ["add", "cwd"], ["commit", "-q", "-m", "first words"]):
            await asyncio.to_thread(subprocess.run, [*git, *command], check=True, timeout=30)
        assert "first words" in (await git_log.run(context, {})).text
        assert "##" in (await git_status.run(context, {})).text
        assert (await sh(context, "cat ../.git/HEAD")).is_error


class TestNetworkAndProcesses:
    """Other machines and other processes."""

    @pytest.mark.parametrize("level", CONFINED)
    async def test_no_server_is_reachable(self, context: ToolContext, level: Level, tmp_path: Path) -> None:
        """TCP, UDP, Unix sockets, abstract sockets, redirected socket pairs and io_uring reach no server."""
        context = at(context, level)
        tcp, udp = socket.create_server(("127.0.0.1", 0)), socket.socket(type=socket.SOCK_DGRAM)
        path, abstract = (socket.socket(socket.AF_UNIX) for _ in range(2))
        datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        udp.bind(("127.0.0.1", 0))
        path.bind(str(tmp_path / "socket"))
        datagrams.bind(str(tmp_path / "datagrams"))
        name = f"\0orch-{os.getpid()}"
        abstract.bind(name)
        for each in (path, abstract):
            each.listen()
        for each in (tcp, udp, path, abstract, datagrams):
            each.setblocking(False)
        code = f"""{TRIES}
tries("tcp", lambda: socket.create_connection(("127.0.0.1", {tcp.getsockname()[1]}), 2))
tries("udp", lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", {udp.getsockname()[1]})))
tries("path", lambda: socket.socket(socket.AF_UNIX).connect({str(tmp_path / "socket")!r}))
tries("abstract", lambda: socket.socket(socket.AF_UNIX).connect({name!r}))
tries("pair", lambda: socket.socketpair(type=socket.SOCK_DGRAM)[0].sendto(b"x", {str(tmp_path / "datagrams")!r}))
tries("ring", lambda: print("RING") if ctypes.CDLL(None).syscall(425, 1, 0) >= 0 else None)
"""
        output = await python(context, code)
        for server, act in ((tcp, "accept"), (path, "accept"), (abstract, "accept")):
            with pytest.raises(BlockingIOError):
                getattr(server, act)()
        for server in (udp, datagrams):
            with pytest.raises(BlockingIOError):
                server.recv(1)
        for server in (tcp, udp, path, abstract, datagrams):
            server.close()
        assert "RING" not in output
        assert all(f"{name} refused" in output for name in ("tcp", "path", "abstract", "pair")), output

    @pytest.mark.parametrize("level", CONFINED)
    async def test_network_can_be_enabled(self, context: ToolContext, level: Level, tmp_path: Path) -> None:
        """With `network`, a script can use TCP, and cannot connect to Unix sockets outside the folder."""
        context = at(context, level, network=True)
        with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
            unix.bind(str(tmp_path / "socket"))
            unix.listen()
            code = f"""{TRIES}
tries("tcp", lambda: socket.create_connection(("127.0.0.1", {tcp.getsockname()[1]}), 5))
tries("unix", lambda: socket.socket(socket.AF_UNIX).connect({str(tmp_path / "socket")!r}))
"""
            output = await python(context, code)
        assert "tcp DONE" in output
        assert "unix refused" in output

    @pytest.mark.parametrize("level", CONFINED)
    async def test_other_processes_cannot_be_signaled_or_inspected(self, context: ToolContext, level: Level) -> None:
        """A script cannot kill or trace another process of the user, or read its environment, memory and
        descriptors.
        """
        context = at(context, level)
        with beside() as other:
            code = f"""{TRIES}
pid = {other.pid}
mine = os.path.exists(f"/proc/{{pid}}/cmdline") and b"input()" in open(f"/proc/{{pid}}/cmdline", "rb").read()
tries("kill", lambda: os.kill(pid, 9) if mine else os.kill(pid + 100_000_000, 9))
for name in ("environ", "mem", "fd/0", "cwd/x", "root/etc/passwd"):
    tries(name, lambda: open(f"/proc/{{pid}}/{{name}}", "rb").read(1) if mine else open("/none"))
libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(16, pid, 0, 0) == 0 and mine: print("ptrace DONE")
"""
            output = await python(context, code)
            assert other.poll() is None
        assert "DONE" not in output, output

    @pytest.mark.parametrize("level", CONFINED)
    async def test_namespaces_give_no_rights_back(self, context: ToolContext, level: Level) -> None:
        """`unshare` fails, because in a new user namespace a program would have the rights of the superuser."""
        context = at(context, level)
        output = await sh(context, "unshare -Ur true && echo DONE; unshare -m true && echo DONE; true")
        assert "DONE" not in output.text

    async def test_highest_level_hides_other_processes(self, context: ToolContext) -> None:
        """A command at L3 sees fewer than ten processes, and the processes that it leaves end with it."""
        context = at(context, "L3")
        output = await sh(context, "ls -d /proc/[0-9]* | wc -l; (setsid sleep 61 &); true")
        assert int(output.text.split()[0]) < 10

    @pytest.mark.parametrize("level", CONFINED)
    async def test_daemon_is_unreachable_from_a_folder_above_the_orch_home(
        self, context: ToolContext, level: Level, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The script cannot connect to the control socket, and can write the home of its agent."""
        home = context.cwd / "orch"
        (home / "sessions" / "a").mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as server:
            monkeypatch.chdir(home)  # a short name for it
            server.bind("control.sock")
            server.listen()
            context = at(replace(context, folder=home / "sessions" / "a"), level)
            code = f"""{TRIES}
os.chdir({str(home)!r})
tries("ask", lambda: socket.socket(socket.AF_UNIX).connect("control.sock"))
open(os.path.expanduser("~/own"), "w").write("x")
"""
            output = await python(context, code)
        assert "ask refused" in output
        assert (home / "sessions" / "a" / "scratch" / "own").read_text() == "x"

    async def test_orch_data_is_hidden_with_a_separate_session_dir(self, context: ToolContext) -> None:
        """An agent in the folder above them sees neither the orch home nor the sessions of other agents."""
        home, sessions = context.cwd / "orch", context.cwd / "talks"
        (home / "runs" / "daemon").mkdir(parents=True)
        (sessions / "b").mkdir(parents=True)
        (sessions / "b" / "session.jsonl").write_text("another's words")
        context = at(replace(context, folder=sessions / "a", orch_folders=(str(home),)), "L3")
        output = await sh(context, "find orch talks -mindepth 1 -name '[!.]*' | sort; echo x > ~/own")
        assert output.text.split()[0] == "talks/a"
        assert "runs" not in output.text
        assert "talks/b" not in output.text
        assert (sessions / "a" / "scratch" / "own").read_text() == "x\n"


class TestRights:
    """Rights of processes from L1 on."""

    @pytest.mark.parametrize("level", LEVELS[1:])
    async def test_no_capabilities_can_be_gained(self, context: ToolContext, level: Level) -> None:
        """Commands have no capabilities, also as root, and cannot gain any from setuid programs."""
        context = at(context, level)
        output = await sh(context, "grep -E 'Cap(Eff|Prm|Bnd|Amb)|NoNewPrivs' /proc/self/status")
        rows = dict(line.split() for line in output.text.splitlines()[:5])
        assert int(rows["CapEff:"], 16) == int(rows["CapPrm:"], 16) == int(rows["CapAmb:"], 16) == 0
        assert rows["NoNewPrivs:"] == "1"

    @pytest.mark.parametrize("level", LEVELS[1:])
    async def test_worker_itself_stays_unrestricted(self, context: ToolContext, level: Level) -> None:
        """The worker keeps its capabilities, its files and the network, because only the launching thread is
        confined.
        """
        before = capabilities()
        context = at(context, level)
        await sh(context, "true")
        assert capabilities() == before
        assert (context.cwd.parent / "secret").read_text() == "not to be seen"
        with socket.create_server(("127.0.0.1", 0)):
            pass
        assert await asyncio.to_thread(subprocess.check_output, ["cat", str(context.cwd.parent / "secret")])


class TestTools:
    """Tools that start processes."""

    @pytest.mark.parametrize("level", CONFINED)
    async def test_background_jobs_are_sandboxed(self, context: ToolContext, level: Level) -> None:
        """A job cannot read the secret, runs between calls, and can be ended."""
        context = at(context, level)
        command = "cat ../secret; echo so far; sleep 60"
        started = await bash.run(context, {"command": command, "background": True})
        id = started.text.split()[1].rstrip(".")
        async with asyncio.timeout(20):
            while "so far" not in (output := (await bg_status.run(context, {"id": id, "wait": 0.01})).text):
                pass
        assert "not to be seen" not in output
        assert "ended" in (await bg_kill.run(context, {"id": id})).text

    @pytest.mark.parametrize("level", CONFINED)
    async def test_help_is_available_and_run_python_is_refused(self, context: ToolContext, level: Level) -> None:
        """`py_help` uses a sandboxed process. run_python is available only if its own level is L0."""
        context = at(context, level)
        assert "dump" in (await py_help.run(context, {"topic": "json.dumps"})).text
        assert run_python.missing(context) == "Tool 'run_python' is not available here."
        given = replace(context, sandbox=replace(context.sandbox, tools={"run_python": "L0"}))
        assert run_python.missing(given) == ""

    @pytest.mark.parametrize("level", CONFINED)
    async def test_tool_can_have_its_own_level(self, context: ToolContext, level: Level) -> None:
        """The other tools have the level of the agent."""
        context = at(context, level)
        context = replace(context, sandbox=replace(context.sandbox, tools={"bash": "L0"}))
        assert (await sh(context, "cat ../secret")).text.startswith("not to be seen")
        assert "not to be seen" not in await python(context, "print(open('../secret').read())")

    @pytest.mark.parametrize("level", CONFINED)
    async def test_failed_command_names_its_sandbox(self, context: ToolContext, level: Level) -> None:
        """The result describes the sandbox, so that the model understands a message such as "permission denied"."""
        context = at(context, level)
        assert f"[sandbox {level}: the network, other" in (await sh(context, "cat ../secret")).text
        assert "sandbox" not in (await sh(context, "true")).text

    @pytest.mark.parametrize("level", LEVELS)
    async def test_leftover_processes_are_ended(self, context: ToolContext, level: Level) -> None:
        """At every level, processes that have left their session are ended, too."""
        context = at(context, level) if level != "L0" else context
        output = await sh(context, "(setsid sleep 62 >/dev/null 2>&1 &); echo done")
        assert output.text.startswith("done\n")
        assert "sleep 62" not in command_lines()
        for _ in range(5):
            assert (await sh(context, "true")).text == "[exit status 0]"


class TestLimits:
    """Resource limits of the processes of tools."""

    @pytest.mark.parametrize("level", LEVELS)
    async def test_resource_limits_are_enforced_and_reported(self, context: ToolContext, level: Level) -> None:
        """Memory, file size, descriptors and processor time are limited at every level."""
        limits = ToolLimits(cpu_seconds=50, memory_mb=200, file_mb=1, open_files=30)
        context = (
            at(context, level, limits=limits) if level != "L0" else replace(context, sandbox=SandboxSpec(limits=limits))
        )
        output = await python(context, "bytearray(400 << 20)")
        assert "MemoryError" in output
        output = (await sh(context, "head -c 3000000 /dev/zero > big; stat -c %s big; ulimit -n -t")).text
        assert "1048576" in output
        assert "(-n) 30" in output
        assert "-t) 50" in output

    async def test_cpu_time_limit_ends_an_endless_program(self, context: ToolContext) -> None:
        """The limit counts seconds of processor time, and a signal ends the program."""
        context = replace(context, sandbox=SandboxSpec(limits=ToolLimits(cpu_seconds=1)))
        output = await sh(context, "while :; do :; done")
        assert "signal" in output.text

    async def test_commands_have_the_highest_oom_score(self, context: ToolContext) -> None:
        """If memory is short, the kernel ends commands before the worker."""
        output = await sh(context, "sleep 0.1; cat /proc/self/oom_score_adj; ulimit -c")
        assert output.text.startswith("1000\n0\n")


async def test_unavailable_level_runs_nothing(context: ToolContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ToolError names the level and the reason."""
    monkeypatch.setattr("orch_worker.sandbox.seccomp.unavailable_reason", lambda: "no filter for this processor")
    monkeypatch.setattr("orch_worker.sandbox.bubblewrap.unavailable_reason", lambda: "")
    for level in CONFINED:
        confined = replace(context, sandbox=SandboxSpec(level))
        with pytest.raises(ToolError, match=f"sandbox level {level}, which is not available here: no filter for this"):
            await sh(confined, "touch made")
    assert not (context.cwd / "made").exists()


class TestShell:
    """The sandbox options of commands."""

    def test_required_but_missing_level_is_refused(self, shell: Shell, tmp_path: Path) -> None:
        """Without bubblewrap, a required L3 is an error for daemon and agent. An optional L3 is a warning."""
        if shutil.which("bwrap", path=PROGRAM_PATH):
            pytest.skip("bubblewrap is installed")
        folder = tmp_path / "bin"  # the PATH of the environment does not count
        folder.mkdir()
        (folder / "bwrap").write_text("#!/bin/sh\n")
        (folder / "bwrap").chmod(0o755)
        env = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
        refused = shell.run("daemon", "start", "--require-sandbox", "L3", code=1, **env).stderr
        assert b"level L3 is required, but this machine supports L" in refused
        assert b"no L3: bubblewrap (the program bwrap) is not installed" in refused
        shell.run("daemon", "status", code=3, **env)
        assert b"level L3 is required" in shell.run("spawn", "t", "--require-sandbox", "L3", code=1, **env).stderr
        less = shell.run("spawn", "t", "--sandbox", "L3", "--script", shell.script(), **env)
        assert b"level L3 is not available here (no L3: bubblewrap" in less.stderr
        assert shell.data("daemon", "status")["sandbox_required"] is False

    def test_agents_run_commands_at_the_configured_level(self, shell: Shell, tmp_path: Path) -> None:
        """The level also applies to the process that replaces a killed one."""
        if why := probe.available_levels().missing.get("L2"):
            pytest.skip(f"no L2 on this machine: {why}")
        (tmp_path / "secret").write_text("not to be seen")
        call = {"tool": "bash", "input": {"command": "cat ../secret && touch leaked; touch worked"}}
        script = shell.script(call, "one", call, "two")
        shell.run("spawn", "t", "--name", "a", "--require-sandbox", "L2", "--tools", "bash", "--script", script)
        for answer in (b"one\n", b"two\n"):
            assert shell.run("query", "a", "?", "--approve", "auto").stdout == answer
            assert sorted(path.name for path in shell.folder.iterdir()) == ["script.json", "worked"]
            (shell.folder / "worked").unlink()
            pid = shell.data("show", "a")["agent"]["pid"]
            os.kill(pid, 9)
            shell.until("a", "died")
        assert shell.data("show", "a")["agent"]["sandbox"] == "L2"


class TestTrial:
    """The probe of the machine's levels: a level that is not effective is missing."""

    @pytest.mark.parametrize(
        ("level", "broken", "instead", "why"),
        [
            ("L1", "orch_worker.sandbox.landlock.drop_capabilities", lambda: None, "the test process still has rights"),
            ("L2", "orch_worker.sandbox.landlock.restrict", lambda *_, **__: None, "a file elsewhere can be read"),
            ("L2", "orch_worker.sandbox.seccomp.apply_filter", lambda _: None, "a socket can be made"),
            (
                "L3",
                "orch_worker.sandbox.bubblewrap.bubblewrap_command",
                lambda *given: list(given[3]),
                "a file elsewhere can be seen",
            ),
            ("L3", "orch_worker.sandbox.bubblewrap.unavailable_reason", lambda: "no bwrap", "no bwrap"),
        ],
    )
    def test_probe_detects_each_ineffective_part(
        self, level: Level, broken: str, instead: object, why: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If one part has no effect, the probe reports its level as missing, with the reason."""
        if level in probe.available_levels().missing:
            pytest.skip(f"no {level} on this machine")
        monkeypatch.setattr(broken, instead)
        assert why in probe.available_levels.__wrapped__().missing[level]
