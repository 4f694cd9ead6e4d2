"""At which level an agent's tools run: what is wanted, what is required, and what the machine has."""

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
    stricter,
    with_hidden_paths,
    with_minimum_level,
)
from orch.services import call
from orch.services.agents import spawn
from orch.tree.agents.state import AgentRecord
from orch_protocol.agent.config import Config
from orch_protocol.policy.policy import PolicyConfig
from orch_protocol.policy.sandbox import SandboxConfig, SandboxSpec, ToolLimits
from orch_protocol.services.requests import SPAWN, Spawn
from orch_worker.sandbox.probe import AvailableLevels
from orchestrator.root_double import NEST, World, nesting, opened
from virtual_clock import virtual

SOME = AvailableLevels({"L3": "bubblewrap is not installed"})
FEW = AvailableLevels({"L2": "no Landlock", "L3": "no namespaces"})


def unasked() -> AvailableLevels:
    """A machine that must not be tried."""
    raise AssertionError


def test_a_tool_beats_a_preset_and_a_preset_the_rest() -> None:
    """What is said more exactly counts."""
    config = SandboxConfig("L1", presets={"work": "L2"}, tools={"bash": "L3"}, read=("data",))
    assert [configured_sandbox(config, preset).of(tool) for preset in ("", "work") for tool in ("bash", "py_help")] == [
        *("L3", "L1"),
        *("L3", "L2"),
    ]
    assert configured_sandbox(config, "").read == ("data",)


def test_what_is_required_is_the_least() -> None:
    """No preset and no tool gets below the level, and whoever raises it requires it."""
    config = SandboxConfig("L2", require=True, presets={"work": "L1"}, tools={"bash": "L0", "py_help": "L3"})
    assert [configured_sandbox(config, "work").of(tool) for tool in ("bash", "py_help", "git_log")] == [
        "L2",
        "L3",
        "L2",
    ]
    raised_ = with_minimum_level(SandboxConfig("L3", tools={"bash": "L0"}), "L2")
    assert (raised_.level, raised_.require, raised_.tools) == ("L3", True, {"bash": "L2"})


def test_two_rules_together_are_the_stricter_of_each() -> None:
    """Levels, network, paths, limits."""
    one = SandboxSpec("L1", {"bash": "L3"}, True, ("a", "b"), ("c",), ToolLimits(cpu_seconds=5))
    other = SandboxSpec("L2", {"py_help": "L1"}, False, ("b",), (), ToolLimits(cpu_seconds=9, memory_mb=100))
    both = stricter(one, other)
    assert both == stricter(other, one)
    assert [both.of(tool) for tool in ("bash", "py_help", "git_log")] == ["L3", "L1", "L2"]
    assert (both.network, both.read, both.write) == (False, ("b",), ())
    assert both.limits == ToolLimits(cpu_seconds=5, memory_mb=100)


def test_a_machine_is_not_tried_when_nothing_is_asked_of_it() -> None:
    """Agents without a sandbox cost what they did."""
    spec = SandboxSpec(limits=ToolLimits(cpu_seconds=5))
    assert available_sandbox(spec, (), unasked, require=True) == (spec, "")
    check_required_levels(SandboxConfig("L3"), unasked)


def test_less_than_was_asked_for_is_told() -> None:
    """The level that there is, and why not the other; what there is more of is taken as it is."""
    spec, note = available_sandbox(SandboxSpec("L3", {"bash": "L1"}), (), lambda: SOME, require=False)
    assert spec == SandboxSpec("L2", {"bash": "L1"})
    assert note == ("sandbox level L3 cannot be had here (no L3: bubblewrap is not installed): tools run at L2")
    assert available_sandbox(SandboxSpec("L2"), (), lambda: AvailableLevels({"L2": "no Landlock"}), require=True) == (
        SandboxSpec("L3"),
        "",
    )


