"""What comes of several hooks at one stage: changes laid over each other, decisions, failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from orch_protocol.hooks.events import Event, SteeringReceived, ToolCall, ToolReturn, TurnEnd
from orch_protocol.hooks.patches import Abort, Approve, Block, OutputPatch, ResultPatch
from orch_protocol.hooks.stages import Kind
from orch_worker.hooks.dispatch import HookCallResult, HookEffects, StageResult, run_chain, watched
from orch_worker.hooks.hook import Hook, HookRegistry, make_hook
from orch_worker.system.threads import DeadlineExceeded

CALL = ToolCall(id="1", name="bash", input={"command": "ls"})
RESULT = ToolReturn(id="1", name="bash", input={}, text="a secret", is_error=False)


def says(answer: Any, name: str, stage: str = "tool_call", **options: Any) -> Hook:
    """Return a hook that returns `answer`, calls it with the event, or raises it."""

    def handler(event: Event) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer(event) if callable(answer) else answer

    return make_hook(handler, stage, name=name, **options)


async def run(event: Event, *hooks: Hook) -> StageResult:
    """Run a chain without threads; each hook takes a second."""

    noted: list[HookEffects] = []

    async def call(hook: Hook, event: Event) -> HookCallResult:
        return came(hook, event)

    def tell(hooks: Sequence[Hook], event: Event) -> None:
        noted.extend(watched(hook.row.name, event.stage, came(hook, event)) for hook in hooks)

    followed = await run_chain(HookRegistry(hooks).steps(event.stage), event, call, tell)
    return replace(followed, done=(*followed.done, *noted))


def came(hook: Hook, event: Event) -> HookCallResult:
    """Return what comes of a hook within a second."""
    try:
        return HookCallResult(hook.handler(event), None, 1.0)
    except Exception as error:
        return HookCallResult(None, error, 1.0)


def upper(event: Any) -> ResultPatch:
    """Return the text louder."""
    return ResultPatch(text=event.text.upper())


class TestChanges:
    """Patches are laid over each other, field by field."""

    async def test_each_sees_what_those_before_made_of_it(self) -> None:
        """A hook is given the event as the hooks before it have changed it."""
        followed = await run(
            RESULT, says(upper, "a", "tool_result"), says(lambda e: {"text": e.text + "!"}, "b", "tool_result")
        )
        assert isinstance(followed.event, ToolReturn)
        assert followed.event.text == "A SECRET!"

    async def test_fields_compose_and_who_overrode_whom_is_told(self) -> None:
        """Different fields add up; for the same field the last one counts, and the record says whose it undid."""
        followed = await run(
            RESULT,
            says(ResultPatch(text="one"), "a", "tool_result"),
            says(ResultPatch(is_error=True), "b", "tool_result"),
            says(ResultPatch(text="two"), "c", "tool_result"),
        )
        event: Any = followed.event
        assert (event.text, event.is_error) == ("two", True)
        assert [(done.hook, done.actions, done.overrode) for done in followed.done] == [
            ("a", ("text",), ()),
            ("b", ("is_error",), ()),
            ("c", ("text",), (("text", "a"),)),
        ]
        assert [done.seconds for done in followed.done] == [1.0, 1.0, 1.0]

    async def test_what_changes_nothing_is_no_action(self) -> None:
        """A patch that says what is so already is recorded as nothing done."""
        followed = await run(RESULT, says(ResultPatch(text=RESULT.text), "a", "tool_result"))
        assert followed.done[0].actions == ()

    async def test_what_is_injected_adds_up(self) -> None:
        """Texts to be injected come in the order of the hooks."""
        event = SteeringReceived(text="hurry")
        hooks = [says({"inject": [name]}, name, "steering_received") for name in "ab"]
        assert (await run(event, *hooks)).inject == ("a", "b")

    @pytest.mark.parametrize("value", [None, 3, ["x"]])
    async def test_a_value_of_another_type_is_refused(self, value: Any) -> None:
        """A patch whose field is not what it is to be changes nothing, and is an error of that hook."""
        followed = await run(RESULT, says(ResultPatch(text=value), "a", "tool_result", kind="transform"))
        assert followed.event == RESULT
        assert "'text'" in followed.done[0].error

    @pytest.mark.parametrize(
        ("answer", "why"),
        [
            ("text", "a str"),
            (OutputPatch(text="x"), "not a ResultPatch"),
            ({"txt": "x"}, "'txt', which is not a field"),
            (True, "a bool"),
        ],
    )
    async def test_an_answer_that_is_none_is_an_error(self, answer: Any, why: str) -> None:
        """What is neither a patch of the stage nor a decision is an error, never dropped in silence."""
        followed = await run(RESULT, says(answer, "a", "tool_result", kind="transform"))
        assert followed.event == RESULT
        assert why in followed.done[0].error

    async def test_only_what_it_said_it_does(self) -> None:
        """A hook that was registered for one field cannot change another."""
        hook = says(ResultPatch(text="x"), "a", "tool_result", kind="transform", does=["is_error"])
        followed = await run(RESULT, hook)
        assert followed.event == RESULT
        assert "which its `does` does not list" in followed.done[0].error


class TestDecisions:
    """Block beats approve beats change, whatever the order."""

    @pytest.mark.parametrize("decision", [Block("no"), Abort("stop")])
    async def test_the_first_decision_stands(self, decision: Any) -> None:
        """After a decision nobody changes or decides; who observes is called all the same."""
        seen: list[Event] = []
        followed = await run(
            CALL,
            says(decision, "guard"),
            says(Block("me too"), "second"),
            says({"input": {}}, "change", kind="transform"),
            says(seen.append, "watch", kind="observe"),
        )
        assert (followed.decision, followed.by) == (decision, "guard")
        assert followed.event == CALL
        assert seen == [CALL]
        assert [done.skipped for done in followed.done] == ["", "after a decision", "after a decision", ""]

    @pytest.mark.parametrize("first", [True, False])
    async def test_block_beats_approve(self, first: bool) -> None:
        """A call that one hook approves and another blocks does not run."""
        hooks = [says(Approve(), "yes"), says(Block("no"), "no")]
        followed = await run(CALL, *(hooks if first else hooks[::-1]))
        assert followed.decision == Block("no")
        assert followed.approved == ""

    async def test_approval_is_for_the_arguments_that_were_seen(self) -> None:
        """A later change of the arguments voids an approval, and the record says so."""
        followed = await run(
            CALL, says(Approve(), "yes"), says({"input": {"command": "rm"}}, "change", kind="transform")
        )
        assert followed.approved == ""
        assert followed.done[1].overrode == (("approve", "yes"),)

    async def test_approval_after_a_change_stands(self) -> None:
        """An approval of the changed arguments is one of what runs."""
        followed = await run(
            CALL, says({"input": {"command": "pwd"}}, "change", kind="transform"), says(Approve(), "yes")
        )
        assert followed.approved == "yes"

    @pytest.mark.parametrize("on_error", ["open", "closed"])
    async def test_a_block_is_never_swallowed(self, on_error: Any) -> None:
        """A block by a hook that was not registered to decide blocks, and is an error of that hook."""
        followed = await run(CALL, says(Block("danger"), "shy", kind="transform", on_error=on_error))
        assert isinstance(followed.decision, Block)
        assert "shy" in followed.decision.reason
        assert "danger" in followed.decision.reason
        assert followed.done[0].error

    @pytest.mark.parametrize("answer", [Block("no"), Abort("no"), Approve(), {"input": {}}])
    async def test_who_observes_changes_nothing(self, answer: Any) -> None:
        """Whatever a hook that observes returns has no effect but an error in the record."""
        followed = await run(CALL, says(answer, "watch", kind="observe"))
        assert (followed.event, followed.decision, followed.approved) == (CALL, None, "")
        assert followed.done[0].error


class TestFailures:
    """What a hook that fails leaves behind."""

    @pytest.mark.parametrize(
        "error", [ValueError("broken"), DeadlineExceeded("did not answer within 5 s"), TimeoutError("mine")]
    )
    @pytest.mark.parametrize("kind", ["transform", "control"])
    async def test_a_guard_fails_closed_and_a_transform_open(self, kind: Kind, error: Exception) -> None:
        """A guard that fails blocks what it guards; a transform leaves it as it was."""
        followed = await run(CALL, says(error, "g", kind=kind))
        if kind == "control":
            assert isinstance(followed.decision, Block)
            assert "hook 'g'" in followed.decision.reason
        else:
            assert followed.decision is None
        assert followed.event == CALL
        assert str(error) in followed.done[0].error
        assert followed.done[0].late == isinstance(error, DeadlineExceeded)

    async def test_a_transform_that_must_not_fail_fails_closed(self) -> None:
        """A transform can ask to fail closed: then what it was to change is withheld."""
        followed = await run(
            RESULT, says(ValueError("x"), "redact", "tool_result", kind="transform", on_error="closed")
        )
        assert isinstance(followed.decision, Block)

    async def test_a_guard_may_fail_open_when_it_says_so(self) -> None:
        """A guard that was registered to fail open lets things be."""
        followed = await run(
            CALL, says(ValueError("x"), "g", on_error="open"), says({"input": {}}, "b", kind="transform")
        )
        assert followed.decision is None
        assert followed.done[1].actions == ("input",)

    async def test_others_go_on_after_one_that_failed(self) -> None:
        """An error of one hook is no business of the next."""
        seen: list[Any] = []
        event = TurnEnd(text="t", stop_reason="end_turn")
        await run(event, says(ValueError("x"), "a", "turn_end"), says(seen.append, "b", "turn_end"))
        assert seen == [event]

    @pytest.mark.parametrize("stage", [CALL, RESULT, SteeringReceived(text="x")], ids=lambda event: event.stage)
    def test_closed_is_the_mildest_decision(self, stage: Event) -> None:
        """Where one thing can be stopped, a guard that fails stops that and not the turn."""
        from orch_protocol.hooks.stages import STAGES

        assert STAGES[stage.stage].closed is Block


async def test_nothing_is_called_twice() -> None:
    """Each hook of a stage is called once for one event."""
    calls: list[str] = []

    def counting(name: str) -> Callable[[Event], None]:
        return lambda _event: calls.append(name)

    await run(CALL, *(says(counting(name), name, kind="observe") for name in "abc"))
    assert calls == ["a", "b", "c"]
