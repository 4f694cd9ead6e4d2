"""What each hook does to a turn: the effect of every action that a stage honours, and of every failure."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent_doubles import Root, assert_valid
from hooked_agent import CALL, PARTS, SPEC, TWO, Hooked, Watched, fails, on, shout
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


class TestEveryAction:
    """Each thing that a stage honours has its effect in the next request, tool run, or reply."""

    async def test_prompt_and_inject_before_the_turn(self) -> None:
        """Another prompt is what goes on record, and what is injected comes after it."""
        talk = Hooked(Watched("hello"), on("before_turn", {"prompt": "better", "inject": ["and this"]}))
        await talk.ask("worse")
        assert talk.recorded[:2] == [user("better"), user("and this")]
        assert talk.backend.sent[0][1] == ["better", "and this"]  # type: ignore[attr-defined]

    async def test_tools_of_one_turn(self) -> None:
        """What is left out is refused in this turn alone, and what one hook has left out no other brings back."""
        none = on("before_turn", lambda event: {"tools": ()} if event.n == 1 else None, "none")
        all_of_them = on("before_turn", {"tools": ("shout", "no such tool")}, "all", priority=60)
        talk = Hooked(Watched(CALL, "done", CALL, "done"), none, all_of_them)
        await talk.ask()
        assert "a hook keeps it from this turn" in talk.texts()[0]
        assert talk.box.resting == ("shout",)
        talk.box.turn_began()
        await talk.ask()
        assert talk.texts()[1] == "A"

    async def test_abort_before_the_turn(self) -> None:
        """A turn that is ended before it begins asks no model and records nothing; the message is the reply."""
        talk = Hooked(Watched("hello"), on("before_turn", Abort("not today")))
        reply = await talk.ask()
        assert (reply.text, reply.stop_reason, reply.steps) == ("not today", "aborted", 0)
        assert talk.recorded == []
        assert talk.backend.sent == []  # type: ignore[attr-defined]

    async def test_parts_of_the_prompt(self) -> None:
        """Parts are added, replaced and dropped, and are the hook's own then; each hook sees what others did."""
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

    async def test_parts_that_are_on_record_stay(self) -> None:
        """What of the context tier is on record is neither changed nor added to: a hook that wants that is told."""
        talk = Hooked(Watched("a"), on("before_system_prompt", {"drop": ["AGENTS.md"]}))
        talk.on_record = True
        await talk.ask()
        assert talk.parts == PARTS
        assert "on record and stays" in talk.events[0][1]

    async def test_text_of_the_system_prompt(self) -> None:
        """The system text of the turn is what a hook makes of it; without the parts that were dropped before."""
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
    async def test_abort_while_the_prompt_is_made(self, stage: str) -> None:
        """The turn ends, and nothing of it goes on record."""
        talk = Hooked(Watched("x"), on(stage, Abort("no")))
        reply = await talk.ask()
        assert (reply.text, reply.stop_reason, talk.recorded) == ("no", "aborted", [])

    async def test_messages_of_one_request(self) -> None:
        """What `context` makes of the messages is sent once; the conversation stays as it is."""
        backend = Watched(CALL, "done")
        hook = on(
            "context", lambda event: {"messages": (user("short"),), "inject": ["now"]} if event.step == 1 else None
        )
        talk = Hooked(backend, hook)
        await talk.ask()
        assert backend.sent[0][1] == ["go"]
        assert backend.sent[1][1] == ["short\n\nnow"]
        assert len(talk.recorded) == 4

    async def test_messages_that_no_provider_would_take_are_put_right(self) -> None:
        """A call whose result a hook left out gets one that says so; a result without a call becomes text."""
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

    async def test_system_and_tail_of_one_request(self) -> None:
        """Another system text and other last words are those of the request."""
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
        assert backend.instead is None

    @pytest.mark.parametrize("stage", ["context", "before_provider_request"])
    async def test_abort_before_a_request(self, stage: str) -> None:
        """A turn that is ended before a request makes none."""
        talk = Hooked(Watched("hello"), on(stage, Abort("no more")))
        reply = await talk.ask()
        assert (reply.text, reply.stop_reason) == ("no more", "aborted")
        assert talk.backend.sent == []  # type: ignore[attr-defined]

    async def test_text_of_a_response(self) -> None:
        """Another text is what goes on record and what the next request holds; calls stay, and are run."""
        backend = Watched({"text": "my secret", **CALL}, "done")
        talk = Hooked(
            backend, on("after_provider_response", lambda event: event.patch(text=event.text.replace("secret", "***")))
        )
        await talk.ask()
        assert talk.recorded[1].content[0] == Text("my ***")
        assert talk.texts() == ["A"]
        assert backend.sent[1][1][1] == "my ***"

    async def test_abort_of_a_response(self) -> None:
        """A response that is refused is not on record; what it took is."""
        talk = Hooked(Watched({"text": "bad", **CALL}), on("after_provider_response", Abort("refused")))
        reply = await talk.ask()
        assert (reply.text, reply.stop_reason) == ("refused", "aborted")
        assert talk.recorded == [user("go"), assistant("refused")]
        assert reply.usage.output_tokens > 0

    async def test_arguments_of_a_call(self) -> None:
        """Other arguments are checked like the model's own, and run."""
        assert await results(on("tool_call", {"input": {"word": "b"}})) == ["B"]
        assert "`wrong`" in (await results(on("tool_call", {"input": {"wrong": 1}})))[0]
        assert "no JSON" in (await results(on("tool_call", {"input": {"word": object()}})))[0]

    async def test_block_of_a_call(self) -> None:
        """A call that is blocked does not run: its result says why, and the turn goes on."""
        talk = Hooked(Watched(CALL, "done"), on("tool_call", Block("too loud")))
        reply = await talk.ask()
        assert (reply.text, reply.tool_calls) == ("done", 0)
        assert "too loud" in talk.texts()[0]
        assert talk.results()[0].is_error

    async def test_abort_at_a_call(self) -> None:
        """A turn that is ended at a call runs none of the later ones, answers all, and asks nothing more."""
        talk = Hooked(
            Watched(TWO, "never"), on("tool_call", lambda event: Abort("stop") if event.input["word"] == "a" else None)
        )
        reply = await talk.ask()
        assert (reply.text, reply.stop_reason, reply.tool_calls) == ("stop", "aborted", 0)
        assert [text.partition(". ")[0] for text in talk.texts()] == [
            "[Denied: shout was not run: a hook ended the turn"
        ] * 2

    async def test_approve(self) -> None:
        """An approved call runs where somebody would be asked; one that is denied does not."""
        for mode, expected in (("ask", "A"), ("deny", "Denied")):
            spec = PolicySpec(rules=PolicyConfig(permissions={"shout": mode}))  # type: ignore[dict-item]
            talk = Hooked(Watched(CALL, "done"), on("tool_call", Approve()))
            context = ToolContext(Path("/"))
            guard = Guard(spec, context, LocalOnlyGuard(SPEC, context.call_root, lambda _backend: asyncio.sleep(0)))
            talk.box = Toolbox([shout], context, guard)
            await talk.ask()
            assert expected in talk.texts()[0]

    async def test_text_and_error_of_a_result(self) -> None:
        """Another text, and that it is an error, is what goes on record."""
        talk = Hooked(
            Watched(CALL, "done"), on("tool_result", lambda event: event.patch(text=event.text + "!", is_error=True))
        )
        await talk.ask()
        assert talk.texts() == ["A!"]
        assert talk.results()[0].is_error

    async def test_result_hooks_see_all_of_it(self) -> None:
        """A hook is given the whole of a result, before any of it is cut; only what it returns is kept."""
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

    async def test_observers_are_told_what_hooks_let_be_seen(self) -> None:
        """Who observes calls hears of a result as it goes on record, never of what hooks took out of it."""
        told: list[CallReport] = []
        for answer in ({"text": "***"}, Block("private")):
            talk = Hooked(Watched(CALL, "done"), on("tool_result", answer))
            talk.box.observe = told.append
            await talk.ask()
        ran = [(each.result, each.success) for each in told if each.outcome == "ran"]
        assert ran == [("***", True), ("[Withheld: private]", False)]
        assert "A" not in [each.result for each in told]

    async def test_block_and_abort_of_a_result(self) -> None:
        """A result that is withheld is not on record; with an abort the turn ends as well."""
        assert await results(on("tool_result", Block("private"))) == ["[Withheld: private]"]
        talk = Hooked(Watched(CALL, "never"), on("tool_result", Abort("enough")))
        reply = await talk.ask()
        assert (reply.text, reply.stop_reason) == ("enough", "aborted")
        assert "A" not in talk.texts()

    async def test_steering(self) -> None:
        """What is said to an agent can be put otherwise, added to, or kept from it."""
        for answer, heard in (
            ({"text": "calmly", "inject": ["and well"]}, ["[Steering]\ncalmly", "[Steering]\nand well"]),
            (Block("rude"), []),
            (None, ["[Steering]\nnow!"]),
        ):
            talk = Hooked(Watched("done"), on("steering_received", answer))
            talk.waiting = ["now!"]
            await talk.ask()
            assert [text_of(message) for message in talk.recorded[1:-1]] == heard

    async def test_what_hooks_made_of_it_counts_as_heard_when_the_last_of_it_is_on_record(self) -> None:
        """Whoever is killed in between is told it once more, rather than a part of it never."""
        talk = Hooked(Watched("ok"), on("steering_received", {"text": "one", "inject": ["two"]}))
        talk.waiting = ["psst"]
        names: list[tuple[str, str]] = []
        record = talk.record

        def named(message: Any, usage: Any = None, said: str = "") -> None:
            record(message, usage)
            names.append((text_of(message).removeprefix("[Steering]\n"), said))

        talk.record = named  # type: ignore[method-assign]
        await talk.ask()
        assert names[1:3] == [("one", ""), ("two", "s")]

    async def test_what_is_blocked_does_not_keep_what_waits_behind_it(self) -> None:
        """When one thing that was said is dropped, the next one is heard."""
        talk = Hooked(
            Watched("one", "two"), on("steering_received", lambda event: Block() if event.text == "a" else None)
        )
        talk.waiting = ["a", "b"]
        reply = await talk.ask()
        assert "[Steering]\nb" in [text_of(message) for message in talk.recorded]
        assert reply.text

    async def test_output(self) -> None:
        """Another text is that of the reply; the conversation keeps what the model said."""
        talk = Hooked(Watched("my secret"), on("before_output", lambda event: event.patch(text=event.text[:2])))
        assert (await talk.ask()).text == "my"
        assert talk.recorded[-1] == assistant("my secret")
        reply = await Hooked(Watched("x"), on("before_output", Abort("no"))).ask()
        assert (reply.text, reply.stop_reason) == ("no", "aborted")

    async def test_a_guard_of_the_output_sees_all_of_a_long_reply(self) -> None:
        """Also what is left out of it afterwards, which whoever asked can have; what a hook adds counts too."""
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
    """A hook that fails never kills a run, and never leaves a call without its result."""

    @pytest.mark.parametrize("kind", ["observe", "transform", "control"])
    @pytest.mark.parametrize("stage", STAGES)
    async def test_a_run_survives(self, stage: str, kind: str) -> None:
        """Whatever stage a hook fails at: a guard stops what it guards, else the turn goes on; calls are answered."""
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
    async def test_an_error_that_cannot_say_what_it_is_is_one_like_others(self, kind: str) -> None:
        """It is known by its type."""

        class Mute(Exception):
            def __str__(self) -> str:
                raise ValueError

        def fail(_event: Any, _ctx: HookContext) -> None:
            raise Mute

        talk = Hooked(Watched(TWO, "done"), make_hook(fail, "tool_call", name="h", kind=kind))
        assert (await talk.ask()).text == "done"
        assert all("hook 'h' failed: Mute" in text for text in talk.texts()) is (kind == "control")

    async def test_a_hook_that_hangs_is_given_up(self) -> None:
        """At its deadline a hook is late; it is not called again while it hangs, and its fail mode applies at once."""
        go, calls = threading.Event(), []

        def hang(event: Any, _ctx: HookContext) -> None:
            calls.append(event)
            go.wait(30)

        talk = Hooked(Watched(TWO, "done"), make_hook(hang, "tool_call", name="slow", kind="transform", timeout=0.02))
        assert (await talk.ask()).text == "done"
        assert talk.texts() == ["A", "B"]
        assert len(calls) == 1
        assert talk.calls.stuck == ("slow",)
        assert [text for _, text in talk.events] == [
            "tool_call: nothing; did not answer within 0.02 s",
            "tool_call: nothing; is still at work on an earlier event",
        ]
        go.set()
        while talk.calls.stuck:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def test_an_async_hook_that_hangs_is_given_up(self) -> None:
        """An async hook is late in the same way, and ends."""

        async def hang(_event: Any, _ctx: HookContext) -> None:
            await asyncio.Event().wait()

        talk = Hooked(Watched(CALL, "done"), make_hook(hang, "tool_call", name="slow", timeout=0.02))
        await talk.ask()
        assert "did not answer within 0.02 s" in talk.texts()[0]

    async def test_cancelling_a_turn_ends_hooks_too(self) -> None:
        """A turn that is cancelled while a hook looks at a call answers the call."""
        entered = asyncio.Event()

        async def hang(_event: Any, _ctx: HookContext) -> None:
            entered.set()
            await asyncio.Event().wait()

        talk = Hooked(Watched(TWO, "never"), make_hook(hang, "tool_call", name="slow"))
        turn = asyncio.create_task(talk.ask())
        await entered.wait()
        talk.brake.pull()
        assert (await turn).stop_reason == "cancelled"
        assert len(talk.results()) == 2

    async def test_cancelling_while_a_response_is_looked_at(self) -> None:
        """What a response took is on record though the turn was cancelled before a hook let it be seen."""
        entered = asyncio.Event()

        async def hang(_event: Any, _ctx: HookContext) -> None:
            entered.set()
            await asyncio.Event().wait()

        talk = Hooked(Watched({"text": "secret", **CALL}), make_hook(hang, "after_provider_response", name="slow"))
        turn = asyncio.create_task(talk.ask())
        await entered.wait()
        talk.brake.pull()
        reply = await turn
        assert reply.stop_reason == "cancelled"
        assert reply.usage.output_tokens > 0
        assert "secret" not in str(talk.recorded)

    async def test_what_fails_at_the_end_of_a_turn_is_on_record_as_that_turns(self) -> None:
        """Also behind its reply, between turns, and when the process ends: not the next turn's, and not lost."""
        kept: list[Any] = []
        talk = Hooked(Watched("done", "done"), fails("*"), root=Root(*[None] * 9))
        talk.hooks._keep = lambda _kind, data: kept.extend((data["turn"], each["stage"]) for each in data["acts"])
        for turn in ("q1", "q2"):
            await talk.ask()
            talk.hooks.turn_ended()
            talk.calls.turn_began(turn + ", beside", (), None)
            talk.calls.tell("error", kind="E", message="no")
            await talk.calls.told()
            talk.hooks.turn_ended()
        assert [turn for turn, stage in kept if stage == "turn_end"] == ["q1", "q1"]
        assert [turn for turn, stage in kept if stage == "error"] == ["q1, beside", "q2, beside"]

        def full(_kind: str, _data: Any) -> None:
            raise StoreError("disk full")

        keep, talk.hooks._keep = talk.hooks._keep, full
        talk.calls.tell("error", kind="E", message="no")
        await talk.calls.told()
        talk.hooks.turn_ended()  # the reply stands
        talk.hooks._keep = keep
        await talk.hooks.close()
        assert kept[-1] == ("q2, beside", "session_end")

    async def test_who_leaves_does_not_wait_for_one_that_hangs_and_leaves_no_thread(self) -> None:
        """Once it returns, the thread that told it ends, as if it had been waited for."""
        go, threads = threading.Event(), list[threading.Thread]()

        def hang(_event: Any, _ctx: HookContext) -> None:
            threads.append(threading.current_thread())
            go.wait(30)

        talk = Hooked(Watched("done"), make_hook(hang, "turn_start", name="slow", kind="observe"))
        talk.calls.turn_began("q1", (), None)
        talk.calls.tell("turn_start", prompt="go")
        while not threads:  # noqa: ASYNC110
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await talk.calls.close()
        go.set()
        threads[0].join(20)
        assert not threads[0].is_alive()

    async def test_no_timer_and_no_task_is_left(self) -> None:
        """When a turn is over, nothing of its hooks waits any more."""

        async def quick(_event: Any, _ctx: HookContext) -> None: ...

        talk = Hooked(Watched(CALL, "done"), on("*", None, "a"), make_hook(quick, "tool_call", "context", name="b"))
        await talk.ask()
        await talk.calls.close()
        loop = asyncio.get_running_loop()
        assert not [each for each in loop._scheduled if not each.cancelled()]  # type: ignore[attr-defined]
        assert asyncio.all_tasks() == {asyncio.current_task()}
