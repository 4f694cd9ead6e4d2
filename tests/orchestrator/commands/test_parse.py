"""How a line that a person types is read: prompt or command, its arguments, and what is said of a slip."""

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
def test_a_line_with_a_slash_is_a_command(typed: str, name: str, text: str) -> None:
    """Its name is the first word, and the remainder, lines and all, what it is given; `!` is for the shell."""
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
def test_everything_else_is_a_prompt(typed: str, prompt: str) -> None:
    """Two slashes stand for one; the path of a file is no command."""
    assert (read(typed).kind, read(typed).text) == ("prompt", prompt)


def test_arguments_are_found_by_place_and_by_name() -> None:
    """Options may stand before, behind and between the words of a text, which else stays as it was written."""
    said = bind("spawn", SPAWN, "look  at \"it\" --model=anthropic:x don't --tools 'a, b' --idle stop")
    assert said == {"task": 'look  at "it" don\'t stop', "model": "anthropic:x", "tools": "a, b", "idle": "yes"}
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
def test_code_is_taken_to_the_letter(typed: str, command: str, quiet: bool) -> None:
    """Its quotes, options and dashes are its own: `rm -- -rf` names a file, `rm -rf` does not. Ours stand before it."""
    line = read(typed)
    said = bind(line.name, BY_NAME[line.name].row.arguments, line.text)
    assert said.pop("quiet", None) == ("yes" if quiet else None)
    assert list(said.values()) == [command]


@pytest.mark.parametrize(
    ("arguments", "text", "told"),
    [
        (SPAWN, "", "/it: it needs TASK; it is written /it TASK... [--model MODEL] [--tools TOOLS] [--idle]"),
        (SPAWN, "do it --model", "/it: --model needs a value"),
        (SPAWN, "do it --idle --idle", "/it: --idle is given twice"),
        (LABEL, "'open", "/it: a quote is not closed: 'open"),
        ((positional("n", "number"),), "many", "/it: N is a number, not 'many'"),
        ((positional("what", "choice", "clear"),), "all", "/it: WHAT is clear, not 'all'"),
        ((), "now", "/it: it takes no 'now'; it is written /it"),
    ],
)
def test_a_slip_is_told_with_how_it_is_written(arguments: tuple[Argument, ...], text: str, told: str) -> None:
    """Whoever wrote it otherwise need not look it up."""
    with pytest.raises(ConfigError) as raised:
        bind("it", arguments, text)
    assert str(raised.value).startswith(told)


def test_a_line_of_a_megabyte_is_refused() -> None:
    """A file that was pasted by mistake is no command."""
    with pytest.raises(ConfigError, match="too long for a command"):
        bind("py", (remainder("code"),), "x" * ((1 << 20) + 1))


def test_an_unknown_name_is_told_with_those_that_are_near() -> None:
    """Upper case is none of its own."""
    known = {"state": 1, "status": 1, "spawn": 1, "quit": 1}
    assert find("Quit", known) == "quit"
    with pytest.raises(ConfigError, match="there is no command /stats; did you mean /status or /state"):
        find("stats", known)
    with pytest.raises(ConfigError, match=r"did you mean /spawn\?"):
        find("sp", known)
    with pytest.raises(ConfigError, match="/help lists"):
        find("zzz", known)


def test_usage_is_made_of_the_arguments() -> None:
    """What is not required stands in brackets."""
    assert usage("spawn", SPAWN) == "/spawn TASK... [--model MODEL] [--tools TOOLS] [--idle]"
    assert usage("tasks", (positional("what", "choice", "clear"),)) == "/tasks [clear]"
