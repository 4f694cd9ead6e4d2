"""The specification of an agent: everything that its worker needs to know."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct, field

from ..core.archives import ArchiveSource
from ..core.messages import Message
from ..core.prompts import PromptSpec
from ..core.taint import Bit, TaintLabel
from ..core.workspace import WorkspaceSpec
from ..core.worktrees import WorktreeSpec
from ..hooks.stages import HooksSpec
from ..policy.budget import Budget
from ..policy.policy import PolicySpec
from ..policy.sandbox import SandboxSpec
from ..resources.extensions import ExtensionSpec
from ..resources.memory import MemorySpec
from ..resources.skills import SkillsSpec
from .project import ContextSpec, ProjectCode

__all__ = [
    "AgentSpec",
    "ArchivalSpec",
    "BackendSpec",
    "CompactionSpec",
    "Durability",
    "ExecutorSpec",
    "Kind",
    "Limits",
    "QueueMode",
    "Template",
    "ToolSpec",
    "WorkerBirth",
]

Durability: TypeAlias = Literal["process", "power"]
Kind: TypeAlias = Literal["agent", "session", "holder"]
QueueMode: TypeAlias = Literal["one-at-a-time", "all"]
"""How many queued messages an agent takes from its queue at once."""
Template: TypeAlias = str
"""What the zygote of a worker has imported: `lean` no SDK of a model, `sdk` all SDKs of models, the other names in
`orch_worker.backends.registry.TEMPLATES` what one API needs.
"""


class Limits(Budget, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits of one turn. Seconds are measured by the monotonic clock. Tokens are estimates.

    After `max_turns` responses, a turn continues automatically up to `continuations` times. Each continuation allows
    `max_turns` more responses. The limits inherited from Budget apply to the sum of all turns of the agent and its
    subagents.
    """

    max_turns: int = 25
    continuations: int = 0
    turn_seconds: float = 3600.0
    tool_seconds: float = 120.0
    reply_tokens: int = 4000


class BackendSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The model that an agent uses. `options` is data for the backend, such as a script or a base URL.

    `thinking` is one of `models.THINKING`, or "" for the model's default. If the model does not support the requested
    level, the backend uses the nearest supported level.
    """

    provider: str
    model: str = ""
    options: dict[str, Any] = {}
    thinking: str = ""


class ToolSpec(Struct, frozen=True):
    """A tool as the model sees it. `input_schema` is a JSON Schema of type object.

    The model does not see the other fields. A call of an `exclusive` tool never runs at the same time as other calls.
    `locks` is the name of an argument that contains a file path. Calls with the same path run one after the other.
    `bits` are the taint bits that the tool's author declared. None means that the author declared nothing. A `hidden`
    tool is granted but not available in the agent's folder: the model does not see it, and calls are refused.
    """

    name: str
    description: str
    input_schema: dict[str, Any]
    exclusive: bool = False
    locks: str = ""
    bits: tuple[Bit, ...] | None = None
    hidden: bool = False


class ExecutorSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The tool executor of an agent, which has these tools in place of the built-in ones.

    - `name`: the import path of its class, `package.module:Class`. The agent's worker creates an object of the class.
    - `in_program`: the executor is an object of the user's program, and its calls run in the root.
    - `wanted`: names of the tools to grant. None means all of them.
    - `tools`: the granted tools. None until the first worker has created the object.
    """

    name: str
    in_program: bool = False
    wanted: tuple[str, ...] | None = None
    tools: tuple[ToolSpec, ...] | None = None


class ArchivalSpec(Struct, frozen=True):
    """The archival settings of one agent.

    - `wait`: the reply waits until archiving is finished.
    - `high_tokens`: if the conversation of a running turn exceeds this size, the worker asks the root which parts to
      archive. 0 means never.
    - `block_entries`: maximum number of agents in the live-subagents block. `in_tail`: archives follow the last record,
      and subagents are at the end of the request; otherwise both are part of the system text.
    - `summary_seconds`: time limit for a summary.
    """

    wait: bool = False
    high_tokens: int = 0
    block_entries: int = 4
    in_tail: bool = True
    summary_seconds: float = 60.0


class CompactionSpec(Struct, frozen=True):
    """When to compact a conversation.

    `pct` is the percentage of the model's context window at which the conversation is compacted. `tokens` is a second
    limit, in tokens; 0 means no second limit. The lower limit applies. `keep_turns` is the number of last turns that
    stay unchanged. `min_messages` is the minimum number of messages for a compaction. `seconds` is the time limit for
    the model's summary.
    """

    pct: int = 90
    tokens: int = 0
    keep_turns: int = 1
    min_messages: int = 6
    seconds: float = 60.0

    def compaction_threshold(self, window: int) -> int:
        """Return the request size, in tokens, at which the conversation is compacted. 0 means never."""
        share = window * self.pct // 100
        return min(share or self.tokens, self.tokens or share)


