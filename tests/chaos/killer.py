"""Kills processes of a working daemon at random while clients send queries: `killer.py --kills N --seed S --seconds T`.

The killed processes are workers, holders, zygotes, the shim, the daemon and commands of the shell. Clients record the
answers that they received, and `lost_work.py` compares them with the files afterwards. A kill counts only when a client
was answered after it, so that a standstill is found too. This program imports no code of orch, because it tests the
behavior of processes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from chaos.lost_work import judge
from source_tree import PACKAGES, ROOT

MAIN = "import sys; from orch.cli import main; sys.exit(main())"
CONFIG = """
[archival]
enabled = true
profile = "seed"
[archival.trigger]
tool_call_threshold = 1
"""
ROLES = {"worker": 8, "holder": 4, "daemon": 3, "command": 3, "zygote": 2, "shim": 1}
"""How often each role is selected, if there is a process with this role."""
RESTARTS = 3
"""If a zygote or shim ends more often in a minute, it is intentionally not restarted for the rest of the minute."""
EXPECTED = {"AgentDiedError", "LaunchError"}
"""The errors with which a query may end when processes are killed. All other errors are failures."""
STANDSTILL = 60.0
LONGEST = 0.12
TOLD = 100
"""The number of kills between two progress reports."""
VERSION = 3


class Lost(Exception):
    """The daemon has ended or was not started. The result of the request is unknown."""


class Refused(Exception):
    """The daemon rejected a request. `kind` is the class of the error."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class World:
    """A home with a daemon, and the answers that clients received."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.folder = folder / "project"
        for each in (self.home, self.folder):
            each.mkdir(mode=0o700)
        (self.home / "config.toml").write_text(CONFIG)
        (self.folder / "note.txt").write_text("The port is 4711.\n")
        roots = os.pathsep.join(str(ROOT / holder) for holder in PACKAGES.values())
        kept = {name: os.environ[name] for name in ("PATH", "CENSUS") if name in os.environ}
        self.env = kept | {"HOME": str(folder), "ORCH_HOME": str(self.home), "PYTHONPATH": roots, "LANG": "C.UTF-8"}
        self.env["ORCH_ENVIRONMENT__PASS"] = "CENSUS"
        self.log = folder / "told.jsonl"
        self.commands: set[int] = set()
        self.ended = 0
        self.over = threading.Event()
        self.outcomes: Counter[str] = Counter()
        self._lock = threading.Lock()

    def tell(self, **row: Any) -> None:
        """Record an answer that a client received."""
        with self._lock, self.log.open("a") as file:
            file.write(json.dumps(row) + "\n")
            self.ended += bool(row.get("answered") or row.get("takers"))

    def command(self, *argv: str) -> tuple[int, str, str]:
        """Run a command of the shell, which may be killed. Return its exit code and output."""
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", MAIN, *argv],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.commands.add(process.pid)
        out, err = process.communicate(timeout=STANDSTILL)
        self.commands.discard(process.pid)
        return process.returncode, out, err

    def call(self, method: str, **params: Any) -> Any:
        """Send a request to the daemon. Raises Lost or Refused."""
        request = {"id": 1, "method": method, "params": params, "version": VERSION}
        try:
            with socket.socket(socket.AF_UNIX) as line:
                line.settimeout(STANDSTILL)
                line.connect(str(self.home / "daemon" / "control.sock"))
                line.sendall(json.dumps(request).encode() + b"\n")
                with line.makefile() as lines:
                    output = lines.readline()
        except TimeoutError:
            raise
        except OSError as error:
            raise Lost from error
        if not output.endswith("\n"):
            raise Lost
        answer = json.loads(output)
        if "error" in answer:
            raise Refused(answer["error"]["type"], answer["error"]["message"])
        return answer.get("result")

    def insist(self, method: str, **params: Any) -> Any:
        """Repeat the same request until the daemon answers. If there is no daemon, start one."""
        while True:
            try:
                return self.call(method, **params)
            except Lost:
                code, _, found = self.command("daemon", "start")
                assert code != 2, found  # the configuration is wrong, so a retry is useless
            except Refused as refused:
                if refused.kind == "AgentGoneError":  # the process was killed during its launch
                    self.resume(params["ref"])
                elif refused.kind not in ("DaemonLeaving", "AgentBusyError", "OrchError", "ConcurrencyLimitError"):
                    raise
            self.over.wait(0.02)

    def resume(self, ref: str) -> None:
        """Resume an agent that could not be started."""
        with contextlib.suppress(Lost, Refused):
            self.call("resume", ref=ref)

    def processes(self) -> dict[str, list[int]]:
        """Return the processes by role."""
        found: dict[str, list[int]] = {role: [] for role in ROLES}
        found["command"] = list(self.commands)
        try:
            daemon = int((self.home / "daemon" / "lock").read_text())
            if b"orch.daemon.daemon" not in Path(f"/proc/{daemon}/cmdline").read_bytes():
                return found
        except (OSError, ValueError):
            return found
        found["daemon"] = [daemon]
        held = holders(self.home / "runs" / "daemon" / "journal.jsonl")
        for shim in children(daemon):
            found["shim"].append(shim)
            for zygote in children(shim):
                found["zygote"].append(zygote)
                for worker in children(zygote):
                    found["holder" if worker in held else "worker"].append(worker)
        return found


def children(pid: int) -> list[int]:
    """Return the process ids of the children of a process."""
    try:
        return [int(each) for task in Path(f"/proc/{pid}/task").iterdir() for each in words(task / "children")]
    except OSError:
        return []


def words(path: Path) -> list[str]:
    """Return the words in a file."""
    return path.read_text().split()


def holders(journal: Path) -> set[int]:
    """Return the process ids of holders that are recorded in the journal."""
    holds, pids = set(), set()
    for line in journal.read_bytes().split(b"\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row["type"] == "agent_spawned" and row["spec"].get("kind") == "holder":
            holds.add(row["id"])
        elif row["type"] == "worker_ready" and row["id"] in holds:
            pids.add(row["pid"])
    return pids


class Client(threading.Thread):
    """Sends its own agent one query after the other, in all possible ways."""

    def __init__(self, world: World, agent: str, number: int, seed: int, *, by_command: bool) -> None:
        super().__init__(name=f"client {number}", daemon=True)
        self.world, self.agent, self.number, self.by_command = world, agent, number, by_command
        self.chance = random.Random(f"{seed} {number}")
        self.count = 0
        self.failure = ""

    def run(self) -> None:
        try:
            while not self.world.over.is_set():
                self.count += 1
                token = f"token-{self.number}-{self.count}"
                how = "command" if self.by_command else self.chance.choice(["query", "query", "collect", "holder"])
                try:
                    getattr(self, how)(token)
                    self.world.outcomes[how] += 1
                except Refused as refused:
                    if refused.kind not in EXPECTED:
                        raise
                    self.world.outcomes[f"{how}: {refused.kind}"] += 1
        except BaseException as error:
            self.failure = f"{self.name}: {type(error).__name__}: {error}"

    def query(self, token: str, ref: str | None = None) -> None:
        """Send a query and wait. If the result is unknown, send the same query again."""
        agent = ref or self.agent
        try:
            reply = self.world.insist("query", ref=agent, prompt=f"say {token} again", request_id=token)
        except Refused:
            self.world.tell(agent=agent, token=token, answered=False)
            raise
        assert "acknowledged" not in reply["warning"], reply["warning"]
        # A holder quotes its archive, and the quotation need not contain the question.
        self.world.tell(agent=agent, token=token, answered=True, right=ref is not None or token in reply["text"])

    def collect(self, token: str) -> None:
        """Send a query and let two callers compete for the answer.

        If the daemon dies before a caller gets the answer, read it again.
        """
        submitted = self.world.insist("submit", ref=self.agent, prompt=f"say {token} again", request_id=token)
        got: list[str] = []

        def take() -> None:
            with contextlib.suppress(Lost, Refused):
                got.append(self.world.call("collect", ref=self.agent, timeout=STANDSTILL)["text"])

        racers = [threading.Thread(target=take) for _ in range(2)]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        if not got:
            got.append(self.collected(token, submitted["query_id"]))
            self.world.tell(agent=self.agent, token=token, answered=True, right=token in got[0])
        else:
            self.world.tell(agent=self.agent, token=token, answered=True, right=token in got[0], takers=len(got))

    def collected(self, token: str, query: str) -> str:
        """Return the answer to an accepted query. If the query ended with its root, record this."""
        try:
            text: str = self.world.insist("collect", ref=self.agent, query=query, again=True)["text"]
        except Refused as refused:
            cut_short = "its root ended" in str(refused)
            self.world.tell(agent=self.agent, token=token, answered=False, cut_short=cut_short)
            raise
        return text

    def holder(self, token: str) -> None:
        """Query the holder of an earlier turn, so that its process can be killed."""
        archives = self.world.insist("list_archives", ref=self.agent)
        if archives:
            self.query(token, self.chance.choice(archives[-3:])["id"])

    def command(self, token: str) -> None:
        """Send a query from the shell. A killed command received no answer."""
        code, out, _ = self.world.command("query", self.agent, f"say {token} again", "--json")
        if code == 1:
            self.world.resume(self.agent)
        answered = code == 0
        self.world.tell(
            agent=self.agent, token=token, answered=answered, right=answered and token in json.loads(out)["text"]
        )


def torment(world: World, kills: int, seconds: float, seed: int) -> tuple[Counter[str], list[str]]:
    """Kill `kills` processes, or kill for `seconds`, while clients send queries.

    Return the number of kills of each role, and the errors.
    """
    end = time.monotonic() + seconds
    script = [{"loop": [{"tool": "read_file", "input": {"path": "note.txt"}}, {"echo": True}]}]
    spawned = [
        world.insist(
            "spawn",
            task="answer",
            name=f"agent{n}",
            tools=["read_file"],
            script=script,
            cwd=str(world.folder),
            request_id=f"spawn {n}",
        )
        for n in range(4)
    ]
    clients = [Client(world, agent["id"], number, seed, by_command=number == 3) for number, agent in enumerate(spawned)]
    for client in clients:
        client.start()
    chance, killed, restarts, wrong = random.Random(seed), Counter[str](), list[float](), list[str]()
    while sum(killed.values()) < kills and time.monotonic() < end and not wrong:
        time.sleep(chance.random() * LONGEST)
        there = world.processes()
        now = time.monotonic()
        restarts = [when for when in restarts if now - when < STANDSTILL]
        spared = {"zygote", "shim"} if len(restarts) >= RESTARTS else set()
        roles = [role for role, pids in there.items() if pids and role not in spared]
        if not roles:
            continue
        role = chance.choices(roles, [ROLES[role] for role in roles])[0]
        before = world.ended
        try:
            os.kill(chance.choice(there[role]), signal.SIGKILL)
        except ProcessLookupError:
            continue
        killed[role] += 1
        if sum(killed.values()) % TOLD == 0:
            print(f"{sum(killed.values())} kills, {world.ended} answers", flush=True)
        restarts = [*restarts, now] if role in ("zygote", "shim") else [] if role == "daemon" else restarts
        while world.ended == before and not wrong:
            wrong += [client.failure for client in clients if client.failure]
            if time.monotonic() - now > STANDSTILL:
                wrong.append(f"no query was answered within {STANDSTILL:g} s of the death of a {role}")
            time.sleep(0.002)
    world.over.set()
    for client in clients:
        client.join(STANDSTILL)
        if client.is_alive():
            wrong.append(f"{client.name} still waits")
    return killed, wrong + [client.failure for client in clients if client.failure and client.failure not in wrong]


def left(home: Path) -> list[int]:
    """Return the processes of a home some time after its daemon was stopped."""
    mark = f"ORCH_HOME={home}".encode()
    deadline = time.monotonic() + 5
    while True:
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in environ.read_bytes().split(b"\0"):
                    found.append(int(environ.parent.name))
            except OSError:
                continue
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def run(folder: Path, kills: int, seed: int, seconds: float = STANDSTILL) -> list[str]:
    """Kill processes, stop the daemon and judge the files. Return the errors."""
    world, began = World(folder), time.monotonic()
    killed, wrong = torment(world, kills, seconds, seed)
    took = time.monotonic() - began
    world.command("daemon", "stop")
    world.tell(left=left(world.home))
    wrong += [each["what"] for each in json.loads(world.command("fsck", "--json")[1]) if each["kind"] == "truncated"]
    wrong += judge(world.home, world.log)
    print(f"seed {seed}: {sum(killed.values())} kills in {took:.0f} s: {dict(killed)}")
    print(f"{world.ended} answers; {dict(world.outcomes)}")
    print("\n".join(wrong) or "nothing was lost or doubled, and no process is left", flush=True)
    return wrong


def main() -> int:
    """Run the kills and print the result. The files of a failed run are kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--seconds", type=float, default=240.0, help="no longer, however many kills that are")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="orch-chaos-"))
    wrong = run(folder, arguments.kills, arguments.seed, arguments.seconds)
    if wrong:
        print(f"see {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
