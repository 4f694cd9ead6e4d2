"""The context of a hook: metrics, notices, subagents, archives and state."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agent_doubles import Root
from orch_protocol.core.errors import ToolNotGrantedError
from orch_protocol.services.agents.query import QueryAgent
from orch_protocol.services.agents.spawn import Spawn
from orch_protocol.services.archives.recall import SearchArchive
from orch_protocol.services.resources.hooks import ReportHooks
from orch_worker.hooks.hook import HookContext, make_hook, take_metrics
from worker.agent.test_turn_hooks import SPEC, Hooked, Watched


@pytest.mark.parametrize("aside", [False, True])
async def test_hook_context_reaches_subagents_and_archives(aside: bool) -> None:
    """Sync and async hooks send the same requests to the root, with the rights of their agent."""
    got: list[Any] = []

    def plain(_event: Any, ctx: HookContext) -> None:
        got.extend([ctx.spawn("dig", "go", preset="investigate"), ctx.search_archive("ore", 3)])

    async def later(_event: Any, ctx: HookContext) -> None:
        got.extend([await ctx.spawn("dig", "go", preset="investigate"), await ctx.search_archive("ore", 3)])

    root = Root(SimpleNamespace(id="c1"), None, ["a hit"])
    hook = make_hook(later if aside else plain, "before_output", name="h", kind="transform")
    await Hooked(Watched("done"), hook, root=root).ask()
    assert got == ["c1", ["a hit"]]
    assert root.asked == [
        ("spawn", Spawn("dig", preset="investigate")),
        ("submit", QueryAgent("c1", "go")),
        ("search_archive", SearchArchive("ore", 3)),
    ]


async def test_hook_has_the_rights_of_its_agent() -> None:
    """A request that the root refuses raises the error in the hook."""

    def grab(_event: Any, ctx: HookContext) -> None:
        ctx.spawn("dig")

    talk = Hooked(
        Watched("done"),
        make_hook(grab, "before_output", name="h", kind="transform"),
        root=Root(ToolNotGrantedError("not granted")),
    )
    assert (await talk.ask()).text == "done"
    assert talk.events == [("h", "before_output: nothing; failed: ToolNotGrantedError: not granted")]


async def test_hook_context_has_metrics_notices_and_configuration() -> None:
    """Metrics are summed and sent to the root once, and a notice is an event."""
    seen: list[Any] = []

    def count(event: Any, ctx: HookContext) -> None:
        ctx.metric("calls")
        ctx.metric("letters", len(event.text))
        ctx.notify("look at this")
        seen.append((ctx.config, str(ctx.cwd)))

    talk = Hooked(Watched("ab", "cde"), make_hook(count, "turn_end", name="h"), root=Root(None, None))
    await talk.ask()
    await talk.ask()
    await talk.calls.report()
    [(_, ran)] = talk.root.asked
    assert isinstance(ran, ReportHooks)
    assert ran.rows[0].metrics == {"calls": 2.0, "letters": 5.0}
    assert ("h", "look at this") in talk.events
    assert seen[0] == (SPEC, "/")
    await talk.calls.report()
    assert len(talk.root.asked) == 1


async def test_metric_added_while_metrics_are_read_is_kept() -> None:
    """Such a metric is part of the next report."""
    context = HookContext("h", SPEC, send_message=lambda *_: None, call_root=Root(), emit=lambda _: None)

    class Late:
        def __float__(self) -> float:
            read.append(take_metrics(context))
            return 3.0

    read: list[dict[str, float]] = []
    context.metric("first")
    context.metric("late", Late())  # type: ignore[arg-type]
    read.append(take_metrics(context))
    assert read == [{"first": 1.0}, {"late": 3.0}]


async def test_turn_state_is_cleared_between_turns() -> None:
    """`turn_state` is cleared when the turn ends, and `state` is not."""
    contexts: list[HookContext] = []

    def keep(event: Any, ctx: HookContext) -> None:
        contexts.append(ctx)
        ctx.turn_state[event.stage] = len(ctx.turn_state)
        ctx.state[event.stage] = True

    talk = Hooked(Watched("a"), make_hook(keep, "turn_start", "turn_end", name="h"), root=Root(None))
    await talk.ask()
    assert contexts[0].turn_state == {"turn_start": 0, "turn_end": 1}
    talk.calls.turn_ended()
    assert contexts[0].turn_state == {}
    assert contexts[0].state == {"turn_start": True, "turn_end": True}
    await talk.calls.close()
