"""Importing has no effect: nothing heavy is loaded, no file made, nothing printed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sources import PACKAGES, ROOT, modules

HEAVY = ("zmq", "structlog", "anthropic", "openai", "multiprocess", "tenacity", "sqlite3", "dill", "httpx2")

SHARDS = 4
"""In so many parts modules are imported, each first of all: together that takes a while."""

LOADED = f"""
import sys
before = set(sys.modules)
import orch
print(sorted(set({HEAVY!r}) & (set(sys.modules) - before)))
"""

ALONE = """
import importlib, sys, threading
bad = []
for name in sys.argv[1:]:
    for loaded in [loaded for loaded in sys.modules if loaded.startswith("orch")]:
        del sys.modules[loaded]
    try:
        importlib.import_module(name)
    except Exception as error:
        bad.append(f"{name}: {type(error).__name__}: {error}")
if threading.active_count() > 1:
    bad.append(f"threads: {threading.enumerate()}")
print("\\n".join(bad), end="")
"""


def run(code: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter whose home and working folder is `folder`."""
    roots = os.pathsep.join(str(ROOT / holder) for holder in PACKAGES.values())
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", code, *arguments],
        cwd=folder,
        # Compiled once, though it is imported over and over; and beside the folder, where nothing is to be made.
        env=kept | {"HOME": str(folder), "PYTHONPATH": roots, "PYTHONPYCACHEPREFIX": str(folder.parent / "compiled")},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_import_is_silent_and_leaves_nothing(tmp_path: Path) -> None:
    """`import orch` prints nothing and makes no file, neither at home nor here."""
    done = run("import orch", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_import_loads_nothing_heavy(tmp_path: Path) -> None:
    """`import orch` loads no transport, SDK, logger or database."""
    done = run(LOADED, tmp_path)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_module_imports_alone(tmp_path: Path, shard: int) -> None:
    """Each module can be the first of ours to be imported, and none starts a thread or prints."""
    names = [module.name for module in modules() if not module.name.endswith("__main__")]
    done = run(ALONE, tmp_path, *names[shard::SHARDS])
    assert (done.stdout, done.stderr) == ("", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "stdout"),
    [("import zmq, orch", "['zmq']\n"), ("import sqlite3, orch", "['sqlite3']\n")],
)
def test_heavy_import_would_be_seen(tmp_path: Path, code: str, stdout: str) -> None:
    """The check above does notice a heavy package that is loaded along."""
    done = run(LOADED.replace("import orch\n", f"{code}\n"), tmp_path)
    assert done.stdout == stdout


def test_broken_module_would_be_seen(tmp_path: Path) -> None:
    """A module that cannot be imported, or starts a thread, is reported by name."""
    (tmp_path / "bad.py").write_text("import nothing_of_the_kind\n")
    (tmp_path / "busy.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{ALONE}"
    done = run(code, tmp_path, "bad", "busy")
    assert "bad: ModuleNotFoundError: No module named 'nothing_of_the_kind'" in done.stdout
    assert "threads: " in done.stdout
