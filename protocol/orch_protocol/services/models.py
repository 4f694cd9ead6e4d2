"""Services for models: which exist, which one an agent uses, and restriction to local models."""

from __future__ import annotations

from typing import Final

from ..agent.models import FindModel, ListModels, ModelRow, RecordModel, RestrictToLocal
from ..agent.spec import BackendSpec
from .service import EVERY_AGENT, Empty, Service, agents_with

__all__ = ["FIND_MODEL", "LIST_MODELS", "RESOLVE_MODEL", "RESTRICT_TO_LOCAL"]

LIST_MODELS: Final = Service(
    "models", ListModels, list[ModelRow], agents_with("list_models"), "List the models that the caller may ask."
)
FIND_MODEL: Final = Service("find_model", FindModel, BackendSpec, EVERY_AGENT, "Return the complete spec of a model.")
RESTRICT_TO_LOCAL: Final = Service(
    "restrict_to_local",
    RestrictToLocal,
    BackendSpec,
    EVERY_AGENT,
    "Restrict the calling agent to models of this machine.",
)
RESOLVE_MODEL: Final = Service(
    "resolve_model", Empty, RecordModel, EVERY_AGENT, "Return the model that the calling agent's session selects."
)
