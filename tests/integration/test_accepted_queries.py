"""Asynchronous queries that were accepted reach their agent, even if the daemon is killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from integration.command_shell import Shell, ended

ECHO = {"loop": [{"echo": True}]}


def children(pid: int) -> list[int]:
    """Return the pids of the children of a process."""
    lists = [(task / "children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return [int(word) for each in lists for word in each.split()]


def without_zygotes(shell: Shell) -> int:
    """Stop the zygotes, so that no worker starts before the daemon is killed. Return the daemon's pid."""
    daemon: int = shell.data("daemon", "start")["pid"]
    for shim in children(daemon):
        for zygote in children(shim):
            os.kill(zygote, signal.SIGSTOP)
    return daemon


def kill(shell: Shell, daemon: int) -> None:
    """Kill the daemon, and wait until all its processes have ended."""
    os.kill(daemon, signal.SIGKILL)
    for pid in [daemon, *shell.ours()]:
        ended(pid)


def prompts(shell: Shell, agent: str, text: str) -> int:
    """Return how many prompts with `text` the agent's transcript contains."""
    lines = (shell.home / "sessions" / agent / "session.jsonl").read_text().splitlines()
    messages = [row["message"] for row in map(json.loads, lines) if row["type"] == "message"]
    return sum(message["role"] == "user" and text in json.dumps(message) for message in messages)


def test_query_accepted_by_a_killed_daemon_is_answered_by_the_next(shell: Shell) -> None:
    """The daemon is killed right after it accepted a query for a cold agent. The agent gets the prompt once."""
    agent = shell.data("spawn", "t", "--name", "a", "--script", shell.script(ECHO))["id"]
    shell.run("daemon", "stop")
    daemon = without_zygotes(shell)
    accepted = json.loads(
        shell.run("query", "a", "-", "--no-wait", "--json", stdin=b"token " + b"x" * (2 << 20)).stdout
    )
    kill(shell, daemon)
    assert not prompts(shell, agent, "token")
    answer = shell.data("collect", "a")
    assert answer["query_id"] == accepted["query_id"]
    assert answer["text"].startswith("token ")
    assert prompts(shell, agent, "token") == 1
    kill(shell, shell.data("daemon", "status")["pid"])
    assert shell.data("collect", "a", "--again") == answer
    assert shell.run("query", "a", "and now").stdout == b"and now\n"
    assert prompts(shell, agent, "token") == 1


def test_query_accepted_for_a_dead_worker_is_answered_by_the_next_daemon(shell: Shell) -> None:
    """The agent gets the prompt once, although the daemon is killed before it starts another worker."""
    spawned = shell.data("spawn", "t", "--name", "a", "--script", shell.script(ECHO))
    daemon = without_zygotes(shell)
    os.kill(spawned["pid"], signal.SIGKILL)
    shell.until("a", "died")
    shell.run("query", "a", "token", "--no-wait")
    kill(shell, daemon)
    assert shell.run("collect", "a").stdout == b"token\n"
    assert prompts(shell, spawned["id"], "token") == 1


def test_query_accepted_by_a_stopped_daemon_is_answered_by_the_next(shell: Shell) -> None:
    """`orch daemon stop` right after a query was accepted does not lose the query, and the agent gets the
    prompt once.
    """
    agent = shell.data("spawn", "t", "--name", "a", "--script", shell.script(ECHO))["id"]
    shell.run("daemon", "stop")
    without_zygotes(shell)
    shell.run("query", "a", "token", "--no-wait")
    shell.run("daemon", "stop")
    assert shell.run("collect", "a").stdout == b"token\n"
    assert prompts(shell, agent, "token") == 1


def test_answers_are_collected_by_query_id(shell: Shell) -> None:
    """`orch collect --query` returns the answers in any order, and a collected answer again with `--again`."""
    shell.run("spawn", "t", "--name", "a", "--script", shell.script(ECHO))
    asked = {}
    for prompt in ("one", "two", "three"):
        asked[prompt] = shell.data("query", "a", prompt, "--no-wait")["query_id"]
        shell.until("a", "idle")
    for prompt in ("two", "three", "one"):
        answer = shell.data("collect", "a", "--query", asked[prompt])
        assert (answer["query_id"], answer["text"]) == (asked[prompt], prompt)
    assert shell.data("collect", "a", "--query", asked["one"], "--again")["text"] == "one"
    errors = shell.run("collect", "a", "--query", "nope", "--again", code=3).stderr.decode()
    assert f"{asked['one']} (collected)" in errors
    waited = shell.data("query", "a", "four")
    assert waited["query_id"] not in asked.values()
    assert shell.data("collect", "a", "--query", waited["query_id"], "--again") == waited
