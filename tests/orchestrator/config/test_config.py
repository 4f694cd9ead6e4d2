from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch.config import config
from orch.config.config import load
from orch.config.trust import project_file, trust
from orch.config.untrusted_config import STRICTNESS_CHECKS
from orch.processes.environment import RUN_VARIABLE
from orch_protocol.agent.config import Config, HooksConfig
from orch_protocol.core.errors import ConfigError
from orch_protocol.hooks.options import LoopDetection
from orch_protocol.policy.policy import PolicyConfig
from orch_protocol.policy.sandbox import SandboxConfig
from orch_worker.tools.shell.process_group import MARK


def write(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


def value(loaded: config.LoadedConfig, key: str) -> Any:
    return config.flatten(loaded.config)[key]


def test_defaults_apply_without_files_and_variables(home: Path, project: Path) -> None:
    """The values are the defaults of `Config`, and the source of each value is `default`."""
    loaded = load(project, {}, home=home)
    assert loaded.config == Config()
    assert set(loaded.sources.values()) == {"default"}
    assert loaded.sources.keys() == config.flatten(Config()).keys()


def test_later_layer_overrides_earlier_ones(home: Path, project: Path) -> None:
    """The layers are the user's file, the project's file, variables and overrides. Each value has its source."""
    user = write(home / "config.toml", 'model = "openai:1"\n[limits]\nmax_turns = 9\n[subagents]\nmax_concurrent = 8\n')
    own = write(project_file(project), "[limits]\nmax_turns = 8\ntool_seconds = 5\n")
    trust(project, home, config.check)
    env = {"ORCH_LIMITS__TOOL_SECONDS": "6", "ORCH_MODEL": "openai:2"}
    loaded = load(project, env, {"model": "openai:3"}, home=home)
    expected = {
        "model": ("openai:3", "override model"),
        "limits.tool_seconds": (6.0, "variable ORCH_LIMITS__TOOL_SECONDS"),
        "limits.max_turns": (8, f"{own}, line 2"),
        "subagents.max_concurrent": (8, f"{user}, line 5"),
        "subagents.depth_cap": (3, "default"),
    }
    assert {key: (value(loaded, key), loaded.sources[key]) for key in expected} == expected
    assert loaded.notes == ()


def test_daemon_reads_no_project_configuration(home: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a project, only the user's file and the variables are read."""
    write(project_file(project), "[limits]\nmax_turns = 8\n")
    trust(project, home, config.check)
    monkeypatch.chdir(project)
    assert load(project, {}, home=home).config.limits.max_turns == 8
    assert load(None, {}, home=home).config == Config()


@pytest.mark.parametrize(
    ("name", "text", "key", "expected"),
    [
        ("ORCH_DURABILITY", "power", "durability", "power"),
        ("ORCH_SUBAGENTS__MAX_CONCURRENT", "4", "subagents.max_concurrent", 4),
        ("ORCH_SUBAGENTS__ENABLED", "false", "subagents.enabled", False),
        ("ORCH_SUBAGENTS__TIMEOUT_MINUTES", "0.5", "subagents.timeout_minutes", 0.5),
        (
            "ORCH_SUBAGENTS__DEFAULT_TOOLS",
            "read_file, list_files",
            "subagents.default_tools",
            ("read_file", "list_files"),
        ),
        ("ORCH_SUBAGENTS__CHAT_MODELS", "openai:a ollama:*", "subagents.chat_models", ("openai:a", "ollama:*")),
        ("ORCH_MODEL", "", "model", None),
        ("ORCH_HOME", "/elsewhere", "model", None),
        ("ORCH_RUN", "x", "model", None),
    ],
)
def test_variables_are_converted_by_type(home: Path, name: str, text: str, key: str, expected: Any) -> None:
    """An empty variable counts as unset. ORCH_HOME and ORCH_RUN are no settings."""
    assert value(load(None, {name: text}, home=home), key) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            'model = "openai:1"\nmodle = 3\n',
            r"config\.toml, line 2: unknown setting 'modle'; did you mean 'model'\?",
        ),
        ("[subagents]\n\nmax_concurent = 3\n", r"line 3: .*'subagents.max_concurent'; did you mean 'subagents.max_c"),
        ("max_turns = 3\n", r"line 1: unknown setting 'max_turns'; did you mean 'limits.max_turns'\?"),
        (
            "[zebra]\n",
            r"line 1: unknown section \[zebra\]; there are \[approval\], \[archival\], .*\[subagents\.context\], .*",
        ),
        (
            "model = 'openai:1'\n\n[subagent]\nmax_concurrent = 3\n",
            r"line 3: unknown section \[subagent\]; did you m",
        ),
        ("[limits]\nx = 1\n[limits.max_turns]\na = 3\n", r"line 3: unknown section \[limits.max_turns\]"),
        ("\nsubagent.max_concurrent = 3\n", r"line 2: unknown section \[subagent\]; did you mean \[subagents\]\?"),
        ("[limits]\nnope = 3\n", r"line 2: .*'limits.nope'; there are limits.max_turns, .*limits.reply_tokens$"),
        ("[limits]\nmax_turns = 0\n", r"line 2: limits.max_turns = 0 does not fit: expected `int` >= 1"),
        ('[limits]\nmax_turns = "3"\n', r"line 2: limits.max_turns = '3' does not fit: expected `int`, got `str`"),
        ("limits.max_turns = true", r"line 1: limits.max_turns = True does not fit"),
        ("subagents = {enabled = 1}", r"line 1: subagents.enabled = 1 does not fit: expected `bool`"),
        ("[limits]\ntool_seconds = nan", r"line 2: limits.tool_seconds = nan does not fit"),
        (
            'durability = "never"',
            r"line 1: durability = 'never' does not fit: invalid enum value 'never'; .* 'process', 'power'$",
        ),
        ("policy.approval_mode = 'no'", r"does not fit: invalid enum value 'no'; it is one of 'allow', 'ask', 'deny'$"),
        ("[subagents]\ntimeout_minutes = inf", r"line 2: subagents.timeout_minutes = inf does not fit"),
        ("[daemon]\nidle_minutes = nan", r"line 2: daemon.idle_minutes = nan does not fit"),
        ("[daemon]\nidle_minutes = 1e300", r"line 2: daemon.idle_minutes = 1e\+300 does not fit"),
        (
            "[limits]\nmax_turns = 99999999999999999999999",
            r"line 2: limits.max_turns = 9+ does not fit: .* <= 1000000000",
        ),
        (
            f"[limits]\nmax_turns = 0x{'f' * 9000}",
            r"line 2: limits.max_turns = a number with thousands of digits does not fit",
        ),
        (f"[limits]\nmax_turns = {'9' * 9000}", r"config.toml: not TOML that can be read: exceeds the limit"),
        (f"model = {'[' * 9000}", r"config.toml: not TOML that can be read: "),
        ('model = "nope:1"', r"line 1: model: unknown provider 'nope': write the model as `local` or .*anthropic"),
        ('model = "local:1"', r"line 1: model: unknown provider 'local': write the model as `local` or"),
        ('model = "ollama:"', r"line 1: model: no model given for provider ollama: write ollama:MODEL"),
        ('[subagents]\ndefault_preset = "minmal"', r"line 2: subagents.default_preset: unknown .* mean 'minimal'\?"),
        (
            '[subagents]\nchat_models = ["openai"]',
            r"line 2: subagents.chat_models: invalid model pattern 'openai': write P",
        ),
        ('[subagents]\nchat_models = ["nope:*"]', r"line 2: subagents.chat_models: unknown provider 'nope'"),
        (
            '[subagents]\ndefault_tools = ["bash", "red_file"]',
            r"line 2: subagents.default_tools: .* mean 'read_file'\?",
        ),
        ("# one\nlimits = 3\n", r"line 2: limits is a section, not a value: write \[limits\]"),
        ("a = 1\nb = = 2\n", r"config\.toml, line 2, column 5: not TOML: invalid value"),
        ("[limits]\n[limits]\n", r"line 2, column 8: not TOML: cannot declare"),
    ],
)
def test_invalid_file_is_reported_with_line_and_field(home: Path, text: str, complaint: str) -> None:
    """The error suggests the similar name of a setting or section."""
    write(home / "config.toml", text)
    with pytest.raises(ConfigError, match=complaint) as raised:
        load(None, {}, home=home)
    assert str(home / "config.toml") in str(raised.value)


