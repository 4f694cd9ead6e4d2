"""The agent or user that a peer of the control socket acts for, found in a table of processes."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from orch.client.peer_credentials import Process, agent_of_peer, classify, read_process
from orch.daemon.control_socket import Client
from orch_protocol.core.errors import ProtocolError

INIT, TERMINAL, DAEMON, SHIM, ZYGOTE, WORKER, OTHER = 1, 10, 20, 21, 22, 23, 24
SHELL, ORPHAN = 30, 31
FOREIGN_SHIM, FOREIGN_WORKER, FOREIGN_SHELL = 41, 42, 43
AGENTS = {WORKER: "a1", OTHER: "b2"}
# The parent of each process, and whether it is a process of orch.
TABLE = {
    INIT: (0, False),
    TERMINAL: (INIT, False),
    DAEMON: (INIT, False),
    SHIM: (DAEMON, True),
    ZYGOTE: (SHIM, True),
    WORKER: (ZYGOTE, True),
    OTHER: (ZYGOTE, True),
    SHELL: (WORKER, False),
    FOREIGN_SHIM: (TERMINAL, True),
    FOREIGN_WORKER: (FOREIGN_SHIM, True),
    FOREIGN_SHELL: (FOREIGN_WORKER, False),
}


def acting(peer: int, *, own: int = DAEMON, agents: dict[int, str] = AGENTS, **more: tuple[int, bool]) -> str | None:
    """Return the agent that `peer` acts for. `more` adds processes to the table: p50=(parent, is_orch)."""
    table = TABLE | {int(name[1:]): process for name, process in more.items()}

    def lookup(pid: int) -> Process | None:
        return Process(pid, table[pid][0], pid, table[pid][1]) if pid in table else None

    return classify(peer, own, lookup, agents.get)


def test_process_without_orch_ancestors_is_the_user() -> None:
    """A shell in a terminal, a child of the daemon, and the daemon itself act for the user."""
    assert acting(TERMINAL) is None
    assert acting(50, p50=(TERMINAL, False)) is None
    assert acting(50, p50=(DAEMON, False)) is None
    assert acting(DAEMON) is None


def test_process_below_a_worker_acts_as_its_agent() -> None:
    """A worker (in run_python) and all its descendants act for its agent."""
    assert acting(SHELL) == "a1"
    assert acting(WORKER) == "a1"
    assert acting(OTHER) == "b2"
    assert acting(52, p50=(SHELL, False), p51=(50, False), p52=(51, False)) == "a1"


def test_process_below_the_shim_without_a_worker_is_refused() -> None:
    """An orphan that the shim adopted, an unknown child of the zygote, the shim and the zygote are refused."""
    for peer in (ORPHAN, 50, 51, SHIM, ZYGOTE):
        with pytest.raises(ProtocolError, match=f"process {peer} was started by an agent of another run, or"):
            acting(peer, p31=(SHIM, False), p50=(ZYGOTE, True), p51=(50, False))


def test_process_below_a_shim_of_another_run_is_refused() -> None:
    """The other run was started in a terminal, or by a command of one of the daemon's agents."""
    for peer in (FOREIGN_SHELL, FOREIGN_WORKER, FOREIGN_SHIM):
        with pytest.raises(ProtocolError, match="in another terminal"):
            acting(peer)
    with pytest.raises(ProtocolError, match="agent of another run"):
        acting(52, p50=(SHELL, False), p51=(50, True), p52=(51, False))


def test_shims_above_the_daemon_do_not_count() -> None:
    """If an agent started the daemon, that agent's commands act for the user of this daemon."""
    inner = {50: "c3"}
    started = {"p44": (FOREIGN_WORKER, False), "p49": (44, True), "p50": (49, True), "p51": (50, False)}
    assert acting(FOREIGN_SHELL, own=44, agents=inner, **started) is None
    assert acting(51, own=44, agents=inner, **started) == "c3"
    with pytest.raises(ProtocolError):
        acting(49, own=44, agents=inner, **started)
    with pytest.raises(ProtocolError):
        acting(SHELL, own=44, agents=inner, **started)  # a process of another run
    with pytest.raises(ProtocolError):  # another agent of the run that contains the daemon
        acting(53, own=44, agents=inner, **started, p52=(FOREIGN_SHIM, True), p53=(52, False))


def test_worker_that_cannot_be_seen_is_known_by_its_pid() -> None:
    """If /proc is mounted with hidepid, the parent of a command is hidden, but its pid is known."""
    assert acting(50, p50=(99, False)) is None
    assert acting(50, agents={99: "a1"}, p50=(99, False)) == "a1"


def test_process_that_is_not_found_is_refused() -> None:
    """The process has ended, or its chain of ancestors is a cycle."""
    with pytest.raises(ProtocolError, match="process 50 ended"):
        acting(50)
    with pytest.raises(ProtocolError, match="more than 1000 ancestors"):
        acting(51, p50=(51, False), p51=(50, False))


def test_reused_pid_of_an_ancestor_of_the_daemon_is_not_that_ancestor() -> None:
    """Two processes with the same pid have different start times."""
    seen = iter((Process(DAEMON, 5, 1, False), Process(5, 0, 7, True), Process(9, 5, 1, False), Process(5, 0, 8, True)))
    with pytest.raises(ProtocolError, match="agent of another run"):
        classify(9, DAEMON, lambda _: next(seen), lambda _: None)


def test_process_is_read_from_proc(tmp_path: Path) -> None:
    """The name of the program may contain spaces and parentheses. A process of orch is recognized by its arguments."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (a) b (c) S 3 7 7 0 -1 4194560 " + " ".join(map(str, range(10, 40))))
    (tmp_path / "7" / "cmdline").write_bytes(b"/usr/bin/python\0-P\0-m\0orch_worker\0shim\0005\0006\0")
    assert read_process(7, str(tmp_path)) == Process(7, 3, 22, True)
    (tmp_path / "7" / "cmdline").write_bytes(b"grep\0-m orch_worker\0")
    assert read_process(7, str(tmp_path)) == Process(7, 3, 22, False)
    assert read_process(8, str(tmp_path)) is None


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells ancestors on Linux only")
class TestPeers:
    """Peers of real sockets."""

    def test_process_sharing_all_ancestors_is_the_user(self) -> None:
        """The peer is the process itself."""
        here, there = socket.socketpair()
        with here, there:
            assert agent_of_peer(here, lambda _: None) is None

    def test_peer_in_another_pid_namespace_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The kernel reports pid 0 for such a peer."""
        monkeypatch.setattr("orch.client.peer_credentials.peer_of", lambda _: (0, os.getuid()))
        here, there = socket.socketpair()
        with here, there, pytest.raises(ProtocolError, match="another pid namespace"):
            agent_of_peer(here, lambda _: None)


def test_client_is_the_user_by_default() -> None:
    """A client without an agent acts for the user and is not refused."""
    assert (Client(1, 2).agent_id, Client(1, 2).refused) == (None, "")
