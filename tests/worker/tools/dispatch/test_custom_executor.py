"""Tool executors of users: their lists of tools, the results of their calls, and the checks of both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from orch_protocol.agent.spec import ExecutorSpec, ToolSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Text, ToolUse, Usage
from orch_worker.tools.api.base import ToolContext, ToolOutput, tool
from orch_worker.tools.api.executor import Executor, FunctionExecutor
from orch_worker.tools.dispatch import custom_executor
from orch_worker.tools.dispatch.custom_executor import CheckedExecutor, chosen_tools, list_tools
from orch_worker.tools.dispatch.toolbox import Toolbox

HERE = ToolContext(Path("/"))
SCHEMA = {"type": "object", "properties": {"part": {"type": "string"}}}
STOCK, PRICE = (ToolSpec(name, f"The {name} of a part.", SCHEMA) for name in ("stock", "price"))


class House(Executor):
    """An executor whose calls return `answer(name, arguments, context)`, which may be a coroutine."""

    def __init__(self, answer: Callable[..., Any] | None = None, listed: Any = (STOCK, PRICE)) -> None:
        self.answer = answer
        self.listed = listed
        self.canceled: list[str] = []

    def list(self) -> Sequence[ToolSpec]:
        listed: Sequence[ToolSpec] = self.listed() if callable(self.listed) else self.listed
        return listed

    def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> Any:
        return self.answer(name, arguments, context) if self.answer is not None else arguments

    async def cancel(self, call_id: str) -> None:  # type: ignore[override]
        self.canceled.append(call_id)


def box_of(house: House, context: ToolContext = HERE) -> Toolbox:
    """Return a toolbox that contains only the tools of `house`."""
    return Toolbox((), context, executors=[CheckedExecutor(house, "house:House", (STOCK, PRICE))])


async def result(house: House, name: str = "stock", context: ToolContext = HERE, **input: Any) -> tuple[str, bool]:
    """Return the text of a call's result and whether it is an error."""
    outcome = await box_of(house, context).dispatch(ToolUse("c1", name, input))
    [block] = outcome.result.content
    assert isinstance(block, Text)
    return block.text, outcome.result.is_error


class TestCall:
    """Calls that the toolbox passes to an executor."""

    async def test_call_gets_name_arguments_and_context(self) -> None:
        """The executor receives the arguments of the model, and each call has a different id."""
        seen: list[Any] = []
        house = House(lambda name, arguments, context: seen.append((name, arguments, context)) or "3 left")
        assert await result(house, part="seal") == ("3 left", False)
        assert await result(house, part="seal") == ("3 left", False)
        assert [each[:2] for each in seen] == [("stock", {"part": "seal"})] * 2
        ids = {each[2].call_id for each in seen}
        assert len(ids) == 2
        assert all(ids)

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ("three", "three"),
            (None, "(no output)"),
            ({"left": 3}, '{"left":3}'),
            (ToolOutput("3"), "3"),
            ("\udc80", "�"),
        ],
    )
    async def test_text_json_and_tool_outputs_are_results(self, value: Any, text: str) -> None:
        """Sync and async methods can return text, JSON data, a ToolOutput or None."""

        async def later(*_: Any) -> Any:
            return value

        assert await result(House(lambda *_: value)) == (text, False)
        assert await result(House(later)) == (text, False)

    @pytest.mark.parametrize(
        "value",
        [object(), {1: object()}, ToolOutput(5), ToolOutput("x", usage=Usage(cost_usd=float("nan")))],  # type: ignore[arg-type]
    )
    async def test_other_results_are_errors_that_name_executor_and_tool(self, value: Any) -> None:
        """The error for a return value of another type also names the valid types."""
        text, is_error = await result(House(lambda *_: value))
        assert is_error
        assert text.startswith("Tool 'stock' of executor 'house:House' returned ")
        assert text.endswith("it must return text, JSON data or a ToolOutput")

    @pytest.mark.parametrize("error", [ValueError("no part"), SystemExit("no part"), asyncio.CancelledError("no part")])
    async def test_exceptions_are_errors_that_name_executor_and_tool(self, error: BaseException) -> None:
        """An exception that would end a thread or a task also becomes an error result of its call."""

        def fail(*_: Any) -> Any:
            raise error

        async def fail_later(*_: Any) -> Any:
            raise error

        expected = f"Tool 'stock' of executor 'house:House' failed: {type(error).__name__}: no part"
        assert await result(House(fail)) == (expected, True)
        assert await result(House(fail_later)) == (expected, True)

    async def test_executor_cannot_change_the_arguments(self) -> None:
        """The executor receives a copy, because the arguments are part of the conversation."""
        use = ToolUse("c1", "stock", {"part": {"name": "seal"}})
        await box_of(House(lambda _name, arguments, _context: arguments["part"].clear())).dispatch(use)
        assert use.input == {"part": {"name": "seal"}}

    async def test_unlisted_tool_is_refused(self) -> None:
        """A call of a tool that is not in the list does not reach the executor."""
        called: list[Any] = []
        text, is_error = await result(House(lambda *each: called.append(each)), name="weight")
        assert (text, is_error) == ("Tool 'weight' is not granted to this agent. Granted: stock, price.", True)
        assert called == []

    async def test_revoked_tool_is_refused(self) -> None:
        """After one tool is withdrawn, its calls are not run, and calls of the other tool are."""
        box = box_of(House())
        box.withdraw(["stock"])
        assert not (await box.dispatch(ToolUse("c1", "stock", {}))).ran
        assert (await box.dispatch(ToolUse("c2", "price", {}))).ran


