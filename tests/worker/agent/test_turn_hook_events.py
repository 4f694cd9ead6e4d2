"""Events for hooks: their order and content, stages without hooks, disabled hooks, and hooks in the root."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_doubles import Root, Talk
from hooked_agent import CALL, Hooked, Watched, ended_threads, on, shout
from orch_protocol.agent.spec import AgentSpec, BackendSpec, HooksSpec
from orch_protocol.core.messages import Reply, ToolUse, assistant, user
from orch_protocol.hooks.events import Event
from orch_protocol.hooks.patches import Abort
from orch_protocol.hooks.stages import HookRow
from orch_protocol.services.resources.hooks import HookReplies, HookReply, ReportHooks, RunHooks
from orch_worker.backends.base import RequestOverride
from orch_worker.backends.offline.scripted import ScriptedBackend
from orch_worker.hooks.hook import make_hook
from orch_worker.hooks.runner import HookContext
from orch_worker.tools.api.base import ToolContext, tool
from orch_worker.tools.dispatch.toolbox import Toolbox

__all__ = ["ended_threads"]


class TestEvents:
    """Events: their order, their data and the context of a hook."""

    async def test_hook_on_every_stage_sees_each_event_once_in_order(self) -> None:
        """Each event has its number, turn, depth and step."""
        seen: list[Event] = []
        talk = Hooked(Watched(CALL, "done"), on("*", seen.append, kind="observe"))
        talk.waiting = ["psst"]
        await talk.ask()
        step = ["step_start", "context", "before_provider_request", "message_start"]
        found = ["after_provider_response", "message_end"]
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
            *(*step, *found, "tool_call", "tool_result", "step_end"),
            *(*step, "message_update", *found, "step_end"),
            *("before_reflect", "before_output", "turn_end"),
        ]
        assert [event.n for event in seen] == list(range(1, len(seen) + 1))
        assert {(event.turn, event.agent_id, event.depth) for event in seen} == {("q1", "a1", 2)}
        assert [event.step for event in seen if event.stage == "step_start"] == [0, 1]

    async def test_observers_cannot_mutate_call_arguments(self) -> None:
        """The call runs with the original arguments, and the record shows them."""

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

    async def test_observers_of_an_event_share_one_thread(self) -> None:
        """One thread calls them one at a time, in order."""
        seen: list[tuple[str, int]] = []
        hooks = [
            on("turn_end", lambda _event, name=name: seen.append((name, threading.get_ident())), name) for name in "abc"
        ]
        talk = Hooked(Watched("done"), *hooks)
        await talk.ask()
        assert [name for name, _ in seen] == ["a", "b", "c"]
        assert len({thread for _, thread in seen}) == 1
        assert threading.get_ident() not in dict(seen).values()

    async def test_observers_receive_separate_copies_of_arguments(self) -> None:
        """Changes by one observer are invisible to the others."""
        seen: list[Any] = []
        meddle = on("tool_call", lambda event: event.input.clear(), "meddle", kind="observe")
        talk = Hooked(
            Watched(CALL, "done"), meddle, on("tool_call", lambda e: seen.append(e.input), "b", kind="observe")
        )
        await talk.ask()
        assert seen == [{"word": "a"}]

    async def test_calls_are_dispatched_in_call_order_despite_slow_hooks(self) -> None:
        """The calls start in the order in which the model made them."""
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

    async def test_hook_context_gives_agent_conversation_state_and_steering(self) -> None:
        """`state` lasts for several turns, and `turn_state` lasts for one."""
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

    async def test_hook_changes_and_decisions_are_reported(self) -> None:
        """The report says which hook changed what, and which earlier change it replaced."""
        hooks = [on("tool_result", {"text": "one"}, "a"), on("tool_result", {"text": "two"}, "b")]
        talk = Hooked(Watched(CALL, "done"), *hooks)
        await talk.ask()
        assert talk.events == [
            ("a", "tool_result: text"),
            ("b", "tool_result: text; text over that of 'a'".replace("'", "")),
        ]


class TestWithoutHooks:
    """Stages without hooks cause no work."""

    async def test_no_event_is_built_for_a_stage_without_hooks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A hook on one stage does not cause events of another one."""
        talk = Hooked(Watched(CALL, "done"), on("turn_end", None))
        made: list[str] = []
        original: Callable[..., Any] = talk.calls._stamp_event

        def stamped(event: Event) -> Any:
            made.append(event.stage)
            return original(event)

        monkeypatch.setattr(talk.calls, "_stamp_event", stamped)
        await talk.ask()
        assert made == ["turn_end"]

    async def test_turn_without_hooks_copies_nothing(self) -> None:
        """The request contains the conversation itself."""
        backend = Watched(CALL, "done")
        await Talk(backend, shout).ask()
        assert backend.request_override is None


