"""Hooks in real processes: functions of the program, restarts, import errors, hangs and built-in hooks."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch import AsyncOrchestrator, Block, Config, Orchestrator, Reply, ScriptedBackend
from orch.config.config import check
from orch.config.trust import trust
from orch.policy.hook_records import hook_lines, set_enabled
from orch.processes.in_process import InProcessLauncher
from orch.sessions.audit import audit
from orch.sessions.daily_usage import COSTS, daily_usage
from orch_protocol.agent.config import EnvironmentConfig, HooksConfig
from orch_protocol.core.errors import ConfigError, LaunchError, OrchError
from orch_protocol.core.messages import Message, ToolResult, assistant, text_of, user
from orch_protocol.hooks.options import CompletionChecklist, CostTracker, LoopDetection, NarrationGuard, Summarization
from orch_worker.hooks.builtin.cost_tracker import FILE

READ = {"tool": "read_file", "input": {"path": "one.txt"}}
REDACT = """
from orch import hook

@hook("tool_result")
def redact(event, ctx):
    return event.patch(text=event.text.replace("secret", "*****"))
"""


@pytest.fixture
def open_root(tmp_path: Path) -> Callable[..., AsyncOrchestrator]:
    """A function that opens a root whose agents load the named hooks from a file."""
    (tmp_path / "one.txt").write_text("one is a secret\n")

    def open_root(text: str, *names: str, **options: Any) -> AsyncOrchestrator:
        file = tmp_path / "house_hooks.py"
        file.write_text(text)
        load = tuple(f"{file}:{name}" for name in names)
        return AsyncOrchestrator(config=Config(hooks=HooksConfig(load)), home=tmp_path / "home", **options)

    return open_root


def results(messages: tuple[Message, ...]) -> list[str]:
    """Return the texts of all results in `messages`."""
    blocks = (block for message in messages for block in message.content)
    return [text_of(Message("user", block.content)) for block in blocks if isinstance(block, ToolResult)]


async def test_hooks_survive_a_restart(open_root: Callable[..., AsyncOrchestrator], tmp_path: Path) -> None:
    """An agent of a reopened run has the hooks of its spawn, although the new root loads no hooks."""
    async with open_root(REDACT, "redact", run="kept") as root:
        agent = await root.spawn(
            "Read", tools=["read_file"], cwd=tmp_path, backend=ScriptedBackend(["One.", READ, "Two."])
        )
        await agent.query("Go")
    async with open_root(REDACT, run="kept") as root:
        agent = await root.get(1)
        await agent.query("Go on")
        shown = await agent.show()
    assert "one is a *****" in results(shown.messages)[0]


async def test_changed_hook_file_of_a_trusted_project_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running agent keeps the trusted hook. No new process loads the changed file, until the user trusts it."""
    home, file = tmp_path / "home", tmp_path / "house_hooks.py"
    (tmp_path / "one.txt").write_text("one is a secret\n")
    file.write_text(REDACT)
    (tmp_path / ".orch").mkdir()
    (tmp_path / ".orch" / "config.toml").write_text(f'hooks.load = ["{file}"]\n')
    trust(tmp_path, home, check)
    monkeypatch.chdir(tmp_path)
    async with AsyncOrchestrator(home=home, run="kept", env={}) as root:
        agent = await root.spawn(
            "Read", tools=["read_file"], cwd=tmp_path, backend=ScriptedBackend([READ, "One.", READ, "Two.", "Three."])
        )
        await agent.query("Go")
        file.write_text(REDACT.replace("*****", "changed"))
        await agent.query("Go on")
        assert ["one is a *****" in text for text in results((await agent.show()).messages)] == [True, True]
        with pytest.raises(LaunchError, match=r"these files changed: house_hooks\.py\. Read them, then: orch config"):
            await root.spawn("Read", backend=ScriptedBackend(["One."]))
    async with AsyncOrchestrator(home=home, run="kept", env={}) as root:
        assert "these files changed: house_hooks.py" in root.notes[0]
        again = await root.get(1)
        with pytest.raises(OrchError, match=r"these files changed: house_hooks\.py"):
            await again.query("Go on")
        trust(tmp_path, home, check)
        assert (await again.query("Go on")).text == "Three."


