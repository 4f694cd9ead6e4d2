"""A turn: steps, calls, limits and cancellation. It leaves a valid conversation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_doubles import Talk, assert_valid
from orch_protocol.agent.spec import Limits
from orch_protocol.core.errors import BackendError, ConfigError, RateLimitError
from orch_protocol.core.messages import Image, Message, Reply, Text, ToolUse, Usage, assistant, text_of, user
from orch_worker.agent.turn import CancelToken
from orch_worker.backends.base import AssistantTurn, BackendInfo, Conversation, OnText, Retry
from orch_worker.backends.offline.scripted import ScriptedBackend
from orch_worker.session.interruption_notes import interrupted_result
from orch_worker.tools.api.base import ToolOutput, tool
from pictures import png


@tool
def shout(word: str) -> str:
    """Say it loudly."""
    return word.upper()


@tool
def fail() -> str:
    """Fail."""
    raise ValueError("no luck")


DOT = Image.from_bytes(png(2, 1), "dot.png")


def script(*items: Any) -> ScriptedBackend:
    """Return a scripted backend that answers with `items`."""
    return ScriptedBackend(items)


class TestReply:
    """The reply of a turn."""

    async def test_plain_answer(self) -> None:
        """A response without calls is the reply."""
        talk = Talk(script("hello"))
        reply = await talk.ask("hi")
        assert (reply.id, reply.query_id, reply.text, reply.stop_reason) == ("a1", "q1", "hello", "end_turn")
        assert (reply.steps, reply.tool_calls) == (1, 0)
        assert talk.recorded == [user("hi"), assistant("hello")]
        assert talk.backend.transcript() == talk.recorded

    async def test_tool_results_reach_the_model(self) -> None:
        """The result of a call precedes the next response in the conversation."""
        talk = Talk(script({"tool": "shout", "input": {"word": "a"}}, "done"), shout)
        reply = await talk.ask()
        assert (reply.text, reply.steps, reply.tool_calls) == ("done", 2, 1)
        assert talk.texts() == ["A"]

    async def test_usage_of_a_reply_sums_responses_and_tool_calls(self) -> None:
        """The reply's usage covers all its steps, including usage reported by tools."""
        talk = Talk(script({"tool": "shout", "input": {"word": "a" * 400}}, "done"), shout)
        reply = await talk.ask("x" * 400)
        assert reply.usage.input_tokens > 2 * 100
        assert reply.usage.output_tokens > 100
        assert [(used.model_calls, used.tool_calls) for used in talk.used] == [(1, 0), (0, 1), (1, 0)]
        assert sum(talk.used, Usage()) == reply.usage

    async def test_files_changed_are_collected(self) -> None:
        """Each changed file is listed once, in order."""

        @tool
        def write(names: list[str]) -> ToolOutput:
            return ToolOutput("ok", files_changed=tuple(names))

        calls = [{"tool": "write", "input": {"names": names}} for names in (["b", "a"], ["a", "c"])]
        reply = await Talk(script({"tools": calls}, "done"), write).ask()
        assert reply.files_changed == ("b", "a", "c")

    async def test_long_reply_is_cut(self) -> None:
        """The reply contains head, tail and the original length. The transcript has the complete text."""
        text = "a" * 10_000 + "z" * 10_000
        talk = Talk(script(text))
        reply = await talk.ask(limits=Limits(reply_tokens=1000))
        assert len(reply.text) <= 4000
        assert reply.text.startswith("aaa")
        assert reply.text.endswith("zzz")
        assert "of 20,000 characters left out: the transcript has it all" in reply.text
        assert text_of(talk.recorded[-1]) == text

    async def test_progress_reports_each_phase(self) -> None:
        """Model request, tool names and the end of the turn are reported."""
        talk = Talk(script({"tool": "shout", "input": {"word": "a"}}, "done"), shout)
        await talk.ask()
        assert talk.reports == [
            ("model", "scripted", 1),
            ("tool", "shout", 1),
            ("model", "scripted", 2),
            ("idle", "", 2),
        ]

    async def test_retried_requests_are_reported(self) -> None:
        """Each failed attempt is reported while the request is retried."""

        class Flaky(ScriptedBackend):
            async def assistant_turn(self, on_text: OnText | None = None) -> AssistantTurn:
                assert self.on_retry is not None
                self.on_retry(Retry(1, 2.5, RateLimitError("slow down")))
                return await super().assistant_turn(on_text)

        talk = Talk(Flaky(["hello"]))
        await talk.ask()
        assert ("model", "scripted: attempt 1 failed, the next one in 2.5 s: slow down", 1) in talk.reports

    async def test_empty_response_appends_no_message(self) -> None:
        """The conversation contains no empty assistant message."""
        talk = Talk(Silent())
        reply = await talk.ask()
        assert (reply.text, reply.stop_reason) == ("", "end_turn")
        assert_valid(talk.recorded)

    @pytest.mark.parametrize("prompt", ["", " \n"])
    async def test_empty_prompt_is_refused(self, prompt: str) -> None:
        """An empty prompt raises ConfigError and is not recorded."""
        talk = Talk(script("hello"))
        with pytest.raises(ConfigError, match="empty"):
            await talk.ask(prompt)
        assert talk.recorded == []

    async def test_images_are_recorded_at_their_places(self) -> None:
        """The model receives the prompt's blocks in order."""
        talk = Talk(script("a dot"))
        await talk.ask(f"What is\n\n{DOT.text}\n\n?", images=(DOT,))
        assert talk.recorded[0] == user(["What is", DOT, "?"])
        assert talk.backend.transcript() == talk.recorded

    async def test_images_need_a_model_that_accepts_them(self) -> None:
        """Nothing is recorded before the error."""

        class Blind(ScriptedBackend):
            def info(self) -> BackendInfo:
                return BackendInfo("acme", "small", images=False)

        talk = Talk(Blind(["hello"]))
        with pytest.raises(ConfigError, match="acme:small does not accept images: choose a model with vision"):
            await talk.ask("hi", images=(DOT,))
        assert talk.recorded == []

    async def test_lone_surrogates_in_a_prompt_are_replaced(self) -> None:
        """The recorded prompt can be encoded as UTF-8."""
        talk = Talk(script({"echo": True}))
        assert (await talk.ask("a\udc80b")).text == "a\N{REPLACEMENT CHARACTER}b"


