"""Settings for a new agent, from the caller's configuration."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import msgspec

from orch_protocol.agent.config import Config
from orch_protocol.core.errors import ConfigError
from orch_protocol.policy.budget import Budget
from orch_protocol.policy.sandbox import SandboxConfig

from ...client.connection import daemon_status, replace_invalid_utf8
from ...config import config, paths
from ...config.trust import project_file
from ...policy.hook_records import hooks_spec
from ...policy.sandbox import with_minimum_level
from ...render.terminal import to_json
from .. import command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...resources.agent_types import AgentType

__all__ = ["requested_settings", "settings_not_in_effect", "spawn_settings"]


def settings_not_in_effect(loaded: config.LoadedConfig) -> dict[str, Any]:
    """Return the running daemon's values of those settings that differ from `loaded`.

    Returns {} when no daemon is running. This function does not start a daemon. Raises CommandError.
    """
    values = config.flatten(loaded.config)
    own_settings = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
    daemon_settings: dict[str, Any] = (daemon_status() or {}).get("settings", {})
    return {key: value for key, value in daemon_settings.items() if key in own_settings and own_settings[key] != value}


def _prompt(settings: Config, arguments: Namespace) -> dict[str, Any]:
    """Return the prompt settings. The prompt template is the requested one, or else the configured one."""
    if settings.prompt.template is None and arguments.prompt_template is None and not arguments.var:
        return {"rules": msgspec.to_builtins(settings.prompt.rules)}
    from ...resources.extensions import templates_for

    templates = templates_for(settings, Path.cwd(), paths.home(os.environ))
    name = replace_invalid_utf8(arguments.prompt_template)
    prompt: dict[str, Any] = msgspec.to_builtins(
        templates.prompt_spec(name, replace_invalid_utf8(dict(arguments.var or ())))
    )
    return prompt


def _sandbox(config: SandboxConfig, arguments: Namespace) -> SandboxConfig:
    """Return `config` with the flags applied.

    --sandbox sets the level of all presets; --require-sandbox sets the minimum level.
    """
    if arguments.sandbox is not None:
        config = msgspec.structs.replace(config, level=arguments.sandbox, presets={})
    return with_minimum_level(config, arguments.require_sandbox) if arguments.require_sandbox is not None else config


def _agent_type(cwd: Path, arguments: Namespace, settings: Config) -> tuple[AgentType | None, tuple[str, ...]]:
    """Return the requested agent type, and the tools of extensions.

    The type is None if no type was requested, or if the daemon will refuse the type.
    """
    if arguments.agent is None:
        return None, ()
    if arguments.prompt_template is not None:
        raise ConfigError("pass --agent or --prompt-template, not both: an agent type has its own prompt")
    from ...resources.agent_types import find_types

    available = find_types(cwd, paths.home(os.environ), settings)
    matching = (each for each in available.found if each.name == arguments.agent and not each.why_off)
    return next(matching, None), available.extension_tools


def requested_settings(cwd: str, arguments: Namespace) -> dict[str, Any]:
    """Return the settings that flags request. The daemon refuses those that the caller may not set."""
    settings: dict[str, Any] = {"budget": command.budget(arguments)}
    if arguments.max_turns is not None:
        limits = command.load_config(Path(cwd)).config.limits
        settings["limits"] = msgspec.to_builtins(limits) | {"max_turns": arguments.max_turns}
    if getattr(arguments, "dry_run", False):
        settings["policy"] = {"channel": "cli", "rules": {"dry_run": True}}
    if arguments.credentials:
        settings["usable_credentials"] = arguments.credentials
    if arguments.sandbox is not None or arguments.require_sandbox is not None:
        settings["sandbox"] = msgspec.to_builtins(_sandbox(SandboxConfig(), arguments))
    if arguments.prompt_template is not None or arguments.var:
        settings["prompt"] = {"identity": str(arguments.prompt_template)}
    for name in ("skills", "tools"):
        if (value := getattr(arguments, name)) is not None:
            settings[name] = command.names(value)
    for name in ("preset", "model"):
        if (value := getattr(arguments, name)) is not None:
            settings[name] = value
    return settings


def spawn_settings(cwd: str, arguments: Namespace) -> tuple[dict[str, Any], str | None]:
    """Return the settings of a new agent, such as model, tools and limits. Flags override the caller's configuration.

    The second value is a note about the model if no model was chosen. Settings that have no effect are reported on
    stderr. Raises ConfigError or CommandError.
    """
    loaded = command.load_config(Path(cwd))
    project_path = str(project_file(Path(cwd)))
    if ignored_keys := [key for key in config.ROOT_WIDE if loaded.sources[key].startswith(project_path)]:
        print(
            f"orch: {project_path}: ignored by the daemon, which serves all folders: {', '.join(ignored_keys)}",
            file=sys.stderr,
        )
    if daemon_values := {
        key: value for key, value in settings_not_in_effect(loaded).items() if key not in ignored_keys
    }:
        values = config.flatten(loaded.config)
        differences = ", ".join(
            f"{key} = {to_json(value)} (not {to_json(values[key])})" for key, value in daemon_values.items()
        )
        print(
            f"orch: the daemon was started with {differences}; run `orch daemon stop` to apply the change",
            file=sys.stderr,
        )
    subagents, model_note = loaded.config.subagents, None
    settings: dict[str, Any] = {
        "limits": msgspec.to_builtins(loaded.config.limits),
        "budget": {name: getattr(subagents, name) for name in Budget.__struct_fields__} | command.budget(arguments),
    }
    if arguments.max_turns is not None:
        settings["limits"]["max_turns"] = arguments.max_turns
    rules = msgspec.to_builtins(loaded.config.policy)
    rules["dry_run"] |= arguments.dry_run
    usable = (os.path.abspath(os.path.expanduser(path)) for path in arguments.credentials or ())
    rules["usable_credentials"] = [*rules["usable_credentials"], *usable]
    settings["policy"] = {"channel": "cli", "rules": rules}
    settings["hooks"] = msgspec.to_builtins(hooks_spec(loaded.config.hooks))
    if loaded.code is not None:
        settings["code"] = msgspec.to_builtins(loaded.code)
    settings["prompt"] = _prompt(loaded.config, arguments)
    settings["sandbox"] = msgspec.to_builtins(_sandbox(loaded.config.sandbox, arguments))
    settings["skill_rules"] = msgspec.to_builtins(loaded.config.skills)
    if arguments.skills is not None:
        settings["skills"] = command.names(arguments.skills)
    settings["usual_thinking"] = loaded.config.thinking
    settings["context_rules"] = msgspec.to_builtins(subagents.context)
    type, extension_tools = _agent_type(Path(cwd), arguments, loaded.config)
    if arguments.script is None and (type is None or not type.model or arguments.model is not None):
        settings["model"] = arguments.model or loaded.config.model
        if settings["model"] is None:
            default = config.default_model(paths.home(os.environ), os.environ)
            settings["model"], model_note = default.model or config.OFFLINE, default.notice
        if getattr(arguments, "returns", None) is not None:
            from ...api.structured_output import check_model

            check_model(settings["model"])
    if arguments.tools is not None:
        settings["tools"], settings["preset"] = command.names(arguments.tools), arguments.preset
    elif arguments.preset is None and type is not None and type.grants_tools:
        pass  # the type has its own tools; a preset would limit them
    elif arguments.preset is not None or subagents.default_tools is None:
        settings["preset"] = arguments.preset or subagents.default_preset
    else:
        settings["tools"] = list(subagents.default_tools)
    if type is not None and arguments.tools is None and arguments.preset is None:
        from orch_worker.tools.dispatch.presets import granted_tools

        default_tools = granted_tools(settings.get("preset"), settings.get("tools"))
        if missing_note := type.describe_missing_tools((*default_tools, *extension_tools)):
            print(f"orch: {missing_note}", file=sys.stderr)
    return settings, model_note
