"""Services for an agent's workspace, prompt, slash commands, exported values and project facts."""

from __future__ import annotations

from typing import Final

from ..agent.project import ProjectSurvey
from ..core.prompts import PromptShown, ShowPrompt
from ..core.values import TakenValue, TakeValue
from ..core.workspace import ChangeWorkspace, ShowWorkspace, WorkspaceChanged, WorkspaceShown
from ..resources.slash_commands import CommandCatalog, Execute, Executed, ShowCommands
from ..wire.watch_events import WatchAgent
from .service import EVERY_AGENT, USERS_ONLY, Empty, Service, StreamingService, agents_with

__all__ = [
    "CHANGE_WORKSPACE",
    "EXECUTE_COMMAND",
    "LIST_COMMANDS",
    "REFRESH_CATALOGS",
    "SHOW_PROMPT",
    "SHOW_WORKSPACE",
    "SURVEY_PROJECT",
    "TAKE_VALUE",
    "WATCH",
]

TAKE_VALUE: Final = Service(
    "take_value",
    TakeValue,
    TakenValue,
    agents_with("query_subagent", "collect_subagent"),
    "Take a named value of an agent.",
)
SHOW_WORKSPACE: Final = Service(
    "workspace", ShowWorkspace, WorkspaceShown, USERS_ONLY, "Show the workspace of an agent."
)
CHANGE_WORKSPACE: Final = Service(
    "change_workspace",
    ChangeWorkspace,
    WorkspaceChanged,
    USERS_ONLY,
    "Pin, unpin or drop items of an agent's workspace.",
)
WATCH: Final = StreamingService("watch", WatchAgent, Empty, USERS_ONLY, "Watch the events of an agent.")
SHOW_PROMPT: Final = Service("prompt", ShowPrompt, PromptShown, USERS_ONLY, "Show the system prompt of an agent.")
LIST_COMMANDS: Final = Service(
    "commands", ShowCommands, CommandCatalog, USERS_ONLY, "List the slash commands of a session."
)
EXECUTE_COMMAND: Final = Service("execute", Execute, Executed, USERS_ONLY, "Execute a slash command in a session.")
REFRESH_CATALOGS: Final = Service(
    "refresh_catalogs", Empty, list[str], USERS_ONLY, "Reload the command catalogs that are in use."
)
SURVEY_PROJECT: Final = Service(
    "survey_project", Empty, ProjectSurvey, EVERY_AGENT, "Return facts about the calling agent's project."
)
