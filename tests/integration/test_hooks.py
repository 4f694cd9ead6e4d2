"""Hooks and processes: functions of the program, restarts, what cannot be imported, what hangs."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch import AsyncOrchestrator, Block, Config, Orchestrator, Reply, ScriptedBackend
from orch.policy.hook_records import hook_lines, set_enabled
from orch.sessions.audit import audit
from orch_protocol.agent.config import EnvironmentConfig, HooksConfig
from orch_protocol.core.errors import ConfigError, LaunchError
from orch_protocol.core.messages import Message, ToolResult, assistant, text_of, user
from orch_protocol.hooks.options import CompletionChecklist, LoopDetection, NarrationGuard, Summarization
from orch_worker.hooks.builtin.cost_tracker import FILE
from orch_worker.hooks.builtin.usage_log import UsageLog

READ = {"tool": "read_file", "input": {"path": "one.txt"}}
REDACT = """
from orch import hook

@hook("tool_result")
def redact(event, ctx):
    return event.patch(text=event.text.replace("secret", "*****"))
"""


@pytest.fixture
def open_root(tmp_path: Path) -> Callable[..., AsyncOrchestrator]:
    """Opens a root whose agents load what is named of a file of hooks, in a folder with a file."""
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


async def test_they_are_there_after_a_restart(open_root: Callable[..., AsyncOrchestrator], tmp_path: Path) -> None:
    """An agent of a run that is opened anew has the hooks that it was spawned with."""
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


async def test_functions_of_the_program(open_root: Callable[..., AsyncOrchestrator], tmp_path: Path) -> None:
    """A plain function of the program is called for agents that are there already, and never on the loop's thread."""
    threads: set[int] = set()
    async with open_root("") as root:
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


async def test_a_guard_in_the_program_that_fails_blocks(
    open_root: Callable[..., AsyncOrchestrator], tmp_path: Path
) -> None:
    """A guard in the program that fails, or does not return, blocks the call; the turn goes on."""
    async with open_root("") as root:

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
        said = results((await agent.show()).messages)
        release.set()
    assert (reply.text, reply.tool_calls) == ("Done.", 0)
    assert "failed: ValueError: broken" in said[0]
    assert "did not answer within 0.1 s" in said[1]


async def test_what_cannot_be_had_says_so(open_root: Callable[..., AsyncOrchestrator], tmp_path: Path) -> None:
    """An agent whose hooks cannot be imported does not come up, and the error says which and why."""
    async with open_root(REDACT, "nothing") as root:
        with pytest.raises(LaunchError, match=r"house_hooks\.py:nothing' is not there"):
            await root.spawn("Read", cwd=tmp_path)
    async with open_root("import nowhere\n", "redact") as root:
        with pytest.raises(LaunchError, match="No module named 'nowhere'"):
            await root.spawn("Read", cwd=tmp_path)


async def test_a_process_with_a_hook_that_hangs_is_replaced(
    open_root: Callable[..., AsyncOrchestrator], tmp_path: Path
) -> None:
    """After a turn in which a plain function did not return, the next query has a process of its own."""
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


def test_hooks_of_a_plain_program(tmp_path: Path) -> None:
    """A program without an event loop registers functions in the same way, and hears what is refused at once."""
    with Orchestrator(config=Config(), home=tmp_path / "home") as o:

        @o.on("before_output", priority=15)
        def louder(event: Any, _ctx: Any) -> Any:
            return {"text": event.text.upper()}

        with pytest.raises(ConfigError, match="turn_end does not support kind='control'"):
            o.on("turn_end", kind="control")(louder)
        with pytest.raises(ConfigError, match="session_end is not for functions of the program"):
            o.register_hook(louder, "session_end", name="late")
        agent = o.spawn("Say it", backend=ScriptedBackend(["hello"]))

        @o.on("tool_result")
        def hide(event: Any, _ctx: Any) -> Any:
            return {"text": event.text.replace("secret", "*****")}

        assert agent.execute("/py 'a ' + 'secret'").text == "'a secret'"  # before any turn has told of that hook
        assert agent.query("Go").text == "HELLO"
        assert "[It came to:]\n'a *****'" in text_of(agent.show().messages[0])


async def test_built_in_hooks_act_in_a_real_run(tmp_path: Path) -> None:
    """Secrets are gone from results, record and reply, a call in circles is blocked, and the record says so."""
    secret = "AKIA" + "Q" * 16
    (tmp_path / "one.txt").write_text(f"key {secret}\n")
    config = Config(hooks=HooksConfig(("content_safety", "loop_detection"), loop_detection=LoopDetection(repeats=2)))
    async with AsyncOrchestrator(config=config, home=tmp_path / "home") as root:
        script = ScriptedBackend([READ, READ, READ, f"It is {secret}."])
        agent = await root.spawn("Read", tools=["read_file"], cwd=tmp_path, backend=script)
        reply = await agent.query("Go")
        said = results((await agent.show()).messages)
        session = Path((await agent.state()).folder) / "session.jsonl"
    acts = [(row.name, re.sub(r"[\d.]+", "N", row.text)) for row in audit(session) if row.what == "hook"]
    assert acts == [
        *[("content_safety", "tool_result: text, in N ms")] * 2,
        ("loop_detection", "tool_call: block, in N ms"),
        ("content_safety", "before_output: text, in N ms"),
    ]
    assert reply.text == "It is [redacted: aws_key]."
    assert "key [redacted: aws_key]" in said[0]
    assert said[0] == said[1]
    assert "the very same call was made 2 times in this turn" in said[2]
    assert reply.tool_calls == 2


