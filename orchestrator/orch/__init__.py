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

    from orch_protocol.approval import Consent, Question
    from orch_protocol.budget import Budget
    from orch_protocol.config import (
        ArchivalConfig,
        BudgetConfig,
        ChildCompactionConfig,
        CompactionConfig,
        Config,
        DaemonConfig,
        ExtensionsConfig,
        HooksConfig,
        LimitsConfig,
        SubagentsConfig,
        SummaryConfig,
        TriggerConfig,
    )
    from orch_protocol.errors import (
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
    from orch_protocol.hook_options import (
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
    from orch_protocol.hook_patches import Abort, Approve, Block
    from orch_protocol.memory import MemoryConfig
    from orch_protocol.messages import Message, Reply, Usage
    from orch_protocol.observing import CallEvent
    from orch_protocol.phases import Assess, AssessRule, Reflect, ReflectRule
    from orch_protocol.policy import PolicyCall, PolicyConfig, Verdict
    from orch_protocol.project import ContextConfig
    from orch_protocol.prompts import PromptConfig, PromptPart
    from orch_protocol.sandbox import SandboxConfig, ToolLimits
    from orch_protocol.skills import SkillsConfig
    from orch_protocol.slash import Effect, Executed
    from orch_protocol.spec import Limits
    from orch_protocol.taint import TaintConfig
    from orch_protocol.workspace import WorkspaceConfig
    from orch_worker.backends.scripted import ScriptedBackend
    from orch_worker.hooks import hook
    from orch_worker.tools.base import ToolContext, ToolOutput, tool

    from .aio import AsyncOrchestrator
    from .archival.archiver import Archiver
    from .conversing import AsyncSession
    from .handles import AsyncSubagent
    from .returned import Returned
    from .skills.skill import Skill
    from .sync import Orchestrator
    from .sync_handles import Session, Subagent
    from .templates import PromptTemplate

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
    "DaemonConfig",
    "DamagedError",
    "DepthCapError",
    "Effect",
    "EntryNotFoundError",
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
    "Abort": "orch_protocol.hooks",
    "Approve": "orch_protocol.hooks",
    "Block": "orch_protocol.hooks",
    "ArchivalConfig": "orch_protocol.config",
    "Archiver": "orch.archival.archiver",
    "AsyncOrchestrator": "orch.aio",
    "AsyncSession": "orch.conversing",
    "AsyncSubagent": "orch.handles",
    "Budget": "orch_protocol.budget",
    "BudgetConfig": "orch_protocol.config",
    "CallEvent": "orch_protocol.observing",
    "CompactionConfig": "orch_protocol.config",
    "Config": "orch_protocol.config",
    "Assess": "orch_protocol.phases",
    "AssessRule": "orch_protocol.phases",
    "Consent": "orch_protocol.approval",
    "ContextConfig": "orch_protocol.project",
    "Effect": "orch_protocol.slash",
    "Executed": "orch_protocol.slash",
    "HooksConfig": "orch_protocol.config",
    "Limits": "orch_protocol.spec",
    "MemoryConfig": "orch_protocol.memory",
    "Message": "orch_protocol.messages",
    "Orchestrator": "orch.sync",
    "Reflect": "orch_protocol.phases",
    "ReflectRule": "orch_protocol.phases",
    "PolicyCall": "orch_protocol.policy",
    "PolicyConfig": "orch_protocol.policy",
    "PromptConfig": "orch_protocol.prompts",
    "PromptPart": "orch_protocol.prompts",
    "PromptTemplate": "orch.templates",
    "Question": "orch_protocol.approval",
    "Reply": "orch_protocol.messages",
    "Returned": "orch.returned",
    "SandboxConfig": "orch_protocol.sandbox",
    "ScriptedBackend": "orch_worker.backends.scripted",
    "Session": "orch.sync_handles",
    "Skill": "orch.skills.skill",
    "SkillsConfig": "orch_protocol.skills",
    "Subagent": "orch.sync_handles",
    "SubagentsConfig": "orch_protocol.config",
    "SummaryConfig": "orch_protocol.config",
    "TaintConfig": "orch_protocol.taint",
    "ToolContext": "orch_worker.tools.base",
    "ToolLimits": "orch_protocol.sandbox",
    "ToolOutput": "orch_worker.tools.base",
    "TriggerConfig": "orch_protocol.config",
    "Usage": "orch_protocol.messages",
    "Verdict": "orch_protocol.policy",
    "WorkspaceConfig": "orch_protocol.workspace",
    "hook": "orch_worker.hooks",
    "tool": "orch_worker.tools.base",
    "ChildCompactionConfig": "orch_protocol.config",
    "DaemonConfig": "orch_protocol.config",
    "ExtensionsConfig": "orch_protocol.config",
    "LimitsConfig": "orch_protocol.config",
    "CompletionChecklist": "orch_protocol.hook_options",
    "ContentSafety": "orch_protocol.hook_options",
    "CostTracker": "orch_protocol.hook_options",
    "InjectionGuard": "orch_protocol.hook_options",
    "LoopDetection": "orch_protocol.hook_options",
    "ModelRouter": "orch_protocol.hook_options",
    "NarrationGuard": "orch_protocol.hook_options",
    "OutputSandbox": "orch_protocol.hook_options",
    "Summarization": "orch_protocol.hook_options",
    "ToolRouter": "orch_protocol.hook_options",
} | {name: "orch_protocol.errors" for name in __all__ if name.endswith("Error")}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'orch' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
