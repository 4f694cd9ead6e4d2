"""Runs the hooks for archiving and compaction of a conversation."""

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
    """The archive to record.

    `supplied` is True if a hook provided the summary. Then no model writes a summary.
    """

    collapse: Collapse
    supplied: bool = False


class CompactionDecision(Struct, frozen=True):
    """The hooks' changes to a compaction: instructions for the model, a `summary`, and lines to add.

    If `summary` is "", the model writes the summary.
    """

    instructions: str = ""
    summary: str = ""
    added: tuple[str, ...] = ()


class ArchivalHooks:
    """The archiving and compaction stages of an agent's hooks."""

    def __init__(self, calls: HookCalls) -> None:
        self._calls = calls

    async def before_archive(self, collapse: Collapse, messages: Sequence[Message]) -> ArchiveDecision | None:
        """Return the archive of `messages` to record, or None if a hook prevents archiving."""
        stubs = [text for message in collapse.messages for text in stubs_in(message).values()]
        if "before_archive" not in self._calls.active_stages or not stubs:
            return ArchiveDecision(collapse)
        event = stages.BeforeArchive(
            holder=collapse.holder,
            kind=collapse.kind,
            task=collapse.task,
            messages=copy_messages(messages),
            summary=body_of(stubs[-1]),
        )
        stage_result = await self._calls.run(event)
        assert isinstance(stage_result.event, stages.BeforeArchive)
        if stage_result.decision is not None:
            return None
        supplied = any("summary" in effect.actions for effect in stage_result.effects)
        if not supplied and not stage_result.inject:
            return ArchiveDecision(collapse)
        body = scrub("\n".join((stage_result.event.summary, *stage_result.inject)))
        stub = with_body(stubs[-1], body)
        return ArchiveDecision(
            replace(collapse, messages=tuple(replace_record(each, stub) for each in collapse.messages)), supplied
        )

    def archived(self, collapse: Collapse) -> None:
        """Notify hooks that an archive was recorded."""
        self._calls.notify("archived", holder=collapse.holder, kind=collapse.kind, task=collapse.task)

    async def before_compaction(
        self, reason: str, messages: Sequence[Message], tokens: int, instructions: str = ""
    ) -> CompactionDecision | None:
        """Return the hooks' changes to a compaction of `messages`, or None if a hook prevents the compaction.

        `tokens` is the size of the conversation. `reason` is a CompactionReason.
        """
        if "before_compaction" not in self._calls.active_stages:
            return CompactionDecision(instructions)
        event = stages.BeforeCompaction(
            reason=reason, messages=copy_messages(messages), tokens=tokens, instructions=instructions
        )
        stage_result = await self._calls.run(event)
        if stage_result.decision is not None:
            return None
        patched = stage_result.event
        assert isinstance(patched, stages.BeforeCompaction)
        return CompactionDecision(
            scrub(patched.instructions), scrub(patched.summary), tuple(map(scrub, stage_result.inject))
        )

    def compacted(self, reason: str, summary: str, *, tokens_before: int, tokens_after: int, supplied: bool) -> None:
        """Notify hooks that a compaction was recorded."""
        fields = {"tokens_before": tokens_before, "tokens_after": tokens_after, "supplied": supplied}
        self._calls.notify("compaction", reason=reason, summary=summary, **fields)


def copy_messages(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return copies of `messages` that a hook can change without changing the conversation."""
    return tuple(
        replace(message, content=tuple(map(_copy_block, message.content)))
        if any(isinstance(block, (ToolUse, Opaque)) for block in message.content)
        else message
        for message in messages
    )


def _copy_block(block: Block) -> Block:
    if isinstance(block, ToolUse):
        return replace(block, input=deepcopy(block.input))
    return replace(block, raw=deepcopy(block.raw)) if isinstance(block, Opaque) else block
