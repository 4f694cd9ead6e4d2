"""Millions of hostile inputs: `hostile.py --frames N --streams N --transcripts N --configs N`. A seed determines the
inputs.

Frames are changed frames of an authenticated worker. Streams are bytes of strangers on the root's socket. Transcripts
are damaged lines with valid and invalid checksums. Configurations are values from files and variables. Each result must
be data or an error of orch. No other exception may occur, no input may take more than a minute, and the memory must
stay below a bound. Each kind runs in its own process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

TESTS: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

import msgspec  # noqa: E402

from agent_history import PROFILES, Life  # noqa: E402
from damaged_lines import spoilt  # noqa: E402
from hostile_frames import KINDS, mutated, some_body  # noqa: E402
from orch.archival.store.session_archives import SessionArchives  # noqa: E402
from orch.config.config import flatten, load  # noqa: E402
from orch.processes.router import ConnectionTable, Router  # noqa: E402
from orch.sessions.findings import check_session_file  # noqa: E402
from orch_protocol.agent.config import Config  # noqa: E402
from orch_protocol.core.errors import ConfigError, ErrorInfo, OrchError, ProtocolError  # noqa: E402
from orch_protocol.core.messages import assistant  # noqa: E402
from orch_protocol.wire.frames import VERSION, Frame, FrameChannel  # noqa: E402
from orch_protocol.wire.worker_messages import BODIES, Hello, Ready  # noqa: E402
from orch_worker.session.log.append_log import AppendLog  # noqa: E402
from orch_worker.session.log.record_format import seal_lines, unseal_line  # noqa: E402
from orch_worker.session.session_reader import read_last_turn, read_session, read_usage  # noqa: E402
from orch_worker.session.transcript import Transcript  # noqa: E402

HANGS: Final = 60.0
MAX_MIB: Final = 50
COUNTS: Final = {"frames": 1_000_000, "streams": 10_000, "transcripts": 100_000, "configs": 10_000}
BATCH: Final = 100
Attempt = Callable[[random.Random], str]
"""A function that tries one hostile input and returns a description of the result."""


# Frames.


@contextlib.contextmanager
def frames(folder: Path) -> Iterator[Attempt]:
    """Changed frames of an authenticated worker to the root, and of the root to a worker."""
    delivered: list[tuple[str, Any]] = []
    table = ConnectionTable(folder, lambda *_: None, lambda _peer, kind, _id, body: delivered.append((kind, body)))
    peer = table.expect("a", 1, b"i", b"t" * 32)
    table.confirm(peer, 1)
    worker = FrameChannel(1, folder)
    table.accept(b"i", worker.encode("hello", Hello(b"t" * 32, VERSION, 1)), 1)
    luck = random.Random(1)
    plain = [worker.encode(kind, some_body(kind, luck, ["a", "q"]), "q") for kind in KINDS for _ in range(5)]
    named = [b"x", b"..", b"\0", b"a/b", b"\xff", b"x" * 300]
    spilled = [
        msgspec.msgpack.encode(
            Frame("root_call", "q", 1, 0, 0, True, msgspec.Raw(msgspec.msgpack.encode([name.decode("latin1"), 4, ""])))
        )
        for name in named
    ]
    some = plain + spilled
    depth = b"\x97\xa5ready\xa1q\x01\x00\x00\xc2" + b"\x91" * 5000
    lies = [
        b"\x97\xa5ready\xa1q\x01\x00\x00\xc2" + head + b"\xff\xff\xff\xff"
        for head in (b"\xdd", b"\xdf", b"\xdb", b"\xc6")
    ]
    far = FrameChannel(1, folder)

    def attempt(luck: random.Random) -> str:
        chance = luck.random()
        data = depth if chance < 0.001 else luck.choice(lies) if chance < 0.002 else mutated(luck.choice(some), luck)
        before = len(delivered)
        table.accept(b"i", data, 1)
        with contextlib.suppress(ProtocolError):
            far.decode(data)
        for kind, body in delivered[before:]:
            assert isinstance(body, (BODIES[kind], ErrorInfo)), f"a {kind} is a {type(body).__name__}"
        found = "delivered" if len(delivered) > before else "dropped"
        delivered.clear()
        return found

    yield attempt
    table.forget(peer)


# Streams.

GREETING: Final = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\x00" + bytes(31)
READY: Final = b"\x04\x26\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"


async def streams(folder: Path, count: int, seed: int) -> tuple[Counter[str], float]:
    """Let strangers connect, send changed greetings, commands and frames, and disconnect. A worker stays connected."""
    import zmq

    heard: list[str] = []
    router = Router(folder / "r.sock", folder, lambda _peer, kind, _id, _body: heard.append(kind))
    peer = router.peers.expect("a", 1, b"worker", b"t" * 32)
    router.peers.confirm(peer, os.getpid())
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    line: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    line.setsockopt(zmq.IDENTITY, b"worker")
    line.setsockopt(zmq.LINGER, 0)
    line.connect(router.address)
    worker, luck, found = FrameChannel(1, folder), random.Random(seed), 0
    line.send(worker.encode("hello", Hello(b"t" * 32, VERSION, os.getpid())))
    bounded = Bounds()
    try:
        for number in range(count):
            message = luck.randbytes(luck.randrange(200))
            frame = luck.choice([b"\x00", b"\x01", b"\x02", b"\x04"]) + bytes([len(message)]) + message
            whole = GREETING + READY + frame * luck.randrange(1, 50)
            stranger(router.address, mutated(whole, luck) if luck.random() < 0.8 else whole)
            if number % BATCH == BATCH - 1:
                bounded.check()
                found += 1
                line.send(worker.encode("ready", Ready(), now=0.0))
                async with asyncio.timeout(HANGS):
                    while heard.count("ready") < found:  # noqa: ASYNC110  # yields; there is no event to wait for
                        await asyncio.sleep(0)
        assert set(heard) == {"hello", "ready"}, f"a stranger was believed: {set(heard)}"
        return Counter(strangers=count, heard=found), bounded.grown
    finally:
        faulthandler.cancel_dump_traceback_later()
        line.close()
        context.term()
        router.peers.forget(peer)
        router.close()


def stranger(address: str, data: bytes) -> None:
    """Connect to `address` and send `data` until the other side refuses it."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(address.removeprefix("ipc://"))
        line.setblocking(False)
        with contextlib.suppress(OSError):  # the other side closed the connection or accepts no more data
            line.send(data)


