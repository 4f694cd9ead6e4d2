"""A shell that runs `orch`. It uses real processes and one ORCH_HOME, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orch.supervisor.recovery.orphan_cleanup import processes_with_token, stored_token
from source_tree import PACKAGES, ROOT

__all__ = ["MAIN", "SECONDS", "Shell", "ended", "opened"]

SECONDS = 40
MAIN = "import sys; from orch.cli import main; sys.exit(main())"


class Shell:
    """A shell with its own ORCH_HOME and folder."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.folder = folder / "project"
        self.folder.mkdir()
        kept = {name: os.environ[name] for name in ("PATH", "CENSUS", "LD_LIBRARY_PATH") if name in os.environ}
        roots = os.pathsep.join(str(ROOT / holder) for holder in PACKAGES.values())
        self.env = kept | {"HOME": str(folder), "ORCH_HOME": str(self.home), "PYTHONPATH": roots, "LANG": "C.UTF-8"}
        self.env["ORCH_ENVIRONMENT__PASS"] = "CENSUS"

    def start(self, *argv: str, stderr: int = subprocess.PIPE, main: str = MAIN, **env: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", main, *argv],
            cwd=self.folder,
            env=self.env | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,  # without the terminal of the tests, which commands would use for questions
        )

    def run(self, *argv: str, stdin: bytes = b"", code: int = 0, **env: str) -> subprocess.CompletedProcess[bytes]:
        """Run one command and check its exit code."""
        done = subprocess.run(
            [sys.executable, "-P", "-c", MAIN, *argv],
            cwd=self.folder,
            env=self.env | env,
            input=stdin,
            capture_output=True,
            timeout=SECONDS,
            check=False,
            start_new_session=True,
        )
        assert done.returncode == code, f"orch {' '.join(argv)[:200]}: {done.returncode}\n{done.stderr.decode()}"
        return done

    def data(self, *argv: str, **named: Any) -> Any:
        """Run one command with --json and return its output."""
        return json.loads(self.run(*argv, "--json", **named).stdout)

    def status(self, ref: str) -> str:
        return str(self.data("show", ref)["agent"]["status"])

    def until(self, ref: str, status: str) -> None:
        """Return when the agent has the status `status`."""
        deadline = time.monotonic() + SECONDS
        while (found := self.status(ref)) != status:
            assert time.monotonic() < deadline, f"agent {ref} is {found}, not {status}"
            time.sleep(0.1)

    def clear(self) -> None:
        """Kill the agents, and remove the settings and the files of the folder, so that another test can use them."""
        if self.home.exists():
            self.run("kill", "--all")
        (self.home / "config.toml").unlink(missing_ok=True)
        shutil.rmtree(self.folder)
        self.folder.mkdir()

    def ours(self) -> list[int]:
        """Return the ids of all processes that use this home."""
        tokens = {stored_token(run) for run in self.home.glob("runs/*")} - {""}
        return [
            pid
            for pid, env in processes_with_token()
            if env.get("ORCH_HOME") == str(self.home) or env.get("ORCH_RUN") in tokens
        ]

    def script(self, *items: Any) -> str:
        (self.folder / "script.json").write_text(json.dumps(items))
        return "script.json"


@contextmanager
def opened(folder: Path) -> Iterator[Shell]:
    """A shell. At the end, its daemon is stopped, and no file or process is left."""
    made = Shell(folder)
    try:
        yield made
    finally:
        made.run("daemon", "stop")
    assert made.ours() == []
    assert list(made.home.glob("**/*.sock")) == []


def ended(pid: int) -> None:
    """Return when the process `pid` has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    assert poll.poll(SECONDS * 1000), f"process {pid} is still there"
    os.close(descriptor)
