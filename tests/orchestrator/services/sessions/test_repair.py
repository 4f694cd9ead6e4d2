"""The last line of a transcript as recorded in the journal, while the root rewrites the transcript."""

from __future__ import annotations

from pathlib import Path

from orch.services.sessions.repair import rewriting_transcripts
from orch_worker.session.log.log_reader import last_position
from orchestrator.root_double import opened


async def test_transcript_being_rewritten_has_no_known_last_line(tmp_path: Path) -> None:
    """If the root is killed during the rewrite, the next root must not report the changed file as damaged."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("hello")
        await agent.query("hi")
        node = world.supervisor.tree.agents[agent.id]
        last = last_position(Path(node.spec.folder, "session.jsonl"))
        assert last is not None
        assert node.transcript == last
        async with rewriting_transcripts(world.supervisor, [node]):
            assert world.refolded().agents[agent.id].transcript is None
        assert world.refolded().agents[agent.id].transcript == last
