"""The workspace of an agent for users and programs: shown, pinned, pruned, copied and deleted."""

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
from orch_protocol.core.workspace import Artifact, DropArtifacts, FileState, KeepArtifact, TouchArtifacts
from orch_protocol.services.resources.workspace import ChangeWorkspace
from orch_worker.session.session_reader import read_session
from orch_worker.workspace.state import Workspace
from orchestrator.archival.store.prune_samples import EVER, session
from orchestrator.root_double import Gate, World, opened

ON = Config(workspace=WorkspaceConfig(enabled=True, prune_turns=3))


def read(path: str) -> dict[str, Any]:
    """Return a call that reads the file `path`."""
    return {"tool": "read_file", "input": {"path": path}}


async def reader(o: World, cwd: Path, *said: Any, **options: Any) -> AsyncSubagent:
    """Return an agent whose first turn reads a.txt and whose second turn reads b.txt."""
    for name in ("a.txt", "b.txt"):
        (cwd / name).write_text(f"what {name} says, in a few words")
    return await o.scripted(read("a.txt"), "one", read("b.txt"), "two", *said, context="none", cwd=cwd, **options)


def recorded(o: World, agent: AsyncSubagent) -> list[str]:
    """Return the names of the artifacts that the agent's session file records."""
    session = read_session(Path(o.supervisor.tree.agents[agent.id].spec.folder))
    return list(Workspace.of(session.workspace_data).artifacts)


def names(artifacts: tuple[Artifact, ...]) -> list[str]:
    return [each.name for each in artifacts]


async def test_workspace_is_listed_by_time_or_relevance(tmp_path: Path) -> None:
    """The list is sorted by time or by relevance to a text, and marks changed files without recording the change."""
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


async def test_artifacts_are_pinned_unpinned_and_forgotten(tmp_path: Path) -> None:
    """An artifact is given by its name or a suffix; pinned artifacts come first in the next request."""
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


async def test_workspace_prune_follows_rules_or_given_limits(tmp_path: Path) -> None:
    """`prune` removes artifacts above the configured or the given limit, except pinned ones."""
    async with opened(tmp_path / "home", config=ON) as o:
        agent = await reader(o, tmp_path, "3", "4", "5", tools=["read_file"])
        for prompt in ("1", "2", "3"):
            await agent.query(prompt)
        assert await agent.workspace.prune() == ()
        await agent.workspace.pin("b.txt")
        assert await agent.workspace.prune(turns=1) == ("file:a.txt",)
        assert recorded(o, agent) == names((await agent.workspace.show()).artifacts) == ["file:b.txt"]


async def test_fork_copies_the_workspace(tmp_path: Path) -> None:
    """The fork has the pins of its source, and changes of the fork do not affect the source."""
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


async def test_invalid_workspace_requests_are_refused(tmp_path: Path) -> None:
    """Unknown names, empty changes and changes during a turn raise errors."""
    gate = Gate()
    async with opened(tmp_path / "home", config=ON) as o:
        agent = await reader(o, tmp_path, {"tool": "gate", "input": {}}, "done", tools=["read_file", gate.tool()])
        await agent.query("first")
        await agent.query("second")
        with pytest.raises(EntryNotFoundError, match="orch workspace list"):
            await agent.workspace.pin("c.txt")
        with pytest.raises(ConfigError, match="no change requested"):
            await agent.workspace._change(ChangeWorkspace(agent.id))
        running = agent.submit("third")
        await gate.called.wait()
        with pytest.raises(AgentBusyError):
            await agent.workspace.pin("a.txt")
        gate.open.set()
        await running


async def test_agent_can_pin_with_a_tool(tmp_path: Path) -> None:
    """The tool pin_object is available with the workspace; an unknown name gives an error result."""
    pins = [{"tool": "pin_object", "input": {"name": name}} for name in ("a.txt", "nothing")]
    async with opened(tmp_path / "home", config=ON) as o:
        agent = await o.scripted(read("a.txt"), *pins, "done", context="none", cwd=tmp_path, tools=["read_file"])
        (tmp_path / "a.txt").write_text("what it says, in a few words")
        await agent.query("Pin it.")
        [found] = (await agent.workspace.show()).artifacts
        transcript = str((await agent.show()).messages)
        assert found.pinned
        assert "file:a.txt is pinned." in transcript
        assert "'nothing' is not in the workspace, which contains: file:a.txt" in transcript


async def test_prompt_of_a_cold_agent_omits_the_workspace_block(tmp_path: Path) -> None:
    """A note states that the block is chosen when a turn begins, because it depends on the query."""
    async with opened(tmp_path / "home", config=ON) as o:
        agent = await reader(o, tmp_path, tools=["read_file"])
        await agent.query("first")
        await agent.kill()
        shown = await agent.prompt_parts()
        assert any("chosen when a turn begins" in note for note in shown.notes)


def test_deleting_an_archive_deletes_its_artifacts(tmp_path: Path) -> None:
    """Artifacts of other turns and the messages of the conversation stay."""
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
        left = Workspace.of(read_session(life.transcript.path.parent).workspace_data)
        assert [(each.name, each.used, each.deps) for each in left] == [("file:b", 3, ("file:c",))]
        assert session(life)["messages"] == before["messages"]
    finally:
        life.close()


class Daemon:
    """A test double of the daemon that has a workspace and records its calls."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def call(self, method: str, params: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Record the call and return a fixed answer."""
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
    """A test double that answers instead of a real daemon."""
    daemon = Daemon()
    monkeypatch.setattr(Connection, "call", lambda _, method, params, **more: daemon.call(method, params, **more))
    return daemon


def test_workspace_command_lists_and_shows_artifacts(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    """`orch workspace list` and `show` print artifacts, and escape control characters."""
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
    assert "stale:     data.csv has changed since" in shown
    assert "by:        run_python(code=frame = 1)" in shown
    assert table({"artifacts": [], "digest": ""}) == ""
    assert page(ROWS[1]).splitlines()[:2] == ["file:a.py", "  kind:      file"]


def test_workspace_command_pins_and_forgets(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    """`orch workspace pin`, `unpin` and `prune` print the names of the affected artifacts."""
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


def test_ambiguous_artifact_name_lists_candidates() -> None:
    """A name that matches several artifacts is an error until only one of them is left."""
    from orch.services.resources.workspace import _resolve_all

    there = Workspace(
        [KeepArtifact(Artifact(f"{kind}:a", kind, files=(FileState("a"),))) for kind in ("file", "value")]
    )
    with pytest.raises(AmbiguousRefError, match="file:a, value:a"):
        _resolve_all(there, ["a"])
    there.apply(DropArtifacts(("file:a",)))
    assert _resolve_all(there, ["a", "value:a"]) == ("value:a",)


async def test_workspace_slash_command_lists_and_pins(tmp_path: Path) -> None:
    """`/workspace` lists, pins and drops artifacts, and reports a missing name."""
    async with opened(tmp_path / "home", config=ON) as o:
        agent = await reader(o, tmp_path, tools=["read_file"])
        await agent.query("first")
        await agent.query("second")
        assert (await agent.execute("/workspace pin a.txt")).text == "pinned: file:a.txt"
        text = (await agent.execute("/workspace about b.txt")).text
        assert text.index("file:a.txt") < text.index("file:b.txt") < text.index("[2 in all")
        assert (await agent.execute("/workspace drop a.txt")).text == "dropped: file:a.txt"
        with pytest.raises(ConfigError, match="pass the name"):
            await agent.execute("/workspace unpin")
        assert [row["name"] for row in (await agent.execute("/workspace")).data["artifacts"]] == ["file:b.txt"]
