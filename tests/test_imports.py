"""Importing orch has no effect. It loads no heavy package, creates no file and prints nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from source_tree import PACKAGES, ROOT, Module, imports_of, modules

HEAVY = ("zmq", "structlog", "anthropic", "openai", "multiprocess", "tenacity", "sqlite3", "dill", "httpx2", "secrets")

LOADED = f"""
import sys
before = set(sys.modules)
import orch
print(sorted(set({HEAVY!r}) & (set(sys.modules) - before)))
"""

ALONE = """
import importlib, json, sys, threading
needs = json.load(sys.stdin)  # of each module, those of ours that it imports when it is imported, by name
tops = {name.partition(".")[0] for name in needs}
bad = []

def all_below(name):
    found, waiting = set(), [*needs[name]]
    while waiting:
        if (each := waiting.pop()) not in found:
            found.add(each)
            waiting += needs[each]
    return found

def ours():
    return {name for name in sys.modules if name.partition(".")[0] in tops}

below = {name: all_below(name) for name in needs}
made = {}  # those that were imported alone
for name in sorted(needs, key=lambda name: (len(below[name] | {name}), name)):  # a module after those it needs
    around = {each for each in below[name] if name in below[each]}  # a package and modules of it that it imports
    there = {each: made[each] for each in below[name] - around if each in made}
    for each in ours():
        del sys.modules[each]
    sys.modules.update(there)
    for each in needs:  # a package has a module as attribute once the module is imported
        package, _, attribute = each.rpartition(".")
        if package in there:
            vars(there[package]).pop(attribute, None)
            if each in there:
                setattr(there[package], attribute, there[each])
    try:
        importlib.import_module(name)
    except Exception as error:
        bad.append(f"{name}: {type(error).__name__}: {error}")
    else:
        made |= {each: sys.modules[each] for each in {name, *around} & ours()}
        if more := ours() - below[name] - {name}:
            bad.append(f"{name}: imports {sorted(more)} as well")
if threading.active_count() > 1:
    bad.append(f"threads: {threading.enumerate()}")
print("\\n".join(bad), end="")
"""
"""A program that imports each module as if it were the first, with only the modules that it imports itself.

Modules that were imported this way are reused for modules that need them, so that nearly all modules are executed only
once.
"""


def needs(found: Iterable[Module]) -> dict[str, list[str]]:
    """Return the modules of orch that each module needs at import.

    The packages of a module come first, then its imports.
    """
    by_name = {module.name: module for module in found}
    fields = {}
    for name, module in by_name.items():
        parts = name.split(".")
        wanted = [".".join(parts[:count]) for count in range(1, len(parts))]
        for target in module.first:
            parts = target.split(".")
            wanted += [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
        fields[name] = [each for each in dict.fromkeys(wanted) if each in by_name and each != name]
    return fields


def run(code: str, folder: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run `code` in a new interpreter whose home and working folder is `folder`."""
    roots = os.pathsep.join(str(ROOT / holder) for holder in PACKAGES.values())
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", code],
        cwd=folder,
        input=stdin,
        env=kept | {"HOME": str(folder), "PYTHONPATH": roots},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_import_is_silent_and_leaves_nothing(tmp_path: Path) -> None:
    """`import orch` prints nothing and creates no file, neither in the home nor in the working folder."""
    done = run("import orch", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_import_loads_nothing_heavy(tmp_path: Path) -> None:
    """`import orch` loads no transport, SDK, logger or database."""
    done = run(LOADED, tmp_path)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_gateway_loads_no_agents_and_no_sdk() -> None:
    """The gateway needs an HTTP client, but neither the transport of agents, nor an SDK, nor the terminal."""
    loaded = imported_by("import orch.gateway, orch.api.archiver; orch.gateway.client")
    assert "httpx2" in loaded
    assert not loaded & {"zmq", "prompt_toolkit", "anthropic", "openai", "aiohttp", "multiprocess", "structlog"}


FRAMEWORKS = {"agents", "langchain", "langchain_core", "langgraph", "deepagents", "pydantic_ai", "claude_agent_sdk"}
OF_AGENTS_AND_SDKS = {"zmq", "prompt_toolkit", "anthropic", "openai", "multiprocess", *FRAMEWORKS}
"""Packages that agents, the chat and requests of workers need, and frameworks of agents."""
ARCHIVAL = """
from orch import Archiver, AsyncArchiver
import orch.imports.importer, orch.cli.sessions.import_past
import orch.archival.store.search, orch.cli.sessions.archive
import orch.replay.report, orch.replay.policies, orch.cli.sessions.replay
import orch.gateway.transport, orch.gateway.proxy.connection, orch.gateway.proxy.run, orch.cli.system.proxy
import orch.integrations.openai_agents, orch.integrations.langchain, orch.integrations.claude_agent_sdk
"""


def test_archival_of_other_programs_loads_no_agents_and_no_sdk() -> None:
    """Archiver, import, search, replay, gateway and integrations need no transport of agents, SDK or terminal."""
    assert not imported_by(ARCHIVAL) & OF_AGENTS_AND_SDKS


def test_proxy_loads_no_agents_and_no_sdk() -> None:
    """The server of `orch proxy` needs aiohttp, but neither the transport of agents, nor an SDK, nor the terminal."""
    assert not imported_by("import orch.gateway.proxy.connection") & {"aiohttp", "httpx2"}
    loaded = imported_by("import orch.gateway.proxy.run")
    assert "aiohttp" in loaded
    assert not loaded & {"zmq", "prompt_toolkit", "anthropic", "openai", "multiprocess", "structlog"}


@pytest.mark.timeout(240)
def test_every_module_imports_alone(tmp_path: Path) -> None:
    """Each module can be imported first. No module starts a thread or prints at import."""
    found = [module for module in modules() if not module.name.endswith("__main__")]
    done = run(ALONE, tmp_path, json.dumps(needs(found)))
    assert (done.stdout, done.stderr) == ("", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "stdout"),
    [("import zmq, orch", "['zmq']\n"), ("import sqlite3, orch", "['sqlite3']\n")],
)
def test_heavy_import_would_be_seen(tmp_path: Path, code: str, stdout: str) -> None:
    """The check of heavy packages reports a package that another package loads."""
    done = run(LOADED.replace("import orch\n", f"{code}\n"), tmp_path)
    assert done.stdout == stdout


