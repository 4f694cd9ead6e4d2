"""What an agent is told before its first query."""

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
    """Nothing that tells one agent from its sibling is in the system text, least of all the task."""
    sibling = replace(SPEC, id="b2", seq=2, name="other", task="Count the yaks", folder="/elsewhere")
    assert system_prompt(SPEC, TOOLS) == system_prompt(sibling, TOOLS)
    assert "zebras" not in system_prompt(SPEC, TOOLS)


def test_tools_are_named() -> None:
    """The system text names the tools that can be used, or says that there are none."""
    assert "read_file, area." in system_prompt(SPEC, [*TOOLS, "area"])
    assert "You have no tools" in system_prompt(SPEC, [])


def test_nesting_is_mentioned_when_granted() -> None:
    """Agents that may have agents are told how; the others are not."""
    assert "subagents for parts" in system_prompt(SPEC, ["spawn_subagent"])
    assert "subagents for parts" not in system_prompt(SPEC, TOOLS)


def test_blocked_agents_report() -> None:
    """Every agent is told to report that it is blocked rather than to try again."""
    assert "report that you are blocked" in system_prompt(SPEC, TOOLS)


def test_whom_a_person_talks_to_is_told_so() -> None:
    """It is no subagent, and what is said to it while it works is no surprise."""
    told = system_prompt(replace(SPEC, depth=0), TOOLS)
    assert told.startswith("You are an agent that a person talks to.")
    assert "subagent" not in told


def test_an_identity_of_the_users() -> None:
    """What the user says of who an agent is takes the place of ours; what its tools are is said all the same."""
    told = system_prompt(replace(SPEC, prompt=PromptSpec("Be a pirate.")), TOOLS)
    assert told.startswith("Be a pirate.\n\nYour tools")
    assert "subagent" not in told


def test_first_prompt_carries_the_task() -> None:
    """The task goes before the first query, and both can be told apart again."""
    prompt = first_prompt(SPEC, "How many?\n\nQuery: none")
    assert prompt.startswith("Task: Count the zebras\n\n")
    assert split_first_prompt(prompt) == ("Count the zebras", "How many?\n\nQuery: none")


def test_other_prompts_have_no_task() -> None:
    """A later prompt is all query."""
    assert split_first_prompt("Query: x") == ("", "Query: x")
    assert split_first_prompt("a\n\nQuery: b") == ("", "a\n\nQuery: b")


def test_a_prompt_to_go_on_asks_what_was_asked() -> None:
    """Neither the task before it, nor what was said in brackets before; and not all of what is very long."""
    asked = first_prompt(SPEC, "[The turn before was cut short.]\n\nHow many?")
    told = continued_prompt(asked, 25, 1, 2)
    assert "limit of 25 responses" in told
    assert "1 of 2" in told
    assert told.endswith("\n\nHow many?")
    assert question_in(told) == "How many?"
    assert question_in(asked) == "How many?"
    assert continued_prompt(told, 25, 2, 2).endswith("]\n\nHow many?")
    assert len(continued_prompt("many " * 10_000, 25, 1, 2)) < 2_500


def test_brackets_that_are_a_question_stay() -> None:
    """Only what stands before an empty line is of the framework."""
    assert question_in("[a] or [b]?") == "[a] or [b]?"
