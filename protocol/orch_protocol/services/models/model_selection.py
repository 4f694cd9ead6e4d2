"""Services that select the model of the calling agent."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ...agent.models import RecordModel
from ...agent.spec import BackendSpec
from ..service import EVERY_AGENT, AgentFields, Empty, Service

__all__ = ["RESOLVE_MODEL", "RESTRICT_TO_LOCAL", "RestrictToLocal"]


class RestrictToLocal(Struct, frozen=True, forbid_unknown_fields=True):
    """Restrict the calling agent to local models from now on.

    If `look` is True, return the model without restricting the agent.
    """

    look: bool = False


RESOLVE_MODEL: Final = Service(
    "resolve_model", Empty, RecordModel, EVERY_AGENT, "Return the model that the calling agent's session selects."
)
RESTRICT_TO_LOCAL: Final = Service(
    "restrict_to_local",
    RestrictToLocal,
    BackendSpec,
    EVERY_AGENT,
    "Restrict the calling agent to models of this machine.",
    AgentFields(free=("look",)),
)
