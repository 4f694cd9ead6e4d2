"""The toolbox: available tools, concurrent calls, and limits on the results that the model sees."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from orch_protocol.agent.spec import ToolSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Text, ToolUse
from orch_worker.system.secrets import ApiKeys
from orch_worker.tools.api.base import Tool, ToolContext, root_tool, tool
from orch_worker.tools.dispatch.result_limits import MAX_CAPTURED, MAX_SHOWN, MAX_SHOWN_A_STEP
from orch_worker.tools.dispatch.toolbox import CallOutcome, Toolbox
from orch_worker.tools.values.handles import read_handle
from orch_worker.tools.values.store import MIN_SHOWN, shared_limit

HERE = ToolContext(Path("/"))


def text(outcome: CallOutcome) -> str:
    """Return the text of the result of a call."""
    (block,) = outcome.result.content
    assert isinstance(block, Text)
    return block.text


async def step(box: Toolbox, *calls: tuple[str, dict[str, Any]]) -> list[str]:
    """Run `calls` as one step and return the results that the model sees."""
    uses = [ToolUse(f"c{number}", name, input) for number, (name, input) in enumerate(calls)]
    outcomes = await asyncio.gather(*map(box.dispatch, uses))
    return [text(outcome) for outcome in box.limit_results(uses, outcomes)]


@tool
def say(text: str, times: int = 1) -> str:
    """Say it, so many times."""
    return text * times


class TestAvailable:
    """Tools that are available to some agents only."""

    def has_key(self, context: ToolContext) -> bool:
        return "KEY" in context.keys

    async def test_unavailable_tool_is_neither_seen_nor_run(self) -> None:
        """A tool whose `available` predicate returns False is not in the request, and its calls are refused."""
        guarded = tool(available=self.has_key)(say.function)
        without = Toolbox([guarded], HERE)
        assert without.specs() == ()
        outcome = await without.dispatch(ToolUse("c1", "say", {"text": "a"}))
        assert (outcome.ran, outcome.result.is_error) == (False, True)
        assert text(outcome) == "Tool 'say' is not available here."
        having = Toolbox([guarded], ToolContext(Path("/"), keys=ApiKeys(KEY="x")))
        assert [spec.name for spec in having.specs()] == ["say"]
        assert await step(having, ("say", {"text": "a"})) == ["a"]

    async def test_failing_availability_predicate_hides_the_tool(self) -> None:
        """A call of the hidden tool gives an error that names the exception of the predicate."""

        def broken(context: ToolContext) -> bool:
            raise KeyError(context.agent_id)

        box = Toolbox([tool(available=broken)(say.function)], HERE)
        assert box.specs() == ()
        assert await step(box, ("say", {"text": "a"})) == ["Tool 'say' is not available here: KeyError: ''."]

    def test_repr_of_the_context_hides_keys(self) -> None:
        """Neither `str` nor `repr` of the context contains the values of keys."""
        context = ToolContext(Path("/"), keys=ApiKeys(KEY="canary"))
        assert "canary" not in f"{context} {context!r} {context.keys} {context.keys!r}"


class TestTogether:
    """Calls of one step."""

    def recording(self, log: list[str], **options: Any) -> Tool:
        """Return a tool that logs its start and its end and lets other tasks run in between."""

        @tool(name=options.pop("name", "work"), **options)
        async def work(path: str = "") -> str:
            log.append(f"+{path}")
            for _ in range(5):
                await asyncio.sleep(0)
            log.append(f"-{path}")
            return path

        return work

    async def test_calls_run_concurrently(self) -> None:
        """Two calls of one step both start before the first one ends."""
        log: list[str] = []
        await step(Toolbox([self.recording(log)], HERE), ("work", {"path": "a"}), ("work", {"path": "b"}))
        assert log == ["+a", "+b", "-a", "-b"]

    async def test_exclusive_tools_run_alone(self) -> None:
        """An exclusive call waits for earlier calls to end, and later calls wait for the exclusive call."""
        log: list[str] = []
        box = Toolbox([self.recording(log), self.recording(log, name="alone", exclusive=True)], HERE)
        calls = [("work", "a"), ("work", "b"), ("alone", "X"), ("alone", "Y"), ("work", "c"), ("work", "d")]
        shown = await step(box, *((name, {"path": path}) for name, path in calls))
        assert log == ["+a", "+b", "-a", "-b", "+X", "-X", "+Y", "-Y", "+c", "+d", "-c", "-d"]
        assert shown == ["a", "b", "X", "Y", "c", "d"]

    async def test_calls_on_one_file_run_in_call_order(self, tmp_path: Path) -> None:
        """Different spellings and links count as the same file, and calls on other files do not wait."""
        (tmp_path / "link").symlink_to("a")
        log: list[str] = []
        box = Toolbox([self.recording(log, locks="path")], ToolContext(tmp_path))
        await step(box, *(("work", {"path": path}) for path in ("a", "b", "./a", "link", "\0")))
        assert log[:3] == ["+a", "+b", "+\0"]
        same = [each for each in log if each[1:] in ("a", "./a", "link")]
        assert same == ["+a", "-a", "+./a", "-./a", "+link", "-link"]

    async def test_cancelled_waiter_releases_its_place(self) -> None:
        """Later calls run although an exclusive call before them was cancelled while it waited."""
        log: list[str] = []
        box = Toolbox([self.recording(log), self.recording(log, name="alone", exclusive=True)], HERE)
        first = asyncio.create_task(box.dispatch(ToolUse("1", "work", {"path": "a"})))
        waiting = asyncio.create_task(box.dispatch(ToolUse("2", "alone", {"path": "X"})))
        last = asyncio.create_task(box.dispatch(ToolUse("3", "work", {"path": "b"})))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(first, last)
        assert waiting.cancelled()
        assert log == ["+a", "-a", "+b", "-b"] or log == ["+a", "+b", "-a", "-b"]

    async def test_root_tools_can_be_exclusive(self) -> None:
        """The spec of a tool states whether it is exclusive, and a root tool takes this from its spec."""
        assert tool(exclusive=True)(say.function).spec().exclusive
        assert root_tool(ToolSpec("say", "", {"type": "object"}, exclusive=True)).exclusive

    def test_lock_must_name_a_parameter(self) -> None:
        """If `locks` names no parameter of the function, the decorator raises a ConfigError."""
        with pytest.raises(ConfigError, match="no parameter 'file'"):
            tool(locks="file")(say.function)


class TestLevel:
    """The length limit that several results share."""

    @pytest.mark.parametrize(
        ("lengths", "expected"),
        [
            ([], 3_000),
            ([10, 20], 3_000),
            ([9_000], 3_000),
            ([9_000, 10], 3_000),
            ([3_000] * 4, 2_500),
            ([100, 9_000, 9_000, 9_000, 9_000], 2_475),
            ([2_000, 2_000, 9_000, 9_000], 3_000),
            ([2_000, 2_500, 9_000, 9_000], 2_750),
            ([1_000] * 10, 3_000),
            ([1_000] * 20, 500),
            ([1_000] * 1_000, MIN_SHOWN),
        ],
    )
    def test_longest_are_cut_first(self, lengths: list[int], expected: int) -> None:
        """Short texts stay complete, long texts share the rest of the limit, and the limit is at least MIN_SHOWN."""
        limit = shared_limit(lengths, 10_000, 3_000)
        assert limit == expected
        if limit > MIN_SHOWN:
            assert sum(min(length, limit) for length in lengths) <= 10_000


class TestShown:
    """Results that are too long for the model."""

    def box(self, folder: Path | None, *more: Tool) -> Toolbox:
        return Toolbox([say, *more], ToolContext(Path("/"), folder=folder))

    async def test_long_result_is_stored_under_a_handle(self, tmp_path: Path) -> None:
        """The model sees the beginning, the end and the handle, with which it can read any part."""
        box = self.box(tmp_path, read_handle)
        (shown,) = await step(box, ("say", {"text": "0123456789", "times": 10_000}))
        assert len(shown) <= MAX_SHOWN
        assert (shown[:10], shown[-10:]) == ("0123456789", "0123456789")
        assert "of 100,000 characters left out: read_handle with .h_001 shows any part" in shown
        (part,) = await step(box, ("read_handle", {"handle": ".h_001", "offset": 50_000, "limit": 12}))
        assert part == "012345678901\n[characters 50,000 to 50,012 of 100,000; go on with offset=50012]"

    async def test_short_result_is_not_stored(self, tmp_path: Path) -> None:
        """No file is written for a short result."""
        await step(self.box(tmp_path, read_handle), ("say", {"text": "a"}))
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize("why", ["no reader", "no folder"])
    async def test_result_is_not_stored_without_read_handle(self, tmp_path: Path, why: str) -> None:
        """An agent that cannot read handles is asked to request less at once."""
        box = self.box(tmp_path) if why == "no reader" else self.box(None, read_handle)
        (shown,) = await step(box, ("say", {"text": "x", "times": 50_000}))
        assert "left out: ask for less at once" in shown
        assert os.listdir(tmp_path) == []

    async def test_results_of_one_step_share_a_limit(self, tmp_path: Path) -> None:
        """Long results are cut to the same length, and a short result stays complete."""
        box = self.box(tmp_path, read_handle)
        calls = [("say", {"text": letter, "times": 29_000}) for letter in "abcdef"]
        shown = await step(box, *calls, ("say", {"text": "short"}))
        assert sum(map(len, shown)) <= MAX_SHOWN_A_STEP
        assert shown[-1] == "short"
        assert len({len(each) for each in shown[:-1]}) == 1
        assert sorted(path.name[:5] for path in (tmp_path / "stash").iterdir()) == [f"h_{n:03}" for n in range(1, 7)]

    async def test_text_read_from_a_handle_is_not_stored_again(self, tmp_path: Path) -> None:
        """If a step reads too many long parts, the parts are cut without a new handle."""
        box = self.box(tmp_path, read_handle)
        await step(box, ("say", {"text": "x", "times": 100_000}))
        parts = await step(box, *(("read_handle", {"handle": ".h_001", "limit": 28_000}),) * 5)
        assert all("ask for less at once" in part for part in parts)
        assert len(list((tmp_path / "stash").iterdir())) == 1

    async def test_failed_storing_is_stated_in_the_result(self, tmp_path: Path) -> None:
        """If a long result cannot be stored, the model sees its beginning and the reason."""
        (tmp_path / "stash").write_text("in the way")
        (shown,) = await step(self.box(tmp_path, read_handle), ("say", {"text": "x", "times": 50_000}))
        assert shown.startswith("xxx")
        assert "ask for less at once, because the complete text could not be stored: Not a directory" in shown

    async def test_stored_result_is_bounded(self, tmp_path: Path) -> None:
        """A result that is too long to be stored is cut to MAX_CAPTURED characters and says so."""
        box = self.box(tmp_path, read_handle)
        outcome = await box.dispatch(ToolUse("c1", "say", {"text": "x", "times": 3_000_000}))
        assert len(text(outcome)) <= MAX_CAPTURED
        assert "it was too long to be kept" in text(outcome)


class Held:
    """An object with a `close` method that a context owns."""

    closed = 0

    def __init__(self, context: ToolContext) -> None:
        self.context = context

    def close(self) -> None:
        Held.closed += 1


def test_context_has_one_object_per_type_until_close() -> None:
    """Closing the toolbox twice closes the object once."""
    context = ToolContext(Path("/"), agent_id="a")
    assert context.agent_object(Held) is context.agent_object(Held)
    assert context.agent_object(Held).context is context
    assert ToolContext(Path("/")).agent_object(Held) is not context.agent_object(Held)
    box = Toolbox([], context)
    box.close()
    box.close()
    assert Held.closed == 1
