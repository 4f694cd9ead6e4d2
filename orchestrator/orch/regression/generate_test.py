"""A recorded conversation as a story: the same agent, questions, answers of the model, and results of tools.

Told again (see `retelling`), whatever is different is a change in what lies between: what the agent is told, which
tools it is offered, what policy and hooks make of its calls, how results are shown.
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
from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, text_of, tool_uses
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
from orch_worker.session.session import SessionState, UnknownEntry

from ..sessions.export import MESSAGE_ENTRIES
from ..sessions.formats.conversation import ImportedSession, Kept, Told, path_of
from ..tree.agents.agent_record import redacted_message

__all__ = ["ReplayedSession", "differences", "recording_of", "source_of", "to_script_data", "with_requests"]

ENDS: Final = ("end_turn", "stop_sequence", "max_tokens", "refusal")
"""How a turn may have ended that can be told again: by the model's own doing."""
OWN: Final = frozenset({"id", "seq", "name", "task", "backend", "born", "chosen", "folder", "cwd"})
"""What of an agent is its alone, and in no request."""
MOST_SAID: Final = 5
Shortening: TypeAlias = CompactionEntry | ArchiveEntry | UpgradeEntry


class ReplayedSession(NamedTuple):
    """A conversation as it goes now, in the form a story has it in; and the requests that a model would have got."""

    conversation: list[Any]
    requests: list[RecordedRequest]


def recording_of(found: ImportedSession, spec: AgentSpec, notes: Sequence[Note] = ()) -> dict[str, Any]:
    """Return the conversation on the path to its end as a story, all JSON data: what `agent` and `task` it was, its
    `history`, `turns` (`prompt` and `script` of each) and `conversation`; `taken_over` says that it is from elsewhere,
    and was never told a task.

    Of the agent what makes its requests is kept: not its environment, keys, model, or folders. Where parts of it were
    compacted or archived, `shortened` says so, and `whole` is all of the conversation. Of an agent that remembers,
    `memory` has those of its `notes` that were there when a turn began, each `before` the first such. Raises
    ConfigError when the conversation is none that can be told again, and why.
    """
    path = path_of(found)
    first = next(
        (place for place, entry in enumerate(path) if isinstance(entry, MessageEntry) and entry.turn), len(path)
    )
    history = _history(path[:first])
    # Who goes back behind an answer may leave what says that it was the last.
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
        turns.pop()  # it is not over
    if not turns:
        raise ConfigError("the session has no finished turn: query the agent first")
    told = [_turn(number, turn, ended, hooks=_is_hooked(spec)) for number, turn in enumerate(turns, 1)]
    messages = [entry for turn in turns for entry in turn]
    asked = text_of(messages[0].message)
    whole = to_script_data(valid_conversation([*history, *(entry.message for entry in messages)]))
    story = {
        "task": spec.task,
        "agent": _made(spec),
        "history": _data(history),
        "taken_over": split_first_prompt(asked)[1] == asked,
        "turns": told,
        "beside": [_beside(entry) for entry in path[first:] if isinstance(entry, PhaseEntry) and entry.by == "model"],
    }
    if spec.memory is not None:
        told_at = {"tokens": spec.memory.tokens, "total_chars": spec.memory.total_chars}
        story["memory"] = told_at | {"notes": _noted(notes, [(turn[0].turn, turn[0].timestamp) for turn in turns])}
    shown, shortened = _shortened(path[first:], messages)
    if not shortened:
        return story | {"conversation": whole}
    conversation = to_script_data(_folded([*_as_entries(history), *shown]))
    return story | {"conversation": conversation, "whole": whole, "shortened": shortened}