class TestCalls:
    """Tool calls of one response."""

    @pytest.mark.parametrize(
        ("returned", "content"),
        [
            (DOT, (DOT,)),
            (["Before:", DOT, "After:", DOT], (Text("Before:"), DOT, Text("After:"), DOT)),
            ((DOT, "done"), (DOT, Text("done"))),
            (ToolOutput("a dot", images=(DOT,)), (Text("a dot"), DOT)),
            (ToolOutput("", images=(DOT,)), (DOT,)),
            (["text", 5], (Text('["text",5]'),)),
        ],
    )
    async def test_tools_return_images(self, returned: Any, content: Any) -> None:
        """A tool may return an image, a list of texts and images, or a ToolOutput with images."""

        @tool
        def look() -> Any:
            return returned

        talk = Talk(script({"tool": "look", "input": {}}, "done"), look)
        await talk.ask()
        assert [result.content for result in talk.results()] == [content]

    @pytest.mark.parametrize(
        ("returned", "error"),
        [
            ([DOT, 5], "neither text nor images"),
            (Image("image/png", "AA==", "a.png"), "cannot be sent: image 'a.png' is not an image"),
        ],
    )
    async def test_wrong_images_of_a_tool_are_an_error(self, returned: Any, error: str) -> None:
        """The model reads the error. An invalid image would make every later request fail."""

        @tool
        def look() -> Any:
            return returned

        talk = Talk(script({"tool": "look", "input": {}}, "done"), look)
        await talk.ask()
        assert talk.results()[0].is_error
        assert error in talk.texts()[0]

    async def test_long_result_is_cut_and_keeps_its_images(self) -> None:
        """Only text is truncated."""

        @tool
        def look() -> list[str | Image]:
            return ["x" * 50_000, DOT, "y" * 50_000]

        talk = Talk(script({"tool": "look", "input": {}}, "done"), look)
        await talk.ask()
        content = talk.results()[0].content
        assert [block for block in content if isinstance(block, Image)] == [DOT]
        assert len(talk.texts()[0]) < 31_000

    async def test_calls_run_concurrently_and_results_keep_call_order(self) -> None:
        """The first call can wait for the second one."""
        second_ran = asyncio.Event()

        @tool
        async def first() -> str:
            await second_ran.wait()
            return "first"

        @tool
        async def second() -> str:
            second_ran.set()
            return "second"

        talk = Talk(script({"tools": [{"tool": "first"}, {"tool": "second"}]}, "done"), first, second)
        assert (await talk.ask()).tool_calls == 2
        assert talk.texts() == ["first", "second"]

    async def test_failed_ungranted_and_invalid_calls_yield_error_results(self) -> None:
        """The turn continues after each of them."""
        calls = [{"tool": "fail"}, {"tool": "rm"}, {"tool": "shout", "input": {"word": 1}}]
        talk = Talk(script({"tools": calls}, "done"), shout, fail)
        reply = await talk.ask()
        assert (reply.text, reply.tool_calls) == ("done", 1)
        assert all(result.is_error for result in talk.results())
        assert talk.texts()[0] == "ValueError: no luck"
        assert "'rm' is not granted" in talk.texts()[1]
        assert "$.word" in talk.texts()[2]

    @pytest.mark.parametrize("stop_reason", ["max_tokens", "refusal"])
    async def test_truncated_calls_do_not_run(self, stop_reason: str) -> None:
        """The calls of a truncated or refused response get error results."""
        ran: list[str] = []

        @tool
        def act(what: str) -> None:
            ran.append(what)

        item = {"tool": "act", "input": {"what": "half"}, "stop_reason": stop_reason}
        talk = Talk(script(item, "done"), act)
        reply = await talk.ask()
        assert (ran, reply.text, reply.tool_calls) == ([], "done", 0)
        assert talk.results()[0].is_error
        assert stop_reason in talk.texts()[0]
        assert_valid(talk.recorded)

    async def test_open_calls_of_a_dead_process_get_results(self) -> None:
        """A conversation that ends with calls is completed before the next prompt."""
        backend = script({"tool": "shout"}, "done")
        talk = Talk(backend, shout)
        talk.recorded = [user("go"), Message("assistant", (ToolUse("c1", "shout", {}), ToolUse("c2", "shout", {})))]
        backend.load(talk.recorded)
        assert (await talk.ask("again")).text == "done"
        assert [result.tool_use_id for result in talk.results()] == ["c1", "c2"]
        assert_valid(talk.recorded)


