"""What `orch` offers: an exact list, and the same methods with and without `await`."""

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
    "Abort",
    "Approve",
    "Block",
    "Budget",
    "BudgetConfig",
    "ArchivalConfig",
    "Archiver",
    "AsyncOrchestrator",
    "AsyncSession",
    "AsyncSubagent",
    "CallEvent",
    "CompactionConfig",
    "Config",
    "Consent",
    "ContextConfig",
    "Effect",
    "Executed",
    "Assess",
    "AssessRule",
    "Reflect",
    "ReflectRule",
    "HooksConfig",
    "Limits",
    "MemoryConfig",
    "Message",
    "Orchestrator",
    "PolicyCall",
    "PolicyConfig",
    "PromptConfig",
    "PromptPart",
    "PromptTemplate",
    "Question",
    "Reply",
    "Returned",
    "SandboxConfig",
    "ScriptedBackend",
    "Session",
    "Skill",
    "SkillsConfig",
    "Subagent",
    "SubagentsConfig",
    "SummaryConfig",
    "TaintConfig",
    "ToolContext",
    "ToolLimits",
    "ToolOutput",
    "TriggerConfig",
    "Usage",
    "Verdict",
    "WorkspaceConfig",
    "hook",
    "tool",
    "ChildCompactionConfig",
    "DaemonConfig",
    "EnvironmentConfig",
    "ExtensionsConfig",
    "LimitsConfig",
    "CompletionChecklist",
    "ContentSafety",
    "CostTracker",
    "InjectionGuard",
    "LoopDetection",
    "ModelRouter",
    "NarrationGuard",
    "OutputSandbox",
    "Summarization",
    "ToolRouter",
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
    """Return the public methods and properties of `cls`, inherited ones too."""
    return {name: value for name, value in inspect.getmembers(cls) if not name.startswith("_")}


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    """Return name, kind and default of each parameter of `function` behind `self`."""
    found = list(inspect.signature(function).parameters.values())
    return [(parameter.name, parameter.kind, parameter.default) for parameter in found if parameter.name != "self"]


def differences(one: type, other: type) -> list[str]:
    """Return how the public methods of two classes differ in name, kind or parameters."""
    left, right = public_methods(one), public_methods(other)
    found = [f"only one has {name}" for name in sorted(left.keys() ^ right.keys())]
    for name in sorted(left.keys() & right.keys()):
        if callable(left[name]) != callable(right[name]):
            found.append(f"{name} is a method in one, a property in the other")
        elif callable(left[name]) and parameters(left[name]) != parameters(right[name]):
            found.append(f"{name} takes other parameters")
    return found


def test_offers_exactly_this() -> None:
    """`orch` offers its classes and every error, sorted, and nothing else."""
    public_errors = {name for name in errors.__all__ if name.endswith("Error")}
    assert sorted(orch.__all__) == orch.__all__
    assert set(orch.__all__) == PUBLIC | public_errors


def structs(kind: Any) -> Iterator[type[Struct]]:
    """Yield the structs that a value of the type `kind` is made of."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        yield kind
        kind = tuple(field.type for field in fields(kind))
    for each in kind if isinstance(kind, tuple) else get_args(kind):
        yield from structs(each)


def test_all_of_a_configuration_is_written_with_names_of_orch() -> None:
    """Also the settings of each hook that is built in: nobody has to write dictionaries."""
    assert {kind.__name__ for kind in structs(orch.Config)} - set(orch.__all__) == set()


@pytest.mark.parametrize("name", sorted(orch.__all__))
def test_each_name_is_there_and_explained(name: str) -> None:
    """Each public name exists and has a docstring whose first line is a sentence."""
    first = (getattr(orch, name).__doc__ or "").strip().partition("\n")[0]
    assert first.endswith((".", ":")), first


@pytest.mark.parametrize(("blocking", "twin"), TWINS)
def test_sync_and_async_are_twins(blocking: type, twin: type) -> None:
    """Each public method has a twin with the same parameters and defaults."""
    allowed = [f"only one has {name}" for name in sorted(ONLY_ASYNC)] if blocking is orch.Orchestrator else []
    assert differences(blocking, twin) == allowed


def test_derived_methods_show_the_blocking_classes() -> None:
    """`help(Orchestrator.spawn)` says that it returns a Subagent, and is named after its class."""
    assert inspect.signature(orch.Orchestrator.spawn).return_annotation == "Subagent"
    assert orch.Orchestrator.spawn.__qualname__ == "Orchestrator.spawn"
    assert inspect.getdoc(orch.Subagent.kill) == inspect.getdoc(orch.AsyncSubagent.kill)
    assert not inspect.iscoroutinefunction(orch.Subagent.kill)


def test_sync_and_async_are_made_alike() -> None:
    """Both orchestrators take the same arguments, but for the seam that tests of the async one use."""
    taken = [
        [each for each in parameters(cls) if each[0] != "connect"]
        for cls in (orch.Orchestrator, orch.AsyncOrchestrator)
    ]
    assert taken[0] == taken[1]


@pytest.mark.parametrize("cls", CLASSES)
def test_methods_are_documented(cls: type) -> None:
    """Each public method says what it does."""
    assert [method for method, value in public_methods(cls).items() if not inspect.getdoc(value)] == []


@pytest.mark.parametrize("cls", CLASSES)
def test_later_parameters_are_by_name(cls: type) -> None:
    """At most two parameters of a public method can be given by position; three in groups of an orchestrator."""
    for method, value in public_methods(cls).items():
        if callable(value):
            places = [kind for _, kind, _ in parameters(value) if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
            assert len(places) <= (3 if cls in (sync.Sessions, AsyncSessions) else 2), method


def test_twin_rule_catches() -> None:
    """A missing method, another default and a property instead of a method are reported."""

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


def test_nothing_is_exported_by_star_or_accident() -> None:
    """`orch/__init__.py` defines its list as a literal, so that readers and tools see it."""
    tree = ast.parse((ROOT / "orchestrator" / "orch" / "__init__.py").read_text())
    lists = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert len(lists) == 1
    assert ast.literal_eval(lists[0]) == orch.__all__
