"""The source tree as data, for the tests that hold it to its rules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"orch": "orchestrator", "orch_worker": "worker", "orch_protocol": "protocol"}
"""Each import package and the top-level folder that holds it, uppermost layer first."""


class Module(Struct, frozen=True):
    """One module of ours: its dotted name, its file, and what it imports."""

    name: str
    path: Path
    imports: tuple[str, ...]
    """Dotted names as imported, relative ones resolved; `from a import b` is `a.b`. Imports inside functions count."""
    run: tuple[str, ...] = ()
    """Those of them that are ever executed, so without those for type checkers alone."""


def imports_of(source: str, module: str, *, is_package: bool = False, executed: bool = False) -> tuple[str, ...]:
    """Return what `source`, as the module named `module`, imports anywhere in it; `executed`: not for types alone."""
    found: list[str] = []
    parts = module.split(".")
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if executed and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) - node.level + is_package] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            found += [f"{prefix}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            found += [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
    return tuple(found)


def modules(*packages: str) -> list[Module]:
    """Return every module of `packages` (of all of ours when none is named), sorted by name."""
    found = []
    for package in packages or PACKAGES:
        folder = ROOT / PACKAGES[package]
        for path in sorted((folder / package).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            source = path.read_text()
            imports, run = (imports_of(source, name, is_package=is_package, executed=each) for each in (False, True))
            found.append(Module(name, path, imports, run))
    return found


def texts() -> Iterator[Path]:
    """Yield every text file a reader may open: code, scripts, tests, benchmarks, docs, build files."""
    for pattern in ("*.md", "*.toml", "*.txt", "Makefile", ".ci/run", ".gitignore"):
        yield from sorted(ROOT.glob(pattern))
    for folder in (*PACKAGES.values(), "scripts", "tests", "benchmarks", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path
