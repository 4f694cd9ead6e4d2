"""Configuration as data: names, types, defaults. Reading files and variables is `orch.config.config`'s work."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct, field

from ..core.errors import ConfigError
from ..core.prompts import PromptConfig
from ..core.workspace import WorkspaceConfig
from ..hooks.options import HookOptions
from ..policy.budget import Budget
from ..policy.policy import PolicyConfig
from ..policy.sandbox import SandboxConfig
from ..resources.memory import MemoryConfig
from ..resources.skills import SkillsConfig
from .models import Thinking
from .project import ContextConfig
from .spec import BackendSpec, Durability

__all__ = [
    "ArchivalConfig",
    "BudgetConfig",
    "ChildCompactionConfig",
    "CompactionConfig",
    "Config",
    "DaemonConfig",
    "EnvironmentConfig",
    "ExtensionsConfig",
    "HooksConfig",
    "LimitsConfig",
    "Profile",
    "SubagentsConfig",
    "SummaryConfig",
    "TriggerConfig",
]

Seconds = Annotated[float, Meta(gt=0, le=1e9)]
Minutes = Annotated[float, Meta(gt=0, le=1e7)]
Count = Annotated[int, Meta(ge=1, le=10**9)]
Amount = Annotated[int, Meta(ge=0, le=10**9)]
Price = Annotated[float, Meta(gt=0, le=1e6)]
Percent = Annotated[int, Meta(ge=10, le=100)]
Profile: TypeAlias = Literal["seed", "economy", "balanced", "roomy"]


class CompactionConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """When what was said first gives way to a summary, in agents that a person or a program has spawned."""

    mode: Literal["auto", "off"] = "auto"
    compact_pct: Percent = 90
    """At so much of the model's window."""
    compact_tokens: Count | None = None
    """And at so many tokens, whatever the window is."""
    keep_recent_turns: Count = 1
    """So many turns stay word for word."""
    min_messages: Count = 6
    """A shorter conversation is left alone while it fits."""
    timeout_seconds: Seconds = 60.0
    """What a model may take for the summary, before one is made without it."""


class ChildCompactionConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The same for agents that agents have spawned: as above, at most at their own percentage, or never."""

    mode: Literal["inherit_strict", "inherit", "off"] = "inherit_strict"
    compact_pct: Percent = 75
    keep_recent_turns: Count = 1
    min_messages: Count = 6
    timeout_seconds: Seconds = 60.0


class SubagentsConfig(Budget, frozen=True, forbid_unknown_fields=True, omit_defaults=False):
    """What spawning may do. Enforced by the root, for its own callers and for every worker's.

    Its budget is that of an agent spawned without limits of its own, with everything below it.
    """

    enabled: bool = True
    max_concurrent: Count = 16
    depth_cap: Amount = 3
    allow_nested: bool = False
    timeout_minutes: Minutes = 30.0
    """Idle time after which an agent goes cold: its process ends, its transcript answers the next query."""
    restarts: Amount = 3
    """How many other processes an agent may have within a minute whose processes end before or in their turns."""
    default_preset: str = "investigate"
    default_tools: tuple[str, ...] | None = None
    """Tools of an agent spawned with neither preset nor tools; None means `default_preset`'s."""
    chat_models: tuple[str, ...] | None = None
    """Models that the tool `chat` may ask, `provider:name` with `*` for anything; None: all that can be reached."""
    context: ContextConfig = field(default_factory=ContextConfig)
    """What agents are told of the project they work in."""
    context_compaction: ChildCompactionConfig = field(default_factory=ChildCompactionConfig)


class LimitsConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of a turn, for agents spawned without their own."""

    max_turns: Count = 25
    continuations: Amount = 0
    """How many times a turn goes on by itself when it has reached `max_turns`."""
    turn_seconds: Seconds = 3600.0
    tool_seconds: Seconds = 120.0
    reply_tokens: Count = 4000


class BudgetConfig(Budget, frozen=True, forbid_unknown_fields=True, omit_defaults=False):
    """What all agents of a root may use together, over all turns that are on its record."""

    unknown_price: Price | None = None
    """USD that a million tokens are charged whose price is not known; None: models without a price have no budget."""


class DaemonConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The per-user process behind the CLI."""

    idle_minutes: Minutes = 15.0


