"""What tests of pruning say of time and files."""

from __future__ import annotations

import time

from orch.nodes import iso
from past import Life

EVER = "9999-01-01T00:00:00.000Z"


def file(life: Life) -> str:
    return life.transcript.path.read_text()


def later(life: Life) -> str:
    """Return when the first archive was made, once that is over."""
    first = life.records()[0].timestamp
    while iso(time.time()) <= first:
        pass
    return first
