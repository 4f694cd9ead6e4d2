"""Sandbox levels of agents: the configured, the required and the available level."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orch import SandboxError
from orch.api import orchestrator
from orch.policy.caller import USER, AgentCaller
from orch.policy.sandbox import (
    available_sandbox,
    check_required_levels,
    configured_sandbox,
    strictest_combination,
    with_minimum_level,
    with_path_hiding_support,
)
from orch.services import call
from orch.services.agents import spawn
from orch.tree.agents.state import AgentRecord
from orch_protocol.agent.config import Config
from orch_protocol.core.errors import ConfigError
from orch_protocol.policy.policy import PolicyConfig
from orch_protocol.policy.sandbox import SandboxConfig, SandboxSpec, ToolLimits
from orch_protocol.services.agents.spawn import SPAWN, Spawn
from orch_worker.sandbox.probe import AvailableLevels
from orchestrator.root_double import NEST, World, nesting, opened
from virtual_clock import virtual

SOME = AvailableLevels({"L3": "bubblewrap is not installed"})
FEW = AvailableLevels({"L2": "no Landlock", "L3": "no namespaces"})


def unasked() -> AvailableLevels:
    """Fail, because the test must not probe the machine."""
    raise AssertionError


def test_tool_setting_overrides_preset_and_default() -> None:
    """The most specific setting applies."""
    config = SandboxConfig("L1", presets={"work": "L2"}, tools={"bash": "L3"}, read=("data",))
    assert [configured_sandbox(config, preset).of(tool) for preset in ("", "work") for tool in ("bash", "py_help")] == [
        *("L3", "L1"),
        *("L3", "L2"),
    ]
    assert configured_sandbox(config, "").read == ("data",)


def test_required_level_is_a_minimum() -> None:
    """The minimum applies to every preset and tool."""
    config = SandboxConfig("L2", require=True, presets={"work": "L1"}, tools={"bash": "L0", "py_help": "L3"})
    assert [configured_sandbox(config, "work").of(tool) for tool in ("bash", "py_help", "git_log")] == [
        "L2",
        "L3",
        "L2",
    ]
    raised_ = with_minimum_level(SandboxConfig("L3", tools={"bash": "L0"}), "L2")
    assert (raised_.level, raised_.require, raised_.tools) == ("L3", True, {"bash": "L2"})


def test_merged_rules_are_the_stricter_of_each() -> None:
    """Levels, network, paths and limits are merged one by one."""
    one = SandboxSpec("L1", {"bash": "L3"}, True, ("a", "b"), ("c",), ToolLimits(cpu_seconds=5))
    other = SandboxSpec("L2", {"py_help": "L1"}, False, ("b",), (), ToolLimits(cpu_seconds=9, memory_mb=100))
    both = strictest_combination(one, other)
    assert both == strictest_combination(other, one)
    assert [both.of(tool) for tool in ("bash", "py_help", "git_log")] == ["L3", "L1", "L2"]
    assert (both.network, both.read, both.write) == (False, ("b",), ())
    assert both.limits == ToolLimits(cpu_seconds=5, memory_mb=100)


def test_machine_is_not_probed_without_a_sandbox() -> None:
    """The probe is not called for agents without a sandbox."""
    spec = SandboxSpec(limits=ToolLimits(cpu_seconds=5))
    assert available_sandbox(spec, (), unasked, require=True) == (spec, "")
    check_required_levels(SandboxConfig("L3"), unasked)


def test_weaker_level_is_reported() -> None:
    """The note contains the available level and the reason. A stronger level replaces an unavailable weaker one
    silently."""
    spec, note = available_sandbox(SandboxSpec("L3", {"bash": "L1"}), (), lambda: SOME, require=False)
    assert spec == SandboxSpec("L2", {"bash": "L1"})
    assert note == ("sandbox level L3 is not available here (no L3: bubblewrap is not installed); tools run at L2")
    assert available_sandbox(SandboxSpec("L2"), (), lambda: AvailableLevels({"L2": "no Landlock"}), require=True) == (
        SandboxSpec("L3"),
        "",
    )


def test_less_than_the_required_level_is_refused() -> None:
    """The error contains the missing features and the command that diagnoses them."""
    complaint = r"level L2 is required, but this machine supports L1 \(no L2: no Landlock; no L3: no names.*orch doctor"
    with pytest.raises(SandboxError, match=complaint):
        available_sandbox(SandboxSpec("L2"), (), lambda: FEW, require=True)
    with pytest.raises(SandboxError, match=complaint):
        check_required_levels(SandboxConfig("L2", require=True), lambda: FEW)
    with pytest.raises(SandboxError):
        check_required_levels(SandboxConfig("L0", tools={"bash": "L3"}, require=True), lambda: SOME)
    check_required_levels(SandboxConfig("L2", require=True), lambda: SOME)


def test_run_python_is_left_out_where_it_cannot_be_sandboxed() -> None:
    """The note of an agent with `run_python` recommends `run_python_script`."""
    assert (
        "use run_python_script" in available_sandbox(SandboxSpec("L2"), ("run_python",), lambda: SOME, require=False)[1]
    )
    assert available_sandbox(SandboxSpec("L2"), ("bash",), lambda: SOME, require=False)[1] == ""
    free = SandboxSpec("L2", {"run_python": "L0"})
    assert available_sandbox(free, ("run_python",), lambda: SOME, require=False) == (free, "")


def on(monkeypatch: pytest.MonkeyPatch, offer: AvailableLevels) -> None:
    """Replace the sandbox levels of the machine by `offer`."""
    for module in (spawn, orchestrator):
        monkeypatch.setattr(module, "available_levels", lambda: offer)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that supports only L1."""
    on(monkeypatch, FEW)


