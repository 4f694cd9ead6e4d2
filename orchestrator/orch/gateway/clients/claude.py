"""Claude Code. It reads its server from a variable, and its settings files replace variables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from orch_protocol.core.errors import ConfigError

from ..proxy.upstreams import ANTHROPIC, client_variables
from .client import ANTHROPIC_VARIABLE, Client, Launch, Plan, Surroundings, own_url, read_json

__all__ = ["CLAUDE"]

OTHER_SERVICES: Final = {
    "CLAUDE_CODE_USE_BEDROCK": "Amazon Bedrock",
    "CLAUDE_CODE_USE_MANTLE": "Amazon Bedrock",
    "CLAUDE_CODE_USE_ANTHROPIC_AWS": "Claude on AWS",
    "CLAUDE_CODE_USE_VERTEX": "Google Vertex AI",
    "CLAUDE_CODE_USE_ANTHROPIC_GOOGLE_CLOUD": "Claude on Google Cloud",
    "CLAUDE_CODE_USE_FOUNDRY": "Microsoft Foundry",
}
"""Variables with which Claude Code uses other protocols, and the services."""
NO_VALUES: Final = ("", "0", "false", "no", "off")
MANAGED: Final = Path("/etc/claude-code/managed-settings.json")
SETTINGS_OPTION: Final = "--settings"


def _plan(surroundings: Surroundings) -> Plan:
    flag, arguments = _flag_settings(surroundings)
    files = [_env_of(read_json(path)) for path in _settings_files(surroundings)]
    in_settings: dict[str, Any] = {}
    for each in (*files, _env_of(flag)):
        in_settings |= each
    managed = _env_of(read_json(MANAGED))
    env = {**surroundings.env, **in_settings, **managed}
    for name, service in OTHER_SERVICES.items():
        if str(env.get(name, "")).strip().lower() not in NO_VALUES:
            raise ConfigError(
                f"{name} is set, so Claude Code sends its requests to {service}, which orch wrap does not support: "
                "unset it, or start claude without orch wrap"
            )
    if ANTHROPIC_VARIABLE in managed:
        raise ConfigError(
            f"{MANAGED} sets {ANTHROPIC_VARIABLE}, and settings of administrators cannot be replaced: start claude "
            "without orch wrap"
        )
    own = own_url(env.get(ANTHROPIC_VARIABLE), surroundings.proxy_url)

    def launch(base_url: str) -> Launch:
        variable = {ANTHROPIC_VARIABLE: client_variables(base_url)[ANTHROPIC_VARIABLE]}
        if ANTHROPIC_VARIABLE not in in_settings:
            return Launch(surroundings.arguments, variable)
        changed = flag | {"env": _env_of(flag) | variable}
        return Launch((SETTINGS_OPTION, msgspec.json.encode(changed).decode(), *arguments), variable)

    return Plan(launch, {ANTHROPIC: own} if own else {})


def _settings_files(surroundings: Surroundings) -> Iterator[Path]:
    """Yield the settings files, those that replace others last."""
    folder = surroundings.env.get("CLAUDE_CONFIG_DIR")
    yield (Path(folder) if folder else surroundings.user_home / ".claude") / "settings.json"
    yield surroundings.cwd / ".claude" / "settings.json"
    yield surroundings.cwd / ".claude" / "settings.local.json"


def _env_of(settings: dict[str, Any]) -> dict[str, Any]:
    env = settings.get("env")
    return env if isinstance(env, dict) else {}


def _flag_settings(surroundings: Surroundings) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the settings in the option --settings, and the arguments without it."""
    arguments = list(surroundings.arguments)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    for index, argument in enumerate(arguments[:end]):
        name, equals, value = argument.partition("=")
        if name != SETTINGS_OPTION or (not equals and index + 1 >= len(arguments)):
            continue
        text = value if equals else arguments[index + 1]
        del arguments[index : index + (1 if equals else 2)]
        if not text.lstrip().startswith("{"):
            return read_json(surroundings.cwd / text), tuple(arguments)
        try:
            return msgspec.json.decode(text, type=dict[str, Any]), tuple(arguments)
        except msgspec.DecodeError as error:
            raise ConfigError(f"{SETTINGS_OPTION} of claude is not valid JSON: {error}") from error
    return {}, tuple(arguments)


CLAUDE: Final = Client("claude", "claude", "npm install -g @anthropic-ai/claude-code", _plan)
