"""Tools made from functions, and how the toolbox runs them."""

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
from orch_protocol.services.resources.tools import RootToolResult, RunTool
from orch_worker.tools.api.base import Tool, ToolContext, ToolError, ToolOutput, root_tool, tool
from orch_worker.tools.dispatch.toolbox import CallOutcome, Toolbox

HERE = ToolContext(Path("/"))


async def dispatch(
    tool: Tool, input: dict[str, Any] | None = None, context: ToolContext = HERE, name: str = ""
) -> CallOutcome:
    """Run one call in a toolbox that contains only `tool`."""
    return await Toolbox([tool], context).dispatch(ToolUse("c1", name or tool.name, input or {}))


def text(outcome: CallOutcome) -> str:
    """Return the text of the result of a call."""
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
    """The decorator `tool`: schema, description and checks."""

    def test_schema_is_derived_from_the_signature(self) -> None:
        """Annotations and defaults become the schema, and the docstring describes the parameters."""
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

    @pytest.mark.parametrize(
        "doc",
        [
            """Multiply two lengths.

            Any rectangle will do.

            Parameters
            ----------
            width : int
                How wide it is,
                in units.
            height : int, optional
                How high.

            Returns
            -------
            str
                The area.

            Raises
            ------
            ValueError
                Without a width.
            """,
            """Multiply two lengths.

            Any rectangle will do.

            :param width: How wide it is,
                in units.
            :param int height: How high.
            :returns: The area.
            :raises ValueError: Without a width.
            """,
        ],
        ids=["numpy", "sphinx"],
    )
    def test_docstrings_of_other_styles(self, doc: str) -> None:
        """Docstrings in the styles of NumPy and Sphinx are read like docstrings in the style of Google."""

        def size(width: int, height: int = 2) -> str:
            return f"{width * height}"

        size.__doc__ = doc
        made = tool(size)
        properties = made.input_schema["properties"]
        assert properties["width"]["description"] == "How wide it is, in units."
        assert properties["height"]["description"] == "How high."
        assert made.description == (
            "Multiply two lengths.\n\nAny rectangle will do.\n\nReturns:\n    The area.\n\n"
            "Raises:\n    ValueError: Without a width."
        )

    @pytest.mark.parametrize(
        "doc", ["One line: of text.", "Two\nlines.", "----------\n:  :param x: a\n\n:::return:-", ""]
    )
    def test_docstrings_without_sections(self, doc: str) -> None:
        """A docstring without sections becomes the description unchanged."""

        def size() -> str:
            return ""

        size.__doc__ = doc
        assert tool(size).description == doc

    def test_description_is_the_docstring_without_arguments(self) -> None:
        """The description contains the docstring except the section that describes the arguments."""
        assert area.spec().description == ("Multiply two lengths.\n\nAny rectangle will do.\n\nReturns:\n    The area.")
        assert (area.name, area.category) == ("area", "user")

    def test_decorated_tool_can_be_called_as_a_function(self) -> None:
        """A tool can be called like its function, and `tool` returns an existing tool unchanged."""
        assert area(3, unit="ft") == "6 ft2"
        assert tool(area) is area

    def test_name_description_and_category_can_be_given(self) -> None:
        """Arguments of the decorator set name, description and category of the tool."""

        @tool(name="say", description="Say it.", category="talk")
        def function(words: Annotated[list[str], Meta(min_length=1)] = ["a"]) -> str:  # noqa: B006
            return " ".join(words)

        assert (function.name, function.description, function.category) == ("say", "Say it.", "talk")
        assert function.input_schema["properties"]["words"]["minItems"] == 1

    async def test_mutable_default_is_not_shared(self) -> None:
        """Each call receives a new copy of a mutable default value."""

        @tool
        def add(word: str, to: list[str] = []) -> str:  # noqa: B006
            to.append(word)
            return ",".join(to)

        assert [text(await dispatch(add, {"word": word})) for word in "ab"] == ["a", "b"]

    async def test_struct_arguments(self) -> None:
        """A parameter can be a struct, and the schema refers to the definition of the struct."""

        @tool
        def move(to: Point) -> int:
            return to.x

        assert move.input_schema["properties"]["to"] == {"$ref": "#/$defs/Point"}
        assert text(await dispatch(move, {"to": {"x": 4}})) == "4"

    async def test_context_is_passed(self) -> None:
        """A parameter annotated with ToolContext receives the context and is not in the schema."""

        @tool
        async def where(context: ToolContext) -> str:
            return str(context.cwd)

        assert where.input_schema["properties"] == {}
        assert text(await dispatch(where, {})) == "/"

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: tool(lambda: None), "is not a valid tool name"),
            (lambda: tool(name="two words")(area.function), "is not a valid tool name"),
            (lambda: tool(untyped), "parameter 'x' needs a type"),
            (lambda: tool(variadic), "by name"),
            (lambda: tool(opaque), r"cannot come from JSON: type <class 'threading.Event'> is not supported"),
            (lambda: tool(yielding), "a generator is not allowed: return a value"),
            (lambda: tool(unresolved), "signature cannot be read"),
        ],
    )
    def test_invalid_tool_function_is_refused_with_a_hint(self, make: Callable[[], object], message: str) -> None:
        """The decorator raises a ConfigError that says why the function cannot be a tool."""
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
    """Calls that the toolbox dispatches: each call has one result and raises no exception."""

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
        """Arguments that do not match the schema give an error that names the field, and the tool is not run."""
        outcome = await dispatch(area, input)
        assert (outcome.ran, outcome.result.is_error) == (False, True)
        assert text(outcome).startswith("Invalid arguments for area: ")
        assert message in text(outcome)

    async def test_arguments_that_are_not_json_are_reported_as_such(self) -> None:
        """Arguments that are not a JSON object give an error that says so, and the tool is not run."""
        outcome = await dispatch(area, {INVALID_INPUT: '{"width": 1'})
        assert (outcome.ran, outcome.result.is_error) == (False, True)
        assert text(outcome).startswith("Not run: the arguments of area are not a JSON object")

    async def test_quoted_numbers_are_converted(self) -> None:
        """A number in quotes is accepted for a numeric parameter."""
        assert text(await dispatch(area, {"width": "3"})) == "6 m2"

    async def test_ungranted_tool_is_refused(self) -> None:
        """A call of a tool that is not granted is not run, and the error lists the granted tools."""
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
    async def test_any_return_value_becomes_encodable_text(self, value: object, shown: str) -> None:
        """The model receives text for every return value, and lone surrogates are replaced."""

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
        """Each exception that a sync or async tool raises becomes an error result that describes it."""

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
    async def test_partials_objects_and_awaitable_results_are_tools(self, function: Any, shown: str, says: str) -> None:
        """Partial functions, callable objects and functions that return an awaitable can be tools.

        Parameters that are already bound are not in the schema.
        """
        if not says:
            function.__annotations__ = {"a": int}
        made = tool(function, name="made")
        assert (list(made.input_schema["properties"]), made.description) == (["a"], says)
        assert text(await dispatch(made, {"a": 3})) == shown

    async def test_object_wrapping_a_function_has_its_signature(self) -> None:
        """Name, parameters and description are those of the wrapped function, and a call runs the object."""
        made = tool(Listed(digits))
        assert (made.name, list(made.input_schema["properties"]), made.description) == ("digits", ["a"], "Tell digits.")
        assert text(await dispatch(made, {"a": 12})) == "[1,2]"

    async def test_sync_tools_run_in_a_thread(self) -> None:
        """A sync tool does not run in the main thread, so that it does not block the event loop."""

        @tool
        def thread() -> bool:
            return threading.current_thread() is threading.main_thread()

        assert text(await dispatch(thread)) == "false"

    async def test_sync_tools_do_not_use_the_default_executor(self) -> None:
        """Three sync tools run at the same time in daemon threads, although the default executor has one thread."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        together = threading.Barrier(3)

        @tool
        def meet() -> bool:
            together.wait(20)
            return threading.current_thread().daemon

        assert [text(each) for each in await asyncio.gather(*(dispatch(meet) for _ in range(3)))] == ["true"] * 3

    async def test_tool_times_out_at_its_deadline(self) -> None:
        """A tool that exceeds its deadline is abandoned, and the error states the time limit."""

        @tool
        async def forever() -> None:
            await asyncio.Event().wait()

        outcome = await dispatch(forever, context=ToolContext(Path("/"), seconds=0.0))
        assert outcome.result.is_error
        assert text(outcome).startswith("Tool 'forever' did not finish within 0 s")

    async def test_tool_that_ignores_cancellation_does_not_block_the_turn(self) -> None:
        """If a tool ignores its cancellation, its call still ends at the deadline."""
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

    async def test_tool_raising_cancelled_error_does_not_end_the_turn(self) -> None:
        """A CancelledError that a tool raises becomes the result of the call."""

        @tool
        async def quit_it() -> None:
            raise asyncio.CancelledError

        assert text(await dispatch(quit_it)) == "Tool 'quit_it' was cancelled."

    async def test_long_output_keeps_both_ends(self) -> None:
        """The result states how many characters are left out between its beginning and its end."""

        @tool
        def shout() -> str:
            return "a" * 50_000 + "z" * 50_000

        box, call = Toolbox([shout], HERE), ToolUse("c1", "shout", {})
        (outcome,) = box.limit_results([call], [await box.dispatch(call)])
        shown = text(outcome)
        assert len(shown) <= 30_000
        assert (shown[:3], shown[-3:]) == ("aaa", "zzz")
        assert "of 100,000 characters left out" in shown

    async def test_changed_files_are_part_of_the_outcome(self) -> None:
        """The outcome of a call contains the files that the tool reports as changed."""

        @tool
        def write() -> ToolOutput:
            return ToolOutput("ok", files_changed=("a.txt",))

        assert (await dispatch(write)).files_changed == ("a.txt",)


class TestRootTool:
    """Tools whose functions run in the root."""

    async def test_root_tool_runs_in_the_root(self) -> None:
        """A call of a root tool is sent to the root, and the result is the answer or the error of the root."""
        root = Root(RootToolResult("6 m2"), RootToolResult("no", is_error=True))
        context = ToolContext(Path("/"), call_root=root)
        made = root_tool(ToolSpec("area", "Multiply.", {"type": "object"}))
        assert text(await dispatch(made, {"width": 3}, context)) == "6 m2"
        assert (await dispatch(made, {}, context)).result.is_error
        assert root.asked[0] == ("run_tool", RunTool("area", {"width": 3}))

    async def test_root_tool_without_a_root_is_an_error_result(self) -> None:
        """Without a root, the result of the call is an error that says so."""
        made = root_tool(ToolSpec("area", "Multiply.", {"type": "object"}))
        assert text(await dispatch(made)) == "cannot call 'run_tool': this tool runs without a root"


def test_specs_keep_the_order_of_the_grant() -> None:
    """The model sees the tools in the order in which they were granted."""
    other = root_tool(ToolSpec("other", "", {"type": "object"}))
    assert [spec.name for spec in Toolbox([other, area], HERE).specs()] == ["other", "area"]
