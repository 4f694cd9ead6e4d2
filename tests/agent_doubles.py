"""Small doubles for tests of the agent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from orch_protocol.agent.spec import Limits
from orch_protocol.core.messages import Message, Reply, ToolResult, Usage, text_of, tool_uses
from orch_protocol.services.service import AnyService
from orch_worker.agent.turn import CancelToken, Emit, Turn
from orch_worker.backends.base import Backend
from orch_worker.tools.api.base import Tool, ToolContext
from orch_worker.tools.dispatch.toolbox import Toolbox


class Root:
    """A root that remembers what it was asked and answers with what it was given, in order."""

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


class Talk:
    """A backend, tools, and everything that was recorded and reported while turns ran."""

    def __init__(self, backend: Backend, *tools: Tool, cwd: Path = Path("/"), seconds: float = 60.0) -> None:
        self.backend = backend
        self.box = Toolbox(tools, ToolContext(cwd, seconds=seconds))
        self.recorded: list[Message] = []
        self.used: list[Usage] = []
        self.reports: list[tuple[str, str, int]] = []
        self.brake = CancelToken()
        backend.append_system("", self.box.specs())

    async def ask(
        self,
        prompt: str = "go",
        limits: Limits | None = None,
        pause: Callable[[], Awaitable[None]] | None = None,
        emit: Emit | None = None,
    ) -> Reply:
        """Run one turn."""
        return await Turn(
            query_id="q1",
            agent_id="a1",
            prompt=prompt,
            backend=self.backend,
            toolbox=self.box,
            record=self.record,
            limits=limits or Limits(),
            report=lambda *report: self.reports.append(report),
            brake=self.brake,
            pause=pause,
            emit=emit,
        ).run()

    def record(self, message: Message, usage: Usage | None = None, said: str = "") -> None:  # noqa: ARG002
        """Keep `message`, which the conversation must not hold yet, and what it took."""
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
    """Assert that each call is answered once, in call order, in the very next message, and nothing else is answered."""
    for index, message in enumerate(messages):
        results = [block.tool_use_id for block in message.content if isinstance(block, ToolResult)]
        asked = [call.id for call in tool_uses(messages[index - 1])] if index else []
        assert results == asked
        assert message.content
    assert not (messages and tool_uses(messages[-1]))
