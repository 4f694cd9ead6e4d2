"""What the CLI gives up with."""

from __future__ import annotations

__all__ = ["Failure"]


class Failure(Exception):
    """What the daemon, or the way to it, says went wrong. `kind` is the error's class name."""

    def __init__(self, kind: str, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.kind = kind
        self.exit_code = exit_code
