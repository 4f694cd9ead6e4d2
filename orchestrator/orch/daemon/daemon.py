"""The per-user daemon: `python -P -m orch.daemon.daemon`.

A lock file ensures that each ORCH_HOME has at most one daemon. The daemon serves the control socket until it is stopped
or has been idle for `daemon.idle_minutes`. Keys come with each request and stay in memory. `orch daemon run` passes
keys through a file descriptor, so that no environment contains them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from orch_protocol.agent.config import Config
from orch_protocol.core.errors import (
    AgentBusyError,
    ConfigError,
    LockedError,
    OrchError,
    ProtocolError,
    ToolNotGrantedError,
    error_info,
)
from orch_protocol.policy.sandbox import Level
from orch_protocol.services.agents.lifecycle import KILL, Kill
from orch_protocol.services.agents.spawn import Spawn
from orch_protocol.services.agents.status import LIST_AGENTS, AgentRow, ListAgents
from orch_protocol.services.dispatch.registry import SERVICES
from orch_protocol.services.service import Empty
from orch_protocol.services.sessions.import_session import ImportSession
from orch_protocol.wire.control_socket import ALREADY_RUNNING, ControlNotice
from orch_protocol.wire.frames import DECODE_ERRORS, VERSION
from orch_worker.backends import models
from orch_worker.process import worker_init
from orch_worker.sandbox.probe import AvailableLevels, available_levels, describe
from orch_worker.session.log.lock import FolderLock
from orch_worker.system.secrets import holds_secret

from ..config import paths
from ..config.config import ROOT_WIDE, flatten, load
from ..config.logs import logger, open_log
from ..config.version import __version__
from ..policy.caller import USER, AgentCaller, Caller
from ..policy.credentials import CallerCredentials, read_salt
from ..policy.permissions import CallService, check
from .control_socket import Client, ControlServer, DaemonLeaving

__all__ = ["Daemon", "DaemonStatus", "Stop", "Stopping", "main"]

DRAIN_SECONDS: Final = 10.0
CHECK_SECONDS: Final = 15.0
"""The interval of the checks that the daemon's folder still exists."""
MAX_DESCRIPTORS: Final = 1 << 14
"""The limit of open files that the daemon requests.

An agent needs at most four files; its commands inherit this limit.
"""
PASSIVE_METHODS: Final = frozenset({"daemon_status", "ping"})
"""Methods that only query the daemon. These methods do not count as activity, and commands of agents may use them."""

log = logger("orch.daemon.daemon")


async def _find_levels() -> AvailableLevels:
    """Determine in a thread which sandbox levels this machine supports."""
    return await asyncio.to_thread(available_levels)


T = TypeVar("T", bound=Struct)
Watcher = Callable[[Any], None]
Call = Callable[..., Awaitable[Any]]


class DaemonStatus(Struct, frozen=True):
    """The status of the daemon. `agents` counts agents except holders and killed agents, and `busy` those that work.

    `model` is None for the offline backend.

    `settings` contains the values that apply to all agents of the daemon, by dotted key. `sandbox` is the default level
    of tools. With `sandbox_required`, no agent gets a lower level. `sandbox_offered` describes the levels that this
    machine supports. `agent_id` is the agent whose command asks; None means the user.
    """

    pid: int
    sandbox: Level
    sandbox_required: bool
    sandbox_offered: str
    agents: int
    busy: int
    version: str
    protocol: int
    home: str
    started_at: str
    model: str | None
    settings: dict[str, Any]
    agent_id: str | None = None


class Stop(Struct, frozen=True, forbid_unknown_fields=True):
    """Stop the daemon. With `if_idle`, stop only when no agent is working and no other request is in progress."""

    if_idle: bool = False


class Stopping(Struct, frozen=True):
    """The daemon is about to exit."""

    pid: int


class FallbackKeys(Struct, frozen=True):
    """The names of the variables that the daemon uses for callers without keys."""

    names: tuple[str, ...]


