"""Which extensions there are for a folder, and the command that lists, trusts and switches them."""

from __future__ import annotations

import fcntl
import json
import py_compile
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from orch.cli import run
from orch.config.trust import Trusted
from orch.resources.extensions import disable, enable, extension_specs, find, templates_for, trust, untrust
from orch_protocol.agent.config import Config
from orch_protocol.core.errors import ConfigError
from orch_worker.extensions.loader import load
from orch_worker.system import atomic_json

CODE = """
def register(extension):
    @extension.hook("tool_result")
    def shout(event, ctx): ...

    @extension.tool
    def count_words(text: str) -> int:
        "Count words."
"""
SAID = 'version = "2"\ndescription = "shouts"\n[permissions]\nstages = ["tool_result"]\ntools = ["count_words"]\n'


def put(place: Path, name: str = "pack", code: str = CODE) -> Path:
    """Write an extension below `place`."""
    folder = place / name
    folder.mkdir(parents=True)
    (folder / "extension.toml").write_text(f'name = "{name}"\n{SAID}')
    (folder / "extension.py").write_text(code)
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, and a project's folder that one is in."""
    (tmp_path / "home").mkdir()
    (tmp_path / "project").mkdir()
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "home"


@pytest.fixture
def project(home: Path) -> Path:
    """Return the project's folder for extensions."""
    return home.parent / "project" / ".orch" / "extensions"


def there(home: Path) -> dict[str, str]:
    """Return the extensions for the project, and why each one is off."""
    return {each.name: each.why_off for each in find(home.parent / "project", home)}


def test_a_users_own_are_on_and_a_projects_are_not(home: Path, project: Path) -> None:
    """What lies in one's own home is one's own; what came with a project is read first."""
    put(home / "extensions", "own")
    put(project)
    assert there(home)["own"] == ""
    assert "was not trusted: read it, then orch extensions trust pack" in there(home)["pack"]


def test_trust_is_for_what_was_read(home: Path, project: Path) -> None:
    """A trusted one is on, until anything in its folder changes, or it is not trusted any more."""
    folder = put(project)
    trust(folder, home)
    assert there(home) == {"pack": ""}
    (folder / "helper.py").write_text("x = 1\n")
    assert "was changed since it was trusted" in there(home)["pack"]
    trust(folder, home)
    assert untrust(folder, home)
    assert not untrust(folder, home)
    assert "was not trusted" in there(home)["pack"]


def test_a_worker_looks_again(home: Path, project: Path) -> None:
    """What is changed between the spawn and the start of a process does not run."""
    folder = put(project)
    trust(folder, home)
    [spec] = extension_specs(find(home.parent / "project", home), home)
    assert load(spec).hooks
    (folder / "extension.py").write_text(CODE + "\n")
    with pytest.raises(ConfigError, match="changed since it was trusted"):
        load(spec)


