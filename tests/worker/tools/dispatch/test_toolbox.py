"""The toolbox: which calls run, beside which others, and how much of their results is shown."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from orch_protocol.agent.spec import ToolSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Text, ToolUse
from orch_worker.tools.api.base import ApiKeys, Tool, ToolContext, root_tool, tool
from orch_worker.tools.dispatch.result_limits import MAX_CAPTURED, MAX_SHOWN, MAX_SHOWN_A_STEP
from orch_worker.tools.dispatch.toolbox import CallOutcome, Toolbox
from orch_worker.tools.values.handles import read_handle
from orch_worker.tools.values.store import LEAST_SHOWN, shared_limit

HERE = ToolContext(Path("/"))


def text(outcome: CallOutcome) -> str:
    """Return the text of a result."""
    (block,) = outcome.result.content
    assert isinstance(block, Text)
    return block.text


async def step(box: Toolbox, *calls: tuple[str, dict[str, Any]]) -> list[str]:
    """Run `calls` as one step and return what the model sees of them."""
    uses = [ToolUse(f"c{number}", name, input) for number, (name, input) in enumerate(calls)]
    outcomes = await asyncio.gather(*map(box.dispatch, uses))
    return [text(outcome) for outcome in box.shown(uses, outcomes)]


@tool
def say(text: str, times: int = 1) -> str:
    """Say it, so many times."""
    return text * times


class TestAvailable:
    """Tools that are there for some agents only."""

    def has_key(self, context: ToolContext) -> bool:
        return "KEY" in context.keys

    async def test_unavailable_tool_is_neither_seen_nor_run(self) -> None:
        """A tool whose predicate says no is hidden from the request and refused at dispatch."""
        guarded = tool(available=self.has_key)(say.function)
        without = Toolbox([guarded], HERE)
        assert without.specs() == ()
        outcome = await without.dispatch(ToolUse("c1", "say", {"text": "a"}))
        assert (outcome.ran, outcome.result.is_error) == (False, True)
        assert text(outcome) == "Tool 'say' is not available here."
        having = Toolbox([guarded], ToolContext(Path("/"), keys=ApiKeys(KEY="x")))
        assert [spec.name for spec in having.specs()] == ["say"]
        assert await step(having, ("say", {"text": "a"})) == ["a"]

    async def test_predicate_that_fails_means_no(self) -> None:
        """A predicate that raises hides the tool, and the refusal says what it raised."""

        def broken(context: ToolContext) -> bool:
            raise KeyError(context.agent_id)

        box = Toolbox([tool(available=broken)(say.function)], HERE)
        assert box.specs() == ()
        assert await step(box, ("say", {"text": "a"})) == ["Tool 'say' is not available here: KeyError: ''."]

    def test_keys_are_not_shown(self) -> None:
        """The context can be printed without giving its keys away."""
        context = ToolContext(Path("/"), keys=ApiKeys(KEY="canary"))
        assert "canary" not in f"{context} {context!r} {context.keys} {context.keys!r}"


class TestTogether:
    """Calls of one step."""

    def recording(self, log: list[str], **options: Any) -> Tool:
        """Return a tool that logs when it begins and ends, and gives way in between."""

        @tool(name=options.pop("name", "work"), **options)
        async def work(path: str = "") -> str:
            log.append(f"+{path}")
            for _ in range(5):
                await asyncio.sleep(0)
            log.append(f"-{path}")
            return path

        return work

    async def test_calls_run_side_by_side(self) -> None:
        """Ordinary calls overlap."""
        log: list[str] = []
        await step(Toolbox([self.recording(log)], HERE), ("work", {"path": "a"}), ("work", {"path": "b"}))
        assert log == ["+a", "+b", "-a", "-b"]

    async def test_exclusive_tools_run_alone(self) -> None:
        """An exclusive call waits for those before it, and those after it wait for it."""
        log: list[str] = []
        box = Toolbox([self.recording(log), self.recording(log, name="alone", exclusive=True)], HERE)
        calls = [("work", "a"), ("work", "b"), ("alone", "X"), ("alone", "Y"), ("work", "c"), ("work", "d")]
        shown = await step(box, *((name, {"path": path}) for name, path in calls))
        assert log == ["+a", "+b", "-a", "-b", "+X", "-X", "+Y", "-Y", "+c", "+d", "-c", "-d"]
        assert shown == ["a", "b", "X", "Y", "c", "d"]

    async def test_one_file_is_for_one_call_at_a_time(self, tmp_path: Path) -> None:
        """Calls for the same file, however it is spelt, run in call order; those for others do not wait."""
        (tmp_path / "link").symlink_to("a")
        log: list[str] = []
        box = Toolbox([self.recording(log, locks="path")], ToolContext(tmp_path))
        await step(box, *(("work", {"path": path}) for path in ("a", "b", "./a", "link", "\0")))
        assert log[:3] == ["+a", "+b", "+\0"]
        same = [each for each in log if each[1:] in ("a", "./a", "link")]
        assert same == ["+a", "-a", "+./a", "-./a", "+link", "-link"]

    async def test_cancelled_waiter_lets_others_through(self) -> None:
        """A call that is cancelled while it waits for its turn does not keep the turn."""
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
        """That a function of the program runs alone is known in the worker."""
        assert tool(exclusive=True)(say.function).spec().exclusive
        assert root_tool(ToolSpec("say", "", {"type": "object"}, exclusive=True)).exclusive

    def test_locks_names_a_parameter(self) -> None:
        """A tool cannot lock what it does not take."""
        with pytest.raises(ConfigError, match="no parameter 'file'"):
            tool(locks="file")(say.function)


class TestLevel:
    """How much of each of several texts is shown."""

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
            ([1_000] * 1_000, LEAST_SHOWN),
        ],
    )
    def test_longest_are_cut_first(self, lengths: list[int], expected: int) -> None:
        """Short texts stay whole, long ones share what is left, and none goes below a least length."""
        most = shared_limit(lengths, 10_000, 3_000)
        assert most == expected
        if most > LEAST_SHOWN:
            assert sum(min(length, most) for length in lengths) <= 10_000


class TestShown:
    """Results too long for the model."""

    def box(self, folder: Path | None, *more: Tool) -> Toolbox:
        return Toolbox([say, *more], ToolContext(Path("/"), folder=folder))

    async def test_long_result_is_stashed(self, tmp_path: Path) -> None:
        """The model sees head, tail and a handle, under which all of it can be read."""
        box = self.box(tmp_path, read_handle)
        (shown,) = await step(box, ("say", {"text": "0123456789", "times": 10_000}))
        assert len(shown) <= MAX_SHOWN
        assert (shown[:10], shown[-10:]) == ("0123456789", "0123456789")
        assert "of 100,000 characters left out: read_handle with .h_001 shows any part" in shown
        (part,) = await step(box, ("read_handle", {"handle": ".h_001", "offset": 50_000, "limit": 12}))
        assert part == "012345678901\n[characters 50,000 to 50,012 of 100,000; go on with offset=50012]"

    async def test_short_result_is_not_stashed(self, tmp_path: Path) -> None:
        """What is shown whole leaves nothing on disk."""
        await step(self.box(tmp_path, read_handle), ("say", {"text": "a"}))
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize("why", ["no reader", "no folder"])
    async def test_without_a_way_to_read_it_nothing_is_kept(self, tmp_path: Path, why: str) -> None:
        """An agent that could not read the stash is not pointed to it."""
        box = self.box(tmp_path) if why == "no reader" else self.box(None, read_handle)
        (shown,) = await step(box, ("say", {"text": "x", "times": 50_000}))
        assert "left out: ask for less at once" in shown
        assert os.listdir(tmp_path) == []

    async def test_step_is_bounded_as_a_set(self, tmp_path: Path) -> None:
        """Several long results share one budget; a short one among them stays whole."""
        box = self.box(tmp_path, read_handle)
        calls = [("say", {"text": letter, "times": 29_000}) for letter in "abcdef"]
        shown = await step(box, *calls, ("say", {"text": "short"}))
        assert sum(map(len, shown)) <= MAX_SHOWN_A_STEP
        assert shown[-1] == "short"
        assert len({len(each) for each in shown[:-1]}) == 1
        assert sorted(path.name[:5] for path in (tmp_path / "stash").iterdir()) == [f"h_{n:03}" for n in range(1, 7)]

    async def test_what_was_read_from_the_stash_is_not_stashed_again(self, tmp_path: Path) -> None:
        """Reading many parts at once cuts them, and adds nothing to the stash."""
        box = self.box(tmp_path, read_handle)
        await step(box, ("say", {"text": "x", "times": 100_000}))
        parts = await step(box, *(("read_handle", {"handle": ".h_001", "limit": 28_000}),) * 5)
        assert all("ask for less at once" in part for part in parts)
        assert len(list((tmp_path / "stash").iterdir())) == 1

    async def test_full_disk_is_told(self, tmp_path: Path) -> None:
        """When the whole cannot be kept, the model is told, and still sees both ends."""
        (tmp_path / "stash").write_text("in the way")
        (shown,) = await step(self.box(tmp_path, read_handle), ("say", {"text": "x", "times": 50_000}))
        assert shown.startswith("xxx")
        assert "ask for less at once, for the whole could not be kept: Not a directory" in shown

    async def test_capture_is_bounded(self, tmp_path: Path) -> None:
        """Even the whole of a result has an end."""
        box = self.box(tmp_path, read_handle)
        outcome = await box.dispatch(ToolUse("c1", "say", {"text": "x", "times": 3_000_000}))
        assert len(text(outcome)) <= MAX_CAPTURED
        assert "it was too long to be kept" in text(outcome)


class Held:
    """Something a tool keeps, that has an end."""

    closed = 0

    def __init__(self, context: ToolContext) -> None:
        self.context = context

    def close(self) -> None:
        Held.closed += 1


def test_belongings_are_one_a_kind_and_end_with_the_agent() -> None:
    """A context gives out one object of each kind, and closing the toolbox closes it."""
    context = ToolContext(Path("/"), agent_id="a")
    assert context.own(Held) is context.own(Held)
    assert context.own(Held).context is context
    assert ToolContext(Path("/")).own(Held) is not context.own(Held)
    box = Toolbox([], context)
    box.close()
    box.close()
    assert Held.closed == 1
