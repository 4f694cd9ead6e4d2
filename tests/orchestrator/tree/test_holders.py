"""How many holders have a process, and which: those that answered last, and those that answer just now."""

from __future__ import annotations

import pytest

from orch.tree.journal.events import AddHolder
from orchestrator.tree_double import Forest, Launch, Signal


class Grove(Forest):
    """Holders, of which `warm` may keep their process."""

    def __init__(self, warm: int, holders: int = 6) -> None:
        super().__init__()
        self.tree.warm_holders = warm
        self.ids: list[str] = [self.handle(AddHolder(self.spec(kind="holder"))) for _ in range(holders)]

    def wake(self, *ids: str) -> list[str]:
        """Ask holders, bring up those that were cold, and return whose process was told to leave."""
        left = []
        for id in ids:
            self.now += 1
            self.ask(id)
            left += self._leave()
            if self.tree.agents[id].status == "starting":
                self.up(id)
        return left

    def answer(self, *ids: str) -> list[str]:
        """Let holders answer, and return whose process was told to leave."""
        left = []
        for id in ids:
            self.now += 1
            self.finish(id)
            left += self._leave()
        return left

    def _leave(self) -> list[str]:
        told = [signal.id for signal in self.told(Signal)]
        for id in told:
            self.gone(id, 0)
        return told


def test_a_holder_has_no_process_before_it_is_asked() -> None:
    """Being known costs nothing."""
    grove = Grove(4)
    assert grove.status(grove.ids[0]) == "cold"
    grove.ask(grove.ids[0])
    assert grove.told(Launch) == [Launch(grove.ids[0], 1)]


def test_the_one_that_answered_longest_ago_makes_room() -> None:
    """When another one is asked, before that has its process: there are never more than may be."""
    grove = Grove(2)
    first, second, third, *_ = grove.ids
    for id in (first, second, first):
        assert grove.wake(id) == []
        assert grove.answer(id) == []
    assert grove.wake(third) == [second]
    assert grove.answer(third) == []
    assert (grove.status(first), grove.status(second), grove.status(third)) == ("idle", "cold", "idle")


def test_those_that_answer_are_not_disturbed() -> None:
    """Many may be asked at once; they leave when they have answered, until no more are left than may be."""
    grove = Grove(1)
    ids = grove.ids[:4]
    assert grove.wake(*ids) == []
    assert grove.answer(*ids) == ids[:3]
    assert [grove.status(id) for id in ids] == ["cold", "cold", "cold", "idle"]


@pytest.mark.parametrize("warm", [0, 3])
def test_no_more_are_kept_than_may_be(warm: int) -> None:
    """None where none may."""
    grove = Grove(warm)
    for id in grove.ids:
        grove.wake(id)
        grove.answer(id)
        assert len(grove.tree.agents.warm) <= warm
    assert len(grove.tree.agents.warm) == warm


def test_a_warm_holder_that_is_asked_again_costs_nobody_its_process() -> None:
    """It has one."""
    grove = Grove(2)
    for id in grove.ids[:2]:
        grove.wake(id)
        grove.answer(id)
    assert grove.wake(grove.ids[0]) == []