class Daemon:
    """Answers control requests for `root` and decides when to exit.

    `call` runs one of the services; a streaming service sends its events to the client. `clock` returns seconds.
    `owns_folder` returns whether the folder still belongs to the daemon. If the folder was removed, clients no longer
    find this daemon. If the folder was replaced, another daemon may serve the new folder. `fault` returns the reason
    why the journal cannot be written, or "" if it can be written. In case of a fault the daemon exits, and the next
    daemon opens the journal again.
    """

    def __init__(
        self,
        root: Any,
        call: Call,
        *,
        home: Path,
        config: Config,
        owns_folder: Callable[[], bool] = lambda: True,
        fault: Callable[[], str] = lambda: "",
        clock: Callable[[], float] = time.monotonic,
        find_levels: Callable[[], Awaitable[AvailableLevels]] = _find_levels,
        credentials: CallerCredentials | None = None,
    ) -> None:
        self._root = root
        self._call = call
        self._home = home
        self._config = config
        self._owns_folder, self._fault = owns_folder, fault
        self._clock = clock
        self._find_levels = find_levels
        self._credentials = credentials
        self._last_activity = clock()
        self._requests = 0
        self._started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._stop = asyncio.Event()
        self._ending: set[asyncio.Task[None]] = set()

    async def handle(self, method: str, params: msgspec.Raw, client: Client) -> Any:
        """Handle a request of the control socket."""
        is_activity = method not in PASSIVE_METHODS
        self._requests += is_activity
        try:
            if method == "ping":
                return Empty()
            if client.agent_id is not None and method not in PASSIVE_METHODS:
                return await self._handle_command(method, params, client)
            if method == "daemon_stop":
                return await self._stop_requested(_params(method, params, Stop), client)
            if not self._owns_folder():
                self.stop()
                raise DaemonLeaving(f"daemon is shutting down: its home {self._home} was moved or deleted; retry")
            if fault := self._fault():
                self.stop()
                raise DaemonLeaving(f"daemon is shutting down: {fault}; retry")
            with self._calling(method, client):
                return await self._serve(method, params, client)
        finally:
            self._requests -= is_activity
            if is_activity:
                self._last_activity = self._clock()

    async def _handle_command(self, method: str, params: msgspec.Raw, client: Client) -> Any:
        """Handle a request from a command of an agent. The agent counts as the caller."""
        assert client.agent_id is not None
        if client.run:
            raise ToolNotGrantedError(f"agent {client.agent_id} cannot read the run {client.run!r}; only the user can")
        caller = AgentCaller(client.agent_id, from_command=True)
        check(self._root.tree.agents, caller, CallService(method))  # before the parameters are decoded
        return await self._call_service(caller, method, params, client)

    @contextlib.contextmanager
    def _calling(self, method: str, client: Client) -> Iterator[None]:
        """Run the block with the credentials of `client`. Commands of agents provide no credentials."""
        if self._credentials is None or client.agent_id is not None:
            yield
            return
        with self._credentials.on_behalf_of(
            client.credentials, method, lambda line: client.send_event(ControlNotice(line))
        ):
            if client.credentials:
                self._root.launch_waiting()
            yield

    async def _serve(self, method: str, params: msgspec.Raw, client: Client) -> Any:
        if method == "daemon_status":
            return await self._status(client)
        if method == "daemon_keys":
            return self._take_keys(client)
        if method not in SERVICES:
            known = ", ".join([*SERVICES, "daemon_status", "daemon_stop", "ping"])
            raise ProtocolError(f"unknown method {method!r}; available: {known}")
        if client.run not in ("", paths.DAEMON_RUN):
            from ..services import call_in_run  # the module starts quickly without the services

            service = SERVICES[method]
            return await call_in_run(self._root, client.run, service, _params(method, params, service.params))
        return await self._call_service(USER, method, params, client, client.send_event)

    async def _call_service(
        self, caller: Caller, method: str, params: msgspec.Raw, client: Client, *watcher: Watcher
    ) -> Any:
        """Call the service `method`. An agent that ends with its connection is ended when `client` disconnects.

        If the client disconnects before the agent is known, the call is canceled.
        """
        service = SERVICES[method]
        service_params: Struct = _params(method, params, service.params)
        if caller.is_user:
            _check_folder(service_params)
        call = self._call(self._root, caller, service, service_params, *watcher)
        if client.disconnected is None or not getattr(service_params, "ends_with_connection", False):
            return await call
        task = asyncio.ensure_future(call)

        def cancel(_: object) -> None:
            task.cancel()

        client.disconnected.add_done_callback(cancel)
        try:
            agent = await task
        finally:
            client.disconnected.remove_done_callback(cancel)
        client.disconnected.add_done_callback(lambda _: self._end_later(agent.id))
        return agent

    def _end_later(self, id: str) -> None:
        task = asyncio.ensure_future(self._end_unconnected(id))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end_unconnected(self, *ids: str) -> None:
        """End those of the agents that end with their connection. The connection is closed."""
        agents = self._root.tree.agents
        refs = tuple(
            id for id in ids if agents[id].ends_with_connection and agents[id].status not in ("killed", "failed")
        )
        if not refs:
            return
        log.info("ended_with_connection", agents=refs)
        try:
            await self._call(self._root, USER, KILL, Kill(refs))
        except OrchError as error:
            log.error("not_ended_with_connection", agents=refs, why=str(error))

    async def end_agents_of_earlier_daemons(self) -> None:
        """End the agents whose connection to an earlier daemon was closed when that daemon ended."""
        await self._end_unconnected(*(agent.spec.id for agent in self._root.tree.agents.by_id.unpacked()))

    def _take_keys(self, client: Client) -> FallbackKeys:
        """Use the client's variables for callers without keys."""
        if self._credentials is not None:
            self._credentials.set_fallback(client.credentials, "orch daemon start")
            self._root.launch_waiting()
        return FallbackKeys(tuple(sorted(client.credentials)))

    async def until_done(self) -> str:
        """Wait until the daemon has to exit, and return the reason."""
        while self._owns_folder():
            if fault := self._fault():
                return fault
            if self._stop.is_set():
                return "asked to stop"
            remaining_seconds = await self.seconds_left()
            if remaining_seconds <= 0:
                return f"idle for {self._config.daemon.idle_minutes:g} minutes"
            try:
                async with asyncio.timeout(min(remaining_seconds, CHECK_SECONDS)):
                    await self._stop.wait()
            except TimeoutError:
                pass
        return f"{self._home} was removed, or another daemon serves it"

    async def seconds_left(self) -> float:
        """Return the number of seconds until the daemon exits because it is idle.

        Requests in progress and working agents reset the time.
        """
        if self._requests or await self._busy():
            self._last_activity = self._clock()
        return self._last_activity + self._config.daemon.idle_minutes * 60 - self._clock()

    def stop(self) -> None:
        """Make `until_done` return."""
        self._stop.set()

    async def _agents(self) -> list[AgentRow]:
        rows: list[AgentRow] = await self._call(self._root, USER, LIST_AGENTS, ListAgents())
        return rows

    async def _busy(self) -> list[str]:
        return [row.id for row in await self._agents() if row.status in ("busy", "starting")]

    async def _status(self, client: Client) -> DaemonStatus:
        rows = await self._agents()
        levels, sandbox = await self._find_levels(), self._config.sandbox
        return DaemonStatus(
            pid=os.getpid(),
            sandbox=levels.nearest(sandbox.level),
            sandbox_required=sandbox.require,
            sandbox_offered=describe(levels),
            agents=len(rows),
            busy=sum(row.status in ("busy", "starting") for row in rows),
            version=__version__,
            protocol=VERSION,
            home=str(self._home),
            started_at=self._started_at,
            model=self._config.model,
            settings={key: value for key, value in flatten(self._config).items() if key in ROOT_WIDE},
            agent_id=client.agent_id,
        )

    async def _stop_requested(self, params: Stop, client: Client) -> Stopping:
        if params.if_idle:
            busy = await self._busy()
            if busy:
                raise AgentBusyError(f"{len(busy)} agents are at work ({', '.join(busy)}): wait, or orch daemon stop")
            if self._requests > 1:
                raise AgentBusyError(f"{self._requests - 1} other requests are under way: wait, or orch daemon stop")
        log.info("asked_to_stop", by=client.pid)
        self.stop()
        return Stopping(os.getpid())


