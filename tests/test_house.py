"""House rules of the code and of the tests."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from source_tree import ROOT, Module, broken, called, modules, nodes, parsed

pytestmark = pytest.mark.timeout(240)  # each test reads all files
UNIT_FOLDERS = ("tests/protocol", "tests/worker", "tests/orchestrator")
TESTS = sorted(path for path in (ROOT / "tests").rglob("test_*.py"))
UNIT_TESTS = [path for path in TESTS if str(path.relative_to(ROOT)).startswith(UNIT_FOLDERS)]
PROCESSES = {"subprocess", "multiprocess", "multiprocessing"}
STARTS = {
    "os.fork",
    "os.forkpty",
    "os.system",
    "os.popen",
    "os.posix_spawn",
    "asyncio.create_subprocess_exec",
    "asyncio.create_subprocess_shell",
}
CALLS = {each.rpartition(".")[2] for each in STARTS}
FOLDER_LIMIT = 15
"""The maximum number of modules in a folder. A folder should contain about 12 modules."""
TOP_LEVEL = {
    *(".ci", ".gitignore", ".pre-commit-config.yaml", "AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"),
    *("Makefile", "README.md", "benchmarks", "constraints.txt", "docs", "examples", "orchestrator", "protocol"),
    *("pyproject.toml", "scripts", "tests", "worker"),
}
"""The tracked files and folders of the repository's root."""


def name(path: Path) -> str:
    """Return `path` relative to the repository."""
    return str(path.relative_to(ROOT))


def sleeps(source: str) -> list[str]:
    """Return the calls in `source` that wait for a time. `asyncio.sleep(0)` does not count, because it only yields."""
    found = []
    for node in ast.walk(parsed(source)) if "sleep" in source else ():
        if isinstance(node, ast.Call) and called(node, "time.sleep", "sleep", "asyncio.sleep"):
            zero = len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
            if not zero or ast.unparse(node.func) == "time.sleep":
                found.append(ast.unparse(node))
    return found


def starts(source: str) -> list[str]:
    """Return the calls and imports in `source` that start a process or can start one."""
    found = []
    for node in ast.walk(parsed(source)) if any(word in source for word in (*PROCESSES, *CALLS)) else ():
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.partition(".")[0] in PROCESSES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PROCESSES:
            found.append(str(node.module))
        elif isinstance(node, ast.Attribute) and f"{ast.unparse(node.value)}.{node.attr}" in STARTS:
            found.append(ast.unparse(node))
    return found


def built_names(source: str) -> list[str]:
    """Return the calls of getattr that build the attribute name at run time."""
    if "getattr(" not in source:
        return []
    return [
        ast.unparse(node)
        for node in nodes(parsed(source))
        if isinstance(node, ast.Call)
        and called(node, "getattr")
        and isinstance(node.args[1], (ast.JoinedStr, ast.BinOp, ast.Call))
    ]


def folder_sizes(names: Iterable[str]) -> dict[str, int]:
    """Return the number of modules directly in each package folder."""
    return dict(Counter(name.rpartition(".")[0] for name in names))


def in_modules(rule: Callable[[Module], Iterable[str]]) -> dict[str, list[str]]:
    """Return the violations of `rule` in modules of orch, by module."""
    return broken(rule, modules(), lambda module: module.name)


def in_files(rule: Callable[[str], Iterable[str]], paths: Iterable[Path]) -> dict[str, list[str]]:
    """Return the violations of `rule` in the texts of files, by path."""
    return broken(lambda path: rule(path.read_text()), paths, name)


class TestEveryModule:
    """Rules of the code."""

    def test_has_a_docstring(self) -> None:
        """Every module begins with a docstring."""
        assert [module.name for module in modules() if not module.doc] == []

    def test_builds_no_names_of_methods(self) -> None:
        """No attribute name is built from strings, so that "go to definition" works."""
        assert in_modules(lambda module: built_names(module.source)) == {}


def test_folders_hold_few_modules() -> None:
    """No folder of the packages contains more than FOLDER_LIMIT modules. `__init__` does not count."""
    sizes = folder_sizes(module.name for module in modules() if module.path.name != "__init__.py")
    assert {folder: size for folder, size in sizes.items() if size > FOLDER_LIMIT} == {}


def test_repository_root_has_no_stray_files() -> None:
    """The repository tracks only known files and folders at the top level."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    assert {path.partition("/")[0] for path in tracked.decode().split("\0") if path} - TOP_LEVEL == set()


def test_unit_tests_do_not_sleep() -> None:
    """Unit tests do not wait for time to pass. They wait for events or change a clock."""
    assert in_files(sleeps, UNIT_TESTS) == {}


def test_unit_tests_start_no_process() -> None:
    """Unit tests run in the one process of pytest."""
    assert in_files(starts, UNIT_TESTS) == {}


def test_built_name_rule_catches() -> None:
    """The rule reports a name from a format string, a sum or a call. It does not report constants and variables."""
    calls = ["getattr(self, f'_on_{kind}')", "getattr(self, 'on_' + kind)", "getattr(self, kind.lower(), None)"]
    assert built_names("\n".join([*calls, "getattr(self, 'name', None)", "getattr(self, name)"])) == calls


def test_sleep_rule_catches() -> None:
    """The rule reports every way to sleep. It does not report `asyncio.sleep(0)`."""
    calls = ["time.sleep(0)", "asyncio.sleep(0.1)", "asyncio.sleep(0)", "sleep(1)"]
    assert sleeps("\n".join(calls)) == ["time.sleep(0)", "asyncio.sleep(0.1)", "sleep(1)"]


def test_process_rule_catches() -> None:
    """The rule reports every way to start a process."""
    source = "import subprocess\nfrom multiprocess.context import Process\nos.fork()\nos.getpid()"
    assert starts(source) == ["subprocess", "multiprocess.context", "os.fork"]


def test_folder_size_counts_direct_modules() -> None:
    """Modules of a subfolder do not count for the folder above it."""
    assert folder_sizes(["orch.chat.app", "orch.chat.keys", "orch.chat.text.diffs"]) == {
        "orch.chat": 2,
        "orch.chat.text": 1,
    }


def test_agents_page_names_modules_that_exist() -> None:
    """Each path in the data paths and answers of AGENTS.md names a module or folder of a package."""
    page = (ROOT / "AGENTS.md").read_text()
    part = page[page.index("# Data paths") : page.index("# Commands")]
    roots = [ROOT / "orchestrator/orch", ROOT / "worker/orch_worker", ROOT / "protocol/orch_protocol"]
    paths = re.findall(r"\b[a-z_]+(?:/[a-z_]+)+\b", part)
    assert len(paths) > 25
    assert [
        path for path in paths if not any((root / path).is_dir() or (root / f"{path}.py").is_file() for root in roots)
    ] == []
