"""Requests of agents that archive, divided into the conversation and the blocks after it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from orch_worker.conversation.live_subagents import HEADING
from orch_worker.prompt.instructions import PLAN_MODE, TAKEN
from orch_worker.prompt.working_folder import HEADING as WORKSPACE
from orch_worker.session.plan import HEADING as TASKS
from orch_worker.workspace.ranking import HEADING as OBJECTS
from wire.model_server import Request

DAY = "Today is "
MARKER = b',"cache_control":{"type":"ephemeral"}'
STUB = re.compile(r"\[archived (?:turn|phase|turns)\]\\+nsubagent_id: ([a-f][0-9a-f]{11})")
ERA = "earlier turns of this conversation]"
BLOCKS = (HEADING, PLAN_MODE.splitlines()[0], TASKS, TAKEN, WORKSPACE, OBJECTS, DAY)
"""The beginnings of the blocks after a conversation."""
_LIST = rb'# Live Subagents\\n\\nThese subagents hold(?:[^"\\]|\\.)*'
LIST = re.compile(rb',\{"type":"(?:input_)?text","text":"' + _LIST + rb'"\}|\\n\\n' + _LIST)
"""The list of archived turns, which follows their records."""
SLACK = 200
"""The maximum number of bytes between the beginning of a record and the first byte of its message."""


class Sent(Struct, frozen=True):
    """One request. `pieces` contains the blocks of its conversation, and `tail` the blocks after the conversation.

    `listed` is the list of archived turns, which follows their records and is not in `pieces`.
    """

    system: str
    tools: str
    pieces: tuple[str, ...]
    tail: str
    raw: bytes
    listed: str = ""

    @property
    def holders(self) -> list[str]:
        """The archives whose records are in the conversation, in order."""
        return STUB.findall("\n".join(self.pieces))

    @property
    def bare(self) -> bytes:
        """The request without its cache markers and the list of archived turns."""
        return LIST.sub(b"", self.raw.replace(MARKER, b""))


def taken_apart(request: Request) -> Sent:
    """Return the parts of `request`."""
    raw, system = request.raw.replace(MARKER, b""), _system(request.body)
    listed = None if HEADING in system else LIST.search(raw)
    body = json.loads(LIST.sub(b"", raw) if listed else raw)
    messages = body.get("messages") or body["input"]
    if messages[0].get("role") == "system":
        messages.pop(0)
    pieces = [piece for message in messages for piece in _pieces(message)]
    tail = ""
    if any(heading in pieces[-1] for heading in BLOCKS):
        tail = pieces.pop()
    assert not any(heading in "".join(pieces) for heading in BLOCKS)
    text = listed[0].decode() if listed else ""
    return Sent(system, json.dumps(body.get("tools")), tuple(pieces), tail, request.raw, text)


def _system(body: dict[str, Any]) -> str:
    first = (body.get("messages") or body["input"])[0]
    own = first["content"] if first.get("role") == "system" else ""
    system = body.get("instructions") or body.get("system") or own
    return system if isinstance(system, str) else "".join(part["text"] for part in system)


def of_agents(requests: Sequence[Request]) -> list[Sent]:
    """Return the requests of agents with tools. Requests for summaries and requests of holders are left out."""
    found = [taken_apart(request) for request in requests if request.refused is None and request.body.get("tools")]
    return [sent for sent in found if b"Call no tools" not in sent.raw]


def assert_goes_on(before: Sent, after: Sent) -> set[str]:
    """Assert that `after` continues `before`. Return the ids of the archives that were created in between.

    Everything before the archived part must be the same, byte by byte.
    """
    assert (after.system, after.tools) == (before.system, before.tools)
    new = set(after.holders) - set(before.holders)
    if not new:
        assert after.pieces[: len(before.pieces)] == before.pieces
        return new
    pairs = zip(before.bare, after.bare, strict=False)
    same = next(place for place, (one, other) in enumerate(pairs) if one != other)
    text = after.bare.decode()
    changed = min(match.start() for match in STUB.finditer(text) if match[1] in new)
    if ERA in text[changed - SLACK : changed]:
        changed = text.rindex("[", 0, text.rindex(ERA, 0, changed))
    assert len(text[:changed].encode()) - same < SLACK, text[same : same + 300]
    return new


def _pieces(message: dict[str, Any]) -> Iterator[str]:
    """Yield the parts of `message`. Consecutive user messages may be joined into one message."""
    role, content = message.get("role"), message.get("content")
    if role is None or message.get("tool_calls"):
        yield json.dumps(message)
    elif isinstance(content, str):
        parts = content.split("\n\n") if role == "user" and not content.startswith(BLOCKS) else [content]
        yield from (json.dumps([role, part]) for part in parts)
    else:
        for part in content or []:
            part.pop("cache_control", None)
            yield json.dumps([role, part])
