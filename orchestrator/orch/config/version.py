"""The name and version of the distribution.

The build reads the version from this module. A lookup of the installed distribution would take most of the time of
`orch --version`.
"""

from __future__ import annotations

__all__ = ["DISTRIBUTION", "__version__"]

__version__ = "0.2.0"
DISTRIBUTION = "orch-agents"
"""The name of the project on a package index. The import package and the command are called `orch`."""
