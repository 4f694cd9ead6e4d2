"""The cost of recorded sessions through the gateway, as a provider bills it, against the same requests sent directly.

Each recording is sent as a client of the Messages API sends it: with its whole history, a marker after the system text
and markers on the last two user messages, a request each 20 seconds. The model does not recall. The bytes are those of
all requests.

Recorded sessions are given as files, or as a folder in $BENCH_RECORDINGS. Without sessions, the rows are skipped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import harness
import msgspec
from harness import Args, Row
from venvs import ROOT

from orch.gateway.core import Gateway
from orch.gateway.store import FileStore
from orch.replay.readers import Recording, read_recordings
from orch_protocol.core.messages import Opaque, Thinking
from orch_worker.backends.formats.messages import encode_message
from orch_worker.backends.prices import Prices

sys.path.append(str(ROOT / "tests"))
from wire.billing_server import MarkedCache

PAUSE = 20.0
MARKER = {"cache_control": {"type": "ephemeral"}}
SYSTEM = [{"type": "text", "text": "You are an agent. " * 800} | MARKER]
TOOLS = [{"name": "read", "description": "x" * 4000, "input_schema": {"type": "object"}}]
HEADERS = {"x-session-id": "bench"}
PROFILES = ("balanced", "roomy")


class Sums(NamedTuple):
    """The cost of requests in the price of an uncached input token, and their bytes."""

    units: float = 0.0
    size: int = 0

    def plus(self, other: Sums) -> Sums:
        """Return the sum."""
        return Sums(self.units + other.units, self.size + other.size)


def measure(args: Args) -> list[Row]:
    """Send each given file with each profile."""
    if not args.files:
        reason = "no recorded session was given"
        return [harness.skipped("billed input, balanced (peer: direct)", reason, must="<= 1.01", aim="<= 1")]
    profiles = PROFILES[:1] if args.quick else PROFILES
    return [row for file in args.files for profile in profiles for row in _rows(file, profile)]


def _rows(file: Path, profile: str) -> Iterator[Row]:
    ours = direct = Sums()
    for recording in read_recordings(file):
        with harness.scratch() as folder:
            one, other = billed(recording, folder, profile)
        ours, direct = ours.plus(one), direct.plus(other)
    figure = f"{file.name}: billed input, {profile} (in the price of a million input tokens; peer: direct)"
    yield harness.compared(figure, [ours.units / 1e6], [direct.units / 1e6], must="<= 1.01", aim="<= 1")
    yield harness.compared(
        f"{file.name}: bytes, {profile} (MB; peer: direct)",
        [ours.size / 1e6],
        [direct.size / 1e6],
        must="<= 1.01",
        aim="<= 1",
    )


def billed(recording: Recording, folder: Path, profile: Any) -> tuple[Sums, Sums]:
    """Return what the requests of a recording cost through the gateway and directly."""
    caches = [MarkedCache(), MarkedCache()]
    sums = [Sums(), Sums()]
    gateway = Gateway(FileStore(folder, profile))
    now = 0.0
    items = messages_of(recording)
    for index, item in enumerate(items):
        if item["role"] != "user":
            continue
        now += PAUSE
        body = request(items[: index + 1])
        exchange = gateway.begin("/v1/messages", HEADERS, body)
        for side, sent in enumerate((exchange.request, body)):
            charge = caches[side].charge(json.loads(sent), now)
            units = Prices().units(cached=charge.read, written=charge.written, fresh=charge.fresh)
            sums[side] = sums[side].plus(Sums(units, len(sent)))
    gateway.close()
    return sums[0], sums[1]


def messages_of(recording: Recording) -> list[dict[str, Any]]:
    """Return the messages of a recording as a client sends them, without reasoning."""
    items: list[dict[str, Any]] = []
    for each in recording.messages:
        content = tuple(block for block in each.message.content if not isinstance(block, (Opaque, Thinking)))
        if each.message.role == "system" or not content:
            continue
        item = encode_message(msgspec.structs.replace(each.message, content=content))
        if items and items[-1]["role"] == item["role"]:
            items[-1]["content"] += item["content"]
        else:
            items.append(item)
    return items


def request(items: list[dict[str, Any]]) -> bytes:
    """Return the body of a request with markers on the last two user messages."""
    marked = [dict(item) for item in items]
    for item in [item for item in marked if item["role"] == "user"][-2:]:
        *others, last = item["content"]
        item["content"] = [*others, last | MARKER]
    return json.dumps(
        {"model": "m", "max_tokens": 1000, "stream": True, "system": SYSTEM, "tools": TOOLS, "messages": marked}
    ).encode()


if __name__ == "__main__":
    harness.main(measure)
