"""What tools' processes are kept from: what is tried, what comes of it, and the filter of system calls, without one."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest

from orch_protocol.policy.sandbox import LEVELS, Level, ToolLimits
from orch_worker.sandbox import bubblewrap, landlock, probe, seccomp
from orch_worker.sandbox.bubblewrap import SandboxPaths, sandbox_paths
from orch_worker.tools.shell.sandboxed_exec import limit_command

PROCESSORS = ("x86_64", "aarch64")


def verdict(machine: str, call: str | int, *arguments: int, sockets: bool = True, network: bool = False) -> int:
    """Return with which error the filter answers `call`, 0 when it lets it through: as the kernel would run it."""
    here = seccomp.MACHINES[machine]
    number = call if isinstance(call, int) else seccomp.CALLS[call][here.column]
    data = struct.pack("=IIQ6Q", number, here.audit, 0, *(*arguments, *[0] * (6 - len(arguments))))
    return run(seccomp.build_filter(machine, sockets=sockets, network=network), data)


def run(code: bytes, data: bytes) -> int:
    """Run the filter `code` over `data` and return the error it answers with, 0 for none."""
    steps = list(struct.iter_unpack("=HBBI", code))
    value, at = 0, 0
    while True:
        kind, yes, no, operand = steps[at]
        at += 1
        if kind == seccomp.LOAD:
            value = int.from_bytes(data[operand : operand + 4], "little")
        elif kind == seccomp.AND:
            value &= operand
        elif kind == seccomp.RETURN:
            return 0 if operand == seccomp.ALLOW else operand & 0xFFFF
        else:
            test = {seccomp.EQUAL: value == operand, seccomp.AT_LEAST: value >= operand}
            at += yes if test.get(kind, bool(value & operand)) else no


class TestFilter:
    """The program that the kernel runs before each system call."""

    @pytest.mark.parametrize("machine", PROCESSORS)
    def test_what_opens_a_door_is_refused(self, machine: str) -> None:
        """Each call of the list, but those whose arguments decide."""
        for call in seccomp.CALLS.keys() - seccomp.SPECIAL:
            assert verdict(machine, call) == errno.EPERM, call
            assert verdict(machine, call, sockets=False) == errno.EPERM, call
        assert verdict(machine, "clone3") == errno.ENOSYS  # programs then ask in a way that can be looked at

    @pytest.mark.parametrize("machine", PROCESSORS)
    def test_what_every_program_needs_goes_through(self, machine: str) -> None:
        """Reading, writing, threads, forks, pairs of sockets."""
        for number in (0, 1, 2, 3, 9, 60, 63, 64, 93, 231):
            assert verdict(machine, number) == 0
        for flags in (0x11, 0x4111, 0x3D0F00):  # fork, vfork, a thread
            assert verdict(machine, "clone", flags) == 0
        assert verdict(machine, "socketpair", 1, 1 | 0x80800) == 0

    @pytest.mark.parametrize("machine", PROCESSORS)
    def test_no_process_in_a_world_of_its_own(self, machine: str) -> None:
        """Any of the flags that make a namespace, beside others."""
        for bit in (17, 25, 26, 27, 28, 29, 30):
            assert verdict(machine, "clone", 1 << bit | 0x11) == errno.EPERM

    @pytest.mark.parametrize("machine", PROCESSORS)
    def test_sockets(self, machine: str) -> None:
        """None; with the network those of the internet that are not raw; all where there is a network of its own."""
        families = {"unix": 1, "internet": 2, "internet 6": 10, "netlink": 16, "packet": 17, "vsock": 40}
        for family in families.values():
            assert verdict(machine, "socket", family, 1) == errno.EACCES
            assert verdict(machine, "socket", family, 1, sockets=False) == 0
        allowed = {name for name, family in families.items() if not verdict(machine, "socket", family, 1, network=True)}
        assert allowed == {"internet", "internet 6", "netlink"}
        for kind, answer in ((1 | 0x80000, 0), (2 | 0x800, 0), (3, errno.EACCES), (5, errno.EACCES)):
            assert verdict(machine, "socket", 2, kind, network=True) == answer
        assert verdict(machine, "socketpair", 1, 2 | 0x80000) == errno.EACCES  # could be turned to any path

    def test_another_table_of_calls_is_no_way_around(self) -> None:
        """Neither that of another processor, nor the second one of this."""
        data = struct.pack("=IIQ6Q", 41, 0x40000003, 0, *[0] * 6)  # 32 bits: there, 41 is something else
        assert run(seccomp.build_filter("x86_64", sockets=True, network=False), data) == errno.EPERM
        assert verdict("x86_64", 0x40000000 | 41) == errno.EPERM

    def test_a_processor_that_is_not_known_is_named(self) -> None:
        """There is no filter then, and no level that needs one."""
        assert seccomp.unavailable_reason("riscv64") == "no filter of system calls is known for riscv64 processors"
        assert not seccomp.unavailable_reason("aarch64")


def fails(why: str) -> list[str]:
    """A level that cannot be had."""
    raise OSError(errno.EPERM, why)


class TestOffer:
    """What comes of trying."""

    def test_a_machine_that_has_it_all(self) -> None:
        """Nothing is missing, and each level is met by itself."""
        offer = probe.run_trials(dict.fromkeys(LEVELS[1:], list))
        assert offer == probe.AvailableLevels()
        assert [offer.nearest(level) for level in LEVELS] == list(LEVELS)
        assert probe.describe(offer) == "up to L3 (namespaces: files, network and processes of its own)"

    def test_what_failed_is_told_in_its_own_words(self) -> None:
        """A level that fails is missing for the reason that it gave; what holds, but not wholly, says what it lets."""
        offer = probe.run_trials(
            {"L1": list, "L2": lambda: ["signals to others"], "L3": lambda: fails("no user namespaces")}
        )
        assert offer == probe.AvailableLevels({"L3": "no user namespaces"}, {"L2": ("signals to others",)})
        assert probe.describe(offer).endswith("leaves open: signals to others; no L3: no user namespaces")

    @pytest.mark.parametrize(
        ("missing", "wanted", "got"),
        [
            (("L3",), "L3", "L2"),
            (("L2",), "L2", "L3"),  # more than was asked for, rather than less
            (("L2", "L3"), "L2", "L1"),
            (("L1", "L2", "L3"), "L3", "L0"),
            (("L2", "L3"), "L0", "L0"),
        ],
    )
    def test_the_nearest_level(self, missing: tuple[Level, ...], wanted: Level, got: Level) -> None:
        """One that is not less, if there is one; else the next below."""
        assert probe.AvailableLevels(dict.fromkeys(missing, "why")).nearest(wanted) == got

    def test_nothing_but_linux_has_more_than_the_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Elsewhere it is said why, and nothing is tried."""
        monkeypatch.setattr("sys.platform", "darwin")
        offer = probe.available_levels.__wrapped__()
        assert (offer.highest, offer.missing.keys()) == ("L0", {"L1", "L2", "L3"})
        assert "darwin" in probe.describe(offer)

    def test_what_an_older_kernel_lets_through_is_told(self) -> None:
        """Landlock learnt in steps."""
        assert [len(landlock.landlock_gaps(version)) for version in (1, 2, 3, 5, 6, 7)] == [2, 2, 1, 1, 0, 0]


