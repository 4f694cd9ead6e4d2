"""What the caller's configuration says about an agent that is about to be spawned."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any, Final

import msgspec

from orch_protocol.errors import ConfigError
from orch_worker.backends import models

from .. import config, paths
from ..trust import project_file

__all__ = ["spawn_settings"]

OFFLINE: Final = "extractive:"
OF_THE_ROOT: Final = (
    *("durability", "daemon.idle_minutes", "subagents.max_concurrent", "subagents.depth_cap"),
    *("subagents.allow_nested", "subagents.timeout_minutes"),
)
"""What holds for all of the daemon's agents, and therefore cannot follow one caller's folder."""


def _default_model() -> str:
    default = config.Default.of(
        models.load(paths.home(os.environ)), {name for name, value in os.environ.items() if value}
    )
    print(default.says, file=sys.stderr)
    return default.model or OFFLINE


def spawn_settings(cwd: str, arguments: Namespace) -> dict[str, Any]:
    """Return model, tools or preset, and limits: from the flags, else from what is configured for the caller.

    Says on stderr what of the configuration does not count here. Raises ConfigError.
    """
    loaded = config.load(Path(cwd), os.environ)
    for note in loaded.notes:
        print(f"orch: {note}", file=sys.stderr)
    mine = str(project_file(Path(cwd)))
    if other := [key for key in OF_THE_ROOT if loaded.sources[key].startswith(mine)]:
        print(f"orch: {mine}: the daemon, which serves every folder, does not heed {', '.join(other)}", file=sys.stderr)
    subagents = loaded.config.subagents
    if not subagents.enabled:
        source = loaded.sources["subagents.enabled"]
        raise ConfigError(f"spawning is switched off: subagents.enabled is false ({source})")
    settings: dict[str, Any] = {"limits": msgspec.to_builtins(loaded.config.limits)}
    if arguments.script is None:
        settings["model"] = arguments.model or loaded.config.model or _default_model()
    if arguments.tools is not None:
        settings["tools"] = [name for name in arguments.tools.replace(",", " ").split() if name]
    elif arguments.preset is not None or subagents.default_tools is None:
        settings["preset"] = arguments.preset or subagents.default_preset
    else:
        settings["tools"] = list(subagents.default_tools)
    return settings
