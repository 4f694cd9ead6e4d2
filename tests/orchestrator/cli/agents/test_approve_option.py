"""`--approve`: what is asked at a terminal, denied without one, or let through and said; and what is listed later."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch.cli import run
from orch.cli.agents import controlling_terminal
from orch.cli.agents.approval_prompt import MODES, choose_approval
from orch.client.connection import NOT_RUNNING
from orch.client.failure import CommandError
from orch.policy.grants import GrantStore, grant_of
from orch_protocol.policy.approval import Consent, Permission, Question
from orchestrator.daemon_double import REPLY, Desk, opened

Captured = pytest.CaptureFixture[str]

LINES = ["agent: n (abc, depth 2)", "wants: rm x\x1b[2K"]
QUESTION: dict[str, Any] = {"id": "q7", "kind": "question", "tool": "bash", "lines": LINES, "seconds": 300}


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    """A fake daemon that has a question while it is asked."""
    made = opened(monkeypatch, tmp_path)
    monkeypatch.delenv("ORCH_APPROVE")
    made.events = [QUESTION]
    made.answers["answer"] = {"taken": True, "note": ""}
    return made


def terminal(monkeypatch: pytest.MonkeyPatch, typed: str) -> list[str]:
    """Let a user type `typed` in reply to each question on the controlling terminal; return the list of questions."""
    asked: list[str] = []

    def ask(question: str, seconds: float) -> str:
        assert seconds == 300
        asked.append(question)
        return typed

    monkeypatch.setattr(controlling_terminal, "reach", lambda: "foreground")
    monkeypatch.setattr(controlling_terminal, "ask", ask)
    return asked


def answers(desk: Desk) -> list[dict[str, Any]]:
    """Return what was answered."""
    return [params for method, params in desk.asked if method == "answer"]


@pytest.mark.parametrize("verb", [["query", "n", "go"], ["run", "go"]], ids=lambda verb: verb[0])
@pytest.mark.parametrize(
    ("typed", "allow", "scope"),
    [
        ("y\n", True, "once"),
        ("s\n", True, "session"),
        ("P\n", True, "project"),
        ("\n", False, "once"),
        ("", False, "once"),
    ],
)
def test_a_person_is_asked(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, verb: list[str], typed: str, allow: bool, scope: str
) -> None:
    """Each question is shown on the terminal and its answer sent; everything but a clear yes is a no."""
    questions = terminal(monkeypatch, typed)
    assert run(verb) == 0
    assert answers(desk) == [{"id": "q7", "allow": allow, "scope": scope}]
    (asked,) = [params for method, params in desk.asked if method == "query"]
    assert asked["approve"] is True
    (said,) = questions
    assert "wants: rm x\\x1b[2K" in said
    assert "Allow it?" in said


@pytest.mark.parametrize(("typed", "allow"), [("y\n", True), ("s\n", False), ("p\n", False), ("", False)])
def test_a_plan_is_shown_as_one(desk: Desk, monkeypatch: pytest.MonkeyPatch, typed: str, allow: bool) -> None:
    """A person sees the plan line by line and says yes to it or not: there is no yes to plans to come."""
    desk.events = [QUESTION | {"tool": "exit_plan_mode", "lines": ["agent: n", "plan:", "| # Do", "| it"]}]
    questions = terminal(monkeypatch, typed)
    assert run(["run", "go", "--plan"]) == 0
    assert answers(desk) == [{"id": "q7", "allow": allow, "scope": "once"}]
    (spawned,) = [params for method, params in desk.asked if method == "spawn"]
    assert spawned["plan"] is True
    (said,) = questions
    assert "  plan:\n  | # Do\n  | it\nApprove this plan? [y] yes, anything else: no" in said


def test_who_spawns_and_asks_is_asked_too(desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """With --query, at a terminal or by --approve; without a question there is nothing to answer."""
    terminal(monkeypatch, "s\n")
    assert run(["spawn", "look", "--query", "go"]) == 0
    assert answers(desk) == [{"id": "q7", "allow": True, "scope": "session"}]
    assert capsys.readouterr().out == "abc\n42\n"
    desk.asked.clear()
    assert run(["spawn", "look", "--query", "go", "--approve", "auto", "--json"]) == 0
    assert answers(desk) == [{"id": "q7", "allow": True, "scope": "once"}]
    assert json.loads(capsys.readouterr().out)["reply"]["text"] == "42"
    desk.asked.clear()
    assert run(["spawn", "look", "--approve", "deny"]) == 0
    assert [method for method, _ in desk.asked] == ["spawn"]
    assert desk.asked[0][1]["policy"]["channel"] == "cli"


def test_nobody_can_be_asked_without_a_terminal(desk: Desk, capsys: Captured) -> None:
    """That is said before an agent is made, and before a command is executed."""
    for argv in (["spawn", "look", "--query", "go"], ["execute", "1", "/review"]):
        assert run([*argv, "--approve", "ask"]) == 2
        assert desk.asked == []
        assert "--approve ask needs a terminal" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["spawn", "go"], ["run", "go"], ["run", "go", "--approve", "auto"]], ids=" ".join)
def test_agents_of_the_command_line_have_its_policy_without_a_terminal(desk: Desk, argv: list[str]) -> None:
    """Redirected streams do not turn approvals off."""
    assert run([*argv, "--tools", "bash"]) == 0
    (spawned,) = [params for method, params in desk.asked if method == "spawn"]
    assert spawned["policy"]["channel"] == "cli"


def test_at_a_terminal_an_agent_works_by_its_rules(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody is there to be asked."""
    terminal(monkeypatch, "")
    assert run(["spawn", "go", "--tools", "bash"]) == 0
    (spawned,) = [params for method, params in desk.asked if method == "spawn"]
    assert spawned["policy"]["channel"] == "cli"


