"""`python -m orch.cli`, where no `orch` script is installed."""

from __future__ import annotations

from . import main

main()
