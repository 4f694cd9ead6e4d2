"""Transcripts that the root rewrites: what the journal knows of their last line must change with them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from orch_worker.session.log.append_log import last_position
from orch_worker.session.transcript import NAME

from ...tree.agents.state import AgentRecord
from ...tree.journal.entries import TranscriptRewritten

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["rewriting_transcripts"]


@asynccontextmanager
async def rewriting_transcripts(root: Supervisor, nodes: Iterable[AgentRecord]) -> AsyncIterator[None]:
    """Let the transcripts of `nodes`, which have no process, be rewritten or removed within the block.

    Until its end the journal knows no line of them: a root that is killed in between leaves nothing that looks like a
    truncated transcript. Raises StoreError.
    """
    known = [node for node in nodes if node.transcript is not None]
    for node in known:
        root.note(TranscriptRewritten(at=root.clock(), id=node.spec.id))
    yield
    for node in known:
        position = await root.disk.do(last_position, Path(node.spec.folder, NAME))
        if position is not None:
            root.note(TranscriptRewritten(at=root.clock(), id=node.spec.id, transcript=position))