def test_undecodable_file_is_reported_with_its_line(home: Path) -> None:
    (home / "config.toml").write_bytes(b"# caf\xc3\xa9\n# caf\xe9\n")
    with pytest.raises(ConfigError, match=r"config\.toml, line 2: not UTF-8 \(byte 0xe9\)"):
        load(None, {}, home=home)


def test_unreadable_file_is_reported(home: Path) -> None:
    """A folder at the path of the file is an error."""
    (home / "config.toml").mkdir()
    with pytest.raises(ConfigError, match=r"config\.toml cannot be read: Is a directory"):
        load(None, {}, home=home)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (os.mkfifo, "is not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
        (lambda path: path.write_bytes(b"#" * (1 << 20) + b"\n"), "has more than 1,048,576 bytes"),
    ],
    ids=["pipe", "device", "long"],
)
def test_endless_or_special_project_file_is_refused_at_once(
    home: Path, tmp_path: Path, made: Callable[[Path], object], why: str
) -> None:
    """An untrusted project may contain a pipe, a device or a huge file, so such files are not read."""
    (tmp_path / "project" / ".orch").mkdir(parents=True)
    made(tmp_path / "project" / ".orch" / "config.toml")
    with pytest.raises(ConfigError, match=rf"config\.toml cannot be read: it {why}"):
        load(tmp_path / "project", {}, home=home)
    with pytest.raises(ConfigError, match=rf"nothing to trust: .* cannot be read \(it {why}\)"):
        trust(tmp_path / "project", home, lambda *_: None)