@pytest.fixture
def some(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that supports L1 and L2."""
    on(monkeypatch, SOME)


@virtual
@pytest.mark.usefixtures("few")
async def test_agent_is_refused_where_its_required_level_is_missing(tmp_path: Path) -> None:
    """The spawn raises SandboxError and creates no agent. Without the requirement, the agent has a lower level."""
    async with opened(tmp_path) as world:
        with pytest.raises(SandboxError, match="level L2 is required"):
            await spawned(world, SandboxConfig("L2", require=True))
        assert await world.agents(all=True) == []
        node, note = await spawned(world, SandboxConfig("L2"))
        assert "tools run at L1" in note
        assert node.spec.sandbox.level == (await world.agents())[0].sandbox == "L1"


@virtual
@pytest.mark.usefixtures("few")
async def test_weaker_sandbox_is_reported_once_per_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report on stderr appears once for any number of agents."""
    async with opened(tmp_path, config=Config(sandbox=SandboxConfig("L3"))) as world:
        for _ in range(3):
            await world.scripted()
    assert capsys.readouterr().err.count("orch: sandbox level L3 is not available here") == 1


@virtual
@pytest.mark.usefixtures("few")
async def test_root_does_not_start_below_its_required_level(tmp_path: Path) -> None:
    """The start raises SandboxError and creates no files."""
    world = World(tmp_path / "home", config=Config(sandbox=SandboxConfig("L3", require=True)))
    with pytest.raises(SandboxError, match="level L3 is required"):
        await world.start()
    assert not (tmp_path / "home").exists()


@virtual
@pytest.mark.usefixtures("some")
async def test_required_level_of_the_root_applies_to_all_callers(tmp_path: Path) -> None:
    """A caller may request a higher level."""
    config = Config(sandbox=SandboxConfig("L1", require=True))
    async with opened(tmp_path, config=config) as world:
        asked = (None, SandboxConfig("L0"), SandboxConfig("L2"), SandboxConfig("L1", tools={"bash": "L0"}))
        nodes = [(await spawned(world, each))[0] for each in asked]
    assert [node.spec.sandbox.of("bash") for node in nodes] == ["L1", "L1", "L2", "L1"]


@virtual
@pytest.mark.usefixtures("some")
async def test_children_are_sandboxed_at_least_like_their_parents(tmp_path: Path) -> None:
    """At any depth, the sandbox equals that of the parent, even if the agent requests a weaker one."""
    async with opened(tmp_path, config=nesting()) as world:
        node, _ = await spawned(world, SandboxConfig("L2", tools={"bash": "L1"}), tools=("bash", *NEST))
        for _ in range(2):
            asked = Spawn("t", tools=("bash", *NEST), sandbox=SandboxConfig("L0", network=True))
            child = await call(world.supervisor, AgentCaller(node.spec.id), SPAWN, asked)
            above, node = node, world.supervisor.tree.agents[child.id]
            assert node.spec.sandbox == above.spec.sandbox
    assert (node.spec.sandbox.level, node.spec.sandbox.network) == ("L2", False)


async def spawned(world: World, sandbox: SandboxConfig | None, **more: Any) -> tuple[AgentRecord, str]:
    """Spawn an agent as the command line does. Return the agent and the note about its sandbox."""
    made = await call(world.supervisor, USER, SPAWN, Spawn("t", sandbox=sandbox, **more))
    return world.supervisor.tree.agents[made.id], made.note


def unasked_mounts() -> str:
    """Fail, because the test must not probe the machine."""
    raise AssertionError


def test_mount_namespaces_are_probed_only_for_agents_that_run_code() -> None:
    """An agent with `read_file` only does not need the probe."""
    spec = SandboxSpec()
    assert with_path_hiding_support(spec, ("read_file",), unasked_mounts, PolicyConfig(denied_paths=("a",))) == (
        spec,
        "",
    )
    for tool in ("bash", "run_python"):
        assert with_path_hiding_support(spec, (tool,), str, PolicyConfig()) == (SandboxSpec(covers_paths=True), "")


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (PolicyConfig(), "commands can read"),
        (PolicyConfig(denied_paths=("a",)), "commands can read"),
        (PolicyConfig(denied_paths=("a",), require_denied_paths=True), "commands are refused"),
    ],
)
def test_missing_mount_namespaces_are_reported(policy: PolicyConfig, expected: str) -> None:
    """The note contains the consequence."""
    spec, note = with_path_hiding_support(SandboxSpec(), ("bash",), lambda: "no namespaces", policy)
    assert spec.covers_paths is False
    assert note.startswith(f"denied paths: by name only (no namespaces): {expected}")


