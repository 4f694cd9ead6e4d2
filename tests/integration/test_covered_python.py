"""run_python in a tool host whose mount namespace hides the folders of orch and the denied paths."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from orch import AsyncOrchestrator, AsyncSubagent, Config, PolicyConfig, ScriptedBackend
from orch.processes.exec import ExecLauncher
from orch.processes.zygote import ZygoteLauncher
from orch_protocol.core.errors import OrchError
from orch_protocol.core.messages import Message, Text, ToolResult
from orch_worker.policy.denied_files import MAX_MOUNTS
from orch_worker.sandbox import launcher_client

SECRET = "BEGIN-DENIED"
DENIED = PolicyConfig(denied_paths=("*.key",))
REQUIRED = PolicyConfig(denied_paths=("*.key",), require_denied_paths=True)
Spawn = Callable[..., Awaitable[AsyncSubagent]]

ATTEMPTS = (
    "open(HOME + '/config.toml').read()",
    "open(HOME + '/config.toml', 'a')",
    "open(HOME + '/permissions.json').read()",
    "open(HOME + '/permissions.json', 'w')",
    "open(HOME + '/sessions/other/transcript.jsonl').read()",
    "open(HOME + '/sessions/other/transcript.jsonl', 'a')",
    "os.listdir(HOME + '/sessions')",
    "os.listdir(HOME + '/runs')",
    "os.mkdir(HOME + '/extensions')",
    "os.rename(HOME, HOME + '.old')",
    "shutil.rmtree(HOME + '/runs')",
    "open(DENIED).read()",
    "open(DENIED, 'w')",
    "os.remove(DENIED)",
    "open('/proc/self/root' + DENIED).read()",
    "open(f'/proc/{os.getppid()}/root' + DENIED).read()",
    "check(LIBC.umount2(DENIED.encode(), 2))",
    "check(LIBC.umount2(HOME.encode(), 2))",
    "check(LIBC.mount(b'none', HOME.encode(), None, 32 | 4096, None))",
    "check(LIBC.unshare(0x20000) or LIBC.umount2(DENIED.encode(), 2))",
    "check(LIBC.unshare(0x10000000) or LIBC.umount2(DENIED.encode(), 2))",
    "check(LIBC.setns(os.open(f'/proc/{os.getppid()}/ns/mnt', os.O_RDONLY), 0))",
    "subprocess.run(['cat', DENIED], check=True, stderr=subprocess.DEVNULL)",
    "subprocess.run(['unshare', '-Urm', 'umount', '-l', DENIED], check=True, stderr=subprocess.DEVNULL)",
)

PROBE = """
import ctypes, os, shutil, subprocess
LIBC = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result:
        raise OSError(ctypes.get_errno(), "refused")
done = []
for attempt in ATTEMPTS:
    try:
        eval(attempt)
    except (OSError, shutil.Error, subprocess.CalledProcessError):
        continue
    done.append(attempt)
print("succeeded:", done)
"""


@pytest.fixture(params=[ZygoteLauncher, ExecLauncher])
async def spawn(request: pytest.FixtureRequest, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that spawns an agent with run_python and a script, under a policy."""
    if why := launcher_client.unavailable_reason():
        pytest.skip(why)
    roots: list[AsyncOrchestrator] = []
    work = tmp_path / "work"
    work.mkdir()
    (work / "token.key").write_text(SECRET)
    monkeypatch.chdir(work)

    async def make(
        *script: Any, policy: PolicyConfig, tools: tuple[str, ...] = ("run_python", "bash")
    ) -> AsyncSubagent:
        root = AsyncOrchestrator(home=home, config=Config(policy=policy), launcher=request.param)
        await root.__aenter__()
        roots.append(root)
        (home / "sessions" / "other").mkdir(parents=True, exist_ok=True)
        for name in ("config.toml", "permissions.json", "sessions/other/transcript.jsonl"):
            (home / name).write_text("")
        return await root.spawn("compute", tools=list(tools), backend=ScriptedBackend(list(script)))

    yield make
    for root in roots:
        await root.close()


def python(code: str) -> dict[str, Any]:
    """Return a call of run_python."""
    return {"tool": "run_python", "input": {"code": code}}


def results(messages: tuple[Message, ...]) -> list[str]:
    """Return the texts of all results."""
    blocks = [block for message in messages for block in message.content if isinstance(block, ToolResult)]
    return ["".join(each.text for each in block.content if isinstance(each, Text)) for block in blocks]