@pytest.mark.parametrize(
    ("env", "complaint"),
    [
        ({"ORCH_MODLE": "x"}, "variable ORCH_MODLE: unknown setting 'modle'; did you mean 'model'"),
        ({"ORCH_SUBAGENTS_ENABLED": "0"}, "ORCH_SUBAGENTS_ENABLED: .*did you mean 'subagents.enabled'"),
        ({"ORCH_ZZ": "1"}, "unknown setting 'zz'; `orch config show` lists all settings$"),
        ({"ORCH_LIMITS__NOPE": "1"}, "variable ORCH_LIMITS__NOPE: .*'limits.nope'; there are limits.max_turns, "),
        ({"ORCH_LIMITS": "1"}, "variable ORCH_LIMITS: limits is a section"),
        ({"ORCH_LIMITS__TOOL_SECONDS": "inf"}, "ORCH_LIMITS__TOOL_SECONDS: limits.tool_seconds = 'inf' does not fit"),
        ({"ORCH_DURABILITY": "never"}, "ORCH_DURABILITY: .*'process', 'power'$"),
        ({"ORCH_MODEL": "nope"}, "variable ORCH_MODEL: model: unknown provider 'nope'"),
        ({"ORCH_LIMITS__MAX_TURNS": "many"}, "ORCH_LIMITS__MAX_TURNS: limits.max_turns = 'many' does not fit"),
    ],
)
def test_invalid_variable_is_reported(home: Path, env: dict[str, str], complaint: str) -> None:
    """An unknown variable that begins with ORCH_ is an error, too."""
    with pytest.raises(ConfigError, match=complaint):
        load(None, env, home=home)


def test_variables_set_for_agents_are_no_settings(home: Path) -> None:
    """Commands of an agent inherit these variables, and orch must work in such a command."""
    marks = {RUN_VARIABLE: "/o/runs/daemon", MARK: "0123456789abcdef"}
    assert load(None, marks, home=home).config == load(None, {}, home=home).config


def test_invalid_override_is_reported(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"override limits\.max_turns: .*does not fit"):
        load(None, {}, {"limits.max_turns": -1}, home=home)


@pytest.mark.parametrize("over", [{}, {"archival.high_tokens": 19_999}, {"archival.profile": "economy"}])
def test_contradicting_settings_are_reported(home: Path, over: dict[str, Any]) -> None:
    """A setting is also compared with values of the profile."""
    (home / "config.toml").write_text("[archival]\nlow_tokens = 20_001\n")
    if not over:
        assert load(None, {}, home=home).config.archival.low_tokens == 20_001
        return
    with pytest.raises(
        ConfigError, match=r"line 2: archival.low_tokens = 20001 is greater than archival.high_tokens, which"
    ):
        load(None, {}, over, home=home)


def test_trigger_without_effect_is_refused_with_the_place_of_the_cause(home: Path) -> None:
    """A condition for finished turns contradicts `turns = false` in each profile."""
    (home / "config.toml").write_text("[archival]\nturns = false\n[archival.trigger]\ntoken_threshold = 8000\n")
    with pytest.raises(ConfigError, match=r"line 2: archival.trigger.token_threshold = 8000 has no effect"):
        load(None, {}, home=home)


