"""Trust in the configuration of a project, and in the code that it names."""

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orch.config import config
from orch.config.config import load
from orch.config.trust import code_of, project_file, revoke, trust, trust_file
from orch_protocol.core.errors import ConfigError
from orchestrator.config import test_config


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    return test_config.write(file, text)


def test_trust_depends_on_content_and_folder(home: Path, project: Path, tmp_path: Path) -> None:
    """A changed file and a copy in another folder are not trusted."""
    own = write(project_file(project), 'model = "openai:1"\n')
    assert trust(project, home, config.check) == (own, ())
    assert load(project, {}, home=home).config.model == "openai:1"
    linked = tmp_path / "link"
    linked.symlink_to(project)
    assert load(linked, {}, home=home).config.model == "openai:1"
    copy = write(project_file(tmp_path / "copy"), own.read_text())
    assert load(copy.parent.parent, {}, home=home).config.model is None
    write(own, 'model = "openai:evil"\n')
    assert load(project, {}, home=home).config.model is None
    trust(project, home, config.check)
    assert revoke(home, "project", project)
    assert not revoke(home, "project", project)
    assert load(project, {}, home=home).config.model is None


def test_trust_record_is_private(home: Path, project: Path) -> None:
    """The record is private under any umask."""
    write(project_file(project), "")
    before = os.umask(0)
    try:
        trust(project, home, config.check)
    finally:
        os.umask(before)
    modes = {file.name: file.stat().st_mode & 0o777 for file in home.iterdir()}
    assert modes == {"trust.json": 0o600, "trust.json.lock": 0o600}


def test_trusting_a_folder_without_configuration_is_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing to trust: .*config\.toml"):
        trust(tmp_path, home, config.check)


@pytest.mark.parametrize("text", ["= 3", "modle = 3", 'model = "nope:1"', "limits.max_turns = 0"])
def test_invalid_file_cannot_be_trusted(home: Path, project: Path, text: str) -> None:
    """The error has the file and the line."""
    own = write(project_file(project), text)
    with pytest.raises(ConfigError, match=f"not trusted: {own}, line 1"):
        trust(project, home, config.check)
    assert not (home / "trust.json").exists()


def test_damaged_trust_record_is_an_error(home: Path, project: Path) -> None:
    """A damaged record counts neither as empty nor as complete."""
    write(home / "trust.json", "[")
    write(project_file(project), "")
    with pytest.raises(ConfigError, match=r"cannot read .*trust\.json"):
        load(project, {}, home=home)


# --- Code that the configuration names ---

HOOK = """
import helper_of_house
from house_package.part import judge
from orch import hook


@hook("before_output")
def sign(event, ctx):
    return event
"""


@pytest.fixture
def house(home: Path, project: Path) -> Path:
    """A folder of a trusted project. It contains a hook file, a module and a package that the hook imports."""
    house = project / "house"
    write(house / "hooks.py", HOOK)
    write(house / "helper_of_house.py", "MARK = 1\n")
    write(project / "house_package" / "__init__.py", "")
    write(project / "house_package" / "part.py", "def judge():\n    from . import deeper\n")
    write(project / "house_package" / "deeper.py", "")
    write(project / "other.py", "")
    write(project_file(project), f'hooks.load = ["{house}/hooks.py", "{project}/later.py"]\n')
    trust(project, home, config.check)
    assert is_active(home, project)
    return house


def is_active(home: Path, project: Path) -> bool:
    """Return whether the configuration of the project is trusted and names code."""
    loaded = load(project, {}, home=home)
    assert bool(loaded.config.hooks.load) == (loaded.code is not None) == (not loaded.notes)
    return loaded.code is not None


def swap_for_link(path: Path) -> None:
    target = write(path.with_name("elsewhere.txt"), f"{path.read_text()}\n# other\n")
    path.unlink()
    path.symlink_to(target)


def append(path: Path) -> None:
    path.write_text(f"{path.read_text()}\n")


CHANGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "hook file": ("house/hooks.py", append),
    "hook file becomes a link": ("house/hooks.py", swap_for_link),
    "hook file removed": ("house/hooks.py", Path.unlink),
    "imported module": ("house/helper_of_house.py", append),
    "imported module becomes a link": ("house/helper_of_house.py", swap_for_link),
    "package in place of the module": ("house/helper_of_house/__init__.py", lambda path: write(path, "")),
    "module of a package": ("house_package/part.py", append),
    "module imported in a function": ("house_package/deeper.py", append),
    "new module of the package": ("house_package/new.py", lambda path: write(path, "")),
    "compiled module in place of the source": (
        "house/helper_of_house.cpython-3{}-x86_64-linux-gnu.so".replace("{}", str(sys.version_info.minor)),
        lambda path: write(path, ""),
    ),
    "module that shadows an imported one": ("helper_of_house.py", lambda path: write(path, "")),
    "named file is created": ("later.py", lambda path: write(path, HOOK)),
    "the configuration": (".orch/config.toml", append),
}


