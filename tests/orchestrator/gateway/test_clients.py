"""How `orch wrap` starts each client: arguments, environment, and servers that the user has set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orch.gateway.clients.client import Launch, Plan, Surroundings
from orch.gateway.clients.pi import VARIABLE
from orch.gateway.clients.table import CLIENTS, client_named
from orch_protocol.core.errors import ConfigError

PROXY = "http://127.0.0.1:5000"
OWN = "https://gateway.example.com"


class Home:
    """The folders of a user. `plan` returns the plan for a client that is started there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project = folder / "project"
        self.project.mkdir()

    def write(self, name: str, content: object) -> None:
        """Write a file below the user's home. Data is written as JSON."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))

    def plan(self, client: str, *arguments: str, proxy: str = "", **env: str) -> Plan:
        """Return the plan for a client."""
        return client_named(client).plan(Surroundings(arguments, env, self.project, self.folder, self.folder, proxy))

    def launch(self, client: str, *arguments: str, **env: str) -> Launch:
        """Return the start of a client with the proxy."""
        return self.plan(client, *arguments, **env).launch(PROXY)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """The home of a user without settings."""
    return Home(tmp_path)


def test_each_client_gets_the_proxy_and_keeps_its_arguments(home: Home) -> None:
    """Without settings of the user, the usual servers are used."""
    assert home.launch("claude", "-p", "Hi") == Launch(("-p", "Hi"), {"ANTHROPIC_BASE_URL": f"{PROXY}/anthropic"})
    codex = home.launch("codex", "exec", "Hi", "-c", "x=1")
    assert codex.arguments[:2] == ("-c", f'openai_base_url="{PROXY}/openai/v1"')
    assert codex.arguments[-4:] == ("exec", "Hi", "-c", "x=1")
    pi = home.launch("pi", "-c")
    assert pi.arguments == ("--extension", str(home.folder / "pi-servers.mjs"), "-c")
    assert json.loads(pi.env[VARIABLE]) == {"anthropic": f"{PROXY}/anthropic", "openai": f"{PROXY}/openai/v1"}
    assert VARIABLE in (home.folder / "pi-servers.mjs").read_text()
    assert home.plan("any", "agent", "--fast").program == "agent"
    other = home.launch("any", "agent", "--fast")
    assert other.arguments == ("--fast",)
    assert other.env == {"ANTHROPIC_BASE_URL": f"{PROXY}/anthropic", "OPENAI_BASE_URL": f"{PROXY}/openai/v1"}
    assert not any(home.plan(name, "x").upstreams for name in CLIENTS)


def test_unknown_clients_and_missing_programs_are_named(home: Home) -> None:
    """The error lists the known clients, and how to start another program."""
    with pytest.raises(ConfigError, match=r"'claud'; it knows claude, codex, pi.*orch wrap any claud"):
        client_named("claud")
    with pytest.raises(ConfigError, match="needs a program"):
        home.plan("any")


@pytest.mark.parametrize("client", ["claude", "any"])
def test_the_users_own_variable_becomes_the_server_behind_the_proxy(home: Home, client: str) -> None:
    """Requests still go to the user's gateway. The running proxy itself is not a server behind the proxy."""
    plan = home.plan(client, "x", ANTHROPIC_BASE_URL=f"{OWN}/llm/")
    assert plan.upstreams == {"anthropic": f"{OWN}/llm"}
    assert plan.launch(PROXY).env["ANTHROPIC_BASE_URL"] == f"{PROXY}/anthropic"
    assert not home.plan(client, "x", proxy=PROXY, ANTHROPIC_BASE_URL=f"{PROXY}/anthropic").upstreams


def test_settings_of_claude_code_that_replace_variables_are_replaced(home: Home) -> None:
    """The last settings file wins, and the option --settings wins over the files and keeps what the user gave."""
    home.write(".claude/settings.json", {"env": {"ANTHROPIC_BASE_URL": "https://first.example"}})
    home.write("project/.claude/settings.local.json", {"env": {"ANTHROPIC_BASE_URL": OWN}})
    plan = home.plan("claude", "-p", "--settings", '{"model": "opus", "env": {"A": "1"}}', "Hi")
    assert plan.upstreams == {"anthropic": OWN}
    option, settings, *rest = plan.launch(PROXY).arguments
    assert (option, rest) == ("--settings", ["-p", "Hi"])
    expected = {"model": "opus", "env": {"A": "1", "ANTHROPIC_BASE_URL": f"{PROXY}/anthropic"}}
    assert json.loads(settings) == expected
    home.write("project/mine.json", {"env": {"ANTHROPIC_BASE_URL": "https://flag.example"}})
    assert home.plan("claude", "--settings=mine.json").upstreams == {"anthropic": "https://flag.example"}