# Transcripts.

WORDS: Final = (
    *(
        b"null",
        b"-1",
        b"1e999",
        b"9" * 400,
        b'"\\ud800"',
        b'"\\u0000"',
        b"[]",
        b"{}",
        b"true",
        b'""',
        b'"' + b"x" * 9999 + b'"',
    ),
    *(b"[" * 3000 + b"]" * 3000, b'{"a":' * 2000 + b"1" + b"}" * 2000, b"0.1", b'"9999-99-99T99:99:99Z"'),
)


def hostile_values(data: bytes, luck: random.Random) -> bytes:
    """Return the lines of a file with some values replaced and valid checksums."""
    lines = data.splitlines()
    for _ in range(luck.randint(1, 5)):
        at = luck.randrange(1, len(lines))
        sealed = unseal_line(lines[at])
        if sealed is None:
            continue
        parts = sealed.object.split(b":")
        place = luck.randrange(1, len(parts))
        value, comma, rest = parts[place].partition(b",")
        parts[place] = luck.choice(WORDS) + (comma + rest if comma else b"}" * value.count(b"}"))
        lines[at] = seal_lines([b":".join(parts)], at, 0)[0][:-1]
    objects = [sealed.object if (sealed := unseal_line(line)) else line for line in lines]
    return seal_lines(objects, 0, 0)[0]


@contextlib.contextmanager
def transcripts(folder: Path) -> Iterator[Attempt]:
    """Damaged transcripts. All readers read them, and some transcripts are continued."""
    AppendLog._fdatasync = staticmethod(lambda _: None)
    life = Life(folder / "before", PROFILES["tight"])
    for turn in range(1, 4):
        life.work(turn, 3)
    life.close()
    data = (folder / "before" / "session.jsonl").read_bytes()
    agent = folder / "agent"
    path = agent / "session.jsonl"

    def attempt(luck: random.Random) -> str:
        shutil.rmtree(agent, ignore_errors=True)
        agent.mkdir()
        chance = luck.random()
        if chance < 0.4:
            path.write_bytes(spoilt(data, luck.randrange(1 << 40)))
        elif chance < 0.8:
            path.write_bytes(hostile_values(data, luck))
        else:
            path.write_bytes(mutated(data, luck) + data[4096:])
        try:
            read_session(agent), read_last_turn(agent), read_usage(agent, "q1")
            ledger = SessionArchives(agent)
            ledger.catch_up()
            for id in list(ledger.records):
                with contextlib.suppress(OrchError):
                    ledger.read(id)
        except OrchError:
            return "refused"
        finally:
            for _ in check_session_file(path):
                pass
        if luck.random() < 0.1:
            try:
                transcript = Transcript.open(agent, agent="agent", cwd="/")
            except OrchError:
                return "refused"
            with contextlib.suppress(OrchError):
                transcript.message(assistant("more"), "q9")
            transcript.close()
            return "gone on with"
        return "read"

    yield attempt


# Configurations.

VALUES: Final = (
    *("nan", "inf", "-inf", "-1", "0", "1e400", "9" * 5000, "true", '""', "[]", "{}", "[" * 2000, "[[]]", "1979-05-27"),
    *(
        '"\\u0000"',
        '"\\uD800"',
        '"' + "x" * 5000 + '"',
        "'''",
        '["a", 1]',
        "{a = {b = {}}}",
        '["*"]',
        '"no:such"',
        "07:32:00",
    ),
    *('"local"', '"extractive:"', '"anthropic:*"', '"../../x"', '"a.b:c"', "0x7fffffffffffffffff", '"ask"', '["bash"]'),
)


