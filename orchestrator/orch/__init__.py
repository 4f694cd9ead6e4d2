"""Subagents as real operating-system processes.

    from orch import Orchestrator

    with Orchestrator() as o:
        agent = o.spawn("Explain this repo")
        print(agent.query("What does README promise?").text)

Names are imported when first used: importing orch costs nothing and does nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing it, and importlib below, would cost the command line a third of its time
if TYPE_CHECKING:
    from typing import Any

    from orch_protocol.agent.config import (
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
    from orch_protocol.agent.spec import Limits
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
    )
    from orch_protocol.core.messages import Message, Reply, Usage
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
    from orch_protocol.resources.slash_commands import Effect, Executed
    from orch_protocol.wire.tool_events import CallEvent
    from orch_worker.backends.offline.scripted import ScriptedBackend
    from orch_worker.hooks.hook import hook
    from orch_worker.tools.api.base import ToolContext, ToolOutput, tool

    from .api.agent import AsyncSubagent
    from .api.archiver import Archiver
    from .api.orchestrator import AsyncOrchestrator, AsyncSession
    from .api.structured_output import Returned
    from .api.sync import Orchestrator, Session, Subagent
    from .resources.prompt_templates import PromptTemplate
    from .resources.skills import Skill

__all__ = [
    "Abort",
    "AgentBusyError",
    "AgentDiedError",
    "AgentError",
    "AgentGoneError",
    "AgentNotFoundError",
    "AmbiguousRefError",
    "Approve",
    "ArchivalConfig",
    "ArchiveDeletedError",
    "Archiver",
    "Assess",
    "AssessRule",
    "AsyncOrchestrator",
    "AsyncSession",
    "AsyncSubagent",
    "BackendError",
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
    "DaemonConfig",
    "DamagedError",
    "DepthCapError",
    "Effect",
    "EntryNotFoundError",
    "EnvironmentConfig",
    "Executed",
    "ExtensionsConfig",
    "ForeignFileError",
    "HooksConfig",
    "InjectionGuard",
    "LaunchError",
    "Limits",
    "LimitsConfig",
    "LockedError",
    "LoopDetection",
    "MemoryConfig",
    "Message",
    "MessageTooLargeError",
    "ModelRouter",
    "NarrationGuard",
    "NoResultError",
    "NoValueError",
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
    "StoreError",
    "Subagent",
    "SubagentsConfig",
    "Summarization",
    "SummaryConfig",
    "TaintConfig",
    "ToolContext",
    "ToolLimits",
    "ToolNotGrantedError",
    "ToolOutput",
    "ToolRouter",
    "TriggerConfig",
    "TruncatedReplyError",
    "UnsupportedPlatformError",
    "Usage",
    "Verdict",
    "VersionMismatchError",
    "WorkspaceConfig",
    "hook",
    "tool",
]

_HOMES = {
    "Abort": "orch_protocol.hooks.stages",
    "Approve": "orch_protocol.hooks.stages",
    "Block": "orch_protocol.hooks.stages",
    "ArchivalConfig": "orch_protocol.agent.config",
    "Archiver": "orch.api.archiver",
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
    "Executed": "orch_protocol.resources.slash_commands",
    "HooksConfig": "orch_protocol.agent.config",
    "Limits": "orch_protocol.agent.spec",
    "MemoryConfig": "orch_protocol.resources.memory",
    "Message": "orch_protocol.core.messages",
    "Orchestrator": "orch.api.sync",
    "Reflect": "orch_protocol.core.phases",
    "ReflectRule": "orch_protocol.core.phases",
    "PolicyCall": "orch_protocol.policy.policy",
    "PolicyConfig": "orch_protocol.policy.policy",
    "PromptConfig": "orch_protocol.core.prompts",
    "PromptPart": "orch_protocol.core.prompts",
    "PromptTemplate": "orch.resources.prompt_templates",
    "Question": "orch_protocol.policy.approval",
    "Reply": "orch_protocol.core.messages",
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
    "TriggerConfig": "orch_protocol.agent.config",
    "Usage": "orch_protocol.core.messages",
    "Verdict": "orch_protocol.policy.policy",
    "WorkspaceConfig": "orch_protocol.core.workspace",
    "hook": "orch_worker.hooks.hook",
    "tool": "orch_worker.tools.api.base",
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
