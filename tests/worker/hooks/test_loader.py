"""Loading the hooks of a configuration, by module, by file and by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch_protocol.core.errors import ConfigError
from orch_protocol.hooks.options import HookOptions
from orch_worker.hooks.loader import configured_hooks, read_disabled_hooks

TEXT = """
from orch_worker.hooks.hook import hook

@hook("turn_end")
def first(event, ctx): ...

@hook("turn_end", name="second")
def other(event, ctx): ...

def plain(event, ctx): ...
"""


def found(*names: str) -> list[tuple[str, str]]:
    """Return the names and sources of the hooks that `names` refer to."""
    return [(hook.row.name, hook.row.source) for hook in configured_hooks(names, HookOptions())]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with hooks that is also an importable module."""
    file = tmp_path / "house_of_hooks.py"
    file.write_text(TEXT)
    monkeypatch.syspath_prepend(str(tmp_path))
    return file


def test_hooks_are_loaded_from_modules_and_files(file: Path) -> None:
    """A reference loads one hook or all hooks, and each hook has its reference as the source."""
    assert found("house_of_hooks:other") == [("second", "config: house_of_hooks:other")]
    assert [name for name, _ in found("house_of_hooks")] == ["house_of_hooks.first", "second"]
    assert found(f"{file}:first") == [("house_of_hooks.first", f"config: {file}:first")]
    assert [name for name, _ in found(str(file))] == ["house_of_hooks.first", "second"]


def test_file_is_loaded_as_one_module(file: Path) -> None:
    """Two hooks from one file share the globals of the file."""
    one, two = configured_hooks([f"{file}:first", f"{file}:other"], HookOptions())
    assert one.handler.__globals__ is two.handler.__globals__  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nowhere_at_all:x", "install it in the environment of orch"),
        ("house_of_hooks:third", "does not exist"),
        ("house_of_hooks:plain", "not a hook but a function"),
        ("relative/hooks.py", "absolute path"),
        ("/nowhere/hooks.py", "is the file there"),
        ("json", "contains no hook"),
    ],
)
def test_unknown_hook_reference_is_refused(file: Path, name: str, why: str) -> None:
    """The error states the cause or the correction."""
    assert file.exists()
    with pytest.raises(ConfigError, match=why):
        found(name)


def test_failed_hook_file_is_loaded_again_the_next_time(tmp_path: Path) -> None:
    file = tmp_path / "hooks.py"
    file.write_text("raise SystemExit(3)\n")
    with pytest.raises(ConfigError, match="SystemExit: 3"):
        found(str(file))
    file.write_text(TEXT)
    assert len(found(str(file))) == 2


def test_unreadable_disabled_hooks_file_is_an_error(tmp_path: Path) -> None:
    """A missing file means that no hook is disabled."""
    assert read_disabled_hooks(str(tmp_path / "none")) == frozenset()
    (tmp_path / "hooks.json").write_text("{")
    with pytest.raises(ConfigError, match=r"cannot read .*hooks\.json"):
        read_disabled_hooks(str(tmp_path / "hooks.json"))
