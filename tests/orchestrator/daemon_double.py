"""A fake connection to the daemon, for tests of the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch.cli import service_verbs
from orch.cli.agents import agents, controlling_terminal, query, queue, run_once, send, spawn
from orch.cli.sessions import archive, audit, forget, fsck, import_export, tree
from orch.cli.system import admin
from orch.client.connection import request
from orch.daemon.daemon import DaemonStatus
from orch_protocol.core.messages import Reply, Usage, assistant, user
from orch_protocol.services.agents.lifecycle import Killed
from orch_protocol.services.agents.query import AskAllResult, Submitted
from orch_protocol.services.agents.spawn import Spawned
from orch_protocol.services.agents.status import AgentRow
from orch_protocol.services.agents.steering import AgentSteered
from orch_protocol.services.archives.recall import ArchiveRow, SearchHit
from orch_protocol.services.dispatch.registry import SERVICES
from orch_protocol.services.sessions.fork import ForkResult
from orch_protocol.services.sessions.import_session import Imported
from orch_protocol.services.sessions.sessions import Branch, EntryRow, SessionChanged, SessionMetadata, SessionTree
from orch_protocol.session.tree import CompactionDone

__all__ = ["ANSWERS", "ARCHIVE", "REPLY", "ROW", "SPAWNED", "Desk", "opened"]

SPAWNED = msgspec.to_builtins(Spawned("abc", 1, "agent-1", "investigate", 1, 77))
REPLY = msgspec.to_builtins(Reply("abc", "q1", "42", usage=Usage(10, 5, 3), tool_calls=2, files_changed=("f",)))
ROW = msgspec.to_builtins(
    AgentRow("abc", 1, "n", None, 1, "agent", "idle", "t", "m", "p", 7, "2026-01-01", "", None, 1, 2, 3, Usage())
)
ARCHIVE: dict[str, Any] = json.loads(
    msgspec.json.encode(
        ArchiveRow("b0d9f3", "abc", "turn", "look", "2026-01-01", 2, 1, 1, 1234, 0, "it pays", False, "Read: x")
    )
)
SESSION: dict[str, Any] = json.loads(
    msgspec.json.encode(
        SessionTree(
            id="abc",
            name="n",
            title="pumps",
            folder="/f",
            cwd="/",
            parent_session=None,
            leaf="e5",
            entries=(
                EntryRow("e1", None, "message", "2026-01-01", "user", "How?", "q1", "start", on_path=True),
                EntryRow("e2", "e1", "message", "2026-01-01", "assistant", "So.", "q1"),
                EntryRow("e3", "e2", "turn_end", "2026-01-01", "", "So.", "q1"),
                EntryRow("e4", "e1", "checkout", "2026-01-01", on_path=True),
                EntryRow("e5", "e4", "message", "2026-01-01", "assistant", "Thus.", "q2", on_path=True),
            ),
            count=5,
            branches=(
                Branch("e3", "e1", 2, "So.", "2026-01-01"),
                Branch("e5", None, 3, "How?", "2026-01-01", current=True),
            ),
            labels={"e1": "start"},
        )
    )
)
ANSWERS: dict[str, Any] = {
    "spawn": SPAWNED,
    "query": REPLY,
    "collect": REPLY,
    "submit": msgspec.to_builtins(Submitted("abc", "q1")),
    "list": [ROW],
    "show": {"agent": ROW, "messages": [], "reply": None},
    "daemon_keys": {"names": []},
    "kill": msgspec.to_builtins(Killed(("b", "a"))),
    "resume": ROW,
    "revoke_tools": ROW | {"tools": ["read_file", "git_log"]},
    "state": ROW,
    "steer": msgspec.to_builtins(AgentSteered("abc", "s1")),
    "cancel": ROW | {"pending": "why?"},
    "list_archives": [ARCHIVE],
    "search_archive": [msgspec.to_builtins(SearchHit("b0d9f3", 2, "port = 4711", True, "look"))],
    "read_archive": json.loads(msgspec.json.encode([user("look"), assistant("port = 4711")])),
    "prune_archives": {"archives": [ARCHIVE], "bytes": 12345, "busy": {}},
    "ask_all": [msgspec.to_builtins(AskAllResult("b0d9f3", Reply("b0d9f3", "q1", "4711")))],
    "import": msgspec.to_builtins(Imported("abc", 1, "agent-1", "two files", "pi session", 20, 14)),
    "session": SESSION,
    "change_session": msgspec.to_builtins(SessionChanged("abc", "e9", "How?")),
    "list_session_metadata": [msgspec.to_builtins(SessionMetadata("e7", "2026-01-01", "progress", {"page": 7}))],
    "compact": msgspec.to_builtins(CompactionDone("e6", 12, 34_567, 2_345, "asked", "model", "All is well.")),
    "fork": msgspec.to_builtins(ForkResult("def", 2, "second", "e2")),
    "daemon_status": json.loads(
        msgspec.json.encode(
            DaemonStatus(7, "L2", False, "up to L2", 0, 0, "0.1.0", 2, "/o", "2026-01-01T00:00:00Z", None, {})
        )
    ),
}


class Desk:
    """A fake connection to the daemon. It returns answers from a table and records the requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.runs: list[str | None] = []
        """The runs of the connections that commands have opened."""
        self.answers = deepcopy(ANSWERS)
        self.closed = False
        self.in_turn: set[str] = set()
        """Methods whose entry in `answers` is a list with one answer per call."""
        self.events: list[dict[str, Any]] = []
        self.silences = 0

    def __call__(self, start: Any = None, run: str | None = None) -> Desk:  # noqa: ARG002
        self.runs.append(run)
        return self

    def sibling(self) -> Desk:
        return self

    def call(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        on_event: Callable[[dict[str, Any]], None] | None = None,
        on_silence: Callable[[], None] | None = None,
    ) -> Any:
        given = json.loads(request(1, method, params or {}))["params"]
        if method in SERVICES:
            msgspec.convert(given, SERVICES[method].params)
        self.asked.append((method, given))
        if on_event is not None:
            for event in self.events:
                on_event(event)
        if on_silence is not None:
            for _ in range(self.silences):
                on_silence()
        answer = self.answers[method]
        answer = answer.pop(0) if method in self.in_turn else answer
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        self.closed = True


def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    """Return a fake connection for all commands, with an empty home and an environment without ORCH_ variables."""
    made = Desk()
    for module in (
        agents,
        archive,
        query,
        queue,
        audit,
        forget,
        import_export,
        fsck,
        service_verbs,
        tree,
        spawn,
        run_once,
        send,
        admin,
    ):
        monkeypatch.setattr(module, "Connection", made)
    for name in [name for name in os.environ if name.startswith("ORCH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(controlling_terminal, "reach", lambda: "none")
    monkeypatch.setenv("ORCH_APPROVE", "deny")
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return made
