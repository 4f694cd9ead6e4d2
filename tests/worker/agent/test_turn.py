"""A turn: steps, calls, limits, cancellation; and that the conversation it leaves is valid."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_doubles import Talk, assert_valid
from orch_protocol.agent.spec import Limits
from orch_protocol.core.errors import BackendError, ConfigError, RateLimitError
from orch_protocol.core.messages import Message, Reply, ToolUse, Usage, assistant, text_of, user
from orch_worker.agent.turn import CancelToken
from orch_worker.backends.base import AssistantTurn, BackendInfo, Conversation, OnText, Retry
from orch_worker.backends.offline.scripted import ScriptedBackend
from orch_worker.session.interruption_notes import interrupted_result
from orch_worker.tools.api.base import ToolOutput, tool


@tool
def shout(word: str) -> str:
    """Say it loudly."""
    return word.upper()


@tool
def fail() -> str:
    """Fail."""
    raise ValueError("no luck")


def script(*items: Any) -> ScriptedBackend:
    """Return a backend that says `items`."""
    return ScriptedBackend(items)


class TestReply:
    """What a turn comes to."""

    async def test_plain_answer(self) -> None:
        """A response without calls is the reply."""
        talk = Talk(script("hello"))
        reply = await talk.ask("hi")
        assert (reply.id, reply.query_id, reply.text, reply.stop_reason) == ("a1", "q1", "hello", "end_turn")
        assert (reply.steps, reply.tool_calls) == (1, 0)
        assert talk.recorded == [user("hi"), assistant("hello")]
        assert talk.backend.transcript() == talk.recorded

    async def test_tool_results_reach_the_model(self) -> None:
        """A call's result is in the conversation before the next response."""
        talk = Talk(script({"tool": "shout", "input": {"word": "a"}}, "done"), shout)
        reply = await talk.ask()
        assert (reply.text, reply.steps, reply.tool_calls) == ("done", 2, 1)
        assert talk.texts() == ["A"]

    async def test_usage_is_summed(self) -> None:
        """The reply's usage is that of all its steps: of responses, and of the calls between them."""
        talk = Talk(script({"tool": "shout", "input": {"word": "a" * 400}}, "done"), shout)
        reply = await talk.ask("x" * 400)
        assert reply.usage.input_tokens > 2 * 100
        assert reply.usage.output_tokens > 100
        assert [(used.model_calls, used.tool_calls) for used in talk.used] == [(1, 0), (0, 1), (1, 0)]
        assert sum(talk.used, Usage()) == reply.usage

    async def test_files_changed_are_collected(self) -> None:
        """Files that tools changed are named once each, in order."""

        @tool
        def write(names: list[str]) -> ToolOutput:
            return ToolOutput("ok", files_changed=tuple(names))

        calls = [{"tool": "write", "input": {"names": names}} for names in (["b", "a"], ["a", "c"])]
        reply = await Talk(script({"tools": calls}, "done"), write).ask()
        assert reply.files_changed == ("b", "a", "c")

    async def test_long_reply_is_cut(self) -> None:
        """A reply past its tokens keeps head and tail and says how much is missing; the transcript has it whole."""
        text = "a" * 10_000 + "z" * 10_000
        talk = Talk(script(text))
        reply = await talk.ask(limits=Limits(reply_tokens=1000))
        assert len(reply.text) <= 4000
        assert reply.text.startswith("aaa")
        assert reply.text.endswith("zzz")
        assert "of 20,000 characters left out: the transcript has it all" in reply.text
        assert text_of(talk.recorded[-1]) == text

    async def test_progress_is_reported(self) -> None:
        """Each phase is told: the model, the tools by name, and that it is over."""
        talk = Talk(script({"tool": "shout", "input": {"word": "a"}}, "done"), shout)
        await talk.ask()
        assert talk.reports == [
            ("model", "scripted", 1),
            ("tool", "shout", 1),
            ("model", "scripted", 2),
            ("idle", "", 2),
        ]

    async def test_repeated_requests_are_reported(self) -> None:
        """Each failed attempt of a request is told while it is made again."""

        class Flaky(ScriptedBackend):
            async def assistant_turn(self, on_text: OnText | None = None) -> AssistantTurn:
                assert self.on_retry is not None
                self.on_retry(Retry(1, 2.5, RateLimitError("slow down")))
                return await super().assistant_turn(on_text)

        talk = Talk(Flaky(["hello"]))
        await talk.ask()
        assert ("model", "scripted: attempt 1 failed, the next one in 2.5 s: slow down", 1) in talk.reports

    async def test_empty_response(self) -> None:
        """A response of nothing leaves no empty message behind."""
        talk = Talk(Silent())
        reply = await talk.ask()
        assert (reply.text, reply.stop_reason) == ("", "end_turn")
        assert_valid(talk.recorded)

    @pytest.mark.parametrize("prompt", ["", " \n"])
    async def test_empty_prompt_is_refused(self, prompt: str) -> None:
        """A prompt of nothing is an error, and nothing is recorded."""
        talk = Talk(script("hello"))
        with pytest.raises(ConfigError, match="empty"):
            await talk.ask(prompt)
        assert talk.recorded == []

    async def test_lone_surrogates_in_a_prompt(self) -> None:
        """A prompt that no encoding carries is made one that every encoding does."""
        talk = Talk(script({"echo": True}))
        assert (await talk.ask("a\udc80b")).text == "a\N{REPLACEMENT CHARACTER}b"


