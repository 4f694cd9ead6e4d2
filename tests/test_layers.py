"""Imports point one way, heavy packages come in at one door each, and providers are named where they belong."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Iterable
from functools import cache
from itertools import chain, pairwise
from typing import Literal, NamedTuple

import pytest
from msgspec.structs import replace

from source_tree import PACKAGES, ROOT, Module, broken, imports_of, modules

pytestmark = pytest.mark.timeout(240)  # each looks through all there is
OURS = tuple(PACKAGES)
CHECKED_PACKAGES = ("orch_protocol", "orch_worker", "orch")
"""Packages whose folders form an acyclic graph."""
DOORS: dict[str, set[str]] = {
    "anthropic": {"orch_worker.backends.providers.anthropic"},
    "httpx2": {"orch_worker.backends.http.transport", "orch_worker.tools.web.http"},
    "IPython": {"orch.notebook.magic"},
    "matplotlib": {"orch.replay.plot"},
    "multiprocess": {"orch_worker.process.zygote"},
    "openai": {"orch_worker.backends.providers.openai"},
    "prompt_toolkit": {"orch.chat.text.styled_text", "orch.chat.screen"},
    "structlog": {"orch.config.logs"},
    "tenacity": {"orch_worker.backends.http.retry"},
    "yaml": {"orch_worker.skills.skill_file"},
    # Both ends of the one wire: the worker's DEALER with the adapter that both drive, and the root's ROUTER.
    "zmq": {"orch_worker.transport.zmq_asyncio", "orch.processes.router"},
}
"""The modules that may import a package whose import costs time or memory."""

IMPORTED_AS = {"ipython": "IPython", "pyyaml": "yaml", "pyzmq": "zmq"}
"""Packages that are imported by another name than they are installed by."""

PROVIDERS = re.compile(
    r"anthropic|openai|claude(?!\.md\b)|\bgpt-|ollama|moonshot|\bkimi|cache_control|reasoning_content|max_completion_tokens",
    re.IGNORECASE,
)
HOMES_OF_PROVIDERS = ("orch_worker.backends.", "orch.archival.adapters", "orch.sessions.", "orch_worker.system.secrets")


def outside_layer(module: Module) -> list[str]:
    """Return the imports of `module` that point up, or out of what its layer may use."""
    layer = OURS.index(module.name.partition(".")[0])
    above = OURS[:layer]
    found = [name for name in module.imports if name.partition(".")[0] in above]
    if OURS[layer] == "orch_protocol":
        allowed = {"msgspec", "orch_protocol", *sys.stdlib_module_names}
        found += [name for name in module.imports if name.partition(".")[0] not in {*allowed, *above}]
    return found


def behind_doors(module: Module) -> list[str]:
    """Return the packages that `module` imports although they come in elsewhere."""
    tops = {name.partition(".")[0] for name in module.imports}
    return sorted(top for top in tops if top in DOORS and module.name not in DOORS[top])


def undeclared(module: Module) -> list[str]:
    """Return the packages that `module` imports and pyproject.toml does not name."""
    return sorted({name.partition(".")[0] for name in module.imports} - declared())


@cache
def declared() -> set[str]:
    """Return the packages that may be imported: ours, the standard library's and what the project depends on."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = (wanted for extra, wanted in project["optional-dependencies"].items() if extra != "test")
    wanted = map(distribution, chain(project["dependencies"], *extras))
    names = {IMPORTED_AS.get(name, name) for name in wanted}
    return {*names, *OURS, *sys.stdlib_module_names}


def distribution(requirement: str) -> str:
    """Return the name in front of a requirement's version."""
    match = re.match(r"[\w.-]+", requirement)
    assert match, requirement
    return match[0]


def provider_lines(text: str) -> list[str]:
    """Return the lines of `text` that name a provider or a field of one."""
    return [line.strip() for line in text.splitlines() if PROVIDERS.search(line)]


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """Return the names along one cycle of `graph`, or nothing when it has none."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name not in done:
            for target in sorted(graph.get(name, ())):
                if found := visit(target, [*path, name]):
                    return found
            done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := visit(name, []))), [])


def import_graph(found: Iterable[Module]) -> dict[str, set[str]]:
    """Return which of our modules imports which, without the packages' own `__init__` re-exports."""
    by_name = {module.name: module for module in found}
    graph: dict[str, set[str]] = {name: set() for name in by_name}
    for name, module in by_name.items():
        for target in module.run:
            owner = target if target in by_name else target.rpartition(".")[0]
            if owner in by_name and owner != name and by_name[owner].path.name != "__init__.py":
                graph[name].add(owner)
    return graph


