"""The per-user root behind the CLI: `python -P -m orch.daemon.daemon`. One for each ORCH_HOME, by a lock on a file.

It serves the control socket until it is told to stop or had nothing to do for `daemon.idle_minutes`. Keys come with
each request and stay in memory; `orch daemon run` hands some over through a descriptor, so that no environment holds
them.
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
from orch_protocol.core.errors import AgentBusyError, LockedError, OrchError, ProtocolError, error_info
from orch_protocol.policy.sandbox import Level
from orch_protocol.services.registry import SERVICES
from orch_protocol.services.requests import LIST_AGENTS, AgentRow, ListAgents, QueryAgent
from orch_protocol.services.service import Empty
from orch_protocol.wire.control_socket import ALREADY_RUNNING, ControlNotice
from orch_protocol.wire.frames import DECODE_ERRORS, VERSION
from orch_protocol.wire.watch_events import WatchAgent
from orch_worker.backends import models
from orch_worker.process import worker_init
from orch_worker.sandbox.probe import AvailableLevels, available_levels, describe
from orch_worker.session.log.lock import FolderLock
from orch_worker.system.secrets import holds_secret

from ..config import paths
from ..config.config import ROOT_WIDE, flatten, load
from ..config.logs import logger, open_log
from ..config.version import version
from ..policy.caller import USER, AgentCaller
from ..policy.credentials import CallerCredentials, read_salt
from .control_socket import Client, ControlServer, DaemonLeaving

__all__ = ["Daemon", "DaemonStatus", "Stop", "Stopping", "main"]

DRAIN_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 15.0
"""How often the daemon looks whether its folder is still there."""
DESCRIPTORS: Final = 1 << 14
"""What an agent takes of them is four at the most; what its commands inherit is no more either."""
UNHEARD: Final = frozenset({"daemon_status", "ping"})
"""Methods that only look at the daemon: they do not keep it from leaving, and commands of agents may use them."""

log = logger("orch.daemon.daemon")


async def _machine() -> AvailableLevels:
    """Return what this machine can keep tools from; it is tried once, beside what else there is to do."""
    return await asyncio.to_thread(available_levels)


T = TypeVar("T", bound=Struct)
Call = Callable[..., Awaitable[Any]]


class DaemonStatus(Struct, frozen=True):
    """The daemon as it is. `agents` and `busy` are counts; `model` None is the offline backend.

    `settings` are the values it goes by, by dotted key, of what holds for all of its agents. `sandbox` is the level at
    which tools run unless a caller or a setting says otherwise, `sandbox_required` whether no agent gets less, and
    `sandbox_offered` what this machine has, in words.
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


class Stop(Struct, frozen=True, forbid_unknown_fields=True):
    """Stop the daemon; with `if_idle` only when no agent works and nobody else asks."""

    if_idle: bool = False


class Stopping(Struct, frozen=True):
    """The daemon is about to end."""

    pid: int


class FallbackKeys(Struct, frozen=True):
    """Names of the variables that the daemon uses for callers without keys."""

    names: tuple[str, ...]


