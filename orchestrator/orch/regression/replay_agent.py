"""A story told again: by an agent made as the recorded one was, whose model and tools answer as it is on record.

Policy, hooks, and how requests are made, are those of now. Nothing but the event loop is shared with the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
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
from orch_worker.agent.runtime import Runtime
from orch_worker.backends.offline.scripted import RecordedRequest, ScriptedBackend
from orch_worker.memory.memory_file import FileMemory
from orch_worker.tools.api.base import ToolOutput
from orch_worker.tools.api.root_client import RootClient
from orch_worker.transport.worker_endpoint import Make

from ..api.orchestrator import AsyncOrchestrator
from ..sessions.formats.conversation import ImportedSession
from ..testing import FakeLauncher, fake_world
from ..tree.journal import events
from .generate_test import ReplayedSession, differences, recording_of, to_script_data, with_requests

__all__ = ["replay_recording", "replay_session"]

MANY: Final = 1 << 30
MEMORY: Final = "notes"
"""Where notes are kept, below the home of a telling."""
OWN_STATE: Final = frozenset({"task_create", "task_update", "exit_plan_mode"})
"""Tools that change nothing but the agent's own state, which requests tell of: they run."""
REFUSED: Final = ("[Denied: ", "[The plan was not approved: ")
"""How the result of a call begins that was not let run."""


def replay_recording(
    story: dict[str, Any], home: Path, *, folder: Path | None = None, live: Iterable[str] = ()
) -> ReplayedSession:
    """Tell `story` (see `recording_of`) again and return conversation and requests as they are now.

    Tools return what is on record, but for those that `live` names: these run, in `folder`. Agents run on an event loop
    of this function's own and leave their files in `home`. Raises OrchError.
    """
    return asyncio.run(_ReplayWorld(story, frozenset(live)).told(home, folder or home))


def replay_session(found: ImportedSession, spec: AgentSpec, notes: Sequence[Note] = ()) -> dict[str, Any]:
    """Return the conversation `found` of the agent `spec` as a story with its requests, as they are made now.

    `notes` are what its memory holds. Raises ConfigError when it cannot be told again as it was, twice, and where it
    differs.
    """
    story = recording_of(found, spec, notes)
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        story = with_requests(story, replay_recording(story, Path(one)))
        if different := differences(story, replay_recording(story, Path(other))):
            raise ConfigError(f"cannot generate a test: two replays differ: {different[0]}")
    return story


class _ReplayWorld:
    """Everything that is as it was: who the agent is, what it is asked, what it is answered."""

    def __init__(self, story: dict[str, Any], live: frozenset[str]) -> None:
        self._story = story
        self._live = live | OWN_STATE
        self._requests: list[RecordedRequest] = []
        self._due: list[dict[str, Any]] = list(story.get("shortened", ()))
        self._said: list[str] = []
        """Ids of the messages of turns so far, and how many entries there were when they were counted."""
        self._seen = 0
        whole = story.get("whole", story["conversation"])
        said = [message for message in whole if "results" in message]
        self._results = {id: ToolOutput(text, is_error=failed) for each in said for id, text, failed in each["results"]}
        self._asked: dict[str, list[str]] = {}
        """For each call that is on record, by the tool and its input, the ids that it had, in order."""
        for message in whole:
            for id, name, input in message.get("calls", ()):
                self._asked.setdefault(_key(name, input), []).append(id)

    async def told(self, home: Path, folder: Path) -> ReplayedSession:
        """Tell the story; see `replay_recording`."""
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
        if (told := story.get("memory")) is not None:
            memory = MemorySpec(str(home / MEMORY), tokens=told["tokens"], total_chars=told["total_chars"])
            made = replace(made, memory=memory)
        return replace(made, history=history, backend=backend)

    def _note(self, home: Path, number: int) -> None:
        """Let the agent's memory hold what it held when turn `number` began."""
        if (memory := self._story.get("memory")) is None:
            return
        keeper = FileMemory(home / MEMORY, memory["total_chars"])
        for each in memory["notes"]:
            if each["before"] == number:
                keeper.add(msgspec.convert(each["note"], Note))

    @property
    def _make(self) -> Make:
        def make(spec: AgentSpec, keys: dict[str, str], root: RootClient, orch_folders: tuple[str, ...]) -> Runtime:
            runtime = Runtime(spec, keys, root, orch_folders)
            runtime.toolbox.answer = self._answer
            runtime._fresh = runtime._fresh and not self._story.get("taken_over")
            if self._due:
                runtime._shorten = partial(self._shorten, runtime)  # type: ignore[method-assign]
            backend = runtime.backend
            assert isinstance(backend, ScriptedBackend)
            backend.on_request = self._requests.append
            return runtime

        return make

    async def _shorten(self, runtime: Runtime, turn: str, _refused: bool) -> None:
        """Let what gave way by now give way to what is on record."""
        session = runtime.transcript.session
        fresh, self._seen = session.entries[self._seen :], len(session.entries)
        self._said += [entry.id for entry in fresh if isinstance(entry, MessageEntry) and entry.turn]
        while self._due and self._due[0]["after"] <= len(self._said):
            due = self._due.pop(0)
            if "upgrade" in due:
                runtime.transcript.upgrade(msgspec.convert(due["upgrade"], RecordUpgrade))
            elif "holder" in due:
                first, last = self._said[due["first"]], self._said[due["last"]]
                part = due | {"first": first, "last": last, "spans": (), "sha256": ""}
                runtime.transcript.archive([msgspec.convert(part, Collapse)])
            else:
                told = {"summary": due["summary"], "first_kept_entry_id": self._said[due["kept"]]}
                runtime.transcript.compaction(**told, turn=turn, writer="hook")
            session = runtime.transcript.session
            runtime.backend.load(session.messages, session.responses)

    def _answer(self, call: ToolUse) -> ToolOutput | None:
        if call.name in self._live:
            return None
        said = self._results.get(call.id)
        if said is None or said.text.startswith(REFUSED):
            was = "there is no such call" if said is None else "it was refused"
            return ToolOutput(f"{call.name} runs now; on record {was}.", is_error=True)
        return said

    def _approve(self, question: Question) -> bool:
        """Say what was said: yes to what ran."""
        ids = self._asked.get(_key(question.tool, question.input), [])
        output = self._results.get(ids.pop(0)) if ids else None
        return output is not None and not output.text.startswith(REFUSED)


def _key(name: str, input: Any) -> str:
    return msgspec.json.encode([name, input], order="deterministic").decode()
