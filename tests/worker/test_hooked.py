"""What each hook does to a turn: the effect of every action that a stage honours, and of every failure."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from orch_protocol.hook_events import Abort, Approve, Block, Event
from orch_protocol.hooks import STAGES, HookRow, HookSaid, HooksRan, HooksSaid, RunHooks
from orch_protocol.messages import Message, Reply, Text, ToolUse, assistant, text_of, user
from orch_protocol.observing import Called
from orch_protocol.policy import PolicyConfig, PolicySpec
from orch_protocol.prompts import PromptPart
from orch_protocol.spec import AgentSpec, BackendSpec, HooksSpec
from orch_worker.backends.base import AssistantTurn, Instead
from orch_worker.backends.scripted import ScriptedBackend
from orch_worker.guard import Guard
from orch_worker.hook_calls import HookCalls, HookContext
from orch_worker.hooked import AgentHooks
from orch_worker.hooks import Hook, Registry, make_hook
from orch_worker.interjections import Interjection
from orch_worker.locality import Locality
from orch_worker.loop import run_turn
from orch_worker.parts import of_tier, rendered
from orch_worker.tools.base import ToolContext, tool
from orch_worker.tools.toolbox import Toolbox
from talk import Root, Talk, assert_valid

SPEC = AgentSpec("a1", 1, "a", "task", BackendSpec("scripted"), "/nowhere", "/", depth=2)
PARTS = (
    PromptPart("identity", "You are a zebra.", "stable", "built-in", "orch"),
    PromptPart("AGENTS.md", "Run.", "context", "AGENTS.md", "project"),
    PromptPart("tasks", "# Tasks", "volatile", "built-in", "orch"),
)
CALL = {"tool": "shout", "input": {"word": "a"}}
TWO = {"tools": [CALL, {"tool": "shout", "input": {"word": "b"}}]}


@tool
def shout(word: str) -> str:
    """Say it loudly."""
    return word.upper()


class Watched(ScriptedBackend):
    """A script that keeps what each of its requests held."""

    def __init__(self, *items: Any) -> None:
        super().__init__(items)
        self.sent: list[tuple[str, list[str], str]] = []

    async def assistant_turn(self, on_text: Any = None) -> AssistantTurn:
        """Return the next item, and remember what was asked."""
        system, messages, tail = self._request()
        self.sent.append((system, [text_of(message) for message in messages], tail))
        return await super().assistant_turn(on_text)


class Hooked(Talk):
    """An agent with hooks. `root` answers what is asked of the root."""

    def __init__(
        self, backend: ScriptedBackend, *hooks: Hook, root: Root | None = None, spec: AgentSpec = SPEC
    ) -> None:
        super().__init__(backend, shout)
        self.said: list[tuple[str, bool]] = []
        self.root = root or Root()
        self.calls = HookCalls(
            Registry(hooks),
            spec,
            self.root,
            say=lambda text, follow_up: self.said.append((text, follow_up)),
            messages=backend.transcript,
        )
        self.hooks = AgentHooks(self.calls)
        self.parts = PARTS
        self.on_record = False
        self.system = ""
        self.events: list[tuple[str, str]] = []
        self.waiting: list[str] = []

    def interject(self, _stopping: bool) -> list[Interjection]:
        """Return the next thing that was said."""
        return [Interjection("s", self.waiting.pop(0))] if self.waiting else []

    async def open(self) -> None:
        """Put the prompt together."""
        self.parts, _ = await self.hooks.prompt(PARTS, recorded=self.on_record)
        self.system = await self.hooks.system_prompt(rendered(of_tier(self.parts, "stable")))

    async def ask(self, prompt: str = "go", limits: Any = None) -> Reply:
        """Run one turn with the hooks."""
        del limits
        self.calls.turn_began("q1", (), lambda _kind, text, name, _error: self.events.append((name, text)))
        reply = await run_turn(
            query_id="q1",
            agent_id="a1",
            prompt=prompt,
            backend=self.backend,
            toolbox=self.box,
            record=self.record,
            limits=SPEC.limits,
            report=lambda *_: None,
            brake=self.brake,
            interject=self.interject,
            hooks=self.hooks,
            opening=self.open,
        )
        await self.hooks.turn_end(reply)
        assert_valid(self.backend.transcript())
        return reply


def on(stage: str, answer: Any, name: str = "h", **options: Any) -> Hook:
    """Return a hook that returns `answer`, or what it returns for the event."""

    def handler(event: Any, _ctx: HookContext) -> Any:
        return answer(event) if callable(answer) else answer

    return make_hook(handler, stage, name=name, **options)


def fails(stage: str, **options: Any) -> Hook:
    """Return a hook that fails."""

    def handler(_event: Any, _ctx: HookContext) -> None:
        raise ValueError("broken")

    return make_hook(handler, stage, name="h", **options)


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
            guard = Guard(spec, context, Locality(SPEC, context.call_root, lambda _backend: asyncio.sleep(0)))
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
        told: list[Called] = []
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

    async def test_no_timer_and_no_task_is_left(self) -> None:
        """When a turn is over, nothing of its hooks waits any more."""

        async def quick(_event: Any, _ctx: HookContext) -> None: ...

        talk = Hooked(Watched(CALL, "done"), on("*", None, "a"), make_hook(quick, "tool_call", "context", name="b"))
        await talk.ask()
        await talk.calls.close()
        loop = asyncio.get_running_loop()
        assert not [each for each in loop._scheduled if not each.cancelled()]  # type: ignore[attr-defined]
        assert asyncio.all_tasks() == {asyncio.current_task()}


class TestEvents:
    """What hooks are told, in which order, and what they can reach."""

    async def test_every_stage_of_a_turn_in_order(self) -> None:
        """A hook on everything sees each event of a turn once, numbered, with turn, depth and step."""
        seen: list[Event] = []
        talk = Hooked(Watched(CALL, "done"), on("*", seen.append, kind="observe"))
        talk.waiting = ["psst"]
        await talk.ask()
        step = ["step_start", "context", "before_provider_request", "message_start"]
        said = ["after_provider_response", "message_end"]
        assert [event.stage for event in seen] == [
            *("session_start", "before_turn", "turn_start", "before_system_prompt", "after_system_prompt"),
            "steering_received",
            *(*step, *said, "tool_call", "tool_result", "step_end"),
            *(*step, "message_update", *said, "step_end"),
            *("before_output", "turn_end"),
        ]
        assert [event.n for event in seen] == list(range(1, len(seen) + 1))
        assert {(event.turn, event.agent_id, event.depth) for event in seen} == {("q1", "a1", 2)}
        assert [event.step for event in seen if event.stage == "step_start"] == [0, 1]

    async def test_nobody_who_observes_changes_anything_in_place(self) -> None:
        """Whatever a hook does to what it is given, the call runs as it was asked for and the record says what was."""

        def meddle(event: Any) -> None:
            if event.stage in ("tool_call", "tool_result"):
                event.input["word"] = "changed"
            for message in getattr(event, "messages", ()):
                for block in message.content:
                    if isinstance(block, ToolUse):
                        block.input["word"] = "changed"

        talk = Hooked(Watched(CALL, "done"), on("*", meddle, kind="observe"))
        await talk.ask()
        assert talk.texts() == ["A"]
        assert talk.recorded[1].content[0] == ToolUse("call_1_1", "shout", {"word": "a"})

    async def test_those_who_observe_are_called_in_one_thread(self) -> None:
        """However many observe an event, in order and one at a time, the agent goes to a thread and back once."""
        seen: list[tuple[str, int]] = []
        hooks = [
            on("turn_end", lambda _event, name=name: seen.append((name, threading.get_ident())), name) for name in "abc"
        ]
        talk = Hooked(Watched("done"), *hooks)
        jumps: list[int] = []
        run_all = talk.calls._threads.run_all

        async def counted(tasks: Any, events: Any) -> Any:
            jumps.append(len(tasks))
            return await run_all(tasks, events)

        talk.calls._threads.run_all = counted  # type: ignore[method-assign]
        await talk.ask()
        assert [name for name, _ in seen] == ["a", "b", "c"]
        assert (jumps, len({thread for _, thread in seen})) == ([3], 1)

    async def test_who_observes_and_meddles_is_alone_with_it(self) -> None:
        """What one who observes does to its copy of the arguments, those called with it do not see."""
        seen: list[Any] = []
        meddle = on("tool_call", lambda event: event.input.clear(), "meddle", kind="observe")
        talk = Hooked(
            Watched(CALL, "done"), meddle, on("tool_call", lambda e: seen.append(e.input), "b", kind="observe")
        )
        await talk.ask()
        assert seen == [{"word": "a"}]

    async def test_calls_are_dispatched_in_call_order(self) -> None:
        """However long hooks take over a call, calls begin in the order in which the model made them."""
        order: list[str] = []

        @tool(exclusive=True)
        def note(word: str) -> str:
            """Note it."""
            order.append(word)
            return word

        async def slow_at_first(event: Any, _ctx: HookContext) -> None:
            for _ in range(20 if event.input["word"] == "a" else 0):
                await asyncio.sleep(0)

        calls = [{"tool": "note", "input": {"word": word}} for word in "abc"]
        talk = Hooked(
            Watched({"tools": calls}, "done"), make_hook(slow_at_first, "tool_call", name="slow", kind="transform")
        )
        talk.box = Toolbox([note], ToolContext(Path("/")))
        await talk.ask()
        assert order == ["a", "b", "c"]

    async def test_what_the_context_offers(self) -> None:
        """A hook knows its agent, sees the conversation, keeps state, and can say something to the agent."""
        contexts: list[HookContext] = []

        def look(event: Any, ctx: HookContext) -> None:
            ctx.state["seen"] = ctx.state.get("seen", 0) + 1
            ctx.turn_state[event.stage] = True
            contexts.append(ctx)
            ctx.steer("look out")
            ctx.follow_up("and then")

        talk = Hooked(Watched("one", "two"), make_hook(look, "turn_end", name="look"))
        await talk.ask()
        await talk.ask()
        await asyncio.sleep(0)
        assert contexts[0] is contexts[1]
        assert (contexts[0].agent_id, contexts[0].depth, contexts[0].state) == ("a1", 2, {"seen": 2})
        assert contexts[0].turn_state == {"turn_end": True}
        assert contexts[0].messages[-1] == assistant("two")
        assert talk.said == [("look out", False), ("and then", True)] * 2

    async def test_what_they_did_is_told(self) -> None:
        """Whoever watches is told of each change and decision, by whom, and whom it overrode."""
        hooks = [on("tool_result", {"text": "one"}, "a"), on("tool_result", {"text": "two"}, "b")]
        talk = Hooked(Watched(CALL, "done"), *hooks)
        await talk.ask()
        assert talk.events == [
            ("a", "tool_result: text"),
            ("b", "tool_result: text; text over that of 'a'".replace("'", "")),
        ]


class TestNobodyListens:
    """A stage without hooks costs nothing."""

    async def test_no_event_is_made(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With a hook on another stage, no event of this one is built."""
        talk = Hooked(Watched(CALL, "done"), on("turn_end", None))
        made: list[str] = []
        original: Callable[..., Any] = talk.calls._stamped

        def stamped(event: Event) -> Any:
            made.append(event.stage)
            return original(event)

        monkeypatch.setattr(talk.calls, "_stamped", stamped)
        await talk.ask()
        assert made == ["turn_end"]

    async def test_without_hooks_the_request_is_as_it_was(self) -> None:
        """A turn without hooks sets nothing aside."""
        backend = Watched(CALL, "done")
        await Talk(backend, shout).ask()
        assert backend.instead is None


