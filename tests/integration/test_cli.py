"""The `orch` command with real processes and a separate ORCH_HOME for each test."""

from __future__ import annotations

import json
import os
import shlex
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from integration.command_shell import MAIN, SECONDS, Shell, ended
from integration.worker_processes import below
from orch.config import paths
from orch.supervisor.recovery.orphan_cleanup import processes_with_token


def test_agents_are_managed_from_a_shell(shell: Shell) -> None:
    """`spawn`, `query`, `list`, `kill` and `resume` print the expected data, and a killed agent's process ends."""
    (shell.folder / "valves.txt").write_text("Valve 7 opens at 3 bar.\n")
    spawned = shell.data("spawn", "Know the valves", "--name", "valves")
    assert list(spawned) == ["id", "seq", "name", "preset", "depth", "pid"]
    assert (spawned["seq"], spawned["name"], spawned["preset"], spawned["depth"]) == (1, "valves", "investigate", 1)
    reply = shell.data("query", "valves", "When does valve 7 open?")
    assert "valves.txt:1" in reply["text"]
    assert reply["tool_calls"] > 0
    [row] = shell.data("list")
    assert (row["id"], row["status"], row["queries"], row["pid"]) == (spawned["id"], "idle", 1, spawned["pid"])
    assert shell.run("kill", "1").stdout.decode().split() == [spawned["id"]]
    ended(spawned["pid"])
    assert shell.data("list") == []
    assert b"orch resume" in shell.run("query", "1", "there?", code=3).stderr
    shell.run("resume", "1")
    assert "valves.txt:1" in shell.data("query", spawned["id"][:4], "And valve 7?")["text"]


def test_python_m_orch_is_the_command(shell: Shell) -> None:
    """`python -m orch` prints the errors of `orch`, for systems on which the script is not on the path."""
    argv = [sys.executable, "-m", "orch", "nope"]
    output = subprocess.run(argv, env=shell.env, cwd=shell.folder, capture_output=True, timeout=SECONDS, check=False)
    assert (output.returncode, output.stdout) == (2, b"")
    assert output.stderr.startswith(b"orch: unknown command 'nope'")


@pytest.mark.shared_daemon
def test_answer_is_collected_once(shell: Shell) -> None:
    """A second `collect` exits with 3 and names the first one, and `--again` prints the answer again."""
    shell.run("spawn", "t", "--name", "a", "--script", shell.script("hello"))
    shell.run("query", "a", "hi", "--no-wait")
    assert shell.run("collect", "a").stdout == b"hello\n"
    late = shell.run("collect", "a", code=3)
    assert late.stdout == b""
    assert b"already collected by" in late.stderr
    assert shell.run("collect", "a", "--again").stdout == b"hello\n"


@pytest.mark.shared_daemon
def test_reply_is_a_value_of_a_schema(shell: Shell) -> None:
    """`--returns` prints only the value, after at most one correction. A second invalid reply or an invalid file is an
    error.
    """
    (shell.folder / "schema.json").write_text('{"type": "object", "properties": {"n": {"type": "integer"}}}')
    script = shell.script('{"n": "two"}', 'So: {"n": 2}', "no", "no", '{"n": 3}')
    shell.run("spawn", "t", "--name", "a", "--script", script)
    assert shell.run("query", "a", "How many?", "--returns", "schema.json").stdout == b'{"n":2}\n'
    failed = shell.run("query", "a", "How many?", "--returns", "schema.json", code=1)
    assert b"did not return a value that matches --returns in two attempts" in failed.stderr
    data = shell.data("query", "a", "How many?", "--returns", "schema.json")
    assert (data["value"], data["reply"]["text"]) == ({"n": 3}, '{"n": 3}')
    assert "no-wait" in shell.run("query", "a", "x", "--returns", "schema.json", "--no-wait", code=2).stderr.decode()
    (shell.folder / "bad.json").write_text('{"type": "nonsense"}')
    for file, why in (("bad.json", b"not a valid JSON schema"), ("none.json", b"cannot read a JSON schema")):
        assert why in shell.run("run", "t", "--returns", file, code=2).stderr
    one = shell.run("run", "t", "--returns", "schema.json", "--script", shell.script('{"n": 4}'))
    assert one.stdout == b'{"n":4}\n'