def _params(method: str, params: msgspec.Raw, type: type[T]) -> T:
    try:
        return msgspec.json.decode(params, type=type)
    except DECODE_ERRORS as error:
        raise ProtocolError(f"parameters of {method!r}: {error}") from error


def _check_folder(params: Struct) -> None:
    """Raise ConfigError if a request for a new agent names no folder, or a folder relative to the client's.

    The current folder of the daemon has nothing to do with the client.
    """
    for type_, name in ((Spawn, "cwd"), (ImportSession, "here")):
        if isinstance(params, type_):
            folder = getattr(params, name)
            if not os.path.isabs(os.path.expanduser(folder or "")):
                raise ConfigError(f"{name} must be the absolute path of the agent's working folder; got {folder!r}")


def read_keys(descriptor: int) -> dict[str, str]:
    """Read the key variables to the end of `descriptor` and close it. The variables are a JSON object."""
    with open(descriptor, "rb") as pipe:
        return msgspec.json.decode(pipe.read() or b"{}", type=dict[str, str])


def report(descriptor: int | None, **fields: Any) -> None:
    """Write a JSON line about the start to the parent process. If the pipe is closed, do nothing."""
    if descriptor is None:
        return
    try:
        os.write(descriptor, json.dumps(fields).encode() + b"\n")
    except BrokenPipeError:
        pass
    finally:
        os.close(descriptor)


