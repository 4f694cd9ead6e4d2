"""Opening files below a folder: whatever is swapped meanwhile, nothing outside is opened."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from orch_worker.system import linux, safe_descent
from orch_worker.system.safe_descent import open_below
from orch_worker.tools.api.base import ToolContext, ToolError
from orch_worker.tools.files.read import grep_files, list_files, read_file
from swapped_folder import swapped

ROUNDS = 700
LOOKS: tuple[Callable[[ToolContext], str], ...] = (
    lambda context: read_file(context, "sub/file"),
    lambda context: grep_files(context, "seen", "sub").text,
    lambda context: list_files(context).text,
)


@pytest.fixture(params=["in one call", "folder by folder"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With what a new kernel offers, and without."""
    if request.param == "folder by folder":
        monkeypatch.setattr(safe_descent, "_has_openat2", lambda: False)
    elif not safe_descent._has_openat2():
        pytest.skip("this kernel has no openat2")
    return str(request.param)


@pytest.mark.usefixtures("way")
class TestOpenBelow:
    """open_below, in both ways."""

    def test_what_is_there_is_opened(self, tmp_path: Path) -> None:
        """A file, a folder, the folder itself."""
        (tmp_path / "a" / "b").mkdir(parents=True)
        (tmp_path / "a" / "b" / "file").write_text("here")
        with open(open_below(str(tmp_path), "a/b/file", os.O_RDONLY)) as file:
            assert file.read() == "here"
        for folder in ("a/b", "."):
            os.close(open_below(str(tmp_path), folder, safe_descent.FOLDER))
        with pytest.raises(FileNotFoundError):
            open_below(str(tmp_path), "a/none", os.O_RDONLY)

    @pytest.mark.parametrize("path", ["link", "up/secret", "to_file", "loop", "a/absolute", "a/../../secret"])
    def test_no_link_is_followed(self, tmp_path: Path, path: str) -> None:
        """Neither the last name nor any before it, wherever it leads; nor does a name lead up and out."""
        root = tmp_path / "root"
        (root / "a").mkdir(parents=True)
        (tmp_path / "secret").write_text("no")
        for name, target in (("link", tmp_path / "secret"), ("up", ".."), ("to_file", "a"), ("loop", "loop")):
            (root / name).symlink_to(target)
        (root / "a" / "absolute").symlink_to("/etc/hostname")
        with pytest.raises(OSError, match=r"symbolic links|Not a directory|cross-device"):
            open_below(str(root), path, os.O_RDONLY)

    def test_reading_leads_nowhere_while_a_folder_is_swapped_for_a_link(self, tmp_path: Path) -> None:
        """Time and again a file is read and looked through, and folders are listed: what lies outside is never seen."""
        context, seen = ToolContext(tmp_path / "cwd"), []
        with swapped(tmp_path / "cwd", tmp_path / "outside"):
            (tmp_path / "outside" / "file").write_text("not to be seen")
            (tmp_path / "outside" / "not to be listed").write_text("")
            for _ in range(ROUNDS):
                for look in LOOKS:
                    try:
                        seen.append(look(context))
                    except ToolError:
                        pass
        assert not [text for text in seen if "not to be" in text]


def test_a_call_that_is_not_let_through_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old kernels do not know it, and some containers refuse what they do not know."""
    for number in (errno.ENOSYS, errno.EPERM):

        def refuse(*_: int, number: int = number) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(linux, "syscall", refuse)
        assert safe_descent._has_openat2.__wrapped__() is False


def test_what_is_renamed_at_that_moment_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel asks for it; not for ever."""
    answers = [errno.EAGAIN, errno.EAGAIN, 0]

    def syscall(*_: int) -> int:
        if number := answers.pop(0):
            raise OSError(number, os.strerror(number))
        return 99

    monkeypatch.setattr(safe_descent, "_has_openat2", lambda: True)
    monkeypatch.setattr(linux, "syscall", syscall)
    assert open_below(str(tmp_path), "file", os.O_RDONLY) == 99
    answers = [errno.EAGAIN] * 100
    with pytest.raises(BlockingIOError):
        open_below(str(tmp_path), "file", os.O_RDONLY)
