"""Sandbox levels of agents: the configured, the required and the available level."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

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
from orch.render.terminal import agent_page
from orch.services import call
from orch.services.agents import spawn
from orch.tree.agents.state import AgentRecord
from orch_protocol.agent.config import Config
from orch_protocol.core.errors import ConfigError, ToolNotGrantedError
from orch_protocol.policy.policy import PolicyConfig
from orch_protocol.policy.sandbox import SandboxConfig, SandboxSpec, ToolLimits
from orch_protocol.services.agents.spawn import SPAWN, Spawn
from orch_protocol.services.agents.status import SHOW_AGENT, ShowAgent
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
    """At any depth, the sandbox equals that of the parent, and the agent cannot request another one."""
    async with opened(tmp_path, config=nesting()) as world:
        node, _ = await spawned(world, SandboxConfig("L2", tools={"bash": "L1"}), tools=("bash", *NEST))
        for _ in range(2):
            asked = Spawn("t", tools=("bash", *NEST), sandbox=SandboxConfig("L0", network=True))
            with pytest.raises(ToolNotGrantedError, match="cannot set 'sandbox'"):
                await call(world.supervisor, AgentCaller(node.spec.id), SPAWN, asked)
            asked = Spawn("t", tools=("bash", *NEST))
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


@pytest.mark.parametrize(
    ("tools", "levels", "expected"),
    [
        (("bash",), {}, True),
        (("run_python_script", "read_file"), {}, True),
        (("bash",), {"bash": "L1"}, True),
        (("bash",), {"bash": "L2"}, False),
        (("bash", "run_python_script"), {"bash": "L3"}, True),
        (("run_python",), {}, False),
    ],
)
def test_commands_that_can_become_the_user_are_reported(
    tools: tuple[str, ...], levels: dict[str, Any], expected: bool
) -> None:
    """Without user namespaces, a command below L2 can end its shim and worker. With namespaces it cannot."""
    spec = SandboxSpec(tools=levels)
    _, note = with_path_hiding_support(spec, tools, lambda: "no namespaces", PolicyConfig())
    assert ("can also end its shim and worker, and then act as the user" in note) is expected
    assert with_path_hiding_support(spec, tools, str, PolicyConfig())[1] == ""
    required = PolicyConfig(denied_paths=("a",), require_denied_paths=True)
    assert "act as the user" not in with_path_hiding_support(spec, tools, lambda: "no namespaces", required)[1]


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
async def test_state_says_why_commands_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state, the list and the page of an agent change with the files, before and after the first command."""
    monkeypatch.setattr("orch_worker.policy.denied_files.MAX_MOUNTS", 1)
    folder = tmp_path / "cwd"
    folder.mkdir()
    config = replace(nesting(), policy=PolicyConfig(denied_paths=("*.pem",)))
    problem = (
        "commands refused: 2 paths are denied, of which at most 1 can be hidden (denied_paths: *.pem: 2); "
        "remove or move files, or name folders instead of patterns in policy.denied_paths"
    )
    async with opened(tmp_path / "home", config=config) as world:
        world.supervisor.mount_namespace_problem = lambda: ""
        node, _ = await spawned(world, None, tools=("bash",), cwd=str(folder))
        reader, _ = await spawned(world, None, tools=("read_file",), cwd=str(folder))
        for names, expected in ((("a.pem", "b.pem"), problem), (("a.pem",), "unreadable")):
            for path in folder.iterdir():
                path.unlink()
            for name in names:
                (folder / name).touch()
            shown = await call(world.supervisor, USER, SHOW_AGENT, ShowAgent(node.spec.id))
            assert shown.agent.denied_paths == expected
            assert f"denied paths:  {expected}" in agent_page(msgspec.to_builtins(shown))
            assert {row.id: row.denied_paths for row in await world.agents(all=True)} == {
                node.spec.id: expected,
                reader.spec.id: "",
            }


@virtual
async def test_state_says_that_commands_are_refused_without_namespaces(tmp_path: Path) -> None:
    """Commands are refused if `require_denied_paths` is set and paths are denied."""
    for denied, expected in (
        (("*.pem",), "commands refused: policy.require_denied_paths is set, and there are no mount namespaces here"),
        ((), "by name only"),
    ):
        config = replace(nesting(), policy=PolicyConfig(denied_paths=denied, require_denied_paths=True))
        async with opened(tmp_path / str(len(denied)), config=config) as world:
            world.supervisor.mount_namespace_problem = lambda: "no namespaces"
            await spawned(world, None, tools=("bash",))
            assert [row.denied_paths for row in await world.agents(all=True)] == [expected]


@virtual
async def test_subagent_in_another_folder_has_the_same_denied_files(tmp_path: Path) -> None:
    """Relative rules and names also apply in the folders of the agents above."""
    inner = tmp_path / "cwd/sub/inner"
    inner.mkdir(parents=True)
    rules = PolicyConfig(denied_paths=("*.pem", "conf/*.key", "~/x", "/y/z"), personal_paths=("diary/*", "*.me"))
    async with opened(tmp_path / "home", config=replace(nesting(), policy=rules)) as world:
        top, _ = await spawned(world, None, tools=NEST, cwd=str(tmp_path / "cwd"))
        specs = [top.spec]
        for folder in ("sub", "inner"):
            asked = Spawn("t", tools=NEST, cwd=folder)
            id = (await call(world.supervisor, AgentCaller(specs[-1].id), SPAWN, asked)).id
            specs.append(world.supervisor.tree.agents[id].spec)
        same = (await call(world.supervisor, AgentCaller(top.spec.id), SPAWN, Spawn("t", tools=NEST))).id
        assert world.supervisor.tree.agents[same].spec.policy == top.spec.policy
    for spec, folders in ((specs[1], ["cwd"]), (specs[2], ["cwd", "cwd/sub"])):
        found, parents = spec.policy.rules, [str(tmp_path / folder) for folder in folders]
        more = (*(f"{each}/**/*.pem" for each in parents), *(f"{each}/conf/*.key" for each in parents))
        assert set(found.denied_paths) == {*rules.denied_paths, *more}
        assert set(found.personal_paths) == {*rules.personal_paths, *(f"{each}/diary/*" for each in parents)}


@virtual
async def test_only_programs_and_users_name_usable_credentials(tmp_path: Path) -> None:
    """A request of an agent is refused. Its children have the paths of the first agent."""
    async with opened(tmp_path, config=nesting()) as world:
        node, _ = await spawned(world, None, tools=NEST, usable_credentials=("~/.ssh",))
        with pytest.raises(ConfigError, match=r"usable_credentials contains '\$HOME/.ssh', but variables"):
            await spawned(world, None, usable_credentials=("$HOME/.ssh",))
        asked = Spawn("t", tools=NEST, usable_credentials=("~/.kube",))
        with pytest.raises(ToolNotGrantedError, match="cannot set 'usable_credentials'"):
            await call(world.supervisor, AgentCaller(node.spec.id), SPAWN, asked)
        asked = Spawn("t", tools=NEST)
        child = world.supervisor.tree.agents[(await call(world.supervisor, AgentCaller(node.spec.id), SPAWN, asked)).id]
        assert node.spec.policy.rules.usable_credentials == ("~/.ssh",)
        assert child.spec.policy.rules.usable_credentials == ("~/.ssh",)
