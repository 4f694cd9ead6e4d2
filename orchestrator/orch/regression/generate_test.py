"""Turn a recorded conversation into a test.

The test contains a *story*, which consists of the agent's settings, the prompts, the model's responses and the tool
results. A replay (see `replay_agent`) uses the same inputs. A difference is therefore a change in orch itself. The
prompt, the offered tools, the decisions of policy and hooks, or the format of results may have changed.
"""

from __future__ import annotations

import pprint
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from orch_protocol.agent.project import ContextSpec
from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Message, ToolResult, ToolUse, text_of, tool_uses
from orch_protocol.hooks.stages import HooksSpec
from orch_protocol.resources.memory import Note
from orch_protocol.session.entries import (
    ArchiveEntry,
    CompactionEntry,
    MessageEntry,
    PhaseEntry,
    TurnEndEntry,
    TurnStartEntry,
    UpgradeEntry,
)
from orch_worker.backends.offline.scripted import RecordedRequest
from orch_worker.conversation.framing import split_first_prompt
from orch_worker.conversation.history import valid_conversation
from orch_worker.conversation.turns import is_answered
from orch_worker.session.entry_codec import UnknownEntry
from orch_worker.session.session import SessionState

from ..sessions.export import MESSAGE_ENTRIES
from ..sessions.formats.conversation import ForeignEntry, ImportedEntry, ImportedSession, path_to_leaf
from ..tree.agents.agent_record import redacted_message

__all__ = ["ReplayedSession", "differences", "recording_of", "source_of", "to_script_data", "with_requests"]

ENDS: Final = ("end_turn", "stop_sequence", "max_tokens", "refusal")
"""Stop reasons that the model causes. Only turns with these stop reasons can be replayed."""
OWN: Final = frozenset({"id", "seq", "name", "task", "backend", "born", "chosen", "folder", "cwd"})
"""Fields of an agent's spec that a story does not store among the agent's settings."""
MAX_SAID: Final = 5
Shortening: TypeAlias = CompactionEntry | ArchiveEntry | UpgradeEntry


class ReplayedSession(NamedTuple):
    """A replayed conversation in the format of a story, with the requests that a model would have received."""

    conversation: list[Any]
    requests: list[RecordedRequest]


def recording_of(found: ImportedSession, spec: AgentSpec, notes: Sequence[Note] = ()) -> dict[str, Any]:
    """Return the current branch of a conversation as a story in JSON data.

    - `agent` and `task` are the settings of the agent that affect requests. The environment, keys, model and folders
      are left out.
    - `history`, `turns` and `conversation` contain messages. Each turn has a `prompt` and a `script`.
    - `taken_over` is True if the first prompt contains no task, because the conversation was imported.
    - `shortened` and `whole` are set if parts were compacted or archived. `shortened` describes these parts, and
      `whole` is the whole conversation.
    - `memory` is set for an agent with memory. It contains the `notes` that existed when a turn began. `before` of a
      note is the index of the first such turn.

    Raises ConfigError with the reason if the conversation cannot be replayed.
    """
    path = path_to_leaf(found)
    first = next(
        (place for place, entry in enumerate(path) if isinstance(entry, MessageEntry) and entry.turn), len(path)
    )
    history = _history(path[:first])
    # The entry for the end of a turn may be on another branch than the last message of the turn.
    ended = {entry.turn: entry for entry in found.entries if isinstance(entry, TurnEndEntry)}
    turns: list[list[MessageEntry]] = []
    for entry in path[first:]:
        if isinstance(entry, TurnStartEntry):
            raise ConfigError(f"cannot replay turn {len(turns)}: it was interrupted and resumed")
        if isinstance(entry, MessageEntry) and entry.turn:
            if not turns or turns[-1][0].turn != entry.turn:
                turns.append([])
            turns[-1].append(entry)
        elif isinstance(entry, MESSAGE_ENTRIES):
            raise ConfigError(f"cannot replay entry {entry.id}: a program added it between turns")
    if turns and (turns[-1][0].turn not in ended or not is_answered([turns[-1][-1].message])):
        turns.pop()  # this turn has not ended
    if not turns:
        raise ConfigError("the session has no finished turn: query the agent first")
    recorded = [_turn(number, turn, ended, hooks=_is_hooked(spec)) for number, turn in enumerate(turns, 1)]
    messages = [entry for turn in turns for entry in turn]
    asked = text_of(messages[0].message)
    whole = to_script_data(valid_conversation([*history, *(entry.message for entry in messages)]))
    story = {
        "task": spec.task,
        "agent": _made(spec),
        "history": _data(history),
        "taken_over": split_first_prompt(asked)[1] == asked,
        "turns": recorded,
        "beside": [_beside(entry) for entry in path[first:] if isinstance(entry, PhaseEntry) and entry.by == "model"],
    }
    if spec.memory is not None:
        limits = {"tokens": spec.memory.tokens, "total_chars": spec.memory.total_chars}
        story["memory"] = limits | {"notes": _noted(notes, [(turn[0].turn, turn[0].timestamp) for turn in turns])}
    shown, shortened = _shortened(path[first:], messages)
    if not shortened:
        return story | {"conversation": whole}
    conversation = to_script_data(_folded([*_as_entries(history), *shown]))
    return story | {"conversation": conversation, "whole": whole, "shortened": shortened}


