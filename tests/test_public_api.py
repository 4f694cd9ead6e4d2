"""The public names of `orch`. The list is exact, and the blocking and asynchronous classes have the same methods."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from msgspec import Struct
from msgspec.structs import fields

import orch
from orch.api import sync
from orch.api.agent_session import AsyncAgentSession
from orch.api.resources.agent_queue import AsyncAgentQueue
from orch.api.resources.agent_workspace import AsyncAgentWorkspace
from orch.api.resources.archives import AsyncArchives
from orch.api.resources.budget import AsyncRunBudget
from orch.api.resources.hooks import Hooks
from orch.api.resources.permissions import AsyncPermissions
from orch.api.resources.prompt_templates import PromptTemplates
from orch.api.resources.skills import Skills
from orch.api.sessions import AsyncSessions
from orch_protocol.core import errors
from source_tree import ROOT

PUBLIC = {
    "ApprovalConfig",
    "AgentOptions",
    "Image",
    "Opaque",
    "Text",
    "Thinking",
    "ToolResult",
    "ToolUse",
    "assistant",
    "user",
    "Abort",
    "Approve",
    "ArchivalConfig",
    "Archiver",
    "AsyncArchiver",
    "Assess",
    "AssessRule",
    "AsyncOrchestrator",
    "AsyncSession",
    "AsyncSubagent",
    "BackendInfo",
    "BackendOptions",
    "BackendRequest",
    "Block",
    "Budget",
    "BudgetConfig",
    "CallEvent",
    "ChildCompactionConfig",
    "CompactionConfig",
    "CompletionChecklist",
    "Config",
    "Consent",
    "Executor",
    "Extension",
    "ContentSafety",
    "ContextConfig",
    "CostTracker",
    "CustomBackend",
    "DaemonConfig",
    "Effect",
    "EnvironmentConfig",
    "Executed",
    "ExtensionsConfig",
    "HooksConfig",
    "InjectionGuard",
    "Limits",
    "LimitsConfig",
    "LoopDetection",
    "MemoryConfig",
    "Message",
    "ModelRouter",
    "NarrationGuard",
    "Orchestrator",
    "OutputSandbox",
    "PolicyCall",
    "PolicyConfig",
    "PromptConfig",
    "PromptPart",
    "PromptTemplate",
    "Question",
    "Reflect",
    "ReflectRule",
    "Reply",
    "MapProgress",
    "MapResult",
    "Returned",
    "SandboxConfig",
    "ScriptedBackend",
    "Session",
    "Skill",
    "SkillsConfig",
    "Stop",
    "Subagent",
    "SubagentsConfig",
    "Summarization",
    "SummaryConfig",
    "TaintConfig",
    "ToolContext",
    "ToolLimits",
    "ToolOutput",
    "ToolRouter",
    "ToolSpec",
    "TriggerConfig",
    "Usage",
    "Verdict",
    "WorkspaceConfig",
    "hook",
    "tool",
}
TWINS: list[tuple[type, type]] = [
    (orch.Orchestrator, orch.AsyncOrchestrator),
    (orch.Subagent, orch.AsyncSubagent),
    (orch.Session, orch.AsyncSession),
    (sync.AgentQueue, AsyncAgentQueue),
    (sync.AgentSession, AsyncAgentSession),
    (sync.AgentWorkspace, AsyncAgentWorkspace),
    (sync.Archives, AsyncArchives),
    (sync.Permissions, AsyncPermissions),
    (sync.RunBudget, AsyncRunBudget),
    (sync.Sessions, AsyncSessions),
]
CLASSES = [cls for pair in TWINS for cls in pair] + [Hooks, PromptTemplates, Skills]
ONLY_ASYNC = {
    "start": "a sync orchestrator starts when it is made",
    "supervisor": "what runs in the event loop is touched there alone",
}


def public_methods(cls: type) -> dict[str, Any]:
    """Return the public methods and properties of `cls`, including inherited ones."""
    return {name: value for name, value in inspect.getmembers(cls) if not name.startswith("_")}


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    """Return the name, kind and default of each parameter of `function` after `self`."""
    found = list(inspect.signature(function).parameters.values())
    return [(parameter.name, parameter.kind, parameter.default) for parameter in found if parameter.name != "self"]


def differences(one: type, other: type) -> list[str]:
    """Return the differences between the public methods of two classes in name, kind or parameters."""
    left, right = public_methods(one), public_methods(other)
    found = [f"only one has {name}" for name in sorted(left.keys() ^ right.keys())]
    for name in sorted(left.keys() & right.keys()):
        if callable(left[name]) != callable(right[name]):
            found.append(f"{name} is a method in one, a property in the other")
        elif callable(left[name]) and parameters(left[name]) != parameters(right[name]):
            found.append(f"{name} takes other parameters")
    return found


def test_orch_exports_exactly_this() -> None:
    """`orch` exports its classes and every error, sorted, and nothing else."""
    public_errors = {name for name in errors.__all__ if name.endswith("Error")}
    assert sorted(orch.__all__) == orch.__all__
    assert set(orch.__all__) == PUBLIC | public_errors


def structs(kind: Any) -> Iterator[type[Struct]]:
    """Yield the structs that the type `kind` contains."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        yield kind
        kind = tuple(field.type for field in fields(kind))
    for each in kind if isinstance(kind, tuple) else get_args(kind):
        yield from structs(each)