class Daemon:
    """Answers control requests for `root` and knows when to leave.

    `call` serves one of `orch_protocol.services.registry.SERVICES`; `clock` counts seconds. `holds` says whether the
    folder is
    still the daemon's: when it was removed or replaced nobody finds the daemon any more, or another one serves there.
    `fault` says why its journal can be written no more, "" as long as it can: the next daemon opens it anew.
    """

    def __init__(
        self,
        root: Any,
        call: Call,
        *,
        home: Path,
        config: Config,
        holds: Callable[[], bool] = lambda: True,
        fault: Callable[[], str] = lambda: "",
        clock: Callable[[], float] = time.monotonic,
        offered: Callable[[], Awaitable[AvailableLevels]] = _machine,
        credentials: CallerCredentials | None = None,
    ) -> None:
        self._root = root
        self._call = call
        self._home = home
        self._config = config
        self._holds, self._fault = holds, fault
        self._clock = clock
        self._offered = offered
        self._credentials = credentials
        self._touched = clock()
        self._requests = 0
        self._started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._stop = asyncio.Event()

    async def handle(self, method: str, params: msgspec.Raw, client: Client) -> Any:
        """Serve one request of the control socket."""
        heard = method not in UNHEARD
        self._requests += heard
        try:
            if method == "ping":
                return Empty()
            if client.agent_id is not None and method not in UNHEARD:
                return await self._handle_command(client.agent_id, method, params)
            if method == "daemon_stop":
                return await self._told_to_stop(_params(method, params, Stop), client)
            if not self._holds():
                self.stop()
                raise DaemonLeaving(f"daemon is shutting down: its home {self._home} was moved or deleted; retry")
            if fault := self._fault():
                self.stop()
                raise DaemonLeaving(f"the daemon is leaving: {fault}; ask the next one")
            with self._calling(method, client):
                return await self._serve(method, params, client)
        finally:
            self._requests -= heard
            if heard:
                self._touched = self._clock()

    async def _handle_command(self, agent_id: str, method: str, params: msgspec.Raw) -> Any:
        """Serve a request of a command that an agent runs, as a request of that agent."""
        from ..services import check_command  # imports everything that there is to serve

        check_command(self._root, agent_id, method)
        service = SERVICES[method]
        return await self._call(self._root, AgentCaller(agent_id), service, _params(method, params, service.params))

    @contextlib.contextmanager
    def _calling(self, method: str, client: Client) -> Iterator[None]:
        """Let what is done in this block be done with the credentials of `client`; commands of agents offer none."""
        if self._credentials is None or client.agent_id is not None:
            yield
            return
        with self._credentials.calling(client.credentials, method, lambda line: client.tell(ControlNotice(line))):
            if client.credentials:
                self._root.credentials_offered()
            yield

    async def _serve(self, method: str, params: msgspec.Raw, client: Client) -> Any:
        if method == "daemon_status":
            return await self._status()
        if method == "daemon_keys":
            return self._take_keys(client)
        if method not in SERVICES:
            known = ", ".join([*SERVICES, "daemon_status", "daemon_stop", "ping"])
            raise ProtocolError(f"unknown method {method!r}; available: {known}")
        service = SERVICES[method]
        asked: Struct = _params(method, params, service.params)
        told = isinstance(asked, QueryAgent) and (asked.stream or asked.approve or asked.progress)
        if told or isinstance(asked, WatchAgent):
            return await self._call(self._root, USER, service, asked, client.tell)
        return await self._call(self._root, USER, service, asked)

    def _take_keys(self, client: Client) -> FallbackKeys:
        """Use the client's variables for callers without keys."""
        if self._credentials is not None:
            self._credentials.fall_back_on(client.credentials, "orch daemon start")
            self._root.credentials_offered()
        return FallbackKeys(tuple(sorted(client.credentials)))

    async def until_done(self) -> str:
        """Return why it is time to leave, when it is."""
        while self._holds():
            if fault := self._fault():
                return fault
            if self._stop.is_set():
                return "told to stop"
            left = await self.seconds_left()
            if left <= 0:
                return f"idle for {self._config.daemon.idle_minutes:g} minutes"
            try:
                async with asyncio.timeout(min(left, LOOK_SECONDS)):
                    await self._stop.wait()
            except TimeoutError:
                pass
        return f"{self._home} was removed, or another daemon serves it"

    async def seconds_left(self) -> float:
        """Return how long to stay if nothing happens. Requests under way and agents at work start it anew."""
        if self._requests or await self._busy():
            self._touched = self._clock()
        return self._touched + self._config.daemon.idle_minutes * 60 - self._clock()

    def stop(self) -> None:
        """Make `until_done` return."""
        self._stop.set()

    async def _agents(self) -> list[AgentRow]:
        rows: list[AgentRow] = await self._call(self._root, USER, LIST_AGENTS, ListAgents())
        return rows

    async def _busy(self) -> list[str]:
        return [row.id for row in await self._agents() if row.status in ("busy", "starting")]

    async def _status(self) -> DaemonStatus:
        rows = await self._agents()
        offer, sandbox = await self._offered(), self._config.sandbox
        return DaemonStatus(
            pid=os.getpid(),
            sandbox=offer.nearest(sandbox.level),
            sandbox_required=sandbox.require,
            sandbox_offered=describe(offer),
            agents=len(rows),
            busy=sum(row.status in ("busy", "starting") for row in rows),
            version=version(),
            protocol=VERSION,
            home=str(self._home),
            started_at=self._started_at,
            model=self._config.model,
            settings={key: value for key, value in flatten(self._config).items() if key in ROOT_WIDE},
        )

    async def _told_to_stop(self, params: Stop, client: Client) -> Stopping:
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


