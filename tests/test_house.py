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

pytestmark = pytest.mark.timeout(240)  # each looks through all there is
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
UNFINISHED = re.compile(r"raise NotImplementedError|^\s+\.\.\.$", re.MULTILINE)
FOLDER_LIMIT = 15
"""A folder should hold about 12 modules; more than this fails."""
TOP_LEVEL = {
    *(".ci", ".gitignore", ".pre-commit-config.yaml", "AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"),
    *("Makefile", "README.md", "benchmarks", "constraints.txt", "docs", "examples", "orchestrator", "protocol"),
    *("pyproject.toml", "scripts", "tests", "worker"),
}
"""The tracked files and folders of the repository's root."""


def name(path: Path) -> str:
    """Return `path` relative to the repository."""
    return str(path.relative_to(ROOT))


def without_docstring(source: str) -> list[str]:
    """Return the names of the tests in `source` that do not say in a sentence what holds."""
    return [
        node.name
        for node in nodes(parsed(source), deep=False)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not (ast.get_docstring(node) or "").splitlines()[:1:]
    ]


def sleeps(source: str) -> list[str]:
    """Return the calls in `source` that wait for time to pass. `asyncio.sleep(0)` gives way and is none."""
    found = []
    for node in ast.walk(parsed(source)) if "sleep" in source else ():
        if isinstance(node, ast.Call) and called(node, "time.sleep", "sleep", "asyncio.sleep"):
            zero = len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
            if not zero or ast.unparse(node.func) == "time.sleep":
                found.append(ast.unparse(node))
    return found


def starts(source: str) -> list[str]:
    """Return what in `source` starts a process, or could."""
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
    """Return the calls of getattr whose attribute name is put together at run time."""
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
    """Return how many of the modules `names` stand directly in each package folder."""
    return dict(Counter(name.rpartition(".")[0] for name in names))


def in_modules(rule: Callable[[Module], Iterable[str]]) -> dict[str, list[str]]:
    """Return what breaks `rule` in our modules, by module."""
    return broken(rule, modules(), lambda module: module.name)


def in_files(rule: Callable[[str], Iterable[str]], paths: Iterable[Path]) -> dict[str, list[str]]:
    """Return what breaks `rule` in the texts of files, by path."""
    return broken(lambda path: rule(path.read_text()), paths, name)


class TestEveryModule:
    """Rules of the code."""

    def test_says_what_it_is(self) -> None:
        """A module begins with a docstring."""
        assert [module.name for module in modules() if not module.doc] == []

    def test_builds_no_names_of_methods(self) -> None:
        """No attribute is looked up by a name built from a string, so that "go to definition" works."""
        assert in_modules(lambda module: built_names(module.source)) == {}

    def test_is_finished(self) -> None:
        """No module leaves a body to be written later."""
        assert in_modules(lambda module: UNFINISHED.findall(module.source)) == {}


def test_folders_hold_few_modules() -> None:
    """No folder of the packages holds more modules than FOLDER_LIMIT; `__init__` does not count."""
    sizes = folder_sizes(module.name for module in modules() if module.path.name != "__init__.py")
    assert {folder: size for folder, size in sizes.items() if size > FOLDER_LIMIT} == {}


def test_repository_root_has_no_stray_files() -> None:
    """The repository tracks no top-level file or folder besides the known ones."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    assert {path.partition("/")[0] for path in tracked.decode().split("\0") if path} - TOP_LEVEL == set()


def test_every_test_has_a_docstring() -> None:
    """Each test says in one sentence what holds."""
    assert in_files(without_docstring, TESTS) == {}


def test_unit_tests_do_not_sleep() -> None:
    """Unit tests wait for events or move a clock of their own."""
    assert in_files(sleeps, UNIT_TESTS) == {}


def test_unit_tests_start_no_process() -> None:
    """Unit tests run in the one process of pytest."""
    assert in_files(starts, UNIT_TESTS) == {}


def test_docstring_rule_catches() -> None:
    """A test without a docstring is named; helpers and documented tests are not."""
    source = 'def test_a(): pass\nasync def test_b(): """ """\ndef test_c(): """It holds."""\ndef helper(): pass'
    assert without_docstring(source) == ["test_a", "test_b"]


def test_built_name_rule_catches() -> None:
    """A name that is a format string, a sum or the result of a call is seen; a constant and a variable are allowed."""
    calls = ["getattr(self, f'_on_{kind}')", "getattr(self, 'on_' + kind)", "getattr(self, kind.lower(), None)"]
    assert built_names("\n".join([*calls, "getattr(self, 'name', None)", "getattr(self, name)"])) == calls


def test_sleep_rule_catches() -> None:
    """Every way of sleeping is seen; giving way is not sleeping."""
    calls = ["time.sleep(0)", "asyncio.sleep(0.1)", "asyncio.sleep(0)", "sleep(1)"]
    assert sleeps("\n".join(calls)) == ["time.sleep(0)", "asyncio.sleep(0.1)", "sleep(1)"]


def test_process_rule_catches() -> None:
    """Every way of starting a process is seen."""
    source = "import subprocess\nfrom multiprocess.context import Process\nos.fork()\nos.getpid()"
    assert starts(source) == ["subprocess", "multiprocess.context", "os.fork"]


@pytest.mark.parametrize("line", ["    raise NotImplementedError", "def f():\n    ..."])
def test_unfinished_rule_catches(line: str) -> None:
    """A body that is not written yet is seen."""
    assert UNFINISHED.search(line)


def test_folder_size_counts_direct_modules() -> None:
    """Modules of a subfolder do not count for the folder above it."""
    assert folder_sizes(["orch.chat.app", "orch.chat.keys", "orch.chat.text.diffs"]) == {
        "orch.chat": 2,
        "orch.chat.text": 1,
    }


def test_agents_page_names_modules_that_exist() -> None:
    """Each path in the data paths and answers of AGENTS.md is a module or folder of one of the packages."""
    page = (ROOT / "AGENTS.md").read_text()
    part = page[page.index("# Data paths") : page.index("# Commands")]
    roots = [ROOT / "orchestrator/orch", ROOT / "worker/orch_worker", ROOT / "protocol/orch_protocol"]
    paths = re.findall(r"\b[a-z_]+(?:/[a-z_]+)+\b", part)
    assert len(paths) > 25
    assert [
        path for path in paths if not any((root / path).is_dir() or (root / f"{path}.py").is_file() for root in roots)
    ] == []
