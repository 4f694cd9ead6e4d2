"""Errors of the command line: invalid arguments, failed requests, interrupts and unusable streams."""

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
def test_errors_go_to_stderr_with_their_exit_code(desk: Desk, capsys: Captured, code: int) -> None:
    """With --json the error is an object. Terminal sequences are escaped."""
    desk.answers["query"] = CommandError("AgentBusyError", "busy with \x1b[31mred", code)
    assert run(["query", "n", "p"]) == code
    assert capsys.readouterr() == ("", "orch: busy with \\x1b[31mred\n")
    assert run(["query", "n", "p", "--json"]) == code
    out, err = capsys.readouterr()
    assert (out, json.loads(err)["error"]["type"]) == ("", "AgentBusyError")


@pytest.mark.parametrize("argv", [["query", "n", "p"], ["collect", "n"]])
def test_ctrl_c_ends_the_wait_and_exits_with_130(desk: Desk, capsys: Captured, argv: list[str]) -> None:
    """The agent continues, and the message says how to collect its answer."""
    desk.answers["query"] = desk.answers["collect"] = KeyboardInterrupt()
    assert run(argv) == 130
    assert desk.closed
    assert "agent n continues. Get its answer: orch collect n" in capsys.readouterr().err


def test_ctrl_c_anywhere_exits_with_130_without_a_traceback(desk: Desk, capsys: Captured) -> None:
    desk.answers["list"] = KeyboardInterrupt()
    assert run(["list"]) == 130
    assert capsys.readouterr().err == "orch: interrupted\n"


def test_closed_output_pipe_ends_quietly(desk: Desk, capsys: Captured) -> None:
    """A closed pipe, as in `orch list | head`, exits with 1 and prints nothing."""
    desk.answers["list"] = BrokenPipeError()
    assert run(["list"]) == 1
    assert capsys.readouterr() == ("", "")


def test_internal_errors_keep_their_traceback(desk: Desk) -> None:
    """An exception that is no OrchError is not converted."""
    desk.answers["list"] = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        run(["list"])


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["qeury", "1"], "unknown command 'qeury'; did you mean 'query'?"),
        (["zzz"], "unknown command 'zzz'; see: orch --help"),
        (["query", "1"], "the following arguments are required: PROMPT; see: orch query --help"),
        (["list", "--tre"], "unrecognized arguments: --tre"),
        (["query", "1", "p", "--timeout", "soon"], "'soon' is not a number of seconds"),
        (["collect", "1", "--timeout", "-1"], "'-1' is not a number of seconds"),
        (["session", "export", "1", "--output", ""], "argument --output: file name is empty"),
        (["archive", "export", "--output", "a", "--output", "b"], "--output is given twice"),
        (["archive", "prune", "--older-than", "9w", "--older-than", "1d"], "--older-than is given twice"),
        (["session", "prune", "--older-than", "9w", "--keep", "3", "--keep", "1"], "--keep is given twice"),
        (["session", "fsck", "1", "--output", "x"], "--output needs --repair and a FILE argument"),
        (["spawn", "-", "--query", "-"], "'-' is given twice, but standard input can be read only once"),
        (["run", "-", "-"], "'-' is given twice"),
        (["query", "1", "p", "--no-wait", "--timeout", "3"], "--no-wait and --timeout cannot be combined"),
        (["collect", "1", "--no-wait", "--timeout", "3"], "--no-wait and --timeout cannot be combined"),
        (["events", "--since", "-1"], "argument --since: '-1' is not a whole number of at least 0"),
        (["show", "1", "--messages", "-1"], "argument --messages: '-1' is not a whole number"),
        (["workspace", "prune", "1", "--turns", "0"], "argument --turns: '0' is not a whole number above 0"),
        (["prompts", "--var", "a=b"], "--var needs a template"),
        (["daemon", "dance"], "invalid choice: 'dance'"),
        (["config", "show", "/nowhere/at/all"], "/nowhere/at/all is not a folder"),
    ],
)
def test_invalid_command_line_exits_with_2(desk: Desk, capsys: Captured, argv: list[str], complaint: str) -> None:
    """stderr states what is wrong, and no request is sent."""
    assert run(argv) == 2
    out, err = capsys.readouterr()
    assert (out, desk.asked) == ("", [])
    assert err.startswith("orch: ")
    assert complaint in err


