"""Layers: imports point in one direction, heavy packages have few importers, and few modules name providers."""

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

pytestmark = pytest.mark.timeout(240)  # each test reads all files
OURS = tuple(PACKAGES)
CHECKED_PACKAGES = ("orch_protocol", "orch_worker", "orch")
"""Packages whose folders form an acyclic graph."""
IMPORTERS: dict[str, set[str]] = {
    "aiohttp": {
        *("orch.gateway.proxy.responses", "orch.gateway.proxy.server", "orch.gateway.proxy.tunnel"),
        *("orch_worker.backends.http.aiohttp_client", "orch_worker.backends.http.transport"),
    },
    "anthropic": {f"orch_worker.backends.clients.{name}" for name in ("anthropic", "bedrock", "vertex")},
    "docstring_parser": {"orch_worker.tools.api.base"},
    "httpx2": {
        "orch.gateway.transport",
        "orch_worker.backends.http.aiohttp_client",
        "orch_worker.backends.http.transport",
        "orch_worker.tools.web.http",
    },
    "IPython": {"orch.notebook.magic"},
    "jsonschema": {"orch.api.return_types"},
    "matplotlib": {"orch.replay.plot"},
    "multiprocess": {"orch_worker.process.zygote"},
    "openai": {"orch_worker.backends.clients.azure", "orch_worker.backends.clients.openai"},
    "argcomplete": {"orch.cli.system.completion"},
    "prompt_toolkit": {"orch.chat.text.styled_text", "orch.chat.screen"},
    "structlog": {"orch.config.logs"},
    "tenacity": {"orch_worker.backends.http.retry"},
    "yaml": {"orch_worker.skills.front_matter"},
    # The two ends of the connection: the worker's DEALER socket with its adapter, and the root's ROUTER socket.
    "zmq": {"orch_worker.transport.zmq_asyncio", "orch.processes.router"},
}
"""For each package with a slow or large import, the modules that may import the package."""

FORMATS = "orch_worker.backends.formats"
PURE = {
    *("__future__", "abc", "collections", "functools", "hashlib", "html", "http.HTTPStatus", "itertools", "json", "re"),
    *("typing", "urllib.parse", "msgspec", "orch_protocol", FORMATS, "orch_worker.backends.base.DEFAULT_ANSWER_TOKENS"),
    *("orch_worker.backends.base.PromptPrefix", "orch_worker.backends.models.Model", "orch_worker.conversation.tokens"),
}
"""What the formats of model APIs may import: nothing that does I/O, and no SDK."""

IMPORTED_AS = {"docstring-parser": "docstring_parser", "ipython": "IPython", "pyyaml": "yaml", "pyzmq": "zmq"}
"""Packages whose import name differs from the name for installation."""

PROVIDERS = re.compile(
    r"anthropic|openai|(?<!\.)claude(?!\.md\b)|\bgpt-|ollama|moonshot|\bkimi|cache_control|reasoning_content|max_completion_tokens",
    re.IGNORECASE,
)
HOMES_OF_PROVIDERS = (
    "orch_worker.backends.",
    "orch.archival.adapters",
    "orch.gateway.",
    "orch.integrations",
    "orch.replay.",
    "orch.sessions.",
    "orch_worker.system.secrets",
)


def outside_layer(module: Module) -> list[str]:
    """Return the imports of `module` that belong to a higher layer, or that its layer may not use."""
    layer = OURS.index(module.name.partition(".")[0])
    above = OURS[:layer]
    found = [name for name in module.imports if name.partition(".")[0] in above]
    if OURS[layer] == "orch_protocol":
        allowed = {"msgspec", "orch_protocol", *sys.stdlib_module_names}
        found += [name for name in module.imports if name.partition(".")[0] not in {*allowed, *above}]
    return found


def tops(module: Module) -> set[str]:
    """Return the top-level packages that `module` imports."""
    return {name.partition(".")[0] for name in module.imports}


