"""pi. It has no option for the server of a provider, so it gets an extension that sets it for one start."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec

from orch_worker.system.atomic_write import atomic_write

from ..proxy.upstreams import ANTHROPIC, OPENAI
from .client import Client, Launch, Plan, Surroundings, own_url, read_json

__all__ = ["PI"]

COMMANDS: Final = frozenset({"auth", "config", "install", "list", "mcp", "remove", "uninstall", "update"})
"""First arguments of commands that use no model and accept no extension."""
APIS: Final = frozenset({"anthropic-messages", "openai-completions", "openai-responses"})
VARIABLE: Final = "ORCH_PI_SERVERS"
EXTENSION_FILE: Final = "pi-servers.mjs"
EXTENSION: Final = f"""\
// Written by `orch wrap pi`: the model providers use the proxy of orch. The settings of pi stay as they are.
export default function (pi) {{
  for (const [name, baseUrl] of Object.entries(JSON.parse(process.env.{VARIABLE} ?? "{{}}"))) {{
    pi.registerProvider(name, {{ baseUrl }});
  }}
}}
"""


def _plan(surroundings: Surroundings) -> Plan:
    folder = surroundings.env.get("PI_CODING_AGENT_DIR")
    agent = Path(folder).expanduser() if folder else surroundings.user_home / ".pi" / "agent"
    upstreams: dict[str, str] = {}
    paths = {"anthropic": f"/{ANTHROPIC}", "openai": f"/{OPENAI}/v1"}
    providers = read_json(agent / "models.json").get("providers")
    for provider, settings in providers.items() if isinstance(providers, dict) else ():
        server = own_url(settings.get("baseUrl"), surroundings.proxy_url) if isinstance(settings, dict) else ""
        if not server or not (provider in paths or APIS & _apis_of(settings)):
            continue
        name = provider if provider in paths else re.sub(r"[^a-z0-9_-]", "-", f"pi-{provider.lower()}")
        upstreams[name] = server
        paths[provider] = f"/{name}"

    def launch(base_url: str) -> Launch:
        if surroundings.arguments[:1] and surroundings.arguments[0] in COMMANDS:
            return Launch(surroundings.arguments, {})
        extension = surroundings.files / EXTENSION_FILE
        with atomic_write(extension, sync="none") as file:
            file.write(EXTENSION.encode())
        servers = {provider: base_url + path for provider, path in paths.items()}
        return Launch(
            ("--extension", str(extension), *surroundings.arguments), {VARIABLE: msgspec.json.encode(servers).decode()}
        )

    return Plan(launch, upstreams)


def _apis_of(settings: dict[str, Any]) -> set[str]:
    models = settings.get("models")
    each = [settings, *(models if isinstance(models, list) else ())]
    return {str(one.get("api")) for one in each if isinstance(one, dict)}


PI: Final = Client("pi", "pi", "npm install -g @earendil-works/pi-coding-agent", _plan)
