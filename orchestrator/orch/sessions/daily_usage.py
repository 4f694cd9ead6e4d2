"""The daily usage of models and tools, read from the session files of agents.

Sums of each file are stored in `COSTS`, so that a later call reads only the files that changed. Sessions that were
deleted, and agents that store nothing on disk, do not count.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, field

from orch_protocol.core.errors import OrchError
from orch_protocol.core.messages import Usage
from orch_worker.session.entry_codec import DECODE_ERRORS, SESSION_HEADER
from orch_worker.session.log.log_reader import read_objects
from orch_worker.session.session_reader import NAME
from orch_worker.system.atomic_json import read, write

from ..archival.store.deletion import HOLDERS
from ..config.logs import logger

__all__ = ["COSTS", "DailyUsage", "ModelUsage", "ToolUsage", "add_usage", "daily_usage"]

COSTS: Final = "costs.json"
"""Name of the file with the sums of each session file."""
UNKNOWN: Final = "unknown model"
"""The model of requests that failed before an entry of the session named a model."""
BY_TOOLS: Final = "models called by tools"

log = logger("orch.sessions.daily_usage")


class ModelUsage(Struct, frozen=True, omit_defaults=True):
    """Usage of one model. `usage.cost_usd` is a lower bound if the price of a request is unknown."""

    requests: int = 0
    usage: Usage = Usage()

    def __add__(self, other: ModelUsage) -> ModelUsage:
        return ModelUsage(self.requests + other.requests, self.usage + other.usage)


class ToolUsage(Struct, frozen=True, omit_defaults=True):
    """The number of results of one tool, and how many of them are errors."""

    calls: int = 0
    errors: int = 0

    def __add__(self, other: ToolUsage) -> ToolUsage:
        return ToolUsage(self.calls + other.calls, self.errors + other.errors)


class DailyUsage(Struct, frozen=True):
    """The usage on one day. Keys of `models` are `PROVIDER:NAME`. Keys of `tools` are names."""

    models: dict[str, ModelUsage] = {}
    tools: dict[str, ToolUsage] = {}

    @property
    def cost_usd(self) -> float:
        """Return the cost of all models, in dollars."""
        return sum(each.usage.cost_usd for each in self.models.values())


class _FileUsage(Struct, frozen=True, array_like=True):
    """The usage in one file by day, and the state of the file that was read."""

    inode: int
    size: int
    modified: int
    days: dict[str, DailyUsage] = {}


def add_usage(one: DailyUsage, other: DailyUsage) -> DailyUsage:
    """Return the sum of `one` and `other`."""
    models, tools = dict(one.models), dict(one.tools)
    for name, model in other.models.items():
        models[name] = models.get(name, ModelUsage()) + model
    for name, tool in other.tools.items():
        tools[name] = tools.get(name, ToolUsage()) + tool
    return DailyUsage(models, tools)


def daily_usage(
    sessions: Path,
    cache: Path,
    only: Collection[str] | None = None,
    on_unread: Callable[[str], object] = lambda _: None,
) -> dict[str, DailyUsage]:
    """Return the usage of each UTC day (2026-01-31), latest day first, of the sessions in the folder `sessions`.

    `only` contains the folders of the sessions that count; None means all in `sessions`. `on_unread` is called with the
    reason for each session file that cannot be read and is left out.
    The sums of files are kept in the file `cache`. If it cannot be read or written, all session files are read.
    """
    known = _read_cache(cache)
    found: dict[str, _FileUsage] = {}
    for path in _session_files(_folders(sessions) if only is None else only):
        try:
            stat = os.stat(path)
        except OSError:
            continue  # the session was deleted after it was listed
        key, state = os.path.relpath(path, sessions), (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        old = known.get(key)
        if old is not None and (old.inode, old.size, old.modified) == state:
            found[key] = old
            continue
        try:
            found[key] = _FileUsage(*state, _usage_in(Path(path)))
        except (OrchError, OSError) as error:
            on_unread(str(error))
    kept = found if only is None else known | found
    if kept != known:
        _write_cache(cache, kept)
    days: dict[str, DailyUsage] = {}
    for each in found.values():
        for day, usage in each.days.items():
            days[day] = add_usage(days[day], usage) if day in days else usage
    return dict(sorted(days.items(), reverse=True))


def _session_files(folders: Iterable[str]) -> Iterator[str]:
    """Yield the paths of the session files in the folders of agents, and of their holders."""
    for folder in folders:
        yield os.path.join(folder, NAME)
        for holder in _folders(os.path.join(folder, HOLDERS)):
            yield os.path.join(holder, NAME)


def _folders(folder: str | Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _read_cache(cache: Path) -> dict[str, _FileUsage]:
    try:
        return read(cache, dict[str, _FileUsage], {}, "all sessions are read")
    except OrchError:
        return {}  # the next write replaces the file


def _write_cache(cache: Path, found: dict[str, _FileUsage]) -> None:
    try:
        cache.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write(cache, found, durable=False)
    except (OrchError, OSError) as error:
        log.warning("costs_not_kept", file=str(cache), why=str(error))


# --- Sums of one file. Only the fields that count are decoded. ---


class _Block(Struct, frozen=True):
    type: str
    id: str = ""
    name: str = ""
    tool_use_id: str = ""
    is_error: bool = False


class _Message(Struct, frozen=True):
    role: str
    content: tuple[_Block, ...] = ()


class _Reply(Struct, frozen=True):
    usage: Usage = Usage()


class _Entry(Struct, frozen=True):
    """The fields that count, of the header, messages, compactions, phases, summaries of archives, ends of turns and
    changes of the model.
    """

    type: str
    timestamp: str = ""
    turn: str = ""
    usage: Usage | None = None
    model: str = ""
    message: _Message | None = None
    reply: _Reply | None = None
    provider: str = ""
    model_id: str = field(default="", name="modelId")
    parent_session: str | None = field(default=None, name="parentSession")


_decoder = msgspec.json.Decoder(_Entry)


def _usage_in(path: Path) -> dict[str, DailyUsage]:
    """Return the usage in the session file at `path`, by day. Raises StoreError, ForeignFileError."""
    models: defaultdict[tuple[str, str], ModelUsage] = defaultdict(ModelUsage)
    tools: defaultdict[tuple[str, str], ToolUsage] = defaultdict(ToolUsage)
    called: dict[str, str] = {}
    model, turn, recorded, copied_at = UNKNOWN, "", Usage(), ""
    for object in read_objects(path, header=SESSION_HEADER):
        try:
            entry = _decoder.decode(object)
        except DECODE_ERRORS:
            continue
        if entry.type == "session" and entry.parent_session is not None:
            copied_at = entry.timestamp  # earlier entries were copied, and the original contains their usage
        day, usage, answered_by = entry.timestamp[:10], entry.usage, model
        if entry.turn and entry.turn != turn:
            turn, recorded = entry.turn, Usage()
        if entry.type == "message" and entry.message is not None:
            if entry.message.role == "assistant":
                model = answered_by = entry.model or model
                called = {block.id: block.name for block in entry.message.content if block.type == "tool_use"}
            else:
                answered_by = BY_TOOLS
                for block in entry.message.content:
                    name = called.get(block.tool_use_id, "")
                    if block.type == "tool_result" and name and entry.timestamp > copied_at:
                        tools[day, name] += ToolUsage(1, int(block.is_error))
        elif entry.type in ("phase", "archive_summary"):
            answered_by = entry.model or model
        elif entry.type == "model_change":
            model = f"{entry.provider}:{entry.model_id}"
        elif entry.type == "turn_end" and entry.reply is not None:
            usage = _without(entry.reply.usage, recorded)  # requests that failed have no message
        if entry.timestamp <= copied_at:
            continue
        if usage is not None:
            if entry.type != "archive_summary":  # its request is not part of the turn
                recorded += usage
            if usage.model_calls or usage.cost_usd or usage.input_tokens or usage.output_tokens:
                models[day, answered_by] += ModelUsage(usage.model_calls, usage)
    days: dict[str, DailyUsage] = {}
    for (day, name), model_usage in models.items():
        days.setdefault(day, DailyUsage({}, {})).models[name] = model_usage
    for (day, name), tool_usage in tools.items():
        days.setdefault(day, DailyUsage({}, {})).tools[name] = tool_usage
    return days


def _without(total: Usage, part: Usage) -> Usage:
    """Return the usage in `total` that is not in `part`."""
    differences = {
        name: max(0, round(getattr(total, name) - getattr(part, name), 12))
        for name in Usage.__struct_fields__
        if name != "cost_known"
    }
    return Usage(**differences, cost_known=total.cost_known or not part.cost_known)
