"""Tools made of functions, and the toolbox that runs them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial, update_wrapper
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct

from agent_doubles import Root
from orch_protocol.agent.spec import ToolSpec
from orch_protocol.core.errors import AgentBusyError, ConfigError
from orch_protocol.core.messages import INVALID_INPUT, Text, ToolUse
from orch_protocol.services.requests import RootToolResult, RunTool
from orch_worker.tools.api.base import Tool, ToolContext, ToolError, ToolOutput, root_tool, tool
from orch_worker.tools.dispatch.toolbox import CallOutcome, Toolbox

HERE = ToolContext(Path("/"))


async def dispatch(
    tool: Tool, input: dict[str, Any] | None = None, context: ToolContext = HERE, name: str = ""
) -> CallOutcome:
    """Run one call of `tool` in a toolbox of its own."""
    return await Toolbox([tool], context).dispatch(ToolUse("c1", name or tool.name, input or {}))


def text(outcome: CallOutcome) -> str:
    """Return the text of a result."""
    (block,) = outcome.result.content
    assert isinstance(block, Text)
    return block.text


@tool
def area(width: int, height: int = 2, unit: Literal["m", "ft"] = "m") -> str:
    """Multiply two lengths.

    Any rectangle will do.

    Args:
        width: How wide it is,
            in units.
        height (int): How high.

    Returns:
        The area.
    """
    return f"{width * height} {unit}2"


class Point(Struct):
    """A place."""

    x: int


class TestDecorator:
    """From a function to a tool."""

    def test_schema_is_the_signature(self) -> None:
        """Annotations and defaults become the schema, with the arguments at the top."""
        assert area.input_schema == {
            "type": "object",
            "properties": {
                "width": {"type": "integer", "description": "How wide it is, in units."},
                "height": {"type": "integer", "default": 2, "description": "How high."},
                "unit": {"enum": ["ft", "m"], "default": "m"},
            },
            "required": ["width"],
            "additionalProperties": False,
        }

    def test_description_is_the_docstring(self) -> None:
        """The docstring without its arguments tells the model what the tool does."""
        assert area.spec().description == ("Multiply two lengths.\n\nAny rectangle will do.\n\nReturns:\n    The area.")
        assert (area.name, area.category) == ("area", "user")

    def test_is_still_the_function(self) -> None:
        """A tool can be called like the function it was made of, and made a tool again."""
        assert area(3, unit="ft") == "6 ft2"
        assert tool(area) is area

    def test_options(self) -> None:
        """Name, description and category can be given."""

        @tool(name="say", description="Say it.", category="talk")
        def function(words: Annotated[list[str], Meta(min_length=1)] = ["a"]) -> str:  # noqa: B006
            return " ".join(words)

        assert (function.name, function.description, function.category) == ("say", "Say it.", "talk")
        assert function.input_schema["properties"]["words"]["minItems"] == 1

    async def test_mutable_default_is_not_shared(self) -> None:
        """Each call gets a default list of its own."""

        @tool
        def add(word: str, to: list[str] = []) -> str:  # noqa: B006
            to.append(word)
            return ",".join(to)

        assert [text(await dispatch(add, {"word": word})) for word in "ab"] == ["a", "b"]

    async def test_struct_arguments(self) -> None:
        """An argument may be a struct; its schema is referred to."""

        @tool
        def move(to: Point) -> int:
            return to.x

        assert move.input_schema["properties"]["to"] == {"$ref": "#/$defs/Point"}
        assert text(await dispatch(move, {"to": {"x": 4}})) == "4"

    async def test_context_is_passed(self) -> None:
        """A parameter annotated ToolContext receives the context and is not in the schema."""

        @tool
        async def where(context: ToolContext) -> str:
            return str(context.cwd)

        assert where.input_schema["properties"] == {}
        assert text(await dispatch(where, {})) == "/"

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: tool(lambda: None), "cannot name a tool"),
            (lambda: tool(name="two words")(area.function), "cannot name a tool"),
            (lambda: tool(untyped), "parameter 'x' needs a type"),
            (lambda: tool(variadic), "passed by name"),
            (lambda: tool(opaque), r"cannot come from JSON: type <class 'threading.Event'> is not supported"),
            (lambda: tool(yielding), "it yields; let it return a value"),
            (lambda: tool(unresolved), "signature cannot be read"),
        ],
    )
    def test_what_cannot_be_a_tool(self, make: Callable[[], object], message: str) -> None:
        """A function that cannot be a tool is refused when it is made one, with what to do."""
        with pytest.raises(ConfigError, match=message):
            make()


def untyped(x):  # type: ignore[no-untyped-def]
    return x


def variadic(*words: str) -> None:
    print(words)


def yielding() -> Iterator[int]:
    yield 1


def opaque(event: threading.Event) -> None:
    event.set()


def unresolved(x: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
    print(x)


def put(context: ToolContext, a: int, b: Path) -> str:
    """Put it there."""
    return f"{a} in {context.cwd / b}"


class Listed:
    """Decorates a function that yields: calling it returns a list."""

    def __init__(self, function: Callable[..., Iterator[int]]) -> None:
        self.function = function
        update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> list[int]:
        return list(self.function(*args, **kwargs))


def digits(a: int) -> Iterator[int]:
    """Tell digits."""
    yield from map(int, str(a))


class Doubled:
    """What doubles."""

    async def __call__(self, a: int) -> int:
        """Double it."""
        return 2 * a


class TestDispatch:
    """One call, one result, never an exception."""

    @pytest.mark.parametrize(
        ("input", "message"),
        [
            ({}, "missing required field `width`"),
            ({"width": "wide"}, "$.width"),
            ({"width": 1, "depth": 2}, "unknown field `depth`; it takes width, height, unit"),
            ({"width": 1, "unit": "inch"}, "$.unit`; it is one of ft, m"),
        ],
    )
    async def test_wrong_arguments_name_the_field(self, input: dict[str, Any], message: str) -> None:
        """Arguments that do not fit are an error result that names the field; the tool is not run."""
        outcome = await dispatch(area, input)
        assert (outcome.ran, outcome.result.is_error) == (False, True)
        assert text(outcome).startswith("Invalid arguments for area: ")
        assert message in text(outcome)

    async def test_arguments_that_are_no_json_are_told_as_that(self) -> None:
        """And not as an argument that the tool does not have."""
        outcome = await dispatch(area, {INVALID_INPUT: '{"width": 1'})
        assert (outcome.ran, outcome.result.is_error) == (False, True)
        assert text(outcome).startswith("Not run: the arguments of area are no JSON object")

    async def test_numbers_in_quotes_pass(self) -> None:
        """Models send numbers as text; what can only be a number is taken as one."""
        assert text(await dispatch(area, {"width": "3"})) == "6 m2"

    async def test_ungranted_tool_is_refused(self) -> None:
        """A tool that was not granted is not run, and the result says what was granted."""
        outcome = await dispatch(area, name="rm")
        assert (outcome.ran, outcome.result.is_error) == (False, True)
        assert text(outcome) == "Tool 'rm' is not granted to this agent. Granted: area."

    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            (None, "(no output)"),
            ("", "(no output)"),
            ({"a": [1, None]}, '{"a":[1,null]}'),
            (ToolOutput("ok"), "ok"),
            ("a\udc80", "a\N{REPLACEMENT CHARACTER}"),
            (threading, str(threading)),
        ],
    )
    async def test_any_value_is_text(self, value: object, shown: str) -> None:
        """Whatever a tool returns reaches the model as text that can be encoded."""

        @tool
        def give() -> object:
            return value

        assert text(await dispatch(give)) == shown

    @pytest.mark.parametrize("kind", ["sync", "async"])
    @pytest.mark.parametrize(
        ("error", "shown"),
        [
            (ToolError("no such row"), "no such row"),
            (AgentBusyError("agent b is busy"), "agent b is busy"),
            (KeyError("x"), "KeyError: 'x'"),
            (StopIteration(3), "StopIteration"),
            (RecursionError("deep"), "RecursionError: deep"),
            (SystemExit(2), "SystemExit"),
            (pytest.fail.Exception("not so"), "Failed: not so"),
        ],
    )
    async def test_exceptions_are_error_results(self, kind: str, error: BaseException, shown: str) -> None:
        """What a tool raises is an error result; ours and the tool's own say it in their words."""

        @tool(name="fail")
        def fail_sync() -> None:
            raise error

        @tool(name="fail")
        async def fail_async() -> None:
            raise error

        outcome = await dispatch(fail_sync if kind == "sync" else fail_async)
        assert (outcome.ran, outcome.result.is_error) == (True, True)
        assert shown in text(outcome)

    @pytest.mark.parametrize(
        ("function", "shown", "says"),
        [
            (partial(put, b=Path("/b")), "3 in /b", "Put it there."),
            (Doubled(), "6", "Double it."),
            (partial(Doubled()), "6", "Double it."),
            (lambda a: Doubled()(a), "6", ""),
        ],
    )
    async def test_whatever_can_be_called_is_a_tool(self, function: Any, shown: str, says: str) -> None:
        """A partial, which asks no more for what it says, an object, a plain function whose result is to be awaited."""
        if not says:
            function.__annotations__ = {"a": int}
        made = tool(function, name="made")
        assert (list(made.input_schema["properties"]), made.description) == (["a"], says)
        assert text(await dispatch(made, {"a": 3})) == shown

    async def test_an_object_that_a_decorator_made_of_a_function_is_that_function(self) -> None:
        """What it takes, and what it says of itself, is the function's; what is called is the object."""
        made = tool(Listed(digits))
        assert (made.name, list(made.input_schema["properties"]), made.description) == ("digits", ["a"], "Tell digits.")
        assert text(await dispatch(made, {"a": 12})) == "[1,2]"

    async def test_sync_tools_run_in_a_thread(self) -> None:
        """A sync tool does not hold the event loop."""

        @tool
        def thread() -> bool:
            return threading.current_thread() is threading.main_thread()

        assert text(await dispatch(thread)) == "false"

    async def test_no_sync_tool_waits_for_another_or_keeps_the_program_from_ending(self) -> None:
        """However few threads the event loop's own executor has, which are joined at the program's end, too."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        together = threading.Barrier(3)

        @tool
        def meet() -> bool:
            together.wait(20)
            return threading.current_thread().daemon

        assert [text(each) for each in await asyncio.gather(*(dispatch(meet) for _ in range(3)))] == ["true"] * 3

    async def test_deadline(self) -> None:
        """A tool past its deadline is given up, and the result says so."""

        @tool
        async def forever() -> None:
            await asyncio.Event().wait()

        outcome = await dispatch(forever, context=ToolContext(Path("/"), seconds=0.0))
        assert outcome.result.is_error
        assert text(outcome).startswith("Tool 'forever' did not finish within 0 s")

    async def test_tool_that_ignores_cancellation(self) -> None:
        """A tool that will not end when told to does not hold the turn."""
        release = asyncio.Event()
        ended = asyncio.Event()

        @tool
        async def stubborn() -> None:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue
            ended.set()

        outcome = await dispatch(stubborn, context=ToolContext(Path("/"), seconds=0.0))
        assert "given up" in text(outcome)
        release.set()
        await ended.wait()

    async def test_tool_that_cancels_itself(self) -> None:
        """A tool that raises CancelledError does not end the turn."""

        @tool
        async def quit_it() -> None:
            raise asyncio.CancelledError

        assert text(await dispatch(quit_it)) == "Tool 'quit_it' was cancelled."

    async def test_long_output_keeps_both_ends(self) -> None:
        """Output past the limit keeps head and tail and says how much was left out."""

        @tool
        def shout() -> str:
            return "a" * 50_000 + "z" * 50_000

        box, call = Toolbox([shout], HERE), ToolUse("c1", "shout", {})
        (outcome,) = box.shown([call], [await box.dispatch(call)])
        shown = text(outcome)
        assert len(shown) <= 30_000
        assert (shown[:3], shown[-3:]) == ("aaa", "zzz")
        assert "of 100,000 characters left out" in shown

    async def test_files_changed_come_along(self) -> None:
        """What a tool says it changed is part of the outcome."""

        @tool
        def write() -> ToolOutput:
            return ToolOutput("ok", files_changed=("a.txt",))

        assert (await dispatch(write)).files_changed == ("a.txt",)


class TestRootTool:
    """Functions of the user's program."""

    async def test_runs_in_the_root(self) -> None:
        """A call of a root tool asks the root to run it, and its answer is the result."""
        root = Root(RootToolResult("6 m2"), RootToolResult("no", is_error=True))
        context = ToolContext(Path("/"), call_root=root)
        made = root_tool(ToolSpec("area", "Multiply.", {"type": "object"}))
        assert text(await dispatch(made, {"width": 3}, context)) == "6 m2"
        assert (await dispatch(made, {}, context)).result.is_error
        assert root.asked[0] == ("run_tool", RunTool("area", {"width": 3}))

    async def test_without_a_root(self) -> None:
        """Where there is no root, the call says so."""
        made = root_tool(ToolSpec("area", "Multiply.", {"type": "object"}))
        assert text(await dispatch(made)) == "cannot call 'run_tool': this tool runs without a root"


def test_specs_keep_the_order_of_the_grant() -> None:
    """The model sees the tools in the order they were granted in."""
    other = root_tool(ToolSpec("other", "", {"type": "object"}))
    assert [spec.name for spec in Toolbox([other, area], HERE).specs()] == ["other", "area"]
