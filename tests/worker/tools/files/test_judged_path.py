"""The path that the policy judged is the path that a tool opens, even if a link is changed in the meantime."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.messages import ToolUse
from orch_protocol.policy.approval import digest_of
from orch_protocol.policy.policy import PolicyConfig, PolicySpec
from orch_protocol.policy.sandbox import SandboxSpec
from orch_protocol.services.policy.approvals import ApprovalDecision, ApproveCall
from orch_protocol.services.service import AnyService
from orch_protocol.wire.tool_events import CallReport
from orch_worker.tools.api.base import ToolContext, tool
from orch_worker.tools.dispatch.guard import Guard
from orch_worker.tools.dispatch.local_only import LocalOnlyGuard
from orch_worker.tools.dispatch.result_limits import text_in
from orch_worker.tools.dispatch.toolbox import Toolbox
from orch_worker.tools.files.edit import replace_in_file, write_file
from orch_worker.tools.files.read import grep_files, list_files, read_file
from orch_worker.tools.python.data import describe_data
from swapped_folder import AT_FDCWD, RENAME_EXCHANGE

DENIED = PolicySpec(rules=PolicyConfig(denied_paths=("secret",)))
ROUNDS = 100
CALLS: dict[str, dict[str, Any]] = {
    "read_file": {"path": "link/key.csv"},
    "describe_data": {"path": "link/key.csv"},
    "list_files": {"path": "link"},
    "grep_files": {"path": "link", "pattern": "."},
    "write_file": {"path": "link/key.csv", "content": "x"},
    "replace_in_file": {"path": "link/key.csv", "old_text": "a", "new_text": "x"},
}
PATHS = ("link/key.csv", "later/key.csv")
APPEND = {"path": "link/new/deep", "content": "x", "append": True}


def box(folder: Path, spec: PolicySpec, /, **context: Any) -> Toolbox:
    """Return a toolbox in `folder`, in which `link` leads to `public`. Each of two folders has a file `key.csv`."""
    for name, text in (("public", "a,b\n1,2\n"), ("secret", "a,s3cret\n1,2\n")):
        (folder / name).mkdir()
        (folder / name / "key.csv").write_text(text)
    (folder / "link").symlink_to("public")
    own = ToolContext(folder, env={"HOME": str(folder)}, **context)

    async def move(_: BackendSpec) -> None:
        pass

    agent = AgentSpec("a1", 1, "n", "t", BackendSpec("here", "m"), str(folder), str(folder))
    tools = (read_file, write_file, replace_in_file, list_files, grep_files, describe_data)
    return Toolbox([*tools, wait], own, Guard(spec, own, LocalOnlyGuard(agent, own.call_root, move)))


GO_ON: list[asyncio.Event] = []


@tool(exclusive=True)
async def wait() -> str:
    """Wait."""
    await GO_ON[-1].wait()
    return "done"


def lead(folder: Path, target: str) -> None:
    """Make `link` lead to `target`."""
    (folder / "other").symlink_to(target)
    os.replace(folder / "other", folder / "link")


async def result_of(toolbox: Toolbox, name: str, input: dict[str, Any]) -> tuple[bool, str]:
    """Return whether the call ended with an error, and the text of its result."""
    outcome = await toolbox.dispatch(ToolUse("c1", name, input))
    return outcome.result.is_error, text_in(outcome.result)


@pytest.mark.parametrize(("name", "input"), [*CALLS.items(), ("write_file", APPEND)])
async def test_link_that_is_changed_after_the_judgement_is_not_followed(
    tmp_path: Path, name: str, input: dict[str, Any]
) -> None:
    """Nothing is read, and nothing is created or written. Before the change, the same call works."""
    toolbox = box(tmp_path, DENIED)
    failed, text = await result_of(toolbox, name, input)
    assert (failed, "s3cret" in text) == (False, False)

    def swap(report: CallReport) -> None:
        if report.outcome == "start":
            lead(tmp_path, "secret")

    toolbox.observe = swap
    failed, text = await result_of(
        toolbox, name, input | {"old_text": "1", "new_text": "x"} if "old_text" in input else input
    )
    assert failed
    assert "changed while the call was checked" in text
    assert "s3cret" not in text
    assert sorted(path.name for path in (tmp_path / "secret").iterdir()) == ["key.csv"]
    assert (tmp_path / "secret/key.csv").read_text() == "a,s3cret\n1,2\n"


@pytest.mark.parametrize(("before", "after"), [("public", "secret"), ("secret", "public")])
async def test_link_that_is_changed_while_the_call_waits_is_judged_again(
    tmp_path: Path, before: str, after: str
) -> None:
    """The strictest of both verdicts applies. A call that was allowed once and is allowed again runs."""
    toolbox, go_on = box(tmp_path, DENIED), asyncio.Event()
    GO_ON.append(go_on)
    lead(tmp_path, before)
    calls = [ToolUse("c1", "wait", {}), *(ToolUse(path, "read_file", {"path": path}) for path in PATHS)]
    waiting = [asyncio.create_task(toolbox.dispatch(call)) for call in calls]
    await asyncio.sleep(0)
    lead(tmp_path, after)
    (tmp_path / "later").symlink_to("public")
    go_on.set()
    _, changed, new = await asyncio.gather(*waiting)
    assert "denied by denied_paths" in text_in(changed.result)
    assert "a,b" in text_in(new.result)


async def test_approved_path_is_the_only_one_that_is_opened(tmp_path: Path) -> None:
    """The question names the judged path. A link that is changed during the question ends the call."""
    asked: list[tuple[str, ...]] = []

    async def call_root(_: AnyService, question: ApproveCall, __: float | None = None) -> ApprovalDecision:
        asked.append(question.paths)
        lead(tmp_path, "secret")
        return ApprovalDecision(True, "", digest_of(question.tool, question.input, question.paths))

    spec = PolicySpec("cli", PolicyConfig(permissions={"read_file": "ask"}))
    toolbox = box(tmp_path, spec, call_root=call_root)
    failed, text = await result_of(toolbox, "read_file", CALLS["read_file"])
    assert (failed, "s3cret" in text) == (True, False)
    assert str(tmp_path / "public/key.csv") in asked[0]


@contextmanager
def swapping(first: Path, second: Path) -> Iterator[None]:
    """Exchange the names of two files as fast as possible during the block."""
    libc, stop = ctypes.CDLL(None), threading.Event()
    names = [os.fsencode(first), os.fsencode(second)]

    def swap() -> None:
        while not stop.is_set():
            libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        yield
    finally:
        stop.set()
        swapper.join()


async def test_no_read_leaks_and_no_write_lands_while_a_link_is_swapped(tmp_path: Path) -> None:
    """Some of the calls succeed, because the link leads to the allowed file half of the time."""
    toolbox = box(tmp_path, DENIED)
    (tmp_path / "other").symlink_to("secret")
    results = []
    with swapping(tmp_path / "link", tmp_path / "other"):
        for number in range(ROUNDS):
            results.append(await result_of(toolbox, "read_file", CALLS["read_file"]))
            await result_of(toolbox, "write_file", {"path": f"link/new{number}", "content": "x"})
    assert sum("s3cret" in text for _, text in results) == 0
    assert not all(failed for failed, _ in results)
    assert [path.name for path in (tmp_path / "secret").iterdir()] == ["key.csv"]


@pytest.mark.parametrize(
    ("path", "allowed"),
    [("alias", True), ("public/../alias", True), ("link/../secret/key.csv", False), ("up/secret/key.csv", False)],
)
async def test_links_that_stay_work_and_their_target_is_judged(tmp_path: Path, path: str, *, allowed: bool) -> None:
    """A link to an allowed file is followed, and a link to a denied file is refused."""
    toolbox = box(tmp_path, DENIED)
    (tmp_path / "alias").symlink_to("public/key.csv")
    (tmp_path / "up").symlink_to(".")
    failed, text = await result_of(toolbox, "read_file", {"path": path})
    assert (failed, "denied by denied_paths" in text) == (not allowed, not allowed)


@pytest.mark.parametrize("name", ["a b.txt", "it's", '"q"', "$HOME", "~", "x;y", "{a,b}", "-n", "a\\ b"])
async def test_file_with_an_unusual_name_is_judged_by_this_name(tmp_path: Path, name: str) -> None:
    """The policy also reads words and variables in a path, but the path as it is decides what is opened."""
    toolbox = box(tmp_path, DENIED)
    (tmp_path / name).write_text("here\n")
    assert await result_of(toolbox, "read_file", {"path": name}) == (False, "     1\there")
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("secret/key.csv")
    failed, text = await result_of(toolbox, "read_file", {"path": name})
    assert (failed, "denied by denied_paths" in text) == (True, True)


ORCH_CALLS: list[tuple[str, dict[str, Any]]] = [
    ("read_file", {"path": "orch/config.toml"}),
    ("read_file", {"path": "to-orch/config.toml"}),
    ("describe_data", {"path": "orch/config.toml"}),
    ("list_files", {"path": "orch/runs"}),
    ("grep_files", {"path": "orch", "pattern": "."}),
    ("write_file", {"path": "orch/trust.json", "content": "x"}),
    ("write_file", {"path": "to-orch/new/deep", "content": "x"}),
    ("replace_in_file", {"path": "orch/config.toml", "old_text": "1", "new_text": "x"}),
]


def with_orch_folder(folder: Path, **context: Any) -> Toolbox:
    """Return a toolbox in `folder`, which contains orch's folder `orch` as a home folder does."""
    for name in ("runs", "skills", "me/scratch"):
        (folder / "orch" / name).mkdir(parents=True)
        (folder / "orch" / name / "note").write_text("s3cret\n")
    (folder / "orch/config.toml").write_text("s3cret = 1\n")
    (folder / "to-orch").symlink_to("orch")
    return box(folder, PolicySpec(), orch_folders=(str(folder / "orch"),), folder=folder / "orch/me", **context)