def test_configuration_structs_are_exported() -> None:
    """The exported structs include the settings of built-in hooks."""
    assert {kind.__name__ for kind in structs(orch.Config)} - set(orch.__all__) == set()


@pytest.mark.parametrize("name", sorted(orch.__all__))
def test_each_export_exists_with_a_docstring(name: str) -> None:
    """Each public name exists and has a docstring whose first line is a sentence."""
    first = (getattr(orch, name).__doc__ or "").strip().partition("\n")[0]
    assert first.endswith((".", ":")), first


@pytest.mark.parametrize(("blocking", "twin"), TWINS)
def test_sync_and_async_are_twins(blocking: type, twin: type) -> None:
    """Each public method has a twin with the same parameters and defaults."""
    allowed = [f"only one has {name}" for name in sorted(ONLY_ASYNC)] if blocking is orch.Orchestrator else []
    assert differences(blocking, twin) == allowed


def test_derived_methods_show_the_blocking_classes() -> None:
    """`help(Orchestrator.spawn)` names the class Subagent as the result, and the class of the method."""
    assert inspect.signature(orch.Orchestrator.spawn).return_annotation == "Subagent"
    assert orch.Orchestrator.spawn.__qualname__ == "Orchestrator.spawn"
    assert inspect.getdoc(orch.Subagent.kill) == inspect.getdoc(orch.AsyncSubagent.kill)
    assert not inspect.iscoroutinefunction(orch.Subagent.kill)


def test_sync_and_async_constructors_match() -> None:
    """Both orchestrators take the same arguments, except the argument that tests of the asynchronous class use."""
    taken = [
        [each for each in parameters(cls) if each[0] != "connect"]
        for cls in (orch.Orchestrator, orch.AsyncOrchestrator)
    ]
    assert taken[0] == taken[1]


@pytest.mark.parametrize("cls", CLASSES)
def test_methods_are_documented(cls: type) -> None:
    """Each public method has a docstring."""
    assert [method for method, value in public_methods(cls).items() if not inspect.getdoc(value)] == []


@pytest.mark.parametrize("cls", CLASSES)
def test_public_methods_take_at_most_two_positional_parameters(cls: type) -> None:
    """Exceptions with three are the groups of an orchestrator, and `emit_event(agent, name, data)`."""
    for method, value in public_methods(cls).items():
        if callable(value):
            places = [kind for _, kind, _ in parameters(value) if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
            three = cls in (sync.Sessions, AsyncSessions) or method == "emit_event"
            assert len(places) <= (3 if three else 2), method


def test_twin_rule_catches() -> None:
    """The check reports a missing method, another default, and a property instead of a method."""

    class One:
        def same(self, ref: str, *, wait: bool = True) -> None: ...
        def other(self, seconds: float = 1) -> None: ...
        def lonely(self) -> None: ...
        def shape(self) -> None: ...

    class Two:
        async def same(self, ref: str, *, wait: bool = True) -> None: ...
        async def other(self, seconds: float = 2) -> None: ...

        shape = property(str)

    assert differences(One, Two) == [
        "only one has lonely",
        "other takes other parameters",
        "shape is a method in one, a property in the other",
    ]


def test_exports_are_a_literal_list() -> None:
    """`orch/__init__.py` defines its list as a literal, so that readers and tools see it."""
    tree = ast.parse((ROOT / "orchestrator" / "orch" / "__init__.py").read_text())
    lists = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert len(lists) == 1
    assert ast.literal_eval(lists[0]) == orch.__all__
