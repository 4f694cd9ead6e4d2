"""The command and the environment that orch starts its own processes with: the daemon, shims, zygotes and workers.

The environment is an allow list. Everything else a shell exports stays in that shell, unless `environment.pass` or
`Orchestrator(environment=[...])` names it.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import orch_protocol
import orch_worker
from orch_protocol.core.errors import LaunchError, UnsupportedPlatformError
from orch_worker.system.secrets import WITHHELD, holds_secret

__all__ = ["check_platform", "clean_environment", "command", "is_allowed", "withheld_variables", "worker_environment"]

RUN_VARIABLE: Final = "ORCH_RUN"
INTERACTIVE: Final = frozenset({"PYTHONINSPECT", "PYTHONSTARTUP"})
"""They would make an interpreter wait for a person, or run code that was not asked for."""

PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ftp_proxy")
ALLOWED: Final = (
    *("LANG", "LANGUAGE", "LC_*", "TZ", "TZDIR", "TERM", "COLORTERM", "TERMINFO", "__CF_USER_TEXT_ENCODING"),
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TEMP", "TMP", "XDG_*"),
    *("PYTHON*", "VIRTUAL_ENV", "CONDA_*", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "*_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "PIP_CERT"),
    *("CUDA_*", "NVIDIA_*", "OMP_*", "MKL_*", "OPENBLAS_*", "NUMEXPR_*", "TOKENIZERS_PARALLELISM"),
    *(*PROXIES, *(name.upper() for name in PROXIES)),
)
"""Variables that every process of orch gets, by name or glob; and those below."""
SETTINGS: Final = "ORCH_"
"""Settings of orch. None of them is a secret, though `ORCH_ENVIRONMENT__PASS` looks like one."""


def is_allowed(name: str, value: str, passed: Iterable[str] = ()) -> bool:
    """Return whether processes of orch get the variable. `passed` are names and globs that extend `ALLOWED`.

    A name that looks like a secret needs to be in `passed`.
    """
    if name == WITHHELD:
        return False
    if name.startswith(SETTINGS) or any(fnmatchcase(name, pattern) for pattern in passed):
        return True
    if name in INTERACTIVE or holds_secret(name, value):
        return False
    return any(fnmatchcase(name, pattern) for pattern in ALLOWED)


def withheld_variables(environ: Mapping[str, str], passed: Iterable[str] = ()) -> list[str]:
    """Return the names in `environ` that processes of orch do not get, sorted.

    This includes names that were withheld from this process itself.
    """
    passed = tuple(passed)
    here = {name for name, value in environ.items() if name != WITHHELD and not is_allowed(name, value, passed)}
    earlier = {name for name in environ.get(WITHHELD, "").split() if name not in environ}
    return sorted(here | earlier)


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


def clean_environment(
    run_id: str, environ: Mapping[str, str] | None = None, passed: Iterable[str] = ()
) -> dict[str, str]:
    """Return the allowed part of `environ` (default: this process's), with ORCH_RUN and a PYTHONPATH to our packages.

    ORCH_WITHHELD lists the names that were left out, for error messages. Model keys travel through birth pipes instead:
    any process of the same user can read another's environment.
    """
    environ = os.environ if environ is None else environ
    passed = tuple(passed)
    kept = {name: value for name, value in environ.items() if is_allowed(name, value, passed)}
    path = [*_package_roots(), *(os.path.abspath(part) for part in environ.get("PYTHONPATH", "").split(":") if part)]
    kept.pop("PYTHONPATH", None)
    names = [name for name in withheld_variables(environ, passed) if name.isidentifier()]
    return (
        kept
        | ({"PYTHONPATH": ":".join(path)} if path else {})
        | ({WITHHELD: " ".join(names)} if names else {})
        | {RUN_VARIABLE: run_id}
    )


def worker_environment(run_token: str, passed: Iterable[str] = ()) -> dict[str, str]:
    """Return the environment of shim, zygotes and workers: `clean_environment` without ORCH_HOME.

    Code of an agent that runs in a worker would pass the home on to what it starts.
    """
    environment = clean_environment(run_token, passed=passed)
    environment.pop("ORCH_HOME", None)
    return environment


def _package_roots() -> list[str]:
    """Return the folders our packages are imported from, but for those every interpreter looks into by itself.

    A folder of installed packages named in PYTHONPATH would come before the standard library.
    """
    usual = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()}
    roots = [str(Path(package.__file__ or "").parents[1]) for package in (orch_worker, orch_protocol)]
    return [root for root in dict.fromkeys(roots) if root not in usual]
