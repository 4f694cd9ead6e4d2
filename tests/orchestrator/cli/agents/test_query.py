"""What agents are asked and told from the command line: streams, status lines, one-shot runs, steering."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from orch.cli import run
from orch.cli.agents.send import quoted
from orch.client.failure import CommandError
from orchestrator.daemon_double import REPLY, ROW, Desk, opened

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    """A fake daemon, an empty home and a clean environment."""
    return opened(monkeypatch, tmp_path)


def events(*told: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events, numbered."""
    return [{"n": number} | event for number, event in enumerate(told, 1)]


def text(piece: str) -> dict[str, Any]:
    return {"kind": "text", "text": piece}


def message(whole: str, step: int) -> dict[str, Any]:
    return {"kind": "message", "text": whole, "step": step}


def reply(whole: str, steps: int, **changes: Any) -> dict[str, Any]:
    return REPLY | {"text": whole, "steps": steps} | changes


class TestSteer:
    """Saying something to an agent that works."""

    def test_what_waits_and_what_is_taken_back(self, desk: Desk, capsys: Captured) -> None:
        """A line each; modes are set first; with nothing there it is said so."""
        waiting = [{"id": "s1", "text": "be\nbrief", "follow_up": True, "at": "2026-11-21T09:00:00.000Z"}]
        shown = {"id": "abc", "waiting": waiting, "steering": "all", "follow_up": "all"}
        desk.answers |= {"queue": shown, "clear_queue": shown, "set_queue": shown}
        assert run(["queue", "n", "--follow-up", "all"]) == 0
        assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["s1", "at", "its"]
        assert desk.asked == [
            ("set_queue", {"ref": "n", "steering": None, "follow_up": "all"}),
            ("queue", {"ref": "n"}),
        ]
        assert run(["queue", "n", "--clear", "s1", "--clear", "s2", "--json"]) == 0
        assert desk.asked[-1] == ("clear_queue", {"ref": "n", "ids": ["s1", "s2"]})
        desk.answers["clear_queue"] = shown | {"waiting": []}
        assert run(["queue", "n", "--clear-all"]) == 0
        assert desk.asked[-1] == ("clear_queue", {"ref": "n", "ids": None})
        assert "nothing waits" in capsys.readouterr().err
        assert run(["queue", "n", "--clear-all", "--clear", "s1"]) == 2

    def test_the_id_of_what_was_said(self, desk: Desk, capsys: Captured) -> None:
        """Steering is told by its id; as JSON with the agent's."""
        assert run(["steer", "n", "be brief"]) == 0
        assert desk.asked == [("steer", {"ref": "n", "text": "be brief"})]
        assert capsys.readouterr().out == "s1\n"
        run(["steer", "n", "be brief", "--json"])
        assert json.loads(capsys.readouterr().out) == {"id": "abc", "steer_id": "s1", "query_id": None}

    def test_a_follow_up_that_became_a_query(self, desk: Desk, capsys: Captured) -> None:
        """An agent that does not work is asked; the query's id is printed."""
        desk.answers["steer"] = {"id": "abc", "steer_id": None, "query_id": "q2"}
        assert run(["steer", "n", "and now?", "--follow-up"]) == 0
        assert desk.asked[0][1]["follow_up"] is True
        assert capsys.readouterr().out == "q2\n"


class TestCancel:
    """Ending what an agent does."""

    @pytest.mark.parametrize(("extra", "hard"), [([], False), (["--hard"], True)])
    def test_the_id_of_the_agent(self, desk: Desk, capsys: Captured, extra: list[str], hard: bool) -> None:
        """The agent is named; as JSON it is the row that `orch list` has."""
        assert run(["cancel", "n", *extra]) == 0
        assert desk.asked == [("cancel", {"ref": "n", "hard": hard})]
        assert capsys.readouterr() == ("abc\n", "")
        run(["cancel", "n", "--json"])
        assert json.loads(capsys.readouterr().out)["pending"] == "why?"

    def test_an_agent_that_does_nothing(self, desk: Desk, capsys: Captured) -> None:
        """There is nothing to end, which is said."""
        desk.answers["cancel"] = ROW
        assert run(["cancel", "n"]) == 0
        assert capsys.readouterr().err == "orch: agent n was not at work\n"


