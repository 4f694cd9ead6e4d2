"""What tools' processes cannot do, at each level that this machine has: they really try."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from integration.command_shell import Shell
from orch_protocol.policy.sandbox import LEVELS, Level, SandboxSpec, ToolLimits
from orch_worker.sandbox import probe
from orch_worker.tools.api.base import ToolContext, ToolError, ToolOutput
from orch_worker.tools.python.python import py_help, run_python, run_python_script
from orch_worker.tools.shell.git import git_log, git_status
from orch_worker.tools.shell.shell import bash, bg_kill, bg_status

CONFINED: tuple[Level, ...] = ("L2", "L3")


def at(context: ToolContext, level: Level, **more: object) -> ToolContext:
    """Return `context` with its tools at `level`; the test is skipped where the machine does not have it."""
    if why := probe.available_levels().missing.get(level):
        pytest.skip(f"no {level} on this machine: {why}")
    return replace(context, sandbox=SandboxSpec(level, **more))  # type: ignore[arg-type]


@pytest.fixture
def context(tmp_path: Path) -> Iterator[ToolContext]:
    """An agent in a folder of its own, beside which a secret lies."""
    (tmp_path / "cwd").mkdir()
    (tmp_path / "session").mkdir()
    (tmp_path / "secret").write_text("not to be seen")
    env = {"CENSUS": os.environ["CENSUS"], "HOME": str(tmp_path)}
    context = ToolContext(tmp_path / "cwd", env=env, folder=tmp_path / "session", seconds=30.0)
    yield context
    context.belongings.close()


async def sh(context: ToolContext, command: str) -> ToolOutput:
    """Run `command`."""
    return await bash.run(context, {"command": command})


async def python(context: ToolContext, code: str) -> str:
    """Return what the script `code` prints in a process of its own."""
    return (await run_python_script.run(context, {"code": code})).text


def capabilities() -> str:
    """Return what this process may do beyond others, as the kernel shows it."""
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
    """What is not below the agent's folder is out of reach, by whatever road."""

    @pytest.mark.parametrize("level", CONFINED)
    async def test_roads_out_of_the_folder_are_closed(self, context: ToolContext, level: Level) -> None:
        """Plain paths, `..`, links, hard links, links in the way of writing, /proc: no byte is read or written."""
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
        said = await python(context, code)
        assert "not to be seen" not in said, said
        assert said.count("refused") + said.count("DONE") == 16, said
        assert level == "L3" or "DONE" not in said, said  # in namespaces there is another folder of that name
        assert secret.read_text() == "not to be seen"
        assert not secret.with_name("made").exists()

    @pytest.mark.parametrize("level", CONFINED)
    async def test_depth_does_not_matter(self, context: ToolContext, level: Level) -> None:
        """What a command starts, in a session of its own and with a cleared environment, is kept from the same."""
        context = at(context, level)
        said = await sh(context, "setsid env -i /bin/sh -c '(cat ../secret && echo DONE) & wait'")
        assert "DONE" not in said.text

    @pytest.mark.parametrize("level", CONFINED)
    async def test_links_that_are_swapped_all_the_time_lead_nowhere(self, context: ToolContext, level: Level) -> None:
        """A folder that is by turns a link to the outside is raced for two thousand times: no write lands outside."""
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
    async def test_no_terminal_is_listened_to_or_written_on(self, context: ToolContext, level: Level) -> None:
        """Another program's terminal belongs to the same user: what is typed there is not the command's."""
        context = at(context, level)
        master, slave = os.openpty()
        try:
            name = os.ttyname(slave)
            said = await python(context, f"{TRIES}\ntries('terminal', lambda: open({name!r}, 'r+b', 0))")
        finally:
            os.close(master)
            os.close(slave)
        assert "terminal refused" in said

    @pytest.mark.parametrize("level", CONFINED)
    async def test_its_own_folder_and_home_are_there(
        self, context: ToolContext, level: Level, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It writes where it works, and into a home that is not the user's and stays from call to call."""
        context = at(context, level)
        monkeypatch.setenv("ORCH_HOME", "/of/the/user")
        assert context.folder is not None
        said = await sh(
            context, "echo a > made && cat made && echo b > ~/kept && mktemp && echo $HOME && ls /usr/bin/env"
        )
        assert not said.is_error, said.text
        assert (context.cwd / "made").read_text() == "a\n"
        assert str(context.folder / "scratch") in said.text.splitlines()
        assert (await sh(context, "cat ~/kept; echo ${ORCH_HOME-none}")).text.startswith("b\nnone\n")

    @pytest.mark.parametrize("level", CONFINED)
    async def test_what_the_user_names_can_be_reached(self, context: ToolContext, level: Level) -> None:
        """More to read, and more to write: exactly that."""
        folder = context.cwd.parent
        (folder / "more").mkdir()
        context = at(context, level, read=(str(folder / "secret"),), write=("../more",))
        said = await sh(context, "cat ../secret && echo x > ../more/made && echo y > ../secret")
        assert said.text.startswith("not to be seen")
        assert (folder / "more" / "made").read_text() == "x\n"
        assert (folder / "secret").read_text() == "not to be seen"
        assert said.is_error

    @pytest.mark.parametrize("level", CONFINED)
    async def test_a_repository_above_the_folder_is_read_by_git_tools_alone(
        self, context: ToolContext, level: Level
    ) -> None:
        """An agent that works in a part of a repository sees its history; its commands do not."""
        context = at(context, level)
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(context.cwd.parent)]
        (context.cwd / "file").write_text("1")
        for command in (["init", "-q"], ["add", "cwd"], ["commit", "-q", "-m", "first words"]):
            await asyncio.to_thread(subprocess.run, [*git, *command], check=True, timeout=30)
        assert "first words" in (await git_log.run(context, {})).text
        assert "##" in (await git_status.run(context, {})).text
        assert (await sh(context, "cat ../.git/HEAD")).is_error


