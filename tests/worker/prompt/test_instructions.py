"""The system text and the first prompt of an agent."""

from __future__ import annotations

from msgspec.structs import replace

from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.prompts import PromptSpec
from orch_worker.conversation.framing import question_in, split_first_prompt
from orch_worker.conversation.prompt_parts import render_parts
from orch_worker.prompt.instructions import continued_prompt, first_prompt, stable_parts

TOOLS = ["read_file"]
SPEC = AgentSpec("a1", 1, "scout", "Count the zebras", BackendSpec("scripted"), "/folder", "/cwd")


def system_prompt(spec: AgentSpec, names: list[str]) -> str:
    """Return the system text of an agent."""
    return render_parts(stable_parts(spec, names))


def test_siblings_share_the_system_text() -> None:
    """The system text contains nothing specific to one agent, in particular not its task."""
    sibling = replace(SPEC, id="b2", seq=2, name="other", task="Count the yaks", folder="/elsewhere")
    assert system_prompt(SPEC, TOOLS) == system_prompt(sibling, TOOLS)
    assert "zebras" not in system_prompt(SPEC, TOOLS)


def test_system_text_lists_available_tools() -> None:
    """Without tools, the text says so."""
    assert "read_file, area." in system_prompt(SPEC, [*TOOLS, "area"])
    assert "You have no tools" in system_prompt(SPEC, [])


def test_system_text_explains_subagents_only_when_granted() -> None:
    """Agents without tools that spawn do not read about subagents."""
    assert "subagents for independent parts" in system_prompt(SPEC, ["spawn_subagent"])
    assert "subagents for independent parts" not in system_prompt(SPEC, TOOLS)


def test_agents_are_instructed_to_report_when_blocked() -> None:
    """The system text asks a blocked agent to report instead of retrying."""
    assert "report that you are blocked" in system_prompt(SPEC, TOOLS)


def test_interactive_agent_knows_that_it_talks_to_a_person() -> None:
    """The system text does not call it a subagent."""
    text = system_prompt(replace(SPEC, depth=0), TOOLS)
    assert text.startswith("You are an agent in a conversation with a person.")
    assert "subagent" not in text


def test_custom_identity_replaces_the_default() -> None:
    """The tools are still listed."""
    text = system_prompt(replace(SPEC, prompt=PromptSpec("Be a pirate.")), TOOLS)
    assert text.startswith("Be a pirate.\n\nYour tools")
    assert "subagent" not in text


def test_first_prompt_carries_the_task() -> None:
    """The task precedes the first query, and both can be separated again."""
    prompt = first_prompt(SPEC, "How many?\n\nQuery: none")
    assert prompt.startswith("Task: Count the zebras\n\n")
    assert split_first_prompt(prompt) == ("Count the zebras", "How many?\n\nQuery: none")


def test_other_prompts_have_no_task() -> None:
    """The complete text of a later prompt is the query."""
    assert split_first_prompt("Query: x") == ("", "Query: x")
    assert split_first_prompt("a\n\nQuery: b") == ("", "a\n\nQuery: b")


def test_continuation_prompt_repeats_the_question() -> None:
    """The question has no task and no notices, and a long question is truncated."""
    asked = first_prompt(SPEC, "[The turn before was cut short.]\n\nHow many?")
    text = continued_prompt(asked, 25, 1, 2)
    assert "limit of 25 responses" in text
    assert "1 of 2" in text
    assert text.endswith("\n\nHow many?")
    assert question_in(text) == "How many?"
    assert question_in(asked) == "How many?"
    assert continued_prompt(text, 25, 2, 2).endswith("]\n\nHow many?")
    assert len(continued_prompt("many " * 10_000, 25, 1, 2)) < 2_500


def test_brackets_inside_a_question_stay() -> None:
    """Only a notice followed by an empty line is removed."""
    assert question_in("[a] or [b]?") == "[a] or [b]?"
