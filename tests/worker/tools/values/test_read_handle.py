"""The stash, and reading it with read_handle."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch_worker.tools.api.base import ToolContext, ToolError
from orch_worker.tools.files.search import PatternSearch
from orch_worker.tools.values.handles import read_handle
from orch_worker.tools.values.paging import paged_view, search
from orch_worker.tools.values.read import MAX_MATCHES
from orch_worker.tools.values.store import HandleMetadata, ValueFiles


def stash(folder: Path) -> ValueFiles:
    """Return the stash of an agent whose session is in `folder`."""
    return ValueFiles(ToolContext(Path("/"), folder=folder))


class TestStash:
    """Keeping."""

    def test_same_text_same_handle(self, tmp_path: Path) -> None:
        """Nothing is kept twice, and different texts get different handles."""
        kept = stash(tmp_path)
        assert [kept.keep(text) for text in ("a", "b", "a")] == [".h_001", ".h_002", ".h_001"]
        assert (kept.text(".h_001"), kept.text("h_002")) == ("a", "b")

    def test_survives_the_process(self, tmp_path: Path) -> None:
        """Another process of the same agent reads the old handles and goes on counting."""
        stash(tmp_path).keep("a")
        again = stash(tmp_path)
        assert again.text(".h_001") == "a"
        assert again.keep("b") == ".h_002"

    def test_the_oldest_texts_go_when_there_is_no_room(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A pinned one stays, and so does the newest, however large; who asks for one is told why it is gone."""
        monkeypatch.setattr("orch_worker.tools.values.store.MOST_TEXTS", 1 << 20)
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

    def test_is_private(self, tmp_path: Path) -> None:
        """Nobody else reads what is kept."""
        stash(tmp_path).keep("a")
        (file,) = (tmp_path / "stash").iterdir()
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o777 == 0o700

    def test_any_text(self, tmp_path: Path) -> None:
        """Line ends and every character come back as they were."""
        text = "a\r\nb\r\u2028\x00\U0001f600"
        kept = stash(tmp_path)
        assert kept.text(kept.keep(text)) == text

    @pytest.mark.parametrize("handle", [".h_009", "", "../../etc/passwd", ".h_001/../x"])
    def test_unknown_handle(self, tmp_path: Path, handle: str) -> None:
        """A handle that was never given out leads nowhere, and the last ones are named."""
        kept = stash(tmp_path)
        kept.keep("a")
        with pytest.raises(ToolError, match=r"There is no .*The last handles: \.h_001\.$"):
            kept.text(handle)

    def test_without_a_folder(self) -> None:
        """An agent without a session folder keeps nothing, and is told so."""
        with pytest.raises(ToolError, match="no session folder"):
            ValueFiles(ToolContext(Path("/")))

    def test_failed_write_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A write that fails is raised, and no half of it is ever read."""

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "rename", fail)
        with pytest.raises(OSError, match="No space"):
            stash(tmp_path).keep("a")
        assert list((tmp_path / "stash").iterdir()) == []


class TestReadHandle:
    """Reading."""

    async def read(self, folder: Path, **input: object) -> str:
        context = ToolContext(Path("/"), folder=folder)
        context.own(ValueFiles).keep("".join(f"line {number} of it\n" for number in range(1, 2001)))
        return (await read_handle.run(context, {"handle": ".h_001", **input})).text

    async def test_pages_are_the_text(self, tmp_path: Path) -> None:
        """Page after page, following the offsets, gives exactly what was kept."""
        whole, offset = "", 0
        while True:
            shown = await self.read(tmp_path, offset=offset, limit=9_999)
            page, _, note = shown.rpartition("\n[characters ")
            whole += page
            if "go on with offset=" not in note:
                break
            offset = int(note.rpartition("=")[2].rstrip("]"))
        assert whole == "".join(f"line {number} of it\n" for number in range(1, 2001))

    async def test_search_gives_offsets(self, tmp_path: Path) -> None:
        """A search answers with lines and where they begin."""
        shown = await self.read(tmp_path, search="line (7|1999) ")
        assert [line.partition(": ")[2] for line in shown.splitlines()] == ["line 7 of it", "line 1999 of it"]
        offset = int(shown.splitlines()[1].partition(":")[0])
        assert (await self.read(tmp_path, offset=offset, limit=15)).startswith("line 1999 of it")

    async def test_search_goes_on(self, tmp_path: Path) -> None:
        """A search that finds much stops, and goes on from the offset it names without losing a line."""
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

    async def test_a_search_whose_time_is_up_goes_on_behind_the_last_line_it_looked_at(self, tmp_path: Path) -> None:
        """Each line may take a second; and one that was not looked at is not called one that does not match."""
        context = ToolContext(Path("/"), folder=tmp_path, seconds=-1.0)
        context.own(ValueFiles).keep("one\ntwo")

        async def read(offset: int) -> str:
            return (await read_handle.run(context, {"handle": ".h_001", "search": "t", "offset": offset})).text

        assert (await read(0), await read(4)) == ("[stopped here; go on with offset=4]", "4: two")
        with PatternSearch("t", stop_at=0.0) as seeker:
            assert search(paged_view(["one", "two", "three"]), seeker, 0, 3) == '[time was up; go on with lines="1:"]'
            assert search(paged_view(["one", "two", "three"]), seeker, 1, 3).startswith("1: ")

    async def test_no_match(self, tmp_path: Path) -> None:
        """That nothing matches is said."""
        assert await self.read(tmp_path, search="zebra") == "No match for 'zebra' from character 0 on."

    async def test_past_the_end(self, tmp_path: Path) -> None:
        """An offset past the end is an error that says how long it is."""
        with pytest.raises(ToolError, match=r"\.h_001 has [\d,]+ characters, none from 99,999 on"):
            await self.read(tmp_path, offset=99_999)