class FolderEdge(NamedTuple):
    """An import that makes one folder depend on another. `kind` says when it is executed."""

    folder: str
    target_folder: str
    module: str
    target: str
    kind: Literal["", "lazy", "types"]

    def __str__(self) -> str:
        kind = f" ({self.kind})" if self.kind else ""
        return f"folder {self.folder} -> folder {self.target_folder}: {self.module} -> {self.target}{kind}"


def folder_edges(found: Iterable[Module]) -> list[FolderEdge]:
    """Return the imports between folders, lazy and type-only ones included. A package's `__init__` is in its folder."""
    by_name = {module.name: module for module in found}
    edges = []
    for name, module in by_name.items():
        for target in module.imports:
            owner = target
            while owner and owner not in by_name:
                owner = owner.rpartition(".")[0]
            folders = [_folder(by_name[each]) for each in (name, owner) if each]
            if len(folders) == 2 and folders[0] != folders[1]:
                kind: Literal["", "lazy", "types"] = (
                    "" if target in module.first else "lazy" if target in module.run else "types"
                )
                edges.append(FolderEdge(*folders, name, target, kind))
    return edges


def _folder(module: Module) -> str:
    return module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]


def folder_cycle(edges: Iterable[FolderEdge]) -> list[str]:
    """Return the edges along one cycle of folders, as text; nothing if there is no cycle."""
    first: dict[tuple[str, str], FolderEdge] = {}
    graph: dict[str, set[str]] = {}
    for edge in edges:
        graph.setdefault(edge.folder, set()).add(edge.target_folder)
        first.setdefault((edge.folder, edge.target_folder), edge)
    path = cycle(graph)
    return [str(first[pair]) for pair in pairwise(path)]


FRONT_ENDS = ("orch.cli.", "orch.chat.", "orch.demo.", "orch.notebook.")
ROOT_FOLDERS = ("orch.services", "orch.supervisor", "orch.tree", "orch.commands", "orch.daemon", "orch.render")


def in_modules(rule: Callable[[Module], Iterable[str]]) -> dict[str, list[str]]:
    """Return what breaks `rule` in our modules, by module."""
    return broken(rule, modules(), lambda module: module.name)


class TestEveryModule:
    """Rules that each module keeps by itself."""

    def test_imports_point_down(self) -> None:
        """No module imports from a layer above its own, and the protocol imports msgspec and the standard library."""
        assert in_modules(outside_layer) == {}

    def test_heavy_packages_come_in_at_their_door(self) -> None:
        """A package that is slow to import is imported by the modules named for it alone."""
        assert in_modules(behind_doors) == {}

    def test_imports_are_declared(self) -> None:
        """Whatever is imported is ours, the standard library's or a dependency of the project."""
        assert in_modules(undeclared) == {}

    def test_providers_are_named_in_backends_only(self) -> None:
        """A provider's name or field stands in the backends and the format adapters, nowhere else."""
        others = [module for module in modules() if not module.name.startswith(HOMES_OF_PROVIDERS)]
        assert len(others) < len(modules())
        assert broken(lambda module: provider_lines(module.source), others, lambda module: module.name) == {}


def test_doors_are_used() -> None:
    """Each module that may import a heavy package is there and does."""
    uses = {(name.partition(".")[0], module.name) for module in modules() for name in module.imports}
    assert [(top, door) for top, doors in DOORS.items() for door in doors if (top, door) not in uses] == []


def test_no_import_cycles() -> None:
    """No module imports, directly or not, one that imports it, not even in a function; types may name each other."""
    assert cycle(import_graph(modules())) == []


@pytest.mark.parametrize("package", CHECKED_PACKAGES)
def test_folders_form_an_acyclic_graph(package: str) -> None:
    """No folder imports, directly or not, a folder that imports it, not even lazily or for types."""
    inside = [module for module in modules() if module.name.partition(".")[0] == package]
    assert folder_cycle(folder_edges(inside)) == []


def test_root_does_not_import_front_ends() -> None:
    """The root, its services, slash commands and renderers import neither the CLI nor the chat."""
    found = folder_edges(modules())
    root = [edge for edge in found if edge.folder.startswith(ROOT_FOLDERS)]
    assert root
    assert [str(edge) for edge in root if f"{edge.target_folder}.".startswith(FRONT_ENDS)] == []


