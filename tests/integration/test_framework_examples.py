"""The examples of another framework for agents and front ends, written for orch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orch import BackendInfo, BackendRequest, CustomBackend, Extension, Orchestrator, ScriptedBackend, Skill, hook
from orch.processes.in_process import InProcessLauncher
from orch_protocol.core.messages import text_of

Open = Callable[..., Orchestrator]


class FakeBackend(CustomBackend):
    """A backend that gives the same reply to each request, and keeps the user messages."""

    def __init__(self) -> None:
        super().__init__()
        self.user: list[str] = []

    def respond(self, request: BackendRequest) -> Iterator[Any]:
        """Stream the reply."""
        self.user = [text_of(message) for message in request.messages if message.role == "user"]
        yield "fake reply"

    def info(self) -> BackendInfo:
        """Return the names that are shown."""
        return BackendInfo("fake", "fake-model")


@pytest.fixture
def o(tmp_path: Path) -> Iterator[Orchestrator]:
    """An orchestrator with real processes."""
    with Orchestrator(home=tmp_path / "home") as o:
        yield o


def test_loop_accepts_any_backend(tmp_path: Path) -> None:
    """orch manages turns, events and the session file, and the backend only answers requests."""
    backend = FakeBackend()
    with Orchestrator(home=tmp_path, launcher=InProcessLauncher) as o:
        agent = o.spawn("work", backend=backend, context="none", tools=[])
        pieces: list[str] = []
        reply = agent.query("Hello backend", on_event=lambda event: pieces.append(event.text))
        assert (reply.text, reply.stop_reason) == ("fake reply", "end_turn")
        assert "fake reply" in pieces
        assert [text.rpartition("\n")[2] for text in backend.user] == ["Query: Hello backend"]
        state = agent.state()
        assert (state.status, state.model) == ("idle", "fake:fake-model")
        assert [message.role for message in agent.show().messages] == ["user", "assistant"]
        header, *entries = map(json.loads, (Path(state.folder) / "session.jsonl").read_text().splitlines())
    assert (header["type"], header["version"]) == ("session", 4)
    assert [entry["message"]["role"] for entry in entries if entry["type"] == "message"] == ["user", "assistant"]


def test_session_is_a_tree(o: Orchestrator, tmp_path: Path) -> None:
    """Continuing after an earlier entry creates a branch and deletes nothing. Forks and clones are copies."""
    agent = o.spawn("tree demo", tools=[], cwd=tmp_path, backend=ScriptedBackend(["first answer", "other answer"]))
    agent.query("first question")
    agent.session.checkout(None)
    agent.query("alternate branch")
    tree = agent.session.tree()
    starts = [entry for entry in tree.entries if entry.role == "user"]
    assert [entry.head.rpartition(" ")[2] for entry in starts] == ["question", "branch"]
    assert len(agent.session.branches()) == 2

    agent.session.set_meta("my-extension", {"counter": 1})
    agent.session.add_message("Hidden context", kind="my-extension", display=False)
    agent.session.label(starts[0].id, "checkpoint")
    assert [entry.type for entry in agent.session.tree(3).entries] == ["custom", "custom_message", "label"]

    fork, clone = agent.session.fork(all=True), agent.session.fork()
    assert fork.session.tree().parent_session == agent.id
    assert len(fork.session.branches()) == 2
    assert len(clone.session.branches()) == 1
    assert "Hidden context" in text_of(clone.show().messages[-1])


def test_extension_is_a_bundle_of_capabilities(o: Orchestrator, tmp_path: Path) -> None:
    """An extension adds commands, hooks, keys and widgets to agents, and does not need a terminal."""
    events: list[str] = []

    @hook("*")
    def event(event: Any, _ctx: Any) -> None:
        events.append(event.stage)

    def loop(args: dict[str, str], ctx: Any) -> dict[str, Any]:
        """Return loop state."""
        return {"agent": ctx.agent_id, "turns": sum(message.role == "user" for message in ctx.messages), **args}

    extension = Extension(
        "demo-extension",
        hooks=[event],
        commands={"loop": loop},
        keys={"f6": "/loop"},
        widgets=[{"name": "loop", "command": "/loop", "title": "loop"}],
    )
    manifest = extension.manifest
    assert (manifest.name, manifest.permissions.commands) == ("demo-extension", ("loop",))
    assert manifest.keys == {"f6": "/loop"}
    o.register_extension(extension)
    agent = o.spawn("work", tools=[], cwd=tmp_path, backend=ScriptedBackend(["done"]))
    [row] = [row for row in agent.commands().commands if row.source == "extension demo-extension"]
    assert (row.name, row.summary, row.usage, row.key) == ("loop", "Return loop state.", "/loop [TEXT...]", "f6")
    agent.query("go")
    assert agent.execute("/loop").data == {"agent": agent.id, "turns": 1}
    assert {"before_turn", "message_end", "turn_end"} <= {*events}


def test_system_prompt_comes_from_templates_and_skills(o: Orchestrator, tmp_path: Path) -> None:
    """The template's variables are filled in; the prompt lists the skills, and their texts are read on demand."""
    o.register_skill(Skill("concise", "Short answers.", "Prefer concise, direct answers."))
    o.register_skill(Skill("r-safe", "No side effects.", "Avoid side effects unless the user asks for them."))
    o.register_prompt_template("system", "You are {{role}} working in {{place}}.")
    assert [skill.name for skill in o.skills.list()] == ["concise", "r-safe"]
    assert [template.name for template in o.prompt_templates.list()] == ["system"]
    read = {"tool": "read_skill", "input": {"name": "concise"}}
    agent = o.spawn(
        "work",
        prompt_template="system",
        vars={"role": "a coding agent", "place": "Bamako"},
        skills=["concise", "r-safe"],
        preset="minimal",
        cwd=tmp_path,
        backend=ScriptedBackend([read, "done"]),
    )
    agent.query("go")
    system = agent.prompt_parts().render("stable")
    assert system.startswith("You are a coding agent working in Bamako.")
    assert "- concise: Short answers.\n- r-safe: No side effects." in system
    assert "Prefer concise, direct answers." in str(agent.show().messages)