@pytest.mark.shared_daemon
def test_agent_starts_with_history_and_ends_after_max_turns(shell: Shell) -> None:
    """The history file is in the format of a provider's API, and the limit exits with 5."""
    (shell.folder / "h.json").write_text(
        '[{"role": "user", "content": "I am Ada."}, {"role": "assistant", "content": "Hi."}]'
    )
    look = {"text": "Looking.", "tool": "list_files", "input": {}}
    script = shell.script(look, look, "done")
    kept = ("--keep", "--name", "a", "--history", "h.json", "--max-turns", "2", "--script", script)
    reply = shell.data("run", "t", "hi", *kept, code=5)
    assert reply["stop_reason"] == "max_turns"
    shown = shell.data("show", "a")["messages"]
    assert [block["text"] for each in shown[:2] for block in each["content"]] == ["I am Ada.", "Hi."]


def test_ctrl_c_ends_the_wait_only(shell: Shell) -> None:
    """The command exits with 130 and a hint. The agent finishes, and its answer can be collected."""
    spawned = shell.data("spawn", "t", "--name", "a")
    os.kill(spawned["pid"], signal.SIGSTOP)
    waiting = shell.start("query", "a", "hi")
    shell.until("a", "busy")
    waiting.send_signal(signal.SIGINT)
    out, err = waiting.communicate(timeout=SECONDS)
    assert (waiting.returncode, out) == (130, b"")
    assert b"orch collect a" in err
    assert b"Traceback" not in err
    assert shell.run("collect", "a", "--no-wait", code=4).stdout == b""
    os.kill(spawned["pid"], signal.SIGCONT)
    assert shell.run("collect", "a").stdout.startswith(b"Offline search")


@pytest.mark.shared_daemon
def test_turn_is_watched_steered_and_cancelled(shell: Shell) -> None:
    """`--stream` shows text and tool calls during the turn, and `cancel` ends the turn and not the agent."""
    (shell.folder / "x").write_text("one\n")
    read = {"text": "Looking.", "tool": "read_file", "input": {"path": "x"}}
    script = shell.script(read, "brief", {"text": "slow", "sleep": 60})
    shell.run("spawn", "t", "--name", "a", "--script", script)
    assert len(shell.run("steer", "a", "be brief").stdout.strip()) == 12
    done = shell.run("query", "a", "go", "--stream", "--approve", "deny")
    assert done.stdout == b"Looking.\nbrief\n"
    assert done.stderr.decode().splitlines()[0] == "steered: be brief"
    assert '-> read_file {"path":"x"}' in done.stderr.decode()
    waiting = shell.start("query", "a", "slowly", "--stream", "--json")
    shell.until("a", "busy")
    assert shell.data("cancel", "a")["pending"] == "slowly"
    *_, last = map(json.loads, waiting.communicate(timeout=SECONDS)[0].splitlines())
    assert (waiting.returncode, last["stop_reason"]) == (1, "cancelled")
    assert shell.data("steer", "a", "and now?", "--follow-up")["steer_id"] is None
    shell.run("cancel", "a")
    assert shell.data("collect", "a", code=1)["stop_reason"] == "cancelled"
    assert b"had no running turn" in shell.run("cancel", "a").stderr


@pytest.mark.shared_daemon
def test_run_asks_an_agent_and_ends_it(shell: Shell) -> None:
    """`orch run` keeps the agent only with `--keep`, and ends it on Ctrl-C."""
    assert shell.run("run", "t", "hi", "--script", shell.script("hello")).stdout == b"hello\n"
    assert shell.data("list") == []
    kept = shell.data("run", "t", "--keep", "--script", shell.script("hello"))
    assert [row["id"] for row in shell.data("list")] == [kept["id"]]
    script = shell.script({"text": "Wait.", "tool": "list_files"}, {"text": "slow", "sleep": 60})
    running = shell.start("run", "t", "--stream", "--script", script)
    assert running.stdout is not None
    assert running.stdout.readline() == b"Wait.\n"
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=SECONDS)
    assert (running.returncode, out) == (130, b"")
    assert b"was ended" in err
    assert [row["id"] for row in shell.data("list")] == [kept["id"]]


def test_orch_in_a_command_of_an_agent_acts_as_that_agent(shell: Shell) -> None:
    """If spawn_subagent is granted, `orch spawn` in the agent's command spawns a child of the agent."""
    orch = shlex.join(
        [
            *("env", f"PYTHONPATH={shell.env['PYTHONPATH']}", f"ORCH_HOME={shell.home}"),
            *(sys.executable, "-P", "-c", MAIN),
        ]
    )
    (shell.home).mkdir()
    (shell.home / "config.toml").write_text("[subagents]\nallow_nested = true\n")
    command = f"{orch} spawn inner --name inner --tools read_file >told 2>&1"
    script = shell.script({"tool": "bash", "input": {"command": command}}, "done")
    shell.run("spawn", "t", "--name", "outer", "--script", script, "--tools", "bash,spawn_subagent,read_file")
    assert shell.run("query", "outer", "go", "--approve", "auto").stdout == b"done\n"
    replies = (shell.folder / "told").read_text()
    rows = {row["name"]: row for row in shell.data("list")}
    assert "inner" in rows, replies
    assert rows["inner"]["parent_id"] == rows["outer"]["id"], replies


