"""Services that show an agent's prompt, and survey its project for the prompt."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ...agent.project import ProjectSurvey
from ...core.prompts import PromptShown
from ..service import EVERY_AGENT, USERS_ONLY, Empty, Service

__all__ = ["SHOW_PROMPT", "SURVEY_PROJECT", "ShowPrompt"]


class ShowPrompt(Struct, frozen=True, forbid_unknown_fields=True):
    """Show the prompt of one agent."""

    ref: str


SHOW_PROMPT: Final = Service("prompt", ShowPrompt, PromptShown, USERS_ONLY, "Show the system prompt of an agent.")
SURVEY_PROJECT: Final = Service(
    "survey_project", Empty, ProjectSurvey, EVERY_AGENT, "Return facts about the calling agent's project."
)
