"""The number of holders with a process: busy holders and the most recently used ones."""

from __future__ import annotations

import pytest

from orch.tree.interface.events import AddHolder
from orchestrator.tree_double import Forest, Launch, Signal


class Grove(Forest):
    """Holders, of which at most `warm` keep their process."""

    def __init__(self, warm: int, holders: int = 6) -> None:
        super().__init__()
        self.tree.warm_holders = warm
        self.ids: list[str] = [self.handle(AddHolder(self.spec(kind="holder"))) for _ in range(holders)]

    def wake(self, *ids: str) -> list[str]:
        """Query holders and start cold ones. Return the holders whose process was stopped."""
        left = []
        for id in ids:
            self.now += 1
            self.ask(id)
            left += self._leave()
            if self.tree.agents[id].status == "starting":
                self.up(id)
        return left

    def answer(self, *ids: str) -> list[str]:
        """Let holders answer. Return the holders whose process was stopped."""
        left = []
        for id in ids:
            self.now += 1
            self.finish(id)
            left += self._leave()
        return left

    def _leave(self) -> list[str]:
        listed = [signal.id for signal in self.told(Signal)]
        for id in listed:
            self.gone(id, 0)
        return listed


def test_holder_has_no_process_before_it_is_asked() -> None:
    """An unused holder has the status `cold`."""
    grove = Grove(4)
    assert grove.status(grove.ids[0]) == "cold"
    grove.ask(grove.ids[0])
    assert grove.told(Launch) == [Launch(grove.ids[0], 1)]


def test_least_recently_used_holder_makes_room() -> None:
    """The other process stops before the queried holder gets a process."""
    grove = Grove(2)
    first, second, third, *_ = grove.ids
    for id in (first, second, first):
        assert grove.wake(id) == []
        assert grove.answer(id) == []
    assert grove.wake(third) == [second]
    assert grove.answer(third) == []
    assert (grove.status(first), grove.status(second), grove.status(third)) == ("idle", "cold", "idle")


def test_busy_holders_are_not_ended() -> None:
    """After answering, holders above the limit are stopped."""
    grove = Grove(1)
    ids = grove.ids[:4]
    assert grove.wake(*ids) == []
    assert grove.answer(*ids) == ids[:3]
    assert [grove.status(id) for id in ids] == ["cold", "cold", "cold", "idle"]


@pytest.mark.parametrize("warm", [0, 3])
def test_holder_process_limit_may_be_zero(warm: int) -> None:
    """With a limit of zero, no holder keeps its process."""
    grove = Grove(warm)
    for id in grove.ids:
        grove.wake(id)
        grove.answer(id)
        assert len(grove.tree.agents.warm) <= warm
    assert len(grove.tree.agents.warm) == warm


def test_query_to_a_warm_holder_evicts_no_other() -> None:
    """The queried holder already has a process."""
    grove = Grove(2)
    for id in grove.ids[:2]:
        grove.wake(id)
        grove.answer(id)
    assert grove.wake(grove.ids[0]) == []
