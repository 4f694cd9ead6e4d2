"""`write_file` and `replace_in_file`: atomic changes, and only below the working folder of the agent."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from orch_protocol.core.messages import ToolUse
from orch_worker.tools.api.base import Tool, ToolContext, ToolError, ToolOutput
from orch_worker.tools.dispatch.toolbox import Toolbox
from orch_worker.tools.files import write
from orch_worker.tools.files.edit import replace_in_file, write_file
from swapped_folder import swapped


async def run(tool: Tool, cwd: Path, **input: Any) -> ToolOutput:
    """Run one call of `tool` in the folder `cwd`."""
    return await tool.run(ToolContext(cwd), input)


def files(folder: Path) -> list[str]:
    """Return the sorted names in `folder`."""
    return sorted(path.name for path in folder.iterdir())


class TestWriteFile:
    async def test_new_file(self, tmp_path: Path) -> None:
        """`write_file` creates a file and its parent folders, and reports the file as changed."""
        output = await run(write_file, tmp_path, path="a/b/c.txt", content="héllo\n")
        assert (tmp_path / "a/b/c.txt").read_bytes() == "héllo\n".encode()
        assert output == ToolOutput("Wrote 7 bytes to 'a/b/c.txt'.", files_changed=("a/b/c.txt",))

    async def test_mode_follows_the_umask_or_the_file(self, tmp_path: Path) -> None:
        """A new file has the same mode as any other new file, and an existing file keeps its mode."""
        old = tmp_path / "run.sh"
        old.write_text("x")
        old.chmod(0o750)
        plain = tmp_path / "plain"
        plain.write_text("x")
        await run(write_file, tmp_path, path="run.sh", content="y")
        await run(write_file, tmp_path, path="new", content="y")
        assert old.stat().st_mode & 0o777 == 0o750
        assert (tmp_path / "new").stat().st_mode == plain.stat().st_mode

    async def test_byte_order_mark_of_a_replaced_file_is_kept(self, tmp_path: Path) -> None:
        """The model does not see the mark. A mark in the new text is not doubled, and a new file gets none."""
        for content in ("new\n", "\ufeffnew\n"):
            (tmp_path / "a").write_bytes(b"\xef\xbb\xbfold\n")
            await run(write_file, tmp_path, path="a", content=content)
            assert (tmp_path / "a").read_bytes() == b"\xef\xbb\xbfnew\n"
        await run(write_file, tmp_path, path="b", content="new\n")
        assert (tmp_path / "b").read_bytes() == b"new\n"

    async def test_listed_form_of_a_name_leads_to_the_existing_file(self, tmp_path: Path) -> None:
        """No second file is created, also below a folder with such a name."""
        for name in ("caf\udce9", "new\nline", "e\N{COMBINING ACUTE ACCENT}"):
            (tmp_path / name).mkdir()
            (tmp_path / name / name).write_text("old")
        for path in ("caf\\xe9/caf\\xe9", "new\\nline/new\\nline", "\u00e9/\u00e9"):
            await run(replace_in_file, tmp_path, path=path, old_text="old", new_text="new")
            await run(write_file, tmp_path, path=path, content="!", append=True)
        assert len(files(tmp_path)) == 3
        assert [
            (folder / name).read_text() for folder in map(tmp_path.joinpath, files(tmp_path)) for name in files(folder)
        ] == ["new!"] * 3

    async def test_append(self, tmp_path: Path) -> None:
        """With `append`, existing content is kept, and a missing file is created."""
        assert (await run(write_file, tmp_path, path="a", content="1\n", append=True)).text.startswith("Wrote 2")
        assert (await run(write_file, tmp_path, path="a", content="2\n", append=True)).text.startswith("Added 2")
        assert (tmp_path / "a").read_text() == "1\n2\n"

    async def test_write_replaces_the_file_atomically(self, tmp_path: Path) -> None:
        """A reader that opened the old file still reads the old content."""
        file = tmp_path / "a"
        file.write_text("old")
        with file.open() as opened:
            await run(write_file, tmp_path, path="a", content="new")
            assert opened.read() == "old"
        assert files(tmp_path) == ["a"]

    async def test_failed_write_keeps_the_old_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The error says that the disk is full, and no temporary file remains."""
        (tmp_path / "a").write_text("old")

        def fail(_: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(ToolError, match="'a' cannot be written: disk full"):
            await run(write_file, tmp_path, path="a", content="new")
        assert (files(tmp_path), (tmp_path / "a").read_text()) == (["a"], "old")

    async def test_lone_surrogates_are_replaced(self, tmp_path: Path) -> None:
        """The file contains replacement characters, because lone surrogates cannot be encoded."""
        await run(write_file, tmp_path, path="a", content="x\udc80")
        assert (tmp_path / "a").read_text() == "x\N{REPLACEMENT CHARACTER}"

    @pytest.mark.parametrize(
        ("path", "message"),
        [
            ("../out", "outside the working folder"),
            ("/etc/orch-was-here", "outside the working folder"),
            ("up/out", "outside the working folder"),
            ("to_file", "outside the working folder"),
            ("deep/../../out", "outside the working folder"),
            ("a\0b", "is not a path"),
            (".", "the working folder itself"),
            ("", "the working folder itself"),
            ("folder", "is a folder"),
            ("fifo", "not a regular file"),
            ("socket", "not a regular file"),
            ("readonly", "is read-only"),
            ("file/below", "cannot be written: Not a directory"),
            ("x" * 300, "cannot be written: File name too long"),
            ("y/" * 5_000, "not a path|too long"),
        ],
    )
    async def test_paths_outside_and_special_files_are_refused(self, tmp_path: Path, path: str, message: str) -> None:
        """A refused write changes no file inside or outside the working folder."""
        outside, cwd = tmp_path / "outside", tmp_path / "cwd"
        outside.mkdir()
        cwd.mkdir()
        (outside / "secret").write_text("s")
        (cwd / "up").symlink_to(outside)
        (cwd / "to_file").symlink_to(outside / "secret")
        (cwd / "folder").mkdir()
        (cwd / "file").write_text("f")
        (cwd / "readonly").write_text("r")
        (cwd / "readonly").chmod(0o444)
        os.mkfifo(cwd / "fifo")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(cwd / "socket"))
            before = files(cwd)
            with pytest.raises(ToolError, match=message):
                await run(write_file, cwd, path=path, content="gone")
        assert (files(cwd), files(outside), files(tmp_path)) == (before, ["secret"], ["cwd", "outside"])
        assert (outside / "secret").read_text() == "s"
        assert (cwd / "readonly").read_text() == "r"

    async def test_link_inside_is_followed(self, tmp_path: Path) -> None:
        """A link to a file below the working folder remains a link, and its target is written."""
        (tmp_path / "real").write_text("old")
        (tmp_path / "link").symlink_to("real")
        output = await run(write_file, tmp_path, path="link", content="new")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "real").read_text() == "new"
        assert output.files_changed == ("real",)

    async def test_hard_link_is_broken_by_a_write(self, tmp_path: Path) -> None:
        """A write to a file with two names does not change the content under the other name."""
        cwd = tmp_path / "cwd"
        cwd.mkdir()
        (tmp_path / "secret").write_text("s")
        os.link(tmp_path / "secret", cwd / "a")
        await run(write_file, cwd, path="a", content="new")
        assert ((tmp_path / "secret").read_text(), (cwd / "a").read_text()) == ("s", "new")

    async def test_concurrently_swapped_folder_never_redirects_a_write(self, tmp_path: Path) -> None:
        """No write creates a file outside while a folder is repeatedly exchanged for a link to the outside."""
        outside, refused = tmp_path / "outside", 0
        with swapped(tmp_path / "cwd", outside):
            for number in range(500):
                try:
                    write_file(ToolContext(tmp_path / "cwd"), f"sub/f{number}", "x")
                except ToolError:
                    refused += 1
        assert files(outside) == []
        assert refused < 500


