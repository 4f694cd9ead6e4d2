"""Trust files: trust in a folder with a certain content, and changes at the same time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from orch_protocol.core.errors import ConfigError
from orch_worker.system import atomic_json
from orch_worker.system.trust_file import TrustFile


@pytest.fixture
def file(tmp_path: Path) -> TrustFile:
    """A trust file that does not exist yet."""
    return TrustFile(tmp_path / "trusted.json")


def test_a_folder_is_trusted_with_the_accepted_digest_only(file: TrustFile, tmp_path: Path) -> None:
    """The reason for a changed folder differs from the reason for a folder that was never trusted."""
    file.accept(tmp_path / "a", "1")
    trusted = file.read()
    assert trusted.accepts(tmp_path / "a", "1")
    assert not trusted.accepts(tmp_path / "a", "2")
    assert not trusted.accepts(tmp_path / "b", "1")
    assert trusted.why_not(tmp_path / "a") == "was changed since it was trusted"
    assert trusted.why_not(tmp_path / "b") == "was not trusted"


def test_trust_follows_links_to_the_folder(file: TrustFile, tmp_path: Path) -> None:
    """Trust in a link is trust in the folder to which the link leads."""
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    file.accept(tmp_path / "link", "1")
    assert file.read().accepts(str(tmp_path / "a"), "1")


def test_revoked_trust_is_gone(file: TrustFile, tmp_path: Path) -> None:
    """`revoke` returns whether there was trust, and creates no file if there was none."""
    assert not file.revoke(tmp_path / "a")
    assert os.listdir(tmp_path) == []
    file.accept(tmp_path / "a", "1")
    assert file.revoke(tmp_path / "a")
    assert not file.revoke(tmp_path / "a")
    assert not file.read().accepts(tmp_path / "a", "1")


def test_names_that_are_not_utf_8_can_be_trusted(file: TrustFile, tmp_path: Path) -> None:
    """A folder can be trusted although JSON cannot contain the bytes of its name."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    file.accept(folder, "1")
    assert file.read().accepts(folder, "1")


def test_a_damaged_file_is_an_error_not_empty(tmp_path: Path) -> None:
    """The error names the file and says what to do."""
    (tmp_path / "trusted.json").write_text("{")
    with pytest.raises(ConfigError, match=r"trusted\.json .*: remove the file and trust again what you need"):
        TrustFile(tmp_path / "trusted.json").read()


def test_trust_that_is_given_at_the_same_time_is_not_lost(
    file: TrustFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change keeps the lock from reading to writing."""
    read, others = atomic_json.read, []

    def read_while_others_wait(*arguments: Any) -> Any:
        found = read(*arguments)
        with open(tmp_path / "trusted.json.lock", "a+b") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                others.append("has to wait")
        return found

    monkeypatch.setattr(atomic_json, "read", read_while_others_wait)
    file.accept("mine", "1")
    file.accept("theirs", "2")
    assert file.revoke("mine")
    assert others == ["has to wait"] * 3
    assert file.read().accepts("theirs", "2")