class AgentSpec(Struct, frozen=True):
    """One agent, as the root describes it to its worker.

    - `tools`: the granted tools, limited to those that the parent may grant. `root_tools`: functions of the user's
      program, which run in the root. `withdrawn`: revoked tools. The model still sees revoked tools but cannot use
      them.
    - `folder`: the session folder. `cwd`: the working folder of the agent's tools. `env`: the environment variables of
      these tools.
    - `archival`: the archival settings. None means that archival is off. `source`: if the agent is a holder, its
      archive.
    - `policy`, `hooks` and `extensions` also apply to all subagents of the agent.
    - `local`: the agent's conversation may be sent to local models only. `plan`: the agent starts in plan mode.
    - `context`: how much the agent learns about its project. `prompt`: the parts of the agent's prompt besides the
      task.
    - `queue_mode`: the queue mode of steering messages. `follow_up_mode`: the queue mode of follow-ups. None means the
      same mode.
    - `marks`: taint labels of the agent's task and of the prompts that other agents send.
    - `compaction`: when to compact the conversation. None means never. The conversation of a holder is never compacted.
    - `sandbox`: the sandbox of the processes that the agent's tools start.
    - `memory`, `workspace`: None means that the feature is off.
    - `persist`: if False, nothing is stored on disk and the agent ends with its root.
    - `skills`: the agent's skills. The model sees their names and can read their text with a tool.
    - `chosen`: the model selected in the session, or "" if no model was selected. With "", the agent uses the model
      `born`, or `backend` if `born` is None.
    - `peers`: ids of agents outside the agent's subtree that the agent may query. Only the user sets `peers`.
      `archives`: ids of archives that the agent may use. `recall_only`: the tool query_subagent works for archives
      only.
    - `agent_type`: the type that the agent was spawned with. `agent_types`: the types that the agent may spawn, with
      their descriptions. `subagent_models`: the models that it may choose for subagents besides its own, as patterns.
    - `worktree`: the agent's git worktree, which contains `cwd`. None means that the agent has no worktree.
    - `executor`: the agent's tool executor. None means that the agent has no executor.
    - `item`: the item of a map that the agent works on, or "".
    - `code`: the code that the trusted configuration of the agent's project names. Its process loads this code only if
      it is unchanged. None means that the configuration of no project names code.
    """

    id: str
    seq: int
    name: str
    task: str
    backend: BackendSpec
    folder: str
    cwd: str
    depth: int = 1
    parent_id: str | None = None
    kind: Kind = "agent"
    preset: str = ""
    tools: tuple[str, ...] = ()
    root_tools: tuple[ToolSpec, ...] = ()
    env: dict[str, str] = {}
    limits: Limits = field(default_factory=Limits)
    history: tuple[Message, ...] = ()
    durability: Durability = "process"
    queue_mode: QueueMode = "one-at-a-time"
    follow_up_mode: QueueMode | None = None
    template: Template = "lean"
    archival: ArchivalSpec | None = None
    source: ArchiveSource | None = None
    policy: PolicySpec = field(default_factory=PolicySpec)
    local: bool = False
    plan: bool = False
    plan_id: str = ""
    context: ContextSpec = field(default_factory=ContextSpec)
    prompt: PromptSpec = PromptSpec()
    hooks: HooksSpec = HooksSpec()
    extensions: tuple[ExtensionSpec, ...] = ()
    withdrawn: tuple[str, ...] = ()
    marks: tuple[TaintLabel, ...] = ()
    compaction: CompactionSpec | None = field(default_factory=CompactionSpec)
    sandbox: SandboxSpec = SandboxSpec()
    memory: MemorySpec | None = None
    workspace: WorkspaceSpec | None = None
    persist: bool = True
    skills: SkillsSpec = SkillsSpec()
    chosen: str = ""
    born: BackendSpec | None = None
    umask: int | None = None
    peers: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    recall_only: bool = False
    agent_type: str = ""
    agent_types: dict[str, str] = {}
    subagent_models: tuple[str, ...] = ()
    worktree: WorktreeSpec | None = None
    executor: ExecutorSpec | None = None
    code: ProjectCode | None = None
    item: str = ""

    @property
    def executor_tools(self) -> tuple[ToolSpec, ...]:
        """The tools of its executor that are known to the root."""
        return (self.executor.tools or ()) if self.executor is not None else ()

    @property
    def project(self) -> str:
        """The folder whose configuration, extensions and memory apply to the agent.

        The folder is `cwd`, or `worktree.folder` if the agent has a worktree.
        """
        return self.worktree.folder if self.worktree is not None else self.cwd

    @property
    def grant(self) -> tuple[str, ...]:
        """Names of all granted tools."""
        extension_tools = (name for extension in self.extensions for name in extension.tools)
        return (*self.tools, *(tool.name for tool in (*self.root_tools, *self.executor_tools)), *extension_tools)

    @property
    def active(self) -> tuple[str, ...]:
        """Names of the granted tools that were not revoked."""
        return tuple(name for name in self.grant if name not in self.withdrawn)


class WorkerBirth(Struct, frozen=True):
    """The data that a worker reads from its birth pipe: the token for its Hello, and the API keys of its providers.

    These secrets never appear in argv, the environment, transcripts or logs.
    """

    token: bytes
    keys: dict[str, str] = {}