class TestReplaceInFile:
    async def test_replaces_once(self, tmp_path: Path) -> None:
        """Text that occurs once is replaced, and the result names its line."""
        file = tmp_path / "a.py"
        file.write_text("x = 1\ny = 2\n")
        output = await run(replace_in_file, tmp_path, path="a.py", old_text="y = 2", new_text="y = 3")
        assert file.read_text() == "x = 1\ny = 3\n"
        assert output == ToolOutput("Replaced in 'a.py' at line 2.", files_changed=("a.py",))

    async def test_expected_count_replaces_exactly_that_many(self, tmp_path: Path) -> None:
        """If the number of occurrences is `expected_count`, all of them are replaced."""
        file = tmp_path / "a"
        file.write_text("a b a\nb a\n")
        output = await run(replace_in_file, tmp_path, path="a", old_text="a", new_text="cc", expected_count=3)
        assert file.read_text() == "cc b cc\nb cc\n"
        assert output.text == "Replaced in 'a' at lines 1, 1, 2."

    @pytest.mark.parametrize(
        ("old", "count", "message"),
        [
            ("a", 1, r"occurs 3 times in 'a', at lines 1, 1, 2, and 1 was expected: nothing was changed"),
            ("a", 2, r"occurs 3 times"),
            ("a", 4, r"occurs 3 times"),
            ("b", 2, r"occurs 2 times|once"),
            ("zebra", 1, r"does not occur in 'a': nothing was changed\. Read the file again"),
            ("b  a", 1, r"does not occur.* Line 2 differs in white space only"),
        ],
    )
    async def test_unexpected_number_of_matches_changes_nothing(
        self, tmp_path: Path, old: str, count: int, message: str
    ) -> None:
        """The error gives the number of matches and their lines."""
        file = tmp_path / "a"
        file.write_text("a b a\nb a\n")
        if (old, count) == ("b", 2):
            count = 3
        with pytest.raises(ToolError, match=message):
            await run(replace_in_file, tmp_path, path="a", old_text=old, new_text="x", expected_count=count)
        assert file.read_text() == "a b a\nb a\n"

    async def test_error_lists_a_bounded_number_of_matches(self, tmp_path: Path) -> None:
        """The error names the lines of the first ten matches and counts the others."""
        (tmp_path / "a").write_text("x\n" * 1000)
        with pytest.raises(ToolError, match=r"1,000 times in 'a', at lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 990 more"):
            await run(replace_in_file, tmp_path, path="a", old_text="x", new_text="y")

    async def test_crlf_files_match_multiline_text(self, tmp_path: Path) -> None:
        """Line feeds in the text match CRLF line endings, and the file keeps its line endings."""
        file = tmp_path / "a"
        file.write_bytes(b"one\r\ntwo\r\nthree\r\n")
        await run(replace_in_file, tmp_path, path="a", old_text="one\ntwo\n", new_text="1\n2\n")
        assert file.read_bytes() == b"1\r\n2\r\nthree\r\n"

    async def test_new_lines_in_a_crlf_file_end_like_the_others(self, tmp_path: Path) -> None:
        """A file with both kinds of line ends gets the text as it is."""
        for before, after in [(b"one\r\ntwo\r\n", b"1\r\n1\r\ntwo\r\n"), (b"one\r\ntwo\n", b"1\n1\r\ntwo\n")]:
            (tmp_path / "a").write_bytes(before)
            await run(replace_in_file, tmp_path, path="a", old_text="one", new_text="1\n1")
            assert (tmp_path / "a").read_bytes() == after

    async def test_mode_bom_and_missing_final_newline_are_kept(self, tmp_path: Path) -> None:
        """A replacement changes only the replaced text."""
        file = tmp_path / "a"
        file.write_bytes(b"\xef\xbb\xbfx = 1")
        file.chmod(0o755)
        await run(replace_in_file, tmp_path, path="a", old_text="x = 1", new_text="x = 2")
        assert file.read_bytes() == b"\xef\xbb\xbfx = 2"
        assert file.stat().st_mode & 0o777 == 0o755

    @pytest.mark.parametrize(
        ("content", "input", "message"),
        [
            (None, {}, "File 'a' does not exist"),
            (b"\xff\xfe", {}, r"not UTF-8 text \(byte 0\): not changed"),
            (b"x", {"new_text": "x"}, "the same: nothing to change"),
            (b"x", {"old_text": ""}, "old_text"),
            (b"x", {"expected_count": 0}, "expected_count"),
            (b"x", {"path": "../a"}, "outside the working folder"),
        ],
    )
    async def test_invalid_replacement_is_refused(
        self, tmp_path: Path, content: bytes | None, input: dict[str, Any], message: str
    ) -> None:
        """An invalid replacement raises an error with the reason and leaves the file unchanged."""
        if content is not None:
            (tmp_path / "a").write_bytes(content)
        with pytest.raises(ToolError, match=message):
            await run(replace_in_file, tmp_path, **({"path": "a", "old_text": "x", "new_text": "y"} | input))
        assert content is None or (tmp_path / "a").read_bytes() == content

    async def test_file_too_large(self, tmp_path: Path) -> None:
        """A file of more than 20 MB is refused."""
        (tmp_path / "a").touch()
        os.truncate(tmp_path / "a", 20_000_001)
        with pytest.raises(ToolError, match="more than 20 MB"):
            await run(replace_in_file, tmp_path, path="a", old_text="x", new_text="y")

    async def test_parallel_edits_of_one_file(self, tmp_path: Path) -> None:
        """Twenty edits of one file in the same step are all applied."""
        (tmp_path / "a").write_text("".join(f"<{number}>\n" for number in range(20)))
        box = Toolbox([replace_in_file], ToolContext(tmp_path))
        calls = [
            ToolUse(str(number), "replace_in_file", {"path": "a", "old_text": f"<{number}>", "new_text": f"{number}!"})
            for number in range(20)
        ]
        outcomes = await asyncio.gather(*map(box.dispatch, calls))
        assert {outcome.files_changed for outcome in outcomes} == {("a",)}
        assert (tmp_path / "a").read_text() == "".join(f"{number}!\n" for number in range(20))

    async def test_edits_of_several_agents_are_serialized(self, tmp_path: Path) -> None:
        """No edit overwrites a change that another agent made since the file was read."""
        (tmp_path / "a").write_text("".join(f"<{number}>\n" for number in range(40)))
        boxes = [Toolbox([replace_in_file], ToolContext(tmp_path)) for _ in range(4)]
        calls = [
            ToolUse(str(number), "replace_in_file", {"path": "a", "old_text": f"<{number}>", "new_text": f"{number}!"})
            for number in range(40)
        ]
        outcomes = await asyncio.gather(*(boxes[int(call.id) % 4].dispatch(call) for call in calls))
        assert {outcome.result.is_error for outcome in outcomes} == {False}
        assert (tmp_path / "a").read_text() == "".join(f"{number}!\n" for number in range(40))


