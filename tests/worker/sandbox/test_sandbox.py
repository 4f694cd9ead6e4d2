"""The sandbox, tested without processes: available levels, reachable paths and the filter of system calls."""

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
    """Return the error with which the filter answers `call`, or 0 if the filter allows the call."""
    here = seccomp.MACHINES[machine]
    number = call if isinstance(call, int) else seccomp.CALL_NUMBERS[call][here.column]
    data = struct.pack("=IIQ6Q", number, here.audit, 0, *(*arguments, *[0] * (6 - len(arguments))))
    return run(seccomp.build_filter(machine, sockets=sockets, network=network), data)


def run(code: bytes, data: bytes) -> int:
    """Run the filter `code` over `data`, as the kernel does, and return the error, or 0 if there is none."""
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
    """The filter that the kernel runs before each system call."""

    @pytest.mark.parametrize("machine", PROCESSORS)
    def test_filter_refuses_dangerous_system_calls(self, machine: str) -> None:
        """Each listed call is refused, except calls that the filter judges by their arguments."""
        for call in seccomp.CALL_NUMBERS.keys() - seccomp.CALLS_WITH_ARGUMENT_CHECKS:
            assert verdict(machine, call) == errno.EPERM, call
            assert verdict(machine, call, sockets=False) == errno.EPERM, call
        assert verdict(machine, "clone3") == errno.ENOSYS  # programs then use clone, whose flags the filter can check

    @pytest.mark.parametrize("machine", PROCESSORS)
    def test_filter_allows_common_system_calls(self, machine: str) -> None:
        """The filter allows reading, writing, threads, forks and socket pairs."""
        for number in (0, 1, 2, 3, 9, 60, 63, 64, 93, 231):
            assert verdict(machine, number) == 0
        for flags in (0x11, 0x4111, 0x3D0F00):  # fork, vfork, a thread
            assert verdict(machine, "clone", flags) == 0
        assert verdict(machine, "socketpair", 1, 1 | 0x80800) == 0

    @pytest.mark.parametrize("machine", PROCESSORS)
    def test_filter_refuses_new_namespaces(self, machine: str) -> None:
        """`clone` is refused with each flag that creates a namespace."""
        for bit in (17, 25, 26, 27, 28, 29, 30):
            assert verdict(machine, "clone", 1 << bit | 0x11) == errno.EPERM

    @pytest.mark.parametrize("machine", PROCESSORS)
    def test_filter_restricts_sockets_by_network_level(self, machine: str) -> None:
        """Without network all sockets are refused, and with network only internet and netlink sockets are allowed.

        A separate network namespace allows all families.
        """
        families = {"unix": 1, "internet": 2, "internet 6": 10, "netlink": 16, "packet": 17, "vsock": 40}
        for family in families.values():
            assert verdict(machine, "socket", family, 1) == errno.EACCES
            assert verdict(machine, "socket", family, 1, sockets=False) == 0
        allowed = {name for name, family in families.items() if not verdict(machine, "socket", family, 1, network=True)}
        assert allowed == {"internet", "internet 6", "netlink"}
        for kind, answer in ((1 | 0x80000, 0), (2 | 0x800, 0), (3, errno.EACCES), (5, errno.EACCES)):
            assert verdict(machine, "socket", 2, kind, network=True) == answer
        assert verdict(machine, "socketpair", 1, 2 | 0x80000) == errno.EACCES  # it can connect to any path

    def test_filter_refuses_foreign_system_call_tables(self) -> None:
        """System calls of another architecture and of the x32 ABI are refused."""
        data = struct.pack("=IIQ6Q", 41, 0x40000003, 0, *[0] * 6)  # 41 is another call in the 32-bit table
        assert run(seccomp.build_filter("x86_64", sockets=True, network=False), data) == errno.EPERM
        assert verdict("x86_64", 0x40000000 | 41) == errno.EPERM

    def test_unknown_architecture_has_no_filter(self) -> None:
        """For a processor without a known filter, the reason names the processor."""
        assert seccomp.unavailable_reason("riscv64") == "no filter of system calls is known for riscv64 processors"
        assert not seccomp.unavailable_reason("aarch64")


def fails(why: str) -> list[str]:
    """Raise the error of a level that is not available."""
    raise OSError(errno.EPERM, why)


