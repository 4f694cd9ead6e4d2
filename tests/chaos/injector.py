"""Makes each file operation of a scenario fail, one after the other, and checks the result: `injector.py`.

The scenario is that of `agent_life.py`. It begins with files that a crash left incomplete, so that repair is part of
the scenario. In each run, one operation fails: the process is killed before, after or during the operation, or the disk
fails once or forever. Then the scenario continues without a fault. `lost_work.py`, which shares no code with orch,
reports work that was lost or done twice.

`--way calls` makes calls of Python fail. With `--way strace`, the kernel makes system calls fail, including those of
SQLite. Each run is a fork. `--every K` selects every Kth point.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Final, NamedTuple

TESTS: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from chaos import agent_life  # noqa: E402
from chaos.lost_work import judge, rows  # noqa: E402

SECONDS: Final = 60.0
"""Seconds after which a run counts as stuck. The clock of the scenario does not wait, so a run needs little time."""
PR_SET_PTRACER: Final = 0x59616D61
FULL, BROKEN = str(errno.ENOSPC), str(errno.EIO)
DEATHS: Final = ("kill", "after")
KINDS: Final = {
    "write": (*DEATHS, "half", "part", FULL, BROKEN, f"{FULL}+"),
    "pwrite": (*DEATHS, "half", FULL, BROKEN),
    "open": ("kill", FULL, BROKEN),
    "mkdir": (*DEATHS, FULL),
    "fsync": ("kill", BROKEN, FULL),
    "fdatasync": ("kill", BROKEN, FULL, f"{BROKEN}+"),
    "replace": (*DEATHS, FULL, BROKEN),
    "rename": (*DEATHS, FULL, BROKEN),
    "unlink": (*DEATHS, BROKEN),
    "ftruncate": (*DEATHS, BROKEN),
}
"""The possible faults of each call of Python."""
CHANGES: Final = ("write", "pwrite64", "openat", "mkdir", "fsync", "fdatasync", "rename", "unlink", "ftruncate")
READS: Final = ("read", "pread64")
LOOKS: Final = (*READS, "close", "newfstatat", "lseek", "flock", "getdents64")
"""System calls that change nothing. The process is killed at them, or they return wrong results.
Other calls get every fault.
"""


class Point(NamedTuple):
    """One fault of one call."""

    call: str
    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.call} {self.number}: {self.kind}"


class Stage:
    """A folder in which the runs take place, each from the same initial state."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home, self.told = folder, folder / "home", folder / "told.jsonl"
        self.says = folder / "says"
        self.home.mkdir(mode=0o700, parents=True)
        (folder / "note.txt").write_text("The port is 4711.\n")
        ended(forked(lambda: agent_life.main(self.home, self.told, 0), self.says), 0, "the life that goes before")
        self._spoil()
        self.before = folder / "before"
        shutil.copytree(self.home, self.before)
        self.said = self.told.read_bytes()

    def _spoil(self) -> None:
        """Create the files that killed processes leave: incomplete lines, a half-written replacement, and a damaged
        index.
        """
        self.files = sorted(self.home.glob("*/*/*.jsonl"))
        for path in self.files:
            with path.open("ab") as file:
                file.write(b'{"type":"message","id":"tor')
            path.with_name(f"{path.name}.new").write_bytes(b"half of it")
        for path in self.home.glob("sessions/*/index.sqlite"):
            path.write_bytes(b"SQLite format 3\0 it is not")

    def paths(self) -> Iterator[Path]:
        """Yield every path that a run may use, as far as the paths are known in advance."""
        yield self.home / "runs"
        yield self.home / "sessions"
        for path in self.files:
            yield path.parent
            for name in (path.name, f"{path.name}.new", f"{path.name}.torn-1", f"{path.name}.torn-2", "lock"):
                yield path.with_name(name)
            if path.name == "session.jsonl":
                yield path.with_name("index.sqlite")
                yield path.with_name("index.sqlite-journal")

    def reset(self) -> None:
        """Restore the initial state."""
        shutil.rmtree(self.home)
        shutil.copytree(self.before, self.home)
        self.told.write_bytes(self.said)

    def last_words(self) -> str:
        """Return the last error message of the last run."""
        return (self.says.read_text(errors="replace").splitlines() or [""])[-1]

    def asked(self) -> int:
        """Return the number of questions so far, including a question without a received answer."""
        return sum("token" in row for row in rows(self.told))


