"""The definition of a service: its name on the wire, its parameters and result, and who may call it.

Definitions stand beside their parameter structs in the other modules of this folder. `registry.SERVICES` finds a
definition by its name. The root binds each to a handler in `orch.services`.
"""

from __future__ import annotations

from typing import Any, Final, Generic, Literal, TypeVar

from msgspec import Struct

from .verbs import VERBS, Verb

__all__ = [
    "ARCHIVING_AGENTS",
    "EVERY_AGENT",
    "ROOT_TOOL_AGENTS",
    "USERS_ONLY",
    "AgentAccess",
    "Empty",
    "Service",
    "StreamingService",
    "agents_with",
]

P = TypeVar("P", bound=Struct)
R = TypeVar("R")


class Empty(Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters, or no result."""


class AgentAccess(Struct, frozen=True):
    """Which agents may call a service. Users may call every service.

    An agent may call it when it holds one of `tools`. `workers` names agents whose process calls it by itself, whatever
    tools the agent has: `all`, those that archive their conversation, or those with tools of the user's program.
    """

    tools: frozenset[str] = frozenset()
    workers: Literal["none", "all", "archiving", "root tools"] = "none"


USERS_ONLY: Final = AgentAccess()
EVERY_AGENT: Final = AgentAccess(workers="all")
ARCHIVING_AGENTS: Final = AgentAccess(workers="archiving")
ROOT_TOOL_AGENTS: Final = AgentAccess(workers="root tools")


def agents_with(*tools: str) -> AgentAccess:
    """Return the access of agents that hold at least one of `tools`."""
    return AgentAccess(tools=frozenset(tools))


class Service(Struct, Generic[P, R], frozen=True):
    """A service of the root: `call(service, params: P) -> R`.

    `name` is what the control socket and RootCall carry; `summary` is one line of help.
    """

    name: str
    params: type[P]
    result: type[R]
    agents: AgentAccess
    summary: str

    @property
    def verbs(self) -> tuple[Verb, ...]:
        """The CLI verbs and slash commands that only pass arguments to this service."""
        return VERBS.get(self.name, ())


class StreamingService(Service[P, R], Generic[P, R], frozen=True):
    """A service that can send events to a watcher while the call runs."""


AnyService = Service[Any, Any]
