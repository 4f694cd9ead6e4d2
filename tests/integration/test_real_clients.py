"""`orch wrap` with the real Claude Code, Codex and pi, offline, before a strict model server.

`make external` installs them (this needs npm) and runs these tests.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration import reading_model
from integration.command_shell import Shell, ended
from source_tree import ROOT
from wire.model_server_beside import Apart

PROGRAMS = ROOT / ".ci" / "node" / "node_modules" / ".bin"
FILES = [f"part-{number:02}.txt" for number in range(12)]
LINE = "a line of the file with a few more words\n"
OFFLINE = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "IS_SANDBOX": "1",
    "PI_OFFLINE": "1",
    "PI_TELEMETRY": "0",
    "ANTHROPIC_API_KEY": "a key",
    "CODEX_API_KEY": "a key",
}
CODEX = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
CLIENTS = {
    "claude": (("claude", "--dangerously-skip-permissions", "-p"), ("-c",)),
    "codex": (("codex", "exec", *CODEX), ("resume", "--last")),
    "codex-functions": (("codex", "exec", *CODEX, "-m", "gpt-5.1-codex"), ("resume", "--last")),
    "pi": (("pi", "--model", "anthropic/claude-sonnet-5", "-p"), ("-c",)),
}
"""The command of each client, and what continues its last conversation."""

pytestmark = [
    pytest.mark.external,
    pytest.mark.skipif(
        not all((PROGRAMS / name).exists() for name in ("claude", "codex", "pi")),
        reason="the clients are not installed: make external",
    ),
]


@pytest.fixture
def server() -> Iterator[Apart]:
    """A strict model server with a model that reads files."""
    with Apart(reading_model.answer) as apart:
        yield apart


@pytest.fixture
def project(shell: Shell, server: Apart) -> Iterator[Shell]:
    """A shell in a folder with long files and rules, and with the settings of clients that use `server`."""
    for number, name in enumerate(FILES):
        (shell.folder / name).write_text(f"needle-{number}\n" + LINE * 240)
    for name in ("CLAUDE.md", "AGENTS.md"):
        (shell.folder / name).write_text("# Rules\n\nAlways mention the blue whale.\n")
    url = server.server.url
    shell.env |= OFFLINE | {"ANTHROPIC_BASE_URL": url, "PATH": f"{PROGRAMS}{os.pathsep}{shell.env['PATH']}"}
    user = Path(shell.env["HOME"])
    (user / ".codex").mkdir()
    (user / ".codex" / "config.toml").write_text(f'openai_base_url = "{url}/v1"\n')
    (user / ".pi" / "agent").mkdir(parents=True)
    (user / ".pi" / "agent" / "models.json").write_text(json.dumps({"providers": {"anthropic": {"baseUrl": url}}}))
    yield shell
    log = (shell.home / "gateway" / "proxy.log").read_text()
    ended(int(log.partition("process ")[2].partition(",")[0]))


@pytest.mark.parametrize("client", CLIENTS)
def test_a_long_session_becomes_small_and_can_recall(project: Shell, server: Apart, client: str) -> None:
    """The client continues its session twice: its turns are archived, its rules stay, and it sees no recall."""
    first, more = CLIENTS[client]
    resume = (*first[:2], *more, *first[2:]) if first[0] == "codex" else (*first, *more)
    sent = server.server.requests
    project.run("wrap", *first, f"Please read: {' '.join(FILES[:6])}")
    start = len(sent[0].raw)
    project.run("wrap", *resume, f"Please read: {' '.join(FILES[6:])}")
    before = len(sent)
    done = project.run("wrap", *resume, "Please recall: needle-3")
    assert server.server.refused == []
    assert "Recalled: found" in done.stdout.decode()
    assert len(sent) == before + 2  # the call and its answer, in one response for the client
    read = sum(len((project.folder / name).read_bytes()) for name in FILES)
    assert len(sent[-1].raw) - start < read / 10
    assert b"blue whale" in sent[-1].raw
    assert len(list(project.home.glob("gateway/conversations/*/gateway.jsonl"))) == 1
    hidden = [path for path in sessions(Path(project.env["HOME"])) if b"search_archive" in path.read_bytes()]
    assert hidden == []
    printed = next(line for line in reversed(done.stderr.decode().splitlines()) if line.startswith("orch: "))
    assert re.match(r"orch: 1 conversation: 1 request, .* tokens sent, 1 recall", printed)
    if client != "codex":  # The price of its usual model is unknown.
        assert int(re.findall(r"\((\d+)% saved\)", printed)[0]) > 10


def test_subagents_of_claude_code_are_told_apart(project: Shell, server: Apart) -> None:
    """A subagent has its own conversation, and its parent goes on with its own one."""
    first, more = CLIENTS["claude"]
    project.run("wrap", *first, f"Please read: {' '.join(FILES[:9])}")
    before = len(server.server.requests)
    project.run("wrap", *first, *more, f"Please delegate: {' '.join(FILES[9:])}")
    requests = server.server.requests[before:]
    subagent = [request for request in requests if "x-claude-code-agent-id" in request.headers]
    assert server.server.refused == []
    assert len(subagent) == 4
    assert not any(b"needle-3" in request.raw or b"subagent_id: " in request.raw for request in subagent)
    assert any(b"subagent_id: " in request.raw for request in requests if request not in subagent)


def sessions(home: Path) -> list[Path]:
    """Return the files in which the clients keep their sessions."""
    return [path for folder in (".claude", ".codex", ".pi") for path in (home / folder).rglob("*.jsonl")]
