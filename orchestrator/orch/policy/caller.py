"""Who calls a service: the user or an agent. Guards ask the caller what it may do.

The user is a person or the program that owns the run. Requests of the CLI, of slash commands and of the Python API come
from the user; requests of a worker, and of commands that an agent runs, come from that agent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, Literal, TypeAlias

from orch_protocol.core.errors import ConfigError

from ..tree.agents.state import AgentRecord, TreeState

__all__ = ["USER", "AgentCaller", "Caller", "Scope", "UserCaller", "is_below"]

Scope: TypeAlias = Literal["control", "read", "ask"]
"""What the caller wants to do: `control` reaches below the caller only, `read` also the caller itself, `ask` also its
peers and the archives that the user named for it."""


class Caller(ABC):
    """The caller of a service."""

    __slots__ = ()

    @property
    @abstractmethod
    def agent_id(self) -> str | None:
        """The id of the calling agent, None for the user. The journal records callers by this id."""

    @property
    def is_user(self) -> bool:
        """Whether the user calls."""
        return self.agent_id is None

    @abstractmethod
    def reaches(self, nodes: TreeState, id: str, scope: Scope) -> bool:
        """Return whether the caller reaches the agent or archive with exactly this id."""

    @abstractmethod
    def find_agent(self, nodes: TreeState) -> AgentRecord | None:
        """Return the calling agent, None for the user."""

    def require_agent(self, nodes: TreeState) -> AgentRecord:
        """Return the calling agent. Raises ConfigError for the user."""
        node = self.find_agent(nodes)
        if node is None:
            raise ConfigError("only an agent can call this service for itself; the caller is the user")
        return node

    @abstractmethod
    def describe(self, nodes: TreeState) -> str:
        """Return who calls, for messages: `the user`, or an agent's name and id."""


class UserCaller(Caller):
    """The user, who reaches every agent."""

    __slots__ = ()

    @property
    def agent_id(self) -> None:
        """None: the user is not an agent."""

    def reaches(self, nodes: TreeState, id: str, scope: Scope) -> bool:  # noqa: ARG002
        """Return True."""
        return True

    def find_agent(self, nodes: TreeState) -> None:
        """Return None."""

    def describe(self, nodes: TreeState) -> str:  # noqa: ARG002
        """Return `the user`."""
        return "the user"


USER: Final = UserCaller()


class AgentCaller(Caller):
    """An agent. It reaches the agents below itself, and may ask its peers and the archives it was given."""

    __slots__ = ("_id",)

    def __init__(self, id: str) -> None:
        self._id = id

    @property
    def agent_id(self) -> str:
        """The id of the calling agent."""
        return self._id

    def reaches(self, nodes: TreeState, id: str, scope: Scope) -> bool:
        """Return whether the agent reaches `id` for what `scope` says."""
        if is_below(nodes, self._id, id):
            return True
        if scope == "control":
            return False
        if id == self._id:
            return True
        spec = nodes[self._id].spec
        return scope == "ask" and (id in spec.peers or id in spec.archives)

    def find_agent(self, nodes: TreeState) -> AgentRecord:
        """Return the calling agent."""
        return nodes[self._id]

    def describe(self, nodes: TreeState) -> str:
        """Return the agent's name and id."""
        return f"agent {nodes[self._id].spec.name!r} ({self._id})"


def is_below(nodes: TreeState, above: str, id: str) -> bool:
    """Return whether the agent or archive `id` is below the agent `above`, at any depth."""
    node = nodes.get(id)
    parent = node.spec.parent_id if node is not None else nodes.holders.get(id)
    return any(each.spec.id == above for each in nodes.chain(parent))
