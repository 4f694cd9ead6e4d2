"""The prompt in a turn: the system prompt, texts before the user's prompt, and the end of each request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.wire.worker_messages import Query

from ...context.archiving import TurnArchiver
from ...prompt.builder import PromptBuilder, PromptHooks
from ...prompt.instructions import first_prompt
from ...session.interruption_notes import interruption_note_adder
from ...session.transcript import Transcript
from .turn_extension import TurnExtension, TurnState

__all__ = ["TurnPrompt"]


class TurnPrompt(TurnExtension):
    """Builds prompts from the contributions of the other extensions. Always active, and last in an agent's list.

    `block` returns the list of live subagents and archives. It is None for an agent that can have neither subagents nor
    archives. `archiver` is None if archival is off. `hooks` returns the agent's hooks.
    """

    def __init__(
        self,
        spec: AgentSpec,
        builder: PromptBuilder,
        transcript: Transcript,
        *,
        needs_task: bool,
        archiver: TurnArchiver | None,
        block: Callable[[], Awaitable[str]] | None,
        hooks: Callable[[], PromptHooks | None],
    ) -> None:
        self._spec = spec
        self._builder = builder
        self._transcript = transcript
        self._archiver = archiver
        self._hooks = hooks
        self._add_interruption_note: Callable[[str], str] = str
        self.block = block
        self.needs_task = needs_task
        """Whether the agent does not know its task yet. The runtime updates this attribute."""
        self.live = ""
        """The list of live subagents and archives in the next request. Other extensions set this attribute."""
        self.budget_warning = ""
        """The warning about budgets that are nearly used up, or "". The budget extension sets this attribute."""

    async def turn_began(self, query_id: str, query: Query) -> None:  # noqa: ARG002
        """Find out how the previous turn was interrupted, before the new turn changes the session."""
        self._add_interruption_note = interruption_note_adder(
            self._transcript.session, ended=query.ended, died=query.died
        )

    async def before_prompt(self, turn: TurnState) -> None:
        """Build the system prompt. Add the task, and a note about an interruption, before the prompt."""
        needs_task = self.needs_task
        await self._builder.begin(self._hooks(), self.block, fresh=needs_task)
        turn.prompt = self._add_interruption_note(turn.prompt)
        if needs_task:
            turn.prompt = first_prompt(self._spec, turn.prompt)

    async def before_request(self, turn: TurnState) -> None:  # noqa: ARG002
        """Set the end of the request."""
        self._builder.before_request(self.live, self._archiver, budget_warning=self.budget_warning)
