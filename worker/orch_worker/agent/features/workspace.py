"""The workspace in a turn. Requests list the artifacts that are available to the agent."""

from __future__ import annotations

from orch_protocol.core.messages import Reply
from orch_protocol.wire.worker_messages import Query

from ...prompt.builder import PromptBuilder
from ...workspace.workspace import WorkspaceSession
from .turn_extension import TurnExtension, TurnState

__all__ = ["WorkspaceExtension"]


class WorkspaceExtension(TurnExtension):
    """Adds the artifacts of `workspace` to the end of each request. `prompt` builds the requests."""

    def __init__(self, workspace: WorkspaceSession, prompt: PromptBuilder) -> None:
        self._workspace = workspace
        self._prompt = prompt

    async def turn_began(self, query_id: str, query: Query) -> None:
        """Assign artifacts that are created from now on to this turn."""
        self._workspace.turn_began(query_id, query.prompt)

    async def before_prompt(self, turn: TurnState) -> None:
        """Update the list of artifacts before hooks receive the prompt."""
        await self.before_request(turn)

    async def before_request(self, turn: TurnState) -> None:  # noqa: ARG002
        """Update the list of artifacts."""
        self._prompt.workspace_block = await self._workspace.prompt_block()

    async def reply(self, reply: Reply) -> Reply:
        """Record the artifacts of the last calls. Raise StoreError if the artifacts cannot be written."""
        await self._workspace.record_results()
        return reply
