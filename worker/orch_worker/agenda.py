"""What an agent is up to: whether it plans still, and its tasks. What changes there is an entry of its transcript."""

from __future__ import annotations

from typing import Final

from orch_protocol.tasks import Task

from . import tasks
from .transcript import Transcript

__all__ = ["PLAN_MODE", "Agenda"]

PLAN_MODE: Final = """\
# Plan mode

You plan: look, and change nothing. Whatever writes or runs something is denied, to you and to subagents you start. \
Find out what you need, then call exit_plan_mode with a concrete plan in Markdown: what is to be changed, where, in \
which order, and how it will be checked. Where that is denied for an agent above you, the plan is your answer."""


class Agenda:
    """The agenda of the agent whose `transcript` that is. `planning` says that it is to plan, as its root knows it."""

    def __init__(self, transcript: Transcript, *, planning: bool) -> None:
        self._transcript = transcript
        self._planning = planning
        self._turn = ""

    @property
    def planning(self) -> bool:
        """Whether nothing may be written or run, because no plan was approved yet."""
        return self._planning and not self._transcript.session.plan_approved

    @property
    def plans(self) -> bool:
        """Whether it is an agent that plans, or did: its tools stay the same, so that what is cached of it holds."""
        return self._planning or self._transcript.session.plan_approved

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Its tasks, as they stand on the path that the conversation took."""
        return self._transcript.session.tasks

    def turn_began(self, turn: str) -> None:
        """What changes from now on does so in the query `turn`."""
        self._turn = turn

    def set_tasks(self, changed: tuple[Task, ...]) -> None:
        """Let its tasks be those. Raises StoreError, and they are what they were, when that cannot be recorded."""
        self._transcript.tasks(changed, self._turn)

    def approve_plan(self) -> None:
        """End plan mode, for good. Raises StoreError, and it goes on, when that cannot be recorded."""
        self._transcript.plan_approved()

    def block(self) -> str:
        """Return what is to be said of it at the end of the next request, "" for nothing."""
        if not self.planning and not self.tasks:
            return ""
        parts = (PLAN_MODE if self.planning else "", tasks.block(self.tasks))
        return "\n\n".join(filter(None, parts))