class TestCalls:
    """Tool calls of one response."""

    async def test_run_at_once_and_answer_in_call_order(self) -> None:
        """Calls run concurrently; their results keep the order of the calls."""
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

    async def test_failures_are_results(self) -> None:
        """A tool that raises, one that is not granted and wrong arguments are error results; the turn goes on."""
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
        """Calls of a response that was cut off are answered, not run."""
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

    async def test_calls_left_open_by_a_death_are_closed(self) -> None:
        """A conversation that ends in calls is completed before the next prompt."""
        backend = script({"tool": "shout"}, "done")
        talk = Talk(backend, shout)
        talk.recorded = [user("go"), Message("assistant", (ToolUse("c1", "shout", {}), ToolUse("c2", "shout", {})))]
        backend.load(talk.recorded)
        assert (await talk.ask("again")).text == "done"
        assert [result.tool_use_id for result in talk.results()] == ["c1", "c2"]
        assert_valid(talk.recorded)


class TestLimits:
    """What ends a turn early."""

    async def test_max_turns(self) -> None:
        """Past the most steps the turn stops with a typed reason that the text repeats."""
        talk = Talk(script({"loop": [{"text": "thinking", "tool": "shout", "input": {"word": "a"}}]}), shout)
        reply = await talk.ask(limits=Limits(max_turns=3))
        assert (reply.stop_reason, reply.steps, reply.tool_calls) == ("max_turns", 3, 3)
        assert reply.text.startswith("thinking\n\n[The turn was stopped after 3 steps")
        assert_valid(talk.recorded)

    async def test_a_turn_goes_on_as_often_as_it_may(self) -> None:
        """Each time for as many steps, after a pause, told so and what it was asked; it is one turn all the same."""
        talk = Talk(script(*[{"tool": "shout", "input": {"word": word}} for word in "abcde"], "done"), shout)
        paused: list[int] = []

        async def pause() -> None:
            paused.append(len(talk.recorded))

        reply = await talk.ask("Task: t\n\nQuery: count", Limits(max_turns=2, continuations=3), pause)
        assert (reply.text, reply.stop_reason, reply.steps, reply.tool_calls) == ("done", "end_turn", 6, 5)
        assert paused == [5, 10]
        told = [text_of(talk.recorded[place]) for place in paused]
        assert [text.split("Continuation ")[1][:6] for text in told] == ["1 of 3", "2 of 3"]
        assert all("limit of 2 responses" in text and text.endswith("\n\ncount") for text in told)
        assert_valid(talk.recorded)

    async def test_a_turn_goes_on_no_oftener(self) -> None:
        """Then it stops as one that may not go on, which is what a turn does by itself."""
        looping = {"loop": [{"tool": "shout", "input": {"word": "a"}}]}
        talk = Talk(script(looping), shout)
        reply = await talk.ask(limits=Limits(max_turns=2, continuations=2))
        assert (reply.stop_reason, reply.steps) == ("max_turns", 6)
        assert "stopped after 6 steps" in reply.text
        assert Limits().continuations == 0

    async def test_cancel_while_a_turn_is_to_go_on(self) -> None:
        """It does not: nothing more is said to the agent."""
        talk = Talk(script({"tool": "shout", "input": {"word": "a"}}, "never"), shout)

        async def pause() -> None:
            talk.brake.pull()

        reply = await talk.ask(limits=Limits(max_turns=1, continuations=1), pause=pause)
        assert (reply.stop_reason, reply.steps, len(talk.recorded)) == ("cancelled", 1, 3)
        assert_valid(talk.recorded)

    async def test_the_deadline_is_that_of_all_of_a_turn(self) -> None:
        """Also of the pause before it goes on."""
        talk = Talk(script({"loop": [{"tool": "shout", "input": {"word": "a"}}]}), shout)

        async def pause() -> None:
            await asyncio.Event().wait()

        reply = await talk.ask(limits=Limits(max_turns=1, continuations=9, turn_seconds=0.05), pause=pause)
        assert (reply.stop_reason, reply.steps) == ("timeout", 1)

    async def test_max_tokens_is_told(self) -> None:
        """A reply that the model could not finish says so."""
        reply = await Talk(script({"text": "half a", "stop_reason": "max_tokens"})).ask()
        assert reply.stop_reason == "max_tokens"
        assert reply.text.startswith("half a\n\n[The response was cut off")

    @pytest.mark.parametrize(
        ("stop_reason", "text", "told"),
        [
            ("refusal", "", "[The model declined to go on.]"),
            ("refusal", "No.", "No.\n\n[The model declined to go on.]"),
            (
                "error",
                "hm",
                "hm\n\n[The response ended in a way that is not known here: there may have been more of it.]",
            ),
        ],
    )
    async def test_a_response_that_is_not_ended_well_says_so(self, stop_reason: str, text: str, told: str) -> None:
        """Who reads the text alone is not to take it for an answer, or wonder why there is none."""
        reply = await Talk(script({"text": text, "stop_reason": stop_reason})).ask()
        assert (reply.stop_reason, reply.text) == (stop_reason, told)

    async def test_cancel_while_the_model_thinks(self) -> None:
        """Cancelling ends a request under way."""
        talk = Talk(script({"sleep": 3600, "text": "late"}))
        talk.reports = Pulling(talk.brake, "model")
        reply = await talk.ask()
        assert (reply.stop_reason, reply.text, reply.steps) == ("cancelled", "[The turn was cancelled.]", 0)
        assert_valid(talk.recorded)

    @pytest.mark.parametrize(("retried", "kept"), [(False, "Once upon a time"), (True, "a time")])
    async def test_cancel_keeps_the_text_streamed_so_far(self, retried: bool, kept: str) -> None:
        """It is in the reply and in the conversation, so the user can refer to it; what a retry made void is not."""
        talk = Talk(Telling(retried=retried))
        shown: list[str] = []

        def emit(kind: str, text: str, name: str, step: int, is_error: bool) -> None:  # noqa: ARG001
            if kind == "text":
                shown.append(text)
            if text == "a time ":
                talk.brake.pull()

        reply = await talk.ask(emit=emit)
        assert shown == ["Once upon ", "a time "]
        assert (reply.stop_reason, reply.text) == ("cancelled", f"{kept}\n\n[The turn was cancelled.]")
        assert talk.recorded == [user("go"), assistant(kept)]
        assert talk.backend.transcript() == talk.recorded

    async def test_deadline_keeps_no_partial_text(self) -> None:
        """A response that ran out of time is not part of the conversation."""
        talk = Talk(Telling())
        reply = await talk.ask(limits=Limits(turn_seconds=0.05), emit=lambda *_: None)
        assert (reply.stop_reason, talk.recorded) == ("timeout", [user("go")])

    async def test_cancel_while_tools_run(self) -> None:
        """Cancelling ends tools under way; what was done keeps its result, the rest gets one that says so."""
        done = asyncio.Event()

        @tool
        async def quick() -> str:
            done.set()
            return "quick"

        @tool
        async def forever() -> None:
            await done.wait()
            talk.brake.pull()
            await asyncio.Event().wait()

        talk = Talk(script({"tools": [{"tool": "forever"}, {"tool": "quick"}]}), quick, forever)
        reply = await talk.ask()
        assert (reply.stop_reason, reply.tool_calls) == ("cancelled", 2)
        assert talk.texts() == [interrupted_result("forever", began=True), "quick"]
        assert reply.unfinished == ("forever",)
        assert_valid(talk.recorded)

    async def test_cancelled_turn_can_go_on(self) -> None:
        """After a cancellation the next turn gives the response that was not given."""
        talk = Talk(script("first", "second"))
        talk.brake.pull()
        assert (await talk.ask()).stop_reason == "cancelled"
        talk.brake = CancelToken()
        assert (await talk.ask()).text == "first"
        assert_valid(talk.recorded)

    async def test_cancel_after_the_end_does_nothing(self) -> None:
        """A cancel that comes when the turn is over finds nothing to end, and no error."""
        talk = Talk(script("first"))
        assert (await talk.ask()).text == "first"
        talk.brake.pull()

    async def test_cancel_between_quick_steps(self) -> None:
        """A turn whose every step is over at once is cancelled too; calls not begun are not run."""
        talk = Talk(script({"loop": [{"tool": "shout", "input": {"word": "a"}}]}), shout)
        talk.reports = Pulling(talk.brake, "model", step=3)
        reply = await talk.ask()
        assert (reply.stop_reason, reply.steps, reply.tool_calls) == ("cancelled", 3, 2)
        assert talk.texts()[2] == interrupted_result("shout", began=False)
        assert reply.unfinished == ("shout",)
        assert_valid(talk.recorded)

    async def test_deadline(self) -> None:
        """A turn past its deadline ends with `timeout`."""
        talk = Talk(script({"sleep": 3600, "text": "late"}))
        reply = await talk.ask(limits=Limits(turn_seconds=0.0))
        assert (reply.stop_reason, reply.text) == ("timeout", "[The turn ran out of time.]")
        assert_valid(talk.recorded)

    async def test_cancellation_from_outside(self) -> None:
        """A turn whose task is cancelled ends what it started; the next turn completes the conversation."""
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
    """A model that fails."""

    async def test_propagates_with_usage(self) -> None:
        """The error comes through with what the turn had used; the conversation is valid and can go on."""
        talk = Talk(script({"tool": "shout", "input": {"word": "a"}}, {"error": "RateLimitError"}, "done"), shout)
        with pytest.raises(RateLimitError) as caught:
            await talk.ask()
        assert vars(caught.value)["usage"].output_tokens > 0
        assert talk.reports[-1] == ("idle", "", 1)
        assert_valid(talk.recorded)
        assert (await talk.ask("again")).text == "done"
        assert_valid(talk.recorded)

    async def test_foreign_error_becomes_ours(self) -> None:
        """Whatever else a backend raises is a BackendError that names it."""
        with pytest.raises(BackendError, match="broken: ZeroDivisionError"):
            await Talk(Broken()).ask()


