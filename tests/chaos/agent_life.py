"""A scenario with many file operations: recovery, turns, archives, collecting an answer, a kill, a search and
compaction.

Root and agent run in one process whose clock does not wait, so each run does the same operations on the same files in
the same order. Usage: `agent_life.py <home> <told> <first>`, with a fault of `injector.py` in one operation on a file
below the home. The answers that a client received are written to the file `told`, in the format of `lost_work.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from orch_protocol.services.agents.query import QUERY, SUBMIT, WAIT
from orch_protocol.services.agents.spawn import SPAWN

CALLS: Final = ("open", "write", "pwrite", "fsync", "fdatasync", "replace", "rename", "unlink", "ftruncate", "mkdir")
"""The functions of `os` that are used on files."""
NAME: Final = "lived"
TRIES: Final = 3
GAVE_UP: Final = 3
"""The exit code of a run whose disk stays broken."""


class Fault:
    """Causes the fault `kind` at the `number`th call of `call` on a file below `home`. Counts all calls.

    `kind` is `kill` (before the call), `after` (after the call), `half` (the process is killed in the middle of a
    write), `part` (a write is cut, and the disk is full), or an error number. With `+` after the number, all later
    calls fail too.
    """

    def __init__(self, home: Path, call: str = "", kind: str = "", number: int = 0) -> None:
        self.home, self.call, self.kind, self.number = os.fsencode(home), call, kind, number
        self.seen: Counter[str] = Counter()

    def touches(self, what: Any) -> bool:
        """Return whether `what`, a path or a descriptor, is below the home."""
        try:
            path = os.fsencode(os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else what)
        except (OSError, TypeError):
            return False
        return path.startswith(self.home)

    def due(self, call: str) -> bool:
        """Count a call. Return whether the fault is due."""
        self.seen[call] += 1
        if self.kind == "part" and call == self.call and self.seen[call] == self.number + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        lasts = self.kind.endswith("+")
        return call == self.call and (self.seen[call] >= self.number if lasts else self.seen[call] == self.number)


fault: Fault | None = None


def watched(call: str) -> Callable[..., Any]:
    """Return the function that replaces `os.<call>`."""
    act = getattr(os, call)

    def acting(*arguments: Any, **named: Any) -> Any:
        if fault is None or not fault.touches(arguments[0]) or not fault.due(call):
            return act(*arguments, **named)
        if fault.kind in ("half", "part"):
            done = act(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2], *arguments[2:])
            if fault.kind == "part":
                return done
        elif fault.kind == "after":
            act(*arguments, **named)
        elif fault.kind != "kill":
            number = int(fault.kind.rstrip("+"))
            raise OSError(number, os.strerror(number), str(arguments[0]))
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    return acting


def watch() -> None:
    """Watch all calls from now on. Modules that were imported before may keep the original functions."""
    for call in CALLS:
        if getattr(os, call).__name__ != "acting":
            setattr(os, call, watched(call))


class Teller:
    """Writes down the answers that a client received, and counts the client's questions."""

    def __init__(self, path: Path, first: int) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.count = first

    def tell(self, **row: Any) -> None:
        """Write one row."""
        os.write(self._descriptor, json.dumps(row).encode() + b"\n")

    def token(self) -> str:
        """Return the name of the next question."""
        self.count += 1
        return f"token-{self.count}"


class GaveUp(Exception):
    """An operation failed in each of its attempts."""


async def insist(work: Callable[[], Any]) -> Any:
    """Call `work` until it succeeds, at most TRIES times. After an OrchError, which a client may receive, try again."""
    from orch_protocol.core.errors import OrchError

    for attempt in range(TRIES):
        try:
            return await work()
        except OrchError as error:
            if attempt == TRIES - 1:
                raise GaveUp(str(error)) from error
            await asyncio.sleep(1)
    return None


def opened(home: Path, run: str) -> Any:
    """Return a root whose agents run in this process.

    The agents of the run "r" archive each turn, and those of the run "c" are compacted. The journal is rewritten at the
    start, at any size.
    """
    import orch.tree.journal.journal
    from orch import ArchivalConfig, AsyncOrchestrator, CompactionConfig, Config
    from orch.testing import FakeLauncher, fake_world
    from orch_protocol.agent.config import TriggerConfig

    orch.tree.journal.journal.REWRITE_MIN_BYTES, orch.tree.journal.journal.REWRITE_MAX_RATIO = 0, 9.0
    archival = ArchivalConfig(
        enabled=True, async_=False, profile="seed", trigger=TriggerConfig(tool_call_threshold=1), answer_tokens=5
    )
    compaction = CompactionConfig(compact_tokens=COMPACT_TOKENS, min_messages=2)
    config = Config(archival=archival) if run == "r" else Config(context_compaction=compaction)
    return AsyncOrchestrator(home=home, env={}, run=run, config=config, **fake_world(FakeLauncher()))


