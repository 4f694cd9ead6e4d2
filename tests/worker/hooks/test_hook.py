"""Registration of hooks, and the order in which hooks are called."""

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
def test_hook_registration_accepts_exactly_the_honored_actions(stage: str) -> None:
    """Other combinations of stage, action and kind are refused with a reason."""
    for action, kind in product(ACTIONS, KINDS):
        if kind in STAGES[stage].kinds and action in STAGES[stage].actions(kind):
            assert made(stage, kind=kind, does=[action]).row.does == (action,)
            continue
        with pytest.raises(ConfigError) as refused:
            made(stage, kind=kind, does=[action])
        assert "nothing'" in str(refused.value), (action, kind)  # the name of the hook
        assert stage in str(refused.value), (action, kind)
        assert kind in str(refused.value) or action in str(refused.value), (action, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stage", STAGES)
def test_kind_without_effect_at_a_stage_is_refused(stage: str, kind: Kind) -> None:
    if kind in STAGES[stage].kinds:
        assert made(stage, kind=kind).row.kind == kind
    else:
        with pytest.raises(ConfigError, match=f"{stage} does not support kind='{kind}'"):
            made(stage, kind=kind)


class TestDefaults:
    """Defaults that follow from the given options."""

    def test_default_kind_allows_what_all_stages_honor(self) -> None:
        """Without `kind`, a hook gets the kind with the most rights that all of its stages support."""
        assert made("tool_call").row.kind == "control"
        assert made("tool_call", "turn_end").row.kind == "observe"
        assert made("*").row.kind == "observe"
        assert made("*").row.stages == tuple(STAGES)

    def test_return_annotation_restricts_the_hook(self) -> None:
        """The return annotation of the function determines the kind and the allowed actions."""

        def cap(event: Any, ctx: Any) -> ResultPatch | None: ...

        def stop(event: Any, ctx: Any) -> Block | Abort | None: ...

        row = make_hook(cap, "tool_result").row
        assert (row.kind, row.does, row.on_error) == ("transform", ("text", "is_error", "max_chars"), "open")
        assert make_hook(stop, "tool_call").row.does == ("block", "abort")
        with pytest.raises(ConfigError, match="hooks at before_turn cannot use 'text'"):
            make_hook(cap, "before_turn")
        with pytest.raises(ConfigError, match="'transform' does not allow 'block' at tool_call: use kind='control'"):
            make_hook(stop, "tool_call", kind="transform")

    def test_default_fail_mode_depends_on_the_kind(self) -> None:
        """Guards fail closed; transforms and observers fail open."""
        assert made("tool_call", kind="control").row.on_error == "closed"
        assert made("tool_call", kind="transform").row.on_error == "open"
        assert made("tool_call", kind="transform", on_error="closed").row.on_error == "closed"
        assert made("tool_call", kind="observe").row.on_error == "open"

    def test_default_timeout_is_five_seconds_or_fifteen_for_async(self) -> None:
        """A callable object with an async `__call__` also counts as async."""

        async def later(event: Any, ctx: Any) -> None: ...

        class Callable:
            async def __call__(self, event: Any, ctx: Any) -> None: ...

        assert (made("turn_end").row.seconds, made("turn_end").row.aside) == (5.0, False)
        assert (make_hook(later, "turn_end").row.seconds, make_hook(later, "turn_end").row.aside) == (15.0, True)
        assert make_hook(Callable(), "turn_end").row.aside
        assert made("turn_end", timeout=0.5).row.seconds == 0.5

    def test_pipeline_aliases_of_a_stage_register_once(self) -> None:
        """Two names of one stage register the hook for one stage."""
        assert made("pre-llm", "before_provider_request", "pre-tool").row.stages == (
            "before_provider_request",
            "tool_call",
        )

    def test_hook_name_defaults_to_the_function_name(self) -> None:
        """An option `name` replaces the function name."""
        assert made("turn_end").row.name.endswith("test_hook.nothing")
        assert made("turn_end", name="mine").row.name == "mine"

    def test_decorated_hook_can_be_called_as_a_function(self) -> None:
        @hook("tool_call", priority=3)
        def double(event: int, _ctx: Any) -> ToolCallPatch:
            return ToolCallPatch({"twice": event * 2})

        assert double(2, None) == ToolCallPatch({"twice": 4})
        assert double.row.priority == 3


class TestRefused:
    """Invalid registrations."""

    @pytest.mark.parametrize(
        ("stages", "options", "why"),
        [
            ((), {}, "stages is empty"),
            (("tool_cal",), {}, "did you mean 'tool_call'"),
            (("*",), {"kind": "control"}, "for hooks that observe"),
            (("tool_call",), {"kind": "guard"}, "unknown kind 'guard'"),
            (("tool_call",), {"priority": 1.5}, "priority must be an integer"),
            (("tool_call",), {"priority": True}, "priority must be an integer"),
            (("tool_call",), {"timeout": 0}, "seconds"),
            (("tool_call",), {"timeout": float("inf")}, "seconds"),
            (("tool_call",), {"timeout": "5"}, "seconds"),
            (("tool_call",), {"on_error": "maybe"}, "'open' or 'closed'"),
            (("tool_call",), {"kind": "observe", "on_error": "closed"}, "cannot stop anything"),
            (("turn_end",), {"on_error": "closed"}, "observe"),
            (("tool_call",), {"does": "block"}, "list of actions"),
            (("tool_call",), {"name": "a b"}, "needs a name"),
            (("context",), {"does": ["prompt"]}, "the prompt is already recorded at this stage"),
        ],
    )
    def test_invalid_registration_names_the_mistake(
        self, stages: tuple[str, ...], options: dict[str, Any], why: str
    ) -> None:
        """`make_hook` raises an error that names the mistake."""
        with pytest.raises(ConfigError, match=why):
            made(*stages, **options)

    def test_hook_must_be_callable(self) -> None:
        """The error states the order of the arguments."""
        with pytest.raises(ConfigError, match=r"a hook must be a function; got 'tool_call'\. Pass the function first"):
            make_hook("tool_call", print, name="print")  # type: ignore[arg-type]


class TestRegistry:
    """The order in which hooks are called, and the names of hooks."""

    def test_hooks_are_ordered_by_priority_then_registration(self) -> None:
        rows = [("b", 50), ("a", 50), ("late", 99), ("early", -1)]
        registry = HookRegistry(made("tool_call", name=name, priority=priority) for name, priority in rows)
        assert [each.row.name for each in registry.chain("tool_call")] == ["early", "b", "a", "late"]
        assert registry.chain("turn_end") == ()

    def test_redefined_function_replaces_its_hook_in_place(self) -> None:
        """The redefined hook keeps its position and gets its new stages."""
        registry = HookRegistry([made("tool_call", name="a"), made("tool_call", name="b")])
        registry.register(made("turn_end", name="a"))
        assert [each.row.name for each in registry.chain("tool_call")] == ["b"]
        assert [each.row.name for each in registry] == ["a", "b"]

    def test_two_hooks_from_the_same_lines_need_different_names(self) -> None:
        """A second hook object from the same code does not replace the first one."""

        def guard(word: str) -> Hook:
            return make_hook(lambda *_: word, "tool_call", name="guard")

        registry = HookRegistry([guard("alpha")])
        with pytest.raises(ConfigError, match=r"two hooks 'guard', of this program: rename one of them"):
            registry.register(guard("beta"))
        with pytest.raises(ConfigError, match="two hooks 'guard'"):
            HookRegistry([guard("alpha"), guard("beta")])

    def test_only_a_new_definition_of_the_same_function_replaces_a_hook(self) -> None:
        """An explicit name of another function and the name that all lambdas share are errors."""

        def define(name: str, cell: str = "cell") -> Any:
            namespace: dict[str, Any] = {"__name__": cell}
            exec(f"def {name}(event, ctx): ...", namespace)
            return namespace[name]

        registry = HookRegistry()
        registry.register(make_hook(define("guard"), "tool_call", name="one"))
        later = make_hook(define("guard"), "tool_call", name="one")
        registry.register(later)
        assert registry.find("one") is later
        for other in (define("watch"), define("guard", "other_cell")):
            with pytest.raises(ConfigError, match="two hooks 'one', of this program: rename one of them"):
                registry.register(make_hook(other, "tool_call", name="one"))
        first = make_hook(lambda *_: Block("no"), "tool_call", name="two")
        registry.register(first)
        with pytest.raises(ConfigError, match="two hooks 'two'"):
            registry.register(make_hook(lambda *_: None, "turn_end", name="two"))
        assert registry.find("two") is first

    def test_hook_name_of_another_source_is_refused(self) -> None:
        registry = HookRegistry([made("tool_call", name="a", source="config")])
        with pytest.raises(ConfigError, match="two hooks 'a', of config and this program"):
            registry.register(made("tool_call", name="a"))

    def test_removed_or_excluded_hooks_are_not_called(self) -> None:
        """Removing an unknown hook is an error."""
        registry = HookRegistry([made("tool_call", name="a"), made("tool_call", name="b")])
        assert [each.row.name for each in registry.without(["a"]).chain("tool_call")] == ["b"]
        registry.remove("b")
        assert [each.row.name for each in registry.chain("tool_call")] == ["a"]
        with pytest.raises(ConfigError, match="unknown hook 'b'"):
            registry.remove("b")
