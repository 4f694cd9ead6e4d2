"""What cells of Python code did to the names of a namespace: values that are there now, made from what, and those that
are gone. Pure, but for `mark`, which looks at a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from orch_protocol.workspace import Artifact, Drop, FileMark, Keep, Stale, Step, Touch

from .capture import one_line
from .fold import Workspace
from .reads import statements
from .values import Outline

__all__ = ["VALUE", "Bound", "Cell", "steps_of", "unbound"]

VALUE: Final = "value:"
MOST_FILES: Final = 20
OTHERWISE: Final = "bound to another value by now"
UNBOUND: Final = "not bound any more: the process that had it has ended"


class Bound(Struct, frozen=True):
    """What a name is bound to: which object that is, what it looks like; and whether it is the code's own."""

    id: int
    outline: Outline
    ours: bool = True


class Cell(Struct, frozen=True):
    """Code that was run, `whole` or up to an error; `origin` is an artifact without a name that says by which call."""

    code: str
    origin: Artifact
    whole: bool = True


class _Source(Struct, frozen=True):
    """What a name was bound from: names, texts that may be files, what it had before, and in which cell."""

    names: frozenset[str] = frozenset()
    texts: tuple[str, ...] = ()
    before: bool = False
    cell: int = -1


def steps_of(
    cells: Sequence[Cell],
    before: Mapping[str, Bound],
    after: Mapping[str, Bound],
    workspace: Workspace,
    mark: Callable[[str], FileMark | None],
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
        steps.append(Drop(tuple(gone), "not bound any more"))
    if used := [f"{VALUE}{name}" for name in read if name in known and f"{VALUE}{name}" not in gone]:
        steps.append(Touch(tuple(used), cells[-1].origin.turn))
    order = {name: place for place, name in enumerate(sources)}
    for name in sorted(after, key=lambda name: order.get(name, -1)):
        now, was = after[name], before.get(name)
        source = sources.get(name, _Source())
        said = source.cell >= 0 and cells[source.cell].whole
        other = was is None or was.id != now.id
        grown = name in called and was is not None and was.outline != now.outline
        if now.ours and (said or other or grown or name not in known):
            steps.append(Keep(_kept(name, now, source, cells, workspace, mark, after, most)))
    return steps


def _sources(cells: Sequence[Cell]) -> tuple[list[str], dict[str, _Source], set[str]]:
    """Return what `cells` read; what they bind, in the order of the last time; and whose methods they call."""
    read: dict[str, None] = {}
    called: set[str] = set()
    sources: dict[str, _Source] = {}
    for number, cell in enumerate(cells):
        for each in statements(cell.code):
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
                sources[name] = _Source(names, texts, before, number)
    return list(read), sources, called


def _kept(
    name: str,
    bound: Bound,
    source: _Source,
    cells: Sequence[Cell],
    workspace: Workspace,
    mark: Callable[[str], FileMark | None],
    after: Mapping[str, Bound],
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


def unbound(workspace: Workspace, names: Mapping[str, Bound], most: int) -> list[Stale]:
    """Return that values are not bound any more: their names are not among `names`, those that are, or are bound to
    what looks otherwise in a summary of at most `most` characters, as after going back to before that was bound."""
    values = {name: each for name, each in workspace.artifacts.items() if name.startswith(VALUE) and not each.stale}
    bound = {name: names.get(name.removeprefix(VALUE)) for name in values}
    lost = [name for name, now in bound.items() if now is None]
    other = [name for name, now in bound.items() if now is not None and not _is(values[name], now.outline, most)]
    return [Stale(tuple(names), why) for names, why in ((lost, UNBOUND), (other, OTHERWISE)) if names]


def _is(kept: Artifact, outline: Outline, most: int) -> bool:
    return (kept.kind, kept.size, kept.summary) == (outline.kind, outline.size, one_line(outline.text, most))
