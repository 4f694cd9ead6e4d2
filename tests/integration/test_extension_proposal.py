"""The examples of the proposal for lifecycle events and extensions, written for orch, with real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orch import Config, Orchestrator, PromptConfig, PromptPart, ScriptedBackend, Subagent
from orch_protocol.core.errors import BackendError
from orch_protocol.core.messages import Message, ToolResult, text_of

LONG = {"tool": "bash", "input": {"command": "head -c 30000 /dev/zero | tr '\\0' x"}}


@pytest.fixture
def o(tmp_path: Path) -> Iterator[Orchestrator]:
    """An orchestrator that approves every call."""
    config = Config(prompt=PromptConfig(time=True))
    with Orchestrator(home=tmp_path / "home", config=config, approve=lambda _question: True) as o:
        yield o


def texts(agent: Subagent) -> list[str]:
    """Return the text of each message and tool result of the conversation."""
    found = []
    for message in agent.show().messages:
        for block in message.content:
            content = block.content if isinstance(block, ToolResult) else (block,)
            found.append(text_of(Message("user", content)))
    return found


def test_handlers_receive_event_and_context(o: Orchestrator, tmp_path: Path) -> None:
    """Handlers of nine stages are called for a turn, and `error` handlers are called when a request fails."""
    seen: list[str] = []

    def handler(event: Any, ctx: Any) -> None:
        assert (ctx.cwd, ctx.config.task, ctx.agent_id) == (tmp_path, "work", event.agent_id)
        seen.append(event.stage)

    stages = ("before_turn", "before_system_prompt", "after_system_prompt", "context", "tool_call", "tool_result")
    for stage in (*stages, "steering_received", "message_end", "turn_end", "error"):
        o.register_hook(handler, stage, name=f"on {stage}".replace(" ", "_"))
    script = [{"tool": "list_files", "input": {}}, "done"]
    agent = o.spawn("work", tools=["list_files"], cwd=tmp_path, backend=ScriptedBackend(script))
    agent.steer("hurry")
    agent.query("go")
    with pytest.raises(BackendError):  # the script has no third answer
        agent.query("go on")
    assert [*dict.fromkeys(seen)][:3] == ["before_turn", "before_system_prompt", "after_system_prompt"]
    assert {*seen} == {*stages, "steering_received", "message_end", "turn_end", "error"}


def test_long_tool_results_are_truncated(o: Orchestrator, tmp_path: Path) -> None:
    """A `tool_result` hook replaces a long result by its beginning and a note."""

    @o.on("tool_result")
    def shorten(event: Any, _ctx: Any) -> Any:
        if event.name == "bash" and len(event.text) > 20_000:
            return event.patch(text=event.text[:12_000] + "\n\n[truncated]")
        return None

    agent = o.spawn("work", tools=["bash"], cwd=tmp_path, backend=ScriptedBackend([LONG, "done"]))
    agent.query("go")
    [result] = [text for text in texts(agent) if "xxx" in text]
    assert result.endswith("\n\n[truncated]")
    assert 12_000 <= len(result) < 12_100


def test_system_prompt_is_extended_from_a_file(o: Orchestrator, tmp_path: Path) -> None:
    """An `after_system_prompt` hook appends the text of a file in the agent's folder."""
    (tmp_path / "guidance.md").write_text("Degrees are Celsius.")
    sent: list[str] = []

    @o.on("after_system_prompt")
    def guide(event: Any, ctx: Any) -> Any:
        return event.patch(text=f"{event.text}\n\n{(ctx.cwd / 'guidance.md').read_text()}")

    @o.on("before_provider_request", kind="observe")
    def look(event: Any, _ctx: Any) -> None:
        sent.append(event.system)

    o.spawn("work", tools=[], cwd=tmp_path, backend=ScriptedBackend(["done"])).query("go")
    assert sent[0].endswith("\n\nDegrees are Celsius.")


def test_prompt_consists_of_parts_in_tiers(o: Orchestrator, tmp_path: Path) -> None:
    """A `before_system_prompt` hook adds a part, and each part is in the tier stable, context or volatile."""
    (tmp_path / "AGENTS.md").write_text("Degrees are Celsius.\n")

    @o.on("before_system_prompt")
    def brief(event: Any, _ctx: Any) -> Any:
        return event.patch(add=[PromptPart("style", "Answer in one sentence.", tier="stable")])

    agent = o.spawn("work", preset="work", cwd=tmp_path, backend=ScriptedBackend(["done"]))
    agent.query("go")
    shown = agent.prompt_parts()
    tiers = {part.name: part.tier for part in shown.parts}
    assert [tiers[name] for name in ("identity", "tool_guidance", "style")] == ["stable"] * 3
    assert tiers["project_briefing"] == "context"
    assert tiers["time"] == "volatile"
    assert shown.render("stable").endswith("Answer in one sentence.")


def test_program_registers_a_tool_a_template_and_a_command(o: Orchestrator, tmp_path: Path) -> None:
    """An agent uses what the program added with `register_tool`, `register_prompt_template` and
    `register_slash_command`.
    """

    def count_words(text: str) -> int:
        """Count the words of a text."""
        return len(text.split())

    o.register_tool(count_words)
    o.register_prompt_template("analyst", "You analyze {{what}}.")
    o.register_slash_command("where", lambda _args, ctx: str(ctx.cwd))
    call = {"tool": "count_words", "input": {"text": "one two"}}
    agent = o.spawn(
        "work",
        tools=["count_words"],
        cwd=tmp_path,
        prompt_template="analyst",
        vars={"what": "pumps"},
        backend=ScriptedBackend([call, "done"]),
    )
    agent.query("go")
    assert "2" in texts(agent)
    assert agent.prompt_parts().render("stable").startswith("You analyze pumps.")
    assert agent.execute("/where").text == str(tmp_path)


def test_hooks_send_and_change_steering_messages(o: Orchestrator, tmp_path: Path) -> None:
    """A `tool_call` hook steers the agent. A `steering_received` hook changes the message and adds another one."""

    def steer_once(_event: Any, ctx: Any) -> None:
        if not ctx.turn_state.setdefault("said", False):
            ctx.turn_state["said"] = True
            ctx.steer("use bar")

    o.register_hook(steer_once, "tool_call", name="steer", kind="transform")

    @o.on("steering_received")
    def inject(event: Any, _ctx: Any) -> Any:
        return event.patch(text=f"{event.text}, not psi", inject=["Write SI units."])

    script = [{"tool": "list_files", "input": {}}, "done"]
    agent = o.spawn("work", tools=["list_files"], cwd=tmp_path, backend=ScriptedBackend(script))
    assert agent.query("go").text == "done"
    assert [text for text in texts(agent) if "[Steering]" in text] == [
        "[Steering]\nuse bar, not psi",
        "[Steering]\nWrite SI units.",
    ]


def test_observers_and_custom_events_are_used_together(o: Orchestrator, tmp_path: Path) -> None:
    """An observer receives the outcomes of tool calls, and `emit_event` calls the hooks of `custom_event`."""
    seen: list[str] = []
    o.add_observer(lambda event: seen.append(event.outcome))

    @o.on("custom_event")
    def count(event: Any, _ctx: Any) -> Any:
        return event.patch(data={**event.data, "seen": True})

    script = [{"tool": "list_files", "input": {}}, "done"]
    agent = o.spawn("work", tools=["list_files"], cwd=tmp_path, backend=ScriptedBackend(script))
    agent.query("go")
    assert o.emit_event(agent, "tested", data={"calls": 1}) == {"calls": 1, "seen": True}
    o.close()
    assert seen == ["start", "ran"]
