"""`orch proxy` as a process before a strict model server, with clients that retry when it was killed."""

from __future__ import annotations

import http.client
import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from integration.command_shell import SECONDS
from orch.gateway.core import Gateway
from orch.gateway.store import FileStore
from orchestrator.gateway.gateway_world import Client, World
from source_tree import ROOT
from wire.model_server import Answer
from wire.model_server_beside import Apart
from wire.proxy_world import post

__all__ = ["KilledWorld", "ProxyProcess"]

TESTS = ROOT / "tests"
MAIN = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from orch.cli import main
from orch.gateway.proxy import run
from orch.gateway.store import FileStore
from orchestrator.gateway.gateway_world import TIGHT
run.FileStore = lambda folder, profile, **options: FileStore(folder, config=TIGHT, **options)
sys.exit(main())
"""
"""`orch` with limits at which the short conversations of tests are archived."""
MAX_DELAY = 0.02


class ProxyProcess:
    """A proxy in a process. `status` is what `orch proxy --json` prints."""

    def __init__(self, env: dict[str, str], *arguments: str, main: str = MAIN) -> None:
        command = [sys.executable, "-P", "-c", main, "proxy", "--json", "--port", "0", *arguments]
        self.process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors()
        self.status: dict[str, Any] = json.loads(line)
        self.port = int(self.status["url"].rpartition(":")[2])

    def kill(self) -> None:
        """End the process without a chance to finish anything."""
        self.process.kill()
        self.errors()

    def terminate(self) -> None:
        """Send SIGTERM and check that the process ends well."""
        self.process.send_signal(signal.SIGTERM)
        errors = self.errors()
        assert self.process.returncode == 0, errors

    def errors(self) -> str:
        """Wait for the end and return what the process wrote to stderr."""
        return self.process.communicate(timeout=SECONDS)[1].decode()


class KilledWorld(World):
    """A proxy that is killed between and within requests, and started again. Start it with `with`.

    Within a request, it is killed with the probability `kills`, at a random time.
    """

    def __init__(self, folder: Path, answer: Callable[[Any], Answer], env: dict[str, str], kills: float) -> None:
        self.apart = Apart(lambda request: answer(request.body))
        self.killed = 0
        self._env = env
        self._kills = kills
        self._chance = random.Random(0)
        super().__init__(folder, answer)

    def __enter__(self) -> KilledWorld:
        self.apart.__enter__()
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self.proxy.terminate()
        self.apart.__exit__()

    def restart(self) -> None:
        """Kill the proxy and start another one."""
        self.killed += 1
        self.proxy.kill()
        self._start()

    def send(self, client: Client, *, stream: bool = True) -> list[str]:
        """Send a request of `client`, and again until its response is complete."""
        while True:
            killer = None
            if self._chance.random() < self._kills:
                killer = threading.Timer(self._chance.random() * MAX_DELAY, self.proxy.process.kill)
                killer.start()
            try:
                body = post(self.proxy.port, client, stream=stream)
            except (OSError, http.client.HTTPException):
                body = b""
            finally:
                if killer is not None:
                    killer.join()
                    self.restart()
                self.sent += [request.raw for request in self.apart.server.requests[len(self.sent) :]]
            if body:
                return client.read_stream(body) if stream else client.read_body(json.loads(body))
            assert killer is not None, "a request failed although the proxy was not killed"

    def _open(self) -> Gateway:
        return Gateway(FileStore(self.folder), "off")  # The gateway of the process is used.

    def _start(self) -> None:
        url = self.apart.server.url
        self.proxy = ProxyProcess(self._env, "--upstream", f"anthropic={url}", "--upstream", f"openai={url}")
