"""Opening files below a folder: if a path is exchanged during the call, no file outside is opened."""

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
    """The implementation of `open_below`: with `openat2`, or folder by folder."""
    if request.param == "folder by folder":
        monkeypatch.setattr(safe_descent, "_has_openat2", lambda: False)
    elif not safe_descent._has_openat2():
        pytest.skip("this kernel has no openat2")
    return str(request.param)


@pytest.mark.usefixtures("way")
class TestOpenBelow:
    """Both implementations of `open_below`."""

    def test_existing_paths_are_opened(self, tmp_path: Path) -> None:
        """A file, a folder and the base folder can be opened, and a missing file is an error."""
        (tmp_path / "a" / "b").mkdir(parents=True)
        (tmp_path / "a" / "b" / "file").write_text("here")
        with open(open_below(str(tmp_path), "a/b/file", os.O_RDONLY)) as file:
            assert file.read() == "here"
        for folder in ("a/b", "."):
            os.close(open_below(str(tmp_path), folder, safe_descent.FOLDER))
        with pytest.raises(FileNotFoundError):
            open_below(str(tmp_path), "a/none", os.O_RDONLY)

    @pytest.mark.parametrize("path", ["link", "up/secret", "to_file", "loop", "a/absolute", "a/../../secret"])
    def test_symbolic_links_and_parent_references_are_refused(self, tmp_path: Path, path: str) -> None:
        """A link or a parent reference is an error in any component of the path."""
        root = tmp_path / "root"
        (root / "a").mkdir(parents=True)
        (tmp_path / "secret").write_text("no")
        for name, target in (("link", tmp_path / "secret"), ("up", ".."), ("to_file", "a"), ("loop", "loop")):
            (root / name).symlink_to(target)
        (root / "a" / "absolute").symlink_to("/etc/hostname")
        with pytest.raises(OSError, match=r"symbolic links|Not a directory|cross-device"):
            open_below(str(root), path, os.O_RDONLY)

    def test_folder_swapped_for_a_link_is_never_followed(self, tmp_path: Path) -> None:
        """Reading, searching and listing show nothing from outside while a folder is exchanged for a link."""
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


def test_unavailable_openat2_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """`openat2` is not used if the kernel does not have it (ENOSYS) or a container forbids it (EPERM)."""
    for number in (errno.ENOSYS, errno.EPERM):

        def refuse(*_: int, number: int = number) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(linux, "syscall", refuse)
        assert safe_descent._has_openat2.__wrapped__() is False


def test_concurrent_rename_is_retried_a_bounded_number_of_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that the kernel answers with EAGAIN is repeated, but not without end."""
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


@pytest.mark.usefixtures("way")
def test_base_folder_that_became_a_link_is_refused(tmp_path: Path) -> None:
    """A link in any component of the base folder is an error, also if the folder is reached through its parent."""
    for name in ("root", "secret"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "file").write_text(name)
    os.close(open_below(str(tmp_path / "root/sub"), "file", os.O_RDONLY))
    (tmp_path / "root").rename(tmp_path / "old")
    (tmp_path / "root").symlink_to("secret")
    for root, path in (("root/sub", "file"), ("root/sub", "."), ("root", "sub/file")):
        with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
            open_below(str(tmp_path / root), path, os.O_RDONLY)
