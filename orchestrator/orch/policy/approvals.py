"""Approvals of calls.

Questions of agents go to clients or to the program's approver. The first answer to a question counts.
"""

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

from orch_protocol.core.errors import EntryNotFoundError
from orch_protocol.core.text import scrub
from orch_protocol.policy.approval import Consent, Permission, Question
from orch_protocol.policy.policy import EXIT_PLAN
from orch_protocol.services.policy.approvals import AnswerQuestion, AnswerResult
from orch_worker.policy.policy_callback import PolicyCallback
from orch_worker.system.threads import await_result, in_thread

from .grants import Grant, GrantStore, covers, grant_of

__all__ = ["NO_APPROVER", "ApprovalBroker", "Approver", "OnQuestion"]

Approver = Callable[[Question], Consent | bool | Awaitable[Consent | bool]]
OnQuestion = Callable[[Question], None]
OnQuestionClosed = Callable[[str], None]

MAX_REMEMBERED: Final = 256
NO_APPROVER: Final = "it needs approval, and there is no one to ask"


class _Client(NamedTuple):
    """A client that can answer questions."""

    ask: OnQuestion
    on_closed: OnQuestionClosed | None


class _OpenQuestion(NamedTuple):
    """A question that waits for an answer from the clients registered for `target_id`."""

    question: Question
    target_id: str
    waiting: asyncio.Future[Consent]


