"""The store of long texts, and reading these texts with `read_handle`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orch_worker.tools.api.base import ToolContext, ToolError
from orch_worker.tools.files.search import PatternSearch
from orch_worker.tools.values.handles import read_handle
from orch_worker.tools.values.paging import paged_view, search
from orch_worker.tools.values.read import MAX_MATCHES
from orch_worker.tools.values.store import HandleMetadata, ValueFiles


def stash(folder: Path) -> ValueFiles:
    """Return the store of an agent whose session is in `folder`."""
    return ValueFiles(ToolContext(Path("/"), folder=folder))


class TestStash:
    """Storing texts under handles."""

    def test_same_text_has_the_same_handle(self, tmp_path: Path) -> None:
        """Equal texts are stored once, and different texts have different handles."""
        kept = stash(tmp_path)
        assert [kept.keep(text) for text in ("a", "b", "a")] == [".h_001", ".h_002", ".h_001"]
        assert (kept.text(".h_001"), kept.text("h_002")) == ("a", "b")

    def test_stored_texts_survive_the_process(self, tmp_path: Path) -> None:
        """A new process reads the stored texts and continues the numbering of handles."""
        stash(tmp_path).keep("a")
        again = stash(tmp_path)
        assert again.text(".h_001") == "a"
        assert again.keep("b") == ".h_002"

    def test_oldest_texts_are_evicted_at_the_limit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Pinned texts and the newest text are kept, and reading an evicted text gives the reason."""
        monkeypatch.setattr("orch_worker.tools.values.store.MAX_TEXTS", 1 << 20)
        kept, large = stash(tmp_path), 500 << 10
        for letter in "ab":
            kept.keep(letter * large)
        kept.note("h_001", HandleMetadata("text", pinned=True))
        kept.keep("c" * large)
        assert list(kept.files()) == ["h_001", "h_003"]
        assert kept.keep("d" * 3 * large) == ".h_004"
        assert list(stash(tmp_path).files()) == ["h_001", "h_004"]
        for handle in ("h_002", "h_003"):
            with pytest.raises(ToolError, match=rf"{handle} is gone: texts may take 1 MiB, and it was the oldest"):
                kept.text(handle)
        assert kept.keep("b" * 9) == ".h_005"

    def test_stored_texts_are_private(self, tmp_path: Path) -> None:
        """Only the owner can access the stored file and its folder."""
        stash(tmp_path).keep("a")
        (file,) = (tmp_path / "stash").iterdir()
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o777 == 0o700

    def test_any_text(self, tmp_path: Path) -> None:
        """Line endings, control characters and emoji are unchanged after reading."""
        text = "a\r\nb\r\u2028\x00\U0001f600"
        kept = stash(tmp_path)
        assert kept.text(kept.keep(text)) == text

    @pytest.mark.parametrize("handle", [".h_009", "", "../../etc/passwd", ".h_001/../x"])
    def test_unknown_handle_lists_the_latest_ones(self, tmp_path: Path, handle: str) -> None:
        """An unknown name or a path in place of a handle is an error that lists the latest handles."""
        kept = stash(tmp_path)
        kept.keep("a")
        with pytest.raises(ToolError, match=r"There is no .*The last handles: \.h_001\.$"):
            kept.text(handle)

    def test_nothing_is_stored_without_a_session_folder(self) -> None:
        """Without a session folder, creating the store raises a ToolError."""
        with pytest.raises(ToolError, match="no session folder"):
            ValueFiles(ToolContext(Path("/")))

    def test_failed_write_leaves_no_partial_text(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """If a text cannot be written, the error of the system is raised and no file remains."""

        def fail(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="No space"):
            stash(tmp_path).keep("a")
        assert list((tmp_path / "stash").iterdir()) == []


class TestReadHandle:
    """Reading texts with read_handle."""

    async def read(self, folder: Path, **input: object) -> str:
        context = ToolContext(Path("/"), folder=folder)
        context.agent_object(ValueFiles).keep("".join(f"line {number} of it\n" for number in range(1, 2001)))
        return (await read_handle.run(context, {"handle": ".h_001", **input})).text

    async def test_pages_reproduce_the_stored_text(self, tmp_path: Path) -> None:
        """The pages that follow the named offsets give exactly the stored text."""
        whole, offset = "", 0
        while True:
            shown = await self.read(tmp_path, offset=offset, limit=9_999)
            page, _, note = shown.rpartition("\n[characters ")
            whole += page
            if "go on with offset=" not in note:
                break
            offset = int(note.rpartition("=")[2].rstrip("]"))
        assert whole == "".join(f"line {number} of it\n" for number in range(1, 2001))

    async def test_search_returns_lines_with_offsets(self, tmp_path: Path) -> None:
        """Each match has the offset of its line, at which reading can start."""
        shown = await self.read(tmp_path, search="line (7|1999) ")
        assert [line.partition(": ")[2] for line in shown.splitlines()] == ["line 7 of it", "line 1999 of it"]
        offset = int(shown.splitlines()[1].partition(":")[0])
        assert (await self.read(tmp_path, offset=offset, limit=15)).startswith("line 1999 of it")

    async def test_search_continues_at_the_named_offset(self, tmp_path: Path) -> None:
        """A search with many matches stops at MAX_MATCHES, and searching on finds each line once."""
        found: list[str] = []
        offset: int | None = 0
        while offset is not None:
            lines = (await self.read(tmp_path, search="it", offset=offset)).splitlines()
            offset = None
            if lines[-1].startswith("[stopped here"):
                assert len(lines) == MAX_MATCHES + 1
                offset = int(lines.pop().rpartition("=")[2].rstrip("]"))
            found += lines
        assert len(found) == len(set(found)) == 2000

    async def test_timed_out_search_continues_behind_the_last_searched_line(self, tmp_path: Path) -> None:
        """The result names the first line that was not searched and does not say that nothing matches."""
        context = ToolContext(Path("/"), folder=tmp_path, seconds=-1.0)
        context.agent_object(ValueFiles).keep("one\ntwo")

        async def read(offset: int) -> str:
            return (await read_handle.run(context, {"handle": ".h_001", "search": "t", "offset": offset})).text

        assert (await read(0), await read(4)) == ("[stopped here; go on with offset=4]", "4: two")
        with PatternSearch("t", stop_at=0.0) as seeker:
            assert search(paged_view(["one", "two", "three"]), seeker, 0, 3) == '[time was up; go on with lines="1:"]'
            assert search(paged_view(["one", "two", "three"]), seeker, 1, 3).startswith("1: ")

    async def test_search_without_a_match_says_so(self, tmp_path: Path) -> None:
        """The result names the pattern and the offset at which the search started."""
        assert await self.read(tmp_path, search="zebra") == "No match for 'zebra' from character 0 on."

    async def test_offset_past_the_end_is_an_error(self, tmp_path: Path) -> None:
        """The error states how many characters the text has."""
        with pytest.raises(ToolError, match=r"\.h_001 has [\d,]+ characters, none from 99,999 on"):
            await self.read(tmp_path, offset=99_999)