def test_less_than_is_required_is_refused() -> None:
    """With what is missing, and what to do; nothing is run at less."""
    complaint = r"level L2 is required, and this machine has L1 \(no L2: no Landlock; no L3: no names.*orch doctor"
    with pytest.raises(SandboxError, match=complaint):
        available_sandbox(SandboxSpec("L2"), (), lambda: FEW, require=True)
    with pytest.raises(SandboxError, match=complaint):
        check_required_levels(SandboxConfig("L2", require=True), lambda: FEW)
    with pytest.raises(SandboxError):
        check_required_levels(SandboxConfig("L0", tools={"bash": "L3"}, require=True), lambda: SOME)
    check_required_levels(SandboxConfig("L2", require=True), lambda: SOME)


def test_who_asks_for_code_in_the_worker_is_told_that_it_is_left_out() -> None:
    """Nothing can hold it there; whoever granted it by name hears so, unless it may run as it is."""
    assert (
        "run_python_script takes"
        in available_sandbox(SandboxSpec("L2"), ("run_python",), lambda: SOME, require=False)[1]
    )
    assert available_sandbox(SandboxSpec("L2"), ("bash",), lambda: SOME, require=False)[1] == ""
    free = SandboxSpec("L2", {"run_python": "L0"})
    assert available_sandbox(free, ("run_python",), lambda: SOME, require=False) == (free, "")


def on(monkeypatch: pytest.MonkeyPatch, offer: AvailableLevels) -> None:
    """Let the root be on a machine that has what `offer` says."""
    for module in (spawn, orchestrator):
        monkeypatch.setattr(module, "available_levels", lambda: offer)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with little."""
    on(monkeypatch, FEW)


@pytest.fixture
def some(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with some of it."""
    on(monkeypatch, SOME)


@virtual
@pytest.mark.usefixtures("few")
async def test_an_agent_is_refused_where_its_level_is_not(tmp_path: Path) -> None:
    """Required by whoever spawns it: SandboxError, and no agent is there."""
    async with opened(tmp_path) as world:
        with pytest.raises(SandboxError, match="level L2 is required"):
            await spawned(world, SandboxConfig("L2", require=True))
        assert await world.agents(all=True) == []
        node, note = await spawned(world, SandboxConfig("L2"))
        assert "tools run at L1" in note
        assert node.spec.sandbox.level == (await world.agents())[0].sandbox == "L1"


@virtual
@pytest.mark.usefixtures("few")
async def test_a_program_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On stderr, however many agents it spawns."""
    async with opened(tmp_path, config=Config(sandbox=SandboxConfig("L3"))) as world:
        for _ in range(3):
            await world.scripted()
    assert capsys.readouterr().err.count("orch: sandbox level L3 cannot be had here") == 1


@virtual
@pytest.mark.usefixtures("few")
async def test_a_root_does_not_start_where_what_it_requires_is_not(tmp_path: Path) -> None:
    """Before anything was made."""
    world = World(tmp_path / "home", config=Config(sandbox=SandboxConfig("L3", require=True)))
    with pytest.raises(SandboxError, match="level L3 is required"):
        await world.start()
    assert not (tmp_path / "home").exists()


@virtual
@pytest.mark.usefixtures("some")
async def test_what_the_root_requires_holds_for_whoever_asks(tmp_path: Path) -> None:
    """A caller may ask for more than the root requires, and gets no less."""
    config = Config(sandbox=SandboxConfig("L1", require=True))
    async with opened(tmp_path, config=config) as world:
        asked = (None, SandboxConfig("L0"), SandboxConfig("L2"), SandboxConfig("L1", tools={"bash": "L0"}))
        nodes = [(await spawned(world, each))[0] for each in asked]
    assert [node.spec.sandbox.of("bash") for node in nodes] == ["L1", "L1", "L2", "L1"]


@virtual
@pytest.mark.usefixtures("some")
async def test_children_are_confined_as_their_parents_are(tmp_path: Path) -> None:
    """Whatever an agent asks for: at any depth its children's tools are kept from no less than its own."""
    async with opened(tmp_path, config=nesting()) as world:
        node, _ = await spawned(world, SandboxConfig("L2", tools={"bash": "L1"}), tools=("bash", *NEST))
        for _ in range(2):
            asked = Spawn("t", tools=("bash", *NEST), sandbox=SandboxConfig("L0", network=True))
            child = await call(world.supervisor, AgentCaller(node.spec.id), SPAWN, asked)
            above, node = node, world.supervisor.tree.agents[child.id]
            assert node.spec.sandbox == above.spec.sandbox
    assert (node.spec.sandbox.level, node.spec.sandbox.network) == ("L2", False)


