"""A recorded conversation told again: the same questions, the same answers of the model, the same tools.

Whatever is different then is a change in what lies between: how requests are made, tools are run, results are shown.
"""

from __future__ import annotations

import asyncio
import pprint
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from orch_protocol.config import Config
from orch_protocol.entries import MessageEntry, TurnEnd, TurnStart
from orch_protocol.errors import ConfigError
from orch_protocol.messages import Message, Text, ToolResult, ToolUse, text_of, tool_uses
from orch_protocol.spec import Limits
from orch_worker.backends.scripted import ScriptedBackend
from orch_worker.prompt import split_first_prompt
from orch_worker.session import Session, UnknownEntry
from orch_worker.tools.base import Tool, ToolContext, ToolOutput

from .aio import AsyncOrchestrator
from .exchange.found import Found, Kept, Told, path_of
from .exchange.writing import TELLING
from .testing import fake_world

__all__ = ["retell", "source_of", "story_of"]

ENDS: Final = ("end_turn", "stop_sequence", "max_tokens", "refusal")
"""How a turn may have ended that can be told again: by the model's own doing."""
MANY: Final = 1 << 30


def retell(story: dict[str, Any], home: Path, *, folder: Path | None = None, live: Iterable[str] = ()) -> list[Any]:
    """Tell `story` (see `story_of`) again and return the conversation as it goes now, in the form the story has it in.

    Tools return what is on record, but for those that `live` names: these run, in `folder`. Agents run on an event loop
    of this function's own and leave their files in `home`. Raises OrchError.
    """
    return asyncio.run(_retold(story, home, folder or home, tuple(live)))


async def _retold(story: dict[str, Any], home: Path, folder: Path, live: tuple[str, ...]) -> list[Any]:
    history = msgspec.convert(story["history"], tuple[Message, ...])
    script = [item for turn in story["turns"] for item in turn["script"]]
    results = _results(story)
    tools = [name if name in live else _stand_in(name, results) for name in story["tools"]]
    steps = max((len(turn["script"]) for turn in story["turns"]), default=0)
    async with AsyncOrchestrator(config=Config(), home=home, env={}, **fake_world()) as o:
        agent = await o.spawn(
            story["task"],
            backend=ScriptedBackend(script),
            tools=tools,
            history=history,
            cwd=folder,
            limits=Limits(max_turns=steps + 1),
        )
        for turn in story["turns"]:
            await agent.query(turn["prompt"])
        return _plain((await agent.show(MANY)).messages)


def _results(story: dict[str, Any]) -> dict[str, list[tuple[str, bool]]]:
    """Return what calls returned, in order, by the tool and its input."""
    calls: dict[str, str] = {}
    found: dict[str, list[tuple[str, bool]]] = {}
    for message in story["conversation"]:
        for id, name, input in message.get("calls", ()):
            calls[id] = _key(name, input)
        for id, text, failed in message.get("results", ()):
            found.setdefault(calls.get(id, ""), []).append((text, failed))
    return found


def _key(name: str, input: Any) -> str:
    return msgspec.json.encode([name, input], order="deterministic").decode()


def _stand_in(name: str, results: dict[str, list[tuple[str, bool]]]) -> Tool:
    """Return a tool that answers as it is on record."""

    async def call(_: ToolContext, input: Any) -> ToolOutput:
        known = results.get(_key(name, input))
        if not known:
            return ToolOutput(f"No such call of {name} is on record.", is_error=True)
        return ToolOutput(*known.pop(0))

    def function(**input: Any) -> Any:
        return results.get(_key(name, input))

    return Tool(
        name, "Answers as it is on record.", "recorded", {"type": "object"}, lambda input: input, call, function
    )


