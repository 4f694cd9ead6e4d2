"""Several hooks at one stage: combined changes, decisions and failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from orch_protocol.hooks.events import Event, SteeringReceived, ToolCall, ToolReturn, TurnEnd
from orch_protocol.hooks.patches import Abort, Approve, Block, OutputPatch, ResultPatch
from orch_protocol.hooks.stages import Kind
from orch_worker.hooks.dispatch import HookCallResult, HookEffects, StageResult, observer_effects, run_chain
from orch_worker.hooks.hook import Hook, HookRegistry, make_hook
from orch_worker.system.threads import DeadlineExceeded

CALL = ToolCall(id="1", name="bash", input={"command": "ls"})
RESULT = ToolReturn(id="1", name="bash", input={}, text="a secret", is_error=False)


def says(answer: Any, name: str, stage: str = "tool_call", **options: Any) -> Hook:
    """Return a hook that returns `answer`, calls `answer` with the event, or raises it."""

    def handler(event: Event) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer(event) if callable(answer) else answer

    return make_hook(handler, stage, name=name, **options)


async def run(event: Event, *hooks: Hook) -> StageResult:
    """Run the hooks for the event without threads. Each hook takes one second."""

    noted: list[HookEffects] = []

    async def call(hook: Hook, event: Event) -> HookCallResult:
        return result_of(hook, event)

    def tell(hooks: Sequence[Hook], event: Event) -> None:
        noted.extend(observer_effects(hook.row.name, event.stage, result_of(hook, event)) for hook in hooks)

    followed = await run_chain(HookRegistry(hooks).steps(event.stage), event, call, tell)
    return replace(followed, effects=(*followed.effects, *noted))


def result_of(hook: Hook, event: Event) -> HookCallResult:
    """Return the result of a hook that took one second."""
    try:
        return HookCallResult(hook.handler(event), None, 1.0)
    except Exception as error:
        return HookCallResult(None, error, 1.0)


def upper(event: Any) -> ResultPatch:
    """Return a patch with the text in upper case."""
    return ResultPatch(text=event.text.upper())


class TestChanges:
    """Patches are combined field by field."""

    async def test_each_hook_sees_the_changes_of_earlier_hooks(self) -> None:
        followed = await run(
            RESULT, says(upper, "a", "tool_result"), says(lambda e: {"text": e.text + "!"}, "b", "tool_result")
        )
        assert isinstance(followed.event, ToolReturn)
        assert followed.event.text == "A SECRET!"

    async def test_patches_compose_and_overrides_are_recorded(self) -> None:
        """The last patch of a field applies, and its effect names the overridden hook."""
        followed = await run(
            RESULT,
            says(ResultPatch(text="one"), "a", "tool_result"),
            says(ResultPatch(is_error=True), "b", "tool_result"),
            says(ResultPatch(text="two"), "c", "tool_result"),
        )
        event: Any = followed.event
        assert (event.text, event.is_error) == ("two", True)
        assert [(done.hook, done.actions, done.overrode) for done in followed.effects] == [
            ("a", ("text",), ()),
            ("b", ("is_error",), ()),
            ("c", ("text",), (("text", "a"),)),
        ]
        assert [done.seconds for done in followed.effects] == [1.0, 1.0, 1.0]

    async def test_patch_without_effect_is_recorded_as_no_action(self) -> None:
        """A patch that sets a field to its current value is not an action."""
        followed = await run(RESULT, says(ResultPatch(text=RESULT.text), "a", "tool_result"))
        assert followed.effects[0].actions == ()

    async def test_injected_texts_are_appended_in_hook_order(self) -> None:
        event = SteeringReceived(text="hurry")
        hooks = [says({"inject": [name]}, name, "steering_received") for name in "ab"]
        assert (await run(event, *hooks)).inject == ("a", "b")

    @pytest.mark.parametrize("value", [None, 3, ["x"]])
    async def test_patch_value_of_the_wrong_type_is_an_error_of_the_hook(self, value: Any) -> None:
        """The event is unchanged, and the error names the field."""
        followed = await run(RESULT, says(ResultPatch(text=value), "a", "tool_result", kind="transform"))
        assert followed.event == RESULT
        assert "'text'" in followed.effects[0].error

    @pytest.mark.parametrize(
        ("answer", "why"),
        [
            ("text", "a str"),
            (OutputPatch(text="x"), "not a ResultPatch"),
            ({"txt": "x"}, "'txt', which is not a field"),
            (True, "a bool"),
        ],
    )
    async def test_invalid_hook_result_is_an_error(self, answer: Any, why: str) -> None:
        """A result must be None, a patch of the stage, or a decision."""
        followed = await run(RESULT, says(answer, "a", "tool_result", kind="transform"))
        assert followed.event == RESULT
        assert why in followed.effects[0].error

    async def test_patch_outside_the_declared_fields_is_refused(self) -> None:
        """A hook that is registered for one field cannot change another field."""
        hook = says(ResultPatch(text="x"), "a", "tool_result", kind="transform", does=["is_error"])
        followed = await run(RESULT, hook)
        assert followed.event == RESULT
        assert "but its option `does` lists only" in followed.effects[0].error


class TestDecisions:
    """A block has priority over an approval in any order, and a change voids an earlier approval."""

    @pytest.mark.parametrize("decision", [Block("no"), Abort("stop")])
    async def test_first_decision_ends_changes_and_decisions(self, decision: Any) -> None:
        """Observers are still called after a decision."""
        seen: list[Event] = []
        followed = await run(
            CALL,
            says(decision, "guard"),
            says(Block("me too"), "second"),
            says({"input": {}}, "change", kind="transform"),
            says(seen.append, "watch", kind="observe"),
        )
        assert (followed.decision, followed.decided_by) == (decision, "guard")
        assert followed.event == CALL
        assert seen == [CALL]
        assert [done.skipped for done in followed.effects] == ["", "after a decision", "after a decision", ""]

    @pytest.mark.parametrize("first", [True, False])
    async def test_block_beats_approve(self, first: bool) -> None:
        """A call that one hook approves and another hook blocks does not run."""
        hooks = [says(Approve(), "yes"), says(Block("no"), "no")]
        followed = await run(CALL, *(hooks if first else hooks[::-1]))
        assert followed.decision == Block("no")
        assert followed.approved_by == ""

    async def test_later_argument_change_voids_an_approval(self) -> None:
        """The effect of the later hook records the overridden approval."""
        followed = await run(
            CALL, says(Approve(), "yes"), says({"input": {"command": "rm"}}, "change", kind="transform")
        )
        assert followed.approved_by == ""
        assert followed.effects[1].overrode == (("approve", "yes"),)

    async def test_approval_after_a_change_is_valid(self) -> None:
        """An approval applies to the arguments at the time of the approval."""
        followed = await run(
            CALL, says({"input": {"command": "pwd"}}, "change", kind="transform"), says(Approve(), "yes")
        )
        assert followed.approved_by == "yes"

    @pytest.mark.parametrize("on_error", ["open", "closed"])
    async def test_block_by_an_undeclared_hook_blocks_and_is_an_error(self, on_error: Any) -> None:
        """A hook that was not registered for decisions still blocks the call."""
        followed = await run(CALL, says(Block("danger"), "shy", kind="transform", on_error=on_error))
        assert isinstance(followed.decision, Block)
        assert "shy" in followed.decision.reason
        assert "danger" in followed.decision.reason
        assert followed.effects[0].error

    @pytest.mark.parametrize("answer", [Block("no"), Abort("no"), Approve(), {"input": {}}])
    async def test_observer_result_has_no_effect(self, answer: Any) -> None:
        """The result of an observer is recorded as an error."""
        followed = await run(CALL, says(answer, "watch", kind="observe"))
        assert (followed.event, followed.decision, followed.approved_by) == (CALL, None, "")
        assert followed.effects[0].error


class TestFailures:
    """Hooks that raise an error or exceed their timeout."""

    @pytest.mark.parametrize(
        "error", [ValueError("broken"), DeadlineExceeded("did not answer within 5 s"), TimeoutError("mine")]
    )
    @pytest.mark.parametrize("kind", ["transform", "control"])
    async def test_guards_fail_closed_and_transforms_fail_open(self, kind: Kind, error: Exception) -> None:
        """A failed guard blocks the call, and a failed transform leaves the event unchanged."""
        followed = await run(CALL, says(error, "g", kind=kind))
        if kind == "control":
            assert isinstance(followed.decision, Block)
            assert "hook 'g'" in followed.decision.reason
        else:
            assert followed.decision is None
        assert followed.event == CALL
        assert str(error) in followed.effects[0].error
        assert followed.effects[0].timed_out == isinstance(error, DeadlineExceeded)

    async def test_transform_can_be_registered_to_fail_closed(self) -> None:
        """The result that the failed transform should have changed is blocked."""
        followed = await run(
            RESULT, says(ValueError("x"), "redact", "tool_result", kind="transform", on_error="closed")
        )
        assert isinstance(followed.decision, Block)

    async def test_guard_can_be_registered_to_fail_open(self) -> None:
        """After a failed guard with `on_error="open"`, the next hook is called and the call is not blocked."""
        followed = await run(
            CALL, says(ValueError("x"), "g", on_error="open"), says({"input": {}}, "b", kind="transform")
        )
        assert followed.decision is None
        assert followed.effects[1].actions == ("input",)

    async def test_failure_of_one_hook_does_not_affect_the_next(self) -> None:
        seen: list[Any] = []
        event = TurnEnd(text="t", stop_reason="end_turn")
        await run(event, says(ValueError("x"), "a", "turn_end"), says(seen.append, "b", "turn_end"))
        assert seen == [event]

    @pytest.mark.parametrize("stage", [CALL, RESULT, SteeringReceived(text="x")], ids=lambda event: event.stage)
    def test_failing_guard_blocks_the_call_rather_than_the_turn(self, stage: Event) -> None:
        """At stages with a single item, such as a call, a failed guard blocks the item."""
        from orch_protocol.hooks.stages import STAGES

        assert STAGES[stage.stage].closed is Block


async def test_each_hook_is_called_once_per_event() -> None:
    calls: list[str] = []

    def counting(name: str) -> Callable[[Event], None]:
        return lambda _event: calls.append(name)

    await run(CALL, *(says(counting(name), name, kind="observe") for name in "abc"))
    assert calls == ["a", "b", "c"]
