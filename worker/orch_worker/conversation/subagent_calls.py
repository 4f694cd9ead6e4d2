"""Finds the subagents that were spawned, queried or ended in a range of calls, with their states.

A record keeps this list, so that the model does not spawn a second subagent for the same work.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from .turns import CallWithResult

__all__ = ["AskedAgent", "agents_line", "asked_in", "latest_states"]

MAX_TASK: Final = 80
MAX_ANSWER_CHARS: Final = 200
TOOLS: Final = frozenset({"spawn_subagent", "query_subagent", "collect_subagent"})
AT_WORK: Final = "at work, its answer is not taken yet"
ENDED: Final = "ended"

_LABEL: Final = re.compile(r"\[untrusted [^\n]*\n")
_ANSWER: Final = re.compile(r"Subagent ([0-9a-f]{12}) \([^\n]*\):\n\n(.*)", re.DOTALL)
_BUSY: Final = re.compile(r"Subagent (\S+) is at work: |No answer yet: subagent (\S+) works on\.")
_KILLED: Final = re.compile(r"Killed: ([0-9a-f, ]+)\.")


class AskedAgent(Struct, frozen=True, omit_defaults=True):
    """An agent, given by its id or by the name used in the call.

    `task` is the agent's task, if known. `state` is the agent's latest state.
    """

    id: str
    task: str = ""
    state: str = ""

    def __str__(self) -> str:
        named = f"{self.id} ({self.task})" if self.task else self.id
        return f"{named}: {self.state}" if self.state else named


class _SpawnResult(Struct):
    id: str
    seq: int
    name: str


def asked_in(calls: Sequence[CallWithResult]) -> tuple[AskedAgent, ...]:
    """Return the agents spawned, queried or ended by `calls`. Each agent occurs once, ordered by its last call."""
    found: list[AskedAgent] = []
    names: dict[str, str] = {}
    for call in calls:
        result = call.result or ""
        if call.name == "kill_subagent" and (killed := _KILLED.match(result)):
            found += [AskedAgent(id, state=ENDED) for id in killed[1].split(", ")]
        if call.name not in TOOLS or call.is_error:
            continue
        # An answer that has a taint label must not be repeated without this label.
        label = _LABEL.match(result)
        result = result[label.end() :] if label else result
        if call.name == "spawn_subagent":
            line, _, result = result.partition("\n")
            try:
                spawned = msgspec.json.decode(line, type=_SpawnResult)
            except msgspec.MsgspecError:
                continue
            names |= {spawned.name: spawned.id, str(spawned.seq): spawned.id}
            found.append(AskedAgent(spawned.id, _line(str(call.input.get("task", "")), MAX_TASK)))
        if answer := _ANSWER.match(result):
            names[str(call.input.get("id", answer[1]))] = answer[1]
            state = "answered" if label else f"answered «{_line(answer[2], MAX_ANSWER_CHARS)}»"
            found.append(AskedAgent(answer[1], state=state))
        elif busy := _BUSY.match(result):
            found.append(AskedAgent(busy[1] or busy[2], state=AT_WORK))
    return latest_states(replace(each, id=names.get(each.id, each.id)) for each in found)


def latest_states(found: Iterable[AskedAgent]) -> tuple[AskedAgent, ...]:
    """Return each agent in `found` once, with its latest state and its known task."""
    by_id: dict[str, AskedAgent] = {}
    for each in found:
        before = by_id.pop(each.id, each)
        by_id[each.id] = AskedAgent(each.id, each.task or before.task, each.state or before.state)
    return tuple(by_id.values())


def agents_line(asked: Sequence[AskedAgent], chars: int) -> str:
    """Return one line about the agents `asked`. Running agents come first.

    If the line exceeds `chars` characters, answers are left out first, then tasks and states.
    """
    ordered = sorted(asked, key=lambda each: each.state != AT_WORK)
    listed = "; ".join(map(str, ordered))
    for less in (lambda each: replace(each, state=each.state.partition(" «")[0]), lambda each: AskedAgent(each.id)):
        if len(listed) <= chars:
            break
        listed = "; ".join(str(less(each)) for each in ordered)
    return listed


def _line(text: str, limit: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else f"{flat[: limit - 3]}..."