def test_import_linter_contract_is_kept() -> None:
    """The layer contract in pyproject.toml names our three packages in order, and holds."""
    from importlinter import cli

    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert tool["root_packages"] == list(OURS)
    assert [contract["layers"] for contract in tool["contracts"]] == [list(OURS)]
    assert cli.lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == cli.EXIT_STATUS_SUCCESS


def made_up(source: str, name: str) -> Module:
    """Return a module called `name` that consists of `source`."""
    return Module(name, ROOT / "made_up.py", source, "", imports_of(source, name))


@pytest.mark.parametrize(
    ("source", "name", "bad"),
    [
        ("from orch.tree.tree import Tree", "orch_worker.agent.turn", ["orch.tree.tree.Tree"]),
        (
            "def f():\n    import orch_worker.session.log.append_log",
            "orch_protocol.wire.frames",
            ["orch_worker.session.log.append_log"],
        ),
        ("import zmq", "orch_protocol.wire.frames", ["zmq"]),
        ("from ...orch import tree", "orch_worker.agent.turn", ["orch.tree"]),
        ("import importlib\nimportlib.import_module('orch.tree.tree')", "orch_worker.agent.turn", ["orch.tree.tree"]),
        ("import json, msgspec\nfrom .ids import new_id", "orch_protocol.wire.frames", []),
        ("from orch_worker.session.log.append_log import Store", "orch.supervisor.supervisor", []),
    ],
)
def test_layer_rule_catches(source: str, name: str, bad: list[str]) -> None:
    """The layer rule sees absolute, relative, late and dynamic imports, and lets the others pass."""
    assert outside_layer(made_up(source, name)) == bad


def test_door_rule_catches() -> None:
    """A heavy package imported beside its door is reported, at its door it is not."""
    assert behind_doors(made_up("import zmq.asyncio\nimport json", "orch.tree.tree")) == ["zmq"]
    assert behind_doors(made_up("def f():\n    from structlog import get_logger", "orch.tree.tree")) == ["structlog"]
    assert behind_doors(made_up("import zmq", "orch.processes.router")) == []


def test_dependency_rule_catches() -> None:
    """A package that the project does not depend on is reported."""
    assert undeclared(made_up("import requests\nimport zmq\nimport json", "orch.tree.tree")) == ["requests"]


def test_provider_rule_catches() -> None:
    """Names of providers and of their fields are seen in any case; other words are not."""
    text = "key = ANTHROPIC\nx = 1\nblock['cache_control'] = y\nfile = 'CLAUDE.md'\nmodel = 'claude'"
    assert provider_lines(text) == ["key = ANTHROPIC", "block['cache_control'] = y", "model = 'claude'"]


def test_imports_for_types_are_told_apart() -> None:
    """What is imported for type checkers alone counts for layers, and not for cycles."""
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..tree import Tree\n"
    source += "else:\n    import json\ndef f():\n    import ast\n"
    assert "orch.tree.tree.Tree" in imports_of(source, "orch.tree.agents.agent_refs")
    assert imports_of(source, "orch.tree.agents.agent_refs", executed="some time") == (
        "typing.TYPE_CHECKING",
        "json",
        "ast",
    )
    assert imports_of(source, "orch.tree.agents.agent_refs", executed="at once") == ("typing.TYPE_CHECKING", "json")


def test_cycle_rule_catches() -> None:
    """A cycle is returned as the path that closes; a graph without one gives nothing."""
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_folder_cycle_names_each_edge() -> None:
    """A folder cycle is reported with its modules, also where one import is lazy or for types."""
    found = [
        made_up("def f():\n    from ..b import y", "orch.a.x"),
        made_up("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..a.x import X", "orch.b.y"),
    ]
    found = [
        replace(
            each,
            run=imports_of(each.source, each.name, executed="some time"),
            first=imports_of(each.source, each.name, executed="at once"),
        )
        for each in found
    ]
    assert folder_cycle(folder_edges(found)) == [
        "folder orch.a -> folder orch.b: orch.a.x -> orch.b.y (lazy)",
        "folder orch.b -> folder orch.a: orch.b.y -> orch.a.x.X (types)",
    ]
    assert folder_cycle(folder_edges(found[:1])) == []
