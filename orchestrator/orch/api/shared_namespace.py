"""Names of this program, lent to an agent that lives in it: its code binds and sees what the program does."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from orch_protocol.core.errors import ConfigError
from orch_protocol.services.requests import Kill, Spawned

from ..policy.caller import USER
from ..services.agents.lifecycle import kill

if TYPE_CHECKING:
    from ..supervisor.supervisor import Supervisor

__all__ = ["share_namespace"]


async def share_namespace(
    root: Supervisor, spawned: Spawned, names: dict[str, Any], on_close: Callable[..., object]
) -> None:
    """Let the code of the agent that was just spawned run in `names`, until `on_close` calls what it is given.

    Raises ConfigError, and then there is no such agent, when `names` is no dict or the agent has a process of its own.
    """
    if not isinstance(names, dict):
        wrong = f"namespace= takes a dict of names, not {type(names).__name__}"
    elif spawned.pid != os.getpid():
        wrong = (
            "namespace= is for an agent that lives in this very process, and this one has its own: "
            "Orchestrator(launcher=orch.processes.in_process.InProcessLauncher)"
        )
    else:
        from orch_worker.tools.python import namespace  # by those who lend: much hangs on it

        namespace.share_names(spawned.id, names)
        on_close(namespace.take_back, spawned.id)
        return
    await kill(root, USER, Kill((spawned.id,)))
    raise ConfigError(wrong)
