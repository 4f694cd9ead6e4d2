"""What can be asked of a root: the parameters and results of each service.

One table serves workers (RootCall), the CLI and every other door. `caller` is never a parameter: the root knows who
asks. A `ref` is a sequence number, an id, a unique prefix of an id, a name, or `latest`.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from msgspec import Struct

from ..agent.models import Thinking
from ..agent.plan import Task
from ..agent.project import ContextConfig, ProjectContext
from ..agent.spec import AgentSpec, Limits, QueueMode, Template, ToolSpec
from ..core.errors import Outcome
from ..core.messages import Message, Reply, Usage
from ..core.prompts import PromptSpec
from ..core.taint import TaintLabel
from ..hooks.stages import HooksSpec
from ..policy.budget import Budget, BudgetAmounts, BudgetChange
from ..policy.policy import PolicySpec
from ..policy.sandbox import Level, SandboxConfig
from ..resources.skills import SkillsConfig, SkillSpec
from .recall import ArchiveRow
from .service import ARCHIVING_AGENTS, ROOT_TOOL_AGENTS, USERS_ONLY, Empty, Service, StreamingService, agents_with

__all__ = [
    "ASK_ALL",
    "CANCEL_TURN",
    "COLLECT",
    "KILL",
    "LIST_AGENTS",
    "LIST_LIVE_SUBAGENTS",
    "QUERY",
    "RESUME",
    "REVOKE_TOOLS",
    "RUN_TOOL",
    "SHOW_AGENT",
    "SHOW_SPEC",
    "SHOW_STATE",
    "SPAWN",
    "SUBMIT",
    "WAIT",
    "AgentRef",
    "AgentRow",
    "AskAll",
    "AskAllResult",
    "CancelTurn",
    "Collect",
    "Kill",
    "Killed",
    "ListAgents",
    "LiveAgent",
    "QueryAgent",
    "Resume",
    "RevokeAgentTools",
    "RootToolResult",
    "RunTool",
    "ShowAgent",
    "Spawn",
    "Spawned",
    "Status",
    "Submitted",
    "Wait",
    "Waited",
]

Status = Literal["starting", "idle", "busy", "cold", "died", "failed", "killed", "needs credentials"]


class Spawn(Struct, frozen=True, forbid_unknown_fields=True):
    """Start an agent. `tools` beats `preset`; neither means the configured default.

    `script` makes the backend the scripted one, with its `summaries`; else `model` ("provider:model") or the configured
    one. `request_id` makes a repeated spawn return the first one's agent. `template` is the process image to fork; None
    is the one that the backend needs. Each limit of `budget` beats that of `limits`; neither means the configured one.
    `policy`, `hooks`, `prompt` and `sandbox` are the user's to say, None: as configured for programs; what an agent
    spawns has that agent's, but for who that is, and a sandbox at least as strict.
    With `plan` it begins in plan mode, which an agent that plans cannot but pass on.
    `context` is what it is told of its project, None: what `context_rules` have for its preset; these too are the
    user's to say, and None are the configured ones. `marks` are those of the conversation that the task comes from.
    Without `persist` nothing of it is kept on a disk, nor of what it spawns: it is gone with its root.
    `skills` names those it has, None: as configured for its preset, all there are. Where these are looked for,
    `skill_rules` say, None: as configured; `own_skills` are the program's. What an agent spawns has some of its own.
    Its model is to think as much as `thinking` says, None: as its parent's does, else as `usual_thinking` says, None:
    as configured; where nobody asked for it, only a model that can be told.
    `umask` is what files that it makes are kept from, None: as its parent's are, or its root's.
    Commands can read `usable_credentials` without approval, beside those of its policy; an agent cannot say so.
    At `depth` 0 it is one that a person talks to, nobody's subagent. An agent cannot say so: what it spawns is deeper.
    `peers` are agents that it may ask, wait for and list besides those below it; an agent cannot name any. `archives`
    are archives that it may search, read and ask; an agent can name those that it may ask itself.
    """

    task: str
    preset: str | None = None
    tools: tuple[str, ...] | None = None
    root_tools: tuple[ToolSpec, ...] = ()
    model: str | None = None
    script: tuple[Any, ...] | None = None
    summaries: tuple[Any, ...] = ()
    name: str | None = None
    cwd: str | None = None
    env: dict[str, str] | None = None
    umask: int | None = None
    history: tuple[Message, ...] = ()
    limits: Limits | None = None
    budget: Budget = Budget()
    template: Template | None = None
    queue_mode: QueueMode = "one-at-a-time"
    follow_up_mode: QueueMode | None = None
    policy: PolicySpec | None = None
    plan: bool = False
    context: ProjectContext | None = None
    context_rules: ContextConfig | None = None
    hooks: HooksSpec | None = None
    prompt: PromptSpec | None = None
    marks: tuple[TaintLabel, ...] = ()
    sandbox: SandboxConfig | None = None
    persist: bool = True
    depth: Literal[0, 1] = 1
    skills: tuple[str, ...] | None = None
    skill_rules: SkillsConfig | None = None
    own_skills: tuple[SkillSpec, ...] = ()
    request_id: str | None = None
    peers: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    thinking: str | None = None
    usual_thinking: Thinking | None = None
    usable_credentials: tuple[str, ...] = ()


class Spawned(Struct, frozen=True):
    """The agent is up. `note` is what is to be said of its sandbox, or of what is not kept of it, if anything."""

    id: str
    seq: int
    name: str
    preset: str
    depth: int
    pid: int | None
    note: str = ""


class AgentRef(Struct, frozen=True, forbid_unknown_fields=True):
    """One agent."""

    ref: str


class QueryAgent(Struct, frozen=True, forbid_unknown_fields=True):
    """Ask `ref`. `wake` (for `submit` by an agent): tell the asker when its submitted queries are done; `any`, `all`
    or how many. With `approve` whoever asks is asked what needs approval meanwhile; with `progress` it is told of
    each call, as CallEvent, of the agent and of those below it. `marks` are those of the conversation that the prompt
    comes from."""

    ref: str
    prompt: str
    timeout: float | None = None
    wake: Literal["any", "all"] | int | None = None
    stream: bool = False
    approve: bool = False
    progress: bool = False
    marks: tuple[TaintLabel, ...] = ()
    request_id: str | None = None


class Submitted(Struct, frozen=True):
    """The query is under way. So many earlier answers (`uncollected`) have yet to be collected, and are taken first."""

    id: str
    query_id: str
    uncollected: int = 0


class Collect(Struct, frozen=True, forbid_unknown_fields=True):
    """Take an answer of `ref`, once: the oldest to what the caller has submitted, else the last.

    `timeout` 0 asks without waiting; `again` reads the one that was collected last anew. `query` is the id of the query
    whose answer is wanted, "" for any; with `again` it may have been collected.
    """

    ref: str
    timeout: float | None = None
    again: bool = False
    query: str = ""


class Wait(Struct, frozen=True, forbid_unknown_fields=True):
    """Wait until `any`, `all` or `mode` of the agents `refs` are not busy."""

    refs: tuple[str, ...]
    mode: Literal["any", "all"] | int = "all"
    timeout: float | None = None


class Waited(Struct, frozen=True):
    """Ids of the agents whose turn is over, and of those still busy."""

    done: tuple[str, ...]
    pending: tuple[str, ...]


class Kill(Struct, frozen=True, forbid_unknown_fields=True):
    """End agents and everything below them. `refs` empty with `all` means every one."""

    refs: tuple[str, ...] = ()
    all: bool = False
    dry_run: bool = False


class Killed(Struct, frozen=True):
    """Ids of the agents that are (or with `dry_run` would be) killed, children before parents."""

    ids: tuple[str, ...]


class CancelTurn(Struct, frozen=True, forbid_unknown_fields=True):
    """End the turn of `ref` at its next safe point; `hard` kills its process, and the next query starts another."""

    ref: str
    hard: bool = False


class RevokeAgentTools(Struct, frozen=True, forbid_unknown_fields=True):
    """Revoke the tools of `ref`, and of all agents below it, that are not in `keep` (names and categories of tools).

    Revoked tools cannot be granted again.
    """

    ref: str
    keep: tuple[str, ...]


class Resume(Struct, frozen=True, forbid_unknown_fields=True):
    """Let a killed or failed agent answer again; what `budget` sets is what it, or any other, may use in all.

    With `credentials` any agent uses the caller's keys and servers from now on; with `all` so does every agent that had
    the same ones.
    """

    ref: str
    budget: BudgetChange = BudgetChange()
    credentials: bool = False
    all: bool = False


class ListAgents(Struct, frozen=True, forbid_unknown_fields=True):
    """List agents by sequence number; `all` includes killed ones.

    `runs` adds the agents of other runs in the same home, such as those of programs. Only a user may ask for them.
    """

    all: bool = False
    runs: bool = False


class ShowAgent(Struct, frozen=True, forbid_unknown_fields=True):
    """One agent with the last `messages` messages of its transcript, a holder with as many of those it holds."""

    ref: str
    messages: int = 20


class AgentRow(Struct, frozen=True):
    """One agent as the root sees it. Times are ISO 8601 UTC; `pending` is the head of the prompt under way.

    `spent` is what it and everything below it used, turns under way included as far as they are counted; of `budget`,
    as far as it has limits of its own. `planning`: nobody has approved its plan yet.
    `run` names the run that it belongs to if that is another run of the same home, whose journal this root only reads;
    otherwise it is "".
    `title` is what its session is called. `outcome` is how its last
    query ended, "" before and while one is under way. `deleted` is when its session, or what it held, was deleted for
    good, "" when it was not. `credentials` names the variables that its models are reached with, and their source.
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
    denied_paths: Literal["", "unreadable", "by name only"] = ""
    credentials: str = ""


