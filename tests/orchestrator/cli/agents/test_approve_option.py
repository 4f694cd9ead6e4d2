"""`--approve`: questions at a terminal, denials without a terminal, automatic consent, and stored permissions."""

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
    """A fake daemon that sends a question during a request."""
    made = opened(monkeypatch, tmp_path)
    monkeypatch.delenv("ORCH_APPROVE")
    made.events = [QUESTION]
    made.answers["answer"] = {"taken": True, "note": ""}
    return made


def terminal(monkeypatch: pytest.MonkeyPatch, typed: str) -> list[str]:
    """Answer each question on the controlling terminal with `typed`. Return the list of questions."""
    asked: list[str] = []

    def ask(question: str, seconds: float) -> str:
        assert seconds == 300
        asked.append(question)
        return typed

    monkeypatch.setattr(controlling_terminal, "reach", lambda: "foreground")
    monkeypatch.setattr(controlling_terminal, "ask", ask)
    return asked


def answers(desk: Desk) -> list[dict[str, Any]]:
    """Return the parameters of all answers."""
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
def test_approval_is_asked_at_the_terminal(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, verb: list[str], typed: str, allow: bool, scope: str
) -> None:
    """Only `y`, `s` and `p` allow the call. An empty line or the end of input denies the call."""
    questions = terminal(monkeypatch, typed)
    assert run(verb) == 0
    assert answers(desk) == [{"id": "q7", "allow": allow, "scope": scope}]
    (asked,) = [params for method, params in desk.asked if method == "query"]
    assert asked["approve"] is True
    (found,) = questions
    assert "wants: rm x\\x1b[2K" in found
    assert "Allow it?" in found


@pytest.mark.parametrize(("typed", "allow"), [("y\n", True), ("s\n", False), ("p\n", False), ("", False)])
def test_plan_is_shown_and_approved_once(desk: Desk, monkeypatch: pytest.MonkeyPatch, typed: str, allow: bool) -> None:
    """A plan is approved with `y` only, because there is no approval for later plans."""
    desk.events = [QUESTION | {"tool": "exit_plan_mode", "lines": ["agent: n", "plan:", "| # Do", "| it"]}]
    questions = terminal(monkeypatch, typed)
    assert run(["run", "go", "--plan"]) == 0
    assert answers(desk) == [{"id": "q7", "allow": allow, "scope": "once"}]
    (spawned,) = [params for method, params in desk.asked if method == "spawn"]
    assert spawned["plan"] is True
    (found,) = questions
    assert "  plan:\n  | # Do\n  | it\nApprove this plan? [y] yes, anything else: no" in found


def test_spawn_with_query_asks_for_approval(desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """`spawn --query` asks at the terminal, or answers as `--approve` says."""
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


def test_approve_ask_without_a_terminal_is_refused(desk: Desk, capsys: Captured) -> None:
    """`--approve ask` without a terminal fails before an agent or a command starts."""
    for argv in (["spawn", "look", "--query", "go"], ["execute", "1", "/review"]):
        assert run([*argv, "--approve", "ask"]) == 2
        assert desk.asked == []
        assert "--approve ask needs a terminal" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["spawn", "go"], ["run", "go"], ["run", "go", "--approve", "auto"]], ids=" ".join)
def test_redirected_command_keeps_the_policy_of_the_command_line(desk: Desk, argv: list[str]) -> None:
    """The agent has the channel `cli`, so redirected streams do not turn approvals off."""
    assert run([*argv, "--tools", "bash"]) == 0
    (spawned,) = [params for method, params in desk.asked if method == "spawn"]
    assert spawned["policy"]["channel"] == "cli"


