"""`orch demo`: what orch is, in some seconds, over the folder one is in. Offline; leaves nothing behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from orch_protocol.agent.config import ArchivalConfig, Config, TriggerConfig
from orch_protocol.core.errors import AgentDiedError
from orch_protocol.core.ids import new_id
from orch_protocol.core.messages import Message

from ...api.sync import Orchestrator, Subagent
from ...archival.store.index import message_text
from ...config import paths
from ...render import terminal
from ...render.terminal import dump
from ...supervisor.recovery.orphan_cleanup import marked, stored_token
from ..command import Verb
from ..scratch import scratch

__all__ = ["VERBS"]

SECONDS: Final = 30.0
LINES: Final = 8
ATTEMPTS: Final = 5
POLL_SECONDS: Final = 0.0005
QUESTIONS: Final = {
    "reader": "What does the README promise, and how is it installed? ({word})",
    "auditor": "Where are errors raised, and which tests check them?",
}
AFTER: Final = "What was {word} about?"
LONGEST: Final = 80
WIDTH: Final = 160
# Whatever it looked at once goes to an archive, before the reply.
ARCHIVING: Final = ArchivalConfig(
    enabled=True, async_=False, profile="seed", trigger=TriggerConfig(tool_call_threshold=1)
)


def _demo(arguments: Namespace) -> int:
    say = (lambda _: None) if arguments.json else _say
    began = time.monotonic()
    folder = Path(arguments.folder).absolute()
    run = f"demo-{new_id()}"
    with scratch() as home:
        told = _play(home, run, folder, say)
        token = stored_token(paths.run_dir(home, run))
    left = [pid for pid, env in marked() if env["ORCH_RUN"] == token]
    told |= {"left": left, "seconds": round(time.monotonic() - began, 2)}
    say(f"\nEnded: {len(left)} processes and 0 files are left, after {told['seconds']:.1f} s.")
    if arguments.json:
        print(dump(told))
    return 1 if left else 0


def _play(home: Path, run: str, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Do the demonstration and return what came of it."""
    with Orchestrator("extractive:", config=Config(archival=ARCHIVING), run=run, home=home) as o:
        word = new_id()[:6]  # a word that only the conversation has
        questions = {name: question.format(word=word) for name, question in QUESTIONS.items()}
        agents = {
            name: o.spawn(f"Investigate {folder}", preset="investigate", name=name, cwd=folder) for name in QUESTIONS
        }
        pids = {name: agent.pid for name, agent in agents.items()}
        say(
            f"Two agents over {folder}, each a process of its own: {', '.join(f'{n} is {p}' for n, p in pids.items())}."
        )
        futures = {name: agent.submit(questions[name]) for name, agent in agents.items()}
        answers = {name: future.result(SECONDS) for name, future in futures.items()}
        for name, answer in answers.items():
            say(f"\n{name}, asked at the same time: {questions[name]}\n{_head(answer.text)}")
        recalled = _recall(o, agents["auditor"], answers["auditor"].archived_to, say)
        victim = agents["reader"]
        killed, outcome = _kill_in_the_middle(victim)
        say(f"\nkill -9 {killed}, in the middle of a question: {outcome}")
        again = AFTER.format(word=word)
        revived = victim.query(again, timeout=SECONDS)
        say(f"\nreader again, now process {victim.pid}, asked: {again}\n{_head(revived.text)}")
        rows = o.agents()
        say(f"\n{terminal.tree([msgspec.to_builtins(row) for row in rows])}")
        return {
            "answers": {name: answer.text for name, answer in answers.items()},
            "recalled": recalled,
            "killed": {"pid": killed, "outcome": outcome},
            "revived": {"pid": victim.pid, "text": revived.text},
            "agents": [{"name": row.name, "status": row.status, "queries": row.queries} for row in rows],
        }


def _recall(o: Orchestrator, agent: Subagent, holder: str | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Get back what left the conversation of `agent` for the archive `holder`: found, read, and asked for."""
    if holder is None:
        say(f"\nThat turn of {agent.name} could not be archived; see: orch doctor")
        return {}
    [row] = [row for row in o.archives(agent.id) if row.id == holder]
    say(
        f"\nThat turn of {agent.name} is archive {holder} by now: {row.messages} messages, {row.tokens:,} tokens. "
        f"In its conversation stays\n{_head(row.record)}"
    )
    line = _gone(o.read_archive(holder), row.record)
    [hit, *_] = o.search_archive(line, ref=agent.id)
    [entry] = o.read_archive(hit.id, first=hit.entry, last=hit.entry)
    before, found, after = message_text(entry).partition(line)
    begins = before.rfind("\n") + 1
    say(f"\nOf what went, looked for in the archives: {terminal.safe(line)}")
    say(f"Entry {hit.entry} of archive {hit.id} reads there\n{_head(before[begins:] + found + after)}")
    asked = o.get(hit.id)
    told = asked.query(f"What is there about {line}", timeout=SECONDS)
    say(f"\nIts holder, now process {asked.pid}, asked about the same:\n{_head(told.text)}")
    return {
        "archive": hit.id,
        "record": row.record,
        "line": line,
        "entry": hit.entry,
        "read": found,
        "holder": told.text,
    }


def _gone(messages: Sequence[Message], record: str) -> str:
    """Return a line that is in `messages`, between the prompt and the answer, and not in `record`."""
    said = (
        line.rpartition("\t")[2].strip() for message in messages[1:-1] for line in message_text(message).splitlines()
    )
    lines = [line for line in said if line and line not in record]
    return max((line for line in lines if len(line) <= LONGEST), key=len, default=lines[0])


def _kill_in_the_middle(agent: Subagent) -> tuple[int | None, str]:
    """Kill the agent's process once a turn is under way; return its pid and what became of the turn."""
    transcript = Path(agent.state().folder, "session.jsonl")
    outcome, pid = "", agent.pid
    for _ in range(ATTEMPTS):
        pid, size = agent.pid, transcript.stat().st_size
        assert pid is not None
        future = agent.submit("Which functions are defined here?")
        while transcript.stat().st_size == size and not future.done():
            time.sleep(POLL_SECONDS)
        os.kill(pid, signal.SIGKILL)
        try:
            future.result(SECONDS)
        except AgentDiedError as error:
            return pid, str(error)
        outcome = "it had just answered"
        agent.query("Are you there?", timeout=SECONDS)
    return pid, outcome


def _head(text: str) -> str:
    lines = terminal.safe(text).splitlines()
    more = ["  ..."] if len(lines) > LINES else []
    return "\n".join([*(f"  {line[:WIDTH]}" for line in lines[:LINES]), *more])


def _say(text: str) -> None:
    print(text)
    sys.stdout.flush()


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default=".", help="what to investigate (this folder)")


VERBS = {
    "demo": Verb(
        "Two agents over a folder: asked at once, one archived and recalled, one killed with -9 and revived. Offline.",
        "orch demo",
        _arguments,
        _demo,
    )
}
