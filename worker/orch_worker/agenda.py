"""What an agent is up to: whether it plans still, and its tasks. What changes there is an entry of its transcript."""

from __future__ import annotations

from orch_protocol.tasks import Task

from .transcript import Transcript

__all__ = ["Agenda"]


class Agenda:
    """The agenda of the agent whose `transcript` that is. `planning` says that it is to plan, as its root knows it;
    `plan` is the id of that plan mode."""

    def __init__(self, transcript: Transcript, *, planning: bool, plan: str = "") -> None:
        self._transcript = transcript
        self._planning = planning
        self._plan = plan
        self._turn = ""

    @property
    def planning(self) -> bool:
        """Whether nothing may be written or run, because no plan was approved yet."""
        return self._planning and self._plan not in self._transcript.session.plans_approved

    @property
    def plans(self) -> bool:
        """Whether it is an agent that plans, or did: its tools stay the same, so that what is cached of it holds."""
        return self._planning or bool(self._transcript.session.plans_approved)

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
        """End this plan mode, for good. Raises StoreError, and it goes on, when that cannot be recorded."""
        self._transcript.plan_approved(self._plan)
