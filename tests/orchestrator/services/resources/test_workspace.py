"""What agents have at hand, for people and programs: shown, pinned, forgotten, copied and deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_history import Life
from orch import AsyncSubagent, Config, WorkspaceConfig
from orch.cli import run
from orch.client.connection import Connection
from orch.render.workspace import page, table
from orch_protocol.core.errors import AgentBusyError, AmbiguousRefError, ConfigError, EntryNotFoundError
from orch_protocol.core.workspace import (
    Artifact,
    ChangeWorkspace,
    DropArtifacts,
    FileState,
    KeepArtifact,
    TouchArtifacts,
)
from orch_worker.session.transcript import read_session
from orch_worker.workspace.state import Workspace
from orchestrator.archival.store.prune_samples import EVER, session
from orchestrator.root_double import Gate, World, opened

ON = Config(workspace=WorkspaceConfig(enabled=True, prune_turns=3))


def read(path: str) -> dict[str, Any]:
    """Return a call that reads a file."""
    return {"tool": "read_file", "input": {"path": path}}


async def reader(o: World, cwd: Path, *said: Any, **options: Any) -> AsyncSubagent:
    """Return an agent that has read a.txt and b.txt."""
    for name in ("a.txt", "b.txt"):
        (cwd / name).write_text(f"what {name} says, in a few words")
    return await o.scripted(read("a.txt"), "one", read("b.txt"), "two", *said, context="none", cwd=cwd, **options)


def recorded(o: World, agent: AsyncSubagent) -> list[str]:
    """Return the names of what the agent's file says is at hand."""
    session = read_session(Path(o.supervisor.tree.agents[agent.id].spec.folder))
    return list(Workspace.of(session.at_hand).artifacts)


def names(artifacts: tuple[Artifact, ...]) -> list[str]:
    """Return their names."""
    return [each.name for each in artifacts]


async def test_it_is_shown_the_latest_first_or_by_what_is_asked(tmp_path: Path) -> None:
    """With its digest; files are compared with the disk then, which changes nothing on record."""
    async with opened(tmp_path / "home", config=ON) as o:
        agent = await reader(o, tmp_path, tools=["read_file"])
        await agent.query("first")
        await agent.query("second")
        shown = await agent.workspace.show()
        assert (names(shown.artifacts), shown.turn, shown.enabled) == (["file:b.txt", "file:a.txt"], 2, True)
        assert shown.digest == "[2 in all: 2 files]"
        assert names((await agent.workspace.show("a.txt?")).artifacts) == ["file:a.txt", "file:b.txt"]
        (tmp_path / "a.txt").write_text("other words")
        assert [each.stale for each in (await agent.workspace.show()).artifacts] == ["", "a.txt has changed since"]
        before = (await agent.session.tree()).count
        await agent.workspace.show()
        assert (await agent.session.tree()).count == before


async def test_it_is_pinned_unpinned_and_forgotten_between_turns(tmp_path: Path) -> None:
    """By name or the end of one; what is pinned is told of first in the next request."""
    async with opened(tmp_path / "home", config=ON) as o:
        agent = await reader(o, tmp_path, "three", tools=["read_file"])
        await agent.query("first")
        await agent.query("second")
        assert await agent.workspace.pin("a.txt") == ("file:a.txt",)
        await agent.query("what of b.txt?")
        part = next(part for part in (await agent.prompt_parts()).parts if part.name == "objects")
        assert part.text.index("file:a.txt") < part.text.index("file:b.txt")
        assert await agent.workspace.unpin("file:a.txt") == ("file:a.txt",)
        assert [each.pinned for each in (await agent.workspace.show()).artifacts] == [False, False]
        assert await agent.workspace.prune("a.txt") == ("file:a.txt",)
        assert recorded(o, agent) == names((await agent.workspace.show()).artifacts) == ["file:b.txt"]


async def test_pruning_goes_by_the_rules_of_the_agent_or_by_other_bounds(tmp_path: Path) -> None:
    """What is pinned stays."""
    async with opened(tmp_path / "home", config=ON) as o:
        agent = await reader(o, tmp_path, "3", "4", "5", tools=["read_file"])
        for prompt in ("1", "2", "3"):
            await agent.query(prompt)
        assert await agent.workspace.prune() == ()
        await agent.workspace.pin("b.txt")
        assert await agent.workspace.prune(turns=1) == ("file:a.txt",)
        assert recorded(o, agent) == names((await agent.workspace.show()).artifacts) == ["file:b.txt"]


