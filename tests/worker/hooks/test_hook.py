"""What hooks may be registered, and in which order they are called."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from orch_protocol.core.errors import ConfigError
from orch_protocol.hooks.patches import Abort, Block, ResultPatch, ToolCallPatch
from orch_protocol.hooks.stages import STAGES, Kind
from orch_worker.hooks.hook import Hook, HookRegistry, hook, make_hook

ACTIONS = sorted({action for stage in STAGES.values() for action in stage.actions("control")})
KINDS: tuple[Kind, ...] = ("observe", "transform", "control")


def nothing(event: Any, ctx: Any) -> None:
    """Do nothing."""


def made(*stages: str, **options: Any) -> Hook:
    """Return a hook that does nothing."""
    return make_hook(nothing, *stages, **options)


@pytest.mark.parametrize("stage", STAGES)
def test_a_hook_does_what_its_stage_honours_or_is_refused(stage: str) -> None:
    """For each stage, action and kind: what the stage honours is taken, anything else is refused with the reason."""
    for action, kind in product(ACTIONS, KINDS):
        if kind in STAGES[stage].kinds and action in STAGES[stage].actions(kind):
            assert made(stage, kind=kind, does=[action]).row.does == (action,)
            continue
        with pytest.raises(ConfigError) as refused:
            made(stage, kind=kind, does=[action])
        assert "nothing'" in str(refused.value), (action, kind)  # which hook
        assert stage in str(refused.value), (action, kind)
        assert kind in str(refused.value) or action in str(refused.value), (action, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stage", STAGES)
def test_a_kind_that_a_stage_does_not_honour_is_refused(stage: str, kind: Kind) -> None:
    """A stage at which nothing would come of a kind of hook does not take it."""
    if kind in STAGES[stage].kinds:
        assert made(stage, kind=kind).row.kind == kind
    else:
        with pytest.raises(ConfigError, match=f"{stage} does not support kind='{kind}'"):
            made(stage, kind=kind)


class TestWhatIsMeant:
    """What is not said follows from what is."""

    def test_kind_is_the_most_that_all_stages_honour(self) -> None:
        """Without a kind, a hook may do what all of its stages allow."""
        assert made("tool_call").row.kind == "control"
        assert made("tool_call", "turn_end").row.kind == "observe"
        assert made("*").row.kind == "observe"
        assert made("*").row.stages == tuple(STAGES)

    def test_return_annotation_says_what_it_does(self) -> None:
        """A hook that says what it returns is held to that, from its registration on."""

        def cap(event: Any, ctx: Any) -> ResultPatch | None: ...

        def stop(event: Any, ctx: Any) -> Block | Abort | None: ...

        row = make_hook(cap, "tool_result").row
        assert (row.kind, row.does, row.on_error) == ("transform", ("text", "is_error", "most"), "open")
        assert make_hook(stop, "tool_call").row.does == ("block", "abort")
        with pytest.raises(ConfigError, match="before_turn does not honour 'text'"):
            make_hook(cap, "before_turn")
        with pytest.raises(ConfigError, match="'transform' cannot 'block' at tool_call: that takes kind='control'"):
            make_hook(stop, "tool_call", kind="transform")

    def test_guards_fail_closed_and_others_open(self) -> None:
        """A hook that decides stops things when it fails; one that changes or observes does not."""
        assert made("tool_call", kind="control").row.on_error == "closed"
        assert made("tool_call", kind="transform").row.on_error == "open"
        assert made("tool_call", kind="transform", on_error="closed").row.on_error == "closed"
        assert made("tool_call", kind="observe").row.on_error == "open"

    def test_plain_functions_have_five_seconds_and_async_ones_fifteen(self) -> None:
        """The time a hook has depends on whether it is awaited."""

        async def later(event: Any, ctx: Any) -> None: ...

        class Callable:
            async def __call__(self, event: Any, ctx: Any) -> None: ...

        assert (made("turn_end").row.seconds, made("turn_end").row.aside) == (5.0, False)
        assert (make_hook(later, "turn_end").row.seconds, make_hook(later, "turn_end").row.aside) == (15.0, True)
        assert make_hook(Callable(), "turn_end").row.aside
        assert made("turn_end", timeout=0.5).row.seconds == 0.5

    def test_pipeline_names_are_names_of_stages(self) -> None:
        """A hook for several names of one stage is called once."""
        assert made("pre-llm", "before_provider_request", "pre-tool").row.stages == (
            "before_provider_request",
            "tool_call",
        )

    def test_name_is_that_of_the_function(self) -> None:
        """A hook is called what its function is, unless said otherwise."""
        assert made("turn_end").row.name.endswith("test_hook.nothing")
        assert made("turn_end", name="mine").row.name == "mine"

    def test_a_hook_is_still_a_function(self) -> None:
        """What `hook` makes can be called like the function it was made of."""

        @hook("tool_call", priority=3)
        def double(event: int, _ctx: Any) -> ToolCallPatch:
            return ToolCallPatch({"twice": event * 2})

        assert double(2, None) == ToolCallPatch({"twice": 4})
        assert double.row.priority == 3


class TestRefused:
    """What cannot be a hook says why."""

    @pytest.mark.parametrize(
        ("stages", "options", "why"),
        [
            ((), {}, "stages is empty"),
            (("tool_cal",), {}, "did you mean 'tool_call'"),
            (("*",), {"kind": "control"}, "for hooks that observe"),
            (("tool_call",), {"kind": "guard"}, "unknown kind 'guard'"),
            (("tool_call",), {"priority": 1.5}, "whole number"),
            (("tool_call",), {"priority": True}, "whole number"),
            (("tool_call",), {"timeout": 0}, "seconds"),
            (("tool_call",), {"timeout": float("inf")}, "seconds"),
            (("tool_call",), {"timeout": "5"}, "seconds"),
            (("tool_call",), {"on_error": "maybe"}, "'open' or 'closed'"),
            (("tool_call",), {"kind": "observe", "on_error": "closed"}, "cannot stop anything"),
            (("turn_end",), {"on_error": "closed"}, "observe"),
            (("tool_call",), {"does": "block"}, "list of actions"),
            (("tool_call",), {"name": "a b"}, "needs a name"),
            (("context",), {"does": ["prompt"]}, "the prompt is on record by then"),
        ],
    )
    def test_says_why(self, stages: tuple[str, ...], options: dict[str, Any], why: str) -> None:
        """Each mistake is named where the hook is made."""
        with pytest.raises(ConfigError, match=why):
            made(*stages, **options)

    def test_no_function(self) -> None:
        """What cannot be called is no hook."""
        with pytest.raises(ConfigError, match="a hook must be a function; got 3"):
            make_hook(3, "tool_call", name="three")  # type: ignore[arg-type]


class TestRegistry:
    """The order in which hooks are called."""

    def test_lower_priority_first_and_ties_as_registered(self) -> None:
        """Hooks come by priority; equal ones in the order of registration."""
        rows = [("b", 50), ("a", 50), ("late", 99), ("early", -1)]
        registry = HookRegistry(made("tool_call", name=name, priority=priority) for name, priority in rows)
        assert [each.row.name for each in registry.chain("tool_call")] == ["early", "b", "a", "late"]
        assert registry.chain("turn_end") == ()

    def test_the_same_again_takes_its_place(self) -> None:
        """A function that is defined anew replaces the one before, where it stood."""
        registry = HookRegistry([made("tool_call", name="a"), made("tool_call", name="b")])
        registry.register(made("turn_end", name="a"))
        assert [each.row.name for each in registry.chain("tool_call")] == ["b"]
        assert [each.row.name for each in registry] == ["a", "b"]

    def test_what_the_same_lines_made_twice_is_two_hooks(self) -> None:
        """Neither gives way to the other unseen: the second needs a name of its own."""

        def guard(word: str) -> Hook:
            return make_hook(lambda *_: word, "tool_call", name="guard")

        registry = HookRegistry([guard("alpha")])
        with pytest.raises(ConfigError, match=r"two hooks 'guard', of this program: give one another name"):
            registry.register(guard("beta"))
        with pytest.raises(ConfigError, match="two hooks 'guard'"):
            HookRegistry([guard("alpha"), guard("beta")])

    def test_anothers_name_is_refused(self) -> None:
        """A hook of another source does not take the place of one that is there."""
        registry = HookRegistry([made("tool_call", name="a", source="config")])
        with pytest.raises(ConfigError, match="two hooks 'a', of config and this program"):
            registry.register(made("tool_call", name="a"))

    def test_removed_and_left_out(self) -> None:
        """A hook that is removed, or left out, is not called."""
        registry = HookRegistry([made("tool_call", name="a"), made("tool_call", name="b")])
        assert [each.row.name for each in registry.without(["a"]).chain("tool_call")] == ["b"]
        registry.remove("b")
        assert [each.row.name for each in registry.chain("tool_call")] == ["a"]
        with pytest.raises(ConfigError, match="unknown hook 'b'"):
            registry.remove("b")
