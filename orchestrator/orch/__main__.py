"""Runs the `orch` command as `python -m orch`, for example if no `orch` script is on the PATH."""

from __future__ import annotations

from .cli import main

main()
