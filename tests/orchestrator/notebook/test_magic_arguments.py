"""Arguments of `%orch` lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orch.notebook.magic import MagicLine, parse, rewrite_questions
from orch.notebook.session import AgentSettings
from orch_protocol.core.errors import ConfigError


def test_prompt_is_taken_literally() -> None:
    """Quotes, dashes and apostrophes in a prompt have no special meaning."""
    assert parse('What\'s in "df" --really?') == MagicLine('What\'s in "df" --really?')


def test_options_precede_the_prompt() -> None:
    """Options that configure an agent create a new agent; `--approve` does not."""
    line = parse("--new --model=a:b --tools x,y --max-cost $2.5 --approve auto Plot --it")
    assert line == MagicLine("Plot --it", AgentSettings(model="a:b", tools=("x", "y"), max_cost=2.5), "auto")
    assert parse("--approve deny hi").settings is None
    assert parse("--close") == MagicLine(close=True)


def test_script_option_gives_scripted_responses(tmp_path: Path) -> None:
    """With `--script`, a script answers instead of a model."""
    (tmp_path / "s.json").write_text(json.dumps(["hi"]))
    choice = parse(f"--script {tmp_path}/s.json go").settings
    assert choice is not None
    assert choice.backend is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--nope", "no option --nope; it has --new, --close, --model"),
        ("--model", "--model needs a value"),
        ("--max-cost much x", "above 0, not 'much'"),
        ("--max-cost inf x", "above 0, not 'inf'"),
        ("--approve maybe x", "takes ask, auto, deny, not 'maybe'"),
        ("--script /nowhere/s.json x", "cannot be read: No such file"),
    ],
)
def test_invalid_option_value_is_an_error(text: str, expected: str) -> None:
    """The error names the unknown option, or the option and its valid values."""
    with pytest.raises(ConfigError, match=expected):
        parse(text)


def test_question_mark_is_sent_to_the_agent() -> None:
    """A question mark in a `%orch` line is part of the prompt; in other lines, it still shows IPython's help."""
    call = "get_ipython().run_line_magic('orch', \"What's this?\")\n"
    assert rewrite_questions(["x = 1\n", "%orch What's this?\n", "len?\n"]) == ["x = 1\n", call, "len?\n"]
    assert rewrite_questions(["%%writefile f\n", "%orch Why?\n"]) == ["%%writefile f\n", "%orch Why?\n"]
