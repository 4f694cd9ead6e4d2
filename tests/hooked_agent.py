"""An agent with hooks, without a process. The tests inspect its turns and requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agent_doubles import Root, Talk, assert_valid
from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.messages import Reply, text_of
from orch_protocol.core.phases import Reflect, ReflectRule
from orch_protocol.core.prompts import PromptPart
from orch_protocol.hooks.options import HookOptions
from orch_protocol.wire.worker_messages import Query
from orch_worker.agent.features.turn_extension import TurnExtension, TurnState
from orch_worker.agent.hooks import AgentHooks
from orch_worker.agent.phases import Phases
from orch_worker.agent.steering import SteeringMessage
from orch_worker.backends.base import AssistantTurn
from orch_worker.backends.offline.scripted import ScriptedBackend
from orch_worker.conversation.prompt_parts import of_tier, render_parts
from orch_worker.hooks.hook import Hook, HookRegistry, make_hook
from orch_worker.hooks.runner import HookCalls, HookContext
from orch_worker.session.session import SessionState
from orch_worker.tools.api.base import tool

__all__ = ["CALL", "PARTS", "SPEC", "TWO", "Hooked", "Watched", "ended_threads", "fails", "on", "shout"]

SPEC = AgentSpec("a1", 1, "a", "task", BackendSpec("scripted"), "/nowhere", "/", depth=2)
PARTS = (
    PromptPart("identity", "You are a zebra.", "stable", "built-in", "orch"),
    PromptPart("AGENTS.md", "Run.", "context", "AGENTS.md", "project"),
    PromptPart("tasks", "# Tasks", "volatile", "built-in", "orch"),
)
CALL = {"tool": "shout", "input": {"word": "a"}}
TWO = {"tools": [CALL, {"tool": "shout", "input": {"word": "b"}}]}


@tool
def shout(word: str) -> str:
    """Return the word in upper case."""
    return word.upper()


class Watched(ScriptedBackend):
    """A script that stores the content of each request."""

    def __init__(self, *items: Any) -> None:
        super().__init__(items)
        self.sent: list[tuple[str, list[str], str]] = []

    async def assistant_turn(self, on_text: Any = None) -> AssistantTurn:
        """Return the next item, and store the request."""
        system, messages, tail = self._request()
        self.sent.append((system, [text_of(message) for message in messages], tail))
        return await super().assistant_turn(on_text)


class Notes:
    """A store for the actions of phases, in place of a transcript."""

    def __init__(self) -> None:
        self.session = SessionState()
        self.phases: list[dict[str, Any]] = []

    def phase(self, **told: Any) -> None:
        """Store an action."""
        self.phases.append(told)


class Mute:
    """A side channel without a model."""

    model_selection = None


class HookedPrompt(TurnExtension):
    """Lets hooks change the prompt of `talk`, after all other extensions."""

    def __init__(self, talk: Hooked) -> None:
        self._talk = talk

    async def before_prompt(self, turn: TurnState) -> None:  # noqa: ARG002
        """Build the prompt."""
        talk = self._talk
        talk.parts, _ = await talk.hooks.prompt(PARTS, recorded=talk.on_record)
        talk.system = await talk.hooks.system_prompt(render_parts(of_tier(talk.parts, "stable")))


MADE: list[HookCalls] = []
"""The hooks of the agents that a test made."""


@pytest.fixture(autouse=True)
def ended_threads() -> Iterator[None]:
    """End the threads of the hooks after each test."""
    yield
    while MADE:
        made = MADE.pop()
        made._invoker.close()
        made._local_observers.close()


class Hooked(Talk):
    """An agent with hooks. `root` answers requests to the root."""

    def __init__(
        self, backend: ScriptedBackend, *hooks: Hook, root: Root | None = None, spec: AgentSpec = SPEC
    ) -> None:
        super().__init__(backend, shout)
        self.said: list[tuple[str, bool]] = []
        self.root = root or Root()
        self.calls = HookCalls(
            HookRegistry(hooks),
            spec,
            self.root,
            send_message=lambda text, follow_up: self.said.append((text, follow_up)),
            messages=backend.transcript,
        )
        MADE.append(self.calls)
        self.hooks = AgentHooks(self.calls)
        self.notes = Notes()
        options = HookOptions(reflect=Reflect("rule", rules=(ReflectRule(reply="reflect"),)))
        self.phases = Phases(options, Mute(), self.notes, hooks=lambda: self.hooks)  # type: ignore[arg-type]
        self.parts = PARTS
        self.on_record = False
        self.system = ""
        self.events: list[tuple[str, str]] = []
        self.shown: list[str] | None = None
        """The text of responses that watchers receive. None if there are no watchers."""
        self.waiting: list[str] = []
        self.queues = self  # type: ignore[assignment]

    def is_watched(self) -> bool:
        return False

    def emit(self, query_id: str, kind: str, text: str, name: str, step: int, is_error: bool) -> None:
        """Store the text that watchers receive."""
        super().emit(query_id, kind, text, name, step, is_error)
        if kind == "text" and self.shown is not None:
            self.shown.append(text)

    def take(self, *, stopping: bool) -> list[SteeringMessage]:  # noqa: ARG002
        """Return the next steering message."""
        return [SteeringMessage("s", self.waiting.pop(0))] if self.waiting else []

    async def ask(self, prompt: str = "go", limits: Any = None) -> Reply:
        """Run one turn with the hooks."""
        del limits
        await self.phases.turn_began("q1", Query(prompt))
        self.calls.turn_began("q1", (), lambda _kind, text, name, _error: self.events.append((name, text)))
        reply = await self.turn(prompt, SPEC.limits, self.hooks, self.phases, HookedPrompt(self))
        await self.hooks.turn_end(reply)
        assert_valid(self.backend.transcript())
        return reply


def on(stage: str, answer: Any, name: str = "h", **options: Any) -> Hook:
    """Return a hook that returns `answer`. If `answer` is a function, the hook returns its result for the event."""

    def handler(event: Any, _ctx: HookContext) -> Any:
        return answer(event) if callable(answer) else answer

    return make_hook(handler, stage, name=name, **options)


def fails(stage: str, **options: Any) -> Hook:
    """Return a hook that fails."""

    def handler(_event: Any, _ctx: HookContext) -> None:
        raise ValueError("broken")

    return make_hook(handler, stage, name="h", **options)
