"""What a process of ours is started with: interpreter, import path, and an environment without secrets."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import orch_protocol
import orch_worker
from orch_protocol.core.errors import LaunchError, UnsupportedPlatformError
from orch_worker.system.secrets import holds_secret

__all__ = ["check_platform", "clean_environment", "command", "worker_environment"]

RUN_VARIABLE: Final = "ORCH_RUN"
# They would make an interpreter of ours wait for a person, or run code that nobody asked for.
INTERACTIVE: Final = {"PYTHONINSPECT", "PYTHONSTARTUP"}


def check_platform() -> None:
    """Raise UnsupportedPlatformError where no launcher works, LaunchError without an interpreter to start."""
    if sys.platform == "win32":
        raise UnsupportedPlatformError(
            "workers need Unix processes, which Windows does not have: run this inside WSL (https://aka.ms/wsl)"
        )
    if not sys.executable:
        raise LaunchError("sys.executable is empty, so no worker can be started: set it to the path of this Python")


def command(role: str, *arguments: str) -> list[str]:
    """Return the argument vector of a process of ours. `-P` keeps the current folder off its import path."""
    return [sys.executable, "-P", "-m", "orch_worker", role, *arguments]


def clean_environment(run_id: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return `environ` (this process's) without secrets, with ORCH_RUN, and with our packages importable.

    Keys reach workers through their birth pipes: any process of the same user can read another's environment.
    """
    environ = os.environ if environ is None else environ
    kept = {name: value for name, value in environ.items() if not holds_secret(name, value) and name not in INTERACTIVE}
    path = [*_package_roots(), *(os.path.abspath(part) for part in environ.get("PYTHONPATH", "").split(":") if part)]
    kept.pop("PYTHONPATH", None)
    return kept | ({"PYTHONPATH": ":".join(path)} if path else {}) | {RUN_VARIABLE: run_id}


def worker_environment(run_token: str) -> dict[str, str]:
    """Return the environment of shim, zygotes and workers: `clean_environment` without ORCH_HOME.

    Code of an agent that runs in a worker would pass the home on to what it starts.
    """
    environment = clean_environment(run_token)
    environment.pop("ORCH_HOME", None)
    return environment


def _package_roots() -> list[str]:
    """Return the folders our packages are imported from, but for those every interpreter looks into by itself.

    A folder of installed packages named in PYTHONPATH would come before the standard library.
    """
    usual = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()}
    roots = [str(Path(package.__file__ or "").parents[1]) for package in (orch_worker, orch_protocol)]
    return [root for root in dict.fromkeys(roots) if root not in usual]
