"""The block that names subagents and archived turns at the end of a request."""

from __future__ import annotations

from orch_worker.conversation.live_subagents import LiveSubagent, archives_block, live_block

HELD = [LiveSubagent(f"a{number}", f"Archive: ask {number}") for number in range(6)]


def test_block_says_how_to_ask_a_holder_and_when_not_to() -> None:
    """The block has the instructions of the original, and names free tools first. Other holders are counted."""
    text = live_block(HELD, 4, may_spawn=True)
    head, instructions, lines = text.split("\n\n")
    assert head == "# Live Subagents"
    assert instructions.startswith("These subagents hold archived prior turns of this conversation. search_archive ")
    assert "query_subagent(id, prompt) asks one." in instructions
    assert "spawn_subagent(task) starts a new one to fan out." in instructions
    assert instructions.endswith("Do not query unless you actually need the detail.")
    assert lines.splitlines()[0] == "- id: a2 | task: Archive: ask 2"
    assert lines.endswith("and 2 more: search_archive finds the rest")


def test_block_names_only_what_the_agent_has() -> None:
    """An agent that cannot spawn is not told to. The folder of texts is named if the agent can read it."""
    assert "spawn_subagent" not in live_block(HELD, 4)
    assert " in /s/archives (index.txt, turn-NNN.txt). " in live_block(HELD, 4, texts="/s/archives")
    assert "archives" not in live_block(HELD, 4)
    assert live_block([], 4) == ""
    assert "These subagents hold" not in live_block([], 4, [LiveSubagent("b", "look")])


def test_loop_without_subagents_has_a_list_of_archived_turns() -> None:
    """The list names no subagents and no tools for them."""
    text = archives_block(HELD, 4)
    assert text.startswith("# Archived turns\n\n")
    assert "subagent" not in text.lower()
    assert text.endswith("and 2 more: search_archive finds the rest")
    assert archives_block([], 4) == ""