def _noted(notes: Sequence[Note], turns: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return the notes that were there when one of the `turns`, by query and time, began, each `before` the first such.

    What a turn noted itself is there for the next one, also where it took no millisecond.
    """
    own = {query: number for number, (query, _) in enumerate(turns, 1)}
    found = []
    for note in notes:
        then = next((number for number, (_, begun) in enumerate(turns) if note.at <= begun), len(turns))
        if (before := max(then, own.get(note.turn, 0))) < len(turns):
            found.append({"before": before, "note": msgspec.to_builtins(note)})
    return found


def _shortened(
    path: Sequence[Told], messages: Sequence[MessageEntry]
) -> tuple[list[MessageEntry | Shortening], list[dict[str, Any]]]:
    """Return the turns' `messages` with what shortened them among them, and where that was: `after` so many messages
    those before the one `kept` gave way to `summary`; or those from `first` to `last` to `messages`, being a holder's
    by then; or its stub read better.

    None of it when something else than messages of turns gave way, or was kept: it is told whole then.
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
    """Return how `entry` shortened the conversation, None when it is about more than messages at `places`."""
    if isinstance(entry, CompactionEntry):
        kept = places.get(entry.first_kept_entry_id)
        return {"kept": kept, "summary": entry.summary} if kept is not None else None
    if isinstance(entry, UpgradeEntry):
        return {"upgrade": msgspec.to_builtins(entry.upgrade)}
    collapse = entry.collapse
    first, last = places.get(collapse.first), places.get(collapse.last)
    if first is None or last is None or entry.deleted:
        return None
    told = {"holder": collapse.holder, "kind": collapse.kind, "task": collapse.task}
    return {"first": first, "last": last, "messages": _data(collapse.messages)} | told


def _as_entries(history: Sequence[Message]) -> list[MessageEntry]:
    parents = [None, *(f"h{number}" for number in range(len(history)))]
    return [
        MessageEntry(id=f"h{number}", parent_id=parents[number], timestamp="", message=message)
        for number, message in enumerate(history)
    ]


def _folded(entries: Sequence[Any]) -> tuple[Message, ...]:
    """Return what a conversation of these entries, each of which follows the one before, shows."""
    parents = [None, *(entry.id for entry in entries)]
    chained = [replace(entry, parent_id=parent) for entry, parent in zip(entries, parents, strict=False)]
    return SessionState.fold(chained).messages


def _made(spec: AgentSpec) -> dict[str, Any]:
    """Return of an agent what makes its requests, as far as it is not as it is for every agent."""
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
        # The day, and the state of a folder, are others tomorrow.
        prompt=replace(spec.prompt, rules=replace(spec.prompt.rules, time=False, workspace=False)),
        hooks=_hooks(spec) if _is_hooked(spec) else HooksSpec(),
        compaction=None,
        memory=None,
        workspace=None,
        persist=True,
    )
    data, plain_data = (msgspec.json.decode(msgspec.json.encode(each)) for each in (own, bare))
    return {name: data[name] for name in data if data[name] != plain_data[name] and name not in OWN}


