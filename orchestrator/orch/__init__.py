"""Subagents as real operating-system processes.

    from orch import Orchestrator

    with Orchestrator() as o:
        agent = o.spawn("Explain this repo")
        print(agent.query("What does README promise?").text)

Each name is imported on first use. `import orch` alone loads no other module and has no side effects.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing it, and importlib below, would cost the command line a third of its time
if TYPE_CHECKING:
    from typing import Any

    from orch_protocol.agent.config import (
        ApprovalConfig,
        ArchivalConfig,
        BudgetConfig,
        ChildCompactionConfig,
        CompactionConfig,
        Config,
        DaemonConfig,
        EnvironmentConfig,
        ExtensionsConfig,
        HooksConfig,
        LimitsConfig,
        SubagentsConfig,
        SummaryConfig,
        TriggerConfig,
    )
    from orch_protocol.agent.project import ContextConfig
    from orch_protocol.agent.spec import Limits, ToolSpec
    from orch_protocol.core.errors import (
        AgentBusyError,
        AgentDiedError,
        AgentError,
        AgentGoneError,
        AgentNotFoundError,
        AmbiguousRefError,
        ArchiveDeletedError,
        BackendError,
        BackendTimeoutError,
        BadReplyError,
        BudgetExceededError,
        ConcurrencyLimitError,
        ConfigError,
        ContextOverflowError,
        CredentialsError,
        DamagedError,
        DepthCapError,
        EntryNotFoundError,
        ForeignFileError,
        LaunchError,
        LockedError,
        MessageTooLargeError,
        NoResultError,
        NoValueError,
        OrchError,
        ProtocolError,
        QueryCycleError,
        QueryTimeoutError,
        RateLimitError,
        SandboxError,
        SessionDeletedError,
        SpawnError,
        StoreError,
        ToolNotGrantedError,
        TruncatedReplyError,
        UnsupportedPlatformError,
        VersionMismatchError,
        WorktreeError,
    )
    from orch_protocol.core.messages import (
        Image,
        Message,
        Opaque,
        Reply,
        Text,
        Thinking,
        ToolResult,
        ToolUse,
        Usage,
        assistant,
        user,
    )
    from orch_protocol.core.phases import Assess, AssessRule, Reflect, ReflectRule
    from orch_protocol.core.prompts import PromptConfig, PromptPart
    from orch_protocol.core.taint import TaintConfig
    from orch_protocol.core.workspace import WorkspaceConfig
    from orch_protocol.hooks.options import (
        CompletionChecklist,
        ContentSafety,
        CostTracker,
        InjectionGuard,
        LoopDetection,
        ModelRouter,
        NarrationGuard,
        OutputSandbox,
        Summarization,
        ToolRouter,
    )
    from orch_protocol.hooks.patches import Abort, Approve, Block
    from orch_protocol.policy.approval import Consent, Question
    from orch_protocol.policy.budget import Budget
    from orch_protocol.policy.policy import PolicyCall, PolicyConfig, Verdict
    from orch_protocol.policy.sandbox import SandboxConfig, ToolLimits
    from orch_protocol.resources.memory import MemoryConfig
    from orch_protocol.resources.skills import SkillsConfig
    from orch_protocol.resources.slash_commands import Effect
    from orch_protocol.services.resources.slash_commands import Executed
    from orch_protocol.wire.tool_events import CallEvent
    from orch_worker.backends.base import BackendInfo
    from orch_worker.backends.custom.contract import BackendOptions, BackendRequest, CustomBackend, Stop
    from orch_worker.backends.offline.scripted import ScriptedBackend
    from orch_worker.hooks.hook import hook
    from orch_worker.tools.api.base import ToolContext, ToolOutput, tool
    from orch_worker.tools.api.executor import Executor

    from .api.agent import AsyncSubagent
    from .api.archiver import Archiver
    from .api.arguments import AgentOptions
    from .api.async_archiver import AsyncArchiver
    from .api.fan_out import MapProgress, MapResult
    from .api.orchestrator import AsyncOrchestrator, AsyncSession
    from .api.structured_output import Returned
    from .api.sync import Orchestrator, Session, Subagent
    from .resources.program_extensions import Extension
    from .resources.prompt_templates import PromptTemplate
    from .resources.skills import Skill

__all__ = [
    "Abort",
    "AgentBusyError",
    "AgentDiedError",
    "AgentError",
    "AgentGoneError",
    "AgentNotFoundError",
    "AgentOptions",
    "AmbiguousRefError",
    "ApprovalConfig",
    "Approve",
    "ArchivalConfig",
    "ArchiveDeletedError",
    "Archiver",
    "Assess",
    "AssessRule",
    "AsyncArchiver",
    "AsyncOrchestrator",
    "AsyncSession",
    "AsyncSubagent",
    "BackendError",
    "BackendInfo",
    "BackendOptions",
    "BackendRequest",
    "BackendTimeoutError",
    "BadReplyError",
    "Block",
    "Budget",
    "BudgetConfig",
    "BudgetExceededError",
    "CallEvent",
    "ChildCompactionConfig",
    "CompactionConfig",
    "CompletionChecklist",
    "ConcurrencyLimitError",
    "Config",
    "ConfigError",
    "Consent",
    "ContentSafety",
    "ContextConfig",
    "ContextOverflowError",
    "CostTracker",
    "CredentialsError",
    "CustomBackend",
    "DaemonConfig",
    "DamagedError",
    "DepthCapError",
    "Effect",
    "EntryNotFoundError",
    "EnvironmentConfig",
    "Executed",
    "Executor",
    "Extension",
    "ExtensionsConfig",
    "ForeignFileError",
    "HooksConfig",
    "Image",
    "InjectionGuard",
    "LaunchError",
    "Limits",
    "LimitsConfig",
    "LockedError",
    "LoopDetection",
    "MapProgress",
    "MapResult",
    "MemoryConfig",
    "Message",
    "MessageTooLargeError",
    "ModelRouter",
    "NarrationGuard",
    "NoResultError",
    "NoValueError",
    "Opaque",
    "OrchError",
    "Orchestrator",
    "OutputSandbox",
    "PolicyCall",
    "PolicyConfig",
    "PromptConfig",
    "PromptPart",
    "PromptTemplate",
    "ProtocolError",
    "QueryCycleError",
    "QueryTimeoutError",
    "Question",
    "RateLimitError",
    "Reflect",
    "ReflectRule",
    "Reply",
    "Returned",
    "SandboxConfig",
    "SandboxError",
    "ScriptedBackend",
    "Session",
    "SessionDeletedError",
    "Skill",
    "SkillsConfig",
    "SpawnError",
    "Stop",
    "StoreError",
    "Subagent",
    "SubagentsConfig",
    "Summarization",
    "SummaryConfig",
    "TaintConfig",
    "Text",
    "Thinking",
    "ToolContext",
    "ToolLimits",
    "ToolNotGrantedError",
    "ToolOutput",
    "ToolResult",
    "ToolRouter",
    "ToolSpec",
    "ToolUse",
    "TriggerConfig",
    "TruncatedReplyError",
    "UnsupportedPlatformError",
    "Usage",
    "Verdict",
    "VersionMismatchError",
    "WorkspaceConfig",
    "WorktreeError",
    "assistant",
    "hook",
    "tool",
    "user",
]

_HOMES = {
    "Abort": "orch_protocol.hooks.stages",
    "Approve": "orch_protocol.hooks.stages",
    "Block": "orch_protocol.hooks.stages",
    "ApprovalConfig": "orch_protocol.agent.config",
    "ArchivalConfig": "orch_protocol.agent.config",
    "Archiver": "orch.api.archiver",
    "AsyncArchiver": "orch.api.async_archiver",
    "AsyncOrchestrator": "orch.api.orchestrator",
    "AsyncSession": "orch.api.orchestrator",
    "AsyncSubagent": "orch.api.agent",
    "Budget": "orch_protocol.policy.budget",
    "BudgetConfig": "orch_protocol.agent.config",
    "CallEvent": "orch_protocol.wire.tool_events",
    "CompactionConfig": "orch_protocol.agent.config",
    "Config": "orch_protocol.agent.config",
    "Assess": "orch_protocol.core.phases",
    "AssessRule": "orch_protocol.core.phases",
    "Consent": "orch_protocol.policy.approval",
    "ContextConfig": "orch_protocol.agent.project",
    "Effect": "orch_protocol.resources.slash_commands",
    "Executed": "orch_protocol.services.resources.slash_commands",
    "HooksConfig": "orch_protocol.agent.config",
    "Limits": "orch_protocol.agent.spec",
    "MemoryConfig": "orch_protocol.resources.memory",
    "AgentOptions": "orch.api.arguments",
    "Message": "orch_protocol.core.messages",
    "Image": "orch_protocol.core.messages",
    "Opaque": "orch_protocol.core.messages",
    "Text": "orch_protocol.core.messages",
    "Thinking": "orch_protocol.core.messages",
    "ToolResult": "orch_protocol.core.messages",
    "ToolUse": "orch_protocol.core.messages",
    "assistant": "orch_protocol.core.messages",
    "user": "orch_protocol.core.messages",
    "Orchestrator": "orch.api.sync",
    "Reflect": "orch_protocol.core.phases",
    "ReflectRule": "orch_protocol.core.phases",
    "PolicyCall": "orch_protocol.policy.policy",
    "PolicyConfig": "orch_protocol.policy.policy",
    "PromptConfig": "orch_protocol.core.prompts",
    "PromptPart": "orch_protocol.core.prompts",
    "Extension": "orch.resources.program_extensions",
    "PromptTemplate": "orch.resources.prompt_templates",
    "Question": "orch_protocol.policy.approval",
    "Reply": "orch_protocol.core.messages",
    "MapProgress": "orch.api.fan_out",
    "MapResult": "orch.api.fan_out",
    "Returned": "orch.api.structured_output",
    "SandboxConfig": "orch_protocol.policy.sandbox",
    "ScriptedBackend": "orch_worker.backends.offline.scripted",
    "Session": "orch.api.sync",
    "Skill": "orch.resources.skills",
    "SkillsConfig": "orch_protocol.resources.skills",
    "Subagent": "orch.api.sync",
    "SubagentsConfig": "orch_protocol.agent.config",
    "SummaryConfig": "orch_protocol.agent.config",
    "TaintConfig": "orch_protocol.core.taint",
    "ToolContext": "orch_worker.tools.api.base",
    "ToolLimits": "orch_protocol.policy.sandbox",
    "ToolOutput": "orch_worker.tools.api.base",
    "ToolSpec": "orch_protocol.agent.spec",
    "Executor": "orch_worker.tools.api.executor",
    "TriggerConfig": "orch_protocol.agent.config",
    "Usage": "orch_protocol.core.messages",
    "Verdict": "orch_protocol.policy.policy",
    "WorkspaceConfig": "orch_protocol.core.workspace",
    "hook": "orch_worker.hooks.hook",
    "tool": "orch_worker.tools.api.base",
    "BackendInfo": "orch_worker.backends.base",
    "BackendOptions": "orch_worker.backends.custom.contract",
    "BackendRequest": "orch_worker.backends.custom.contract",
    "CustomBackend": "orch_worker.backends.custom.contract",
    "Stop": "orch_worker.backends.custom.contract",
    "ChildCompactionConfig": "orch_protocol.agent.config",
    "DaemonConfig": "orch_protocol.agent.config",
    "EnvironmentConfig": "orch_protocol.agent.config",
    "ExtensionsConfig": "orch_protocol.agent.config",
    "LimitsConfig": "orch_protocol.agent.config",
    "CompletionChecklist": "orch_protocol.hooks.options",
    "ContentSafety": "orch_protocol.hooks.options",
    "CostTracker": "orch_protocol.hooks.options",
    "InjectionGuard": "orch_protocol.hooks.options",
    "LoopDetection": "orch_protocol.hooks.options",
    "ModelRouter": "orch_protocol.hooks.options",
    "NarrationGuard": "orch_protocol.hooks.options",
    "OutputSandbox": "orch_protocol.hooks.options",
    "Summarization": "orch_protocol.hooks.options",
    "ToolRouter": "orch_protocol.hooks.options",
} | {name: "orch_protocol.core.errors" for name in __all__ if name.endswith("Error")}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'orch' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
