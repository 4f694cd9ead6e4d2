"""Built-in observers of tool calls: `progress` writes plain lines to stderr."""

from __future__ import annotations

import sys

from ..render.progress import progress_line

TYPE_CHECKING = False  # avoids a slow import in the command line
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    from orch_protocol.wire.tool_events import CallEvent

__all__ = ["progress"]


def progress(stream: TextIO | None = None) -> Callable[[CallEvent], None]:
    """Return an observer that writes a line for each event to `stream`.

    With None, the observer writes to the current `sys.stderr`.
    """

    def write(event: CallEvent) -> None:
        from msgspec.structs import asdict

        print(progress_line(asdict(event)), file=stream or sys.stderr, flush=True)

    return write
