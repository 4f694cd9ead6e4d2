"""House rules of the code and of the tests."""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import symtable
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from source_tree import ROOT, Module, broken, called, modules, nodes, parsed

pytestmark = pytest.mark.timeout(240)  # each test reads all files
BUILTINS = frozenset(dir(builtins))
COMPREHENSIONS = ("listcomp", "setcomp", "dictcomp")
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
    *("SECURITY.md", "pyproject.toml", "scripts", "tests", "worker"),
}
"""The tracked files and folders of the repository's root."""
DECODERS = {
    "orch.cli.agents.controlling_terminal": "the terminal",
    "orch.cli.system.admin": "the lock and the log of the daemon",
    "orch.client.start": "the log of the daemon",
    "orch.config.paths": "the lock of a run and the variables of the daemon",
    "orch.daemon.daemon": "a pipe",
    "orch.demo.bug_hunt": "a file of the package",
    "orch.diagnostics.checks": "/proc and /sys",
    "orch.gateway.proxy.connection": "the lock and the log of the proxy",
    "orch.policy.hook_records": "totals that orch writes",
    "orch.processes.oom_detector": "/proc and /sys",
    "orch.processes.worker_logs": "logs of workers",
    "orch.supervisor.recovery.orphan_cleanup": "the token of a run",
    "orch.worktrees.snapshot": "files that git writes",
    "orch_worker.backends.models": "a file of the package",
    "orch_worker.process.worker_init": "standard input",
    "orch_worker.prompt.installed_packages": "metadata of installed packages",
    "orch_worker.prompt.working_folder": "files that git writes",
    "orch_worker.sandbox.landlock": "/proc",
    "orch_worker.session.log.lock": "/proc",
    "orch_worker.session.log.verified_prefix": "notes that orch writes",
    "orch_worker.system.atomic_json": "state that orch writes",
    "orch_worker.system.linux": "/proc",
    "orch_worker.tools.files.read": "lines of any file, as the agent sees them",
    "orch_worker.tools.shell.jobs": "the exit status of a command",
    "orch_worker.tools.values.store": "values that orch writes",
    "orch_worker.tools.values.tables": "tables in any encoding",
}
"""Modules that decode files without `decode_text`, because no person writes them, and what they read."""


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


def decoded_files(source: str) -> list[str]:
    """Return the expressions in `source` that decode a file without `decode_text`, or that name a byte order mark."""
    marks = ("\ufeff", b"\xef\xbb\xbf", "utf-8-sig")
    return [
        ast.unparse(node)
        for node in ast.walk(parsed(source))
        if (isinstance(node, ast.Constant) and node.value in marks) or (isinstance(node, ast.Call) and _decodes(node))
    ]


def _decodes(call: ast.Call) -> bool:
    called_name = _name(call)
    if called_name == "open" and isinstance(call.func, ast.Name):
        modes = [*call.args[1:2], *(each.value for each in call.keywords if each.arg == "mode")]
        return not modes or (isinstance(modes[0], ast.Constant) and modes[0].value in ("r", "rt", "r+"))
    decoded = [*call.args[:1], *([call.func.value] if isinstance(call.func, ast.Attribute) else [])]
    inside = {_name(node) for each in decoded for node in ast.walk(each) if isinstance(node, ast.Call)}
    from_file = bool(inside & {"read", "read_bytes", "bytes_of"}) and "decode_text" not in inside
    return called_name == "read_text" or (called_name in ("decode", "loads") and from_file)


def _name(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def shadowed_builtins(source: str) -> list[str]:
    """Return the builtins that a function of `source` uses and that a comprehension of the function binds."""
    targets = {word for each in re.findall(r"\bfor ([\w, ()]+?) in\b", source) for word in re.findall(r"\w+", each)}
    if not targets & BUILTINS:
        return []
    found, waiting = [], [symtable.symtable(source, "source", "exec")]
    while waiting:
        table = waiting.pop()
        waiting += table.get_children()
        if table.get_type() == "function" and table.get_name() not in COMPREHENSIONS:
            inside = list(comprehensions(table))
            bound = {each.get_name() for scope in inside for each in scope.get_symbols() if each.is_local()}
            used = {each.get_name() for scope in (table, *inside) for each in scope.get_symbols() if each.is_global()}
            found += [f"{table.get_name()}: {name}" for name in sorted(bound & used & BUILTINS)]
    return found


def comprehensions(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    """Yield the scopes of the comprehensions in a scope. Python 3.12 and later compile them as part of the function."""
    for child in table.get_children():
        if child.get_name() in COMPREHENSIONS:
            yield child
            yield from comprehensions(child)


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

    def test_binds_no_builtin_that_the_function_uses(self) -> None:
        """Python 3.12.1 reports such a builtin as an unassigned variable of the function."""
        assert in_modules(lambda module: shadowed_builtins(module.source)) == {}


def test_files_that_a_person_wrote_are_decoded_by_one_function() -> None:
    """Such a file may begin with a byte order mark, have other line ends or another encoding.

    A module that decodes files in another way is in DECODERS, with the reason.
    """
    assert in_modules(lambda module: decoded_files(module.source)).keys() == DECODERS.keys()


def test_decoding_rule_catches() -> None:
    """The rule reports every way to decode a file. It does not report `decode_text`, binary files and output files."""
    calls = [
        "path.read_text()",
        "path.read_bytes().decode()",
        "json.loads(file.read())",
        "toml.decode(bytes_of(path))",
        "open(path, encoding='utf-8')",
        "open(path, 'r')",
        "'utf-8-sig'",
    ]
    fine = [
        "decode_text(path.read_bytes())",
        "json.loads(decode_text(file.read()))",
        "open(path, 'rb')",
        "open(path, 'w')",
    ]
    assert decoded_files("\n".join([*calls, *fine])) == calls


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


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="comprehensions have no scopes in symbol tables")
def test_shadowed_builtin_rule_catches() -> None:
    """The rule reports a builtin that one comprehension binds and that the function or another one calls."""
    inside = "def f(a):\n b = [id for id in a]\n return {id(each) for each in b}"
    below = "def f(a):\n b = {id: 1 for id in a}\n return id(b)"
    fine = "def f(a):\n return [id for id in a]\ndef g(a):\n return id(a), tuple(id for id in a)"
    assert [shadowed_builtins(each) for each in (inside, below, fine)] == [["f: id"], ["f: id"], []]


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
