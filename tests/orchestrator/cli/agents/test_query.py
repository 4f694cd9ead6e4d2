"""Queries from the command line: streams, status lines, one-shot runs, steering and cancelling."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch.cli import run
from orch.cli.agents import query
from orch.cli.agents.send import format_quote
from orch.client.failure import CommandError
from orch_protocol.core.messages import Image
from orchestrator.daemon_double import REPLY, ROW, Desk, opened
from pictures import png

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    """A fake daemon, an empty home and a clean environment."""
    return opened(monkeypatch, tmp_path)


def events(*told: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events with numbers."""
    return [{"n": number} | event for number, event in enumerate(told, 1)]


def text(piece: str) -> dict[str, Any]:
    return {"kind": "text", "text": piece}


def message(whole: str, step: int) -> dict[str, Any]:
    return {"kind": "message", "text": whole, "step": step}


def reply(whole: str, steps: int, **changes: Any) -> dict[str, Any]:
    return REPLY | {"text": whole, "steps": steps} | changes


def test_a_failed_correction_names_the_reply_that_was_invalid(desk: Desk, capsys: Captured) -> None:
    """For example, a script has no second reply."""
    Path("schema.json").write_text('{"type": "integer"}')
    desk.answers["query"] = [REPLY | {"text": "seven"}, CommandError("BackendError", "the script has no more items")]
    desk.in_turn = {"query"}
    assert run(["query", "n", "How many?", "--returns", "schema.json"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("orch: the script has no more items. This ended the correction of a reply that does not")
    assert error.endswith("): 'seven'\n")


def test_an_agent_without_a_model_is_not_asked_for_a_value(desk: Desk, capsys: Captured) -> None:
    """The offline search would quote files twice."""
    Path("schema.json").write_text('{"type": "integer"}')
    desk.answers["state"] = ROW | {"model": "extractive"}
    assert run(["query", "n", "How many?", "--returns", "schema.json"]) == 2
    assert "no model configured" in capsys.readouterr().err
    assert desk.asked == [("state", {"ref": "n"})]


def test_a_command_of_an_agent_asks_for_a_value_without_reading_the_state(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents may query, but only users may read the state of an agent."""
    monkeypatch.setattr(query, "calling_agent", lambda: "abc")
    Path("schema.json").write_text('{"type": "integer"}')
    assert run(["query", "n", "How many?", "--returns", "schema.json"]) == 0
    assert [method for method, _ in desk.asked] == ["query"]


def test_returns_and_return_name_cannot_be_combined(desk: Desk, capsys: Captured) -> None:
    """No query is sent."""
    Path("schema.json").write_text('{"type": "integer"}')
    assert run(["query", "n", "How many?", "--returns", "schema.json", "--return-name", "count"]) == 2
    assert "--returns and --return-name cannot be combined" in capsys.readouterr().err
    assert desk.asked == []


class TestSteer:
    """Messages to an agent during its turn."""

    def test_queued_messages_are_listed_and_retracted(self, desk: Desk, capsys: Captured) -> None:
        """`queue` prints one line for each message. It sets the modes before it lists the queue."""
        waiting = [{"id": "s1", "text": "be\nbrief", "follow_up": True, "at": "2026-11-21T09:00:00.000Z"}]
        shown = {"id": "abc", "waiting": waiting, "steering": "all", "follow_up": "all"}
        desk.answers |= {"queue": shown, "clear_queue": shown, "set_queue": shown}
        assert run(["queue", "n", "--follow-up", "all"]) == 0
        assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["s1", "after", "the"]
        assert desk.asked == [
            ("set_queue", {"ref": "n", "steering": None, "follow_up": "all"}),
            ("queue", {"ref": "n"}),
        ]
        assert run(["queue", "n", "--clear", "s1", "--clear", "s2", "--json"]) == 0
        assert desk.asked[-1] == ("clear_queue", {"ref": "n", "ids": ["s1", "s2"]})
        desk.answers["clear_queue"] = shown | {"waiting": []}
        assert run(["queue", "n", "--clear-all"]) == 0
        assert desk.asked[-1] == ("clear_queue", {"ref": "n", "ids": None})
        assert "the queue is empty" in capsys.readouterr().err
        assert run(["queue", "n", "--clear-all", "--clear", "s1"]) == 2

    def test_steer_prints_the_message_id(self, desk: Desk, capsys: Captured) -> None:
        """With --json the agent's id is printed, too."""
        assert run(["steer", "n", "be brief"]) == 0
        assert desk.asked == [("steer", {"ref": "n", "text": "be brief"})]
        assert capsys.readouterr().out == "s1\n"
        run(["steer", "n", "be brief", "--json"])
        assert json.loads(capsys.readouterr().out) == {"id": "abc", "steer_id": "s1", "query_id": None}

    def test_follow_up_to_an_idle_agent_becomes_a_query(self, desk: Desk, capsys: Captured) -> None:
        """The id of the query is printed."""
        desk.answers["steer"] = {"id": "abc", "steer_id": None, "query_id": "q2"}
        assert run(["steer", "n", "and now?", "--follow-up"]) == 0
        assert desk.asked[0][1]["follow_up"] is True
        assert capsys.readouterr().out == "q2\n"


class TestCancel:
    """Cancelling the turn of an agent."""

    @pytest.mark.parametrize(("extra", "hard"), [([], False), (["--hard"], True)])
    def test_cancel_prints_the_agent(self, desk: Desk, capsys: Captured, extra: list[str], hard: bool) -> None:
        """`cancel` prints the agent's id; with --json, the agent's row."""
        assert run(["cancel", "n", *extra]) == 0
        assert desk.asked == [("cancel", {"ref": "n", "hard": hard})]
        assert capsys.readouterr() == ("abc\n", "")
        run(["cancel", "n", "--json"])
        assert json.loads(capsys.readouterr().out)["pending"] == "why?"

    def test_cancel_of_an_idle_agent_says_so(self, desk: Desk, capsys: Captured) -> None:
        """Cancelling an idle agent exits with 0 and prints a notice on stderr."""
        desk.answers["cancel"] = ROW
        assert run(["cancel", "n"]) == 0
        assert capsys.readouterr().err == "orch: agent n had no running turn\n"


class TestStream:
    """`query --stream`: a turn that is printed while it runs."""

    def test_stream_writes_text_to_stdout_and_events_to_stderr(self, desk: Desk, capsys: Captured) -> None:
        """Each call, result and steering message is one line on stderr; a task list has one line for each task."""
        desk.events = events(
            text("Let me "),
            text("look."),
            message("Let me look.", 1),
            {"kind": "tool_call", "name": "read_file", "text": '{"path": "x"}'},
            {"kind": "tool_result", "name": "read_file", "text": "one\n\x1b[31mtwo", "is_error": True},
            {"kind": "tool_result", "name": "task_update", "text": "[x] 1. look\n[>] 2. say\x1b[2J"},
            {"kind": "tool_result", "name": "task_update", "text": "There is no\ntask 3", "is_error": True},
            {"kind": "steered", "text": "be brief"},
            {"kind": "continued", "text": "[go on]"},
            text("It says two."),
            message("It says two.", 2),
        )
        desk.answers["query"] = reply("It says two.", 2)
        assert run(["query", "n", "?", "--stream"]) == 0
        assert desk.asked[0][1]["stream"] is True
        out, err = capsys.readouterr()
        assert out == "Let me look.\nIt says two.\n"
        assert err.splitlines() == [
            '-> read_file {"path": "x"}',
            "<- read_file error: one \\x1b[31mtwo",
            "<- task_update",
            "   [x] 1. look",
            "   [>] 2. say\\x1b[2J",
            "<- task_update error: There is no task 3",
            "steered: be brief",
            "continued: [go on]",
        ]

    def test_streamed_text_is_escaped_on_a_terminal_only(
        self, desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Control characters in text of the model are escaped for a terminal and unchanged for other outputs."""
        desk.events = events(text("\x1b[31mred"), message("\x1b[31mred", 1))
        desk.answers["query"] = reply("\x1b[31mred", 1)
        run(["query", "n", "?", "--stream"])
        assert capsys.readouterr().out == "\x1b[31mred\n"
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        run(["query", "n", "?", "--stream"])
        assert capsys.readouterr().out == "\\x1b[31mred\n"

    @pytest.mark.parametrize("streams", [True, False])
    def test_markdown_is_rendered_on_a_terminal_only(
        self, desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch, streams: bool
    ) -> None:
        """Markdown stays as text without a terminal, with NO_COLOR, and without Unicode support."""
        expected = "# Pumps\n\n**Two** are\x1b[2J `red`.\n\n| a | b |\n|---|--:|\n| 日本 | 3 |"
        desk.events = events(text(expected[:20]), text(expected[20:]), message(expected, 1)) if streams else []
        desk.answers["query"] = reply(expected, 1)
        argv = ["query", "n", "?", *(["--stream"] if streams else [])]
        run(argv)
        assert capsys.readouterr().out == f"{expected}\n"
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("TERM", "xterm")
        run(argv)
        shown = capsys.readouterr().out
        assert "\x1b[1mTwo\x1b[0m are\\x1b[2J \x1b[36mred\x1b[0m.\n" in shown
        assert re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines() == [
            "Pumps",
            "",
            "Two are\\x1b[2J red.",
            "",
            "a    │ b",
            "─────┼──",
            "日本 │ 3",
        ]
        monkeypatch.setenv("NO_COLOR", "1")
        run(argv)
        assert capsys.readouterr().out == expected.replace("\x1b", "\\x1b") + "\n"
        monkeypatch.delenv("NO_COLOR")
        # A locale whose encoding is not UTF-8.
        monkeypatch.setattr("orch.render.terminal.supports_unicode", lambda _: False)
        run(argv)
        assert capsys.readouterr().out == expected.replace("\x1b", "\\x1b") + "\n"

    def test_text_of_a_failed_attempt_is_marked_void(self, desk: Desk, capsys: Captured) -> None:
        """stderr says that the text so far is discarded. The next attempt starts on a new line."""
        desk.events = events(
            text("It sa"),
            {"kind": "retry", "text": "overloaded, in 2 s"},
            {"kind": "retry", "text": "overloaded, in 4 s"},
            text("It says"),
            message("It says", 1),
        )
        desk.answers["query"] = reply("It says", 1)
        assert run(["query", "n", "?", "--stream"]) == 0
        out, err = capsys.readouterr()
        assert out == "It sa\nIt says\n"
        assert err.splitlines() == [
            "the request is repeated; the text so far is discarded: overloaded, in 2 s",
            "the request is repeated: overloaded, in 4 s",
        ]

    @pytest.mark.parametrize(
        ("expected", "out", "err"),
        [
            (events(text("ab"), message("abcd", 1)), "abcd\n", ""),
            (events(text("ab"), text("d"), message("abcd", 1)), "abd\nabcd\n", "were lost; complete text"),
            (events(text("ab")), "abcd\n", ""),
            ([], "abcd\n", ""),
            ([{"n": 3} | message("abcd", 1)], "abcd\n", "lost events: 2"),
        ],
        ids=["the end", "the middle", "the message", "everything", "numbers"],
    )
    def test_lost_stream_events_are_made_up_from_the_reply(
        self, desk: Desk, capsys: Captured, expected: list[dict[str, Any]], out: str, err: str
    ) -> None:
        """stdout ends with the complete answer. Lost events that matter are reported on stderr."""
        desk.events = expected
        desk.answers["query"] = reply("abcd", 1)
        assert run(["query", "n", "?", "--stream"]) == 0
        captured = capsys.readouterr()
        assert captured.out == out
        assert err in captured.err
        assert bool(err) == bool(captured.err)

    def test_early_end_of_a_turn_states_the_stop_reason(self, desk: Desk, capsys: Captured) -> None:
        """The stop reason is on stderr, and the streamed text stays on stdout."""
        desk.events = events(text("one"), message("one", 1), text("tw"))
        desk.answers["query"] = reply("one\n\n[The turn was cancelled.]", 1, stop_reason="cancelled")
        assert run(["query", "n", "?", "--stream"]) == 1
        assert capsys.readouterr() == ("one\ntw\n", "the turn ended early: cancelled\n")

    def test_error_in_mid_stream_ends_the_line(self, desk: Desk, capsys: Captured) -> None:
        """The streamed line ends with a line break, and the exit code is the one of the error."""
        desk.events = events(text("one"))
        desk.answers["query"] = CommandError("AgentDiedError", "it died")
        assert run(["query", "n", "?", "--stream"]) == 1
        assert capsys.readouterr() == ("one\n", "orch: it died\n")

    def test_json_stream_has_one_event_per_line(self, desk: Desk, capsys: Captured) -> None:
        """The events are followed by the reply."""
        desk.events = events(text("a"), message("a", 1))
        assert run(["query", "n", "?", "--stream", "--json"]) == 0
        *data, last = map(json.loads, capsys.readouterr().out.splitlines())
        assert data == desk.events
        keys = ["id", "query_id", "text", "stop_reason", "usage", "tool_calls", "files_changed", "warning", "denied"]
        assert list(last) == keys

    def test_stream_and_no_wait_exclude_each_other(self, desk: Desk, capsys: Captured) -> None:
        assert run(["query", "n", "?", "--stream", "--no-wait"]) == 2
        assert "not allowed with" in capsys.readouterr().err
        assert desk.asked == []


class TestRun:
    """`orch run`: an agent for one question."""

    @pytest.mark.parametrize(
        ("stop", "code"),
        [("end_turn", 0), ("max_turns", 5), ("timeout", 5), ("budget", 5), ("max_tokens", 5), ("aborted", 1)],
    )
    @pytest.mark.parametrize(
        "how", [["run", "t"], ["run", "t", "--json"], ["run", "t", "--json-events"], ["collect", "n"]]
    )
    def test_truncated_answer_has_a_failure_exit_code(
        self, desk: Desk, capsys: Captured, how: list[str], stop: str, code: int
    ) -> None:
        """A limit exits with 5, an aborted turn with 1. The incomplete answer is printed."""
        desk.answers["query"] = desk.answers["collect"] = reply("so far", 1, stop_reason=stop)
        assert run(how) == code
        assert "so far" in capsys.readouterr().out

    def test_empty_answer_is_reported(self, desk: Desk, capsys: Captured) -> None:
        desk.answers["query"] = reply(" ", 1)
        assert run(["query", "n", "?"]) == 0
        assert "returned an empty answer" in capsys.readouterr().err

    @pytest.mark.parametrize(("extra", "prompt"), [([], "t"), (["why?"], "why?")])
    def test_run_asks_and_ends_its_agent(self, desk: Desk, capsys: Captured, extra: list[str], prompt: str) -> None:
        """`run` asks the prompt, or the task if there is no prompt, and then ends the agent."""
        assert run(["run", "t", *extra, "--model", "a:b", "--name", "one"]) == 0
        assert [method for method, _ in desk.asked] == ["spawn", "query", "kill"]
        assert (desk.asked[0][1]["model"], desk.asked[0][1]["name"]) == ("a:b", "one")
        assert desk.asked[1][1] == {"ref": "abc", "prompt": prompt}
        assert desk.asked[2][1] == {"refs": ["abc"]}
        assert capsys.readouterr() == ("42\n", "")

    @pytest.mark.parametrize(
        "arguments", [["query", "abc", "Which?"], ["run", "t", "Which?"], ["spawn", "t", "--query", "Which?"]]
    )
    def test_images_of_a_prompt_are_sent(self, desk: Desk, tmp_path: Path, arguments: list[str]) -> None:
        """Images are sent in the order of the options, and the prompt ends with a text for each image."""
        files = [tmp_path / "a.png", tmp_path / "b.png"]
        for width, file in enumerate(files, 1):
            file.write_bytes(png(width, 1))
        assert run([*arguments, "--image", str(files[0]), "--image", str(files[1])]) == 0
        params = next(params for method, params in desk.asked if method == "query")
        assert params["prompt"] == "Which?\n\n[image: a.png, 1x1]\n\n[image: b.png, 2x1]"
        assert msgspec.convert(params["images"], list[Image]) == [Image.open(file) for file in files]

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            (["query", "abc", "Which?"], "--image: cannot read the image"),
            (["run", "t", "--resume", "abc"], "--image: cannot read the image"),
            (["spawn", "t", "--query"], "--image: cannot read the image"),
            (["spawn", "t"], "--image belongs to a prompt: add --query"),
        ],
    )
    def test_image_that_cannot_be_sent_starts_nothing(
        self, desk: Desk, capsys: Captured, arguments: list[str], error: str
    ) -> None:
        """No agent is started, and no query is sent."""
        assert run([*arguments, "--image", "nowhere.png"]) == 2
        assert error in capsys.readouterr().err
        assert desk.asked == []

    def test_keep_leaves_the_agent_and_prints_its_id(self, desk: Desk, capsys: Captured) -> None:
        """With --keep the agent is not ended, and a line on stderr states its id."""
        assert run(["run", "t", "--model", "a:b", "--keep"]) == 0
        assert [method for method, _ in desk.asked] == ["spawn", "query"]
        assert capsys.readouterr() == ("42\n", "orch: agent abc was not ended (--keep)\n")

    def test_run_json_has_the_keys_of_a_query(self, desk: Desk, capsys: Captured) -> None:
        """With --json the reply is one object; with --stream its events precede the reply."""
        assert run(["run", "t", "--model", "a:b", "--json", "--keep"]) == 0
        out, err = capsys.readouterr()
        assert (json.loads(out)["text"], err) == ("42", "")
        desk.events = events(text("4"))
        run(["run", "t", "--model", "a:b", "--json", "--stream"])
        assert len(capsys.readouterr().out.splitlines()) == 2

    def test_failed_run_ends_the_agent(self, desk: Desk, capsys: Captured) -> None:
        """The agent is ended, and the exit code is the one of the query."""
        desk.answers["query"] = CommandError("RateLimitError", "too many", 5)
        assert run(["run", "t", "--model", "a:b"]) == 5
        assert desk.asked[-1] == ("kill", {"refs": ["abc"]})
        assert capsys.readouterr() == ("", "orch: too many\n")

    def test_failed_kill_does_not_hide_the_answer(self, desk: Desk, capsys: Captured) -> None:
        """The answer is printed, or the error of the query. A failure to end the agent is a line on stderr."""
        desk.answers["kill"] = CommandError("DaemonGone", "the daemon is gone")
        assert run(["run", "t", "--model", "a:b"]) == 0
        assert capsys.readouterr() == ("42\n", "orch: agent abc was not ended: the daemon is gone\n")
        desk.answers["query"] = CommandError("RateLimitError", "too many", 5)
        assert run(["run", "t", "--model", "a:b"]) == 5
        assert capsys.readouterr().err.splitlines()[-1] == "orch: too many"

    def test_ctrl_c_ends_the_agent_of_a_run(self, desk: Desk, capsys: Captured) -> None:
        """With --keep the agent continues, and the message says how to collect the answer."""
        desk.answers["query"] = KeyboardInterrupt()
        assert run(["run", "t", "--model", "a:b"]) == 130
        assert desk.asked[-1] == ("kill", {"refs": ["abc"]})
        assert capsys.readouterr().err == "orch: interrupted; agent abc was ended\n"
        assert run(["run", "t", "--model", "a:b", "--keep"]) == 130
        assert desk.asked[-1][0] == "query"
        assert "orch collect abc" in capsys.readouterr().err

    def test_daemon_ends_the_agent_of_a_run(self, desk: Desk) -> None:
        """The agent ends with the connection, and the daemon knows it before the id is known. --keep excepts it."""
        desk.answers["spawn"] = [KeyboardInterrupt(), desk.answers["spawn"], desk.answers["spawn"]]
        desk.in_turn = {"spawn"}
        assert run(["run", "t", "--model", "a:b"]) == 130
        assert [method for method, _ in desk.asked] == ["spawn"]
        for extra in ([], ["--keep"]):
            assert run(["run", "t", "--model", "a:b", *extra]) == 0
        bound = [params.get("ends_with_connection", False) for method, params in desk.asked if method == "spawn"]
        assert bound == [True, True, False]

    @pytest.mark.parametrize(("extra", "ends"), [([], True), (["--keep"], False)])
    def test_daemon_ends_the_agent_that_a_run_resumed(self, desk: Desk, extra: list[str], ends: bool) -> None:
        desk.answers["state"] = ROW | {"status": "killed"}
        assert run(["run", "and now?", "--resume", "abc", *extra]) == 0
        assert desk.asked[1][1]["ends_with_connection"] is ends

    def test_run_starts_no_daemon_to_end_its_agent(self, desk: Desk, capsys: Captured) -> None:
        """If the daemon was stopped, the agent has no process, and the next daemon ends the agent."""
        desk.answers["query"] = CommandError("DaemonGone", "the daemon ended")
        desk.answers["kill"] = CommandError("DaemonNotRunning", "no daemon is running", 3)
        assert run(["run", "t", "--model", "a:b"]) == 1
        assert capsys.readouterr().err == "orch: the daemon ended\n"

    def test_run_again_resumes_an_ended_agent(self, desk: Desk, capsys: Captured) -> None:
        """`run --resume` resumes an ended agent and ends it again afterwards; a live agent is not ended."""
        desk.answers["state"] = ROW | {"status": "killed"}
        assert run(["run", "and now?", "--resume", "abc", "--max-cost", "2"]) == 0
        assert [method for method, _ in desk.asked] == ["state", "resume", "query", "kill"]
        assert desk.asked[1][1]["budget"]["max_cost_usd"] == 2.0
        assert desk.asked[2][1] == {"ref": "abc", "prompt": "and now?"}
        assert capsys.readouterr().out == "42\n"
        desk.asked.clear()
        desk.answers["state"] = ROW
        assert run(["run", "and now?", "--resume", "abc"]) == 0
        assert [method for method, _ in desk.asked] == ["state", "query"]
        assert capsys.readouterr().err == "orch: agent abc was not ended (--keep)\n"

    @pytest.mark.parametrize(
        ("extra", "expected"),
        [
            (["why?"], "PROMPT"),
            (["--model", "a:b"], "--model"),
            (["--dry-run", "--preset", "x"], "--preset, --dry-run"),
        ],
    )
    def test_run_again_refuses_options_of_a_new_agent(
        self, desk: Desk, capsys: Captured, extra: list[str], expected: str
    ) -> None:
        """The error names the options that have no effect on an existing agent."""
        assert run(["run", "t", *extra, "--resume", "abc"]) == 2
        assert f"leave out {expected}." in capsys.readouterr().err
        assert desk.asked == []

    def test_run_json_lines_begin_with_the_agent(self, desk: Desk, capsys: Captured) -> None:
        """The agent is the first line, the reply is the last line, and each line has a kind."""
        desk.events = events(text("4"), text("2"))
        assert run(["run", "t", "--model", "a:b", "--json-events"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["kind"] for line in lines] == ["agent", "text", "text", "reply"]
        assert (lines[0]["id"], lines[-1]["text"]) == ("abc", "42")

    def test_failed_run_json_ends_with_an_error_line(self, desk: Desk, capsys: Captured) -> None:
        """The error is also printed as an object on stderr."""
        desk.answers["query"] = CommandError("RateLimitError", "too many", 5)
        assert run(["run", "t", "--model", "a:b", "--json-events"]) == 5
        out, err = capsys.readouterr()
        error = {"type": "RateLimitError", "message": "too many"}
        assert json.loads(out.splitlines()[-1]) == {"kind": "failed", "error": error}
        assert json.loads(err) == {"error": error}


class TestSend:
    """`orch send`: text of a file that is sent to an agent."""

    @pytest.mark.parametrize(("work", "extra", "later"), [(None, [], True), ("q", [], False), ("q", ["--later"], True)])
    def test_send_steers_a_busy_agent_and_asks_an_idle_one(
        self, desk: Desk, capsys: Captured, work: str | None, extra: list[str], later: bool
    ) -> None:
        """The text steers a busy agent; for an idle agent, or with --later, it is a follow-up."""
        desk.answers["state"] = ROW | {"pending": work}
        assert run(["send", "n", "x = 1", *extra]) == 0
        assert desk.asked[-1] == ("steer", {"ref": "abc", "text": "x = 1", "follow_up": later})
        assert capsys.readouterr().out == "s1\n"

    def test_sent_selection_has_question_place_and_fenced_text(self) -> None:
        """The text is unchanged, and the fence is longer than any fence in the text."""
        assert format_quote("a\n", "src/pump.py:1-2", "Why?") == "Why?\n\nFrom src/pump.py:1-2:\n\n```py\na\n```"
        assert format_quote("```\nb\n```", "notes", "") == "From notes:\n\n````\n```\nb\n```\n````"

    def test_empty_selection_is_refused(self, desk: Desk, capsys: Captured) -> None:
        """A text without visible characters is a usage error, and no request is sent."""
        assert run(["send", "n", " \n"]) == 2
        assert "the text to send is empty" in capsys.readouterr().err
        assert desk.asked == []


class TestStatusLine:
    """The status line at a terminal: which agents work, and on what."""

    @pytest.fixture(autouse=True)
    def _at_work(self, desk: Desk) -> None:
        """A busy agent with a busy and an idle child, and an unrelated busy agent."""
        busy = ROW | {"pending": "why?", "activity": "tool: bash", "last_activity": "2999-01-01T00:00:00Z"}
        desk.silences = 2
        desk.answers["list"] = [
            busy,
            busy | {"id": "kid", "parent_id": "abc", "name": "kid", "activity": "", "status": "starting"},
            busy | {"id": "lazy", "parent_id": "abc", "name": "lazy", "pending": None},
            busy | {"id": "other", "name": "other"},
        ]

    @pytest.mark.parametrize("argv", [["query", "n", "?"], ["collect", "n"], ["run", "t", "--model", "a:b"]])
    def test_status_line_is_updated_in_place_and_removed(
        self, desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch, argv: list[str]
    ) -> None:
        """The line shows the agent and its busy subagents, and is erased before the answer is printed."""
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        assert run(argv) == 0
        shown = "\rn: tool: bash, 0s; kid: starting, 0s\x1b[K"
        assert capsys.readouterr() == ("42\n", shown * 2 + "\r\x1b[K")
        assert [method for method, _ in desk.asked].count("state") == 1

    @pytest.mark.parametrize(
        ("terminal", "extra"), [(False, []), (True, ["--json"]), (True, ["--stream"])], ids=["no tty", "json", "stream"]
    )
    def test_status_line_needs_a_terminal_without_json_or_stream(
        self, desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch, terminal: bool, extra: list[str]
    ) -> None:
        """Without a terminal, and with --json or --stream, no status is printed or requested."""
        monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
        desk.answers["query"] = REPLY | {"steps": 1}
        assert run(["query", "n", "?", *extra]) == 0
        assert capsys.readouterr().err == ""
        assert [method for method, _ in desk.asked] == ["query"]

    def test_status_line_failure_is_silent(self, desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
        """The answer is printed without an error, and the status is not requested again."""
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        desk.answers["list"] = CommandError("DaemonGone", "gone")
        assert run(["query", "n", "?"]) == 0
        assert capsys.readouterr() == ("42\n", "")
        assert [method for method, _ in desk.asked].count("list") == 1

    def test_status_line_fits_the_terminal(self, desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
        """The line is cut at the width of the terminal."""
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", "8")
        desk.silences = 1
        assert run(["query", "n", "?"]) == 0
        assert capsys.readouterr().err == "\rn: too…\x1b[K\r\x1b[K"