@pytest.mark.parametrize("extra", [[], ["--approve", "deny"]])
def test_without_a_terminal_it_is_denied(desk: Desk, extra: list[str]) -> None:
    """Where nobody is, the root is not told that anybody is: it denies at once."""
    desk.events = []
    assert run(["query", "n", "go", *extra]) == 0
    ((method, params),) = desk.asked
    assert (method, "approve" in params) == ("query", False)


def test_what_is_let_through_is_said(desk: Desk, capsys: Captured) -> None:
    """With auto everything is allowed, once, and stderr tells what; stdout is the answer alone."""
    assert run(["query", "n", "go", "--approve", "auto"]) == 0
    assert answers(desk) == [{"id": "q7", "allow": True, "scope": "once"}]
    out, err = capsys.readouterr()
    assert out == "42\n"
    assert err == "orch: let through: agent: n (abc, depth 2); wants: rm x\\x1b[2K\n"


def test_questions_do_not_show_among_the_events_of_a_stream(desk: Desk, capsys: Captured) -> None:
    """A streamed turn has its own events as data, and its questions are answered beside them."""
    desk.events = [QUESTION, {"n": 1, "kind": "text", "text": "4"}]
    assert run(["query", "n", "go", "--stream", "--json", "--approve", "auto"]) == 0
    kinds = [json.loads(line).get("kind") for line in capsys.readouterr().out.splitlines()]
    assert kinds == ["text", None]


def test_an_answer_that_came_too_late_is_said(desk: Desk, capsys: Captured) -> None:
    """When the question was settled meanwhile, that is what is told."""
    desk.answers["answer"] = json.loads(json.dumps({"taken": False, "note": "nobody answered in time"}))
    run(["query", "n", "go", "--approve", "auto"])
    assert capsys.readouterr().err == "orch: that did not count: nobody answered in time\n"