COMPACT_TOKENS: Final = 1100
WAIT_SECONDS: Final = 60.0
PADDING: Final = 60
SCRIPT: Final = ({"loop": [{"tool": "read_file", "input": {"path": "note.txt"}}, {"echo": True}]},)


class Client:
    """Queries one agent and records the answers."""

    def __init__(self, root: Any, teller: Teller) -> None:
        self.root, self.teller, self.agent = root, teller, ""

    async def have(self, cwd: Path) -> None:
        """Create the agent.

        Repeated calls do not create another agent. An agent that could not be started is resumed.
        """
        from orch_protocol.core.errors import OrchError
        from orch_protocol.services.agents.spawn import Spawn

        asked = Spawn(
            "look", name="a", tools=("read_file",), script=SCRIPT, summaries=(), cwd=str(cwd), request_id="spawn"
        )

        async def spawn() -> Any:
            try:
                return await self.root._call(SPAWN, asked)
            except OrchError:
                return await self.root.resume("a")

        self.agent = (await insist(spawn)).id

    async def query(self, *, padding: int = 0) -> None:
        """Send a query and wait for the answer. After an error, send another query.

        If a query was accepted before a fault, the next root runs it first, and the client waits for it.
        """
        from orch_protocol.core.errors import AgentBusyError, OrchError
        from orch_protocol.services.agents.query import QueryAgent, Wait

        for _ in range(TRIES):
            token = self.teller.token()
            asked = QueryAgent(self.agent, f"say {token} again{' and again' * padding}", request_id=token)
            try:
                reply = await self.root._call(QUERY, asked)
            except OrchError as error:
                self.teller.tell(agent=self.agent, token=token, answered=False)
                if isinstance(error, AgentBusyError):
                    await self.root._call(WAIT, Wait((self.agent,), timeout=WAIT_SECONDS))
                    continue
                with contextlib.suppress(OrchError):
                    await self.root.resume(self.agent)
                continue
            self.teller.tell(agent=self.agent, token=token, answered=True, right=token in reply.text)
            if reply.archived_to:
                self.teller.tell(agent=self.agent, archive=reply.archived_to)
            return
        raise GaveUp("a query")

    async def collect(self) -> None:
        """Send a query and let two callers collect the answer.

        An answer from before a fault is collected first, once.
        """
        from orch_protocol.core.errors import OrchError
        from orch_protocol.services.agents.query import QueryAgent

        token = self.teller.token()
        asked = QueryAgent(self.agent, f"say {token} again", request_id=token)
        try:
            await self.root._call(SUBMIT, asked)
            handle = await self.root.get(self.agent)
            found = await asyncio.gather(handle.collect(), handle.collect(), return_exceptions=True)
        except OrchError:
            self.teller.tell(agent=self.agent, token=token, answered=False)
            return
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, OrchError):
                raise each
        got = [each.text for each in found if not isinstance(each, BaseException)]
        own = [each for each in got if token in each]
        right = len(set(got)) == len(got) or len(own) > 1  # `judge` reports an answer that two callers took
        self.teller.tell(agent=self.agent, token=token, answered=bool(own), right=right, takers=len(own))


def contents(home: Path) -> list[bytes]:
    """Return the contents of the transcripts."""
    return [path.read_bytes() for path in sorted(home.glob("sessions/*/session.jsonl"))]


async def live(home: Path, text: Path, first: int, *, again: bool) -> None:
    """Run the scenario from opening to closing.

    If `again` is True, a short run follows, in which opening must not change any file.
    """
    teller = Teller(text, first)
    async with opened(home, "r") as root:
        client = Client(root, teller)
        await client.have(home.parent)
        await client.query()
        await client.collect()
        if not again:
            await insist(lambda: root.archives.search("port", ref=client.agent))
            await insist(lambda: root.kill(client.agent))
            await insist(lambda: root.resume(client.agent))
            await client.query()
    async with opened(home, "c") as root:
        client = Client(root, teller)
        await client.have(home.parent)
        for _ in range(1 if again else 2):
            await client.query(padding=PADDING)
    found = []
    for _ in range(2 * again):
        for run in ("r", "c"):
            async with opened(home, run):
                pass
        found.append(contents(home))
    assert found[:1] == found[1:], "opening it again changes it"


def main(home: Path, text: Path, first: int, *, again: bool = False) -> int:
    """Run the scenario and return the exit code."""
    from orch_protocol.core.errors import OrchError
    from virtual_clock import PatientLoop

    try:
        with asyncio.Runner(loop_factory=PatientLoop) as runner:
            runner.run(live(home, text, first, again=again))
    except (GaveUp, OrchError) as error:  # closing may raise these errors too
        print(f"gave up: {error}", file=sys.stderr)
        return GAVE_UP
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