@pytest.mark.skipif(sys.platform != "linux", reason="the suffix of compiled modules is that of Linux")
@pytest.mark.usefixtures("house")
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_named_code_ends_the_trust_and_is_named(home: Path, project: Path, change: str) -> None:
    """The folder is trusted again only when the user trusts it again."""
    name, alter = CHANGES[change]
    alter(project / name)
    loaded = load(project, {}, home=home)
    assert loaded.config.hooks.load == ()
    (note,) = loaded.notes
    assert f"because these files changed: {name}, so" in note
    assert note.endswith(f"orch config trust {project}")
    trust(project, home, config.check)
    assert is_active(home, project)


@pytest.mark.usefixtures("house")
@pytest.mark.parametrize("name", ["other.py", "house/notes.txt", "house_package/data.json", "house/unused.py"])
def test_files_that_are_not_named_may_change(home: Path, project: Path, name: str) -> None:
    """Work on the project does not end the trust."""
    write(project / name, "changed")
    assert is_active(home, project)


def test_planted_bytecode_is_no_change_and_does_not_run(house: Path, home: Path, project: Path) -> None:
    """Caches are not part of the trusted content, because code of a project runs from source."""
    write(house / "__pycache__" / f"helper_of_house.{sys.implementation.cache_tag}.pyc", "")
    assert is_active(home, project)


def test_restoring_the_content_restores_the_trust(house: Path, home: Path, project: Path) -> None:
    """The content counts, not the time of a change."""
    before = (house / "hooks.py").read_text()
    write(house / "hooks.py", "raise SystemExit\n")
    assert not is_active(home, project)
    write(house / "hooks.py", before)
    assert is_active(home, project)


@pytest.mark.usefixtures("house")
def test_trust_without_code_does_not_cover_code_that_is_named_later(home: Path, project: Path) -> None:
    """A model of a provider in models.json is not code. Without this provider, the same setting names a class."""
    file = project_file(project)
    trust_file(home, "project").accept(project, hashlib.sha256(file.read_bytes()).hexdigest())
    assert "was trusted without the code that it names" in load(project, {}, home=home).notes[0]
    trust(project, home, config.check)
    assert is_active(home, project)


SETTINGS: dict[str, tuple[Any, str]] = {
    "hooks.load": (["house_x:sign"], "house_x.py"),
    "policy.function": ("house_x:judge", "house_x.py"),
    "memory.provider": ("house_x:make", "house_x.py"),
    "model": ("house_x:Backend", "house_x.py"),
    "hooks.assess.model": ("house_x.part:Backend", "house_x/part.py"),
    "subagents.models": (["house_x:Backend"], "house_x.py"),
    "prompt.templates": (["texts"], "texts/role.md"),
}


@pytest.mark.parametrize("key", SETTINGS)
def test_each_setting_that_names_code_or_texts_is_covered(
    home: Path, project: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The configuration is the user's choice again after a change of what it names."""
    value, name = SETTINGS[key]
    write(project / name, "")
    if name.endswith("/part.py"):
        write(project / "house_x/__init__.py", "")
    monkeypatch.syspath_prepend(str(project))
    monkeypatch.setenv("PYTHONPATH", str(project))
    table, _, setting = key.rpartition(".")
    write(project_file(project), (f"[{table}]\n" if table else "") + f"{setting} = {json.dumps(value)}\n")
    trust(project, home, config.check)
    assert load(project, {}, home=home).code is not None
    write(project / name, "# changed\n")
    assert f"because these files changed: {name}, so" in load(project, {}, home=home).notes[0]


def test_a_file_without_code_needs_no_list_of_files(home: Path, project: Path) -> None:
    """Built-in hooks and models of providers are not code of the project."""
    values = {"hooks.load": ("tool_router",), "model": "openai:gpt", "policy.denied_paths": ("x.py",)}
    assert code_of(project, values, home) is None


def test_skills_folders_of_a_project_need_trust_in_each_skill(home: Path, project: Path, tmp_path: Path) -> None:
    """An absolute path into the project is no way around the trust in skills. Other folders belong to the user."""
    write(project_file(project), f'skills.folders = ["{project}/own", "{tmp_path}/shared", "~/skills"]\n')
    trust(project, home, config.check)
    assert load(project, {}, home=home).config.skills.folders == ("own", f"{tmp_path}/shared", "~/skills")
