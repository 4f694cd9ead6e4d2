"""Effects of hooks on a turn: each action that a stage accepts, and each kind of failure."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent_doubles import Root, assert_valid
from hooked_agent import CALL, PARTS, SPEC, TWO, Hooked, Watched, ended_threads, fails, on, shout
from orch_protocol.core.errors import StoreError
from orch_protocol.core.messages import Message, Text, assistant, text_of, user
from orch_protocol.core.prompts import PromptPart
from orch_protocol.hooks.patches import Abort, Approve, Block
from orch_protocol.hooks.stages import STAGES
from orch_protocol.policy.policy import PolicyConfig, PolicySpec
from orch_protocol.wire.tool_events import CallReport
from orch_worker.backends.base import AssistantTurn
from orch_worker.hooks.hook import Hook, make_hook
from orch_worker.hooks.runner import HookContext
from orch_worker.tools.api.base import ToolContext, tool
from orch_worker.tools.dispatch.guard import Guard
from orch_worker.tools.dispatch.local_only import LocalOnlyGuard
from orch_worker.tools.dispatch.toolbox import Toolbox

__all__ = ["ended_threads"]


class TestEveryAction:
    """Each action that a stage accepts has its effect on the next request, call or reply."""

    async def test_turn_start_hook_replaces_the_prompt_and_injects_text(self) -> None:
        """The new prompt is recorded, followed by the injected text."""
        talk = Hooked(Watched("hello"), on("before_turn", {"prompt": "better", "inject": ["and this"]}))
        await talk.ask("worse")
        assert talk.recorded[:2] == [user("better"), user("and this")]
        assert talk.backend.sent[0][1] == ["better", "and this"]  # type: ignore[attr-defined]

    async def test_hook_removes_tools_for_one_turn(self) -> None:
        """A removed tool is refused in this turn only, and no other hook can add it again."""
        none = on("before_turn", lambda event: {"tools": ()} if event.n == 1 else None, "none")
        all_of_them = on("before_turn", {"tools": ("shout", "no such tool")}, "all", priority=60)
        talk = Hooked(Watched(CALL, "done", CALL, "done"), none, all_of_them)
        await talk.ask()
        assert "a hook disabled it for this turn" in talk.texts()[0]
        assert talk.box.disabled_this_turn == ("shout",)
        talk.box.turn_began()
        await talk.ask()
        assert talk.texts()[1] == "A"

    async def test_abort_at_turn_start_makes_no_request(self) -> None:
        """Nothing is recorded, and the message is the reply."""
        talk = Hooked(Watched("hello"), on("before_turn", Abort("not today")))
        reply = await talk.ask()
        assert (reply.text, reply.stop_reason, reply.steps) == ("not today", "aborted", 0)
        assert talk.recorded == []
        assert talk.backend.sent == []  # type: ignore[attr-defined]

    async def test_hooks_add_replace_and_drop_prompt_parts(self) -> None:
        """Changed parts belong to the hook. Later hooks see the changes of earlier ones."""
        style = PromptPart("style", "Be brief.", "stable", owner="orch")
        seen: list[Any] = []
        talk = Hooked(
            Watched("a"),
            on("before_system_prompt", {"add": [style], "drop": ["tasks"]}, name="one"),
            on(
                "before_system_prompt",
                lambda event: event.patch(replace=(replace(style, text="Be long."),)),
                name="two",
            ),
            on("before_system_prompt", seen.append, name="three"),
        )
        await talk.ask()
        assert [(part.name, part.text, part.owner) for part in talk.parts] == [
            ("identity", "You are a zebra.", "orch"),
            ("style", "Be long.", "hook two"),
            ("AGENTS.md", "Run.", "project"),
        ]
        assert seen[0].parts == talk.parts
        assert talk.events == [
            ("one", "before_system_prompt: add, drop"),
            ("two", "before_system_prompt: replace; style over that of one"),
        ]

    async def test_recorded_context_parts_cannot_be_changed_by_hooks(self) -> None:
        """Dropping a recorded part of the context tier is reported as an error of the hook."""
        talk = Hooked(Watched("a"), on("before_system_prompt", {"drop": ["AGENTS.md"]}))
        talk.on_record = True
        await talk.ask()
        assert talk.parts == PARTS
        assert "recorded with the first query" in talk.events[0][1]

    async def test_hook_replaces_the_system_text(self) -> None:
        """The hook receives the text without the parts that other hooks dropped."""
        own = PromptPart("own", "Be a yak.", "stable")
        seen: list[Any] = []
        talk = Hooked(
            Watched("a"),
            on(
                "before_system_prompt",
                {"drop": ["identity"], "add": [own]},
                name="a",
            ),
            on("after_system_prompt", lambda event: seen.append(event.text) or {"text": event.text.upper()}, name="b"),
        )
        await talk.ask()
        assert (seen, talk.system) == (["Be a yak."], "BE A YAK.")

    @pytest.mark.parametrize("stage", ["before_system_prompt", "after_system_prompt"])
    async def test_abort_while_building_the_prompt_records_nothing(self, stage: str) -> None:
        """The turn ends with the message of the hook."""
        talk = Hooked(Watched("x"), on(stage, Abort("no")))
        reply = await talk.ask()
        assert (reply.text, reply.stop_reason, talk.recorded) == ("no", "aborted", [])

    async def test_context_hook_changes_one_request(self) -> None:
        """The changed messages are sent once, and the conversation is unchanged."""
        backend = Watched(CALL, "done")
        hook = on(
            "context", lambda event: {"messages": (user("short"),), "inject": ["now"]} if event.step == 1 else None
        )
        talk = Hooked(backend, hook)
        await talk.ask()
        assert backend.sent[0][1] == ["go"]
        assert backend.sent[1][1] == ["short\n\nnow"]
        assert len(talk.recorded) == 4

    async def test_messages_changed_by_hooks_are_repaired_for_the_provider(self) -> None:
        """A call without a result gets one, and a result without a call becomes text."""
        sent: list[Message] = []

        class Seeing(Watched):
            async def assistant_turn(self, on_text: Any = None) -> AssistantTurn:
                sent[:] = self._request()[1]
                return await super().assistant_turn(on_text)

        talk = Hooked(Seeing(CALL, "done"), on("context", lambda event: {"messages": event.messages[:2]}))
        await talk.ask()
        assert_valid(sent)
        talk = Hooked(Seeing(CALL, "done"), on("context", lambda event: {"messages": event.messages[-1:]}))
        await talk.ask()
        assert_valid(sent)

    async def test_hook_replaces_system_and_tail_of_one_request(self) -> None:
        """The next request has the agent's own system text again."""
        backend = Watched("hello", "again")
        once = on(
            "before_provider_request",
            lambda event: event.patch(system="be brief", tail="hurry") if event.n == 1 else None,
        )
        talk = Hooked(backend, once)
        await talk.ask()
        await talk.ask()
        assert backend.sent[0][0] == "be brief"
        assert backend.sent[0][2] == "hurry"
        assert backend.sent[1][0] == backend.system
        assert backend.request_override is None

    @pytest.mark.parametrize("stage", ["context", "before_provider_request"])
    async def test_abort_before_a_request_makes_no_request(self, stage: str) -> None:
        """The turn ends with the message of the hook."""
        talk = Hooked(Watched("hello"), on(stage, Abort("no more")))
        reply = await talk.ask()
        assert (reply.text, reply.stop_reason) == ("no more", "aborted")
        assert talk.backend.sent == []  # type: ignore[attr-defined]

    async def test_hook_replaces_the_text_of_a_response(self) -> None:
        """The new text is recorded and sent in later requests. The calls of the response run."""
        backend = Watched({"text": "my secret", **CALL}, "done")
        talk = Hooked(
            backend, on("after_provider_response", lambda event: event.patch(text=event.text.replace("secret", "***")))
        )
        await talk.ask()
        assert talk.recorded[1].content[0] == Text("my ***")
        assert talk.texts() == ["A"]
        assert backend.sent[1][1][1] == "my ***"

    async def test_aborted_response_is_not_recorded_but_its_usage_is(self) -> None:
        """The conversation contains the hook's message instead of the response."""
        talk = Hooked(Watched({"text": "bad", **CALL}), on("after_provider_response", Abort("refused")))
        reply = await talk.ask()
        assert (reply.text, reply.stop_reason) == ("refused", "aborted")
        assert talk.recorded == [user("go"), assistant("refused")]
        assert reply.usage.output_tokens > 0

    async def test_hook_replaces_call_arguments(self) -> None:
        """The new arguments are validated like the model's arguments."""
        assert await results(on("tool_call", {"input": {"word": "b"}})) == ["B"]
        assert "`wrong`" in (await results(on("tool_call", {"input": {"wrong": 1}})))[0]
        assert "not valid JSON" in (await results(on("tool_call", {"input": {"word": object()}})))[0]

    async def test_blocked_call_does_not_run_and_the_turn_continues(self) -> None:
        """The result of the call contains the reason."""
        talk = Hooked(Watched(CALL, "done"), on("tool_call", Block("too loud")))
        reply = await talk.ask()
        assert (reply.text, reply.tool_calls) == ("done", 0)
        assert "too loud" in talk.texts()[0]
        assert talk.results()[0].is_error

    async def test_abort_at_a_call_skips_the_remaining_calls(self) -> None:
        """Each remaining call gets a result, and no further request is made."""
        talk = Hooked(
            Watched(TWO, "never"), on("tool_call", lambda event: Abort("stop") if event.input["word"] == "a" else None)
        )
        reply = await talk.ask()
        assert (reply.text, reply.stop_reason, reply.tool_calls) == ("stop", "aborted", 0)
        assert [text.partition(". ")[0] for text in talk.texts()] == [
            "[Denied: shout was not run: a hook ended the turn"
        ] * 2

    async def test_hook_approval_replaces_the_question_to_the_user(self) -> None:
        """An approved call runs. If the policy denies the call, the approval has no effect."""
        for mode, expected in (("ask", "A"), ("deny", "Denied")):
            spec = PolicySpec(rules=PolicyConfig(permissions={"shout": mode}))  # type: ignore[dict-item]
            talk = Hooked(Watched(CALL, "done"), on("tool_call", Approve()))
            context = ToolContext(Path("/"))
            guard = Guard(spec, context, LocalOnlyGuard(SPEC, context.call_root, lambda _backend: asyncio.sleep(0)))
            talk.box = Toolbox([shout], context, guard)
            await talk.ask()
            assert expected in talk.texts()[0]

    async def test_hook_replaces_text_and_error_flag_of_a_result(self) -> None:
        """The changed result is recorded."""
        talk = Hooked(
            Watched(CALL, "done"), on("tool_result", lambda event: event.patch(text=event.text + "!", is_error=True))
        )
        await talk.ask()
        assert talk.texts() == ["A!"]
        assert talk.results()[0].is_error

    async def test_result_hooks_receive_the_untruncated_result(self) -> None:
        """Only the text that the hook returns is recorded."""
        seen: list[int] = []

        @tool
        def much() -> str:
            """Say much."""
            return "x" * 200_000

        def cap(event: Any) -> Any:
            seen.append(len(event.text))
            return event.patch(text="small")

        talk = Hooked(Watched({"tool": "much", "input": {}}, "done"), on("tool_result", cap))
        talk.box = Toolbox([much], ToolContext(Path("/")))
        await talk.ask()
        assert seen == [200_000]
        assert talk.texts() == ["small"]

    async def test_call_observers_receive_the_recorded_result(self) -> None:
        """Observers never receive text that a result hook removed."""
        collected: list[CallReport] = []
        for answer in ({"text": "***"}, Block("private")):
            talk = Hooked(Watched(CALL, "done"), on("tool_result", answer))
            talk.box.observe = collected.append
            await talk.ask()
        ran = [(each.result, each.success) for each in collected if each.outcome == "ran"]
        assert ran == [("***", True), ("[Withheld: private]", False)]
        assert "A" not in [each.result for each in collected]

    async def test_blocked_result_is_not_recorded_and_abort_ends_the_turn(self) -> None:
        """A blocked result is replaced by the reason. An abort also ends the turn."""
        assert await results(on("tool_result", Block("private"))) == ["[Withheld: private]"]
        talk = Hooked(Watched(CALL, "never"), on("tool_result", Abort("enough")))
        reply = await talk.ask()
        assert (reply.text, reply.stop_reason) == ("enough", "aborted")
        assert "A" not in talk.texts()

    async def test_hooks_change_extend_and_drop_steering_messages(self) -> None:
        """The hook returns another text, additional text or a block."""
        for answer, heard in (
            ({"text": "calmly", "inject": ["and well"]}, ["[Steering]\ncalmly", "[Steering]\nand well"]),
            (Block("rude"), []),
            (None, ["[Steering]\nnow!"]),
        ):
            talk = Hooked(Watched("done"), on("steering_received", answer))
            talk.waiting = ["now!"]
            await talk.ask()
            assert [text_of(message) for message in talk.recorded[1:-1]] == heard

    async def test_steering_counts_as_delivered_when_all_its_hook_output_is_recorded(self) -> None:
        """If the process dies before the last of these messages is recorded, the steering is delivered again."""
        talk = Hooked(Watched("ok"), on("steering_received", {"text": "one", "inject": ["two"]}))
        talk.waiting = ["psst"]
        names: list[tuple[str, str]] = []
        record = talk.record

        def named(message: Any, usage: Any = None, model: str = "", steer_id: str = "") -> None:  # noqa: ARG001
            record(message, usage)
            names.append((text_of(message).removeprefix("[Steering]\n"), steer_id))

        talk.record = named  # type: ignore[method-assign]
        await talk.ask()
        assert names[1:3] == [("one", ""), ("two", "s")]

    async def test_dropped_steering_message_does_not_hold_back_the_next(self) -> None:
        """The next queued message is delivered."""
        talk = Hooked(
            Watched("one", "two"), on("steering_received", lambda event: Block() if event.text == "a" else None)
        )
        talk.waiting = ["a", "b"]
        reply = await talk.ask()
        assert "[Steering]\nb" in [text_of(message) for message in talk.recorded]
        assert reply.text

    async def test_output_hook_changes_the_reply_only(self) -> None:
        """The conversation keeps the model's text."""
        talk = Hooked(Watched("my secret"), on("before_output", lambda event: event.patch(text=event.text[:2])))
        assert (await talk.ask()).text == "my"
        assert talk.recorded[-1] == assistant("my secret")
        reply = await Hooked(Watched("x"), on("before_output", Abort("no"))).ask()
        assert (reply.text, reply.stop_reason) == ("no", "aborted")

    async def test_output_guard_receives_the_untruncated_reply(self) -> None:
        """The reply is truncated after the hook, so text that hooks add is truncated, too."""
        seen: list[str] = []
        guard = on("before_output", lambda event: seen.append(event.text) or event.patch(text="ab" * 10_000))
        reply = await Hooked(Watched("x" * 20_000), guard).ask()
        assert seen == ["x" * 20_000]
        assert reply.text.startswith("abab")
        assert "of 20,000 characters left out" in reply.text