def test_broken_module_would_be_seen(tmp_path: Path) -> None:
    """The check reports a module by name if the module cannot be imported, cannot be imported first, or starts a
    thread.
    """
    sources = {
        "bad": "import nothing_of_the_kind\n",
        "busy": "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n",
        "pack.__init__": "",
        "pack.inner.__init__": "from .own import value\n",
        "pack.inner.own": "from ..one import value\n",
        "pack.late": "from importlib import import_module as bring\nbring('pack.one')\n",
        "pack.lucky": "import pack\npack.one.value\n",
        "pack.one": "value = 1\n",
        "pack.right": "from pack import one\none.value\nimport pack.one\npack.one.value\n",
    }
    (tmp_path / "pack" / "inner").mkdir(parents=True)
    found = []
    for full, source in sources.items():
        path = tmp_path / f"{full.replace('.', '/')}.py"
        path.write_text(source)
        name = full.removesuffix(".__init__")
        first = imports_of(source, name, is_package=path.name == "__init__.py", executed="at once")
        found.append(Module(name, path, source, "", (), (), first))
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{ALONE}"
    *lines, threads = run(code, tmp_path, json.dumps(needs(found))).stdout.splitlines()
    assert lines == [
        "bad: ModuleNotFoundError: No module named 'nothing_of_the_kind'",
        "pack.late: imports ['pack.one'] as well",
        "pack.lucky: AttributeError: module 'pack' has no attribute 'one'",
    ]
    assert threads.startswith("threads: ")


def imported_by(code: str) -> set[str]:
    """Return the names of the modules that a new interpreter has imported after `code`."""
    roots = os.pathsep.join(str(ROOT / holder) for holder in PACKAGES.values())
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys\n{code}\nprint(*sys.modules)"],
        env=os.environ | {"PYTHONPATH": roots},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_blocking_api_loads_the_root_when_it_is_used() -> None:
    """The import of Orchestrator loads few modules, and neither a transport nor a logger."""
    loaded = imported_by("from orch import Orchestrator")
    ours = {name for name in loaded if name.partition(".")[0] in PACKAGES}
    assert ours == {
        "orch",
        "orch.api",
        "orch.api.portal",
        "orch.api.sync",
        "orch.config",
        "orch.config.interrupts",
        "orch_protocol",
        "orch_protocol.core",
        "orch_protocol.core.errors",
    }
    assert not {"zmq", "structlog", "sqlite3", "importlib.metadata"} & loaded
    assert "orch.supervisor.supervisor" in imported_by("from orch import Orchestrator; Orchestrator.spawn")


def test_version_is_printed_without_slow_imports() -> None:
    """The command loads neither the list of installed distributions nor the parser of the command line."""
    loaded = imported_by("from orch.cli import run; run(['--version'])")
    assert not {"importlib.metadata", "argparse", "json", "socket", "typing", "msgspec", "asyncio"} & loaded


@pytest.mark.parametrize("code", ["import orch.daemon.daemon", "from orch import AsyncOrchestrator"])
def test_root_loads_no_sdk(code: str) -> None:
    """The root sends no request to a model. Only a worker imports an SDK, and only the one that it uses."""
    assert not {"anthropic", "openai", "httpx2", "boto3", "google.auth", "prompt_toolkit"} & imported_by(code)


def test_verbs_of_services_load_no_definitions() -> None:
    """The CLI builds its verbs only from their table, which imports nothing."""
    code = "import orch.cli.service_verbs, sys; print({'msgspec', 'orch_protocol.services.service'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