async def spawned(world: World, sandbox: SandboxConfig | None, **more: Any) -> tuple[AgentRecord, str]:
    """Spawn as the command line does; return the agent and what is said of its sandbox."""
    made = await call(world.supervisor, USER, SPAWN, Spawn("t", sandbox=sandbox, **more))
    return world.supervisor.tree.agents[made.id], made.note


def unasked_mounts() -> str:
    """A machine that must not be tried."""
    raise AssertionError


def test_mount_namespaces_are_looked_for_only_where_code_runs() -> None:
    """Other agents start no faster or slower for it."""
    spec = SandboxSpec()
    assert with_hidden_paths(spec, ("read_file",), unasked_mounts, PolicyConfig(denied_paths=("a",))) == (spec, "")
    for tool in ("bash", "run_python"):
        assert with_hidden_paths(spec, (tool,), str, PolicyConfig()) == (SandboxSpec(covers_paths=True), "")


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (PolicyConfig(), "commands can read"),
        (PolicyConfig(denied_paths=("a",)), "commands can read"),
        (PolicyConfig(denied_paths=("a",), require_denied_paths=True), "commands are refused"),
    ],
)
def test_missing_mount_namespaces_are_reported(policy: PolicyConfig, said: str) -> None:
    """With what follows from it."""
    spec, note = with_hidden_paths(SandboxSpec(), ("bash",), lambda: "no namespaces", policy)
    assert spec.covers_paths is False
    assert note.startswith(f"denied paths: by name only (no namespaces): {said}")


def test_missing_mount_namespaces_are_reported_for_run_python_beside_denied_paths() -> None:
    """An agent that has it and no commands can read denied files too."""
    policy = PolicyConfig(denied_paths=("a",))
    spec, note = with_hidden_paths(SandboxSpec(), ("run_python",), lambda: "no namespaces", policy)
    assert spec.covers_paths is False
    assert note.startswith("denied paths: by name only (no namespaces)")
    assert "run_python" in note
    assert with_hidden_paths(SandboxSpec(), ("run_python",), str, policy) == (SandboxSpec(covers_paths=True), "")


@pytest.mark.parametrize(
    ("why", "tools", "state", "said"),
    [
        ("", ("bash",), "unreadable", False),
        ("no namespaces", ("bash",), "by name only", True),
        ("no namespaces", ("read_file",), "", False),
    ],
)
@virtual
async def test_spawn_and_state_say_how_denied_paths_hold(
    tmp_path: Path, why: str, tools: tuple[str, ...], state: str, said: bool
) -> None:
    """Also of the agents below it."""
    async with opened(tmp_path, config=nesting()) as world:
        world.supervisor.mounts_missing = lambda: why
        node, note = await spawned(world, None, tools=(*tools, *NEST))
        await call(world.supervisor, AgentCaller(node.spec.id), SPAWN, Spawn("t", tools=tools))
        assert [row.denied_paths for row in await world.agents(all=True)] == [state] * 2
    assert ("denied paths: by name only (no namespaces)" in note) is said


@virtual
async def test_only_programs_and_users_name_usable_credentials(tmp_path: Path) -> None:
    """What an agent says of them is not heard; its children have what it has."""
    async with opened(tmp_path, config=nesting()) as world:
        node, _ = await spawned(world, None, tools=NEST, usable_credentials=("~/.ssh",))
        asked = Spawn("t", tools=NEST, usable_credentials=("~/.kube",))
        child = world.supervisor.tree.agents[(await call(world.supervisor, AgentCaller(node.spec.id), SPAWN, asked)).id]
        assert node.spec.policy.rules.usable_credentials == ("~/.ssh",)
        assert child.spec.policy.rules.usable_credentials == ("~/.ssh",)
