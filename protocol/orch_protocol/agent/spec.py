"""What an agent is to be: everything a worker needs to know, as data."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct, field

from ..core.archives import ArchiveSource
from ..core.messages import Message
from ..core.prompts import PromptSpec
from ..core.taint import Bit, TaintLabel
from ..core.workspace import WorkspaceSpec
from ..hooks.stages import HooksSpec
from ..policy.budget import Budget
from ..policy.policy import PolicySpec
from ..policy.sandbox import SandboxSpec
from ..resources.extensions import ExtensionSpec
from ..resources.memory import MemorySpec
from ..resources.skills import SkillsSpec
from .project import ContextSpec

__all__ = [
    "AgentSpec",
    "ArchivalSpec",
    "BackendSpec",
    "CompactionSpec",
    "Durability",
    "Kind",
    "Limits",
    "QueueMode",
    "Template",
    "ToolSpec",
    "WorkerBirth",
    "WorkerPaths",
]

Durability: TypeAlias = Literal["process", "power"]
Kind: TypeAlias = Literal["agent", "session", "holder"]
QueueMode: TypeAlias = Literal["one-at-a-time", "all"]
"""How many of the things said to an agent it hears at once."""
Template: TypeAlias = Literal["lean", "sdk"]


class Limits(Budget, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Bounds of one turn. Seconds are monotonic; tokens are estimated.

    A turn that has given `max_turns` responses goes on by itself up to `continuations` times, for as many more each.
    Those of a Budget are for all turns together, and for everything that the agent spawns.
    """

    max_turns: int = 25
    continuations: int = 0
    turn_seconds: float = 3600.0
    tool_seconds: float = 120.0
    reply_tokens: int = 4000


class BackendSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Which model answers. `options` is data the backend understands (a script, a base URL).

    It is to think as much as `thinking` says, one of `models.THINKING`, as far as it can; "": as it does by itself.
    """

    provider: str
    model: str = ""
    options: dict[str, Any] = {}
    thinking: str = ""


class ToolSpec(Struct, frozen=True):
    """A tool as the model sees it. `input_schema` is JSON Schema of type object.

    Not for the model: an `exclusive` tool runs alone, `locks` names the argument that is a file for one call at a time,
    `bits` are what its maker says that a call brings, None when nothing.
    """

    name: str
    description: str
    input_schema: dict[str, Any]
    exclusive: bool = False
    locks: str = ""
    bits: tuple[Bit, ...] | None = None


class ArchivalSpec(Struct, frozen=True):
    """How an agent's finished work leaves its conversation.

    With `wait` a reply waits until that is done. Past `high_tokens` in a running turn the root is asked about its past
    (0: never). `block_entries` is how many live subagents a request names, `in_tail` whether it does so in its end
    rather than in its system text. A summary may take `summary_seconds`.
    """

    wait: bool = False
    high_tokens: int = 0
    block_entries: int = 4
    in_tail: bool = True
    summary_seconds: float = 60.0


class CompactionSpec(Struct, frozen=True):
    """When the beginning of an agent's conversation gives way to a summary: at `pct` percent of its model's window, and
    at `tokens` of them, if that is not 0.

    The last `keep_turns` turns stay, and a conversation with fewer than `least` messages; a model may take `seconds`
    for the summary.
    """

    pct: int = 90
    tokens: int = 0
    keep_turns: int = 1
    least: int = 6
    seconds: float = 60.0

    def at(self, window: int) -> int:
        """Return the size of a request, in tokens, from which on its conversation is to be compacted; 0 is never."""
        bounds = [bound for bound in (window * self.pct // 100, self.tokens) if bound]
        return min(bounds, default=0)


class AgentSpec(Struct, frozen=True):
    """One agent, as the root describes it to the worker that will be it.

    `tools` names the granted tools, already narrowed to what the parent may grant; `root_tools` are functions of the
    user's program that run in the root. `folder` is the agent's session folder; `cwd` the folder its tools work in;
    `env` the allow-listed environment of its tools. `archival` is None when nothing is to be archived; `source` is what
    a holder holds. Under `policy`, with `hooks` and `extensions` it works, and all agents below it. A `local` one's
    conversation is for models of this machine alone. `plan`: it comes up in plan mode. Of its project it is told what
    `context` says, and besides its task what `prompt` does. What is `withdrawn` of its tools it may not use any more,
    though they stay on offer. `queue_mode` is for what it is told while it works, `follow_up_mode` for what it is told
    when it would stop, None: the same. `marks` came with what other agents asked it, and what it was made of. Its
    conversation is compacted as `compaction` says, None: never; a holder's never is. What its tools start runs in
    `sandbox`. `memory` is what it remembers from other conversations, None: nothing; `workspace` what it is told of
    what it has at hand, None: nothing is kept track of. Not to `persist`: it is kept on no disk, and gone with its
    root. Of its `skills` it is told names, and reads the rest when it needs it. `chosen` is the model that its
    conversation has on record as its own from some place on, "" where it has none: then it is the one behind `born`,
    None: behind `backend`.

    `peers` are ids of agents that it may ask besides those below it; only the user names them. `archives` are ids of
    archives that it was handed. With `recall_only` it was granted query_subagent for archives only.
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

    @property
    def grant(self) -> tuple[str, ...]:
        """Names of all tools that it was granted."""
        theirs = (name for extension in self.extensions for name in extension.tools)
        return (*self.tools, *(tool.name for tool in self.root_tools), *theirs)

    @property
    def active(self) -> tuple[str, ...]:
        """Names of the tools that it may use now."""
        return tuple(name for name in self.grant if name not in self.withdrawn)


class WorkerPaths(Struct, frozen=True):
    """Paths for the mount namespace of a worker that runs its agent's code: orch's folders and denied paths are hidden.

    `folder` is the agent's session folder, `cwd` its working folder, `home` its HOME. `read` and `write` are the
    sandbox's; denied names are looked for below `cwd` and these. `own` and `shown` are files and folders of orch that
    the worker writes or reads; folders in `own` are created. With `required` the worker ends if hiding fails.
    """

    cwd: str
    folder: str
    home: str = ""
    orch_folders: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    required: bool = False
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()


class WorkerBirth(Struct, frozen=True):
    """What a worker reads from its birth pipe: the token for its Hello, and the keys of its providers.

    Never in argv, environment, transcript or log. `paths` is None for a worker without a mount namespace.
    """

    token: bytes
    keys: dict[str, str] = {}
    paths: WorkerPaths | None = None
