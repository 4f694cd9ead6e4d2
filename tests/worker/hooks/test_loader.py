"""Hooks that a configuration names: found by module, by file, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch_protocol.core.errors import ConfigError
from orch_protocol.hooks.options import HookOptions
from orch_worker.hooks.loader import configured_hooks, read_switches

TEXT = """
from orch_worker.hooks.hook import hook

@hook("turn_end")
def first(event, ctx): ...

@hook("turn_end", name="second")
def other(event, ctx): ...

def plain(event, ctx): ...
"""


def found(*names: str) -> list[tuple[str, str]]:
    """Return the names and sources of the hooks that `names` name."""
    return [(hook.row.name, hook.row.source) for hook in configured_hooks(names, HookOptions())]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of hooks, which is a module too."""
    file = tmp_path / "house_of_hooks.py"
    file.write_text(TEXT)
    monkeypatch.syspath_prepend(str(tmp_path))
    return file


def test_by_module_and_by_file(file: Path) -> None:
    """One hook of a module, all of it, and the same of a file; each says where it is from."""
    assert found("house_of_hooks:other") == [("second", "config: house_of_hooks:other")]
    assert [name for name, _ in found("house_of_hooks")] == ["house_of_hooks.first", "second"]
    assert found(f"{file}:first") == [("house_of_hooks.first", f"config: {file}:first")]
    assert [name for name, _ in found(str(file))] == ["house_of_hooks.first", "second"]


def test_one_file_is_one_module(file: Path) -> None:
    """Two names of one file share what the file holds."""
    one, two = configured_hooks([f"{file}:first", f"{file}:other"], HookOptions())
    assert one.handler.__globals__ is two.handler.__globals__  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nowhere_at_all:x", "installed beside orch"),
        ("house_of_hooks:third", "is not there"),
        ("house_of_hooks:plain", "no hook but a function"),
        ("relative/hooks.py", "absolute path"),
        ("/nowhere/hooks.py", "is the file there"),
        ("json", "holds no hook"),
    ],
)
def test_what_cannot_be_had_says_why(file: Path, name: str, why: str) -> None:
    """A name that leads nowhere is refused, with what to do."""
    assert file.exists()
    with pytest.raises(ConfigError, match=why):
        found(name)


def test_a_file_that_fails_is_not_half_there(tmp_path: Path) -> None:
    """A file that raises is tried anew the next time."""
    file = tmp_path / "hooks.py"
    file.write_text("raise SystemExit(3)\n")
    with pytest.raises(ConfigError, match="SystemExit: 3"):
        found(str(file))
    file.write_text(TEXT)
    assert len(found(str(file))) == 2


def test_switches_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    """What is switched off is never guessed."""
    assert read_switches(str(tmp_path / "none")) == frozenset()
    (tmp_path / "hooks.json").write_text("{")
    with pytest.raises(ConfigError, match=r"cannot read .*hooks\.json"):
        read_switches(str(tmp_path / "hooks.json"))
