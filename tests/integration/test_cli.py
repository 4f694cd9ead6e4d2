"""The orch command as a person or a script meets it: real processes, one ORCH_HOME a test."""

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
from orch.config import paths
from orch.supervisor.recovery.orphan_cleanup import processes_with_token


def test_the_main_job_from_a_shell(shell: Shell) -> None:
    """Spawn, ask, list, look, kill, resume: shapes, exit codes, and one process an agent."""
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


def test_the_module_is_the_command(shell: Shell) -> None:
    """Where the script is not on the path, `python -m orch` does what it does."""
    argv = [sys.executable, "-m", "orch", "nope"]
    told = subprocess.run(argv, env=shell.env, cwd=shell.folder, capture_output=True, timeout=SECONDS, check=False)
    assert (told.returncode, told.stdout) == (2, b"")
    assert told.stderr.startswith(b"orch: there is no command 'nope'")


def test_an_answer_is_collected_once(shell: Shell) -> None:
    """Without waiting the answer stays; the second taker is told who and when, and may read it again."""
    shell.run("spawn", "t", "--name", "a", "--script", shell.script("hello"))
    shell.run("query", "a", "hi", "--no-wait")
    assert shell.run("collect", "a").stdout == b"hello\n"
    late = shell.run("collect", "a", code=3)
    assert late.stdout == b""
    assert b"taken by" in late.stderr
    assert shell.run("collect", "a", "--again").stdout == b"hello\n"


def test_ctrl_c_ends_the_waiting_only(shell: Shell) -> None:
    """The command exits with 130 and says how to go on; the agent finishes and its answer can be collected."""
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


def test_a_turn_is_watched_steered_and_cancelled(shell: Shell) -> None:
    """Its text and its tools are shown as they come; what is said is heard; a cancelled turn ends, not its agent."""
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
    assert b"was not at work" in shell.run("cancel", "a").stderr


def test_an_agent_for_one_question(shell: Shell) -> None:
    """Asked, answered, ended; kept when told so; ended by Ctrl-C while it works."""
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


def test_orch_within_a_command_of_an_agent_acts_as_that_agent(shell: Shell) -> None:
    """With the tool for it, it spawns a subagent of the agent, in the folder of the agent; no daemon is started."""
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
    told = (shell.folder / "told").read_text()
    rows = {row["name"]: row for row in shell.data("list")}
    assert "inner" in rows, told
    assert rows["inner"]["parent_id"] == rows["outer"]["id"], told


def test_an_agent_of_an_earlier_run_is_asked_again(shell: Shell) -> None:
    """By the id that its events began with: it knows what was said, and is ended again."""
    lines = shell.run("run", "t", "--json-events", "--script", shell.script("hello", "and again")).stdout.splitlines()
    told = [json.loads(line) for line in lines]
    assert [told[0]["kind"], told[-1]["kind"], told[-1]["text"]] == ["agent", "reply", "hello"]
    assert shell.run("run", "--resume", told[0]["id"], "Once more").stdout == b"and again\n"
    assert [row["status"] for row in shell.data("list", "--all")] == ["killed"]
    shown = shell.data("session", "show", told[0]["id"])
    assert [entry["head"] for entry in shown["entries"] if entry["role"] == "user"][-1:] == ["Once more"]


def test_a_selection_reaches_an_agent_that_works_and_one_that_idles(shell: Shell) -> None:
    """The first hears it in its turn; the second is asked it."""
    shell.data("spawn", "t", "--name", "a", "--script", shell.script({"text": "slow", "sleep": 60}, "Seen."))
    assert shell.data("send", "a", "x = 1", "--from", "m.py:3", "--ask", "Why?")["query_id"]
    assert shell.data("send", "a", "y = 2")["steer_id"]
    shell.run("cancel", "a")
    assert shell.data("collect", "a", code=1)["stop_reason"] == "cancelled"
    asked = [entry["head"] for entry in shell.data("session", "show", "a")["entries"] if entry["role"] == "user"]
    assert "Why? From m.py:3" in asked[-1]


def test_who_waits_at_a_terminal_sees_who_works(shell: Shell) -> None:
    """One line, updated in place, gone when the answer is there."""
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
    assert seen.endswith(b"\r\x1b[Korch: no tool was called for this\r\n")


def test_a_second_query_and_a_timeout_leave_the_agent_alone(shell: Shell) -> None:
    """Both exit with 4; the first question is answered all the same."""
    spawned = shell.data("spawn", "t", "--name", "a")
    os.kill(spawned["pid"], signal.SIGSTOP)
    assert b"orch" in shell.run("query", "a", "one", "--timeout", "0.05", code=4).stderr
    assert shell.status("a") == "busy"
    busy = shell.run("query", "a", "two", "--json", code=4)
    assert json.loads(busy.stderr.splitlines()[-1])["error"]["type"] == "AgentBusyError"
    os.kill(spawned["pid"], signal.SIGCONT)
    assert shell.run("collect", "a").stdout != b""