async def results(*hooks: Hook) -> list[str]:
    """Return the texts of the results of a turn with one call and `hooks`."""
    talk = Hooked(Watched(CALL, "done"), *hooks)
    await talk.ask()
    return talk.texts()


class TestFailures:
    """A failing hook never ends the process and leaves no call without a result."""

    @pytest.mark.parametrize("kind", ["observe", "transform", "control"])
    @pytest.mark.parametrize("stage", STAGES)
    async def test_failing_hook_applies_its_fail_mode_at_every_stage(self, stage: str, kind: str) -> None:
        """A control hook stops what it guards. Otherwise the turn continues, and all calls get results."""
        if kind not in STAGES[stage].kinds:
            return
        talk = Hooked(Watched(TWO, "done"), fails(stage, kind=kind))
        talk.waiting = ["psst"]
        reply = await talk.ask()
        closed = STAGES[stage].closed if kind == "control" else None
        if closed is Abort:
            assert reply.stop_reason == "aborted"
            assert "hook 'h' failed: ValueError: broken" in reply.text
        else:
            assert reply.text == "done"
            assert len(talk.results()) == 2
        if closed is Block and stage in ("tool_call", "tool_result"):
            assert all("hook 'h'" in text for text in talk.texts())

    @pytest.mark.parametrize("kind", ["observe", "control"])
    async def test_hook_exception_with_a_failing_str_is_reported_by_type(self, kind: str) -> None:
        """The reason contains the type of the exception."""

        class Mute(Exception):
            def __str__(self) -> str:
                raise ValueError

        def fail(_event: Any, _ctx: HookContext) -> None:
            raise Mute

        talk = Hooked(Watched(TWO, "done"), make_hook(fail, "tool_call", name="h", kind=kind))
        assert (await talk.ask()).text == "done"
        assert all("hook 'h' failed: Mute" in text for text in talk.texts()) is (kind == "control")

    async def test_hanging_hook_times_out_and_applies_its_fail_mode(self) -> None:
        """The hook is not called again while it hangs."""
        go, calls = threading.Event(), []

        def hang(event: Any, _ctx: HookContext) -> None:
            calls.append(event)
            go.wait(30)

        talk = Hooked(Watched(TWO, "done"), make_hook(hang, "tool_call", name="slow", kind="transform", timeout=0.02))
        assert (await talk.ask()).text == "done"
        assert talk.texts() == ["A", "B"]
        assert len(calls) == 1
        assert talk.calls.stuck_hooks == ("slow",)
        assert [text for _, text in talk.events] == [
            "tool_call: nothing; did not answer within 0.02 s",
            "tool_call: nothing; is still at work on an earlier event",
        ]
        go.set()
        while talk.calls.stuck_hooks:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def test_hanging_async_hook_is_cancelled_at_its_deadline(self) -> None:
        """The reason says that the hook did not answer in time."""

        async def hang(_event: Any, _ctx: HookContext) -> None:
            await asyncio.Event().wait()

        talk = Hooked(Watched(CALL, "done"), make_hook(hang, "tool_call", name="slow", timeout=0.02))
        await talk.ask()
        assert "did not answer within 0.02 s" in talk.texts()[0]

    async def test_cancelling_a_turn_cancels_its_hooks(self) -> None:
        """A turn that is cancelled during a call hook still gives each call a result."""
        entered = asyncio.Event()

        async def hang(_event: Any, _ctx: HookContext) -> None:
            entered.set()
            await asyncio.Event().wait()

        talk = Hooked(Watched(TWO, "never"), make_hook(hang, "tool_call", name="slow"))
        turn = asyncio.create_task(talk.ask())
        await entered.wait()
        talk.brake.cancel()
        assert (await turn).stop_reason == "cancelled"
        assert len(talk.results()) == 2

    async def test_cancel_during_a_response_hook_records_the_usage(self) -> None:
        """The response's usage is recorded before a hook decides."""
        entered = asyncio.Event()

        async def hang(_event: Any, _ctx: HookContext) -> None:
            entered.set()
            await asyncio.Event().wait()

        talk = Hooked(Watched({"text": "secret", **CALL}), make_hook(hang, "after_provider_response", name="slow"))
        turn = asyncio.create_task(talk.ask())
        await entered.wait()
        talk.brake.cancel()
        reply = await turn
        assert reply.stop_reason == "cancelled"
        assert reply.usage.output_tokens > 0
        assert "secret" not in str(talk.recorded)

    async def test_late_hook_failures_are_recorded_for_their_turn(self) -> None:
        """Failures after the reply or between turns belong to their turn. A full disk does not affect the reply."""
        kept: list[Any] = []
        talk = Hooked(Watched("done", "done"), fails("*"), root=Root(*[None] * 9))
        talk.hooks._record = lambda _kind, data: kept.extend((data["turn"], each["stage"]) for each in data["acts"])
        for turn in ("q1", "q2"):
            await talk.ask()
            await talk.hooks.after_turn()
            talk.calls.turn_began(turn + ", beside", (), None)
            talk.calls.notify("error", kind="E", message="no")
            await talk.calls.wait_until_delivered()
            await talk.hooks.after_turn()
        assert [turn for turn, stage in kept if stage == "turn_end"] == ["q1", "q1"]
        assert [turn for turn, stage in kept if stage == "error"] == ["q1, beside", "q2, beside"]

        def full(_kind: str, _data: Any) -> None:
            raise StoreError("disk full")

        keep, talk.hooks._record = talk.hooks._record, full
        talk.calls.notify("error", kind="E", message="no")
        await talk.calls.wait_until_delivered()
        await talk.hooks.after_turn()  # the reply is not affected
        talk.hooks._record = keep
        await talk.hooks.close()
        assert kept[-1] == ("q2, beside", "session_end")

    async def test_shutdown_does_not_wait_for_a_hanging_observer(self) -> None:
        """The observer's thread ends once the observer returns."""
        go, threads = threading.Event(), list[threading.Thread]()

        def hang(_event: Any, _ctx: HookContext) -> None:
            threads.append(threading.current_thread())
            go.wait(30)

        talk = Hooked(Watched("done"), make_hook(hang, "turn_start", name="slow", kind="observe"))
        talk.calls.turn_began("q1", (), None)
        talk.calls.notify("turn_start", prompt="go")
        while not threads:  # noqa: ASYNC110
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await talk.calls.close()
        go.set()
        threads[0].join(20)
        assert not threads[0].is_alive()

    async def test_turn_leaves_no_hook_timers_or_tasks(self) -> None:
        """After the turn, no timer and no other task is left."""

        async def quick(_event: Any, _ctx: HookContext) -> None: ...

        talk = Hooked(Watched(CALL, "done"), on("*", None, "a"), make_hook(quick, "tool_call", "context", name="b"))
        await talk.ask()
        await talk.calls.close()
        loop = asyncio.get_running_loop()
        assert not [each for each in loop._scheduled if not each.cancelled()]  # type: ignore[attr-defined]
        assert asyncio.all_tasks() == {asyncio.current_task()}