class TestReach:
    """Which paths a confined process may touch."""

    def test_its_folder_its_home_and_what_was_named(self, tmp_path: Path) -> None:
        """Paths of the user may begin with his home, or be relative to the folder; links are what they lead to."""
        (tmp_path / "work").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "work")
        found = sandbox_paths(tmp_path / "link", tmp_path / "home", read=("../data", "~/notes"), write=("/srv/out",))
        assert found.write == (str(tmp_path / "work"), str(tmp_path / "home"), "/srv/out")
        assert found.read[-2:] == (str(tmp_path / "data"), str(Path("~/notes").expanduser()))
        assert "/" not in found.read
        assert not any(path.startswith(("/dev", "/tmp", str(Path.home()))) for path in found.read[:9])

    def test_what_orch_keeps_is_hidden_where_it_could_be_seen(self, tmp_path: Path) -> None:
        """Below the folder of work it is; elsewhere nobody sees it; around that folder it cannot be."""
        cwd, home = tmp_path / "work", tmp_path / "home"
        cwd.mkdir()
        assert sandbox_paths(cwd, home, hidden=(cwd / ".orch",)).hidden == (str(cwd / ".orch"),)
        assert sandbox_paths(cwd, home, hidden=(tmp_path / "elsewhere",)).hidden == ()
        assert sandbox_paths(cwd, home, hidden=(tmp_path,)).hidden == ()
        assert sandbox_paths(cwd, home, hidden=(cwd / ".orch" / "sessions", cwd / ".orch")).hidden == (
            str(cwd / ".orch"),
        )

    def test_a_world_of_its_own(self) -> None:
        """Nothing is shared but what is named; what may be read is bound so; the network only when it is let in."""
        shut = SandboxPaths(("/usr",), ("/desk", "/own"), "/own", network=False)
        words = bubblewrap.bubblewrap_command(shut, "/desk", 9, ["sh", "-c", "true"])
        assert words[-6:] == ["--chdir", "/desk", "--", "sh", "-c", "true"]
        assert {"--unshare-all", "--die-with-parent"} < set(words)
        assert "--share-net" not in words
        text = " ".join(words)
        assert "--ro-bind-try /usr /usr --bind-try /desk /desk --bind /own /own --remount-ro /" in text
        hiding = " ".join(bubblewrap.bubblewrap_command(shut._replace(hidden=("/desk/.orch",)), "/desk", 9, ["true"]))
        assert "--bind-try /desk /desk --tmpfs /desk/.orch --bind /own /own" in hiding
        assert "--share-net" in bubblewrap.bubblewrap_command(shut._replace(network=True), "/desk", 9, ["true"])


def test_limits_are_put_before_a_program() -> None:
    """In the units of the shell; a program without limits is run as it is."""
    assert limit_command(["ls", "a b"], ToolLimits()) == ["ls", "a b"]
    asked = ToolLimits(cpu_seconds=5, memory_mb=2, file_mb=3, open_files=64, processes=100)
    assert limit_command(["ls", "a b"], asked) == [
        *("/bin/sh", "-c"),
        (
            "ulimit -t 5 && ulimit -d 2048 && ulimit -f 6144 && ulimit -n 64 && "
            '{ ulimit -u 100 2>/dev/null || ulimit -p 100; } && exec "$@"'
        ),
        *("sh", "ls", "a b"),
    ]