class TestSwitchedOff:
    """A hook that is switched off is not called."""

    async def test_from_the_next_turn_on(self, tmp_path: Path) -> None:
        """A name in the file is off from the next turn on, and on again when it is taken out."""
        file = tmp_path / "hooks.json"
        spec = AgentSpec("a1", 1, "a", "t", BackendSpec("scripted"), "/n", "/", hooks=HooksSpec(switches=str(file)))
        talk = Hooked(Watched("a", "b", "c"), on("before_output", {"text": "changed"}), spec=spec)
        assert (await talk.ask()).text == "changed"
        file.write_text('{"disabled":["h"]}')
        assert (await talk.ask()).text == "b"
        file.write_text('{"disabled":[]}')
        assert (await talk.ask()).text == "changed"


class TestInTheRoot:
    """Hooks whose functions are in the root's program."""

    ROW = HookRow(name="far", stages=("before_output",), kind="control", on_error="closed", does=("text", "abort"))

    async def run(self, *answers: Any) -> tuple[Reply, Hooked]:
        """Run a turn with a hook in the root that answers so."""
        talk = Hooked(Watched("hello"), root=Root(*(HooksSaid((answer,)) for answer in answers), None))
        talk.calls.turn_began("q1", (self.ROW,), None)
        text, stop = await talk.hooks.output("hello", "end_turn")
        await talk.calls.report()
        return Reply("a1", "q1", text, stop), talk

    async def test_it_is_asked_and_its_answer_counts(self) -> None:
        """The root is asked for just that event, and what it says counts like a hook's of this process."""
        from msgspec import Raw, msgpack

        reply, talk = await self.run(HookSaid(Raw(msgpack.encode({"text": "HELLO"}))))
        assert reply.text == "HELLO"
        service, asked = talk.root.asked[0]
        assert service == "run_hooks"
        assert isinstance(asked, RunHooks)
        assert [(each.names, each.stage) for each in asked.asked] == [(("far",), "before_output")]
        reply, _ = await self.run(HookSaid(decision=Abort("no")))
        assert (reply.text, reply.stop_reason) == ("no", "aborted")

    async def test_several_are_asked_for_at_once(self) -> None:
        """Those in the root who observe one event are called by one request, whatever stands between them here."""
        rows = tuple(HookRow(name=name, stages=("turn_end",), kind="observe") for name in "ab")
        talk = Hooked(Watched("hello"), on("turn_end", None, "here"), root=Root(HooksSaid((HookSaid(), HookSaid()))))
        talk.calls.turn_began("q1", rows, None)
        await talk.hooks.turn_end(Reply("a1", "q1", "hello", "end_turn"))
        [(_, asked)] = talk.root.asked
        assert isinstance(asked, RunHooks)
        assert [each.names for each in asked.asked] == [("a", "b")]

    async def test_a_failure_there_is_one_here(self) -> None:
        """What fails in the root, and what cannot be reached, fails as its hook is to."""
        reply, talk = await self.run(HookSaid(error="failed: ValueError: x"))
        assert "failed: ValueError: x" in reply.text
        ran = talk.root.asked[-1][1]
        assert isinstance(ran, HooksRan)
        assert (ran.rows[0].calls, ran.rows[0].errors, ran.rows[0].row.name) == (1, 1, "far")


def test_what_is_sent_instead_is_what_is_counted() -> None:
    """The estimate of a request is that of what it holds."""
    backend = ScriptedBackend(["x"])
    backend.append_system("system", ())
    backend.append_user(user("a" * 4000).content)
    whole = backend.context_tokens()
    backend.instead = Instead(messages=(user("short"),))
    assert backend.context_tokens() < whole / 10
    backend.instead = Instead(tail="t" * 4000)
    assert backend.context_tokens() > whole
    backend.instead = None
    assert backend.context_tokens() == whole