def test_a_conversation_that_stays_here_is_said_to(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """A person is told that the conversation is for local models by now; a script's stderr stays empty."""
    desk.events = []
    desk.answers["query"] = REPLY | {"local": True}
    assert run(["query", "n", "go", "--approve", "deny"]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run(["query", "n", "go", "--stream"]) == 0
    assert capsys.readouterr().err.endswith("orch: this conversation is for local models alone by now\n")


@pytest.mark.parametrize("verb", [["query", "n", "go"], ["run", "go"]], ids=lambda verb: verb[0])
def test_asking_needs_a_terminal(desk: Desk, capsys: Captured, verb: list[str]) -> None:
    """Who wants to be asked where nobody can be is told so, before anything is done."""
    assert run([*verb, "--approve", "ask"]) == 2
    assert desk.asked == []
    assert "needs a terminal" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "variable", "json", "reach", "mode", "notice"),
    [
        (None, None, False, "foreground", "ask", ""),
        (None, None, False, "background", "ask", "not in the foreground"),
        (None, None, False, "none", "deny", "no terminal"),
        (None, "", False, "none", "deny", "no terminal"),
        (None, "ask", False, "foreground", "ask", ""),
        (None, "ask", False, "none", "deny", "no terminal"),
        (None, "auto", False, "none", "auto", ""),
        (None, "deny", False, "foreground", "deny", ""),
        ("deny", "auto", False, "foreground", "deny", ""),
        ("auto", "deny", False, "background", "auto", ""),
        ("ask", "auto", False, "foreground", "ask", ""),
        ("ask", None, False, "background", "ask", "not in the foreground"),
        (None, None, True, "foreground", "deny", "with --json nobody is asked"),
        (None, "ask", True, "foreground", "deny", "with --json nobody is asked"),
        (None, None, True, "none", "deny", "no terminal"),
        ("ask", None, True, "foreground", "ask", ""),
        ("auto", None, True, "none", "auto", ""),
    ],
)
def test_approval_mode_comes_from_flag_then_variable_then_terminal(
    flag: str | None, variable: str | None, json: bool, reach: Any, mode: str, notice: str
) -> None:
    """A notice says why nobody can be asked, unless the user chose an answer."""
    chosen = choose_approval(flag, variable, json=json, reach=reach)
    assert chosen.mode == mode
    assert notice in chosen.notice
    assert bool(chosen.notice) is bool(notice)
    assert chosen.chose_deny is (mode == "deny" and not notice)


def test_unknown_approval_mode_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """Before an agent is started; the error names the variable and its values."""
    monkeypatch.setenv("ORCH_APPROVE", "yes")
    assert run(["run", "go"]) == 2
    assert desk.asked == []
    assert capsys.readouterr().err == "orch: ORCH_APPROVE='yes' is not valid: use ask, deny or auto\n"
    assert MODES == ("ask", "deny", "auto")