def files_in(folder: Path) -> dict[Path, bytes]:
    """Return the content of each file in `folder`."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("name", "input"), ORCH_CALLS)
async def test_files_of_orch_in_the_working_folder_cannot_be_opened(
    tmp_path: Path, name: str, input: dict[str, Any]
) -> None:
    """Otherwise an agent in the home folder could change the configuration, or read other agents' conversations."""
    toolbox = with_orch_folder(tmp_path)
    before = files_in(tmp_path)
    failed, text = await result_of(toolbox, name, input)
    assert (failed, "belongs to orch" in text, "s3cret" in text) == (True, True, False)
    assert files_in(tmp_path) == before


async def test_searches_of_the_working_folder_leave_out_the_files_of_orch(tmp_path: Path) -> None:
    """Other files are found. The result says that files are missing."""
    toolbox = with_orch_folder(tmp_path)
    for name, input in (("list_files", {}), ("grep_files", {"pattern": "s3cret|1,2"})):
        failed, text = await result_of(toolbox, name, input)
        assert (failed, "public/key.csv" in text, "orch/" in text) == (False, True, False)
        assert "files were skipped because of the policy" in text


async def test_own_folders_in_the_folder_of_orch_stay_usable(tmp_path: Path) -> None:
    """These are the scratch folder and the paths of the sandbox, as for commands."""
    toolbox = with_orch_folder(tmp_path, sandbox=SandboxSpec(read=(str(tmp_path / "orch/skills"),)))
    for path in ("orch/me/scratch/note", "orch/skills/note"):
        assert "s3cret" in (await result_of(toolbox, "read_file", {"path": path}))[1]


async def test_agent_in_a_folder_of_orch_can_open_its_files(tmp_path: Path) -> None:
    """A worktree is below a folder of orch."""
    toolbox = box(tmp_path, PolicySpec(), orch_folders=(str(tmp_path.parent),))
    assert "a,b" in (await result_of(toolbox, "read_file", {"path": "public/key.csv"}))[1]
