"""Maps: one agent and one query for each item of a list. `AsyncOrchestrator.map` and `orch map` use this module.

The run's journal is the record of a map. The agent of an item has the item's id in its spec, and the replies to the
item's questions are kept in the agent's record. The id is a digest of the key, the prompt and the agent's settings.
Therefore, a map that runs again finds the replies that it already has, and asks only the other items.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from orch_protocol.core.errors import AgentError, BudgetExceededError, ConfigError, OrchError, QueryTimeoutError
from orch_protocol.core.messages import Image, Prompt, Reply, prompt_of
from orch_protocol.core.text import scrub
from orch_protocol.policy.budget import Budget, is_limited
from orch_protocol.services.agents.spawn import Spawn
from orch_worker.system.threads import describe_exception

__all__ = [
    "CORRECTION",
    "MapItem",
    "MapProgress",
    "MapResult",
    "OnProgress",
    "Place",
    "complete_reply",
    "default_name",
    "failed_prompt",
    "item_id",
    "make_items",
    "run_items",
    "stops_at",
    "task_of",
]

T = TypeVar("T")

CORRECTION: Final = "/correction"
"""Appended to the id of an item, the id of the question that asks to correct an invalid reply."""
FIELD: Final = re.compile(r"\{item(?:\.([A-Za-z_]\w*))?\}")
SETTINGS: Final = (
    *("agent", "preset", "tools", "root_tools", "thinking", "script", "summaries", "prompt", "history", "context"),
    *("skills", "own_skills", "archives", "peers", "executor", "cwd", "isolation", "plan", "persist"),
)
"""The fields of a spawn that change what is asked, or who answers. Limits, for example, are not among them."""
EARLY_ENDS: Final = {"budget": BudgetExceededError, "timeout": QueryTimeoutError}
NOT_STARTED: Final = "not started: "
KEY_CHARS: Final = 120


# --- Items ---


class MapItem(Struct, frozen=True):
    """One item of a map: its key, its value in the program, and the prompt for its agent.

    If the prompt function raised an exception, `failure` is this exception, and the item is not asked.
    """

    key: str
    value: Any
    prompt: str
    images: tuple[Image, ...] = ()
    failure: Exception | None = None


def make_items(
    values: Iterable[Any], prompt: str | Callable[[Any], Prompt], key: Callable[[Any], str] | None = None
) -> list[MapItem]:
    """Return the items of a map. Raises ConfigError for a key that is not unique, and for an invalid prompt.

    `prompt` is a template with `{item}` or `{item.field}`, or a function that returns the prompt of an item. An
    exception of the function is the `failure` of its item.
    """
    if isinstance(prompt, str):
        if FIELD.search(prompt) is None:
            raise ConfigError(
                f"the prompt {prompt[:80]!r} has no {{item}}, so that all agents would get the same prompt; write "
                "{item} or {item.field} where the item belongs, or pass a function"
            )
    elif not callable(prompt):
        raise ConfigError(f"prompt must be a template with {{item}}, or a function of an item; got {prompt!r}")
    found: dict[str, MapItem] = {}
    for value in values:
        item_key = _key_of(value, key)
        if item_key in found:
            raise ConfigError(
                f"two items have the key {item_key[:KEY_CHARS]!r}; remove one of them, or choose a key that is unique"
            )
        if isinstance(prompt, str):
            filled: Prompt = fill(prompt, value)
        else:
            try:
                filled = prompt(value)
            except Exception as error:
                found[item_key] = MapItem(item_key, value, "", failure=error)
                continue
        text, images = prompt_of(filled)
        text = scrub(text)
        if not text.strip():
            raise ConfigError(f"the prompt for the item {item_key[:KEY_CHARS]!r} is empty")
        found[item_key] = MapItem(item_key, value, text, images)
    return list(found.values())


def fill(template: str, value: Any) -> str:
    """Return `template` with the item in place of `{item}`, and its fields in place of `{item.field}`.

    All other braces are text. Raises ConfigError for a missing field.
    """

    def replacement(match: re.Match[str]) -> str:
        field = match.group(1)
        if field is None:
            return text_of_item(value)
        if isinstance(value, Mapping) and field in value:
            return text_of_item(value[field])
        if not isinstance(value, Mapping) and hasattr(value, field):
            return text_of_item(getattr(value, field))
        raise ConfigError(f"the prompt uses {match.group()}, and the item {str(value)[:KEY_CHARS]} has no {field!r}")

    return FIELD.sub(replacement, template)


def text_of_item(value: Any) -> str:
    """Return a string or path as text, and other values as JSON if possible."""
    if isinstance(value, str | os.PathLike):
        return os.fsdecode(value)
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        return str(value)


def _key_of(value: Any, key: Callable[[Any], str] | None) -> str:
    found = text_of_item(value) if key is None else key(value)
    if not isinstance(found, str) or not found:
        raise ConfigError(f"the key of an item must be a string and not empty; got {found!r} for {str(value)[:80]!r}")
    clean: str = scrub(found)
    return clean


def item_id(item: MapItem, spawn: Spawn, model: str | None) -> str:
    """Return the digest of the key and prompt of `item`, and of the settings in `spawn`.

    `spawn` is the request for the item's agent, and `model` is the configured model.
    """
    settings = {name: getattr(spawn, name) for name in SETTINGS} | {"model": spawn.model or model}
    return _digest([item.key, item.prompt, item.images, settings])


def default_name(prompt: str | Callable[[Any], Prompt], returns: str = "") -> str:
    """Return the name of a map that the program did not name: the same for the same prompt and type of replies."""
    about = prompt if isinstance(prompt, str) else getattr(prompt, "__qualname__", type(prompt).__qualname__)
    return f"map-{_digest([about, returns])[:8]}"


def _digest(data: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(data, order="deterministic")).hexdigest()[:32]


def task_of(item: MapItem, name: str) -> str:
    """Return the task of the item's agent, which lists and pages of agents show."""
    return f"{item.key[:KEY_CHARS]} (an item of {name})"