class AgentShown(Struct, frozen=True):
    """An agent, the tail of its conversation, its last reply, and what its conversation is marked with. Of a holder
    also its archive, and the first messages that it holds. `compactions` is how many summaries took the place of what
    was said."""

    agent: AgentRow
    messages: tuple[Message, ...]
    reply: Reply | None = None
    archive: ArchiveRow | None = None
    held: tuple[Message, ...] = ()
    tasks: tuple[Task, ...] = ()
    marks: tuple[TaintLabel, ...] = ()
    compactions: int = 0


class LiveAgent(Struct, frozen=True):
    """An agent that its parent can ask."""

    id: str
    task: str


class AskAll(Struct, frozen=True, forbid_unknown_fields=True):
    """Ask all of `refs` the same; `timeout` is for all of them together. `marks` are as in QueryAgent."""

    refs: tuple[str, ...]
    prompt: str
    timeout: float | None = None
    marks: tuple[TaintLabel, ...] = ()


class AskAllResult(Struct, frozen=True):
    """What one of them said. Exactly one of `reply` and `error` is set."""

    ref: str
    reply: Reply | None = None
    error: str | None = None


class RunTool(Struct, frozen=True):
    """Run the root tool `name` of the calling agent with `input`."""

    name: str
    input: dict[str, Any]


