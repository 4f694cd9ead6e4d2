"""What cells of Python code did to the names of a namespace: values that are there now, made from what, and those that
are gone. Pure, but for `mark`, which looks at a file."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

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
from .describe_value import ValueDescription
from .state import Workspace

__all__ = ["VALUE", "BoundName", "PythonCell", "Statement", "analyze_statements", "invalidate_unbound", "steps_of"]


# --- What Python code reads and binds, statement by statement, by its text alone ---

MOST_CODE: Final = 200_000
MOST_TEXTS: Final = 20
MOST_NAMES: Final = 200
LONGEST_TEXT: Final = 300
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Statement(Struct, frozen=True):
    """What one statement does: names that it `reads`, `binds` (or sets a part of), `deletes`, or `calls` a method of,
    which may change what they are bound to; and short `texts` in it, any of which may name a file."""

    reads: tuple[str, ...] = ()
    binds: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


def analyze_statements(code: str) -> tuple[Statement, ...]:
    """Return what the statements of `code` do, in order; nothing of code that does not parse.

    A name that a function reads counts as read where the function is made. What is bound within one (or a class, or a
    comprehension) is its own affair.
    """
    if len(code) > MOST_CODE:
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
    seen = _StatementWalk()
    seen.visit(node)
    reads, binds, calls, deletes = map(_few, (seen.reads, seen.binds, seen.calls, seen.deletes))
    return Statement(reads, binds, calls, deletes, tuple(seen.texts)[:MOST_TEXTS])


def _few(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))[:MOST_NAMES]


class _StatementWalk(ast.NodeVisitor):
    """Walks one statement. `_own` are the names of the functions around, which are none of the namespace's."""

    def __init__(self) -> None:
        self.reads: dict[str, None] = {}
        self.binds: dict[str, None] = {}
        self.calls: dict[str, None] = {}
        self.deletes: dict[str, None] = {}
        self.texts: dict[str, None] = {}
        self._own: list[frozenset[str]] = []

    def visit_Name(self, node: ast.Name) -> None:
        self._name(node.id, node.ctx)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and 0 < len(node.value) <= LONGEST_TEXT and "\n" not in node.value:
            self.texts[node.value] = None

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        for name in _roots(node.target):
            self._name(name, ast.Load())
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._part(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._part(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute):
            self.calls |= dict.fromkeys(name for name in _roots(node.func.value) if self._is_global(name))
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._name(alias.asname or alias.name.partition(".")[0], ast.Store())

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self._name(alias.asname or alias.name, ast.Store())

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._name(node.name, ast.Store())
        for each in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(each)
        self._within(frozenset(_bound(node.body)), node.body)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._defaults(node.args)
        self._within(frozenset(_parameters(node.args)), [node.body])

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._comprehension(node)

    def visit_SetComp(self, node: ast.SetComp) -> None:
        self._comprehension(node)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._comprehension(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self._comprehension(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._name(node.name, ast.Store())
        for each in node.decorator_list:
            self.visit(each)
        self._defaults(node.args)
        shared = {name for each in ast.walk(node) if isinstance(each, ast.Global | ast.Nonlocal) for name in each.names}
        self._within(frozenset({*_parameters(node.args), *_bound(node.body)} - shared), node.body)

    def _defaults(self, arguments: ast.arguments) -> None:
        for each in (*arguments.defaults, *filter(None, arguments.kw_defaults)):
            self.visit(each)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        self.visit(node.generators[0].iter)  # the one part that is outside of it
        names = {name for each in node.generators for name in _names(each.target)}
        for each in ast.walk(node):
            if isinstance(each, ast.NamedExpr) and not self._own:
                self._name(each.target.id, ast.Store())
        self._within(frozenset(names), list(ast.iter_child_nodes(node)))

    def _within(self, own: frozenset[str], body: Iterable[ast.AST]) -> None:
        self._own.append(own)
        for each in body:
            self.visit(each)
        self._own.pop()

    def _part(self, node: ast.Attribute | ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load):
            for name in _roots(node.value):
                self._name(name, ast.Store())
        self.generic_visit(node)

    def _is_global(self, name: str) -> bool:
        return not any(name in own for own in self._own)

    def _name(self, name: str, ctx: ast.expr_context) -> None:
        if not self._is_global(name):
            return
        if isinstance(ctx, ast.Load):
            self.reads[name] = None
        elif self._own:
            return  # of a function that says `global`: bound when it is called, if it is
        elif isinstance(ctx, ast.Del):
            self.deletes[name] = None
        else:
            self.binds[name] = None


def _roots(node: ast.AST) -> Iterator[str]:
    """Yield the name that a chain of attributes and subscripts begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


def _names(target: ast.AST) -> Iterator[str]:
    for each in ast.walk(target):
        if isinstance(each, ast.Name):
            yield each.id


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if each is not None:
            yield each.arg


def _bound(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield the names that a body binds for itself, not those of the functions in it."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
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
            waiting += ast.iter_child_nodes(node)


VALUE: Final = "value:"
MOST_FILES: Final = 20
OTHERWISE: Final = "bound to another value by now"
UNBOUND: Final = "not bound any more: the process that had it has ended"


class BoundName(Struct, frozen=True):
    """What a name is bound to: which object that is, what it looks like; and whether it is the code's own."""

    id: int
    outline: ValueDescription
    ours: bool = True


class PythonCell(Struct, frozen=True):
    """Code that was run, `whole` or up to an error; `origin` is an artifact without a name that says by which call."""

    code: str
    origin: Artifact
    whole: bool = True


class _BindingSource(Struct, frozen=True):
    """What a name was bound from: names, texts that may be files, what it had before, and in which cell."""

    names: frozenset[str] = frozenset()
    texts: tuple[str, ...] = ()
    before: bool = False
    cell: int = -1


def steps_of(
    cells: Sequence[PythonCell],
    before: Mapping[str, BoundName],
    after: Mapping[str, BoundName],
    workspace: Workspace,
    mark: Callable[[str], FileState | None],
    *,
    most: int,
) -> list[Step]:
    """Return what became of `workspace` when `cells` were run, which found the names `before` and left those `after`.

    A name counts as bound anew when a cell that ran whole says so, or it is another object than before. Summaries have
    at most `most` characters.
    """
    read, sources, called = _sources(cells)
    steps: list[Step] = []
    known = {name.removeprefix(VALUE) for name in workspace.artifacts if name.startswith(VALUE)}
    if gone := [f"{VALUE}{name}" for name in known if name not in after or not after[name].ours]:
        steps.append(DropArtifacts(tuple(gone), "not bound any more"))
    if used := [f"{VALUE}{name}" for name in read if name in known and f"{VALUE}{name}" not in gone]:
        steps.append(TouchArtifacts(tuple(used), cells[-1].origin.turn))
    order = {name: place for place, name in enumerate(sources)}
    for name in sorted(after, key=lambda name: order.get(name, -1)):
        now, was = after[name], before.get(name)
        source = sources.get(name, _BindingSource())
        said = source.cell >= 0 and cells[source.cell].whole
        other = was is None or was.id != now.id
        grown = name in called and was is not None and was.outline != now.outline
        if now.ours and (said or other or grown or name not in known):
            steps.append(KeepArtifact(_kept(name, now, source, cells, workspace, mark, after, most)))
    return steps


def _sources(cells: Sequence[PythonCell]) -> tuple[list[str], dict[str, _BindingSource], set[str]]:
    """Return what `cells` read; what they bind, in the order of the last time; and whose methods they call."""
    read: dict[str, None] = {}
    called: set[str] = set()
    sources: dict[str, _BindingSource] = {}
    for number, cell in enumerate(cells):
        for each in analyze_statements(cell.code):
            read |= dict.fromkeys(each.reads)
            called.update(each.calls)
            others = frozenset(each.reads) - set(each.binds)
            for name in each.binds:
                earlier = sources.pop(name, None)
                texts, names, before = each.texts, others, False
                if name in each.reads:  # what it was goes into what it is
                    before = earlier is None or earlier.before
                    texts = (*(earlier.texts if earlier else ()), *texts)
                    names |= earlier.names if earlier else frozenset()
                sources[name] = _BindingSource(names, texts, before, number)
    return list(read), sources, called


def _kept(
    name: str,
    bound: BoundName,
    source: _BindingSource,
    cells: Sequence[PythonCell],
    workspace: Workspace,
    mark: Callable[[str], FileState | None],
    after: Mapping[str, BoundName],
    most: int,
) -> Artifact:
    was = workspace.artifacts.get(f"{VALUE}{name}") if source.before or source.cell < 0 else None
    deps = dict.fromkeys(f"{VALUE}{each}" for each in sorted(source.names) if each in after and after[each].ours)
    files = {each.path: each for each in map(mark, source.texts[:MOST_FILES]) if each is not None}
    if was is not None:
        deps |= dict.fromkeys(was.deps)
        files = {each.path: each for each in was.files} | files
    deps.pop(f"{VALUE}{name}", None)
    outline = bound.outline
    return replace(
        cells[source.cell].origin,
        name=f"{VALUE}{name}",
        kind=outline.kind,
        summary=one_line(outline.text, most),
        size=outline.size,
        deps=tuple(deps),
        files=tuple(files.values()),
    )


def invalidate_unbound(workspace: Workspace, names: Mapping[str, BoundName], most: int) -> list[InvalidateArtifacts]:
    """Return that values are not bound any more: their names are not among `names`, those that are, or are bound to
    what looks otherwise in a summary of at most `most` characters, as after going back to before that was bound."""
    values = {name: each for name, each in workspace.artifacts.items() if name.startswith(VALUE) and not each.stale}
    bound = {name: names.get(name.removeprefix(VALUE)) for name in values}
    lost = [name for name, now in bound.items() if now is None]
    other = [name for name, now in bound.items() if now is not None and not _is(values[name], now.outline, most)]
    return [InvalidateArtifacts(tuple(names), why) for names, why in ((lost, UNBOUND), (other, OTHERWISE)) if names]


def _is(kept: Artifact, outline: ValueDescription, most: int) -> bool:
    return (kept.kind, kept.size, kept.summary) == (outline.kind, outline.size, one_line(outline.text, most))