def test_missing_mount_namespaces_are_reported_for_run_python_beside_denied_paths() -> None:
    """An agent with `run_python` and without commands can read denied files, too."""
    policy = PolicyConfig(denied_paths=("a",))
    spec, note = with_path_hiding_support(SandboxSpec(), ("run_python",), lambda: "no namespaces", policy)
    assert spec.covers_paths is False
    assert note.startswith("denied paths: by name only (no namespaces)")
    assert "run_python" in note
    assert with_path_hiding_support(SandboxSpec(), ("run_python",), str, policy) == (SandboxSpec(covers_paths=True), "")


@pytest.mark.parametrize(
    ("why", "tools", "state", "expected"),
    [
        ("", ("bash",), "unreadable", False),
        ("no namespaces", ("bash",), "by name only", True),
        ("no namespaces", ("read_file",), "", False),
    ],
)
@virtual
async def test_spawn_and_state_report_protection_of_denied_paths(
    tmp_path: Path, why: str, tools: tuple[str, ...], state: str, expected: bool
) -> None:
    """Subagents have the same state."""
    async with opened(tmp_path, config=nesting()) as world:
        world.supervisor.mount_namespace_problem = lambda: why
        node, note = await spawned(world, None, tools=(*tools, *NEST))
        await call(world.supervisor, AgentCaller(node.spec.id), SPAWN, Spawn("t", tools=tools))
        assert [row.denied_paths for row in await world.agents(all=True)] == [state] * 2
    assert ("denied paths: by name only (no namespaces)" in note) is expected


@virtual
async def test_only_programs_and_users_name_usable_credentials(tmp_path: Path) -> None:
    """A request of an agent has no effect. Its children have the paths of the first agent."""
    async with opened(tmp_path, config=nesting()) as world:
        node, _ = await spawned(world, None, tools=NEST, usable_credentials=("~/.ssh",))
        with pytest.raises(ConfigError, match=r"usable_credentials contains '\$HOME/.ssh', but variables"):
            await spawned(world, None, usable_credentials=("$HOME/.ssh",))
        asked = Spawn("t", tools=NEST, usable_credentials=("~/.kube",))
        child = world.supervisor.tree.agents[(await call(world.supervisor, AgentCaller(node.spec.id), SPAWN, asked)).id]
        assert node.spec.policy.rules.usable_credentials == ("~/.ssh",)
        assert child.spec.policy.rules.usable_credentials == ("~/.ssh",)