def test_agent_of_an_earlier_orch_run_is_asked_again(shell: Shell) -> None:
    """`orch run --resume` continues the agent's conversation, and ends the agent afterwards."""
    lines = shell.run("run", "t", "--json-events", "--script", shell.script("hello", "and again")).stdout.splitlines()
    data = [json.loads(line) for line in lines]
    assert [data[0]["kind"], data[-1]["kind"], data[-1]["text"]] == ["agent", "reply", "hello"]
    assert shell.run("run", "--resume", data[0]["id"], "Once more").stdout == b"and again\n"
    assert [row["status"] for row in shell.data("list", "--all")] == ["killed"]
    shown = shell.data("session", "show", data[0]["id"])
    assert [entry["head"] for entry in shown["entries"] if entry["role"] == "user"][-1:] == ["Once more"]


@pytest.mark.shared_daemon
def test_sent_selection_reaches_busy_and_idle_agents(shell: Shell) -> None:
    """`orch send` queries an idle agent and steers a busy one."""
    shell.data("spawn", "t", "--name", "a", "--script", shell.script({"text": "slow", "sleep": 60}, "Seen."))
    assert shell.data("send", "a", "x = 1", "--from", "m.py:3", "--ask", "Why?")["query_id"]
    assert shell.data("send", "a", "y = 2")["steer_id"]
    shell.run("cancel", "a")
    assert shell.data("collect", "a", code=1)["stop_reason"] == "cancelled"
    asked = [entry["head"] for entry in shell.data("session", "show", "a")["entries"] if entry["role"] == "user"]
    assert "Why? From m.py:3" in asked[-1]


@pytest.mark.shared_daemon
def test_status_line_shows_working_agents(shell: Shell) -> None:
    """The status line is updated in place, and removed before the answer."""
    spawned = shell.data("spawn", "t", "--name", "reader", "--script", shell.script("done"))
    os.kill(spawned["pid"], signal.SIGSTOP)
    ours, theirs = os.openpty()
    waiting = shell.start("query", "reader", "hi", "--approve", "deny", stderr=theirs)
    os.close(theirs)
    seen = os.read(ours, 1000)
    os.kill(spawned["pid"], signal.SIGCONT)
    assert waiting.communicate(timeout=SECONDS)[0] == b"done\n"
    seen += os.read(ours, 1000)
    os.close(ours)
    assert seen.startswith(b"\rreader: busy, ")
    assert seen.endswith(b"\r\x1b[Korch: the answer used no tool\r\n")


@pytest.mark.shared_daemon
def test_second_query_and_timeout_leave_the_agent_alone(shell: Shell) -> None:
    """Both commands exit with 4, and the first query is answered."""
    spawned = shell.data("spawn", "t", "--name", "a")
    os.kill(spawned["pid"], signal.SIGSTOP)
    assert b"orch" in shell.run("query", "a", "one", "--timeout", "0.05", code=4).stderr
    assert shell.status("a") == "busy"
    busy = shell.run("query", "a", "two", "--json", code=4)
    assert json.loads(busy.stderr.splitlines()[-1])["error"]["type"] == "AgentBusyError"
    os.kill(spawned["pid"], signal.SIGCONT)
    assert shell.run("collect", "a").stdout != b""


@pytest.mark.shared_daemon
def test_killed_client_does_not_affect_the_daemon(shell: Shell) -> None:
    """The agent finishes, and its answer can be collected."""
    spawned = shell.data("spawn", "t", "--name", "a")
    os.kill(spawned["pid"], signal.SIGSTOP)
    waiting = shell.start("query", "a", "hi")
    shell.until("a", "busy")
    waiting.kill()
    waiting.communicate()
    os.kill(spawned["pid"], signal.SIGCONT)
    assert shell.run("collect", "a").stdout != b""


