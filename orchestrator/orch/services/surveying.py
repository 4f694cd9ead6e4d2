"""What is in the folder that an agent works in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orch_protocol.errors import ConfigError
from orch_protocol.project import Surveyed
from orch_protocol.services import Empty

if TYPE_CHECKING:
    from ..supervisor import Supervisor

__all__ = ["survey"]


async def survey(root: Supervisor, caller: str | None, _: Empty) -> Surveyed:
    """Return what is in the calling agent's folder; it leaves out itself what its policy does not let it be told."""
    if caller is None:
        raise ConfigError("only an agent can ask what is in its folder")
    spec = root.tree.nodes[caller].spec
    return await root.projects.of(Path(spec.cwd), spec.context.rules)
