"""Replay a story with an agent that has the same settings. The agent's model and tools return the recorded results.

The policy, the hooks and the construction of requests are those of the current version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from orch_protocol.agent.config import Config
from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.archives import Collapse, RecordUpgrade
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.ids import new_id
from orch_protocol.core.messages import Message, ToolUse
from orch_protocol.policy.approval import Question
from orch_protocol.resources.memory import MemorySpec, Note
from orch_protocol.session.entries import MessageEntry
from orch_worker.agent.features.turn_extension import ShorteningReason, TurnExtension, TurnState
from orch_worker.agent.runtime import Runtime
from orch_worker.backends.offline.scripted import RecordedRequest, ScriptedBackend
from orch_worker.memory.memory_file import FileMemory
from orch_worker.tools.api.base import ToolOutput
from orch_worker.tools.api.root_client import RootClient
from orch_worker.transport.worker_endpoint import MakeRuntime

from ..api.orchestrator import AsyncOrchestrator
from ..sessions.formats.conversation import ImportedSession
from ..testing import FakeLauncher, fake_world
from ..tree.interface import events
from .generate_test import ReplayedSession, differences, recording_of, to_script_data, with_requests

__all__ = ["replay_recording", "replay_session"]

MANY: Final = 1 << 30
MEMORY: Final = "notes"
"""The folder of notes in the home of a replay."""
OWN_STATE: Final = frozenset({"task_create", "task_update", "exit_plan_mode"})
"""Tools that change only the agent's own state. They run during a replay, because this state is part of requests."""
REFUSED: Final = ("[Denied: ", "[The plan was not approved: ")
"""The beginnings of results of denied calls."""


def replay_recording(
    story: dict[str, Any], home: Path, *, folder: Path | None = None, live: Iterable[str] = ()
) -> ReplayedSession:
    """Replay `story` (see `recording_of`). Return the conversation and requests of the replay. Raises OrchError.

    Tools return the recorded results. The tools named in `live` run in `folder` instead. Agents run on a new event loop
    and leave their files in `home`.
    """
    return asyncio.run(_ReplayWorld(story, frozenset(live)).replay(home, folder or home))


def replay_session(found: ImportedSession, spec: AgentSpec, notes: Sequence[Note] = ()) -> dict[str, Any]:
    """Return the conversation `found` of the agent `spec` as a story, with the requests of the current version of orch.

    `notes` contains the notes in the agent's memory. Raises ConfigError, with the first difference, if a replay differs
    from the recording or from a second replay.
    """
    story = recording_of(found, spec, notes)
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        story = with_requests(story, replay_recording(story, Path(one)))
        if different := differences(story, replay_recording(story, Path(other))):
            raise ConfigError(f"cannot generate a test: two replays differ: {different[0]}")
    return story


class _RecordedCompactions(TurnExtension):
    """Shortens the conversation as in the recording. `apply` is called with the id of the turn in progress."""

    def __init__(self, apply: Callable[[str], None]) -> None:
        self._apply = apply

    async def shorten_conversation(self, turn: TurnState, why: ShorteningReason) -> None:  # noqa: ARG002
        """Apply the recorded compactions that are due."""
        self._apply(turn.id)


