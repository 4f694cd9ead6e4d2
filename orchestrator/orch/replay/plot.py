"""A picture of a replay: how large each request was, and what all of them had cost by then, a line for each policy."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from orch_protocol.core.errors import ConfigError, StoreError

from .report import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["KINDS", "check_picture_path", "draw"]

KINDS: Final = (".png", ".svg")
INCHES: Final = (10.0, 7.0)
DOTS: Final = 150
MOST_BORDERS: Final = 60


class _Look(Struct, frozen=True):
    """How the line of a policy looks: its colour tells it apart for all eyes, its dashes without any colour."""

    colour: str
    dashes: str | tuple[float, tuple[float, ...]] = "-"
    width: float = 1.4


# Okabe and Ito's colours, which people with any kind of colour blindness tell apart; the yellow is too pale on white.
_LOOKS: Final = {
    "none": _Look("#000000"),
    "compaction": _Look("#E69F00"),
    "compaction-1m": _Look("#E69F00", ":"),
    "mask": _Look("#009E73", (0, (5, 1.5))),
    "turn": _Look("#56B4E9"),
    "phase": _Look("#CC79A7", (0, (6, 1.5, 1, 1.5))),
    "auto": _Look("#D55E00", "-", 2.2),
    "balanced": _Look("#D55E00", (0, (2, 1)), 2.2),
    "auto-receipt": _Look("#D55E00", ":"),
    "economy": _Look("#0072B2"),
    "roomy": _Look("#666666", (0, (3, 1))),
}


def check_picture_path(name: str) -> Path:
    """Return `name` as the path of a picture that can be drawn. ConfigError for another kind, or without matplotlib."""
    file = Path(name)
    if file.suffix.lower() not in KINDS:
        raise ConfigError(f"cannot draw {name}: give a name that ends in {' or '.join(KINDS)}")
    if not file.parent.is_dir():
        raise ConfigError(f"cannot write {name}: folder {file.parent} does not exist")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"drawing needs matplotlib ({error}): install it, or orch with its extra 'plot'") from error
    return file


def draw(outcomes: Sequence[Outcome], calls: Sequence[int], file: Path, *, usd: float, title: str = "") -> None:
    """Draw `outcomes` into `file` (see `check_picture_path`): context size above, cost below, over the model calls.

    `calls` are the numbers of calls of the recordings, which follow each other; `usd` is what a million uncached input
    tokens cost. Raises StoreError when the file cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    with (
        rc_context({"svg.fonttype": "none", "svg.hashsalt": "orch", "text.parse_math": False}),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", UserWarning)  # a letter of a title that its font does not have is a box
        figure = Figure(figsize=INCHES, layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True)
        for outcome in outcomes:
            look = _LOOKS.get(outcome.name, _Look("#000000", "-."))
            steps = range(1, len(outcome.course) + 1)
            style = {"color": look.colour, "linestyle": look.dashes, "linewidth": look.width, "zorder": 2 + look.width}
            dollars = [point.units * usd / 1e6 for point in outcome.course]
            above.plot(steps, [point.context for point in outcome.course], label=_label(outcome, usd), **style)
            below.plot(steps, dollars, **style)
        # Sizes differ a hundredfold between policies: each would be a line at the bottom of another's panel.
        above.set_yscale("log", base=10, subs=(2, 5))
        above.yaxis.set_major_locator(LogLocator(10, (1, 2, 5)))
        above.yaxis.set_minor_locator(NullLocator())
        _frame(above, "request size (tokens, log scale)", "{x:,.0f}", calls)
        _frame(below, "cost so far (US dollars)", "${x:,.2f}", calls)
        below.set_ylim(bottom=0)
        many = f", {len(calls)} conversations one after the other" if len(calls) > 1 else ""
        below.set_xlabel(f"model calls{many}")
        if title:
            figure.suptitle(title)
        figure.legend(loc="outside right upper", title="policy, cost", frameon=False)
        picture = io.BytesIO()
        kind = file.suffix.lower().removeprefix(".")
        # Without a date, the same replay is the same picture.
        figure.savefig(picture, format=kind, dpi=DOTS, metadata={"Date": None} if kind == "svg" else None)
    try:
        file.write_bytes(picture.getvalue())
    except OSError as error:
        raise StoreError(f"cannot write the picture {file}: {error.strerror}") from error


def _label(outcome: Outcome, usd: float) -> str:
    return f"{outcome.name}  ${outcome.bill.units * usd / 1e6:,.2f}"


def _frame(axes: Axes, label: str, numbers: str, calls: Sequence[int]) -> None:
    """Give a panel its axis, numbers in full, and a fine line wherever another conversation begins."""
    axes.set_ylabel(label)
    axes.set_xlim(1, max(sum(calls), 2))
    axes.yaxis.set_major_formatter(numbers)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if 1 < len(calls) <= MOST_BORDERS:
        for border in list(accumulate(calls))[:-1]:
            axes.axvline(border + 0.5, color="#bbbbbb", linewidth=0.5, zorder=0)
