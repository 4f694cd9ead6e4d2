"""What a hook can reach besides what it returns: figures, notices, subagents, archives, and what it keeps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agent_doubles import Root
from orch_protocol.core.errors import ToolNotGrantedError
from orch_protocol.hooks.stages import ReportHooks
from orch_protocol.services.recall import SearchArchive
from orch_protocol.services.requests import QueryAgent, Spawn
from orch_worker.hooks.hook import HookContext, make_hook
from worker.agent.test_turn_hooks import SPEC, Hooked, Watched


@pytest.mark.parametrize("aside", [False, True])
async def test_subagents_and_archives(aside: bool) -> None:
    """A plain function waits for what it asks of the root, an async one awaits it; the root is asked as the agent."""
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


async def test_what_the_agent_may_not_its_hooks_may_not() -> None:
    """What the root refuses is an error of the hook, as anything that it raises."""

    def grab(_event: Any, ctx: HookContext) -> None:
        ctx.spawn("dig")

    talk = Hooked(
        Watched("done"),
        make_hook(grab, "before_output", name="h", kind="transform"),
        root=Root(ToolNotGrantedError("not granted")),
    )
    assert (await talk.ask()).text == "done"
    assert talk.events == [("h", "before_output: nothing; failed: ToolNotGrantedError: not granted")]


async def test_figures_notices_and_configuration() -> None:
    """Figures add up and go to the root with what the hook did; a notice is told whoever watches."""
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


async def test_no_figure_is_lost_that_is_added_while_they_are_read() -> None:
    """A hook is in a thread: what it adds in the middle is told the next time."""
    context = HookContext("h", SPEC, say=lambda *_: None, call=Root(), tell=lambda _: None)

    class Late:
        def __float__(self) -> float:
            read.append(context.measured())
            return 3.0

    read: list[dict[str, float]] = []
    context.metric("first")
    context.metric("late", Late())  # type: ignore[arg-type]
    read.append(context.measured())
    assert read == [{"first": 1.0}, {"late": 3.0}]


async def test_what_is_kept_for_a_turn_is_gone_after_it() -> None:
    """`turn_state` is empty when a turn begins and when one has ended; `state` stays."""
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
