"""`python -m orch`, where no `orch` script is on the path."""

from __future__ import annotations

from .cli import main

main()