class Silent(Conversation):
    """Says nothing."""

    async def assistant_turn(self, on_text: OnText | None = None) -> AssistantTurn:  # noqa: ARG002
        """Return an empty response."""
        return AssistantTurn(Message("assistant", ()), "end_turn")

    def info(self) -> BackendInfo:
        """Return who answers."""
        return BackendInfo("silent", "")


class Broken(Silent):
    """Fails in a way of its own."""

    async def assistant_turn(self, on_text: OnText | None = None) -> AssistantTurn:  # noqa: ARG002
        """Raise."""
        raise ZeroDivisionError

    def info(self) -> BackendInfo:
        """Return who answers."""
        return BackendInfo("broken", "")


class Telling(Conversation):
    """A model that streams two pieces of text, and never ends."""

    def __init__(self, *, retried: bool = False) -> None:
        super().__init__()
        self._retried = retried

    async def assistant_turn(self, on_text: OnText | None = None) -> AssistantTurn:
        """Stream, and wait."""
        assert on_text is not None
        on_text("Once upon ")
        if self._retried:
            assert self.on_retry is not None
            self.on_retry(Retry(1, 0.0, RateLimitError("slow down")))
        on_text("a time ")
        await asyncio.Event().wait()
        raise AssertionError

    def info(self) -> BackendInfo:
        """Return who answers."""
        return BackendInfo("telling", "")


class Pulling(list[tuple[str, str, int]]):
    """A list of reports that pulls a brake when a phase is reported."""

    def __init__(self, brake: CancelToken, phase: str, step: int = 1) -> None:
        super().__init__()
        self._brake = brake
        self._when = (phase, step)

    def append(self, report: tuple[str, str, int]) -> None:
        """Add `report`."""
        super().append(report)
        if (report[0], report[2]) == self._when:
            self._brake.pull()


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


@settings(max_examples=60, deadline=None)
@given(st.lists(items, max_size=6), st.integers(1, 4), st.integers(1, 3))
def test_conversation_is_valid_after_any_script(found: list[Any], max_turns: int, turns: int) -> None:
    """Whatever the model says, every call has exactly one result, and every message was recorded before it was used."""

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
