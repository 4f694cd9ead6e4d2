"""`orch import` in processes of its own: killed, without optional packages, and without the features of Linux."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from orchestrator.imports.claude_rows import add_turn, write_session

ELSEWHERE = Path(__file__).parents[1] / "elsewhere"
KILL = """
import os, signal, sys
from orch.imports.catalog import ImportCatalog
from orch.cli import run
put = ImportCatalog.put
def put_or_die(self, record):
    if record.title.startswith("c"):
        os.kill(os.getpid(), signal.SIGKILL)
    put(self, record)
ImportCatalog.put = put_or_die
run(["import", sys.argv[1]])
"""
BLOCKED = """
import sys
packages = {"zmq", "anthropic", "openai", "boto3", "google", "httpx2", "aiohttp", "prompt_toolkit"}
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in packages:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
from orch.cli import run
codes = [run(["import", sys.argv[1]]), run(["import", "--list"]), run(["archive", "search", "output of b", "--json"])]
print(codes, packages & set(sys.modules))
"""


def python(code: str, home: Path, *arguments: object, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run `code` in a new interpreter."""
    env = {**os.environ, "ORCH_HOME": str(home), "PYTHONPATH": path}
    words = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_killed_import_continues(tmp_path: Path) -> None:
    """After kill -9 in new and in grown sessions, the next import adds what is missing. Nothing is there twice."""
    home, past = tmp_path / "home", tmp_path / "past"
    for name in "abcd":
        write_session(past / f"{name}.jsonl", name)
    command = "import sys; from orch.cli import run; run([*sys.argv[1:], '--json'])"
    assert python(KILL, home, past).returncode == -9
    done = json.loads(python(command, home, "import", past).stdout)
    assert (done["new"], done["unchanged"]) == (2, 2)
    for name in "abcd":
        add_turn(past / f"{name}.jsonl", f"{name} again")
    assert python(KILL, home, past).returncode == -9
    done = json.loads(python(command, home, "import", past).stdout)
    assert (done["grown"], done["replaced"], done["unchanged"]) == (1, 1, 2)
    rows = json.loads(python(command, home, "import", "--list").stdout)
    assert [(row["title"], row["turns"], row["messages"]) for row in sorted(rows, key=lambda row: row["title"])] == [
        (name, 2, 8) for name in "abcd"
    ]
    hits = json.loads(python(command, home, "archive", "search", "output of c again").stdout)
    assert len([hit for hit in hits if hit["exact"]]) == 1
    for folder in (home / "imports").iterdir():
        assert not folder.is_dir() or len(list(folder.iterdir())) == 2  # the record and the archives


def test_import_needs_no_optional_package_and_no_feature_of_linux(tmp_path: Path) -> None:
    """Import, list and search work without SDKs, pyzmq and prompt_toolkit, on a system that resembles macOS."""
    write_session(tmp_path / "past" / "a.jsonl", "a", "b")
    done = python(BLOCKED, tmp_path / "home", tmp_path / "past", path=str(ELSEWHERE))
    assert done.stderr == ""
    assert "output of b" in done.stdout
    assert done.stdout.splitlines()[-1] == "[0, 0, 0] set()"
    assert sorted(each.name for each in (tmp_path / "home").iterdir()) == [".gitignore", "imports"]
