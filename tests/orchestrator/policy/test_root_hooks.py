"""Hooks of the root's program: what they are given, what they say, and what goes wrong in them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw, msgpack

from orch.policy.hook_records import read_totals
from orch.policy.root_hooks import RootHooks
from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.hooks.events import Event, TurnEnd
from orch_protocol.hooks.events import Output as Replied
from orch_protocol.hooks.patches import Abort, OutputPatch
from orch_protocol.hooks.stages import STAGES, HookReply, HookTally, RunHook, RunHooks
from orch_worker.hooks.hook import make_hook

SPEC = AgentSpec("a1", 1, "a", "task", BackendSpec("scripted"), "/nowhere", "/work", depth=3)
SAID = Replied(text="hello", stop_reason="end_turn")


async def run(hooks: RootHooks, event: Event = SAID, name: str = "h", stage: str | None = None) -> HookReply:
    """Let the agent ask for the hook `name`."""
    asked = RunHooks((RunHook((name,), stage or event.stage, Raw(msgpack.encode(event))),))
    return (await hooks.run(asked, SPEC, lambda _id, _text, _follow_up: None, lambda *_: None)).rows[0]


def holding(home: Path, handler: Callable[..., Any], stage: str = "before_output", **options: Any) -> RootHooks:
    """Return hooks with one function."""
    hooks = RootHooks(home)
    hooks.register(make_hook(handler, stage, name="h", **options))
    return hooks


@pytest.mark.parametrize(
    ("answer", "patch", "decision"),
    [
        (None, None, None),
        (OutputPatch(text="x"), {"text": "x"}, None),
        ({"text": "x"}, {"text": "x"}, None),
        (Abort("no"), None, Abort("no")),
        (Abort("\ud800"), None, Abort("\N{REPLACEMENT CHARACTER}")),
        (Abort(None), None, Abort()),  # type: ignore[arg-type]
    ],
)
async def test_what_a_function_returns_goes_back_as_data(
    tmp_path: Path, answer: Any, patch: Any, decision: Any
) -> None:
    """A patch, a dictionary, a decision and nothing each come to the agent as what they are."""
    said = await run(holding(tmp_path, lambda _event, _ctx: answer))
    assert (msgpack.decode(said.patch), said.decision, said.error) == (patch, decision, "")


async def test_it_is_told_of_the_agent_and_keeps_state(tmp_path: Path) -> None:
    """A function is given the very event, knows whose it is, and finds what it kept for that agent."""
    seen: list[Any] = []

    def look(event: Event, ctx: Any) -> None:
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        seen.append((event, ctx.agent_id, ctx.depth, str(ctx.cwd), ctx.state["n"], ctx.messages))

    hooks = holding(tmp_path, look)
    await run(hooks)
    await run(hooks)
    assert seen == [(SAID, "a1", 3, "/work", number, ()) for number in (1, 2)]
    hooks.close()


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), BaseException("x")])
async def test_whatever_it_raises_is_told(tmp_path: Path, error: BaseException) -> None:
    """An error, and what would end the program, is told to the agent, from a thread and from a coroutine."""

    def plain(_event: Any, _ctx: Any) -> None:
        raise error

    async def later(_event: Any, _ctx: Any) -> None:
        raise error

    for handler in (plain, later):
        hooks = holding(tmp_path, handler)
        assert type(error).__name__ in (await run(hooks)).error
        hooks.close()


async def test_one_that_hangs_is_late_at_once_the_next_time(tmp_path: Path) -> None:
    """At its deadline a function is late; while it hangs it is not called again."""
    go = threading.Event()
    hooks = holding(tmp_path, lambda _event, _ctx: go.wait(30), timeout=0.01)
    assert (await run(hooks)).late
    said = await run(hooks)
    assert (said.error, said.late) == ("is still at work on an earlier event", True)
    go.set()


async def test_what_an_agent_cannot_ask_for(tmp_path: Path) -> None:
    """A hook that is not there, another stage, and what is no event are errors, and nothing is called."""
    called: list[Any] = []
    hooks = holding(tmp_path, lambda event, _ctx: called.append(event))
    assert "no hook 'x'" in (await run(hooks, name="x")).error
    assert "'turn_end'" in (await run(hooks, TurnEnd(text="", stop_reason="end_turn"))).error
    asked = RunHooks((RunHook(("h",), "before_output", Raw(b"\x01")),))
    assert "no event" in (await hooks.run(asked, SPEC, lambda *_: None, lambda *_: None)).rows[0].error
    assert "no patch" in (await run(holding(tmp_path, lambda _event, _ctx: 3))).error
    assert called == []


async def test_several_at_once(tmp_path: Path) -> None:
    """Each of them answers for itself; an async one that only observes is not waited for, and counted when it fails."""
    hooks, go, ran = RootHooks(tmp_path), asyncio.Event(), list[Any]()

    async def aside(_event: Any, _ctx: Any) -> None:
        await go.wait()
        raise ValueError("late news")

    def broken(_event: Any, _ctx: Any) -> None:
        raise ValueError("broken")

    end = TurnEnd(text="", stop_reason="end_turn")
    for name, handler in (("a", print), ("b", broken), ("c", aside)):
        hooks.register(make_hook(handler, "turn_end", name=name))
    asked = RunHooks((RunHook(("a", "gone", "c", "b"), "turn_end", Raw(msgpack.encode(end))),))
    said = await hooks.run(asked, SPEC, lambda *_: None, lambda *work: ran.append(work))
    assert [row.error for row in said.rows] == [
        *("", "there is no hook 'gone' at 'turn_end' in this program", ""),
        "failed: ValueError: broken",
    ]
    go.set()
    for _ in range(9):
        await asyncio.sleep(0)
    hooks.close()
    assert read_totals(tmp_path)["c"].tally.last_error == "failed: ValueError: late news"


async def test_agents_are_told_what_there_is(tmp_path: Path) -> None:
    """The rows are those of the hooks, in order, without stages that the root itself tells or the program may miss."""
    hooks = holding(tmp_path, print, "*")
    assert [row.name for row in hooks.rows] == ["h"]
    assert set(hooks.rows[0].stages) == set(STAGES) - {"session_end", "subagent_spawned", "subagent_finished"}
    with pytest.raises(ConfigError, match="name it under"):
        hooks.register(make_hook(print, "session_end", name="late"))
    hooks.remove("h")
    assert hooks.rows == ()


async def test_what_it_keeps_goes_with_the_turn_and_with_the_process(tmp_path: Path) -> None:
    """What is kept for a turn is gone in the next one, the rest when the agent's process is; figures are added up."""
    seen: list[Any] = []

    def keep(event: Event, ctx: Any) -> None:
        ctx.metric("seen")
        ctx.state["n"] = ctx.turn_state["n"] = ctx.state.get("n", 0) + 1
        seen.append((dict(ctx.state), dict(ctx.turn_state), event.turn))

    hooks = holding(tmp_path, lambda event, ctx: (seen.append(sorted(ctx.turn_state)), keep(event, ctx))[1])
    for turn in ("q1", "q1", "q2"):
        await run(hooks, Replied(text="hello", stop_reason="end_turn", turn=turn))
    assert seen[::2] == [[], ["n"], []]
    hooks.ended("a1")
    await run(hooks)
    assert seen[-1][0] == {"n": 1}
    hooks.close()
    assert read_totals(tmp_path)["h"].tally.metrics == {"seen": 4.0}


async def test_figures_are_on_record_when_it_is_closed(tmp_path: Path) -> None:
    """What hooks did adds up, and is written at the end at the latest."""
    hooks = holding(tmp_path, print)
    written: list[Any] = []
    for _ in range(2):
        hooks.ran([HookTally(hooks.rows[0], 1, 0.5)], lambda *work: written.append(work))
    hooks.close()
    assert written == []
    assert (read_totals(tmp_path)["h"].tally.calls, read_totals(tmp_path)["h"].tally.seconds) == (2, 1.0)
