from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch import Config, Limits, Message, Text, ToolUse, user
from orch.cli import VERBS, run
from orch.cli.agents import spawn_settings
from orch.client.failure import CommandError
from orch.config.config import flatten
from orch.config.version import __version__
from orch_protocol.services.agents.spawn import Spawn
from orchestrator.daemon_double import ANSWERS, REPLY, ROW, SPAWNED, Desk, opened


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    """A fake daemon, an empty home and a clean environment."""
    return opened(monkeypatch, tmp_path)


Captured = pytest.CaptureFixture[str]


def test_spawn_prints_the_id(desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request has the caller's folder, the permitted environment variables only, and a request id."""
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
    """Names are separated by commas. Without the options both lists are empty."""
    run([verb, "t", "--peers", "reader,3", "--archives", "4f2a91c03be7"])
    params = next(params for method, params in desk.asked if method == "spawn")
    assert (params["peers"], params["archives"]) == (["reader", "3"], ["4f2a91c03be7"])
    desk.asked.clear()
    run([verb, "t"])
    params = next(params for method, params in desk.asked if method == "spawn")
    assert (params["peers"], params["archives"]) == ([], [])


@pytest.mark.usefixtures("desk")
def test_spawn_json_has_exactly_its_keys(capsys: Captured) -> None:
    """Scripts depend on the keys and their order."""
    assert run(["spawn", "t", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert list(data) == ["id", "seq", "name", "preset", "depth", "pid"]


@pytest.mark.parametrize(("extra", "prompt"), [(["--query"], "t"), (["--query", "why?"], "why?")])
def test_spawn_with_query_prints_the_answer(desk: Desk, capsys: Captured, extra: list[str], prompt: str) -> None:
    """`--query` asks its text, or the task if it has no text. The answer is printed after the id."""
    assert run(["spawn", "t", *extra]) == 0
    assert capsys.readouterr().out == "abc\n42\n"
    assert desk.asked[1] == ("query", {"ref": "abc", "prompt": prompt})
    assert run(["spawn", "t", *extra, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reply"]["text"] == "42"


@pytest.mark.parametrize("empty", ["", " \n"])
def test_spawn_with_an_empty_query_creates_no_agent(desk: Desk, capsys: Captured, empty: str) -> None:
    """An empty `--query`, for example from an unset variable, is refused before an agent is spawned."""
    assert run(["spawn", "t", "--query", empty]) == 2
    assert capsys.readouterr() == ("", "orch: --query is empty; pass a prompt or leave the option out\n")
    assert desk.asked == []


def test_spawn_without_a_model_names_the_backend_used(desk: Desk, capsys: Captured) -> None:
    """Without a model, one line on stderr names the default backend. With a model or a script, stderr is empty."""
    run(["spawn", "t"])
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "offline search" in err
    assert "ORCH_MODEL" in err
    assert desk.asked[0][1]["model"] == "extractive:"
    for argv in (["--model", "a:b"], ["--script", "s.json"]):
        Path("s.json").write_text('["hello"]')
        run(["spawn", "t", *argv])
        assert capsys.readouterr().err == ""
    assert desk.asked[2][1]["script"] == ["hello"]
    assert "model" not in desk.asked[2][1]


def test_spawn_uses_the_callers_configuration(
    desk: Desk, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files and variables of the caller set the model, preset, tools, limits and thinking level of the request."""
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
    run(["spawn", "t", "--preset", "work", "--tools", "agents"])
    assert (desk.asked[-1][1]["preset"], desk.asked[-1][1]["tools"]) == ("work", ["agents"])
    assert capsys.readouterr().err == ""


def test_spawn_with_an_agent_type_omits_replaced_defaults(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default model and the default preset are not sent if the agent type replaces them."""
    (tmp_path / "home" / "agents").mkdir(parents=True)
    for name, field in (("own", "tools: bash"), ("big", "model: a:b"), ("plain", "color: red")):
        (tmp_path / "home" / "agents" / f"{name}.md").write_text(f"---\ndescription: d\n{field}\n---\nYou help.\n")
    monkeypatch.setenv("ORCH_MODEL", "openai:m")

    def sent(*argv: str) -> list[Any]:
        run(["spawn", "t", *argv])
        return [desk.asked[-1][1].get(name) for name in ("agent", "preset", "tools", "model")]

    assert sent("--agent", "own") == ["own", None, None, "openai:m"]
    assert sent("--agent", "own", "--preset", "work") == ["own", "work", None, "openai:m"]
    assert sent("--agent", "big") == ["big", "investigate", None, None]
    assert sent("--agent", "big", "--model", "c:d")[3] == "c:d"
    assert sent("--agent", "plain") == ["plain", "investigate", None, "openai:m"]
    Path("x.md").write_text("You help.")
    assert run(["spawn", "t", "--agent", "own", "--prompt-template", "./x.md"]) == 2


def test_spawn_reports_tools_that_a_projects_agent_type_does_not_get(
    desk: Desk, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no notice if the user names a preset or tools."""
    folder = tmp_path / "here" / ".orch" / "agents"
    folder.mkdir(parents=True)
    (folder / "fixer.md").write_text("---\ndescription: d\ntools: read_file, bash\n---\nYou help.\n")
    monkeypatch.chdir(tmp_path / "here")
    assert run(["agent-types", "trust", "fixer"]) == 0
    capsys.readouterr()
    run(["spawn", "t", "--agent", "fixer"])
    assert desk.asked[-1][1]["preset"] == "investigate"
    assert "agent type 'fixer' of the project does not get bash: pass a preset or tools" in capsys.readouterr().err
    run(["spawn", "t", "--agent", "fixer", "--preset", "work"])
    run(["spawn", "t", "--agent", "fixer", "--tools", "read_file"])
    assert "does not get" not in capsys.readouterr().err


def test_project_context_flag_is_passed_on(desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """`spawn` and `run` send the flag and the caller's rules for presets. Unknown values are refused."""
    monkeypatch.setenv("ORCH_SUBAGENTS__CONTEXT__WORK", "brief")
    for verb in ("spawn", "run"):
        for flags, text in (([], None), (["--context", "full"], "full")):
            desk.asked.clear()
            run([verb, "t", *flags])
            params = desk.asked[0][1]
            assert (params["context"], params["context_rules"]["work"]) == (text, "brief")
    assert run(["spawn", "t", "--context", "much"]) == 2
    assert "invalid choice: 'much'" in capsys.readouterr().err


def test_identity_template_is_filled_in_by_the_caller(
    desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The daemon receives the text with all values. A missing value is an error, and no request is sent."""
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
    """`prompts` lists all templates with their variables. With a name it prints one template with the given values."""
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
    assert run(["prompts", "captain"]) == 3


def test_budget_comes_from_flags_or_configuration(
    desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`spawn` and `run` send the same budget. An invalid amount is a usage error."""
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
        assert "is not an amount of US dollars above 0" in capsys.readouterr().err


def test_spawn_reports_ignored_project_settings(desk: Desk, capsys: Captured) -> None:
    """Settings of an untrusted project, and settings that apply to the whole daemon, are ignored with a notice."""
    Path(".orch").mkdir()
    Path(".orch/config.toml").write_text('model = "evil:m"\n[subagents]\nmax_concurrent = 2\n')
    run(["spawn", "t", "--model", "a:b"])
    err = capsys.readouterr().err
    assert "ignored model" in err
    assert "ignored by the daemon, which serves all folders: subagents.max_concurrent" in err
    assert desk.asked[0][1]["model"] == "a:b"


@pytest.mark.parametrize(
    ("seq", "terminal", "lines"), [(1, False, 1), (2, False, 0), (2, True, 1)], ids=["first", "later", "terminal"]
)
def test_backend_notice_is_printed_to_people_only(
    desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch, seq: int, terminal: bool, lines: int
) -> None:
    """A script gets the notice for its first agent only; a terminal gets it each time."""
    desk.answers["spawn"] = SPAWNED | {"seq": seq}
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert run(["spawn", "t"]) == 0
    assert capsys.readouterr().err.count("\n") == lines


def test_backend_notice_is_not_printed_before_an_error(desk: Desk, capsys: Captured) -> None:
    """stderr contains only the error."""
    desk.answers["spawn"] = CommandError("SpawnError", "no room", 5)
    assert run(["spawn", "t"]) == 5
    assert capsys.readouterr().err == "orch: no room\n"


def test_spawn_reports_settings_the_daemon_started_without(
    desk: Desk, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line lists the settings that differ from the daemon's settings. `config show` marks them, too."""
    status = {"settings": {"subagents.max_concurrent": 16, "subagents.depth_cap": 2, "daemon.idle_minutes": 15.0}}
    monkeypatch.setattr(spawn_settings, "daemon_status", lambda: status)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text("[subagents]\nmax_concurrent = 4\ndepth_cap = 2\n")
    monkeypatch.setenv("ORCH_DAEMON__IDLE_MINUTES", "2")
    run(["spawn", "t", "--model", "a:b"])
    assert capsys.readouterr().err == (
        "orch: the daemon was started with subagents.max_concurrent = 16 (not 4), daemon.idle_minutes = 15.0 (not 2.0)"
        "; run `orch daemon stop` to apply the change\n"
    )
    assert desk.asked[0][0] == "spawn"
    assert run(["config", "show"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["subagents.max_concurrent"].endswith("config.toml, line 2 (the daemon was started with 16)")
    assert lines["subagents.depth_cap"].endswith("config.toml, line 3")
    run(["config", "show", "--json"])
    data = json.loads(capsys.readouterr().out)
    assert {key: row["daemon"] for key, row in data.items() if "daemon" in row} == {
        "subagents.max_concurrent": 16,
        "daemon.idle_minutes": 15.0,
    }


def test_hanging_daemon_does_not_block_config_show(
    capsys: Captured, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings are printed, and stderr says that the daemon did not respond."""

    def hang() -> None:
        raise CommandError("DaemonSilent", "it hangs")

    monkeypatch.setattr(spawn_settings, "daemon_status", hang)
    assert run(["config", "show"]) == 0
    out, err = capsys.readouterr()
    assert ("subagents.max_concurrent" in out, err, desk.asked) == (True, "orch: it hangs\n", [])


def test_daemon_status_fits_a_screen(desk: Desk, capsys: Captured) -> None:
    """The page has at most 80 columns and 24 lines, and lists changed settings. `--details` lists all settings."""
    settings = json.loads(msgspec.json.encode(flatten(Config())))
    changed = {key: 7 if isinstance(value, int) else "x" * 200 for key, value in settings.items()}
    desk.answers["daemon_status"] = desk.answers["daemon_status"] | {
        "sandbox_offered": "files by Landlock, " * 9,
        "settings": settings | changed,
        "agents": 154,
        "busy": 2,
    }
    assert run(["daemon", "status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines) <= 24, max(map(len, lines)) <= 80) == (True, True)
    assert f"{len(settings) - 8} more" in lines[-1]
    assert "agents    154, 2 at work" in lines
    desk.answers["daemon_status"] = desk.answers["daemon_status"] | {"settings": settings | {"subagents.depth_cap": 9}}
    assert run(["daemon", "status"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines() if line[:2] == "  "][-1] == [
        "subagents.depth_cap",
        "9",
    ]
    assert run(["daemon", "status", "--details"]) == 0
    out = capsys.readouterr().out
    assert [key for key in settings if key not in out] == []


def test_spawn_works_with_subagents_disabled(desk: Desk) -> None:
    """The setting applies to subagents only, so users can still spawn agents."""
    Path(".orch").mkdir()
    Path(".orch/config.toml").write_text("subagents.enabled = false\n")
    assert run(["spawn", "t"]) == 0
    assert desk.asked


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"{}", "must be a JSON array"),
        (b"[", "Expecting value"),
        (b'["a", {"tex": "b"}]', "unknown field `tex`"),
        (b'["caf\xe9"]', "not UTF-8 (byte 0xe9): save it as UTF-8"),
        (b"[" * 100_000, "recursion"),
        (None, "cannot read script s.json: No such file or directory"),
    ],
)
def test_invalid_script_file_is_named(desk: Desk, capsys: Captured, content: bytes | None, complaint: str) -> None:
    """An invalid or missing script is a usage error, and no request is sent."""
    if content is not None:
        Path("s.json").write_bytes(content)
    assert run(["spawn", "t", "--script", "s.json"]) == 2
    err = capsys.readouterr().err
    assert "script s.json" in err
    assert complaint in err
    assert desk.asked == []


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{}", "history h.json: must be a JSON array with one item for each message"),
        (
            '[{"role": "user", "content": "a"}, {"role": "robot"}]',
            "history h.json: message[1]: a message must have the role",
        ),
        ('["hello"]', "message[0]: a message must be an object with a role"),
        ("[", "Expecting value"),
        (None, "cannot read history h.json: No such file or directory"),
    ],
)
def test_invalid_history_file_is_named(desk: Desk, capsys: Captured, content: str | None, complaint: str) -> None:
    """An invalid or missing history is a usage error, and no request is sent."""
    if content is not None:
        Path("h.json").write_text(content)
    assert run(["spawn", "t", "--history", "h.json"]) == 2
    assert complaint in capsys.readouterr().err
    assert desk.asked == []


def test_spawn_takes_history_and_a_limit_of_turns(desk: Desk, capsys: Captured) -> None:
    """Messages of a provider's API are sent as orch messages. Limits without an option have their configured values."""
    call = {"id": "c1", "type": "function", "function": {"name": "count", "arguments": "{}"}}
    history = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "Yes.", "tool_calls": [call]}]
    Path("h.json").write_text(json.dumps(history))
    run(["spawn", "t", "--history", "h.json", "--max-turns", "3"])
    sent = msgspec.convert(desk.asked[0][1], Spawn)
    assert sent.limits == Limits(max_turns=3)
    assert sent.history == (user("Count."), Message("assistant", (Text("Yes."), ToolUse("c1", "count", {}))))
    assert run(["spawn", "t", "--max-turns", "0"]) == 2
    assert "'0' is not a whole number above 0" in capsys.readouterr().err


def test_query_prints_the_answer_or_json(desk: Desk, capsys: Captured) -> None:
    """Without --json only the text is printed."""
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
def test_transcript_damage_is_reported_with_the_answer(desk: Desk, capsys: Captured, argv: list[str]) -> None:
    """The warning is printed on stderr, or is a field of the JSON."""
    found = REPLY | {"warning": f"its transcript\x1b[2J {'is gone ' * 30}"}
    desk.answers |= {"query": found, "collect": found}
    assert run(argv) == 0
    out, err = capsys.readouterr()
    assert "42" in out
    assert err.splitlines()[-1] == f"orch: agent abc: its transcript\\x1b[2J {'is gone ' * 30}"
    assert run([*argv, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data.get("reply", data)["warning"] == found["warning"]


def test_answer_without_tool_calls_is_marked_at_a_terminal(
    desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notice is not printed for scripts, or if a tool was called."""
    desk.answers["query"] = REPLY | {"text": "I have fixed it.", "tool_calls": 0}
    assert run(["query", "n", "fix it"]) == 0
    assert capsys.readouterr() == ("I have fixed it.\n", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert run(["query", "n", "fix it"]) == 0
    assert "orch: the answer used no tool\n" in capsys.readouterr().err
    assert run(["query", "n", "fix it", "--json"]) == 0
    assert "no tool" not in capsys.readouterr().err
    desk.answers["query"] = REPLY
    assert run(["query", "n", "fix it"]) == 0
    assert "no tool" not in capsys.readouterr().err


def test_query_without_waiting_prints_the_id(desk: Desk, capsys: Captured) -> None:
    """`query --no-wait` prints the id of the query, for `collect --query`."""
    assert run(["query", "n", "why?", "--no-wait"]) == 0
    assert (capsys.readouterr().out, desk.asked[0][0]) == ("q1\n", "submit")


def test_query_without_waiting_reports_uncollected_answers(desk: Desk, capsys: Captured) -> None:
    """The number of uncollected answers is a notice on stderr, or a field of the JSON."""
    desk.answers["submit"] = {"id": "abc", "query_id": "q2", "uncollected": 1}
    assert run(["query", "n", "why?", "--no-wait"]) == 0
    assert "an earlier answer was not collected yet" in capsys.readouterr().err
    assert run(["query", "n", "why?", "--no-wait", "--json"]) == 0
    assert '"uncollected":1' in capsys.readouterr().out.replace(" ", "")


def test_prompt_is_read_from_stdin(desk: Desk, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt of ten megabytes is sent whole. Bytes that are not UTF-8 are replaced."""
    text = b"x" * 10_000_000 + b"\xff"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert run(["query", "n", "-"]) == 0
    assert desk.asked[0][1]["prompt"] == "x" * 10_000_000 + "\N{REPLACEMENT CHARACTER}"
    assert capsys.readouterr().out == "42\n"


def test_non_utf8_arguments_are_decoded_with_replacements(desk: Desk) -> None:
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
def test_collect_waits_as_its_flags_say(
    desk: Desk, capsys: Captured, argv: list[str], expected: dict[str, Any]
) -> None:
    """`collect` waits without a limit, for the time of --timeout, or not at all with --no-wait."""
    assert run(["collect", "n", *argv]) == 0
    assert desk.asked == [("collect", {"ref": "n"} | expected)]
    assert capsys.readouterr().out == "42\n"


def test_list_prints_a_table_a_tree_or_json(desk: Desk, capsys: Captured) -> None:
    """The JSON rows have exactly the documented keys."""
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


def test_daemon_start_passes_this_shells_keys(desk: Desk, capsys: Captured) -> None:
    """The keys of the shell are also passed to a daemon that is already running."""
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
            json.dumps(ANSWERS["daemon_status"], separators=(",", ":")) + "\n",
        ),
    ],
)
def test_each_other_verb_sends_one_request(desk: Desk, capsys: Captured, argv: list[str], asked: Any, out: str) -> None:
    """The command prints one line for each id, or JSON."""
    assert run(argv) == 0
    assert (desk.asked, capsys.readouterr().out) == ([asked], out)


def test_show_prints_a_page_or_json(desk: Desk, capsys: Captured) -> None:
    assert run(["show", "1", "--messages", "3"]) == 0
    assert desk.asked == [("show", {"ref": "1", "messages": 3})]
    assert "usage:" in capsys.readouterr().out
    run(["show", "1", "--json"])
    assert json.loads(capsys.readouterr().out)["agent"] == json.loads(json.dumps(ROW))


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(capsys: Captured, verb: str) -> None:
    """`orch VERB --help` and `orch help VERB` print the same text, with the usage and an example."""
    assert run([verb, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: orch {verb}")
    assert "--json" in out
    assert f"example:\n  orch {verb}" in out
    assert run(["help", verb]) == 0
    assert capsys.readouterr().out == out


@pytest.mark.parametrize(("argv", "code", "stream"), [(["--help"], 0, 0), (["help"], 0, 0), ([], 2, 1)])
def test_overview_lists_every_verb(capsys: Captured, argv: list[str], code: int, stream: int) -> None:
    """The overview is on stdout if the user asks for it. Without arguments it is on stderr, with exit code 2."""
    assert run(argv) == code
    captured = capsys.readouterr()
    assert captured[1 - stream] == ""
    assert all(f"  {verb} " in captured[stream] for verb in VERBS)


def test_version_is_printed(capsys: Captured) -> None:
    for argv in (["--version"], ["version"]):
        assert run(argv) == 0
        assert capsys.readouterr().out == f"orch {__version__}\n"
    assert run(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == __version__
