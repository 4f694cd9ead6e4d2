"""Types and defaults of the configuration. `orch.config.config` reads files and environment variables."""

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
    """When to compact the conversations of agents that a user or a program spawned."""

    mode: Literal["auto", "off"] = "auto"
    compact_pct: Percent = 90
    """Compact at this percentage of the model's context window."""
    compact_tokens: Count | None = None
    """Compact at this number of tokens too, independent of the size of the context window. None means no such limit."""
    keep_recent_turns: Count = 1
    """Number of recent turns that compaction leaves unchanged."""
    min_messages: Count = 6
    """Compaction needs at least this many messages, unless the conversation no longer fits into the context window."""
    timeout_seconds: Seconds = 60.0
    """Time limit for the model's summary. After this time, orch computes a summary without a model."""


class ChildCompactionConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """When to compact the conversations of agents that other agents spawned.

    - `mode` "inherit": use the percentage of CompactionConfig.
    - `mode` "inherit_strict": use the smaller of `compact_pct` and the percentage of CompactionConfig.
    - `mode` "off": never compact the conversations of these agents.
    """

    mode: Literal["inherit_strict", "inherit", "off"] = "inherit_strict"
    compact_pct: Percent = 75
    keep_recent_turns: Count = 1
    min_messages: Count = 6
    timeout_seconds: Seconds = 60.0


class SubagentsConfig(Budget, frozen=True, forbid_unknown_fields=True, omit_defaults=False):
    """Limits and defaults of spawning. The root enforces these limits for its own callers and for all workers.

    An agent that is spawned without a budget gets the budget of this configuration, shared with its subagents.
    """

    enabled: bool = True
    max_concurrent: Count = 16
    depth_cap: Amount = 3
    allow_nested: bool = False
    timeout_minutes: Minutes = 30.0
    """Idle time after which an agent's process ends.

    The agent's next query starts a new process from the transcript.
    """
    restarts: Amount = 3
    """Maximum number of times per minute that orch restarts an agent's process after a crash."""
    default_preset: str = "investigate"
    default_tools: tuple[str, ...] | None = None
    """Tools of an agent that is spawned without a preset and without tools.

    None means the tools of `default_preset`.
    """
    chat_models: tuple[str, ...] | None = None
    """Models that the tool `chat` may use, as `provider:name` patterns with `*`. None means all reachable models."""
    models: tuple[str, ...] = ()
    """Models that an agent may choose for its subagents, as `provider:name` patterns with `*`.

    An agent may always choose its own model.
    """
    context: ContextConfig = field(default_factory=ContextConfig)
    """How much of the project's context files an agent receives."""
    context_compaction: ChildCompactionConfig = field(default_factory=ChildCompactionConfig)


class LimitsConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of a turn, for agents that are spawned without limits."""

    max_turns: Count = 25
    continuations: Amount = 0
    """How many times a turn continues automatically after it reached `max_turns`."""
    turn_seconds: Seconds = 3600.0
    tool_seconds: Seconds = 120.0
    reply_tokens: Count = 4000


class BudgetConfig(Budget, frozen=True, forbid_unknown_fields=True, omit_defaults=False):
    """Budget that all agents of a root share. Every turn recorded in the root's journal counts."""

    unknown_price: Price | None = None
    """USD charged per million tokens of a model without a known price.

    None means that a model without a known price cannot have a cost budget.
    """


class DaemonConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the daemon, the per-user process behind the CLI."""

    idle_minutes: Minutes = 15.0


class EnvironmentConfig(Struct, frozen=True, forbid_unknown_fields=True, rename={"pass_": "pass"}):
    """Additional environment variables for the daemon and workers, given as names or as globs such as `AWS_*`."""

    pass_: tuple[str, ...] = ()


class HooksConfig(HookOptions, frozen=True, forbid_unknown_fields=True):
    """The hooks that apply to all agents, and the options of built-in hooks."""

    load: tuple[str, ...] = ()
    """Hooks to load: names of built-in hooks, import strings (`package.module:hook` or `package.module`), or paths of
    files.
    """


class ExtensionsConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Extensions in addition to those in `$ORCH_HOME/extensions` and a project's `.orch/extensions`."""

    load: tuple[str, ...] = ()
    """Entry point names of extensions in installed packages."""


class TriggerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Conditions for archiving a finished turn, in every profile.

    A turn is archived if at least one of the first three conditions holds. None: the profile `seed`, or another profile
    with `gate = false`, uses its default (True, 8,000 tokens, 5 calls); a profile that compares costs has no such
    condition. Agents at depth `depth_cap` or deeper do not archive turns.
    """

    on_max_turns: bool | None = None
    """Archive a turn that ended because it reached its limit of steps."""
    token_threshold: Amount | None = None
    """Archive a turn with at least this number of estimated tokens."""
    tool_call_threshold: Amount | None = None
    """Archive a turn with at least this number of tool calls."""
    depth_cap: Amount = 3


class SummaryConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether and how a model summarizes an archived turn.

    If `style` is "none", no model is asked. If it is None, the profile decides: "structured" for `seed`, "none" for the
    others. If `model` is None, the agent's own model writes the summary.
    """

    style: Literal["none", "structured", "paragraph"] | None = None
    model: str | None = None
    timeout_seconds: Seconds = 60.0


class ArchivalConfig(Struct, frozen=True, forbid_unknown_fields=True, rename={"async_": "async"}):
    """Settings of archival. Sizes are in estimated tokens. A setting that is None takes the profile's value."""

    enabled: bool = False
    """Archive finished turns of running agents."""
    async_: bool = True
    """Archive after the reply. If False, the reply waits until the turn is archived and summarized."""
    warm_holders: Amount = 4
    """Number of holders whose process keeps running after an answer."""
    profile: Profile = "balanced"
    trigger: TriggerConfig = field(default_factory=TriggerConfig)
    summary: SummaryConfig = field(default_factory=SummaryConfig)
    turns: bool = True
    """Archive finished turns."""
    phase: bool | None = None
    """Archive parts of a running turn when the conversation holds more than `high_tokens`."""
    gate: bool | None = None
    """Archive a turn only if archiving is expected to save money."""
    high_tokens: Count | None = None
    low_tokens: Count | None = None
    rollup_tokens: Amount | None = None
    """Maximum size of all records in the conversation.

    When the records exceed this size, orch merges the oldest records into an era. 0 means that records are never
    merged.
    """
    answer_tokens: Amount = 400
    """Maximum length of the quotation from the final answer in a record."""
    prompt_tokens: Count | None = None
    """Maximum length of the prompt in a record. Of a longer prompt, the record keeps the beginning and the end."""
    placement: Literal["tail", "system"] = "tail"
    """Position of the live-subagents block. With "tail", archives follow the last record, and subagents end a request.
    With "system", both are in the system prompt.
    """
    block_entries: Amount = 4


class ApprovalConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How approval works for the calls of agents that a program started."""

    channel: Literal["program", "person"] = "program"
    """With `person`, the rules about personal data and code apply, as they do on the command line and with
    `approve=`.
    """


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole configuration. `model` is `provider:model`.

    If `model` is None, agents use the offline extractive backend.
    """

    model: str | None = None
    thinking: Thinking | None = None
    """Reasoning effort of agents that are spawned without this setting, for models that support it.

    None: the model's default.
    """
    durability: Durability = "process"
    session_dir: str | None = None
    """The folder that contains session folders. None means the folder `sessions` in orch's home."""
    subagents: SubagentsConfig = field(default_factory=SubagentsConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    daemon: DaemonConfig = field(default_factory=DaemonConfig)
    environment: EnvironmentConfig = EnvironmentConfig()
    archival: ArchivalConfig = field(default_factory=ArchivalConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    approval: ApprovalConfig = ApprovalConfig()
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    hooks: HooksConfig = field(default_factory=HooksConfig)
    extensions: ExtensionsConfig = ExtensionsConfig()
    prompt: PromptConfig = field(default_factory=PromptConfig)
    skills: SkillsConfig = SkillsConfig()
    context_compaction: CompactionConfig = field(default_factory=CompactionConfig)
    memory: MemoryConfig = MemoryConfig()
    workspace: WorkspaceConfig = WorkspaceConfig()


def parse_model(model: str | None) -> BackendSpec:
    """Return the backend for `provider:model`. Return the extractive backend for None.

    Raise ConfigError if `model` is not a string.
    """
    if model is None:
        return BackendSpec("extractive")
    if not isinstance(model, str):
        raise ConfigError(f"the model must be a string such as `provider:model`; got {model!r}")
    provider, _, name = model.partition(":")
    return BackendSpec(provider, name)
