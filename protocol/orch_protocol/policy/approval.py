"""A call that may run only if somebody says so: what is asked, what is answered, and what was answered for later."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from ..core.text import plain_line
from .policy import EXIT_PLAN, TASK_CREATE

__all__ = [
    "AnswerQuestion",
    "AnswerResult",
    "ApprovalDecision",
    "ApproveCall",
    "Consent",
    "ListPermissions",
    "Permission",
    "Question",
    "Revoke",
    "Scope",
    "digest_of",
]

Scope: TypeAlias = Literal["once", "session", "project"]
WIDTH = 400
WHOLE = {EXIT_PLAN: "plan", TASK_CREATE: "tasks"}
"""Tools that are asked about with all they say, line by line, and what that is."""
PLAN_WIDTH = 100
MOST_ESCAPED = 10
"""A character that is written out takes so many at most."""


class ApproveCall(Struct, frozen=True, forbid_unknown_fields=True):
    """An agent asks whether it may run `tool` with exactly `input`, which reaches `paths` (resolved).

    `local`: what it brings is for a local model, so that a pattern does not cover it; `tainted`: it would bring
    together what must not come together, so that one does only when it was agreed to then.
    """

    tool: str
    input: dict[str, Any]
    paths: tuple[str, ...]
    reason: str
    local: bool = False
    seconds: float = 300.0
    tainted: bool = False


class ApprovalDecision(Struct, frozen=True):
    """Whether it may, and why not. `digest` is that of the call that was asked about.

    `by_pattern`: nobody was asked, a pattern approved earlier covers it.
    """

    allowed: bool
    digest: str
    reason: str = ""
    by_pattern: bool = False


class Question(Struct, frozen=True):
    """What an approver is asked. `input` is the model's own and may hold anything; `lines` can be shown as they are.

    `subject` is the command or path that the call is about, `folder` the one that the agent works in. The answer is no
    after `seconds`.
    """

    id: str
    agent_id: str
    agent: str
    task: str
    depth: int
    tool: str
    subject: str
    input: dict[str, Any]
    paths: tuple[str, ...]
    reason: str
    folder: str
    digest: str
    local: bool = False
    kind: Literal["question"] = "question"
    lines: tuple[str, ...] = ()
    tainted: bool = False
    seconds: float = 300.0

    def with_lines(self) -> Question:
        """Return the question with its `lines`: each field on one line, nothing in it that a terminal would obey."""
        if (what := WHOLE.get(self.tool)) is not None:
            whole = (*_lines(self._who() | {"in": self.folder}), f"{what}:", *self._whole())
            return msgspec.structs.replace(self, lines=whole)
        said = self._who() | {
            "tool": self.tool,
            "wants": self.subject,
            "in": self.folder,
            "asked since": self.reason,
        }
        return msgspec.structs.replace(self, lines=_lines(said))

    def _who(self) -> dict[str, str]:
        return {"agent": f"{self.agent} ({self.agent_id}, depth {self.depth})", "task": self.task}

    def _whole(self) -> Iterator[str]:
        """Yield the lines of a plan or of tasks, all of it: what is approved is to be seen."""
        for line in self.subject.expandtabs(4).split("\n"):
            for start in range(0, len(line) or 1, PLAN_WIDTH):
                piece = plain_line(line[start : start + PLAN_WIDTH], MOST_ESCAPED * PLAN_WIDTH)
                yield f"| {piece}".rstrip()


class Consent(Struct, frozen=True):
    """An approver's answer.

    `once` is for this call. `session` holds for the agents under the same first agent while this root runs, `project`
    for all agents in the same folder until it is revoked or `seconds` (of a project: 90 days unless said) are over.

    Without `pattern` it is for exactly this call; a pattern such as `git *` covers simple commands and paths that fit.
    `reason` of a no is told to the agent.
    """

    allow: bool
    scope: Scope = "once"
    pattern: str | None = None
    seconds: float | None = None
    reason: str = ""


class Permission(Struct, frozen=True):
    """A yes for later: for calls of `tool` in `folder`. `subject` is what `exactly` one is about, or a pattern.

    One for a `session` is good for the agent `agent_id` and those below it, while its root runs. Times are epoch
    seconds; `expires_at` None is never.
    """

    id: str
    scope: Scope
    tool: str
    subject: str
    exactly: bool
    folder: str
    made_at: float
    expires_at: float | None = None
    agent_id: str = ""


class ListPermissions(Struct, frozen=True, forbid_unknown_fields=True):
    """The permissions for `folder` (None: for all folders)."""

    folder: str | None = None


class Revoke(Struct, frozen=True, forbid_unknown_fields=True):
    """Take the permissions called `ids` back; with `all`, all of `folder` (None: of every folder)."""

    ids: tuple[str, ...] = ()
    all: bool = False
    folder: str | None = None


class AnswerQuestion(Struct, frozen=True, forbid_unknown_fields=True):
    """A client answers the question `id`; see Consent.

    `unasked` denies the call because the client could not ask anybody; `Reply.denied` counts it.
    """

    id: str
    allow: bool
    scope: Scope = "once"
    pattern: str | None = None
    seconds: float | None = None
    reason: str = ""
    unasked: bool = False


class AnswerResult(Struct, frozen=True):
    """Whether that was the answer. It was not when another came first, or nobody waits any more: `note` says."""

    taken: bool
    note: str = ""


def _lines(said: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{name}: {plain_line(text, WIDTH)}" for name, text in said.items())


def digest_of(tool: str, input: Mapping[str, Any], paths: Iterable[str]) -> str:
    """Return what tells this very call from every other."""
    data = msgspec.json.encode([tool, input, sorted(paths)], order="deterministic")
    return hashlib.sha256(data).hexdigest()
