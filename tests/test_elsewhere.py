"""Systems without the features of Linux.

All modules can be imported, agents can be spawned, queried and killed, and conversations of other programs archived.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PLACE = Path(__file__).parent / "elsewhere"
"""A folder with a module that hides the features of Linux from each Python that imports the module."""

IMPORTS = """
import importlib, pkgutil

imported = 0
for package in ("orch_protocol", "orch_worker", "orch"):
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if found.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(found.name)
            imported += 1
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith("_sysconfigdata"):  # that system's own
                raise
print(imported)
"""
LIFE = """
from orch.cli import run

def orch(*line):
    assert run(list(line)) == 0, line

orch("spawn", "look", "--name", "reader", "--script", "script.json", "--tools", "bash,run_python")
orch("query", "reader", "go", "--approve", "auto")
orch("show", "reader")
orch("kill", "reader")
orch("resume", "reader")
orch("query", "reader", "again")
orch("daemon", "stop")
"""
ARCHIVAL = """
import sys

packages = {"zmq", "anthropic", "openai", "boto3", "google", "prompt_toolkit", "multiprocess"}

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in packages:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
assert sys.platform == "darwin"

import asyncio, json, os, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
import orch.gateway
from orch import Archiver, AsyncArchiver
from orch.cli import run
from orch.gateway.proxy import connection
from orch.integrations.claude_agent_sdk import environment

messages = []
for turn in range(6):
    messages.append({"role": "user", "content": f"Prompt {turn}"})
    lines = [f"The pump {'abcdef'[turn] * 5} is at row {line}" for line in range(800)]
    messages.append({"role": "assistant", "content": "\\n".join([f"Answer {turn}.", *lines])})
messages.append({"role": "user", "content": "And now?"})

with Archiver("folder", "openai") as archiver:
    folded = archiver.fold(messages)
    assert archiver.search("ccccc")[0].task == "Prompt 2"
    assert archiver.unfold(folded) == messages

async def again():
    async with AsyncArchiver("folder", "openai") as archiver:
        return await archiver.fold(messages)

assert asyncio.run(again()) == folded
print(len(messages), "messages,", len(folded), "after fold")

class Model(BaseHTTPRequestHandler):
    sizes = []

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.sizes.append(len(body))
        last = json.loads(body)["messages"][-1]
        search = {"name": "search_archive", "arguments": '{"query": "ccccc"}'}
        reply, reason = {"role": "assistant", "content": last["content"]}, "stop"
        if last["role"] == "user":
            calls = [{"id": "c1", "type": "function", "function": search}]
            reply, reason = {"role": "assistant", "content": None, "tool_calls": calls}, "tool_calls"
        answer = {"choices": [{"index": 0, "message": reply, "finish_reason": reason}]}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
threading.Thread(target=server.serve_forever, daemon=True).start()
address = f"http://127.0.0.1:{server.server_port}"
body = {"model": "m", "messages": messages}

def check(response):
    assert "Prompt 2" in response.json()["choices"][0]["message"]["content"], response.text
    assert max(Model.sizes) < len(json.dumps(messages)) / 4
    Model.sizes.clear()

async def ask():
    async with orch.gateway.async_client("conversations", trust_env=False) as client:
        return await client.post(f"{address}/v1/chat/completions", json=body)

with orch.gateway.client("conversations", trust_env=False) as client:
    check(client.post(f"{address}/v1/chat/completions", json=body))
check(asyncio.run(ask()))

home = Path(os.environ["ORCH_HOME"])
with connection.start(home, [f"--upstream=openai={address}"]) as proxy, orch.gateway.client(
    "unused", "off", trust_env=False, timeout=40
) as client:
    check(client.post(f"{proxy.base_url}/openai/v1/chat/completions", json=body))
    assert environment()["ANTHROPIC_BASE_URL"].startswith(proxy.url)
print("stopped", connection.stop(home) == proxy.pid)

Path("session.json").write_text(json.dumps(messages))
assert run(["replay", "session.json", "--policy", "balanced"]) == 0
assert not packages & set(sys.modules)
"""
SCRIPT = """[
    {"tool": "bash", "input": {"command": "echo twenty$((1 + 1))"}},
    {"tool": "run_python", "input": {"code": "'two' * 2"}},
    "done", "still there"
]"""


def elsewhere(code: str, **options: str) -> str:
    """Return the output of Python code on a system without the features of Linux."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(PLACE), *sys.path])} | options
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=env.get("HERE"), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_module_imports_without_linux_features() -> None:
    """No module requires a function, constant or system call of Linux at import."""
    assert int(elsewhere(IMPORTS)) > 200


def test_agents_run_without_linux_features(tmp_path: Path) -> None:
    """With a daemon, an agent is spawned, uses tools, is killed and resumed, and remembers its conversation."""
    (tmp_path / "script.json").write_text(SCRIPT)
    found = elsewhere(LIFE, HERE=str(tmp_path), ORCH_HOME=str(tmp_path / "home"))
    for part in ("done", "twenty2", "twotwo", "still there"):
        assert part in found


def test_archival_of_other_programs_runs_without_linux_features(tmp_path: Path) -> None:
    """Archiver, search, HTTP clients, the proxy and replay also run without pyzmq, prompt_toolkit and SDKs.

    tests/integration/test_import.py does the same for `orch import`.
    """
    unset = {"ANTHROPIC_BASE_URL": "", "http_proxy": "", "https_proxy": "", "HTTP_PROXY": "", "HTTPS_PROXY": ""}
    found = elsewhere(ARCHIVAL, HERE=str(tmp_path), ORCH_HOME=str(tmp_path / "home"), **unset)
    assert "13 messages, 13 after fold" in found
    assert "stopped True" in found
    assert "balanced" in found
