"""What hooks are told, and when: events in order, nobody listening, hooks switched off, hooks in the root."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_doubles import Root, Talk
from hooked_agent import CALL, Hooked, Watched, on, shout
from orch_protocol.agent.spec import AgentSpec, BackendSpec, HooksSpec
from orch_protocol.core.messages import Reply, ToolUse, assistant, user
from orch_protocol.hooks.events import Event
from orch_protocol.hooks.patches import Abort
from orch_protocol.hooks.stages import HookReplies, HookReply, HookRow, ReportHooks, RunHooks
from orch_worker.backends.base import RequestOverride
from orch_worker.backends.offline.scripted import ScriptedBackend
from orch_worker.hooks.hook import make_hook
from orch_worker.hooks.runner import HookContext
from orch_worker.tools.api.base import ToolContext, tool
from orch_worker.tools.dispatch.toolbox import Toolbox


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
            *(
                "session_start",
                "before_turn",
                "turn_start",
                "after_assess",
                "before_system_prompt",
                "after_system_prompt",
            ),
            "steering_received",
            *(*step, *said, "tool_call", "tool_result", "step_end"),
            *(*step, "message_update", *said, "step_end"),
            *("before_reflect", "before_output", "turn_end"),
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
        """However many observe an event, one thread calls them, in order and one at a time."""
        seen: list[tuple[str, int]] = []
        hooks = [
            on("turn_end", lambda _event, name=name: seen.append((name, threading.get_ident())), name) for name in "abc"
        ]
        talk = Hooked(Watched("done"), *hooks)
        await talk.ask()
        assert [name for name, _ in seen] == ["a", "b", "c"]
        assert len({thread for _, thread in seen}) == 1
        assert threading.get_ident() not in dict(seen).values()

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
        talk = Hooked(Watched("hello"), root=Root(*(HookReplies((answer,)) for answer in answers), None))
        talk.calls.turn_began("q1", (self.ROW,), None)
        text, stop = await talk.hooks.output("hello", "end_turn")
        await talk.calls.report()
        return Reply("a1", "q1", text, stop), talk

    async def test_it_is_asked_and_its_answer_counts(self) -> None:
        """The root is asked for just that event, and what it says counts like a hook's of this process."""
        from msgspec import Raw, msgpack

        reply, talk = await self.run(HookReply(Raw(msgpack.encode({"text": "HELLO"}))))
        assert reply.text == "HELLO"
        service, asked = talk.root.asked[0]
        assert service == "run_hooks"
        assert isinstance(asked, RunHooks)
        assert [(each.names, each.stage) for each in asked.asked] == [(("far",), "before_output")]
        reply, _ = await self.run(HookReply(decision=Abort("no")))
        assert (reply.text, reply.stop_reason) == ("no", "aborted")

    async def test_several_are_asked_for_at_once(self) -> None:
        """Those in the root who observe one event are called by one request, whatever stands between them here."""
        rows = tuple(HookRow(name=name, stages=("turn_end",), kind="observe") for name in "ab")
        talk = Hooked(
            Watched("hello"), on("turn_end", None, "here"), root=Root(HookReplies((HookReply(), HookReply())))
        )
        talk.calls.turn_began("q1", rows, None)
        await talk.hooks.turn_end(Reply("a1", "q1", "hello", "end_turn"))
        [(_, asked)] = talk.root.asked
        assert isinstance(asked, RunHooks)
        assert [each.names for each in asked.asked] == [("a", "b")]

    async def test_a_failure_there_is_one_here(self) -> None:
        """What fails in the root, and what cannot be reached, fails as its hook is to."""
        reply, talk = await self.run(HookReply(error="failed: ValueError: x"))
        assert "failed: ValueError: x" in reply.text
        ran = talk.root.asked[-1][1]
        assert isinstance(ran, ReportHooks)
        assert (ran.rows[0].calls, ran.rows[0].errors, ran.rows[0].row.name) == (1, 1, "far")


def test_what_is_sent_instead_is_what_is_counted() -> None:
    """The estimate of a request is that of what it holds."""
    backend = ScriptedBackend(["x"])
    backend.append_system("system", ())
    backend.append_user(user("a" * 4000).content)
    whole = backend.context_tokens()
    backend.instead = RequestOverride(messages=(user("short"),))
    assert backend.context_tokens() < whole / 10
    backend.instead = RequestOverride(tail="t" * 4000)
    assert backend.context_tokens() > whole
    backend.instead = None
    assert backend.context_tokens() == whole