class TestOffer:
    """The levels that a machine offers after the probes."""

    def test_fully_capable_machine_offers_every_level(self) -> None:
        """If no probe fails, the nearest available level is the requested level itself."""
        offer = probe.run_trials(dict.fromkeys(LEVELS[1:], list))
        assert offer == probe.AvailableLevels()
        assert [offer.nearest(level) for level in LEVELS] == list(LEVELS)
        assert probe.describe(offer) == "up to L3 (namespaces: files, network and processes of its own)"

    def test_failed_probe_states_its_reason(self) -> None:
        """The description gives the reason for a missing level and the limits of a partly effective level."""
        offer = probe.run_trials(
            {"L1": list, "L2": lambda: ["signals to others"], "L3": lambda: fails("no user namespaces")}
        )
        assert offer == probe.AvailableLevels({"L3": "no user namespaces"}, {"L2": ("signals to others",)})
        assert probe.describe(offer).endswith("leaves open: signals to others; no L3: no user namespaces")

    @pytest.mark.parametrize(
        ("missing", "wanted", "got"),
        [
            (("L3",), "L3", "L2"),
            (("L2",), "L2", "L3"),  # a stricter level rather than a weaker one
            (("L2", "L3"), "L2", "L1"),
            (("L1", "L2", "L3"), "L3", "L0"),
            (("L2", "L3"), "L0", "L0"),
        ],
    )
    def test_nearest_level_is_the_next_stricter_else_the_next_weaker(
        self, missing: tuple[Level, ...], wanted: Level, got: Level
    ) -> None:
        """A missing level is replaced by a weaker one only if no stricter one is available."""
        assert probe.AvailableLevels(dict.fromkeys(missing, "why")).nearest(wanted) == got

    def test_other_systems_than_linux_offer_the_first_level_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only L0 is available on macOS, and the description names the system."""
        monkeypatch.setattr("sys.platform", "darwin")
        offer = probe.available_levels.__wrapped__()
        assert (offer.highest, offer.missing.keys()) == ("L0", {"L1", "L2", "L3"})
        assert "darwin" in probe.describe(offer)

    def test_limits_of_older_landlock_versions_are_stated(self) -> None:
        """Versions 1 and 2 of Landlock have two gaps, versions 3 to 5 have one, and later versions have none."""
        assert [len(landlock.landlock_gaps(version)) for version in (1, 2, 3, 5, 6, 7)] == [2, 2, 1, 1, 0, 0]


class TestReach:
    """Paths that a sandboxed process can reach."""

    def test_reachable_paths_are_folder_home_and_configured_ones(self, tmp_path: Path) -> None:
        """Links, relative paths and `~` are resolved.

        The readable system paths contain neither `/` nor the user's home.
        """
        (tmp_path / "work").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "work")
        found = sandbox_paths(tmp_path / "link", tmp_path / "home", read=("../data", "~/notes"), write=("/srv/out",))
        assert found.write == (str(tmp_path / "work"), str(tmp_path / "home"), "/srv/out")
        assert found.read[-2:] == (str(tmp_path / "data"), str(Path("~/notes").expanduser()))
        assert "/" not in found.read
        assert not any(path.startswith(("/dev", "/tmp", str(Path.home()))) for path in found.read[:9])

    def test_orch_folders_are_hidden_inside_the_working_folder(self, tmp_path: Path) -> None:
        """Folders outside are not hidden, because a sandboxed process cannot reach them."""
        cwd, home = tmp_path / "work", tmp_path / "home"
        cwd.mkdir()
        assert sandbox_paths(cwd, home, hidden=(cwd / ".orch",)).hidden == (str(cwd / ".orch"),)
        assert sandbox_paths(cwd, home, hidden=(tmp_path / "elsewhere",)).hidden == ()
        assert sandbox_paths(cwd, home, hidden=(tmp_path,)).hidden == ()
        assert sandbox_paths(cwd, home, hidden=(cwd / ".orch" / "sessions", cwd / ".orch")).hidden == (
            str(cwd / ".orch"),
        )

    def test_namespace_shares_only_configured_paths(self) -> None:
        """Readable paths are bound read-only, and the network is shared only if it is enabled."""
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


def test_resource_limits_prefix_the_command() -> None:
    """Limits are converted to the units of `ulimit`, and a command without limits is unchanged."""
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
