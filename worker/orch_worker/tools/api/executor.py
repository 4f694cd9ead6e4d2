"""Executors: objects that list the tools of an agent and run their calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orch_protocol.agent.spec import ToolSpec

from .base import Tool, ToolContext, ToolError

__all__ = ["Executor", "FunctionExecutor", "ToolSource"]


class Executor(ABC):
    """Lists tools and runs their calls, for example in a container, on another machine or through a server.

    Pass an object of a subclass, or the import path of a subclass, as `tool_executor` to `spawn` or `session`. orch
    applies grants, policy, approvals, hooks, budgets, the timeout and the limits of results to each call. The methods
    may be called from several threads at the same time.
    """

    @abstractmethod
    def list(self) -> Sequence[ToolSpec]:
        """Return the tools. Called when the agent is spawned and, for a class, in each new process of the agent.

        The method must return within 30 s. The tools of an agent stay the same. Tools that the executor lists later are
        not granted.
        """

    @abstractmethod
    def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Run the tool `name` and return its result: text, JSON data or a ToolOutput.

        The method may be async. If it is not async, each call runs in its own thread. `arguments` come from the model
        and are not checked against the schema. `context.call_id` identifies the call. The model reads the text of an
        exception.
        """

    def cancel(self, call_id: str) -> None:  # noqa: B027 - overriding it is optional
        """End the call `call_id`, because it timed out or its turn was canceled. The method may be async.

        The result of the call is ignored. If `call` is async, orch also cancels the task of the call.
        """


class ToolSource(Executor):
    """An executor in the form that the toolbox uses. `tools` maps names to tools.

    `name` is the executor's name in error messages, or "" for functions.
    """

    name: str = ""
    tools: Mapping[str, ToolSpec] = {}

    def category(self, name: str) -> str:  # noqa: ARG002
        """Return the category of the tool `name`."""
        return "user"

    def check(self, name: str, arguments: dict[str, Any]) -> None:
        """Raise ToolError if the tool is not available or cannot take `arguments`. Called before policy is applied."""


class FunctionExecutor(ToolSource):
    """Runs tools that are functions: the built-in tools, and the tools of programs and extensions."""

    def __init__(self, functions: Iterable[Tool], context: ToolContext, name: str = "") -> None:
        self.name = name
        self._functions = {each.name: each for each in functions}
        self._context = context
        self.tools = {name: each.spec() for name, each in self._functions.items()}

    def list(self) -> Sequence[ToolSpec]:
        """Return the tools that are available now."""
        return tuple(self.tools[name] for name, each in self._functions.items() if not each.missing(self._context))

    def category(self, name: str) -> str:
        """Return the category of the tool."""
        return self._functions[name].category

    def check(self, name: str, arguments: dict[str, Any]) -> None:
        """Raise ToolError if the tool is not available or cannot take `arguments`."""
        if why := self._functions[name].missing(self._context):
            raise ToolError(why)
        self._functions[name].parse(arguments)

    async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Run the function, in the agent's tool host if it belongs there, and return its ToolOutput."""
        function = self._functions[name]
        host = context.host_of(name) if function.is_builtin else None
        return await (host.call(name, arguments, context) if host is not None else function.run(context, arguments))