class ApprovalBroker:
    """Routes each question to the clients that can answer the question.

    A client can answer if it waits for a reply of the asking agent's top-level ancestor, or watches this ancestor. If
    there are no clients, the program's `approver` decides. If there is no approver either, the call is denied at once.
    `home` contains the grants of projects. `policy_callback` is the program's own policy function.
    """

    def __init__(
        self,
        home: Path,
        approver: Approver | None = None,
        clock: Callable[[], float] = time.time,
        *,
        policy_callback: PolicyCallback | None = None,
    ) -> None:
        self.policy_callback = policy_callback
        self._approver = approver
        self._grants = GrantStore(home)
        self._session_grants: dict[str, list[Grant]] = {}
        self._approvers: dict[str, Approver] = {}
        self._clock = clock
        self._clients: dict[str, list[_Client]] = {}
        self._open: dict[str, _OpenQuestion] = {}
        self._close_reasons: dict[str, str] = {}
        self._denied: Counter[str] = Counter()
        self._approver_lock = asyncio.Lock()

    def register_client(self, target_id: str, client: OnQuestion, on_closed: OnQuestionClosed | None = None) -> None:
        """Register `client` for the questions of the query or agent with the id `target_id`.

        The client immediately receives the open questions. When a question no longer waits for an answer, `on_closed`
        is called with the id of the question.
        """
        self._clients.setdefault(target_id, []).append(_Client(client, on_closed))
        for each in list(self._open.values()):
            if each.target_id == target_id:
                client(each.question)

    def unregister_client(self, target_id: str, client: OnQuestion, *, will_reconnect: bool = False) -> None:
        """Unregister `client`. If no other client is registered for `target_id`, the open questions are denied.

        If `will_reconnect` is True, the client will register again, and the questions stay open.
        """
        left = [each for each in self._clients.pop(target_id, ()) if each.ask != client]
        if left:
            self._clients[target_id] = left
        elif not will_reconnect:
            for id in [id for id, each in self._open.items() if each.target_id == target_id]:
                self._settle(id, Consent(False), "the client that was asked has disconnected")

    def has_client(self, target_id: str | None) -> bool:
        """Return whether a client is registered for the query or agent `target_id`."""
        return target_id in self._clients

    async def ask(self, question: Question, session: str, target_id: str | None, seconds: float) -> str:
        """Ask for approval of a call. Return "" if the call may run, otherwise the reason why it may not run.

        `session` is the asking agent's top-level ancestor. `target_id` is the query or agent whose clients are asked.
        The call waits at most `seconds`.
        """
        now = self._clock()
        is_plan = question.tool == EXIT_PLAN  # the approval of one plan does not apply to the next plan
        if not is_plan and any(covers(grant, question, now) for grant in self._known(question.folder, session)):
            return ""
        try:
            async with asyncio.timeout(seconds):
                if target_id is not None and self.has_client(target_id):
                    answer = await self._ask_clients(question, target_id)
                elif (approver := self._approvers.get(session, self._approver)) is not None:
                    answer = await self._ask_program(question, approver)
                else:
                    return NO_APPROVER
        except TimeoutError:
            self._record_reason(question.id, "no answer in time")
            return f"it needs approval, and there was no answer within {seconds:g} s"
        if not answer.allow:
            reason = f"the user denied it: {answer.reason}" if answer.reason else "the user denied it"
            return self._close_reasons.get(question.id) or reason
        if is_plan:
            return ""
        if answer.scope == "session":
            self._session_grants.setdefault(session, []).append(grant_of(question, answer, self._clock()))
        elif answer.scope == "project":
            self._grants.add(grant_of(question, answer, self._clock()), self._clock())
        return ""

    @property
    def has_approver(self) -> bool:
        """Whether the program has an approver, which answers for agents without their own approver."""
        return self._approver is not None

    def set_approver(self, session: str, approver: Approver) -> None:
        """Use `approver` for the agent `session` and its descendants, instead of the program's approver."""
        self._approvers[session] = approver

    def answer(self, given: AnswerQuestion) -> AnswerResult:
        """Accept a client's answer. Only the first answer to a question counts."""
        if given.id not in self._open:
            return AnswerResult(
                False, self._close_reasons.get(given.id) or "no such question, or it was already answered"
            )
        if _is_nan(given.seconds):
            return AnswerResult(
                False, "`seconds` must be a number, the validity of the approval in seconds; or leave it out"
            )
        if given.unasked:
            self._settle(given.id, Consent(False), NO_APPROVER)
        else:
            self._settle(given.id, Consent(given.allow, given.scope, given.pattern, given.seconds, given.reason), "")
        return AnswerResult(True)

    def count_denied(self, query_ids: Iterable[str]) -> None:
        """Count a denied call for each query in `query_ids`. The calls were denied because no client could be asked."""
        self._denied.update(query_ids)

    def take_denied(self, query_id: str) -> int:
        """Return the number of denied calls that were counted for a query. Reset the count to 0."""
        return self._denied.pop(query_id, 0)

    def permissions(self, folder: str | None = None) -> list[Permission]:
        """Return the valid permissions for `folder`.

        If `folder` is None, return all permissions. Raises ConfigError.
        """
        now = self._clock()
        return [
            permission
            for grant, session in self._all(folder)
            if (permission := _permission_of(grant, session)).expires_at is None or permission.expires_at > now
        ]

    def revoke(self, ids: Iterable[str] | None, folder: str | None = None) -> list[Permission]:
        """Revoke the permissions with the ids `ids`, and return them.

        If `ids` is None, revoke all permissions for `folder`. If an id is unknown, nothing is revoked. Raises
        ConfigError, EntryNotFoundError or StoreError.
        """
        known = self._all(folder if ids is None else None)
        wanted = {grant.id for grant, _ in known} if ids is None else set(ids)
        if missing := wanted - {grant.id for grant, _ in known}:
            raise EntryNotFoundError(
                f"no permission with id {', '.join(sorted(missing))}; list them with `orch config permissions`"
            )
        revoked = [(grant, session) for grant, session in known if grant.id in wanted]
        self._grants.revoke([grant.id for grant, session in revoked if not session])
        for grant, session in revoked:
            if session:
                self._session_grants[session].remove(grant)
        return [_permission_of(grant, session) for grant, session in revoked]

    def _all(self, folder: str | None) -> list[tuple[Grant, str]]:
        """Return the grants for `folder`, each with its session. If `folder` is None, return all grants.

        The session of a project's grant is "".
        """
        sessions = [(grant, session) for session, grants in self._session_grants.items() for grant in grants]
        session_grants = [(grant, session) for grant, session in sessions if folder in (None, grant.folder)]
        return [*((grant, "") for grant in self._grants.of(folder)), *session_grants]

    def _known(self, folder: str, session: str) -> list[Grant]:
        return [*self._session_grants.get(session, ()), *self._grants.of(folder)]

    async def _ask_clients(self, question: Question, target_id: str) -> Consent:
        waiting: asyncio.Future[Consent] = asyncio.get_running_loop().create_future()
        self._open[question.id] = _OpenQuestion(question, target_id, waiting)
        try:
            for client in list(self._clients[target_id]):
                client.ask(question)
            answer = await waiting
        finally:
            self._open.pop(question.id, None)
            for client in list(self._clients.get(target_id, ())):
                if client.on_closed is not None:
                    client.on_closed(question.id)
            if waiting.cancelled():
                self._record_reason(question.id, "the call has ended")
        return answer

    async def _ask_program(self, question: Question, approver: Approver) -> Consent:
        async with self._approver_lock:  # the approver gets only one question at a time
            verdict, error = await self._program_verdict(question, approver)
        if error:
            self._record_reason(question.id, f"the approver failed: {error}")
            return Consent(False)
        if not isinstance(verdict, (bool, Consent)):
            self._record_reason(
                question.id, f"the approver must return a Consent, True or False; got {type(verdict).__name__}"
            )
            return Consent(False)
        if isinstance(verdict, bool):
            return Consent(verdict)
        try:
            if _is_nan(verdict.seconds):
                raise msgspec.ValidationError(f"seconds is {verdict.seconds!r}")
            return replace(msgspec.convert(msgspec.structs.asdict(verdict), Consent), reason=scrub(verdict.reason))
        except msgspec.ValidationError as error:
            self._record_reason(question.id, f"the approver returned an invalid Consent: {error}")
            return Consent(False)

    async def _program_verdict(self, question: Question, approver: Approver) -> tuple[Any, str]:
        """Return the approver's answer and "". If the approver raised, return None and the text of the exception."""
        if inspect.iscoroutinefunction(approver):
            verdict: Any = approver(question)
        else:
            verdict, error = await in_thread(lambda: approver(question))
            if error:
                return None, error
        return await await_result(verdict)

    def _settle(self, id: str, answer: Consent, reason: str) -> None:
        open_question = self._open.pop(id, None)
        if open_question is not None and not open_question.waiting.done():
            self._record_reason(id, reason)
            open_question.waiting.set_result(answer)

    def _record_reason(self, id: str, reason: str) -> None:
        self._close_reasons[id] = reason
        while len(self._close_reasons) > MAX_REMEMBERED:
            del self._close_reasons[next(iter(self._close_reasons))]


def _is_nan(seconds: Any) -> bool:
    return isinstance(seconds, float) and math.isnan(seconds)


def _permission_of(grant: Grant, session: str) -> Permission:
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
