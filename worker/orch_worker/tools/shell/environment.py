"""The environment variables of commands: the agent's variables without secrets."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from ...system.programs import PROGRAM_PATH
from ...system.secrets import is_secret
from ..api.base import ToolContext
from .sandboxed_exec import CommandSandbox

__all__ = ["git_environment", "tool_environment"]

INHERITED: Final = ("PATH", "HOME", "LANG", "TZ", "TMPDIR", "ORCH_RUN")
FIXED: Final = {"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}
GIT_SETTINGS: Final = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")
"""Variables that name the user's configuration of git."""


def tool_environment(context: ToolContext, tool: str) -> dict[str, str]:
    """Return the variables of `context`, and the few variables that all programs need, without likely secrets.

    The result never contains ORCH_HOME. From level L2 on, HOME is a folder of the agent.
    """
    agent_variables = {
        name: value for name, value in context.env.items() if not is_secret(name) and name != "ORCH_HOME"
    }
    return {
        "PATH": PROGRAM_PATH,
        **_inherited(INHERITED),
        **agent_variables,
        **FIXED,
        **_sandbox_variables(context, tool),
    }


def git_environment(context: ToolContext, tool: str) -> dict[str, str]:
    """Return the variables of git in the tool `tool`, which runs git for orch.

    The variables of `context` are left out, because an agent can set them for its subagents, and because PATH, HOME and
    others determine which programs git runs.
    """
    variables = {**_inherited((*INHERITED, *GIT_SETTINGS)), **FIXED, "PATH": PROGRAM_PATH}
    if sandbox_variables := _sandbox_variables(context, tool):
        # HOME is a folder in which the agent writes.
        variables |= {**sandbox_variables, "GIT_CONFIG_GLOBAL": os.devnull}
    return variables


def _inherited(names: Iterable[str]) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}


def _sandbox_variables(context: ToolContext, tool: str) -> dict[str, str]:
    return context.agent_object(CommandSandbox).environment() if context.sandbox.of(tool) >= "L2" else {}
