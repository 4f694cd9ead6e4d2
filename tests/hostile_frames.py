"""Frames of a worker that an attacker controls, and frames that were changed at random.

A seed determines the changes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from orch_protocol.core.errors import ErrorInfo
from orch_protocol.core.messages import Reply, Usage
from orch_protocol.services.dispatch.registry import SERVICES
from orch_protocol.wire.frames import VERSION
from orch_protocol.wire.worker_messages import BODIES, Hello, Ready, RootCall, TurnFinished

__all__ = ["KINDS", "mutated", "some_body"]

KINDS = sorted(set(BODIES) - {"init", "edit"})


def some_body(kind: str, luck: random.Random, ids: list[str]) -> Any:
    """Return a body that is valid for a frame of the kind `kind`, or a similar body of another kind."""
    id = luck.choice(ids)
    match kind:
        case "hello":
            return Hello(b"nonsense", VERSION, 1)
        case "ready":
            return Ready(entries=luck.randrange(-5, 5), context_tokens=-1, model="x" * luck.randrange(100))
        case "finished":
            reply = Reply(id=id, query_id=luck.choice(ids), text="mine", stop_reason="end_turn")
            failed = TurnFinished(error=ErrorInfo("KeyError", "?"), usage=Usage(input_tokens=-1))
            return luck.choice([TurnFinished(reply=reply), TurnFinished(), failed])
        case "root_call":
            payload = luck.choice([b"\x80", b"\xc1", msgspec.msgpack.encode({"ref": id}), b""])
            return RootCall(luck.choice([*SERVICES, "none"]), msgspec.Raw(payload))
    try:
        return msgspec.convert({}, BODIES[kind])
    except msgspec.ValidationError:
        return msgspec.convert([], list)  # no body has this kind


def mutated(data: bytes, luck: random.Random) -> bytes:
    """Return `data` with some bytes changed, removed or repeated."""
    spoilt = bytearray(data)
    for _ in range(luck.randint(1, 6)):
        at = luck.randrange(len(spoilt))
        change: Callable[[], Any] = luck.choice(
            [
                lambda at=at: spoilt.__setitem__(at, luck.randrange(256)),
                lambda at=at: spoilt.__delitem__(slice(at, at + luck.randint(1, 9))),
                lambda at=at: spoilt.extend(spoilt[at:]),
                lambda at=at: spoilt.insert(at, luck.choice([0xC1, 0xDF, 0xDD, 0xC6, 0xFF, 0x92])),
            ]
        )
        change()
        if not spoilt:
            break
    return bytes(spoilt[:4096])
