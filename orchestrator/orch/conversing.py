"""Sessions: agents that one talks to, rather than ones that are given a task."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, cast

from orch_protocol.budget import Budget
from orch_protocol.errors import ConfigError
from orch_protocol.messages import Message, Reply
from orch_protocol.spec import Limits

from .approvals import Approver
from .arguments import Scripted, ToolLike
from .handles import AsyncSubagent, OnEvent
from .templates import PromptTemplate

if TYPE_CHECKING:
    from .aio import AsyncOrchestrator

__all__ = ["AsyncSession", "Conversing"]

TASK: Final = "Talk with the user, and do what they ask."


class AsyncSession(AsyncSubagent):
    """An agent that one talks to: what any agent can do, and `run`."""

    async def run(self, text: str, *, timeout: float | None = None, on_event: OnEvent | None = None) -> Reply:
        """Say `text`, and return what the agent says to it; see `query`.

        Where its turn goes to an archive, `archived_to` of the reply is who holds it.
        """
        return await self.query(text, timeout=timeout, on_event=on_event)


class Conversing:
    """An orchestrator with sessions."""

    async def session(
        self,
        *,
        tools: Iterable[ToolLike] | None = None,
        resume: bool | str | int = False,
        history: Sequence[Message] | None = None,
        system: str | None = None,
        approve: Approver | None = None,
        plan: bool = False,
        preset: str | None = None,
        model: str | None = None,
        backend: Scripted | None = None,
        name: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
        limits: Limits | None = None,
        budget: Budget | None = None,
    ) -> AsyncSession:
        """Return an agent to talk to: `await session.run("...")`, `await session.execute("/status")`.

        With `resume` it is the session of this run that was active last, killed or not, if there is one; a reference
        names one that must be there. Such a one stays what it was made as: the other arguments, but for `approve`, are
        for a new one. `system` is the text that says who it is, as it stands; `history` what was said before. `approve`
        answers what needs approval in it and below it, in place of the orchestrator's own. For the rest see `spawn`.
        Raises SpawnError, ConfigError, AgentNotFoundError and kin.
        """
        o = cast("AsyncOrchestrator", self)
        if approve is not None and not callable(approve):
            raise ConfigError(f"approve is a function that is called with a Question, not {approve!r}")
        if not isinstance(system, str | None):
            raise ConfigError(f"system is text, not {system!r}")
        if (found := await _resumed(o, resume)) is None:
            said = None if system is None else PromptTemplate.literal("session", system, "system=")
            agent = await o.spawn(
                TASK,
                tools=tools,
                history=history or (),
                prompt_template=said,
                plan=plan,
                preset=preset,
                model=model,
                backend=backend,
                name=name,
                cwd=cwd,
                limits=limits,
                budget=budget,
                depth=0,
            )
            found = agent.id
        if approve is not None:
            o.supervisor.approvals.answered_by(found, approve)
        return AsyncSession(o, found)


async def _resumed(o: AsyncOrchestrator, resume: bool | str | int) -> str | None:
    """Return the id of the session that is to go on, None: a new one."""
    if resume is False:
        return None
    if resume is True:
        mine = [row for row in await o.agents(all=True) if row.depth == 0]
        if not mine:
            return None
        row = max(mine, key=lambda row: row.last_activity)
    else:
        row = await (await o.get(resume)).state()
        if row.kind == "holder":
            raise ConfigError(f"{resume!r} is an archive: it is asked, and no session goes on there")
    if row.status in ("killed", "failed"):
        await o.resume(row.id)
    return row.id
