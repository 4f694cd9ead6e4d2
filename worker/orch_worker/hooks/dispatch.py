"""Runs the hooks of one stage in order and combines their results.

A parameter supplies the function that calls a hook.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from orch_protocol.hooks.events import BeforeSystemPrompt, Event
from orch_protocol.hooks.patches import Abort, Approve, Block, Decision, Patch, PromptPatch, name_of, with_valid_text
from orch_protocol.hooks.stages import STAGES, Stage, check_value

from ..conversation.prompt_parts import PromptPartError, apply_prompt_patch
from ..system.threads import DeadlineExceeded, describe_exception
from .hook import Hook

__all__ = [
    "Call",
    "HookCallResult",
    "HookEffects",
    "HookMisuseError",
    "NotifyObservers",
    "StageResult",
    "error_text_of",
    "observer_effects",
    "run_chain",
]

SKIPPED_AFTER_DECISION: Final = "after a decision"
OBSERVER_RETURNED: Final = "returned a value, but it may only observe"


class HookCallResult(NamedTuple):
    """The result of one call of a hook: its return value or its error, and the duration of the call in seconds."""

    value: Any = None
    error: Exception | None = None
    seconds: float = 0.0


Call = Callable[[Hook, Event], Awaitable[HookCallResult]]
"""A function that calls a hook with an event.