class TestSwitchedOff:
    """A disabled hook is not called."""

    async def test_hook_disabled_in_the_file_is_skipped_from_the_next_turn(self, tmp_path: Path) -> None:
        """Removing its name from the file enables it again from the next turn."""
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
        """Run a turn with a hook in the root that returns these replies."""
        talk = Hooked(Watched("hello"), root=Root(*(HookReplies((answer,)) for answer in answers), None))
        talk.calls.turn_began("q1", (self.ROW,), None)
        text, stop = await talk.hooks.output("hello", "end_turn")
        await talk.calls.report()
        return Reply("a1", "q1", text, stop), talk

    async def test_root_hook_is_called_for_its_event_and_its_decision_counts(self) -> None:
        """The result of a root hook has the same effect as that of a hook in the worker."""
        from msgspec import Raw, msgpack

        reply, talk = await self.run(HookReply(Raw(msgpack.encode({"text": "HELLO"}))))
        assert reply.text == "HELLO"
        service, asked = talk.root.asked[0]
        assert service == "run_hooks"
        assert isinstance(asked, RunHooks)
        assert [(each.names, each.stage) for each in asked.asked] == [(("far",), "before_output")]
        reply, _ = await self.run(HookReply(decision=Abort("no")))
        assert (reply.text, reply.stop_reason) == ("no", "aborted")

    async def test_root_observers_of_an_event_share_one_request(self) -> None:
        """One request calls all of them, even if local hooks are registered between them."""
        rows = tuple(HookRow(name=name, stages=("turn_end",), kind="observe") for name in "ab")
        talk = Hooked(
            Watched("hello"), on("turn_end", None, "here"), root=Root(HookReplies((HookReply(), HookReply())))
        )
        talk.calls.turn_began("q1", rows, None)
        await talk.hooks.turn_end(Reply("a1", "q1", "hello", "end_turn"))
        [(_, asked)] = talk.root.asked
        assert isinstance(asked, RunHooks)
        assert [each.names for each in asked.asked] == [("a", "b")]

    async def test_failing_or_unreachable_root_hook_follows_its_fail_mode(self) -> None:
        """A hook with the fail mode `closed` withholds the reply, and the failure is counted."""
        reply, talk = await self.run(HookReply(error="failed: ValueError: x"))
        assert "failed: ValueError: x" in reply.text
        ran = talk.root.asked[-1][1]
        assert isinstance(ran, ReportHooks)
        assert (ran.rows[0].calls, ran.rows[0].errors, ran.rows[0].row.name) == (1, 1, "far")


def test_token_estimate_counts_the_request_hooks_produced() -> None:
    """The estimate covers the messages that are sent."""
    backend = ScriptedBackend(["x"])
    backend.append_system("system", ())
    backend.append_user(user("a" * 4000).content)
    whole = backend.context_tokens()
    backend.request_override = RequestOverride(messages=(user("short"),))
    assert backend.context_tokens() < whole / 10
    backend.request_override = RequestOverride(tail="t" * 4000)
    assert backend.context_tokens() > whole
    backend.request_override = None
    assert backend.context_tokens() == whole
