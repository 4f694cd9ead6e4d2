"""Calling the hooks of one stage, one after the other, and what comes of it. Who calls a function is passed in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from orch_protocol.hooks.events import BeforeSystemPrompt, Event
from orch_protocol.hooks.patches import Abort, Approve, Block, Decision, Patch, PromptPatch, name_of, sound
from orch_protocol.hooks.stages import STAGES, Stage, check_value

from ..conversation.prompt_parts import PromptPartError, apply_prompt_patch
from ..system.threads import DeadlineExceeded, describe_exception
from .hook import Hook

__all__ = [
    "Call",
    "HookCallResult",
    "HookEffects",
    "HookMisuseError",
    "StageResult",
    "Told",
    "run_chain",
    "said_of",
    "watched",
]

DECIDED: Final = "after a decision"
OBSERVES: Final = "returned something, but it is there to observe"


class HookCallResult(NamedTuple):
    """What came of calling a hook: what it returned, or why it did not, and how long that took."""

    value: Any = None
    error: Exception | None = None
    seconds: float = 0.0


Call = Callable[[Hook, Event], Awaitable[HookCallResult]]
"""Calls the function of a hook with an event and returns what it said or raised: Late when it did neither in time."""
Told = Callable[[Sequence[Hook], Event], None]
"""Lets hooks that only observe be told of an event. Nobody waits for that."""


class HookMisuseError(Exception):
    """A hook said something that its stage, or its kind, does not allow."""


class HookEffects(Struct, frozen=True):
    """What one hook did: the `actions` it took, how long that was, and for each field whose change it undid.

    `error` says why nothing came of it; `skipped` that it was not called.
    """

    hook: str
    stage: str
    actions: tuple[str, ...] = ()
    seconds: float = 0.0
    overrode: tuple[tuple[str, str], ...] = ()
    error: str = ""
    late: bool = False
    skipped: str = ""


class StageResult(Struct, frozen=True):
    """What came of a stage: the event as it is now, what is to be added, and a decision with the hook that took it.

    `approved` names the hook that let the call run, "" when none did.
    """

    event: Event
    inject: tuple[str, ...] = ()
    decision: Abort | Block | None = None
    by: str = ""
    approved: str = ""
    done: tuple[HookEffects, ...] = ()


async def run_chain(steps: Iterable[Sequence[Hook]], event: Event, call: Call, tell: Told) -> StageResult:
    """Call the hooks of `steps` (see `Registry.steps`) with `event`, each with what those before it have made of it.

    Changes are laid over each other field by field. The first decision against stands, and whoever only observes is
    told after it all the same; nobody else is called. An approval holds for the arguments that its hook saw: it is void
    when they are changed later. Raises nothing but CancelledError.
    """
    stage = STAGES[event.stage]
    state = _StageState(event)
    for step in steps:
        if step[0].row.kind == "observe":
            tell(step, state.event)
        elif state.decision is not None:
            state.done.append(HookEffects(step[0].row.name, stage.name, skipped=DECIDED))
        else:
            state.done.append(_came(state, step[0], stage, await call(step[0], state.event)))
    return StageResult(state.event, tuple(state.inject), state.decision, state.by, state.approved, tuple(state.done))


def watched(hook: str, stage: str, came: HookCallResult) -> HookEffects:
    """Return what is noted of a hook that only observes: whatever it returned is a mistake."""
    error = came.error or (HookMisuseError(OBSERVES) if came.value is not None else None)
    why = said_of(error) if error is not None else ""
    return HookEffects(hook, stage, (), came.seconds, error=why, late=isinstance(error, DeadlineExceeded))


def _came(state: _StageState, hook: Hook, stage: Stage, came: HookCallResult) -> HookEffects:
    """Let what came of calling `hook` have its effect, and return what that was."""
    if came.value is None and came.error is None:
        return HookEffects(hook.row.name, stage.name, (), came.seconds)
    try:
        if came.error is not None:
            raise came.error
        actions, overrode = state.take(hook, _understood(hook, stage, came.value))
        return HookEffects(hook.row.name, stage.name, actions, came.seconds, overrode)
    except Exception as error:
        why = said_of(error)
        decided = state.fail(hook, stage, why, error)
        return HookEffects(
            hook.row.name, stage.name, decided, came.seconds, error=why, late=isinstance(error, DeadlineExceeded)
        )


class _StageState:
    """What has come of a stage so far."""

    def __init__(self, event: Event) -> None:
        self.event = event
        self.inject: list[str] = []
        self.decision: Abort | Block | None = None
        self.by = ""
        self.approved = ""
        self.done: list[HookEffects] = []
        self._changed: dict[str, str] = {}

    def take(self, hook: Hook, said: Patch | Decision | None) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
        """Let `said` have its effect; return the actions that it was, and whose it undid."""
        if said is None:
            return (), ()
        if isinstance(said, Approve):
            self.approved = hook.row.name
            return (name_of(Approve),), ()
        if isinstance(said, (Abort, Block)):
            undone = (("approve", self.approved),) if self.approved else ()
            self.decision, self.by, self.approved = said, hook.row.name, ""
            return (name_of(type(said)),), undone
        if isinstance(said, PromptPatch):
            return self._take_parts(hook, said)
        changes = _changes(said)
        added = changes.pop("inject", ())
        self.inject += added
        if "tools" in changes:  # taken away alone: what one hook has left out no other brings back
            changes["tools"] = tuple(name for name in getattr(self.event, "tools") if name in changes["tools"])  # noqa: B009
        given = {name: value for name, value in changes.items() if getattr(self.event, name) != value}
        overrode = [(name, self._changed[name]) for name in given if name in self._changed]
        if given:
            self.event = replace(self.event, **given)
            self._changed |= dict.fromkeys(given, hook.row.name)
            if self.approved:
                overrode.append(("approve", self.approved))
                self.approved = ""
        return (*given, *(("inject",) if added else ())), tuple(overrode)

    def _take_parts(self, hook: Hook, said: PromptPatch) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
        """Let a hook change the parts of a prompt; one that a hook before it changed too is told of by its name."""
        assert isinstance(self.event, BeforeSystemPrompt)
        before = {part.name: part for part in self.event.parts}
        try:
            parts = apply_prompt_patch(self.event.parts, said, hook.row.name, recorded=self.event.recorded)
        except PromptPartError as error:
            raise HookMisuseError(str(error)) from error
        after = {part.name: part for part in parts}
        names = [name for name in before | after if before.get(name) != after.get(name)]
        overrode = tuple((name, self._changed[name]) for name in names if name in self._changed)
        dropped = dict.fromkeys((*self.event.dropped, *(() if said.drop is UNSET else said.drop)))
        self.event = replace(self.event, parts=parts, dropped=tuple(name for name in dropped if name not in after))
        self._changed |= dict.fromkeys(names, hook.row.name)
        return tuple(_changes(said)) if names else (), overrode

    def fail(self, hook: Hook, stage: Stage, why: str, error: Exception) -> tuple[str, ...]:
        """Apply the fail mode of `hook`. A decision that it was not to take stops things all the same."""
        forced = isinstance(error, HookMisuseError) and error.args[1:] == ("decision",)
        if (hook.row.on_error != "closed" and not forced) or stage.closed is None:
            return ()
        text = f"hook {hook.row.name!r} {why}"
        self.decision, self.by, self.approved = stage.closed(text), hook.row.name, ""
        return (name_of(stage.closed),)


def _understood(hook: Hook, stage: Stage, said: Any) -> Patch | Decision | None:
    """Return what `said` means. Raises Misuse."""
    if said is None:
        return None
    allowed = set(stage.actions(hook.row.kind)) & set(hook.row.does)
    if isinstance(said, (Abort, Block, Approve)):
        decision, name = sound(said), name_of(type(said))
        if name not in allowed:
            what = f"decided {name!r}, which it cannot at {stage.name}: {getattr(decision, 'reason', '')}"
            raise HookMisuseError(what.rstrip(": "), *(("decision",) if not isinstance(said, Approve) else ()))
        return decision
    if stage.patch is None:
        raise HookMisuseError(f"returned {_shown(said)}, but nothing can be changed at {stage.name}")
    if isinstance(said, Mapping):
        if unknown := set(said) - set(stage.fields):
            raise HookMisuseError(
                f"returned {min(map(str, unknown))!r}, which is not a field of {stage.name}: {stage.fields}"
            )
        said = stage.patch(**said)
    if type(said) is not stage.patch:
        raise HookMisuseError(f"returned {_shown(said)}, not a {stage.patch.__name__}: event.patch(...) makes one")
    checked = {}
    for name, value in _changes(said).items():
        if name not in allowed:
            raise HookMisuseError(f"changed {name!r}, which its `does` does not list: {', '.join(sorted(allowed))}")
        try:
            checked[name] = check_value(stage.patch, name, value)
        except msgspec.ValidationError as error:
            raise HookMisuseError(f"changed {name!r} to something else: {error}") from error
    patch: Patch = stage.patch(**checked)
    return patch


def _changes(patch: Patch) -> dict[str, Any]:
    given = {name: getattr(patch, name) for name in patch.__struct_fields__}
    return {name: value for name, value in given.items() if value is not UNSET}


def said_of(error: Exception) -> str:
    """Return what is said of a hook that failed with `error`."""
    if isinstance(error, HookMisuseError):
        return str(error.args[0])
    if isinstance(error, DeadlineExceeded):
        return str(error)
    return f"failed: {describe_exception(error)}"


def _shown(said: Any) -> str:
    return f"a {type(said).__name__}"