def test_every_setting_has_a_rule_for_untrusted_folders() -> None:
    """A new setting without a rule fails this test."""
    assert STRICTNESS_CHECKS.keys() == config.flatten(Config()).keys()


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ('model = "scripted:"', False),
        ('durability = "power"', True),
        ('durability = "process"', False),
        ("subagents.enabled = false", True),
        ("subagents.max_concurrent = 16", True),
        ("subagents.max_concurrent = 17", False),
        ("subagents.depth_cap = 0", True),
        ("subagents.depth_cap = 4", False),
        ("subagents.allow_nested = false", True),
        ("subagents.allow_nested = true", False),
        ("subagents.timeout_minutes = 1", True),
        ("subagents.timeout_minutes = 60", False),
        ('subagents.default_preset = "minimal"', True),
        ('subagents.default_preset = "investigate"', True),
        ('subagents.default_preset = "work"', False),
        ("subagents.default_tools = []", True),
        ('subagents.default_tools = ["bash"]', False),
        ('subagents.chat_models = ["openai:*"]', True),
        ("subagents.max_cost_usd = 1e6", True),
        ("budget.max_cost_usd = 1.5", True),
        ("limits.max_turns = 1", True),
        ("limits.turn_seconds = 1e9", False),
        ("limits.tool_seconds = 1", True),
        ("limits.reply_tokens = 4001", False),
        ("daemon.idle_minutes = 1", True),
        ("daemon.idle_minutes = 1e7", False),
        ("environment.pass = []", True),
        ('environment.pass = ["SLACK_WEBHOOK"]', False),
        ('approval.channel = "person"', True),
        ('approval.channel = "program"', False),
        ('policy.approval_mode = "deny"', True),
        ('policy.approval_mode = "allow"', False),
        ("policy.dangerous_tools = []", False),
        ('policy.permissions.bash = "deny"', True),
        ('policy.permissions.bash = "allow"', False),
        ('policy.permissions.bash = "ask"', False),
        ('policy.denied_paths = ["secret"]', True),
        ('policy.allowed_paths = ["."]', True),
        ("policy.personal_paths = []", False),
        ('policy.code_paths = ["~/projects", "~/src", "lib"]', True),
        ("policy.approval_seconds = 1", True),
        ("policy.approval_seconds = 1000", False),
        ("policy.dry_run = true", True),
        ('extensions.load = ["pack"]', False),
        ('policy.no_local_model = "deny"', True),
        ('policy.no_local_model = "ask"', False),
        ('policy.function = "house.rules:judge"', False),
        ('sandbox.level = "L2"', True),
        ("sandbox.require = true", True),
        ('sandbox.tools.bash = "L3"', True),
        ('sandbox.tools.bash = "L2"', False),
        ('sandbox.presets.work = "L0"', False),
        ("sandbox.network = true", False),
        ('sandbox.read = ["/"]', False),
        ('sandbox.write = ["~"]', False),
        ("sandbox.limits.cpu_seconds = 60", True),
        ('subagents.context.work = "brief"', True),
        ('subagents.context.investigate = "none"', True),
        ('subagents.context.investigate = "full"', False),
        ('subagents.context.tools = "brief"', False),
        ('subagents.context.files = ["AGENTS.md"]', True),
        ('subagents.context.files = [".env"]', False),
        ("subagents.context.full_tokens = 500", True),
        ("subagents.context.full_tokens = 50000", False),
        ('subagents.context.packages = ["msgspec"]', False),
        ("subagents.context.packages = []", True),
        ("prompt.time = false", True),
        ("prompt.time = true", False),
        ("prompt.workspace = true", False),
        ("prompt.volatile_tokens = 100", True),
    ],
)
def test_untrusted_project_may_only_narrow(home: Path, project: Path, line: str, kept: bool) -> None:
    """A value that is less strict is ignored with a notice."""
    own = write(project_file(project), line + "\n")
    loaded = load(project, {}, home=home)
    key = line.partition(" =")[0]
    if kept:
        assert (loaded.sources[key], loaded.notes) == (f"{own}, line 1", ())
    else:
        assert (loaded.config, loaded.sources.get(key, "default")) == (Config(), "default")
        assert [f"ignored {key}. " in note and f"orch config trust {project}" in note for note in loaded.notes] == [
            True
        ]