class Place(Struct, frozen=True):
    """The place of an agent in a map: below the agent `parent`, which has the budget of the map.

    If `item` is None, the agent is the parent itself.
    """

    parent: str | None = None
    item: MapItem | None = None

    def request(self, spawn: Spawn, model: str | None) -> Spawn:
        """Return `spawn` for this place. `model` is the configured model."""
        if self.item is None:
            return msgspec.structs.replace(spawn, start=False)
        return msgspec.structs.replace(spawn, parent=self.parent, item=item_id(self.item, spawn, model))


# --- Results ---


class MapResult(Struct, Generic[T], frozen=True):
    """The result of one item.

    If `error` is None, `value` is the requested value, or the text of the reply if no type was requested. Otherwise
    `error_type` is the name of the error class and `exit_code` the exit status of the CLI. `agent` is the id of the
    item's agent, "" if it has none. `cost_usd` is what this run of the map paid for the item. If `kept` is True, the
    reply is from an earlier run and cost nothing.
    """

    key: str
    item: Any = None
    value: T | None = None
    reply: Reply | None = None
    error: str | None = None
    error_type: str = ""
    exit_code: int = 0
    agent: str = ""
    cost_usd: float = 0.0
    kept: bool = False


class MapProgress(Struct, frozen=True):
    """How far a map is. `done` counts all results, with the `kept` and `failed` ones.

    `cost_usd` is what this run has paid so far. `seconds_left` is an estimate, None before the first answer.
    """

    total: int
    done: int = 0
    kept: int = 0
    failed: int = 0
    working: int = 0
    cost_usd: float = 0.0
    seconds: float = 0.0

    @property
    def seconds_left(self) -> float | None:
        """The estimated time until the last result, in seconds."""
        asked = self.done - self.kept
        return self.seconds / asked * (self.total - self.done) if asked else None


OnProgress = Callable[[MapProgress], None]


def failed_prompt(item: MapItem, failure: Exception) -> MapResult[Any]:
    """Return the result of an item whose prompt function raised `failure`."""
    return MapResult(
        item.key,
        item.value,
        error=f"the prompt function failed for the item {item.key[:KEY_CHARS]!r}: {describe_exception(failure)}",
        error_type=type(failure).__name__,
        exit_code=failure.exit_code if isinstance(failure, OrchError) else 1,
    )


def complete_reply(reply: Reply) -> Reply:
    """Return `reply`. Raises BudgetExceededError, QueryTimeoutError or AgentError if the turn ended early."""
    if reply.is_complete:
        return reply
    raise EARLY_ENDS.get(reply.stop_reason, AgentError)(
        f"the turn of agent {reply.id} ended early ({reply.stop_reason}): {reply.text[:200]!r}; run the map again to "
        "continue the agent, or raise its limits"
    )


def stops_at(budget: Budget, limits: Budget | None) -> frozenset[str]:
    """Return the error types after which no more items are started, because they would fail too.

    `budget` is the budget of the map, `limits` those of each agent.
    """
    is_shared = is_limited(budget) and not (limits is not None and is_limited(limits))
    return frozenset({"BudgetExceededError"}) if is_shared else frozenset()


async def run_items(
    items: Sequence[MapItem],
    answer: Callable[[MapItem], Awaitable[MapResult[T]]],
    *,
    workers: int,
    stop_on_error: bool = False,
    stops: frozenset[str] = frozenset(),
    stop: asyncio.Event | None = None,
    on_progress: OnProgress | None = None,
) -> list[MapResult[T]]:
    """Call `answer` for each item, at most `workers` at a time. Return the results in the order of `items`.

    After an error with `stop_on_error`, after an error of a type in `stops`, and after `stop` is set, no more items
    are started. Their results have an error that begins with "not started". If `answer` raises an error, or this
    coroutine is cancelled, the other calls are cancelled.
    """
    loop = asyncio.get_running_loop()
    begun = loop.time()
    results: dict[int, MapResult[T]] = {}
    progress = MapProgress(len(items))
    left = iter(enumerate(items))
    reason = ""

    def report(**change: Any) -> None:
        nonlocal progress
        progress = msgspec.structs.replace(progress, seconds=loop.time() - begun, **change)
        if on_progress is None:
            return
        try:
            on_progress(progress)
        except Exception as error:
            loop.call_exception_handler({"message": "orch: on_progress raised an error", "exception": error})

    def finish(number: int, result: MapResult[T]) -> None:
        nonlocal reason
        results[number] = result
        failed = result.error is not None
        if failed and (stop_on_error or result.error_type in stops):
            reason = reason or f"the item {result.key[:KEY_CHARS]!r} failed: {result.error}"
        report(
            done=progress.done + 1,
            kept=progress.kept + result.kept,
            failed=progress.failed + failed,
            working=progress.working - 1,
            cost_usd=progress.cost_usd + result.cost_usd,
        )

    async def work() -> None:
        for number, item in left:
            if reason or (stop is not None and stop.is_set()):
                return
            report(working=progress.working + 1)
            finish(number, await answer(item))

    tasks = [asyncio.ensure_future(work()) for _ in range(min(workers, len(items)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    why = NOT_STARTED + (reason or "the map was stopped")
    return [
        results[number] if number in results else MapResult(item.key, item.value, error=why, exit_code=1)
        for number, item in enumerate(items)
    ]
