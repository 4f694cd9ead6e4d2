"""The text files of an agent's archives: its commands and file tools read them, and those of other agents do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent_history import EAGER
from orch import AsyncOrchestrator, Config, PolicyConfig, ScriptedBackend, TaintConfig
from orch_worker.policy.taint import labels_file
from orch_worker.sandbox.launcher_client import unavailable_reason

TOOLS = ["bash", "grep_files", "read_file"]
CONFIG = Config(archival=replace(EAGER, async_=False))


def call(tool: str, **input: Any) -> dict[str, Any]:
    """Return a step with one call."""
    return {"tool": tool, "input": input}


@pytest.mark.skipif(bool(unavailable_reason()), reason="no mount namespaces here")
async def test_agent_reads_the_texts_of_its_own_archives_only(tmp_path: Path) -> None:
    """Commands and grep_files find an archived line. The files are read-only, and the rest of orch's home is hidden.

    The links `mine` and `other` in the working folder lead to the texts of this agent and of another agent.
    """
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    (work / "mail.txt").write_text("the copper valve leaks\n")
    commands = [
        "grep -rh copper mine/ && echo READ",
        "cat other/turn-001.txt || echo HIDDEN-OTHER",
        "cat mine/../session.jsonl || echo HIDDEN-SESSION",
        "ls mine/../.. | grep -c . || echo HIDDEN-SESSIONS",
        "echo x >> mine/turn-001.txt || echo READ-ONLY; rm -f mine/index.txt; touch mine/new",
    ]
    reads = [call("bash", command=command) for command in commands]
    reads += [call("grep_files", pattern="copper", path="mine"), call("read_file", path="mine/index.txt")]
    steps = [call("bash", command="cat mail.txt"), "Seen.", {"tools": reads}, "Done."]
    async with AsyncOrchestrator(config=CONFIG, home=home, run="mine") as o:
        agent = await o.spawn("Work", tools=TOOLS, cwd=work, backend=ScriptedBackend(steps))
        pump = ScriptedBackend([call("bash", command="echo the iron pump"), "Seen."])
        other = await o.spawn("Work", tools=TOOLS, cwd=work, backend=pump)
        for name, each in (("mine", agent), ("other", other)):
            assert (await each.query("look")).archived_to
            (work / name).symlink_to(Path((await each.state()).folder) / "archives")
        assert "the iron pump" in (work / "other" / "turn-001.txt").read_text()
        await agent.query("read")
        first, second = ((work / "mine" / f"turn-00{number}.txt").read_text() for number in (1, 2))
        assert first.count("the copper valve leaks") == 1
        assert "x" not in first.split()[-1:]
        assert sorted(path.name for path in (work / "mine").glob("*.txt")) == [
            "index.txt",
            "turn-001.txt",
            "turn-002.txt",
        ]
        results = second.partition("\n[result 1]\n")[2]
        assert "the copper valve leaks\nREAD" in results
        assert all(mark in results for mark in ("HIDDEN-OTHER", "HIDDEN-SESSION", "READ-ONLY"))
        assert "iron pump" not in second
        assert results.count("the copper valve leaks") == 2  # from the command and from grep_files
        assert "turn-001.txt  " in results


async def test_file_tools_read_the_texts_if_orch_is_below_the_working_folder(tmp_path: Path) -> None:
    """The texts cannot be changed, and the rest of orch's home cannot be opened."""
    reads = [
        call("grep_files", pattern="seen", path="mine"),
        call("read_file", path="mine/turn-001.txt"),
        call("read_file", path="mine/../session.jsonl"),
        call("write_file", path="mine/turn-001.txt", content="changed"),
    ]
    backend = ScriptedBackend(["What was seen.", {"tools": reads}, "Done."])
    async with AsyncOrchestrator(config=CONFIG, home=tmp_path / "home", run="mine") as o:
        tools = ["grep_files", "read_file", "write_file"]
        agent = await o.spawn("Work", tools=tools, cwd=tmp_path, backend=backend)
        assert (await agent.query("look")).archived_to
        folder = Path((await agent.state()).folder) / "archives"
        (tmp_path / "mine").symlink_to(folder)
        await agent.query("read")
        assert "changed" not in (folder / "turn-001.txt").read_text()
        results = (folder / "turn-002.txt").read_text().partition("[result 1]\n")[2]
        assert "turn-001.txt:7: What was seen." in results
        assert "     7\tWhat was seen." in results
        assert results.count("belongs to orch") == 2


async def test_texts_have_the_labels_of_the_archived_conversation(tmp_path: Path) -> None:
    """Another conversation that reads the files of a tainted conversation becomes tainted too."""
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "mail.txt").write_text("the copper valve leaks\n")
    rules = PolicyConfig(taint=TaintConfig(untrusted_paths=("inbox",)))
    async with AsyncOrchestrator(config=replace(CONFIG, policy=rules), home=tmp_path / "home", run="mine") as o:
        backend = ScriptedBackend([call("read_file", path="inbox/mail.txt"), "Seen."])
        agent = await o.spawn("Work", tools=["read_file"], cwd=tmp_path, backend=backend)
        assert (await agent.query("look")).archived_to
        folder = Path((await agent.state()).folder)
        assert f'["{folder}/archives",["untrusted"]]' in labels_file(folder).read_text().replace(" ", "")