async def test_program_hook_is_called_for_existing_agents(
    open_root: Callable[..., AsyncOrchestrator], tmp_path: Path
) -> None:
    """A hook is called from its registration to its removal, and never in the thread of the event loop."""
    threads: set[int] = set()
    async with open_root("", launcher=InProcessLauncher) as root:
        script = ScriptedBackend(["One.", READ, "Two.", READ, "Three."])
        agent = await root.spawn("Read", tools=["read_file"], cwd=tmp_path, backend=script)
        await agent.query("Go")

        @root.on("tool_result", "tool_call", kind="control", name="look")
        def look(event: Any, ctx: Any) -> Any:
            threads.add(threading.get_ident())
            ctx.state["n"] = ctx.state.get("n", 0) + 1
            if event.stage == "tool_result":
                return event.patch(text=f"{ctx.state['n']} events, agent {ctx.agent_id == agent.id}")
            return None

        assert (await agent.query("Go on")).text == "Two."
        assert results((await agent.show()).messages) == ["2 events, agent True"]
        root.unregister_hook("look")
        await agent.query("Go on")
        assert "secret" in results((await agent.show()).messages)[1]
    assert threads
    assert threading.get_ident() not in threads


async def test_failing_root_guard_blocks_the_call(open_root: Callable[..., AsyncOrchestrator], tmp_path: Path) -> None:
    """A `tool_call` hook that raises an error or exceeds its time limit blocks the call, and the turn continues."""
    async with open_root("", launcher=InProcessLauncher) as root:

        @root.on("tool_call", timeout=0.1)
        def guard(event: Any, _ctx: Any) -> Block | None:
            if event.step == 1:
                raise ValueError("broken")
            release.wait(30)
            return None

        release = threading.Event()
        script = ScriptedBackend([READ, READ, "Done."])
        agent = await root.spawn("Read", tools=["read_file"], cwd=tmp_path, backend=script)
        reply: Reply = await agent.query("Go")
        outcomes = results((await agent.show()).messages)
        release.set()
    assert (reply.text, reply.tool_calls) == ("Done.", 0)
    assert "failed: ValueError: broken" in outcomes[0]
    assert "did not answer within 0.1 s" in outcomes[1]


async def test_unimportable_hook_fails_the_spawn(open_root: Callable[..., AsyncOrchestrator], tmp_path: Path) -> None:
    """The LaunchError names the missing function or module."""
    async with open_root(REDACT, "nothing") as root:
        with pytest.raises(LaunchError, match=r"house_hooks\.py:nothing' does not exist"):
            await root.spawn("Read", cwd=tmp_path)
    async with open_root("import nowhere\n", "redact") as root:
        with pytest.raises(LaunchError, match="No module named 'nowhere'"):
            await root.spawn("Read", cwd=tmp_path)


async def test_worker_with_a_hanging_hook_is_replaced(
    open_root: Callable[..., AsyncOrchestrator], tmp_path: Path
) -> None:
    """The turn ends with an answer, and the next query has a new process."""
    text = (
        "import time\nfrom orch import hook\n"
        "@hook('turn_start', timeout=0.1)\ndef hang(event, ctx):\n"
        "    if 'hang' in event.prompt:\n        time.sleep(3600)\n"
    )
    async with open_root(text, "hang") as root:
        agent = await root.spawn("Read", cwd=tmp_path, backend=ScriptedBackend(["One.", "Two."]))
        before = (await agent.state()).pid
        assert (await agent.query("hang")).text == "One."
        assert (await agent.query("Go on")).text == "Two."
        assert (await agent.state()).pid != before


def test_synchronous_program_registers_hooks(tmp_path: Path) -> None:
    """Hooks of a program without an event loop change replies and results. Invalid hooks are refused."""
    with Orchestrator(config=Config(), home=tmp_path / "home") as o:

        @o.on("before_output", priority=15)
        def louder(event: Any, _ctx: Any) -> Any:
            return {"text": event.text.upper()}

        with pytest.raises(ConfigError, match="turn_end does not support kind='control'"):
            o.on("turn_end", kind="control")(louder)
        with pytest.raises(ConfigError, match="session_end cannot call functions of the program"):
            o.register_hook(louder, "session_end", name="late")
        agent = o.spawn("Say it", backend=ScriptedBackend(["hello"]))

        @o.on("tool_result")
        def hide(event: Any, _ctx: Any) -> Any:
            return {"text": event.text.replace("secret", "*****")}

        assert agent.execute("/py 'a ' + 'secret'").text == "'a secret'"  # the worker does not know the hook yet
        assert agent.query("Go").text == "HELLO"
        assert "[It came to:]\n'a *****'" in text_of(agent.show().messages[0])


