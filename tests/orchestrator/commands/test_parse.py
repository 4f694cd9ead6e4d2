"""Parsing of lines that a user types: prompts and commands, arguments, and error messages."""

from __future__ import annotations

import pytest

from orch.commands.builtin_commands import BY_NAME
from orch.commands.parse import bind, find, read
from orch.commands.registry import flag, option, positional, remainder
from orch_protocol.core.errors import ConfigError
from orch_protocol.resources.slash_commands import Argument, usage

SPAWN = (remainder("task", required=True), option("model", "model"), option("tools", "tools"), flag("idle"))
LABEL = (positional("entry", "entry", required=True), remainder("label"))


@pytest.mark.parametrize(
    ("typed", "name", "text"),
    [
        ("/state", "state", ""),
        ("  /ask 2 what is it?  ", "ask", "2 what is it?"),
        ("/py x = 1\nprint(x)", "py", "x = 1\nprint(x)"),
        ("/py\nx = 1", "py", "x = 1"),
        ("/redactor:review now", "redactor:review", "now"),
        ("/?", "?", ""),
        ("!ls -l | wc", "sh", "ls -l | wc"),
        ("!! pwd", "sh", "--quiet pwd"),
    ],
)
def test_line_with_a_slash_is_a_command(typed: str, name: str, text: str) -> None:
    """The first word is the name and the rest is the text; `!` runs a shell command."""
    line = read(typed)
    assert (line.kind, line.name, line.text) == ("command", name, text)


@pytest.mark.parametrize(
    ("typed", "prompt"),
    [
        ("hello", "hello"),
        ("//state is a command", "/state is a command"),
        ("\\/state", "/state"),
        ("\\!important", "!important"),
        ("/usr/bin/env is what?", "/usr/bin/env is what?"),
        ("/ what", "/ what"),
        ("", ""),
    ],
)
def test_other_lines_are_prompts(typed: str, prompt: str) -> None:
    """Two slashes escape one slash, and a file path is not a command."""
    assert (read(typed).kind, read(typed).text) == ("prompt", prompt)


def test_arguments_are_parsed_by_position_and_name() -> None:
    """Options can be before, between and after the words of a text."""
    found = bind("spawn", SPAWN, "look  at \"it\" --model=anthropic:x don't --tools 'a, b' --idle stop")
    assert found == {"task": 'look  at "it" don\'t stop', "model": "anthropic:x", "tools": "a, b", "idle": "yes"}
    assert bind("label", LABEL, "'two words' a label") == {"entry": "two words", "label": "a label"}
    assert bind("label", LABEL, 'e1 "in \\"quotes\\""') == {"entry": "e1", "label": 'in "quotes"'}
    assert bind("spawn", SPAWN, "-- --model is a flag") == {"task": "--model is a flag"}
    assert bind("spawn", SPAWN, "what does --verbose do") == {"task": "what does --verbose do"}


@pytest.mark.parametrize(
    ("typed", "command", "quiet"),
    [
        ("!rm -- -rf", "rm -- -rf", False),
        ("!git checkout -- pumps.txt", "git checkout -- pumps.txt", False),
        ("!grep --quiet pump pumps.txt", "grep --quiet pump pumps.txt", False),
        ("!!git log -- pumps.txt", "git log -- pumps.txt", True),
        ('!"my program"', '"my program"', False),
        ("/sh --quiet ls --quiet", "ls --quiet", True),
        ("/sh -- --quiet", "--quiet", False),
        ("/py 'pump'", "'pump'", False),
        ("/py --x", "--x", False),
        ("/py --quiet\nx  =  1 # --quiet", "x  =  1 # --quiet", True),
    ],
)
def test_code_arguments_are_taken_literally(typed: str, command: str, quiet: bool) -> None:
    """Options of the command itself come before the code."""
    line = read(typed)
    found = bind(line.name, BY_NAME[line.name].row.arguments, line.text)
    assert found.pop("quiet", None) == ("yes" if quiet else None)
    assert list(found.values()) == [command]


@pytest.mark.parametrize(
    ("arguments", "text", "expected"),
    [
        (SPAWN, "", "/it: it needs TASK; usage: /it TASK... [--model MODEL] [--tools TOOLS] [--idle]"),
        (SPAWN, "do it --model", "/it: --model needs a value"),
        (SPAWN, "do it --idle --idle", "/it: --idle is given twice"),
        (LABEL, "'open", "/it: a quote is not closed: 'open"),
        ((positional("n", "number"),), "many", "/it: N is a number, not 'many'"),
        ((positional("what", "choice", "clear"),), "all", "/it: WHAT is clear, not 'all'"),
        ((), "now", "/it: unexpected argument 'now'; usage: /it"),
    ],
)
def test_parse_error_shows_the_usage(arguments: tuple[Argument, ...], text: str, expected: str) -> None:
    """The error names the command, and the argument that is missing or invalid."""
    with pytest.raises(ConfigError) as raised:
        bind("it", arguments, text)
    assert str(raised.value).startswith(expected)


def test_megabyte_command_line_is_refused() -> None:
    """A file that was pasted by mistake is not executed as a command."""
    with pytest.raises(ConfigError, match="too long for a command"):
        bind("py", (remainder("code"),), "x" * ((1 << 20) + 1))


def test_unknown_command_suggests_similar_names() -> None:
    """Upper case is accepted in the name of a command."""
    known = {"state": 1, "status": 1, "spawn": 1, "quit": 1}
    assert find("Quit", known) == "quit"
    with pytest.raises(ConfigError, match="unknown command /stats; did you mean /status or /state"):
        find("stats", known)
    with pytest.raises(ConfigError, match=r"did you mean /spawn\?"):
        find("sp", known)
    with pytest.raises(ConfigError, match="/help lists"):
        find("zzz", known)


def test_usage_is_generated_from_the_arguments() -> None:
    """Optional arguments are in brackets, and a text of several words has an ellipsis."""
    assert usage("spawn", SPAWN) == "/spawn TASK... [--model MODEL] [--tools TOOLS] [--idle]"
    assert usage("tasks", (positional("what", "choice", "clear"),)) == "/tasks [clear]"
