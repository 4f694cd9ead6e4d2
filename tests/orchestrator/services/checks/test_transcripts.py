"""What the journal knows of a transcript while the root rewrites it."""

from __future__ import annotations

from pathlib import Path

from orch.services.checks.transcripts import rewriting_transcripts
from orch_worker.session.log.append_log import last_position
from orchestrator.root_double import opened


async def test_journal_knows_no_line_of_a_transcript_that_is_being_rewritten(tmp_path: Path) -> None:
    """A root that is killed in the middle leaves no false alarm; afterwards the last line is known again."""
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