@pytest.mark.parametrize("where", ["variable", "settings"])
def test_claude_code_with_another_cloud_is_refused(home: Home, where: str) -> None:
    """The error names the variable and the service."""
    env = {"CLAUDE_CODE_USE_BEDROCK": "1"} if where == "variable" else {}
    if where == "settings":
        home.write(".claude/settings.json", {"env": {"CLAUDE_CODE_USE_BEDROCK": 1}})
    with pytest.raises(ConfigError, match=r"CLAUDE_CODE_USE_BEDROCK is set.*Amazon Bedrock"):
        home.plan("claude", **env)
    home.write(".claude/settings.json", {})
    assert not home.plan("claude", CLAUDE_CODE_USE_VERTEX="0").upstreams


def test_settings_that_cannot_be_read_are_refused(home: Home) -> None:
    """A damaged file could set another server, so the client is not started with a guess."""
    home.write(".claude/settings.json", "{")
    with pytest.raises(ConfigError, match=r"settings\.json, which may set another server"):
        home.plan("claude")
    home.write(".codex/config.toml", "model = ")
    with pytest.raises(ConfigError, match=r"config\.toml, which may set another server"):
        home.plan("codex")


def test_codex_keeps_its_own_server_and_its_provider(home: Home) -> None:
    """The server of the configuration, of a profile or of an option is the one behind the proxy."""
    home.write(
        ".codex/config.toml",
        f'openai_base_url = "{OWN}/v1"\n[profiles.eu]\nopenai_base_url = "https://eu.example/v1"\n',
    )
    assert home.plan("codex").upstreams == {"openai": f"{OWN}/v1"}
    assert home.plan("codex", "--profile", "eu").upstreams == {"openai": "https://eu.example/v1"}
    plan = home.plan("codex", "exec", "-c", 'openai_base_url="https://option.example"', "Hi")
    assert plan.upstreams == {"openai": "https://option.example"}
    assert "option.example" not in " ".join(plan.launch(PROXY).arguments)
    home.write(".codex/config.toml", f'model_provider = "Mine"\n[model_providers.Mine]\nbase_url = "{OWN}/v1"\n')
    plan = home.plan("codex")
    assert plan.upstreams == {"codex-mine": f"{OWN}/v1"}
    assert f'model_providers.Mine.base_url="{PROXY}/codex-mine"' in plan.launch(PROXY).arguments
    with pytest.raises(ConfigError, match="provider 'other', whose server orch wrap does not know"):
        home.plan("codex", "-c", "model_provider=other")
    with pytest.raises(ConfigError, match="local model"):
        home.plan("codex", "--oss")


def test_a_login_of_codex_with_chatgpt_uses_the_server_of_this_login(home: Home) -> None:
    """Keys and tokens have different servers. A key in the environment replaces the login."""
    home.write(".codex/auth.json", {"OPENAI_API_KEY": None, "tokens": {"access_token": "t"}})
    plan = home.plan("codex")
    assert plan.upstreams == {"chatgpt": "https://chatgpt.com/backend-api/codex"}
    assert f'openai_base_url="{PROXY}/chatgpt"' in plan.launch(PROXY).arguments
    assert not home.plan("codex", CODEX_API_KEY="k").upstreams
    home.write(".codex/auth.json", {"OPENAI_API_KEY": "k", "tokens": None})
    assert not home.plan("codex").upstreams


def test_servers_of_pi_in_models_json_stay_behind_the_proxy(home: Home) -> None:
    """Providers whose API the proxy knows are routed. Commands without a model get no extension."""
    providers = {
        "anthropic": {"baseUrl": OWN},
        "My Server": {"baseUrl": "http://localhost:8000/v1", "api": "openai-completions"},
        "google": {"baseUrl": "https://g.example", "api": "google-generative-ai"},
    }
    home.write(".pi/agent/models.json", {"providers": providers})
    plan = home.plan("pi")
    assert plan.upstreams == {"anthropic": OWN, "pi-my-server": "http://localhost:8000/v1"}
    servers = json.loads(plan.launch(PROXY).env[VARIABLE])
    assert servers["My Server"] == f"{PROXY}/pi-my-server"
    assert "google" not in servers
    assert home.launch("pi", "install", "npm:x") == Launch(("install", "npm:x"), {})
