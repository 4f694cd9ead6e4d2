"""The Claude Agent SDK with the real Claude Code and the real proxy, before a model server."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from frameworks.world import RECALLS, RECORD, Sent, check_guide, log_of, serving
from orch.gateway.proxy import connection
from orch.integrations import claude_agent_sdk
from orch_protocol.core.errors import ConfigError
from wire.model_server import Answer, Request, call, say

sdk: Any = pytest.importorskip("claude_agent_sdk", reason="claude-agent-sdk is not installed: make external")
pytestmark = [pytest.mark.external, pytest.mark.timeout(180)]

FILES = [f"Read day{number}.log" for number in range(4)]
FILE = re.compile(r"Read (\w+\.log)")
QUOTED = re.compile(r"Find '([^']+)'")


def model(request: Request) -> Answer:
    """Answer as a model that reads the file of the last prompt, or searches its archives for quoted text."""
    user = [message for message in request.body["messages"] if message["role"] == "user"]
    parts = content_of(user[-1])
    if any(part["type"] == "tool_result" for part in parts):
        return say(json.dumps(parts)[:600])
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    if quoted := QUOTED.findall(text):
        return call({"call": "search_archive", "input": {"query": quoted[-1]}})
    if (files := FILE.findall(text.partition("# Archived turns")[0])) and request.body.get("tools"):
        return call({"call": "Read", "input": {"file_path": files[-1]}})
    return say("ok")


def content_of(message: Any) -> list[Any]:
    """Return the blocks of a message."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


class Place:
    """A home of orch and a home of Claude Code, with a folder of files."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "orch"
        self.user = folder / "user"
        self.work = folder / "work"
        for each in (self.user, self.work):
            each.mkdir()
        for name in ("day0", "day1", "day2", "day3", "alpha", "bravo"):
            (self.work / f"{name}.log").write_text(log_of(name))

    def options(self, **options: Any) -> Any:
        """Return the options of the SDK, with the variables of the integration."""
        quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
        env = {"HOME": str(self.user), "CLAUDE_CONFIG_DIR": str(self.user), "ANTHROPIC_API_KEY": "k1", **quiet}
        env |= claude_agent_sdk.environment(self.home)
        return sdk.ClaudeAgentOptions(
            env=env, cwd=self.work, allowed_tools=["Read"], model="claude-sonnet-5-5", setting_sources=[], **options
        )

    def kept(self) -> str:
        """Return the sessions of Claude Code as text."""
        return "".join(path.read_text() for path in self.user.rglob("*.jsonl"))


@contextmanager
def place_with(folder: Path, answer: Callable[[Request], Answer] = model) -> Iterator[tuple[Place, Sent]]:
    """Start a model server. The proxy of the place is stopped at the end."""
    with serving(answer) as sent:
        place = Place(folder)
        try:
            yield place, sent
        finally:
            for attached in claude_agent_sdk._attached.values():
                attached.close()
            claude_agent_sdk._attached.clear()
            connection.stop(place.home)


async def talk(options: Any, prompts: list[str]) -> Any:
    """Send the prompts in one session, and return the last result message."""
    result: Any = None
    async with sdk.ClaudeSDKClient(options) as client:
        for prompt in prompts:
            await client.query(prompt)
            async for message in client.receive_response():
                if isinstance(message, sdk.ResultMessage):
                    result = message
    return result


def conversations(sent: Sent) -> list[str]:
    """Return the requests of conversations with tools."""
    return [text for text, body in zip(sent.requests, sent.bodies, strict=True) if body.get("tools")]


async def test_sessions_keep_everything_and_the_model_gets_records(tmp_path: Path) -> None:
    """Also after a restart of the program and of the proxy. Claude Code does not see recalls."""
    with place_with(tmp_path) as (place, sent):
        first = await talk(place.options(), FILES)
        assert not first.is_error, first
        assert connection.stop(place.home) is not None
        result = await talk(place.options(resume=first.session_id), ["Say hello", "Find 'day1: pressure 7 bar'"])
        assert not result.is_error
        assert "day1: pressure 7 bar" in result.result
        assert RECORD in conversations(sent)[-1]
        kept = place.kept()
        assert all(f"day{number}: pressure 899 bar" in kept for number in range(4))
        assert RECORD not in kept
        assert not any(f'"{name}"' in kept for name in RECALLS)
        sizes = [len(json.dumps(json.loads(text)["messages"])) for text in conversations(sent)]
        assert sizes[-1] < 60_000 < 4 * len(log_of("day0"))


async def test_conversations_are_not_mixed(tmp_path: Path) -> None:
    """Two sessions with the same beginning: each gets only its own text."""
    with place_with(tmp_path) as (place, sent):
        for name in ("alpha", "bravo"):
            result = await talk(place.options(), [*FILES[:2], f"Read {name}.log", FILES[2], "Find 'pressure 7 bar'"])
            assert not result.is_error
        assert sum(RECORD in text for text in conversations(sent)) > 2
        assert not any("alpha: pressure" in text and "bravo: pressure" in text for text in sent.requests)


async def test_another_server_than_that_of_the_proxy_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy keeps the server of ANTHROPIC_BASE_URL with which it was started."""
    with place_with(tmp_path) as (place, sent):
        assert claude_agent_sdk.environment(place.home) == claude_agent_sdk.environment(place.home)
        inside = claude_agent_sdk.environment(place.home)["ANTHROPIC_BASE_URL"]
        monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
        with pytest.raises(ConfigError, match=f"sends requests to {sent.url}: end it with `orch proxy stop`"):
            claude_agent_sdk.environment(place.home)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", inside)
        assert claude_agent_sdk.environment(place.home)["ANTHROPIC_BASE_URL"] == inside
        assert os.environ["ANTHROPIC_BASE_URL"] == inside


def test_the_program_of_the_guide_runs(tmp_path: Path) -> None:
    """It prints what the page shows."""
    check_guide("claude_agent_sdk", tmp_path, model, CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1")