def read_keys(descriptor: int) -> dict[str, str]:
    """Read the key variables, a JSON object, to the end of `descriptor` and close it."""
    with open(descriptor, "rb") as pipe:
        return msgspec.json.decode(pipe.read() or b"{}", type=dict[str, str])


def report(descriptor: int | None, **said: Any) -> None:
    """Tell whoever started us how that went: one JSON line. That nobody listens is no error."""
    if descriptor is None:
        return
    try:
        os.write(descriptor, json.dumps(said).encode() + b"\n")
    except BrokenPipeError:
        pass
    finally:
        os.close(descriptor)


async def serve(
    lock: FolderLock, home: Path, config: Config, credentials: CallerCredentials, ready: int | None
) -> None:
    """Be the daemon until it is time to leave. `lock` is what makes it the one of `home`."""
    from ..api.orchestrator import AsyncOrchestrator
    from ..services import call

    orchestrator = AsyncOrchestrator(config=config, run="daemon", home=home, keys={})
    orchestrator.credentials = credentials
    await orchestrator.__aenter__()
    root = orchestrator.supervisor
    daemon = Daemon(
        root,
        call,
        home=home,
        config=config,
        holds=lock.holds,
        fault=lambda: root.disk.fault,
        credentials=credentials,
    )
    socket = paths.socket_path(paths.daemon_dir(home), paths.CONTROL)
    server = ControlServer(socket, daemon.handle, agent_of=root.workers.agent_of)
    try:
        stop_on_signals(daemon.stop)
        paths.write_variables(paths.daemon_dir(home), credentials.names)
        await server.start()
        paths.link_socket(paths.daemon_dir(home), socket)
        log.info("serving", version=version(), home=str(home), pid=os.getpid())
        report(ready, pid=os.getpid())
        log.info("sandbox", level=config.sandbox.level, offered=describe(await _machine()))
        log.info("leaving", why=await daemon.until_done())
        await server.leave()
    finally:
        if not lock.holds():
            # Tidying up would take the next daemon's files along; the shim ends what runs below us.
            await server.close()
            os._exit(1)
        # Waiting requests fail as the root closes, and are answered; what is left then is cut off.
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await orchestrator.__aexit__(None, None, None)
        except TimeoutError:
            log.error("agents_left_to_their_shim", seconds=DRAIN_SECONDS)
        await server.close()
        with contextlib.suppress(OSError):
            os.unlink(paths.daemon_dir(home) / paths.CONTROL)  # where it only showed the socket


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Let the first SIGTERM, SIGINT or SIGHUP call `stop`, and the next end the process at once."""
    loop = asyncio.get_running_loop()
    seen: list[str] = []

    def met(number: signal.Signals) -> None:
        seen.append(number.name)
        log.info("signal", name=number.name)
        if len(seen) > 1:
            os._exit(1)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, met, number)


def main(argv: list[str] | None = None) -> int:
    """Run the daemon of this ORCH_HOME; ALREADY_RUNNING when there is one."""
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
    worker_init.protect_memory()  # it holds the keys of all workers
    few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, DESCRIPTORS)
    if few != resource.RLIM_INFINITY and few < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, most))
    for descriptor in (arguments.keys, arguments.ready):
        if descriptor is not None:
            os.set_inheritable(descriptor, False)
    try:
        keys = read_keys(arguments.keys) if arguments.keys is not None else {}
        home = paths.private_dir(paths.home())
        folder = paths.private_dir(paths.daemon_dir(home))
        try:
            lock = FolderLock.acquire(folder)  # never released: it shows others that this process is still there
        except LockedError as error:
            print(f"orch: another daemon serves {home}: {error}", file=sys.stderr)
            return ALREADY_RUNNING
        secrets = {value for name, value in os.environ.items() if holds_secret(name, value)}
        open_log(folder / "log", secrets)
        credentials = CallerCredentials(models.load(home), read_salt(home), secrets)
        credentials.fall_back_on(keys, "orch daemon run")
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