def unlisted(module: Module) -> list[str]:
    """Return the heavy packages that `module` imports although only other modules may import them."""
    return sorted(top for top in tops(module) if top in IMPORTERS and module.name not in IMPORTERS[top])


def impure(module: Module) -> list[str]:
    """Return the imports of `module`, a format, that formats may not have."""
    return [name for name in module.imports if not any(f"{name}.".startswith(f"{pure}.") for pure in PURE)]


def undeclared(module: Module) -> list[str]:
    """Return the packages that `module` imports although pyproject.toml does not name them."""
    return sorted(tops(module) - declared())


@cache
def declared() -> set[str]:
    """Return the packages that may be imported.

    These are the packages of orch, of the standard library, and the dependencies.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = (wanted for extra, wanted in project["optional-dependencies"].items() if extra != "test")
    wanted = map(distribution, chain(project["dependencies"], *extras))
    names = {IMPORTED_AS.get(name, name) for name in wanted}
    return {*names, *OURS, *sys.stdlib_module_names}


def distribution(requirement: str) -> str:
    """Return the name of the package in `requirement`, which may contain a version."""
    match = re.match(r"[\w.-]+", requirement)
    assert match, requirement
    return match[0]


def provider_lines(text: str) -> list[str]:
    """Return the lines of `text` that name a provider or a field of a provider."""
    return [line.strip() for line in text.splitlines() if PROVIDERS.search(line)]


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """Return the names along a cycle of `graph`. Return [] if there is no cycle."""
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
    """Return the imports between modules of orch. Re-exports in `__init__` of a package are left out."""
    by_name = {module.name: module for module in found}
    graph: dict[str, set[str]] = {name: set() for name in by_name}
    for name, module in by_name.items():
        for target in module.run:
            owner = target if target in by_name else target.rpartition(".")[0]
            if owner in by_name and owner != name and by_name[owner].path.name != "__init__.py":
                graph[name].add(owner)
    return graph


class FolderEdge(NamedTuple):
    """An import that makes a folder depend on another folder. `kind` states when the import is executed."""

    folder: str
    target_folder: str
    module: str
    target: str
    kind: Literal["", "lazy", "types"]

    def __str__(self) -> str:
        kind = f" ({self.kind})" if self.kind else ""
        return f"folder {self.folder} -> folder {self.target_folder}: {self.module} -> {self.target}{kind}"


def folder_edges(found: Iterable[Module]) -> list[FolderEdge]:
    """Return the imports between folders, including lazy imports and imports for types.

    The `__init__` of a package belongs to its folder.
    """
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
    """Return the edges along a cycle of folders, as text. Return [] if there is no cycle."""
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
    """Return the violations of `rule` in modules of orch, by module."""
    return broken(rule, modules(), lambda module: module.name)


class TestEveryModule:
    """Rules for single modules."""

    def test_imports_point_down(self) -> None:
        """No module imports from a higher layer. The protocol imports only msgspec and the standard library."""
        assert in_modules(outside_layer) == {}

    def test_heavy_packages_have_listed_importers_only(self) -> None:
        """Only the listed modules import a package whose import is slow."""
        assert in_modules(unlisted) == {}

    def test_formats_do_no_io(self) -> None:
        """The formats of model APIs import only pure modules, and no SDK is loaded with them."""
        formats = [module for module in modules() if module.name.startswith(FORMATS)]
        assert len(formats) > 5
        assert broken(impure, formats, lambda module: module.name) == {}
        by_name = {module.name: module for module in modules()}
        graph = import_graph(modules())
        waiting, reached = [module.name for module in formats], set[str]()
        while waiting:
            name = waiting.pop()
            waiting += graph[name] - reached
            reached |= {name}
        assert [name for name in reached if {"aiohttp", "anthropic", "httpx2", "openai"} & tops(by_name[name])] == []

    def test_imports_are_declared(self) -> None:
        """Every import belongs to orch, to the standard library or to a dependency of the project."""
        assert in_modules(undeclared) == {}

    def test_providers_are_named_in_backends_only(self) -> None:
        """Only backends, format adapters and the policies of replays contain the names and fields of providers."""
        others = [module for module in modules() if not module.name.startswith(HOMES_OF_PROVIDERS)]
        assert len(others) < len(modules())
        assert broken(lambda module: provider_lines(module.source), others, lambda module: module.name) == {}


def test_listed_importers_import_their_package() -> None:
    """Each module that may import a heavy package exists and imports the package."""
    uses = {(name.partition(".")[0], module.name) for module in modules() for name in module.imports}
    assert [(top, name) for top, names in IMPORTERS.items() for name in names if (top, name) not in uses] == []


def test_no_import_cycles() -> None:
    """No module imports itself through other modules, even inside functions. Imports for types do not count."""
    assert cycle(import_graph(modules())) == []


@pytest.mark.parametrize("package", CHECKED_PACKAGES)
def test_folders_form_an_acyclic_graph(package: str) -> None:
    """No folder imports itself through other folders. Lazy imports and imports for types count."""
    inside = [module for module in modules() if module.name.partition(".")[0] == package]
    assert folder_cycle(folder_edges(inside)) == []


def test_root_does_not_import_front_ends() -> None:
    """The root, its services, slash commands and renderers import neither the CLI nor the chat."""
    found = folder_edges(modules())
    root = [edge for edge in found if edge.folder.startswith(ROOT_FOLDERS)]
    assert root
    assert [str(edge) for edge in root if f"{edge.target_folder}.".startswith(FRONT_ENDS)] == []


def test_import_linter_contract_is_kept() -> None:
    """The layer contract in pyproject.toml names the three packages in order, and the code fulfills it."""
    from importlinter import cli

    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert tool["root_packages"] == list(OURS)
    assert [contract["layers"] for contract in tool["contracts"]] == [list(OURS)]
    assert cli.lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == cli.EXIT_STATUS_SUCCESS


def made_up(source: str, name: str) -> Module:
    """Return a module with the name `name` and the source `source`."""
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
    """The layer rule reports absolute, relative, late and dynamic imports, and accepts other imports."""
    assert outside_layer(made_up(source, name)) == bad


def test_importer_rule_catches() -> None:
    """The rule reports a heavy package in a module that may not import it, and accepts a module that may."""
    assert unlisted(made_up("import zmq.asyncio\nimport json", "orch.tree.tree")) == ["zmq"]
    assert unlisted(made_up("def f():\n    from structlog import get_logger", "orch.tree.tree")) == ["structlog"]
    assert unlisted(made_up("import zmq", "orch.processes.router")) == []


def test_format_rule_catches() -> None:
    """The rule reports SDKs, HTTP clients and other modules of the worker, and accepts pure modules."""
    source = "import json, http.client\nimport httpx2\nfrom http import HTTPStatus\nfrom ..http import transport\n"
    source += "from ..models import Model, load\nfrom .openai import data_url\ndef f():\n    import openai"
    bad = ["http.client", "httpx2", "orch_worker.backends.http.transport", "orch_worker.backends.models.load", "openai"]
    assert impure(made_up(source, f"{FORMATS}.chat")) == bad


def test_dependency_rule_catches() -> None:
    """The rule reports a package that is not a dependency of the project."""
    assert undeclared(made_up("import requests\nimport zmq\nimport json", "orch.tree.tree")) == ["requests"]


def test_provider_rule_catches() -> None:
    """The rule reports names and fields of providers in upper and lower case, and accepts other words."""
    text = "key = ANTHROPIC\nx = 1\nblock['cache_control'] = y\nfile = 'CLAUDE.md'\nmodel = 'claude'"
    assert provider_lines(text) == ["key = ANTHROPIC", "block['cache_control'] = y", "model = 'claude'"]


def test_type_checking_imports_count_for_layers_not_for_cycles() -> None:
    """Imports for type checkers count for layers, but not for cycles."""
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
    """The function returns a cycle as a closed path, and [] for a graph without a cycle."""
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_folder_cycle_names_each_edge() -> None:
    """A cycle of folders is reported with its modules, even if an import is lazy or for types."""
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
