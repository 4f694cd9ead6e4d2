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


def imports_of(source: str, module: str, *, is_package: bool = False) -> tuple[str, ...]:
    """Return what `source`, as the module named `module`, imports anywhere in it."""
    found: list[str] = []
    parts = module.split(".")
    for node in ast.walk(ast.parse(source)):
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
            found.append(Module(name, path, imports_of(path.read_text(), name, is_package=is_package)))
    return found


def texts() -> Iterator[Path]:
    """Yield every text file a reader may open: code, tests, benchmarks, docs, build files."""
    for pattern in ("*.md", "*.toml", "*.txt", "Makefile", ".ci/run", ".gitignore"):
        yield from sorted(ROOT.glob(pattern))
    for folder in (*PACKAGES.values(), "tests", "benchmarks", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path
