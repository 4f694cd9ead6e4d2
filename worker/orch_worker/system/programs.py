"""Where orch finds the programs that it runs itself, such as git."""

from __future__ import annotations

from typing import Final

__all__ = ["PROGRAM_PATH"]

PROGRAM_PATH: Final = ":".join(
    f"/{folder}"
    for folder in (
        *("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin"),
        *("run/current-system/sw/bin", "nix/var/nix/profiles/default/bin", "opt/homebrew/bin"),
    )
)
"""The value of PATH for these programs.

The PATH of the environment is not used, because an agent can set it for its subagents, and because it can contain a
folder in which an agent writes.
"""