class TestLimits:
    """Conditions that end a turn early."""

    async def test_step_limit_ends_the_turn_with_max_turns(self) -> None:
        """The stop reason is `max_turns`, and the text says so, too."""
        talk = Talk(script({"loop": [{"text": "thinking", "tool": "shout", "input": {"word": "a"}}]}), shout)
        reply = await talk.ask(limits=Limits(max_turns=3))
        assert (reply.stop_reason, reply.steps, reply.tool_calls) == ("max_turns", 3, 3)
        assert reply.text.startswith("thinking\n\n[The turn was stopped after 3 steps")
        assert_valid(talk.recorded)

    async def test_turn_continues_up_to_the_configured_number_of_times(self) -> None:
        """Each continuation pauses, repeats the question and grants as many steps. It stays one turn."""
        talk = Talk(script(*[{"tool": "shout", "input": {"word": word}} for word in "abcde"], "done"), shout)
        paused: list[int] = []

        async def pause() -> None:
            paused.append(len(talk.recorded))

        reply = await talk.ask("Task: t\n\nQuery: count", Limits(max_turns=2, continuations=3), pause)
        assert (reply.text, reply.stop_reason, reply.steps, reply.tool_calls) == ("done", "end_turn", 6, 5)
        assert paused == [5, 10]
        shown_text = [text_of(talk.recorded[place]) for place in paused]
        assert [text.split("Continuation ")[1][:6] for text in shown_text] == ["1 of 3", "2 of 3"]
        assert all("limit of 2 responses" in text and text.endswith("\n\ncount") for text in shown_text)
        assert_valid(talk.recorded)

    async def test_turn_stops_after_its_last_continuation(self) -> None:
        """The turn then ends with `max_turns`. By default, there are no continuations."""
        looping = {"loop": [{"tool": "shout", "input": {"word": "a"}}]}
        talk = Talk(script(looping), shout)
        reply = await talk.ask(limits=Limits(max_turns=2, continuations=2))
        assert (reply.stop_reason, reply.steps) == ("max_turns", 6)
        assert "stopped after 6 steps" in reply.text
        assert Limits().continuations == 0

    async def test_cancel_before_a_continuation_ends_the_turn(self) -> None:
        """The agent receives no further message."""
        talk = Talk(script({"tool": "shout", "input": {"word": "a"}}, "never"), shout)

        async def pause() -> None:
            talk.brake.cancel()

        reply = await talk.ask(limits=Limits(max_turns=1, continuations=1), pause=pause)
        assert (reply.stop_reason, reply.steps, len(talk.recorded)) == ("cancelled", 1, 3)
        assert_valid(talk.recorded)

    async def test_deadline_covers_continuations_and_their_pauses(self) -> None:
        """The time limit applies to the whole turn."""
        talk = Talk(script({"loop": [{"tool": "shout", "input": {"word": "a"}}]}), shout)

        async def pause() -> None:
            await asyncio.Event().wait()

        reply = await talk.ask(limits=Limits(max_turns=1, continuations=9, turn_seconds=0.05), pause=pause)
        assert (reply.stop_reason, reply.steps) == ("timeout", 1)

    async def test_truncated_reply_has_stop_reason_max_tokens(self) -> None:
        """The text says that the response was cut off."""
        reply = await Talk(script({"text": "half a", "stop_reason": "max_tokens"})).ask()
        assert reply.stop_reason == "max_tokens"
        assert reply.text.startswith("half a\n\n[The response was cut off")

    @pytest.mark.parametrize(
        ("stop_reason", "text", "expected"),
        [
            ("refusal", "", "[The model declined to go on.]"),
            ("refusal", "No.", "No.\n\n[The model declined to go on.]"),
            (
                "error",
                "hm",
                "hm\n\n[The response ended for an unknown reason and may be incomplete.]",
            ),
        ],
    )
    async def test_abnormal_end_of_a_response_is_stated_in_the_text(
        self, stop_reason: str, text: str, expected: str
    ) -> None:
        """A reader of the text alone sees that the response is incomplete or missing."""
        reply = await Talk(script({"text": text, "stop_reason": stop_reason})).ask()
        assert (reply.stop_reason, reply.text) == (stop_reason, expected)

    async def test_cancel_during_a_request_ends_the_request(self) -> None:
        """The response of the request is not part of the conversation."""
        talk = Talk(script({"sleep": 3600, "text": "late"}))
        talk.reports = Pulling(talk.brake, "model")
        reply = await talk.ask()
        assert (reply.stop_reason, reply.text, reply.steps) == ("cancelled", "[The turn was cancelled.]", 0)
        assert_valid(talk.recorded)

    @pytest.mark.parametrize(("retried", "kept"), [(False, "Once upon a time"), (True, "a time")])
    async def test_cancel_keeps_streamed_text(self, retried: bool, kept: str) -> None:
        """Reply and conversation contain the text so far, without text of failed attempts."""
        talk = Talk(Telling(retried=retried))
        shown: list[str] = []

        def emit(kind: str, text: str, name: str, step: int, is_error: bool) -> None:  # noqa: ARG001
            if kind == "text":
                shown.append(text)
            if text == "a time ":
                talk.brake.cancel()

        reply = await talk.ask(emit=emit)
        assert shown == ["Once upon ", "a time "]
        assert (reply.stop_reason, reply.text) == ("cancelled", f"{kept}\n\n[The turn was cancelled.]")
        assert talk.recorded == [user("go"), assistant(kept)]
        assert talk.backend.transcript() == talk.recorded

    async def test_deadline_discards_partial_text(self) -> None:
        """A response that was cut off by the time limit is not part of the conversation."""
        talk = Talk(Telling())
        reply = await talk.ask(limits=Limits(turn_seconds=0.05), emit=lambda *_: None)
        assert (reply.stop_reason, talk.recorded) == ("timeout", [user("go")])

    async def test_cancel_during_tool_calls_keeps_finished_results(self) -> None:
        """Running calls are cancelled, and their results say so."""
        done = asyncio.Event()

        @tool
        async def quick() -> str:
            done.set()
            return "quick"

        @tool
        async def forever() -> None:
            await done.wait()
            talk.brake.cancel()
            await asyncio.Event().wait()

        talk = Talk(script({"tools": [{"tool": "forever"}, {"tool": "quick"}]}), quick, forever)
        reply = await talk.ask()
        assert (reply.stop_reason, reply.tool_calls) == ("cancelled", 2)
        assert talk.texts() == [interrupted_result("forever", began=True), "quick"]
        assert reply.unfinished == ("forever",)
        assert_valid(talk.recorded)

    async def test_cancelled_turn_can_be_resumed(self) -> None:
        """The next turn gets the missing response."""
        talk = Talk(script("first", "second"))
        talk.brake.cancel()
        assert (await talk.ask()).stop_reason == "cancelled"
        talk.brake = CancelToken()
        assert (await talk.ask()).text == "first"
        assert_valid(talk.recorded)

    async def test_cancel_after_the_end_has_no_effect(self) -> None:
        """No exception is raised."""
        talk = Talk(script("first"))
        assert (await talk.ask()).text == "first"
        talk.brake.cancel()

    async def test_cancel_between_fast_steps_ends_the_turn(self) -> None:
        """Calls that had not started do not run."""
        talk = Talk(script({"loop": [{"tool": "shout", "input": {"word": "a"}}]}), shout)
        talk.reports = Pulling(talk.brake, "model", step=3)
        reply = await talk.ask()
        assert (reply.stop_reason, reply.steps, reply.tool_calls) == ("cancelled", 3, 2)
        assert talk.texts()[2] == interrupted_result("shout", began=False)
        assert reply.unfinished == ("shout",)
        assert_valid(talk.recorded)

    async def test_deadline_ends_the_turn_with_timeout(self) -> None:
        """The text of the reply says that the time is over."""
        talk = Talk(script({"sleep": 3600, "text": "late"}))
        reply = await talk.ask(limits=Limits(turn_seconds=0.0))
        assert (reply.stop_reason, reply.text) == ("timeout", "[The turn ran out of time.]")
        assert_valid(talk.recorded)

    async def test_cancelled_task_ends_its_calls_and_leaves_a_resumable_conversation(self) -> None:
        """The next turn completes the open calls."""
        ended = asyncio.Event()
        started = asyncio.Event()

        @tool
        async def forever() -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        talk = Talk(script({"tool": "forever"}, "done"), forever)
        task = asyncio.create_task(talk.ask())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()
        assert (await talk.ask()).text == "done"
        assert_valid(talk.recorded)


