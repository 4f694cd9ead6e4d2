"""What the command line says when something is wrong with what it is given, or where it runs."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

from orch.cli import run
from orch.client.failure import CommandError
from orchestrator.daemon_double import Desk, opened


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    """A fake daemon, an empty home and a clean environment."""
    return opened(monkeypatch, tmp_path)


Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5])
def test_an_error_goes_to_stderr_with_its_exit_code(desk: Desk, capsys: Captured, code: int) -> None:
    """A sentence for people, an object with --json; stdout stays empty, terminals stay safe."""
    desk.answers["query"] = CommandError("AgentBusyError", "busy with \x1b[31mred", code)
    assert run(["query", "n", "p"]) == code
    assert capsys.readouterr() == ("", "orch: busy with \\x1b[31mred\n")
    assert run(["query", "n", "p", "--json"]) == code
    out, err = capsys.readouterr()
    assert (out, json.loads(err)["error"]["type"]) == ("", "AgentBusyError")


@pytest.mark.parametrize("argv", [["query", "n", "p"], ["collect", "n"]])
def test_ctrl_c_ends_the_waiting_and_says_how_to_go_on(desk: Desk, capsys: Captured, argv: list[str]) -> None:
    """The connection is closed, the agent is left alone, the exit code is 130."""
    desk.answers["query"] = desk.answers["collect"] = KeyboardInterrupt()
    assert run(argv) == 130
    assert desk.closed
    assert "agent n works on. Its answer: orch collect n" in capsys.readouterr().err


def test_ctrl_c_elsewhere_is_130_too(desk: Desk, capsys: Captured) -> None:
    """No traceback at any point."""
    desk.answers["list"] = KeyboardInterrupt()
    assert run(["list"]) == 130
    assert capsys.readouterr().err == "orch: interrupted\n"


def test_a_reader_that_hangs_up_is_no_crash(desk: Desk) -> None:
    """`orch list | head` ends quietly."""
    desk.answers["list"] = BrokenPipeError()
    assert run(["list"]) == 1


def test_a_defect_shows_where_it_is(desk: Desk) -> None:
    """What is not one of our errors is not dressed up as one."""
    desk.answers["list"] = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        run(["list"])


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["qeury", "1"], "there is no command 'qeury'; did you mean 'query'?"),
        (["zzz"], "there is no command 'zzz'; see: orch --help"),
        (["query", "1"], "the following arguments are required: PROMPT; see: orch query --help"),
        (["list", "--tre"], "unrecognized arguments: --tre"),
        (["query", "1", "p", "--timeout", "soon"], "'soon' is no number of seconds"),
        (["collect", "1", "--timeout", "-1"], "'-1' is no number of seconds"),
        (["session", "export", "1", "--output", ""], "argument --output: '' names no file"),
        (["archive", "export", "--output", "a", "--output", "b"], "--output is given twice"),
        (["archive", "prune", "--older-than", "9w", "--older-than", "1d"], "--older-than is given twice"),
        (["session", "prune", "--older-than", "9w", "--keep", "3", "--keep", "1"], "--keep is given twice"),
        (["session", "fsck", "1", "--output", "x"], "--output goes with --repair and a file"),
        (["spawn", "-", "--query", "-"], "- is given twice: standard input can be read once"),
        (["run", "-", "-"], "- is given twice"),
        (["query", "1", "p", "--no-wait", "--timeout", "3"], "--no-wait and --timeout contradict each other"),
        (["collect", "1", "--no-wait", "--timeout", "3"], "--no-wait and --timeout contradict each other"),
        (["events", "--since", "-1"], "argument --since: '-1' is no number from 0"),
        (["show", "1", "--messages", "-1"], "argument --messages: '-1' is no number"),
        (["workspace", "prune", "1", "--turns", "0"], "argument --turns: '0' is no number from 1"),
        (["prompts", "--var", "a=b"], "--var is for a template: name it"),
        (["daemon", "dance"], "invalid choice: 'dance'"),
        (["config", "show", "/nowhere/at/all"], "/nowhere/at/all is no folder"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(desk: Desk, capsys: Captured, argv: list[str], complaint: str) -> None:
    """Exit code 2, what is wrong on stderr, and nothing is asked."""
    assert run(argv) == 2
    out, err = capsys.readouterr()
    assert (out, desk.asked) == ("", [])
    assert err.startswith("orch: ")
    assert complaint in err


def test_usage_errors_are_data_with_json(desk: Desk, capsys: Captured) -> None:
    """An unknown command and a wrong argument are told like every other error."""
    for argv in (["frob", "--json"], ["query", "1", "--json"]):
        assert run(argv) == 2
        out, err = capsys.readouterr()
        assert (out, json.loads(err)["error"]["type"], desk.asked) == ("", "UsageError", [])


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["query", "1", "-why"], "a text that begins with a dash goes last, behind --: orch query ... -- PROMPT;"),
        (["run", "t", "--why", "-p"], "behind --: orch run ... -- PROMPT;"),
        (["spawn", "-t"], "behind --: orch spawn ... -- TASK;"),
    ],
)
@pytest.mark.usefixtures("desk")
def test_a_text_that_looks_like_an_option(capsys: Captured, argv: list[str], told: str) -> None:
    """The usage error says how to pass it."""
    assert run(argv) == 2
    assert told in capsys.readouterr().err


def test_a_text_behind_two_dashes_is_one(desk: Desk, capsys: Captured) -> None:
    """What the usage error says works; a typo where no text is wanted gets no such advice."""
    assert run(["query", "1", "--", "-why"]) == 0
    assert desk.asked[0][1]["prompt"] == "-why"
    assert run(["list", "--tre"]) == 2
    assert "behind --" not in capsys.readouterr().err


def test_killing_nobody_says_how_to_kill_everybody(desk: Desk, capsys: Captured) -> None:
    """Without a reference the flag that means all is named, and nothing is asked."""
    assert run(["kill"]) == 2
    assert "--all" in capsys.readouterr().err
    assert desk.asked == []


def test_closed_standard_streams_are_told(desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an answer could not go, nothing is asked; a dash needs a standard input to read."""
    with monkeypatch.context() as closed:
        closed.setattr(sys, "stdout", None)
        assert run(["list"]) == 1
    assert capsys.readouterr().err == "orch: standard output is closed: leave it open, or use >/dev/null\n"
    monkeypatch.setattr(sys, "stdin", None)
    assert run(["query", "n", "-"]) == 2
    assert "standard input, which is closed" in capsys.readouterr().err
    assert run(["chat"]) == 2
    assert "standard input is closed" in capsys.readouterr().err
    assert desk.asked == []