async def test_built_in_hooks_redact_and_detect_loops(tmp_path: Path) -> None:
    """`content_safety` redacts secrets in results and replies, `loop_detection` blocks a repeated call, and the audit
    lists both.
    """
    secret = "AKIA" + "Q" * 16
    (tmp_path / "one.txt").write_text(f"key {secret}\n")
    config = Config(hooks=HooksConfig(("content_safety", "loop_detection"), loop_detection=LoopDetection(repeats=2)))
    async with AsyncOrchestrator(config=config, home=tmp_path / "home", launcher=InProcessLauncher) as root:
        script = ScriptedBackend([READ, READ, READ, f"It is {secret}."])
        agent = await root.spawn("Read", tools=["read_file"], cwd=tmp_path, backend=script)
        reply = await agent.query("Go")
        outcomes = results((await agent.show()).messages)
        session = Path((await agent.state()).folder) / "session.jsonl"
    acts = [(row.name, re.sub(r"[\d.]+", "N", row.text)) for row in audit(session) if row.what == "hook"]
    assert acts == [
        *[("content_safety", "tool_result: text, in N ms")] * 2,
        ("loop_detection", "tool_call: block, in N ms"),
        ("content_safety", "before_output: text, in N ms"),
    ]
    assert reply.text == "It is [redacted: aws_key]."
    assert "key [redacted: aws_key]" in outcomes[0]
    assert outcomes[0] == outcomes[1]
    assert "the same call was made 2 times in this turn" in outcomes[2]
    assert reply.tool_calls == 2


async def test_built_in_hooks_count_costs_and_shorten(tmp_path: Path) -> None:
    """`cost_tracker` adds up costs, `summarization` compacts the conversation, and the audit lists these actions. The
    session contains the usage of the day.
    """
    hooks = HooksConfig(
        ("cost_tracker", "summarization"),
        cost_tracker=CostTracker(5.0),
        summarization=Summarization("compact", messages=6),
    )
    home, history = tmp_path / "home", [user("one?"), assistant("one " * 300), user("two?"), assistant("two")]
    async with AsyncOrchestrator(config=Config(hooks=hooks), home=home, launcher=InProcessLauncher) as root:
        script = ScriptedBackend([READ, "three"], ["One was counted."])
        agent = await root.spawn("Count", tools=["read_file"], cwd=tmp_path, backend=script, history=history)
        assert (await agent.query("three?")).text == "three"
        assert "One was counted." in text_of((await agent.show()).messages[0])
        session = Path((await agent.state()).folder) / "session.jsonl"
    assert (home / "evidence" / FILE).exists()
    [day] = daily_usage(home / "sessions", home / "evidence" / COSTS).values()
    assert [(name, each.requests) for name, each in day.models.items()] == [("scripted", 3)]
    assert [(name, each.calls, each.errors) for name, each in day.tools.items()] == [("read_file", 1, 1)]
    rows = list(audit(session))
    assert [row.what for row in rows if row.what in ("call", "compaction")] == ["call", "compaction"]
    assert not any(row.remark for row in rows)
    with pytest.raises(ConfigError, match="audit_log"):
        set_enabled(home, "audit_log", enabled=False)


async def test_checklist_and_narration_hooks_remind_in_the_same_turn(tmp_path: Path) -> None:
    """The hooks add a message after an unchecked change and after silent steps, and the turn continues."""
    config = Config(
        hooks=HooksConfig(
            ("completion_checklist", "narration_guard"),
            narration_guard=NarrationGuard(1),
            completion_checklist=CompletionChecklist(reminders=3),
        )
    )
    write = {"tool": "write_file", "input": {"path": "pump.py", "content": "print(82)"}}
    fails, passes = ({"tool": "bash", "input": {"command": command}} for command in ("false", "true"))
    async with AsyncOrchestrator(
        config=config, home=tmp_path / "home", approve=lambda _asked: True, launcher=InProcessLauncher
    ) as root:
        script = ScriptedBackend([write, "Done.", fails, "Done.", passes, "It runs."])
        agent = await root.spawn("Write", tools=["write_file", "bash"], cwd=tmp_path, backend=script)
        reply = await agent.query("Go")
        shown_text = [text_of(message) for message in (await agent.show()).messages if message.role == "user"]
    assert reply.text == "It runs."
    assert sum("without a word" in text for text in shown_text) == 3
    assert sum("you changed pump.py, and have run nothing since" in text for text in shown_text) == 1
    assert sum("what you ran last (bash) failed" in text for text in shown_text) == 1


