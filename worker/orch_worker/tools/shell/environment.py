"""The environment variables of commands: the agent's variables without secrets."""

from __future__ import annotations

import os
from typing import Final

from ...system.secrets import is_secret
from ..api.base import ToolContext
from .sandboxed_exec import CommandSandbox

__all__ = ["tool_environment"]

INHERITED: Final = ("PATH", "HOME", "LANG", "TZ", "TMPDIR", "ORCH_RUN")
FIXED: Final = {"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def tool_environment(context: ToolContext, tool: str) -> dict[str, str]:
    """Return the variables of `context`, and the few variables that all programs need, without likely secrets.

    The result never contains ORCH_HOME. From level L2 on, HOME is a folder of the agent.
    """
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    agent_variables = {
        name: value for name, value in context.env.items() if not is_secret(name) and name != "ORCH_HOME"
    }
    sandbox_variables = context.agent_object(CommandSandbox).environment() if context.sandbox.of(tool) >= "L2" else {}
    return {"PATH": DEFAULT_PATH, **inherited, **agent_variables, **FIXED, **sandbox_variables}
