"""Extensions of a turn: which methods are called, in which order, and from which step."""

from __future__ import annotations

from agent_doubles import Talk
from orch_protocol.agent.spec import Limits
from orch_protocol.core.messages import Reply, StopReason, text_of
from orch_worker.agent.features.turn_extension import ActiveExtensions, TurnExtension, TurnState
from orch_worker.backends.base import BackendInfo
from orch_worker.backends.offline.scripted import ScriptedBackend


class Noted(TurnExtension):
    """An extension that adds its name to prompts and replies."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def before_turn(self, turn: TurnState) -> None:
        """Add the name to the prompt, and a note with the name."""
        turn.prompt += f" {self.name}"
        turn.notes.append(f"note of {self.name}")

    async def output(self, text: str, stop: StopReason) -> tuple[str, StopReason]:
        """Add the name to the text."""
        return f"{text} {self.name}", stop


class Switched(TurnExtension):
    """An extension that enables another one at the first request."""

    def __init__(self, active: ActiveExtensions, other: TurnExtension) -> None:
        self._active, self._other = active, other

    async def request(self, turn: TurnState, info: BackendInfo) -> None:  # noqa: ARG002
        """Enable the other extension."""
        self._active.set((self, self._other))


def test_points_that_no_extension_overrides_are_empty() -> None:
    """Only overridden methods of active extensions are called."""
    active = ActiveExtensions(Noted("a"), TurnExtension())
    assert [len(active.before_turn), len(active.output)] == [1, 1]
    filled = {name for name, methods in vars(active).items() if methods}
    assert filled == {"before_turn", "output"}
    active.set(())
    assert not any(vars(active).values())


async def test_extensions_wrap_a_turn_in_order_and_reverse_order() -> None:
    """The first extension changes the prompt first and the reply last."""
    talk = Talk(ScriptedBackend(["done"]))
    reply = await talk.turn("go", Limits(), Noted("a"), Noted("b"))
    assert [text_of(message) for message in talk.recorded[:3]] == ["go a b", "note of a", "note of b"]
    assert reply.text == "done b a"


async def test_extension_enabled_in_mid_turn_runs_at_later_stages() -> None:
    """The extension did not change the prompt, but it changes the reply."""
    active = ActiveExtensions()
    active.set((Switched(active, Noted("late")),))
    talk = Talk(ScriptedBackend(["done"]))
    reply: Reply = await talk.turn("go", Limits(), active=active)
    assert text_of(talk.recorded[0]) == "go"
    assert reply.text == "done late"
