"""What becomes of each call while the command waits: a line on stderr."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...client.connection import OnEvent

__all__ = ["before"]


def before(others: OnEvent | None) -> OnEvent:
    """Return what writes a line for each event of a call, and hands all others to `others`."""

    def take(event: dict[str, Any]) -> None:
        if event["kind"] == "call":
            _write(event)
        elif others is not None:
            others(event)

    return take


def _write(event: dict[str, Any]) -> None:
    from ...render.progress import progress_line

    clear = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{clear}{progress_line(event)}", file=sys.stderr, flush=True)