def _noted(notes: Sequence[Note], turns: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return the notes that existed when one of `turns` began. Each of `turns` has a query id and a start time.

    The `before` of a note is the index of the first such turn. A note that was written in a turn exists from the next
    turn on, even if both have the same time stamp.
    """
    own = {query: number for number, (query, _) in enumerate(turns, 1)}
    found = []
    for note in notes:
        then = next((number for number, (_, begun) in enumerate(turns) if note.at <= begun), len(turns))
        if (before := max(then, own.get(note.turn, 0))) < len(turns):
            found.append({"before": before, "note": msgspec.to_builtins(note)})
    return found


def _shortened(
    path: Sequence[ImportedEntry], messages: Sequence[MessageEntry]
) -> tuple[list[MessageEntry | Shortening], list[dict[str, Any]]]:
    """Return the `messages` with the entries that shortened the conversation, and a description of each such entry.

    Such an entry is a compaction, an archive or an upgraded record. `after` in its description is the number of
    messages before the entry. Both lists are empty if anything other than messages of turns was replaced or kept.
    """
    places = {entry.id: place for place, entry in enumerate(messages)}
    shown: list[MessageEntry | Shortening] = []
    found: list[dict[str, Any]] = []
    after = 0
    for entry in path:
        if isinstance(entry, MessageEntry) and entry.id in places:
            shown.append(entry)
            after += 1
        elif isinstance(entry, Shortening) and after < len(messages):
            if (how := _how(entry, places)) is None:
                return [], []
            shown.append(entry)
            found.append({"after": after} | how)
    return shown, found


def _how(entry: Shortening, places: Mapping[str, int]) -> dict[str, Any] | None:
    """Return a description of how `entry` shortened the conversation.

    Return None if `entry` affects more than the messages at `places`.
    """
    if isinstance(entry, CompactionEntry):
        kept = places.get(entry.first_kept_entry_id)
        return {"kept": kept, "summary": entry.summary} if kept is not None else None
    if isinstance(entry, UpgradeEntry):
        return {"upgrade": msgspec.to_builtins(entry.upgrade)}
    collapse = entry.collapse
    first, last = places.get(collapse.first), places.get(collapse.last)
    if first is None or last is None or entry.deleted:
        return None
    data = {"holder": collapse.holder, "kind": collapse.kind, "task": collapse.task}
    return {"first": first, "last": last, "messages": _data(collapse.messages)} | data


def _as_entries(history: Sequence[Message]) -> list[MessageEntry]:
    parents = [None, *(f"h{number}" for number in range(len(history)))]
    return [
        MessageEntry(id=f"h{number}", parent_id=parents[number], timestamp="", message=message)
        for number, message in enumerate(history)
    ]


def _folded(entries: Sequence[Any]) -> tuple[Message, ...]:
    """Return the visible messages of a conversation that consists of `entries` in this order."""
    parents = [None, *(entry.id for entry in entries)]
    chained = [replace(entry, parent_id=parent) for entry, parent in zip(entries, parents, strict=False)]
    return SessionState.fold(chained).messages


def _made(spec: AgentSpec) -> dict[str, Any]:
    """Return those settings of the agent that affect its requests and differ from the defaults."""
    bare = AgentSpec(spec.id, 0, "", spec.task, spec.backend, "", "")
    own = replace(
        spec,
        depth=1,
        parent_id=None,
        env={},
        limits=replace(spec.limits, max_cost_usd=None),
        history=(),
        durability="process",
        template="lean",
        archival=None,
        policy=replace(spec.policy, asks_root=False),
        local=False,
        context=ContextSpec("none"),
        # The date and the state of a folder change every day.
        prompt=replace(spec.prompt, rules=replace(spec.prompt.rules, time=False, workspace=False)),
        hooks=_hooks(spec) if _is_hooked(spec) else HooksSpec(),
        compaction=None,
        memory=None,
        workspace=None,
        persist=True,
        root_tools=(*spec.root_tools, *spec.executor_tools),
        executor=None,
    )
    data, plain_data = (msgspec.json.decode(msgspec.json.encode(each)) for each in (own, bare))
    return {name: data[name] for name in data if data[name] != plain_data[name] and name not in OWN}


def with_requests(story: dict[str, Any], retold: ReplayedSession) -> dict[str, Any]:
    """Return `story` with the requests of `retold`. Each request is stored as the difference from the previous request.

    Raises ConfigError if the conversation differs from the recording, because the cause of the difference cannot be
    replayed.
    """
    if different := _different_talk(story, retold):
        raise ConfigError(
            f"replay with the tools, hooks and policy of the agent differs from the recording: {different[0]}"
        )
    systems: dict[str, None] = {}
    offers: dict[str, Any] = {}
    requests = []
    before: list[Any] = []
    for request in retold.requests:
        offer = _offer(request)
        systems[request.system] = None
        offers[_text(offer)] = offer
        messages = _data(request.messages)
        same = _common(before, messages)
        requests.append(
            {
                "system": list(systems).index(request.system),
                "tools": list(offers).index(_text(offer)),
                "kept": same,
                "more": messages[same:],
            }
            | ({"tail": request.tail} if request.tail else {})
        )
        before = messages
    return story | {"systems": list(systems), "offers": list(offers.values()), "requests": requests}


def differences(story: dict[str, Any], retold: ReplayedSession) -> list[str]:
    """Return descriptions of all differences between `retold` and `story` (see `with_requests`)."""
    found = _different_talk(story, retold)
    if len(story["requests"]) != len(retold.requests):
        found.append(f"{len(retold.requests)} requests are made, where {len(story['requests'])} were")
    messages: list[Any] = []
    for number, (was, now) in enumerate(zip(story["requests"], retold.requests, strict=False), 1):
        messages = [*messages[: was["kept"]], *was["more"]]
        parts = {
            "system text": (story["systems"][was["system"]], now.system),
            "end": (was.get("tail", ""), now.tail),
        }
        found += [f"request {number}: its {what}: {_diff(*pair)}" for what, pair in parts.items() if pair[0] != pair[1]]
        found += _apart(f"request {number}: tool", story["offers"][was["tools"]], _offer(now))
        found += _apart(f"request {number}: message", messages, _data(now.messages))
    return found


def _different_talk(story: dict[str, Any], retold: ReplayedSession) -> list[str]:
    return _apart("message", story["conversation"], retold.conversation)


def _apart(what: str, was: list[Any], now: list[Any]) -> list[str]:
    pairs = enumerate(zip_longest(map(_text, was), map(_text, now), fillvalue="nothing"), 1)
    return [f"{what} {number}: {_diff(*pair)}" for number, pair in pairs if pair[0] != pair[1]][:MAX_SAID]


def _offer(request: RecordedRequest) -> list[Any]:
    return _data([[each.name, each.description, each.input_schema] for each in request.tools])


def _data(value: Iterable[Any]) -> list[Any]:
    return msgspec.json.decode(msgspec.json.encode(value), type=list[Any])


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the length of the common prefix of both sequences."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, pair in pairs if pair[0] != pair[1]), min(len(one), len(other)))


def _text(value: Any) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()


def _diff(was: str, now: str) -> str:
    """Return excerpts of two texts around their first difference."""
    at = _common(was, now)
    start = max(0, at - 30)
    return f"was {was[start : at + 90]!r}, is {now[start : at + 90]!r}"


def _history(entries: Sequence[ImportedEntry]) -> tuple[Message, ...]:
    kept = [
        UnknownEntry(entry.id, entry.parent_id, entry.type) if isinstance(entry, ForeignEntry) else entry
        for entry in entries
    ]
    session = SessionState.fold(kept)
    gone = {entry.id: entry.deleted for entry in entries if isinstance(entry, MessageEntry) and entry.deleted}
    for item in session.view.items:
        # A replay leaves the placeholder of a deleted archive unchanged.
        if (when := gone.get(item.last)) and item.message == redacted_message(item.message, when):
            raise ConfigError(f"cannot replay the session: earlier messages were deleted on {when[:10]}")
    return session.messages


def _turn(number: int, turn: list[MessageEntry], ended: dict[str, TurnEndEntry], *, hooks: bool) -> dict[str, Any]:
    prompt, *rest = [entry.message for entry in turn]
    if when := next((entry.deleted for entry in turn if entry.deleted), ""):
        raise ConfigError(f"cannot replay turn {number}: its messages were deleted on {when[:10]}")
    if turn[0].turn not in ended or not is_answered([turn[-1].message]):
        raise ConfigError(f"cannot replay turn {number}: it was interrupted")
    stop = ended[turn[0].turn].reply.stop_reason
    if stop not in ENDS:
        raise ConfigError(f"cannot replay turn {number}: it ended with {stop!r}, which the model did not cause")
    for message in rest:
        # If a hook added the message, the hook adds it again in the replay. Otherwise the replay differs.
        is_prompt = message.role != "assistant" and not all(isinstance(block, ToolResult) for block in message.content)
        if is_prompt and not hooks:
            raise ConfigError(
                f"cannot replay turn {number}: it received a message while it ran, and the time is not recorded"
            )
    script = [_item(message) for message in rest if message.role == "assistant"]
    if script and stop != "end_turn":
        script[-1]["stop_reason"] = stop
    text = text_of(prompt)
    return {"prompt": split_first_prompt(text)[1] or text, "script": script}


def _is_hooked(spec: AgentSpec) -> bool:
    """Return whether hooks or phases can affect the agent's turns."""
    options = spec.hooks.options
    return bool(spec.hooks.load) or not options.assess.kind == options.reflect.kind == "off"


def _hooks(spec: AgentSpec) -> HooksSpec:
    """Return the agent's hooks, changed so that phases ask the script instead of another model."""
    options = spec.hooks.options
    asks = {name: replace(getattr(options, name), model=None, max_cost_usd=None) for name in ("assess", "reflect")}
    return replace(spec.hooks, switches="", options=replace(options, **asks))


def _beside(entry: PhaseEntry) -> str:
    """Return a response of a model that leads to the recorded result of the phase."""
    if entry.error:
        return "(no answer)"
    if entry.phase == "reflect":
        return msgspec.json.encode({"verdict": entry.actions[0], "note": entry.note}).decode()
    named = dict(each.split(" ", 1) for each in entry.actions if " " in each)
    return msgspec.json.encode({"note": entry.note, "plan": "plan" in entry.actions, **named}).decode()


def _item(message: Message) -> dict[str, Any]:
    calls = [{"tool": call.name, "input": call.input, "id": call.id} for call in tool_uses(message)]
    text = text_of(message)
    return ({"text": text} if text or not calls else {}) | ({"tools": calls} if calls else {})


def to_script_data(messages: Iterable[Message]) -> list[Any]:
    """Return `messages` as JSON data for a script.

    The data has no thinking, and texts in place of images. Each message has one text.
    """
    found: list[dict[str, Any]] = []
    for message in messages:
        text = text_of(message)
        text = (split_first_prompt(text)[1] or text) if message.role == "user" else text
        results = [block for block in message.content if isinstance(block, ToolResult)]
        data: dict[str, Any] = {"text": text} if text else {}
        if calls := [block for block in message.content if isinstance(block, ToolUse)]:
            data["calls"] = [[call.id, call.name, call.input] for call in calls]
        if results:
            data["results"] = [[each.tool_use_id, _result_text(each), each.is_error] for each in results]
        if data:
            found.append({"role": message.role} | data)
    return _data(found)


def _result_text(result: ToolResult) -> str:
    return "\n\n".join([part.text for part in result.content])


def source_of(name: str, story: dict[str, Any]) -> str:
    """Return the source of a pytest module that replays the session of the agent `name`.

    `story` is the recorded session, a result of `with_requests`.
    """
    word = "".join(each if each.isascii() and each.isalnum() else "_" for each in name)
    return f'''"""Replay of the session of {name!a} with the recorded prompts, responses and tool results.

The test compares the system text, tools and messages of each request to the model. It leaves out the live-subagents
block, the date, and the state of folder and workspace. Tools return the recorded results. Archiving and compaction
happen where they did in the recording{", and memory contains the recorded notes" * bool(story.get("memory"))}.
Tools named in LIVE run in FOLDER, and their results are compared too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orch.regression.replay_agent import replay_recording
from orch.regression.generate_test import differences

LIVE: tuple[str, ...] = ()
FOLDER = Path(__file__).parent

# fmt: off
STORY: dict[str, Any] = {pprint.pformat(story, width=116, sort_dicts=False)}
# fmt: on


def test_{word}(tmp_path: Path) -> None:
    """Each request equals the recorded one."""
    assert differences(STORY, replay_recording(STORY, tmp_path, folder=FOLDER, live=LIVE)) == []
'''
