"""Services that list agents, and show their state, spec and messages."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from ...agent.plan import Task
from ...agent.spec import AgentSpec
from ...core.errors import Outcome
from ...core.messages import Message, Reply, Usage
from ...core.taint import TaintLabel
from ...policy.budget import Budget, BudgetAmounts
from ...policy.sandbox import Level
from ..archives.recall import ArchiveRow
from ..service import USERS_ONLY, AgentFields, AgentRef, Empty, Service, agents_with

__all__ = [
    "LIST_AGENTS",
    "LIST_LIVE_SUBAGENTS",
    "SHOW_AGENT",
    "SHOW_SPEC",
    "SHOW_STATE",
    "AgentRow",
    "ListAgents",
    "LiveAgent",
    "ShowAgent",
    "Status",
]

Status = Literal["starting", "idle", "busy", "cold", "died", "failed", "killed", "needs credentials"]


class AgentRow(Struct, frozen=True):
    """An agent as the root sees it. Times are ISO 8601 UTC.

    - `pending`: the beginning of the current prompt.
    - `spent`: usage of the agent and its subagents, including current turns, for the kinds of usage limited by
      `budget`.
    - `planning`: the agent is in plan mode, and its plan is not approved yet.
    - `run`: the agent's run if the agent belongs to another run of the same home, otherwise "". The root only reads the
      journal of another run.
    - `title`: the title of its session.
    - `outcome`: how its last query ended; "" before the first query and during a query.
    - `deleted`: the time at which its session or archive was permanently deleted, otherwise "".
    - `denied_paths`: what protects denied paths from its commands: "unreadable" if they are hidden, "by name only" if
      only rules apply, and "commands refused: " with the reason if they cannot be hidden. "" if the agent cannot run
      code, and for agents of another run if their protection is unknown.
    - `credentials`: the variables with the API keys of its models, and their source.
    """

    id: str
    seq: int
    name: str
    parent_id: str | None
    depth: int
    kind: str
    status: Status
    task: str
    model: str
    preset: str
    pid: int | None
    created_at: str
    last_activity: str
    pending: str | None
    context_tokens: int
    context_limit: int
    queries: int
    usage: Usage
    tree_usage: Usage = Usage()
    cwd: str = ""
    folder: str = ""
    tools: tuple[str, ...] = ()
    activity: str = ""
    error: str | None = None
    repaired: str = ""
    budget: Budget = Budget()
    spent: BudgetAmounts = BudgetAmounts()
    outcome: Outcome | Literal[""] = ""
    planning: bool = False
    title: str = ""
    sandbox: Level = "L0"
    deleted: str = ""
    run: str = ""
    denied_paths: str = ""
    credentials: str = ""


class ListAgents(Struct, frozen=True, forbid_unknown_fields=True):
    """List agents, ordered by sequence number. If `all` is True, include killed agents and holders.

    `runs` adds the agents of other runs in the same home, such as agents of programs. Only a user may set `runs`.
    """

    all: bool = False
    runs: bool = False


class ShowAgent(Struct, frozen=True, forbid_unknown_fields=True):
    """Show an agent and the end of its transcript. `messages` is the maximum number of messages.

    For a holder, the result also contains the first messages of its archive.
    """

    ref: str
    messages: int = 20


class AgentShown(Struct, frozen=True):
    """An agent with its last messages, last reply and taint labels.

    For a holder, `archive` describes its archive, and `held` contains the first messages of this archive. `compactions`
    is the number of compactions of the conversation.
    """

    agent: AgentRow
    messages: tuple[Message, ...]
    reply: Reply | None = None
    archive: ArchiveRow | None = None
    held: tuple[Message, ...] = ()
    tasks: tuple[Task, ...] = ()
    marks: tuple[TaintLabel, ...] = ()
    compactions: int = 0


class LiveAgent(Struct, frozen=True):
    """A subagent that its parent can query."""

    id: str
    task: str


LIST_AGENTS: Final = Service(
    "list",
    ListAgents,
    list[AgentRow],
    agents_with("list_subagents"),
    "List agents.",
    AgentFields(free=("all",), users=("runs",)),
    reads_files=True,
)
SHOW_AGENT: Final = Service(
    "show", ShowAgent, AgentShown, USERS_ONLY, "Show an agent and its last messages.", reads_files=True
)
SHOW_STATE: Final = Service("state", AgentRef, AgentRow, USERS_ONLY, "Show the state of an agent.", reads_files=True)
SHOW_SPEC: Final = Service(
    "spec", AgentRef, AgentSpec, USERS_ONLY, "Show the spec that an agent was started with.", reads_files=True
)
LIST_LIVE_SUBAGENTS: Final = Service(
    "list_live_subagents",
    Empty,
    list[LiveAgent],
    agents_with("spawn_subagent"),
    "List the subagents that the calling agent can ask.",
)
