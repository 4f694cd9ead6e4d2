"""The questions of a root's agents, from being asked to being answered, once, by whoever is there."""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.text import scrub
from orch_protocol.policy.approval import AnswerQuestion, AnswerResult, Consent, Permission, Question
from orch_protocol.policy.policy import EXIT_PLAN
from orch_worker.policy.policy_callback import PolicyCallback
from orch_worker.system.threads import await_result, in_thread

from .grants import Grant, GrantStore, covers, grant_of

__all__ = ["NOBODY_TO_ASK", "ApprovalBroker", "Approver", "OnQuestion"]

Approver = Callable[[Question], Consent | bool | Awaitable[Consent | bool]]
OnQuestion = Callable[[Question], None]
OnQuestionClosed = Callable[[str], None]

MAX_REMEMBERED: Final = 256
NOBODY_TO_ASK: Final = "it needs approval and nobody is there to ask"


class _Approver(NamedTuple):
    """Somebody who can answer."""

    ask: OnQuestion
    over: OnQuestionClosed | None


class _OpenQuestion(NamedTuple):
    """A question that waits for an answer from those who attend `about`."""

    question: Question
    about: str
    waiting: asyncio.Future[Consent]


class ApprovalBroker:
    """Brings each question to those who can answer it: whoever waits for the answer of the asking agent's first
    ancestor, or watches that, or else the program's `approver`; where there is nobody, the answer is no, at once.

    `home` is where the grants of projects are kept; `opinion` is what the program's own function says of calls.
    """

    def __init__(
        self,
        home: Path,
        approver: Approver | None = None,
        clock: Callable[[], float] = time.time,
        *,
        opinion: PolicyCallback | None = None,
    ) -> None:
        self.opinion = opinion
        self._approver = approver
        self._grants = GrantStore(home)
        self._sessions: dict[str, list[Grant]] = {}
        self._approvers: dict[str, Approver] = {}
        self._clock = clock
        self._clients: dict[str, list[_Approver]] = {}
        self._open: dict[str, _OpenQuestion] = {}
        self._settled: dict[str, str] = {}
        self._denied: Counter[str] = Counter()
        self._turn = asyncio.Lock()

    def attend(self, about: str, client: OnQuestion, over: OnQuestionClosed | None = None) -> None:
        """Let `client` be told of what is asked while the query `about` is under way, or of the agent `about`.

        It is told at once of what was asked about that and waits for an answer; `over` is called with the id of each
        question that waits for none any more, whoever gave it.
        """
        self._clients.setdefault(about, []).append(_Approver(client, over))
        for each in list(self._open.values()):
            if each.about == about:
                client(each.question)

    def leave(self, about: str, client: OnQuestion, *, returns: bool = False) -> None:
        """The client is gone, or has its answer. Unless somebody is left, or `returns`, what was asked is denied."""
        left = [each for each in self._clients.pop(about, ()) if each.ask != client]
        if left:
            self._clients[about] = left
        elif not returns:
            for id in [id for id, each in self._open.items() if each.about == about]:
                self._settle(id, Consent(False), "whoever was asked is gone")

    def attended(self, about: str | None) -> bool:
        """Say whether a client can be asked about that query or agent."""
        return about in self._clients

    async def ask(self, question: Question, session: str, about: str | None, seconds: float) -> str:
        """Return why the call may not run, "" when it may. `session` is the asking agent's first ancestor.

        `about` is the query or agent whose clients are to be asked. Never waits longer than `seconds`.
        """
        now = self._clock()
        is_plan = question.tool == EXIT_PLAN  # what was said of one plan says nothing of the next
        if not is_plan and any(covers(grant, question, now) for grant in self._known(question.folder, session)):
            return ""
        try:
            async with asyncio.timeout(seconds):
                if about is not None and self.attended(about):
                    answer = await self._ask_clients(question, about)
                elif (approver := self._approvers.get(session, self._approver)) is not None:
                    answer = await self._ask_program(question, approver)
                else:
                    return NOBODY_TO_ASK
        except TimeoutError:
            self._note(question.id, "nobody answered in time")
            return f"it needs approval and nobody answered within {seconds:g} s"
        if not answer.allow:
            said = f"the user said no: {answer.reason}" if answer.reason else "the user said no"
            return self._settled.get(question.id) or said
        if is_plan:
            return ""
        if answer.scope == "session":
            self._sessions.setdefault(session, []).append(grant_of(question, answer, self._clock()))
        elif answer.scope == "project":
            self._grants.add(grant_of(question, answer, self._clock()), self._clock())
        return ""

    def by_pattern(self, question: Question, session: str) -> bool:
        """Return whether a pattern that was approved earlier answers `question`, and no approval of this very call."""
        now = self._clock()
        found = [grant for grant in self._known(question.folder, session) if covers(grant, question, now)]
        return bool(found) and not any(grant.digest for grant in found)

    def answered_by(self, session: str, approver: Approver) -> None:
        """Let `approver` answer for the agent `session` and those below it, in place of the one for all."""
        self._approvers[session] = approver

    def answer(self, said: AnswerQuestion) -> AnswerResult:
        """Take a client's answer. The first one counts."""
        if said.id not in self._open:
            return AnswerResult(
                False, self._settled.get(said.id) or "there is no such question, or it was answered already"
            )
        if _is_nan(said.seconds):
            return AnswerResult(False, "its seconds are no number: say how long it holds, or leave them out")
        if said.unasked:
            self._settle(said.id, Consent(False), NOBODY_TO_ASK)
        else:
            self._settle(said.id, Consent(said.allow, said.scope, said.pattern, said.seconds, said.reason), "")
        return AnswerResult(True)

    def count_denied(self, query_ids: Iterable[str]) -> None:
        """Count a call that was denied because nobody could be asked, for each of the queries it was made for."""
        self._denied.update(query_ids)

    def take_denied(self, query_id: str) -> int:
        """Return how many calls were counted for a query that ends now, and forget the number."""
        return self._denied.pop(query_id, 0)

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
            raise ConfigError(
                f"no permission with id {', '.join(sorted(missing))}; list them with `orch config permissions`"
            )
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

    async def _ask_clients(self, question: Question, about: str) -> Consent:
        waiting: asyncio.Future[Consent] = asyncio.get_running_loop().create_future()
        self._open[question.id] = _OpenQuestion(question, about, waiting)
        try:
            for client in list(self._clients[about]):
                client.ask(question)
            answer = await waiting
        finally:
            self._open.pop(question.id, None)
            for client in list(self._clients.get(about, ())):
                if client.over is not None:
                    client.over(question.id)
            if waiting.cancelled():
                self._note(question.id, "the call is not waited for any more")
        return answer

    async def _ask_program(self, question: Question, approver: Approver) -> Consent:
        async with self._turn:  # one question after the other: whoever answers sees one at a time
            said, error = await self._said(question, approver)
        if error:
            self._note(question.id, f"the approver failed: {error}")
            return Consent(False)
        if not isinstance(said, (bool, Consent)):
            self._note(question.id, f"the approver answered {type(said).__name__}, not a Consent, True or False")
            return Consent(False)
        if isinstance(said, bool):
            return Consent(said)
        try:
            if _is_nan(said.seconds):
                raise msgspec.ValidationError(f"seconds is {said.seconds!r}")
            return replace(msgspec.convert(msgspec.structs.asdict(said), Consent), reason=scrub(said.reason))
        except msgspec.ValidationError as error:
            self._note(question.id, f"the approver answered a Consent that is none: {error}")
            return Consent(False)

    async def _said(self, question: Question, approver: Approver) -> tuple[Any, str]:
        """Return what the approver answered, or what it raised as text."""
        if inspect.iscoroutinefunction(approver):
            said: Any = approver(question)
        else:
            said, error = await in_thread(lambda: approver(question))
            if error:
                return None, error
        return await await_result(said)

    def _settle(self, id: str, answer: Consent, why: str) -> None:
        asked = self._open.pop(id, None)
        if asked is not None and not asked.waiting.done():
            self._note(id, why)
            asked.waiting.set_result(answer)

    def _note(self, id: str, why: str) -> None:
        self._settled[id] = why
        while len(self._settled) > MAX_REMEMBERED:
            del self._settled[next(iter(self._settled))]


def _is_nan(seconds: Any) -> bool:
    """Say whether `seconds` are no number: no time comes after so many."""
    return isinstance(seconds, float) and math.isnan(seconds)


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
