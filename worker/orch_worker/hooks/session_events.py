"""What is said to hooks of what becomes of a conversation: its parts go to archives, its beginning to a summary."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.core.archives import Collapse
from orch_protocol.core.messages import Block, Message, Opaque, ToolUse
from orch_protocol.core.text import scrub
from orch_protocol.hooks import events as stages

from ..conversation.stubs import body_of, replace_record, stubs_in, with_body
from .runner import HookCalls

__all__ = ["ArchivalHooks", "ArchiveDecision", "CompactionDecision", "copy_messages"]


class ArchiveDecision(Struct, frozen=True):
    """An archive as it goes on record. Of one whose summary is `supplied` no model writes another."""

    collapse: Collapse
    supplied: bool = False


class CompactionDecision(Struct, frozen=True):
    """What hooks say of a compaction: what its writer is told, the `summary` itself, "" for one that is to be written,
    and the lines that are added to it."""

    instructions: str = ""
    summary: str = ""
    added: tuple[str, ...] = ()


class ArchivalHooks:
    """The hooks of one agent, as those see them who shorten its conversation."""

    def __init__(self, calls: HookCalls) -> None:
        self._calls = calls

    async def before_archive(self, collapse: Collapse, messages: Sequence[Message]) -> ArchiveDecision | None:
        """Return what is to go on record of the archive of `messages`, None when it is not to be made."""
        asked = [text for message in collapse.messages for text in stubs_in(message).values()]
        if "before_archive" not in self._calls.on or not asked:
            return ArchiveDecision(collapse)
        event = stages.BeforeArchive(
            holder=collapse.holder,
            kind=collapse.kind,
            task=collapse.task,
            messages=copy_messages(messages),
            summary=body_of(asked[-1]),
        )
        followed = await self._calls.run(event)
        assert isinstance(followed.event, stages.BeforeArchive)
        if followed.decision is not None:
            return None
        supplied = any("summary" in done.actions for done in followed.done)
        if not supplied and not followed.inject:
            return ArchiveDecision(collapse)
        body = scrub("\n".join((followed.event.summary, *followed.inject)))
        stub = with_body(asked[-1], body)
        return ArchiveDecision(
            replace(collapse, messages=tuple(replace_record(each, stub) for each in collapse.messages)), supplied
        )

    def archived(self, collapse: Collapse) -> None:
        """The archive is on record."""
        self._calls.tell("archived", holder=collapse.holder, kind=collapse.kind, task=collapse.task)

    async def before_compaction(
        self, reason: str, messages: Sequence[Message], tokens: int, instructions: str = ""
    ) -> CompactionDecision | None:
        """Return what hooks say of a compaction of `messages`, a conversation of `tokens`, None when it is not to be.

        `reason` is `size`, `asked` or `refused`.
        """
        if "before_compaction" not in self._calls.on:
            return CompactionDecision(instructions)
        event = stages.BeforeCompaction(
            reason=reason, messages=copy_messages(messages), tokens=tokens, instructions=instructions
        )
        followed = await self._calls.run(event)
        if followed.decision is not None:
            return None
        said = followed.event
        assert isinstance(said, stages.BeforeCompaction)
        return CompactionDecision(scrub(said.instructions), scrub(said.summary), tuple(map(scrub, followed.inject)))

    def compacted(self, reason: str, summary: str, *, tokens_before: int, tokens_after: int, supplied: bool) -> None:
        """The compaction is on record."""
        told = {"tokens_before": tokens_before, "tokens_after": tokens_after, "supplied": supplied}
        self._calls.tell("compaction", reason=reason, summary=summary, **told)


def copy_messages(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return `messages` as they can be handed to anybody: whatever is done to them, the conversation stays as it is."""
    return tuple(
        replace(message, content=tuple(map(_detached, message.content)))
        if any(isinstance(block, (ToolUse, Opaque)) for block in message.content)
        else message
        for message in messages
    )


def _detached(block: Block) -> Block:
    if isinstance(block, ToolUse):
        return replace(block, input=deepcopy(block.input))
    return replace(block, raw=deepcopy(block.raw)) if isinstance(block, Opaque) else block
