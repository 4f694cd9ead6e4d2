"""Shares a namespace of this program with an in-process agent.

The agent's code reads and binds names in this namespace.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from orch_protocol.core.errors import ConfigError
from orch_protocol.services.agents.lifecycle import Kill
from orch_protocol.services.agents.spawn import Spawned
from orch_worker.tools.api.shared_names import share_names, unshare_names

from ..policy.caller import USER
from ..services.agents.lifecycle import kill

if TYPE_CHECKING:
    from ..supervisor.supervisor import Supervisor

__all__ = ["share_namespace"]


async def share_namespace(
    root: Supervisor, spawned: Spawned, names: dict[str, Any], on_close: Callable[..., object]
) -> None:
    """Run the code of a newly spawned agent in the namespace `names`.

    `on_close(function, argument)` registers the call that ends the sharing. If `names` is not a dict, or the agent has
    its own process, kill the agent and raise ConfigError.
    """
    if not isinstance(names, dict):
        problem = f"namespace must be a dict of names; got {type(names).__name__}"
    elif spawned.pid != os.getpid():
        problem = (
            "namespace= needs an agent in this process, but this agent has its own process: use "
            "Orchestrator(launcher=orch.processes.in_process.InProcessLauncher)"
        )
    else:
        share_names(spawned.id, names)
        on_close(unshare_names, spawned.id)
        return
    await kill(root, USER, Kill((spawned.id,)))
    raise ConfigError(problem)
