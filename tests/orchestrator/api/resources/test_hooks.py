"""`o.hooks`, `o.skills` and `o.prompt_templates`: lists of what is configured and registered."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from orch import Config, PromptConfig, PromptTemplate
from orch.policy import root_hooks
from orch_protocol.core.errors import ConfigError
from orchestrator.root_double import opened


async def test_registered_hooks_are_listed_and_switched(tmp_path: Path) -> None:
    """`audit_log` cannot be switched off, and a hook that is not loaded cannot be switched on."""
    async with opened(tmp_path) as o:
        o.register_hook(lambda _event, _ctx: None, "turn_end", name="count")
        rows = {row.name: row for row in o.hooks.list()}
        assert rows["count"].stages == ("turn_end",)
        assert rows["count"].enabled
        assert o.hooks.disable("count")
        assert not o.hooks.disable("count")
        assert not next(row for row in o.hooks.list() if row.name == "count").enabled
        assert o.hooks.enable("count")
        with pytest.raises(ConfigError, match="always on"):
            o.hooks.disable("audit_log")
        assert not rows["content_safety"].enabled
        with pytest.raises(ConfigError, match="content_safety is not loaded"):
            o.hooks.enable("content_safety")


async def test_functions_of_the_program_see_the_conversation(tmp_path: Path) -> None:
    """Sync and async functions get the messages; results of running calls are missing."""
    seen: dict[str, list[list[str]]] = {"sync": [], "async": []}
    async with opened(tmp_path) as o:

        @o.on("before_turn", "tool_call", "before_output", kind="transform")
        def plain(_event: Any, ctx: Any) -> None:
            seen["sync"].append([message.role for message in ctx.messages])

        @o.on("before_turn", "tool_call", "before_output", kind="transform")
        async def later(_event: Any, ctx: Any) -> None:
            seen["async"].append([message.role for message in ctx.messages])

        agent = await o.scripted({"tool": "list_files", "input": {}}, "done", tools=["list_files"])
        await agent.query("go")
    turn = [[], ["user", "assistant"], ["user", "assistant", "user", "assistant"]]
    assert seen == {"sync": turn, "async": turn}


async def test_conversation_for_async_functions_is_read_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop does not wait while the file is read, for hooks and for commands."""
    threads, seen, read = set[int](), list[Any](), root_hooks.read_session

    def reading(folder: Path) -> Any:
        threads.add(threading.get_ident())
        return read(folder)

    monkeypatch.setattr(root_hooks, "read_session", reading)
    async with opened(tmp_path) as o:

        async def count(_event: Any, ctx: Any) -> None:
            ctx.turn_state["n"] = ctx.turn_state.get("n", 0) + 1
            seen.append((len(ctx.messages), ctx.turn_state["n"]))

        async def size(_args: Any, ctx: Any) -> Any:
            return {"messages": len(ctx.messages)}

        o.register_hook(count, "before_turn", "before_output", kind="transform", name="count")
        o.register_slash_command("size", size)
        agent = await o.scripted("one", "two", tools=[])
        await agent.query("go")
        assert (await agent.execute("/size")).data == {"messages": 2}
        await agent.query("go on")
        assert seen == [(0, 1), (2, 2), (2, 1), (4, 2)]
        assert len(threads) > 0
        assert threading.get_ident() not in threads


async def test_configured_and_registered_templates_are_listed(tmp_path: Path) -> None:
    """A program can register a template by name and text, or as an object."""
    file = tmp_path / "poet.md"
    file.write_text("Rhyme {{what}}.")
    async with opened(tmp_path, config=Config(prompt=PromptConfig(templates=(str(file),)))) as o:
        o.register_prompt_template("reviewer", "Review {{what}}.")
        o.register_prompt_template(PromptTemplate("writer", "Write {{what}}."))
        found = {template.name: template.source for template in o.prompt_templates.list()}
        assert found == {"poet": str(file), "reviewer": "this program", "writer": "this program"}