class TestBackendErrors:
    """Errors of the model."""

    async def test_backend_error_propagates_with_usage(self) -> None:
        """The exception contains the usage of the turn, and the conversation stays valid."""
        talk = Talk(script({"tool": "shout", "input": {"word": "a"}}, {"error": "RateLimitError"}, "done"), shout)
        with pytest.raises(RateLimitError) as caught:
            await talk.ask()
        assert vars(caught.value)["usage"].output_tokens > 0
        assert talk.reports[-1] == ("idle", "", 1)
        assert_valid(talk.recorded)
        assert (await talk.ask("again")).text == "done"
        assert_valid(talk.recorded)

    async def test_foreign_backend_exception_becomes_backend_error(self) -> None:
        """The BackendError contains the name of the original exception."""
        with pytest.raises(BackendError, match="broken: ZeroDivisionError"):
            await Talk(Broken()).ask()


class Silent(Conversation):
    """A model with empty responses."""

    async def assistant_turn(self, on_text: OnText | None = None) -> AssistantTurn:  # noqa: ARG002
        """Return an empty response."""
        return AssistantTurn(Message("assistant", ()), "end_turn")

    def info(self) -> BackendInfo:
        return BackendInfo("silent", "")


class Broken(Silent):
    """A model that raises an exception of its own type."""

    async def assistant_turn(self, on_text: OnText | None = None) -> AssistantTurn:  # noqa: ARG002
        """Raise ZeroDivisionError."""
        raise ZeroDivisionError

    def info(self) -> BackendInfo:
        return BackendInfo("broken", "")


