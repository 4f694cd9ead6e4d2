"""The questions of a root's agents, from being asked to being answered, once, by whoever is there."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final

from orch_protocol.approval import Answered, AnswerQuestion, Consent, Permission, Question
from orch_protocol.errors import ConfigError
from orch_protocol.policy import EXIT_PLAN
from orch_worker.opinion import Opinion

from .grants import Grant, Grants, covers, made

__all__ = ["Approvals", "Approver", "OnQuestion"]

Approver = Callable[[Question], Consent | bool | Awaitable[Consent | bool]]
OnQuestion = Callable[[Question], None]

REMEMBERED: Final = 256
NOBODY: Final = "it needs approval and nobody is there to ask"


class Approvals:
    """Brings each question to one who can answer it: the client that waits for the answer of the asking agent's first
    ancestor, or else the program's `approver`; where there is neither, the answer is no, at once.

    `home` is where the grants of projects are kept; `opinion` is what the program's own function says of calls.
    """

    def __init__(
        self,
        home: Path,
        approver: Approver | None = None,
        clock: Callable[[], float] = time.time,
        *,
        opinion: Opinion | None = None,
    ) -> None:
        self.opinion = opinion
        self._approver = approver
        self._grants = Grants(home)
        self._sessions: dict[str, list[Grant]] = {}
        self._clock = clock
        self._clients: dict[str, OnQuestion] = {}
        self._open: dict[str, asyncio.Future[Consent]] = {}
        self._asked_by: dict[str, str] = {}
        self._settled: dict[str, str] = {}
        self._turn = asyncio.Lock()

    def attend(self, query_id: str, client: OnQuestion) -> None:
        """Let `client` be told of what is asked while the query is under way."""
        self._clients[query_id] = client

    def leave(self, query_id: str) -> None:
        """The client of the query is gone, or has its answer: what it was asked is answered with no."""
        self._clients.pop(query_id, None)
        for id in [id for id, asked_by in self._asked_by.items() if asked_by == query_id]:
            self._settle(id, Consent(False), "whoever was asked is gone")

    def attended(self, query_id: str | None) -> bool:
        """Say whether a client can be asked for that query."""
        return query_id in self._clients

    async def ask(self, question: Question, session: str, query_id: str | None, seconds: float) -> str:
        """Return why the call may not run, "" when it may. `session` is the asking agent's first ancestor.

        `query_id` is the query whose client is to be asked. Never waits longer than `seconds`.
        """
        now = self._clock()
        is_plan = question.tool == EXIT_PLAN  # what was said of one plan says nothing of the next
        if not is_plan and any(covers(grant, question, now) for grant in self._known(question.folder, session)):
            return ""
        try:
            async with asyncio.timeout(seconds):
                if query_id is not None and self.attended(query_id):
                    answer = await self._ask_client(question, query_id)
                elif self._approver is not None:
                    answer = await self._ask_program(question, self._approver)
                else:
                    return NOBODY
        except TimeoutError:
            self._note(question.id, "nobody answered in time")
            return f"it needs approval and nobody answered within {seconds:g} s"
        if not answer.allow:
            return self._settled.get(question.id) or "the user said no"
        if is_plan:
            return ""
        if answer.scope == "session":
            self._sessions.setdefault(session, []).append(made(question, answer, self._clock()))
        elif answer.scope == "project":
            self._grants.add(made(question, answer, self._clock()), self._clock())
        return ""

    def answer(self, said: AnswerQuestion) -> Answered:
        """Take a client's answer. The first one counts."""
        if said.id not in self._open:
            return Answered(
                False, self._settled.get(said.id) or "there is no such question, or it was answered already"
            )
        self._settle(said.id, Consent(said.allow, said.scope, said.pattern, said.seconds), "")
        return Answered(True)

    def permissions(self, folder: str | None = None) -> list[Permission]:
        """Return what was approved for later and still holds, for `folder`, None: for all. Raises ConfigError."""
        now = self._clock()
        return [
            shown
            for grant, session in self._all(folder)
            if (shown := _shown(grant, session)).expires_at is None or shown.expires_at > now
        ]

    def revoke(self, ids: Iterable[str] | None, folder: str | None = None) -> list[Permission]:
        """Take the permissions called `ids` back, None: all for `folder`; return them. Raises ConfigError, StoreError.

        Either all of them, or none when one is not known.
        """
        known = self._all(folder if ids is None else None)
        wanted = {grant.id for grant, _ in known} if ids is None else set(ids)
        if missing := wanted - {grant.id for grant, _ in known}:
            raise ConfigError(f"there is no permission {', '.join(sorted(missing))}: see orch config permissions")
        gone = [(grant, session) for grant, session in known if grant.id in wanted]
        self._grants.revoke([grant.id for grant, session in gone if not session])
        for grant, session in gone:
            if session:
                self._sessions[session].remove(grant)
        return [_shown(grant, session) for grant, session in gone]

    def _all(self, folder: str | None) -> list[tuple[Grant, str]]:
        """Return all grants for `folder` (None: for all), each with whose session it is of."""
        sessions = [(grant, session) for session, grants in self._sessions.items() for grant in grants]
        mine = [(grant, session) for grant, session in sessions if folder in (None, grant.folder)]
        return [*((grant, "") for grant in self._grants.of(folder)), *mine]

    def _known(self, folder: str, session: str) -> list[Grant]:
        return [*self._sessions.get(session, ()), *self._grants.of(folder)]

    async def _ask_client(self, question: Question, query_id: str) -> Consent:
        waiting: asyncio.Future[Consent] = asyncio.get_running_loop().create_future()
        self._open[question.id] = waiting
        self._asked_by[question.id] = query_id
        try:
            self._clients[query_id](question)
            answer = await waiting
        finally:
            self._open.pop(question.id, None)
            self._asked_by.pop(question.id, None)
            if waiting.cancelled():
                self._note(question.id, "the call is not waited for any more")
        return answer

    async def _ask_program(self, question: Question, approver: Approver) -> Consent:
        async with self._turn:  # one question after the other: whoever answers sees one at a time
            try:
                of_loop = inspect.iscoroutinefunction(approver)
                said: Any = approver(question) if of_loop else await asyncio.to_thread(approver, question)
                if inspect.isawaitable(said):
                    said = await said
            except Exception as error:
                self._note(question.id, f"the approver failed: {type(error).__name__}: {error}")
                return Consent(False)
        if not isinstance(said, (bool, Consent)):
            self._note(question.id, f"the approver answered {type(said).__name__}, not a Consent, True or False")
            return Consent(False)
        return said if isinstance(said, Consent) else Consent(said)

    def _settle(self, id: str, answer: Consent, why: str) -> None:
        waiting = self._open.pop(id, None)
        if waiting is not None and not waiting.done():
            self._note(id, why)
            waiting.set_result(answer)

    def _note(self, id: str, why: str) -> None:
        self._settled[id] = why
        while len(self._settled) > REMEMBERED:
            del self._settled[next(iter(self._settled))]


def _shown(grant: Grant, session: str) -> Permission:
    return Permission(
        grant.id,
        "session" if session else "project",
        grant.tool,
        grant.subject,
        bool(grant.digest),
        grant.folder,
        grant.made_at,
        grant.expires_at,
        session,
    )