def test_untrusted_project_may_not_raise_a_budget(home: Path, project: Path) -> None:
    """A lower budget applies, and a higher one is ignored. Zero, negative and infinite amounts are errors."""
    write(home / "config.toml", "[budget]\nmax_cost_usd = 5\n")
    own = project_file(project)
    for usd, holds in ((6.0, 5.0), (4.5, 4.5)):
        write(own, f"[budget]\nmax_cost_usd = {usd}\n")
        assert load(project, {}, home=home).config.budget.max_cost_usd == holds
    for wrong in ("0", "-1", "nan", "inf", "'5'"):
        write(own, f"[budget]\nmax_cost_usd = {wrong}\n")
        with pytest.raises(ConfigError, match=r"line 2: budget\.max_cost_usd = .* does not fit"):
            load(project, {}, home=home)
    assert load(None, {"ORCH_SUBAGENTS__MAX_COST_USD": "0.25"}, home=home).config.subagents.max_cost_usd == 0.25


def test_untrusted_project_narrows_the_users_values(home: Path, project: Path) -> None:
    """The project's value is compared with the user's value, not with the default."""
    write(home / "config.toml", '[subagents]\nmax_concurrent = 4\ndefault_tools = ["read_file", "bash"]\n')
    write(project_file(project), '[subagents]\nmax_concurrent = 5\ndefault_tools = ["read_file"]\n')
    loaded = load(project, {}, home=home)
    assert loaded.config.subagents.max_concurrent == 4
    assert loaded.config.subagents.default_tools == ("read_file",)
    assert "ignored subagents.max_concurrent." in loaded.notes[0]


def test_tool_permissions_are_merged_per_tool(home: Path, project: Path) -> None:
    """Each layer sets the permissions of the tools that it names, and each permission has its source."""
    user = write(home / "config.toml", '[policy.permissions]\nbash = "deny"\nown = "ask"\n')
    own = write(project_file(project), '[policy.permissions]\nbash = "allow"\nown = "deny"\nread_file = "deny"\n')
    loaded = load(project, {"ORCH_POLICY__PERMISSIONS__CHAT": "ask"}, home=home)
    assert loaded.config.policy.permissions == {"bash": "deny", "own": "deny", "read_file": "deny", "chat": "ask"}
    assert loaded.sources["policy.permissions.bash"] == f"{user}, line 2"
    assert loaded.sources["policy.permissions.own"] == f"{own}, line 3"
    assert "ignored policy.permissions.bash." in loaded.notes[0]


def test_sandbox_for_an_unknown_preset_or_tool_is_reported(home: Path) -> None:
    """An unknown preset is an error. An unknown tool is a notice."""
    file = write(home / "config.toml", '[sandbox.presets]\nwrok = "L2"\n')
    with pytest.raises(ConfigError, match=r"line 2: unknown preset 'wrok' in sandbox\.presets: use h"):
        load(None, {}, home=home)
    with pytest.raises(ConfigError, match=r"^unknown preset 'wrok' in sandbox\.presets"):
        config.check_config(Config(sandbox=SandboxConfig(presets={"wrok": "L2"})))
    file.write_text('[sandbox.tools]\nbahs = "L2"\n')
    (note,) = load(None, {}, home=home).notes
    assert note.startswith(f"{file}, line 2: sandbox.tools names 'bahs', ")


def test_misspelled_tool_name_is_reported(home: Path) -> None:
    """Names that resemble no built-in tool are not reported, because they may be tools of a program."""
    file = write(
        home / "config.toml",
        '[policy.permissions]\nbahs = "deny"\nbash = "ask"\nzebra = "deny"\n'
        '[policy]\ndangerous_tools = ["run_pyton", "own"]\n',
    )
    slip, other = load(None, {}, home=home).notes
    assert slip.startswith(f"{file}, line 2: policy.permissions names 'bahs', ")
    assert "did you mean 'bash'? " in slip
    assert other.startswith(f"{file}, line 6: policy.dangerous_tools names 'run_pyton', ")
    assert "did you mean 'run_python'? " in other
    noted = load(None, {"ORCH_POLICY__PERMISSIONS__WRITE_FLIE": "deny"}, home=Path("/nowhere")).notes
    assert "variable ORCH_POLICY__PERMISSIONS__WRITE_FLIE: policy.permissions names 'write_flie'" in noted[0]
    assert "'write_file'?" in noted[0]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            '[policy.permissions]\nbash = "never"\n',
            r"line 2: policy\.permissions\.bash = 'never' .*'allow', 'ask', 'deny'",
        ),
        ('[policy]\npermissions = "deny"\n', "line 2: policy.permissions = 'deny' does not fit"),
        ("[policy.permission]\n", "unknown section"),
    ],
)
def test_invalid_permission_is_reported(home: Path, text: str, complaint: str) -> None:
    """An unknown decision, and a misspelled table, are errors."""
    write(home / "config.toml", text)
    with pytest.raises(ConfigError, match=complaint):
        load(None, {}, home=home)