If the hook exceeds its timeout, the error of the result is DeadlineExceeded.
"""
NotifyObservers = Callable[[Sequence[Hook], Event], None]
"""A function that notifies observing hooks of an event without waiting for them."""


class HookMisuseError(Exception):
    """A hook returned a result that its stage or its kind does not allow."""


class HookEffects(Struct, frozen=True):
    """The effects of one call of a hook: its actions, and the duration of the call.

    `overrode` lists the fields that the hook changed after another hook had changed them, each with the other hook.
    `error` is the reason why the result was not used. `skipped` is the reason why the hook was not called.
    """

    hook: str
    stage: str
    actions: tuple[str, ...] = ()
    seconds: float = 0.0
    overrode: tuple[tuple[str, str], ...] = ()
    error: str = ""
    timed_out: bool = False
    skipped: str = ""


class StageResult(Struct, frozen=True):
    """The result of a stage: the changed event, texts to add, and a decision with the name of the hook that decided.

    `approved_by` is the name of the hook that approved the call, or "".
    """

    event: Event
    inject: tuple[str, ...] = ()
    decision: Abort | Block | None = None
    decided_by: str = ""
    approved_by: str = ""
    effects: tuple[HookEffects, ...] = ()


async def run_chain(steps: Iterable[Sequence[Hook]], event: Event, call: Call, notify: NotifyObservers) -> StageResult:
    """Call the hooks of `steps` in order. Each hook gets the event as changed by earlier hooks.

    See `HookRegistry.steps`. Changes are merged field by field. The first block or abort is final: later hooks are
    skipped, but observers are still notified. An approval is valid for the arguments that the approving hook received.
    A later change of the arguments revokes the approval. Raise only CancelledError.
    """
    stage = STAGES[event.stage]
    state = _StageState(event)
    for step in steps:
        if step[0].row.kind == "observe":
            notify(step, state.event)
        elif state.decision is not None:
            state.effects.append(HookEffects(step[0].row.name, stage.name, skipped=SKIPPED_AFTER_DECISION))
        else:
            state.effects.append(_record_result(state, step[0], stage, await call(step[0], state.event)))
    return StageResult(
        state.event, tuple(state.inject), state.decision, state.decided_by, state.approved_by, tuple(state.effects)
    )


def observer_effects(hook: str, stage: str, result: HookCallResult) -> HookEffects:
    """Return the effects of an observing hook. A return value other than None is an error."""
    error = result.error or (HookMisuseError(OBSERVER_RETURNED) if result.value is not None else None)
    error_text = error_text_of(error) if error is not None else ""
    return HookEffects(hook, stage, (), result.seconds, error=error_text, timed_out=isinstance(error, DeadlineExceeded))


def _record_result(state: _StageState, hook: Hook, stage: Stage, result: HookCallResult) -> HookEffects:
    """Apply `result`, the result of a call of `hook`, to `state`. Return the effects."""
    if result.value is None and result.error is None:
        return HookEffects(hook.row.name, stage.name, (), result.seconds)
    try:
        if result.error is not None:
            raise result.error
        actions, overrode = state.apply_result(hook, _validate_result(hook, stage, result.value))
        return HookEffects(hook.row.name, stage.name, actions, result.seconds, overrode)
    except Exception as error:
        error_text = error_text_of(error)
        decided = state.apply_failure(hook, stage, error_text, error)
        return HookEffects(
            hook.row.name,
            stage.name,
            decided,
            result.seconds,
            error=error_text,
            timed_out=isinstance(error, DeadlineExceeded),
        )


class _StageState:
    """The state of a stage while its hooks run."""

    def __init__(self, event: Event) -> None:
        self.event = event
        self.inject: list[str] = []
        self.decision: Abort | Block | None = None
        self.decided_by = ""
        self.approved_by = ""
        self.effects: list[HookEffects] = []
        self._changed_by: dict[str, str] = {}

    def apply_result(
        self, hook: Hook, returned: Patch | Decision | None
    ) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
        """Apply `returned`.

        Return the actions, and the changes that were replaced, each with the hook that had made the change.
        """
        if returned is None:
            return (), ()
        if isinstance(returned, Approve):
            self.approved_by = hook.row.name
            return (name_of(Approve),), ()
        if isinstance(returned, (Abort, Block)):
            revoked = (("approve", self.approved_by),) if self.approved_by else ()
            self.decision, self.decided_by, self.approved_by = returned, hook.row.name, ""
            return (name_of(type(returned)),), revoked
        if isinstance(returned, PromptPatch):
            return self._apply_prompt_patch(hook, returned)
        changes = _changes(returned)
        added_texts = changes.pop("inject", ())
        self.inject += added_texts
        if "tools" in changes:  # Hooks can only remove tools. No hook can restore a tool that another hook removed.
            changes["tools"] = tuple(name for name in getattr(self.event, "tools") if name in changes["tools"])  # noqa: B009
        changed = {name: value for name, value in changes.items() if getattr(self.event, name) != value}
        overrode = [(name, self._changed_by[name]) for name in changed if name in self._changed_by]
        if changed:
            self.event = replace(self.event, **changed)
            self._changed_by |= dict.fromkeys(changed, hook.row.name)
            if self.approved_by:
                overrode.append(("approve", self.approved_by))
                self.approved_by = ""
        return (*changed, *(("inject",) if added_texts else ())), tuple(overrode)

    def _apply_prompt_patch(
        self, hook: Hook, returned: PromptPatch
    ) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
        """Apply changes to prompt parts. Return the changed parts that another hook had changed before."""
        assert isinstance(self.event, BeforeSystemPrompt)
        before = {part.name: part for part in self.event.parts}
        try:
            parts = apply_prompt_patch(self.event.parts, returned, hook.row.name, recorded=self.event.recorded)
        except PromptPartError as error:
            raise HookMisuseError(str(error)) from error
        after = {part.name: part for part in parts}
        names = [name for name in before | after if before.get(name) != after.get(name)]
        overrode = tuple((name, self._changed_by[name]) for name in names if name in self._changed_by)
        dropped = dict.fromkeys((*self.event.dropped, *(() if returned.drop is UNSET else returned.drop)))
        self.event = replace(self.event, parts=parts, dropped=tuple(name for name in dropped if name not in after))
        self._changed_by |= dict.fromkeys(names, hook.row.name)
        return tuple(_changes(returned)) if names else (), overrode

    def apply_failure(self, hook: Hook, stage: Stage, error_text: str, error: Exception) -> tuple[str, ...]:
        """Apply the failure mode of `hook`. A decision that the hook was not allowed to make blocks in every mode."""
        forced = isinstance(error, HookMisuseError) and error.args[1:] == ("decision",)
        if (hook.row.on_error != "closed" and not forced) or stage.closed is None:
            return ()
        reason = f"hook {hook.row.name!r} {error_text}"
        self.decision, self.decided_by, self.approved_by = stage.closed(reason), hook.row.name, ""
        return (name_of(stage.closed),)


def _validate_result(hook: Hook, stage: Stage, returned: Any) -> Patch | Decision | None:
    """Return `returned` as a valid patch or decision, or None if the hook returned None.

    Raise HookMisuseError for a result that is not allowed.
    """
    if returned is None:
        return None
    allowed = set(stage.actions(hook.row.kind)) & set(hook.row.does)
    if isinstance(returned, (Abort, Block, Approve)):
        decision, name = with_valid_text(returned), name_of(type(returned))
        if name not in allowed:
            message = f"returned {name!r}, which it may not do at {stage.name}: {getattr(decision, 'reason', '')}"
            raise HookMisuseError(message.rstrip(": "), *(("decision",) if not isinstance(returned, Approve) else ()))
        return decision
    if stage.patch is None:
        raise HookMisuseError(f"returned {_type_of(returned)}, but nothing can be changed at {stage.name}")
    if isinstance(returned, Mapping):
        if unknown := set(returned) - set(stage.fields):
            raise HookMisuseError(
                f"returned {min(map(str, unknown))!r}, which is not a field of {stage.name}: {stage.fields}"
            )
        returned = stage.patch(**returned)
    if type(returned) is not stage.patch:
        raise HookMisuseError(
            f"returned {_type_of(returned)}, not a {stage.patch.__name__}: create one with event.patch(...)"
        )
    checked = {}
    for name, value in _changes(returned).items():
        if name not in allowed:
            raise HookMisuseError(f"changed {name!r}, but its option `does` lists only {', '.join(sorted(allowed))}")
        try:
            checked[name] = check_value(stage.patch, name, value)
        except msgspec.ValidationError as error:
            raise HookMisuseError(f"changed {name!r} to an invalid value: {error}") from error
    patch: Patch = stage.patch(**checked)
    return patch


def _changes(patch: Patch) -> dict[str, Any]:
    values = {name: getattr(patch, name) for name in patch.__struct_fields__}
    return {name: value for name, value in values.items() if value is not UNSET}


def error_text_of(error: Exception) -> str:
    """Return a text that describes `error`, the failure of a hook."""
    if isinstance(error, HookMisuseError):
        return str(error.args[0])
    if isinstance(error, DeadlineExceeded):
        return str(error)
    return f"failed: {describe_exception(error)}"


def _type_of(value: Any) -> str:
    return f"a {type(value).__name__}"