async def test_built_in_hooks_that_count_and_shorten_act_in_a_real_run(tmp_path: Path) -> None:
    """What agents cost is added up, a conversation becomes shorter at its bound, and the audit has all of it."""
    hooks = HooksConfig(("cost_tracker", "summarization"), summarization=Summarization("compact", messages=6))
    home, history = tmp_path / "home", [user("one?"), assistant("one " * 300), user("two?"), assistant("two")]
    async with AsyncOrchestrator(config=Config(hooks=hooks), home=home) as root:
        script = ScriptedBackend([READ, "three"], ["One was counted."])
        agent = await root.spawn("Count", tools=["read_file"], cwd=tmp_path, backend=script, history=history)
        assert (await agent.query("three?")).text == "three"
        assert "One was counted." in text_of((await agent.show()).messages[0])
        session = Path((await agent.state()).folder) / "session.jsonl"
    [day] = UsageLog(home / "evidence" / FILE).days().values()
    assert [each.requests for each in day.models.values()] == [2]
    assert [(name, each.calls, each.errors) for name, each in day.tools.items()] == [("read_file", 1, 1)]
    rows = list(audit(session))
    assert [row.what for row in rows if row.what in ("call", "compaction")] == ["call", "compaction"]
    assert not any(row.remark for row in rows)
    with pytest.raises(ConfigError, match="audit_log"):
        set_enabled(home, "audit_log", enabled=False)


async def test_an_agent_checks_its_work_before_it_stops(tmp_path: Path) -> None:
    """Told that it has run nothing since its change, and silent for long, it goes on in the same turn."""
    config = Config(
        hooks=HooksConfig(
            ("completion_checklist", "narration_guard"),
            narration_guard=NarrationGuard(1),
            completion_checklist=CompletionChecklist(reminders=3),
        )
    )
    write = {"tool": "write_file", "input": {"path": "pump.py", "content": "print(82)"}}
    fails, passes = ({"tool": "bash", "input": {"command": command}} for command in ("false", "true"))
    async with AsyncOrchestrator(config=config, home=tmp_path / "home", approve=lambda _asked: True) as root:
        script = ScriptedBackend([write, "Done.", fails, "Done.", passes, "It runs."])
        agent = await root.spawn("Write", tools=["write_file", "bash"], cwd=tmp_path, backend=script)
        reply = await agent.query("Go")
        said = [text_of(message) for message in (await agent.show()).messages if message.role == "user"]
    assert reply.text == "It runs."
    assert sum("without a word" in text for text in said) == 3
    assert sum("you changed pump.py, and have run nothing since" in text for text in said) == 1
    assert sum("what you ran last (bash) failed" in text for text in said) == 1


async def test_agents_learn_which_tools_do_well_from_one_another(tmp_path: Path) -> None:
    """What came of the calls of some agents is told to another one that is asked the like, in its first request."""
    (tmp_path / "one.txt").write_text("one\n")
    tails: list[str] = []
    async with AsyncOrchestrator(config=Config(hooks=HooksConfig(("tool_router",))), home=tmp_path / "home") as root:

        @root.on("before_provider_request", kind="observe")
        def listen(event: Any, _ctx: Any) -> None:
            tails.append(event.tail)

        for _ in range(4):
            agent = await root.spawn("Read", tools=["read_file"], cwd=tmp_path, backend=ScriptedBackend([READ, "1"]))
            await agent.query("Which pump is on?")
    assert ["read_file did well" in tail for tail in tails] == [False] * 6 + [True, False]


async def test_what_hooks_did_is_kept_for_the_list(tmp_path: Path) -> None:
    """What hooks did is on record when the program has ended; one that is switched off is not called."""
    (tmp_path / "one.txt").write_text("one\n")
    home = tmp_path / "home"
    async with AsyncOrchestrator(config=Config(), home=home) as root:

        @root.on("tool_call", name="counted", kind="observe")
        def counted(_event: Any, _ctx: Any) -> None: ...

        script = ScriptedBackend([READ, "1", READ, "2"])
        agent = await root.spawn("Read", tools=["read_file"], cwd=tmp_path, backend=script)
        await agent.query("Go")
        set_enabled(home, "counted", enabled=False)
        await agent.query("Go")
    [line] = hook_lines(home, [])
    assert (line.name, line.calls, line.errors, line.enabled) == ("counted", 1, 0, False)


async def test_a_process_that_ends_says_so(open_root: Callable[..., AsyncOrchestrator], tmp_path: Path) -> None:
    """A hook hears when its process ends in order, and can still write then."""
    told = tmp_path / "told"
    text = f"""
from orch import hook

@hook("session_start", "session_end", name="life")
def life(event, ctx):
    with open({str(told)!r}, "a") as file:
        file.write(event.stage + "\\n")
"""
    async with open_root(text, "life") as root:
        agent = await root.spawn("Read", cwd=tmp_path, backend=ScriptedBackend(["One.", "Two."]))
        await agent.query("Go")
        await agent.query("Go on")
    assert told.read_text().split() == ["session_start", "session_end"]


async def test_who_watches_is_told(open_root: Callable[..., AsyncOrchestrator], tmp_path: Path) -> None:
    """A turn that is watched tells what each hook did, as it happens."""
    seen: list[tuple[str, str, bool]] = []
    async with open_root(REDACT, "redact") as root:
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