def test_agent_spawned_at_a_terminal_asks_by_its_rules(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that is spawned at a terminal gets the channel `cli`."""
    terminal(monkeypatch, "")
    assert run(["spawn", "go", "--tools", "bash"]) == 0
    (spawned,) = [params for method, params in desk.asked if method == "spawn"]
    assert spawned["policy"]["channel"] == "cli"


@pytest.mark.parametrize("extra", [[], ["--approve", "deny"]])
def test_call_without_a_terminal_is_denied_at_once(desk: Desk, extra: list[str]) -> None:
    """The request does not offer to answer questions, so the root denies the call at once."""
    desk.events = []
    assert run(["query", "n", "go", *extra]) == 0
    ((method, params),) = desk.asked
    assert (method, "approve" in params) == ("query", False)


def test_approve_auto_allows_and_reports_each_call(desk: Desk, capsys: Captured) -> None:
    """The report of an allowed call is on stderr; stdout contains the answer only."""
    assert run(["query", "n", "go", "--approve", "auto"]) == 0
    assert answers(desk) == [{"id": "q7", "allow": True, "scope": "once"}]
    out, err = capsys.readouterr()
    assert out == "42\n"
    assert err == "orch: allowed: agent: n (abc, depth 2); wants: rm x\\x1b[2K\n"


def test_questions_are_not_part_of_the_json_stream(desk: Desk, capsys: Captured) -> None:
    """A question is answered but not printed among the JSON events."""
    desk.events = [QUESTION, {"n": 1, "kind": "text", "text": "4"}]
    assert run(["query", "n", "go", "--stream", "--json", "--approve", "auto"]) == 0
    kinds = [json.loads(line).get("kind") for line in capsys.readouterr().out.splitlines()]
    assert kinds == ["text", None]


def test_late_answer_is_reported(desk: Desk, capsys: Captured) -> None:
    """If the question is already settled, the command reports that the answer had no effect."""
    desk.answers["answer"] = json.loads(json.dumps({"taken": False, "note": "no answer in time"}))
    run(["query", "n", "go", "--approve", "auto"])
    assert capsys.readouterr().err == "orch: the answer had no effect: no answer in time\n"


def test_local_only_conversation_is_reported_to_people(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """The notice appears at a terminal, and not on the stderr of a script."""
    desk.events = []
    desk.answers["query"] = REPLY | {"local": True}
    assert run(["query", "n", "go", "--approve", "deny"]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run(["query", "n", "go", "--stream"]) == 0
    assert capsys.readouterr().err.endswith("orch: this conversation is now restricted to local models\n")


@pytest.mark.parametrize("verb", [["query", "n", "go"], ["run", "go"]], ids=lambda verb: verb[0])
def test_approve_ask_needs_a_terminal(desk: Desk, capsys: Captured, verb: list[str]) -> None:
    """Without a terminal, `--approve ask` is refused before a request is sent."""
    assert run([*verb, "--approve", "ask"]) == 2
    assert desk.asked == []
    assert "needs a terminal" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "variable", "json", "reach", "mode", "obstacle"),
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
        (None, None, True, "foreground", "deny", "--json does not ask"),
        (None, "ask", True, "foreground", "deny", "--json does not ask"),
        (None, None, True, "none", "deny", "no terminal"),
        ("ask", None, True, "foreground", "ask", ""),
        ("auto", None, True, "none", "auto", ""),
    ],
)
def test_approval_mode_comes_from_flag_variable_or_terminal(
    flag: str | None, variable: str | None, json: bool, reach: Any, mode: str, obstacle: str
) -> None:
    """The flag comes first, then the variable, then the terminal. The obstacle says why no user can be asked."""
    chosen = choose_approval(flag, variable, json=json, reach=reach)
    assert chosen.mode == mode
    assert obstacle in chosen.obstacle
    assert bool(chosen.obstacle) is bool(obstacle)
    assert chosen.chose_deny is (mode == "deny" and not obstacle)


def test_unknown_approval_mode_is_refused_before_the_agent_starts(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """The error names the variable and its valid values."""
    monkeypatch.setenv("ORCH_APPROVE", "yes")
    assert run(["run", "go"]) == 2
    assert desk.asked == []
    assert capsys.readouterr().err == "orch: ORCH_APPROVE='yes' is not valid: use ask, deny or auto\n"
    assert MODES == ("ask", "deny", "auto")


def test_variable_allows_calls(desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """ORCH_APPROVE=auto has the same effect as `--approve auto`."""
    monkeypatch.setenv("ORCH_APPROVE", "auto")
    assert run(["query", "n", "go"]) == 0
    assert [each["allow"] for each in answers(desk)] == [True]
    assert "allowed" in capsys.readouterr().err


DENIED = {
    "query": ["query", "n", "go"],
    "run": ["run", "go"],
    "spawn": ["spawn", "look", "--query", "go"],
}


@pytest.mark.parametrize("argv", DENIED.values(), ids=DENIED)
def test_denied_calls_without_a_terminal_exit_with_1(desk: Desk, capsys: Captured, argv: list[str]) -> None:
    """The answer is printed, and one line on stderr counts the denied calls, with the reason and what allows them."""
    desk.events = []
    desk.answers["query"] = REPLY | {"denied": 2}
    assert run(argv) == 1
    out, err = capsys.readouterr()
    assert out.endswith("42\n")
    note = "2 calls that needed approval were denied because there is no terminal to ask on. "
    assert f"orch: {note}" in err
    for way in ("--approve auto", "ORCH_APPROVE", "[policy.permissions]"):
        assert way in err
    assert run([*argv, "--json"]) == 1
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert data.get("reply", data)["denied"] == 2
    assert json.loads(err.splitlines()[-1])["notice"].startswith(note)


@pytest.mark.parametrize("argv", [*DENIED.values(), ["query", "n", "go", "--no-wait"]], ids=[*DENIED, "no-wait"])
@pytest.mark.parametrize("extra", [[], ["--json"]])
def test_command_whose_calls_need_no_approval_prints_no_notice(
    desk: Desk, capsys: Captured, argv: list[str], extra: list[str]
) -> None:
    """Without a terminal, stderr stays empty unless a call was denied."""
    desk.events = []
    assert run([*argv, *extra]) == 0
    assert [line for line in capsys.readouterr().err.splitlines() if "model" not in line] == []


def test_denied_calls_are_reported_by_collect(desk: Desk, capsys: Captured) -> None:
    """`collect` exits with 1 if calls of a submitted query were denied."""
    desk.answers["collect"] = REPLY | {"denied": 1}
    assert run(["collect", "n"]) == 1
    out, err = capsys.readouterr()
    assert out == "42\n"
    assert err.startswith("orch: 1 call that needed approval was denied")
    assert "`orch query --approve auto` without --no-wait allows them" in err


@pytest.mark.parametrize("mode", MODES)
def test_no_wait_refuses_approve(desk: Desk, capsys: Captured, mode: str) -> None:
    """No command waits for the questions of the query. The error names the setting that allows calls."""
    assert run(["query", "n", "go", "--no-wait", "--approve", mode]) == 2
    assert desk.asked == []
    err = capsys.readouterr().err
    assert err.startswith(f"orch: --no-wait and --approve {mode} cannot be combined")
    assert "[policy.permissions]" in err


@pytest.mark.parametrize("denied", [0, 1])
def test_denied_calls_are_no_failure_where_the_user_chose_deny(desk: Desk, capsys: Captured, denied: int) -> None:
    """With `--approve deny` the exit code is 0, and no notice about approvals is printed."""
    desk.events = []
    desk.answers["query"] = REPLY | {"denied": denied}
    assert run(["query", "n", "go", "--approve", "deny"]) == 0
    assert capsys.readouterr() == ("42\n", "")


def test_limit_reached_beats_denied_calls(desk: Desk) -> None:
    """A turn that reached a limit exits with 5, also if calls were denied."""
    desk.answers["query"] = REPLY | {"denied": 1, "stop_reason": "budget"}
    assert run(["query", "n", "go"]) == 5


def test_question_in_the_background_is_denied(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is not in the foreground denies the call and reports that no user could be asked."""

    def ask(_question: str, _seconds: float) -> str:
        raise controlling_terminal.NoTerminalError

    monkeypatch.setattr(controlling_terminal, "reach", lambda: "background")
    monkeypatch.setattr(controlling_terminal, "ask", ask)
    desk.answers["query"] = REPLY | {"denied": 1}
    assert run(["query", "n", "go"]) == 1
    assert answers(desk) == [{"id": "q7", "allow": False, "unasked": True}]


def permission(**changes: Any) -> dict[str, Any]:
    """Return a permission as the daemon returns it."""
    row = Permission("id1", "session", "bash", "rm x\x1b[2K", True, "/w", 0.0, None, "abc")
    builtins: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(row, **changes))
    return builtins


def test_session_permissions_are_listed_and_revoked_in_the_daemon(desk: Desk, tmp_path: Path, capsys: Captured) -> None:
    """`--revoke` revokes one permission by its id, or all permissions for the folder."""
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
        "id3  bash: rm x\\x1b[2K, without a time limit\n"
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


def test_project_permissions_are_listed_and_revoked_without_a_daemon(
    desk: Desk, tmp_path: Path, capsys: Captured
) -> None:
    """Permissions are listed with their expiry, and one or all permissions of this project are revoked."""
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
    assert run(["config", "permissions", "--revoke", first.id]) == 3
    assert run(["config", "show", "--revoke", "all"]) == 2
