"""Computes how cells of Python code change the values in the workspace: new, changed and deleted values, dependencies.

The functions are pure, except for the parameter `read_state`, which reads a file.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.core.values import BoundName, ValueDescription
from orch_protocol.core.workspace import (
    Artifact,
    DropArtifacts,
    FileState,
    InvalidateArtifacts,
    KeepArtifact,
    Step,
    TouchArtifacts,
)

from .capture import one_line
from .state import Workspace

__all__ = ["VALUE", "PythonCell", "Statement", "analyze_statements", "invalidate_unbound", "steps_of"]


# --- Static analysis: the names that each statement reads and binds ---

MAX_CODE: Final = 200_000
MAX_TEXTS: Final = 20
MAX_NAMES: Final = 200
MAX_TEXT_CHARS: Final = 300
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Statement(Struct, frozen=True):
    """The names that one statement `reads`, `binds` (or modifies) and `deletes`, and the names whose methods it
    `calls`.

    A method call may change the value of its name. `texts` contains short string literals, which may name files.
    """

    reads: tuple[str, ...] = ()
    binds: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


def analyze_statements(code: str) -> tuple[Statement, ...]:
    """Return the analysis of each statement of `code`, in order. Return () if `code` cannot be parsed.

    A name that a function reads counts as read where the function is defined. Local names of functions, classes and
    comprehensions are ignored.
    """
    if len(code) > MAX_CODE:
        return ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    try:
        return tuple(map(_statement, tree.body))
    except RecursionError:
        return ()


def _statement(node: ast.stmt) -> Statement:
    walk = _StatementWalk()
    walk.visit(node)
    reads, binds, calls, deletes = map(_limit_names, (walk.reads, walk.binds, walk.calls, walk.deletes))
    return Statement(reads, binds, calls, deletes, tuple(walk.texts)[:MAX_TEXTS])


def _limit_names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))[:MAX_NAMES]


class _StatementWalk(ast.NodeVisitor):
    """Walks one statement.

    `_scopes` contains the local names of the enclosing functions, which are not in the namespace.
    """

    def __init__(self) -> None:
        self.reads: dict[str, None] = {}
        self.binds: dict[str, None] = {}
        self.calls: dict[str, None] = {}
        self.deletes: dict[str, None] = {}
        self.texts: dict[str, None] = {}
        self._scopes: list[frozenset[str]] = []

    def visit_Name(self, node: ast.Name) -> None:
        self._record_name(node.id, node.ctx)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and 0 < len(node.value) <= MAX_TEXT_CHARS and "\n" not in node.value:
            self.texts[node.value] = None

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        for name in _root_name(node.target):
            self._record_name(name, ast.Load())
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._record_root(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._record_root(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute):
            self.calls |= dict.fromkeys(name for name in _root_name(node.func.value) if self._is_global(name))
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._record_name(alias.asname or alias.name.partition(".")[0], ast.Store())

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self._record_name(alias.asname or alias.name, ast.Store())

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._record_name(node.name, ast.Store())
        for each in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(each)
        self._visit_scope(frozenset(_bound_names(node.body)), node.body)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_function(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_defaults(node.args)
        self._visit_scope(frozenset(_parameter_names(node.args)), [node.body])

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._visit_comprehension(node)

    def visit_SetComp(self, node: ast.SetComp) -> None:
        self._visit_comprehension(node)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._visit_comprehension(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self._visit_comprehension(node)

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._record_name(node.name, ast.Store())
        for each in node.decorator_list:
            self.visit(each)
        self._visit_defaults(node.args)
        not_local = {
            name for each in ast.walk(node) if isinstance(each, ast.Global | ast.Nonlocal) for name in each.names
        }
        self._visit_scope(frozenset({*_parameter_names(node.args), *_bound_names(node.body)} - not_local), node.body)

    def _visit_defaults(self, arguments: ast.arguments) -> None:
        for each in (*arguments.defaults, *filter(None, arguments.kw_defaults)):
            self.visit(each)

    def _visit_comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        self.visit(node.generators[0].iter)  # The first iterable is evaluated in the enclosing scope.
        names = {name for each in node.generators for name in _names_in(each.target)}
        for each in ast.walk(node):
            if isinstance(each, ast.NamedExpr) and not self._scopes:
                self._record_name(each.target.id, ast.Store())
        self._visit_scope(frozenset(names), list(ast.iter_child_nodes(node)))

    def _visit_scope(self, local_names: frozenset[str], body: Iterable[ast.AST]) -> None:
        self._scopes.append(local_names)
        for each in body:
            self.visit(each)
        self._scopes.pop()

    def _record_root(self, node: ast.Attribute | ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load):
            for name in _root_name(node.value):
                self._record_name(name, ast.Store())
        self.generic_visit(node)

    def _is_global(self, name: str) -> bool:
        return not any(name in scope for scope in self._scopes)

    def _record_name(self, name: str, ctx: ast.expr_context) -> None:
        if not self._is_global(name):
            return
        if isinstance(ctx, ast.Load):
            self.reads[name] = None
        elif self._scopes:
            return  # A function binds a `global` name only when the function is called.
        elif isinstance(ctx, ast.Del):
            self.deletes[name] = None
        else:
            self.binds[name] = None


def _root_name(node: ast.AST) -> Iterator[str]:
    """Yield the name with which a chain of attributes and subscripts begins."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