class RootToolResult(Struct, frozen=True):
    """What a root tool returned, as text."""

    text: str
    is_error: bool = False


SPAWN: Final = Service("spawn", Spawn, Spawned, agents_with("spawn_subagent"), "Start an agent.")
QUERY: Final = StreamingService(
    "query", QueryAgent, Reply, agents_with("query_subagent", "spawn_subagent"), "Ask an agent and wait for the reply."
)
SUBMIT: Final = Service(
    "submit", QueryAgent, Submitted, agents_with("query_subagent"), "Ask an agent without waiting for the reply."
)
COLLECT: Final = Service(
    "collect", Collect, Reply, agents_with("collect_subagent"), "Take the reply to a submitted query."
)
WAIT: Final = Service(
    "wait", Wait, Waited, agents_with("wait_subagents"), "Wait until agents have finished their turn."
)
KILL: Final = Service("kill", Kill, Killed, agents_with("kill_subagent"), "End agents and all agents below them.")
CANCEL_TURN: Final = Service("cancel", CancelTurn, AgentRow, USERS_ONLY, "Cancel the turn of an agent.")
RESUME: Final = Service("resume", Resume, AgentRow, USERS_ONLY, "Let a killed or failed agent answer again.")
REVOKE_TOOLS: Final = Service(
    "revoke_tools", RevokeAgentTools, AgentRow, USERS_ONLY, "Revoke tools of an agent and of all agents below it."
)
LIST_AGENTS: Final = Service("list", ListAgents, list[AgentRow], agents_with("list_subagents"), "List agents.")
SHOW_AGENT: Final = Service("show", ShowAgent, AgentShown, USERS_ONLY, "Show an agent and its last messages.")
SHOW_STATE: Final = Service("state", AgentRef, AgentRow, USERS_ONLY, "Show the state of an agent.")
SHOW_SPEC: Final = Service("spec", AgentRef, AgentSpec, USERS_ONLY, "Show the spec that an agent was started with.")
LIST_LIVE_SUBAGENTS: Final = Service(
    "list_live_subagents",
    Empty,
    list[LiveAgent],
    ARCHIVING_AGENTS,
    "List the subagents that the calling agent can ask.",
)
ASK_ALL: Final = Service(
    "ask_all", AskAll, list[AskAllResult], agents_with("map_subagents"), "Ask several agents the same question."
)
RUN_TOOL: Final = Service(
    "run_tool", RunTool, RootToolResult, ROOT_TOOL_AGENTS, "Run a tool of the user's program for the calling agent."
)
