"""The command line and environment of orch's own processes: the daemon, shims, zygotes and workers.

Only variables on an allow list are passed to these processes. The settings `environment.pass` and
`Orchestrator(environment=[...])` allow more variables.
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
from orch_worker.system.secrets import CREDENTIAL_VARIABLES, WITHHELD, holds_secret

__all__ = ["check_platform", "clean_environment", "command", "is_allowed", "withheld_variables", "worker_environment"]

RUN_VARIABLE: Final = "ORCH_RUN"
INTERACTIVE: Final = frozenset({"PYTHONINSPECT", "PYTHONSTARTUP"})
"""Variables that make an interpreter wait for input or run the user's code."""

PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ftp_proxy")
ALLOWED: Final = (
    *("LANG", "LANGUAGE", "LC_*", "TZ", "TZDIR", "TERM", "COLORTERM", "TERMINFO", "__CF_USER_TEXT_ENCODING"),
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TEMP", "TMP", "XDG_*"),
    *("PYTHON*", "VIRTUAL_ENV", "CONDA_*", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "*_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "PIP_CERT"),
    *("CUDA_*", "NVIDIA_*", "OMP_*", "MKL_*", "OPENBLAS_*", "NUMEXPR_*", "TOKENIZERS_PARALLELISM"),
    *(*PROXIES, *(name.upper() for name in PROXIES)),
)
"""Names and glob patterns of the variables that every process of orch gets in addition to `SETTINGS`."""
SETTINGS: Final = "ORCH_"
"""Prefix of orch's settings. No setting is a secret, although the name `ORCH_ENVIRONMENT__PASS` looks like a secret."""


def is_allowed(name: str, value: str, passed: Iterable[str] = ()) -> bool:
    """Return whether processes of orch get the variable `name`.

    `passed` contains names and glob patterns that extend `ALLOWED`. A variable that looks like a secret is
    allowed only if its name matches `passed`.
    """
    if name == WITHHELD:
        return False
    if name in CREDENTIAL_VARIABLES and os.path.isabs(os.path.expanduser(value)):
        return True  # The value is a place. A worker must know which files its commands may not read.
    if name.startswith(SETTINGS) or any(fnmatchcase(name, pattern) for pattern in passed):
        return True
    if name in INTERACTIVE or holds_secret(name, value):
        return False
    return any(fnmatchcase(name, pattern) for pattern in ALLOWED)


def withheld_variables(environ: Mapping[str, str], passed: Iterable[str] = ()) -> list[str]:
    """Return the names of the variables in `environ` that processes of orch do not get, sorted.

    The result also contains variables that were already withheld from this process.
    """
    passed = tuple(passed)
    withheld_now = {name for name, value in environ.items() if name != WITHHELD and not is_allowed(name, value, passed)}
    withheld_before = {name for name in environ.get(WITHHELD, "").split() if name not in environ}
    return sorted(withheld_now | withheld_before)


def check_platform() -> None:
    """Raise UnsupportedPlatformError on Windows. Raise LaunchError if the path of the interpreter is unknown."""
    if sys.platform == "win32":
        raise UnsupportedPlatformError(
            "workers need Unix processes, which Windows does not have: run this inside WSL (https://aka.ms/wsl)"
        )
    if not sys.executable:
        raise LaunchError("sys.executable is empty, so no worker can be started: set it to the path of this Python")


def command(role: str, *arguments: str) -> list[str]:
    """Return the argument vector of an orch process. The option `-P` keeps the current folder off the import path."""
    return [sys.executable, "-P", "-m", "orch_worker", role, *arguments]


def clean_environment(
    run_id: str, environ: Mapping[str, str] | None = None, passed: Iterable[str] = ()
) -> dict[str, str]:
    """Return the allowed variables of `environ`, the variable ORCH_RUN, and a PYTHONPATH that contains orch.

    If `environ` is None, use the environment of this process.

    ORCH_WITHHELD lists the names of other variables, for error messages. Model keys are sent through birth pipes,
    because every process of the same user can read the environment of another process.
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
    """Return the environment of the shim, the zygotes and the workers.

    This is `clean_environment` without ORCH_HOME. With ORCH_HOME, code of an agent would pass the home folder on to its
    child processes.
    """
    environment = clean_environment(run_token, passed=passed)
    environment.pop("ORCH_HOME", None)
    return environment


def _package_roots() -> list[str]:
    """Return the folders that contain the orch packages, except the default site-packages folders.

    If PYTHONPATH contained such a folder, the packages in it would precede the standard library.
    """
    default_roots = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()}
    roots = [str(Path(package.__file__ or "").parents[1]) for package in (orch_worker, orch_protocol)]
    return [root for root in dict.fromkeys(roots) if root not in default_roots]
