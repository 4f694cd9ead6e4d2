"""What is said behind `%orch`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orch.notebook.magic import MagicLine, parse, rewrite_questions
from orch.notebook.session import Choice
from orch_protocol.core.errors import ConfigError


def test_a_prompt_is_taken_as_it_was_typed() -> None:
    """Quotes, dashes and apostrophes in it mean nothing."""
    assert parse('What\'s in "df" --really?') == MagicLine('What\'s in "df" --really?')


def test_options_come_first() -> None:
    """With a blank or an equals sign; any of them that says what the agent is to be makes a new one."""
    line = parse("--new --model=a:b --tools x,y --max-cost $2.5 --approve auto Plot --it")
    assert line == MagicLine("Plot --it", Choice(model="a:b", tools=("x", "y"), max_cost=2.5), "auto")
    assert parse("--approve deny hi").choice is None
    assert parse("--close") == MagicLine(close=True)


def test_a_script_is_read(tmp_path: Path) -> None:
    """Responses for a try without a model."""
    (tmp_path / "s.json").write_text(json.dumps(["hi"]))
    choice = parse(f"--script {tmp_path}/s.json go").choice
    assert choice is not None
    assert choice.backend is not None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("--nope", "no option --nope; it has --new, --close, --model"),
        ("--model", "--model needs a value"),
        ("--max-cost much x", "above 0, not 'much'"),
        ("--max-cost inf x", "above 0, not 'inf'"),
        ("--approve maybe x", "takes ask, auto, deny, not 'maybe'"),
        ("--script /nowhere/s.json x", "cannot be read: No such file"),
    ],
)
def test_what_does_not_fit_is_told(text: str, told: str) -> None:
    """Which option, and what it takes."""
    with pytest.raises(ConfigError, match=told):
        parse(text)


def test_a_question_mark_asks_the_agent_and_not_for_help() -> None:
    """In lines that are for `%orch`; what a cell is for another magic stays as it is."""
    call = "get_ipython().run_line_magic('orch', \"What's this?\")\n"
    assert rewrite_questions(["x = 1\n", "%orch What's this?\n", "len?\n"]) == ["x = 1\n", call, "len?\n"]
    assert rewrite_questions(["%%writefile f\n", "%orch Why?\n"]) == ["%%writefile f\n", "%orch Why?\n"]