class TestNetworkAndProcesses:
    """Neither other machines nor other processes can be reached."""

    @pytest.mark.parametrize("level", CONFINED)
    async def test_no_server_is_reached(self, context: ToolContext, level: Level, tmp_path: Path) -> None:
        """By TCP, by UDP, by a Unix socket, by an abstract one, by a pair turned to another's path."""
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
        said = await python(context, code)
        for server, act in ((tcp, "accept"), (path, "accept"), (abstract, "accept")):
            with pytest.raises(BlockingIOError):
                getattr(server, act)()
        for server in (udp, datagrams):
            with pytest.raises(BlockingIOError):
                server.recv(1)
        for server in (tcp, udp, path, abstract, datagrams):
            server.close()
        assert "RING" not in said
        assert all(f"{name} refused" in said for name in ("tcp", "path", "abstract", "pair")), said

    @pytest.mark.parametrize("level", CONFINED)
    async def test_the_network_can_be_let_through(self, context: ToolContext, level: Level, tmp_path: Path) -> None:
        """With `network` a server answers; a Unix socket elsewhere still does not."""
        context = at(context, level, network=True)
        with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
            unix.bind(str(tmp_path / "socket"))
            unix.listen()
            code = f"""{TRIES}
tries("tcp", lambda: socket.create_connection(("127.0.0.1", {tcp.getsockname()[1]}), 5))
tries("unix", lambda: socket.socket(socket.AF_UNIX).connect({str(tmp_path / "socket")!r}))
"""
            said = await python(context, code)
        assert "tcp DONE" in said
        assert "unix refused" in said

    @pytest.mark.parametrize("level", CONFINED)
    async def test_the_worker_is_neither_signalled_nor_looked_into(self, context: ToolContext, level: Level) -> None:
        """Not its environment, its memory, its descriptors; nor is it traced, stopped or killed."""
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
            said = await python(context, code)
            assert other.poll() is None
        assert "DONE" not in said, said

    @pytest.mark.parametrize("level", CONFINED)
    async def test_no_namespace_gives_rights_back(self, context: ToolContext, level: Level) -> None:
        """A program that makes itself the superuser of a world of its own would have them."""
        context = at(context, level)
        said = await sh(context, "unshare -Ur true && echo DONE; unshare -m true && echo DONE; true")
        assert "DONE" not in said.text

    async def test_at_the_highest_level_other_processes_are_not_there(self, context: ToolContext) -> None:
        """Its own are all that it sees, and they end with it, whatever they do."""
        context = at(context, "L3")
        said = await sh(context, "ls -d /proc/[0-9]* | wc -l; (setsid sleep 61 &); true")
        assert int(said.text.split()[0]) < 10

    @pytest.mark.parametrize("level", CONFINED)
    async def test_the_daemon_is_out_of_reach_also_where_orch_lies_below_the_folder(
        self, context: ToolContext, level: Level, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An agent in the user's home cannot ask orch for one with more rights; its own home is there all the same."""
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
            said = await python(context, code)
        assert "ask refused" in said
        assert (home / "sessions" / "a" / "scratch" / "own").read_text() == "x"

    async def test_what_orch_keeps_is_not_seen_wherever_its_sessions_are(self, context: ToolContext) -> None:
        """With a `session_dir` of their own neither they nor orch's home are there, for an agent that works above."""
        home, sessions = context.cwd / "orch", context.cwd / "talks"
        (home / "runs" / "daemon").mkdir(parents=True)
        (sessions / "b").mkdir(parents=True)
        (sessions / "b" / "session.jsonl").write_text("another's words")
        context = at(replace(context, folder=sessions / "a", orch_folders=(str(home),)), "L3")
        said = await sh(context, "find orch talks -mindepth 1 -name '[!.]*' | sort; echo x > ~/own")
        assert said.text.split()[0] == "talks/a"
        assert "runs" not in said.text
        assert "talks/b" not in said.text
        assert (sessions / "a" / "scratch" / "own").read_text() == "x\n"


class TestRights:
    """From L1 on, a program has no more rights than an ordinary one."""

    @pytest.mark.parametrize("level", LEVELS[1:])
    async def test_there_are_no_capabilities_and_none_to_gain(self, context: ToolContext, level: Level) -> None:
        """Also for the superuser's programs, and through programs that carry rights."""
        context = at(context, level)
        said = await sh(context, "grep -E 'Cap(Eff|Prm|Bnd|Amb)|NoNewPrivs' /proc/self/status")
        rows = dict(line.split() for line in said.text.splitlines()[:5])
        assert int(rows["CapEff:"], 16) == int(rows["CapPrm:"], 16) == int(rows["CapAmb:"], 16) == 0
        assert rows["NoNewPrivs:"] == "1"

    @pytest.mark.parametrize("level", LEVELS[1:])
    async def test_the_worker_itself_keeps_what_it_has(self, context: ToolContext, level: Level) -> None:
        """A thread gave it up, nobody else did: files, sockets and new processes are there as before."""
        before = capabilities()
        context = at(context, level)
        await sh(context, "true")
        assert capabilities() == before
        assert (context.cwd.parent / "secret").read_text() == "not to be seen"
        with socket.create_server(("127.0.0.1", 0)):
            pass
        assert await asyncio.to_thread(subprocess.check_output, ["cat", str(context.cwd.parent / "secret")])


class TestTools:
    """Every tool that starts a process does so at its level."""

    @pytest.mark.parametrize("level", CONFINED)
    async def test_jobs_in_the_background_too(self, context: ToolContext, level: Level) -> None:
        """A job cannot reach more than a command, goes on beside the calls, and ends when it is ended."""
        context = at(context, level)
        command = "cat ../secret; echo so far; sleep 60"
        started = await bash.run(context, {"command": command, "background": True})
        id = started.text.split()[1].rstrip(".")
        async with asyncio.timeout(20):
            while "so far" not in (said := (await bg_status.run(context, {"id": id, "wait": 0.01})).text):
                pass
        assert "not to be seen" not in said
        assert "ended" in (await bg_kill.run(context, {"id": id})).text

    @pytest.mark.parametrize("level", CONFINED)
    async def test_help_is_there_and_python_in_the_worker_is_not(self, context: ToolContext, level: Level) -> None:
        """Documentation comes from a process at its level; code in the worker itself cannot be held, and is refused."""
        context = at(context, level)
        assert "dump" in (await py_help.run(context, {"topic": "json.dumps"})).text
        assert run_python.missing(context) == "Tool 'run_python' is not available here."
        given = replace(context, sandbox=replace(context.sandbox, tools={"run_python": "L0"}))
        assert run_python.missing(given) == ""

    @pytest.mark.parametrize("level", CONFINED)
    async def test_a_tool_may_have_a_level_of_its_own(self, context: ToolContext, level: Level) -> None:
        """The others keep theirs."""
        context = at(context, level)
        context = replace(context, sandbox=replace(context.sandbox, tools={"bash": "L0"}))
        assert (await sh(context, "cat ../secret")).text.startswith("not to be seen")
        assert "not to be seen" not in await python(context, "print(open('../secret').read())")

    @pytest.mark.parametrize("level", CONFINED)
    async def test_a_command_that_fails_says_where_it_ran(self, context: ToolContext, level: Level) -> None:
        """A model that reads "permission denied" is told what it cannot reach."""
        context = at(context, level)
        assert f"[sandbox {level}: the network, other" in (await sh(context, "cat ../secret")).text
        assert "sandbox" not in (await sh(context, "true")).text

    @pytest.mark.parametrize("level", LEVELS)
    async def test_what_it_leaves_behind_is_ended(self, context: ToolContext, level: Level) -> None:
        """A process that left its session ends with the command, at any level; the census finds none."""
        context = at(context, level) if level != "L0" else context
        said = await sh(context, "(setsid sleep 62 >/dev/null 2>&1 &); echo done")
        assert said.text.startswith("done\n")
        for _ in range(5):
            assert (await sh(context, "true")).text == "[exit status 0]"


class TestLimits:
    """Limits hold for each process of a tool, at every level, and for no process of ours."""

    @pytest.mark.parametrize("level", LEVELS)
    async def test_memory_files_and_descriptors(self, context: ToolContext, level: Level) -> None:
        """What is over a limit fails there, and the tool says so."""
        limits = ToolLimits(cpu_seconds=50, memory_mb=200, file_mb=1, open_files=30)
        context = (
            at(context, level, limits=limits) if level != "L0" else replace(context, sandbox=SandboxSpec(limits=limits))
        )
        said = await python(context, "bytearray(400 << 20)")
        assert "MemoryError" in said
        said = (await sh(context, "head -c 3000000 /dev/zero > big; stat -c %s big; ulimit -n -t")).text
        assert "1048576" in said
        assert "(-n) 30" in said
        assert "-t) 50" in said

    async def test_a_program_of_no_end_is_ended_by_its_time(self, context: ToolContext) -> None:
        """Seconds of processor time, not of the clock."""
        context = replace(context, sandbox=SandboxSpec(limits=ToolLimits(cpu_seconds=1)))
        said = await sh(context, "while :; do :; done")
        assert "signal" in said.text

    async def test_when_memory_runs_out_a_tool_goes_first(self, context: ToolContext) -> None:
        """The system is told that a command weighs most."""
        said = await sh(context, "sleep 0.1; cat /proc/self/oom_score_adj; ulimit -c")
        assert said.text.startswith("1000\n0\n")


async def test_a_level_that_cannot_be_had_runs_nothing(context: ToolContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused, by name and with the reason, and nothing is run at less."""
    monkeypatch.setattr("orch_worker.sandbox.seccomp.unavailable_reason", lambda: "no filter for this processor")
    monkeypatch.setattr("orch_worker.sandbox.bubblewrap.unavailable_reason", lambda: "")
    for level in CONFINED:
        confined = replace(context, sandbox=SandboxSpec(level))
        with pytest.raises(ToolError, match=f"sandbox level {level}, which cannot be had here: no filter for this"):
            await sh(confined, "touch made")
    assert not (context.cwd / "made").exists()


class TestShell:
    """From the command line, as a user has it."""

    def test_what_is_required_and_not_there_is_refused(self, shell: Shell) -> None:
        """Without bubblewrap there is no L3: neither a daemon nor an agent starts that requires it; others do."""
        bare = os.pathsep.join(
            path for path in os.environ["PATH"].split(os.pathsep) if not Path(path, "bwrap").exists()
        )
        env = {"PATH": bare}
        refused = shell.run("daemon", "start", "--require-sandbox", "L3", code=1, **env).stderr
        assert b"level L3 is required, and this machine has L" in refused
        assert b"no L3: bubblewrap (the program bwrap) is not installed" in refused
        shell.run("daemon", "status", code=3, **env)
        assert b"level L3 is required" in shell.run("spawn", "t", "--require-sandbox", "L3", code=1, **env).stderr
        less = shell.run("spawn", "t", "--sandbox", "L3", "--script", shell.script(), **env)
        assert b"level L3 cannot be had here (no L3: bubblewrap" in less.stderr
        assert shell.data("daemon", "status")["sandbox_required"] is False

    def test_agents_work_at_the_level_that_was_asked_for(self, shell: Shell, tmp_path: Path) -> None:
        """What their commands see is what the level lets them see, also after the agent's process was ended."""
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
    """Finding out what the machine has: a level that does not hold is not there."""

    @pytest.mark.parametrize(
        ("level", "broken", "instead", "why"),
        [
            ("L1", "orch_worker.sandbox.landlock.give_up", lambda: None, "it still has rights"),
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
    def test_what_does_not_hold_is_found_out(
        self, level: Level, broken: str, instead: object, why: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each part is left out in turn, and its level is missing for that very reason; nothing is left behind."""
        if level in probe.available_levels().missing:
            pytest.skip(f"no {level} on this machine")
        monkeypatch.setattr(broken, instead)
        assert why in probe.available_levels.__wrapped__().missing[level]