class Holder:
    """A stand-in for another process. It locks the folder and releases the lock after `pauses` waits."""

    def __init__(self, folder: Path, pauses: int) -> None:
        self.folder = folder
        self.left = pauses
        self.waited = 0.0
        self.descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)

    def sleep(self, seconds: float) -> None:
        """Count one wait. After the last wait, change the file and release the lock."""
        self.waited += seconds
        self.left -= 1
        if not self.left:
            (self.folder / "a").write_text("one TWO")
            self.close()

    def close(self) -> None:
        """Release the lock."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1


class TestOthers:
    """Files that agents in other processes change at the same time."""

    @pytest.mark.parametrize("input", [{"old_text": "one", "new_text": "ONE"}, {"content": "!", "append": True}])
    async def test_edit_waits_for_the_lock_of_another_writer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, input: dict[str, Any]
    ) -> None:
        """The edit reads the file after the lock is released, so that the change of the other writer is kept."""
        (tmp_path / "a").write_text("one two")
        monkeypatch.setattr(write, "sleep", Holder(tmp_path, 3).sleep)
        await run(write_file if "append" in input else replace_in_file, tmp_path, path="a", **input)
        assert (tmp_path / "a").read_text() == ("one TWO!" if "append" in input else "ONE TWO")

    async def test_edit_times_out_when_the_folder_stays_locked(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After 10 s the edit fails, and the file is unchanged."""
        (tmp_path / "a").write_text("one two")
        holder = Holder(tmp_path, 10_000)
        monkeypatch.setattr(write, "sleep", holder.sleep)
        with pytest.raises(ToolError, match="another process locked its folder"):
            await run(replace_in_file, tmp_path, path="a", old_text="one", new_text="ONE")
        holder.close()
        assert 10.0 <= holder.waited < 10.1
        assert (tmp_path / "a").read_text() == "one two"

    async def test_unlockable_file_systems_are_written_without_a_lock(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A file is written although the file system refuses locks on folders, as some network file systems do."""

        def refuse(_descriptor: int, _how: int) -> None:
            raise OSError(9, "Bad file descriptor")

        monkeypatch.setattr(fcntl, "flock", refuse)
        await run(write_file, tmp_path, path="a", content="x")
        assert (tmp_path / "a").read_text() == "x"
