"""A chart with two curves for the model calls of a session, as text and as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

__all__ = ["svg_chart", "text_chart"]

ROWS: Final = 9
WITHOUT, WITH = "·", "█"
PLAIN_WITHOUT, PLAIN_WITH = ".", "#"
SIZE: Final = (720, 360)
MARGIN: Final = (64, 24, 24, 48)  # left, top, right, bottom
COLORS: Final = ("#555555", "#D55E00")  # dark gray, and the orange of Okabe and Ito's palette


def text_chart(without: Sequence[int], archived: Sequence[int], *, width: int, unicode: bool = True) -> list[str]:
    """Return the lines of a chart that is at most `width` columns wide. The step number grows to the right.

    `unicode` means that the output supports characters outside ASCII.
    """
    marks = (WITHOUT, WITH) if unicode else (PLAIN_WITHOUT, PLAIN_WITH)
    top = max(*without, *archived, 1)
    label = len(_short(top))
    columns = max(10, min(width - label - 4, len(without)))
    upper, lower = _sampled(without, columns), _sampled(archived, columns)
    lines = [f"{'':{label}}  {marks[0]} without archives   {marks[1]} with archives   (tokens in the conversation)"]
    for row in range(ROWS, 0, -1):
        floor = top * (row - 1) / ROWS
        cells = [
            marks[1] if low > floor else marks[0] if high > floor else " "
            for high, low in zip(upper, lower, strict=True)
        ]
        mark = _short(top) if row == ROWS else _short(top // 2) if row == (ROWS + 1) // 2 else ""
        lines.append(f"{mark:>{label}} |{''.join(cells)}".rstrip())
    lines.append(f"{'0':>{label}} +{'-' * columns}")
    lines.append(f"{'':{label}}  step 1{f'{len(without)}':>{max(columns - 6, 0)}}")
    return lines


def svg_chart(without: Sequence[int], archived: Sequence[int]) -> str:
    """Return the chart as an SVG document."""
    width, height = SIZE
    left, above, right, below = MARGIN
    top = max(*without, *archived, 1)

    def points(values: Sequence[int]) -> str:
        across = (width - left - right) / max(len(values) - 1, 1)
        return " ".join(
            f"{left + across * at:.1f},{height - below - (height - above - below) * value / top:.1f}"
            for at, value in enumerate(values)
        )

    def text(x: float, y: float, content: str, anchor: str = "start", color: str = "#222222") -> str:
        return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{color}">{escape(content)}</text>'

    curves = zip((without, archived), COLORS, strict=True)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
            ' font-family="sans-serif" font-size="13">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            f'<path d="M{left} {above}V{height - below}H{width - right}" fill="none" stroke="#999999"/>',
            *(
                f'<polyline points="{points(values)}" fill="none" stroke="{color}" stroke-width="2"/>'
                for values, color in curves
            ),
            text(left - 6, above + 5, _short(top), "end"),
            text(left - 6, height - below, "0", "end"),
            text(left, height - below + 18, "step 1"),
            text(width - right, height - below + 18, str(len(without)), "end"),
            text(left + 12, above + 8, "tokens in the conversation, without archives", color=COLORS[0]),
            text(left + 12, above + 26, "tokens in the conversation, with archives", color=COLORS[1]),
            "</svg>\n",
        ]
    )


def _sampled(values: Sequence[int], columns: int) -> list[int]:
    return [values[at * len(values) // columns] for at in range(columns)]


def _short(tokens: int) -> str:
    return f"{tokens / 1000:.0f}k" if tokens >= 1000 else str(tokens)