class Telling(Conversation):
    """A model that streams two pieces of text and never ends its response."""

    def __init__(self, *, retried: bool = False) -> None:
        super().__init__()
        self._retried = retried

    async def assistant_turn(self, on_text: OnText | None = None) -> AssistantTurn:
        """Stream two pieces of text, and wait without end."""
        assert on_text is not None
        on_text("Once upon ")
        if self._retried:
            assert self.on_retry is not None
            self.on_retry(Retry(1, 0.0, RateLimitError("slow down")))
        on_text("a time ")
        await asyncio.Event().wait()
        raise AssertionError

    def info(self) -> BackendInfo:
        return BackendInfo("telling", "")


class Pulling(list[tuple[str, str, int]]):
    """A list of reports that cancels the turn when a certain phase is reported."""

    def __init__(self, brake: CancelToken, phase: str, step: int = 1) -> None:
        super().__init__()
        self._brake = brake
        self._when = (phase, step)

    def append(self, report: tuple[str, str, int]) -> None:
        """Add `report`, and cancel the turn if it is the awaited phase."""
        super().append(report)
        if (report[0], report[2]) == self._when:
            self._brake.cancel()


calls = st.sampled_from(
    [
        {"tool": "shout", "input": {"word": "a"}},
        {"tool": "shout", "input": {"wrong": 1}},
        {"tool": "fail"},
        {"tool": "unknown"},
    ]
)
items = st.one_of(
    st.text(max_size=5),
    calls,
    st.builds(lambda found: {"tools": found}, st.lists(calls, min_size=1, max_size=4)),
    st.builds(lambda found: {"tools": found, "stop_reason": "max_tokens"}, st.lists(calls, min_size=1, max_size=3)),
    st.just({"error": "BackendError"}),
)


@settings(max_examples=60)
@given(st.lists(items, max_size=6), st.integers(1, 4), st.integers(1, 3))
def test_conversation_stays_valid_for_any_script(found: list[Any], max_turns: int, turns: int) -> None:
    """Every call has exactly one result, and the backend has the same messages as the record."""

    async def run() -> None:
        talk = Talk(ScriptedBackend(found), shout, fail)
        for _ in range(turns):
            try:
                reply = await talk.ask(limits=Limits(max_turns=max_turns))
            except BackendError:
                pass
            else:
                assert isinstance(reply, Reply)
                assert reply.steps <= max_turns
            assert_valid(talk.recorded)
            assert talk.backend.transcript() == talk.recorded

    asyncio.run(run())
