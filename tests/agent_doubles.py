"""Small doubles for tests of the agent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from orch_protocol.agent.spec import Limits
from orch_protocol.core.messages import Image, Message, Reply, ToolResult, Usage, text_of, tool_uses
from orch_protocol.services.service import AnyService
from orch_worker.agent.features.turn_extension import ActiveExtensions, TurnExtension
from orch_worker.agent.steering import SteeringQueues
from orch_worker.agent.turn import CancelToken, Turn
from orch_worker.backends.base import Backend
from orch_worker.backends.lost_usage import LostUsage
from orch_worker.tools.api.base import Tool, ToolContext
from orch_worker.tools.dispatch.toolbox import Toolbox


class Root:
    """A root that records its requests and returns the given answers in order."""

    def __init__(self, *answers: Any) -> None:
        self.asked: list[tuple[str, Struct]] = []
        self._answers = list(answers)

    async def __call__(self, called: AnyService, params: Struct, seconds: float | None = None) -> Any:  # noqa: ARG002
        service = called.name
        self.asked.append((service, params))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


Emit = Callable[[str, str, str, int, bool], None]


class Paused(TurnExtension):
    """Calls `pause` before the turn continues with new steps."""

    def __init__(self, pause: Callable[[], Awaitable[None]]) -> None:
        self._pause = pause

    async def pause(self) -> None:
        """Call the function `pause`."""
        await self._pause()


class Talk:
    """A backend and tools, with everything that turns recorded and reported."""

    def __init__(self, backend: Backend, *tools: Tool, cwd: Path = Path("/"), seconds: float = 60.0) -> None:
        self.backend = backend
        self.box = Toolbox(tools, ToolContext(cwd, seconds=seconds))
        self.recorded: list[Message] = []
        self.used: list[Usage] = []
        self.reports: list[tuple[str, str, int]] = []
        self.brake = CancelToken()
        self.queues = SteeringQueues()
        self.acknowledged: list[tuple[str, int]] = []
        """Ids of the steering messages that the root was notified of, each with the number of messages recorded by
        then.
        """
        self.losses = LostUsage()
        self.on_event: Emit | None = None
        self.images: tuple[Image, ...] = ()
        backend.append_system("", self.box.specs())

    async def ask(
        self,
        prompt: str = "go",
        limits: Limits | None = None,
        pause: Callable[[], Awaitable[None]] | None = None,
        emit: Emit | None = None,
        images: tuple[Image, ...] = (),
    ) -> Reply:
        """Run one turn."""
        self.on_event, self.images = emit or self.on_event, images
        return await self.turn(prompt, limits or Limits(), *([Paused(pause)] if pause is not None else []))

    async def turn(
        self, prompt: str, limits: Limits, *extensions: TurnExtension, active: ActiveExtensions | None = None
    ) -> Reply:
        """Run one turn with `extensions`, or with the extensions `active` if set."""
        return await Turn(
            "q1",
            prompt,
            self.images,
            agent_id="a1",
            backend=self.backend,
            toolbox=self.box,
            record=self.record,
            limits=limits,
            cancel=self.brake,
            observer=self,
            steering=self.queues,
            losses=self.losses,
            extensions=active or ActiveExtensions(*extensions),
        ).run()

    def report(self, phase: str, detail: str, step: int) -> None:
        """Store a progress report of the turn."""
        self.reports.append((phase, detail, step))

    def is_watched(self) -> bool:
        return False

    def emit(self, query_id: str, kind: str, text: str, name: str, step: int, is_error: bool) -> None:  # noqa: ARG002
        """Pass an event of the turn on."""
        if self.on_event is not None:
            self.on_event(kind, text, name, step, is_error)

    def steering_recorded(self, steer_id: str) -> None:
        """Store the id of a steering message, with the number of messages recorded so far."""
        self.acknowledged.append((steer_id, len(self.recorded)))

    def record(self, message: Message, usage: Usage | None = None, model: str = "", steer_id: str = "") -> None:  # noqa: ARG002
        """Store `message` and its usage. The conversation must not contain `message` yet."""
        assert len(self.backend.transcript()) == len(self.recorded)
        self.recorded.append(message)
        if usage is not None:
            self.used.append(usage)

    def results(self) -> list[ToolResult]:
        """Return every tool result recorded so far."""
        return [block for message in self.recorded for block in message.content if isinstance(block, ToolResult)]

    def texts(self) -> list[str]:
        """Return the text of every tool result recorded so far."""
        return [text_of(Message("user", result.content)) for result in self.results()]


def assert_valid(messages: Sequence[Message]) -> None:
    """Assert that the next message answers each call exactly once, in call order, and contains no other results."""
    for index, message in enumerate(messages):
        results = [block.tool_use_id for block in message.content if isinstance(block, ToolResult)]
        asked = [call.id for call in tool_uses(messages[index - 1])] if index else []
        assert results == asked
        assert message.content
    assert not (messages and tool_uses(messages[-1]))