def story_of(found: Found, task: str) -> dict[str, Any]:
    """Return the conversation on the path to its end as a story: `task`, `tools`, `history`, `turns` (`prompt` and
    `script` of each) and `conversation`. Raises ConfigError when it is none that can be told again, and why.
    """
    path = path_of(found)
    first = next(
        (place for place, entry in enumerate(path) if isinstance(entry, MessageEntry) and entry.turn), len(path)
    )
    history = _history(path[:first])
    ended = {entry.turn: entry for entry in path if isinstance(entry, TurnEnd)}
    turns: list[list[MessageEntry]] = []
    for entry in path[first:]:
        if isinstance(entry, TurnStart):
            raise ConfigError(f"turn {len(turns)} was cut short, and goes on from there: that cannot be told again")
        if isinstance(entry, MessageEntry) and entry.turn:
            if not turns or turns[-1][0].turn != entry.turn:
                turns.append([])
            turns[-1].append(entry)
        elif isinstance(entry, TELLING):
            raise ConfigError(f"entry {entry.id} was said between turns by a program: that cannot be told again")
    if turns and turns[-1][0].turn not in ended:
        turns.pop()  # it is not over
    if not turns:
        raise ConfigError("there is no finished turn: ask the agent something first")
    told = [_turn(number, turn, ended) for number, turn in enumerate(turns, 1)]
    messages = [entry.message for turn in turns for entry in turn]
    names = dict.fromkeys(call.name for message in messages for call in tool_uses(message))
    return {
        "task": task,
        "tools": list(names),
        "history": msgspec.to_builtins(history),
        "turns": told,
        "conversation": _plain([*history, *messages]),
    }


def _history(entries: Sequence[Told]) -> tuple[Message, ...]:
    kept = [
        UnknownEntry(entry.id, entry.parent_id, entry.type) if isinstance(entry, Kept) else entry for entry in entries
    ]
    return Session.fold(kept).messages


def _turn(number: int, turn: list[MessageEntry], ended: dict[str, TurnEnd]) -> dict[str, Any]:
    prompt, *rest = [entry.message for entry in turn]
    if turn[0].turn not in ended:
        raise ConfigError(f"turn {number} was cut short: that cannot be told again")
    stop = ended[turn[0].turn].reply.stop_reason
    if stop not in ENDS:
        raise ConfigError(
            f"turn {number} ended with {stop!r}, which was not the model's doing: it cannot be told again"
        )
    for message in rest:
        if message.role != "assistant" and not all(isinstance(block, ToolResult) for block in message.content):
            raise ConfigError(f"in turn {number} something was said to the agent meanwhile: it cannot be told when")
    script = [_item(message) for message in rest if message.role == "assistant"]
    if script and stop != "end_turn":
        script[-1]["stop_reason"] = stop
    text = text_of(prompt)
    return {"prompt": split_first_prompt(text)[1] or text, "script": script}


def _item(message: Message) -> dict[str, Any]:
    calls = [{"tool": call.name, "input": call.input, "id": call.id} for call in tool_uses(message)]
    text = text_of(message)
    return ({"text": text} if text or not calls else {}) | ({"tools": calls} if calls else {})


def _plain(messages: Iterable[Message]) -> list[Any]:
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
    return msgspec.json.decode(msgspec.json.encode(found), type=list[Any])


def _said(result: ToolResult) -> str:
    return "\n".join(part.text for part in result.content if isinstance(part, Text))


def source_of(name: str, story: dict[str, Any]) -> str:
    """Return the source of a pytest module that tells `story`, of the agent `name`, again."""
    word = "".join(each if each.isascii() and each.isalnum() else "_" for each in name)
    return f'''"""The conversation of {name!a}, told again: the same questions, answers of the model, and tools.

Tools return what is on record. Name some in LIVE, and they run, in FOLDER: then what they return is compared, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orch.retelling import retell

LIVE: tuple[str, ...] = ()
FOLDER = Path(__file__).parent

# fmt: off
STORY: dict[str, Any] = {pprint.pformat(story, width=116, sort_dicts=False)}
# fmt: on


def test_{word}(tmp_path: Path) -> None:
    """Each request is the one that was recorded."""
    assert retell(STORY, tmp_path, folder=FOLDER, live=LIVE) == STORY["conversation"]
'''