def with_requests(story: dict[str, Any], retold: ReplayedSession) -> dict[str, Any]:
    """Return `story` with the requests of `retold`, each as what is new in it. Raises ConfigError when the conversation
    went another way than on record: what did that cannot be told again.
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
    """Return what of `retold` is not as `story` (see `with_requests`) has it, in words; nothing when all is."""
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
    return [f"{what} {number}: {_diff(*pair)}" for number, pair in pairs if pair[0] != pair[1]][:MOST_SAID]


def _offer(request: RecordedRequest) -> list[Any]:
    return _data([[each.name, each.description, each.input_schema] for each in request.tools])


def _data(value: Iterable[Any]) -> list[Any]:
    return msgspec.json.decode(msgspec.json.encode(value), type=list[Any])


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return how many of the first items are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, pair in pairs if pair[0] != pair[1]), min(len(one), len(other)))


def _text(value: Any) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()


def _diff(was: str, now: str) -> str:
    """Return two texts from shortly before the place where they part."""
    at = _common(was, now)
    start = max(0, at - 30)
    return f"was {was[start : at + 90]!r}, is {now[start : at + 90]!r}"


def _history(entries: Sequence[Told]) -> tuple[Message, ...]:
    kept = [
        UnknownEntry(entry.id, entry.parent_id, entry.type) if isinstance(entry, Kept) else entry for entry in entries
    ]
    session = SessionState.fold(kept)
    gone = {entry.id: entry.deleted for entry in entries if isinstance(entry, MessageEntry) and entry.deleted}
    for item in session.view.items:
        # What an archive that was deleted left in its place is told as it stands.
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
        # Hooks may have said it, and say it again; when it was somebody else, it goes another way then.
        said = message.role != "assistant" and not all(isinstance(block, ToolResult) for block in message.content)
        if said and not hooks:
            raise ConfigError(
                f"cannot replay turn {number}: it received a message while it ran, and the time is not recorded"
            )
    script = [_item(message) for message in rest if message.role == "assistant"]
    if script and stop != "end_turn":
        script[-1]["stop_reason"] = stop
    text = text_of(prompt)
    return {"prompt": split_first_prompt(text)[1] or text, "script": script}


def _is_hooked(spec: AgentSpec) -> bool:
    """Whether somebody else than the model has a say in its turns."""
    options = spec.hooks.options
    return bool(spec.hooks.load) or not options.assess.kind == options.reflect.kind == "off"


def _hooks(spec: AgentSpec) -> HooksSpec:
    """Return the agent's hooks, with phases that ask the script whatever they asked."""
    options = spec.hooks.options
    asks = {name: replace(getattr(options, name), model=None, max_cost_usd=None) for name in ("assess", "reflect")}
    return replace(spec.hooks, switches="", options=replace(options, **asks))


def _beside(entry: PhaseEntry) -> str:
    """Return what a model says that is asked beside the conversation, so that it comes to the same."""
    if entry.error:
        return "(no answer)"
    if entry.phase == "reflect":
        return msgspec.json.encode({"verdict": entry.did[0], "note": entry.note}).decode()
    named = dict(each.split(" ", 1) for each in entry.did if " " in each)
    return msgspec.json.encode({"note": entry.note, "plan": "plan" in entry.did, **named}).decode()


def _item(message: Message) -> dict[str, Any]:
    calls = [{"tool": call.name, "input": call.input, "id": call.id} for call in tool_uses(message)]
    text = text_of(message)
    return ({"text": text} if text or not calls else {}) | ({"tools": calls} if calls else {})


def to_script_data(messages: Iterable[Message]) -> list[Any]:
    """Return what a script can say of `messages`, as JSON data: no thinking, no pictures, one text each."""
    found: list[dict[str, Any]] = []
    for message in messages:
        text = text_of(message)
        text = (split_first_prompt(text)[1] or text) if message.role == "user" else text
        results = [block for block in message.content if isinstance(block, ToolResult)]
        said: dict[str, Any] = {"text": text} if text else {}
        if calls := [block for block in message.content if isinstance(block, ToolUse)]:
            said["calls"] = [[call.id, call.name, call.input] for call in calls]
        if results:
            said["results"] = [[each.tool_use_id, _said(each), each.is_error] for each in results]
        if said:
            found.append({"role": message.role} | said)
    return _data(found)


def _said(result: ToolResult) -> str:
    return "\n".join(part.text for part in result.content if isinstance(part, Text))


def source_of(name: str, story: dict[str, Any]) -> str:
    """Return the source of a pytest module that tells `story` (see `with_requests`), of the agent `name`, again."""
    word = "".join(each if each.isascii() and each.isalnum() else "_" for each in name)
    return f'''"""The conversation of {name!a}, told again: the same questions, answers, tools, hooks and policy.

What a model would be sent is compared: system text, tools and messages of each request, but for the list of live
subagents, the day, and the state of folder and workspace. Tools and functions return what is on record; what was
archived or compacted gives way where it did{", and the notes are what was remembered" * bool(story.get("memory"))}.
Name some in LIVE, and they run, in FOLDER: then what they return is compared, too.
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
    """Each request is the one that was recorded."""
    assert differences(STORY, replay_recording(STORY, tmp_path, folder=FOLDER, live=LIVE)) == []
'''
