"""Agents that are idle for long are packed, which saves memory. Every lookup still finds them."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from orch.tree.agents import agent_table
from orch.tree.agents.agent_refs import resolve
from orch.tree.interface.events import ChangeTitle, CollectReply, KillRequested, ResumeRequested
from orch.tree.journal.entries import AgentSpawned, TitleChanged
from orchestrator.tree_double import Forest


@pytest.fixture
def forest(monkeypatch: pytest.MonkeyPatch) -> Forest:
    """A tree that keeps two idle agents unpacked and packs further ones in pairs."""
    monkeypatch.setattr(agent_table, "MAX_UNPACKED_IDLE", 2)
    monkeypatch.setattr(agent_table, "PACK_SIZE", 2)
    return Forest(max_concurrent=99)


def ended(forest: Forest, name: str = "") -> str:
    """Spawn an agent that answers and is killed. Return its id."""
    id = forest.spawn(name=name)
    forest.ask(id, f"q-{id}")
    forest.finish(id, f"q-{id}")
    forest.handle(KillRequested((id,), "the user", {}))
    forest.gone(id)
    return id


def awake(forest: Forest) -> set[str]:
    return {node.spec.id for node in forest.tree.agents.by_id.unpacked()}


def test_long_idle_agents_are_packed(forest: Forest) -> None:
    """The most recently idle agents and live agents stay unpacked."""
    lives = forest.spawn()
    gone = [ended(forest) for _ in range(9)]
    assert awake(forest) == {lives, *gone[-3:]}


def test_packed_agent_is_found_with_all_its_fields(forest: Forest) -> None:
    """Lookups by number, id, prefix and name find it, and its fields are unchanged."""
    ids = [ended(forest, name) for name in ("", "reader", "", "", "", "", "")]
    nodes = forest.tree.agents
    assert [node.spec.id for node in nodes] == list(nodes.by_id) == ids
    for ref in ("2", ids[1], ids[1][:4], "reader"):
        assert resolve(nodes, ref).spec.id == ids[1]
    assert resolve(nodes, "agent-1").spec.id == ids[0]
    first = nodes[ids[0]]
    assert (first.last.reply.text, first.usage.cost_usd, first.status) == ("done", 0.5, "killed")  # type: ignore[union-attr]
    assert nodes.usage.cost_usd == 0.5 * len(ids)
    assert forest.handle(CollectReply(ids[0], "the user")).reply.text == "done"
    assert forest.refold().agents.by_id == nodes.by_id


def test_held_agent_record_reflects_later_changes(forest: Forest) -> None:
    """The record stays the same object when it is unpacked and packed again."""
    ids = [ended(forest) for _ in range(7)]
    held = resolve(forest.tree.agents, ids[0])
    assert held.spec.id not in awake(forest)
    forest.handle(ChangeTitle(ids[0], "The first"))
    assert (held.title, forest.tree.agents[ids[0]] is held) == ("The first", True)
    for _ in range(5):
        ended(forest)
    assert ids[0] not in awake(forest)
    forest.handle(ResumeRequested(ids[0]))
    assert held.status == "cold"
    assert ids[0] in awake(forest)


def test_record_held_while_it_is_packed_stays_the_same_object(forest: Forest) -> None:
    """A caller that has looked up the agent before it was packed sees later changes."""
    held = resolve(forest.tree.agents, ended(forest))
    assert held.spec.id in awake(forest)
    for _ in range(6):
        ended(forest)
    assert held.spec.id not in awake(forest)
    assert forest.tree.agents[held.spec.id] is held
    forest.handle(ResumeRequested(held.spec.id))
    assert held.status == "cold"


def test_change_of_many_agents_finds_packed_ones(forest: Forest) -> None:
    """While an entry changes many agents, the table may pack some of them. All changes are kept."""
    ids = [ended(forest) for _ in range(9)]
    nodes = forest.tree.agents.by_id
    for _ in range(4):
        taken = [nodes.take(id) for id in ids]
        for number, node in enumerate(taken):
            assert node is not None
            node.title = f"the {number}th"
            nodes.put(node)
        del taken, node
    assert [node.title for node in nodes.values()] == [f"the {number}th" for number in range(9)]
    assert awake(forest) <= set(ids[-3:])


def test_unserializable_record_stays_unpacked(forest: Forest) -> None:
    """Other agents are packed."""
    ids = [ended(forest) for _ in range(3)]
    forest.tree.apply([TitleChanged(at=9.0, id=ids[1], title="\ud800")])
    ids += [ended(forest) for _ in range(7)]
    assert awake(forest) - set(ids[-3:]) == {ids[1]}
    assert [node.spec.id for node in forest.tree.agents] == ids


def test_agent_with_active_descendants_is_not_packed(forest: Forest) -> None:
    """The owner of a holder with a running query stays unpacked."""
    owner = ended(forest)
    holder = forest.spec(parent_id=owner, kind="holder", seq=2)
    forest.write([AgentSpawned(at=1.0, id=holder.id, spec=holder)])
    forest.ask(holder.id, "q")
    for _ in range(9):
        ended(forest)
    assert owner in awake(forest)
    assert forest.tree.agents[owner].worked.turns == 1


def test_name_refers_to_the_latest_agent(forest: Forest) -> None:
    """A live agent precedes killed ones, and among killed agents the latest has the name."""
    first, second = ended(forest, "x"), ended(forest, "x")
    ended(forest, "y")
    assert resolve(forest.tree.agents, "x").spec.id == second
    forest.handle(ResumeRequested(first))
    assert resolve(forest.tree.agents, "x").spec.id == first


def test_packed_agent_uses_under_half_a_kilobyte() -> None:
    """Most of this memory is the agent's name in the indexes."""
    forest = Forest(max_concurrent=9)
    tracemalloc.start()
    try:
        for _ in range(agent_table.MAX_UNPACKED_IDLE + agent_table.PACK_SIZE):
            ended(forest)
        forest.journal.clear()
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(16 * agent_table.PACK_SIZE):
            ended(forest)
        forest.journal.clear()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / 1024 < 512
