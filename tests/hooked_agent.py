"""An agent with hooks, without a process: its turns, what its requests held, and hooks in a line."""

from __future__ import annotations

from typing import Any

from agent_doubles import Root, Talk, assert_valid
from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.messages import Reply, text_of
from orch_protocol.core.phases import Reflect, ReflectRule
from orch_protocol.core.prompts import PromptPart
from orch_protocol.hooks.options import HookOptions
from orch_worker.agent.hooks import AgentHooks
from orch_worker.agent.phases import Phases
from orch_worker.agent.steering import SteeringMessage
from orch_worker.agent.turn import Turn
from orch_worker.backends.base import AssistantTurn
from orch_worker.backends.offline.scripted import ScriptedBackend
from orch_worker.conversation.prompt_parts import of_tier, render_parts
from orch_worker.hooks.hook import Hook, HookRegistry, make_hook
from orch_worker.hooks.runner import HookCalls, HookContext
from orch_worker.session.session import SessionState
from orch_worker.tools.api.base import tool

__all__ = ["CALL", "PARTS", "SPEC", "TWO", "Hooked", "Watched", "fails", "on", "shout"]

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
    """Say it loudly."""
    return word.upper()


class Watched(ScriptedBackend):
    """A script that keeps what each of its requests held."""

    def __init__(self, *items: Any) -> None:
        super().__init__(items)
        self.sent: list[tuple[str, list[str], str]] = []

    async def assistant_turn(self, on_text: Any = None) -> AssistantTurn:
        """Return the next item, and remember what was asked."""
        system, messages, tail = self._request()
        self.sent.append((system, [text_of(message) for message in messages], tail))
        return await super().assistant_turn(on_text)


class Notes:
    """Where a transcript keeps what was done beside a turn."""

    def __init__(self) -> None:
        self.session = SessionState()
        self.phases: list[dict[str, Any]] = []

    def phase(self, **told: Any) -> None:
        """Keep it."""
        self.phases.append(told)


class Mute:
    """A side on which there is nobody to ask."""

    answering = None


class Hooked(Talk):
    """An agent with hooks. `root` answers what is asked of the root."""

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
            say=lambda text, follow_up: self.said.append((text, follow_up)),
            messages=backend.transcript,
        )
        self.hooks = AgentHooks(self.calls)
        self.notes = Notes()
        options = HookOptions(reflect=Reflect("rule", rules=(ReflectRule(reply="reflect"),)))
        self.phases = Phases(options, Mute(), self.notes)  # type: ignore[arg-type]
        self.parts = PARTS
        self.on_record = False
        self.system = ""
        self.events: list[tuple[str, str]] = []
        self.shown: list[str] | None = None
        """The text of responses as whoever watches is shown it; None: nobody does."""
        self.waiting: list[str] = []

    def interject(self, _stopping: bool) -> list[SteeringMessage]:
        """Return the next thing that was said."""
        return [SteeringMessage("s", self.waiting.pop(0))] if self.waiting else []

    async def open(self) -> None:
        """Put the prompt together."""
        self.parts, _ = await self.hooks.prompt(PARTS, recorded=self.on_record)
        self.system = await self.hooks.system_prompt(render_parts(of_tier(self.parts, "stable")))

    def emit(self, kind: str, text: str, _name: str, _step: int, _is_error: bool) -> None:
        """Show what is told of the turn."""
        if kind == "text" and self.shown is not None:
            self.shown.append(text)

    async def ask(self, prompt: str = "go", limits: Any = None) -> Reply:
        """Run one turn with the hooks."""
        del limits
        self.phases.turn_began("q1", self.hooks, None)
        self.calls.turn_began("q1", (), lambda _kind, text, name, _error: self.events.append((name, text)))
        reply = await Turn(
            query_id="q1",
            agent_id="a1",
            prompt=prompt,
            backend=self.backend,
            toolbox=self.box,
            record=self.record,
            limits=SPEC.limits,
            report=lambda *_: None,
            brake=self.brake,
            interject=self.interject,
            hooks=self.hooks,
            phases=self.phases,
            opening=self.open,
            emit=self.emit if self.shown is not None else None,
        ).run()
        await self.hooks.turn_end(reply)
        assert_valid(self.backend.transcript())
        return reply


def on(stage: str, answer: Any, name: str = "h", **options: Any) -> Hook:
    """Return a hook that returns `answer`, or what it returns for the event."""

    def handler(event: Any, _ctx: HookContext) -> Any:
        return answer(event) if callable(answer) else answer

    return make_hook(handler, stage, name=name, **options)


def fails(stage: str, **options: Any) -> Hook:
    """Return a hook that fails."""

    def handler(_event: Any, _ctx: HookContext) -> None:
        raise ValueError("broken")

    return make_hook(handler, stage, name="h", **options)