def forked(work: Callable[[], int], says: Path | None = None) -> int:
    """Call `work` in a fork and return its process id. The fork writes errors to the file `says`."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        if says is not None:
            descriptor = os.open(says, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def waited(pid: int) -> int | None:
    """Return the exit code of a child, as in `subprocess`. If the child is stuck, kill it and return None."""
    deadline = time.monotonic() + SECONDS
    while True:
        there, status = os.waitpid(pid, os.WNOHANG)
        if there:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(0.002)


def ended(pid: int, code: int, what: str) -> None:
    """Assert that a child ends with `code`. Raises AssertionError."""
    found = waited(pid)
    assert found == code, f"{what} ended with {found}"


# Two ways to make a call fail.


class ByCalls:
    """Faults in the calls of Python, in a fork."""

    def points(self, stage: Stage) -> list[Point]:
        """Return all points of the scenario."""
        counts = stage.folder / "counts"

        def life() -> int:
            agent_life.fault = agent_life.Fault(stage.home)
            code = agent_life.main(stage.home, stage.told, stage.asked())
            agent_life.fault, seen = None, agent_life.fault.seen
            counts.write_text(json.dumps(seen))
            return code

        ended(forked(life, stage.says), 0, "the life that is counted")
        seen = json.loads(counts.read_text())
        return [
            Point(call, kind, number)
            for call, kinds in KINDS.items()
            for number in range(1, seen.get(call, 0) + 1)
            for kind in kinds
        ]

    def live(self, stage: Stage, point: Point) -> int | None:
        """Run the scenario with the fault `point`. Return the exit code."""

        def life() -> int:
            agent_life.fault = agent_life.Fault(stage.home, *point)
            return agent_life.main(stage.home, stage.told, stage.asked())

        return waited(forked(life, stage.says))


class ByStrace:
    """Faults in the system calls of the kernel. strace is attached to a fork before the fork starts the scenario."""

    def points(self, stage: Stage) -> list[Point]:
        """Return all points of the scenario."""
        log = stage.folder / "trace"
        code = self._strace(stage, log, ["-e", f"trace={','.join(CHANGES + LOOKS)}"])
        assert code == 0, f"the life that is counted ended with {code}"
        seen = Counter(line.split()[1].partition("(")[0] for line in log.read_text(errors="replace").splitlines())
        kinds = dict.fromkeys(CHANGES, ("signal=KILL", "error=ENOSPC", "error=EIO"))
        kinds |= dict.fromkeys(LOOKS, ("signal=KILL",)) | dict.fromkeys(READS, ("signal=KILL", "error=EIO"))
        return [
            Point(call, kind, number)
            for call in CHANGES + LOOKS
            for number in range(1, seen[call] + 1)
            for kind in kinds[call]
        ]

    def live(self, stage: Stage, point: Point) -> int | None:
        """Run the scenario with the fault `point`. Return the exit code."""
        rule = f"inject={point.call}:{point.kind}:when={point.number}"
        return self._strace(stage, Path(os.devnull), ["-e", f"trace={point.call}", "-e", rule])

    def _strace(self, stage: Stage, log: Path, rules: Sequence[str]) -> int | None:
        only = [word for path in stage.paths() for word in ("-P", str(path))]
        gate, held = os.pipe()

        def life() -> int:
            os.close(held)
            may_be_traced()
            os.read(gate, 1)
            return agent_life.main(stage.home, stage.told, stage.asked())

        pid = forked(life, stage.says)
        os.close(gate)
        try:
            tracer = attached(pid, ["-f", "-o", str(log), *only, *rules])
        finally:
            os.close(held)
        try:
            return waited(pid)
        finally:
            tracer.communicate(timeout=SECONDS)


def may_be_traced() -> None:
    """Allow every process of the user to trace this process.

    By default, only its parents may. Does nothing on other systems.
    """
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(-1))


def attached(pid: int, rules: Sequence[str]) -> subprocess.Popen[str]:
    """Return a strace process that is attached to the process `pid` from now on.

    Raises AssertionError if this is forbidden.
    """
    tracer = subprocess.Popen(
        ["strace", *rules, "-p", str(pid)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert tracer.stderr is not None
    errors = tracer.stderr.readline()
    assert errors.endswith("attached\n"), f"nothing can be traced here: {errors.strip()}"
    return tracer


def no_strace() -> str:
    """Return the reason why system calls cannot be made to fail, "" if they can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    gate, held = os.pipe()

    def life() -> int:
        os.close(held)
        may_be_traced()
        return len(os.read(gate, 1))

    pid, why = forked(life), ""
    os.close(gate)
    try:
        tracer = attached(pid, ["-f", "-o", os.devnull, "-e", "trace=write"])
    except AssertionError as error:
        why = str(error)
    os.close(held)
    waited(pid)
    if not why:
        tracer.communicate(timeout=SECONDS)
    return why


