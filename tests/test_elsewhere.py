"""Systems without the features of Linux.

All modules can be imported, and agents can be spawned, queried and killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PLACE = Path(__file__).parent / "elsewhere"
"""A folder with a module that hides the features of Linux from each Python that imports the module."""

IMPORTS = """
import importlib, pkgutil

imported = 0
for package in ("orch_protocol", "orch_worker", "orch"):
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if found.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(found.name)
            imported += 1
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith(("_scproxy", "_sysconfigdata")):  # that system's own
                raise
print(imported)
"""
LIFE = """
from orch.cli import run

def orch(*line):
    assert run(list(line)) == 0, line

orch("spawn", "look", "--name", "reader", "--script", "script.json", "--tools", "bash,run_python")
orch("query", "reader", "go", "--approve", "auto")
orch("show", "reader")
orch("kill", "reader")
orch("resume", "reader")
orch("query", "reader", "again")
orch("daemon", "stop")
"""
SCRIPT = """[
    {"tool": "bash", "input": {"command": "echo twenty$((1 + 1))"}},
    {"tool": "run_python", "input": {"code": "'two' * 2"}},
    "done", "still there"
]"""


def elsewhere(code: str, **options: str) -> str:
    """Return the output of Python code on a system without the features of Linux."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(PLACE), *sys.path])} | options
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=env.get("HERE"), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_module_imports_without_linux_features() -> None:
    """No module requires a function, constant or system call of Linux at import."""
    assert int(elsewhere(IMPORTS)) > 200


def test_agents_run_without_linux_features(tmp_path: Path) -> None:
    """With a daemon, an agent is spawned, uses tools, is killed and resumed, and remembers its conversation."""
    (tmp_path / "script.json").write_text(SCRIPT)
    found = elsewhere(LIFE, HERE=str(tmp_path), ORCH_HOME=str(tmp_path / "home"))
    for part in ("done", "twenty2", "twotwo", "still there"):
        assert part in found
