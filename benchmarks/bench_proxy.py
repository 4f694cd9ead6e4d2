"""`orch proxy` between a client and a model server, compared with the same requests without it.

The first byte is measured with a model that needs no time, and with one that needs 300 ms. The CPU time is that of the
process of the proxy.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, process_time
from typing import Any
from urllib.parse import urlsplit

import harness
from bench_import import raw
from bench_streams import cpu_of, model
from harness import Args, Row
from synthetic import Worker

TURNS, STEPS, WORDS = 400, 8, 110
STREAMS, CHUNKS, PER_SECOND = 50, 100, 50
REALISTIC_MS = 300
FIRST = "first byte through the proxy"


class Client:
    """A client with a connection that stays open."""

    def __init__(self, url: str, session: str) -> None:
        self._address = urlsplit(url)
        self._session = session
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, body: bytes, first_ms: int = 0) -> float:
        """Send a request and read its stream. Return the seconds to the first byte."""
        if self._connection is None:
            assert self._address.hostname
            self._connection = await asyncio.open_connection(self._address.hostname, self._address.port)
        reader, writer = self._connection
        head = (
            f"POST /v1/messages HTTP/1.1\r\nhost: {self._address.netloc}\r\nx-api-key: k\r\n"
            f"x-session-id: {self._session}\r\nx-first-ms: {first_ms}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        begin = perf_counter()
        writer.write(head.encode() + body)
        await reader.readuntil(b"\r\n\r\n")
        await reader.readline()
        taken = perf_counter() - begin
        await reader.readuntil(b"\r\n0\r\n\r\n")
        return taken

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection[1].close()


@contextmanager
def proxy(folder: Path, url: str, *arguments: str) -> Iterator[tuple[str, int]]:
    """Run `orch proxy` before the model at `url`. Yield its address and its process id."""
    command = [sys.executable, "-m", "orch", "proxy", "--json", "--port", "0", "--upstream", f"anthropic={url}"]
    env = {**os.environ, "ORCH_HOME": str(folder)}
    with subprocess.Popen([*command, *arguments], env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        status = json.loads(process.stdout.readline())
        try:
            yield status["url"], process.pid
        finally:
            process.send_signal(signal.SIGTERM)


class Conversation:
    """A conversation in the format of the Messages API, which grows by a call and its result with each request."""

    def __init__(self, turns: int) -> None:
        self._worker = Worker(7)
        self._turn = 0
        self._items: list[Any] = []
        self._coming: list[Any] = []
        while self._turn < turns or self._coming:
            self._add()

    def _add(self) -> None:
        """Add the messages up to the next one of the user."""
        if not self._coming:
            self._turn += 1
            messages = self._worker.turn(self._turn, STEPS, WORDS)
            items = [raw(message, f"{self._turn}-{number}") for number, message in enumerate(messages)]
            self._coming = [{"role": item["role"], "content": item["content"]} for item in items]
        while self._coming:
            self._items.append(self._coming.pop(0))
            if self._items[-1]["role"] == "user":
                break

    def next(self) -> bytes:
        """Return the body of the next request."""
        self._add()
        while self._items[-1]["role"] != "user":
            self._add()
        fields = {"model": "m", "max_tokens": 1000, "stream": True, "messages": self._items}
        return json.dumps(fields).encode()


async def first_byte(args: Args, folder: Path, url: str) -> list[Row]:
    """Measure the first byte with short and long conversations."""
    rows = []
    bounds = {0: ("<= 15", "<= 8"), REALISTIC_MS: ("<= 1.2", "<= 1.05")}
    for size, turns in (("20 kB", 3), ("3 MB", TURNS)):
        with proxy(folder / size.replace(" ", ""), url) as (address, _):
            conversation = Conversation(turns)
            ours, peer = Client(address, size), Client(url, size)
            await ours.send(conversation.next())  # the first fold of a long conversation
            for delay, (must, aim) in bounds.items():
                sides = {name: side(client, conversation, delay) for name, client in (("ours", ours), ("direct", peer))}
                took = await harness.interleave(args.rounds, **sides)
                figure = f"{FIRST}, {size}, model needs {delay} ms (ms; peer: direct)"
                rows.append(harness.compared(figure, took["ours"], took["direct"], must=must, aim=aim))
            ours.close()
            peer.close()
    return rows


def side(client: Client, conversation: Conversation, delay: int) -> Callable[[], Awaitable[float]]:
    """Return a function that sends the next request and returns the milliseconds to the first byte."""

    async def send() -> float:
        return 1e3 * await client.send(conversation.next(), delay)

    return send


async def cpu(args: Args, folder: Path, url: str) -> list[Row]:
    """Measure the CPU time of the proxy for a request with 400 turns."""
    rows = []
    for profile, name in (("balanced", "archived"), ("off", "profile off")):
        with proxy(folder / profile, url, "--profile", profile) as (address, pid):
            conversation = Conversation(TURNS)
            client = Client(address, "cpu")
            for _ in range(3):
                await client.send(conversation.next())
            ours, peer = [], []
            for _ in range(args.rounds):
                body = conversation.next()
                before = cpu_of(pid)
                await client.send(body)
                ours.append(1e3 * (cpu_of(pid) - before))
                began = process_time()
                json.dumps(json.loads(body))
                peer.append(1e3 * (process_time() - began))
            client.close()
        size = f"{len(body) / 1e6:.1f} MB"
        figure = f"CPU of the proxy, {TURNS} turns, {size}, {name} (ms; peer: json.loads and dumps)"
        rows.append(harness.compared(figure, ours, peer, must="<= 1.5", aim="<= 1"))
    return rows


async def streams(args: Args, folder: Path, url: str) -> list[Row]:
    """Measure 50 streams at once."""
    with proxy(folder, url) as (address, pid):
        body = Conversation(1).next()
        sides = {"ours": address, "direct": url}
        clients = {
            name: [Client(each, f"stream {number}") for number in range(STREAMS)] for name, each in sides.items()
        }
        spent: dict[str, list[float]] = {"proxy": [], "client": []}

        def together(name: str) -> Callable[[], Awaitable[float]]:
            async def send() -> float:
                begin, used, own = perf_counter(), cpu_of(pid), process_time()
                await asyncio.gather(*(client.send(body) for client in clients[name]))
                if name == "ours":
                    spent["proxy"].append(1e6 * (cpu_of(pid) - used) / (STREAMS * CHUNKS))
                else:
                    spent["client"].append(1e6 * (process_time() - own) / (STREAMS * CHUNKS))
                return perf_counter() - begin

            return send

        took = await harness.interleave(args.rounds, **{name: together(name) for name in sides})
        for each in (*clients["ours"], *clients["direct"]):
            each.close()
    return [
        harness.compared(
            f"{STREAMS} streams at once, {CHUNKS} events each (s; peer: direct)",
            took["ours"],
            took["direct"],
            must="<= 1.2",
            aim="<= 1.05",
        ),
        harness.compared(
            f"CPU of the proxy for an event, {STREAMS} streams (us; peer: a client with bare sockets)",
            spent["proxy"][1:],
            spent["client"][1:],
            must="<= 8",
            aim="<= 4",
        ),
    ]


async def measure(args: Args) -> list[Row]:
    """Measure the proxy on its own CPU, if there is one."""
    with harness.scratch() as folder:
        with model(1, 1000) as url:
            rows = [*await first_byte(args, folder / "first", url), *await cpu(args, folder / "cpu", url)]
        with model(CHUNKS, PER_SECOND) as url:
            rows += await streams(args, folder / "streams", url)
    return rows


if __name__ == "__main__":
    harness.main(measure, affinity="all", rounds=11, quick_rounds=3)