# The checks.


def tried(stage: Stage, way: ByCalls | ByStrace, point: Point) -> list[str]:
    """Run the scenario with the fault `point`, then without a fault. Return a sentence for each error."""
    stage.reset()
    code = way.live(stage, point)
    if code not in (0, agent_life.GAVE_UP, -signal.SIGKILL, 128 + signal.SIGKILL):
        return [f"{point}: {'it hangs' if code is None else f'it ends with {code}'}: {stage.last_words()}"]
    code = waited(forked(lambda: agent_life.main(stage.home, stage.told, stage.asked(), again=True), stage.says))
    wrong = [] if code == 0 else [f"{point}: what follows ends with {code}: {stage.last_words()}"]
    return wrong + [f"{point}: {each}" for each in judge(stage.home, stage.told)]


class Choice(NamedTuple):
    """The selection of points.

    It contains every `every`th point whose name matches `only`. No point is tried after `seconds`.
    """

    every: int = 1
    only: str = "*"
    seconds: float = 3600.0

    def of(self, points: list[Point]) -> list[Point]:
        """Return the selected points."""
        return [point for point in points if fnmatch(str(point), self.only)][:: self.every]


def share(folder: Path, way: ByCalls | ByStrace, part: int, points: Sequence[Point], seconds: float) -> int:
    """Try a part of the points. Errors are written to a file."""
    end = time.monotonic() + seconds
    stage = Stage(folder / f"stage{part}")
    wrong: list[str] = []
    done = 0
    for point in points:
        if time.monotonic() > end:
            break
        wrong += tried(stage, way, point)
        done += 1
    (folder / f"found{part}").write_text(json.dumps({"done": done, "wrong": wrong}))
    return 0


def run(folder: Path, way: ByCalls | ByStrace, choice: Choice, jobs: int) -> tuple[int, int, list[str]]:
    """Try the points in parallel. Return the number of points, the number of tried points, and the errors."""
    points = choice.of(way.points(Stage(folder / "stage")))
    random.Random(1).shuffle(points)  # with a time limit, the tried points are then of all kinds
    pids = [
        forked(lambda part=part: share(folder, way, part, points[part::jobs], choice.seconds)) for part in range(jobs)
    ]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    found = [json.loads(path.read_text()) for path in folder.glob("found*")]
    wrong = [each for part in found for each in part["wrong"]]
    wrong += [f"a part of it ended with {code}" for code in codes if code]
    return len(points), sum(part["done"] for part in found), wrong


def main() -> int:
    """Run the faults and print the result. The files of runs with errors are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", choices=["calls", "strace"], default="calls")
    parser.add_argument("--every", type=int, default=1, help="each Kth point alone")
    parser.add_argument("--only", default="*", help="the points whose names fit this, such as 'write 1?: part'")
    parser.add_argument("--seconds", type=float, default=3600.0, help="no longer, however many points that are")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    if arguments.way == "strace" and (reason := no_strace()):
        print(f"skipped: {reason}")
        return 0
    agent_life.watch()
    for name in ("orch.api.orchestrator", "orch.testing"):
        importlib.import_module(name)  # each fork then has the module

    folder = Path(tempfile.mkdtemp(prefix="orch-faults-"))
    way = ByCalls() if arguments.way == "calls" else ByStrace()
    began = time.monotonic()
    choice = Choice(arguments.every, arguments.only, arguments.seconds)
    points, done, wrong = run(folder, way, choice, arguments.jobs)
    print(f"{arguments.way}: {done} of {points} points in {time.monotonic() - began:.0f} s, {len(wrong)} went wrong")
    if wrong:
        print("\n".join(wrong))
    if wrong or not done:
        print(f"see {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
