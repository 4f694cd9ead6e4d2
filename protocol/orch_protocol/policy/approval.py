"""Approvals of tool calls: the question, the answer, and stored permissions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from ..core.text import plain_line
from .policy import EXIT_PLAN, TASK_CREATE

__all__ = ["Consent", "Permission", "Question", "Scope", "digest_of"]

Scope: TypeAlias = Literal["once", "session", "project"]
WIDTH = 400
FULL_INPUT_TOOLS = {EXIT_PLAN: "plan", TASK_CREATE: "tasks"}
"""Tools whose approval question shows the whole input, line by line. The value is the heading of that input."""
PLAN_WIDTH = 100
MAX_ESCAPED = 10
"""Maximum number of characters that an escaped character needs."""


class Question(Struct, frozen=True):
    """The approval question that an approver sees.

    `input` comes from the model and may contain anything. `lines` are safe to print. `subject` is the command or path
    of the call. `folder` is the agent's working folder. If the call is approved, its command can read the paths
    `credentials`, which are hidden from other commands. Without an answer within `seconds`, the call is denied.
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
    credentials: tuple[str, ...] = ()

    def with_lines(self) -> Question:
        """Return the question with `lines` set: one line for each field, without control characters."""
        if (what := FULL_INPUT_TOOLS.get(self.tool)) is not None:
            lines = (*_lines(self._agent_fields() | {"in": self.folder}), f"{what}:", *self._full_input_lines())
            return msgspec.structs.replace(self, lines=lines)
        fields = self._agent_fields() | {
            "tool": self.tool,
            "wants": self.subject,
            "in": self.folder,
            "reason": self.reason,
        }
        lines = _lines(fields)
        if self.credentials:  # The approver must see all paths.
            shown = ", ".join(plain_line(path, MAX_ESCAPED * len(path)) for path in self.credentials)
            lines = (*lines, f"credentials: the call can read {shown}")
        return msgspec.structs.replace(self, lines=lines)

    def _agent_fields(self) -> dict[str, str]:
        return {"agent": f"{self.agent} ({self.agent_id}, depth {self.depth})", "task": self.task}

    def _full_input_lines(self) -> Iterator[str]:
        """Yield all lines of a plan or of tasks.

        The lines are not shortened, because the approver must see the complete text.
        """
        for line in self.subject.expandtabs(4).split("\n"):
            for start in range(0, len(line) or 1, PLAN_WIDTH):
                piece = plain_line(line[start : start + PLAN_WIDTH], MAX_ESCAPED * PLAN_WIDTH)
                yield f"| {piece}".rstrip()


class Consent(Struct, frozen=True):
    """An approver's answer.

    - `scope`: "once" is for this call only. "session" applies to all agents below the same top-level agent until this
      root ends. "project" applies to all agents in the same folder until the permission is revoked or `seconds` have
      passed (default: 90 days).
    - `pattern`: None covers exactly this call. A pattern such as `git *` covers simple commands and paths that match
      it.
    - `reason`: the reason for a denial. The agent receives this text.
    """

    allow: bool
    scope: Scope = "once"
    pattern: str | None = None
    seconds: float | None = None
    reason: str = ""


class Permission(Struct, frozen=True):
    """A stored approval for calls of `tool` in `folder`.

    `subject` is a pattern. If `exactly` is True, `subject` is the subject of one call instead. A permission of scope
    "session" applies to the agent `agent_id` and its subagents until its root ends. Times are epoch seconds. If
    `expires_at` is None, the permission does not expire.
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


def _lines(texts: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{name}: {plain_line(text, WIDTH)}" for name, text in texts.items())


def digest_of(tool: str, input: Mapping[str, Any], paths: Iterable[str]) -> str:
    """Return the SHA-256 in hex that identifies a call with this input and these paths."""
    data = msgspec.json.encode([tool, input, sorted(paths)], order="deterministic")
    return hashlib.sha256(data).hexdigest()
