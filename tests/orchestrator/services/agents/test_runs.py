"""The runs of a home, and what can be read of the run of another program."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec.structs import replace

from agent_history import EAGER
from orch import Config
from orch.daemon.control_socket import Client
from orch.daemon.daemon import Daemon
from orch.services import USER, call, call_in_run
from orch.sessions.export import export_pages
from orch_protocol.core.errors import AgentNotFoundError, ConfigError, EntryNotFoundError
from orch_protocol.services.agents.lifecycle import KILL, Kill
from orch_protocol.services.agents.query import QUERY, QueryAgent
from orch_protocol.services.agents.runs import LIST_RUNS, RunRow
from orch_protocol.services.agents.status import LIST_AGENTS, SHOW_AGENT, SHOW_STATE, ListAgents, ShowAgent
from orch_protocol.services.archives.recall import (
    LIST_ARCHIVES,
    READ_ARCHIVE,
    SEARCH_ARCHIVE,
    ListArchives,
    ReadArchive,
    SearchArchive,
)
from orch_protocol.services.service import AgentRef, Empty
from orch_protocol.services.sessions.sessions import SHOW_SESSION, ShowSession
from orchestrator.root_double import Gate, World, opened


class Runs(NamedTuple):
    """A daemon, a program that is running, and the folder of the run of a program that has ended."""

    daemon: World
    live: World
    ended: Path


@asynccontextmanager
async def three_runs(home: Path) -> AsyncIterator[Runs]:
    """Yield the runs `daemon`, `live` and `ended`. In the latter two, an agent `reader` has answered one query."""
    async with opened(home, run="ended") as ended:
        await (await ended.scripted("from the past", name="reader")).query("go")
    async with opened(home, run="live") as live, opened(home, run="daemon") as daemon:
        await (await live.scripted("from the present", name="reader")).query("go")
        yield Runs(daemon, live, home / "runs" / "ended")


async def test_runs_are_listed_with_state_agents_and_activity(tmp_path: Path) -> None:
    """Running programs have a process; the latest activity comes first; an unreadable journal is an error."""
    async with three_runs(tmp_path) as runs:
        (tmp_path / "runs" / "foreign" / "journal.jsonl").mkdir(parents=True)
        async with opened(tmp_path) as unnamed:
            gate = Gate()
            agent = await unnamed.scripted({"tool": "gate"}, "done", tools=[gate.tool()])
            agent.submit("go")
            await gate.called.wait()
            rows: dict[str, RunRow] = {row.name: row for row in await runs.daemon.runs()}
            assert rows.pop(unnamed.run).busy == 1
            gate.open.set()
            await agent.collect()
        assert {name: (row.state, row.pid is None, row.agents) for name, row in rows.items()} == {
            "live": ("running", False, 1),
            "ended": ("ended", True, 1),
            "daemon": ("running", False, 0),
            "foreign": ("ended", True, 0),
        }
        assert list(rows)[:2] == ["live", "ended"]
        assert "orch fsck" in rows["foreign"].error
        assert rows["ended"].folder == str(runs.ended)
        assert rows["ended"].cwd == str(Path.cwd())
        assert unnamed.run not in {row.name for row in await call(runs.daemon.supervisor, USER, LIST_RUNS, Empty())}


async def test_runs_and_status_count_the_same_agents(tmp_path: Path) -> None:
    """Killed agents are not counted. Their costs are."""
    async with opened(tmp_path, run="daemon") as world:
        for _ in range(2):
            await (await world.scripted("done")).query("go")
        (ended, _) = await world.agents()
        await world.kill(ended.id)
        (row,) = await world.runs()
        daemon = Daemon(world.supervisor, call, home=tmp_path, config=Config())
        status = await daemon.handle("daemon_status", msgspec.Raw(b"{}"), Client(1, os.getuid()))
        usage = world.supervisor.tree.agents.usage
        assert (row.agents, row.busy, status.agents) == (1, 0, 1)
        assert (row.cost_usd, row.cost_known, row.ceiling_usd) == (usage.cost_usd, usage.cost_known, usage.ceiling_usd)


@pytest.mark.parametrize(("run", "status", "text"), [("live", "idle", "present"), ("ended", "cold", "past")])
async def test_another_run_is_read(tmp_path: Path, run: str, status: str, text: str) -> None:
    """Agents, conversations and session trees of other runs can be read, and nothing is written to their journals."""
    async with three_runs(tmp_path) as runs:
        root, journal = runs.daemon.supervisor, tmp_path / "runs" / run / "journal.jsonl"
        before = journal.read_bytes()
        (row,) = await call_in_run(root, run, LIST_AGENTS, ListAgents())
        assert (row.name, row.status, row.pid is None) == ("reader", status, status == "cold")
        shown = await call_in_run(root, run, SHOW_AGENT, ShowAgent("reader"))
        assert text in str(shown.messages[-1])
        tree = await call_in_run(root, run, SHOW_SESSION, ShowSession("1"))
        assert text in str(tree.entries)
        assert text in "".join(export_pages(await call_in_run(root, run, SHOW_STATE, AgentRef(row.id)), "md")[0])
        assert journal.read_bytes() == before
        with pytest.raises(AgentNotFoundError):
            await call_in_run(root, run, SHOW_STATE, AgentRef("writer"))


async def test_archives_of_another_run_are_listed_searched_and_read(tmp_path: Path) -> None:
    """The daemon needs no archival of its own. An archive without an agent record is shown too."""
    archiving = Config(archival=replace(EAGER, async_=False))
    async with opened(tmp_path, run="live", config=archiving) as live, opened(tmp_path, run="daemon") as daemon:
        holder = (await (await live.scripted("4.2 bar", name="reader")).query("pressure of pump 7?")).archived_to or ""
        root, journal = daemon.supervisor, tmp_path / "runs" / "live" / "journal.jsonl"
        before = journal.read_bytes()
        assert [row.id for row in await call_in_run(root, "live", LIST_ARCHIVES, ListArchives())] == [holder]
        (hit, *_) = await call_in_run(root, "live", SEARCH_ARCHIVE, SearchArchive("pump 7"))
        assert hit.id == holder
        assert "4.2 bar" in str(await call_in_run(root, "live", READ_ARCHIVE, ReadArchive(holder)))
        assert (await call_in_run(root, "live", SHOW_AGENT, ShowAgent(holder))).agent.kind == "holder"
        assert journal.read_bytes() == before
        assert root.tree.agents.get(holder) is None


async def test_query_of_a_program_that_was_killed_is_shown_and_does_not_run_again(tmp_path: Path) -> None:
    """The journal lists a busy agent. Its run has ended, so the agent is cold, and no process starts."""
    gate = Gate()
    async with opened(tmp_path / "first", run="program") as program:
        agent = await program.scripted({"tool": "gate"}, "done", tools=[gate.tool()], name="reader")
        agent.submit("go")
        await gate.called.wait()
        journal = (tmp_path / "first" / "runs" / "program" / "journal.jsonl").read_bytes()
        gate.open.set()
        await agent.collect()
    async with opened(tmp_path / "second", run="daemon") as daemon:
        killed = tmp_path / "second" / "runs" / "program" / "journal.jsonl"
        killed.parent.mkdir()
        killed.write_bytes(journal)
        row = await call_in_run(daemon.supervisor, "program", SHOW_STATE, AgentRef("reader"))
        assert (row.status, row.pid) == ("cold", None)
        assert gate.calls == 1
        assert killed.read_bytes() == journal


@pytest.mark.parametrize(
    ("run", "why"),
    [
        ("live", r"its agents belong to a running program, process \d+"),
        ("ended", r"its program has ended; a program continues its agents with Orchestrator\(run='ended'\)"),
    ],
)
async def test_what_needs_the_program_is_refused_with_the_reason(tmp_path: Path, run: str, why: str) -> None:
    """The error says what is not possible, why, and what can be read."""
    async with three_runs(tmp_path) as runs:
        requests: list[tuple[Any, Any]] = [(QUERY, QueryAgent("reader", "go")), (KILL, Kill(("reader",)))]
        for service, params in requests:
            with pytest.raises(ConfigError, match=f"'{service.name}' is not possible in run '{run}': {why}.*`show`"):
                await call_in_run(runs.daemon.supervisor, run, service, params)


async def test_daemon_answers_requests_about_other_runs(tmp_path: Path) -> None:
    """The run of a request selects the agents. "daemon" is the daemon's own run."""
    async with three_runs(tmp_path) as runs:
        await runs.daemon.scripted(name="own")
        daemon = Daemon(runs.daemon.supervisor, call, home=tmp_path, config=Config())
        for run, name in {"": "own", "daemon": "own", "live": "reader", "ended": "reader"}.items():
            params = msgspec.Raw(b'{"ref": "latest"}')
            assert (await daemon.handle("state", params, Client(1, os.getuid(), run=run))).name == name


@pytest.mark.parametrize(
    ("name", "hint"), [("lvie", "did you mean 'live'"), ("../runs/live", "orch runs"), ("", "orc")]
)
async def test_unknown_run_is_an_error(tmp_path: Path, name: str, hint: str) -> None:
    """A misspelled name gets the similar name. A path is not a name."""
    async with three_runs(tmp_path) as runs:
        with pytest.raises(EntryNotFoundError, match=f"no run named '{name}': .*{hint}"):
            await call_in_run(runs.daemon.supervisor, name, LIST_AGENTS, ListAgents())