def test_variable_allows_calls(desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """ORCH_APPROVE=auto is the same as --approve auto."""
    monkeypatch.setenv("ORCH_APPROVE", "auto")
    assert run(["query", "n", "go"]) == 0
    assert [each["allow"] for each in answers(desk)] == [True]
    assert "let through" in capsys.readouterr().err


DENIED = {
    "query": ["query", "n", "go"],
    "run": ["run", "go"],
    "spawn": ["spawn", "look", "--query", "go"],
}


@pytest.mark.parametrize("argv", DENIED.values(), ids=DENIED)
def test_denied_calls_without_a_terminal_exit_with_1(desk: Desk, capsys: Captured, argv: list[str]) -> None:
    """The answer is printed all the same. One line before the request says what will happen, one after it what did."""
    desk.events = []
    desk.answers["query"] = REPLY | {"denied": 2}
    assert run(argv) == 1
    out, err = capsys.readouterr()
    assert out.endswith("42\n")
    before, after = [line for line in err.splitlines() if "approval" in line]
    assert before.startswith("orch: there is no terminal to ask on: calls that need approval will be denied.")
    assert after.startswith("orch: 2 calls that needed approval were denied because nobody could be asked.")
    for way in ("--approve auto", "ORCH_APPROVE", "[policy.permissions]"):
        assert way in before
        assert way in after
    assert run([*argv, "--json"]) == 1
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told.get("reply", told)["denied"] == 2
    assert "no terminal" in json.loads(err.splitlines()[-1])["notice"]


def test_denied_calls_are_reported_by_collect(desk: Desk, capsys: Captured) -> None:
    """A query that nobody waited for had nobody to ask."""
    desk.answers["collect"] = REPLY | {"denied": 1}
    assert run(["collect", "n"]) == 1
    out, err = capsys.readouterr()
    assert out == "42\n"
    assert err.startswith("orch: 1 call that needed approval was denied")


@pytest.mark.parametrize("denied", [0, 1])
def test_denied_calls_are_no_failure_where_the_user_chose_deny(desk: Desk, capsys: Captured, denied: int) -> None:
    """Nothing is said of approval then."""
    desk.events = []
    desk.answers["query"] = REPLY | {"denied": denied}
    assert run(["query", "n", "go", "--approve", "deny"]) == 0
    assert capsys.readouterr() == ("42\n", "")


def test_limit_reached_beats_denied_calls(desk: Desk) -> None:
    """The exit code of a limit stays 5."""
    desk.answers["query"] = REPLY | {"denied": 1, "stop_reason": "budget"}
    assert run(["query", "n", "go"]) == 5


def test_question_in_the_background_is_answered_as_unasked(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that left the foreground after it started denies the call, and says that nobody was asked."""

    def ask(_question: str, _seconds: float) -> str:
        raise controlling_terminal.NoTerminalError

    monkeypatch.setattr(controlling_terminal, "reach", lambda: "background")
    monkeypatch.setattr(controlling_terminal, "ask", ask)
    desk.answers["query"] = REPLY | {"denied": 1}
    assert run(["query", "n", "go"]) == 1
    assert answers(desk) == [{"id": "q7", "allow": False, "unasked": True}]


def permission(**changes: Any) -> dict[str, Any]:
    """Return a permission as a daemon tells of it."""
    row = Permission("id1", "session", "bash", "rm x\x1b[2K", True, "/w", 0.0, None, "abc")
    builtins: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(row, **changes))
    return builtins


def test_permissions_of_sessions_are_those_of_a_daemon_that_runs(desk: Desk, tmp_path: Path, capsys: Captured) -> None:
    """A daemon is asked for what holds here, and to take it back; it is not started for that."""
    desk.answers["permissions"] = [
        permission(),
        permission(id="id2", expires_at=60.0),
        permission(id="id3", agent_id=""),
    ]
    desk.answers["revoke"] = [permission()]
    assert run(["config", "permissions"]) == 0
    assert capsys.readouterr().out == (
        "id1  bash: rm x\\x1b[2K, for agent abc, while the daemon runs\n"
        "id2  bash: rm x\\x1b[2K, for agent abc, until 1970-01-01 00:01 UTC\n"
        "id3  bash: rm x\\x1b[2K, for ever\n"
    )
    assert run(["config", "permissions", "--revoke", "id1"]) == 0
    assert capsys.readouterr().out.startswith("revoked: id1  bash")
    assert run(["config", "permissions", "--revoke", "all"]) == 0
    folder = str((tmp_path / "project").resolve())
    assert desk.asked == [
        ("permissions", {"folder": folder}),
        ("revoke", {"ids": ["id1"]}),
        ("revoke", {"all": True, "folder": folder}),
    ]


def test_without_a_daemon_permissions_are_those_of_projects(desk: Desk, tmp_path: Path, capsys: Captured) -> None:
    """What was approved for a project is listed with its end, and can be taken back, one or all; never another's."""
    desk.answers["permissions"] = desk.answers["revoke"] = CommandError(NOT_RUNNING, "no daemon is running", 3)
    here, there = str((tmp_path / "project").resolve()), str(tmp_path.resolve())
    grants, now = GrantStore(tmp_path / "home"), time.time()
    for folder, pattern in ((here, None), (here, "git *"), (there, None)):
        asked = Question("q", "a", "n", "t", 1, "bash", "rm x", {}, (), "", folder, "d")
        grants.add(grant_of(asked, Consent(True, "project", pattern), now), now)
    first, second, _ = grants.of()
    end = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now + 90 * 86400))
    assert run(["config", "permissions"]) == 0
    assert capsys.readouterr().out == (
        f"{first.id}  bash: rm x, until {end}\n{second.id}  bash: git * (pattern), until {end}\n"
    )
    run(["config", "permissions", "--json"])
    row = {"id": first.id, "scope": "project", "tool": "bash", "subject": "rm x", "exactly": True, "agent_id": ""}
    assert json.loads(capsys.readouterr().out)[0] == row | {"expires": end}
    assert run(["config", "permissions", "--revoke", first.id]) == 0
    assert grants.of(here) == [second]
    assert run(["config", "permissions", "--revoke", "all"]) == 0
    assert [each.folder for each in grants.of()] == [there]
    assert run(["config", "permissions", "--revoke", first.id]) == 2
    assert run(["config", "show", "--revoke", "all"]) == 2