@pytest.mark.parametrize("argv", [["spawn", "t"], ["run", "t"], ["query", "n", "t"]], ids=" ".join)
def test_without_a_standard_input_nobody_is_there_to_be_asked(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    """Commands that read nothing go without one, as they do in a pipe."""
    monkeypatch.setattr(sys, "stdin", None)
    assert run(argv) == 0
    assert desk.asked[0][1].get("channel", "api") == "api"


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("argv", [["query", "n", "Go"], ["run", "Go"], ["spawn", "Go"]])
def test_who_reads_nothing_needs_no_standard_input(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is closed where a service starts a command: nobody is there to be asked, then."""
    monkeypatch.setattr(sys, "stdin", None)
    assert run(argv) == 0


@pytest.mark.usefixtures("desk")
def test_output_that_cannot_be_written_is_told(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is one line on stderr; when that is full too, the exit code is left."""

    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    assert run(["list"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("orch: the output cannot be written (No space left on device)")
    assert err.count("\n") == 1
    monkeypatch.setattr(sys, "stderr", Full())
    assert run(["frob"]) == 2


@pytest.mark.parametrize(
    "argv", [["spawn", "x"], ["run", "x"], ["config", "show"], ["config", "trust"], ["demo"]], ids=" ".join
)
def test_a_folder_that_is_gone_is_told(desk: Desk, capsys: Captured, argv: list[str]) -> None:
    """Whoever stands in a removed folder is told so, and nothing is asked."""
    os.rmdir(os.getcwd())
    assert run(argv) == 1
    assert capsys.readouterr() == ("", "orch: the folder you are in is gone: cd to one that is there\n")
    assert desk.asked == []


@pytest.mark.parametrize("action", ["stop", "logs"])
def test_a_home_that_is_a_file_is_told(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """Looking for a daemon there says what to set."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "file"))
    assert run(["daemon", action]) == 1
    assert capsys.readouterr() == ("", f"orch: {tmp_path}/file is no folder: set ORCH_HOME to one\n")


def test_a_file_that_is_in_the_way_is_named(desk: Desk, capsys: Captured) -> None:
    """What the system refuses about a file is one line with its path."""
    desk.answers["list"] = PermissionError(13, "Permission denied", "/some/file")
    assert run(["list"]) == 1
    assert capsys.readouterr().err == "orch: /some/file: Permission denied\n"
