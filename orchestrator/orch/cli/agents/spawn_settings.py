"""What the caller's configuration says about an agent that is about to be spawned."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any, Final

import msgspec

from orch_protocol.agent.config import Config
from orch_protocol.core.errors import ConfigError
from orch_protocol.policy.budget import Budget
from orch_protocol.policy.sandbox import SandboxConfig
from orch_worker.backends import models

from ...client.connection import daemon_status, replace_invalid_utf8
from ...config import config, paths
from ...config.trust import project_file
from ...policy.hook_records import hooks_spec
from ...policy.sandbox import with_minimum_level
from ...render.terminal import to_json
from .. import command

__all__ = ["settings_not_in_effect", "spawn_settings"]

OFFLINE: Final = "extractive:"


def settings_not_in_effect(loaded: config.Loaded) -> dict[str, Any]:
    """Return the settings of `loaded` that a running daemon does not go by, with the values that it does go by.

    Empty when none is running, which is not started for this. Raises Failure.
    """
    values = config.flatten(loaded.config)
    mine = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}  # as in JSON
    theirs: dict[str, Any] = (daemon_status() or {}).get("settings", {})
    return {key: value for key, value in theirs.items() if key in mine and mine[key] != value}


def _default() -> config.Default:
    return config.Default.of(models.load(paths.home(os.environ)), {name for name, value in os.environ.items() if value})


def _prompt(found: Config, arguments: Namespace) -> dict[str, Any]:
    """Return what the agent is told besides its task: by the template that is asked for, or configured."""
    if found.prompt.template is None and arguments.prompt_template is None and not arguments.var:
        return {"rules": msgspec.to_builtins(found.prompt.rules)}
    from ...resources.extensions import templates_for

    there = templates_for(found, Path.cwd(), paths.home(os.environ))
    name = replace_invalid_utf8(arguments.prompt_template)
    made: dict[str, Any] = msgspec.to_builtins(there.asked(name, replace_invalid_utf8(dict(arguments.var or ()))))
    return made


def _sandbox(config: SandboxConfig, arguments: Namespace) -> SandboxConfig:
    """Return `config` with what the flags say of it: what is asked for beats the preset's, what is required all."""
    if arguments.sandbox is not None:
        config = msgspec.structs.replace(config, level=arguments.sandbox, presets={})
    return with_minimum_level(config, arguments.require_sandbox) if arguments.require_sandbox is not None else config


def spawn_settings(cwd: str, arguments: Namespace) -> tuple[dict[str, Any], str | None]:
    """Return model, tools or preset, and limits: from the flags, else from what is configured for the caller.

    Beside them, what is to be said of the model when nobody named one. Says on stderr what of the configuration does
    not count here. Raises ConfigError, Failure.
    """
    loaded = config.load(Path(cwd), os.environ)
    for note in loaded.notes:
        print(f"orch: {note}", file=sys.stderr)
    if not loaded.config.subagents.enabled:
        source = loaded.sources["subagents.enabled"]
        raise ConfigError(f"spawning is switched off: subagents.enabled is false ({source})")
    mine = str(project_file(Path(cwd)))
    if other := [key for key in config.ROOT_WIDE if loaded.sources[key].startswith(mine)]:
        print(f"orch: {mine}: the daemon, which serves every folder, does not heed {', '.join(other)}", file=sys.stderr)
    if theirs := {key: value for key, value in settings_not_in_effect(loaded).items() if key not in other}:
        values = config.flatten(loaded.config)
        said = ", ".join(f"{key} = {to_json(value)} (not {to_json(values[key])})" for key, value in theirs.items())
        print(f"orch: the daemon was started with {said}: orch daemon stop, and the next one heeds it", file=sys.stderr)
    subagents, says = loaded.config.subagents, None
    settings: dict[str, Any] = {
        "limits": msgspec.to_builtins(loaded.config.limits),
        "budget": {name: getattr(subagents, name) for name in Budget.__struct_fields__} | command.budget(arguments),
    }
    rules = msgspec.to_builtins(loaded.config.policy)
    rules["dry_run"] |= arguments.dry_run
    usable = (os.path.abspath(os.path.expanduser(path)) for path in arguments.credentials or ())
    rules["usable_credentials"] = [*rules["usable_credentials"], *usable]
    settings["policy"] = {"channel": "cli", "rules": rules}
    settings["hooks"] = msgspec.to_builtins(hooks_spec(loaded.config.hooks))
    settings["prompt"] = _prompt(loaded.config, arguments)
    settings["sandbox"] = msgspec.to_builtins(_sandbox(loaded.config.sandbox, arguments))
    settings["skill_rules"] = msgspec.to_builtins(loaded.config.skills)
    if arguments.skills is not None:
        settings["skills"] = command.names(arguments.skills)
    settings["usual_thinking"] = loaded.config.thinking
    settings["context_rules"] = msgspec.to_builtins(subagents.context)
    if arguments.script is None:
        settings["model"] = arguments.model or loaded.config.model
        if settings["model"] is None:
            default = _default()
            settings["model"], says = default.model or OFFLINE, default.says
    if arguments.tools is not None:
        settings["tools"] = command.names(arguments.tools)
    elif arguments.preset is not None or subagents.default_tools is None:
        settings["preset"] = arguments.preset or subagents.default_preset
    else:
        settings["tools"] = list(subagents.default_tools)
    return settings, says
