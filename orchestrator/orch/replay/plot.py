"""Plot a replay.

The plots show the request size and the cumulative cost over the model calls, with one line for each policy. The cost
includes forced recalls.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from orch_protocol.core.errors import ConfigError, StoreError
from orch_worker.backends.prices import dollars

from .report import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["KINDS", "check_picture_path", "draw"]

KINDS: Final = (".png", ".svg")
INCHES: Final = (10.0, 7.0)
DOTS: Final = 150
MAX_BORDERS: Final = 60


class _Look(Struct, frozen=True):
    """The style of a policy's line.

    The style has a color, and a dash pattern for readers who cannot distinguish colors.
    """

    color: str
    dashes: str | tuple[float, tuple[float, ...]] = "-"
    width: float = 1.4


# These are colors of Okabe and Ito, and of Paul Tol, which readers with any kind of color blindness can distinguish.
# Pale colors are left out.
_LOOKS: Final = {
    "none": _Look("#000000"),
    "compaction": _Look("#E69F00"),
    "compaction-1m": _Look("#E69F00", ":"),
    "history-file": _Look("#999933", (0, (4, 1, 1, 1))),
    "claude-code": _Look("#CC79A7", (0, (6, 1.5, 1, 1.5))),
    "pi": _Look("#882255", (0, (3, 1))),
    "api-clearing": _Look("#009E73", (0, (5, 1.5))),
    "api-compaction": _Look("#332288", (0, (8, 1.5))),
    "mask": _Look("#009E73", ":"),
    "turn": _Look("#56B4E9"),
    "phase": _Look("#CC79A7", ":"),
    "balanced": _Look("#D55E00", "-", 2.2),
    "balanced-summaries": _Look("#D55E00", ":"),
    "economy": _Look("#0072B2"),
    "roomy": _Look("#666666", (0, (3, 1))),
}


def check_picture_path(name: str) -> Path:
    """Return `name` as the path of a picture. Raises ConfigError if the suffix is unknown or matplotlib is missing."""
    file = Path(name)
    if file.suffix.lower() not in KINDS:
        raise ConfigError(f"cannot draw {name}: give a name that ends in {' or '.join(KINDS)}")
    if not file.parent.is_dir():
        raise ConfigError(f"cannot write {name}: folder {file.parent} does not exist")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"drawing needs matplotlib ({error}): pip install 'orch-agents[plot]'") from error
    return file


def draw(outcomes: Sequence[Outcome], calls: Sequence[int], file: Path, *, usd: float, title: str = "") -> None:
    """Draw `outcomes` into `file` (see `check_picture_path`) as two panels. Raises StoreError if the file cannot be
    written.

    The horizontal axis shows the model calls. The upper panel shows the context size, and the lower panel shows the
    cost. `calls` contains the number of calls of each recording, in order. `usd` is the price of a million uncached
    input tokens.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    with (
        rc_context({"svg.fonttype": "none", "svg.hashsalt": "orch", "text.parse_math": False}),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", UserWarning)  # a character that the font lacks becomes a box
        figure = Figure(figsize=INCHES, layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True)
        for outcome in outcomes:
            look = _LOOKS.get(outcome.name, _Look("#000000", "-."))
            steps = range(1, len(outcome.course) + 1)
            style = {"color": look.color, "linestyle": look.dashes, "linewidth": look.width, "zorder": 2 + look.width}
            spent = [dollars(point.units, usd) for point in outcome.course]
            above.plot(steps, [point.context for point in outcome.course], label=_label(outcome, usd), **style)
            below.plot(steps, spent, **style)
        # Sizes differ by a factor of 100 between policies, so a linear scale would hide small sizes.
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
        # Without a date in the file, the same replay results in the same bytes.
        figure.savefig(picture, format=kind, dpi=DOTS, metadata={"Date": None} if kind == "svg" else None)
    try:
        file.write_bytes(picture.getvalue())
    except OSError as error:
        raise StoreError(f"cannot write the picture {file}: {error.strerror}") from error


def _label(outcome: Outcome, usd: float) -> str:
    return f"{outcome.name}  ${dollars(outcome.units, usd):,.2f}"


def _frame(axes: Axes, label: str, numbers: str, calls: Sequence[int]) -> None:
    """Set up the axes and the number format of a panel. Draw a thin line between conversations."""
    axes.set_ylabel(label)
    axes.set_xlim(1, max(sum(calls), 2))
    axes.yaxis.set_major_formatter(numbers)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if 1 < len(calls) <= MAX_BORDERS:
        for border in list(accumulate(calls))[:-1]:
            axes.axvline(border + 0.5, color="#bbbbbb", linewidth=0.5, zorder=0)