@pytest.mark.shared_daemon
def test_prompts_of_any_size(shell: Shell) -> None:
    """Ten megabytes and undecodable bytes are accepted, and an empty prompt is an error."""
    shell.run("spawn", "t", "--name", "a", "--script", shell.script("big", "odd"))
    assert shell.run("query", "a", "-", stdin=b"x" * 10_000_000).stdout == b"big\n"
    assert shell.run("query", "a", "-", stdin=b"caf\xe9\x00\xed\xa0\x80").stdout == b"odd\n"
    assert b"prompt" in shell.run("query", "a", "-", code=2).stderr


@pytest.mark.shared_daemon
@pytest.mark.parametrize(
    ("argv", "code", "complaint"),
    [
        (["query", "nobody", "hi"], 3, "nobody"),
        (["spawn", "t", "--preset", "no-such"], 2, "no-such"),
        (["spawn", "t", "--tools", "no_such_tool"], 2, "no_such_tool"),
        (["spawn", "t", "--model", "no-such:thing"], 2, "no-such"),
        (["spawn", " "], 2, "task"),
        (["spawn", "t", "--cwd", "/no/such/folder"], 2, "/no/such/folder"),
        (["spawn", "t", "--name", "5"], 2, "sequence number"),
        (["kill"], 2, "no REF or --all"),
    ],
)
def test_invalid_input_is_reported_on_stderr_with_its_exit_code(
    shell: Shell, argv: list[str], code: int, complaint: str
) -> None:
    """The error names the invalid value, and stdout is empty."""
    done = shell.run(*argv, code=code)
    assert done.stdout == b""
    assert done.stderr.decode().splitlines()[-1].startswith("orch: ")
    assert complaint in done.stderr.decode()


@pytest.mark.shared_daemon
@pytest.mark.parametrize(
    ("redirected", "code", "complaint"),
    [
        ("list >&-", 1, "standard output is closed"),
        ("query a - <&-", 2, "cannot read '-' from standard input: it is closed"),
        ("list >/dev/full", 1, "the output cannot be written (No space left on device)"),
        ("run x --approve deny --script script.json >/dev/full", 1, "the output cannot be written"),
        ("list --json <&- 2>&-", 0, ""),
        ("frob 2>/dev/full", 2, ""),
        ("spawn x 2>/dev/full | grep -q .", 0, ""),
    ],
)
def test_closed_or_full_standard_streams_are_handled(shell: Shell, redirected: str, code: int, complaint: str) -> None:
    """The daemon starts, and a failure is reported in one line without a traceback."""
    shell.script("hello")
    orch = f"{shlex.quote(sys.executable)} -P -c {shlex.quote(MAIN)}"
    done = subprocess.run(
        ["sh", "-c", f"{orch} {redirected}"],
        cwd=shell.folder,
        env=shell.env,
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    errors = done.stderr.decode().splitlines()
    assert (done.returncode, len(errors)) == (code, 1 if complaint else 0), errors
    assert complaint in "".join(errors)


def test_spawn_at_the_agent_limit_lets_an_idle_agent_go_cold(shell: Shell) -> None:
    """The limit of the environment in which the daemon was started applies, and a message names both values."""
    shell.env["ORCH_SUBAGENTS__MAX_CONCURRENT"] = "1"
    shell.run("spawn", "one")
    shell.env["ORCH_SUBAGENTS__MAX_CONCURRENT"] = "2"
    errors = shell.run("spawn", "two").stderr.decode().splitlines()[0]
    assert "started with subagents.max_concurrent = 1 (not 2)" in errors
    assert sum(row["pid"] is not None for row in json.loads(shell.run("list", "--json").stdout)) == 1
    assert b"(the daemon was started with 1)" in shell.run("config", "show").stdout


def test_agents_survive_the_daemon(shell: Shell) -> None:
    """After `daemon stop` and after SIGKILL, the next daemon has the agents, and they answer."""
    script = shell.script("one", "two", "three")
    spawned = shell.data("spawn", "t", "--name", "a", "--script", script)
    assert shell.run("query", "a", "?").stdout == b"one\n"
    shell.run("daemon", "stop")
    assert shell.ours() == []
    assert [row["id"] for row in shell.data("list")] == [spawned["id"]]
    assert shell.run("query", "a", "?").stdout == b"two\n"
    pids = shell.ours()
    os.kill(shell.data("daemon", "status")["pid"], signal.SIGKILL)
    for pid in pids:
        ended(pid)
    assert Path(paths.control_socket(shell.env)).exists()
    assert shell.run("query", "a", "?").stdout == b"three\n"


def test_files_are_private_under_any_umask(shell: Shell) -> None:
    """Only the user can access the files of the home, and the umask applies to files that agents write."""
    write = {"tool": "write_file", "input": {"path": "made/by_tool", "content": "x"}}
    shell.script(write, {"tool": "bash", "input": {"command": "touch made/by_command"}}, "done")
    shell.env["ORCH_APPROVE"] = "auto"
    before = os.umask(0)
    try:
        shell.run("spawn", "t", "--script", "script.json", "--tools", "write_file,bash", "--name", "a", "--query")
        os.umask(0o027)
        shell.run("spawn", "t", "--script", "script.json", "--tools", "write_file,bash", "--cwd", "..", "--query")
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in shell.home.rglob("*")}
    assert {str(path): oct(mode) for path, mode in modes.items() if mode & 0o077} == {}
    for folder, mask in ((shell.folder, 0), (shell.folder.parent, 0o027)):
        for name, mode in (("made", 0o777), ("made/by_tool", 0o666), ("made/by_command", 0o666)):
            assert oct((folder / name).stat().st_mode & 0o777) == oct(mode & ~mask)


