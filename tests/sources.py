"""The source tree as data, for the tests that hold it to its rules."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import TypeVar

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


@lru_cache(maxsize=1)
def parsed(source: str) -> ast.Module:
    """Return the tree of `source`, which nobody alters. One is kept: those of all files are hundreds of megabytes."""
    return ast.parse(source)


def imports_of(source: str, module: str, *, is_package: bool = False, executed: bool = False) -> tuple[str, ...]:
    """Return what `source`, as the module named `module`, imports anywhere in it; `executed`: not for types alone."""
    found: list[str] = []
    parts = module.split(".")
    for node in executed_nodes(parsed(source)) if executed else ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) - node.level + is_package] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            found += [f"{prefix}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and called(node, "importlib.import_module", "__import__"):
            found += [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
    return tuple(found)


def executed_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield each node of `tree`, level by level, but for what is there for type checkers alone."""
    waiting = deque([tree])
    while waiting:
        node = waiting.popleft()
        yield node
        for_types = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        left_out = set(map(id, node.body)) if for_types and isinstance(node, ast.If) else ()
        waiting += [each for each in ast.iter_child_nodes(node) if id(each) not in left_out]


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
            imports, run = (imports_of(source, name, is_package=is_package, executed=each) for each in (False, True))
            doc = ast.get_docstring(parsed(source)) or ""
            found.append(Module(name, path, source, doc, imports, run))
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