class TestCancel:
    """Calls whose results are no longer needed."""

    async def test_call_without_answer_times_out(self) -> None:
        """The error names the executor and the tool, and `cancel` receives the id of the call."""
        ids: list[str] = []

        async def never(_name: str, _arguments: Any, context: ToolContext) -> None:
            ids.append(context.call_id)
            await asyncio.Event().wait()

        house = House(never)
        text, is_error = await result(house, context=ToolContext(Path("/"), seconds=0.01))
        assert is_error
        assert text.startswith("Tool 'stock' of executor 'house:House' did not finish within 0.01 s")
        await settled()
        assert house.canceled == ids

    async def test_canceled_turn_cancels_the_call(self) -> None:
        """A call in a thread cannot be ended by its task, so `cancel` receives the id of the call."""
        begun, go, ids = asyncio.Event(), threading.Event(), list[str]()
        loop = asyncio.get_running_loop()

        def wait(_name: str, _arguments: Any, context: ToolContext) -> None:
            ids.append(context.call_id)
            loop.call_soon_threadsafe(begun.set)
            go.wait()

        house = House(wait)
        calling = asyncio.create_task(result(house))
        await begun.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await settled()
        assert house.canceled == ids
        go.set()

    async def test_failing_cancel_is_logged(self, capsys: pytest.CaptureFixture[str]) -> None:
        """An exception in `cancel` does not change the result of the call."""

        class Broken(House):
            def cancel(self, call_id: str) -> None:  # type: ignore[override]
                raise RuntimeError(f"unknown call of {len(call_id)} characters")

        async def never(*_: Any) -> None:
            await asyncio.Event().wait()

        text, _ = await result(Broken(never), context=ToolContext(Path("/"), seconds=0.01))
        assert "did not finish" in text
        await settled()
        assert (
            capsys.readouterr().out == "executor 'house:House': cancel: RuntimeError: unknown call of 12 characters\n"
        )


async def settled() -> None:
    """Wait until all other tasks are done."""
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)


class TestList:
    """The tools that an executor lists."""

    def listed(self, value: Any) -> tuple[ToolSpec, ...]:
        house = House(listed=value)
        return list_tools("house:House", lambda: house)[1]

    def test_tools_are_listed(self) -> None:
        """The tools keep the order of the executor, and the list can be empty."""
        assert self.listed([PRICE, STOCK]) == (PRICE, STOCK)
        assert self.listed([]) == ()

    @pytest.mark.parametrize(
        ("value", "why"),
        [
            (None, "must return a list of orch.ToolSpec; got None"),
            ("stock", "must return a list of orch.ToolSpec; got 'stock'"),
            ([{"name": "stock"}], "lists {'name': 'stock'}, which is not an orch.ToolSpec"),
            ([ToolSpec("two words", "", SCHEMA)], "lists a tool with the invalid name 'two words'"),
            ([ToolSpec(None, "", SCHEMA)], "lists a tool with the invalid name None"),  # type: ignore[arg-type]
            ([ToolSpec("bash", "", SCHEMA)], "lists 'bash', the name of a built-in tool: use another name"),
            ([STOCK, PRICE, STOCK], "lists two tools with the name 'stock'"),
            ([ToolSpec("stock", "", {})], "tool 'stock': input_schema must be a JSON Schema with the type object"),
            ([ToolSpec("stock", "", {"type": object})], "tool 'stock': Encoding objects of type type"),
            ([ToolSpec("stock", 5, SCHEMA)], "tool 'stock': Expected `str`, got `int`"),  # type: ignore[arg-type]
        ],
    )
    def test_invalid_list_is_an_error(self, value: Any, why: str) -> None:
        """The error names the executor and the invalid tool or value."""
        with pytest.raises(ConfigError) as caught:
            self.listed(value)
        assert str(caught.value).startswith("tool executor 'house:House'")
        assert why in str(caught.value)

    @pytest.mark.parametrize("error", [OSError("no house"), TimeoutError("no house"), SystemExit("no house")])
    def test_failing_list_is_an_error(self, error: BaseException) -> None:
        """The error contains the type and the message of the exception."""

        def fail() -> None:
            raise error

        with pytest.raises(ConfigError, match=f"'house:House' cannot list its tools: {type(error).__name__}: no house"):
            self.listed(fail)

    def test_list_without_answer_times_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The caller gets an error at the time limit, although the thread cannot be ended."""
        monkeypatch.setattr(custom_executor, "LIST_SECONDS", 0.01)
        go = threading.Event()
        with pytest.raises(ConfigError, match=r"tool executor 'house:House' did not list its tools within 0.01 s"):
            self.listed(go.wait)
        go.set()

    def test_wanted_tools_are_chosen(self) -> None:
        """All listed tools are chosen by default, and a wanted tool that is not listed is an error."""
        spec = ExecutorSpec("house:House")
        assert chosen_tools(spec, (STOCK, PRICE)) == (STOCK, PRICE)
        assert chosen_tools(ExecutorSpec("house:House", wanted=("price",)), (STOCK, PRICE)) == (PRICE,)
        with pytest.raises(ConfigError, match="unknown tool 'weight': tool executor 'house:House' lists stock, price"):
            chosen_tools(ExecutorSpec("house:House", wanted=("stock", "weight")), (STOCK, PRICE))


async def test_built_in_tools_are_an_executor_too() -> None:
    """Built-in tools have the methods `list`, `call` and `cancel`, so the toolbox runs all tools in one way."""

    @tool
    def double(number: int) -> str:
        """Double it."""
        return str(2 * number)

    executor: Executor = FunctionExecutor([double], HERE)
    assert [each.name for each in executor.list()] == ["double"]
    assert await executor.call("double", {"number": 2}, HERE) == ToolOutput("4")
    executor.cancel("an unknown id")