class _ReplayWorld:
    """The recorded environment of an agent, with the agent's settings, prompts and results."""

    def __init__(self, story: dict[str, Any], live: frozenset[str]) -> None:
        self._story = story
        self._live = live | OWN_STATE
        self._requests: list[RecordedRequest] = []
        self._due: list[dict[str, Any]] = list(story.get("shortened", ()))
        self._entry_ids: list[str] = []
        """The ids of the messages of turns so far. `_seen` is the number of session entries that were examined."""
        self._seen = 0
        whole = story.get("whole", story["conversation"])
        answered = [message for message in whole if "results" in message]
        self._results = {
            id: ToolOutput(text, is_error=failed) for each in answered for id, text, failed in each["results"]
        }
        self._asked: dict[str, list[str]] = {}
        """The ids of recorded calls in order, by the tool and input of the call."""
        for message in whole:
            for id, name, input in message.get("calls", ()):
                self._asked.setdefault(_key(name, input), []).append(id)

    async def replay(self, home: Path, folder: Path) -> ReplayedSession:
        """Replay the story. `replay_recording` describes the result."""
        launcher = FakeLauncher(self._make)
        async with AsyncOrchestrator(
            config=Config(), home=home, env={}, approve=self._approve, **fake_world(launcher)
        ) as o:
            id = new_id()
            o.supervisor.handle(events.AddAgent(self._spec(id, home, o.supervisor.sessions / id, folder)))
            agent = await o.get(id)
            for number, turn in enumerate(self._story["turns"]):
                await asyncio.to_thread(self._note, home, number)
                await agent.query(turn["prompt"])
            return ReplayedSession(to_script_data((await agent.show(MANY)).messages), self._requests)

    def _spec(self, id: str, home: Path, session: Path, folder: Path) -> AgentSpec:
        story = self._story
        script = [item for turn in story["turns"] for item in turn["script"]]
        own: dict[str, Any] = {"id": id, "seq": 0, "name": "", "folder": str(session), "cwd": str(folder)}
        own |= {"task": story["task"], "backend": {"provider": "scripted"}}
        made = msgspec.convert(story["agent"] | own, AgentSpec)
        history = msgspec.convert(story["history"], tuple[Message, ...])
        backend = ScriptedBackend(script, story.get("beside", ())).spec()
        if (notes := story.get("memory")) is not None:
            memory = MemorySpec(str(home / MEMORY), tokens=notes["tokens"], total_chars=notes["total_chars"])
            made = replace(made, memory=memory)
        return replace(made, history=history, backend=backend)

    def _note(self, home: Path, number: int) -> None:
        """Add the notes that existed when the turn number `number` began."""
        if (memory := self._story.get("memory")) is None:
            return
        keeper = FileMemory(home / MEMORY, memory["total_chars"])
        for each in memory["notes"]:
            if each["before"] == number:
                keeper.add(msgspec.convert(each["note"], Note))

    @property
    def _make(self) -> MakeRuntime:
        def make(spec: AgentSpec, keys: dict[str, str], root: RootClient, orch_folders: tuple[str, ...]) -> Runtime:
            runtime = Runtime(spec, keys, root, orch_folders)
            runtime.toolbox.answer = self._answer
            if self._story.get("taken_over"):
                runtime.turn_prompt.needs_task = False
            if self._due:
                runtime.conversation_shortener = _RecordedCompactions(partial(self._shorten, runtime))
                runtime.configure()
            backend = runtime.backend
            assert isinstance(backend, ScriptedBackend)
            backend.on_request = self._requests.append
            return runtime

        return make

    def _shorten(self, runtime: Runtime, turn: str) -> None:
        """Apply the recorded compactions and archives that are due."""
        session = runtime.transcript.session
        fresh, self._seen = session.entries[self._seen :], len(session.entries)
        self._entry_ids += [entry.id for entry in fresh if isinstance(entry, MessageEntry) and entry.turn]
        while self._due and self._due[0]["after"] <= len(self._entry_ids):
            due = self._due.pop(0)
            if "upgrade" in due:
                runtime.transcript.upgrade(msgspec.convert(due["upgrade"], RecordUpgrade))
            elif "holder" in due:
                first, last = self._entry_ids[due["first"]], self._entry_ids[due["last"]]
                part = due | {"first": first, "last": last, "spans": (), "sha256": ""}
                runtime.transcript.archive([msgspec.convert(part, Collapse)])
            else:
                details = {"summary": due["summary"], "first_kept_entry_id": self._entry_ids[due["kept"]]}
                runtime.transcript.compaction(**details, turn=turn, writer="hook")
            session = runtime.transcript.session
            runtime.backend.load(session.messages, session.responses)

    def _answer(self, call: ToolUse) -> ToolOutput | None:
        if call.name in self._live:
            return None
        result = self._results.get(call.id)
        if result is None or result.text.startswith(REFUSED):
            was = "no such call" if result is None else "it was refused"
            return ToolOutput(f"{call.name} runs now; in the recording {was}.", is_error=True)
        return result

    def _approve(self, question: Question) -> bool:
        """Approve the call if it ran in the recording."""
        ids = self._asked.get(_key(question.tool, question.input), [])
        output = self._results.get(ids.pop(0)) if ids else None
        return output is not None and not output.text.startswith(REFUSED)


def _key(name: str, input: Any) -> str:
    return msgspec.json.encode([name, input], order="deterministic").decode()
