"""What rules and models' words about a prompt, and about what a turn came to, come to. Nothing is run."""

from __future__ import annotations

import msgspec
import pytest

from orch_protocol.core.phases import Assess, AssessRule, ReflectRule
from orch_worker.agent import assess, reflect
from orch_worker.agent.assess import Assessment
from orch_worker.agent.reflect import CallSummary, Reflection, TurnOutcome

ALL = ("read_file", "write_file", "bash", "fetch_url", "task_create", "mine")


class TestAssessing:
    """Before a turn."""

    def test_the_first_rule_that_fits_says_what_is_done(self) -> None:
        """A rule fits by its pattern and by how long the prompt is; when none fits nothing is done."""
        rules = (
            AssessRule("(?i)delete", note="Careful.", plan=True),
            AssessRule(words=5, preset="minimal", model="openai:gpt-4o"),
        )
        assert assess.by_rules(rules, "Delete it") == Assessment("Careful.", plan=True)
        assert assess.by_rules(rules, "one two three four five") == Assessment(preset="minimal", model="openai:gpt-4o")
        assert assess.by_rules(rules, "Count it") is None

    @pytest.mark.parametrize(
        ("assessment", "kept"),
        [
            (Assessment(), ALL),
            (Assessment(preset="minimal"), ("read_file", "task_create", "mine")),
            (Assessment(plan=True), ("read_file", "fetch_url", "task_create")),
            (Assessment(plan=True, preset="minimal"), ("read_file", "task_create")),
        ],
    )
    def test_which_tools_are_left(self, assessment: Assessment, kept: tuple[str, ...]) -> None:
        """A preset says so of tools that are in presets; who is to plan may only look, whoever made the tool."""
        assert assess.kept_tools(assessment, ALL) == kept

    def test_what_a_model_may_choose(self) -> None:
        """Of what a model says nothing counts that it was not offered, or that is no object; prose around it does."""
        settings = Assess("model", models=("openai:gpt-4o",))
        said = 'Sure: {"note": " Mind the pump. ", "plan": true, "model": "openai:gpt-4o"} That is all.'
        assert assess.of_words(settings, said) == Assessment("Mind the pump.", plan=True, model="openai:gpt-4o")
        for wrong in ("no object", '{"plan": "perhaps"}', '{"model": "openai:other"}', '{"preset": "all"}', "{" * 5000):
            with pytest.raises(ValueError, match=r"answer|preset|model"):
                assess.of_words(settings, wrong)

    def test_a_rule_that_is_no_pattern_is_refused(self) -> None:
        """Where it is read, with its field and what is wrong."""
        with pytest.raises(msgspec.ValidationError, match="match = '\\(' is not a valid regular expression"):
            msgspec.convert({"match": "("}, AssessRule)


class TestReflecting:
    """At its end."""

    def test_without_rules_a_last_call_that_failed_is_what_counts(self) -> None:
        """Not what the reply claims: one that failed before, and was put right, does not."""
        failed, well = CallSummary("bash", "exit code 1", is_error=True), CallSummary("bash", "ok")
        again = reflect.by_rules((), TurnOutcome("q", "All done!", "end_turn", (well, failed)))
        assert again is not None
        assert again.again
        assert "bash, failed: exit code 1" in again.note
        assert reflect.by_rules((), TurnOutcome("q", "It failed!", "end_turn", (failed, well))) is None
        assert reflect.by_rules((), TurnOutcome("q", "Hello", "end_turn")) is None

    def test_a_rule_fits_by_reply_files_and_failures_together(self) -> None:
        """All that it names must be so."""
        rules = (ReflectRule("(?i)should work", "*.py", 1, "Run it.", again=True), ReflectRule(changed="*.sql"))
        failed = (CallSummary("bash", "no", is_error=True),)
        turned = TurnOutcome("q", "It should work now", "end_turn", failed, ("a.py",))
        assert reflect.by_rules(rules, turned) == Reflection("Run it.", again=True)
        for other in (
            TurnOutcome("q", "It works", "end_turn", failed, ("a.py",)),
            TurnOutcome("q", "should work", "end_turn"),
        ):
            assert reflect.by_rules(rules, other) is None
        found = reflect.by_rules(rules, TurnOutcome("q", "x", "end_turn", (), ("b.sql",)))
        assert found == Reflection("Check it once more.")

    @pytest.mark.parametrize(
        ("said", "comes_to"),
        [
            ('{"verdict": "done", "note": "well done"}', Reflection()),
            ('{"verdict": "again", "note": "No test ran."}', Reflection("No test ran.", again=True)),
            ('```json\n{"verdict": "note", "note": "untested"}\n```', Reflection("untested")),
        ],
    )
    def test_what_a_model_says(self, said: str, comes_to: Reflection) -> None:
        """Praise is dropped, a note is kept."""
        assert reflect.of_words(said) == comes_to

    @pytest.mark.parametrize("said", ["", '{"verdict": "fine"}', '{"verdict": "again"}', '{"confidence": 0.9}'])
    def test_what_is_no_answer_counts_for_nothing(self, said: str) -> None:
        """There is no verdict that stands in for one that was not given."""
        with pytest.raises(ValueError, match=r"answer|verdict"):
            reflect.of_words(said)

    def test_a_long_turn_is_asked_about_within_bounds(self) -> None:
        """Question, calls and reply are clipped in the middle, and what changed is named."""
        calls = tuple(CallSummary("bash", reflect.line_of("x" * 900)) for _ in range(300))
        asked = reflect.question(TurnOutcome("q" * 90_000, "r" * 90_000, "end_turn", calls, ("a.py",)), 4000)
        assert len(asked) < 4000 * 4
        assert "Files that it changed: a.py" in asked
        assert "characters ..." in asked
