"""The scripted backend, whose responses come from a list of items."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_protocol.core.errors import BackendError, ConfigError, ContextOverflowError, RateLimitError
from orch_protocol.core.messages import Text, ToolUse, assistant, text_of, tool_uses, user
from orch_worker.backends import make_backend
from orch_worker.backends.offline.scripted import ScriptedBackend


async def say(backend: ScriptedBackend) -> str:
    """Return the text of the next response, and append the response to the conversation."""
    turn = await backend.assistant_turn()
    backend.append_assistant(turn.message)
    return text_of(turn.message)


class TestItems:
    """The responses of single items."""

    @pytest.mark.parametrize(
        ("item", "content", "stop_reason"),
        [
            ("hello", (Text("hello"),), "end_turn"),
            ({"text": "a", "stop_reason": "max_tokens"}, (Text("a"),), "max_tokens"),
            ({"tool": "t", "input": {"x": 1}}, (ToolUse("call_1_1", "t", {"x": 1}),), "tool_use"),
            ({"text": "a", "tool": "t"}, (Text("a"), ToolUse("call_1_1", "t", {})), "tool_use"),
            (
                {"tools": [{"tool": "t"}, {"tool": "u", "id": "mine"}]},
                (ToolUse("call_1_1", "t", {}), ToolUse("mine", "u", {})),
                "tool_use",
            ),
            ({"sleep": 0, "text": "a"}, (Text("a"),), "end_turn"),
            ({"echo": True}, (Text("hi"),), "end_turn"),
        ],
    )
    async def test_scripted_items_produce_their_responses(
        self, item: Any, content: tuple[Any, ...], stop_reason: str
    ) -> None:
        """Each kind of item gives the content and the stop reason that it describes."""
        backend = ScriptedBackend([item])
        backend.append_user([Text("hi")])
        turn = await backend.assistant_turn()
        assert (turn.message.content, turn.stop_reason) == (content, stop_reason)
        assert turn.usage.cost_usd == 0.0
        assert turn.usage.input_tokens == 1

    async def test_echo_repeats_the_query_without_the_task(self) -> None:
        backend = ScriptedBackend([{"echo": True}])
        backend.append_user([Text("Task: look\n\nQuery: hi")])
        assert await say(backend) == "hi"

    async def test_scripted_error_is_raised_once(self) -> None:
        """The script continues with the next item after an error."""
        backend = ScriptedBackend([{"error": "RateLimitError", "message": "slow down"}, "done"])
        with pytest.raises(RateLimitError, match="slow down"):
            await say(backend)
        assert await say(backend) == "done"

    async def test_scripted_sleep_can_be_cancelled(self) -> None:
        """A canceled response is not in the conversation."""
        backend = ScriptedBackend([{"sleep": 3600, "text": "late"}])
        task = asyncio.create_task(backend.assistant_turn())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert backend.transcript() == []

    async def test_exhausted_script_raises_an_error(self) -> None:
        """The error states the number of items and of responses."""
        backend = ScriptedBackend(["a", "b"])
        await say(backend)
        await say(backend)
        with pytest.raises(BackendError, match="its 2 items gave 2 responses"):
            await say(backend)

    async def test_loop_repeats_as_often_as_configured(self) -> None:
        """A loop without `times` never ends."""
        backend = ScriptedBackend([{"loop": ["a", "b"], "times": 2}, "c", {"loop": ["d", "e"]}])
        assert "".join([await say(backend) for _ in range(10)]) == "ababcdeded"

    async def test_text_is_streamed(self) -> None:
        heard: list[str] = []
        await ScriptedBackend(["hello"]).assistant_turn(heard.append)
        assert heard == ["hello"]

    async def test_call_ids_differ(self) -> None:
        """All calls of a script have different ids, also in a loop."""
        backend = ScriptedBackend([{"loop": [{"tools": [{"tool": "t"}, {"tool": "t"}]}]}])
        ids = set()
        for _ in range(5):
            await say(backend)
            ids |= {call.id for call in tool_uses(backend.transcript()[-1])}
        assert len(ids) == 10


class TestPosition:
    """The position in a script."""

    async def test_revived_agent_continues_the_script(self) -> None:
        """The position is computed from the conversation, whether it is loaded or appended message by message."""
        found = [user("q"), assistant("a"), user("q"), assistant("b")]
        loaded, fed = ScriptedBackend(["a", "b", "c"]), ScriptedBackend(["a", "b", "c"])
        loaded.load(found)
        for message in found:
            if message.role == "assistant":
                fed.append_assistant(message)
            else:
                fed.append_user(message.content)
        assert [await say(backend) for backend in (loaded, fed)] == ["c", "c"]

    async def test_foreign_responses_do_not_advance_the_script(self) -> None:
        """With `responses=1`, only one response of the loaded conversation counts."""
        backend = ScriptedBackend(["a", "b"])
        backend.load([user("q"), assistant("theirs"), user("q"), assistant("a")], responses=1)
        assert await say(backend) == "b"

    async def test_errors_after_the_last_response_are_raised_again(self) -> None:
        """The conversation does not record errors, so a restored backend raises them again."""
        items = ["a", {"error": "BackendError"}, "b", "c"]
        revived = ScriptedBackend(items)
        revived.load([user("q"), assistant("a")])
        with pytest.raises(BackendError):
            await say(revived)
        assert await say(revived) == "b"
        revived.load([user("q"), assistant("a"), assistant("b")])
        assert await say(revived) == "c"

    async def test_raised_error_is_skipped_when_a_shorter_conversation_is_loaded(self) -> None:
        """A script can contain a ContextOverflowError that is followed by a compaction."""
        backend = ScriptedBackend(["one", {"error": "ContextOverflowError"}, "two"])
        backend.load((user("q1"), assistant("one"), user("q2")), 1)
        with pytest.raises(ContextOverflowError):
            await backend.assistant_turn()
        backend.load((user("in short"), user("q2")), 1)
        assert text_of((await backend.assistant_turn()).message) == "two"

    async def test_script_of_errors_alone(self) -> None:
        """A script without responses raises its error if the conversation contains a response of another backend."""
        backend = ScriptedBackend([{"loop": [{"error": "BackendError"}]}])
        backend.load([user("q"), assistant("theirs")])
        with pytest.raises(BackendError):
            await say(backend)

    @given(st.lists(st.sampled_from(["x", "y", {"error": "BackendError"}]), min_size=1, max_size=8), st.integers(0, 8))
    def test_loading_a_conversation_equals_living_through_it(self, items: list[Any], cut: int) -> None:
        """A backend that loads a conversation gives the same further responses as the original backend."""

        async def rest(backend: ScriptedBackend, count: int | None = None) -> list[str]:
            collected: list[str] = []
            for _ in range(20):
                if len(collected) == count:
                    break
                try:
                    collected.append(await say(backend))
                except BackendError:
                    continue
            return collected

        async def run() -> None:
            lived = ScriptedBackend(items)
            await rest(lived, cut)
            revived = ScriptedBackend(items)
            revived.load(lived.transcript())
            assert await rest(revived) == await rest(lived)

        asyncio.run(run())


class TestSpec:
    """Scripts as the options of a backend spec."""

    async def test_round_trip(self) -> None:
        """The backend that `make_backend` creates from `spec` gives the same responses."""
        made = make_backend(ScriptedBackend(["a", {"loop": ["b"]}]).spec(), {})
        assert isinstance(made, ScriptedBackend)
        assert [await say(made), await say(made), await say(made)] == ["a", "b", "b"]

    @pytest.mark.parametrize(
        ("items", "message"),
        [
            ("abc", "a script must be a list"),
            ({"text": "a"}, "a script must be a list"),
            ([1], "script item 1: Expected `object`, got `int`"),
            (["a", {"tol": "x"}], "script item 2: Object contains unknown field `tol`"),
            ([{"tool": 1}], r"script item 1: Expected `str \| null`, got `int` - at `\$.tool`"),
            ([{}], "script item 1: use exactly one of text or tools, echo, error, loop; found neither"),
            ([{"text": "a", "echo": True}], "found text and echo"),
            ([{"error": "NoSuchError"}], "unknown error 'NoSuchError'"),
            ([{"text": "a", "sleep": -1}], r"\$.sleep"),
            ([{"text": "a", "stop_reason": "bored"}], r"\$.stop_reason"),
            ([{"text": "a", "times": 2}], "`times` is allowed only with `loop`"),
            ([{"loop": []}], "a loop must contain at least one response"),
            ([{"loop": [{"loop": ["a"]}]}], "script item 1, loop item 1: a loop must contain at least one response"),
            ([{"loop": ["a"]}, "b"], "must be the last item"),
        ],
    )
    def test_invalid_items_are_refused(self, items: Any, message: str) -> None:
        """The error names the position of the item and the field."""
        with pytest.raises(ConfigError, match=message):
            ScriptedBackend(items)
