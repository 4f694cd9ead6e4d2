from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from orch.cli import VERBS, run
from orch.cli.agents import spawn_settings
from orch.client.failure import CommandError
from orchestrator.daemon_double import REPLY, ROW, SPAWNED, Desk, opened


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    """A fake daemon, an empty home and a clean environment."""
    return opened(monkeypatch, tmp_path)


Captured = pytest.CaptureFixture[str]


def test_spawn_prints_the_id(desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request carries the caller's folder, an allow-listed environment, and a number that makes it unique."""
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("SOME_API_KEY", "secret")
    assert run(["spawn", "look around", "--name", "n", "--model", "a:b", "--tools", "x, y"]) == 0
    assert capsys.readouterr().out == "abc\n"
    [(method, params)] = desk.asked
    assert (method, params["task"], params["name"], params["model"]) == ("spawn", "look around", "n", "a:b")
    assert (params["tools"], params["cwd"]) == (["x", "y"], os.getcwd())
    assert params["env"]["LC_ALL"] == "C.UTF-8"
    assert "secret" not in str(params)
    assert not [name for name in params["env"] if name.startswith("ORCH_")]
    assert len(params["request_id"]) == 16


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("verb", ["spawn", "run"])
def test_spawn_and_run_name_peers_and_archives(desk: Desk, verb: str) -> None:
    """Separated by commas; without the flags there are none."""
    run([verb, "t", "--peers", "reader,3", "--archives", "4f2a91c03be7"])
    params = next(params for method, params in desk.asked if method == "spawn")
    assert (params["peers"], params["archives"]) == (["reader", "3"], ["4f2a91c03be7"])
    desk.asked.clear()
    run([verb, "t"])
    params = next(params for method, params in desk.asked if method == "spawn")
    assert (params["peers"], params["archives"]) == ([], [])


@pytest.mark.usefixtures("desk")
def test_spawn_in_json_has_exactly_its_keys(capsys: Captured) -> None:
    """Scripts rely on the shape."""
    assert run(["spawn", "t", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told) == ["id", "seq", "name", "preset", "depth", "pid"]


@pytest.mark.parametrize(("extra", "prompt"), [(["--query"], "t"), (["--query", "why?"], "why?")])
def test_spawn_can_ask_at_once(desk: Desk, capsys: Captured, extra: list[str], prompt: str) -> None:
    """With --query the task, or the prompt given, is asked; the answer follows the id."""
    assert run(["spawn", "t", *extra]) == 0
    assert capsys.readouterr().out == "abc\n42\n"
    assert desk.asked[1] == ("query", {"ref": "abc", "prompt": prompt})
    assert run(["spawn", "t", *extra, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reply"]["text"] == "42"


@pytest.mark.parametrize("empty", ["", " \n"])
def test_spawn_makes_nobody_who_would_be_asked_nothing(desk: Desk, capsys: Captured, empty: str) -> None:
    """An empty question, as of a variable that is not set, is told before there is an agent nobody has the id of."""
    assert run(["spawn", "t", "--query", empty]) == 2
    assert capsys.readouterr() == ("", "orch: --query is empty: say what to ask, or leave it out\n")
    assert desk.asked == []


def test_spawn_without_a_model_says_who_answers(desk: Desk, capsys: Captured) -> None:
    """One line on stderr, only when nothing is configured; the agent is what the line says."""
    run(["spawn", "t"])
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "extractive" in err
    assert "ORCH_MODEL" in err
    assert desk.asked[0][1]["model"] == "extractive:"
    for argv in (["--model", "a:b"], ["--script", "s.json"]):
        Path("s.json").write_text('["hello"]')
        run(["spawn", "t", *argv])
        assert capsys.readouterr().err == ""
    assert desk.asked[2][1]["script"] == ["hello"]
    assert "model" not in desk.asked[2][1]


def test_spawn_follows_the_callers_configuration(
    desk: Desk, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Model, preset, tools and limits are those of the caller's files and variables, whatever the daemon's are."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text("[limits]\nmax_turns = 3\n[subagents]\ndefault_preset = 'minimal'")
    monkeypatch.setenv("ORCH_MODEL", "openai:m")
    run(["spawn", "t"])
    params = desk.asked[-1][1]
    assert (params["model"], params["preset"], params["limits"]["max_turns"]) == ("openai:m", "minimal", 3)
    monkeypatch.setenv("ORCH_THINKING", "low")
    monkeypatch.setenv("ORCH_SUBAGENTS__DEFAULT_TOOLS", "read_file")
    run(["spawn", "t"])
    params = desk.asked[-1][1]
    assert (params["tools"], params["thinking"], params["usual_thinking"]) == (["read_file"], None, "low")
    run(["spawn", "t", "--preset", "investigate"])
    assert desk.asked[-1][1]["preset"] == "investigate"
    assert capsys.readouterr().err == ""


def test_what_is_told_of_a_project_is_the_callers_to_say(
    desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flag goes along, for spawn and run alike, and so do the caller's rules for presets; another word does not."""
    monkeypatch.setenv("ORCH_SUBAGENTS__CONTEXT__WORK", "brief")
    for verb in ("spawn", "run"):
        for flags, said in (([], None), (["--context", "full"], "full")):
            desk.asked.clear()
            run([verb, "t", *flags])
            params = desk.asked[0][1]
            assert (params["context"], params["context_rules"]["work"]) == (said, "brief")
    assert run(["spawn", "t", "--context", "much"]) == 2
    assert "invalid choice: 'much'" in capsys.readouterr().err


def test_who_an_agent_is_is_filled_in_where_the_caller_stands(
    desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The template is the caller's, by name or as a file, with values from flags and configuration; the daemon is told
    the text. What is missing is said, and asks nothing."""
    (tmp_path / "pirate.md").write_text("You are {{who}}, {{mood}}.")
    monkeypatch.setenv("ORCH_PROMPT__TEMPLATES", str(tmp_path))
    monkeypatch.setenv("ORCH_PROMPT__VARS__MOOD", "kind")
    for name in ("pirate", str(tmp_path / "pirate.md")):
        desk.asked.clear()
        assert run(["spawn", "t", "--prompt-template", name, "--var", "who=Anne"]) == 0
        assert desk.asked[0][1]["prompt"]["identity"] == "You are Anne, kind."
    desk.asked.clear()
    assert run(["spawn", "t", "--prompt-template", "pirate"]) == 2
    assert "needs who" in capsys.readouterr().err
    assert run(["spawn", "t", "--prompt-template", "pirate", "--var", "who"]) == 2
    assert desk.asked == []
    assert run(["spawn", "t"]) == 0
    assert "identity" not in desk.asked[0][1]["prompt"]


def test_templates_are_listed_and_printed(capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All of them with their variables, or one, filled in where values are given; none is no error."""
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    assert run(["prompts"]) == 0
    assert "no templates; put one into" in capsys.readouterr().out
    (tmp_path / "pirate.md").write_text("You are {{who}}.")
    monkeypatch.setenv("ORCH_PROMPT__TEMPLATES", str(tmp_path))
    run(["prompts"])
    assert capsys.readouterr().out.splitlines()[1].split() == ["pirate", "who", str(tmp_path / "pirate.md")]
    run(["prompts", "pirate"])
    run(["prompts", "pirate", "--var", "who=Anne"])
    assert capsys.readouterr().out == "You are {{who}}.\nYou are Anne.\n"
    run(["prompts", "--json"])
    [row] = json.loads(capsys.readouterr().out)
    assert row == {"name": "pirate", "variables": ["who"], "source": str(tmp_path / "pirate.md")}
    assert run(["prompts", "nobody"]) == 2


def test_a_budget_is_the_flags_or_the_configured_one(
    desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For spawn and run alike; what is no money is wrong use."""
    for argv, usd in ((["spawn", "t", "--max-cost", "0.50"], 0.5), (["run", "t", "--max-cost=$2"], 2.0)):
        desk.asked.clear()
        run(argv)
        assert desk.asked[0][1]["budget"]["max_cost_usd"] == usd
    run(["spawn", "t"])
    assert set(desk.asked[-1][1]["budget"].values()) == {None}
    monkeypatch.setenv("ORCH_SUBAGENTS__MAX_COST_USD", "1.5")
    run(["spawn", "t"])
    assert desk.asked[-1][1]["budget"]["max_cost_usd"] == 1.5
    flags = "--max-tokens 50k --max-seconds 90 --max-tool-seconds 1.5 --max-model-calls 7 --max-tool-calls 8"
    run(["spawn", "t", *flags.split(), "--max-processes", "9"])
    assert list(desk.asked[-1][1]["budget"].values()) == [1.5, 50_000, 90.0, 1.5, 7, 8, 9]
    for flag, wrong in (
        ("--max-tokens", "0"),
        ("--max-tokens", "1.5"),
        ("--max-seconds", "0"),
        ("--max-processes", "k"),
    ):
        assert run(["spawn", "t", flag, wrong]) == 2
    for wrong in ("0", "-1", "nan", "inf", "much", ""):
        capsys.readouterr()
        assert run(["spawn", "t", f"--max-cost={wrong}"]) == 2
        assert "is no amount of US dollars above 0" in capsys.readouterr().err


def test_spawn_says_what_of_a_projects_file_does_not_count(desk: Desk, capsys: Captured) -> None:
    """An untrusted file may only narrow, and what belongs to the daemon is not one folder's to set."""
    Path(".orch").mkdir()
    Path(".orch/config.toml").write_text('model = "evil:m"\n[subagents]\nmax_concurrent = 2\n')
    run(["spawn", "t", "--model", "a:b"])
    err = capsys.readouterr().err
    assert "ignored model" in err
    assert "does not heed subagents.max_concurrent" in err
    assert desk.asked[0][1]["model"] == "a:b"


@pytest.mark.parametrize(
    ("seq", "terminal", "lines"), [(1, False, 1), (2, False, 0), (2, True, 1)], ids=["first", "later", "terminal"]
)
def test_who_answers_is_not_said_to_scripts_each_time(
    desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch, seq: int, terminal: bool, lines: int
) -> None:
    """The first agent's maker and people are told which model answers when none is configured."""
    desk.answers["spawn"] = SPAWNED | {"seq": seq}
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert run(["spawn", "t"]) == 0
    assert capsys.readouterr().err.count("\n") == lines


def test_who_answers_is_not_said_of_an_agent_that_is_not_made(desk: Desk, capsys: Captured) -> None:
    """Before an error there is nothing but the error."""
    desk.answers["spawn"] = CommandError("SpawnError", "no room", 5)
    assert run(["spawn", "t"]) == 5
    assert capsys.readouterr().err == "orch: no room\n"


def test_spawn_says_what_the_daemon_was_started_without(
    desk: Desk, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values of the user's file and of variables that are not in force are one line; those that are, none."""
    status = {"settings": {"subagents.max_concurrent": 16, "subagents.depth_cap": 2, "daemon.idle_minutes": 15.0}}
    monkeypatch.setattr(spawn_settings, "daemon_status", lambda: status)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text("[subagents]\nmax_concurrent = 4\ndepth_cap = 2\n")
    monkeypatch.setenv("ORCH_DAEMON__IDLE_MINUTES", "2")
    run(["spawn", "t", "--model", "a:b"])
    assert capsys.readouterr().err == (
        "orch: the daemon was started with subagents.max_concurrent = 16 (not 4), daemon.idle_minutes = 15.0 (not 2.0)"
        ": orch daemon stop, and the next one heeds it\n"
    )
    assert desk.asked[0][0] == "spawn"
    assert run(["config", "show"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["subagents.max_concurrent"].endswith("config.toml, line 2 (the daemon was started with 16)")
    assert lines["subagents.depth_cap"].endswith("config.toml, line 3")
    run(["config", "show", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert {key: row["daemon"] for key, row in told.items() if "daemon" in row} == {
        "subagents.max_concurrent": 16,
        "daemon.idle_minutes": 15.0,
    }


def test_a_daemon_that_hangs_does_not_hide_the_configuration(
    capsys: Captured, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is set is shown; that it could not be compared is said."""

    def hang() -> None:
        raise CommandError("DaemonSilent", "it hangs")

    monkeypatch.setattr(spawn_settings, "daemon_status", hang)
    assert run(["config", "show"]) == 0
    out, err = capsys.readouterr()
    assert ("subagents.max_concurrent" in out, err, desk.asked) == (True, "orch: it hangs\n", [])


def test_the_status_is_a_line_a_fact(desk: Desk, capsys: Captured) -> None:
    """What the daemon goes by is told beside what it is."""
    desk.answers["daemon_status"] = {"pid": 7, "model": None, "settings": {"subagents.depth_cap": 3}}
    assert run(["daemon", "status"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["pid", "7"],
        ["model"],
        ["subagents.depth_cap", "3"],
    ]


def test_spawn_where_spawning_is_switched_off(desk: Desk, capsys: Captured) -> None:
    """Even an untrusted file may switch it off; nothing is asked then."""
    Path(".orch").mkdir()
    Path(".orch/config.toml").write_text("subagents.enabled = false\n")
    assert run(["spawn", "t"]) == 2
    assert "subagents.enabled is false" in capsys.readouterr().err
    assert desk.asked == []


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"{}", "a script is a JSON array"),
        (b"[", "Expecting value"),
        (b'["a", {"tex": "b"}]', "unknown field `tex`"),
        (b'["caf\xe9"]', "can't decode byte 0xe9"),
        (b"[" * 100_000, "recursion"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_script_that_is_none_is_named(desk: Desk, capsys: Captured, content: bytes | None, complaint: str) -> None:
    """A script is a JSON array of responses in a file that is there; before anything is asked, the file is named."""
    if content is not None:
        Path("s.json").write_bytes(content)
    assert run(["spawn", "t", "--script", "s.json"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("orch: script s.json")
    assert complaint in err
    assert desk.asked == []


def test_query_prints_the_answer(desk: Desk, capsys: Captured) -> None:
    """The text alone, or the reply's agreed keys as JSON."""
    assert run(["query", "n", "why?", "--timeout", "2.5"]) == 0
    assert capsys.readouterr().out == "42\n"
    method, params = desk.asked[0]
    assert (method, params["ref"], params["prompt"], params["timeout"]) == ("query", "n", "why?", 2.5)
    run(["query", "n", "why?", "--json"])
    assert json.loads(capsys.readouterr().out) == {
        "id": "abc",
        "query_id": "q1",
        "text": "42",
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 10, "output_tokens": 5, "cost_usd": 0.0},
        "tool_calls": 2,
        "files_changed": ["f"],
        "warning": "",
        "denied": 0,
    }


@pytest.mark.parametrize(
    "argv", [["query", "n", "go"], ["run", "go"], ["spawn", "t", "--query", "go"], ["collect", "n"]]
)
def test_what_was_wrong_with_a_transcript_is_told_to_who_asks(desk: Desk, capsys: Captured, argv: list[str]) -> None:
    """On stderr as a line, as JSON beside the answer."""
    told = REPLY | {"warning": f"its transcript\x1b[2J {'is gone ' * 30}"}
    desk.answers |= {"query": told, "collect": told}
    assert run(argv) == 0
    out, err = capsys.readouterr()
    assert "42" in out
    assert err.splitlines()[-1] == f"orch: agent abc: its transcript\\x1b[2J {'is gone ' * 30}"
    assert run([*argv, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data.get("reply", data)["warning"] == told["warning"]


def test_an_answer_for_which_nothing_was_done_is_seen_to_be_one(
    desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person at a terminal is told when no tool was called, whatever the answer says; scripts have the number."""
    desk.answers["query"] = REPLY | {"text": "I have fixed it.", "tool_calls": 0}
    assert run(["query", "n", "fix it"]) == 0
    assert capsys.readouterr() == ("I have fixed it.\n", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert run(["query", "n", "fix it"]) == 0
    assert "orch: no tool was called for this\n" in capsys.readouterr().err
    assert run(["query", "n", "fix it", "--json"]) == 0
    assert "no tool" not in capsys.readouterr().err
    desk.answers["query"] = REPLY
    assert run(["query", "n", "fix it"]) == 0
    assert "no tool" not in capsys.readouterr().err


def test_query_without_waiting_submits(desk: Desk, capsys: Captured) -> None:
    """The id of the agent comes back at once."""
    assert run(["query", "n", "why?", "--no-wait"]) == 0
    assert (capsys.readouterr().out, desk.asked[0][0]) == ("abc\n", "submit")


def test_query_without_waiting_says_that_an_answer_waits_already(desk: Desk, capsys: Captured) -> None:
    """Which collect takes first; as data it is a number."""
    desk.answers["submit"] = {"id": "abc", "query_id": "q2", "uncollected": 1}
    assert run(["query", "n", "why?", "--no-wait"]) == 0
    assert "an earlier answer was not collected yet" in capsys.readouterr().err
    assert run(["query", "n", "why?", "--no-wait", "--json"]) == 0
    assert '"uncollected":1' in capsys.readouterr().out.replace(" ", "")


def test_a_prompt_can_come_from_stdin(desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dash reads it, ten megabytes of it and bytes that are not UTF-8 included."""
    text = b"x" * 10_000_000 + b"\xff"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert run(["query", "n", "-"]) == 0
    assert desk.asked[0][1]["prompt"] == "x" * 10_000_000 + "\N{REPLACEMENT CHARACTER}"
    assert capsys.readouterr().out == "42\n"


def test_arguments_that_are_not_utf8_are_made_so(desk: Desk) -> None:
    """What the shell passes as raw bytes arrives as text with the bad bytes replaced."""
    run(["query", "n", os.fsdecode(b"caf\xe9 \xc3\xa9")])
    assert desk.asked[0][1]["prompt"] == "caf\N{REPLACEMENT CHARACTER} é"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], {"timeout": None, "again": False}),
        (["--no-wait"], {"timeout": 0, "again": False}),
        (["--timeout", "3", "--again"], {"timeout": 3, "again": True}),
    ],
)
def test_collect_takes_the_answer(desk: Desk, capsys: Captured, argv: list[str], expected: dict[str, Any]) -> None:
    """It waits by default, for so long with --timeout, not at all with --no-wait."""
    assert run(["collect", "n", *argv]) == 0
    assert desk.asked == [("collect", {"ref": "n"} | expected)]
    assert capsys.readouterr().out == "42\n"


def test_list_prints_a_table_a_tree_or_json(desk: Desk, capsys: Captured) -> None:
    """The JSON rows have the agreed keys, and those of budgets."""
    assert run(["list"]) == 0
    assert "abc" in capsys.readouterr().out
    assert run(["list", "--tree", "--all"]) == 0
    assert desk.asked[1] == ("list", {"all": True, "runs": True})
    capsys.readouterr()
    run(["list", "--json"])
    assert desk.asked[2] == ("list", {"all": False, "runs": False})
    [row] = json.loads(capsys.readouterr().out)
    assert " ".join(row) == (
        "id seq name parent_id depth kind status task model preset pid created_at last_activity pending "
        "context_tokens context_limit queries usage budget spent outcome run"
    )


def test_daemon_start_gives_the_daemon_this_shells_keys(desk: Desk, capsys: Captured) -> None:
    """Only this explicit command does, also where the daemon is running already."""
    assert run(["daemon", "start", "--json"]) == 0
    assert [method for method, _ in desk.asked] == ["daemon_status", "daemon_keys"]
    assert json.loads(capsys.readouterr().out)["pid"] == 7


@pytest.mark.parametrize(
    ("argv", "asked", "out"),
    [
        (["kill", "1", "n"], ("kill", {"refs": ["1", "n"]}), "b\na\n"),
        (["kill", "--all", "--dry-run"], ("kill", {"all": True, "dry_run": True}), "b\na\n"),
        (["kill", "1", "--json"], ("kill", {"refs": ["1"]}), '{"ids":["b","a"]}\n'),
        (["resume", "1"], ("resume", {"ref": "1", "budget": {}}), "abc\n"),
        (["resume", "1", "--max-cost", "$2.50"], ("resume", {"ref": "1", "budget": {"max_cost_usd": 2.5}}), "abc\n"),
        (
            ["resume", "1", "--max-cost", "none", "--max-tokens", "5M"],
            ("resume", {"ref": "1", "budget": {"max_cost_usd": None, "max_tokens": 5_000_000}}),
            "abc\n",
        ),
        (
            ["revoke-tools", "1", "--keep", "file, git_log"],
            ("revoke_tools", {"ref": "1", "keep": ["file", "git_log"]}),
            "read_file\ngit_log\n",
        ),
        (["revoke-tools", "1", "--keep", ""], ("revoke_tools", {"ref": "1", "keep": []}), "read_file\ngit_log\n"),
        (
            ["resume", "1", "--credentials", "--all"],
            ("resume", {"ref": "1", "budget": {}, "credentials": True, "all": True}),
            "abc\n",
        ),
        (
            ["daemon", "status", "--json"],
            ("daemon_status", {}),
            '{"pid":7,"sandbox":"L2","sandbox_required":false,"agents":0}\n',
        ),
    ],
)
def test_the_other_verbs_ask_and_print(desk: Desk, capsys: Captured, argv: list[str], asked: Any, out: str) -> None:
    """One request, one line an id, or JSON."""
    assert run(argv) == 0
    assert (desk.asked, capsys.readouterr().out) == ([asked], out)


def test_show_prints_a_page_or_everything(desk: Desk, capsys: Captured) -> None:
    """The page is for people; JSON is all there is."""
    assert run(["show", "1", "--messages", "3"]) == 0
    assert desk.asked == [("show", {"ref": "1", "messages": 3})]
    assert "usage:" in capsys.readouterr().out
    run(["show", "1", "--json"])
    assert json.loads(capsys.readouterr().out)["agent"] == json.loads(json.dumps(ROW))


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(capsys: Captured, verb: str) -> None:
    """`--help` names the arguments and shows one command that works."""
    assert run([verb, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: orch {verb}")
    assert "--json" in out
    assert f"example:\n  orch {verb}" in out
    assert run(["help", verb]) == 0
    assert capsys.readouterr().out == out


@pytest.mark.parametrize(("argv", "code", "stream"), [(["--help"], 0, 0), (["help"], 0, 0), ([], 2, 1)])
def test_the_overview_lists_every_verb(capsys: Captured, argv: list[str], code: int, stream: int) -> None:
    """Asked for, it is data; on an empty command line it is advice."""
    assert run(argv) == code
    captured = capsys.readouterr()
    assert captured[1 - stream] == ""
    assert all(f"  {verb} " in captured[stream] for verb in VERBS)


def test_the_version_is_told(capsys: Captured) -> None:
    """`orch --version` prints name and version."""
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("orch ")