async def test_a_copy_has_what_was_at_hand_there(tmp_path: Path) -> None:
    """And each goes its own way from there."""
    async with opened(tmp_path / "home", config=ON) as o:
        agent = await reader(o, tmp_path, "three", tools=["read_file"])
        await agent.query("first")
        await agent.workspace.pin("a.txt")
        point = (await agent.session.tree()).leaf
        await agent.query("second")
        copy = await agent.session.fork(point)
        assert [(each.name, each.pinned) for each in (await copy.workspace.show()).artifacts] == [("file:a.txt", True)]
        await copy.workspace.prune("a.txt")
        assert recorded(o, copy) == []
        assert recorded(o, agent) == ["file:a.txt", "file:b.txt"]


async def test_what_is_not_there_or_not_now_is_refused(tmp_path: Path) -> None:
    """With what there is to do about it."""
    gate = Gate()
    async with opened(tmp_path / "home", config=ON) as o:
        agent = await reader(o, tmp_path, {"tool": "gate", "input": {}}, "done", tools=["read_file", gate.tool()])
        await agent.query("first")
        await agent.query("second")
        with pytest.raises(EntryNotFoundError, match="orch workspace list"):
            await agent.workspace.pin("c.txt")
        with pytest.raises(ConfigError, match="nothing to do"):
            await agent.workspace._arrange(ChangeWorkspace(agent.id))
        running = agent.submit("third")
        await gate.called.wait()
        with pytest.raises(AgentBusyError):
            await agent.workspace.pin("a.txt")
        gate.open.set()
        await running


async def test_an_agent_pins_by_itself(tmp_path: Path) -> None:
    """With a tool that is there when the workspace is; a name that is none comes back as an error."""
    pins = [{"tool": "pin_object", "input": {"name": name}} for name in ("a.txt", "nothing")]
    async with opened(tmp_path / "home", config=ON) as o:
        agent = await o.scripted(read("a.txt"), *pins, "done", context="none", cwd=tmp_path, tools=["read_file"])
        (tmp_path / "a.txt").write_text("what it says, in a few words")
        await agent.query("Pin it.")
        [found] = (await agent.workspace.show()).artifacts
        said = str((await agent.show()).messages)
        assert found.pinned
        assert "file:a.txt is pinned." in said
        assert "'nothing' is none of what there is: file:a.txt" in said


async def test_without_a_process_the_prompt_says_that_it_is_chosen_later(tmp_path: Path) -> None:
    """What the next request says depends on what is asked."""
    async with opened(tmp_path / "home", config=ON) as o:
        agent = await reader(o, tmp_path, tools=["read_file"])
        await agent.query("first")
        await agent.kill()
        shown = await agent.prompt_parts()
        assert any("chosen when a turn begins" in note for note in shown.notes)


def test_deleting_an_archive_deletes_what_its_turn_had_brought(tmp_path: Path) -> None:
    """Its summary is a part of what was read, and its name may be; what other turns brought stays, and the conversation
    is what it was."""
    life = Life(tmp_path)
    try:
        life.turn(asked="read it", answer="so it is, at length " * 10)
        turn = next(iter(life.transcript.session.replies))
        life.transcript.workspace((KeepArtifact(Artifact("file:needle", "file", summary="needle of a summary")),), turn)
        life.archive()
        made = KeepArtifact(Artifact("file:b", "file", summary="kept", deps=("file:needle", "file:c")))
        life.transcript.workspace(
            (made, TouchArtifacts(("file:needle", "file:b"), 3), DropArtifacts(("file:needle",), "needle")), "other"
        )
        before = session(life)
        life.prune(EVER)
        assert "needle" not in life.transcript.path.read_text()
        life.transcript.close()
        left = Workspace.of(read_session(life.transcript.path.parent).at_hand)
        assert [(each.name, each.used, each.deps) for each in left] == [("file:b", 3, ("file:c",))]
        assert session(life)["messages"] == before["messages"]
    finally:
        life.close()


class Daemon:
    """Stands in for the daemon: has a workspace, and says what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def call(self, method: str, params: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Answer as the daemon would."""
        self.asked.append((method, params))
        if method == "workspace":
            return {"id": "a", "turn": 2, "artifacts": ROWS, "digest": "[2 in all]", "enabled": True}
        drop = params.get("drop") or ["file:old"]
        return {"pinned": params.get("pin", []), "unpinned": params.get("unpin", []), "dropped": drop}