def test_usage_errors_are_json_with_json(desk: Desk, capsys: Captured) -> None:
    for argv in (["frob", "--json"], ["query", "1", "--json"]):
        assert run(argv) == 2
        out, err = capsys.readouterr()
        assert (out, json.loads(err)["error"]["type"], desk.asked) == ("", "UsageError", [])


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["list", "--tre"], "orch: unrecognized arguments: --tre; did you mean --tree?; see: orch list --help\n"),
        (
            ["run", "hi", "--stram"],
            "orch: unrecognized arguments: --stram; did you mean --stream?; see: orch run --help\n",
        ),
        (
            ["run", "hi", "--max-cost", "-1"],
            "orch: argument --max-cost: '-1' is not an amount of US dollars above 0; see: orch run --help\n",
        ),
    ],
)
@pytest.mark.usefixtures("desk")
def test_misspelled_option_gets_a_suggestion(capsys: Captured, argv: list[str], hint: str) -> None:
    assert run(argv) == 2
    assert capsys.readouterr().err == hint


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (
            ["query", "1", "-why"],
            "to pass text that begins with a dash, put it last after --: orch query ... -- PROMPT;",
        ),
        (["run", "t", "--why", "-p"], "after --: orch run ... -- PROMPT;"),
        (["spawn", "-t"], "after --: orch spawn ... -- TASK;"),
    ],
)
@pytest.mark.usefixtures("desk")
def test_text_that_looks_like_an_option_gets_a_hint(capsys: Captured, argv: list[str], expected: str) -> None:
    """The usage error says to write the text after `--`."""
    assert run(argv) == 2
    assert expected in capsys.readouterr().err


def test_text_after_two_dashes_is_taken_literally(desk: Desk, capsys: Captured) -> None:
    """The error about an unknown option of a command without a text argument has no hint."""
    assert run(["query", "1", "--", "-why"]) == 0
    assert desk.asked[0][1]["prompt"] == "-why"
    assert run(["list", "--tre"]) == 2
    assert "after --" not in capsys.readouterr().err


def test_kill_without_a_reference_names_the_flag_for_all(desk: Desk, capsys: Captured) -> None:
    """The usage error names --all, and no request is sent."""
    assert run(["kill"]) == 2
    assert "--all" in capsys.readouterr().err
    assert desk.asked == []


def test_closed_standard_streams_are_reported(desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without stdout no request is sent. A command that reads stdin reports that stdin is closed."""
    with monkeypatch.context() as closed:
        closed.setattr(sys, "stdout", None)
        assert run(["list"]) == 1
    assert capsys.readouterr().err == "orch: standard output is closed; keep it open or redirect it to /dev/null\n"
    monkeypatch.setattr(sys, "stdin", None)
    assert run(["query", "n", "-"]) == 2
    assert "cannot read '-' from standard input: it is closed" in capsys.readouterr().err
    assert run(["chat"]) == 2
    assert "standard input is closed" in capsys.readouterr().err
    assert desk.asked == []


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("argv", [["query", "n", "Go"], ["run", "Go"], ["spawn", "Go"]])
def test_command_that_reads_nothing_needs_no_stdin(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """stdin may be closed, as in a service."""
    monkeypatch.setattr(sys, "stdin", None)
    assert run(argv) == 0


@pytest.mark.usefixtures("desk")
def test_unwritable_output_is_one_line_on_stderr(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is one line on stderr. If stderr cannot be written either, the exit code is unchanged."""

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


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(
    "argv",
    [["extensions", "enable"], ["extensions", "disable"], ["skills", "remove"], ["skills", "show"], ["prompts"]],
    ids=" ".join,
)
def test_unknown_names_exit_with_3(capsys: Captured, argv: list[str]) -> None:
    assert run([*argv, "nope"]) == 3
    assert "'nope'" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["spawn", "x"], ["run", "x"], ["config", "show"], ["config", "trust"]], ids=" ".join)
def test_deleted_working_directory_is_reported(desk: Desk, capsys: Captured, argv: list[str]) -> None:
    """No request is sent."""
    os.rmdir(os.getcwd())
    assert run(argv) == 1
    assert capsys.readouterr() == ("", "orch: the current folder no longer exists; cd to an existing one\n")
    assert desk.asked == []


@pytest.mark.parametrize("action", ["stop", "logs"])
def test_home_that_is_a_file_is_reported(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """The error names the variable that must be set to a folder."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "file"))
    assert run(["daemon", action]) == 1
    assert capsys.readouterr() == ("", f"orch: {tmp_path}/file is not a folder; set ORCH_HOME to a folder\n")


def test_file_system_errors_name_the_path(desk: Desk, capsys: Captured) -> None:
    """The error is one line with the path and the reason."""
    desk.answers["list"] = PermissionError(13, "Permission denied", "/some/file")
    assert run(["list"]) == 1
    assert capsys.readouterr().err == "orch: /some/file: Permission denied\n"
