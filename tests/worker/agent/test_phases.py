"""Results of assessment and reflection: rules, and answers of models. No turn is run."""

from __future__ import annotations

import msgspec
import pytest

from orch_protocol.core.phases import Assess, AssessRule, ReflectRule
from orch_worker.agent import assess, reflect
from orch_worker.agent.assess import Assessment
from orch_worker.agent.reflect import CallSummary, Reflection, TurnOutcome

ALL = ("read_file", "write_file", "bash", "fetch_url", "task_create", "mine")


class TestAssessing:
    """Assessments before a turn."""

    def test_first_matching_assess_rule_applies(self) -> None:
        """A rule matches by pattern and prompt length. Without a match there is no assessment."""
        rules = (
            AssessRule("(?i)delete", note="Careful.", plan=True),
            AssessRule(words=5, preset="minimal", model="openai:gpt-4o"),
        )
        assert assess.apply_rules(rules, "Delete it") == Assessment("Careful.", plan=True)
        assert assess.apply_rules(rules, "one two three four five") == Assessment(
            preset="minimal", model="openai:gpt-4o"
        )
        assert assess.apply_rules(rules, "Count it") is None

    @pytest.mark.parametrize(
        ("assessment", "kept"),
        [
            (Assessment(), ALL),
            (Assessment(preset="minimal"), ("read_file", "task_create", "mine")),
            (Assessment(plan=True), ("read_file", "fetch_url", "task_create")),
            (Assessment(plan=True, preset="minimal"), ("read_file", "task_create")),
        ],
    )
    def test_assessment_restricts_tools_by_preset_and_plan_mode(
        self, assessment: Assessment, kept: tuple[str, ...]
    ) -> None:
        """A preset removes only built-in tools. Plan mode keeps only read-only tools and removes those of users."""
        assert assess.allowed_tools(assessment, ALL) == kept

    def test_model_assessment_accepts_only_offered_options(self) -> None:
        """An option that was not offered and an answer without a JSON object raise ValueError. Other text is
        allowed."""
        settings = Assess("model", models=("openai:gpt-4o",))
        said = 'Sure: {"note": " Mind the pump. ", "plan": true, "model": "openai:gpt-4o"} That is all.'
        assert assess.parse_result(settings, said) == Assessment("Mind the pump.", plan=True, model="openai:gpt-4o")
        for wrong in ("no object", '{"plan": "perhaps"}', '{"model": "openai:other"}', '{"preset": "all"}', "{" * 5000):
            with pytest.raises(ValueError, match=r"answer|preset|model"):
                assess.parse_result(settings, wrong)

    def test_assess_rule_with_an_invalid_pattern_is_refused(self) -> None:
        """The error contains the field and the reason."""
        with pytest.raises(msgspec.ValidationError, match="match = '\\(' is not a valid regular expression"):
            msgspec.convert({"match": "("}, AssessRule)


class TestReflecting:
    """Reflections at the end of a turn."""

    def test_reflection_without_rules_checks_the_last_call(self) -> None:
        """The text of the reply has no effect. A failure before a successful last call does not count."""
        failed, well = CallSummary("bash", "exit code 1", is_error=True), CallSummary("bash", "ok")
        again = reflect.apply_rules((), TurnOutcome("q", "All done!", "end_turn", (well, failed)))
        assert again is not None
        assert again.again
        assert "bash, failed: exit code 1" in again.note
        assert reflect.apply_rules((), TurnOutcome("q", "It failed!", "end_turn", (failed, well))) is None
        assert reflect.apply_rules((), TurnOutcome("q", "Hello", "end_turn")) is None

    def test_reflect_rule_matches_only_when_all_its_conditions_hold(self) -> None:
        """Reply, files and failures must all match."""
        rules = (ReflectRule("(?i)should work", "*.py", 1, "Run it.", again=True), ReflectRule(changed="*.sql"))
        failed = (CallSummary("bash", "no", is_error=True),)
        turned = TurnOutcome("q", "It should work now", "end_turn", failed, ("a.py",))
        assert reflect.apply_rules(rules, turned) == Reflection("Run it.", again=True)
        for other in (
            TurnOutcome("q", "It works", "end_turn", failed, ("a.py",)),
            TurnOutcome("q", "should work", "end_turn"),
        ):
            assert reflect.apply_rules(rules, other) is None
        found = reflect.apply_rules(rules, TurnOutcome("q", "x", "end_turn", (), ("b.sql",)))
        assert found == Reflection("Check it once more.")

    @pytest.mark.parametrize(
        ("said", "comes_to"),
        [
            ('{"verdict": "done", "note": "well done"}', Reflection()),
            ('{"verdict": "again", "note": "No test ran."}', Reflection("No test ran.", again=True)),
            ('```json\n{"verdict": "note", "note": "untested"}\n```', Reflection("untested")),
        ],
    )
    def test_model_verdict_drops_praise_and_keeps_notes(self, said: str, comes_to: Reflection) -> None:
        """The note of the verdict `done` is dropped."""
        assert reflect.parse_result(said) == comes_to

    @pytest.mark.parametrize("said", ["", '{"verdict": "fine"}', '{"verdict": "again"}', '{"confidence": 0.9}'])
    def test_invalid_model_verdict_is_refused(self, said: str) -> None:
        """No default verdict replaces an invalid one."""
        with pytest.raises(ValueError, match=r"answer|verdict"):
            reflect.parse_result(said)

    def test_reflection_prompt_of_a_long_turn_is_bounded(self) -> None:
        """Question, calls and reply are truncated in the middle. Changed files are listed."""
        calls = tuple(CallSummary("bash", reflect.line_of("x" * 900)) for _ in range(300))
        asked = reflect.request_text(TurnOutcome("q" * 90_000, "r" * 90_000, "end_turn", calls, ("a.py",)), 4000)
        assert len(asked) < 4000 * 4
        assert "Files that it changed: a.py" in asked
        assert "characters ..." in asked