ROWS: list[dict[str, Any]] = [
    {
        "name": "value:frame",
        "kind": "pandas.DataFrame",
        "summary": "2 x 2: a \x1b[2Jint64",
        "tool": "run_python",
        "arguments": {"code": "frame = 1"},
        "turn": 2,
        "used": 2,
        "at": "2026-11-21T10:00:00.000Z",
        "deps": ["value:raw"],
        "files": [{"path": "data.csv"}],
        "size": 12_345,
        "stale": "data.csv has changed since",
        "pinned": True,
    },
    {"name": "file:a.py", "kind": "file", "files": [{"path": "a.py"}]},
]


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """A daemon that is asked instead of a real one."""
    daemon = Daemon()
    monkeypatch.setattr(Connection, "call", lambda _, method, params, **more: daemon.call(method, params, **more))
    return daemon


def test_the_shell_lists_and_shows_what_there_is(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    """With size, sources and state; nothing in a summary reaches the terminal raw."""
    assert run(["workspace", "list", "latest", "--about", "pumps"]) == 0
    assert daemon.asked == [("workspace", {"ref": "latest", "about": "pumps"})]
    head, frame, file, digest = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "KIND", "SIZE", "TURN", "FROM", "STATE", "SUMMARY"]
    assert frame.split()[:4] == ["value:frame", "pandas.DataFrame", "12.3k", "2"]
    assert "value:raw, data.csv" in frame
    assert "pinned, STALE" in frame
    assert "\x1b" not in frame
    assert file.split()[:2] == ["file:a.py", "file"]
    assert digest == "[2 in all]"
    assert run(["workspace", "show", "latest", "frame"]) == 0
    shown = capsys.readouterr().out
    assert "stale:    data.csv has changed since" in shown
    assert "by:       run_python(code=frame = 1)" in shown
    assert table({"artifacts": [], "digest": ""}) == ""
    assert page(ROWS[1]).splitlines()[:2] == ["file:a.py", "  kind:     file"]


def test_the_shell_pins_and_forgets(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    """And prints the names of what it was about."""
    for argv, asked in (
        (["pin", "1", "x", "y"], {"pin": ["x", "y"]}),
        (["unpin", "1", "x"], {"unpin": ["x"]}),
        (["prune", "1", "x"], {"drop": ["x"], "prune": False, "turns": None, "bytes": None}),
        (
            ["prune", "1", "--turns", "9", "--bytes", "2000000000"],
            {"drop": [], "prune": True, "turns": 9, "bytes": 2_000_000_000},
        ),
    ):
        assert run(["workspace", *argv]) == 0
        assert daemon.asked[-1] == ("change_workspace", {"ref": "1"} | asked)
    assert capsys.readouterr().out.split() == ["x", "y", "x", "x", "file:old"]
    assert run(["workspace", "show", "1", "nothing"]) == 3
    assert "orch workspace list" in capsys.readouterr().err


def test_a_name_of_several_is_asked_for_whole() -> None:
    """The names are said."""
    from orch.services.resources.workspace import _found

    there = Workspace(
        [KeepArtifact(Artifact(f"{kind}:a", kind, files=(FileState("a"),))) for kind in ("file", "value")]
    )
    with pytest.raises(AmbiguousRefError, match="file:a, value:a"):
        _found(there, ["a"])
    there.apply(DropArtifacts(("file:a",)))
    assert _found(there, ["a", "value:a"]) == ("value:a",)


async def test_a_session_is_told_behind_a_slash(tmp_path: Path) -> None:
    """The same list, and pins."""
    async with opened(tmp_path / "home", config=ON) as o:
        agent = await reader(o, tmp_path, tools=["read_file"])
        await agent.query("first")
        await agent.query("second")
        assert (await agent.execute("/workspace pin a.txt")).text == "pinned: file:a.txt"
        said = (await agent.execute("/workspace about b.txt")).text
        assert said.index("file:a.txt") < said.index("file:b.txt") < said.index("[2 in all")
        assert (await agent.execute("/workspace drop a.txt")).text == "dropped: file:a.txt"
        with pytest.raises(ConfigError, match="say the name"):
            await agent.execute("/workspace unpin")
        assert [row["name"] for row in (await agent.execute("/workspace")).data["artifacts"]] == ["file:b.txt"]
