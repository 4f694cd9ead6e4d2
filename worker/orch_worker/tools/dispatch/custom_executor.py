"""Executors that users write.

This module creates executors, reads their lists of tools, and checks the results of calls.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from copy import deepcopy
from typing import Any, Final

import msgspec

from orch_protocol.agent.spec import ExecutorSpec, ToolSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.text import scrub
from orch_protocol.policy.builtin_tools import BUILTIN_TOOLS
from orch_protocol.wire.frames import DECODE_ERRORS

from ...system.importing import create_object, load_subclass
from ...system.threads import DAEMON_THREADS, await_result, describe_exception, in_thread
from ..api.base import NAME, ToolContext, ToolError, ToolOutput, output_of
from ..api.executor import Executor, ToolSource

__all__ = ["CheckedExecutor", "chosen_tools", "list_tools", "load_executor"]

LIST_SECONDS: Final = 30.0
"""Maximum time in seconds for creating an executor and listing its tools."""
CANCEL_SECONDS: Final = 10.0
"""Maximum time in seconds for an async `cancel`."""


class CheckedExecutor(ToolSource):
    """The executor `name` of a user, with the granted `tools`. Errors name the executor and the tool."""

    def __init__(self, executor: Executor, name: str, tools: Sequence[ToolSpec]) -> None:
        self.name = name
        self.tools = {each.name: each for each in tools}
        self._executor = executor
        self._canceling: set[asyncio.Task[None]] = set()

    def list(self) -> Sequence[ToolSpec]:
        """Return the granted tools."""
        return tuple(self.tools.values())

    async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
        """Run the tool. Raise ToolError if the call fails, or if the result is not text, JSON data or a ToolOutput."""
        # The executor gets a copy, because the arguments are part of the conversation.
        value, error = await _call_method(self._executor.call, name, deepcopy(arguments), context)
        if error:
            raise ToolError(f"Tool {name!r} of executor {self.name!r} failed: {error}")
        if why := _result_error(value):
            raise ToolError(f"Tool {name!r} of executor {self.name!r} returned {why}")
        return output_of(value)

    def cancel(self, call_id: str) -> None:
        """Cancel the call in the background. Errors are logged."""
        task = asyncio.get_running_loop().create_task(self._cancel(call_id))
        self._canceling.add(task)
        task.add_done_callback(self._canceling.discard)

    async def _cancel(self, call_id: str) -> None:
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                _, error = await _call_method(self._executor.cancel, call_id)
        except TimeoutError:
            error = f"did not return within {CANCEL_SECONDS:g} s"
        if error:
            print(f"executor {self.name!r}: cancel: {error}", flush=True)


def load_executor(spec: ExecutorSpec) -> CheckedExecutor:
    """Import and create the executor whose class `spec` names. This function blocks for at most 30 s.

    A new agent gets the tools selected in `spec`. A restarted agent gets its former tools, without those that the
    executor no longer lists. Raise ConfigError if the executor cannot be created.
    """
    executor, listed = list_tools(spec.name, lambda: _create_executor(spec.name))
    if spec.tools is None:
        return CheckedExecutor(executor, spec.name, chosen_tools(spec, listed))
    granted = {each.name for each in spec.tools}
    if removed := granted.difference(each.name for each in listed):
        print(f"tool executor {spec.name!r} no longer lists {', '.join(sorted(removed))}", flush=True)
    return CheckedExecutor(executor, spec.name, [each for each in listed if each.name in granted])


def chosen_tools(spec: ExecutorSpec, listed: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Return the tools of `listed` selected in `spec`. Raise ConfigError if `spec` wants other tools."""
    if spec.wanted is None:
        return tuple(listed)
    names = [each.name for each in listed]
    if unknown := [name for name in spec.wanted if name not in names]:
        raise ConfigError(
            f"unknown tool {unknown[0]!r}: tool executor {spec.name!r} lists {', '.join(names) or 'no tools'}"
        )
    return tuple(each for each in listed if each.name in spec.wanted)


def list_tools(name: str, create: Callable[[], Executor]) -> tuple[Executor, tuple[ToolSpec, ...]]:
    """Call `create`, and return the new executor and its tools. `name` is the executor's name in error messages.

    This function blocks for at most 30 s.

    Raise ConfigError for an executor that fails or does not answer, and for invalid lists of tools.
    """

    def create_and_list() -> tuple[Executor, Any]:
        executor = create()
        return executor, executor.list()

    future = DAEMON_THREADS.submit(create_and_list)  # The work runs in a thread, because a thread can be abandoned.
    if not wait((future,), LIST_SECONDS).done:
        raise ConfigError(f"tool executor {name!r} did not list its tools within {LIST_SECONDS:g} s")
    try:
        executor, listed = future.result()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"tool executor {name!r} cannot list its tools: {describe_exception(error)}") from error
    return executor, _check_tools(name, listed)


def _create_executor(path: str) -> Executor:
    what = f"the tool executor {path!r}"
    executor_class: type[Executor] = load_subclass(path, Executor, what)
    return create_object(executor_class, what)


def _check_tools(name: str, listed: Any) -> tuple[ToolSpec, ...]:
    """Return the tools that executor `name` listed. Raise ConfigError with the name of an invalid tool."""
    if isinstance(listed, str | bytes) or not isinstance(listed, Sequence):
        raise ConfigError(f"tool executor {name!r}: list() must return a list of orch.ToolSpec; got {listed!r:.80}")
    found: dict[str, ToolSpec] = {}
    for each in listed:
        if not isinstance(each, ToolSpec):
            raise ConfigError(f"tool executor {name!r} lists {each!r:.80}, which is not an orch.ToolSpec")
        if not isinstance(each.name, str) or not NAME.fullmatch(each.name):
            raise ConfigError(
                f"tool executor {name!r} lists a tool with the invalid name {each.name!r:.80}: use letters, digits, "
                "'-' and '_', beginning with a letter"
            )
        if each.name in BUILTIN_TOOLS:
            raise ConfigError(
                f"tool executor {name!r} lists {each.name!r}, the name of a built-in tool: use another name"
            )
        if each.name in found:
            raise ConfigError(f"tool executor {name!r} lists two tools with the name {each.name!r}")
        try:
            found[each.name] = msgspec.json.decode(msgspec.json.encode(scrub(msgspec.to_builtins(each))), type=ToolSpec)
        except (*DECODE_ERRORS, TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"tool executor {name!r}, tool {each.name!r}: {error}") from error
        if found[each.name].input_schema.get("type") != "object":
            raise ConfigError(
                f"tool executor {name!r}, tool {each.name!r}: input_schema must be a JSON Schema with the type object"
            )
    return tuple(found.values())


async def _call_method(method: Callable[..., Any], *args: Any) -> tuple[Any, str]:
    """Return the result of `method` and "". On failure, return None and the text of the exception."""
    if not inspect.iscoroutinefunction(method):
        value, error = await in_thread(lambda: method(*args))
        if error or not inspect.isawaitable(value):
            return value, error
        return await await_result(value)
    return await await_result(method(*args))


def _result_error(value: Any) -> str:
    """Return why `value` cannot be a result, or ""."""
    try:
        data = msgspec.json.encode(scrub(msgspec.to_builtins(value)))
        if isinstance(value, ToolOutput):
            msgspec.json.decode(data, type=ToolOutput)
    except (*DECODE_ERRORS, TypeError, ValueError, OverflowError, RecursionError) as error:
        description = f"an invalid ToolOutput: {error}" if isinstance(value, ToolOutput) else type(value).__name__
        return f"{description}; it must return text, JSON data or a ToolOutput"
    return ""