def test_a_client_that_is_killed_costs_the_daemon_nothing(shell: Shell) -> None:
    """kill -9 of a waiting command: the agent works on, the daemon answers, the result is there."""
    spawned = shell.data("spawn", "t", "--name", "a")
    os.kill(spawned["pid"], signal.SIGSTOP)
    waiting = shell.start("query", "a", "hi")
    shell.until("a", "busy")
    waiting.kill()
    waiting.communicate()
    os.kill(spawned["pid"], signal.SIGCONT)
    assert shell.run("collect", "a").stdout != b""


def test_prompts_of_every_size(shell: Shell) -> None:
    """Ten megabytes pass; nothing, or nothing but blanks, is an error that says so."""
    shell.run("spawn", "t", "--name", "a", "--script", shell.script("big", "odd"))
    assert shell.run("query", "a", "-", stdin=b"x" * 10_000_000).stdout == b"big\n"
    assert shell.run("query", "a", "-", stdin=b"caf\xe9\x00\xed\xa0\x80").stdout == b"odd\n"
    assert b"prompt" in shell.run("query", "a", "-", code=2).stderr


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
def test_bad_input_is_told(shell: Shell, argv: list[str], code: int, complaint: str) -> None:
    """What is wrong and which, on stderr alone, with the agreed exit code."""
    done = shell.run(*argv, code=code)
    assert done.stdout == b""
    assert done.stderr.decode().splitlines()[-1].startswith("orch: ")
    assert complaint in done.stderr.decode()


@pytest.mark.parametrize(
    ("redirected", "code", "complaint"),
    [
        ("list >&-", 1, "standard output is closed"),
        ("query a - <&-", 2, "standard input, which is closed"),
        ("list >/dev/full", 1, "the output cannot be written (No space left on device)"),
        ("run x --approve deny --script script.json >/dev/full", 1, "the output cannot be written"),
        ("list --json <&- 2>&-", 0, ""),
        ("frob 2>/dev/full", 2, ""),
        ("spawn x 2>/dev/full | grep -q .", 0, ""),
    ],
)
def test_standard_descriptors_may_be_closed_or_full(shell: Shell, redirected: str, code: int, complaint: str) -> None:
    """The daemon is started all the same; what cannot be done is one line, never a traceback."""
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
    told = done.stderr.decode().splitlines()
    assert (done.returncode, len(told)) == (code, 1 if complaint else 0), told
    assert complaint in "".join(told)


def test_a_limit_exits_with_5(shell: Shell) -> None:
    """The daemon takes its limits from the variables it was started with."""
    shell.env["ORCH_SUBAGENTS__MAX_CONCURRENT"] = "1"
    shell.run("spawn", "one")
    assert b"max_concurrent" in shell.run("spawn", "two", code=5).stderr
    shell.env["ORCH_SUBAGENTS__MAX_CONCURRENT"] = "2"
    told = shell.run("spawn", "two", code=5).stderr.decode().splitlines()[0]
    assert "started with subagents.max_concurrent = 1 (not 2)" in told
    assert b"(the daemon was started with 1)" in shell.run("config", "show").stdout


def test_agents_survive_the_daemon(shell: Shell) -> None:
    """After stop, and after kill -9, the next command starts a daemon that knows everybody, and they answer."""
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


def test_the_files_are_private_whatever_the_umask(shell: Shell) -> None:
    """Folders 0700, files 0600, the socket too; but what agents make for their user is as the umask says."""
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
    """A key in the caller's environment is in no process of ours, as /proc shows them, and in no file."""
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


def test_every_process_carries_its_run(shell: Shell) -> None:
    """The daemon, its shim, its templates and its workers have ORCH_RUN from exec on."""
    spawned = shell.data("spawn", "t")
    found = dict(processes_with_token())
    mine = {pid for pid in shell.ours() if found.get(pid, {}).get("ORCH_RUN")}
    assert {shell.data("daemon", "status")["pid"], spawned["pid"]} <= mine


def test_a_home_that_cannot_be_made_is_told(shell: Shell) -> None:
    """A file in the place of the folder: one sentence, no traceback."""
    shell.home.write_text("")
    told = shell.run("list", code=1).stderr.decode()
    assert told.count("\n") == 1
    assert "ORCH_HOME" in told
    shell.home.unlink()


def test_list_imports_next_to_nothing(shell: Shell) -> None:
    """With a warm daemon, `orch list` loads no transport, event loop, logger or codec."""
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


def test_the_doctor_passes_here(shell: Shell) -> None:
    """With a daemon running and without."""
    shell.run("doctor")
    shell.run("daemon", "start")
    found = {each["check"]: each for each in shell.data("doctor")}
    assert found["daemon"]["detail"].startswith("process ")


def test_a_log_that_cannot_be_written_is_told(shell: Shell) -> None:
    """The command says which file, and starts nothing."""
    (shell.home / "daemon" / "log").mkdir(parents=True)
    told = shell.run("list", code=1).stderr.decode()
    assert told.count("\n") == 1
    assert "daemon/log cannot be written: Is a directory" in told
    assert shell.ours() == []


def test_ctrl_c_during_the_demo_leaves_nothing(shell: Shell) -> None:
    """Interrupted while the agent works, it ends its processes and removes its files."""
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