class TestStream:
    """A turn shown as it happens."""

    def test_text_is_data_and_the_rest_is_for_people(self, desk: Desk, capsys: Captured) -> None:
        """Text goes to stdout in the pieces it came in; calls, results and steering are a line each on stderr."""
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

    def test_a_terminal_gets_no_control_characters(
        self, desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Text of a model is made safe for a terminal, and left alone for anything else."""
        desk.events = events(text("\x1b[31mred"), message("\x1b[31mred", 1))
        desk.answers["query"] = reply("\x1b[31mred", 1)
        run(["query", "n", "?", "--stream"])
        assert capsys.readouterr().out == "\x1b[31mred\n"
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        run(["query", "n", "?", "--stream"])
        assert capsys.readouterr().out == "\\x1b[31mred\n"

    @pytest.mark.parametrize("streams", [True, False])
    def test_a_terminal_shows_markdown_and_a_pipe_gets_it_as_it_came(
        self, desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch, streams: bool
    ) -> None:
        """A line is shown once it is complete, and a table at its end; who wants no colour gets it as it came."""
        said = "# Pumps\n\n**Two** are\x1b[2J `red`.\n\n| a | b |\n|---|--:|\n| 日本 | 3 |"
        desk.events = events(text(said[:20]), text(said[20:]), message(said, 1)) if streams else []
        desk.answers["query"] = reply(said, 1)
        argv = ["query", "n", "?", *(["--stream"] if streams else [])]
        run(argv)
        assert capsys.readouterr().out == f"{said}\n"
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
        assert capsys.readouterr().out == said.replace("\x1b", "\\x1b") + "\n"
        monkeypatch.delenv("NO_COLOR")
        monkeypatch.setattr(
            "orch.render.terminal.supports_unicode", lambda _: False
        )  # as where the locale is not of UTF-8
        run(argv)
        assert capsys.readouterr().out == said.replace("\x1b", "\\x1b") + "\n"

    def test_text_of_a_failed_request_is_void(self, desk: Desk, capsys: Captured) -> None:
        """A retry says so, and the text begins anew on a line of its own."""
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
            "the request is made again; its text so far is void: overloaded, in 2 s",
            "the request is made again: overloaded, in 4 s",
        ]

    @pytest.mark.parametrize(
        ("told", "out", "err"),
        [
            (events(text("ab"), message("abcd", 1)), "abcd\n", ""),
            (events(text("ab"), text("d"), message("abcd", 1)), "abd\nabcd\n", "lost on the way; here"),
            (events(text("ab")), "abcd\n", ""),
            ([], "abcd\n", ""),
            ([{"n": 3} | message("abcd", 1)], "abcd\n", "lost on the way: 2"),
        ],
        ids=["the end", "the middle", "the message", "everything", "numbers"],
    )
    def test_what_is_lost_on_its_way_is_made_up_for(
        self, desk: Desk, capsys: Captured, told: list[dict[str, Any]], out: str, err: str
    ) -> None:
        """Pieces, messages, all events: stdout ends with the whole answer."""
        desk.events = told
        desk.answers["query"] = reply("abcd", 1)
        assert run(["query", "n", "?", "--stream"]) == 0
        captured = capsys.readouterr()
        assert captured.out == out
        assert err in captured.err
        assert bool(err) == bool(captured.err)

    def test_a_turn_that_ends_early_says_why(self, desk: Desk, capsys: Captured) -> None:
        """What was said stays; the stop reason is for people."""
        desk.events = events(text("one"), message("one", 1), text("tw"))
        desk.answers["query"] = reply("one\n\n[The turn was cancelled.]", 1, stop_reason="cancelled")
        assert run(["query", "n", "?", "--stream"]) == 1
        assert capsys.readouterr() == ("one\ntw\n", "the turn ended early: cancelled\n")

    def test_an_error_in_the_middle_ends_the_line(self, desk: Desk, capsys: Captured) -> None:
        """The exit code is that of a query without --stream."""
        desk.events = events(text("one"))
        desk.answers["query"] = CommandError("AgentDiedError", "it died")
        assert run(["query", "n", "?", "--stream"]) == 1
        assert capsys.readouterr() == ("one\n", "orch: it died\n")

    def test_as_json_each_event_is_a_line(self, desk: Desk, capsys: Captured) -> None:
        """The reply comes last, with the keys it always has."""
        desk.events = events(text("a"), message("a", 1))
        assert run(["query", "n", "?", "--stream", "--json"]) == 0
        *told, last = map(json.loads, capsys.readouterr().out.splitlines())
        assert told == desk.events
        keys = ["id", "query_id", "text", "stop_reason", "usage", "tool_calls", "files_changed", "warning", "denied"]
        assert list(last) == keys

    def test_who_does_not_wait_sees_nothing(self, desk: Desk, capsys: Captured) -> None:
        """--stream and --no-wait exclude each other."""
        assert run(["query", "n", "?", "--stream", "--no-wait"]) == 2
        assert "not allowed with" in capsys.readouterr().err
        assert desk.asked == []


class TestRun:
    """An agent for one question."""

    @pytest.mark.parametrize(
        ("stop", "code"),
        [("end_turn", 0), ("max_turns", 5), ("timeout", 5), ("budget", 5), ("max_tokens", 5), ("aborted", 1)],
    )
    @pytest.mark.parametrize(
        "how", [["run", "t"], ["run", "t", "--json"], ["run", "t", "--json-events"], ["collect", "n"]]
    )
    def test_an_answer_that_was_cut_short_is_no_success(
        self, desk: Desk, capsys: Captured, how: list[str], stop: str, code: int
    ) -> None:
        """What there is of it is printed, and a script that goes by the exit code does not take it for all."""
        desk.answers["query"] = desk.answers["collect"] = reply("so far", 1, stop_reason=stop)
        assert run(how) == code
        assert "so far" in capsys.readouterr().out

    def test_who_says_nothing_is_told_of(self, desk: Desk, capsys: Captured) -> None:
        """No output is nothing that anybody would look for."""
        desk.answers["query"] = reply(" ", 1)
        assert run(["query", "n", "?"]) == 0
        assert "said nothing" in capsys.readouterr().err

    @pytest.mark.parametrize(("extra", "prompt"), [([], "t"), (["why?"], "why?")])
    def test_it_is_asked_and_ended(self, desk: Desk, capsys: Captured, extra: list[str], prompt: str) -> None:
        """The prompt, or the task itself; then nothing of it runs on."""
        assert run(["run", "t", *extra, "--model", "a:b", "--name", "one"]) == 0
        assert [method for method, _ in desk.asked] == ["spawn", "query", "kill"]
        assert (desk.asked[0][1]["model"], desk.asked[0][1]["name"]) == ("a:b", "one")
        assert desk.asked[1][1] == {"ref": "abc", "prompt": prompt}
        assert desk.asked[2][1] == {"refs": ["abc"]}
        assert capsys.readouterr() == ("42\n", "")

    def test_it_can_be_kept(self, desk: Desk, capsys: Captured) -> None:
        """With --keep the agent stays, and its id is told."""
        assert run(["run", "t", "--model", "a:b", "--keep"]) == 0
        assert [method for method, _ in desk.asked] == ["spawn", "query"]
        assert capsys.readouterr() == ("42\n", "orch: agent abc is kept\n")

    def test_the_reply_as_json(self, desk: Desk, capsys: Captured) -> None:
        """The same keys as a query's, and with --stream the events before it."""
        assert run(["run", "t", "--model", "a:b", "--json", "--keep"]) == 0
        out, err = capsys.readouterr()
        assert (json.loads(out)["text"], err) == ("42", "")
        desk.events = events(text("4"))
        run(["run", "t", "--model", "a:b", "--json", "--stream"])
        assert len(capsys.readouterr().out.splitlines()) == 2

    def test_a_failure_ends_it_too(self, desk: Desk, capsys: Captured) -> None:
        """The exit code is the query's."""
        desk.answers["query"] = CommandError("RateLimitError", "too many", 5)
        assert run(["run", "t", "--model", "a:b"]) == 5
        assert desk.asked[-1] == ("kill", {"refs": ["abc"]})
        assert capsys.readouterr() == ("", "orch: too many\n")

    def test_an_end_that_fails_takes_no_answers_place(self, desk: Desk, capsys: Captured) -> None:
        """The answer is there, or the error that came first, and that the agent was not ended."""
        desk.answers["kill"] = CommandError("DaemonGone", "the daemon is gone")
        assert run(["run", "t", "--model", "a:b"]) == 0
        assert capsys.readouterr() == ("42\n", "orch: agent abc was not ended: the daemon is gone\n")
        desk.answers["query"] = CommandError("RateLimitError", "too many", 5)
        assert run(["run", "t", "--model", "a:b"]) == 5
        assert capsys.readouterr().err.splitlines()[-1] == "orch: too many"

    def test_ctrl_c_ends_it(self, desk: Desk, capsys: Captured) -> None:
        """Unless it is to be kept: then it works on, and how to get at its answer is said."""
        desk.answers["query"] = KeyboardInterrupt()
        assert run(["run", "t", "--model", "a:b"]) == 130
        assert desk.asked[-1] == ("kill", {"refs": ["abc"]})
        assert capsys.readouterr().err == "orch: interrupted; agent abc was ended\n"
        assert run(["run", "t", "--model", "a:b", "--keep"]) == 130
        assert desk.asked[-1][0] == "query"
        assert "orch collect abc" in capsys.readouterr().err

    def test_ctrl_c_before_its_id_is_known(self, desk: Desk) -> None:
        """The same request names the same agent, and it is ended."""
        desk.answers["spawn"] = [KeyboardInterrupt(), desk.answers["spawn"]]
        desk.in_turn = {"spawn"}
        assert run(["run", "t", "--model", "a:b"]) == 130
        assert [method for method, _ in desk.asked] == ["spawn", "spawn", "kill"]
        assert desk.asked[0][1]["request_id"] == desk.asked[1][1]["request_id"]

    def test_an_ended_agent_is_asked_again_and_ended_again(self, desk: Desk, capsys: Captured) -> None:
        """By its id, with the task as the prompt; one that lives is asked, and lives on."""
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
        assert capsys.readouterr().err == "orch: agent abc is kept\n"

    @pytest.mark.parametrize(
        ("extra", "told"),
        [
            (["why?"], "PROMPT"),
            (["--model", "a:b"], "--model"),
            (["--dry-run", "--preset", "x"], "--preset, --dry-run"),
        ],
    )
    def test_who_is_asked_again_stays_what_it_is(
        self, desk: Desk, capsys: Captured, extra: list[str], told: str
    ) -> None:
        """What would make another agent of it is refused by name."""
        assert run(["run", "t", *extra, "--resume", "abc"]) == 2
        assert f"leave out {told}." in capsys.readouterr().err
        assert desk.asked == []

    def test_everything_as_json_lines(self, desk: Desk, capsys: Captured) -> None:
        """The agent first, the reply last, each with a kind, so that it can be asked again by its id."""
        desk.events = events(text("4"), text("2"))
        assert run(["run", "t", "--model", "a:b", "--json-events"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["kind"] for line in lines] == ["agent", "text", "text", "reply"]
        assert (lines[0]["id"], lines[-1]["text"]) == ("abc", "42")

    def test_a_failure_is_a_json_line_too(self, desk: Desk, capsys: Captured) -> None:
        """The last one, and an object on standard error as with every command."""
        desk.answers["query"] = CommandError("RateLimitError", "too many", 5)
        assert run(["run", "t", "--model", "a:b", "--json-events"]) == 5
        out, err = capsys.readouterr()
        error = {"type": "RateLimitError", "message": "too many"}
        assert json.loads(out.splitlines()[-1]) == {"kind": "failed", "error": error}
        assert json.loads(err) == {"error": error}


class TestSend:
    """A piece of a file goes to an agent."""

    @pytest.mark.parametrize(("work", "extra", "later"), [(None, [], True), ("q", [], False), ("q", ["--later"], True)])
    def test_who_works_hears_it_and_who_idles_is_asked(
        self, desk: Desk, capsys: Captured, work: str | None, extra: list[str], later: bool
    ) -> None:
        """Whatever the agent does just now, the text reaches it."""
        desk.answers["state"] = ROW | {"pending": work}
        assert run(["send", "n", "x = 1", *extra]) == 0
        assert desk.asked[-1] == ("steer", {"ref": "abc", "text": "x = 1", "follow_up": later})
        assert capsys.readouterr().out == "s1\n"

    def test_where_it_is_from_and_what_is_asked_of_it(self) -> None:
        """The question, the place, and the text as it is, in a fence that nothing in it closes."""
        assert quoted("a\n", "src/pump.py:1-2", "Why?") == "Why?\n\nFrom src/pump.py:1-2:\n\n```py\na\n```"
        assert quoted("```\nb\n```", "notes", "") == "From notes:\n\n````\n```\nb\n```\n````"

    def test_nothing_is_not_sent(self, desk: Desk, capsys: Captured) -> None:
        """An empty selection is told."""
        assert run(["send", "n", " \n"]) == 2
        assert "nothing to send" in capsys.readouterr().err
        assert desk.asked == []


class TestStatusLine:
    """Who works on what, while somebody waits at a terminal."""

    @pytest.fixture(autouse=True)
    def _at_work(self, desk: Desk) -> None:
        """An agent and its child at work, beside another that is none of its business."""
        busy = ROW | {"pending": "why?", "activity": "tool: bash", "last_activity": "2999-01-01T00:00:00Z"}
        desk.silences = 2
        desk.answers["list"] = [
            busy,
            busy | {"id": "kid", "parent_id": "abc", "name": "kid", "activity": "", "status": "starting"},
            busy | {"id": "lazy", "parent_id": "abc", "name": "lazy", "pending": None},
            busy | {"id": "other", "name": "other"},
        ]

    @pytest.mark.parametrize("argv", [["query", "n", "?"], ["collect", "n"], ["run", "t", "--model", "a:b"]])
    def test_it_is_updated_in_place_and_goes(
        self, desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch, argv: list[str]
    ) -> None:
        """The agent and those below it that work; nothing is left of it."""
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        assert run(argv) == 0
        shown = "\rn: tool: bash, 0s; kid: starting, 0s\x1b[K"
        assert capsys.readouterr() == ("42\n", shown * 2 + "\r\x1b[K")
        assert [method for method, _ in desk.asked].count("state") == 1

    @pytest.mark.parametrize(
        ("terminal", "extra"), [(False, []), (True, ["--json"]), (True, ["--stream"])], ids=["no tty", "json", "stream"]
    )
    def test_where_it_does_not_belong(
        self, desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch, terminal: bool, extra: list[str]
    ) -> None:
        """Without a terminal, as JSON and beside a stream there is no line, and nobody is asked for it."""
        monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
        desk.answers["query"] = REPLY | {"steps": 1}
        assert run(["query", "n", "?", *extra]) == 0
        assert capsys.readouterr().err == ""
        assert [method for method, _ in desk.asked] == ["query"]

    def test_it_fails_in_silence(self, desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whoever waits hears of trouble from the answer alone."""
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        desk.answers["list"] = CommandError("DaemonGone", "gone")
        assert run(["query", "n", "?"]) == 0
        assert capsys.readouterr() == ("42\n", "")
        assert [method for method, _ in desk.asked].count("list") == 1

    def test_it_fits_the_terminal(self, desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
        """A narrow terminal gets the head of the line, so that it stays one."""
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.setattr("orch.cli.agents.query._width", lambda: 8)
        desk.silences = 1
        assert run(["query", "n", "?"]) == 0
        assert capsys.readouterr().err == "\rn: tool\x1b[K\r\x1b[K"