def test_what_runs_is_what_was_trusted(home: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither bytecode that lies beside it, which no hash is of, nor what takes its place while it is imported."""
    code = "import sys\nfrom . import helper\nfrom .deep import well\n{}\nseen = helper.said, well.said\n" + CODE
    swap = "from pathlib import Path\nPath(__file__).with_name('late.py').write_text('said = 2')\nfrom . import late"
    folder = put(project, code=code.format(""))
    (folder / "deep").mkdir()
    for file in ("helper.py", "deep/well.py"):
        source = folder / file
        source.write_text("said = 'evil'\n")
        compiled = py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
        source.write_text("said = 'good'\n")
        assert Path(compiled).parent.name == "__pycache__"
    trust(folder, home)
    [spec] = extension_specs(find(home.parent / "project", home), home)
    load(spec)
    [module] = [each for name, each in sys.modules.items() if getattr(each, "seen", None)]
    assert module.seen == ("good", "good")
    monkeypatch.syspath_prepend(str(folder / "deep"))
    assert __import__("well").said == "good"
    (folder / "extension.py").write_text(code.format(swap))
    trust(folder, home)
    [spec] = extension_specs(find(home.parent / "project", home), home)
    with pytest.raises(ConfigError, match=r"may not change|was not there when its folder was looked at"):
        load(spec)


def test_trust_that_is_given_at_the_same_time_is_not_lost(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads the record to change it has it alone until it is changed."""
    file, read, others = home / "trusted.json", atomic_json.read, []

    def meanwhile(*asked: Any) -> Any:
        found = read(*asked)
        with open(home / "trusted.json.lock", "rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                others.append("has to wait")
        return found

    monkeypatch.setattr(atomic_json, "read", meanwhile)
    record = Trusted(file)
    record.add("mine", "1")
    record.add("theirs", "2")
    assert record.remove("mine")
    assert others == ["has to wait"] * 3
    assert record.known() == {"theirs": "2"}


def test_off_is_off_everywhere_until_it_is_on(home: Path, project: Path) -> None:
    """A disabled one is off, trusted or not, and says how to get it back."""
    trust(put(project), home)
    assert disable("pack", home)
    assert not disable("pack", home)
    assert there(home) == {"pack": "it was disabled: orch extensions enable pack"}
    assert enable("pack", home)
    assert not enable("pack", home)
    assert there(home) == {"pack": ""}


def test_of_two_of_one_name_the_users_own_is_on(home: Path, project: Path) -> None:
    """A project cannot put its own in the place of one of the user's."""
    put(home / "extensions")
    trust(put(project), home)
    own, other = find(home.parent / "project", home)
    assert (own.where, own.why_off) == ("user", "")
    assert "there is another one of that name" in other.why_off


def test_a_broken_one_hides_no_other(home: Path) -> None:
    """Without a manifest that can be read it is off, and the others are on."""
    put(home / "extensions", "good")
    (put(home / "extensions", "bad") / "extension.toml").write_text("name = 1")
    found = there(home)
    assert found["good"] == ""
    assert "bad/extension.toml" in found["bad"]


def test_tools_are_those_named_or_all(home: Path) -> None:
    """An agent that is spawned with a list of tools has those of it that are an extension's."""
    put(home / "extensions")
    found = find(home.parent, home)
    assert [spec.tools for spec in extension_specs(found, home)] == [("count_words",)]
    assert [spec.tools for spec in extension_specs(found, home, ["read_file"])] == [()]


def test_a_packages_is_found_by_its_entry_point(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package offers its folder under a name; one that nobody offers is an error."""
    put(tmp_path / "site", "offered")
    (tmp_path / "site" / "offered" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "site")
    offered = [EntryPoint("short", "offered", "orch.extensions")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: offered)
    [found] = find(home.parent, home, ["short"])
    assert (found.name, found.where, found.why_off) == ("offered", "package", "")
    with pytest.raises(ConfigError, match=r"offers 'long' as orch.extensions; there are: short"):
        find(home.parent, home, ["long"])


class TestTemplates:
    """Templates of prompts that extensions bring."""

    def test_those_that_code_registers_are_those_that_the_manifest_names(self, home: Path) -> None:
        """An extension that brings others is left out whole: none of its code's templates is there."""
        code = 'def register(extension):\n    extension.register_prompt_template("terse", "Say {{what}} in a word.")\n'
        for name, permitted in (("good", "terse"), ("bad", "long")):
            folder = put(home / "extensions", name, code)
            said = f'name = "{name}"\n[permissions]\nprompts = ["{permitted}"]\n'
            (folder / "extension.toml").write_text(said)
        there = templates_for(Config(), home.parent / "project", home)
        assert [template.name for template in there.all()] == ["good:terse"]
        assert there.asked("good:terse", {"what": "all"}).identity == "Say all in a word."
        with pytest.raises(ConfigError, match=r"template 'good:terse' \(extension good\) needs what"):
            there.asked("good:terse", None)
        [bad] = extension_specs([each for each in find(home.parent, home) if each.name == "bad"], home)
        with pytest.raises(ConfigError, match=r"permissions\.prompts has no 'terse': it may not bring it"):
            load(bad)

    @pytest.mark.usefixtures("home")
    def test_those_of_extensions_that_are_on_are_there(
        self, home: Path, project: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """They are named after their extension, filled in like all others, and gone when it is off."""
        for place, name in ((home / "extensions", "own"), (project, "theirs")):
            (put(place, name) / "prompts").mkdir()
            (place / name / "prompts" / "review.md").write_text("You review {{language}}.\n")
        found = templates_for(Config(), project.parents[1], home)
        assert [template.name for template in found.all()] == ["own:review"]
        assert found.asked("own:review", {"language": "Rust"}).identity == "You review Rust."
        assert run(["prompts", "own:review", "--var", "language=Rust"]) == 0
        assert capsys.readouterr().out == "You review Rust.\n"
        disable("own", home)
        with pytest.raises(ConfigError, match="unknown template 'own:review'"):
            found.asked("own:review", {"language": "Rust"})


class TestCommand:
    """`orch extensions`."""

    def data(self, capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
        """Return what it prints with --json."""
        assert run(["extensions", *argv, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    def test_a_project_is_read_trusted_and_listed(
        self, home: Path, project: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The list says why it is off without running any of it, and once it is trusted what it brings."""
        marker = home / "ran"
        put(project, code=f"import os\nos.makedirs({str(marker)!r}, exist_ok=True)\n{CODE}")
        [row] = self.data(capsys, "list")
        assert (row["on"], row["version"], row["permissions"]["stages"]) == (False, "2", ["tool_result"])
        assert not marker.exists()
        self.data(capsys, "trust", "pack")
        [row] = self.data(capsys, "list")
        assert (row["on"], row["hooks"], row["tools"]) == (True, ["pack.shout"], ["count_words"])
        assert run(["extensions", "list"]) == 0
        assert "stages: tool_result; tools: count_words" in capsys.readouterr().out
        assert run(["extensions", "show", "pack"]) == 0
        assert "may: tools:" in capsys.readouterr().out
        assert self.data(capsys, "untrust", "pack") == {"untrusted": True}

    def test_one_that_fails_is_off_and_says_why(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """What cannot be loaded is told of in the list."""
        put(home / "extensions", code="import nowhere\n")
        assert run(["extensions", "list"]) == 0
        out, err = capsys.readouterr()
        assert " no " in out
        assert "No module named 'nowhere'" in err

    def test_off_and_on(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Switching says whether anything changed."""
        put(home / "extensions")
        assert self.data(capsys, "disable", "pack") == {"name": "pack", "enabled": False, "changed": True}
        assert self.data(capsys, "list")[0]["on"] is False
        assert self.data(capsys, "enable", "pack")["changed"] is True

    @pytest.mark.parametrize("verb", ["trust", "untrust", "disable"])
    @pytest.mark.usefixtures("home")
    def test_one_that_is_not_there(self, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
        """The error says so."""
        assert run(["extensions", verb, "../pack"]) == 3
        assert "there is no extension '../pack'" in capsys.readouterr().err

    @pytest.mark.usefixtures("home")
    def test_none_at_all(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Without any it says where to read on."""
        assert run(["extensions", "list"]) == 0
        assert capsys.readouterr().out == "no extensions: see docs/extensions.md\n"