class EnvironmentConfig(Struct, frozen=True, forbid_unknown_fields=True, rename={"pass_": "pass"}):
    """Variables that the daemon and workers get besides the usual ones: names, or globs such as `AWS_*`."""

    pass_: tuple[str, ...] = ()


class HooksConfig(HookOptions, frozen=True, forbid_unknown_fields=True):
    """The hooks that every agent runs with, and what is set for those that are built in."""

    load: tuple[str, ...] = ()
    """Built-in hooks by name; import strings, `package.module:hook` or `package.module`; or the paths of files."""


class ExtensionsConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Extensions beside those in `$ORCH_HOME/extensions` and a project's `.orch/extensions`."""

    load: tuple[str, ...] = ()
    """Names under which installed packages offer extensions."""


class TriggerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """When a finished turn is archived under the profile `seed`: any one of the three, below the depth cap."""

    on_max_turns: bool = True
    token_threshold: Amount = 8000
    tool_call_threshold: Amount = 5
    depth_cap: Amount = 3


class SummaryConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What a model is asked to say about an archived turn. `model` is handed to whoever asks it; None is theirs."""

    style: Literal["structured", "paragraph"] = "structured"
    model: str | None = None
    timeout_seconds: Seconds = 60.0


class ArchivalConfig(Struct, frozen=True, forbid_unknown_fields=True, rename={"async_": "async"}):
    """How finished work leaves a conversation. Sizes are estimated tokens; None takes what the profile says."""

    enabled: bool = False
    """Archive what running agents have finished."""
    async_: bool = True
    """Archive behind a reply; else the reply waits for it, and for the summary."""
    warm_holders: Amount = 4
    """How many holders keep their process after they have answered."""
    profile: Profile = "balanced"
    trigger: TriggerConfig = field(default_factory=TriggerConfig)
    summary: SummaryConfig = field(default_factory=SummaryConfig)
    turns: bool = True
    """Archive finished turns."""
    phase: bool | None = None
    """Archive parts of a turn that is still running, once more than `high_tokens` are live."""
    gate: bool | None = None
    """Archive only what is expected to pay."""
    high_tokens: Count | None = None
    low_tokens: Count | None = None
    rollup_tokens: Amount | None = None
    """The record budget: what archived turns may keep in the conversation before the oldest merge; 0 never merges."""
    answer_tokens: Amount = 400
    """Of a final answer, this much stays word for word."""
    prompt_tokens: Count | None = None
    """A prompt larger than this keeps its head and tail."""
    placement: Literal["tail", "system"] = "tail"
    """Where the block of live subagents stands: last in a request, or in the caller's system prompt."""
    block_entries: Amount = 4


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that can be set. `model` is `provider:model`, or None: the offline extractive backend."""

    model: str | None = None
    thinking: Thinking | None = None
    """How much models think that can be told, of agents spawned without a level of their own; None: as they do."""
    durability: Durability = "process"
    session_dir: str | None = None
    """The folder of session folders; None is `sessions` in orch's own."""
    subagents: SubagentsConfig = field(default_factory=SubagentsConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    daemon: DaemonConfig = field(default_factory=DaemonConfig)
    environment: EnvironmentConfig = EnvironmentConfig()
    archival: ArchivalConfig = field(default_factory=ArchivalConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    hooks: HooksConfig = field(default_factory=HooksConfig)
    extensions: ExtensionsConfig = ExtensionsConfig()
    prompt: PromptConfig = field(default_factory=PromptConfig)
    skills: SkillsConfig = SkillsConfig()
    context_compaction: CompactionConfig = field(default_factory=CompactionConfig)
    memory: MemoryConfig = MemoryConfig()
    workspace: WorkspaceConfig = WorkspaceConfig()


def parse_model(model: str | None) -> BackendSpec:
    """Return the backend that `provider:model` names; None is the extractive one. Raises ConfigError for no text."""
    if model is None:
        return BackendSpec("extractive")
    if not isinstance(model, str):
        raise ConfigError(f"a model is named as text, `provider:model`, not with {model!r}")
    provider, _, name = model.partition(":")
    return BackendSpec(provider, name)
