"""The source tree as data, for the tests that hold it to its rules."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal, TypeVar, get_args

from msgspec import Struct

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"orch": "orchestrator", "orch_worker": "worker", "orch_protocol": "protocol"}
"""Each import package and the top-level folder that holds it, uppermost layer first."""


class Module(Struct, frozen=True):
    """One module of ours: its dotted name, its file, and what it imports."""

    name: str
    path: Path
    source: str
    doc: str
    """Its docstring."""
    imports: tuple[str, ...]
    """Dotted names as imported, relative ones resolved; `from a import b` is `a.b`. Imports inside functions count."""
    run: tuple[str, ...] = ()
    """Those of them that are ever executed, so without those for type checkers alone."""
    first: tuple[str, ...] = ()
    """Those of them that are executed when the module is imported, so without those inside functions."""


@lru_cache(maxsize=1)
def parsed(source: str) -> ast.Module:
    """Return the tree of `source`, which nobody alters. One is kept: those of all files are hundreds of megabytes."""
    return ast.parse(source)


When = Literal["perhaps never", "some time", "at once"]
"""Imports by when they are executed: those for type checkers never, those inside functions when these are called."""
WHEN: tuple[When, ...] = get_args(When)


def imports_of(
    source: str, module: str, *, is_package: bool = False, executed: When = "perhaps never"
) -> tuple[str, ...]:
    """Return what `source`, as the module named `module`, imports anywhere in it that is executed then."""
    found: list[str] = []
    parts = module.split(".")
    deep = "import_module" in source or "__import__" in source
    for node in nodes(parsed(source), executed, deep=deep):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) - node.level + is_package] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            found += [f"{prefix}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and called(node, "importlib.import_module", "__import__"):
            found += [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
    return tuple(found)


BLOCKS = ("body", "orelse", "handlers", "cases", "finalbody")
"""Where a statement has others inside it."""


def nodes(tree: ast.AST, executed: When = "perhaps never", *, deep: bool = True) -> Iterator[ast.AST]:
    """Yield each node of `tree`, level by level, that is executed then; not `deep`: but no expressions, a tenth."""
    waiting = deque([tree])
    while waiting:
        node = waiting.popleft()
        yield node
        for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if for_types and executed != "perhaps never":
            waiting += node.orelse
        elif executed != "at once" or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = (each for block in BLOCKS for each in getattr(node, block, ()))
            waiting += ast.iter_child_nodes(node) if deep else inside


def called(node: ast.Call, *names: str) -> bool:
    """Return whether the call is of one of these dotted names."""
    last = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
    return any(name.rpartition(".")[2] == last for name in names) and ast.unparse(node.func) in names


@cache
def modules() -> tuple[Module, ...]:
    """Return every module of ours, sorted by name within its package."""
    found = []
    for package, holder in PACKAGES.items():
        folder = ROOT / holder
        for path in sorted((folder / package).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            source = path.read_text()
            imports, run, first = (imports_of(source, name, is_package=is_package, executed=each) for each in WHEN)
            doc = ast.get_docstring(parsed(source)) or ""
            found.append(Module(name, path, source, doc, imports, run, first))
    return tuple(found)


def broken(rule: Callable[[T], Iterable[str]], over: Iterable[T], name: Callable[[T], str]) -> dict[str, list[str]]:
    """Return what `rule` finds in each of those it finds something in, by name."""
    return {name(each): found for each in over if (found := list(rule(each)))}


def texts() -> Iterator[Path]:
    """Yield every text file a reader may open: code, scripts, tests, benchmarks, docs, build files."""
    for pattern in ("*.md", "*.toml", "*.txt", "Makefile", ".ci/run", ".gitignore"):
        yield from sorted(ROOT.glob(pattern))
    for folder in (*PACKAGES.values(), "scripts", "tests", "benchmarks", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path