async def serve(
    lock: FolderLock, home: Path, config: Config, credentials: CallerCredentials, ready: int | None
) -> None:
    """Run the daemon until it has to exit. `lock` is the lock of the folder `home`."""
    from ..api.orchestrator import AsyncOrchestrator
    from ..services import call

    orchestrator = AsyncOrchestrator(config=config, run=paths.DAEMON_RUN, home=home, keys={})
    orchestrator.credentials = credentials
    await orchestrator.__aenter__()
    root = orchestrator.supervisor
    daemon = Daemon(
        root,
        call,
        home=home,
        config=config,
        owns_folder=lock.holds,
        fault=lambda: root.disk.fault,
        credentials=credentials,
    )
    socket = paths.socket_path(paths.daemon_dir(home), paths.CONTROL)
    server = ControlServer(socket, daemon.handle, agent_of=root.workers.agent_of)
    try:
        stop_on_signals(daemon.stop)
        paths.write_variables(paths.daemon_dir(home), credentials.names)
        await daemon.end_agents_of_earlier_daemons()
        await server.start()
        paths.link_socket(paths.daemon_dir(home), socket)
        log.info("serving", version=__version__, home=str(home), pid=os.getpid())
        report(ready, pid=os.getpid())
        log.info("sandbox", level=config.sandbox.level, offered=describe(await _find_levels()))
        log.info("leaving", why=await daemon.until_done())
        await server.leave()
    finally:
        if not lock.holds():
            # Cleaning up would delete the next daemon's files; the shim ends all child processes.
            await server.close()
            os._exit(1)
        # When the root closes, requests that wait fail and are answered. The remaining requests are canceled.
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await orchestrator.__aexit__(None, None, None)
        except TimeoutError:
            log.error("agents_left_to_their_shim", seconds=DRAIN_SECONDS)
        await server.close()
        with contextlib.suppress(OSError):
            os.unlink(paths.daemon_dir(home) / paths.CONTROL)  # removes the link to the socket, if there is a link


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Call `stop` on the first SIGTERM, SIGINT or SIGHUP. On the next such signal, exit immediately."""
    loop = asyncio.get_running_loop()
    received: list[str] = []

    def handle_signal(number: signal.Signals) -> None:
        received.append(number.name)
        log.info("signal", name=number.name)
        if len(received) > 1:
            os._exit(1)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, handle_signal, number)


def main(argv: list[str] | None = None) -> int:
    """Run the daemon of this ORCH_HOME and return the exit code.

    Return ALREADY_RUNNING if another daemon is running.
    """
    parser = argparse.ArgumentParser(prog="python -P -m orch.daemon.daemon", description=__doc__)
    parser.add_argument(
        "--keys",
        type=int,
        metavar="FD",
        help="descriptor to read model variables from, as JSON, for callers without keys",
    )
    parser.add_argument("--ready", type=int, metavar="FD", help="descriptor to report to, once, as JSON")
    arguments = parser.parse_args(argv)
    os.umask(0o077)
    worker_init.protect_memory()  # this process has the keys of all workers
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    target_limit = MAX_DESCRIPTORS if hard_limit == resource.RLIM_INFINITY else min(hard_limit, MAX_DESCRIPTORS)
    if soft_limit != resource.RLIM_INFINITY and soft_limit < target_limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target_limit, hard_limit))
    for descriptor in (arguments.keys, arguments.ready):
        if descriptor is not None:
            os.set_inheritable(descriptor, False)
    try:
        keys = read_keys(arguments.keys) if arguments.keys is not None else {}
        home = paths.private_dir(paths.home())
        folder = paths.private_dir(paths.daemon_dir(home))
        try:
            lock = FolderLock.acquire(folder)  # held until exit; the lock shows that this process is running
        except LockedError as error:
            print(f"orch: another daemon serves {home}: {error}", file=sys.stderr)
            return ALREADY_RUNNING
        secrets = {value for name, value in os.environ.items() if holds_secret(name, value)}
        open_log(folder / "log", secrets)
        credentials = CallerCredentials(models.CatalogFile(home), read_salt(home), secrets)
        credentials.set_fallback(keys, "orch daemon run")
        asyncio.run(serve(lock, home, load(None, os.environ, home=home).config, credentials, arguments.ready))
    except (OrchError, OSError) as error:
        log.exception("could_not_go_on")
        info = error_info(error)
        code = error.exit_code if isinstance(error, OrchError) else 1
        report(arguments.ready, error={"type": info.type, "message": info.message, "exit_code": str(code)})
        return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