def test_keys_reach_no_environment_and_no_file(shell: Shell) -> None:
    """A key of the caller is in no environment or command line of a process, and in no file of the home."""
    shell.env |= {
        "SOME_API_KEY": "canary-0123456789",
        "SLACK_WEBHOOK": "https://hooks.example/canary",
        "STRIPE_ID": "canary",
    }
    shell.run("spawn", "t", "--name", "a", "--query", "What is here?")
    assert shell.ours() != []
    for pid in shell.ours():
        for name in ("environ", "cmdline"):
            assert b"canary" not in Path(f"/proc/{pid}/{name}").read_bytes()
    assert [path for path in shell.home.rglob("*") if path.is_file() and b"canary" in path.read_bytes()] == []


@pytest.mark.shared_daemon
def test_every_process_carries_its_run(shell: Shell) -> None:
    """ORCH_RUN is in the environments of the daemon and of its workers."""
    spawned = shell.data("spawn", "t")
    daemon = shell.data("daemon", "status")["pid"]
    run_processes = {daemon, *below(daemon)}
    assert spawned["pid"] in run_processes
    assert run_processes <= {pid for pid, environment in processes_with_token() if environment.get("ORCH_RUN")}


def test_home_that_cannot_be_created_is_reported(shell: Shell) -> None:
    """The error is one line that names ORCH_HOME, without a traceback."""
    shell.home.write_text("")
    errors = shell.run("list", code=1).stderr.decode()
    assert errors.count("\n") == 1
    assert "ORCH_HOME" in errors
    shell.home.unlink()


@pytest.mark.shared_daemon
def test_list_imports_little(shell: Shell) -> None:
    """With a running daemon, `orch list` imports no transport, event loop, logger or codec."""
    shell.run("daemon", "start")
    code = "import sys; from orch.cli import run; run(['list', '--json']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=shell.env, capture_output=True, timeout=SECONDS, check=True
    )
    loaded = done.stdout.decode().splitlines()[1].split()
    heavy = {"zmq", "asyncio", "structlog", "msgspec", "typing", "subprocess", "pathlib", "importlib"}
    assert heavy & set(loaded) == set()
    ours = {each for each in loaded if each.startswith("orch_protocol.")}
    assert ours == {"orch_protocol.services", "orch_protocol.services.verbs"}


def test_doctor_passes(shell: Shell) -> None:
    """`orch doctor` exits with 0 with and without a running daemon."""
    shell.run("doctor")
    shell.run("daemon", "start")
    found = {each["check"]: each for each in shell.data("doctor")}
    assert found["daemon"]["detail"].startswith("process ")


def test_unwritable_log_is_reported(shell: Shell) -> None:
    """The command names the file, and starts no process."""
    (shell.home / "daemon" / "log").mkdir(parents=True)
    errors = shell.run("list", code=1).stderr.decode()
    assert errors.count("\n") == 1
    assert "daemon/log cannot be written: Is a directory" in errors
    assert shell.ours() == []


def test_ctrl_c_during_the_demo_leaves_nothing(shell: Shell) -> None:
    """The processes of the demo end, and its files are removed."""
    demo = shell.start("demo")
    assert demo.stdout is not None
    while not demo.stdout.readline().startswith(b"   question 1"):
        assert demo.poll() is None
    for _ in range(3):
        demo.send_signal(signal.SIGINT)
    _, err = demo.communicate(timeout=SECONDS)
    assert (demo.returncode, b"Traceback" in err) == (130, False)
    assert shell.ours() == []
    assert not shell.home.exists()
