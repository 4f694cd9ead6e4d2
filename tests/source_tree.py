"""The source tree as data, for tests that check its rules."""

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
"""The top-level folder of each import package. The packages are ordered from the highest layer to the lowest."""


class Module(Struct, frozen=True):
    """A module of orch, with its dotted name, its file and its imports."""

    name: str
    path: Path
    source: str
    doc: str
    """Its docstring."""
    imports: tuple[str, ...]
    """The dotted names of all imports, including imports inside functions.

    Relative names are resolved, and `from a import b` is `a.b`.
    """
    run: tuple[str, ...] = ()
    """Imports that are executed at any time. Imports for type checkers are left out."""
    first: tuple[str, ...] = ()
    """Imports that are executed when the module is imported. Imports inside functions are left out."""


@lru_cache(maxsize=1)
def parsed(source: str) -> ast.Module:
    """Return the syntax tree of `source`. Callers must not change it.

    Only one tree is cached, because the trees of all files use hundreds of megabytes.
    """
    return ast.parse(source)


When = Literal["perhaps never", "some time", "at once"]
"""When an import is executed.

Imports for type checkers are never executed. Imports inside functions are executed when the function is called.
"""
WHEN: tuple[When, ...] = get_args(When)


def imports_of(
    source: str, module: str, *, is_package: bool = False, executed: When = "perhaps never"
) -> tuple[str, ...]:
    """Return the imports anywhere in `source`, the source of the module `module`, that are executed at the time
    `executed`.
    """
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
"""The fields of a statement that contain other statements."""


def nodes(tree: ast.AST, executed: When = "perhaps never", *, deep: bool = True) -> Iterator[ast.AST]:
    """Yield the nodes of `tree`, level by level, that are executed at the time `executed`.

    If `deep` is False, leave out expressions, which makes the function ten times faster.
    """
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
    """Return whether `node` calls one of these dotted names."""
    last = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
    return any(name.rpartition(".")[2] == last for name in names) and ast.unparse(node.func) in names


@cache
def modules() -> tuple[Module, ...]:
    """Return every module of orch, sorted by name within its package."""
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
    """Return the results of `rule` for each item with results, by the name of the item."""
    return {name(each): found for each in over if (found := list(rule(each)))}


def texts() -> Iterator[Path]:
    """Yield every text file that a reader may open: code, scripts, tests, benchmarks, docs and build files."""
    for pattern in ("*.md", "*.toml", "*.txt", "Makefile", ".ci/run", ".gitignore"):
        yield from sorted(ROOT.glob(pattern))
    for folder in (*PACKAGES.values(), "scripts", "tests", "benchmarks", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path
