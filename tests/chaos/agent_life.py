"""A life with much that touches a file: recovery, turns, archives, an answer taken, an end, a search, compaction.

Root and agent are of one process, whose clock waits for nothing: the same things are done to the same files in the same
order each time. `agent_life.py <home> <told> <first>`; with a fault of `injector.py` in one of the calls that touch
a file below the home. Whatever is told to a client goes to the file `told`, in the words that `lost_work.py` knows.
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

from orch_protocol.services.requests import QUERY, SPAWN, SUBMIT, WAIT

CALLS: Final = ("open", "write", "pwrite", "fsync", "fdatasync", "replace", "rename", "unlink", "ftruncate", "mkdir")
"""What of `os` is done to a file."""
NAME: Final = "lived"
TRIES: Final = 3
GAVE_UP: Final = 3
"""The exit code of a life whose disk does not get well."""


class Fault:
    """Does `kind` at the `number`th `call` that touches a file below `home`; counts all of them.

    `kind` is `kill` (before the call is made), `after` (when it was made), `half` (a write that is cut in the middle,
    and the process with it), `part` (a write is cut, and there is no room for the rest), or the number of an error,
    with `+` behind it: from then on.
    """

    def __init__(self, home: Path, call: str = "", kind: str = "", number: int = 0) -> None:
        self.home, self.call, self.kind, self.number = os.fsencode(home), call, kind, number
        self.seen: Counter[str] = Counter()

    def touches(self, what: Any) -> bool:
        """Return whether `what`, a path or a descriptor, is of the home."""
        try:
            path = os.fsencode(os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else what)
        except (OSError, TypeError):
            return False
        return path.startswith(self.home)

    def due(self, call: str) -> bool:
        """Count a call, and return whether it is the one."""
        self.seen[call] += 1
        if self.kind == "part" and call == self.call and self.seen[call] == self.number + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        lasts = self.kind.endswith("+")
        return call == self.call and (self.seen[call] >= self.number if lasts else self.seen[call] == self.number)


fault: Fault | None = None


def watched(call: str) -> Callable[..., Any]:
    """Return what to do in place of `os.<call>`."""
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
    """Look at every call from now on. What is imported before keeps what it took of `os`."""
    for call in CALLS:
        if getattr(os, call).__name__ != "acting":
            setattr(os, call, watched(call))


class Teller:
    """Writes down what a client was told, and counts its questions."""

    def __init__(self, path: Path, first: int) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.count = first

    def tell(self, **row: Any) -> None:
        """Write down one thing."""
        os.write(self._descriptor, json.dumps(row).encode() + b"\n")

    def token(self) -> str:
        """Return the name of the next question."""
        self.count += 1
        return f"token-{self.count}"


class GaveUp(Exception):
    """What failed failed again, and again."""


async def insist(work: Callable[[], Any]) -> Any:
    """Do `work` until it succeeds, a few times; errors of the product are what a client may hear."""
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
    """Return a root whose agents are of this process: those of "r" archive each turn, those of "c" are compacted.

    Its journal is written anew at the start, however small it is.
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
    """Asks one agent, and says what it was told."""

    def __init__(self, root: Any, teller: Teller) -> None:
        self.root, self.teller, self.agent = root, teller, ""

    async def have(self, cwd: Path) -> None:
        """Have the agent: it is made once, however often that is asked for; one that did not come up is resumed."""
        from orch_protocol.core.errors import OrchError
        from orch_protocol.services.requests import Spawn

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
        """Ask and wait for the answer; after an error ask something else.

        A query that was accepted before a fault runs first when the next root opens: the client waits for it.
        """
        from orch_protocol.core.errors import AgentBusyError, OrchError
        from orch_protocol.services.requests import QueryAgent, Wait

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
        """Ask, and let two take the answer. What was asked before a fault may wait still: it is taken first, once."""
        from orch_protocol.core.errors import OrchError
        from orch_protocol.services.requests import QueryAgent

        token = self.teller.token()
        asked = QueryAgent(self.agent, f"say {token} again", request_id=token)
        try:
            await self.root._call(SUBMIT, asked)
            handle = await self.root.get(self.agent)
            said = await asyncio.gather(handle.collect(), handle.collect(), return_exceptions=True)
        except OrchError:
            self.teller.tell(agent=self.agent, token=token, answered=False)
            return
        for each in said:
            if isinstance(each, BaseException) and not isinstance(each, OrchError):
                raise each
        got = [each.text for each in said if not isinstance(each, BaseException)]
        own = [each for each in got if token in each]
        right = len(set(got)) == len(got) or len(own) > 1  # of which the verdict tells
        self.teller.tell(agent=self.agent, token=token, answered=bool(own), right=right, takers=len(own))


def contents(home: Path) -> list[bytes]:
    """Return what is in the transcripts."""
    return [path.read_bytes() for path in sorted(home.glob("sessions/*/session.jsonl"))]


async def live(home: Path, told: Path, first: int, *, again: bool) -> None:
    """Live from opening to closing; with `again` a short life, after which opening must not change anything."""
    teller = Teller(told, first)
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


def main(home: Path, told: Path, first: int, *, again: bool = False) -> int:
    """Live, and return the exit code."""
    from orch_protocol.core.errors import OrchError
    from virtual_clock import PatientLoop

    try:
        with asyncio.Runner(loop_factory=PatientLoop) as runner:
            runner.run(live(home, told, first, again=again))
    except (GaveUp, OrchError) as error:  # which closing may raise as well
        print(f"gave up: {error}", file=sys.stderr)
        return GAVE_UP
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
