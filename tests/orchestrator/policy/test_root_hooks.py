"""Hooks in the root's program: their events, results and failures."""

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
from orch_protocol.hooks.stages import STAGES, HookTally
from orch_protocol.services.resources.hooks import HookReply, RunHook, RunHooks
from orch_worker.hooks.hook import make_hook

SPEC = AgentSpec("a1", 1, "a", "task", BackendSpec("scripted"), "/nowhere", "/work", depth=3)
SAID = Replied(text="hello", stop_reason="end_turn")


async def run(hooks: RootHooks, event: Event = SAID, name: str = "h", stage: str | None = None) -> HookReply:
    """Run the hook `name` for the agent, and return its reply."""
    asked = RunHooks((RunHook((name,), stage or event.stage, Raw(msgpack.encode(event))),))
    return (await hooks.call_hooks(asked, SPEC, lambda *_: None)).rows[0]


def holding(home: Path, handler: Callable[..., Any], stage: str = "before_output", **options: Any) -> RootHooks:
    """Return hooks with one registered function."""
    hooks = RootHooks(home, "run")
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
async def test_root_hook_results_are_serialized(tmp_path: Path, answer: Any, patch: Any, decision: Any) -> None:
    """Patches, dictionaries, decisions and None reach the agent."""
    output = await run(holding(tmp_path, lambda _event, _ctx: answer))
    assert (msgpack.decode(output.patch), output.decision, output.error) == (patch, decision, "")


async def test_root_hook_receives_event_agent_and_state(tmp_path: Path) -> None:
    """The function receives the event and the agent. Its state lasts from one event to the next."""
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
async def test_root_hook_exceptions_are_reported_to_the_agent(tmp_path: Path, error: BaseException) -> None:
    """SystemExit and KeyboardInterrupt are reported, too, from functions in threads and from coroutines."""

    def plain(_event: Any, _ctx: Any) -> None:
        raise error

    async def later(_event: Any, _ctx: Any) -> None:
        raise error

    for handler in (plain, later):
        hooks = holding(tmp_path, handler)
        assert type(error).__name__ in (await run(hooks)).error
        hooks.close()


async def test_hanging_root_hook_times_out_and_is_skipped(tmp_path: Path) -> None:
    """After its timeout, a hanging function is not called again until it returns."""
    go = threading.Event()
    hooks = holding(tmp_path, lambda _event, _ctx: go.wait(30), timeout=0.01)
    assert (await run(hooks)).late
    output = await run(hooks)
    assert (output.error, output.late) == ("is still at work on an earlier event", True)
    go.set()


async def test_invalid_root_hook_requests_are_errors(tmp_path: Path) -> None:
    """An unknown hook, another stage, an invalid event and an invalid result each have an error message."""
    called: list[Any] = []
    hooks = holding(tmp_path, lambda event, _ctx: called.append(event))
    assert "no hook 'x'" in (await run(hooks, name="x")).error
    assert "'turn_end'" in (await run(hooks, TurnEnd(text="", stop_reason="end_turn"))).error
    asked = RunHooks((RunHook(("h",), "before_output", Raw(b"\x01")),))
    assert "did not get a valid event" in (await hooks.call_hooks(asked, SPEC, lambda *_: None)).rows[0].error
    assert "neither a patch" in (await run(holding(tmp_path, lambda _event, _ctx: 3))).error
    assert called == []


async def test_several_root_hooks_answer_separately(tmp_path: Path) -> None:
    """A failed function does not affect the others. An asynchronous observer is not awaited, but its failure is
    counted."""
    hooks, go, ran = RootHooks(tmp_path, "run"), asyncio.Event(), list[Any]()

    async def aside(_event: Any, _ctx: Any) -> None:
        await go.wait()
        raise ValueError("late news")

    def broken(_event: Any, _ctx: Any) -> None:
        raise ValueError("broken")

    end = TurnEnd(text="", stop_reason="end_turn")
    for name, handler in (("a", print), ("b", broken), ("c", aside)):
        hooks.register(make_hook(handler, "turn_end", name=name))
    asked = RunHooks((RunHook(("a", "gone", "c", "b"), "turn_end", Raw(msgpack.encode(end))),))
    output = await hooks.call_hooks(asked, SPEC, lambda *work: ran.append(work))
    assert [row.error for row in output.rows] == [
        *("", "there is no hook 'gone' at 'turn_end' in this program", ""),
        "failed: ValueError: broken",
    ]
    go.set()
    for _ in range(9):
        await asyncio.sleep(0)
    hooks.close()
    assert read_totals(tmp_path)["c"].tally.last_error == "failed: ValueError: late news"


async def test_agents_receive_the_list_of_root_hooks(tmp_path: Path) -> None:
    """The list excludes stages that the root runs itself. A hook of such a stage is refused after the start."""
    hooks = holding(tmp_path, print, "*")
    assert [row.name for row in hooks.rows] == ["h"]
    assert set(hooks.rows[0].stages) == {name for name, stage in STAGES.items() if stage.in_root and not stage.by_root}
    with pytest.raises(ConfigError, match="list the hook under"):
        hooks.register(make_hook(print, "session_end", name="late"))
    hooks.remove("h")
    assert hooks.rows == ()


async def test_root_hook_state_ends_with_turn_or_process(tmp_path: Path) -> None:
    """`turn_state` ends with the turn, and `state` ends with the process. Metrics are added up."""
    seen: list[Any] = []

    def keep(event: Event, ctx: Any) -> None:
        ctx.metric("seen")
        ctx.state["n"] = ctx.turn_state["n"] = ctx.state.get("n", 0) + 1
        seen.append((dict(ctx.state), dict(ctx.turn_state), event.turn))

    hooks = holding(tmp_path, lambda event, ctx: (seen.append(sorted(ctx.turn_state)), keep(event, ctx))[1])
    for turn in ("q1", "q1", "q2"):
        await run(hooks, Replied(text="hello", stop_reason="end_turn", turn=turn))
    assert seen[::2] == [[], ["n"], []]
    hooks.remove_contexts("a1")
    await run(hooks)
    assert seen[-1][0] == {"n": 1}
    hooks.close()
    assert read_totals(tmp_path)["h"].tally.metrics == {"seen": 4.0}


async def test_root_hook_statistics_are_written_on_close(tmp_path: Path) -> None:
    """Calls and seconds of several reports are added up."""
    hooks = holding(tmp_path, print)
    written: list[Any] = []
    for _ in range(2):
        hooks.add_tallies([HookTally(hooks.rows[0], 1, 0.5)], lambda *work: written.append(work))
    hooks.close()
    assert written == []
    assert (read_totals(tmp_path)["h"].tally.calls, read_totals(tmp_path)["h"].tally.seconds) == (2, 1.0)
