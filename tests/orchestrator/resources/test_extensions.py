"""Extensions for a folder: where they are found, when they are on, and the command `orch extensions`."""

from __future__ import annotations

import json
import py_compile
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from orch.cli import run
from orch.config.trust import revoke
from orch.resources.extensions import disable, enable, extension_specs, find, templates_for, trust
from orch_protocol.agent.config import Config
from orch_protocol.core.errors import ConfigError, EntryNotFoundError
from orch_worker.extensions.loader import load

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
    """A home, with the current folder set to an empty project."""
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
    """Return the names of the extensions for the project, with the reason why each one is off."""
    return {each.name: each.why_off for each in find(home.parent / "project", home)}


def test_user_extensions_are_on_and_project_extensions_are_off(home: Path, project: Path) -> None:
    """An extension of a project is off until the user trusts it."""
    put(home / "extensions", "own")
    put(project)
    assert there(home)["own"] == ""
    assert "was not trusted: read it, then orch extensions trust pack" in there(home)["pack"]


def test_trust_ends_when_the_extension_changes(home: Path, project: Path) -> None:
    """A trusted extension is on until a file in its folder changes or the trust is revoked."""
    folder = put(project)
    trust(folder, home)
    assert there(home) == {"pack": ""}
    (folder / "helper.py").write_text("x = 1\n")
    assert "was changed since it was trusted" in there(home)["pack"]
    trust(folder, home)
    assert revoke(home, "extension", folder)
    assert not revoke(home, "extension", folder)
    assert "was not trusted" in there(home)["pack"]


def test_extension_changed_before_the_worker_starts_is_not_loaded(home: Path, project: Path) -> None:
    """A change after the spawn and before the start of the process raises ConfigError."""
    folder = put(project)
    trust(folder, home)
    [spec] = extension_specs(find(home.parent / "project", home), home)
    assert load(spec).hooks
    (folder / "extension.py").write_text(CODE + "\n")
    with pytest.raises(ConfigError, match="changed since it was trusted"):
        load(spec)


def test_trusted_code_is_the_code_that_runs(home: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytecode next to the source is ignored, and an import of a file that appears during the import is an error."""
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
    with pytest.raises(ConfigError, match=r"may not change|did not exist when its folder was read"):
        load(spec)


def test_disabled_extension_stays_off_until_enabled(home: Path, project: Path) -> None:
    """The reason names the command that enables the extension."""
    trust(put(project), home)
    assert disable("pack", home)
    assert not disable("pack", home)
    assert there(home) == {"pack": "it was disabled: orch extensions enable pack"}
    assert enable("pack", home)
    assert not enable("pack", home)
    assert there(home) == {"pack": ""}


def test_user_extension_overrides_a_project_extension_of_the_same_name(home: Path, project: Path) -> None:
    """This also applies if the project's extension is trusted."""
    put(home / "extensions")
    trust(put(project), home)
    own, other = find(home.parent / "project", home)
    assert (own.where, own.why_off) == ("user", "")
    assert "has the same name" in other.why_off


def test_broken_extension_hides_no_other(home: Path) -> None:
    """An extension without a valid manifest is off, and the other extensions are on."""
    put(home / "extensions", "good")
    (put(home / "extensions", "bad") / "extension.toml").write_text("name = 1")
    found = there(home)
    assert found["good"] == ""
    assert "bad/extension.toml" in found["bad"]


def test_tool_list_selects_extension_tools(home: Path) -> None:
    """An agent that is spawned with a list of tools gets only the extension tools in the list."""
    put(home / "extensions")
    found = find(home.parent, home)
    assert [spec.tools for spec in extension_specs(found, home)] == [("count_words",)]
    assert [spec.tools for spec in extension_specs(found, home, ["read_file"])] == [()]


def test_packaged_extension_is_found_by_its_entry_point(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown name is an error that lists the known names."""
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
    """Prompt templates of extensions."""

    def test_undeclared_template_disables_the_extension(self, home: Path) -> None:
        """An extension that registers a template without permission cannot be loaded, and has no templates."""
        code = 'def register(extension):\n    extension.register_prompt_template("terse", "Say {{what}} in a word.")\n'
        for name, permitted in (("good", "terse"), ("bad", "long")):
            folder = put(home / "extensions", name, code)
            text = f'name = "{name}"\n[permissions]\nprompts = ["{permitted}"]\n'
            (folder / "extension.toml").write_text(text)
        there = templates_for(Config(), home.parent / "project", home)
        assert [template.name for template in there.all()] == ["good:terse"]
        assert there.prompt_spec("good:terse", {"what": "all"}).identity == "Say all in a word."
        with pytest.raises(ConfigError, match=r"template 'good:terse' \(extension good\) needs what"):
            there.prompt_spec("good:terse", None)
        [bad] = extension_specs([each for each in find(home.parent, home) if each.name == "bad"], home)
        with pytest.raises(
            ConfigError, match=r"permissions\.prompts does not contain 'terse': this template may not be registered"
        ):
            load(bad)

    @pytest.mark.usefixtures("home")
    def test_templates_of_enabled_extensions_exist(
        self, home: Path, project: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The name of a template begins with the name of its extension."""
        for place, name in ((home / "extensions", "own"), (project, "theirs")):
            (put(place, name) / "prompts").mkdir()
            (place / name / "prompts" / "review.md").write_text("You review {{language}}.\n")
        found = templates_for(Config(), project.parents[1], home)
        assert [template.name for template in found.all()] == ["own:review"]
        assert found.prompt_spec("own:review", {"language": "Rust"}).identity == "You review Rust."
        assert run(["prompts", "own:review", "--var", "language=Rust"]) == 0
        assert capsys.readouterr().out == "You review Rust.\n"
        disable("own", home)
        with pytest.raises(EntryNotFoundError, match="unknown template 'own:review'"):
            found.prompt_spec("own:review", {"language": "Rust"})


class TestCommand:
    """`orch extensions`."""

    def data(self, capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
        """Return the output of `orch extensions` with --json."""
        assert run(["extensions", *argv, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    def test_extension_is_shown_trusted_and_listed(
        self, home: Path, project: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The code of an extension that is not trusted does not run for the list."""
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

    def test_failing_extension_is_listed_with_the_reason(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The extension is listed as off, and the reason is on stderr."""
        put(home / "extensions", code="import nowhere\n")
        assert run(["extensions", "list"]) == 0
        out, err = capsys.readouterr()
        assert " no " in out
        assert "No module named 'nowhere'" in err

    def test_extension_is_switched_off_and_on(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The result says whether the state changed."""
        put(home / "extensions")
        assert self.data(capsys, "disable", "pack") == {"name": "pack", "enabled": False, "changed": True}
        assert self.data(capsys, "list")[0]["on"] is False
        assert self.data(capsys, "enable", "pack")["changed"] is True

    @pytest.mark.parametrize("verb", ["trust", "untrust", "disable"])
    @pytest.mark.usefixtures("home")
    def test_unknown_extension_is_an_error(self, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
        """The exit code is 3, and the error has the name."""
        assert run(["extensions", verb, "../pack"]) == 3
        assert "no extension named '../pack'" in capsys.readouterr().err

    @pytest.mark.usefixtures("home")
    def test_empty_extension_list_gives_a_hint(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The hint names the page about extensions."""
        assert run(["extensions", "list"]) == 0
        assert capsys.readouterr().out == "no extensions; see docs/guides/extensions.md\n"