def probe(home: Path, attempts: tuple[str, ...] = ATTEMPTS) -> dict[str, Any]:
    """Return a call that makes the attempts. The code is encoded, so that no rule about file names applies to
    the call.
    """
    setup = f"import os\nHOME = {str(home)!r}\nATTEMPTS = {attempts!r}\n"
    code = base64.b64encode((setup + "DENIED = os.getcwd() + '/token.key'\n" + PROBE).encode()).decode()
    return python(f"import base64\nexec(base64.b64decode('{code}'))")


def make_too_many_denied_files() -> None:
    """Create more denied files than mounts can hide."""
    for number in range(MAX_MOUNTS + 1):
        Path(f"{number}.key").write_text("")


async def test_run_python_cannot_reach_orch_folders_or_denied_files(spawn: Spawn, home: Path, tmp_path: Path) -> None:
    """The code can neither read nor change the files, and cannot undo the mounts."""
    agent = await spawn(probe(home), "done", policy=DENIED)
    reply = await agent.query("go")
    assert results((await agent.show()).messages)[0].strip() == "succeeded: []"
    assert (reply.tool_calls, reply.warning) == (1, "")
    assert (tmp_path / "work" / "token.key").read_text() == SECRET
    assert (home / "config.toml").read_text() == ""


async def test_orch_folders_are_hidden_without_denied_paths(spawn: Spawn, home: Path) -> None:
    """The folders are hidden even if run_python is the agent's only tool."""
    attempts = tuple(each for each in ATTEMPTS if "DENIED" not in each)
    agent = await spawn(probe(home, attempts), "done", policy=PolicyConfig(), tools=("run_python",))
    await agent.query("go")
    assert results((await agent.show()).messages)[0].strip() == "succeeded: []"


async def test_code_and_commands_work_in_the_mount_namespace(spawn: Spawn, tmp_path: Path) -> None:
    """Code and commands can use files in the working folder, and denied files are hidden from commands, too."""
    agent = await spawn(
        python("open('made.txt', 'w').write('made')"),
        {"tool": "bash", "input": {"command": "cat made.txt; cat token.$(echo key)"}},
        "done",
        policy=DENIED,
    )
    await agent.query("go")
    text = results((await agent.show()).messages)[1]
    assert text.startswith("made")
    assert SECRET not in text
    assert (tmp_path / "work/made.txt").read_text() == "made"


async def test_names_and_session_survive_beside_the_mounts(spawn: Spawn) -> None:
    """Python names stay bound from one turn to the next."""
    agent = await spawn(python("x = 41"), "one", python("x + 1"), "two", policy=DENIED)
    await agent.query("go")
    await agent.query("go")
    assert results((await agent.show()).messages)[-1].strip() == "42"


async def test_code_stores_values_and_cannot_write_the_transcript(spawn: Spawn) -> None:
    """The session folder is read-only for the code, except for the folders of values, jobs and commands."""
    mounts = r"re.findall(r'\S+/sessions/[0-9a-f]+', open('/proc/self/mountinfo').read())"
    find = f"import re\nfolder = min({mounts}, key=len)\n"
    agent = await spawn(
        python("list(range(5000))"), python(f"{find}open(folder + '/session.jsonl', 'a')"), "done", policy=DENIED
    )
    await agent.query("go")
    stored, refused = results((await agent.show()).messages)
    assert stored.startswith("[.h_001: list, 5,000 items")
    assert "Read-only file system" in refused


async def test_run_python_is_not_offered_when_hiding_fails(spawn: Spawn) -> None:
    """If there are more denied files than mounts can hide, the reply has a warning with the reason."""
    make_too_many_denied_files()
    agent = await spawn(python("1"), "done", policy=DENIED)
    reply = await agent.query("go")
    assert "run_python is not offered" in reply.warning
    assert f"{MAX_MOUNTS + 2:,} paths are denied" in reply.warning
    assert reply.tool_calls == 0


async def test_required_but_impossible_hiding_fails_the_spawn(spawn: Spawn) -> None:
    """With `require_denied_paths`, the spawn raises an error with the reason."""
    make_too_many_denied_files()
    with pytest.raises(OrchError, match="denied paths cannot be hidden"):
        await spawn(python("1"), "done", policy=REQUIRED)


async def test_run_python_is_not_offered_beside_denied_paths_without_namespaces(
    spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent's state reports that paths are denied by name only."""
    for launcher in (ZygoteLauncher, ExecLauncher):
        monkeypatch.setattr(launcher, "mount_namespace_problem", lambda _: "no namespaces")
    agent = await spawn(python("1"), "done", policy=DENIED)
    assert (await agent.query("go")).tool_calls == 0
    assert (await agent.state()).denied_paths == "by name only"