async def test_tool_router_shares_outcomes_between_agents(tmp_path: Path) -> None:
    """The first request of an agent recommends the tool that earlier agents used for a similar question."""
    (tmp_path / "one.txt").write_text("one\n")
    tails: list[str] = []
    async with AsyncOrchestrator(
        config=Config(hooks=HooksConfig(("tool_router",))), home=tmp_path / "home", launcher=InProcessLauncher
    ) as root:

        @root.on("before_provider_request", kind="observe")
        def listen(event: Any, _ctx: Any) -> None:
            tails.append(event.tail)

        for _ in range(4):
            agent = await root.spawn("Read", tools=["read_file"], cwd=tmp_path, backend=ScriptedBackend([READ, "1"]))
            await agent.query("Which pump is on?")
    assert ["read_file did well" in tail for tail in tails] == [False] * 6 + [True, False]


async def test_hook_statistics_are_stored_on_exit(tmp_path: Path) -> None:
    """The statistics count the calls of a hook until it is disabled, because a disabled hook is not called."""
    (tmp_path / "one.txt").write_text("one\n")
    home = tmp_path / "home"
    async with AsyncOrchestrator(config=Config(), home=home, launcher=InProcessLauncher) as root:

        @root.on("tool_call", name="counted", kind="observe")
        def counted(_event: Any, _ctx: Any) -> None: ...

        script = ScriptedBackend([READ, "1", READ, "2"])
        agent = await root.spawn("Read", tools=["read_file"], cwd=tmp_path, backend=script)
        await agent.query("Go")
        set_enabled(home, "counted", enabled=False)
        await agent.query("Go")
    [line] = [line for line in hook_lines(home, []) if line.name == "counted"]
    assert (line.calls, line.errors, line.enabled, line.running) == (1, 0, False, False)


async def test_session_end_hook_runs_on_orderly_exit(
    open_root: Callable[..., AsyncOrchestrator], tmp_path: Path
) -> None:
    """A `session_end` hook can still write files."""
    found = tmp_path / "told"
    text = f"""
from orch import hook

@hook("session_start", "session_end", name="life")
def life(event, ctx):
    with open({str(found)!r}, "a") as file:
        file.write(event.stage + "\\n")
"""
    async with open_root(text, "life") as root:
        agent = await root.spawn("Read", cwd=tmp_path, backend=ScriptedBackend(["One.", "Two."]))
        await agent.query("Go")
        await agent.query("Go on")
    assert found.read_text().split() == ["session_start", "session_end"]


async def test_watchers_see_hook_actions(open_root: Callable[..., AsyncOrchestrator], tmp_path: Path) -> None:
    """`on_event` receives an event for each action of a hook."""
    seen: list[tuple[str, str, bool]] = []
    async with open_root(REDACT, "redact", launcher=InProcessLauncher) as root:
        agent = await root.spawn("Read", tools=["read_file"], cwd=tmp_path, backend=ScriptedBackend([READ, "Done."]))
        await agent.query("Go", on_event=lambda event: seen.append((event.kind, event.text, event.is_error)))
    assert ("hook", "tool_result: text", False) in seen


READS_VARIABLE = """
import os
from orch import hook

@hook("turn_start")
def post(event, context):
    os.environ["SLACK_WEBHOOK"]

print(os.environ["SLACK_WEBHOOK"])
"""


async def test_hook_gets_only_the_variables_that_are_passed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable of the program reaches workers if `environment=` or `environment.pass` names it."""
    monkeypatch.setenv("SLACK_WEBHOOK", "https://hooks.example/1")
    (tmp_path / "post.py").write_text(READS_VARIABLE)
    config = Config(hooks=HooksConfig(load=(str(tmp_path / "post.py"),)))
    async with AsyncOrchestrator(home=home, env={}, config=config) as o:
        with pytest.raises(LaunchError, match="SLACK_WEBHOOK is set in your shell but not passed to workers"):
            await o.spawn("post", backend=ScriptedBackend(["posted"]))
    async with AsyncOrchestrator(home=home, env={}, config=config, environment=["SLACK_*"]) as o:
        agent = await o.spawn("post", backend=ScriptedBackend(["posted"]))
        assert (await agent.query("post")).text == "posted"
    config = msgspec.structs.replace(config, environment=EnvironmentConfig(pass_=("SLACK_WEBHOOK",)))
    async with AsyncOrchestrator(home=home, env={}, config=config) as o:
        agent = await o.spawn("post", backend=ScriptedBackend(["posted"]))
        assert (await agent.query("post")).text == "posted"