@contextlib.contextmanager
def configs(folder: Path) -> Iterator[Attempt]:
    """Values from the user's file, a project's file and variables.

    The result is a configuration, or an error with a message.
    """
    home, project = folder / "home", folder / "project"
    for each in (home, project / ".orch"):
        each.mkdir(parents=True)
    keys = list(flatten(Config()))

    def setting(luck: random.Random) -> str:
        key = luck.choice(keys)
        if luck.random() < 0.1:
            key = luck.choice(
                [key.upper(), f"{key}.x", key.rpartition(".")[0] or "x", f'"{key}"', "policy.permissions.bash"]
            )
        return f"{key} = {luck.choice(VALUES)}"

    def text(luck: random.Random) -> bytes:
        if luck.random() < 0.3:
            # Use only valid keys, so that contradictions are reached.
            return b""
        written = "\n".join(setting(luck) for _ in range(luck.choice([1, 1, 1, 2, 4]))).encode()
        return mutated(written, luck) if luck.random() < 0.3 else written

    def attempt(luck: random.Random) -> str:
        (home / "config.toml").write_bytes(text(luck))
        (project / ".orch" / "config.toml").write_bytes(text(luck))
        env = {"ORCH_HOME": str(home)}
        if luck.random() < 0.3:
            key = luck.choice(keys).upper().replace(".", "__")
            env[f"ORCH_{key}"] = luck.choice(VALUES).strip('"').replace("\0", "")
        try:
            loaded = load(project, env, home=home)
        except ConfigError as error:
            return "refused" if str(error) else "refused without a word"
        return "loaded" if isinstance(loaded.config, Config) else "loaded something else"

    yield attempt


# All kinds.


class Bounds:
    """A limit of the memory growth from now on, and a limit of the time until the next check."""

    def __init__(self) -> None:
        self._before, self.grown = resident(), 0.0
        """The largest growth of memory at a check, in MiB."""
        self.check()

    def __enter__(self) -> Bounds:
        return self

    def __exit__(self, *_: object) -> None:
        faulthandler.cancel_dump_traceback_later()

    def check(self) -> None:
        """Raise AssertionError if the memory grew too much. If a minute passes without a call, the process ends."""
        faulthandler.dump_traceback_later(HANGS, exit=True)
        self.grown = max(self.grown, (resident() - self._before) / (1 << 20))
        assert self.grown < MAX_MIB, f"memory grew by {self.grown:.0f} MiB"


def resident() -> int:
    """Return the resident memory in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def again_and_again(attempt: Attempt, count: int, seed: int) -> tuple[Counter[str], float]:
    """Try `count` inputs. Return the results, and the growth of memory in MiB after the first inputs."""
    outcomes = Counter[str]()

    def some(numbers: range) -> None:
        for number in numbers:
            try:
                outcomes[attempt(random.Random(f"{seed} {number}"))] += 1
            except BaseException as error:
                error.add_note(f"at number {number} of seed {seed}")
                raise

    some(range(min(BATCH, count)))
    with Bounds() as bounds:
        for first in range(BATCH, count, BATCH):
            some(range(first, min(first + BATCH, count)))
            bounds.check()
    return outcomes, bounds.grown


async def on_a_loop(folder: Path, count: int, seed: int) -> tuple[Counter[str], float]:
    """Try frames on an event loop, because acknowledgements need a loop."""
    with frames(folder) as attempt:
        return again_and_again(attempt, count, seed)


def tried(kind: str, folder: Path, count: int, seed: int) -> tuple[Counter[str], float]:
    """Try one kind of input. Return the results and the growth of memory in MiB."""
    if kind == "frames":
        return asyncio.run(on_a_loop(folder, count, seed))
    if kind == "streams":
        return asyncio.run(streams(folder, count, seed))
    with transcripts(folder) if kind == "transcripts" else configs(folder) as attempt:
        return again_and_again(attempt, count, seed)


def share(kind: str, count: int, seed: int) -> int:
    """Try one kind of input and print the result. Return the exit code."""
    folder, began = Path(tempfile.mkdtemp(prefix="orch-hostile-")), time.monotonic()
    try:
        outcomes, grown = tried(kind, folder, count, seed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    took = time.monotonic() - began
    print(f"{count} {kind} in {took:.0f} s: {json.dumps(outcomes)}, memory +{grown:.0f} MiB", flush=True)
    return 0


def main() -> int:
    """Try each kind in its own process, all in parallel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for kind, count in COUNTS.items():
        parser.add_argument(f"--{kind}", type=int, default=count)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--alone", choices=COUNTS, help="this kind alone, in this process")
    arguments = parser.parse_args()
    if arguments.alone:
        return share(arguments.alone, getattr(arguments, arguments.alone), arguments.seed)
    processes = {
        kind: subprocess.Popen(
            [
                sys.executable,
                __file__,
                "--alone",
                kind,
                f"--{kind}={getattr(arguments, kind)}",
                f"--seed={arguments.seed}",
            ],
            stdin=subprocess.DEVNULL,
        )
        for kind in COUNTS
        if getattr(arguments, kind)
    }
    failed = [kind for kind, process in processes.items() if process.wait()]
    print(f"seed {arguments.seed}: " + (f"{', '.join(failed)} did harm" if failed else "no harm was done"))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
