"""The definition of a service: its name on the wire, its parameters and result, and its permitted callers.

The definitions are in the folders beside this module, next to their parameters and results. `dispatch/registry.py` maps
names to definitions. The handler of a service is in the module of `orch.services` with the same path: the root handles
the services of `services/agents/query.py` in `orch/services/agents/query.py`.

The caller is never a parameter, because the root knows the caller. Workers (through RootCall), the CLI and all other
clients use the same services.
"""

from __future__ import annotations

from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from msgspec import Struct

from .verbs import VERBS, Verb

__all__ = [
    "ARCHIVING_AGENTS",
    "EVERY_AGENT",
    "ROOT_TOOL_AGENTS",
    "USERS_ONLY",
    "AgentAccess",
    "AgentFields",
    "AgentRef",
    "Empty",
    "Reach",
    "Scope",
    "Service",
    "StreamingService",
    "agents_with",
]

P = TypeVar("P", bound=Struct)
R = TypeVar("R")


class Empty(Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters, or no result."""


class AgentRef(Struct, frozen=True, forbid_unknown_fields=True):
    """A reference to one agent: a sequence number, an id, a unique prefix of an id, a name, or `latest`."""

    ref: str


class AgentAccess(Struct, frozen=True):
    """Which agents may call a service. Users may call every service.

    An agent with at least one of the tools `tools` may call the service. `workers` selects agents whose process may
    call the service without such a tool. "all" selects all agents, "archiving" agents with archival, and "root tools"
    agents with tools of the user's program.
    """

    tools: frozenset[str] = frozenset()
    workers: Literal["none", "all", "archiving", "root tools"] = "none"


USERS_ONLY: Final = AgentAccess()
EVERY_AGENT: Final = AgentAccess(workers="all")
ARCHIVING_AGENTS: Final = AgentAccess(workers="archiving")
ROOT_TOOL_AGENTS: Final = AgentAccess(workers="root tools")


def agents_with(*tools: str) -> AgentAccess:
    """Return the access rule for agents that have at least one of `tools`."""
    return AgentAccess(tools=frozenset(tools))


Scope: TypeAlias = Literal["control", "read", "ask"]
"""What the caller wants to do.

An agent with scope `control` reaches only its descendants. `read` also reaches the agent itself. `ask` reaches, in
addition to both, its peers and the archives that the user gave to the agent.
"""


class Reach(NamedTuple):
    """What a reference may mean: agents that the caller reaches for `scope`. `action` is for messages.

    An empty `action` means that the reference is the id of an archive.
    """

    action: str
    scope: Scope


class AgentFields(Struct, frozen=True):
    """What an agent may put into the parameters of a service. Each field of the parameters is in one group.

    - `free`: any value. The handler keeps the effect within the agent's rights.
    - `users`: only the user sets the field. A request of an agent has the default value.
    - `own`: at most what the root's record of the agent contains. See `orch.policy.permissions`.
    - `recorded`: the handler replaces the value by the root's record of the agent.
    - `refs`: references to agents and archives, or None. The agent reaches each of them.

    A field without a group counts as one of `users`.
    """

    free: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    recorded: tuple[str, ...] = ()
    refs: dict[str, Reach] = {}


class Service(Struct, Generic[P, R], frozen=True):
    """A service of the root: `call(service, params: P) -> R`.

    `name` identifies the service on the control socket and in RootCall. `summary` is one line of help. `fields` says
    what agents may put into the parameters. `reads_files` means that the service needs only the journal and the session
    files of a run, so that it also works for a run of another program.
    """

    name: str
    params: type[P]
    result: type[R]
    agents: AgentAccess
    summary: str
    fields: AgentFields = AgentFields()
    reads_files: bool = False

    @property
    def verbs(self) -> tuple[Verb, ...]:
        """The CLI verbs and slash commands that only pass their arguments to this service."""
        return VERBS.get(self.name, ())


class StreamingService(Service[P, R], Generic[P, R], frozen=True):
    """A service that can send events to a watcher while the call runs."""


AnyService = Service[Any, Any]