def test_overridden_value_is_not_validated(home: Path) -> None:
    """A variable can replace a model that this version does not know."""
    write(home / "config.toml", 'model = "nope:1"\n')
    assert load(None, {"ORCH_MODEL": "openai:2"}, home=home).config.model == "openai:2"


def test_provider_from_models_json_is_known(home: Path) -> None:
    """The model of such a provider is valid in the configuration."""
    (home / "models.json").write_text('{"providers": {"mine": {"api": "chat", "base_url": "http://localhost:1"}}}')
    assert load(None, {"ORCH_MODEL": "mine:1"}, home=home).config.model == "mine:1"
    assert load(None, {"ORCH_MODEL": "local"}, home=home).config.model == "local"


def test_project_inside_the_home_is_read_once(tmp_path: Path) -> None:
    """With ORCH_HOME=./.orch, the user's file is not also the project's file."""
    (tmp_path / ".orch").mkdir()
    write(tmp_path / ".orch" / "config.toml", 'model = "openai:1"\n')
    loaded = load(tmp_path, {}, home=tmp_path / ".orch")
    assert (loaded.config.model, loaded.notes) == ("openai:1", ())


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("a = 1\nb = 2", "b", 2),
        ("[t]\na = 1\n[u]\na = 2", "u.a", 4),
        ('[ t ] # x\n"a" = 1', "t.a", 2),
        ("t . a = 1", "t.a", 1),
        ("\nt = { a = 1 }", "t.a", 2),
        ("\n[t]", "t", 2),
        ("a = 1\n[t.u]\nb = 1", "t", 2),
        ("a = 1\nt.u = 1", "t", 2),
        ("x = 1", "not.there", 1),
    ],
)
def test_line_of_finds_the_line_that_sets_a_key(text: str, key: str, line: int) -> None:
    """Tables, dotted keys, quoted keys and inline tables are supported."""
    assert config.line_of(text, key) == line


def test_loaded_configuration_is_json_serializable() -> None:
    assert msgspec.json.decode(msgspec.json.encode(load(None, {}, home=Path("/nowhere"))))["notes"] == []


@pytest.mark.parametrize(
    ("hooks", "where"),
    [
        ({"loop_detection": {"repeatz": 2}}, "unknown field `repeatz` - at `hooks.loop_detection`"),
        ({"loop_detection": LoopDetection(0)}, ">= 1 - at `hooks.loop_detection.repeats`"),
        ({"load": "loop_detection"}, "got `str` - at `hooks.load`"),
        ({"load": (object(),)}, "not object"),
    ],
)
def test_programmatic_configuration_is_validated_before_start(hooks: dict[str, Any], where: str) -> None:
    """Plain data and paths are converted to the types of `Config`."""
    with pytest.raises(ConfigError, match=re.escape(where)):
        config.check_config(Config(hooks=HooksConfig(**hooks)))
    good = Config(hooks=HooksConfig(loop_detection={"repeats": 2}), session_dir=Path("/s"))  # type: ignore[arg-type]
    assert config.check_config(good).hooks.loop_detection == LoopDetection(2)
    assert config.check_config(good).session_dir == "/s"


@pytest.mark.parametrize("rule", ["$HOME/hs", "${KEYS}", "/srv/$USER/key"])
def test_variable_in_a_path_rule_is_refused(rule: str) -> None:
    """Such a rule would deny nothing. The error names the setting and the rule."""
    with pytest.raises(ConfigError, match=rf"^policy\.denied_paths contains {re.escape(repr(rule))}, but variables"):
        config.check_config(Config(policy=PolicyConfig(denied_paths=("*.pem", rule))))
    config.check_config(Config(policy=PolicyConfig(denied_paths=("a$", "[$]HOME", "~/x"))))