def _names_in(target: ast.AST) -> Iterator[str]:
    for each in ast.walk(target):
        if isinstance(each, ast.Name):
            yield each.id


def _parameter_names(arguments: ast.arguments) -> Iterator[str]:
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if each is not None:
            yield each.arg


def _bound_names(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield the local names that a body binds, without the local names of nested functions."""
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop()
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
                continue
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                for alias in names:
                    yield alias.asname or alias.name.partition(".")[0]
            case ast.ExceptHandler(name=str(name)):
                yield name
        if not isinstance(node, (*_FUNCTIONS, *_COMPREHENSIONS)):
            pending += ast.iter_child_nodes(node)


VALUE: Final = "value:"
MAX_FILES: Final = 20
REBOUND: Final = "bound to another value by now"
UNBOUND: Final = "no longer bound: the process that had it has ended"


class PythonCell(Struct, frozen=True):
    """Code that ran to its end (`completed`) or up to an error.

    `origin` describes the call as an artifact. This artifact has no name.
    """

    code: str
    origin: Artifact
    completed: bool = True


class _BindingSource(Struct, frozen=True):
    """The source of a binding: names read, strings that may name files, whether the old value counts, and the cell."""

    names: frozenset[str] = frozenset()
    texts: tuple[str, ...] = ()
    uses_old_value: bool = False
    cell: int = -1


def steps_of(
    cells: Sequence[PythonCell],
    before: Mapping[str, BoundName],
    after: Mapping[str, BoundName],
    workspace: Workspace,
    read_state: Callable[[str], FileState | None],
    *,
    limit: int,
) -> list[Step]:
    """Return the changes of `workspace` caused by `cells`.

    `before` and `after` are the bound names before and after the cells. A value is recorded if a completed cell binds
    its name, if its object has changed, or if `workspace` does not contain it. Summaries have at most `limit`
    characters.
    """
    read, sources, called = _sources(cells)
    steps: list[Step] = []
    known = {name.removeprefix(VALUE) for name in workspace.artifacts if name.startswith(VALUE)}
    if dropped := [f"{VALUE}{name}" for name in known if name not in after or not after[name].created_by_agent]:
        steps.append(DropArtifacts(tuple(dropped), "not bound any more"))
    if touched := [f"{VALUE}{name}" for name in read if name in known and f"{VALUE}{name}" not in dropped]:
        steps.append(TouchArtifacts(tuple(touched), cells[-1].origin.turn))
    order = {name: index for index, name in enumerate(sources)}
    for name in sorted(after, key=lambda name: order.get(name, -1)):
        new, old = after[name], before.get(name)
        source = sources.get(name, _BindingSource())
        was_bound = source.cell >= 0 and cells[source.cell].completed
        is_other_object = old is None or old.id != new.id
        is_modified = name in called and old is not None and old.description != new.description
        if new.created_by_agent and (was_bound or is_other_object or is_modified or name not in known):
            steps.append(KeepArtifact(_make_artifact(name, new, source, cells, workspace, read_state, after, limit)))
    return steps


def _sources(cells: Sequence[PythonCell]) -> tuple[list[str], dict[str, _BindingSource], set[str]]:
    """Return the names read by `cells`, their bindings, and the names whose methods they call.

    The bindings are in the order of the last binding.
    """
    read: dict[str, None] = {}
    called: set[str] = set()
    sources: dict[str, _BindingSource] = {}
    for number, cell in enumerate(cells):
        for each in analyze_statements(cell.code):
            read |= dict.fromkeys(each.reads)
            called.update(each.calls)
            others = frozenset(each.reads) - set(each.binds)
            for name in each.binds:
                old_source = sources.pop(name, None)
                texts, names, uses_old_value = each.texts, others, False
                if name in each.reads:  # The old value is part of the new value.
                    uses_old_value = old_source is None or old_source.uses_old_value
                    texts = (*(old_source.texts if old_source else ()), *texts)
                    names |= old_source.names if old_source else frozenset()
                sources[name] = _BindingSource(names, texts, uses_old_value, number)
    return list(read), sources, called


def _make_artifact(
    name: str,
    bound: BoundName,
    source: _BindingSource,
    cells: Sequence[PythonCell],
    workspace: Workspace,
    read_state: Callable[[str], FileState | None],
    after: Mapping[str, BoundName],
    limit: int,
) -> Artifact:
    old = workspace.artifacts.get(f"{VALUE}{name}") if source.uses_old_value or source.cell < 0 else None
    deps = dict.fromkeys(
        f"{VALUE}{each}" for each in sorted(source.names) if each in after and after[each].created_by_agent
    )
    files = {each.path: each for each in map(read_state, source.texts[:MAX_FILES]) if each is not None}
    if old is not None:
        deps |= dict.fromkeys(old.deps)
        files = {each.path: each for each in old.files} | files
    deps.pop(f"{VALUE}{name}", None)
    description = bound.description
    return replace(
        cells[source.cell].origin,
        name=f"{VALUE}{name}",
        kind=description.kind,
        summary=one_line(description.text, limit),
        size=description.size,
        deps=tuple(deps),
        files=tuple(files.values()),
    )


def invalidate_unbound(workspace: Workspace, names: Mapping[str, BoundName], limit: int) -> list[InvalidateArtifacts]:
    """Return steps that mark values as stale if their name is no longer bound or now has a different value.

    For example, such changes happen when the conversation returns to an earlier entry. `names` contains the current
    bindings. Values are compared by their summaries of at most `limit` characters.
    """
    values = {name: each for name, each in workspace.artifacts.items() if name.startswith(VALUE) and not each.stale}
    bound = {name: names.get(name.removeprefix(VALUE)) for name in values}
    unbound = [name for name, binding in bound.items() if binding is None]
    rebound = [
        name
        for name, binding in bound.items()
        if binding is not None and not _is_same_value(values[name], binding.description, limit)
    ]
    return [InvalidateArtifacts(tuple(names), why) for names, why in ((unbound, UNBOUND), (rebound, REBOUND)) if names]


def _is_same_value(artifact: Artifact, description: ValueDescription, limit: int) -> bool:
    return (artifact.kind, artifact.size, artifact.summary) == (
        description.kind,
        description.size,
        one_line(description.text, limit),
    )
