"""The service that switches plan mode of an agent on and off."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ..agents.status import AgentRow
from ..service import USERS_ONLY, Service

__all__ = ["SET_PLAN_MODE", "SetPlanMode"]


class SetPlanMode(Struct, frozen=True, forbid_unknown_fields=True):
    """Switch plan mode of `ref` on or off."""

    ref: str
    on: bool = True


SET_PLAN_MODE: Final = Service(
    "set_plan_mode", SetPlanMode, AgentRow, USERS_ONLY, "Switch plan mode of an agent on or off."
)
