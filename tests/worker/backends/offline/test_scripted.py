"""The backend that says what it was told to say."""

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
    """Return the next response's text, and add the response to the conversation."""
    turn = await backend.assistant_turn()
    backend.append_assistant(turn.message)
    return text_of(turn.message)


class TestItems:
    """One item, one response."""

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
    async def test_kinds(self, item: Any, content: tuple[Any, ...], stop_reason: str) -> None:
        """Text, calls, several calls, pauses and echoes become the response they describe."""
        backend = ScriptedBackend([item])
        backend.append_user([Text("hi")])
        turn = await backend.assistant_turn()
        assert (turn.message.content, turn.stop_reason) == (content, stop_reason)
        assert turn.usage.cost_usd == 0.0
        assert turn.usage.input_tokens == 1

    async def test_echo_leaves_the_task_out(self) -> None:
        """Of a first prompt the query is echoed."""
        backend = ScriptedBackend([{"echo": True}])
        backend.append_user([Text("Task: look\n\nQuery: hi")])
        assert await say(backend) == "hi"

    async def test_error(self) -> None:
        """An error is raised once; the script goes on behind it."""
        backend = ScriptedBackend([{"error": "RateLimitError", "message": "slow down"}, "done"])
        with pytest.raises(RateLimitError, match="slow down"):
            await say(backend)
        assert await say(backend) == "done"

    async def test_sleep_can_be_cancelled(self) -> None:
        """A response that takes long can be given up; the next request gives it again."""
        backend = ScriptedBackend([{"sleep": 3600, "text": "late"}])
        task = asyncio.create_task(backend.assistant_turn())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert backend.transcript() == []

    async def test_used_up(self) -> None:
        """A script without a next item is an error that says how long it was."""
        backend = ScriptedBackend(["a", "b"])
        await say(backend)
        await say(backend)
        with pytest.raises(BackendError, match="its 2 items gave 2 responses"):
            await say(backend)

    async def test_loop(self) -> None:
        """A loop with times goes on behind it, one without never ends."""
        backend = ScriptedBackend([{"loop": ["a", "b"], "times": 2}, "c", {"loop": ["d", "e"]}])
        assert "".join([await say(backend) for _ in range(10)]) == "ababcdeded"

    async def test_text_is_streamed(self) -> None:
        """Whoever listens hears the text."""
        heard: list[str] = []
        await ScriptedBackend(["hello"]).assistant_turn(heard.append)
        assert heard == ["hello"]

    async def test_call_ids_differ(self) -> None:
        """No two calls of a script share an id."""
        backend = ScriptedBackend([{"loop": [{"tools": [{"tool": "t"}, {"tool": "t"}]}]}])
        ids = set()
        for _ in range(5):
            await say(backend)
            ids |= {call.id for call in tool_uses(backend.transcript()[-1])}
        assert len(ids) == 10


class TestPosition:
    """Where a script goes on."""

    async def test_revived_agent_goes_on(self) -> None:
        """The position follows from the conversation, however it comes back."""
        said = [user("q"), assistant("a"), user("q"), assistant("b")]
        loaded, fed = ScriptedBackend(["a", "b", "c"]), ScriptedBackend(["a", "b", "c"])
        loaded.load(said)
        for message in said:
            if message.role == "assistant":
                fed.append_assistant(message)
            else:
                fed.append_user(message.content)
        assert [await say(backend) for backend in (loaded, fed)] == ["c", "c"]

    async def test_history_of_others_does_not_count(self) -> None:
        """Responses that the agent did not give itself do not move its script."""
        backend = ScriptedBackend(["a", "b"])
        backend.load([user("q"), assistant("theirs"), user("q"), assistant("a")], responses=1)
        assert await say(backend) == "b"

    async def test_error_before_a_death_comes_again(self) -> None:
        """Errors leave no trace in a conversation: those behind the last response are raised once more."""
        items = ["a", {"error": "BackendError"}, "b", "c"]
        revived = ScriptedBackend(items)
        revived.load([user("q"), assistant("a")])
        with pytest.raises(BackendError):
            await say(revived)
        assert await say(revived) == "b"
        revived.load([user("q"), assistant("a"), assistant("b")])
        assert await say(revived) == "c"

    async def test_an_error_that_was_raised_is_not_when_the_conversation_is_loaded_shorter(self) -> None:
        """So a refusal for length can be scripted, and what comes of it; see compaction."""
        backend = ScriptedBackend(["one", {"error": "ContextOverflowError"}, "two"])
        backend.load((user("q1"), assistant("one"), user("q2")), 1)
        with pytest.raises(ContextOverflowError):
            await backend.assistant_turn()
        backend.load((user("in short"), user("q2")), 1)
        assert text_of((await backend.assistant_turn()).message) == "two"

    async def test_script_of_errors_alone(self) -> None:
        """A loop of errors does not trap a conversation that holds responses from elsewhere."""
        backend = ScriptedBackend([{"loop": [{"error": "BackendError"}]}])
        backend.load([user("q"), assistant("theirs")])
        with pytest.raises(BackendError):
            await say(backend)

    @given(st.lists(st.sampled_from(["x", "y", {"error": "BackendError"}]), min_size=1, max_size=8), st.integers(0, 8))
    def test_load_equals_living_through_it(self, items: list[Any], cut: int) -> None:
        """A backend that was revived after any number of responses says the rest as if it had lived on."""

        async def rest(backend: ScriptedBackend, count: int | None = None) -> list[str]:
            said: list[str] = []
            for _ in range(20):
                if len(said) == count:
                    break
                try:
                    said.append(await say(backend))
                except BackendError:
                    continue
            return said

        async def run() -> None:
            lived = ScriptedBackend(items)
            await rest(lived, cut)
            revived = ScriptedBackend(items)
            revived.load(lived.transcript())
            assert await rest(revived) == await rest(lived)

        asyncio.run(run())


class TestSpec:
    """A script as data."""

    async def test_round_trip(self) -> None:
        """The spec makes the same backend elsewhere."""
        made = make_backend(ScriptedBackend(["a", {"loop": ["b"]}]).spec(), {})
        assert isinstance(made, ScriptedBackend)
        assert [await say(made), await say(made), await say(made)] == ["a", "b", "b"]

    @pytest.mark.parametrize(
        ("items", "message"),
        [
            ("abc", "a script is a list"),
            ({"text": "a"}, "a script is a list"),
            ([1], "script item 1: Expected `object`, got `int`"),
            (["a", {"tol": "x"}], "script item 2: Object contains unknown field `tol`"),
            ([{"tool": 1}], r"script item 1: Expected `str \| null`, got `int` - at `\$.tool`"),
            ([{}], "script item 1: one of text or tools, echo, error, loop; found neither"),
            ([{"text": "a", "echo": True}], "found text and echo"),
            ([{"error": "NoSuchError"}], "unknown error 'NoSuchError'"),
            ([{"text": "a", "sleep": -1}], r"\$.sleep"),
            ([{"text": "a", "stop_reason": "bored"}], r"\$.stop_reason"),
            ([{"text": "a", "times": 2}], "times belongs to a loop"),
            ([{"loop": []}], "a loop holds responses"),
            ([{"loop": [{"loop": ["a"]}]}], "script item 1, loop item 1: a loop holds responses"),
            ([{"loop": ["a"]}, "b"], "must be the last item"),
        ],
    )
    def test_bad_items(self, items: Any, message: str) -> None:
        """An item that is none is refused at once, by its place and field."""
        with pytest.raises(ConfigError, match=message):
            ScriptedBackend(items)
