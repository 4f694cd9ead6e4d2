"""Processes of ours that are still there, by the mark each carries in its environment from its first instruction."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["marked"]


def marked(proc: str = "/proc") -> Iterator[tuple[int, dict[str, str]]]:
    """Yield pid and environment of each process we may look into that carries ORCH_RUN, but for this one."""
    for name in os.listdir(proc):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"{proc}/{name}/environ", "rb") as file:
                raw = file.read()
        except OSError:  # gone in the meantime, or somebody else's
            continue
        if b"ORCH_RUN=" in raw:
            pairs = (pair.partition("=") for pair in os.fsdecode(raw).split("\0"))
            yield int(name), {key: value for key, _, value in pairs if key}
