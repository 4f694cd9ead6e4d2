"""What an agent is up to: whether it plans still. What changes in that is an entry of its transcript."""

from __future__ import annotations

from typing import Final

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

    @property
    def planning(self) -> bool:
        """Whether nothing may be written or run, because no plan was approved yet."""
        return self._planning and not self._transcript.session.plan_approved

    @property
    def plans(self) -> bool:
        """Whether it is an agent that plans, or did: its tools stay the same, so that what is cached of it holds."""
        return self._planning or self._transcript.session.plan_approved

    def approve_plan(self) -> None:
        """End plan mode, for good. Raises StoreError, and it goes on, when that cannot be recorded."""
        self._transcript.plan_approved()

    def block(self) -> str:
        """Return what is to be said of it at the end of the next request, "" for nothing."""
        return PLAN_MODE if self.planning else ""
